"""from_local_shards and load_local_shards_: tensors put together from pieces, and what is wrong
with pieces."""

import math

import pytest
import torch

import spmd
from spmd import Mesh
from spmd.tensors.shards import Shard

CASES = [
    ((8,), (1,), (0,)),
    ((8, 6), (2,), (None, 0)),
    ((8, 4), (2, 2), (1, 0)),
    ((9, 5), (2, 4), (0, 1)),
    ((9, 5), (2, 4), ((1, 0), None)),
    ((7, 3, 2), (2, 2, 2), (2, (0, 1), None)),
    ((3,), (8,), (None,)),
    ((), (8,), ()),
]


def mesh_of(shape: tuple[int, ...], *, start: int = 0) -> Mesh:
    """The last devices, in reverse: no order that one would guess."""
    count = math.prod(shape)
    return Mesh(range(count - 1 + start, start - 1, -1), shape)


class TestInverse:
    """The result of local_shards makes the same tensor again, of any dtype, with padding that holds
    anything."""

    @pytest.mark.parametrize(("shape", "mesh_shape", "spec"), CASES, ids=str)
    def test_round_trip(
        self, shape: tuple[int, ...], mesh_shape: tuple[int, ...], spec: tuple[object, ...]
    ) -> None:
        source = torch.randn(shape)
        x = spmd.mark_sharding(source.to("xla"), mesh_of(mesh_shape), spec)
        shards = spmd.local_shards(x)
        for shard in shards:
            inside = shard.unpadded_data.clone()
            shard.data.fill_(float("nan"))
            shard.unpadded_data = inside
        made = [
            spmd.from_local_shards(shards[::-1], spmd.get_sharding(x), shape=shape),
            spmd.from_local_shards(
                [shard.data for shard in shards], mesh_of(mesh_shape), spec, shape
            ),
            spmd.load_local_shards_(
                spmd.mark_sharding(torch.zeros(shape, device="xla"), spmd.get_sharding(x)), shards
            ),
        ]
        for y in made:
            assert torch.equal(y.cpu(), source) and spmd.get_sharding(y) is spmd.get_sharding(x)
            assert (y * 2).sum().item() == (x * 2).sum().item()

    @pytest.mark.parametrize(
        "dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
    )
    def test_dtypes(self, dtype: torch.dtype, mesh8: Mesh) -> None:
        pieces = [torch.full((2,), i).to(dtype) for i in range(8)]
        x = spmd.from_local_shards(pieces, mesh8, ("fsdp",))
        assert x.dtype is dtype and x.shape == (16,)
        assert [value for piece in pieces for value in piece.tolist()] == x.tolist()

    def test_pieces_are_copied(self, mesh8: Mesh) -> None:
        pieces = [torch.ones(4) for _ in range(8)]
        x = spmd.from_local_shards(pieces, mesh8, ("fsdp",))
        for piece in pieces:
            piece.zero_()
        assert x.sum().item() == 32

    def test_no_shape_is_a_multiple(self, mesh2x4: Mesh) -> None:
        x = spmd.from_local_shards([torch.ones(3, 2)] * 8, mesh2x4, ("data", None))
        assert x.shape == (6, 2) and len(spmd.local_shards(x)) == 8

    def test_nothing_in_them(self, mesh8: Mesh) -> None:
        assert spmd.from_local_shards([torch.ones(0, 3)] * 8, mesh8, ("fsdp", None)).shape == (0, 3)


class TestLoad:
    """load_local_shards_ writes in place: layout, object and graph of later ops stay."""

    def test_parameter(self, mesh8: Mesh) -> None:
        layer = torch.nn.Linear(8, 8).to("xla")
        spmd.mark_sharding(layer.weight, mesh8, ("fsdp", None))
        version = layer.weight._version
        returned = spmd.load_local_shards_(
            layer.weight, [torch.full((1, 8), float(i)) for i in range(8)]
        )
        assert returned is layer.weight and layer.weight._version > version
        assert layer.weight[:, 0].tolist() == [*range(8)]
        layer(torch.ones(2, 8, device="xla")).sum().backward()
        assert spmd.get_sharding(layer.weight.grad) is spmd.get_sharding(layer.weight)

    def test_what_was_to_be_computed_is_not(self, mesh8: Mesh) -> None:
        spmd.sync()
        x = spmd.mark_sharding(torch.randn(8, device="xla").exp(), mesh8, ("fsdp",))
        before = spmd.metrics.counter("runs")
        spmd.load_local_shards_(x, [torch.ones(1)] * 8)
        assert x.tolist() == [1.0] * 8 and spmd.metrics.counter("runs") == before

    def test_copies_are_given_once_each(self, mesh2x4: Mesh) -> None:
        x = spmd.mark_sharding(torch.zeros(4, device="xla"), mesh2x4, ("data",))
        nan = torch.tensor([float("nan"), 1.0])
        spmd.load_local_shards_(
            x, [nan.clone() for _ in range(4)] + [torch.ones(2) for _ in range(4)]
        )
        assert x.cpu().isnan().tolist() == [True, False, False, False]


class TestErrors:
    """A wrong number, shape, dtype, device or kind of shard is named."""

    @pytest.fixture
    def x(self, mesh8: Mesh) -> torch.Tensor:
        return spmd.mark_sharding(torch.zeros(10, 2, device="xla"), mesh8, ("fsdp", None))

    def both(self, x: torch.Tensor, shards: object, error: type[Exception], text: str) -> None:
        with pytest.raises(error, match="load_local_shards_: " + text):
            spmd.load_local_shards_(x, shards)
        with pytest.raises(error, match="from_local_shards: " + text):
            spmd.from_local_shards(shards, spmd.get_sharding(x), shape=x.shape)

    def test_number(self, x: torch.Tensor) -> None:
        text = r"expected a shard for each of this process's 8 devices .*0, 1, 2, .*, got 7"
        self.both(x, [torch.ones(2, 2)] * 7, ValueError, text)

    def test_shape(self, x: torch.Tensor) -> None:
        pieces = [torch.ones(2, 2) for _ in range(8)]
        pieces[5] = torch.ones(1, 2)
        text = (
            r"expected shards of shape \[2, 2\], as a tensor of shape \[10, 2\] has under .*, got "
            r"\[1, 2\] for device 5"
        )
        self.both(x, pieces, ValueError, text)

    def test_dtype(self, x: torch.Tensor) -> None:
        pieces = [torch.ones(2, 2) for _ in range(8)]
        pieces[3] = torch.ones(2, 2, dtype=torch.float64)
        self.both(
            x,
            pieces,
            ValueError,
            r"expected shards of torch\.float32, got torch\.float64 for device 3",
        )

    def test_devices(self, x: torch.Tensor) -> None:
        shards = spmd.local_shards(x)
        shards[2].device = 3
        self.both(
            x,
            shards,
            ValueError,
            r"expected one shard for each of the devices 0, .*, got shards of 0, 1, 3, 3, 4",
        )
        shards[2].device = 8
        self.both(x, shards, ValueError, "expected one shard .*, got shards of 0, 1, 8, 3")

    def test_kind(self, x: torch.Tensor) -> None:
        self.both(
            x, [[1.0, 2.0]] * 8, TypeError, "expected a CPU tensor for each local device, got list"
        )
        self.both(
            x,
            [torch.ones(2, 2, device="xla")] * 8,
            TypeError,
            "expected a CPU tensor .*, got one on xla",
        )

    def test_copies_that_differ(self, mesh2x4: Mesh) -> None:
        x = spmd.mark_sharding(torch.zeros(4, device="xla"), mesh2x4, ("data",))
        pieces = [torch.ones(2) for _ in range(8)]
        pieces[6] = torch.zeros(2)
        self.both(
            x,
            pieces,
            ValueError,
            r"devices 4 and 6 hold the same shard, \[2:4\], but were given different numbers",
        )

    def test_view(self, x: torch.Tensor) -> None:
        with pytest.raises(
            ValueError,
            match="load_local_shards_: expected a dense tensor that is no view, got a view",
        ):
            spmd.load_local_shards_(x[2:], [])

    def test_whole_shape(self, mesh8: Mesh) -> None:
        pieces = [torch.ones(2, 2)] * 8
        for shape in ((8, 2), (17, 2), (16,), (16, 3)):
            with pytest.raises(
                ValueError,
                match=r"shards of shape \[2, 2\] under .* make a tensor of shape \[16, 2\]",
            ):
                spmd.from_local_shards(pieces, mesh8, ("fsdp", None), shape)

    def test_none_and_open(self, mesh8: Mesh) -> None:
        with pytest.raises(
            TypeError,
            match="from_local_shards: expected a CPU tensor for each local device, got none",
        ):
            spmd.from_local_shards([], mesh8, ("fsdp",))
        with pytest.raises(
            ValueError, match="leaves a dim to the partitioner; shards need a sharding of every dim"
        ):
            spmd.from_local_shards([torch.ones(2)] * 8, mesh8, (spmd.P.UNCONSTRAINED,))

    def test_unpadded_data(self, x: torch.Tensor) -> None:
        shard = spmd.local_shards(x)[7]
        with pytest.raises(
            ValueError,
            match=r"unpadded_data: expected shape \[0, 2\] at \[10:10, 0:2\], got \[2, 2\]",
        ):
            shard.unpadded_data = torch.ones(2, 2)


class TestShard:
    """A Shard under PyTorch/XLA's names."""

    def test_names(self, mesh8: Mesh) -> None:
        assert spmd.torch_xla.XLAShard is Shard
        shard = spmd.local_shards(spmd.mark_sharding(torch.ones(8).to("xla"), mesh8, ("fsdp",)))[3]
        assert shard.shard_device == "CPU:3" and shard.unpadded_data.tolist() == [1.0]
        shard.unpadded_data = torch.tensor([5.0])
        assert shard.data.tolist() == [5.0]
