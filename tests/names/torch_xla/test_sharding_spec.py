"""ShardingSpec and ShardingType: PyTorch/XLA's words for a layout of what is to come."""

import pytest
import torch

import spmd
from spmd import P
from spmd.torch_xla import ShardingSpec, ShardingType
from spmd.torch_xla.sharding_spec import sharding_type


class TestShardingSpec:
    def test_apply(self, mesh2x4: spmd.Mesh) -> None:
        spec = ShardingSpec(mesh2x4, ("data", None))
        x = torch.arange(16.0).reshape(4, 4)
        resharded = spec.apply(x)
        assert (
            spmd.get_sharding(resharded) is spec.xla_spec(x) is mesh2x4.sharding(("data", None), 2)
        )
        assert torch.equal(resharded.cpu(), x)
        assert spec.apply(resharded) is resharded  # already there: itself

    def test_minibatch(self, mesh2x4: spmd.Mesh) -> None:
        """With one process its part is the whole; over a part of the axes, which PyTorch/XLA
        refused."""
        resharded = ShardingSpec(mesh2x4, ("data", None), minibatch=True).apply(torch.ones(4, 4))
        assert resharded.shape == (4, 4) and spmd.get_sharding(resharded) is mesh2x4.sharding(
            ("data", None), 2
        )

    def test_rank(self, mesh8: spmd.Mesh) -> None:
        """A tensor of another rank has no layout by the spec, and is refused, not replicated in
        silence."""
        spec = ShardingSpec(mesh8, ("fsdp",))
        assert not spec.can_apply(torch.ones(2, 2)) and spec.xla_spec(torch.ones(2, 2)) is None
        with pytest.raises(ValueError, match="has 1 entries, but the tensor has 2 dims"):
            spec.apply(torch.ones(2, 2))

    def test_checked_when_made(self, mesh2x4: spmd.Mesh) -> None:
        # of a mesh of higher rank
        assert ShardingSpec(mesh2x4, ("data",)).xla_spec(torch.ones(2)) is not None
        with pytest.raises(ValueError, match=r"ShardingSpec: axis 'dta'(.|\n)*did you mean 'data'"):
            ShardingSpec(mesh2x4, ("dta", None))
        with pytest.raises(ValueError, match="ShardingSpec: axis 'data' is used twice"):
            ShardingSpec(mesh2x4, ("data", "data"))


def test_types(mesh2x4: spmd.Mesh) -> None:
    assert sharding_type(None, 1) is ShardingType.UNKNOWN
    assert sharding_type(mesh2x4.sharding((None,), 1), 1) is ShardingType.REPLICATED
    assert sharding_type(mesh2x4.sharding(("data",), 1), 1) is ShardingType.PARTIAL
    assert sharding_type(mesh2x4.sharding(("data", "fsdp"), 2), 2) is ShardingType.TILED
    assert sharding_type(mesh2x4.sharding(P(P.UNCONSTRAINED), 1), 1) is ShardingType.UNKNOWN
