"""Merged dims stay apart over several devices: what products and attention move, against torch on
CPU."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support import Batch, check
from torch import nn
from torch.nn import functional as F

import fsdp
import spmd
from spmd import Mesh


def moved_by(run: Callable[[], Any]) -> tuple[int, float]:
    """The bytes that a barrier's program moves, and its operations, per device."""
    spmd.sync()
    run()
    spmd.sync()
    record = spmd.metrics.compiles()[-1]
    return sum(one.moved_bytes for one in record.traffic), record.flops


# By name, torch's ways of writing the product of [batch, sequence, in] and [out, in].
PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "linear": F.linear,
    "matmul": lambda x, w: x @ w.T,
    "einsum": lambda x, w: torch.einsum("bsi,oi->bso", x, w),
    "tensordot": lambda x, w: torch.tensordot(x, w, ([2], [1])),
    "addmm": lambda x, w: (
        torch.addmm(w[:, 0], x.view(-1, x.shape[-1]), w.T).relu().view(*x.shape[:2], -1)
    ),
}


class TestProducts:
    """A product of which nothing but the result is marked, over batch and sequence, moves its
    gradient alone."""

    @pytest.mark.parametrize("name", PRODUCTS)
    def test_moves_the_gradient_alone(self, mesh2x4: Mesh, name: str) -> None:
        product, (batch, sequence, width) = PRODUCTS[name], (4, 8, 16)
        x, weight = torch.randn(batch, sequence, width), torch.randn(width, width)
        cpu, device = weight.clone().requires_grad_(), weight.to("xla").requires_grad_()
        spread = x.to("xla")

        def run() -> None:
            made = spmd.mark_sharding(
                product(spread.relu(), device), mesh2x4, ("data", "fsdp", None)
            )
            made.square().sum().backward()

        bias = width if name == "addmm" else 0
        assert moved_by(run)[0] <= (width * width + bias) * 4 * 2 * (3 / 4 + 1 / 2)
        product(x.relu(), cpu).square().sum().backward()
        check(device.grad, cpu.grad)

    def test_values_and_gradients(self, mesh8: Mesh) -> None:
        """Ops that read merged dims: products with batch dims, transposes, elementwise ops that
        broadcast, softmax along one dim and along a merged one, a cast, a split of what was merged
        at other places."""
        batch = Batch(mesh=mesh8, axis="fsdp")

        def case(
            name: str, function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]
        ) -> None:
            batch.case(name, function, *(torch.randint(-4, 5, shape) / 4 for shape in shapes))

        case("heads", lambda q, k: (q @ k.mT).softmax(-1), (8, 2, 4, 5), (8, 2, 3, 5))
        case(
            "folded bmm",
            lambda q, k: torch.bmm(q.view(16, 4, 5), k.view(16, 3, 5).mT),
            (8, 2, 4, 5),
            (8, 2, 3, 5),
        )
        case(
            "one side folded", lambda q, k: torch.bmm(q.view(16, 4, 5), k), (8, 2, 4, 5), (16, 5, 3)
        )
        shapes = (4, 3), (8, 2, 4, 5), (8, 2, 5, 3)
        case(
            "baddbmm",
            lambda b, q, k: torch.baddbmm(b, q.view(16, 4, 5), k.view(16, 5, 3), beta=2),
            *shapes,
        )
        case("summed over", lambda a, b: a.view(16, 5).T @ b.view(16, 3), (8, 2, 5), (8, 2, 3))
        case(
            "summed over other parts",
            lambda a, b: a.view(16, 5).T @ b.view(16, 3),
            (8, 2, 5),
            (2, 8, 3),
        )
        case("transposed", lambda a: a.view(16, 5).t().reshape(5, 4, 4).permute(1, 0, 2), (8, 2, 5))
        case(
            "elementwise",
            lambda a, b: (a.view(16, 5) * b + a.view(1, 16, 5)).view(8, 2, 5),
            (8, 2, 5),
            (16, 1),
        )
        case(
            "softmax of a merged dim", lambda a: a.view(8, 10).softmax(-1).view(8, 2, 5), (8, 2, 5)
        )
        case("softmax before", lambda a: a.view(8, 10, 3).softmax(1).view(8, 2, 5, 3), (8, 2, 5, 3))
        case("softmax behind", lambda a: a.view(8, 3, 10).softmax(1).view(8, 3, 2, 5), (8, 3, 2, 5))
        case("softmax of rows", lambda a: a.view(8, 10).softmax(0).view(8, 2, 5), (8, 2, 5))
        case("cast", lambda a: a.view(16, 5).double().mul(2).view(8, 2, 5), (8, 2, 5))
        case(
            "logsumexp", lambda a: a.view(16, 1).logsumexp(1, keepdim=True).view(8, 2, 1), (8, 2, 1)
        )
        case(
            "linear",
            lambda x, w, b: F.linear(x.view(16, 5), w, b).view(8, 2, 3),
            (8, 2, 5),
            (3, 5),
            (3,),
        )
        case(
            "sums", lambda a: a.view(16, 5).sum(0) + a.view(16, 5).mean(0, keepdim=True), (8, 2, 5)
        )
        case("sums of rows", lambda a: a.view(16, 5).sum(1).view(8, 2), (8, 2, 5))
        case(
            "split elsewhere",
            lambda a: a.view(16, 6).mul(2).view(4, 24).sin().view(8, 12),
            (8, 2, 6),
        )
        case(
            "ones",
            lambda a: a.unsqueeze(1).view(8, 1, 10, 1).squeeze(-1).mul(2).transpose(0, 2),
            (8, 2, 5),
        )
        case("nothing", lambda a: a.view(0, 5).mul(2).view(8, 0, 5), (8, 0, 5))
        batch.check()


EMBED, HEADS, BATCH, LENGTH = 32, 8, 8, 16


class Attention(nn.Module):
    """nn.MultiheadAttention's parameters, with batch and sequence kept apart."""

    def __init__(self, like: nn.MultiheadAttention):
        super().__init__()
        self.in_proj_weight, self.in_proj_bias = copy.deepcopy(
            (like.in_proj_weight, like.in_proj_bias)
        )
        self.out_proj = copy.deepcopy(like.out_proj)
        self.batch_first = like.batch_first

    def heads(self, x: torch.Tensor, start: int, end: int) -> Sequence[torch.Tensor]:
        """Parts of the projection, (batch, head, sequence, width) each."""
        weight, bias = (
            value[start * EMBED : end * EMBED] for value in (self.in_proj_weight, self.in_proj_bias)
        )
        projected = F.linear(x, weight, bias).view(*x.shape[:2], end - start, HEADS, EMBED // HEADS)
        return projected.permute(2, 0, 3, 1, 4).unbind()

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        need_weights: bool = True,
        **_: object,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        is_self = query is key
        if not self.batch_first:
            query, key = query.transpose(0, 1), key.transpose(0, 1)
        q, k, v = (
            self.heads(query, 0, 3)
            if is_self
            else (*self.heads(query, 0, 1), *self.heads(key, 1, 3))
        )
        if need_weights:
            weights = (q * (EMBED // HEADS) ** -0.5 @ k.mT).softmax(-1)
            made = weights @ v
        else:
            weights, made = None, F.scaled_dot_product_attention(q, k, v)
        out = self.out_proj(made.transpose(1, 2).reshape(query.shape))
        return out if self.batch_first else out.transpose(
            0, 1
        ), None if weights is None else weights.mean(1)


def with_plain_attention(model: nn.Module) -> nn.Module:
    """A copy whose attention is written so."""
    if isinstance(model, nn.MultiheadAttention):
        return Attention(model)
    model = copy.deepcopy(model)
    for module in [*model.modules()]:
        for name, child in [*module.named_children()]:
            if isinstance(child, nn.MultiheadAttention):
                setattr(module, name, Attention(child))
    return model


# How tensor parallelism splits a parameter, by the end of its name; others are replicated.
SPLIT = {
    "in_proj_weight": ("fsdp", None),
    "in_proj_bias": ("fsdp",),
    "out_proj.weight": (None, "fsdp"),
    "linear1.weight": ("fsdp", None),
    "linear1.bias": ("fsdp",),
    "linear2.weight": (None, "fsdp"),
}


def moves_no_more(
    model: nn.Module,
    loss: Callable[..., torch.Tensor],
    meshes: tuple[Mesh, Mesh],
    is_split: bool,
    *inputs: int,
) -> None:
    """Forward and backward move and compute, at most 1.05 times, what they do with attention
    written plainly; the gradients are those of the CPU. inputs: the batch dim of each input."""
    mesh, axis = (meshes[1], "data") if is_split else (meshes[0], "fsdp")
    data = [
        torch.randn(*((BATCH, LENGTH) if dim == 0 else (LENGTH, BATCH)), EMBED) for dim in inputs
    ]
    loss(model, *data).backward()
    found = []
    for one in (copy.deepcopy(model), with_plain_attention(model)):
        one.zero_grad()
        one.to("xla")
        parameters = dict(one.named_parameters())
        for name, parameter in parameters.items() if is_split else ():
            spec = next((spec for end, spec in SPLIT.items() if name.endswith(end)), None)
            if spec is not None:
                spmd.mark_sharding(parameter, mesh, spec)
        wrapped = one if is_split else fsdp.FullyShardedDataParallel(one, mesh)
        given = [
            spmd.mark_sharding(
                x.to("xla"), mesh, (axis, None, None) if dim == 0 else (None, axis, None)
            )
            for dim, x in zip(inputs, data, strict=True)
        ]
        found.append(moved_by(lambda m=wrapped, g=given: loss(m, *g).backward()))
        for name, parameter in model.named_parameters():
            check(parameters[name].grad, parameter.grad)
    (moved, flops), (least, fewest) = found
    assert moved <= 1.05 * least
    assert flops <= 1.05 * fewest


@pytest.mark.parametrize("is_split", [False, True], ids=["fsdp", "tensor"])
class TestAttention:
    """torch's attention, which merges batch and heads, moves and computes what attention without
    that does."""

    @pytest.mark.parametrize(
        ("batch_first", "need_weights"),
        [(True, False), (False, False), (True, True)],
        ids=["first", "second", "weights"],
    )
    def test_multihead(
        self, mesh8: Mesh, mesh2x4: Mesh, batch_first: bool, need_weights: bool, is_split: bool
    ) -> None:
        def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
            out, weights = model(x, x, x, need_weights=need_weights)
            return out.square().mean() + (0 if weights is None else weights.square().sum())

        model = nn.MultiheadAttention(EMBED, HEADS, batch_first=batch_first)
        moves_no_more(model, loss, (mesh8, mesh2x4), is_split, 0 if batch_first else 1)

    @pytest.mark.parametrize("batch_first", [True, False], ids=["first", "second"])
    def test_encoder_layer(
        self, mesh8: Mesh, mesh2x4: Mesh, batch_first: bool, is_split: bool
    ) -> None:
        model = nn.TransformerEncoderLayer(EMBED, HEADS, 2 * EMBED, 0.0, batch_first=batch_first)
        dim = 0 if batch_first else 1
        moves_no_more(
            model, lambda model, x: model(x).square().mean(), (mesh8, mesh2x4), is_split, dim
        )

    @pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
    @pytest.mark.parametrize("batch_first", [True, False], ids=["first", "second"])
    def test_transformer(
        self, mesh8: Mesh, mesh2x4: Mesh, batch_first: bool, is_split: bool
    ) -> None:
        model = nn.Transformer(EMBED, HEADS, 1, 1, 2 * EMBED, 0.0, batch_first=batch_first)
        dim = 0 if batch_first else 1
        moves_no_more(
            model, lambda model, *x: model(*x).square().mean(), (mesh8, mesh2x4), is_split, dim, dim
        )
