"""XLA's options of one step: part of its program's key, added to those that it needs, refused by
name."""

from pathlib import Path

import pytest
import torch
from support import run_script

import spmd
from spmd.core.graph.graph import Graph
from spmd.core.programs import cache
from spmd.core.programs.program import compiled_with, options_of, text_of


def step() -> torch.Tensor:
    return torch.ones(5, device="xla").cumsum(0) * 3


def num_compiled() -> int:
    before = spmd.metrics.num_compiles()
    kept = step()
    spmd.sync()
    assert kept.tolist() == [3.0, 6.0, 9.0, 12.0, 15.0]
    return spmd.metrics.num_compiles() - before


class TestPlan:
    def test_part_of_the_key(self) -> None:
        options = {"xla_cpu_enable_fast_min_max": True}
        cache.clear_cache()
        made = spmd.plan(step, compiler_options=options)
        assert made.compiler_options == {"xla_cpu_enable_fast_min_max": "True"}
        assert (
            "xla_cpu_enable_fast_min_max" in made.to_json()
            and "xla_cpu_enable_fast_min_max=True" in str(made)
        )
        with compiled_with(options):
            assert num_compiled() == 0  # the plan's
        assert num_compiled() == 1
        assert "compiler_options is now" in spmd.metrics.compiles()[-1].cause
        assert spmd.config.compiler_options == "auto"

    def test_part_of_the_digest_on_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spmd.config, "program_cache", True)
        monkeypatch.setattr(spmd.config, "program_cache_dir", str(tmp_path / "cache"))
        options = {"xla_cpu_enable_fast_min_max": False}
        found = []
        for chosen in (None, options, None, options):
            cache.clear_cache()
            with compiled_with(chosen):
                found.append(num_compiled())
        assert found == [1, 1, 0, 0]


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (
                {"xla_tpu_enable_latency_hiding_scheduler": True},
                "no option 'xla_tpu_enable_latency_.* on cpu",
            ),
            (
                {"xla_cpu_enable_fast_min_max": 7.5},
                "refuses the value of an option on cpu: .*xla_cpu_enable_fast",
            ),
        ],
    )
    def test_by_xla(self, options: dict[str, object], says: str) -> None:
        kept = torch.ones(3, device="xla") + 1
        with pytest.raises(ValueError, match=says), compiled_with(options):
            spmd.sync()
        with pytest.raises(ValueError, match=says):
            spmd.plan(step, compiler_options=options)
        assert kept.tolist() == [2.0] * 3 and spmd.config.compiler_options == "auto"

    @pytest.mark.parametrize(
        ("options", "error", "says"),
        [
            ({"xla dump": "a"}, ValueError, "expected the name of an option"),
            ({"xla_dump_to": "a b"}, ValueError, "must have no blank"),
            ({"xla_dump_to": ""}, ValueError, "must not be empty"),
            (
                {"xla_dump_to": None},
                TypeError,
                "expected text, a number or a bool for 'xla_dump_to', got None",
            ),
        ],
    )
    def test_at_once(self, options: dict[str, object], error: type[Exception], says: str) -> None:
        with pytest.raises(error, match=says):
            text_of(options)


class TestAdded:
    """To the options that a program needs, unless the process names all of them."""

    def test_with_those_that_a_program_needs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[dict[str, str | float]] = []

        def noted(graph: Graph) -> dict[str, str | float]:
            seen.append(options_of(graph))
            return {}

        monkeypatch.setattr("spmd.core.programs.compiler.options_of", noted)
        block = spmd.remat(torch.nn.Linear(3, 3, device="xla"))

        def run() -> dict[str, str | float]:
            cache.clear_cache()
            block(torch.ones(2, 3, device="xla")).sum().backward()
            spmd.sync()
            return seen[-1]

        needed = run()
        with compiled_with({"xla_foo": 1}):
            assert needed and run() == {**needed, "xla_foo": "1"}
        name = next(iter(needed))
        with compiled_with({name: "other"}):
            assert run() == {**needed, name: "other"}
        monkeypatch.setattr(spmd.config, "compiler_options", "xla_foo=true")
        assert run() == {"xla_foo": "True"}

    def test_truths_as_xla_takes_them(self) -> None:
        """XLA itself refuses the text "true"."""
        script = "import torch, spmd; x = torch.ones(2, device='xla') + 1; print(x.tolist())"
        options = "auto xla_cpu_enable_fast_min_max=true"
        assert (
            run_script(script, SPMD_COMPILER_OPTIONS=options, SPMD_PROGRAM_CACHE="0")
            == "[2.0, 2.0]\n"
        )
