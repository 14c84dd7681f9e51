"""The step that tests of `spmd.plan` plan: a small GPT under FSDP, and the step that trains it."""

import functools
from typing import Any

import torch
from torch import nn

import fsdp
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
from spmd import Mesh

SMALL = GPTConfig(layers=2, width=32, heads=2, sequence=8)


def training(
    mesh: Mesh, *, dropout: float = 0.0, clip: bool = True, layers: int = 2
) -> tuple[nn.Module, Any, Any]:
    """An FSDP model, its optimizer, and the step that a user would write."""
    with torch.device("xla"):
        model = GPT(GPTConfig(layers=layers, width=32, heads=2, sequence=8, dropout=dropout))
    policy = functools.partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
    axes = mesh.axis_names
    model = fsdp.FullyShardedDataParallel(
        model, mesh, auto_wrap_policy=policy, extra_data_axis="data" if "data" in axes else None
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(model(tokens.to("xla")), tokens.to("xla"))
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return model, optimizer, step


def tokens() -> torch.Tensor:
    return torch.arange(16 * 8).reshape(16, 8) % 256
