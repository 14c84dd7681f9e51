"""A tensor resharded from any spec to any other, over any meshes of the same devices: values,
gradients, layouts."""

import itertools
import math
import random

import pytest
import torch
from support import check

import spmd
from spmd import Mesh

PAIRS = 16  # of one barrier
AXES = ("a", "b", "c")
SHAPES = [(8, 8), (16, 4), (9, 5), (3, 10), (7, 3, 2), (8, 2, 4), (5,), (1, 8)]
MESHES = {
    "8": Mesh(range(8), (8,), ("a",)),
    "2x4": Mesh(range(8), (2, 4), ("a", "b")),
    "cube": Mesh([0, 4, 1, 5, 2, 6, 3, 7], (2, 2, 2), AXES),
}


def drawn_spec(draw: random.Random, mesh: Mesh, rank: int) -> tuple[object, ...]:
    """Each axis on some dim or none, several on one dim in any order."""
    entries: list[tuple[str, ...]] = [()] * rank
    for axis in draw.sample(mesh.axis_names, len(mesh.axis_names)):
        dim = draw.randrange(-1, rank)
        if dim >= 0:
            entries[dim] = (*entries[dim], axis)
    return tuple(entry or None for entry in entries)


def shards_hold(tensor: torch.Tensor, expected: torch.Tensor) -> bool:
    """The shards together are the tensor, each of the shape that its spec says."""
    found = torch.full(expected.shape, float("nan"))
    shape = spmd.get_sharding(tensor).shard_shape(expected.shape)
    for shard in spmd.local_shards(tensor):
        found[shard.indices] = shard.unpadded_data
        if tuple(shard.data.shape) != tuple(shape):
            return False
    return torch.equal(found, expected)


@pytest.mark.partitioned("placement")
@pytest.mark.parametrize(("here", "there"), list(itertools.product(MESHES, repeat=2)))
def test_any_spec_to_any_spec(here: str, there: str) -> None:
    draw = random.Random(f"{here} {there}")
    made = []
    for _ in range(PAIRS):
        shape = draw.choice(SHAPES)
        source = torch.arange(1.0, math.prod(shape) + 1).view(shape)
        first = drawn_spec(draw, MESHES[here], len(shape))
        second = drawn_spec(draw, MESHES[there], len(shape))
        x = spmd.mark_sharding(source.to("xla"), MESHES[here], first).requires_grad_()
        y = spmd.reshard(x, second, MESHES[there])
        (grad,) = torch.autograd.grad((y * y).sum(), x)
        made.append(
            (
                f"{shape} {first} -> {second}",
                source,
                x,
                y,
                grad,
                MESHES[there].sharding(second, len(shape)),
            )
        )
    spmd.sync()
    for name, source, x, y, grad, asked in made:
        assert spmd.get_sharding(y) is asked, name
        assert shards_hold(y.detach(), source), name
        assert spmd.get_sharding(grad) is spmd.get_sharding(x), name
        check(grad, source * 2)
