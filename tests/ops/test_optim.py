"""Three steps of torch.optim in every implementation against the same on CPU."""

import pytest
import torch
from support import Batch, check

import spmd

CASES = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "dampening": 0.1, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.1, "amsgrad": True}),
    ("AdamW", {"weight_decay": 0.1}),
    ("AdamW", {"maximize": True, "betas": (0.8, 0.95)}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1}),
    ("Adagrad", {"maximize": True, "initial_accumulator_value": 0.1}),
]
HOW = [{"foreach": False}, {"foreach": True}, {"fused": True}, {"capturable": True}]


def train(device: str, name: str, options: dict, shard) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(8, 4), (8,), ()]
    params = [
        torch.nn.Parameter(shard(torch.randn(s, generator=generator).to(device))) for s in shapes
    ]
    optimizer = getattr(torch.optim, name)(params, lr=0.05, **options)
    for _ in range(3):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator).to(device)
        optimizer.step()
    return params


def compare(how: dict, shard=lambda x: x) -> None:
    pairs = []
    for name, options in CASES:
        if name in ("SGD", "Adagrad") and "capturable" in how:  # they have no such argument
            continue
        expected = train("cpu", name, options, lambda x: x)
        pairs.append((train("xla", name, {**options, **how}, shard), expected))
    spmd.sync()
    for actual, expected in pairs:
        for one, other in zip(actual, expected, strict=True):
            check(one, other)


@pytest.mark.parametrize("how", HOW, ids=lambda how: next(iter(how)))
class TestOptimizers:
    """Plain, foreach, fused and capturable give CPU's parameters."""

    def test_three_steps(self, how):
        compare(how)


class TestSharded:
    """Parameters over eight devices."""

    @pytest.mark.parametrize("how", HOW[1:3], ids=lambda how: next(iter(how)))
    def test_three_steps(self, how, mesh8):
        def shard(x):
            return spmd.mark_sharding(x, mesh8, ("fsdp", *[None] * (x.ndim - 1))) if x.ndim else x

        compare(how, shard)


class TestClipping:
    """clip_grad_norm_ scales by the norm of all gradients."""

    def test_clip_grad_norm(self):
        def clip(x, y):
            x, y = torch.nn.Parameter(x), torch.nn.Parameter(y)
            x.grad, y.grad = x.detach() * 3, y.detach() * 2
            norm = torch.nn.utils.clip_grad_norm_([x, y], 1.0)
            return norm, x.grad, y.grad

        batch = Batch()
        batch.case("clip", clip, torch.randn(3, 4), torch.randn(5), gradient=False)
        batch.check()
