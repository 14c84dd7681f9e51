"""Played loops by what the loop itself does with results, gradients and weights: equal bits to the
same loops recorded."""

import copy
import io
from collections.abc import Callable
from typing import Any

import played_loops
import pytest
import torch
from played_loops import CLASSES, STEPS, WIDTH, Block, Net, Trace
from torch import nn
from torch.func import functional_call


def sgd(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([x for model in models for x in model.parameters()], 0.1, momentum=0.9)


def loop_of(
    step: Callable[[Trace, Any, torch.optim.Optimizer, int], torch.Tensor],
    make: Callable[[], nn.Module] = Net,
    num_steps: int = STEPS,
) -> Callable[[Trace], None]:
    """A loop whose steps are functions of the trace, the model, the optimizer and their number:
    each returns a loss of which backward has been called."""

    def loop(trace: Trace) -> None:
        model = make().to("xla")
        optimizer = sgd(model)
        trace.watch(model, optimizer)
        for number in range(num_steps):
            loss = step(trace, model, optimizer, number)
            optimizer.step()
            trace.step(loss)
            optimizer.zero_grad()

    return loop


def cross_entropy(trace: Trace, model: Any) -> torch.Tensor:
    x, y = trace.batch()
    return nn.functional.cross_entropy(model(x), y)


class TestResults:
    """Results are tensors as any other op's."""

    def test_written_in_place(self) -> None:
        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            x, y = trace.batch()
            logits = model(x)
            logits.mul_(0.5)
            logits[:, 0] = -1.0
            loss = nn.functional.cross_entropy(logits, y)
            loss.backward()
            return loss

        played_loops.check_played(loop_of(step))

    def test_written_in_place_under_no_grad(self) -> None:
        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            x, y = trace.batch()
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
            with torch.no_grad():
                shifted = logits.detach().add_(1.0)
            trace.read("shifted", shifted)
            trace.read("logits", logits)
            return loss

        def with_backward(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            loss = step(trace, model, optimizer, number)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
            loss = cross_entropy(trace, model)
            loss.backward()
            return loss

        played_loops.compare(loop_of(with_backward))

    def test_kept_over_steps(self) -> None:
        """All losses, logits and gradients are read at the end."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = sgd(model)
            trace.watch(model, optimizer)
            kept: list[Any] = []
            for _ in range(STEPS):
                x, y = trace.batch()
                logits = model(x)
                loss = nn.functional.cross_entropy(logits, y)
                loss.backward()
                kept += [loss, logits, *(weight.grad for weight in model.parameters())]
                optimizer.step()
                trace.read("loss", loss)
                optimizer.zero_grad()
            for value in kept:
                trace.read("kept", value)

        played_loops.check_played(loop)

    def test_read_in_the_middle_of_a_step(self) -> None:
        """A sync between forward and backward, and one in front of the optimizer's step."""

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            loss = cross_entropy(trace, model)
            trace.read("early loss", loss)
            loss.backward()
            trace.read("gradient", model.head.bias.grad)
            return loss

        played_loops.check_played(loop_of(step))

    def test_several_losses(self) -> None:
        """`torch.autograd.backward` of a list, with gradients of its own."""

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            x, _ = trace.batch()
            logits = model(x)
            torch.autograd.backward(
                [logits, logits.square().mean()], [torch.ones_like(logits) * 0.01, None]
            )
            return logits

        played_loops.check_played(loop_of(step))

    def test_backward_of_a_result(self) -> None:
        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            x, _ = trace.batch()
            logits = model(x)
            logits.backward(gradient=torch.full_like(logits, 0.01))
            return logits

        played_loops.check_played(loop_of(step))

    def test_integers_among_results(self) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                logits = super().forward(x)
                return logits, logits.argmax(-1), logits.detach() * 2, "logits", 3

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            x, y = trace.batch()
            logits, best, doubled, name, three = model(x)
            assert (name, three) == ("logits", 3) and not doubled.requires_grad
            loss = nn.functional.cross_entropy(logits, y)
            loss.backward()
            trace.read("best", best)
            trace.read("doubled", doubled)
            return loss

        played_loops.check_played(loop_of(step, Model))

    def test_one_tensor_twice(self) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor, again: torch.Tensor) -> Any:  # type: ignore[override]
                logits = super().forward(x + again)
                return logits, logits

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            x, y = trace.batch()
            first, second = model(x, x)
            assert first is second
            loss = nn.functional.cross_entropy(first + second, y)
            loss.backward()
            return loss

        played_loops.check_played(loop_of(step, Model))

    def test_an_argument_returned(self) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                return super().forward(x), x

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            x, y = trace.batch()
            logits, same = model(x)
            assert same is x
            loss = nn.functional.cross_entropy(logits, y)
            loss.backward()
            return loss

        played_loops.check_played(loop_of(step, Model))

    def test_a_weight_returned(self) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                return super().forward(x), self.head.weight

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            x, y = trace.batch()
            logits, weight = model(x)
            assert weight is model.head.weight
            loss = nn.functional.cross_entropy(logits, y) + weight.square().sum() * 0.01
            loss.backward()
            return loss

        played_loops.compare(loop_of(step, Model))

    def test_a_state_carried_on(self) -> None:
        """Two calls of backward through time; the second one reads the first one's state."""

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cell, self.head = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

            def forward(self, x: torch.Tensor, state: torch.Tensor) -> Any:
                state = self.cell(x, state)
                return self.head(state), state

        state: Any = None

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            nonlocal state
            state = torch.zeros(8, WIDTH, device="xla") if number == 0 else state.detach()
            losses = []
            for _ in range(2):
                x, y = trace.batch()
                logits, state = model(x, state)
                losses.append(nn.functional.cross_entropy(logits, y))
            loss = losses[0] + losses[1]
            loss.backward()
            return loss

        played_loops.check_played(loop_of(step, Model))


class TestOtherGradients:
    """Calls whose recording expected other gradients: their backward records the call again, as it
    was made."""

    @staticmethod
    def check(autocast: bool = False, hooked: bool = False) -> None:
        class TwoHeads(Net):
            def __init__(self) -> None:
                super().__init__(dropout=0.25)
                self.other = nn.Linear(WIDTH, CLASSES)

            def forward(self, x: torch.Tensor) -> Any:
                for block in self.blocks:
                    x = block(x)
                return self.head(x), self.other(x)

        def loop(trace: Trace) -> None:
            model = TwoHeads().to("xla")
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            trace.watch(model, optimizer)
            if hooked:
                weight = model.blocks[0].layer.weight
                weight.register_hook(lambda gradient: gradient * 0.5)
            for number in range(STEPS):
                x, y = trace.batch()
                with torch.autocast("xla", torch.bfloat16, enabled=autocast):
                    results = model(x)
                # the second call is looked at, or in a new process the third one
                result = results[int(number in (1, 2))].float()
                loss = nn.functional.cross_entropy(result, y)
                loss.backward()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.compare(loop)

    def test_under_autocast(self) -> None:
        self.check(autocast=True)

    def test_with_a_hook_of_a_weight(self) -> None:
        self.check(hooked=True)


class TestWeights:
    """Weights that the loop uses, writes or replaces."""

    def test_a_penalty_outside(self) -> None:
        """Gradients come to the weights from the call and from the loop."""

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            loss = cross_entropy(trace, model)
            loss = loss + 0.01 * sum(weight.square().sum() for weight in model.parameters())
            loss.backward()
            return loss

        played_loops.check_played(loop_of(step))

    def test_shared_by_two_models(self) -> None:
        def loop(trace: Trace) -> None:
            first, second = Net().to("xla"), Net().to("xla")
            second.head.weight = first.head.weight
            optimizer = sgd(first, second.blocks)
            trace.watch(first, optimizer, second)
            for _ in range(STEPS):
                loss = cross_entropy(trace, first) + cross_entropy(trace, second)
                loss.backward()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()
                second.zero_grad()

        played_loops.check_played(loop)

    def test_written_between_forward_and_backward(self) -> None:
        """torch raises where backward needs the old value."""

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            loss = cross_entropy(trace, model)
            with torch.no_grad():
                model.head.weight.mul_(0.5)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
            optimizer.zero_grad()
            loss = cross_entropy(trace, model)
            loss.backward()
            return loss

        played_loops.check_played(loop_of(step))

    def test_an_unread_weight_written_between(self) -> None:
        """Backward does not need a bias."""

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            loss = cross_entropy(trace, model)
            with torch.no_grad():
                model.head.bias.mul_(0.5)
            loss.backward()
            return loss

        played_loops.check_played(loop_of(step))

    def test_an_input_written_between_forward_and_backward(self) -> None:
        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            x, y = trace.batch()
            loss = nn.functional.cross_entropy(model(x), y)
            x.mul_(2)
            try:
                loss.backward()
                trace.read("raised", 0)
            except RuntimeError:
                trace.read("raised", 1)
                optimizer.zero_grad()
                loss = cross_entropy(trace, model)
                loss.backward()
            return loss

        played_loops.check_played(loop_of(step))

    def test_a_parameter_replaced(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer: Any = sgd(model)
            trace.watch(model)
            for number in range(12):
                if number == 6:
                    model.head.weight = nn.Parameter(model.head.weight.detach() * 0.5)
                    optimizer = sgd(model)
                loss = cross_entropy(trace, model)
                loss.backward()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_played(loop)

    def test_aliases_and_copies(self) -> None:
        """An alias follows a step, a copy does not."""

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            alias, copied = model.head.weight.detach(), model.head.weight.detach().clone()
            loss = cross_entropy(trace, model)
            loss.backward()
            optimizer.step()
            trace.read("alias", alias)
            trace.read("copy", copied)
            return loss

        played_loops.check_played(loop_of(step))

    def test_a_view_of_a_weight_in_the_loop(self) -> None:
        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            with torch.no_grad():
                model.head.weight[0].mul_(0.9)
                model.head.weight.view(-1)[3:5] = 0.1
            loss = cross_entropy(trace, model)
            loss.backward()
            return loss

        played_loops.check_played(loop_of(step))

    def test_saved_and_loaded(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            played_loops.classify(trace, model, sgd(model))
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            loaded = torch.load(file, weights_only=False)
            played_loops.classify(trace, loaded, sgd(loaded))

        played_loops.check_played(loop)

    def test_moved_to_the_cpu_and_back(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = sgd(model)

            def move(number: int) -> None:
                if number == 6:
                    model.cpu()
                    model.to("xla")

            played_loops.classify(trace, model, optimizer, steps=12, before=move)

        played_loops.compare(loop)

    def test_another_dtype(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            dtype = torch.float32

            def move(number: int) -> None:
                nonlocal dtype
                if number == 6:
                    dtype = torch.float64
                    model.to(dtype)

            played_loops.classify(
                trace, model, torch.optim.SGD(model.parameters(), 0.1), steps=12, before=move,
                place=lambda x: x.to(dtype) if x.is_floating_point() else x,
            )  # fmt: skip

        played_loops.compare(loop)


class TestGradientTensors:
    """Gradients that are another tensor than autograd's."""

    def test_replaced(self) -> None:
        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            loss = cross_entropy(trace, model)
            loss.backward()
            for weight in model.parameters():
                weight.grad = weight.grad * 0.5
            return loss

        played_loops.check_played(loop_of(step))

    def test_scaled_in_place(self) -> None:
        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            loss = cross_entropy(trace, model)
            loss.backward()
            for weight in model.parameters():
                weight.grad.mul_(0.5)
            return loss

        played_loops.check_played(loop_of(step))

    def test_some_are_none(self) -> None:
        """A gradient that the loop drops at some steps."""

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            loss = cross_entropy(trace, model)
            loss.backward()
            if number % 2:
                model.head.bias.grad = None
            return loss

        played_loops.check_played(loop_of(step, num_steps=12))

    def test_kept_and_added_to(self) -> None:
        """The gradient of the step before is added by the loop."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = sgd(model)
            trace.watch(model, optimizer)
            before: list[torch.Tensor] = []
            for _ in range(STEPS):
                loss = cross_entropy(trace, model)
                loss.backward()
                now: list[Any] = [weight.grad for weight in model.parameters()]
                for gradient, old in zip(now, before, strict=bool(before)):
                    gradient.add_(old, alpha=0.5)
                before = now
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_played(loop)

    def test_given_before(self) -> None:
        """Gradients of the loop's own, to which backward adds."""

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            for weight in model.parameters():
                weight.grad = torch.full_like(weight, 0.01)
            loss = cross_entropy(trace, model)
            loss.backward()
            return loss

        played_loops.check_played(loop_of(step))


class TestOptimizerState:
    """The loop reads and writes an optimizer's state, or steps otherwise."""

    def test_read_and_written(self) -> None:
        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            loss = cross_entropy(trace, model)
            loss.backward()
            for entry in optimizer.state.values():
                trace.read("momentum", entry["momentum_buffer"])
                entry["momentum_buffer"].mul_(0.9)
            return loss

        played_loops.check_played(loop_of(step))

    def test_cleared(self) -> None:
        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            if number == 6:
                optimizer.state.clear()
            loss = cross_entropy(trace, model)
            loss.backward()
            return loss

        played_loops.check_played(loop_of(step, num_steps=12))

    def test_two_steps_of_a_gradient(self) -> None:
        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            loss = cross_entropy(trace, model)
            loss.backward()
            optimizer.step()
            return loss

        played_loops.check_played(loop_of(step))

    def test_steps_left_out(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = torch.optim.AdamW(model.parameters(), 0.01)
            trace.watch(model, optimizer)
            for number in range(12):
                loss = cross_entropy(trace, model)
                loss.backward()
                if number % 3:
                    optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_played(loop)

    def test_a_rate_that_is_a_tensor(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            rate = torch.tensor(0.01, device="xla")
            optimizer = torch.optim.AdamW(model.parameters(), rate, foreach=False)

            def halve(_: int) -> None:
                rate.mul_(0.5)

            played_loops.classify(trace, model, optimizer, after=halve)

        played_loops.compare(loop)

    def test_a_wrapped_optimizer(self) -> None:
        """A class that is none of torch's calls one of torch's."""

        class Wrapper:
            def __init__(self, inner: torch.optim.Optimizer):
                self.inner, self.count = inner, 0

            def step(self) -> None:
                self.count += 1
                self.inner.step()

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            inner = sgd(model)
            optimizer = Wrapper(inner)
            trace.watch(model, inner)
            for _ in range(STEPS):
                loss = cross_entropy(trace, model)
                loss.backward()
                optimizer.step()
                trace.step(loss)
                inner.zero_grad()

        played_loops.check_played(loop)


class TestCalls:
    """Calls that are no plain ones of a model."""

    def test_functional(self) -> None:
        """`torch.func.functional_call` with other weights."""

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            x, y = trace.batch()
            weights = {name: weight * 0.9 for name, weight in model.named_parameters()}
            loss = nn.functional.cross_entropy(functional_call(model, weights, (x,)), y)
            loss.backward()
            return loss

        played_loops.compare(loop_of(step))

    def test_mapped(self) -> None:
        """Gradients of each row, by vmap."""

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            x, y = trace.batch()
            weights = {name: weight.detach() for name, weight in model.named_parameters()}

            def loss_of(weights: Any, row: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
                logits = functional_call(model, weights, (row[None],))
                return nn.functional.cross_entropy(logits, wanted[None])

            rows = torch.func.vmap(torch.func.grad(loss_of), (None, 0, 0))(weights, x, y)
            for name, weight in model.named_parameters():
                weight.grad = rows[name].mean(0)
            return rows["head.bias"]

        played_loops.compare(loop_of(step))

    def test_a_method_of_the_model(self) -> None:
        """`model.loss(x, y)` is no call of the module; the layers that it calls are."""

        class Model(Net):
            def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                for block in self.blocks:
                    x = block(x)
                return nn.functional.cross_entropy(self.head(x), y)

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            loss = model.loss(*trace.batch())
            loss.backward()
            if number == 0:
                trace.parts += [*model.blocks, model.head]
            return loss

        trace = played_loops.compare(loop_of(step, Model))
        assert all(trace.segment(part).num_replayed >= 4 for part in trace.parts[1:])

    def test_layers_in_a_list(self) -> None:
        """Modules of no model; each is a segment."""

        def loop(trace: Trace) -> None:
            layers = [Block(0.25).to("xla") for _ in range(3)]
            head = nn.Linear(WIDTH, CLASSES).to("xla")
            optimizer = sgd(*layers, head)
            trace.watch(*layers, head, optimizer)
            for _ in range(STEPS):
                x, y = trace.batch()
                for layer in layers:
                    x = layer(x)
                loss = nn.functional.cross_entropy(head(x), y)
                loss.backward()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_played(loop)

    def test_a_loss_that_is_a_module(self) -> None:
        def loop(trace: Trace) -> None:
            model, criterion = Net().to("xla"), nn.CrossEntropyLoss(label_smoothing=0.1)
            optimizer = sgd(model)
            trace.watch(model, optimizer, criterion)
            for _ in range(STEPS):
                x, y = trace.batch()
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_played(loop)

    def test_tensors_in_containers(self) -> None:
        class Model(Net):
            def forward(self, batch: dict[str, Any]) -> Any:  # type: ignore[override]
                return super().forward(batch["x"][0] + batch["x"][1]["more"])

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            x, y = trace.batch()
            logits = model({"x": [x, {"more": x * 2}], "name": "batch"})
            loss = nn.functional.cross_entropy(logits, y)
            loss.backward()
            return loss

        played_loops.check_played(loop_of(step, Model))

    def test_a_buffer_replaced_in_forward(self) -> None:
        """A moving average that forward assigns."""

        class Model(Net):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("mean", torch.zeros(WIDTH))

            def forward(self, x: torch.Tensor) -> Any:
                self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
                return super().forward(x - self.mean)

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            loss = cross_entropy(trace, model)
            loss.backward()
            return loss

        played_loops.compare(loop_of(step, Model))

    def test_a_cumulative_batch_norm(self) -> None:
        """momentum=None: its average needs the number of batches."""

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            loss = cross_entropy(trace, model)
            loss.backward()
            return loss

        def make() -> nn.Module:
            return nn.Sequential(nn.BatchNorm1d(WIDTH, momentum=None), nn.Linear(WIDTH, CLASSES))

        played_loops.compare(loop_of(step, make))

    def test_a_model_changed_by_a_deep_copy(self) -> None:
        """Each step trains a copy of the last one."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            trace.watch(model)
            for _ in range(6):
                model = copy.deepcopy(model)
                optimizer = sgd(model)
                loss = cross_entropy(trace, model)
                loss.backward()
                optimizer.step()
                trace.read("loss", loss)

        played_loops.compare(loop)


class TestArguments:
    """Objects of tensors among the arguments."""

    def test_an_object_among_arguments(self) -> None:
        class Batch:
            def __init__(self, x: torch.Tensor):
                self.x = x

        class Model(Net):
            def forward(self, x: torch.Tensor, batch: Any) -> Any:  # type: ignore[override]
                return super().forward(x + batch.x)

        def step(trace: Trace, model: Any, optimizer: Any, number: int) -> torch.Tensor:
            x, y = trace.batch()
            loss = nn.functional.cross_entropy(model(x, Batch(x * 2)), y)
            loss.backward()
            return loss

        played_loops.compare(loop_of(step, Model))
