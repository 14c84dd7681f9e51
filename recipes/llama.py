"""A Llama in plain PyTorch: grouped-query attention, rotary positions, SwiGLU, RMSNorm. The model
uses nothing of this library.

`tensor_parallel` shards it over a mesh with a tensor axis; `fully_sharded` wraps it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy as torch_cross_entropy
from torch.nn.functional import scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

import fsdp
import spmd


@dataclass(frozen=True)
class LlamaConfig:
    """Shapes of a Llama 3 (arXiv:2407.21783)."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 128
    vocabulary: int = 256
    sequence: int = 32
    theta: float = 500_000.0
    eps: float = 1e-5
    checkpointed: bool = False


CONFIGS = {
    "1b": LlamaConfig(16, 2048, 32, 8, 8192, 128_256, 4096),
    "8b": LlamaConfig(32, 4096, 32, 8, 14_336, 128_256, 4096),
    "70b": LlamaConfig(80, 8192, 64, 8, 28_672, 128_256, 4096),
}


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.head = config.width // config.heads
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, config.kv_heads * self.head, bias=False)
        self.value = nn.Linear(config.width, config.kv_heads * self.head, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part(x).view(batch, length, -1, self.head).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        query, key = rotated(query, cos, sin), rotated(key, cos, sin)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of x [batch, heads, length, head] (arXiv:2104.09864)."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.norm1 = nn.RMSNorm(config.width, eps=config.eps)
        self.attention = Attention(config)
        self.norm2 = nn.RMSNorm(config.width, eps=config.eps)
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), cos, sin)
        normed = self.norm2(x)
        return x + self.down(silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """Logits of tokens [batch, length]."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=config.eps)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        half = self.config.width // self.config.heads // 2
        frequencies = self.config.theta ** (
            -torch.arange(half, device=x.device, dtype=torch.float32) / half
        )
        angles = (
            torch.arange(tokens.shape[1], device=x.device, dtype=torch.float32)[:, None]
            * frequencies
        )
        cos, sin = angles.cos(), angles.sin()
        for block in self.blocks:
            if self.config.checkpointed and self.training:
                x = checkpoint(block, x, cos, sin, use_reentrant=False)
            else:
                x = block(x, cos, sin)
        return self.head(self.norm(x))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all tokens, in float32."""
    return torch_cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.reshape(-1))


def tensor_parallel(model: Llama, mesh: spmd.Mesh) -> Callable[[Any, spmd.Mesh], None]:
    """Shards heads, hidden units and vocabulary over the axis "tensor" (arXiv:1909.08053), and
    residuals along the sequence (arXiv:2205.05198); the batch over the other axes. It must be
    called before the model is wrapped, and returns the wrapper's argument `shard_output`."""
    batch = batch_axes(mesh)
    for block in model.blocks:
        attention = block.attention
        for linear in (attention.query, attention.key, attention.value, block.gate, block.up):
            spmd.mark_sharding(linear.weight, mesh, ("tensor", None))
        for linear in (attention.out, block.down):
            spmd.mark_sharding(linear.weight, mesh, (None, "tensor"))
            linear.register_forward_hook(partial(_sharding, mesh, (batch, "tensor", None)))
        for norm in (block.norm1, block.norm2):
            norm.register_forward_hook(partial(_sharding, mesh, (batch, None, None)))
    spmd.mark_sharding(model.embed.weight, mesh, ("tensor", None))
    spmd.mark_sharding(model.head.weight, mesh, ("tensor", None))
    model.norm.register_forward_hook(partial(_sharding, mesh, (batch, None, None)))
    model.embed.register_forward_hook(partial(_sharding, mesh, (batch, "tensor", None)))

    def shard_output(output: Any, mesh: spmd.Mesh) -> None:
        last = "tensor" if output.shape[-1] == model.config.vocabulary else None
        spmd.mark_sharding(output, mesh, (batch, None if last else "tensor", last))

    return shard_output


def batch_axes(mesh: spmd.Mesh) -> tuple[str, ...]:
    """The axes that a batch is sharded over."""
    return tuple(name for name in mesh.axis_names if name != "tensor")


def _sharding(
    mesh: spmd.Mesh,
    spec: tuple[str | tuple[str, ...] | None, ...],
    module: nn.Module,
    args: Any,
    output: Tensor,
) -> None:
    spmd.mark_sharding(output, mesh, spec)


PRECISION = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)


def fully_sharded(
    model: Llama, mesh: spmd.Mesh, precision: fsdp.MixedPrecisionPolicy | None = None, **how: Any
) -> fsdp.FullyShardedDataParallel:
    """The model under FSDP, by default in bfloat16 over float32 masters, each block a unit; with
    heads sharded over the axis "tensor", and replicas over the axis "data"."""
    if "tensor" in mesh.axis_names and mesh.shape()["tensor"] > 1:
        model = model.to_empty(device="xla") if model.head.weight.is_meta else model.to("xla")
        how["shard_output"] = tensor_parallel(model, mesh)
    if "data" in mesh.axis_names:
        how["extra_data_axis"] = "data"
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return fsdp.FullyShardedDataParallel(
        model, mesh, auto_wrap_policy=policy, mp_policy=precision or PRECISION, **how
    )
