"""Gathers in eight bits of any array in any spec, and replicated inputs of any readers: values,
and the collectives that there are."""

import math
import random

import pytest
import torch
from support import check

import spmd
from spmd import Mesh, P

MESHES = {
    "8": Mesh(range(8), (8,), ("fsdp",)),
    "4x2": Mesh(range(8), (4, 2), ("fsdp", "tensor")),
    "cube": Mesh([0, 4, 1, 5, 2, 6, 3, 7], (2, 2, 2), ("data", "fsdp", "tensor")),
}
SHAPES = [(8, 8), (16, 4), (24, 40), (9, 5), (8, 2, 4), (4, 12, 8), (5, 16)]
ARRAYS = 12  # of one program


@pytest.fixture(params=["gspmd", "shardy"], autouse=True)
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(spmd.config, "partitioner", request.param)
    return request.param


def rounded(x: torch.Tensor, spec: P, mesh: Mesh, dtype: torch.dtype) -> torch.Tensor:
    """The array as the rule of `use_sharding(dtype=)` rounds it: a power of two scales each index
    of a dim that is gathered, and each shard of the others."""
    axes = [() if dim is None else dim if isinstance(dim, tuple) else (dim,) for dim in spec]
    if not any("fsdp" in of_dim for of_dim in axes):
        return x
    blocked: list[int] = []
    for size, of_dim in zip(x.shape, axes, strict=True):
        shards = math.prod(mesh.shape()[axis] for axis in of_dim)
        ways = size if "fsdp" in of_dim else shards if size % shards == 0 else 1
        blocked += [ways, size // ways]
    blocks = x.float().reshape(blocked)
    largest = blocks.abs().amax([*range(1, len(blocked), 2)], keepdim=True)
    exponents = torch.frexp(largest / torch.finfo(dtype).max).exponent.clamp(min=-126)
    scale = torch.exp2(exponents.float())
    return ((blocks / scale).to(dtype).float() * scale).reshape(x.shape).to(x.dtype)


@pytest.mark.parametrize("name", MESHES)
def test_gathers_in_eight_bits(name: str) -> None:
    draw, mesh = random.Random(name), MESHES[name]
    arrays, specs, dtypes = list[torch.Tensor](), list[P](), list[torch.dtype]()
    for _ in range(ARRAYS):
        shape = draw.choice(SHAPES)
        entries: list[tuple[str, ...]] = [()] * len(shape)
        for axis in draw.sample(mesh.axis_names, len(mesh.axis_names)):
            dim = draw.randrange(-1, len(shape))
            if dim >= 0:
                entries[dim] = (*entries[dim], axis)
        specs.append(P(*(entry or None for entry in entries)))
        dtypes.append(draw.choice([torch.float8_e4m3fn, torch.float8_e5m2]))
        x = torch.randn(shape) * 10.0 ** draw.randrange(-6, 6)
        arrays.append(x.to(draw.choice([torch.float32, torch.bfloat16])))
    tensors = [
        spmd.mark_sharding(x.to("xla"), mesh, spec).requires_grad_()
        for x, spec in zip(arrays, specs, strict=True)
    ]
    with spmd.use_sharding(tensors, mesh, over="fsdp", dtype=dtypes):
        results = [tensor * 2 for tensor in tensors]
    grads = torch.autograd.grad([result.float().sum() for result in results], tensors)
    for x, spec, dtype, result, grad in zip(arrays, specs, dtypes, results, grads, strict=True):
        check(result, 2 * rounded(x, spec, mesh, dtype))
        check(grad, torch.full_like(x, 2))


READERS = {
    "transposed": lambda x, w: x @ w.t(),
    "product": lambda x, w: x @ w,
    "bias": lambda x, w: x + w[0],
    "scaled": lambda x, w: x * w.sum(0) / w.shape[0],
    "norm": lambda x, w: torch.nn.functional.layer_norm(x, x.shape[1:], w[1], w[2]),
    "cut": lambda x, w: x + (x[:, :8] @ w[:8]).relu(),
}


@pytest.mark.parametrize("seed", range(4))
def test_replicated_inputs_stay_replicated(seed: int, mesh8: Mesh) -> None:
    """A reader that wants shards of an input, as an optimizer does, moves nothing for the others:
    no all-gather is in the program."""
    draw = random.Random(seed)
    sources = [torch.randn(16, 16) / 4 for _ in range(3)]
    readers = [(draw.choice([*READERS]), draw.randrange(3)) for _ in range(6)]
    x = torch.randn(32, 16)

    def step(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
        for name, index in readers:
            x = READERS[name](x, weights[index])
        return x.tanh()

    weights = [spmd.mark_sharding(w.to("xla"), mesh8, P(None, None)) for w in sources]
    rows = step(spmd.mark_sharding(x.to("xla"), mesh8, P("fsdp", None)), weights)
    parts = [spmd.mark_sharding(w * 0.5, mesh8, P("fsdp", None)) for w in weights]
    spmd.mark_sharding(rows, mesh8, P("fsdp", None))
    spmd.sync()
    assert not spmd.metrics.compiles()[-1].traffic
    check(rows, step(x, sources))
    for part, source in zip(parts, sources, strict=True):
        check(part, source * 0.5)
