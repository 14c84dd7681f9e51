"""spmd.suggest: what a model does with its parameters, the layouts that follow, and how they are
ranked."""

import copy
import dataclasses
import itertools
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fsdp
import spmd
from recipes.llama import Llama, LlamaConfig, cross_entropy
from spmd import P, ShardingRules
from spmd.core.run import recording
from spmd.core.step.objects import Objects
from spmd.core.step.saved_state import restored_after, without_data
from spmd.rules.patterns import matches
from spmd.tools.planning.clock import CHIPS
from spmd.tools.suggestions import search as searching
from spmd.tools.suggestions import suggest as suggesting
from spmd.tools.suggestions.candidates import (
    OFFLOADED,
    SAVED,
    Model,
    Unfit,
    blocks_of,
    placements,
    rules_of,
)
from spmd.tools.suggestions.candidates import (
    CandidateLayout as Layout,
)
from spmd.tools.suggestions.suggestion import Suggestion
from spmd.tools.suggestions.uses import UseObserver

TOKENS = torch.zeros(8, 32, dtype=torch.long, device="meta")
BOTH = ("data", "fsdp")


def watched(model: nn.Module, call: Any, *args: Any) -> Model:
    reached, flow = Objects.of_step(call, args), UseObserver(model)
    with (
        recording.recorded(recording.Recording()),
        restored_after(reached),
        without_data(reached, args),
        flow.watching(),
    ):
        call(*args)
    return Model(flow, 0)


def meta(made: Any, config: Any) -> Any:
    with torch.device("meta"):
        return made(config)


class TwoKinds(nn.Module):
    """Blocks of two widths."""

    def __init__(self, narrow: int = 3, wide: int = 2) -> None:
        super().__init__()
        self.narrow = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(narrow)
        )
        self.wide = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(wide)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in (*self.narrow, *self.wide):
            x = x + block(x)
        return x


class TestUses:
    """Nothing goes by a name: pairs of products, heads, tables and heads of a model are found in
    what it computes."""

    def test_a_llama(self) -> None:
        model = meta(Llama, LlamaConfig(layers=1))
        uses = watched(model, model, TOKENS).flow.uses
        kinds = {path: use.kind for path, use in uses.items()}
        block = "blocks.0."
        assert kinds == {
            "embed.weight": "lookup",
            "head.weight": "first",
            **{f"{block}attention.{name}.weight": "first" for name in ("query", "key", "value")},
            f"{block}attention.out.weight": "second",
            f"{block}gate.weight": "first",
            f"{block}up.weight": "first",
            f"{block}down.weight": "second",
        }
        assert [
            uses[f"{block}attention.{name}.weight"].heads for name in ("query", "key", "value")
        ] == [4, 2, 2]
        assert uses[f"{block}down.weight"].partners == {f"{block}gate.weight", f"{block}up.weight"}
        assert (
            uses[f"{block}gate.weight"].reads == "blocks.0.norm2"
            and uses["head.weight"].reads == "norm"
        )

    def test_products_that_read_a_whole_value(self) -> None:
        class Residual(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.one, self.two, self.norm = (
                    nn.Linear(16, 16),
                    nn.Linear(16, 16),
                    nn.LayerNorm(16),
                )
                self.three = nn.Linear(16, 16)

            def forward(self, x: Any) -> Any:
                x = x + self.one(x)  # what is added to a whole value must be whole
                return self.three(self.norm(self.two(x)))  # and so what is normalised

        model = Residual().to("meta")
        uses = watched(model, model, torch.empty(8, 16, device="meta")).flow.uses
        assert [(use.kind, use.is_whole) for use in uses.values()] == [
            ("first", True),
            ("first", True),
            ("first", False),
        ]

    def test_weights_that_stand_the_other_way_and_biases(self) -> None:
        transformers = pytest.importorskip("transformers")
        shapes = {
            "n_embd": 32,
            "n_layer": 1,
            "n_head": 4,
            "vocab_size": 96,
            "n_positions": 32,
            "use_cache": False,
        }
        config = transformers.GPT2Config(**shapes, bos_token_id=0, eos_token_id=0)
        model = meta(transformers.GPT2LMHeadModel, config)
        known = watched(model, lambda tokens: model(input_ids=tokens).logits, TOKENS)
        rules = rules_of(Layout(2, 2, 2, sequence=True), known)
        block = "transformer.h.0."  # a single block, no list of equal ones
        assert dict(rules.items()) == {
            "transformer.wte.weight": P("tensor", None),
            f"{block}attn.c_attn.weight": P(None, "tensor"),
            f"{block}attn.c_attn.bias": P("tensor"),
            f"{block}attn.c_proj.weight": P("tensor", None),
            f"{block}mlp.c_fc.weight": P(None, "tensor"),
            f"{block}mlp.c_fc.bias": P("tensor"),
            f"{block}mlp.c_proj.weight": P("tensor", None),
            f"{block}ln_1:output": P(BOTH, None, None),
            f"{block}ln_2:output": P(BOTH, None, None),
            "transformer.wte:output": P(BOTH, "tensor", None),
            ":output": P(BOTH, None, "tensor"),
            f"{block}attn.c_proj:output": P(BOTH, "tensor", None),
            f"{block}mlp.c_proj:output": P(BOTH, "tensor", None),
        }

    def test_experts(self) -> None:
        transformers = pytest.importorskip("transformers")
        shapes = {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "vocab_size": 64,
        }
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}
        config = transformers.MixtralConfig(**shapes, **heads, num_local_experts=4)
        model = meta(transformers.MixtralForCausalLM, config)
        known = watched(model, lambda tokens: model(input_ids=tokens).logits, TOKENS)
        rules = rules_of(Layout(1, 4, 2), known)
        assert rules["model.layers.*.mlp.experts.gate_up_proj"] == P(None, "tensor", None)
        assert rules["model.layers.*.mlp.experts.down_proj"] == P(None, None, "tensor")
        assert "model.layers.*.mlp.gate.weight" not in list(rules)

    def test_blocks(self) -> None:
        assert blocks_of(meta(Llama, LlamaConfig(layers=2))) == {
            "blocks.*": ("blocks.0", "blocks.1")
        }
        assert blocks_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))) == {
            "{0,2}": ("0", "2")
        }
        assert blocks_of(nn.Linear(4, 4)) == {}

    def test_blocks_of_a_class(self) -> None:
        """The first of a stage, of other shapes, and those of a small stage are blocks, too."""

        class Residual(nn.Module):
            def __init__(self, given: int, made: int) -> None:
                super().__init__()
                self.first, self.second = nn.Linear(given, made), nn.Linear(made, made)

        narrow = nn.ModuleList([Residual(8, 8), Residual(8, 8)])
        wide = nn.ModuleList([Residual(8, 64), Residual(64, 64), Residual(64, 64)])
        model = nn.Sequential(nn.Linear(8, 8), narrow, wide, nn.Linear(64, 8))
        assert [*blocks_of(model)] == ["1.*", "2.*"]
        # its two layers are no blocks, nor is a layer like them elsewhere
        alone = nn.ModuleList([Residual(64, 64)])
        assert [*blocks_of(nn.Sequential(alone, wide, nn.Linear(64, 64)))] == ["0.*", "1.*"]


class TestLayouts:
    """Rules that follow from the uses, and why some do not go."""

    def test_a_llama_as_by_hand(self) -> None:
        model = meta(Llama, LlamaConfig(layers=2))
        known = watched(model, model, TOKENS)
        rules = rules_of(Layout(2, 2, 2, sequence=True, saved=("nothing", "nothing")), known)
        weights = dict(rules.of_parameters())
        column, row = P("tensor", None), P(None, "tensor")
        assert weights == {
            "embed.weight": column,
            "head.weight": column,
            **{f"blocks.*.attention.{name}.weight": column for name in ("query", "key", "value")},
            "blocks.*.attention.out.weight": row,
            "blocks.*.gate.weight": column,
            "blocks.*.up.weight": column,
            "blocks.*.down.weight": row,
        }
        assert {pattern: spec for pattern, _, spec in rules.of_activations()} == {
            **{
                f"{name}:output": P(BOTH, None, None)
                for name in ("blocks.*.norm1", "blocks.*.norm2", "norm")
            },
            **{
                f"{name}:output": P(BOTH, "tensor", None)
                for name in ("embed", "blocks.*.attention.out", "blocks.*.down", "blocks.*")
            },
            "head:output": P(BOTH, None, "tensor"),
            ":output": P(BOTH, None, "tensor"),
        }
        assert rules.units is not None and rules.units.modules == ("blocks.*",)
        assert rules.checkpoint == {"blocks.*": "nothing"}

    def test_fewer_heads_of_keys_than_devices(self) -> None:
        model = meta(Llama, LlamaConfig(layers=2))
        rules = rules_of(Layout(1, 2, 4), watched(model, model, TOKENS))
        assert "blocks.*.attention.key.weight" not in list(
            rules
        ) and "blocks.*.attention.query.weight" in list(rules)

    @pytest.mark.parametrize(
        ("layout", "text"),
        [
            (Layout(1, 1, 8), "blocks.0.attention.out.weight: 4 heads are not divisible by 8"),
            (Layout(1, 16, 1), "a batch of 8 is not divisible by 16 devices"),
            (Layout(1, 1, 64, sequence=True), "a sequence of 32 is not divisible by 64"),
        ],
    )
    def test_what_does_not_go(self, layout: Layout, text: str) -> None:
        model = meta(Llama, LlamaConfig(layers=1))
        with pytest.raises(Unfit, match=re.escape(text)):
            rules_of(layout, watched(model, model, TOKENS))

    def test_a_model_that_checkpoints_itself_is_left_to_it(self) -> None:
        model = meta(Llama, LlamaConfig(layers=2, checkpointed=True))
        known = watched(model, lambda tokens: model(tokens).sum().backward(), TOKENS)
        assert known.blocks and {layout.saved for layout in placements(known, 8)} == {()}

    def test_names_and_memory(self) -> None:
        assert str(Layout(2, 4, 1)) == "data=2, fsdp=4" and Layout(2, 4, 1).family == "hybrid"
        everything, dots, offloaded, nothing = SAVED
        half = (nothing, nothing, everything, everything)
        assert str(Layout(1, 4, 2, True, False, half)) == (
            "fsdp=4, tensor=2; sequence; kept unsharded; 2 of 4 checkpointed"
        )
        assert str(Layout(1, 4, 1, saved=(nothing, offloaded, dots, everything))) == (
            "fsdp=4; 1 of 4 dots saved, 1 of 4 dots offloaded, 1 of 4 checkpointed"
        )
        assert str(Layout(1, 4, 1, saved=(dots, dots))) == "fsdp=4; dots saved"
        assert (
            Layout(8, 1, 1).family == "data" and Layout(1, 1, 8, True).family == "tensor + sequence"
        )
        least, most = (Layout(1, 8, 1, saved=(word,) * 4) for word in (nothing, dots))
        assert dataclasses.replace(most, reshard=False).needs_no_less_than(least)
        assert most.needs_no_less_than(Layout(1, 8, 1, saved=(offloaded, dots, dots, dots)))
        assert not most.needs_no_less_than(
            Layout(1, 8, 1, saved=half)
        ) and not least.needs_no_less_than(most)
        assert Layout(2, 4, 1).needs_no_less_than(Layout(1, 8, 1))
        assert not Layout(1, 4, 2).needs_no_less_than(Layout(1, 8, 1))

    def test_distance(self) -> None:
        whole = Layout(1, 8, 1)
        assert [
            whole.distance(Layout(*sizes)) for sizes in ((1, 8, 1), (2, 4, 1), (1, 4, 2), (2, 2, 2))
        ] == [
            0,
            1,
            1,
            2,
        ]
        assert (
            whole.distance(Layout(1, 8, 1, reshard=False))
            == whole.distance(Layout(1, 4, 2, sequence=True))
            == 1
        )
        assert Layout(1, 4, 2).distance(Layout(1, 4, 2, sequence=True)) == 1

    def test_patterns(self) -> None:
        model, shape = TwoKinds(), TwoKinds().to("meta")
        known = watched(shape, shape, torch.empty(8, 32, device="meta"))
        halves = Layout(1, 4, 1, saved=("nothing", "nothing", "everything", "nothing", "nothing"))
        assert rules_of(halves, known).checkpoint == {
            "narrow.{0..1}": "nothing",
            "wide.*": "nothing",
        }
        rules = rules_of(
            Layout(1, 4, 1, saved=("nothing", "dots", "everything", "nothing", "nothing")), known
        )
        assert rules.checkpoint == {
            "narrow.{0}": "nothing",
            "narrow.{1}": "dots",
            "wide.*": "nothing",
        }
        x = torch.randn(8, 32)
        expected = model(x)
        rules.apply(model, spmd.Mesh(range(4), (4,), ("fsdp",)))
        torch.testing.assert_close(model(x.to("xla")).cpu(), expected, rtol=2e-5, atol=2e-5)


@pytest.fixture(scope="module")
def found() -> Suggestion:
    model = meta(Llama, LlamaConfig(layers=2))
    optimizer = torch.optim.AdamW(model.parameters())

    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(model(tokens), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    precision = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    found = spmd.suggest(
        step, TOKENS, target="cpu:4", mp_policy=precision, max_trials=3, progress=False
    )
    assert not optimizer.state and all(parameter.is_meta for parameter in model.parameters())
    assert not any(
        module._forward_hooks or "forward" in module.__dict__ for module in model.modules()
    )
    return found


class TestSuggest:
    """The search itself: simulated devices, ranked by operations and bytes moved."""

    def test_ranking_and_reasons(self, found: Suggestion) -> None:
        compiled = [trial for trial in found.trials if trial.plan is not None]
        families = {trial.family for trial in compiled}
        assert len(compiled) == 3 and "data" in families and len(families) >= 2
        assert found.least_memory.plan.peak == min(trial.plan.peak for trial in compiled)  # type: ignore[union-attr]
        seconds = [trial.seconds for trial in compiled]
        assert found.trials[:3] == tuple(compiled) and seconds == sorted(seconds)  # type: ignore[type-var]
        assert found.best is compiled[0] and found.best.reason == ""
        best = found.plan
        assert found.best.seconds == pytest.approx(
            max(best.flops / 459e12, best.moved_bytes / 600e9)
        )
        for trial in compiled[1:]:
            assert re.match(r"(\+[\d.,]+% time|the same time): .*%", trial.reason), trial.reason
        others = {trial.reason for trial in found.trials[3:]}
        assert others == {"not compiled: the budget is spent"}
        assert "the rates of a v5p" in found.measure

    def test_the_best_is_a_mesh_and_rules_that_run(self, found: Suggestion, tmp_path: Any) -> None:
        found.rules.save(tmp_path / "rules.toml")
        rules = ShardingRules.load(tmp_path / "rules.toml")
        assert rules == found.rules
        torch.manual_seed(0)
        model = Llama(LlamaConfig(layers=2))
        tokens = torch.arange(8 * 32).reshape(8, 32) % 251
        expected = cross_entropy(model(tokens), tokens)
        mesh = spmd.Mesh(range(4), found.mesh.mesh_shape, found.mesh.axis_names)
        rules.apply(model, mesh)
        loss = cross_entropy(model(tokens.to("xla")), tokens.to("xla"))
        torch.testing.assert_close(loss.cpu(), expected.detach(), rtol=2e-5, atol=2e-5)

    def test_printed(self, found: Suggestion) -> None:
        pytest.importorskip("rich")
        text = " ".join(str(found).split())
        assert "layouts, best first" in text and "the best: Mesh(range(4), (" in text
        assert (
            "not compiled: the budget is spent: " in text
            and " more" in text
            and found.measure in text
        )

    def test_the_budget_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No plan begins that would end behind it, if it took as long as the slowest before it."""
        clock, planned = [0.0], searching.planned

        def slowly(*args: Any) -> Any:
            clock[0] += 10.0
            return planned(*args)

        monkeypatch.setattr(searching, "planned", slowly)
        for module in (searching, suggesting):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).to("meta")
        step, x = lambda x: model(x).square().mean().backward(), torch.empty(8, 16)
        for budget, count in ((5, 1), (29, 2), (30, 3)):
            clock[0] = 0.0
            found = spmd.suggest(step, x, target="cpu:4", budget=budget, progress=False)
            assert sum(trial.plan is not None for trial in found.trials) == count

    def test_plain_data_parallel_is_what_it_is_by_hand(self, found: Suggestion) -> None:
        plain = next(
            trial for trial in found.trials if trial.family == "data" and trial.plan is not None
        )
        model = meta(Llama, LlamaConfig(layers=2)).bfloat16()
        optimizer = torch.optim.AdamW(model.parameters())
        mesh = spmd.Mesh(range(4), (4,), ("data",), target="cpu:4")

        def step(tokens: torch.Tensor) -> None:
            tokens = spmd.mark_sharding(tokens, mesh, ("data", None))
            cross_entropy(model(tokens), tokens).backward()
            optimizer.step()
            optimizer.zero_grad()

        by_hand = spmd.plan(step, TOKENS)
        assert plain.plan is not None and found.best.seconds is not None
        assert plain.plan.moved_bytes <= 1.01 * by_hand.moved_bytes
        assert found.best.seconds <= 1.01 * max(by_hand.flops / 459e12, by_hand.moved_bytes / 600e9)

    def test_front(self, tmp_path: Any) -> None:
        """Devices, batches, precisions and prices: what nothing is better than in everything, the
        same from a file."""
        model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to("meta")
        low = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        how: dict[str, Any] = {
            "target": ["cpu:2", "cpu:4"],
            "batches": (8, 16),
            "mp_policy": [None, low],
            "max_trials": 8,
            "price": {"cpu:2": 2.0, "cpu:4": 1.0},
            "file": tmp_path / "found.json",
            "progress": False,
        }

        def search(**more: Any) -> Suggestion:
            return spmd.suggest(
                lambda x: model(x).square().mean().backward(), torch.empty(8, 64), **how | more
            )

        found = search()
        compiled = [trial for trial in found.trials if trial.plan is not None]
        choices = {(trial.target, trial.rows, trial.precision is low) for trial in compiled}
        assert choices == set(itertools.product(("cpu:2", "cpu:4"), (8, 16), (False, True)))
        for trial in compiled:
            assert trial.plan is not None and trial.seconds is not None and trial.price is not None
            assert trial.mesh is not None and trial.chips == trial.mesh.size() == int(
                str(trial.target)[-1]
            )
            assert (
                trial.plan.inputs
                == trial.rows * 64 * 4 * trial.mesh.shape().get("tensor", 1) // trial.chips
            )
            assert trial.money == pytest.approx(
                trial.seconds / trial.rows * 1000 * trial.chips * trial.price / 3600
            )
            is_beaten = any(
                other.costs() != trial.costs()
                and all(a <= b for a, b in zip(other.costs(), trial.costs(), strict=True))
                for other in compiled
            )
            assert (trial in found.front) == (not is_beaten)
        assert found.best in found.front and found.least_money in found.front
        assert [trial.rate for trial in compiled] == sorted(trial.rate for trial in compiled)
        text = " ".join(str(found).split())
        assert all(
            word in text
            for word in ("devices", "rows", "precision", "money / 1,000", "bfloat16", "cpu:2")
        )
        rows = json.loads(found.to_json())["trials"]
        assert [row["front"] for row in rows].count(True) == len(found.front) and rows[0][
            "target"
        ] == found.best.target
        with pytest.MonkeyPatch.context() as patch:  # what the file has is compiled no more
            patch.setattr(searching, "planned", lambda *args: pytest.fail("it compiles"))
            assert search().to_json() == found.to_json()
        with pytest.raises(
            ValueError, match=r"found.json is of another search: another model, batch or jaxlib"
        ):
            spmd.suggest(
                lambda x: model(x).sum(),
                torch.empty(4, 64),
                target="cpu:2",
                file=how["file"],
                progress=False,
            )
        (tmp_path / "other.json").write_text("[]")
        with pytest.raises(ValueError, match=r"other.json is no file of a search"):
            search(file=tmp_path / "other.json")
        with pytest.raises(
            ValueError, match=r"price has no 'cpu:4': expected one for each target, got \['cpu:2'\]"
        ):
            search(price={"cpu:2": 2.0})
        with pytest.raises(ValueError, match="no costs without price="):
            _ = search(price=None).least_money

    def test_inputs_of_one_dim(self) -> None:
        """A batch of ids is a batch: it is split by data parallel layouts, which run as one device
        does."""
        made = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 8))
        model, ids = copy.deepcopy(made).to("meta"), torch.arange(16)
        found = spmd.suggest(
            lambda ids: model(ids).square().sum().backward(),
            ids,
            target="cpu:4",
            max_trials=3,
            progress=False,
        )
        plain = next(trial for trial in found.trials if trial.family == "data")
        assert (
            plain.plan is not None and plain.rules is not None and plain.plan.inputs == 16 * 8 // 4
        )
        expected = made(ids).square().sum()
        plain.rules.apply(made, spmd.Mesh(range(4), (4, 1), ("data", "fsdp")))
        torch.testing.assert_close(
            made(ids.to("xla")).square().sum().cpu(), expected, rtol=2e-5, atol=2e-5
        )

    def test_a_model_that_is_laid_out(self) -> None:
        mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
        x = torch.empty(8, 16, device="meta")
        wrapped = fsdp.FullyShardedDataParallel(nn.Linear(16, 16), mesh)
        ruled, waiting = (
            nn.Linear(16, 16),
            fsdp.fully_shard(nn.Linear(16, 16, device="meta"), mesh=mesh),
        )
        ShardingRules({"weight": P("fsdp", None)}).apply(ruled, mesh)
        for model in (wrapped, ruled, waiting):
            with pytest.raises(
                ValueError,
                match=r"suggest: expected a model without shardings.*weight.*'fsdp'.*rules",
            ):
                spmd.suggest(lambda x, model=model: model(x).sum().backward(), x, progress=False)

    def test_what_is_not_asked_right(self) -> None:
        one, two = nn.Linear(4, 4).to("meta"), nn.Linear(4, 4).to("meta")
        x = torch.empty(8, 4, device="meta")
        with pytest.raises(
            TypeError, match="suggest: expected a function that does a step, got int"
        ):
            spmd.suggest(3)  # type: ignore[arg-type]
        with pytest.raises(
            ValueError, match=r"expected the step to reach one model, got Linear, Linear.*model="
        ):
            spmd.suggest(lambda x: one(x) + two(x), x, progress=False)
        with pytest.raises(ValueError, match="does not reach the Linear that was passed as model"):
            spmd.suggest(lambda x: one(x), x, model=two, progress=False)
        with pytest.raises(ValueError, match="the step does not call the Linear"):
            spmd.suggest(lambda x: x + 1 if one is None else x * 2, x, model=one, progress=False)
        with pytest.raises(
            ValueError, match="no layout over 4 devices works for the step: a batch of 3"
        ):
            odd = torch.empty(3, 4, device="meta")
            spmd.suggest(lambda x: one(x).sum().backward(), odd, target="cpu:4", progress=False)


class Figures:
    """Plans of invented seconds and peaks: a block needs and takes so much by what is saved of
    it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, memory: float, costs: dict[str, tuple[float, float]]
    ) -> None:
        self.real, self.plan, self.memory, self.costs = searching.planned, None, int(memory), costs
        monkeypatch.setattr(searching, "planned", self)
        chip = dataclasses.replace(CHIPS["TPU v5"], memory_bytes=self.memory)
        monkeypatch.setattr(searching, "chip_of", lambda device: chip)

    def __call__(self, *args: Any) -> Any:
        self.plan = self.plan or self.real(*args)
        rules, mesh = args[4].rules, args[4].mesh
        words = [
            next(
                (word for pattern, word in rules.checkpoint.items() if matches(pattern, str(at))),
                "everything",
            )
            for at in range(8)
        ]
        seconds, peak = (sum(self.costs[word][which] for word in words) for which in (0, 1))
        shards = mesh.shape()["fsdp"]
        return dataclasses.replace(
            self.plan,
            flops=(seconds + 0.01 / shards) * 459e12,
            collectives=(),
            peak=int(peak + 100 / shards),
            memory=self.memory,
        )


def found_by(figures: Figures) -> Suggestion:
    """The search of a model of eight blocks."""
    blocks = (nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(8))
    model = nn.Sequential(*blocks).to("meta")
    step = lambda x: model(x).square().mean().backward()  # noqa: E731
    return spmd.suggest(step, torch.empty(8, 16), target="cpu:2", progress=False)


COSTS = {"everything": (0.0, 1e6), "dots": (1.0, 6e5), OFFLOADED: (9.0, 1e5), "nothing": (2.0, 1e5)}


class TestWhatIsSaved:
    """Of the layout that is best, as much is saved as fits."""

    @pytest.mark.parametrize(
        ("memory", "name"),
        [
            (9e6, ""),
            (7.5e6, "; 2 of 8 dots saved"),
            (5e6, "; dots saved"),
            (4.5e6, "; 7 of 8 dots saved, 1 of 8 checkpointed"),
            (0.9e6, "; checkpointed"),
        ],
    )
    def test_memory_decides(
        self, monkeypatch: pytest.MonkeyPatch, memory: float, name: str
    ) -> None:
        found = found_by(Figures(monkeypatch, memory, COSTS))
        assert found.best.name == f"fsdp=2{name}" and found.plan.peak <= memory
        assert found.least_memory.name == "fsdp=2; checkpointed"

    def test_products_in_the_memory_of_the_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = found_by(Figures(monkeypatch, 4.5e6, COSTS | {OFFLOADED: (1.5, 1e5)}))
        assert found.best.name == "fsdp=2; 7 of 8 dots saved, 1 of 8 dots offloaded"

    def test_less_saved_that_needs_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the compiler allocates is no sum of parts."""
        found = found_by(Figures(monkeypatch, 8.5e5, COSTS | {"dots": (1.0, 9e4)}))
        assert found.best.name == "fsdp=2; dots saved"

    def test_nothing_fits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = found_by(Figures(monkeypatch, 1e5, COSTS))
        assert "does not fit: needs 0.0 GiB of 0.0" in found.trials[0].reason
        with pytest.raises(
            ValueError, match=r"no layout was found to fit; the nearest is fsdp=2; checkpointed"
        ):
            _ = found.best


class TestGrid:
    """Keywords of the step that are tried like everything else."""

    def test_micro_batches(self) -> None:
        with torch.device("meta"):
            model = Llama(LlamaConfig(layers=2))
        optimizer = torch.optim.AdamW(model.parameters())

        def step(tokens: torch.Tensor, *, num: int) -> None:
            fsdp.accumulate_gradients(
                model, lambda part: cross_entropy(model(part), part), tokens, num
            )
            optimizer.step()
            optimizer.zero_grad()

        found = spmd.suggest(
            step, TOKENS, target="cpu:2", grid={"num": (1, 2)}, max_trials=4, progress=False
        )
        compiled = [trial for trial in found.trials if trial.plan is not None]
        assert {trial.keywords["num"] for trial in compiled} == {1, 2} and {
            trial.rows for trial in compiled
        } == {8}
        one, two = (
            next(trial for trial in compiled if trial.keywords["num"] == num) for num in (1, 2)
        )
        assert one.name == two.name and one.plan is not None and two.plan is not None
        assert (
            two.plan.temporaries < one.plan.temporaries
            and two.plan.moved_bytes > one.plan.moved_bytes
        )
        assert "num=2" in str(found)
        with pytest.raises(ValueError, match=r"grid"):
            spmd.suggest(step, TOKENS, target="cpu:2", grid={"num": ()}, progress=False)
