"""A training step over sequences of any length and a batch of any size: the loss and gradients of
one device."""

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

import spmd
from spmd.core.programs import cache

from .decoder import Layer, close, decoder, marked, next_token_loss, results, sharded, tokens

pytestmark = pytest.mark.partitioned("sequences of any length")

MESHES = {
    "context 8": ((8,), ("context",)),
    "context 4": ((2, 4), ("fsdp", "context")),
    "fsdp and context 8": ((1, 8), ("fsdp", "context")),
}
UNDIVIDED = "they do not divide {} rows"
# Mesh, batch, length; words of the finding.
CASES = [
    ("context 8", 1, 3, UNDIVIDED),
    ("context 8", 2, 63, UNDIVIDED),
    ("context 8", 1, 40, "16 chunks do not divide {} rows"),
    ("context 8", 1, 64, "attention over context: ring"),
    ("context 4", 1, 3, UNDIVIDED),
    ("context 4", 2, 3, UNDIVIDED),
    ("context 4", 2, 30, UNDIVIDED),
    ("context 4", 3, 12, "8 chunks do not divide {} rows"),
    ("context 4", 1, 32, "attention over context: ring"),
    ("fsdp and context 8", 1, 2, UNDIVIDED),
    ("fsdp and context 8", 2, 63, UNDIVIDED),
]


@pytest.fixture(autouse=True)
def ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys travel where the devices divide the rows.

    Each length has a program, which no other test has compiled.
    """
    monkeypatch.setattr(spmd.config, "parallel", "ring")
    monkeypatch.setattr(spmd.config, "pad_lengths", False)
    cache.clear_cache()
    spmd.metrics.clear()


def findings() -> str:
    return " ".join(words for record in spmd.metrics.compiles() for _, words in record.passes)


def mesh_of(name: str) -> spmd.Mesh:
    shape, axes = MESHES[name]
    return spmd.Mesh(range(8), shape, axes)


@pytest.mark.parametrize(
    ("of_mesh", "batch", "length", "finding"),
    [pytest.param(*case, id="{}, {} x {}".format(*case)) for case in CASES],
)
def test_decoder(of_mesh: str, batch: int, length: int, finding: str) -> None:
    mesh, ids = mesh_of(of_mesh), tokens(batch, length)
    model, alone = sharded(decoder(), Layer, mesh), decoder()
    ours = results(next_token_loss(model, marked(ids, mesh)), model)
    close(ours, results(next_token_loss(alone, ids), alone))
    assert finding.format(length) in findings()


def test_changing_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of several lengths share a padded program."""
    monkeypatch.setattr(spmd.config, "pad_lengths", True)
    mesh = mesh_of("context 4")
    model, alone = sharded(decoder(), Layer, mesh), decoder()
    for length in (24, 30, 21, 27):
        ids = tokens(2, length)
        ours = results(next_token_loss(model, marked(ids, mesh)), model)
        close(ours, results(next_token_loss(alone, ids), alone))
    assert "lengths are operands" in findings() and spmd.metrics.num_compiles() < 4


@pytest.mark.parametrize(
    ("of_mesh", "batch", "length", "layers"),
    [("context 8", 1, 3, 2), ("context 4", 2, 30, 1), ("fsdp and context 8", 1, 63, 1)],
)
def test_llama(of_mesh: str, batch: int, length: int, layers: int) -> None:
    """Within float32, in which Llama computes its norms and its loss, whatever its dtype."""
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=layers,
        vocab_size=48,
        attn_implementation="sdpa",
    )
    mesh, ids, found = mesh_of(of_mesh), tokens(batch, length), []
    for is_sharded in (True, False):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).double()
        model = sharded(model, LlamaDecoderLayer, mesh) if is_sharded else model
        labels = marked(ids, mesh) if is_sharded else ids
        found.append(results(model(input_ids=labels, labels=labels, use_cache=False).loss, model))
    close(*found, tolerance=1e-6)
