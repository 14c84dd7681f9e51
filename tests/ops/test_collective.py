"""Collectives over mesh axes: what every shard gets, and the gradients, against the same on whole
tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import check

import spmd
from spmd import P
from spmd.manual import all_reduce

SHARDS = 4


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(spmd.config, "partitioner", request.param)
    return request.param


def rows(x: torch.Tensor) -> torch.Tensor:
    """The values of the shards, in a dim in front."""
    return x.reshape(SHARDS, x.shape[0] // SHARDS, *x.shape[1:])


def turned(x: torch.Tensor) -> torch.Tensor:
    return spmd.manual.collective_permute(
        x, [(i, (i + 1) % SHARDS) for i in range(SHARDS)], "model"
    )


Case = tuple[Callable[[Any], Any], Any, Callable[[torch.Tensor], torch.Tensor]]

# What a shard does with its rows, how the results are joined, and the same of the whole.
CASES: dict[str, Case] = {
    "sum": (lambda x: spmd.manual.all_reduce(x, "sum", "model"), P(), lambda x: rows(x).sum(0)),
    "mean": (lambda x: spmd.manual.all_reduce(x, "mean", "model"), P(), lambda x: rows(x).mean(0)),
    "max": (lambda x: spmd.manual.all_reduce(x, "max", "model"), P(), lambda x: rows(x).amax(0)),
    "min": (lambda x: spmd.manual.all_reduce(x, "min", "model"), P(), lambda x: rows(x).amin(0)),
    "product": (lambda x: spmd.manual.all_reduce(x, "product", "model"), P(),
        lambda x: rows(x).prod(0)),
    "all_gather": (lambda x: spmd.manual.all_gather(x, 0, "model"), P(), lambda x: x),
    "all_gather of columns": (lambda x: spmd.manual.all_gather(x, -1, "model"), P(),
        lambda x: torch.cat(rows(x).unbind(0), 1)),
    "all_gather along a new dim": (lambda x: spmd.manual.all_gather(x, 1, "model", tiled=False),
        P(), lambda x: rows(x).movedim(0, 1)),
    "all_gather, then different": (lambda x: spmd.manual.all_gather(x, 0, "model") * x.sum(),
        P("model"), lambda x: (x[None] * rows(x).sum((1, 2))[:, None, None]).flatten(0, 1)),
    "reduce_scatter": (lambda x: spmd.manual.reduce_scatter(x, "sum", 1, "model"), P(None, "model"),
        lambda x: rows(x).sum(0)),
    "reduce_scatter mean": (lambda x: spmd.manual.reduce_scatter(x, "mean", 1, "model"),
        P(None, "model"), lambda x: rows(x).mean(0)),
    "reduce_scatter max": (lambda x: spmd.manual.reduce_scatter(x, "max", 1, "model"),
        P(None, "model"), lambda x: rows(x).amax(0)),
    "reduce_scatter product": (lambda x: spmd.manual.reduce_scatter(x, "product", 1, "model"),
        P(None, "model"), lambda x: rows(x).prod(0)),
    "all_to_all": (lambda x: spmd.manual.all_to_all(x, 1, 0, "model"), P(None, "model"),
        lambda x: x),
    "all_to_all along one dim": (lambda x: spmd.manual.all_to_all(x, 1, 1, "model"), P("model"),
        lambda x: rows(x).reshape(SHARDS, 2, SHARDS, 2).permute(2, 1, 0, 3).reshape(x.shape)),
    "collective_permute": (turned, P("model"), lambda x: x.roll(2, 0)),
    "collective_permute with an end": (
        lambda x: spmd.manual.collective_permute(
            x, [(i, i + 1) for i in range(SHARDS - 1)], "model",
        ),
        P("model"), lambda x: torch.cat([torch.zeros_like(x[:2]), x[:-2]]),
    ),
    "broadcast": (lambda x: spmd.manual.broadcast(x, 2, "model"), P(), lambda x: rows(x)[2]),
    "axis_index": (lambda x: x * spmd.manual.axis_index("model"), P("model"),
        lambda x: x * torch.arange(SHARDS).repeat_interleave(2)[:, None]),
    "a sum of what is the same": (
        lambda x: all_reduce(torch.ones_like(x) * all_reduce(x, "sum", "model"), "sum", "model"),
        P(), lambda x: SHARDS * rows(x).sum(0),
    ),
}  # fmt: skip


class TestValuesAndGradients:
    """Of every collective, with all axes manual and with one left to the partitioner."""

    @pytest.mark.parametrize("axis_names", [None, "model"])
    def test_of_floats(self, partitioner: str, axis_names: Any) -> None:
        mesh = spmd.Mesh(range(8), (2, SHARDS), ("data", "model"))
        values = torch.randn(8, 8)
        given = {name: values.to("xla").requires_grad_() for name in CASES}
        weights = {name: torch.randn(whole(values).shape) for name, (_, _, whole) in CASES.items()}
        mapped = spmd.shard_map(
            lambda given: {name: one(given[name]) for name, (one, _, _) in CASES.items()},
            mesh,
            P("model"),
            {name: spec for name, (_, spec, _) in CASES.items()},
            axis_names=axis_names,
        )
        made = mapped(given)
        sum((made[name] * weights[name].to("xla")).sum() for name in CASES).backward()
        spmd.sync()
        for name, (_, _, whole) in CASES.items():
            other = values.clone().requires_grad_()
            expected = whole(other)
            (expected * weights[name]).sum().backward()
            check(made[name], expected)
            check(given[name].grad, other.grad)

    @pytest.mark.parametrize("axis_names", [None, "model"])
    def test_of_other_dtypes(self, partitioner: str, axis_names: Any) -> None:
        mesh = spmd.Mesh(range(8), (2, SHARDS), ("data", "model"))
        numbers = torch.arange(64).reshape(8, 8)

        def shard(x: Any) -> Any:
            return {
                "int64": spmd.manual.all_reduce(x, "sum", "model"),
                "int8": spmd.manual.all_reduce(x.to(torch.int8), "max", "model"),
                "all": spmd.manual.all_reduce(x > 20, "and", "model"),
                "any": spmd.manual.all_reduce(x > 20, "or", "model"),
                "bits": spmd.manual.all_reduce(x, "and", "model"),
                "bfloat16": spmd.manual.all_reduce(x.bfloat16(), "sum", "model"),
                "float16": spmd.manual.reduce_scatter(x.half(), "sum", 1, "model"),
                "gathered": spmd.manual.all_gather(x > 20, 0, "model"),
                "sent": spmd.manual.broadcast(x > 20, 3, "model"),
                "turned": turned(x.bfloat16()),
            }

        specs = {
            name: P()
            for name in ("int64", "int8", "all", "any", "bits", "bfloat16", "gathered", "sent")
        }
        specs |= {"float16": P(None, "model"), "turned": P("model")}
        made = spmd.shard_map(shard, mesh, P("model"), specs, axis_names=axis_names)(
            numbers.to("xla")
        )
        own = rows(numbers)
        check(made["int64"], own.sum(0))
        check(made["int8"], own.to(torch.int8).amax(0))
        check(made["all"], (own > 20).all(0))
        check(made["any"], (own > 20).any(0))
        check(made["bits"], own[0] & own[1] & own[2] & own[3])
        check(made["bfloat16"], own.bfloat16().sum(0))
        check(made["float16"], own.half().sum(0))
        check(made["gathered"], numbers > 20)
        check(made["sent"], own[3] > 20)
        check(made["turned"], numbers.bfloat16().roll(2, 0))

    def test_over_several_axes(self, partitioner: str) -> None:
        """The first axis that is named is the outermost."""
        mesh = spmd.Mesh(range(8), (2, 2, 2), ("a", "b", "c"))
        numbers = torch.arange(16.0).reshape(8, 2)

        def shard(x: Any) -> Any:
            return (
                spmd.manual.all_gather(x, 0, ("a", "b", "c")),
                spmd.manual.all_gather(x, 0, ("c", "a")),
                spmd.manual.all_reduce(x, "sum", ("b", "a")),
                spmd.manual.axis_index(("c", "b")).reshape(1),
                x * spmd.manual.axis_size(("a", "c")),
            )

        specs = (P(), P("b"), P("c"), P(("a", "b", "c")), P(("a", "b", "c")))
        made = spmd.shard_map(shard, mesh, P(("a", "b", "c")), specs)(numbers.to("xla"))
        cube = numbers.reshape(2, 2, 2, 2)
        check(made[0], numbers)
        check(made[1], cube.permute(1, 2, 0, 3).reshape(8, 2))
        check(made[2], cube.sum((0, 1)))
        check(made[3], torch.tensor([0, 2, 1, 3, 0, 2, 1, 3]))
        check(made[4], numbers * 4)

    def test_an_equal_maximum_is_shared(self) -> None:
        mesh = spmd.Mesh(range(SHARDS), (SHARDS,), ("model",))
        x = torch.tensor([3.0, 1.0, 3.0, 2.0]).to("xla").requires_grad_()
        spmd.shard_map(lambda x: spmd.manual.all_reduce(x, "max", "model"), mesh, P("model"), P())(
            x
        ).sum().backward()
        assert x.grad.tolist() == [0.5, 0.0, 0.5, 0.0]


def refuses(
    error: type[Exception], text: str, one: Callable[[Any], Any], axis_names: Any = None
) -> None:
    mesh = spmd.Mesh(range(8), (2, SHARDS), ("data", "model"))
    with pytest.raises(error) as caught:
        spmd.shard_map(one, mesh, P("model"), P(), axis_names=axis_names)(
            torch.ones(8, 6, device="xla")
        )
    assert text in str(caught.value), str(caught.value)


class TestErrors:
    """Each says what came, what is there, and what to do."""

    def test_outside(self) -> None:
        with pytest.raises(
            RuntimeError,
            match=r"spmd.manual.all_reduce at .*test_collective.py.* called outside spmd.shard_map",
        ):
            spmd.manual.all_reduce(torch.ones(2, device="xla"), "sum", "model")

    def test_axis(self) -> None:
        refuses(
            ValueError,
            "there is no axis 'modle' in the mesh (axes: 'data', 'model'); did you mean 'model'?",
            lambda x: spmd.manual.all_reduce(x, "sum", "modle"),
        )
        refuses(
            ValueError,
            "axis 'data' is left to the partitioner here (manual: 'model'); name it in axis_names",
            lambda x: spmd.manual.all_gather(x, 0, "data"),
            ("model",),
        )
        refuses(
            ValueError,
            "axis 'data' is used twice",
            lambda x: spmd.manual.axis_index(("data", "data")),
        )
        refuses(
            ValueError,
            "expected an axis, one of 'data', 'model'",
            lambda x: spmd.manual.all_reduce(x),
        )

    def test_op(self) -> None:
        refuses(
            ValueError,
            "there is no op 'summ' (ops: 'sum'",
            lambda x: spmd.manual.all_reduce(x, "summ", "model"),
        )
        refuses(
            TypeError,
            "a sum of bools; use 'or' or 'and'",
            lambda x: spmd.manual.all_reduce(x > 0, "sum", "model"),
        )
        refuses(
            TypeError,
            "a mean of torch.int32 is no",
            lambda x: spmd.manual.all_reduce(x.int(), "mean", "model"),
        )
        refuses(
            TypeError,
            "'and' takes bools and integers",
            lambda x: spmd.manual.all_reduce(x, "and", "model"),
        )
        refuses(
            TypeError,
            "complex numbers have no max",
            lambda x: spmd.manual.all_reduce(x + 0j, "max", "model"),
        )

    def test_dims(self) -> None:
        refuses(
            IndexError,
            "a shard of shape [2, 6] has no dim 2",
            lambda x: spmd.manual.all_gather(x, 2, "model"),
        )
        refuses(
            ValueError,
            "dim 1 of a shard of shape [2, 6] has 6 elements, which the 4 shards along 'model' do "
            "not",
            lambda x: spmd.manual.reduce_scatter(x, "sum", 1, "model"),
        )
        refuses(ValueError, "do not divide", lambda x: spmd.manual.all_to_all(x, 1, 0, "model"))

    def test_places(self) -> None:
        refuses(
            ValueError,
            "target 4 of [(0, 4)] is out of range; 'model' has the indices 0 to 3",
            lambda x: spmd.manual.collective_permute(x, [(0, 4)], "model"),
        )
        refuses(
            ValueError,
            "1 is used twice as target in [(0, 1), (2, 1)]",
            lambda x: spmd.manual.collective_permute(x, [(0, 1), (2, 1)], "model"),
        )
        refuses(
            ValueError,
            "source 4 is out of range; 'model' has 4 shards",
            lambda x: spmd.manual.broadcast(x, 4, "model"),
        )

    def test_tensor(self) -> None:
        refuses(
            TypeError,
            "expected a tensor on xla, got 'float'",
            lambda x: spmd.manual.all_reduce(1.0, "sum", "model"),
        )
        refuses(
            TypeError,
            "got one on cpu",
            lambda x: spmd.manual.all_reduce(torch.ones(2), "sum", "model"),
        )
