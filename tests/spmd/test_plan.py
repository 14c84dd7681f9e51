"""spmd.plan: what a step takes, without running it; the same figures as a run; nothing changed afterwards."""

import copy
import dataclasses
import functools
import io
import json
import random
import re
import sys
import time
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
from spmd import AbstractError, Mesh, Plan
from spmd.core.compile.cache import clear_cache
from spmd.core.lazy.cell import LIVE, READ, pending
from spmd.planning import progress
from spmd.planning.reach import Reached

SMALL = GPTConfig(layers=2, width=32, heads=2, sequence=8)


def training(mesh: Mesh, *, dropout: float = 0.0, clip: bool = True, layers: int = 2) -> tuple[nn.Module, Any, Any]:
    """An FSDP model, its optimizer, and the step that a user would write."""
    with torch.device("xla"):
        model = GPT(GPTConfig(layers=layers, width=32, heads=2, sequence=8, dropout=dropout))
    policy = functools.partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
    axes = mesh.axis_names
    model = fsdp.FullyShardedDataParallel(
        model, mesh, auto_wrap_policy=policy, extra_data_axis="data" if "data" in axes else None
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(model(tokens.to("xla")), tokens.to("xla"))
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return model, optimizer, step


def tokens() -> torch.Tensor:
    return torch.arange(16 * 8).reshape(16, 8) % 256


class TestAgainstARun:
    """The planned figures are those of the program that then runs."""

    @pytest.mark.parametrize("layers", [2, 8], ids=["unrolled", "rolled"])
    @pytest.mark.parametrize("shape", [(8,), (2, 4)])
    def test_same_bytes_and_collectives(self, shape: tuple[int, ...], layers: int, mesh8: Mesh, mesh2x4: Mesh) -> None:
        mesh = mesh8 if len(shape) == 1 else mesh2x4
        model, _, step = training(mesh, layers=layers, dropout=0.1 if layers == 8 else 0.0)
        plan = spmd.plan(step, tokens())
        for _ in range(2):
            loss = step(tokens())
            spmd.sync()
        ran = spmd.metrics.compiles()[-1]
        assert loss.item() > 0
        assert (plan.arguments, plan.results, plan.in_place, plan.temporaries) == (
            ran.argument_bytes, ran.output_bytes, ran.alias_bytes, ran.temp_bytes,
        )  # fmt: skip
        assert plan.flops == ran.flops and plan.num_ops == ran.nodes and plan.num_programs == 1

        def table(rows: Any) -> list[Any]:
            return sorted((row.kind, row.axes, row.devices, row.bytes, row.op, row.line, row.count) for row in rows)

        def merged(rows: Any) -> list[Any]:
            counts: dict[Any, int] = {}
            for *key, count in table(rows):
                counts[tuple(key)] = counts.get(tuple(key), 0) + count
            return sorted(counts.items())

        assert merged(plan.collectives) == merged(ran.traffic) and plan.collectives
        assert [turns for turns, _ in ran.loops] == ([8, 8] if layers == 8 else [])
        total = sum(row.count for row in ran.traffic)
        assert total > sum(ran.collectives.values()) if ran.loops else total == sum(ran.collectives.values())
        numel = sum(parameter.numel() for parameter in model.parameters())
        assert plan.parameters >= numel * 4 / 8 and plan.optimizer_state == 2 * plan.parameters
        assert plan.gradients == 0  # zero_grad has dropped them

    def test_state_that_nobody_placed(self, mesh8: Mesh) -> None:
        """What the compiler lays out by itself in the first step lies so in the second, which is compiled."""
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
            ran.argument_bytes, ran.output_bytes, ran.temp_bytes,
        )  # fmt: skip

    def test_many_thin_layers(self, mesh8: Mesh) -> None:
        """A layer more is a turn more: neither another program nor more temporaries than it saves."""

        def plan_of(depth: int) -> tuple[Plan, int]:
            model, _, step = training(mesh8, layers=depth)
            return spmd.plan(step, tokens()), sum(parameter.numel() for parameter in model.blocks.parameters())

        (few, fewer), (many, more) = plan_of(20), plan_of(80)
        turns = [{row.count for row in plan.collectives} for plan in (few, many)]
        assert 20 in turns[0] and 80 in turns[1] and 20 not in turns[1]
        assert len(few.collectives) == len(many.collectives)
        assert many.parameters - few.parameters == (more - fewer) * 4 // 8
        saved = 60 * 2 * 8 * (2 * 32 + 3 * 32 + 32 + 2 * 4 * 32 + 4 * 32) * 4  # two sequences' activations
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
        assert plan.num_programs == 3 and plan.compile_seconds == pytest.approx(sum(seconds.values()))

    def test_inference(self, mesh8: Mesh) -> None:
        model, _, _ = training(mesh8)
        with torch.no_grad():
            plan = spmd.plan(lambda x: model(x.to("xla")), tokens())
        assert plan.gradients == plan.optimizer_state == 0 and plan.parameters and plan.results


class TestOneCompile:
    """The run of a planned step takes the plan's program."""

    @pytest.fixture(autouse=True)
    def compiles(self) -> Any:
        """Every time that XLA compiles one of our programs, whoever counts it."""
        found: list[str] = []

        def note(event: str, duration_secs: float, **told: object) -> None:
            if event == "/jax/core/compile/backend_compile_duration" and told["fun_name"] == "jit(spmd)":
                found.append(event)

        spmd.sync()
        clear_cache()
        jax.monitoring.register_event_duration_secs_listener(note)
        yield found
        jax.monitoring.unregister_event_duration_listener(note)

    @staticmethod
    def run(step: Any, *args: Any, times: int = 3) -> list[Any]:
        """The lines of the ledger of a few steps, initialisation aside. What they return is kept, as a plan has it."""
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
        assert "compiled by the plan at" in ran.cause and "test_plan.py" in ran.cause and ran.line not in ran.cause
        assert ran.seconds == plan.compile_seconds and bool(ran.loops) is (layers == 8)
        after = spmd.plan(step, tokens())
        assert not plan.diff(after) and len(compiles) == 1 + initial

    @pytest.mark.parametrize("device", ["cpu", "xla"])
    def test_marks_and_moments(self, device: str, mesh2x4: Mesh, compiles: list[str]) -> None:
        """Modules without data, unmarked biases and their moments, results that the compiler places."""
        with torch.device(device):
            model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Linear(64, 16))
        rules = spmd.ShardingRules({"0.weight": spmd.P("fsdp", None), "2.weight": spmd.P(None, "fsdp")})
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
        lies = spmd.inspect(y).spec
        spmd.sync()
        assert len(compiles) == 1 and spmd.inspect(y).spec == lies

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

    def test_from_the_disk(self, mesh8: Mesh, compiles: list[str], tmp_path: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(spmd.config, "program_cache", True)
        monkeypatch.setattr(spmd.config, "program_cache_dir", str(tmp_path / "cache"))
        _, _, step = training(mesh8)
        first = spmd.plan(step, tokens())
        clear_cache()
        again = spmd.plan(step, tokens())
        assert len(compiles) == 1 and not first.diff(again)


class TestNothingMoves:
    """Data that a step would upload, or take from one mesh to another, stays where it is."""

    def test_two_meshes(self) -> None:
        first, second = Mesh(range(4), (4,), ("a",)), Mesh(range(4, 8), (4,), ("b",))
        weight = spmd.mark_sharding(torch.ones(8, 8, device="xla"), first, ("a", None))
        spmd.sync()
        leaf = weight._cell.value

        def step(x: torch.Tensor) -> torch.Tensor:
            weight.add_(1)
            h = spmd.mark_sharding(x.to("xla"), first, ("a", None)) @ weight
            return spmd.mark_sharding(h, second, ("b", None)) * 2

        plan = spmd.plan(step, torch.ones(8, 8))
        assert plan.num_programs == 2 and weight._cell.value is leaf
        assert step(torch.ones(8, 8)).sum().item() == 8 * 8 * 8 * 2 * 2

    def test_marked_data(self, mesh8: Mesh, mesh2x4: Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(16, 8, device="xla"), mesh8, ("fsdp", None))
        spmd.sync()
        leaf, lies = x._cell.value, spmd.get_sharding(x)
        spmd.plan(lambda: spmd.mark_sharding(x, mesh2x4, ("data", None)) + 1)
        assert x._cell.value is leaf and spmd.get_sharding(x) is lies and leaf.sharding is lies
        assert x.sum().item() == 128

    def test_part_of_a_process(self) -> None:
        far = Mesh(range(16), (16,), ("data",), target="cpu:16")
        plan = spmd.plan(lambda x: spmd.from_process_local(x, far, ("data", None)).sum(), torch.ones(32, 4))
        assert plan.inputs == 2 * 4 * 4 and plan.num_devices == 16


class TestNothingChanges:
    """Parameters, gradients, optimizer state, buffers, random streams, attributes, live set, ledger: as before."""

    def test_training_goes_on_as_if_nobody_had_asked(self, mesh8: Mesh) -> None:
        losses = []
        for asks in (False, True):
            torch.manual_seed(3)
            _, _, step = training(mesh8, dropout=0.1)
            found = []
            for turn in range(4):
                if asks and turn in (0, 2):
                    spmd.plan(step, tokens())
                found.append(step(tokens()))
                if turn != 1:  # once the plan finds pending work
                    spmd.sync()
            losses.append([loss.item() for loss in found])
        assert losses[0] == losses[1]

    def test_state_stays(self, mesh8: Mesh) -> None:
        model, optimizer, step = training(mesh8)
        step(tokens())
        spmd.sync()
        cross_entropy(model(tokens().to("xla")), tokens().to("xla")).backward()
        spmd.sync()
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        gradients = [parameter.grad for parameter in model.parameters()]
        cells = [(parameter._cell, parameter._cell.value) for parameter in model.parameters()]
        state = copy.deepcopy(optimizer.state_dict())
        spmd.sync()
        counters = {name: spmd.metrics.counter(name) for name in spmd.metrics.counter_names()}
        before = (
            torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(), torch.xla.get_rng_state(),
            len(spmd.metrics.compiles()), spmd.metrics.num_compiles(), len(LIVE), len(READ),
        )  # fmt: skip

        def noisy(x: torch.Tensor) -> None:
            torch.rand(3), random.random(), np.random.rand(), torch.rand(3, device="xla")
            step(x)

        plan = spmd.plan(noisy, tokens())
        assert plan.parameters
        after = (
            torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(), torch.xla.get_rng_state(),
            len(spmd.metrics.compiles()), spmd.metrics.num_compiles(), len(LIVE), len(READ),
        )  # fmt: skip
        for one, two in zip(before, after, strict=True):
            assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two
        assert counters == {name: spmd.metrics.counter(name) for name in spmd.metrics.counter_names()}
        assert all(parameter.grad is grad for parameter, grad in zip(model.parameters(), gradients, strict=True))
        assert all(cell.value is value for cell, value in cells)
        assert not pending()
        for name, value in model.state_dict().items():
            assert torch.equal(value.cpu(), weights[name].cpu()), name
        again = optimizer.state_dict()
        for key, one in state["state"].items():
            assert all(torch.equal(one[name].cpu(), again["state"][key][name].cpu()) for name in one)
        assert again["param_groups"] == state["param_groups"]

    def test_what_was_pending_stays_pending(self, mesh8: Mesh) -> None:
        with torch.device("xla"):
            model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        values = [value for cell in pending() for value in (cell, cell.value)]
        x = torch.ones(4, 8, device="xla") * 3
        spmd.plan(lambda: model(x).sum().backward())
        assert [value for cell in pending() for value in (cell, cell.value)][: len(values)] == values
        assert model[1].num_batches_tracked.item() == 0 and model[0].weight.grad is None
        assert x.sum().item() == 96

    def test_attributes_and_schedulers(self) -> None:
        class Trainer:
            def __init__(self) -> None:
                with torch.device("xla"):
                    self.model = nn.Linear(4, 4)
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
                self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
                self.steps, self.losses, self.last = 0, [], None

            def step(self, x: torch.Tensor) -> None:
                self.last = self.model(x.to("xla")).sum()
                self.last.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.schedule.step()
                self.steps += 1
                self.losses.append(self.last.detach())

        trainer = Trainer()
        spmd.plan(trainer.step, torch.ones(2, 4))
        assert (trainer.steps, trainer.losses, trainer.last) == (0, [], None)
        assert trainer.optimizer.param_groups[0]["lr"] == 1.0 and trainer.schedule.last_epoch == 0
        trainer.step(torch.ones(2, 4))
        assert trainer.steps == 1 and trainer.losses[0].item() == trainer.last.item()

    def test_attributes_are_no_globals(self) -> None:
        """A method called as a global of the script is leads to nothing; a global that is read or written does."""
        names: dict[str, Any] = {"torch": torch, "optimizer": None, "written": 0}
        code = """
def step(x):
    optimizer.train(x).zero_grad()
    global written
    written += 1
    return [one.model for one in ()], (lambda: outer)
"""
        exec(code, names)
        names |= {name: nn.Linear(4, 4) for name in ("train", "zero_grad", "model", "outer", "optimizer")}
        found = Reached(names["step"], ())
        assert {id(module) for module in found.modules} == {id(names["outer"]), id(names["optimizer"])}
        state = found.state()
        names["written"] = 3
        state.put_back()
        assert names["written"] == 0

    def test_where_the_step_raises(self, mesh8: Mesh) -> None:
        model, optimizer, step = training(mesh8)

        def fails(x: torch.Tensor) -> None:
            step(x)
            raise KeyError("no such batch")

        with pytest.raises(KeyError, match="no such batch"):
            spmd.plan(fails, tokens())
        assert not optimizer.state and all(parameter.grad is None for parameter in model.parameters())
        loss = step(tokens())
        spmd.sync()
        assert loss.item() > 0

    def test_what_outlives_a_plan_has_no_data(self) -> None:
        kept = []  # reached through an object that plan cannot see into

        class Hidden:
            __slots__ = ("append",)

        hidden = Hidden()
        hidden.append = kept.append
        spmd.plan(lambda x: hidden.append(x.to("xla") + 1), torch.ones(3))
        spmd.sync()
        with pytest.raises(AbstractError, match=r"test_plan\.py.*float32\[3\] is abstract"):
            kept[0].tolist()


class TestModulesElsewhere:
    """On meta and on the CPU: on the device without data while they are planned."""

    @pytest.mark.parametrize("device", ["meta", "cpu"])
    def test_plain_module(self, device: str) -> None:
        with torch.device(device):
            model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 4))
        optimizer = torch.optim.Adam(model.parameters())
        before = [(tensor, tensor.device, type(tensor), tensor._version) for tensor in model.state_dict().values()]
        parameters = [*model.parameters()]

        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

        x, y = torch.ones(8, 16, device=device), torch.zeros(8, dtype=torch.long, device=device)
        plan = spmd.plan(step, x, y)
        numel = sum(parameter.numel() for parameter in model.parameters())
        assert plan.parameters == 4 * numel and plan.optimizer_state == 8 * numel and plan.fits
        assert all(now is before for now, before in zip(model.parameters(), parameters, strict=True))
        assert x.device.type == y.device.type == device and not optimizer.state
        for tensor, where, kind, version in before:
            assert tensor.device == where and type(tensor) is kind and tensor._version == version
        assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
        if device == "cpu":
            step(x, y)
            assert len(optimizer.state) == len(parameters)
            plan = spmd.plan(step, x, y)  # with optimizer state on the CPU
            assert plan.optimizer_state == 8 * numel
            assert all(state["exp_avg"].device.type == "cpu" for state in optimizer.state.values())
            step(x, y)

    def test_batch_on_meta(self, mesh8: Mesh) -> None:
        """It is split as FSDP splits a batch from the host; a module that nobody wrapped is whole on each device."""
        model, _, _ = training(mesh8)
        head = nn.Linear(256, 4, device="meta")

        def step(x: torch.Tensor) -> None:
            head(model(x.to("xla"))).sum().backward()
            head.weight.data.sub_(head.weight.grad)
            model.zero_grad()
            head.zero_grad()

        on_host = spmd.plan(step, tokens())
        plan = spmd.plan(step, torch.empty(16, 8, dtype=torch.long, device="meta"))
        assert plan.inputs == on_host.inputs == 16 * 8 * 8 // 8
        assert plan.parameters == on_host.parameters and plan.in_place >= 4 * 256 * 4

    def test_hugging_face(self) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer

        config = LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32, use_cache=False,
        )  # fmt: skip
        with torch.device("meta"):
            model = LlamaForCausalLM(config)
        policy = functools.partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
        mesh = Mesh(range(16), (16,), ("fsdp",), target="cpu:16")
        wrapped = fsdp.FullyShardedDataParallel(model, mesh, auto_wrap_policy=policy)
        optimizer = torch.optim.AdamW(wrapped.parameters())

        def step(ids: torch.Tensor) -> None:
            wrapped(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        plan = spmd.plan(step, torch.zeros(16, 32, dtype=torch.long, device="meta"))
        assert plan.target == "cpu:16" and plan.num_devices == 16 and plan.mesh == {"fsdp": 16}
        gathers = {row.path for row in plan.collectives if row.kind == "all-gather"}
        assert any(path.startswith("model.layers.1.") for path in gathers), gathers
        assert {row.axes for row in plan.collectives} == {("fsdp",)}


class TestTarget:
    """Over devices that are not here, with the mesh of a script that runs here."""

    def test_mesh_of_this_machine(self, mesh8: Mesh) -> None:
        _, _, step = training(mesh8)
        here, there = spmd.plan(step, tokens()), spmd.plan(step, tokens(), target="cpu:64")
        assert here.target is None and there.target == "cpu:64"
        assert not here.diff(there), here.diff(there)
        assert there.memory is None and there.fits

    def test_more_devices_than_here(self) -> None:
        _, _, step = training(Mesh(range(64), (8, 8), ("data", "fsdp"), target="cpu:64"))
        plan = spmd.plan(step, torch.zeros(64, 8, dtype=torch.long))
        assert plan.num_devices == 64 and {axis for row in plan.collectives for axis in row.axes} == {"data", "fsdp"}
        assert plan.mesh == {"data": 8, "fsdp": 8}

    def test_errors(self, mesh8: Mesh) -> None:
        _, _, step = training(mesh8)
        with pytest.raises(ValueError, match="the step's mesh has 8 devices and 'cpu:4' has 4"):
            spmd.plan(step, tokens(), target="cpu:4")
        with pytest.raises(ValueError, match="target 'abacus:2' is not known"):
            spmd.plan(step, tokens(), target="abacus:2")
        far = Mesh(range(16), (16,), ("fsdp",), target="cpu:16")
        _, _, other = training(far)
        with pytest.raises(ValueError, match="meshes are over 'cpu:16', and target is 'cpu:8'; leave it out"):
            spmd.plan(other, tokens(), target="cpu:8")
        with pytest.raises(ValueError, match="recorded nothing on the device"):
            spmd.plan(lambda: None)
        with pytest.raises(TypeError, match="expected a function that does a step, got Tensor"):
            spmd.plan(torch.ones(2))
        with pytest.raises(RuntimeError, match="called by the step that is being planned"):
            spmd.plan(lambda x: spmd.plan(torch.sin, x), torch.ones(2, device="xla"))


class TestReads:
    """What reads a value raises at the user's line, naming it."""

    @pytest.mark.parametrize(
        "read",
        [
            lambda loss: loss.item(),
            lambda loss: print(loss),
            lambda loss: float(loss),
            lambda loss: bool(loss > 0),
            lambda loss: loss.reshape(1).nonzero(),
            lambda loss: loss.cpu(),
        ],
    )
    def test_raises(self, read: Any, mesh8: Mesh) -> None:
        _, optimizer, step = training(mesh8)
        with pytest.raises(
            AbstractError, match=r"test_plan\.py:\d+ in .*which has no value: spmd\.plan records"
        ) as caught:
            spmd.plan(lambda x: read(step(x)), tokens())
        assert "not the loop that prints" in str(caught.value)
        assert not optimizer.state

    def test_of_a_parameter(self, mesh8: Mesh) -> None:
        model, _, _ = training(mesh8)
        with pytest.raises(AbstractError, match=r"test_plan\.py"):
            spmd.plan(lambda: next(model.parameters()).sum().item() + model(tokens().to("xla")).sum())

    def test_numbers_of_the_host(self) -> None:
        """What the host knows can be read: a count that is no result of a program."""
        plan = spmd.plan(lambda x: x * (torch.tensor([3], device="xla") + 1).item(), torch.ones(2, device="xla"))
        assert plan.num_ops


class TestPlan:
    """The value: JSON, differences, a table, a page."""

    def plan(self, width: int = 16) -> Plan:
        model = nn.Linear(width, width, device="meta")
        return spmd.plan(lambda x: model(x).sum().backward(), torch.ones(4, width))

    def test_json(self, mesh8: Mesh) -> None:
        _, _, step = training(mesh8)
        plan = spmd.plan(step, tokens())
        assert Plan.from_json(plan.to_json()) == plan
        assert json.loads(plan.to_json())["parameters"] == plan.parameters
        with pytest.raises(ValueError, match="expected a plan of version 1, got None"):
            Plan.from_json("{}")

    def test_diff(self) -> None:
        one, two = self.plan(16), self.plan(32)
        assert not one.diff(self.plan(16)) and str(one.diff(one)) == "no difference"
        difference = one.diff(two)
        assert difference and difference.changes[0].name == "parameters"
        assert f"parameters: {one.parameters:,} -> {two.parameters:,}" in str(difference)

    def test_kernels_take_time(self) -> None:
        """What they compute counts at the chip's peak in the step's time, where the compiler estimates no cycles."""
        chip = {"cycles": 3_000, "clock": 1e9, "peak_flops": 2e9, "flops": 8_000.0}
        plan = dataclasses.replace(self.plan(16), **chip, kernel_flops=6_000.0)
        assert plan.seconds == pytest.approx(6e-6) and plan.utilisation == pytest.approx(8 / 12)
        assert "3,000 cycles / 1.000 GHz + 6000 operations of kernels / 2e+09 = 6e-06 s" in plan.formula
        without = dataclasses.replace(plan, kernel_flops=0.0)
        assert without.seconds == pytest.approx(3e-6) and "kernels" not in without.formula

    def test_is_not_compiled_twice(self) -> None:
        model = nn.Linear(7, 7, device="meta")
        one, two = (spmd.plan(lambda x: model(x).sum().backward(), torch.ones(4, 7)) for _ in range(2))
        assert one.compile_seconds == two.compile_seconds  # those of the one compile

    def test_print(self, mesh8: Mesh) -> None:
        _, _, step = training(mesh8)
        text = str(spmd.plan(step, tokens()))
        assert (
            "optimizer state" in text and "all-gather" in text and "fsdp (8)" in text and "all-reduce + slice" in text
        )
        assert re.search(r"blocks\.\*", text)

    def test_loops_are_told(self, mesh8: Mesh, monkeypatch: Any) -> None:
        _, _, step = training(mesh8, layers=8)
        told = [note for note in spmd.plan(step, tokens()).notes if "equal layers" in note]
        assert len(told) >= 2 and all("8 equal layers of blocks.* are one loop of the program" in one for one in told)
        monkeypatch.setattr(spmd.config, "roll_layers", "never")
        assert any("config.roll_layers is 'never'" in note for note in spmd.plan(step, tokens()).notes)
        monkeypatch.setattr(spmd.config, "roll_layers", "auto")
        _, _, step = training(mesh8, layers=6)
        assert any("6 equal layers, and a loop is made from 8 on" in note for note in spmd.plan(step, tokens()).notes)

    def test_a_gather_of_a_cast_names_the_weight(self, mesh8: Mesh) -> None:
        model = nn.Linear(64, 64, bias=False, device="meta")
        rules = spmd.ShardingRules({"weight": spmd.P("fsdp", None)})

        def step(x: torch.Tensor) -> torch.Tensor:
            x = spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp", None))
            weight = spmd.mark_sharding(model.weight.bfloat16(), mesh8, (None, None))
            return (x.bfloat16() @ weight.t()).sum()

        plan = spmd.plan(step, torch.ones(16, 64), mesh=mesh8, rules=rules)
        assert "weight" in {row.path for row in plan.collectives if row.kind == "all-gather"}, plan.collectives

    def test_progress_on_a_terminal(self, monkeypatch: Any) -> None:
        """One line that is written over and taken away; a pipe gets nothing."""
        written = [io.StringIO(), io.StringIO()]
        monkeypatch.setattr(progress, "_EVERY", 0.01)
        monkeypatch.setattr(spmd.config, "slow_compile_seconds", 1)
        for is_terminal, file in zip((True, False), written, strict=True):
            file.isatty = lambda is_terminal=is_terminal: is_terminal  # type: ignore[method-assign]
            monkeypatch.setattr(sys, "stderr", file)
            with progress.stage("plan"), progress.stage("compiling 3 ops"):
                while is_terminal and "compiling" not in file.getvalue():
                    time.sleep(0.01)
            with progress.silent(), progress.stage("plan"):
                pass
        shown = written[0].getvalue()
        assert re.search(r"\r\033\[Kspmd: plan: compiling 3 ops, \d+ s", shown) and shown.endswith("\r\033[K")
        assert "\n" not in shown and not written[1].getvalue()

    def test_page(self, mesh8: Mesh, tmp_path: Any) -> None:
        _, _, step = training(mesh8)
        path = tmp_path / "plan.html"
        spmd.plan(step, tokens()).save(path)
        page = path.read_text()
        assert page.startswith("<!doctype html>") and page.count("data:image/png;base64,") >= 2
        assert 'src="http' not in page and "all-gather" in page

    def test_loop_counts_its_turns(self) -> None:

        def scanned(x: Any) -> Any:
            return jax.lax.scan(lambda carry, _: (jax.numpy.tanh(carry @ carry), None), x, None, length=12)[0]

        once = spmd.plan(lambda x: spmd.call_jax(lambda a: jax.numpy.tanh(a @ a), x), torch.ones(32, 32, device="xla"))
        plan = spmd.plan(lambda x: spmd.call_jax(scanned, x), torch.ones(32, 32, device="xla"))
        assert plan.flops >= 12 * 2 * 32**3 and once.flops < 3 * 2 * 32**3
