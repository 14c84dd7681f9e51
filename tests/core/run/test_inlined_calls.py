"""Calls of recorded functions: the passes and the program see the ops that were recorded."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support import check
from torch import Tensor

import spmd
from spmd.core.base import compile_log

LAYERS, WIDTH = 10, 4


def layers(x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights:
        x = torch.tanh(x @ weight) * 0.5 + x
    return x


def trained(function: Any, weights: list[Tensor]) -> tuple[list[Any], compile_log.CompileRecord]:
    """The loss and the gradients, and the record of their program."""
    given = [weight.to("xla").requires_grad_() for weight in weights]
    spmd.sync()
    loss = function(torch.ones(2, WIDTH, device="xla"), *given).square().mean()
    loss.backward()
    spmd.sync()
    return [loss, *(weight.grad for weight in given)], compile_log.compiles()[-1]


class TestScannedLayers:
    """Equal layers inside one call become a loop, as those of a plain call."""

    @pytest.fixture(autouse=True)
    def _scans_always(self) -> Iterator[None]:
        before, spmd.config.scan_layers = spmd.config.scan_layers, "always"
        yield
        spmd.config.scan_layers = before

    def test_loops(self) -> None:
        torch.manual_seed(0)
        weights = [torch.randn(WIDTH, WIDTH) / 2 for _ in range(LAYERS)]
        plain, of_plain = trained(layers, weights)
        ours, of_ours = trained(spmd.assume_pure(layers), weights)
        assert [loop[0] for loop in of_ours.loops] == [loop[0] for loop in of_plain.loops] != []
        assert of_ours.nodes == of_plain.nodes
        for one, other in zip(ours, plain, strict=True):
            check(one, other.cpu())

    def test_call_in_a_call_and_in_a_loop(self) -> None:
        inner = spmd.assume_pure(lambda x, w: torch.nn.functional.dropout(x @ w, 0.25))
        outer = spmd.assume_pure(lambda x, w: inner(inner(x, w), w) + 1)
        x, w = torch.ones(2, WIDTH, device="xla"), torch.eye(WIDTH).to("xla")
        spmd.manual_seed(2)
        expected = [
            torch.nn.functional.dropout(torch.nn.functional.dropout(x, 0.25), 0.25) + 1
            for _ in range(2)
        ]
        spmd.manual_seed(2)
        for one in expected:
            check(outer(x, w), one.cpu())
        carry, _ = spmd.scan(
            lambda carry, row: (spmd.assume_pure(torch.sin)(carry) + row, None), x[0], x
        )
        check(carry, torch.sin(torch.sin(torch.ones(WIDTH)) + 1) + 1)
