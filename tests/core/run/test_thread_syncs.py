"""Barriers by thread: each runs what its own thread has recorded, and what that needs."""

import queue
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from support import check, in_thread, run_script
from torch import nn

import spmd


class Iterations:
    """Two threads in a fixed order: each part runs in its thread while the other one waits."""

    def __init__(self) -> None:
        self._todo: queue.Queue[Callable[[], object] | None] = queue.Queue()
        self._done: queue.Queue[object] = queue.Queue()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while (function := self._todo.get()) is not None:
            try:
                self._done.put(function())
            except BaseException as error:
                self._done.put(error)

    def __call__(self, function: Callable[[], Any]) -> Any:
        """The result of a function in the other thread."""
        self._todo.put(function)
        made = self._done.get(timeout=120)
        if isinstance(made, BaseException):
            raise made
        return made

    def end(self) -> None:
        self._todo.put(None)
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def other() -> Iterator[Iterations]:
    iterations = Iterations()
    yield iterations
    iterations.end()


def compiled(function: Callable[[], object]) -> int:
    """The number of programs that a call compiles."""
    before = spmd.metrics.num_compiles()
    function()
    return spmd.metrics.num_compiles() - before


class TestBarriers:
    """A barrier runs what its own thread has recorded and what that needs."""

    def test_the_rest_stays_recorded(self, other: Iterations) -> None:
        x = torch.ones(3, device="xla") + 1
        spmd.sync()
        theirs = other(lambda: x * 2)
        needed, alone = other(lambda: x * 3), other(lambda: x * 4)
        mine = needed + x
        spmd.sync()
        found = [spmd.residence(tensor) for tensor in (mine, needed, theirs, alone)]
        assert found == ["devices", "devices", "pending", "pending"]
        other(spmd.sync)
        assert spmd.residence(theirs) == spmd.residence(alone) == "devices"
        assert (
            mine.tolist() == [8.0] * 3
            and alone.tolist() == [8.0] * 3
            and theirs.tolist() == [4.0] * 3
        )

    def test_of_a_thread_that_has_ended(self) -> None:
        x = in_thread(lambda: torch.ones(3, device="xla").cumsum(0).exp())
        spmd.sync()
        assert spmd.residence(x) == "devices"

    def test_initial_values_of_another_thread(self, other: Iterations) -> None:
        """A model that one thread has built and another one trains is initialised once, by a
        program of its own."""

        def build() -> nn.Module:
            with torch.device("xla"):
                model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            return model.requires_grad_(False)

        model = other(build)
        counts = []
        for _ in range(3):
            counts.append(compiled(lambda: model(torch.ones(2, 4).to("xla")).sum().item()))
        assert counts == [2, 0, 0]
        assert {spmd.residence(weight) for weight in model.parameters()} == {"devices"}

    @pytest.mark.parametrize("is_split", [False, True], ids=["one", "mesh"])
    def test_serving_beside_training(self, other: Iterations, mesh8: Any, is_split: bool) -> None:
        """One thread trains, the other one asks the same model, wherever in its step the first one
        is. Each answer is that of the weights at its time, whenever it is read, and after the first
        round nothing is compiled."""

        def train(device: str, ask: Callable[[nn.Module], None]) -> Iterator[None]:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
            if is_split and device == "xla":
                for weight in model.parameters():
                    spmd.mark_sharding(weight, mesh8, ("fsdp", None)[: weight.dim()])
            optimizer, x = (
                torch.optim.AdamW(model.parameters(), 0.1),
                torch.arange(32.0).view(4, 8) / 32,
            )
            for step in range(5):
                loss = model((x + step).to(device)).square().mean()
                ask(model)
                loss.backward()
                ask(model)
                optimizer.step()
                ask(model)
                optimizer.zero_grad()
                if device == "xla":
                    spmd.sync()
                ask(model)
                yield

        @torch.no_grad()
        def answer(model: nn.Module, device: str, rows: int) -> torch.Tensor:
            return model(torch.ones(rows, 8).to(device))

        expected: list[torch.Tensor] = []
        for _ in train(
            "cpu", lambda model: expected.extend(answer(model, "cpu", rows) for rows in (1, 2))
        ):
            pass
        asked: list[torch.Tensor] = []
        answers: list[torch.Tensor] = []

        def ask(model: nn.Module) -> None:
            """Reads the answer that was recorded the last time, asks and reads, and records the
            next."""
            if asked:
                answers.append(other(asked.pop().cpu))
            answers.append(other(lambda: answer(model, "xla", 1).cpu()))
            asked.append(other(lambda: answer(model, "xla", 2)))

        steps = train("xla", ask)
        counts = [compiled(lambda: next(steps)) for _ in range(5)]
        answers.append(other(asked.pop().cpu))
        for given, wanted in zip(answers, expected, strict=True):
            check(given, wanted)
        assert not any(counts[1:]), counts

    def test_in_place_across_threads(self, other: Iterations) -> None:
        """Threads that write into the same tensors, views of them among them, in every order of
        writes and barriers."""
        draw = random.Random(0)

        def run(
            device: str, calls: Sequence[Callable[[Callable[[], Any]], Any]]
        ) -> list[torch.Tensor]:
            a, b = torch.arange(12.0).view(3, 4).to(device), torch.ones(3, 4).to(device)
            view, read = a.t()[1:], []
            edits: list[Callable[[], Any]] = [
                lambda: a.add_(1),
                lambda: b.mul_(2),
                lambda: view.add_(b.t()[1:]),
                lambda: a[1].copy_(b[2]),
                lambda: b.sub_(a.sum(0)),
                lambda: read.append(a * b),
                lambda: a.mul_(0.5),
                lambda: b[:, 0].zero_(),
            ]
            for number, call in enumerate(calls):
                call(edits[order[number]])
                if number % 3 == 0:
                    call(spmd.sync)
                if number % 7 == 0:
                    read.append(call((a + b).clone))
            return [a, b, *read]

        order = [draw.randrange(8) for _ in range(60)]
        who = [draw.random() < 0.5 for _ in order]
        made = run("xla", [other if theirs else lambda function: function() for theirs in who])
        for given, wanted in zip(
            made, run("cpu", [lambda function: function()] * len(order)), strict=True
        ):
            check(given, wanted)

    def test_what_another_reads_is_copied(self, other: Iterations) -> None:
        """The program that writes over a buffer is the same, and writes over it, whoever still
        reads it."""
        x = torch.ones(64, device="xla") + 0
        spmd.sync()

        def step() -> None:
            x.mul_(2)
            spmd.sync()

        step()
        before = spmd.metrics.counter("buffers_spared")
        held = other(lambda: x + 1)
        assert compiled(step) == 0 and spmd.metrics.counter("buffers_spared") == before + 1
        assert compiled(step) == 0 and spmd.metrics.counter("buffers_spared") == before + 1
        assert other(held.tolist) == [3.0] * 64 and x.tolist() == [8.0] * 64

    def test_a_read_in_the_midst_of_anothers_step(self, other: Iterations) -> None:
        """Reading a weight that another thread's step has written runs once what the step has
        written so far."""
        weights = [torch.ones(4, device="xla") + i for i in range(6)]
        spmd.sync()
        for weight in weights:
            weight.mul_(3)
        pending = weights[0] + 1
        syncs = compiled(lambda: [other(weight.tolist) for weight in weights])
        assert syncs == 1 and spmd.residence(pending) == "pending"
        assert [weight[0].item() for weight in weights] == [3.0, 6.0, 9.0, 12.0, 15.0, 18.0]
        assert pending.tolist() == [4.0] * 4

    def test_what_an_idle_thread_has_written(self, other: Iterations) -> None:
        """It is computed with what needs it, and runs for good when that has happened again and
        again."""
        weight = torch.ones(4, device="xla") + 0
        spmd.sync()
        weight.mul_(3)
        made, found = [], []
        for _ in range(10):
            made.append(other(lambda: (weight + 1).tolist()))
            found.append(spmd.residence(weight))
        assert made == [[4.0] * 4] * 10
        assert found == ["pending"] * 8 + ["devices"] * 2

    def test_draws(self, other: Iterations) -> None:
        """The draws of a seed come in the order of recording, whichever thread's barrier runs
        them."""

        def drawn(calls: Sequence[Callable[[Callable[[], Any]], Any]]) -> list[Any]:
            torch.manual_seed(3)
            made = [call(lambda: torch.randn(4, device="xla") + 0) for call in calls]
            return [one.tolist() for one in reversed(made)]

        def here(function: Callable[[], Any]) -> Any:
            return function()

        assert drawn([here, other, here, other]) == drawn([here] * 4)

    def test_backward_stays_in_the_callers_thread(self) -> None:
        """A process that ends with autograd's own threads aborts; `torch.inference_mode(False)`
        would start them."""
        printed = run_script(
            """
            import threading, torch, spmd
            class Deep(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    return x * 2
                @staticmethod
                def backward(ctx, grad):
                    seen.append(threading.get_ident())
                    return grad * 2
            seen = []
            def work():
                x = torch.ones(3, device="xla", requires_grad=True)
                Deep.apply(x).sin().sum().backward()
                spmd.sync()
                print(spmd.residence(x.grad), [round(value, 4) for value in x.grad.tolist()])
            torch.ones(1, device="xla")
            torch.autograd.set_multithreading_enabled(True)
            work()
            assert seen == [threading.get_ident()]
            print("end")
            """
        )
        assert printed == "devices [-0.8323, -0.8323, -0.8323]\nend\n"
