"""Played loops by their optimizers, schedules and gradients: equal bits to the same loops
recorded."""

from collections.abc import Callable
from functools import partial
from typing import Any

import played_loops
import pytest
import torch
from played_loops import STEPS, Net, Trace
from torch import nn

import spmd

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "SGD, momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "SGD, Nesterov": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "SGD, for loop": partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=False),
    "Adam": partial(torch.optim.Adam, lr=0.01),
    "Adam, for loop": partial(torch.optim.Adam, lr=0.01, foreach=False),
    "Adam, foreach": partial(torch.optim.Adam, lr=0.01, foreach=True),
    "AdamW": partial(torch.optim.AdamW, lr=0.01),
    "AdamW, for loop": partial(torch.optim.AdamW, lr=0.01, foreach=False),
    "AdamW, foreach": partial(torch.optim.AdamW, lr=0.01, foreach=True),
    "AdamW, amsgrad": partial(torch.optim.AdamW, lr=0.01, amsgrad=True),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.01),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.01),
}
SCHEDULES: dict[str, Callable[..., Any]] = {
    "StepLR": partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5),
    "OneCycleLR": partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=STEPS + 2),
    "CosineAnnealingLR": partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=STEPS),
    "LambdaLR": partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda n: 1 / (n + 1)),
}


class TestOptimizers:
    """A step is one op, with its counters and its state."""

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_steps_are_played(self, name: str) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            played_loops.classify(trace, model, OPTIMIZERS[name](model.parameters()))

        played_loops.check_same_programs(loop)

    @pytest.mark.parametrize("name", SCHEDULES)
    @pytest.mark.parametrize("optimizer", ["SGD, momentum", "AdamW"])
    def test_schedules(self, name: str, optimizer: str) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            made = OPTIMIZERS[optimizer](model.parameters())
            schedule = SCHEDULES[name](made)
            played_loops.classify(trace, model, made, after=lambda _: schedule.step())

        played_loops.check_played(loop, but=1)

    def test_groups_of_their_own_rates(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            groups = [
                {"params": model.blocks.parameters(), "lr": 0.02, "weight_decay": 0.1},
                {"params": model.head.parameters()},
            ]
            optimizer = torch.optim.AdamW(groups, lr=0.01)

            def set_rate(number: int) -> None:
                optimizer.param_groups[0]["lr"] = 0.02 / (number + 1)

            played_loops.classify(trace, model, optimizer, before=set_rate)

        played_loops.check_played(loop, but=1)

    def test_a_closure(self) -> None:
        """A step that takes one runs as it is."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = trace.watch(model, torch.optim.LBFGS(model.parameters(), max_iter=2))[1]
            for _ in range(5):
                x, y = trace.batch()

                def closure(x: Any = x, y: Any = y) -> torch.Tensor:
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(x), y)
                    loss.backward()
                    return loss

                trace.step(optimizer.step(closure))

        trace = played_loops.compare(loop)
        model, optimizer = map(trace.segment, trace.parts)
        assert optimizer is None and model.num_replayed > 4, trace.explain()


class TestGradients:
    """Gradients between backward and the step."""

    def test_set_to_zero(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = torch.optim.AdamW(model.parameters(), 0.01)
            played_loops.classify(trace, model, optimizer, to_none=False)

        played_loops.check_played(loop, but=1)

    def test_clipping_is_played(self) -> None:
        """It is one op."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = torch.optim.AdamW(model.parameters(), 0.01)
            trace.watch(model, optimizer)
            for number in range(STEPS):
                x, y = trace.batch()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                largest = 0.1 / (number + 1)  # another one in each step
                trace.read("norm", nn.utils.clip_grad_norm_(model.parameters(), largest))
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        before = spmd.metrics.counter("replays")
        played_loops.check_same_programs(loop, but=1)
        # the call, the clipping and the step
        assert spmd.metrics.counter("replays") - before >= 3 * (STEPS - 5)

    @pytest.mark.parametrize("foreach", [None, False])
    def test_clipped_norm(self, foreach: bool | None) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = torch.optim.AdamW(model.parameters(), 0.01)
            trace.watch(model, optimizer)
            for _ in range(STEPS):
                x, y = trace.batch()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=foreach)
                optimizer.step()
                trace.read("norm", norm)
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_played(loop)

    def test_views_of_one_buffer(self) -> None:
        """Each is read where the optimizer's ops first use it."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            trace.watch(model, optimizer)
            weights = [*model.parameters()]
            for _ in range(STEPS):
                x, y = trace.batch()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                flat = torch.cat([weight.grad.flatten() for weight in weights])
                parts = flat.split([weight.numel() for weight in weights])
                for weight, part in zip(weights, parts, strict=True):
                    weight.grad = part.view_as(weight)
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_same_programs(loop)

    def test_clipped_values(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            trace.watch(model, optimizer)
            for _ in range(STEPS):
                x, y = trace.batch()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                nn.utils.clip_grad_value_(model.parameters(), 0.01)
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_played(loop)

    @pytest.mark.parametrize("to_none", [True, False])
    def test_accumulated(self, to_none: bool) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = torch.optim.AdamW(model.parameters(), 0.01)
            trace.watch(model, optimizer)
            for _ in range(STEPS):
                for _ in range(2):
                    x, y = trace.batch()
                    loss = nn.functional.cross_entropy(model(x), y) / 2
                    loss.backward()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad(set_to_none=to_none)

        played_loops.check_played(loop, but=1)

    def test_kept_over_steps(self) -> None:
        """zero_grad at every second step."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            trace.watch(model, optimizer)
            for number in range(STEPS):
                x, y = trace.batch()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                trace.step(loss)
                if number % 2:
                    optimizer.zero_grad()

        played_loops.check_played(loop)

    def test_by_name(self) -> None:
        """`torch.autograd.grad` of the weights."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            trace.watch(model, optimizer)
            weights = [*model.parameters()]
            for _ in range(STEPS):
                x, y = trace.batch()
                loss = nn.functional.cross_entropy(model(x), y)
                gradients = torch.autograd.grad(loss, weights)
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight.grad = gradient
                optimizer.step()
                trace.step(loss)

        played_loops.check_played(loop)

    def test_of_some_weights_alone(self) -> None:
        """`backward(inputs=...)`."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            trace.watch(model, optimizer)
            for _ in range(STEPS):
                x, y = trace.batch()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward(inputs=[model.blocks[0].layer.weight, model.head.bias])
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_played(loop)


class TestWrittenState:
    """Weights and state that the loop itself writes between steps."""

    def test_data_of_a_parameter(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")

            def replace(number: int) -> None:
                if number == 5:
                    weight = model.head.weight
                    weight.data = weight.detach() * 1.5

            optimizer = torch.optim.AdamW(model.parameters(), 0.01)
            played_loops.classify(trace, model, optimizer, before=replace)

        played_loops.check_played(loop, but=3)

    def test_data_at_each_step(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")

            def replace(_: int) -> None:
                for weight in model.parameters():
                    weight.data = weight.data * 0.99

            optimizer = torch.optim.AdamW(model.parameters(), 0.01)
            played_loops.classify(trace, model, optimizer, before=replace)

        played_loops.compare(loop)

    def test_written_in_place(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")

            def shrink(_: int) -> None:
                with torch.no_grad():
                    for weight in model.parameters():
                        weight.mul_(0.99)

            optimizer = torch.optim.AdamW(model.parameters(), 0.01)
            played_loops.classify(trace, model, optimizer, before=shrink)

        played_loops.check_played(loop)

    @pytest.mark.parametrize("assign", [False, True])
    def test_loaded(self, assign: bool) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = torch.optim.AdamW(model.parameters(), 0.01)
            saved: list[Any] = []

            def load(number: int) -> None:
                if number == 2:
                    state = {k: v.detach().clone() for k, v in model.state_dict().items()}
                    saved.append(state)
                elif number == 5:
                    model.load_state_dict(saved[0], assign=assign)

            played_loops.classify(trace, model, optimizer, before=load)

        if assign:
            played_loops.compare(loop)  # the optimizer trains the old ones from then on
        else:
            played_loops.check_played(loop)

    def test_state_of_the_optimizer_loaded(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = torch.optim.AdamW(model.parameters(), 0.01)
            saved: list[Any] = []

            def load(number: int) -> None:
                if number == 2:
                    saved.append(
                        torch.utils._pytree.tree_map(
                            lambda x: x.clone() if isinstance(x, torch.Tensor) else x,
                            optimizer.state_dict(),
                        )
                    )
                elif number == 5:
                    optimizer.load_state_dict(saved[0])

            played_loops.classify(trace, model, optimizer, before=load)

        played_loops.check_played(loop, but=3)

    def test_an_average_of_the_weights(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            average = torch.optim.swa_utils.AveragedModel(
                model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
            )
            optimizer = torch.optim.AdamW(model.parameters(), 0.01)

            def update(_: int) -> None:
                average.update_parameters(model)
                with torch.no_grad():
                    trace.read("average", average(trace.batch()[0]))

            played_loops.classify(trace, model, optimizer, after=update)

        played_loops.check_played(loop)


class TestInputs:
    """Gradients of the input."""

    def test_of_the_input(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            trace.watch(model, optimizer)
            for _ in range(STEPS):
                x, y = trace.batch()
                loss = nn.functional.cross_entropy(model(x.requires_grad_(True)), y)
                loss.backward()
                optimizer.step()
                trace.read("gradient of x", x.grad)
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_played(loop)
