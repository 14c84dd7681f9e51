"""spmd.plan with rules: how a model lies, what the rules leave to be desired, and nothing changed
afterwards."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fsdp
import spmd
from recipes.llama import Llama, LlamaConfig, cross_entropy
from spmd import Mesh, P, Plan, ShardingRules

RULES = ShardingRules(
    {
        "blocks.*.attention.{query,key,value}.weight": P("tensor", None),
        "blocks.*.{gate,up}.weight": P("tensor", None),
        "blocks.*.{attention.out,down}.weight": P(None, "tensor"),
        "{embed,head}.weight": P("tensor", None),
        "blocks.*.norm?:output": P(("data", "fsdp"), None, None),
        "blocks.*.{attention.out,down}:output": P(("data", "fsdp"), "tensor", None),
        "blocks.*:output": P(("data", "fsdp"), "tensor", None),
    },
    units=["blocks.*"],
    extra_data_axis="data",
)


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(range(8), (2, 2, 2), ("data", "fsdp", "tensor"))


def meta_llama(**shapes: int) -> Llama:
    with torch.device("meta"):
        return Llama(LlamaConfig(**shapes))


def is_untouched(model: nn.Module) -> bool:
    tensors = [*model.parameters()]
    return all(
        not module._forward_hooks
        and not module._forward_pre_hooks
        and "_fsdp_unit" not in module.__dict__
        for module in model.modules()
    ) and all(
        one.is_meta
        and not one._backward_hooks
        and "_pins_grad" not in one.__dict__
        and not one._post_accumulate_grad_hooks  # type: ignore[attr-defined]
        for one in tensors
    )


class TestOfAModel:
    """A model without a step is a table, made without compiling."""

    def test_rows_totals_and_findings(self, mesh: Mesh) -> None:
        model, compiled = meta_llama(vocabulary=255), spmd.metrics.num_compiles()
        rules = (
            RULES.put("blocks.1.gate.weight", P())
            .put("blocks.*.nothing", P())
            .put("norm3:output", P())
        )
        plan = spmd.plan(model, mesh=mesh, rules=rules)
        assert (
            spmd.metrics.num_compiles() == compiled and plan.num_programs == 0 and plan.cycles == 0
        )
        rows = {row.path: row for row in plan.layout}
        assert [*rows] == [name for name, _ in model.named_parameters()]
        row = rows["blocks.1.attention.key.weight"]
        assert (row.dtype, row.shape, row.spec, row.bytes) == (
            "float32",
            (32, 64),
            "P('tensor', 'fsdp')",
            2048,
        )
        assert (
            row.rule == "blocks.*.attention.{query,key,value}.weight"
            and rows["norm.weight"].rule == ""
        )
        assert (
            plan.parameters == sum(row.bytes for row in plan.layout) == plan.gradients == plan.peak
        )
        found = {(one.kind, one.subject): one for one in plan.findings}
        assert {*found} == {
            ("uneven", "embed.weight"),
            ("uneven", "head.weight"),
            ("shadowed rule", "blocks.1.gate.weight"),
            ("idle rule", "blocks.*.nothing"),
            ("idle rule", "norm3:output"),
        }
        assert "dim 0 of 255 is padded to 256 for 2 shards" in found["uneven", "embed.weight"].text
        assert (
            "all of its paths: 'blocks.*.{gate,up}.weight'"
            in found["shadowed rule", "blocks.1.gate.weight"].text
        )
        assert "test_layout.py" in found["idle rule", "blocks.*.nothing"].line
        assert "test_layout.py" in found["uneven", "embed.weight"].line
        assert is_untouched(model)

    def test_shown(self, mesh: Mesh, tmp_path: Path) -> None:
        plan = spmd.plan(meta_llama(), mesh=mesh, rules=RULES.put("a.weight", P()))
        text = " ".join(str(plan).split())
        assert "layout" in text and "x 2" in text and "P('tensor', 'fsdp')" in text
        assert (
            "idle rule: a.weight: it matches nothing in the model" in text
            and "compiled in" not in text
        )
        assert Plan.from_json(plan.to_json()) == plan
        assert json.loads(plan.to_json())["layout"][0]["path"] == "embed.weight"
        plan.save(tmp_path / "plan.html")
        page = (tmp_path / "plan.html").read_text()
        assert "blocks.*.norm1.weight" in page and "Findings" in page and "idle rule" in page

    def test_a_peak_below_the_temporaries(self, mesh: Mesh) -> None:
        """libtpu counts the two apart; a table that shows such a peak says what it counts."""
        plan = spmd.plan(meta_llama(layers=1), mesh=mesh, rules=RULES)
        below = dataclasses.replace(plan, temporaries=plan.peak + 1)
        assert "in use at once" in str(below) and "in use at once" not in str(plan)

    def test_a_plan_from_before_there_were_layouts(self, mesh: Mesh) -> None:
        values = json.loads(spmd.plan(meta_llama(layers=1), mesh=mesh, rules=RULES).to_json())
        del values["layout"], values["findings"]
        assert Plan.from_json(json.dumps(values)).layout == ()

    def test_on_a_target_that_is_not_here(self) -> None:
        mesh = Mesh(range(64), (2, 16, 2), ("data", "fsdp", "tensor"), target="cpu:64")
        plan = spmd.plan(meta_llama(), mesh=mesh, rules=RULES)
        assert plan.target == "cpu:64" and plan.num_devices == 64
        assert {row.path: row.bytes for row in plan.layout}["embed.weight"] == 256 * 64 * 4 // 32

    def test_large_and_whole(self, mesh: Mesh) -> None:
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(512, 1024), nn.Linear(1024, 4))
        plan = spmd.plan(model, mesh=mesh, rules=ShardingRules({"**": P()}))
        (found,) = plan.findings
        assert (found.kind, found.subject) == ("whole", "0.weight")
        assert found.text == "each of 8 devices holds all of its 2,097,152 bytes"

    def test_rules_applied_before_count_too(self, mesh: Mesh) -> None:
        model = meta_llama()
        ShardingRules({"embed.weight": P("tensor", None)}).apply(model, mesh)
        plan = spmd.plan(model)
        assert plan.layout[0].spec == "P('tensor', None)" and model.embed.weight.is_meta


class TestOfAStep:
    """With a step the plan has both: what the compiler says, and the layout behind it."""

    def test_findings_have_lines_and_nothing_is_left_behind(self, mesh: Mesh) -> None:
        model = meta_llama(vocabulary=255)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(tokens: torch.Tensor) -> torch.Tensor:
            loss = cross_entropy(model(tokens), tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        tokens = torch.zeros(8, 32, dtype=torch.long, device="meta")
        plan = spmd.plan(step, tokens, mesh=mesh, rules=RULES)
        assert plan.optimizer_state == 2 * plan.parameters and plan.num_programs == 1
        assert plan.parameters == sum(row.bytes for row in plan.layout)
        kinds = {one.kind for one in plan.findings}
        assert kinds == {"uneven", "reshard"}
        uneven = next(one for one in plan.findings if one.subject == "head.weight")
        assert "return self.head(self.norm(x))" in uneven.line
        # No rule says how the last norm's output lies, which the head reads whole.
        assert any(
            one.subject.startswith("head ") and "llama.py" in one.line for one in plan.findings
        )
        assert is_untouched(model) and not optimizer.state

        mended = RULES.put("norm:output", P(("data", "fsdp"), None, None)).put(
            "head.weight", P(), before="{embed,head}.weight"
        )
        other = spmd.plan(step, tokens, mesh=mesh, rules=mended)
        changes = {change.name: change for change in plan.diff(other).changes}
        change = changes["head.weight, P('tensor', 'fsdp') -> P(None, 'fsdp') (bytes)"]
        assert (change.before, change.after) == (128 * 32 * 4, 255 * 32 * 4)
        assert not plan.diff(spmd.plan(step, tokens, mesh=mesh, rules=RULES))

    def test_a_model_that_is_on_the_device_and_has_hooks(self, mesh: Mesh) -> None:
        model, calls = nn.Linear(8, 8).to("xla"), []
        handle = model.weight.register_hook(lambda gradient: calls.append("arrived"))
        after = model.weight.register_post_accumulate_grad_hook(
            lambda tensor: calls.append("there")
        )
        policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

        def step(x: torch.Tensor) -> None:
            model(x.to("xla")).square().sum().backward()

        x = torch.ones(8, 8)
        rules = ShardingRules({"weight": P("tensor", None)}, units=())
        found = spmd.suggest(
            step, x, target="cpu:2", mp_policy=policy, max_trials=2, progress=False
        )
        plan = spmd.plan(step, x, mesh=mesh, rules=rules)
        assert plan.layout[0].spec == "P('tensor', 'fsdp')" and found.plan.fits
        assert spmd.get_sharding(model.weight) is None and model.weight.grad is None
        calls.clear()
        step(x.to("xla"))
        assert calls == ["arrived", "there"] and model.weight.grad is not None
        assert model.weight._backward_hooks is not None and len(model.weight._backward_hooks) == 1
        handle.remove()
        after.remove()
        step(x.to("xla"))
        assert calls == ["arrived", "there"]

    def test_errors(self, mesh: Mesh) -> None:
        model = meta_llama(layers=1)
        with pytest.raises(TypeError, match="got rules without mesh"):
            spmd.plan(model, rules=RULES)
        with pytest.raises(TypeError, match="got mesh without rules"):
            spmd.plan(model, mesh=mesh)
        with pytest.raises(ValueError, match="did you mean 'tensor'"):
            spmd.plan(model, mesh=mesh, rules=ShardingRules({"embed.weight": P("tensr", None)}))
        assert is_untouched(model)


def by_rules_then_fsdp(model: nn.Module, mesh: Mesh) -> None:
    SPLIT.apply(model, mesh)
    fsdp.fully_shard(model, mesh=mesh, extra_data_axis="data")


def by_fsdp_then_rules(model: nn.Module, mesh: Mesh) -> None:
    fsdp.fully_shard(model, mesh=mesh, extra_data_axis="data")
    SPLIT.apply(model, mesh)


def by_units(model: nn.Module, mesh: Mesh) -> None:
    ShardingRules(SPLIT, units=(), extra_data_axis="data").apply(model, mesh)


def by_rules_then_mark(model: nn.Module, mesh: Mesh) -> None:
    SPLIT.apply(model, mesh)
    model.to("xla")
    spmd.mark_sharding(model[0].weight, mesh, ("fsdp", "tensor"))  # type: ignore[index]
    model.to("xla")


SPLIT = ShardingRules({"0.weight": P("tensor", None), "1.weight": P(None, "tensor")})


class TestOfWhatIsLaidOut:
    """A plan reads the layout that the run would find: rules, FSDP and marks in any order, before
    and after a step."""

    @pytest.mark.parametrize("where", ["xla", "cpu", "meta"])
    @pytest.mark.parametrize(
        "lay", [by_rules_then_fsdp, by_fsdp_then_rules, by_units, by_rules_then_mark]
    )
    def test_as_in_a_run(self, lay: Any, where: str, mesh: Mesh) -> None:
        with torch.device(where):
            model = nn.Sequential(nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False))
        if where == "meta" and lay is by_rules_then_mark:
            model.to_empty(device="xla")  # what is on meta takes no mark
        lay(model, mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: torch.Tensor) -> None:
            model(x.to("xla")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        batch = torch.ones(8, 16)
        before = spmd.plan(step, batch)
        if where == "meta":
            model.to_empty(device="xla")
        elif where == "cpu":
            model.to("xla")
        for _ in range(3):
            step(batch)
            spmd.sync()
        after = spmd.plan(step, batch)
        # An equal step of a test before is found, and then only this one's initial values compile.
        ran = next(each for each in reversed(spmd.metrics.compiles()) if each.name == "step")
        shardings = [spmd.get_sharding(tensor) for tensor in model.parameters()]
        stored = [
            repr(P(*sharding.partition_spec(2))) for sharding in shardings if sharding is not None
        ]
        split = (
            ["P('fsdp', 'tensor')"]
            if lay is by_rules_then_mark
            else ["P('tensor', 'fsdp')", "P('fsdp', 'tensor')"]
        )
        assert stored[: len(split)] == split
        for plan in (before, after):
            assert [row.spec for row in plan.layout] == stored
            assert plan.parameters == sum(row.bytes for row in plan.layout)
            assert (plan.arguments, plan.temporaries, plan.flops) == (
                ran.argument_bytes,
                ran.temp_bytes,
                ran.flops,
            )
            assert sum(row.count for row in plan.collectives) == sum(
                row.count for row in ran.traffic
            )
