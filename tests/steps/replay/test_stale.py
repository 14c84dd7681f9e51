"""`spmd.compile` is never silently stale: each way in which a later call can differ is refreshed,
recorded again, or refused with its reason."""

import gc
import random
import time
from typing import Any

import compiled_steps as steps
import numpy as np
import pytest
import torch
from compiled_steps import Training, both, caused, training
from torch import nn

import spmd

FACTOR = 1.0


class TestNumbers:
    """Numbers that Python computes are formulas of the program's scalar arguments, or recorded
    again."""

    def test_a_learning_rate_is_recorded_once_and_then_a_formula(self) -> None:
        def change(own: Training) -> None:
            own.optimizer.param_groups[0]["lr"] *= 0.5

        plain = training()
        expected = steps.run(
            plain.step, 9, before=[(i, lambda: change(plain)) for i in (5, 6, 7, 8)]
        )
        own = training()
        compiled = spmd.compile(own.step)
        assert (
            steps.run(compiled, 9, before=[(i, lambda: change(own)) for i in (5, 6, 7, 8)])
            == expected
        )
        caused(compiled, "['lr'] was 0.05, now 0.025")
        assert compiled.num_recorded == 3  # the first two, and the first change

    @pytest.mark.parametrize(
        "scheduler",
        [
            lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6),
            lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.1),
            lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
            lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
                optimizer,
                [
                    torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4),
                    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1)),
                ],
                [4],
            ),
        ],
    )
    def test_schedules_inside(self, scheduler: Any) -> None:
        compiled = both(lambda: training(scheduler=scheduler), count=10)
        assert compiled.num_replayed >= 6, compiled.explain()

    @pytest.mark.parametrize(
        "name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "RAdam"]
    )
    @pytest.mark.parametrize("foreach", [True, False])
    def test_step_counters_are_formulas(self, name: str, foreach: bool) -> None:
        compiled = both(lambda: training(getattr(torch.optim, name), foreach=foreach))
        assert compiled.num_replayed >= 3, compiled.explain()

    def test_a_product_of_cpu_tensors_is_refused(self) -> None:
        plain, own = training(torch.optim.NAdam), training(torch.optim.NAdam)
        compiled = spmd.compile(own.step)
        assert steps.run(compiled, 6) == steps.run(plain.step, 6)
        caused(compiled, "mul_")

    def test_a_float_argument_is_a_formula_once_it_has_changed(self) -> None:
        @spmd.compile
        def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
            return x * (2 * factor + 1)

        x = torch.ones(3, device="xla")
        results = [scaled(x, factor)[0].item() for factor in (1.0, 1.0, 2.0, 3.0, 4.0, 0.5)]
        assert results == [3.0, 3.0, 5.0, 7.0, 9.0, 2.0]
        assert scaled.num_recorded == 2 and scaled.num_replayed == 4, scaled.explain()

    def test_a_comparison_of_a_float_argument_is_a_guard(self) -> None:
        @spmd.compile
        def chosen(x: torch.Tensor, factor: float) -> torch.Tensor:
            return x * factor if factor > 2.5 else x - factor

        x = torch.ones(3, device="xla")
        values = (1.0, 2.0, 2.25, 3.0, 4.0, 2.0, 5.0)
        assert [chosen(x, value)[0].item() for value in values] == [
            0.0,
            -1.0,
            -1.25,
            3.0,
            4.0,
            -1.0,
            5.0,
        ]
        assert chosen.num_replayed >= 3, chosen.explain()

    def test_a_function_of_the_number_itself_is_a_guard(self) -> None:
        @spmd.compile
        def rounded(x: torch.Tensor, factor: float) -> torch.Tensor:
            return x * round(float(factor)) + np.floor(float(factor)).item()

        x = torch.ones(3, device="xla")
        assert [rounded(x, value)[0].item() for value in (1.0, 1.0, 2.2, 3.6, 3.6)] == [
            2.0,
            2.0,
            4.0,
            7.0,
            7.0,
        ]

    def test_a_count_of_the_steps_in_python_is_refused(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def step(own: Training) -> Any:
            def counted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                own.extra["count"] = own.extra.get("count", 0) + 1
                return own.step(x, y) * own.extra["count"]

            return counted

        plain = training()
        own = training()
        compiled = spmd.compile(step(own))
        assert steps.run(compiled, 6) == steps.run(step(plain), 6)
        assert compiled.num_replayed == 0
        caused(compiled, "changes Python state")
        assert "runs uncompiled" in capsys.readouterr().err

    def test_random_draws_are_new_at_each_call(self) -> None:
        drop = nn.Dropout(0.5)
        compiled = spmd.compile(lambda x: drop(x))
        x = torch.ones(64, device="xla")
        torch.manual_seed(3)
        found = [compiled(x).cpu() for _ in range(4)]
        torch.manual_seed(3)
        assert all(torch.equal(one, drop(x).cpu()) for one in found)
        assert not torch.equal(found[2], found[3])
        torch.manual_seed(3)
        assert torch.equal(compiled(x).cpu(), found[0])
        assert compiled.num_replayed == 4, compiled.explain()

    def test_a_draw_that_nothing_needs_moves_the_stream_on(self) -> None:
        """Such as that of an attention whose output is not used: a cache keeps keys and values
        alone."""

        def function(x: torch.Tensor) -> torch.Tensor:
            torch.rand_like(x)
            return x + torch.rand_like(x)

        compiled, x = spmd.compile(function), torch.ones(64, device="xla")
        torch.manual_seed(3)
        found = [compiled(x).cpu() for _ in range(4)]
        torch.manual_seed(3)
        assert all(torch.equal(one, function(x).cpu()) for one in found)
        assert compiled.num_replayed == 3, compiled.explain()

    def test_draws_of_a_loop_of_unknown_length_are_refused(self) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            _, x = spmd.while_loop(
                lambda i, x: i < 2, lambda i, x: (i + 1, x + torch.rand_like(x)), (0 * x[0], x)
            )
            return x

        compiled, x = spmd.compile(torch.no_grad()(function)), torch.ones(4, device="xla")
        torch.manual_seed(3)
        found = [compiled(x).cpu() for _ in range(4)]
        torch.manual_seed(3)
        with torch.no_grad():
            assert all(torch.equal(one, function(x).cpu()) for one in found)
        caused(compiled, "draws random numbers")


class TestArguments:
    """Arguments of another kind are another recording."""

    def test_shape_dtype_and_static_values(self) -> None:
        @spmd.compile(static_argnames="power")
        def function(x: torch.Tensor, power: float = 2.0, *, negate: bool = False) -> torch.Tensor:
            y = x**power
            return -y if negate else y

        for _ in range(2):
            for x in (
                torch.full((2,), 3.0),
                torch.full((3,), 3.0),
                torch.full((2,), 3.0, dtype=torch.float64),
            ):
                for power in (2.0, 3.0):
                    for negate in (False, True):
                        assert torch.equal(
                            function(x.to("xla"), power, negate=negate).cpu(),
                            (-(x**power) if negate else x**power),
                        )
        assert function.num_recorded == function.num_replayed == 12, function.explain()

    def test_another_sharding(self, mesh8: spmd.Mesh) -> None:
        doubled = spmd.compile(lambda x: x * 2)
        for spec in (("fsdp",), (None,), ("fsdp",), (None,)):
            x = spmd.mark_sharding(torch.arange(16.0).to("xla"), mesh8, spec)
            y = doubled(x)
            assert spmd.get_sharding(y).partition_spec(1) == spmd.get_sharding(x).partition_spec(1)
            assert torch.equal(y.cpu(), torch.arange(16.0) * 2)
        assert doubled.num_recorded == 2

    def test_a_cpu_tensor_is_uploaded_anew(self) -> None:
        doubled = spmd.compile(lambda x: x.to("xla") * 2)
        for i in range(4):
            assert doubled(torch.full((3,), float(i)))[0].item() == 2 * i
        assert doubled.num_replayed == 3, doubled.explain()

    def test_arithmetic_of_a_cpu_tensor_is_refused(self) -> None:
        doubled = spmd.compile(lambda x: (x * 2).to("xla") + 1)
        for i in range(5):
            assert doubled(torch.full((3,), float(i)))[0].item() == 2 * i + 1
        assert doubled.num_replayed == 0
        caused(doubled, "CPU tensor")

    def test_nested_arguments_and_results(self) -> None:
        @spmd.compile
        def function(batch: dict[str, Any], *, pair: tuple[torch.Tensor, int]) -> dict[str, Any]:
            return {
                "sum": batch["a"] + batch["b"][0],
                "pair": [pair[0] * pair[1], pair[1]],
                "name": "x",
            }

        for i in range(3):
            a = torch.full((2,), float(i), device="xla")
            found = function({"a": a, "b": [a + 1]}, pair=(a, 3))
            assert found["sum"][0].item() == 2 * i + 1 and found["pair"][0][0].item() == 3 * i
            assert found["pair"][1] == 3 and found["name"] == "x"
        assert function.num_replayed == 2, function.explain()

    def test_an_argument_that_is_written_in_place(self) -> None:
        @spmd.compile
        def add(x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

        for i in range(3):
            x = torch.full((2,), float(i), device="xla")
            assert add(x) is x and x[0].item() == i + 1
        assert add.num_replayed == 2, add.explain()

    def test_two_arguments_over_one_tensor(self) -> None:
        @spmd.compile
        def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return y * 2

        x, y = torch.ones(2, device="xla"), torch.ones(2, device="xla")
        assert add(x, y)[0].item() == 2 and add(x, y)[0].item() == 2
        assert add(x, x)[0].item() == 8
        assert add(x, y)[0].item() == 2

    def test_a_view_as_an_argument(self) -> None:
        total = spmd.compile(lambda x: x.sum())
        base = torch.arange(12.0, device="xla").reshape(3, 4)
        assert [total(base[i]).item() for i in (0, 0, 1, 2, 1)] == [6.0, 6.0, 22.0, 38.0, 22.0]


class TestPythonState:
    """Python state that the function reads is guarded."""

    def test_train_and_eval(self) -> None:
        compiled = both(training, lambda own: own.model.eval())
        caused(compiled, "training was True, now False")

    def test_an_attribute(self) -> None:
        compiled = both(training, lambda own: setattr(own.model, "scale", 2.0))
        caused(compiled, "scale was 1.0, now 2.0")

    def test_an_attribute_that_nothing_reads_records_nothing(self) -> None:
        compiled = both(training, lambda own: setattr(own.model, "unread_by_all", 2.0))
        assert compiled.num_recorded == 2, compiled.explain()

    def test_a_global(self, monkeypatch: pytest.MonkeyPatch) -> None:
        compiled = spmd.compile(lambda x: x * FACTOR)
        x = torch.ones(2, device="xla")
        assert [compiled(x)[0].item() for _ in range(2)] == [1.0, 1.0]
        monkeypatch.setitem(globals(), "FACTOR", 3.0)
        assert compiled(x)[0].item() == 3.0
        caused(compiled, "FACTOR")

    def test_a_captured_variable(self) -> None:
        factor = 2.0
        compiled = spmd.compile(lambda x: x * factor)
        x = torch.ones(2, device="xla")
        assert [compiled(x)[0].item() for _ in range(2)] == [2.0, 2.0]
        for factor in (5.0, 6.0, 7.0):
            assert compiled(x)[0].item() == factor
        caused(compiled, "factor was 2.0, now 5.0")

    def test_a_list_in_a_captured_object(self) -> None:
        config: dict[str, Any] = {"layers": [1.0, 2.0]}
        compiled = spmd.compile(lambda x: sum(x * factor for factor in config["layers"]))
        x = torch.ones(2, device="xla")
        assert [compiled(x)[0].item() for _ in range(2)] == [3.0, 3.0]
        config["layers"].append(4.0)
        assert compiled(x)[0].item() == 7.0
        config["layers"] = [1.0, 2.0, 4.0]
        assert compiled(x)[0].item() == 7.0
        config["layers"][0] = 3.0
        assert compiled(x)[0].item() == 9.0

    def test_a_function_that_a_global_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        compiled = spmd.compile(lambda x: helper(x))
        x = torch.ones(2, device="xla")
        assert [compiled(x)[0].item() for _ in range(2)] == [2.0, 2.0]
        monkeypatch.setitem(globals(), "helper", lambda x: x * 7)
        assert compiled(x)[0].item() == 7.0

    def test_a_class_attribute_and_a_method(self) -> None:
        class Model:
            factor = 2.0

            def __call__(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.factor

        compiled = spmd.compile(Model())
        x = torch.ones(2, device="xla")
        assert [compiled(x)[0].item() for _ in range(2)] == [2.0, 2.0]
        for Model.factor in (3.0, 4.0, 5.0, 3.0):
            assert compiled(x)[0].item() == Model.factor
        Model.__call__ = lambda self, x: x - 1  # type: ignore[method-assign]
        assert compiled(x)[0].item() == 0.0

    def test_a_hook_of_a_module(self) -> None:
        both(training, lambda own: own.model.last.register_forward_hook(lambda *args: args[-1] * 2))

    def test_a_hook_of_a_parameter(self) -> None:
        compiled = both(
            training, lambda own: own.model.last.weight.register_hook(lambda gradient: gradient * 2)
        )
        caused(compiled, "hook")

    def test_a_hook_of_an_optimizer(self) -> None:
        def half(optimizer: Any, args: Any, kwargs: Any) -> None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(0.5)

        both(
            lambda: training(torch.optim.SGD),
            lambda own: own.optimizer.register_step_pre_hook(half),
        )

    def test_a_parameter_group(self) -> None:
        def change(own: Training) -> None:
            own.optimizer.param_groups[0]["betas"] = (0.5, 0.6)

        compiled = both(training, change)
        caused(compiled, "betas")

    def test_a_new_parameter_group(self) -> None:
        def make() -> Training:
            own = training()
            del own.optimizer.param_groups[0]["params"][-1]
            return own

        both(
            make,
            lambda own: own.optimizer.add_param_group({"params": [own.model.last.bias], "lr": 0.5}),
        )

    def test_autocast(self) -> None:
        def step(own: Training) -> Any:
            def stepped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                with torch.autocast("xla", torch.bfloat16, enabled=own.extra.get("on", False)):
                    return own.step(x, y)

            return stepped

        both(training, lambda own: own.extra.update(on=True), step=step)

    def test_grad_mode(self) -> None:
        weight = nn.Parameter(torch.ones(2, device="xla"))

        @spmd.compile
        def has_graph(x: torch.Tensor) -> torch.Tensor:
            return x * weight

        x = torch.ones(2, device="xla")
        with torch.no_grad():
            assert [has_graph(x)[0].item() for _ in range(3)] == [1.0] * 3
        assert has_graph.num_replayed == 2, has_graph.explain()
        has_graph(x).sum().backward()
        assert weight.grad is not None and torch.equal(weight.grad.cpu(), torch.ones(2))
        caused(has_graph, "grad mode: False, now True")
        caused(has_graph, "needs a gradient")

    def test_a_flag_of_the_library(self) -> None:
        compiled = spmd.compile(lambda x: x * 2)
        x = torch.ones(2, device="xla")
        assert [compiled(x)[0].item() for _ in range(2)] == [2.0, 2.0]
        other = {"gspmd": "shardy", "shardy": "gspmd"}[spmd.config.partitioner]
        before, spmd.config.partitioner = spmd.config.partitioner, other
        try:
            assert compiled(x)[0].item() == 2.0
        finally:
            spmd.config.partitioner = before
        caused(compiled, "config")

    def test_a_mesh(self, mesh8: spmd.Mesh) -> None:
        def split(x: torch.Tensor) -> torch.Tensor:
            mesh = spmd.torch_xla.get_global_mesh()
            return x * 2 if mesh is None else spmd.mark_sharding(x * 2, mesh, ("fsdp",))

        compiled = spmd.compile(split)
        x = torch.arange(8.0, device="xla")
        assert [compiled(x)[1].item() for _ in range(2)] == [2.0, 2.0]
        with mesh8:
            assert "fsdp" in str(spmd.get_sharding(compiled(x)).partition_spec(1))

    def test_a_random_branch_is_refused(self) -> None:
        compiled = spmd.compile(lambda x: x * 2 if random.random() < 0.5 else x * 3)
        x = torch.ones(2, device="xla")
        random.seed(0)
        assert {compiled(x)[0].item() for _ in range(12)} == {2.0, 3.0}
        caused(compiled, "random numbers on the CPU")

    @pytest.mark.parametrize("impure", [time.time, lambda: print("seen") or 1.0])
    def test_a_clock_and_a_print_are_refused(self, impure: Any) -> None:
        compiled = spmd.compile(lambda x: x + 0 * impure())
        x = torch.ones(2, device="xla")
        for _ in range(4):
            compiled(x)
        assert compiled.num_replayed == 0, compiled.explain()

    def test_callbacks_of_the_garbage_collector_are_no_part_of_the_function(self) -> None:
        times: list[float] = []

        def measure(_phase: str, _info: dict[str, int]) -> None:
            times.append(time.perf_counter())

        @spmd.compile
        def doubled(x: torch.Tensor) -> torch.Tensor:
            gc.collect()
            return x * 2

        gc.callbacks.append(measure)
        try:
            x = torch.ones(2, device="xla")
            assert [doubled(x)[0].item() for _ in range(4)] == [2.0] * 4
        finally:
            gc.callbacks.remove(measure)
        assert times and doubled.num_replayed == 3, doubled.explain()

    def test_an_iterator_is_refused(self) -> None:
        data = iter([torch.full((2,), float(i)) for i in range(6)])
        compiled = spmd.compile(lambda: next(data).to("xla") * 2)
        assert [compiled()[0].item() for _ in range(6)] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        caused(compiled, "iterator")

    def test_a_read_of_a_value_is_refused(self) -> None:
        compiled = spmd.compile(lambda x: x * 2 if x.sum().item() > 1 else x * 3)
        for value in (0.0, 1.0, 0.0, 1.0, 0.0):
            x = torch.full((2,), value, device="xla")
            assert compiled(x)[0].item() == (2.0 if value else 0.0)
        caused(compiled, "reads a value")

    def test_a_read_of_a_constant(self) -> None:
        """What the call makes of nothing but its own numbers is the same in each replay."""
        compiled = spmd.compile(
            lambda x: x * 2 if (torch.arange(len(x), device="xla").diff() == 1).all() else x * 3
        )
        assert [compiled(torch.ones(3, device="xla"))[0].item() for _ in range(3)] == [2.0] * 3
        assert compiled.num_replayed == 2, compiled.explain()

    def test_a_read_of_a_number_that_changes(self) -> None:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1, device="xla"))], lr=4.0)

        def scaled(x: torch.Tensor) -> torch.Tensor:
            rate = optimizer.param_groups[0]["lr"]
            is_large = (torch.arange(3, device="xla") < rate).all().item()
            return x * rate * (2 if is_large else 3)

        compiled = spmd.compile(scaled)
        for rate in (4.0, 4.0, 0.25, 0.125, 4.0, 0.25):
            optimizer.param_groups[0]["lr"] = rate
            assert (
                compiled(torch.ones(3, device="xla"))[0].item() == (2 if rate == 4.0 else 3) * rate
            )

    def test_a_cpu_tensor_of_the_closure(self) -> None:
        mask = torch.ones(3)
        compiled = spmd.compile(lambda x: x * mask.to("xla"))
        x = torch.ones(3, device="xla")
        assert [compiled(x)[0].item() for _ in range(2)] == [1.0, 1.0]
        mask.fill_(4.0)
        assert compiled(x)[0].item() == 4.0
        mask.numpy()[:] = 5.0
        assert compiled(x)[0].item() == 5.0

    def test_an_array_of_the_closure_is_refused(self) -> None:
        mask = np.ones(3, np.float32)
        compiled = spmd.compile(lambda x: x * torch.from_numpy(mask).to("xla"))
        x = torch.ones(3, device="xla")
        assert [compiled(x)[0].item() for _ in range(2)] == [1.0, 1.0]
        mask[:] = 4.0
        assert compiled(x)[0].item() == 4.0
        caused(compiled, "array")


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * 2
