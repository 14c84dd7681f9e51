"""XLAShardedTensor: what PyTorch/XLA's wrapper answers, the tensor answers itself."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard

import spmd
from spmd import Mesh
from spmd.torch_xla import XLAShardedTensor


class TestInstance:
    """isinstance: a tensor on xla that is annotated, or lies in pieces; no class stands between it
    and its graph."""

    def test_annotated(self, mesh8: Mesh) -> None:
        x = torch.ones(8, 8).to("xla")
        assert not isinstance(x, XLAShardedTensor)
        assert isinstance(spmd.mark_sharding(x, mesh8, (None, None)), XLAShardedTensor)
        assert not isinstance(spmd.clear_sharding(x), XLAShardedTensor)
        view = spmd.mark_sharding(x, mesh8, ("fsdp", None))[1:]
        assert not isinstance(view, XLAShardedTensor)
        assert isinstance(spmd.mark_sharding(view, mesh8, (None, "fsdp")), XLAShardedTensor)
        weight = nn.Parameter(x)
        assert isinstance(weight, XLAShardedTensor) and isinstance(weight, nn.Parameter)
        assert not isinstance(torch.ones(2), XLAShardedTensor) and not isinstance(
            "x", XLAShardedTensor
        )

    def test_computed(self, mesh8: Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh8, ("fsdp", None))
        y, total = x * 2, x.sum()
        assert not isinstance(y, XLAShardedTensor)
        spmd.sync()
        assert isinstance(y, XLAShardedTensor) and not isinstance(total, XLAShardedTensor)

    def test_wrapping(self, mesh8: Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8).to("xla"), mesh8, ("fsdp",)).requires_grad_()
        y = x * 2
        for wrapped in (
            spmd.torch_xla.wrap_if_sharded(y),
            spmd.torch_xla.wrap_as_sharded_tensor(y),
            spmd.torch_xla.unwrap_sharded_tensor(y),
            XLAShardedTensor(y),
            y.global_tensor,
        ):
            assert wrapped is y
        assert spmd.torch_xla.wrap_if_sharded([1]) == [1]
        assert spmd.torch_xla.wrap_as_sharded_tensor(x, mesh8.mesh_shape, ("fsdp",)) is x
        with pytest.raises(
            TypeError, match="XLAShardedTensor: expected a tensor on xla, got 'list'"
        ):
            XLAShardedTensor([1])
        x = torch.ones(2, device="xla")
        assert XLAShardedTensor(x, (8,), partition_spec=(None,)) is x
        for make in (XLAShardedTensor, spmd.torch_xla.wrap_as_sharded_tensor):
            with pytest.raises(
                TypeError, match="argument 'partition_spek'; did you mean 'partition_spec'"
            ):
                make(x, partition_spek=(0,))
            with pytest.raises(
                TypeError, match="argument 'device'; expected mesh_shape or partition_spec"
            ):
                make(x, device="xla")
            with pytest.raises(TypeError, match="positional argument"):
                make(x, (8,), (0,), "more")


class TestArguments:
    """mesh_shape and partition_spec mark the tensor; one on the CPU comes to xla."""

    def test_marked(self) -> None:
        source = torch.arange(64.0).view(8, 8)
        x = XLAShardedTensor(source, (2, 4), (1, None))
        assert x.device.type == "xla" and torch.equal(x.cpu(), source)
        assert (x.mesh_shape, x.partition_spec) == ((2, 4), (1, None))
        assert len({shard.indices[0].start for shard in x.local_shards}) == 4
        again = spmd.torch_xla.wrap_as_sharded_tensor(x, partition_spec=(0, 1))
        assert again is x and x.sharding_spec == "{devices=[2,4]0,1,2,3,4,5,6,7}"

    def test_names_of_its_mesh(self, mesh2x4: Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh2x4, ("data", None))
        assert XLAShardedTensor(x, (2, 4), ("fsdp", None)).partition_spec == ("fsdp", None)

    def test_one_without_the_other(self) -> None:
        with pytest.raises(ValueError, match=r"expected mesh_shape and partition_spec, got \(8,\)"):
            XLAShardedTensor(torch.ones(8, device="xla"), (8,))

    def test_spec_of_dtensor(self, mesh2x4: Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8, 4).to("xla"), mesh2x4, (None, "fsdp"))
        spec = x._spec
        assert spec is x._spec and spec.placements == (Replicate(), Shard(1))
        assert spec.mesh.shape == (2, 4) and spec.tensor_meta.shape == (8, 4)
        spmd.mark_sharding(x, mesh2x4, ("fsdp", None))
        assert x._spec.placements == (Replicate(), Shard(0))
        with pytest.raises(ValueError, match="_spec: the tensor has no sharding yet"):
            _ = (x * 2)._spec


class TestIndices:
    """The indices of `.local_shards` are PyTorch/XLA's: slices, and `...` where each shard is all
    of the tensor."""

    def test_replicated(self, mesh8: Mesh) -> None:
        x = spmd.mark_sharding(torch.arange(6.0).reshape(2, 3).to("xla"), mesh8, (None, None))
        shards = x.local_shards
        assert [shard.indices for shard in shards] == [...] * 8
        assert isinstance(shards[0], spmd.torch_xla.XLAShard) and torch.equal(
            shards[3].unpadded_data, x.cpu()
        )
        for shard in shards:
            shard.unpadded_data = shard.unpadded_data + 1
        x.load_local_shards_(shards)
        assert x.tolist() == [[1, 2, 3], [4, 5, 6]]
        with pytest.raises(ValueError, match=r"unpadded_data: expected shape \[2, 3\], got \[3\]"):
            shards[0].unpadded_data = torch.ones(3)
        # our own name has slices
        assert spmd.local_shards(x)[0].indices == (slice(0, 2), slice(0, 3))

    def test_sharded(self, mesh2x4: Mesh) -> None:
        x = spmd.mark_sharding(torch.arange(8.0).to("xla"), mesh2x4, ("data",))
        assert [shard.indices for shard in x.local_shards[3:5]] == [
            [slice(0, 4, 1)],
            [slice(4, 8, 1)],
        ]
        assert [shard.unpadded_data.tolist() for shard in x.local_shards[3:5]] == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
        ]


class TestErrors:
    """Checks that PyTorch/XLA makes by assertions raise what is an AssertionError, too."""

    @pytest.mark.parametrize(
        "make",
        [
            lambda mesh: Mesh(range(8), (2, 2), ("a", "b")),
            lambda mesh: Mesh(range(8), (2, 4), ("a",)),
            lambda mesh: Mesh(range(8), (2, 4), ("a", "a")),
            lambda mesh: Mesh([0, 0], (2,)),
            lambda mesh: Mesh([800], (1,)),
            lambda mesh: spmd.mark_sharding(torch.ones(2, device="xla"), mesh, ("data", None)),
            lambda mesh: spmd.mark_sharding(torch.ones(2, 2, device="xla"), mesh, ("data", "data")),
            lambda mesh: spmd.torch_xla.ShardingSpec(mesh, ("data", "data")),
        ],
    )
    def test_assertions(self, make: Callable[[Mesh], object], mesh2x4: Mesh) -> None:
        for kind in (ValueError, AssertionError):
            with pytest.raises(kind):
                make(mesh2x4)

    def test_unknown_axis(self, mesh2x4: Mesh) -> None:
        with pytest.raises(ValueError, match="'modle'") as raised:
            spmd.mark_sharding(torch.ones(2, device="xla"), mesh2x4, ("modle",))
        assert not isinstance(raised.value, AssertionError)

    def test_device_ids(self, mesh2x4: Mesh) -> None:
        assert mesh2x4.device_ids.tolist() == [*range(8)]


class TestAttributes:
    """mesh_shape, partition_spec, sharding_spec, local_shards, load_local_shards_, reshard."""

    def test_of_a_sharded_tensor(self, mesh2x4: Mesh) -> None:
        source = torch.arange(64.0).view(8, 8)
        x = spmd.mark_sharding(source.to("xla"), mesh2x4, (("fsdp", "data"), None))
        assert x.mesh_shape == (2, 4) and x.partition_spec == (("fsdp", "data"), None)
        assert x.sharding_spec == "{devices=[8,1]0,4,1,5,2,6,3,7}"
        assert x.sharding_type is spmd.torch_xla.ShardingType.TILED
        shards = x.local_shards
        for shard in shards:
            shard.data = shard.data + 1
        assert x.load_local_shards_(shards) is x and torch.equal(x.cpu(), source + 1)
        assert x.reshard((None, "data")).partition_spec == (None, "data")
        moved = x.redistribute(placements=[Replicate(), Shard(1)])
        assert (
            moved.partition_spec == (None, "fsdp")
            and moved.sharding_type is spmd.torch_xla.ShardingType.PARTIAL
        )
        assert x.redistribute(
            spmd.Mesh(range(8), (4, 2), ("data", "fsdp"))
        ).sharding_spec.startswith("{devices=[8,1]0,2,4")
        assert (x + 1).sum().item() == (source + 2).sum().item()

    def test_of_what_is_not(self) -> None:
        x = torch.ones(8).to("xla")
        y = x * 2
        assert (y.mesh_shape, y.partition_spec, y.sharding_spec, y.sharding_type) == (
            None,
            None,
            "",
            None,
        )
        with pytest.raises(ValueError, match="redistribute: expected placements, got none"):
            y.redistribute()
        with pytest.raises(ValueError, match="a view has no shards of its own"):
            _ = y[1:].local_shards
