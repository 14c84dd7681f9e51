"""No document sees another: other rows and gradients stay bit for bit when one document changes,
whatever the mask, the mesh and the exchange. Public reports of context parallelism have packed
documents that silently saw each other."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import spmd
from spmd import P

pytestmark = pytest.mark.partitioned("packed documents over a sharded sequence")

LENGTH, HEADS = 64, 8
# of the documents: shorter and longer than a shard, over the borders of shards
STARTS = (0, 5, 31, 47)
CHANGED = 1
Allowed = Callable[[Tensor, Tensor], Tensor]

# By name, what a row sees of the columns of its own document; positions count from the sequence's
# start.
MASKS: dict[str, Allowed] = {
    "all": lambda row, column: row == row,
    "causal": lambda row, column: column <= row,
    "window": lambda row, column: (column <= row) & (row - column < 7),
    "window to both sides": lambda row, column: (row - column).abs() < 5,
    "sinks": lambda row, column: (
        (column <= row) & ((row - column < 4) | torch.isin(column, torch.tensor(STARTS)))
    ),
    "prefix": lambda row, column: (column <= row) | (column % 16 < 3),
    "strided": lambda row, column: (column <= row) & ((row - column) % 3 == 0),
    "blocks": lambda row, column: (column <= row) & (row // 8 - column // 8 < 2),
}


def ids(device: str) -> Tensor:
    """The document of each position."""
    return (torch.arange(LENGTH)[:, None] >= torch.tensor(STARTS)).sum(1).to(device)


def same_document(device: str) -> Tensor:
    documents = ids(device)
    return documents[:, None] == documents[None, :]


def by_mask(allowed: Allowed, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    at = torch.arange(LENGTH)
    mask = allowed(at[:, None], at[None, :]).to(query.device) & same_document(query.device.type)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def by_score(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Slopes of heads, as ALiBi's, within documents."""
    at = torch.arange(LENGTH, device=query.device)
    slopes = (
        -(torch.arange(1, HEADS + 1, device=query.device) / 8)[:, None, None]
        * (at[:, None] - at).abs()
    )
    bias = slopes.masked_fill(~same_document(query.device.type), -torch.inf)[None]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias.to(query.dtype))


def by_dropout(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    torch.manual_seed(7)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=same_document(query.device.type), dropout_p=0.25
    )


def of_batch(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A mask for each sequence: that of the first is causal as well."""
    mask = same_document(query.device.type).expand(2, 1, LENGTH, LENGTH).clone()
    mask[0] &= torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=query.device).tril()
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def by_flex(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if query.device.type == "cpu":  # where FlexAttention has no backward
        return by_mask(MASKS["causal"], query, key, value)
    documents = ids(query.device.type)

    def allowed(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (documents[row] == documents[column]) & (row >= column)

    mask = create_block_mask(
        allowed, None, None, LENGTH, LENGTH, device=query.device, BLOCK_SIZE=16
    )
    return flex_attention(query, key, value, block_mask=mask)


ATTENTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    **{name: partial(by_mask, allowed) for name, allowed in MASKS.items()},
    "slopes": by_score,
    "dropout": by_dropout,
    "of the batch": of_batch,
    "flex": by_flex,
}
MESHES = {
    "context 4": ((2, 4), ("data", "context")),
    "context 2": ((4, 2), ("tensor", "context")),
    "context 8": ((8,), ("context",)),
    "three axes": ((2, 2, 2), ("data", "tensor", "context")),
}
CASES = [
    pytest.param(
        mesh, exchange, id=f"{mesh}, {exchange}", marks=() if is_short else pytest.mark.long
    )
    for mesh in MESHES
    for exchange in ("ring", "gathered", "all-to-all")
    for is_short in [mesh == "context 4" and exchange == "ring"]
]


def outcome(
    attention: Callable[..., Tensor], tensors: list[Tensor], mesh: spmd.Mesh | None
) -> list[Tensor]:
    """The output and the gradients of query, key and value, all [batch, heads, rows, width]."""
    inputs = [tensor.clone().to("xla" if mesh else "cpu").requires_grad_() for tensor in tensors]
    for tensor in inputs if mesh else ():
        spec = [axis if axis in mesh.axis_names else None for axis in ("data", "tensor", "context")]
        spmd.mark_sharding(tensor, mesh, P(*spec, None))
    output = attention(*inputs)
    weight = (
        torch.arange(output.numel(), dtype=output.dtype)
        .reshape(output.shape)
        .sin()
        .to(output.device)
    )
    grads = torch.autograd.grad((output * weight).sum(), inputs)
    return [tensor.detach().cpu() for tensor in (output, *grads)]


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize(("of_mesh", "exchange"), CASES)
def test_one_document(
    name: str, of_mesh: str, exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spmd.config, "parallel", exchange)
    shape, axes = MESHES[of_mesh]
    mesh, attention = spmd.Mesh(range(8), shape, axes), ATTENTIONS[name]
    torch.manual_seed(0)
    tensors = [torch.randn(2, HEADS, LENGTH, 4, dtype=torch.float64) for _ in range(3)]
    before = outcome(attention, tensors, mesh)
    if name != "dropout":  # the CPU draws others
        for ours, theirs in zip(before, outcome(attention, tensors, None), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    is_changed = ids("cpu") == CHANGED + 1
    for tensor in tensors:
        tensor[:, :, is_changed] = torch.randn(
            2, HEADS, int(is_changed.sum()), 4, dtype=torch.float64
        )
    for one, other in zip(before, outcome(attention, tensors, mesh), strict=True):
        assert torch.equal(one[:, :, ~is_changed], other[:, :, ~is_changed])
        assert not torch.equal(one[:, :, is_changed], other[:, :, is_changed])


@pytest.mark.parametrize("exchange", ["ring", "gathered"])
def test_no_mask_of_chunks_is_in_memory(exchange: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where a chunk is computed, nor where it is asked whether it is masked as a whole."""
    monkeypatch.setattr(spmd.config, "parallel", exchange)
    mesh, length = spmd.Mesh(range(2), (2,), ("context",)), 16_384

    def step(x: Tensor, ids: Tensor) -> Tensor:
        spmd.mark_sharding(x, mesh, P(None, None, "context", None))
        spmd.mark_sharding(ids, mesh, P("context"))
        at = torch.arange(length, device=ids.device)
        inside = (ids[:, None] == ids) & (at[:, None] >= at)
        F.scaled_dot_product_attention(x, x, x.requires_grad_(), inside).sum().backward()
        return x.grad

    tensors = (
        torch.empty(1, 1, length, 8, device="meta"),
        torch.empty(length, dtype=torch.int64, device="meta"),
    )
    assert spmd.plan(step, *tensors).temporaries < (length // 4) ** 2
