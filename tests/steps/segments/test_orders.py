"""Played loops whose forward and backward passes come in other orders, or otherwise from some step
on: equal bits to the same loops recorded."""

from typing import Any

import played_loops
import pytest
import torch
from played_loops import CLASSES, WIDTH, Net, Trace
from torch import nn


class Model(Net):
    """Dropout, and a buffer that is written."""

    def __init__(self) -> None:
        super().__init__(dropout=0.25)
        self.batch_norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(self.batch_norm(x))


class TwoResults(Model):
    """A second head."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.batch_norm(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x), self.other(x)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def loss_of(trace: Trace, model: Any) -> torch.Tensor:
    x, y = trace.batch()
    result = model(x)
    return nn.functional.cross_entropy(result[0] if isinstance(result, tuple) else result, y)


def pairs(trace: Trace, backward: Any, *, kind: Any = Model, num_steps: int = 12) -> None:
    """Steps with two losses."""
    model = kind().to("xla")
    optimizer = sgd(model)
    trace.watch(model, optimizer)
    for number in range(num_steps):
        first, second = loss_of(trace, model), loss_of(trace, model)
        backward(number, first, second)
        optimizer.step()
        trace.step(first)
        trace.step(second)
        optimizer.zero_grad()


class TestOrders:
    """Two calls of a module before their backward passes."""

    @pytest.mark.parametrize("kind", [Model, TwoResults])
    @pytest.mark.parametrize("order", ["one by one", "reversed", "the last", "at once"])
    def test_two_losses(self, order: str, kind: Any) -> None:
        def backward(number: int, first: torch.Tensor, second: torch.Tensor) -> None:
            if order == "at once":
                torch.autograd.backward([first, second])
            elif order == "reversed":
                second.backward()
                first.backward()
            else:
                if order != "the last":
                    first.backward()
                second.backward()

        played_loops.check_played(lambda trace: pairs(trace, backward, kind=kind))

    def test_the_first_loss(self) -> None:
        def backward(number: int, first: torch.Tensor, second: torch.Tensor) -> None:
            first.backward()

        played_loops.check_played(lambda trace: pairs(trace, backward))

    def test_an_order_that_changes(self) -> None:
        def backward(number: int, first: torch.Tensor, second: torch.Tensor) -> None:
            if number % 3 == 0:
                (first + second).backward()
            elif number % 3 == 1:
                second.backward()
                first.backward()
            else:
                second.backward()

        played_loops.check_played(lambda trace: pairs(trace, backward, num_steps=18))

    def test_backward_in_the_next_step(self) -> None:
        """Forward of a batch comes before backward of the last one, on old weights."""

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            trace.watch(model)
            last: Any = None
            for _ in range(12):
                loss = loss_of(trace, model)
                if last is not None:
                    last.backward()
                    trace.step(last)
                last = loss

        played_loops.check_played(loop)


class TestFromSomeStepOn:
    """What a recording has not seen comes at the seventh step, and goes away again."""

    @pytest.mark.parametrize("what", ["both results", "the other result"])
    @pytest.mark.parametrize("until", [7, 20])
    def test_other_backward_passes(self, what: str, until: int) -> None:
        def loop(trace: Trace) -> None:
            model = TwoResults().to("xla")
            optimizer = sgd(model)
            trace.watch(model, optimizer)
            for number in range(14):
                x, y = trace.batch()
                first, second = model(x)
                loss = nn.functional.cross_entropy(first, y)
                if 6 <= number < until:
                    if what == "both results":
                        loss = loss + second.square().mean()
                    else:
                        loss = second.square().mean()
                loss.backward()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        trace = played_loops.compare(loop)
        assert trace.segment(trace.parts[0]).num_replayed >= 2, trace.explain()

    @pytest.mark.parametrize("until", [7, 20])
    def test_a_retained_graph(self, until: int) -> None:
        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            optimizer = sgd(model)
            trace.watch(model, optimizer)
            for number in range(14):
                loss = loss_of(trace, model)
                if 6 <= number < until:
                    loss.backward(retain_graph=True)
                loss.backward()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_played(loop)

    def test_gradients_of_the_input(self) -> None:
        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            optimizer = sgd(model)
            trace.watch(model, optimizer)
            for number in range(14):
                x, y = trace.batch()
                x.requires_grad_(6 <= number < 9)
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                if x.grad is not None:
                    trace.read("gradient of x", x.grad)
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        trace = played_loops.compare(loop)
        assert trace.segment(trace.parts[0]).num_replayed >= 4, trace.explain()

    def test_an_attack(self) -> None:
        """A step of the input's own gradient before that of the weights, from the seventh on."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = sgd(model)
            trace.watch(model, optimizer)
            for number in range(14):
                x, y = trace.batch()
                if number >= 6:
                    x.requires_grad_(True)
                    loss = nn.functional.cross_entropy(model(x), y)
                    (gradient,) = torch.autograd.grad(loss, x)
                    x = (x + 0.1 * gradient.sign()).detach()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        trace = played_loops.compare(loop)
        assert trace.segment(trace.parts[0]).num_replayed >= 6, trace.explain()

    def test_other_weights_alone(self) -> None:
        """`backward(inputs=...)` from the seventh step on."""

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            optimizer = sgd(model)
            trace.watch(model, optimizer)
            for number in range(14):
                loss = loss_of(trace, model)
                if 6 <= number < 9:
                    loss.backward(inputs=[model.head.weight, model.blocks[0].layer.bias])
                else:
                    loss.backward()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.compare(loop)
