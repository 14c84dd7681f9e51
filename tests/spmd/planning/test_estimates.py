"""Estimates of layouts: an integer program for what is saved, corrected by plans; extrapolation from few layers."""

import dataclasses
import itertools
import random
import re
from typing import Any

import pytest
import torch
from torch import nn

import fsdp
import spmd
from recipes.llama import Llama, LlamaConfig, cross_entropy
from spmd.core.run import abstract
from spmd.steps.reachable import Reachable
from spmd.steps.saved_state import kept, without_data
from spmd.tools.suggestions.candidates import SAVED, Layout, Model, Saved, model_of, rules_of
from spmd.tools.suggestions.estimates import Estimates, Rates
from spmd.tools.suggestions.shortened import can_be_shortened, shortened
from spmd.tools.suggestions.uses import Flow

RATES = Rates(1e12, 1e9, 4, memory_bytes=4.5e9)
TOKENS = torch.zeros(8, 32, dtype=torch.long, device="meta")


def watched(model: nn.Module, x: torch.Tensor) -> Model:
    reached, flow = Reachable(model, (x,)), Flow(model)
    with abstract.recorded(abstract.Recording()), kept(reached), without_data(reached, (x,)), flow.watching():
        model(x)
    return model_of(model, flow, 0)


class TwoKinds(nn.Module):
    """Blocks of two widths."""

    def __init__(self, narrow: int = 3, wide: int = 2) -> None:
        super().__init__()
        self.narrow = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(narrow)
        )
        self.wide = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in (*self.narrow, *self.wide):
            x = x + block(x)
        return x


@pytest.fixture(scope="module")
def known() -> Model:
    return watched(TwoKinds().to("meta"), torch.empty(256, 32, device="meta"))  # activations outweigh a block


class TestWhatIsSaved:
    """An integer program over the seconds and bytes of each kind of blocks."""

    def test_as_the_best_of_all(self, known: Model) -> None:
        draw = random.Random(5)
        for _ in range(30):
            estimates = Estimates(known, dataclasses.replace(RATES, host_bytes=draw.choice((0.0, 1e9))))
            costs = [
                {word: (draw.random() * (word != "everything"), 10 * draw.random()) for word in SAVED}
                for _ in known.kinds
            ]
            spare = draw.uniform(0, 40)

            def value(saved: Any, which: int, costs: Any = costs) -> float:
                return sum(
                    count * cost[word][which]
                    for counts, cost in zip(saved, costs, strict=True)
                    for word, count in zip(SAVED, counts, strict=True)
                )

            allowed = [word in estimates.words for word in SAVED]
            choices = [
                [
                    counts
                    for counts in itertools.product(*(range(len(kind.paths) + 1 if may else 1) for may in allowed))
                    if sum(counts) == len(kind.paths)
                ]
                for kind in known.kinds
            ]
            fitting = [saved for saved in itertools.product(*choices) if value(saved, 1) <= spare]
            found = estimates._solved(costs, spare)
            if not fitting:
                assert found is None
                continue
            assert found is not None
            counts = [one.counts for one in found]
            assert value(counts, 1) <= spare + 1e-6
            assert value(counts, 0) == pytest.approx(min(value(saved, 0) for saved in fitting), abs=1e-6)

    def test_memory_decides(self, known: Model) -> None:
        estimates, placement = Estimates(known, RATES), Layout(1, 8, 1)
        everything, nothing = (estimates.uniform(placement, word) for word in ("everything", "nothing"))
        least, most = estimates.peak(nothing), estimates.peak(everything)
        assert estimates.chosen(placement, None) == estimates.chosen(placement, most * 1.01) == everything
        assert estimates.chosen(placement, least * 0.5) == nothing
        between = estimates.chosen(placement, (least + most) / 2)
        assert least < estimates.peak(between) <= (least + most) / 2
        assert estimates.seconds(everything) < estimates.seconds(between) < estimates.seconds(nothing)

    def test_plans_correct(self, known: Model) -> None:
        """Next to a compiled layout an estimate is its figure; two of them give the price of what is saved."""
        estimates, placement = Estimates(known, RATES), Layout(1, 8, 1)
        everything, nothing = (estimates.uniform(placement, word) for word in ("everything", "nothing"))
        other = Layout(2, 4, 1)
        before = estimates.seconds(other), estimates.peak(other)
        price = estimates.peak(everything) - estimates.peak(nothing)
        estimates.learn(nothing, 3 * estimates.seconds(nothing), 2 * estimates.peak(nothing))
        assert estimates.seconds(other) > 2 * before[0]
        seconds, peak = estimates.seconds(nothing) * 0.9, estimates.peak(nothing) + 5 * price
        estimates.learn(everything, seconds, peak)
        assert estimates.peak(everything) == pytest.approx(peak)
        assert estimates.seconds(everything) == pytest.approx(seconds)
        one = Layout(1, 8, 1, saved=(Saved("narrow.*", (3, 0, 0, 0)), Saved("wide.*", (0, 0, 0, 2))))
        assert estimates.peak(nothing) < estimates.peak(one) < estimates.peak(everything)
        all_of_other = estimates.peak(estimates.uniform(other, "everything")) - estimates.peak(
            estimates.uniform(other, "nothing")
        )
        assert all_of_other > 4 * price * 0.9

    def test_convolutions(self) -> None:
        """Their operations are counted, and nothing is computed again where all of it fits."""
        blocks = nn.Sequential(*(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(3)))
        model = watched(blocks.to("meta"), torch.empty(4, 8, 16, 16, device="meta"))
        assert model.flow.cost().flops == 3 * 2 * (4 * 8 * 16 * 16) * 8 * 3 * 3
        chosen = Estimates(model, RATES).chosen(Layout(1, 4, 1), 1e12)
        assert [str(saved) for saved in chosen.saved] == [""]

    def test_patterns(self, known: Model) -> None:
        saved = (Saved("narrow.*", (1, 0, 0, 2)), Saved("wide.*", (0, 0, 0, 2)))
        assert rules_of(Layout(1, 8, 1, saved=saved), known).checkpoint == {
            "narrow.{0..1}": "nothing", "wide.*": "nothing"
        }  # fmt: skip
        saved = (Saved("narrow.*", (1, 1, 0, 1)), Saved("wide.*", (0, 0, 0, 2)))
        assert rules_of(Layout(1, 8, 1, saved=saved), known).checkpoint == {
            "narrow.{0}": "nothing", "narrow.{1}": "dots", "wide.*": "nothing",
        }  # fmt: skip
        rules = rules_of(Layout(1, 4, 1, saved=saved), known)
        model, x = TwoKinds(), torch.randn(8, 32)
        expected = model(x)
        rules.apply(model, spmd.Mesh(range(4), (4,), ("fsdp",)))
        torch.testing.assert_close(model(x.to("xla")).cpu(), expected, rtol=2e-5, atol=2e-5)


def step_of(model: nn.Module) -> Any:
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor) -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class TestFewLayers:
    """A step whose layers are no loop: the figures of one and two layers of each kind, extrapolated."""

    def test_fewer_layers_inside_a_context(self, known: Model) -> None:
        model = known.flow.model
        assert can_be_shortened(known)
        names = [name for name, _ in model.named_parameters()]
        with pytest.raises(KeyError), shortened(known, {"narrow.*": 1, "wide.*": 2}):
            assert (len(model.narrow), len(model.wide)) == (1, 2)  # type: ignore[arg-type]
            raise KeyError
        assert names == [name for name, _ in model.named_parameters()]
        layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).to("meta")
        assert not can_be_shortened(watched(layers, torch.empty(8, 8, device="meta")))

    def test_the_best_three_are_compiled_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "scan_layers", "never")
        model, x = TwoKinds(10, 6).to("meta"), torch.empty(64, 32, device="meta")
        found = spmd.suggest(step_of(model), x, target="cpu:2", max_trials=6, progress=False)
        assert (len(model.narrow), len(model.wide)) == (10, 6)
        both = [trial for trial in found.trials if trial.extrapolated is not None and trial.plan is not None]
        others = [trial for trial in found.trials if trial.extrapolated is not None and trial.plan is None]
        assert (
            len(both) == 3 and others and all("extrapolated from one and two layers: " in one.reason for one in others)
        )
        for trial in both:
            assert trial.plan is not None and trial.seconds is not None and trial.extrapolated is not None
            assert trial.extrapolated.seconds == pytest.approx(trial.seconds, rel=0.02)
            assert trial.extrapolated.peak == pytest.approx(trial.plan.peak, rel=0.25)
        least = max(trial.seconds or 0.0 for trial in both)
        assert all(trial.extrapolated is not None and trial.extrapolated.seconds >= least * 0.98 for trial in others)
        text = " ".join(str(found).split())
        assert "extrapolated" in text and re.search(r"[+-]\d+\.\d% peak", text)


class TestGrid:
    """Keywords of the step that are tried like everything else."""

    def test_micro_batches(self) -> None:
        with torch.device("meta"):
            model = Llama(LlamaConfig(layers=2))
        optimizer = torch.optim.AdamW(model.parameters())

        def step(tokens: torch.Tensor, *, num: int) -> None:
            fsdp.accumulate_gradients(model, lambda part: cross_entropy(model(part), part), tokens, num)
            optimizer.step()
            optimizer.zero_grad()

        found = spmd.suggest(step, TOKENS, target="cpu:2", grid={"num": (1, 2)}, max_trials=4, progress=False)
        compiled = [trial for trial in found.trials if trial.plan is not None]
        assert {trial.keywords["num"] for trial in compiled} == {1, 2} and {trial.rows for trial in compiled} == {8}
        one, two = (next(trial for trial in compiled if trial.keywords["num"] == num) for num in (1, 2))
        assert one.name == two.name and one.plan is not None and two.plan is not None
        assert two.plan.temporaries < one.plan.temporaries and two.plan.moved_bytes > one.plan.moved_bytes
        assert "num=2" in str(found)
        with pytest.raises(ValueError, match=r"grid"):
            spmd.suggest(step, TOKENS, target="cpu:2", grid={"num": ()}, progress=False)
