"""spmd.plan: the figures that a plan tells are those of a run, and of its one program."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from planned import tokens, training
from torch import nn

import spmd
from recipes.gpt import cross_entropy
from spmd import Mesh, Plan
from spmd.core import storage_of
from spmd.core.programs.cache import clear_cache
from spmd.tools.reports.table import headline
from spmd.tools.reports.table import size as size_of


class TestAgainstARun:
    """The planned figures are those of the program that then runs."""

    @pytest.mark.parametrize("layers", [2, 8], ids=["unrolled", "rolled"])
    @pytest.mark.parametrize("shape", [(8,), (2, 4)])
    def test_same_bytes_and_collectives(
        self, shape: tuple[int, ...], layers: int, mesh8: Mesh, mesh2x4: Mesh
    ) -> None:
        mesh = mesh8 if len(shape) == 1 else mesh2x4
        model, _, step = training(mesh, layers=layers, dropout=0.1 if layers == 8 else 0.0)
        plan = spmd.plan(step, tokens())
        for _ in range(2):
            loss = step(tokens())
            spmd.sync()
        ran = spmd.metrics.compiles()[-1]
        assert loss.item() > 0
        assert plan.memory is not None
        assert headline(plan).endswith(f": fits: {size_of(plan.peak)} of {size_of(plan.memory)}")
        assert (plan.arguments, plan.results, plan.in_place, plan.temporaries) == (
            ran.argument_bytes,
            ran.output_bytes,
            ran.alias_bytes,
            ran.temp_bytes,
        )
        assert plan.flops == ran.flops and plan.num_ops == ran.nodes and plan.num_programs == 1

        def table(rows: Any) -> list[Any]:
            return sorted(
                (row.kind, row.axes, row.devices, row.bytes, row.op, row.line, row.count)
                for row in rows
            )

        def merged(rows: Any) -> list[Any]:
            counts: dict[Any, int] = {}
            for *key, count in table(rows):
                counts[tuple(key)] = counts.get(tuple(key), 0) + count
            return sorted(counts.items())

        assert merged(plan.collectives) == merged(ran.traffic) and plan.collectives
        assert [iterations for iterations, _ in ran.loops] == ([8, 8] if layers == 8 else [])
        total = sum(row.count for row in ran.traffic)
        assert (
            total > sum(ran.collectives.values())
            if ran.loops
            else total == sum(ran.collectives.values())
        )
        numel = sum(parameter.numel() for parameter in model.parameters())
        assert plan.parameters >= numel * 4 / 8 and plan.optimizer_state == 2 * plan.parameters
        assert plan.gradients == 0  # zero_grad has dropped them

    def test_state_that_nobody_placed(self, mesh8: Mesh) -> None:
        """A layout that the compiler chose in the first step is that of the second, which is
        compiled."""
        with torch.device("xla"):
            model = nn.Linear(64, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: torch.Tensor) -> torch.Tensor:
            x = spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp", None))
            h = spmd.mark_sharding(model(x), mesh8, (None, "fsdp"))
            h.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            return h

        x = torch.ones(16, 64)
        plan = spmd.plan(step, x)
        for _ in range(3):
            h = step(x)
            spmd.sync()
        ran = spmd.metrics.compiles()[-1]
        assert h.shape == (16, 64)
        assert (plan.arguments, plan.results, plan.temporaries) == (
            ran.argument_bytes,
            ran.output_bytes,
            ran.temp_bytes,
        )

    def test_many_thin_layers(self, mesh8: Mesh) -> None:
        """A layer more is a turn more: neither another program nor more temporaries than it
        saves."""

        def plan_of(depth: int) -> tuple[Plan, int]:
            model, _, step = training(mesh8, layers=depth)
            return spmd.plan(step, tokens()), sum(
                parameter.numel() for parameter in model.blocks.parameters()
            )

        (few, fewer), (many, more) = plan_of(20), plan_of(80)
        iterations = [{row.count for row in plan.collectives} for plan in (few, many)]
        assert 20 in iterations[0] and 80 in iterations[1] and 20 not in iterations[1]
        assert len(few.collectives) == len(many.collectives)
        assert many.parameters - few.parameters == (more - fewer) * 4 // 8
        # two sequences' activations
        saved = 60 * 2 * 8 * (2 * 32 + 3 * 32 + 32 + 2 * 4 * 32 + 4 * 32) * 4
        assert many.temporaries - few.temporaries < 2 * saved

    def test_two_barriers_in_a_step(self, mesh8: Mesh) -> None:
        model, optimizer, _ = training(mesh8)

        def step() -> None:
            for half in tokens().chunk(2):
                cross_entropy(model(half.to("xla")), half.to("xla")).backward()
                spmd.sync()
            optimizer.step()
            optimizer.zero_grad()
            spmd.sync()

        plan = spmd.plan(step)
        assert plan.num_programs == 3 and any("3 programs" in note for note in plan.notes)

    def test_a_step_of_too_many_ops(self, monkeypatch: Any) -> None:
        """It is cut into programs, whose results between them lie as the compiler likes."""
        monkeypatch.setattr(spmd.config, "max_program_ops", 12)
        layers = nn.Sequential(*(nn.Linear(8, 8, device="xla") for _ in range(6)))

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = layers(x.to("xla")).square().mean()
            loss.backward()
            return loss

        plan = spmd.plan(step, torch.ones(4, 8))
        assert plan.num_programs > 1 and plan.flops > 6 * 3 * 2 * 4 * 8 * 8 * 0.8
        assert plan.inputs == 4 * 8 * 4  # what a program hands to the next is no input of the step

    def test_a_program_that_runs_twice_is_compiled_once(self, mesh8: Mesh) -> None:
        weight = torch.randn(8, 8).to("xla")

        def step(x: torch.Tensor) -> None:
            for _ in range(3):
                x = torch.tanh(x.to("xla") @ weight)
                spmd.sync()

        plan = spmd.plan(step, torch.ones(4, 8))
        spmd.metrics.clear()
        step(torch.ones(4, 8))
        seconds = {record.name: record.seconds for record in spmd.metrics.compiles()}
        assert plan.num_programs == 3 and plan.compile_seconds == pytest.approx(
            sum(seconds.values())
        )

    def test_inference(self, mesh8: Mesh) -> None:
        model, _, _ = training(mesh8)
        with torch.no_grad():
            plan = spmd.plan(lambda x: model(x.to("xla")), tokens())
        assert plan.gradients == plan.optimizer_state == 0 and plan.parameters and plan.results

    @pytest.mark.parametrize("device", ["meta", "cpu"])
    def test_equal_layers_of_inference(self, device: str) -> None:
        """They are a loop in the plan as in the run, though the module is back on its device when
        it is compiled."""
        torch.manual_seed(0)
        with torch.device(device):
            model = nn.Sequential(
                *(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16)) for _ in range(10))
            )
            x = torch.empty(4, 16)

        @torch.no_grad()
        def step(x: torch.Tensor) -> torch.Tensor:
            return model(x)

        plan = spmd.plan(step, x)
        model = model.to_empty(device="xla") if device == "meta" else model.to("xla")
        spmd.sync()
        for _ in range(2):
            result = step(torch.ones(4, 16).to("xla"))
            spmd.sync()
        assert result.shape == (4, 16)
        (*_, ran) = spmd.metrics.compiles()
        assert [iterations for iterations, _ in ran.loops] == [10]
        assert plan.num_lowered < plan.num_ops == ran.nodes
        assert (plan.arguments, plan.temporaries) == (ran.argument_bytes, ran.temp_bytes)


class TestOneCompile:
    """The run of a planned step takes the plan's program."""

    @pytest.fixture(autouse=True)
    def compiles(self) -> Any:
        """Every time that XLA compiles one of our programs, whoever counts it."""
        found: list[str] = []

        def note(event: str, duration_secs: float, **told: object) -> None:
            if (
                event == "/jax/core/compile/backend_compile_duration"
                and told["fun_name"] == "jit(spmd)"
            ):
                found.append(event)

        spmd.sync()
        clear_cache()
        jax.monitoring.register_event_duration_secs_listener(note)
        yield found
        jax.monitoring.unregister_event_duration_listener(note)

    @staticmethod
    def run(step: Any, *args: Any, times: int = 3) -> list[Any]:
        """The lines of the ledger of a few steps, initialisation aside.

        What they return is kept, as a plan has it.
        """
        before = len(spmd.metrics.compiles())
        for _ in range(times):
            kept = step(*args)
            spmd.sync()
            del kept
        return [record for record in spmd.metrics.compiles()[before:] if record.name != "init"]

    @pytest.mark.parametrize("layers", [2, 8], ids=["unrolled", "rolled"])
    def test_fsdp(self, layers: int, mesh8: Mesh, compiles: list[str]) -> None:
        _, _, step = training(mesh8, layers=layers, dropout=0.1)
        plan = spmd.plan(step, tokens())
        assert len(compiles) == plan.num_programs == 1
        before = len(spmd.metrics.compiles())
        (ran,) = self.run(step, tokens())
        initial = sum(record.name == "init" for record in spmd.metrics.compiles()[before:])
        assert initial and len(compiles) == 1 + initial
        assert (
            "compiled by the plan at" in ran.cause
            and "test_plan.py" in ran.cause
            and ran.line not in ran.cause
        )
        assert ran.seconds == plan.compile_seconds and bool(ran.loops) is (layers == 8)
        after = spmd.plan(step, tokens())
        assert not plan.diff(after) and len(compiles) == 1 + initial

    @pytest.mark.parametrize("device", ["cpu", "xla"])
    def test_marks_and_moments(self, device: str, mesh2x4: Mesh, compiles: list[str]) -> None:
        """Modules without data, unmarked biases and their moments, results that the compiler
        places."""
        with torch.device(device):
            model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Linear(64, 16))
        rules = spmd.ShardingRules(
            {"0.weight": spmd.P("fsdp", None), "2.weight": spmd.P(None, "fsdp")}
        )
        optimizer = torch.optim.Adam(model.parameters())

        def step(x: torch.Tensor) -> torch.Tensor:
            x = spmd.mark_sharding(x.to("xla"), mesh2x4, ("data", None))
            h = model(x)
            h.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            return h

        x = torch.ones(32, 16)
        spmd.plan(step, x, mesh=mesh2x4, rules=rules)
        planned = len(compiles)
        rules.apply(model.to("xla"), mesh2x4)
        found = self.run(step, x)
        fresh = [record.cause for record in found if "compiled by the plan" not in record.cause]
        assert not fresh and len(compiles) - planned <= 1, fresh  # initialisation

    def test_several_barriers(self, mesh8: Mesh, compiles: list[str]) -> None:
        model, optimizer, _ = training(mesh8)

        def step() -> None:
            for half in tokens().chunk(2):
                cross_entropy(model(half.to("xla")), half.to("xla")).backward()
                spmd.sync()
            optimizer.step()
            optimizer.zero_grad()

        plan = spmd.plan(step)
        planned = len(compiles)
        found = self.run(step)
        assert plan.num_programs == 3 and planned <= 3 and len(found) == 3
        assert all("compiled by the plan" in record.cause for record in found)

    def test_what_was_asked_before(self, mesh8: Mesh, compiles: list[str]) -> None:
        """The optimised text, and how a value will lie, are of the program that then runs."""
        x = spmd.mark_sharding(torch.arange(64.0).reshape(8, 8).to("xla"), mesh8, ("fsdp", None))
        y = (x @ x.t()).relu()
        assert "ENTRY" in spmd.get_hlo() and spmd.get_sharding(y) is None
        sharding = spmd.inspect(y).spec
        spmd.sync()
        assert len(compiles) == 1 and spmd.inspect(y).spec == sharding

    def test_another_target_is_another_program(self, mesh8: Mesh, compiles: list[str]) -> None:
        _, _, step = training(mesh8)
        spmd.plan(step, tokens(), target="cpu:8")
        (ran,) = self.run(step, tokens(), times=1)
        assert "compiled by the plan" not in ran.cause

    def test_plans_that_never_run_are_few(self, compiles: list[str]) -> None:
        x = torch.ones(4, device="xla")
        spmd.sync()
        compiles.clear()
        for size in (*range(2, 20), 19):
            spmd.plan(lambda size=size: x.repeat(size))
        assert len(compiles) == 18
        spmd.plan(lambda: x.repeat(2))
        assert len(compiles) == 19

    def test_from_the_disk(
        self, mesh8: Mesh, compiles: list[str], tmp_path: Any, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr(spmd.config, "program_cache", True)
        monkeypatch.setattr(spmd.config, "program_cache_dir", str(tmp_path / "cache"))
        _, _, step = training(mesh8)
        first = spmd.plan(step, tokens())
        clear_cache()
        again = spmd.plan(step, tokens())
        assert len(compiles) == 1 and not first.diff(again)
        loaded = spmd.metrics.num_loaded()
        (ran,) = self.run(step, tokens())
        assert (
            ran.cause.startswith("loaded from disk by the plan at")
            and "compiled by" not in ran.cause
        )
        assert spmd.metrics.num_loaded() > loaded


class TestValuesThatArePending:
    """Ops that were recorded before a plan and have not run: the plan has them in its programs, and
    they stay."""

    def test_read_by_the_step(self, mesh8: Mesh) -> None:
        numbers = torch.arange(64.0 * 32).reshape(64, 32)
        x = spmd.mark_sharding(
            torch.arange(64.0 * 32, device="xla").reshape(64, 32), mesh8, ("fsdp", None)
        )
        values, places = (x * 3).sort(dim=1)
        kept: list[torch.Tensor] = []

        def step() -> None:
            first = kept[0] if kept else values
            kept[:] = [first * 2 @ torch.ones(32, 32, device="xla") + places]

        plan = spmd.plan(step)  # compiles the first step, too, for the layout of its result
        again = spmd.plan(step)
        assert plan.fits and plan.num_ops == again.num_ops and not kept
        step()
        torch.testing.assert_close(
            kept[0].cpu(), numbers * 6 @ torch.ones(32, 32) + torch.arange(32.0)
        )
        assert torch.equal(values.cpu(), numbers * 3)


class TestInputs:
    """Inputs on the CPU are not copied where nothing runs."""

    def test_no_copy(self) -> None:
        model, batch = nn.Linear(8, 8, device="xla"), torch.ones(4, 8)

        def step(inputs: torch.Tensor, is_planned: bool) -> torch.Tensor:
            there = inputs.to("xla")
            assert np.shares_memory(storage_of(there).value.host, batch.numpy()) is is_planned  # type: ignore[union-attr]
            return model(there).sum()

        assert spmd.plan(step, batch, True).num_programs == 1
        expected = model(torch.full((4, 8), 2.0, device="xla")).sum().item()
        assert step(batch.add_(1), False).item() == expected
