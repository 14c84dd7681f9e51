"""`spmd.compile` with tensors that others write or replace between two calls, and with calls in
several threads."""

import threading
from collections.abc import Sequence
from typing import Any

import compiled_steps as steps
import pytest
import torch
from compiled_steps import Training, both, caused, training
from support import check
from torch import nn

import spmd


class TestTensors:
    """State on the device may be written by others between two calls, but not replaced unseen."""

    def test_a_parameter_is_written(self) -> None:
        def change(own: Training) -> None:
            with torch.no_grad():
                own.model.last.weight.mul_(0.5)

        assert both(training, change).num_recorded == 2  # data is no guard

    def test_a_state_dict_is_loaded(self) -> None:
        states = {name: torch.full(value.shape, 0.1) for name, value in Net_state().items()}
        both(training, lambda own: own.model.load_state_dict(states, strict=False))

    def test_a_parameter_is_replaced(self) -> None:
        def change(own: Training) -> None:
            own.model.last.weight = nn.Parameter(torch.ones(3, 8, device="xla"))

        compiled = both(training, change)
        caused(compiled, "weight")

    def test_data_is_assigned(self) -> None:
        def change(own: Training) -> None:
            own.model.last.weight.data = torch.ones(3, 8, device="xla")

        caused(both(training, change), "data of a tensor was replaced")

    def test_a_tied_weight_is_untied(self) -> None:
        def make() -> Training:
            own = training()
            own.model.other = own.model.last
            own.model.forward = lambda x: (
                own.model.other(own.model.first(x)) + own.model.last(own.model.first(x))
            )
            return own

        def untie(own: Training) -> None:
            own.model.other = nn.Linear(8, 3).to("xla")

        both(make, untie)

    def test_a_parameter_is_frozen(self) -> None:
        caused(both(training, lambda own: own.model.first.requires_grad_(False)), "requires_grad")

    def test_a_gradient_is_there(self) -> None:
        def change(own: Training) -> None:
            own.model.last.weight.grad = torch.ones(3, 8, device="xla")

        caused(both(training, change), "gradient")

    def test_the_optimizer_loads_its_state(self) -> None:
        def change(own: Training) -> None:
            state = own.optimizer.state_dict()
            for one in state["state"].values():
                one["step"] = one["step"] + 10
            own.optimizer.load_state_dict(state)

        both(training, change)

    def test_a_sharding_is_annotated(self, mesh8: spmd.Mesh) -> None:
        def change(own: Training) -> None:
            spmd.mark_sharding(own.model.first.weight, mesh8, ("fsdp", None))

        own = training(dropout=0.0)
        compiled = spmd.compile(own.step)
        steps.run(compiled, 4)
        change(own)
        replayed = compiled.num_replayed
        steps.run(compiled, 4)
        assert compiled.num_replayed > replayed, compiled.explain()
        assert spmd.get_sharding(own.model.first.weight).partition_spec(2) == ("fsdp", None)

    def test_values_that_are_pending_run_first(self) -> None:
        own = training()
        compiled = spmd.compile(own.step)
        steps.run(compiled, 4)
        before = own.model.last.weight * 2
        kept = own.model.last.weight.detach().clone().cpu()
        x, y = steps.batches(1)[0]
        replayed = compiled.num_replayed
        compiled(x.to("xla"), y.to("xla"))
        assert compiled.num_replayed == replayed + 1
        assert torch.equal(before.cpu(), kept * 2)

    def test_a_result_stays_what_it_was(self) -> None:
        counter = torch.zeros((), device="xla")
        compiled = spmd.compile(lambda: counter.add_(1).clone())
        found = [compiled() for _ in range(5)]
        assert [one.item() for one in found] == [1.0, 2.0, 3.0, 4.0, 5.0]

    def test_a_hidden_state_is_replaced_at_each_call(self) -> None:
        def step(own: Training) -> Any:
            own.model.hidden = torch.zeros(3, device="xla")

            def stepped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                own.model.hidden = own.model.hidden.detach() * 0.5 + own.model(x).detach().mean(0)
                return own.step(x, y) + own.model.hidden.sum()

            return stepped

        def change(own: Training) -> None:
            own.model.hidden = torch.ones(3, device="xla")

        compiled = both(training, change, step=step)
        assert compiled.num_recorded == 2, compiled.explain()

    def test_gradients_that_stay(self) -> None:
        def step(own: Training) -> Any:
            def stepped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                own.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(own.model(x), y)
                loss.backward()
                own.optimizer.step()
                return loss

            return stepped

        own = training()
        compiled = spmd.compile(step(own))
        steps.run(compiled, 5)
        assert compiled.num_replayed == 3 or compiled.num_replayed == 2, compiled.explain()
        plain = training()
        steps.run(step(plain), 5)
        for mine, its in zip(own.model.parameters(), plain.model.parameters(), strict=True):
            assert torch.equal(mine.grad.cpu(), its.grad.cpu())

    def test_accumulated_gradients(self) -> None:
        def step(own: Training) -> Any:
            micro = spmd.compile(lambda x, y: _backward(own, x, y))
            own.extra["micro"] = micro

            def stepped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                loss = micro(x, y) + micro(x * 2, y)
                own.optimizer.step()
                own.optimizer.zero_grad()
                return loss

            return stepped

        plain, own = training(), training()

        def lazily(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            first = _backward(plain, x, y)
            spmd.sync()
            loss = first + _backward(plain, x * 2, y)
            spmd.sync()
            plain.optimizer.step()
            plain.optimizer.zero_grad()
            return loss

        assert steps.run(step(own), 6) == steps.run(lazily, 6)
        assert own.extra["micro"].num_replayed >= 6, own.extra["micro"].explain()


def _backward(own: Training, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = nn.functional.cross_entropy(own.model(x), y)
    loss.backward()
    return loss.detach()


class TestThreads:
    """A call in another thread, and values that another thread has pending."""

    def test_calls_from_several_threads(self) -> None:
        weight = torch.zeros((), device="xla")
        compiled = spmd.compile(lambda x: weight.add_(x))
        errors: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(5):
                    compiled(torch.ones((), device="xla"))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert weight.item() == 15

    def test_a_pending_value_of_another_thread_is_not_overwritten(self) -> None:
        weight = torch.ones(4, device="xla")
        compiled = spmd.compile(lambda: weight.add_(1).sum())
        assert [compiled().item() for _ in range(3)] == [8.0, 12.0, 16.0]
        recorded, done = threading.Event(), threading.Event()
        found: list[float] = []

        def read() -> None:
            doubled = weight * 2
            recorded.set()
            done.wait()
            found.append(doubled[0].item())

        thread = threading.Thread(target=read)
        thread.start()
        recorded.wait()
        compiled()
        done.set()
        thread.join()
        assert found == [8.0] and weight[0].item() == 5.0


def Net_state() -> dict[str, torch.Tensor]:
    return {name: value for name, value in training().model.state_dict().items() if value.dim()}


class TestStacks:
    """Loops of other programs stack the weights of layers between two calls."""

    @staticmethod
    def run(layers: Sequence[nn.Module], x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = torch.tanh(layer(x))
        return x

    @pytest.mark.parametrize("part", [slice(1, 4), slice(1, None), slice(None)])
    @torch.no_grad()
    def test_stacks_of_others(self, part: slice) -> None:
        """A call of a few layers, of a loop of fewer, and of the same loop."""
        torch.manual_seed(0)
        layers, x = nn.ModuleList(nn.Linear(8, 8) for _ in range(10)), torch.randn(4, 8)
        expected = self.run(layers[part], x)
        layers, x = layers.to("xla"), x.to("xla")
        compiled = spmd.compile(lambda x: self.run(layers[part], x))
        for others in range(4):
            if others:
                self.run(layers, x).cpu()
            if others == 2:  # it leaves the stack
                layers[3].weight.mul_(1.0)
            check(compiled(x), expected)
            check(compiled(x), expected)
        assert compiled.num_recorded <= 2, compiled.explain()
