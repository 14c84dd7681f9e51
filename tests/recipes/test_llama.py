"""recipes/llama.py, wrapped and sharded over two axes, equals the plain model; so does the program
by hand in JAX."""

import copy
from functools import partial

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
from recipes.benchmarks import jax_llama, jax_sequences
from recipes.llama import Llama, LlamaConfig, cross_entropy
from spmd import config

CONFIG = LlamaConfig(
    layers=2,
    width=64,
    heads=8,
    kv_heads=8,
    hidden=64,
    vocabulary=64,
    sequence=16,
    checkpointed=True,
)


def tokens_of() -> Tensor:
    return torch.randint(CONFIG.vocabulary, (8, CONFIG.sequence))


class TestLlama:
    """FSDP x tensor parallel, residuals sharded along the sequence: values and gradients of one
    device."""

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    @pytest.mark.parametrize("shape", [(8,), (2, 4), (2, 2, 2)])
    def test_training_step(
        self, shape: tuple[int, ...], partitioner: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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

    @pytest.mark.parametrize("checkpointed", [True, False])
    def test_of_sharded_rows(self, checkpointed: bool) -> None:
        """The ring's loss and gradients are those of whole rows."""
        plain, tokens = Llama(CONFIG), jnp.asarray(tokens_of().numpy(), jnp.int32)
        shapes = jax_llama.Llama(2, 64, 8, 8, 64, vocabulary=64)
        devices = np.array(jax.devices()[:8])
        whole = jax_llama.Step(
            shapes,
            Mesh(devices.reshape(8, 1), ("fsdp", "tensor")),
            8,
            CONFIG.sequence,
            attention="dot",
            dtype=jnp.float32,
        )
        ring = jax_sequences.Step(
            shapes,
            Mesh(devices.reshape(2, 4), jax_sequences.ALL),
            8,
            CONFIG.sequence,
            checkpointed,
            jax_sequences.BY_PRODUCTS,
            dtype=jnp.float32,
        )
        order = jax_sequences.zigzag(CONFIG.sequence, 4)
        targets, weights = jnp.roll(tokens, -1, axis=1), weights_of(plain)
        with jax.enable_x64(False):
            value, gradients = jax.jit(jax.value_and_grad(whole.loss))(weights, tokens, targets)
            mine = jax.jit(jax.value_and_grad(ring.loss))(
                weights, tokens[:, order], targets[:, order], order
            )
        np.testing.assert_allclose(mine[0], value, rtol=1e-6)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), mine[1], gradients)


def weights_of(model: Llama) -> dict[str, object]:
    """The weights in the JAX program's layout: [in, out], layers stacked."""

    def array(weight: Tensor) -> np.ndarray:
        return weight.detach().numpy().T

    def of_block(block: nn.Module) -> dict[str, np.ndarray]:
        parts = {
            name: getattr(block.attention, name).weight for name in ("query", "key", "value", "out")
        }
        parts |= {
            name: getattr(block, name).weight for name in ("norm1", "norm2", "gate", "up", "down")
        }
        return {name: array(weight) for name, weight in parts.items()}

    blocks = [of_block(block) for block in model.blocks]
    return {
        "layers": {name: np.stack([block[name] for block in blocks]) for name in blocks[0]},
        "embed": model.embed.weight.detach().numpy(),
        "head": array(model.head.weight),
        "norm": array(model.norm.weight),
    }
