"""torch's modules and FlexAttention over a sharded sequence, with a window and with documents: as
on the CPU."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import spmd
from spmd import P
from spmd.core.programs import cache
from spmd.loops import flex_attention as ours

from .decoder import close

pytestmark = pytest.mark.partitioned("modules over a sharded sequence")

LENGTH, WIDTH, HEADS, KV_HEADS = 64, 32, 4, 2
STARTS = (0, 5, 31, 47)  # of the documents
EXCHANGES = ("ring", "gathered", "all-to-all")
Allowed = Callable[[Tensor, Tensor], Tensor]


def documents(device: str) -> Tensor:
    """The document of each position."""
    return (torch.arange(LENGTH)[:, None] >= torch.tensor(STARTS)).sum(1).to(device)


def window(device: str) -> Allowed:
    return lambda row, column: (column <= row) & (row - column < 7)


def of_documents(device: str) -> Allowed:
    ids = documents(device)
    return lambda row, column: (column <= row) & (ids[row] == ids[column])


MASKS = {"window": window, "documents": of_documents}


def dense(name: str, device: str) -> Tensor:
    at = torch.arange(LENGTH, device=device)
    return MASKS[name](device)(at[:, None], at[None, :])


@pytest.fixture
def mesh() -> spmd.Mesh:
    return spmd.Mesh(range(8), (2, 4), ("data", "context"))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    spmd.metrics.clear()
    yield
    cache.clear_cache()


def with_grads(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of inputs."""
    weight = (
        torch.arange(output.numel(), dtype=output.dtype)
        .reshape(output.shape)
        .sin()
        .to(output.device)
    )
    grads = torch.autograd.grad((output * weight).sum(), inputs)
    return [tensor.detach().cpu() for tensor in (output, *grads)]


def of_module(
    module: nn.Module, run: Callable[..., Tensor], mesh: spmd.Mesh | None, spec: P
) -> list[Tensor]:
    """The output, and the gradients of the input and the parameters. run: (module, x, device)."""
    device = "cpu" if mesh is None else "xla"
    torch.manual_seed(1)
    shape = (LENGTH, 2, WIDTH) if spec[0] == "context" else (2, LENGTH, WIDTH)
    x, module = torch.randn(shape, dtype=torch.float64).to(device), module.to(device)
    if mesh is not None:
        spmd.mark_sharding(x, mesh, spec)
    x.requires_grad_()
    return with_grads(run(module, x, device), [x, *module.parameters()])


class TestMultiheadAttention:
    """`nn.MultiheadAttention` of a sharded sequence."""

    @pytest.mark.parametrize("name", MASKS)
    @pytest.mark.parametrize("batch_first", [True, False])
    @pytest.mark.parametrize("exchange", EXCHANGES)
    def test_masks(
        self,
        exchange: str,
        batch_first: bool,
        name: str,
        mesh: spmd.Mesh,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(spmd.config, "parallel", exchange)

        def run(module: nn.Module, x: Tensor, device: str) -> Tensor:
            return module(x, x, x, attn_mask=~dense(name, device), need_weights=False)[0]

        self.check(run, mesh, batch_first)
        words = " ".join(words for record in spmd.metrics.compiles() for _, words in record.passes)
        assert f"attention over context: {exchange} at " in words

    def test_weights(self, mesh: spmd.Mesh) -> None:
        """The averaged probabilities as well."""

        def run(module: nn.Module, x: Tensor, device: str) -> Tensor:
            y, weights = module(x, x, x, attn_mask=~dense("window", device))
            return torch.cat([y, weights.square()], -1)

        self.check(run, mesh, batch_first=True)

    def test_padded_sequences(self, mesh: spmd.Mesh) -> None:
        """By `key_padding_mask`."""

        def run(module: nn.Module, x: Tensor, device: str) -> Tensor:
            is_padding = (torch.arange(LENGTH) >= torch.tensor([[50], [64]])).to(device)
            return module(x, x, x, key_padding_mask=is_padding, need_weights=False)[0]

        self.check(run, mesh, batch_first=True)

    def check(self, run: Callable[..., Tensor], mesh: spmd.Mesh, batch_first: bool) -> None:
        found = []
        for of_mesh in (mesh, None):
            torch.manual_seed(0)
            module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first).double()
            spec = P("data", "context", None) if batch_first else P("context", "data", None)
            found.append(of_module(module, run, of_mesh, spec))
        close(*found)


def test_encoder_layer(mesh: spmd.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """`nn.TransformerEncoderLayer` with a causal mask."""
    monkeypatch.setattr(spmd.config, "parallel", "ring")

    def run(module: nn.Module, x: Tensor, device: str) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=device, dtype=x.dtype)
        return module(x, src_mask=mask, is_causal=True)

    found = []
    for of_mesh in (mesh, None):
        torch.manual_seed(0)
        module = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 48, dropout=0.0, batch_first=True, norm_first=True
        ).double()
        found.append(of_module(module, run, of_mesh, P("data", "context", None)))
    close(*found)


class TestFlexAttention:
    """`flex_attention` of a sharded sequence; torch has no backward of it on the CPU, so SDPA is
    the reference."""

    @pytest.fixture(params=["at once", "in blocks"], autouse=True)
    def form(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        if request.param == "in blocks":
            monkeypatch.setattr(ours, "LONG", 0)
            monkeypatch.setattr(ours, "ROWS", 16)

    @pytest.mark.parametrize("name", MASKS)
    @pytest.mark.parametrize("has_slopes", [False, True])
    def test_masks(self, name: str, has_slopes: bool, mesh: spmd.Mesh) -> None:
        """has_slopes: with a score function, of which there are gradients, as ALiBi's."""
        close(*(self.outcome(name, has_slopes, of_mesh) for of_mesh in (mesh, None)))
        exchanges = [dict(record.passes).get("exchange", "") for record in spmd.metrics.compiles()]
        assert any("attention over context" in words for words in exchanges) is not has_slopes

    def outcome(self, name: str, has_slopes: bool, mesh: spmd.Mesh | None) -> list[Tensor]:
        device = "cpu" if mesh is None else "xla"
        torch.manual_seed(1)
        tensors = [
            torch.randn(2, heads, LENGTH, 8).double().to(device)
            for heads in (HEADS, KV_HEADS, KV_HEADS)
        ]
        slopes = torch.rand(HEADS, dtype=torch.float64).to(device).requires_grad_()
        for tensor in tensors if mesh else ():
            spmd.mark_sharding(tensor, mesh, P("data", None, "context", None))
        inputs = [tensor.requires_grad_() for tensor in tensors]
        function = self.by_sdpa if mesh is None else self.by_flex
        output = function(name, inputs, slopes if has_slopes else None)
        return with_grads(output, [*inputs, slopes] if has_slopes else inputs)

    @staticmethod
    def by_sdpa(name: str, inputs: list[Tensor], slopes: Tensor | None) -> Tensor:
        at = torch.arange(LENGTH)
        bias = torch.zeros(LENGTH, LENGTH, dtype=torch.float64).masked_fill(
            ~dense(name, "cpu"), -torch.inf
        )[None, None]
        if slopes is not None:
            bias = bias + slopes[None, :, None, None] * (at - at[:, None])
        return F.scaled_dot_product_attention(*inputs, attn_mask=bias, enable_gqa=True)

    @staticmethod
    def by_flex(name: str, inputs: list[Tensor], slopes: Tensor | None) -> Tensor:
        allowed = MASKS[name]("xla")

        def mask_mod(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
            return allowed(row, column)

        def score_mod(score: Any, batch: Any, head: Any, row: Any, column: Any) -> Any:
            return score if slopes is None else score + slopes[head] * (column - row)

        mask = create_block_mask(mask_mod, None, None, LENGTH, LENGTH, device="xla", BLOCK_SIZE=16)
        score = None if slopes is None else score_mod
        return flex_attention(*inputs, score_mod=score, block_mask=mask, enable_gqa=True)
