"""Correct bodies of `spmd.shard_map`, each with its specs and shapes: what `mutated_bodies.py`
breaks.

Every collective is called by its own name with its axis as text, so that a program can find and
change it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import spmd
from spmd import P
from spmd.manual import (
    all_gather,
    all_reduce,
    all_to_all,
    axis_index,
    axis_size,
    collective_permute,
    reduce_scatter,
)

D, M = "data", "model"


@dataclass(frozen=True)
class Case:
    """A body over a mesh with the axes "data" and "model". shapes: of its float arguments; classes:
    where not 0, the last argument is of integers below it."""

    body: Callable[..., Any]
    in_specs: Any
    out_specs: Any
    shapes: tuple[tuple[int, ...], ...]
    classes: int = 0

    @property
    def name(self) -> str:
        return self.body.__name__


def column_and_row(x: Any, up: Any, down: Any) -> Any:
    hidden = F.gelu(x @ up)
    return all_reduce(hidden @ down, "sum", "model")


def bias_after_the_sum(x: Any, up: Any, up_bias: Any, down: Any, bias: Any) -> Any:
    hidden = torch.relu(F.linear(x, up, up_bias))
    made = all_reduce(F.linear(hidden, down), "sum", "model")
    return made + bias


def sequence_parallel(x: Any, up: Any, down: Any) -> Any:
    full = all_gather(x, 1, "model")
    hidden = F.silu(full @ up)
    return reduce_scatter(hidden @ down, "sum", 1, "model")


def mean_loss(x: Any, weight: Any) -> Any:
    loss = (x @ weight).square().mean()
    return all_reduce(loss, "mean", "data")


def split_classes(logits: Any, target: Any) -> Any:
    first = axis_index("model") * logits.shape[1]
    largest = all_reduce(logits.detach().amax(1), "max", "model")
    shifted = logits - largest[:, None]
    total = all_reduce(shifted.exp().sum(1), "sum", "model")
    own = (target >= first) & (target < first + logits.shape[1])
    here = torch.where(own, target - first, 0)
    picked = torch.where(own, shifted.gather(1, here[:, None])[:, 0], 0.0)
    picked = all_reduce(picked, "sum", "model")
    loss = (total.log() - picked).mean()
    return all_reduce(loss, "mean", "data")


def layer_norm(x: Any, weight: Any) -> Any:
    mean = all_reduce(x.mean(-1, keepdim=True), "mean", "model")
    centred = x - mean
    variance = all_reduce(centred.square().mean(-1, keepdim=True), "mean", "model")
    return centred * torch.rsqrt(variance + 1e-5) * weight


def batch_norm(x: Any, weight: Any) -> Any:
    count = x.shape[0] * axis_size("data")
    mean = all_reduce(x.sum(0), "sum", "data") / count
    variance = all_reduce((x - mean).square().sum(0), "sum", "data") / count
    return (x - mean) * torch.rsqrt(variance + 1e-5) * weight


def ring_attention(q: Any, k: Any, v: Any) -> Any:
    count = axis_size("model")
    top, bottom = torch.zeros_like(q), torch.zeros_like(q[..., :1])
    for _ in range(count):
        weights = (q @ k.transpose(-1, -2) / 4).exp()
        top = top + weights @ v
        bottom = bottom + weights.sum(-1, keepdim=True)
        k = collective_permute(
            k, [(i, (i + 1) % axis_size("model")) for i in range(axis_size("model"))], "model"
        )
        v = collective_permute(
            v, [(i, (i + 1) % axis_size("model")) for i in range(axis_size("model"))], "model"
        )
    return top / bottom


def heads_for_rows(q: Any, k: Any, v: Any) -> Any:
    q = all_to_all(q, 1, 2, "model")
    k = all_to_all(k, 1, 2, "model")
    v = all_to_all(v, 1, 2, "model")
    made = F.scaled_dot_product_attention(q, k, v)
    return all_to_all(made, 2, 1, "model")


def experts(tokens: Any, weight: Any) -> Any:
    arrived = all_to_all(tokens, 0, 1, "model")
    made = torch.relu(torch.einsum("etw,ewv->etv", arrived, weight))
    return all_to_all(made, 1, 0, "model")


def gathered_weights(x: Any, up: Any, down: Any) -> Any:
    up = all_gather(up, 0, "data")
    hidden = torch.tanh(x @ up)
    down = all_gather(down, 0, "data")
    return hidden @ down


def split_embedding(table: Any, scale: Any, ids: Any) -> Any:
    first = axis_index("model") * table.shape[0]
    own = (ids >= first) & (ids < first + table.shape[0])
    rows = F.embedding(torch.where(own, ids - first, 0), table)
    made = all_reduce(torch.where(own[..., None], rows, 0.0), "sum", "model")
    return made * scale


def halo(x: Any, weight: Any) -> Any:
    count = axis_size("model")
    from_left = collective_permute(
        x[..., -1:], [(i, i + 1) for i in range(axis_size("model") - 1)], "model"
    )
    from_right = collective_permute(
        x[..., :1], [(i + 1, i) for i in range(axis_size("model") - 1)], "model"
    )
    assert count == axis_size("model")
    return F.conv1d(torch.cat([from_left, x, from_right], -1), weight)


def split_softmax(x: Any) -> Any:
    largest = all_reduce(x.detach().amax(-1, keepdim=True), "max", "model")
    powers = (x - largest).exp()
    return powers / all_reduce(powers.sum(-1, keepdim=True), "sum", "model")


def clipped_by_norm(x: Any, one: Any, two: Any) -> Any:
    squares = all_reduce(one.square().sum(), "sum", "model") + all_reduce(
        two.square().sum(), "sum", "data"
    )
    return x * torch.rsqrt(squares)


def attention_of_heads(x: Any, qkv: Any, out: Any) -> Any:
    batch, rows, _ = x.shape
    q, k, v = (x @ qkv).reshape(batch, rows, -1, 3, 4).permute(3, 0, 2, 1, 4)
    made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return all_reduce(made.transpose(1, 2).reshape(batch, rows, -1) @ out, "sum", "model")


def two_layers(x: Any, up: Any, down: Any) -> Any:
    for layer in range(2):
        x = x + all_reduce(torch.tanh(x @ up[layer]) @ down[layer], "sum", "model")
    return x


def own_gradient_step(x: Any, y: Any, weight: Any) -> Any:
    own = weight.detach().requires_grad_()
    loss = all_reduce((x @ own - y).square().mean(), "mean", "data")
    (gradient,) = torch.autograd.grad(loss, own)
    return weight - 0.1 * gradient


def running_sum(x: Any) -> Any:
    totals = all_gather(x.sum(-1, keepdim=True), 1, "model")
    before = (torch.arange(axis_size("model"), device=x.device) < axis_index("model")).to(x.dtype)
    return x.cumsum(-1) + (totals * before).sum(-1, keepdim=True)


def product_in_blocks(left: Any, right: Any) -> Any:
    whole = all_gather(right, 1, "data")
    return reduce_scatter(left @ whole, "sum", 1, "model")


def loss_over_all(x: Any, weight: Any) -> Any:
    weight = all_gather(weight, 0, "model")
    total = (x @ weight).exp().sum()
    return all_reduce(all_reduce(total, "sum", "data"), "sum", "model").log()


def balanced_router(x: Any, router: Any) -> Any:
    scores = (x @ router).softmax(-1)
    load = all_reduce(scores.mean(0), "mean", "data")
    share = all_reduce((scores > 0.2).to(scores.dtype).mean(0), "mean", "data")
    return scores * (load * share).sum()


CASES = (
    Case(column_and_row, (P(D), P(None, M), P(M)), P(D), ((8, 12), (12, 16), (16, 12))),
    Case(
        bias_after_the_sum,
        (P(D), P(M), P(M), P(None, M), P()),
        P(D),
        ((8, 12), (16, 12), (16,), (12, 16), (12,)),
    ),
    Case(sequence_parallel, (P(D, M), P(None, M), P(M)), P(D, M), ((4, 8, 12), (12, 16), (16, 12))),
    Case(mean_loss, (P(D), P()), P(), ((8, 12), (12, 6))),
    Case(split_classes, (P(D, M), P(D)), P(), ((8, 16),), 16),
    Case(layer_norm, (P(D, M), P(M)), P(D, M), ((8, 16), (16,))),
    Case(batch_norm, (P(D, M), P(M)), P(D, M), ((8, 16), (16,))),
    Case(ring_attention, (P(D, M), P(D, M), P(D, M)), P(D, M), ((4, 8, 6), (4, 8, 6), (4, 8, 6))),
    Case(
        heads_for_rows,
        (P(D, None, M), P(D, None, M), P(D, None, M)),
        P(D, None, M),
        3 * ((4, 4, 8, 6),),
    ),
    Case(experts, (P(None, (D, M)), P(M)), P(None, (D, M)), ((4, 16, 6), (4, 6, 6))),
    Case(gathered_weights, (P((D, M)), P(D), P(D)), P((D, M)), ((8, 12), (12, 16), (16, 6))),
    Case(split_embedding, (P(M), P(), P(D)), P(D), ((16, 6), (6,)), 16),
    Case(halo, (P(D, None, M), P()), P(D, None, M), ((4, 2, 16), (3, 2, 3))),
    Case(split_softmax, (P(D, M),), P(D, M), ((8, 16),)),
    Case(clipped_by_norm, (P(D), P(M), P(None, D)), P(D), ((8, 6), (8, 6), (6, 8))),
    Case(attention_of_heads, (P(D), P(None, M), P(M)), P(D), ((4, 6, 16), (16, 48), (16, 16))),
    Case(
        two_layers, (P(D), P(None, None, M), P(None, M)), P(D), ((8, 12), (2, 12, 16), (2, 16, 12))
    ),
    Case(own_gradient_step, (P(D), P(D), P()), P(), ((8, 12), (8, 6), (12, 6))),
    Case(running_sum, (P(D, M),), P(D, M), ((8, 16),)),
    Case(product_in_blocks, (P(D, M), P(M, D)), P(D, M), ((8, 16), (16, 8))),
    Case(loss_over_all, (P((D, M)), P(M)), P(), ((16, 12), (12, 6))),
    Case(balanced_router, (P(D), P()), P(D), ((8, 12), (12, 4))),
)


def inputs_of(case: Case, seed: int) -> list[Tensor]:
    """Random arguments of a case, on the CPU; the floats need gradients."""
    generator = torch.Generator().manual_seed(seed)
    made = [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in case.shapes
    ]
    if case.classes:
        made.append(torch.randint(case.classes, (8,), generator=generator))
    return made


def step_of(
    case: Case, body: Callable[..., Any] | None = None, mesh: Any = None
) -> Callable[..., Any]:
    """A step that takes the gradients of a weighted sum of the body's result."""
    mapped = spmd.shard_map(body or case.body, mesh, case.in_specs, case.out_specs)

    def step(*given: Tensor) -> Tensor:
        made = mapped(*given)
        weights = torch.arange(1, made.numel() + 1, dtype=made.dtype, device=made.device).reshape(
            made.shape
        )
        (made * weights.sqrt()).sum().backward()
        return made

    return step
