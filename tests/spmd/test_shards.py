"""local_shards: the pieces of a tensor, where each lies in the whole, and what get_sharding says of
them."""

import numpy as np
import pytest
import torch

import spmd
from spmd import Mesh


def assembled(x: torch.Tensor) -> torch.Tensor:
    """The whole put together from the pieces, each element written at least once."""
    whole = torch.full(x.shape, float("nan"))
    for shard in spmd.local_shards(x):
        piece = shard.unpadded_data
        place = whole[shard.indices]
        assert piece.shape == place.shape
        place.copy_(piece)
    assert not whole.isnan().any()
    return whole


class TestPieces:
    """Shapes, indices, devices and replica ids are those that the spec says."""

    @pytest.mark.parametrize(
        "spec",
        [
            ("data", None),
            (None, "fsdp"),
            ("data", "fsdp"),
            ("fsdp", "data"),
            (("data", "fsdp"), None),
            (("fsdp", "data"), None),
        ],
        ids=str,
    )
    def test_even(self, mesh2x4: Mesh, spec: tuple[object, ...]) -> None:
        source = torch.arange(128.0).view(8, 16)
        x = spmd.mark_sharding(source.to("xla"), mesh2x4, spec)
        shards = spmd.local_shards(x)
        sharding = spmd.get_sharding(x)
        assert [shard.device for shard in shards] == list(range(8))
        assert {tuple(shard.data.shape) for shard in shards} == {sharding.shard_shape((8, 16))}
        assert torch.equal(assembled(x), source) and torch.equal(x.cpu(), source)
        size = mesh2x4.shape()
        for shard in shards:
            place = dict(zip(size, np.unravel_index(shard.device, (2, 4)), strict=True))
            for dim, entry in enumerate(spec):
                index = 0
                for axis in () if entry is None else (entry,) if isinstance(entry, str) else entry:
                    index = index * size[axis] + place[axis]
                assert shard.indices[dim].start == index * shard.data.shape[dim]

    def test_tuple_order_matters(self, mesh2x4: Mesh) -> None:
        source = torch.arange(8.0)
        first = spmd.mark_sharding(source.to("xla"), mesh2x4, (("data", "fsdp"),))
        second = spmd.mark_sharding(source.to("xla"), mesh2x4, (("fsdp", "data"),))
        assert [shard.data.item() for shard in spmd.local_shards(first)] == [0, 1, 2, 3, 4, 5, 6, 7]
        assert [shard.data.item() for shard in spmd.local_shards(second)] == [
            0,
            2,
            4,
            6,
            1,
            3,
            5,
            7,
        ]

    def test_replicas(self, mesh2x4: Mesh) -> None:
        x = spmd.mark_sharding(torch.arange(4.0).to("xla"), mesh2x4, ("fsdp",))
        assert [shard.replica_id for shard in spmd.local_shards(x)] == [0, 0, 0, 0, 1, 1, 1, 1]
        whole = spmd.mark_sharding(torch.ones(3).to("xla"), mesh2x4, (None,))
        shards = spmd.local_shards(whole)
        assert [shard.replica_id for shard in shards] == list(range(8)) and shards[
            3
        ].data.tolist() == [1.0] * 3

    def test_unannotated(self) -> None:
        # a value without an annotation joins the mesh of what is pending, here what other tests
        # have left
        spmd.sync()
        (shard,) = spmd.local_shards(torch.arange(3.0, device="xla"))
        assert shard.data.tolist() == [0.0, 1.0, 2.0] and shard.indices == (slice(0, 3),)

    def test_dtypes(self, mesh8: Mesh) -> None:
        for dtype in (torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64):
            x = spmd.mark_sharding(torch.ones(8, dtype=dtype).to("xla"), mesh8, ("fsdp",))
            assert all(
                shard.data.dtype == dtype and shard.data.shape == (1,)
                for shard in spmd.local_shards(x)
            )

    def test_bytes_on_each_device(self, mesh8: Mesh) -> None:
        x = spmd.mark_sharding(torch.zeros(64, 64, device="xla"), mesh8, ("fsdp", None))
        spmd.sync()
        assert {shard.data.numel() * 8 for shard in spmd.local_shards(x)} == {64 * 64}


class TestErrors:
    """A value without shards says why."""

    def test_view(self) -> None:
        with pytest.raises(
            ValueError, match=r"a view has no shards of its own; pass its base, or \.clone"
        ):
            spmd.local_shards(torch.ones(4, device="xla")[1:])

    @pytest.mark.parametrize(
        "reader",
        [spmd.local_shards, spmd.get_sharding, spmd.clear_sharding],
        ids=lambda f: f.__name__,
    )
    def test_not_on_the_device(self, reader) -> None:
        with pytest.raises(
            TypeError,
            match=(
                rf"{reader.__name__}: expected a tensor on xla, got one on cpu; move it with "
                r'.to\("xla"\)'
            ),
        ):
            reader(torch.ones(2))
        with pytest.raises(TypeError, match=r"expected a tensor on xla, got 'list'"):
            reader([1.0])
