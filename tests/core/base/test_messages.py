"""Messages while programs compile: a line's width, one place in a terminal, few lines in a minute
elsewhere."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import pytest
import torch
from support import ROOT

import spmd
from spmd.core.base import messages
from spmd.core.programs import cache
from spmd.tools.explain import status

# libtpu, if installed, says on stderr that it finds no TPU.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}

# Seven programs, each of other ops at the same long line, that take 0.3 s each.
PROGRAMS = """
    import time, torch, spmd
    from spmd.core.programs import cache

    compile_graph = cache.compile_graph


    def slowly(*args, **how):
        time.sleep(0.3)
        return compile_graph(*args, **how)


    cache.compile_graph = slowly
    for name in "cos sin tan exp tanh sqrt square".split():
        a_name_that_makes_this_line_longer_than_a_terminal = (
            getattr(torch.ones(4).to("xla"), name)().sum().item()
        )
    print("compiled", spmd.metrics.num_compiles(), "loaded", spmd.metrics.num_loaded())
"""


def in_terminal(script: str, **environment: str) -> str:
    """The text that a script writes to a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", textwrap.dedent(script)]
    settings = {**ENVIRONMENT, "TERM": "xterm", **environment}
    child = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=settings)
    os.close(theirs)
    read = b""
    with contextlib.suppress(OSError):  # the end of a terminal that nothing writes to any more
        while part := os.read(ours, 4096):
            read += part
    os.close(ours)
    assert child.wait(120) == 0, read.decode()
    return read.decode()


class TestWhileCompiling:
    """A program of several compilations, as its user sees it."""

    @pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.long)])
    def test_a_pipe(self, columns: int) -> None:
        command = [sys.executable, "-c", textwrap.dedent(PROGRAMS)]
        settings = {**ENVIRONMENT, "COLUMNS": str(columns), "SPMD_SLOW_COMPILE_SECONDS": "1"}
        done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120)
        lines = done.stderr.splitlines()
        assert done.returncode == 0 and done.stdout == "compiled 7 loaded 0\n", done.stderr
        assert all(line.startswith("spmd: ") and len(line) <= columns for line in lines), lines
        compiling = [line for line in lines if "compiling program" in line]
        assert 1 <= len(compiling) <= messages.MOST and len(lines) <= 2 * messages.MOST, lines
        assert re.match(
            r"spmd: compiling program \d, 2 ops, <string>:16: op aten\.\w+ instead of aten",
            compiling[-1],
        )

    @pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.long)])
    def test_a_terminal(self, columns: int) -> None:
        written = in_terminal(PROGRAMS, COLUMNS=str(columns), SPMD_SLOW_COMPILE_SECONDS="1")
        drawn = [line for line in re.split(r"[\r\n]", written) if line]
        assert all(len(line) <= columns for line in drawn), drawn
        numbers = [
            int(found[1])
            for line in drawn
            if (found := re.match(r"spmd: compiling program (\d)", line))
        ]
        assert numbers == sorted(numbers) and len(set(numbers)) >= 3, drawn
        # What is compiled stays in one place: whole lines are the hint's and the program's own.
        kept = [
            line.rpartition("\r")[2]
            for line in written.replace("\r\n", "\n").rstrip("\n").split("\n")
        ]
        assert len(kept) <= 1 + messages.MOST and kept[-1] == "compiled 7 loaded 0", kept

    def test_a_notebook_has_one_output_that_ends_empty(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One for all statuses of a cell, and no stream, of which the notebook's file would keep
        each line."""
        shown: list[tuple[str, bool, dict[str, str]]] = []
        drawn = [threading.Event(), threading.Event()]

        def display(data: dict[str, str], *, raw: bool, display_id: str, update: bool) -> None:
            shown.append((display_id, update, data))
            drawn[min(len(shown), 2) - 1].set()

        shell = SimpleNamespace(execution_count=7)
        ipython = SimpleNamespace(
            display=SimpleNamespace(display=display), get_ipython=lambda: shell
        )
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setattr(status, "_is_notebook", lambda file: True)
        monkeypatch.setattr(spmd.config, "slow_compile_seconds", 1)
        monkeypatch.setattr(status, "_EVERY", 0.01)
        with status.status("test", lambda: f"stage {len(shown)}"):
            assert all(event.wait(30) for event in drawn)
        status._draw("of the same cell", "")
        status._draw("", "of the same cell")
        shell.execution_count += 1
        status._draw("of the next", "")
        names, updates, data = zip(*shown, strict=True)
        assert set(names[:-1]) == {names[0]} != {names[-1]}
        assert updates == (False, *[True] * (len(shown) - 2), False)
        texts = [each.get("text/plain") for each in data]
        assert texts[:2] == ["spmd: stage 0", "spmd: stage 1"]
        assert texts[-4:] == [None, "of the same cell", None, "of the next"]

    def test_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "slow_compile_seconds", 0)
        monkeypatch.setattr(spmd.core.messages, "print_line", lambda text, kind: pytest.fail(text))
        monkeypatch.setattr(status, "_SHORTEST", 0.0)
        with status.status("test", lambda: "nothing"):
            assert "spmd-status" not in [thread.name for thread in threading.enumerate()]

    def test_a_file_has_the_newest_stage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stage, seen = (
            ["recording"],
            {name: threading.Event() for name in ("recording", "compiling")},
        )
        monkeypatch.setattr(spmd.config, "slow_compile_seconds", 1)
        monkeypatch.setattr(status, "_EVERY_IN_A_FILE", 0.01)
        monkeypatch.setattr(status, "_is_in_place", lambda file: False)
        monkeypatch.setattr(spmd.core.messages, "print_line", lambda text, kind: seen[text].set())
        with status.status("test", lambda: stage[0]):
            assert seen["recording"].wait(30)
            stage[0] = "compiling"
            assert seen["compiling"].wait(30), "the line stayed at the first stage"


class TestLines:
    """One line of a message."""

    def test_width_and_full_text(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        messages.say("a text\nof more than the forty columns of this terminal", "test")
        assert capsys.readouterr().err == "spmd: a text of more than the forty...\n"
        assert (
            "note: a text\nof more than the forty columns of this terminal" in spmd.metrics.report()
        )
        messages.say("short", "test", "and its full text")
        assert (
            capsys.readouterr().err == "spmd: short\n"
            and "note: and its full text" in spmd.metrics.report()
        )

    def test_few_in_a_minute(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [100.0]
        monkeypatch.setattr(messages.time, "monotonic", lambda: now[0])
        for number in range(10):
            messages.say(f"number {number}", "one")
        messages.say("of another kind", "other")
        said = capsys.readouterr().err.splitlines()
        assert said == [f"spmd: number {number}" for number in range(messages.MOST)] + [
            "spmd: of another kind"
        ]
        now[0] += 61
        messages.say("later", "one")
        messages.say("and later", "one")
        assert capsys.readouterr().err == "spmd: later (7 more held back)\nspmd: and later\n"

    def test_the_programs_of_a_sync(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The line says how many programs its sync is cut into, and how many came from the disk."""
        monkeypatch.setattr(spmd.config, "slow_compile_seconds", 1)
        monkeypatch.setattr(status, "_SHORTEST", 0.0)
        monkeypatch.setitem(status._busy, "compiling", (0.0, messages.time.monotonic()))
        spmd.metrics.clear()
        for _ in range(2):
            status.counters.add("programs_loaded")
        waited = threading.Event()
        monkeypatch.setattr(
            spmd.core.messages, "print_line", lambda text, kind: (print(text), waited.set())
        )
        line = status.Line(None, 0)
        with (
            cache.part.held((3, 12)),
            status.while_compiling(2_500, line, "first program of this sync; more"),
        ):
            assert waited.wait(10)
        said = capsys.readouterr().out
        assert said.startswith(
            "compiling program 3 (3 of 12; 2 from disk), 2,500 ops, no line of yours: first program"
        )
        assert "more" not in said and "spmd.sync() in the middle makes shorter programs" in said

    def test_a_sync_states_its_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "max_program_ops", 20)
        seen = []
        held = cache.part.held
        monkeypatch.setattr(cache.part, "held", lambda given: (seen.append(given), held(given))[1])
        value = torch.ones(3, device="xla")
        for number in range(60):
            value = value.sin() * number + value.roll(number)
        spmd.sync()
        count = max(count for _, count in seen)
        assert count > 2 and [number for number, of in seen if of == count] == list(
            range(1, count + 1)
        )
