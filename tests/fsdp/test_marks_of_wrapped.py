"""Annotations of a model that FSDP has wrapped: they keep its axis, or say that it is dropped."""

import warnings

import pytest
import torch

import fsdp
import spmd
from spmd import P


@pytest.fixture
def mesh() -> spmd.Mesh:
    return spmd.Mesh(range(8), (2, 4), ("fsdp", "tensor"))


def wrapped(mesh: spmd.Mesh) -> fsdp.FullyShardedDataParallel:
    return fsdp.FullyShardedDataParallel(torch.nn.Linear(16, 32).to("xla"), mesh)


class TestRules:
    """`ShardingRules.apply` after the wrapping."""

    def test_over_the_same_mesh_they_keep_the_axis(self, mesh: spmd.Mesh) -> None:
        model = wrapped(mesh)
        spmd.ShardingRules({"weight": P("tensor", None)}).apply(model, mesh)
        assert spmd.get_sharding(model.weight).partition_spec(2) == ("tensor", "fsdp")

    @pytest.mark.parametrize("axes", [("data", "tensor"), ("tensor", "fsdp")])
    def test_over_another_mesh_they_raise(self, mesh: spmd.Mesh, axes: tuple[str, str]) -> None:
        model = wrapped(mesh)
        before = spmd.get_sharding(model.weight)
        other = spmd.Mesh(range(8), (2, 4), axes)
        with pytest.raises(
            ValueError,
            match=(
                r"has wrapped the model over the mesh \{'fsdp': 2, 'tensor': 4\} and shards weight"
            ),
        ):
            spmd.ShardingRules({"weight": P("tensor", None)}).apply(model, other)
        assert spmd.get_sharding(model.weight) is before

    def test_an_axis_that_the_mesh_lacks(self, mesh: spmd.Mesh) -> None:
        with pytest.raises(ValueError, match=r"(?s)'tensr'.*did you mean 'tensor'"):
            spmd.ShardingRules({"weight": P("tensr", None)}).apply(wrapped(mesh), mesh)


class TestMarkSharding:
    """`mark_sharding` of a wrapped parameter: the annotation is the user's, and its cost is
    said."""

    @pytest.mark.parametrize("spec", [P("tensor", None), P(None, None)])
    def test_a_dropped_axis(self, mesh: spmd.Mesh, spec: P) -> None:
        model = wrapped(mesh)
        with pytest.warns(
            UserWarning, match=r"FSDP shards this parameter \[32, 16\] over 'fsdp'.*drops that axis"
        ):
            spmd.mark_sharding(model.weight, mesh, spec)
        assert spmd.get_sharding(model.weight).partition_spec(2) == tuple(spec)

    def test_what_keeps_the_axis_or_is_no_parameter(self, mesh: spmd.Mesh) -> None:
        model = wrapped(mesh)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            spmd.mark_sharding(model.weight, mesh, P(("tensor", "fsdp"), None))
            spmd.mark_sharding(model.weight.detach().clone(), mesh, P("tensor", None))
            with fsdp.FullyShardedDataParallel.summon_full_params(model):
                spmd.mark_sharding(model.weight, mesh, P("tensor", None))
            model.to(torch.bfloat16)
