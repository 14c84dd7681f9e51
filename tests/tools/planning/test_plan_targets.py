"""spmd.plan: modules from elsewhere, other targets, reads, and what a plan shows."""

import dataclasses
import functools
import io
import json
import re
import sys
import time
from typing import Any
from xml.etree import ElementTree

import jax
import pytest
import torch
from planned import tokens, training
from torch import nn

import fsdp
import spmd
from spmd import AbstractError, Mesh, Plan
from spmd.core.base import messages
from spmd.tools.explain import status
from spmd.tools.planning import layout
from spmd.tools.planning.layout import Term


class TestModulesElsewhere:
    """On meta and on the CPU: on the device without data while they are planned."""

    @pytest.mark.parametrize("device", ["meta", "cpu"])
    def test_plain_module(self, device: str) -> None:
        with torch.device(device):
            model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 4))
        optimizer = torch.optim.Adam(model.parameters())
        before = [
            (tensor, tensor.device, type(tensor), tensor._version)
            for tensor in model.state_dict().values()
        ]
        parameters = [*model.parameters()]

        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

        x, y = torch.ones(8, 16, device=device), torch.zeros(8, dtype=torch.long, device=device)
        plan = spmd.plan(step, x, y)
        numel = sum(parameter.numel() for parameter in model.parameters())
        assert plan.parameters == 4 * numel and plan.optimizer_state == 8 * numel and plan.fits
        assert all(
            now is before for now, before in zip(model.parameters(), parameters, strict=True)
        )
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
        """It is split as FSDP splits a batch from the host; a module that nobody wrapped is whole
        on each device."""
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
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32,
            use_cache=False,
        )
        with torch.device("meta"):
            model = LlamaForCausalLM(config)
        policy = functools.partial(
            fsdp.transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer}
        )
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
        said = "the step's mesh has 8 of the 64 devices of 'cpu:64', and the figures are of these 8"
        assert any(
            said in note and "spmd.Mesh(range(64), ..., target='cpu:64')" in note
            for note in there.notes
        )
        assert said in " ".join(str(there).split())
        assert not any("devices of" in note for note in here.notes)
        table = spmd.plan(nn.Linear(4, 2, device="meta"), target="cpu:64")
        assert "mesh has 1 of the 64 devices" in table.notes[0]

    def test_more_devices_than_here(self) -> None:
        _, _, step = training(Mesh(range(64), (8, 8), ("data", "fsdp"), target="cpu:64"))
        plan = spmd.plan(step, torch.zeros(64, 8, dtype=torch.long))
        assert plan.num_devices == 64 and {
            axis for row in plan.collectives for axis in row.axes
        } == {"data", "fsdp"}
        assert plan.mesh == {"data": 8, "fsdp": 8} and not any(
            "devices of" in note for note in plan.notes
        )

    def test_several_models_after_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The initial values of models that are only planned look like the iterations of a loop,
        and run nowhere."""
        monkeypatch.setattr(spmd.config, "loop_search_ops", 64)
        mesh, kept = Mesh(range(8), (8,), ("fsdp",), target="cpu:8"), []
        for _ in range(6):
            with torch.device("meta"):
                model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(64)))
            kept.append(spmd.ShardingRules(units=("*",)).apply(model, mesh))
        here = torch.ones(4, device="xla")
        for _ in range(200):
            here = here + 1
        assert here.tolist() == 4 * [201.0]

    def test_errors(self, mesh8: Mesh) -> None:
        _, _, step = training(mesh8)
        with pytest.raises(ValueError, match="the step's mesh has 8 devices and 'cpu:4' has 4"):
            spmd.plan(step, tokens(), target="cpu:4")
        with pytest.raises(ValueError, match="target 'abacus:2' is not known"):
            spmd.plan(step, tokens(), target="abacus:2")
        for target in ("cpu:2049", "2xcpu:1025"):
            with pytest.raises(ValueError, match=r"XLA simulates at most 2048 .* a TPU slice"):
                Mesh(range(2), (2,), ("fsdp",), target=target)
        far = Mesh(range(16), (16,), ("fsdp",), target="cpu:16")
        _, _, other = training(far)
        with pytest.raises(
            ValueError, match="meshes are over 'cpu:16', and target is 'cpu:8'; leave it out"
        ):
            spmd.plan(other, tokens(), target="cpu:8")
        with pytest.raises(ValueError, match="recorded nothing on the device"):
            spmd.plan(lambda: None)
        with pytest.raises(TypeError, match="expected a function that does a step, got Tensor"):
            spmd.plan(torch.ones(2))
        with pytest.raises(RuntimeError, match="called by the step that is being planned"):
            spmd.plan(lambda x: spmd.plan(torch.sin, x), torch.ones(2, device="xla"))


class TestReads:
    """A read of a value raises at the user's line, naming it."""

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
            AbstractError,
            match=(
                r"test_plan_targets\.py:\d+ in .*which has no value: spmd\.plan and spmd\.export "
                r"record"
            ),
        ) as caught:
            spmd.plan(lambda x: read(step(x)), tokens())
        assert "not the loop that prints" in str(caught.value)
        assert not optimizer.state

    def test_of_a_parameter(self, mesh8: Mesh) -> None:
        model, _, _ = training(mesh8)
        with pytest.raises(AbstractError, match=r"test_plan_targets\.py"):
            spmd.plan(
                lambda: next(model.parameters()).sum().item() + model(tokens().to("xla")).sum()
            )

    def test_numbers_of_the_host(self) -> None:
        """A value that the host knows can be read: a count that is no result of a program."""
        plan = spmd.plan(
            lambda x: x * (torch.tensor([3], device="xla") + 1).item(), torch.ones(2, device="xla")
        )
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
        with pytest.raises(ValueError, match="expected a plan of version 2, got None"):
            Plan.from_json("{}")

    def test_diff(self) -> None:
        one, two = self.plan(16), self.plan(32)
        assert not one.diff(self.plan(16)) and str(one.diff(one)) == "no difference"
        difference = one.diff(two)
        assert difference and difference.changes[0].name == "parameters"
        assert f"parameters: {one.parameters:,} -> {two.parameters:,}" in str(difference)

    def test_the_sum_of_its_terms(self) -> None:
        """A step takes what its parts take; without constants of the chip there is no time."""
        terms = (
            Term("instructions", 4e-6, 3e-6, 6e-6, "compiler"),
            Term("kernels", 2e-6, 1e-6, 5e-6, "analytic"),
        )
        plan = self.plan(16)
        assert plan.seconds is plan.seconds_range is plan.utilisation is None and not plan.formula
        chip = {"cycles": 4_000, "clock": 1e9, "peak_flops": 2e9, "flops": 8_000.0, "terms": terms}
        plan = dataclasses.replace(plan, **chip)
        assert plan.seconds == pytest.approx(6e-6) and plan.utilisation == pytest.approx(8 / 12)
        assert plan.seconds_range == pytest.approx((4e-6, 11e-6))
        assert (
            "step time = 6e-06 s (4,000 cycles at 1.000 GHz), from 4e-06 to 1.1e-05 s"
            in plan.formula
        )

    def test_is_not_compiled_twice(self) -> None:
        model = nn.Linear(7, 7, device="meta")
        one, two = (
            spmd.plan(lambda x: model(x).sum().backward(), torch.ones(4, 7)) for _ in range(2)
        )
        assert one.compile_seconds == two.compile_seconds  # those of the one compile

    def test_print(self, mesh8: Mesh) -> None:
        _, _, step = training(mesh8)
        text = str(spmd.plan(step, tokens()))
        assert (
            "optimizer state" in text
            and "all-gather" in text
            and "fsdp (8)" in text
            and "all-reduce + slice" in text
        )
        assert re.search(r"blocks\.\*", text)

    def test_loops_are_told(self, mesh8: Mesh, monkeypatch: Any) -> None:
        _, _, step = training(mesh8, layers=8)
        told = [note for note in spmd.plan(step, tokens()).notes if "equal layers" in note]
        assert len(told) >= 2 and all(
            "8 equal layers of blocks.* are one loop of the program" in one for one in told
        )
        monkeypatch.setattr(spmd.config, "scan_layers", "never")
        assert any(
            "config.scan_layers is 'never'" in note for note in spmd.plan(step, tokens()).notes
        )
        monkeypatch.setattr(spmd.config, "scan_layers", "auto")
        _, _, step = training(mesh8, layers=6)
        assert any(
            "6 equal layers, and a loop is made from 8 on" in note
            for note in spmd.plan(step, tokens()).notes
        )

    def test_a_gather_of_a_cast_names_the_weight(self, mesh8: Mesh) -> None:
        model = nn.Linear(64, 64, bias=False, device="meta")
        rules = spmd.ShardingRules({"weight": spmd.P("fsdp", None)})

        def step(x: torch.Tensor) -> torch.Tensor:
            x = spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp", None))
            weight = spmd.mark_sharding(model.weight.bfloat16(), mesh8, (None, None))
            return (x.bfloat16() @ weight.t()).sum()

        plan = spmd.plan(step, torch.ones(16, 64), mesh=mesh8, rules=rules)
        assert "weight" in {row.path for row in plan.collectives if row.kind == "all-gather"}, (
            plan.collectives
        )

    def test_progress(self, monkeypatch: Any) -> None:
        """The stages in one line: in a terminal written over and erased, in a pipe printed once;
        silent: none."""
        monkeypatch.setattr(status, "_EVERY", 0.01)
        monkeypatch.setattr(status, "_SHORTEST", 0.01)
        monkeypatch.setattr(spmd.config, "slow_compile_seconds", 1)
        messages.forget()
        for is_terminal in (True, False):
            monkeypatch.setattr(sys, "stderr", file := io.StringIO())
            monkeypatch.setattr(
                status, "_is_in_place", lambda _, is_terminal=is_terminal: is_terminal
            )
            with layout.stage("plan"), layout.stage("compiling 3 ops"):
                while "compiling" not in file.getvalue():
                    time.sleep(0.01)
            shown = file.getvalue()
            with layout.stage("plan", is_shown=False):
                time.sleep(1.2)
            assert file.getvalue() == shown
            if is_terminal:
                assert re.match(r"\rspmd: plan: compiling 3 ops, \d+ s", shown) and shown.endswith(
                    "\r"
                )
                assert "\n" not in shown
            else:
                assert re.fullmatch(r"spmd: plan: compiling 3 ops, \d+ s\n", shown)

    def test_page(self, mesh8: Mesh, tmp_path: Any) -> None:
        _, _, step = training(mesh8)
        path = tmp_path / "plan.html"
        spmd.plan(step, tokens()).save(path)
        page = path.read_text()
        assert page.startswith("<!doctype html>") and page.count("<svg ") == 2
        assert 'src="' not in page and "all-gather" in page
        for picture in re.findall(r"<svg .*?</svg>", page, re.DOTALL):
            drawn = ElementTree.fromstring(picture)
            bars = [one for one in drawn.iter("rect") if one.get("height") == "20"]
            ends = [float(one.get("x", "")) + float(one.get("width", "")) for one in bars]
            assert (
                bars and max(ends) <= 981 and min(float(one.get("width", "")) for one in bars) > 0
            )

    def test_loop_counts_its_turns(self) -> None:

        def scanned(x: Any) -> Any:
            return jax.lax.scan(
                lambda carry, _: (jax.numpy.tanh(carry @ carry), None), x, None, length=12
            )[0]

        once = spmd.plan(
            lambda x: spmd.call_jax(lambda a: jax.numpy.tanh(a @ a), x),
            torch.ones(32, 32, device="xla"),
        )
        plan = spmd.plan(lambda x: spmd.call_jax(scanned, x), torch.ones(32, 32, device="xla"))
        assert plan.flops >= 12 * 2 * 32**3 and once.flops < 3 * 2 * 32**3
