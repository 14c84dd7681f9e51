"""Helpers of the tests of stores: equal layers, which leaf a tensor has, how much memory is in
use."""

import gc

import jax
import torch
from support import check, distinct
from torch import nn

import spmd
from spmd.core.graph.graph import DeviceData
from spmd.core.graph.store import Store

LAYERS = 4


def live_bytes() -> int:
    spmd.sync(wait=True)
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


def leaf(tensor: torch.Tensor) -> DeviceData:
    value = tensor._storage.value
    assert type(value) is DeviceData
    return value


class Layers(nn.Module):
    """Equal parameters, and their twins on the CPU."""

    def __init__(
        self,
        mesh: spmd.Mesh | None,
        *shape: int,
        num: int = LAYERS,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        self.twins = [distinct(*shape, dtype=dtype) for _ in range(num)]
        self.layers = nn.ParameterList(
            nn.Parameter(twin.to("xla"), requires_grad=False) for twin in self.twins
        )
        for layer in self.layers:
            if mesh is not None:
                spmd.mark_sharding(layer, mesh, ("fsdp", None)[: len(shape)])
        spmd.sync()

    def step(self) -> None:
        """Writes them all in place."""
        for values in (self.layers, self.twins):
            for i, value in enumerate(values):
                value.mul_(-1).add_(i)
        spmd.sync()

    def check(self) -> None:
        for one, other in zip(self.layers, self.twins, strict=True):
            check(one, other)

    def stores(self) -> set[Store | None]:
        return {leaf(layer).store for layer in self.layers}
