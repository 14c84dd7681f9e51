"""Sums of products over a sharded dim: right values and gradients, and one reduction for each
sum."""

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch.nn import functional as F

import spmd
from spmd import P

MESHES = {
    "tensor 8": ((8,), ("tensor",)),
    "data 2, tensor 4": ((2, 4), ("data", "tensor")),
    "data 2, fsdp 2, tensor 2": ((2, 2, 2), ("data", "fsdp", "tensor")),
}
COUNTED = ["tensor 8", "data 2, tensor 4"]
Words = Sequence[str | None]
Step = Callable[..., torch.Tensor]


def laid_out(tensor: torch.Tensor, mesh: spmd.Mesh | None, *words: str | None) -> torch.Tensor:
    """The tensor, sharded over those of the axes that the mesh has; unchanged without a mesh."""
    if mesh is None:
        return tensor
    return spmd.mark_sharding(
        tensor, mesh, P(*(w if w in mesh.axis_names else None for w in words))
    )


def outcome(
    step: Step, tensors: Sequence[torch.Tensor], specs: Sequence[Words], mesh: spmd.Mesh | None
) -> list[torch.Tensor]:
    """The result and the gradients, on the CPU without a mesh."""
    leaves = [
        laid_out(x if mesh is None else x.to("xla"), mesh, *spec).requires_grad_()
        for x, spec in zip((x.clone() for x in tensors), specs, strict=True)
    ]
    result = step(mesh, *leaves)
    gradients = torch.autograd.grad(result.square().sum(), leaves)
    return [x.detach().cpu() for x in (result, *gradients)]


def num_reduced(
    step: Step, tensors: Sequence[torch.Tensor], specs: Sequence[Words], mesh: spmd.Mesh
) -> float:
    """The sums over the axis tensor, forward and backward, by their bytes in those of the input's
    rows on a device."""

    def run(*leaves: torch.Tensor) -> list[torch.Tensor]:
        marked = [
            laid_out(x, mesh, *spec).requires_grad_() for x, spec in zip(leaves, specs, strict=True)
        ]
        result = step(mesh, *marked)
        return [result, *torch.autograd.grad(result.square().sum(), marked)]

    plan = spmd.plan(run, *(x.to("xla") for x in tensors))
    num_bytes = tensors[0].nbytes * mesh.shape()["tensor"] / mesh.size()
    reduced = [x for x in plan.collectives if x.kind == "all-reduce" and x.axes == ("tensor",)]
    return sum(x.count * x.bytes for x in reduced) / num_bytes


INPUT = ("data", None, None)


def gated(mesh: spmd.Mesh | None, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    gate, up, down = weights
    x = laid_out(torch.tanh(x), mesh, "data", None, None)
    return laid_out(
        F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down), mesh, "data", None, None
    )


def attended(mesh: spmd.Mesh | None, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Two heads of keys for four of queries: products of several widths."""
    x = laid_out(torch.tanh(x), mesh, "data", None, None)
    query, key, value = (F.linear(x, weight) for weight in weights[:3])
    mixed = query * key.repeat(1, 1, 2) + value.repeat(1, 1, 2)
    return laid_out(F.linear(mixed, weights[3]), mesh, "data", None, None)


def in_parallel(mesh: spmd.Mesh | None, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Two branches of one layer, as GPT-J's, whose results are one sum forward, too."""
    up, down, first, second = weights
    x = laid_out(torch.tanh(x), mesh, "data", None, None)
    return F.linear(F.gelu(F.linear(x, up)), down) + F.linear(torch.sin(F.linear(x, first)), second)


COLUMNS, ROWS = ("tensor", None), (None, "tensor")
STEPS: dict[str, tuple[Step, list[tuple[int, int]], list[Words]]] = {
    "gated": (gated, [(32, 16), (32, 16), (16, 32)], [COLUMNS, COLUMNS, ROWS]),
    "attended": (
        attended,
        [(32, 16), (16, 16), (16, 16), (16, 32)],
        [COLUMNS, COLUMNS, COLUMNS, ROWS],
    ),
    "in parallel": (
        in_parallel,
        [(32, 16), (16, 32), (64, 16), (16, 64)],
        [COLUMNS, ROWS, COLUMNS, ROWS],
    ),
}


def made(shapes: Sequence[tuple[int, int]], dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 8, 16, dtype=dtype), *(torch.randn(s, dtype=dtype) for s in shapes)]


@pytest.mark.parametrize("name", STEPS)
class TestSums:
    @pytest.mark.parametrize("of_mesh", MESHES)
    def test_values(self, name: str, of_mesh: str) -> None:
        step, shapes, specs = STEPS[name]
        mesh = spmd.Mesh(range(8), *MESHES[of_mesh])
        tensors = made(shapes, torch.float64)
        of_all = [INPUT, *specs]
        expected = outcome(step, tensors, of_all, None)
        for found, wanted in zip(outcome(step, tensors, of_all, mesh), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("of_mesh", COUNTED)
    def test_one_reduction(self, name: str, of_mesh: str) -> None:
        """One forward and one backward."""
        step, shapes, specs = STEPS[name]
        mesh = spmd.Mesh(range(8), *MESHES[of_mesh])
        assert num_reduced(step, made(shapes, torch.float32), [INPUT, *specs], mesh) == 2


def test_cast_sums_stay_exact() -> None:
    """Sums of casts are in the wide dtype: no narrow sum takes their place."""
    mesh = spmd.Mesh(range(8), (8,), ("tensor",))
    torch.manual_seed(0)
    x, first, second = (torch.randn(s).bfloat16() for s in ((4, 8, 64), (16, 64), (16, 64)))

    def summed(of: spmd.Mesh | None) -> torch.Tensor:
        a, b, c = (
            laid_out(t if of is None else t.to("xla"), of, *words)
            for t, words in (
                (x, (None, None, "tensor")),
                (first, (None, "tensor")),
                (second, (None, "tensor")),
            )
        )
        return (F.linear(a, b).float() + F.linear(a, c).float()).cpu()

    found = summed(mesh)
    assert not found.equal(found.bfloat16().float())
    torch.testing.assert_close(found, summed(None), rtol=0.05, atol=0.5)


def test_other_sums_stay() -> None:
    """A factor, other axes, or a value that is no sum over devices."""
    mesh = spmd.Mesh(range(8), (2, 4), ("fsdp", "tensor"))
    torch.manual_seed(0)
    x, first, second = (
        torch.randn(s, dtype=torch.float64) for s in ((4, 8, 16), (16, 16), (16, 16))
    )

    def step(of: spmd.Mesh | None, *leaves: torch.Tensor) -> torch.Tensor:
        x, first, second = leaves
        a, b = F.linear(x, first), F.linear(x, second)
        other = laid_out(torch.sin(x), of, None, None, "fsdp")
        c = F.linear(other, second)
        return torch.add(a, b, alpha=3) + (a + x) + (b + c) + (a + b) * b

    specs = [(None, None, "tensor"), (None, "tensor"), (None, "tensor")]
    expected = outcome(step, [x, first, second], specs, None)
    for found, wanted in zip(outcome(step, [x, first, second], specs, mesh), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("seed", range(6))
def test_random_sums(seed: int) -> None:
    """Random trees of sums of products of one tensor or several, over random axes."""
    draw = random.Random(seed)
    mesh = spmd.Mesh(range(8), *MESHES[draw.choice([*MESHES])])
    widths = [draw.choice([16, 24, 32, 64]) for _ in range(4)]
    shapes = [(width, 16) for width in widths] + [(16, width) for width in widths]
    axes = [draw.choice(["tensor", "fsdp", None]) for _ in widths]
    specs: list[Words] = [INPUT, *((a, None) for a in axes), *((None, a) for a in axes)]
    order = [draw.random() for _ in range(4)]
    factor = draw.choice([None, None, 2])

    def step(of: spmd.Mesh | None, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        branches = [
            F.linear(torch.sin(F.linear(x, up)), down)
            for up, down in zip(weights[:4], weights[4:], strict=True)
        ]
        if factor is not None:
            branches[1] = branches[1] * factor
        for key in order:
            if len(branches) > 1:
                index = int(key * (len(branches) - 1))
                branches[index : index + 2] = [branches[index] + branches[index + 1]]
        return branches[0] + x

    tensors = made(shapes, torch.float64)
    expected = outcome(step, tensors, specs, None)
    for found, wanted in zip(outcome(step, tensors, specs, mesh), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
