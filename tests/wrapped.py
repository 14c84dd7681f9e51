"""A small model, its wrapped form and its training, which the tests of the wrapper share."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support import check
from torch import Tensor, nn

import fsdp
import spmd
from spmd.core.programs import cache

FSDP = fsdp.FullyShardedDataParallel


class Net(nn.Module):
    """Two blocks and a head, which reads what a buffer scales."""

    def __init__(self, width: int = 16, blocks: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Layer(width) for _ in range(blocks))
        self.head = nn.Linear(width, 8)
        self.register_buffer("scale", torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x * self.scale)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


POLICY = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Layer})


def train(
    model: nn.Module, x: Tensor, *, optimizer: torch.optim.Optimizer | None = None, steps: int = 3
) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2) if optimizer is None else optimizer
    losses = []
    for _ in range(steps):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        spmd.sync()
        losses.append(loss.item())
    return losses


def same_training(make: Callable[[], nn.Module], mesh: spmd.Mesh, *shape: int, **how: Any) -> FSDP:
    """Trains twins, one in plain torch and one wrapped, asserts equal losses and weights, returns
    the wrapped one."""
    plain = make()
    wrapped = FSDP(copy.deepcopy(plain), mesh=mesh, **how)
    x = torch.randn(*shape)
    assert train(wrapped, x.to("xla")) == pytest.approx(train(plain, x), rel=1e-5)
    for (name, value), (other, expected) in zip(
        wrapped.state_dict().items(), plain.state_dict().items(), strict=True
    ):
        assert name == other
        check(value, expected)
    return wrapped


def spec(tensor: Tensor) -> tuple[Any, ...]:
    sharding = spmd.get_sharding(tensor)
    assert sharding is not None
    return sharding.partition_spec(tensor.dim())


LAYERS = 8  # of a stack


def stack(width: int, layers: int = LAYERS) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))


def last_record() -> spmd.metrics.CompileRecord:
    """The ledger's line of the program that ran last, which an earlier test may have compiled."""
    program = cache.last_program()
    assert program is not None and program.record is not None
    return program.record
