"""Loops in which a replay went wrong for others: numbers of optimizers, objects among arguments,
compiled functions that read numbers of the host."""

import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import played_loops
import pytest
import torch
from torch import nn

import spmd
from spmd.steps.segments.segment_calls import segment_of

Loop = Callable[[list[Any]], Any]


def both(loop: Loop) -> Any:
    """Compares what a loop reads, played and not; returns what it returns of the played one."""
    read: tuple[list[Any], list[Any]] = [], []
    for is_played, values in zip((False, True), read, strict=True):
        with played_loops.played(is_played):
            result = loop(values)
    assert read[0] == read[1]
    return result


def layers(count: int = 3) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(8, 8) for _ in range(count)).to("xla")


class Chosen(nn.Module):
    """Residual layers, of which each call names some."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()

    def forward(self, x: torch.Tensor, keep: Any) -> torch.Tensor:
        for layer, is_kept in zip(self.layers, keep, strict=True):
            x = x + layer(x).relu() if is_kept else x
        return x


def test_counters_that_go_apart() -> None:
    """Each weight counts its own steps: a check compares numbers of one recording."""

    def loop(losses: list[Any]) -> Any:
        model, draw = Chosen(), random.Random(0)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        for _ in range(80):
            loss = model(torch.randn(4, 8).to("xla"), [True, *(draw.random() < 0.7,) * 2]).square()
            loss.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.mean().item())
        return segment_of(optimizer)

    segment = both(loop)
    assert segment.num_checked > 2 and "has changed" not in segment.explain(), segment.explain()


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "SGD"])
def test_a_schedule_of_a_fused_optimizer(kind: str) -> None:
    """Formulas pass torch's parser; the op is the one that it gives."""

    def loop(losses: list[Any]) -> Any:
        model = layers(1)[0]
        momentum = {"momentum": 0.9} if kind == "SGD" else {}
        optimizer = getattr(torch.optim, kind)(model.parameters(), 0.1, fused=True, **momentum)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        compiled = spmd.metrics.num_compiles()
        for _ in range(12):
            loss = model(torch.randn(4, 8).to("xla")).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return segment_of(optimizer), spmd.metrics.num_compiles() - compiled

    segment, num_compiled = both(loop)
    assert segment.num_replayed > 4 and num_compiled == 0, segment.explain()


class OfTheHost(torch.optim.Optimizer):
    """An optimizer whose compiled step reads a number on the CPU."""

    def __init__(self, parameters: Any):
        super().__init__(parameters, {"lr": 0.1})
        self.rate = torch.tensor(0.0)
        self.compiled = torch.compile(self._update, fullgraph=True, backend="eager")

    def _update(self, weight: Any, gradient: Any, rate: Any) -> None:
        weight.add_(gradient * -rate)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            self.rate.fill_(group["lr"])
            for parameter in group["params"]:
                self.compiled(parameter, parameter.grad, self.rate)


def test_a_compiled_step_with_a_number_of_the_host() -> None:
    def loop(losses: list[Any]) -> Any:
        model = layers(1)[0]
        optimizer = OfTheHost(model.parameters())
        for step in range(8):
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            loss = model(torch.randn(4, 8).to("xla")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return segment_of(optimizer)

    assert "a CPU tensor" in both(loop).explain()


class Told(nn.Module):
    """A layer whose calls get an object besides."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layers(1)[0]

    def forward(self, x: torch.Tensor, told: Any) -> torch.Tensor:
        return self.layer(x)


def test_arguments_of_another_kind_at_most_calls() -> None:
    def loop(losses: list[Any]) -> Any:
        model = Told()
        for step in range(300):
            model(torch.randn(4, 8).to("xla"), f"batch {step // 3}").sum().backward()
            model.zero_grad()
            losses.append(spmd.sync())
        return segment_of(model)

    assert "of another kind at most calls" in both(loop).explain()


@pytest.mark.parametrize("makes", [lambda: np.ones(3), lambda: nn.Identity(), lambda: lambda: 3])
def test_objects_among_arguments_go(makes: Callable[[], Any]) -> None:
    with played_loops.played():
        model, told = Told(), []
        for _ in range(40):
            argument = makes()
            told.append(weakref.ref(argument))
            model(torch.randn(4, 8).to("xla"), argument).sum().backward()
            spmd.sync()
        del argument
    assert sum(ref() is not None for ref in told) <= 1


@pytest.mark.parametrize("text", [spmd.get_stablehlo, spmd.get_hlo])
@pytest.mark.parametrize("of", ["a result", "a clipped gradient", "all"])
def test_texts_of_played_calls(of: str, text: Callable[..., str]) -> None:
    """Of the ops, and not of a call of them."""

    def loop(losses: list[Any]) -> Any:
        model = Chosen()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(8):
            y = model(torch.ones(2, 8, device="xla"), [True] * 3)
            if of == "a result":
                made = text([y])
            y.square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if of == "a clipped gradient":
                made = text([model.layers[0].weight.grad])
            optimizer.step()
            if of == "all":
                made = text()
            optimizer.zero_grad()
            spmd.sync()
            losses.append(made)
        return segment_of(model)

    assert both(loop).num_replayed >= 4
