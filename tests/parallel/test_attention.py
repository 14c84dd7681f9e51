"""Attention over a sharded sequence against torch on CPU: each exchange, with masks, dropout and
gradients."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import fsdp
import spmd
from spmd import P
from spmd.core.programs import cache
from spmd.ops import attention
from spmd.ops.kernels import splash
from spmd.ops.kernels.document_ids import Documents

pytestmark = pytest.mark.partitioned("attention over a sharded sequence")

EXCHANGES = ("ring", "gathered", "all-to-all")
LENGTH = 64
Mask = Callable[[int, torch.device], torch.Tensor]


def positions(length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.arange(length, device=device)
    return rows[:, None], rows[None, :]


def window(length: int, device: torch.device) -> torch.Tensor:
    rows, columns = positions(length, device)
    return ((rows - columns) < 11) & (columns <= rows)


def documents(length: int, device: torch.device) -> torch.Tensor:
    rows, columns = positions(length, device)
    return (rows // 13 == columns // 13) & (columns <= rows)


def bias_of_heads(length: int, device: torch.device) -> torch.Tensor:
    return torch.linspace(-2, 2, 4 * length * length).sin().reshape(1, 4, length, length).to(device)


def slopes(length: int, device: torch.device) -> torch.Tensor:
    """A bias of heads that all rows share, as ALiBi's."""
    return (
        -(torch.arange(4.0)[:, None, None] + 1).to(device)
        * torch.arange(length, device=device)
        / length
    )


def padding(length: int, device: torch.device) -> torch.Tensor:
    return (torch.arange(length, device=device) < length - 9)[None, None, None, :]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """No program of another test's settings, and none of these for others."""
    spmd.metrics.clear()
    yield
    cache.clear_cache()


@pytest.fixture(params=EXCHANGES)
def exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(spmd.config, "parallel", request.param)
    return request.param


def operands(
    heads: int, kv_heads: int, dtype: torch.dtype, length: int = LENGTH
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(2, number, length, 8, dtype=dtype) for number in (heads, kv_heads, kv_heads)
    ]


def results(
    tensors: list[torch.Tensor],
    is_sharded: bool,
    device: str = "xla",
    mask: Mask | None = None,
    **how: Any,
) -> Any:
    """The output and the gradients of query, key and value; rows over four devices, the batch over
    two."""
    mesh = spmd.Mesh(range(8), (2, 4), ("data", "context"))
    torch.manual_seed(1)
    inputs = [tensor.clone().to(device).requires_grad_() for tensor in tensors]
    if is_sharded:
        for tensor in inputs:
            spmd.mark_sharding(tensor, mesh, P("data", None, "context", None))
    bias = None if mask is None else mask(tensors[0].shape[2], inputs[0].device)
    output = F.scaled_dot_product_attention(*inputs, attn_mask=bias, enable_gqa=True, **how)
    weight = (
        torch.arange(output.numel(), dtype=output.dtype, device=device).reshape(output.shape).sin()
    )
    grads = torch.autograd.grad((output * weight).sum(), inputs)
    return [tensor.detach().cpu() for tensor in (output, *grads)]


def findings() -> str:
    return " ".join(words for record in spmd.metrics.compiles() for _, words in record.passes)


def check(tensors: list[torch.Tensor], **how: Any) -> None:
    for ours, theirs in zip(
        results(tensors, True, **how), results(tensors, False, "cpu", **how), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


class TestExchanges:
    """Output and gradients are those of one device, by any exchange."""

    def test_causal(self, exchange: str) -> None:
        check(operands(4, 4, torch.float64), is_causal=True)
        assert f": {exchange} at " in findings()

    def test_all_keys(self, exchange: str) -> None:
        check(operands(4, 4, torch.float32))

    @pytest.mark.parametrize("kv_heads", [1, 2])
    def test_grouped_heads(self, exchange: str, kv_heads: int) -> None:
        """One head of keys is exchanged by rows; two over four devices are no all-to-all."""
        check(operands(4, kv_heads, torch.float32), is_causal=True)

    @pytest.mark.parametrize("mask", [window, documents, bias_of_heads, slopes, padding])
    def test_masks(self, exchange: str, mask: Mask) -> None:
        check(operands(4, 4, torch.float32), mask=mask)

    def test_dropout(self, exchange: str) -> None:
        """The same probabilities are dropped as on one device."""
        tensors = operands(4, 4, torch.float32)
        how = {"is_causal": True, "dropout_p": 0.3}
        for ours, theirs in zip(
            results(tensors, True, **how), results(tensors, False, **how), strict=True
        ):
            torch.testing.assert_close(ours, theirs)

    @pytest.mark.usefixtures("exchange")
    def test_one_document(self) -> None:
        """Another value in one document changes no row of another."""
        tensors = operands(4, 4, torch.float32)
        before = results(tensors, True, mask=documents)[0]
        for tensor in tensors:
            tensor[:, :, 13:26] += 1
        after = results(tensors, True, mask=documents)[0]
        changed = (before != after).any(dim=(0, 1, 3)).nonzero().flatten().tolist()
        assert changed == [*range(13, 26)]


class TestChoice:
    """What is exchanged is chosen by bytes; what no exchange takes is left to the core, with a
    reason."""

    @pytest.mark.parametrize(
        ("heads", "kv_heads", "most", "chosen"),
        [(4, 2, 1 << 20, "gathered"), (4, 2, 0, "ring"), (4, 4, 0, "all-to-all")],
    )
    def test_auto(
        self, heads: int, kv_heads: int, most: int, chosen: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from spmd.parallel import sequence_attention

        monkeypatch.setattr(sequence_attention, "MOST_GATHERED", most)
        cache.clear_cache()
        check(operands(heads, kv_heads, torch.float32), is_causal=True)
        assert f": {chosen} at " in findings()

    def test_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "parallel", "off")
        check(operands(4, 4, torch.float32), is_causal=True)
        assert ": gathered at " not in findings()

    def test_uneven(self) -> None:
        check(operands(4, 4, torch.float32, length=60), is_causal=True)
        assert "8 chunks do not divide 60 rows" in findings()


class TestCollectives:
    """Forward and backward of causal attention over n devices have at most 2(n-1) collectives of
    the ring each."""

    def test_ring(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "parallel", "ring")
        results(operands(4, 2, torch.float32), True, is_causal=True)
        counts: Counter[str] = Counter()
        for record in spmd.metrics.compiles():
            counts.update(record.collectives)
        assert 0 < counts["collective-permute"] <= 12 and not counts["all-gather"]


class TestSplash:
    """Jax's kernel for TPUs computes the pairs of chunks, here interpreted."""

    @pytest.mark.parametrize("is_causal", [True, False])
    def test_interpreted(self, is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        from spmd.parallel import block_pairs

        monkeypatch.setattr(splash, "INTERPRET", True)
        monkeypatch.setattr(spmd.config, "parallel", "ring")
        monkeypatch.setattr(block_pairs, "_forward_in_blocks", block_pairs._splash_forward)
        monkeypatch.setattr(block_pairs, "_backward_in_blocks", block_pairs._splash_backward)
        cache.clear_cache()
        check(operands(2, 2, torch.float32, length=1024), is_causal=is_causal)

    @pytest.mark.parametrize("window", [1024, 200])
    def test_ids(self, exchange: str, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Documents whose ids are data, by sequence: pairs of chunks get their ids."""
        from spmd.parallel import block_pairs, sequence_attention

        def masking_of(*how: Any) -> Any:
            masking, rest = made(*how)  # a CPU's program keeps no ids
            return dataclasses.replace(masking, documents=Documents.of(rest)), rest

        def forms_of(*how: Any) -> dict[str, block_pairs.Form]:
            taken.append(block_pairs.forms_of(*how)["tpu"])
            return {"default": taken[-1]}

        def mask(length: int, device: torch.device) -> torch.Tensor:
            rows, columns = positions(length, device)
            ends = torch.tensor([[100, 300, 600, 900], [500, 513, 800, 801]])
            ids = (torch.arange(length)[:, None] >= ends[:, None]).sum(-1).to(device)
            same = ids[:, None, :, None] == ids[:, None, None]
            return same & (columns <= rows) & (rows - columns < window)

        made, taken = attention.masking_of, list[block_pairs.Form]()
        monkeypatch.setattr(splash, "INTERPRET", True)
        monkeypatch.setattr(attention, "masking_of", masking_of)
        monkeypatch.setattr(sequence_attention, "forms_of", forms_of)
        cache.clear_cache()
        check(operands(4, 4, torch.float32, length=1024), mask=mask)
        assert taken and all(form.takes_ids for form in taken)


class TestModels:
    """Tokens marked over two axes keep a model's rows where they are, under FSDP, with the losses
    of one device."""

    def test_rows_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "parallel", "ring")
        transformers = pytest.importorskip(
            "transformers", reason="a model of Hugging Face's is what is tested"
        )
        shape = {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        }
        config = transformers.LlamaConfig(
            **shape, num_hidden_layers=2, vocab_size=64, use_cache=False
        )
        tokens = torch.randint(64, (2, 256), generator=torch.Generator().manual_seed(0))

        def losses(device: str) -> list[float]:
            torch.manual_seed(0)
            model = transformers.LlamaForCausalLM(config).to(device)
            ids = tokens.to(device)
            if device == "xla":
                mesh = spmd.Mesh(range(8), (2, 4), ("fsdp", "context"))
                policy = {transformers.models.llama.modeling_llama.LlamaDecoderLayer}
                wrap = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls=policy)
                model = fsdp.FullyShardedDataParallel(model, mesh, auto_wrap_policy=wrap)
                spmd.mark_sharding(ids, mesh, P("fsdp", "context"))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            values = []
            for _ in range(3):
                loss = model(input_ids=ids, labels=ids).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                values.append(loss.item())
            return values

        ours, theirs = losses("xla"), losses("cpu")
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs))
        traffic = [row for record in spmd.metrics.compiles() for row in record.traffic]
        assert any(row.kind == "collective-permute" for row in traffic)
        assert not [
            row for row in traffic if row.kind == "all-gather" and "context" in str(row.axes)
        ]
