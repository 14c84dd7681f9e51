"""recipes/llama.py, wrapped and sharded over two axes, equals the plain model; so does the program by hand in JAX."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import Mesh
from support import check
from torch import Tensor, nn

import fsdp
import spmd
from recipes import llama
from recipes.benchmarks import jax_llama
from recipes.llama import Llama, LlamaConfig, cross_entropy
from spmd import config

CONFIG = LlamaConfig(layers=2, width=64, heads=8, kv_heads=8, hidden=64, vocabulary=64, sequence=16, checkpointed=True)


def tokens_of() -> Tensor:
    return torch.randint(CONFIG.vocabulary, (8, CONFIG.sequence))


class TestLlama:
    """FSDP x tensor parallel, residuals sharded along the sequence: values and gradients of one device."""

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    @pytest.mark.parametrize("shape", [(8,), (2, 4), (2, 2, 2)])
    def test_training_step(self, shape: tuple[int, ...], partitioner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(config, "partitioner", partitioner)
        monkeypatch.setattr(llama, "PRECISION", fsdp.MixedPrecisionPolicy())
        axes = ("data", "fsdp", "tensor") if len(shape) == 3 else ("fsdp", "tensor")[: len(shape)]
        mesh = spmd.Mesh(range(8), shape, axes)
        plain, tokens = Llama(CONFIG), tokens_of()
        model = llama.fully_sharded(copy.deepcopy(plain), mesh)
        expected = cross_entropy(plain(tokens), tokens)
        expected.backward()
        loss = cross_entropy(model(tokens.to("xla")), tokens.to("xla"))
        loss.backward()
        check(loss, expected)
        for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert ours.grad is not None, name
            check(ours.grad, theirs.grad)


class TestByHand:
    """The JAX program computes the same loss of the same weights."""

    @pytest.mark.parametrize("scanned", [True, False])
    def test_loss(self, scanned: bool) -> None:
        plain, tokens = Llama(CONFIG), tokens_of()
        shapes = jax_llama.Llama(2, 64, 8, 8, 64, vocabulary=64)
        mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("fsdp", "tensor"))
        step = jax_llama.Step(shapes, mesh, 8, CONFIG.sequence, scanned=scanned, attention="dot")
        words = jnp.asarray(tokens.numpy(), jnp.int32)
        with jax.enable_x64(False):
            value = float(jax.jit(step.loss)(weights_of(plain), words, words))
        assert value == pytest.approx(cross_entropy(plain(tokens), tokens).item(), rel=2e-2)


def weights_of(model: Llama) -> dict[str, object]:
    """The weights in the JAX program's layout: [in, out], layers stacked."""

    def array(weight: Tensor) -> np.ndarray:
        return weight.detach().numpy().T

    def of_block(block: nn.Module) -> dict[str, np.ndarray]:
        parts = {name: getattr(block.attention, name).weight for name in ("query", "key", "value", "out")}
        parts |= {name: getattr(block, name).weight for name in ("norm1", "norm2", "gate", "up", "down")}
        return {name: array(weight) for name, weight in parts.items()}

    blocks = [of_block(block) for block in model.blocks]
    return {
        "layers": {name: np.stack([block[name] for block in blocks]) for name in blocks[0]},
        "embed": model.embed.weight.detach().numpy(),
        "head": array(model.head.weight),
        "norm": array(model.norm.weight),
    }
