"""`torch_xla.amp`: optimizers that skip a step by a flag on the device, a scaler, autocast."""

import copy
from typing import Any

import pytest
import torch
from support import check
from torch import nn

import spmd
from spmd.torch_xla import syncfree


@pytest.mark.parametrize(
    ("ours", "torchs", "how"),
    [
        (syncfree.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (syncfree.Adam, torch.optim.Adam, {"lr": 0.1}),
        (syncfree.AdamW, torch.optim.AdamW, {"lr": 0.1}),
    ],
)
class TestOptimizers:
    """step(closure, found_inf): as torch's, or nothing at all, and no value comes to the host."""

    def test_steps(self, ours: Any, torchs: Any, how: dict[str, Any]) -> None:
        expected = nn.Linear(3, 2)
        model = copy.deepcopy(expected).to("xla")
        optimizers = ours(model.parameters(), **how), torchs(expected.parameters(), **how)
        flag = torch.zeros(1, device="xla", dtype=torch.float64)
        for number in range(4):
            for one, optimizer in zip((model, expected), optimizers, strict=True):
                optimizer.zero_grad()
                one(
                    torch.full((2, 3), number + 1.0, device=next(one.parameters()).device)
                ).square().sum().backward()
            reads = spmd.metrics.counter("host_reads")
            optimizers[0].step(found_inf=flag if number != 2 else flag + 1)
            assert spmd.metrics.counter("host_reads") == reads
            if number != 2:
                optimizers[1].step()
        assert not hasattr(optimizers[0], "found_inf")
        for one, other in zip(model.parameters(), expected.parameters(), strict=True):
            check(one, other)


class TestScaler:
    """GradScaler() of the device, with the optimizers of this module."""

    def test_skips_an_overflow(self) -> None:
        scaler = syncfree.GradScaler(init_scale=8.0, use_zero_grad=True)
        weight = torch.ones(2, device="xla", requires_grad=True)
        optimizer = syncfree.SGD([weight], lr=0.5)
        for factor in (1.0, float("inf")):
            optimizer.zero_grad()
            scaler.scale((weight * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        check(weight, torch.full((2,), 0.5))
        assert scaler.get_scale() == 4.0

    def test_autocast(self) -> None:
        layer, x = nn.Linear(2, 2, device="xla"), torch.ones(1, 2, device="xla")
        with syncfree.autocast("xla:0", dtype=torch.float16):
            assert layer(x).dtype is torch.float16
        with syncfree.autocast(torch.device("xla"), enabled=False):
            assert layer(x).dtype is torch.float32
