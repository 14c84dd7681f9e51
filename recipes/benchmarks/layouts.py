"""The GPT of the recipes in the three layouts of one mesh axis that the benchmarks compare: "fsdp",
"data", "tensor".

Lives here: the model and its shardings. `jax_gpt.py` has the same layouts in JAX.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

import fsdp
import spmd
from recipes.benchmarks import jax_gpt
from recipes.gpt import GPT, Block, GPTConfig

LAYOUTS = ("fsdp", "data", "tensor")
PARTS = ("query", "key", "value")


class SplitAttention(nn.Module):
    """The recipes' attention with queries, keys and values by three projections, which can be
    sharded by heads."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        for name in (*PARTS, "out"):
            self.add_module(name, nn.Linear(config.width, config.width))

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, width = x.shape
        query, key, value = (
            self.get_submodule(name)(x)
            .view(batch, sequence, self.heads, width // self.heads)
            .transpose(1, 2)
            for name in PARTS
        )
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, sequence, width))


def model_of(config: GPTConfig, layout: str) -> GPT:
    """Returns the model of a layout: heads can be sharded only where their projections are three
    parameters."""
    model = GPT(config)
    if layout == "tensor":
        for block in model.blocks:
            block.attention = SplitAttention(config)
    return model


def weights_of(weights: Mapping[str, Tensor], layout: str) -> dict[str, Tensor]:
    """Returns the weights of a GPT by the names of a layout's model."""
    found = dict[str, Tensor]()
    for name, value in weights.items():
        if layout == "tensor" and ".qkv." in name:
            found |= {
                name.replace("qkv", part): piece
                for part, piece in zip(PARTS, value.chunk(3), strict=True)
            }
        else:
            found[name] = value
    return found


def sharded(model: GPT, layout: str, mesh: spmd.Mesh, *, keep: bool = False) -> nn.Module:
    """Returns a model on xla, sharded. keep: FSDP's reshard_after_forward=False."""
    if layout == "fsdp":
        policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
        return fsdp.FullyShardedDataParallel(
            model, mesh=mesh, auto_wrap_policy=policy, reshard_after_forward=not keep
        )
    for name, parameter in model.named_parameters():
        spec = jax_gpt.tensor_spec(name, layout) if layout == "tensor" else ()
        spmd.mark_sharding(parameter, mesh, (*spec, *[None] * (parameter.dim() - len(spec))))
    if layout == "tensor":
        linears = [
            linear for block in model.blocks for linear in (block.attention.out, block.mlp.down)
        ]
        for module in (model.dropout, *linears):
            module.register_forward_hook(partial(_replicated, mesh))
    return model


def batch_spec(layout: str) -> tuple[str | None, None]:
    """Returns the spec of tokens and targets."""
    return (None if layout == "tensor" else layout, None)


def _replicated(mesh: spmd.Mesh, module: nn.Module, args: Any, output: Tensor) -> None:
    spmd.mark_sharding(output, mesh, (None, None, None))


def plain(weights: Mapping[str, Tensor], config: GPTConfig, layout: str) -> GPT:
    """Returns the model of a layout on the CPU, with these weights of the recipes' GPT."""
    model = model_of(config, layout)
    model.load_state_dict(weights_of(weights, layout))
    return model
