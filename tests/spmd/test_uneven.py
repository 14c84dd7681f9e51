"""Dims that a mesh does not divide: padded on devices, never seen by the user."""

import math
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from support import check

import spmd
from spmd import Mesh

CASES = [
    ((10,), (8,), ("a",)),
    ((3,), (8,), ("a",)),
    ((9, 5), (2, 4), ("a", "b")),
    ((9, 5), (2, 4), (("a", "b"), None)),
    ((7, 3, 2), (2, 4), ("b", None, "a")),
]


def made(
    shape: tuple[int, ...], mesh_shape: tuple[int, ...], spec: tuple[object, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same values on CPU and sharded; none is 0, so that a padding that leaks is seen."""
    mesh = Mesh(range(8), mesh_shape, ("a", "b")[: len(mesh_shape)])
    source = torch.arange(1.0, math.prod(shape) + 1).view(shape) + 0.5
    return source, spmd.mark_sharding(source.to("xla"), mesh, spec)


class TestShards:
    """A shard has ceil(dim / pieces) rows, zero-padded on the right; indices are of the whole,
    without padding."""

    def test_ten_rows_over_eight(self) -> None:
        source, x = made((10,), (8,), ("a",))
        shards = spmd.local_shards(x)
        assert [shard.data.tolist() for shard in shards] == [
            [1.5, 2.5],
            [3.5, 4.5],
            [5.5, 6.5],
            [7.5, 8.5],
            [9.5, 10.5],
            [0.0, 0.0],
            [0.0, 0.0],
            [0.0, 0.0],
        ]
        assert [(s.indices[0].start, s.indices[0].stop) for s in shards] == [
            (0, 2),
            (2, 4),
            (4, 6),
            (6, 8),
            (8, 10),
            (10, 10),
            (10, 10),
            (10, 10),
        ]
        assert [shard.unpadded_data.numel() for shard in shards] == [2, 2, 2, 2, 2, 0, 0, 0]
        assert x.shape == (10,) and torch.equal(x.cpu(), source)

    @pytest.mark.parametrize(("shape", "mesh_shape", "spec"), CASES, ids=str)
    def test_any(self, shape, mesh_shape, spec) -> None:
        source, x = made(shape, mesh_shape, spec)
        sizes = dict(zip("ab", mesh_shape, strict=False))
        pieces = [
            1
            if e is None
            else math.prod(sizes[axis] for axis in ((e,) if isinstance(e, str) else e))
            for e in spec
        ]
        expected = tuple(math.ceil(dim / cut) for dim, cut in zip(shape, pieces, strict=True))
        shards = spmd.local_shards(x)
        assert {tuple(shard.data.shape) for shard in shards} == {expected}
        assert spmd.get_sharding(x).shard_shape(shape) == expected
        whole = torch.zeros(shape)
        for shard in shards:
            whole[shard.indices] = shard.unpadded_data
        assert torch.equal(whole, source) and torch.equal(x.cpu(), source)


class TestComputing:
    """Results are those of the unpadded tensor; a reduction ignores the padding."""

    OPERATIONS: ClassVar[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
        "sum": lambda x: x.sum(),
        "mean": lambda x: x.mean(0),
        "prod": lambda x: (x / 10).prod(),
        "max": lambda x: (-x).max(),
        "min": lambda x: x.min(),
        "argmin": lambda x: x.argmin(),
        "norm": lambda x: x.norm(),
        "std": lambda x: x.std(),
        "softmax": lambda x: (x / 10).softmax(0),
        "exp": lambda x: (-x).exp().sum(0),
        "any": lambda x: (x == 0).any(),
        "all": lambda x: (x > 0).all(),
        "count": lambda x: (x > 3).sum(),
        "cumsum": lambda x: x.cumsum(0),
        "sort": lambda x: x.sort(0, descending=True)[0],
        "flip": lambda x: x.flip(0),
        "slice": lambda x: x[1:] * 2,
        "cat": lambda x: torch.cat([x, x + 1]),
        "reshape": lambda x: x.reshape(-1) + 1,
        "transpose": lambda x: x.movedim(0, -1) * 2,
        "matmul": lambda x: x.flatten(1) @ x.flatten(1).t() if x.dim() > 1 else x @ x,
        "elementwise": lambda x: x * x - 1,
    }

    @pytest.mark.parametrize(("shape", "mesh_shape", "spec"), CASES, ids=str)
    def test_values(self, shape, mesh_shape, spec) -> None:
        source, x = made(shape, mesh_shape, spec)
        results = {name: operation(x) for name, operation in self.OPERATIONS.items()}
        spmd.sync()
        for name, operation in self.OPERATIONS.items():
            try:
                check(results[name], operation(source))
            except AssertionError as error:
                raise AssertionError(name) from error

    def test_results_kept_uneven(self) -> None:
        source, x = made((10,), (8,), ("a",))
        y = spmd.mark_sharding(x * 2, Mesh(range(8), (8,), ("a",)), ("a",))
        spmd.sync()
        assert len(spmd.local_shards(y)[0].data) == 2
        check(y + x, source * 3)

    def test_in_place_steps(self) -> None:
        source, x = made((9, 5), (2, 4), ("a", "b"))
        for _ in range(3):
            x.mul_(2).add_(1)
            source.mul_(2).add_(1)
            spmd.sync()
            assert spmd.get_sharding(x).text(2) == "{devices=[2,4]0,1,2,3,4,5,6,7}"
            assert x.sum().item() == source.sum().item()
        x[8, 4] = -1
        source[8, 4] = -1
        check(x, source)

    def test_training(self) -> None:
        mesh = Mesh(range(8), (8,), ("a",))
        torch.manual_seed(0)
        expected, actual = torch.nn.Linear(10, 7), torch.nn.Linear(10, 7)
        actual.load_state_dict(expected.state_dict())
        actual.to("xla")
        spmd.mark_sharding(actual.weight, mesh, ("a", None))
        spmd.mark_sharding(actual.bias, mesh, ("a",))
        x = torch.randn(6, 10)
        for model, batch in (
            (expected, x),
            (actual, spmd.mark_sharding(x.to("xla"), mesh, ("a", None))),
        ):
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            for _ in range(3):
                model(batch).square().mean().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                spmd.sync()
        check(actual.weight, expected.weight)
        check(actual.bias, expected.bias)
        assert spmd.local_shards(actual.weight)[0].data.shape == (1, 10)

    @pytest.mark.parametrize("foreach", [False, True])
    def test_state_of_an_optimizer_lies_like_its_parameter(self, foreach: bool) -> None:
        """SGD's momentum begins as a copy of the gradient, which no annotation is on."""
        mesh = Mesh(range(8), (8,), ("a",))
        expected, actual = torch.nn.Linear(10, 7), torch.nn.Linear(10, 7)
        actual.load_state_dict(expected.state_dict())
        actual.to("xla")
        spmd.mark_sharding(actual.weight, mesh, ("a", None))
        spmd.mark_sharding(actual.bias, mesh, ("a",))
        x = torch.randn(6, 10)
        for model, batch in ((expected, x), (actual, x.to("xla"))):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=foreach)
            for _ in range(3):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
                spmd.sync()
        check(actual.weight, expected.weight)
        for parameter in actual.parameters():
            momentum = optimizer.state[parameter]["momentum_buffer"]
            assert spmd.get_sharding(momentum) is spmd.get_sharding(parameter)
            assert (
                spmd.local_shards(momentum)[0].data.shape
                == spmd.local_shards(parameter)[0].data.shape
            )

    def test_marking_to_another_padding(self) -> None:
        source, x = made((10,), (8,), ("a",))
        for size in (4, 3, 1, 8):
            spmd.mark_sharding(x, Mesh(range(size), (size,), ("a",)), ("a",))
            assert torch.equal(x.cpu(), source)

    def test_empty(self) -> None:
        x = spmd.mark_sharding(
            torch.zeros(0, 4, device="xla"), Mesh(range(8), (8,), ("a",)), ("a", None)
        )
        assert x.cpu().shape == (0, 4) and x.sum().item() == 0
