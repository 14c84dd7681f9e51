"""Calls that are not played: they are recorded as before, and the reason is named."""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import played_loops
import pytest
import torch
from played_loops import STEPS, Net, Trace, explain
from torch import nn

import spmd


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def steps(trace: Trace, model: nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor, Any]]:
    """Batches, and the optimizer, whose step is made behind each of them."""
    optimizer = sgd(model)
    trace.watch(model, optimizer)
    for _ in range(STEPS):
        yield *trace.batch(), optimizer
        optimizer.step()
        trace.step(torch.zeros(()))
        optimizer.zero_grad()


def refused(
    loop: Callable[[Trace], Any], reason: str, said: pytest.CaptureFixture[str], *, place: int = 0
) -> None:
    """Compares, and demands that a part, the model, was not replayed for a reason that is said
    once; the other one was."""
    trace = played_loops.compare(loop)
    segments = [trace.segment(part) for part in trace.parts]
    segment = segments.pop(place)
    assert segment is not None and segment.num_replayed == 0, explain(segment)
    assert reason in segment.explain(), explain(segment)
    text = said.readouterr().err
    assert sum(reason in line for line in text.splitlines()) == 1, (text, explain(segment))


def check_stopped(loop: Callable[[Trace], Any], said: pytest.CaptureFixture[str]) -> None:
    """Compares, and demands that the model was replayed until a second gradient was taken."""
    trace = played_loops.compare(loop)
    assert is_played(trace), trace.explain()
    assert said.readouterr().err.count("is not replayed: a gradient of its gradient is taken") == 1


def is_played(trace: Trace, place: int = 0) -> bool:
    return trace.segment(trace.parts[place]).num_replayed > 0


class TestRandomness:
    """Draws of the host's that decide about ops."""

    def test_layers_dropped(self, capsys: pytest.CaptureFixture[str]) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                for block in self.blocks:
                    if random.random() < 0.5:
                        x = block(x)
                return self.head(x)

        def loop(trace: Trace) -> None:
            random.seed(0)
            model = Model().to("xla")
            played_loops.classify(trace, model, sgd(model), steps=16)

        refused(loop, "random", capsys)

    def test_draws_of_the_cpu(self, capsys: pytest.CaptureFixture[str]) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                for block in self.blocks:
                    if torch.rand(()).item() < 0.5:
                        x = block(x)
                return self.head(x)

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(trace, model, sgd(model), steps=16)

        refused(loop, "random", capsys)

    def test_a_shuffle_of_the_loop_plays(self) -> None:
        """The loop's own draws decide between calls: data and a value to come are two kinds."""

        def loop(trace: Trace) -> None:
            random.seed(0)
            model = Net().to("xla")
            played_loops.classify(
                trace, model, sgd(model), place=lambda x: x if random.random() < 0.5 else x.flip(0)
            )

        played_loops.check_played(loop, but=2)

    def test_the_time(self, capsys: pytest.CaptureFixture[str]) -> None:
        class Clock:
            now = 0.0

        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                Clock.now += 1
                return super().forward(x) * (1.0 if Clock.now < 6 else 0.5)

        def loop(trace: Trace) -> None:
            Clock.now = 0.0
            model = Model().to("xla")
            played_loops.classify(trace, model, sgd(model), steps=12)

        refused(loop, "Clock.now", capsys)


class TestState:
    """Python state that a call changes."""

    def test_a_counter(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Nothing reads it but the loop."""

        class Model(Net):
            count = 0

            def forward(self, x: torch.Tensor) -> Any:
                self.count += 1
                return super().forward(x)

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(trace, model, sgd(model))
            trace.read("count", model.count)

        refused(loop, "Model.count", capsys)

    def test_a_counter_that_forward_reads(self, capsys: pytest.CaptureFixture[str]) -> None:
        class Model(Net):
            count = 0

            def forward(self, x: torch.Tensor) -> Any:
                self.count += 1
                return super().forward(x) / self.count

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(trace, model, sgd(model))
            trace.read("count", model.count)

        refused(loop, "Model.count", capsys)

    def test_a_list_that_grows(self, capsys: pytest.CaptureFixture[str]) -> None:
        class Model(Net):
            def __init__(self) -> None:
                super().__init__()
                self.seen: list[int] = []

            def forward(self, x: torch.Tensor) -> Any:
                self.seen.append(len(x))
                return super().forward(x)

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(trace, model, sgd(model))
            trace.read("calls", len(model.seen))

        refused(loop, "seen", capsys)

    def test_a_global_list_that_grows(self, capsys: pytest.CaptureFixture[str]) -> None:
        seen: list[int] = []

        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                seen.append(len(x))
                return super().forward(x)

        def loop(trace: Trace) -> None:
            seen.clear()
            model = Model().to("xla")
            played_loops.classify(trace, model, sgd(model))
            trace.read("calls", len(seen))

        refused(loop, "seen", capsys)

    def test_a_result_kept(self, capsys: pytest.CaptureFixture[str]) -> None:
        class Model(Net):
            last: Any = None

            def forward(self, x: torch.Tensor) -> Any:
                self.last = self.blocks[0](x)
                return self.head(self.blocks[1](self.last))

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(
                trace, model, sgd(model), after=lambda _: trace.read("last", model.last)
            )

        refused(loop, "last", capsys)

    def test_a_detached_result_kept(self, capsys: pytest.CaptureFixture[str]) -> None:
        class Model(Net):
            last: Any = None

            def forward(self, x: torch.Tensor) -> Any:
                x = self.blocks[0](x)
                self.last = x.detach()
                return self.head(self.blocks[1](x))

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(
                trace, model, sgd(model), after=lambda _: trace.read("last", model.last)
            )

        refused(loop, "last", capsys)

    def test_an_input_kept(self, capsys: pytest.CaptureFixture[str]) -> None:
        class Model(Net):
            last: Any = None

            def forward(self, x: torch.Tensor) -> Any:
                self.last = x
                return super().forward(x)

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(
                trace, model, sgd(model), after=lambda _: trace.read("last", model.last)
            )

        refused(loop, "replaces a tensor", capsys)

    def test_an_auxiliary_loss_kept(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A module leaves a loss for the loop, which adds it."""

        class Model(Net):
            extra: Any = None

            def forward(self, x: torch.Tensor) -> Any:
                x = self.blocks[0](x)
                self.extra = x.square().mean()
                return self.head(self.blocks[1](x))

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            for x, y, _ in steps(trace, model):
                loss = nn.functional.cross_entropy(model(x), y) + model.extra
                loss.backward()
                trace.read("loss", loss)

        refused(loop, "extra", capsys)

    def test_a_weight_made_anew(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A parameter that forward replaces."""

        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                self.head.bias.data = self.head.bias.data * 0.9
                return super().forward(x)

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(trace, model, sgd(model))

        refused(loop, "_parameters['bias']", capsys)

    def test_values_read_inside(self, capsys: pytest.CaptureFixture[str]) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                result = super().forward(x)
                return result * 2 if result.mean().item() > 0 else result

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(trace, model, sgd(model))

        refused(loop, "runs a program", capsys)

    def test_something_printed(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Each call prints, played or not; or a line says that it does not."""

        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                print("forward")
                return super().forward(x)

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(trace, model, sgd(model))

        played_loops.compare(loop)
        assert capsys.readouterr().out.count("forward") == 2 * STEPS


class TestHooks:
    """The user's hooks, which see inner tensors."""

    def test_a_forward_hook_that_keeps(self, capsys: pytest.CaptureFixture[str]) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            kept: list[torch.Tensor] = []
            model.blocks[0].register_forward_hook(lambda module, args, y: kept.append(y.detach()))
            played_loops.classify(trace, model, sgd(model))
            assert len(kept) == STEPS
            for value in kept:
                trace.read("kept", value)

        refused(loop, "kept", capsys)

    def test_a_forward_hook_that_changes_the_result(self) -> None:
        """Nothing of it is alive behind the call."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            model.blocks[0].register_forward_hook(lambda module, args, y: y * 0.5)
            played_loops.classify(trace, model, sgd(model))

        played_loops.check_played(loop)

    def test_hooks_of_the_model_itself(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Of the outermost module, in front of its forward and behind it."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            calls: list[int] = []
            model.register_forward_pre_hook(lambda module, args: calls.append(1))
            model.register_forward_hook(lambda module, args, y: y * 0.5)
            played_loops.classify(trace, model, sgd(model))
            trace.read("calls", len(calls))

        refused(loop, "calls", capsys)

    def test_a_backward_hook_that_counts(self, capsys: pytest.CaptureFixture[str]) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            calls: list[int] = []
            model.blocks[1].register_full_backward_hook(lambda module, gin, gout: calls.append(1))
            played_loops.classify(trace, model, sgd(model))
            trace.read("calls", len(calls))

        refused(loop, "calls", capsys)

    def test_a_backward_hook_that_keeps(self, capsys: pytest.CaptureFixture[str]) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            kept: list[torch.Tensor] = []
            model.blocks[1].register_full_backward_hook(
                lambda module, gin, gout: kept.append(gout[0].detach())
            )
            played_loops.classify(trace, model, sgd(model))
            assert len(kept) == STEPS
            for value in kept:
                trace.read("kept", value)

        refused(loop, "alive at its end", capsys)

    def test_a_backward_hook_that_changes_the_gradient(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            model.blocks[1].register_full_backward_hook(lambda module, gin, gout: (gin[0] * 0.5,))
            played_loops.classify(trace, model, sgd(model))

        played_loops.check_played(loop)

    @pytest.mark.parametrize("does", ["changes", "counts", "keeps"])
    def test_a_hook_of_a_gradient(self, does: str) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            seen: list[torch.Tensor] = []

            def hook(gradient: torch.Tensor) -> torch.Tensor | None:
                if does == "changes":
                    return gradient * 0.5
                seen.append(gradient.detach() if does == "keeps" else torch.ones(()))
                return None

            model.head.weight.register_hook(hook)
            played_loops.classify(trace, model, sgd(model))
            for value in seen:
                trace.read("seen", value)

        played_loops.check_played(loop)

    @pytest.mark.parametrize("does", ["changes", "counts", "steps"])
    def test_a_hook_behind_accumulation(self, does: str) -> None:
        """An optimizer's step in backward is one."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            seen: list[float] = []

            def hook(weight: torch.Tensor) -> None:
                assert weight.grad is not None
                with torch.no_grad():
                    if does == "changes":
                        weight.grad.mul_(0.5)
                    elif does == "steps":
                        weight.sub_(weight.grad, alpha=0.05)
                seen.append(1.0)

            for weight in model.parameters():
                weight.register_post_accumulate_grad_hook(hook)
            played_loops.classify(trace, model, sgd(model))
            trace.read("seen", len(seen))

        played_loops.check_played(loop)

    def test_a_hook_of_an_inner_tensor(self) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                x = self.blocks[0](x)
                x.register_hook(lambda gradient: gradient * 0.5)
                return self.head(self.blocks[1](x))

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(trace, model, sgd(model))

        played_loops.check_played(loop)

    def test_a_hook_of_the_result(self) -> None:
        """The loop's own, on what the call has returned."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            seen: list[torch.Tensor] = []

            def logits(x: torch.Tensor) -> torch.Tensor:
                result = model(x)
                result.register_hook(lambda gradient: seen.append(gradient.detach()))
                result.retain_grad()
                return result

            played_loops.classify(trace, model, sgd(model), logits=logits)
            for value in seen:
                trace.read("seen", value)

        played_loops.check_played(loop)

    def test_a_hook_of_all_modules(self, capsys: pytest.CaptureFixture[str]) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            calls: list[int] = []
            handle = nn.modules.module.register_module_forward_hook(
                lambda module, args, y: calls.append(1)
            )
            try:
                played_loops.classify(trace, model, sgd(model))
            finally:
                handle.remove()
            trace.read("calls", len(calls))

        refused(loop, "calls", capsys)

    @pytest.mark.parametrize("kind", ["pre", "post"])
    def test_hooks_of_an_optimizer(self, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = sgd(model)
            calls: list[int] = []
            register = getattr(optimizer, f"register_step_{kind}_hook")
            register(lambda *_: calls.append(1))
            played_loops.classify(trace, model, optimizer)
            trace.read("calls", len(calls))

        refused(loop, "calls", capsys, place=1)


class TestBackward:
    """Backward passes that are no plain one."""

    def test_twice(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            for x, y, _ in steps(trace, model):
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward(retain_graph=True)
                loss.backward()
                trace.read("loss", loss)

        played_loops.check_played(loop)

    def test_twice_of_two_losses(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            for x, y, _ in steps(trace, model):
                logits = model(x)
                nn.functional.cross_entropy(logits, y).backward(retain_graph=True)
                logits.square().mean().backward()
                trace.read("logits", logits)

        played_loops.check_played(loop)

    def test_twice_without_retain_graph(self) -> None:
        """The second one raises as before."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            for x, y, _ in steps(trace, model):
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                with pytest.raises(RuntimeError, match="second time"):
                    loss.backward()
                trace.read("loss", loss)

        played_loops.check_played(loop)

    def test_a_gradient_penalty(self, capsys: pytest.CaptureFixture[str]) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            for x, y, _ in steps(trace, model):
                loss = nn.functional.cross_entropy(model(x.requires_grad_(True)), y)
                (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
                loss = loss + gradient.square().sum()
                loss.backward()
                trace.read("loss", loss)

        refused(loop, "gradient of its gradient", capsys)

    def test_a_penalty_from_the_sixth_step_on(self, capsys: pytest.CaptureFixture[str]) -> None:
        """It is played before, and recorded from then on."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            for number, (x, y, _) in enumerate(steps(trace, model), 1):
                loss = nn.functional.cross_entropy(model(x.requires_grad_(number > 5)), y)
                if number > 5:
                    weights = [*model.parameters()]
                    gradients = torch.autograd.grad(loss, weights, create_graph=True)
                    loss = loss + sum(one.square().sum() for one in gradients)
                loss.backward()
                trace.read("loss", loss)

        check_stopped(loop, capsys)

    @pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
    def test_second_derivatives_of_weights(self, capsys: pytest.CaptureFixture[str]) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            for number, (x, y, _) in enumerate(steps(trace, model), 1):
                loss = nn.functional.cross_entropy(model(x), y)
                if number > 4:
                    loss.backward(create_graph=True)
                    gradient = model.head.weight.grad
                    assert gradient is not None
                    (second,) = torch.autograd.grad(gradient.square().sum(), model.head.weight)
                    trace.read("second", second)
                    for weight in model.parameters():
                        assert weight.grad is not None
                        weight.grad = weight.grad.detach()
                else:
                    loss.backward()
                trace.read("loss", loss)

        check_stopped(loop, capsys)

    def test_a_returned_tensor_that_the_result_is_made_of(self) -> None:
        """Gradients come to both."""

        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                hidden = self.blocks[0](x)
                return self.head(self.blocks[1](hidden)), hidden

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            for x, y, _ in steps(trace, model):
                logits, hidden = model(x)
                loss = nn.functional.cross_entropy(logits, y) + hidden.square().mean()
                loss.backward()
                trace.read("loss", loss)

        played_loops.check_played(loop)

    def test_backward_inside(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A module that calls backward itself."""

        class Model(Net):
            def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:  # type: ignore[override]
                loss = nn.functional.cross_entropy(super().forward(x), y)
                loss.backward()
                return loss.detach()

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            for x, y, _ in steps(trace, model):
                trace.read("loss", model(x, y))

        refused(loop, "a gradient is no result", capsys)

    def test_anomaly_mode(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            with torch.autograd.set_detect_anomaly(True):
                played_loops.classify(trace, model, sgd(model))

        trace = played_loops.compare(loop)
        assert not any(is_played(trace, place) for place in (0, 1))

    def test_anomaly_mode_after_some_steps(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")

            def detect(number: int) -> None:
                torch.autograd.set_detect_anomaly(number in (5, 6))

            try:
                played_loops.classify(trace, model, sgd(model), steps=12, before=detect)
            finally:
                torch.autograd.set_detect_anomaly(False)

        played_loops.check_played(loop)

    def test_hooks_of_saved_tensors(self) -> None:
        def loop(trace: Trace) -> None:
            model, packed = Net().to("xla"), []

            def pack(tensor: torch.Tensor) -> torch.Tensor:
                packed.append(1)
                return tensor * 0.5

            def logits(x: torch.Tensor) -> torch.Tensor:
                with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor * 2):
                    return model(x)

            played_loops.classify(trace, model, sgd(model), logits=logits)
            trace.read("packed", len(packed))

        trace = played_loops.compare(loop)
        assert not is_played(trace)

    def test_saved_tensors_on_the_cpu(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")

            def logits(x: torch.Tensor) -> torch.Tensor:
                with torch.autograd.graph.save_on_cpu():
                    return model(x)

            played_loops.classify(trace, model, sgd(model), logits=logits)

        trace = played_loops.compare(loop)
        assert not is_played(trace)

    def test_hooks_of_saved_tensors_inside(self) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x * 1.0, lambda x: x)
                with hooks:
                    return super().forward(x)

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(trace, model, sgd(model))

        played_loops.check_played(loop)

    def test_a_dispatch_mode(self) -> None:
        """The user's mode sees all ops."""

        class Counting(torch.utils._python_dispatch.TorchDispatchMode):
            number = 0

            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                self.number += 1
                return func(*args, **(kwargs or {}))

        def loop(trace: Trace) -> None:
            model, mode = Net().to("xla"), Counting()

            def logits(x: torch.Tensor) -> torch.Tensor:
                with mode:
                    return model(x)

            played_loops.classify(trace, model, sgd(model), logits=logits)
            trace.read("ops", mode.number)

        trace = played_loops.compare(loop)
        assert not is_played(trace)


class TestErrors:
    """Exceptions in the middle of a call, after which the loop goes on."""

    @pytest.mark.parametrize("number", [1, 2, 3, 5])
    def test_in_forward(self, number: int) -> None:
        """At the call that is observed, recorded or played."""

        class Model(Net):
            fails = False

            def forward(self, x: torch.Tensor) -> Any:
                x = self.blocks[0](x)
                if self.fails:
                    raise KeyError("in the middle")
                return self.head(self.blocks[1](x))

        def loop(trace: Trace) -> None:
            model = Model(dropout=0.25).to("xla")

            def logits(x: torch.Tensor) -> torch.Tensor:
                nonlocal calls
                calls += 1
                if calls == number:
                    model.fails = True
                    with pytest.raises(KeyError, match="in the middle"):
                        model(x)
                    model.fails = False
                return model(x)

            calls = 0
            played_loops.classify(trace, model, sgd(model), steps=12, logits=logits)

        played_loops.check_played(loop)

    def test_of_shapes(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")

            def fail(_: int) -> None:
                with pytest.raises(RuntimeError):
                    model(torch.ones(8, 3, device="xla"))

            played_loops.classify(trace, model, sgd(model), before=fail)

        played_loops.check_played(loop)

    @pytest.mark.parametrize("number", [1, 2, 3, 5])
    def test_in_backward(self, number: int) -> None:
        class Fails(torch.autograd.Function):
            is_on = False

            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x * 1

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
                if Fails.is_on:
                    raise KeyError("in the middle")
                return gradient

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            for calls, (x, y, optimizer) in enumerate(steps(trace, model), 1):
                logits = model(x)
                Fails.is_on = calls == number
                loss = nn.functional.cross_entropy(Fails.apply(logits), y)
                if Fails.is_on:
                    with pytest.raises(KeyError, match="in the middle"):
                        loss.backward()
                    optimizer.zero_grad()
                    Fails.is_on = False
                    loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                trace.read("loss", loss)

        played_loops.check_played(loop)

    @pytest.mark.parametrize("number", [1, 2, 3, 5])
    def test_in_an_inner_backward(self, number: int) -> None:
        class Fails(torch.autograd.Function):
            is_on = False

            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x * 1

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
                if Fails.is_on:
                    raise KeyError("in the middle")
                return gradient

        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                return self.head(self.blocks[1](Fails.apply(self.blocks[0](x))))

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            for calls, (x, y, optimizer) in enumerate(steps(trace, model), 1):
                Fails.is_on = calls == number
                loss = nn.functional.cross_entropy(model(x), y)
                failed = False
                try:
                    loss.backward()
                except KeyError:
                    failed = True
                trace.read("failed", failed)
                if failed:
                    optimizer.zero_grad()
                    Fails.is_on = False
                    nn.functional.cross_entropy(model(x), y).backward()
                Fails.is_on = False

        played_loops.check_played(loop)

    def test_in_an_optimizer(self) -> None:
        class Fragile(torch.optim.SGD):
            fails = False

            def step(self, closure: Any = None) -> Any:
                if self.fails:
                    raise KeyError("in the middle")
                return super().step(closure)

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = Fragile(model.parameters(), 0.1, momentum=0.9)

            def fail(number: int) -> None:
                if number in (1, 2, 3, 5):
                    optimizer.fails = True
                    with pytest.raises(KeyError):
                        optimizer.step()
                    optimizer.fails = False

            played_loops.classify(trace, model, optimizer, before=fail)

        played_loops.check_played(loop)

    def test_an_interrupt(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")

            def interrupt(number: int) -> None:
                if number in (1, 2, 5):

                    def hook(*_: Any) -> None:
                        raise KeyboardInterrupt

                    handle = model.blocks[1].register_forward_pre_hook(hook)
                    with contextlib.suppress(KeyboardInterrupt):
                        model(trace.batch()[0])
                    handle.remove()

            played_loops.classify(trace, model, sgd(model), steps=12, before=interrupt)

        played_loops.check_played(loop)


class TestSettings:
    """Settings between calls, which decide what is recorded."""

    def test_turned_off_and_on(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            was = spmd.config.replay_steps

            def turn(number: int) -> None:
                spmd.config.replay_steps = was and number not in (5, 6)

            played_loops.classify(trace, model, sgd(model), steps=12, before=turn)

        played_loops.check_played(loop)

    def test_a_precision(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            before = torch.get_float32_matmul_precision()

            def turn(number: int) -> None:
                torch.set_float32_matmul_precision("highest" if number < 6 else "medium")

            try:
                played_loops.classify(trace, model, sgd(model), steps=12, before=turn)
            finally:
                torch.set_float32_matmul_precision(before)

        played_loops.check_played(loop)


class Hidden(Net):
    """A result of which another one is made."""

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.blocks[0](x)
        return self.head(self.blocks[1](hidden)), hidden


class TestResults:
    """Watched calls, and gradients of results."""

    @pytest.mark.parametrize("what", ["anomaly", "hooks"])
    def test_a_reason_is_named(self, what: str, capsys: pytest.CaptureFixture[str]) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            context: Any = (
                torch.autograd.set_detect_anomaly(True)
                if what == "anomaly"
                else torch.autograd.graph.save_on_cpu()
            )
            with context:
                played_loops.classify(trace, model, sgd(model))

        trace = played_loops.compare(loop)
        segment = trace.segment(trace.parts[0])
        assert segment.num_replayed == 0 and len(segment.causes) > 0
        assert "Net" in capsys.readouterr().err

    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
    @pytest.mark.parametrize("what", ["retain_grad", "hook", "changing hook"])
    def test_a_result_that_another_one_is_made_of(self, what: str) -> None:
        def loop(trace: Trace) -> None:
            model = Hidden().to("xla")
            optimizer = sgd(model)
            trace.watch(model, optimizer)
            for _ in range(STEPS):
                x, y = trace.batch()
                logits, hidden = model(x)
                seen: list[Any] = []
                if what == "retain_grad":
                    hidden.retain_grad()
                elif what == "hook":
                    hidden.register_hook(lambda g, seen=seen: seen.append(g))
                else:
                    hidden.register_hook(lambda g: g * 0.5)
                nn.functional.cross_entropy(logits, y).backward()
                trace.read("has one", hidden.grad is not None)
                for gradient in seen:
                    trace.read("gradient", gradient)
                optimizer.step()
                trace.step(torch.zeros(()))
                optimizer.zero_grad()

        played_loops.compare(loop)
