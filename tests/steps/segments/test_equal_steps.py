"""Played steps that are launched at once: those that are, and what others hold meanwhile."""

import collections
import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import spmd
from spmd.core import points, storage_of
from spmd.core.extend import deferred, storages
from spmd.steps.segments import equal_steps

STEPS = 14


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of results of the steps that were launched at once."""
    numbers: list[int] = []
    run = equal_steps._EqualStep.run

    def noted(step: Any, *args: Any) -> int:
        numbers.append(run(step, *args))
        return numbers[-1]

    monkeypatch.setattr(equal_steps._EqualStep, "run", noted)
    monkeypatch.setattr(spmd.config, "replay_steps", True)
    yield numbers
    assert not deferred.calls


class Loop:
    """A model in training. zeroes_first: gradients live until the next step."""

    def __init__(self, *, zeroes_first: bool = False, dropout: float = 0.0):
        torch.manual_seed(0)
        spmd.manual_seed(0)
        layers = nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1)
        self.model = nn.Sequential(*layers).to("xla")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.1)
        self.zeroes_first, self.losses = zeroes_first, list[float]()
        self.batches = torch.Generator().manual_seed(1)

    def backward(self) -> torch.Tensor:
        if self.zeroes_first:
            self.optimizer.zero_grad()
        x = torch.randn(8, 4, generator=self.batches).to("xla")
        loss = (self.model(x) - 1).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        return loss

    def step(self, between: Callable[["Loop"], object] = bool) -> None:
        loss = self.backward()
        between(self)
        self.optimizer.step()
        if not self.zeroes_first:
            self.optimizer.zero_grad()
        spmd.sync()
        self.losses.append(loss.item())

    @property
    def weight(self) -> torch.Tensor:
        return self.model[0].weight


def recorded(loop: Loop, steps: int = STEPS) -> list[float]:
    """The losses of the same loop, recorded in each step."""
    spmd.config.replay_steps = False
    for _ in range(steps):
        loop.step()
    spmd.config.replay_steps = True
    return loop.losses


class TestLaunched:
    @pytest.mark.parametrize("options", [{}, {"zeroes_first": True}, {"dropout": 0.5}])
    def test_losses_are_equal(self, launched: list[int], options: dict[str, Any]) -> None:
        loop = Loop(**options)
        for _ in range(STEPS):
            loop.step()
        assert len(launched) >= 3
        assert loop.losses == recorded(Loop(**options))

    def test_nothing_is_compiled_or_recorded(self, launched: list[int]) -> None:
        loop = Loop()
        for _ in range(STEPS):
            loop.step()
        before = spmd.metrics.counter("programs_compiled"), len(launched)
        loop.step()
        assert spmd.metrics.counter("programs_compiled") == before[0]
        assert len(launched) == before[1] + 1
        assert not [ref for ref in storages.LIVE if ref() is not None]

    def test_gradients_are_the_same_objects(self, launched: list[int]) -> None:
        loop = Loop()
        ids = list[int]()
        for _ in range(STEPS + 2):
            loop.step(lambda loop: ids.append(id(loop.weight.grad)))
        assert len({*ids[-4:]}) == 1

    def test_a_model_dies_with_its_last_reference(self, launched: list[int]) -> None:
        loop = Loop()
        for _ in range(STEPS):
            loop.step()
        model, storage = weakref.ref(loop.model), storage_of(loop.weight).ref  # type: ignore[arg-type]
        del loop
        gc.collect()
        assert model() is None and storage() is None

    def test_no_gradient_keeps_its_memory(self, launched: list[int]) -> None:
        loop = Loop(zeroes_first=True)
        for _ in range(STEPS):
            loop.step()
        gradient = loop.weight.grad
        data = weakref.ref(storage_of(gradient).value)  # type: ignore[arg-type]
        del gradient
        loop.optimizer.zero_grad()
        spmd.sync()
        gc.collect()
        assert data() is None


def _fails(*_: Any) -> None:
    raise RuntimeError("refused")


class TestSeenBetween:
    """Each is right, and the steps after it are launched again."""

    @pytest.mark.parametrize(
        "look",
        [
            lambda loop: loop.weight.grad.sum().item(),
            lambda loop: loop.weight.sum().item(),
            lambda loop: spmd.sync(),
            lambda loop: loop.weight.grad.mul_(1.0),
            lambda loop: setattr(loop.weight, "grad", loop.weight.grad.clone()),
            lambda loop: setattr(loop.weight.grad, "data", loop.weight.grad.clone()),
            lambda loop: loop.model.state_dict()["0.weight"].cpu(),
            lambda loop: spmd.get_stablehlo(),
        ],
    )
    def test_losses_are_equal(self, launched: list[int], look: Callable[[Loop], object]) -> None:
        loop = Loop()
        for _ in range(STEPS):
            loop.step()
        loop.step(look)
        before = len(launched)
        for _ in range(4):
            loop.step()
        assert len(launched) > before
        assert loop.losses == recorded(Loop(), STEPS + 5)

    def test_a_held_gradient_keeps_its_value(self, launched: list[int]) -> None:
        loop, held = Loop(), list[Any]()
        for _ in range(STEPS):
            loop.step()
        loop.step(lambda loop: held.extend((loop.weight.grad, loop.weight.grad[0])))
        values = [x.cpu().clone() for x in held]
        for _ in range(3):
            loop.step()
        assert all(map(torch.equal, values, [x.cpu() for x in held]))

    def test_a_view_sees_the_step(self, launched: list[int]) -> None:
        loop = Loop()
        part = loop.weight.detach()[0]
        for _ in range(STEPS):
            loop.step(lambda loop: part.sum())
            assert torch.equal(part.cpu(), loop.weight[0].detach().cpu())

    def test_a_weight_written_before_backward(self, launched: list[int]) -> None:
        loop = Loop()
        for _ in range(STEPS):
            loop.step()
        loss = (loop.model(torch.ones(8, 4, device="xla")) - 1).square().mean()
        with torch.no_grad():
            loop.model[3].weight.mul_(2.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_a_program_that_does_not_start(self, launched: list[int]) -> None:
        loop = Loop()
        for _ in range(STEPS):
            loop.step()
        spmd.core.points.before_run.append(_fails)
        try:
            with pytest.raises(RuntimeError, match="refused"):
                loop.step()
        finally:
            spmd.core.points.before_run.remove(_fails)
        loop.optimizer.zero_grad()
        for _ in range(3):
            loop.step()

    def test_two_models_that_train_each_other(self, launched: list[int]) -> None:
        def losses(steps: int) -> list[float]:
            torch.manual_seed(0)
            first, second = nn.Linear(4, 4).to("xla"), nn.Linear(4, 1).to("xla")
            optimizers = [torch.optim.Adam(x.parameters(), 0.1) for x in (first, second)]
            found = []
            for _ in range(steps):
                for optimizer in optimizers:
                    loss = second(first(torch.ones(8, 4, device="xla"))).square().mean()
                    loss.backward()
                    optimizer.step()
                    for other in optimizers:
                        other.zero_grad()
                spmd.sync()
                found.append(loss.item())
            return found

        played = losses(STEPS)
        spmd.config.replay_steps = False
        assert played == losses(STEPS)


class TestThreads:
    def test_beside_a_thread_that_uploads(self, launched: list[int]) -> None:
        queue: list[torch.Tensor] = []

        def upload() -> None:
            for number in range(STEPS):
                queue.append(torch.full((8, 4), number / STEPS).to("xla"))

        thread = threading.Thread(target=upload)
        thread.start()
        thread.join()
        loop = Loop()
        for batch in queue:
            loop.step(lambda loop, batch=batch: batch.sum())
        assert len(launched) >= 3
        assert loop.losses == recorded(Loop())

    def test_read_by_another_thread(self, launched: list[int]) -> None:
        loop, found = Loop(), list[Any]()

        def read() -> None:
            found.append((loop.weight.grad.sum().item(), loop.weight.sum().item()))  # type: ignore[union-attr]

        def look(loop: Loop) -> None:
            thread = threading.Thread(target=read)
            thread.start()
            thread.join()

        for _ in range(STEPS):
            loop.step()
        loop.step(look)
        for _ in range(3):
            loop.step()
        again = Loop()
        spmd.config.replay_steps = False
        for _ in range(STEPS):
            again.step()
        again.step(
            lambda loop: found.append((loop.weight.grad.sum().item(), loop.weight.sum().item()))
        )  # type: ignore[union-attr]
        for _ in range(3):
            again.step()
        assert loop.losses == again.losses and found[0] == pytest.approx(found[1])


class TestState:
    """What guards hold, and say, of the state that they compare."""

    def test_state_that_was_replaced_is_freed(self, launched: list[int]) -> None:
        loop = Loop()
        for _ in range(6):
            loop.step()
        old = [weakref.ref(loop.optimizer.state[loop.weight]["exp_avg"])]
        loop.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))
        loop.step()
        gc.collect()
        assert old[0]() is None

    def test_data_that_was_replaced_is_freed(self, launched: list[int]) -> None:
        loop = Loop()
        for _ in range(STEPS):
            loop.step()
        number = len(launched)
        assert number
        old = weakref.ref(storage_of(loop.weight))  # type: ignore[arg-type]
        loop.weight.data = loop.weight.detach() * 1.5
        assert old() is None
        for _ in range(STEPS):
            loop.step()
        assert len(launched) > number

    def test_a_reason_reads_no_tensor(self, launched: list[int]) -> None:
        loop = Loop()
        for _ in range(6):
            loop.step()
        before = spmd.metrics.counter("syncs")
        for _ in range(2):
            loop.backward()
            loop.optimizer.step()
            loop.optimizer.state = collections.defaultdict(dict, loop.optimizer.state)
        assert spmd.metrics.counter("syncs") == before
        spmd.sync()

    def test_memory_of_several_steps_is_taken(self, launched: list[int]) -> None:
        """Played steps that no sync parts are cut as recorded ones: each writes over the last."""

        def donated(*, is_on: bool) -> list[tuple[int, int]]:
            spmd.config.replay_steps = is_on
            loop, numbers = Loop(zeroes_first=True), list[tuple[int, int]]()
            for _ in range(5):
                loop.step()
            for _ in range(3):
                loop.optimizer.zero_grad(set_to_none=False)
                loop.backward()
                loop.optimizer.step()

            def note(program: Any, graph: Any) -> None:
                numbers.append((len(graph.nodes), sum(graph.donated)))

            points.before_recorded_run.append(note)
            try:
                spmd.sync()
            finally:
                points.before_recorded_run.remove(note)
            return numbers

        assert donated(is_on=True) == donated(is_on=False)
