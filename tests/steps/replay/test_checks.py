"""The checks of `spmd.compile`: some calls whose guards hold run as Python, and are compared with
the recording."""

import ctypes
import functools
import gc
import random
import re
from collections.abc import Callable
from typing import Any

import compiled_steps as steps
import pytest
import torch
from compiled_steps import Training, training
from torch import nn
from torch.utils._pytree import tree_leaves

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
from spmd.steps.replay.rows import Schedule

X = (1.0, 2.0, 3.0)


@pytest.fixture
def every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spmd.config, "check_replays", 1)


class TestSchedule:
    """When calls are checked, by counts: no clock decides the first five and the last."""

    def test_calls(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Schedule, "_SHARE", 0.0)
        monkeypatch.setattr(spmd.config, "check_replays", 100)
        compiled, x = spmd.compile(lambda x: x * 2), torch.ones(3, device="xla")
        compiled(x)
        checked = []
        for number in range(1, 500):
            before = compiled.num_checked
            compiled(x)
            checked += [number] * (compiled.num_checked - before)
        assert checked == [4, 8, 16, 32, 64, 164, 264, 364, 464]
        assert compiled.num_recorded == 1 and compiled.num_replayed == 499
        assert repr(compiled) == (
            "<spmd.compile of TestSchedule.test_calls.<locals>.<lambda>: 1 calls recorded, "
            "499 replayed (9 checked)>"
        )

    @pytest.mark.parametrize(("interval", "count"), [(0, 0), (1, 20), (3, 6)])
    def test_the_interval_is_set(
        self, interval: int, count: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Schedule, "_SHARE", 0.0)
        monkeypatch.setattr(spmd.config, "check_replays", interval)
        compiled, x = spmd.compile(lambda x: x * 2), torch.ones(3, device="xla")
        for _ in range(21):
            compiled(x)
        assert compiled.num_checked == count + 2 * (interval == 3)

    def test_a_hundredth_of_the_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """After the first five a check comes when replays have taken a hundred times as long as the
        last one took."""
        clock = 0.0
        monkeypatch.setattr("time.perf_counter", lambda: clock)
        schedule, checked = Schedule(), []
        for number in range(1, 1000):
            began = clock
            if schedule.is_due():
                checked.append(number)
                clock += 2.0
                schedule.checked(began)
            else:
                clock += 1.0
                schedule.replayed(began)
        assert checked == [4, 8, 16, 32, 64, 265, 466, 667, 868]

    def test_an_error_of_a_checked_call(self, every_call: None) -> None:
        fails = (ctypes.c_byte * 1)(0)

        def function(x: torch.Tensor) -> torch.Tensor:
            if fails[0]:
                raise KeyError("no such key")
            return x * 2

        compiled, x = spmd.compile(function), torch.ones(3, device="xla")
        compiled(x)
        fails[0] = 1
        with pytest.raises(KeyError, match="no such key"):
            compiled(x)
        fails[0] = 0
        # it is recorded again, and checked
        assert [compiled(x)[0].item() for _ in range(2)] == [2.0, 2.0]
        assert (compiled.num_recorded, compiled.num_checked) == (2, 2)


def ended(compiled: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """The line about a function whose replay has ended."""
    match = re.search(
        r"runs uncompiled: what no guard sees has changed: (.*); pass it .*; up to",
        capsys.readouterr().err,
    )
    assert match is not None, compiled.explain()
    return match[1]


def on_cpu(value: Any) -> torch.Tensor:
    return torch.as_tensor(value).cpu()


# A function of a tensor and of a state that guards do not see, 2.0 and then 3.0, and what a check
# says.
DIFFERENCES: dict[str, tuple[Callable[..., Any], str]] = {
    "number": (
        lambda x, s: x * s[0],
        "^aten.mul.Tensor at .*test_checks.py.* has 3.0, and had 2.0$",
    ),
    "static": (
        lambda x, s: x.sum(dim=int(s[0]) - 2),
        r"^aten.sum.dim_IntList at .* is .*\[1\].*, and was .*\[0\]",
    ),
    "op": (lambda x, s: x.sin() if s[0] > 2 else x.cos(), "^aten.sin at .*, and was aten.cos"),
    "new": (lambda x, s: x.sin().cos() if s[0] > 2 else x.sin(), "^aten.cos at .* is new"),
    "gone": (lambda x, s: x.sin() if s[0] > 2 else x.sin().cos(), "^aten.cos at .* is gone"),
    "data": (
        lambda x, s: x * torch.tensor(list(s)).to(x.device),
        r" reads \[3.\] \(.*, and read \[2.\] \(",
    ),
    "place": (
        lambda x, s: torch.sub(*((x.sin(), x.cos())[:: 1 if s[0] > 2 else -1])),
        "reads another value than it did$",
    ),
    "value": (lambda x, s: (x * 2, s[0]), "^a result is 3.0, and was 2.0$"),
    "order": (lambda x, s: (x.sin(), x.cos())[:: 1 if s[0] > 2 else -1], "^aten|^a result is "),
    "none": (lambda x, s: x if s[0] > 2 else x * 2, "^it runs no program$"),
    "read": (lambda x, s: x * (x.sum().item() if s[0] > 2 else 12.0), "^it reads a value: "),
}


class TestDifferences:
    """A check compares ops, their static arguments, operands, numbers, data, and the targets of
    results."""

    @pytest.mark.parametrize("name", DIFFERENCES)
    def test_kinds(self, name: str, every_call: None, capsys: pytest.CaptureFixture[str]) -> None:
        function, words = DIFFERENCES[name]
        state = (ctypes.c_double * 1)(2.0)
        compiled = spmd.compile(lambda x: function(x, state))
        x = torch.tensor([X, X[::-1]])
        for _ in range(3):
            compiled(x.to("xla"))
        assert compiled.num_replayed == compiled.num_checked == 2
        state[0] = 3.0
        results = [compiled(x.to("xla")) for _ in range(3)]
        assert re.search(words, said := ended(compiled, capsys)), said
        for result in results:
            expected, found = tree_leaves(function(x, state)), tree_leaves(result)
            torch.testing.assert_close(list(map(on_cpu, found)), list(map(on_cpu, expected)))

    def test_a_write_to_another_tensor(
        self, every_call: None, capsys: pytest.CaptureFixture[str]
    ) -> None:
        state, first, last = (
            (ctypes.c_byte * 1)(0),
            torch.zeros(3, device="xla"),
            torch.zeros(3, device="xla"),
        )
        compiled = spmd.compile(lambda x: (last if state[0] else first).copy_(x * 2))
        for _ in range(3):
            compiled(torch.ones(3, device="xla"))
        state[0] = 1
        compiled(torch.ones(3, device="xla"))
        assert (
            "another" in (said := ended(compiled, capsys))
            or "other tensors" in said
            or "is (" in said
        )
        assert last.tolist() == [2.0] * 3

    def test_no_other_kind_of_call_is_replayed_either(self, every_call: None) -> None:
        state = (ctypes.c_double * 1)(2.0)
        compiled = spmd.compile(lambda x: x * state[0])
        small, large = torch.ones(3, device="xla"), torch.ones(5, device="xla")
        for _ in range(2):
            compiled(small), compiled(large)
        state[0] = 3.0
        assert [compiled(x)[0].item() for x in (small, large, large)] == [3.0] * 3
        num_replayed = compiled.num_replayed
        for x in (small, large, torch.ones(7, device="xla")):
            state[0] += 1
            assert compiled(x)[0].item() == state[0]
        assert compiled.num_replayed == num_replayed

    def test_a_draw_of_another_thread_at_a_check_is_no_difference(self, every_call: None) -> None:
        """The call cannot be compared; the next one is."""
        draws = (ctypes.c_byte * 1)(0)

        def function(x: torch.Tensor) -> torch.Tensor:
            if draws[0]:
                random.random()
            return x * 2

        compiled, x = spmd.compile(function), torch.ones(3, device="xla")
        for number in range(8):
            draws[0] = number == 4
            assert compiled(x)[0].item() == 2.0
        assert compiled.num_recorded == 1 and compiled.num_checked == 7, compiled.explain()


class TestNoFalseAlarm:
    """Steps whose numbers, draws and state change as they should pass check after check."""

    def passes(
        self, make: Callable[[], Training], step: Callable[[Training], steps.Step], count: int = 40
    ) -> None:
        plain, own = make(), make()
        compiled = spmd.compile(step(own))
        assert steps.run(compiled, count) == steps.run(step(plain), count)
        assert compiled.num_checked == compiled.num_replayed >= count - 5, compiled.explain()
        for mine, its in zip(
            own.model.state_dict().values(), plain.model.state_dict().values(), strict=True
        ):
            assert torch.equal(mine.cpu(), its.cpu())

    @pytest.mark.parametrize("name", ["Adam", "SGD", "RAdam"])
    def test_optimizers_and_schedules(self, name: str, every_call: None) -> None:
        schedule = functools.partial(
            torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=99
        )
        self.passes(
            lambda: training(getattr(torch.optim, name), scheduler=schedule), lambda own: own.step
        )

    def test_a_gradient_scaler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A checked call keeps no result alive that a replayed one drops, without the garbage
        collector, too: neither compiles a program of its own."""

        def run(every: int) -> tuple[list[float], Any]:
            monkeypatch.setattr(spmd.config, "check_replays", every)
            scaler = torch.amp.GradScaler("xla", init_scale=2.0**127, growth_interval=2)
            compiled = spmd.compile(
                steps.scaled_step(training(torch.optim.AdamW, fused=True), scaler)
            )
            return steps.run(compiled, 40), compiled

        gc.collect()
        gc.disable()
        try:
            expected, _ = run(0)
            before = spmd.metrics.num_compiles()
            losses, compiled = run(1)
        finally:
            gc.enable()
        assert losses == expected and spmd.metrics.num_compiles() == before
        assert compiled.num_checked == compiled.num_replayed >= 35, compiled.explain()

    def test_two_models_against_each_other(self, every_call: None) -> None:
        def step(own: Training) -> steps.Step:
            torch.manual_seed(3)
            judge = nn.Linear(3, 1).to("xla")
            other = torch.optim.Adam(judge.parameters())

            def stepped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                false = own.model(x)
                true = nn.functional.one_hot(y, 3).float()
                loss = judge(false.detach()).mean() - judge(true).mean() + judge.bias.square().sum()
                other.zero_grad()
                loss.backward()
                other.step()
                own.optimizer.zero_grad()
                judge(false).mean().backward()
                own.optimizer.step()
                return loss.detach()

            return stepped

        self.passes(training, step)

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_a_wrapped_model(
        self, mesh8: spmd.Mesh, partitioner: str, every_call: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)

        def run(compile: Any) -> tuple[list[float], Any]:
            torch.manual_seed(0)
            model = GPT(
                GPTConfig(layers=2, width=16, heads=2, sequence=8, vocabulary=32, dropout=0.1)
            ).to("xla")
            policy = functools.partial(
                fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block}
            )
            wrapped: Any = fsdp.FullyShardedDataParallel(model, mesh=mesh8, auto_wrap_policy=policy)
            optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)

            @compile
            def step(tokens: torch.Tensor) -> torch.Tensor:
                loss = cross_entropy(wrapped(tokens[:, :-1]), tokens[:, 1:])
                loss.backward()
                nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                return loss

            torch.manual_seed(1)
            batches = torch.randint(0, 32, (12, 8, 9))
            return [
                step(spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp", None))).item() for x in batches
            ], step

        expected, _ = run(lambda step: step)
        losses, step = run(spmd.compile)
        assert losses == expected
        assert step.num_checked == step.num_replayed >= 9, step.explain()

    def test_functions_of_jax_and_bodies(self, every_call: None) -> None:
        """A function that is another object at each call has an op of its own then."""

        def function(x: torch.Tensor) -> Any:
            y = spmd.call_jax(lambda array: array * 2, x)
            return spmd.scan(
                lambda carry, row: (carry + row, carry * row), torch.zeros(3, device="xla"), y
            )

        compiled, x = spmd.compile(torch.no_grad()(function)), torch.ones(4, 3, device="xla")
        for _ in range(5):
            assert compiled(x)[1].sum().item() == 72.0
        assert compiled.num_checked == 4, compiled.explain()

    def test_lengths_that_are_learned_between(self, every_call: None) -> None:
        """The line of a slice whose length changes elsewhere records another op from then on."""
        part = lambda x, n: (x[n : 2 * n].sin() * 2).sum()  # noqa: E731
        compiled, x = spmd.compile(lambda x: part(x, 4)), torch.arange(40.0, device="xla")
        for _ in range(3):
            compiled(x)
        for n in range(2, 14):
            part(x, n).cpu()
        for _ in range(3):
            compiled(x)
        assert compiled.num_checked == compiled.num_replayed == 5, compiled.explain()

    def test_what_a_call_drops_is_not_compared(self, every_call: None) -> None:
        """A tensor in a reference cycle is a result of its program, where the collector has not
        come by."""

        def function(x: torch.Tensor) -> torch.Tensor:
            if random.Random(count[0]).random() < 0.5:
                cycle: list[Any] = [x.sin()]
                cycle.append(cycle)
            return x * 2

        count = (ctypes.c_int * 1)(0)
        compiled, x = spmd.compile(function), torch.ones(3, device="xla")
        for _ in range(20):
            compiled(x)
            count[0] += 1
        assert compiled.num_checked == 19, compiled.explain()
