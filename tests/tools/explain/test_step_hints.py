"""Hints: the cause, the line and what to do, of what costs a step time again and again."""

import pytest
import torch

import spmd


def found(kind: str) -> list[spmd.profiler.Hint]:
    """The hints of a kind."""
    return [hint for hint in spmd.profiler.hints() if hint.kind == kind]


class TestHints:
    """One for each line, the longest first."""

    def test_reads(self) -> None:
        spmd.metrics.clear()
        for _ in range(4):
            torch.rand(2, device="xla").sum().item()
        torch.rand(2, device="xla").sum().item()  # once: no hint
        (hint,) = found("read")
        assert (
            hint.count == 4
            and hint.seconds > 0
            and __file__ in hint.line
            and ".item()" in hint.line
        )
        assert "waits for the device 4 times" in str(hint)

    def test_programs_for_shapes(self) -> None:
        spmd.metrics.clear()
        for rows in (2, 3, 5):
            y = torch.randn(rows, 3).to("xla").log1p()
            spmd.sync()
        (hint,) = found("compile")
        assert hint.count == 2 and "float32[5,3]" in hint.cause and "mark_dynamic" in hint.advice, y

    def test_fallbacks(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(spmd.config, "fallback", "cpu")
        monkeypatch.setattr(spmd.config, "hints", 1)
        spmd.metrics.clear()
        library = torch.library.Library("spmdhints", "DEF")
        library.impl(library.define("no_rule_here(Tensor x) -> Tensor"), lambda x: x * 2, "CPU")
        torch.ops.spmdhints.no_rule_here(torch.ones(2, device="xla"))
        (hint,) = found("fallback")
        assert hint.count == 1 and "no_rule_here" in hint.cause and __file__ in hint.line
        assert "runs on the CPU once" in capsys.readouterr().err

    def test_said_as_it_happens(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        spmd.metrics.clear()
        monkeypatch.setattr(spmd.config, "hints", 2)
        for _ in range(12):
            torch.rand(2, 9, device="xla").sum().item()
        said = capsys.readouterr().err
        assert said.count("waits for the device") == 2  # the third read, and the tenth
        assert said.count("runs the program of") == 12 and said.count("compiled in") == 1

    def test_silent_by_default(self, capsys: pytest.CaptureFixture[str]) -> None:
        for _ in range(4):
            torch.rand(2, 9, device="xla").sum().item()
        assert "hint" not in capsys.readouterr().err
