"""Traces: the devices' rows carry the user's modules, ops and lines; the host's rows are there;
nothing is compiled for them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fsdp
import spmd
from spmd.core.base import trace_rows
from spmd.tools.profiler import summaries, trace_files, traces

SIZE = 16


class Block(nn.Module):
    """A layer with a fusion of its own and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the input and a correction."""
        return x + torch.tanh(self.fc(self.norm(x)))


def events(folder: Path) -> list[dict[str, Any]]:
    """The blocks of a trace."""
    (file,) = folder.rglob("*.trace.json.gz")
    return [
        event
        for event in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        if event["ph"] == "X"
    ]


def of_devices(folder: Path) -> list[dict[str, Any]]:
    """The blocks of a trace on devices, of programs that were recorded."""
    return [event for event in events(folder) if event["args"].get("hlo_module") == "jit_spmd"]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of two training steps of two blocks over two devices, and of one other program."""
    folder = tmp_path_factory.mktemp("trace")
    mesh = spmd.Mesh(range(2), (2,), ("data",))
    model = nn.Sequential(Block(), Block()).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = spmd.mark_sharding(torch.randn(4, SIZE).to("xla"), mesh, ("data", None))

    def step() -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        spmd.sync()
        return loss

    step()
    before = spmd.metrics.num_compiles()
    with spmd.profiler.trace(folder):
        for number in range(2):
            with spmd.profiler.StepTrace("train", step_num=number):
                loss = step()
        assert spmd.metrics.num_compiles() == before
        with spmd.profiler.Trace("my block", part="head"):
            torch.sinh(x @ x.T).sum().item()
        loss.item()
    return folder


class TestDeviceRows:
    """A device's row has the module path, the op and the line of what it runs."""

    def test_module_op_and_line(self, traced: Path) -> None:
        products = [event for event in of_devices(traced) if event["args"]["module"] == "1.fc"]
        assert {event["args"]["op"] for event in products} == {"aten.linear"}
        assert {event["name"] for event in products} == {"1.fc: aten.linear"}
        for event in products:
            line = event["args"]["line"]
            assert line.startswith(__file__) and line.endswith(
                "return x + torch.tanh(self.fc(self.norm(x)))"
            )
            assert event["args"]["bytes"] >= 4 * (2 * SIZE + SIZE * SIZE)

    def test_backward_and_optimizer(self, traced: Path) -> None:
        modules = {
            one for event in of_devices(traced) for one in event["args"]["module"].split(", ")
        }
        assert {"0.fc (backward)", "1.fc (backward)", "SGD.step"} <= modules

    def test_a_fusion_shows_all_its_paths(self, traced: Path) -> None:
        shown = [event["args"] for event in of_devices(traced) if "tanh" in event["args"]["op"]]
        assert any({"0", "0.fc"} <= set(said["module"].split(", ")) for said in shown)
        assert any("aten.tanh" in said["op"] and "aten.linear" in said["op"] for said in shown)

    def test_each_program_has_its_own_names(self, traced: Path) -> None:
        found = of_devices(traced)
        other = [event for event in found if "aten.sinh" in event["args"]["op"]]
        assert other and {event["args"]["module"] for event in other} == {""}
        assert len({event["args"]["program_id"] for event in found}) == 2
        assert {event["args"]["program_id"] for event in other}.isdisjoint(
            event["args"]["program_id"] for event in found if event["args"]["module"] == "1.fc"
        )

    def test_ops_that_the_library_records(self, tmp_path: Path) -> None:
        """FSDP's gathers, and annotations of gradients, have the line of the op that reads them."""
        mesh = spmd.Mesh(range(2), (2,), ("fsdp",))
        model = fsdp.FullyShardedDataParallel(nn.Linear(SIZE, SIZE).to("xla"), mesh)
        x = torch.randn(4, SIZE).to("xla")
        with spmd.profiler.trace(tmp_path):
            model(x).square().mean().backward()
            spmd.sync()
        rows = spmd.profiler.summary(tmp_path, by="line").rows
        assert any("spmd.gather" in row.ops for row in rows)
        assert not any("unknown line" in row.name for row in rows), rows

    def test_a_process_for_each_device(self, traced: Path) -> None:
        assert {event["pid"] for event in of_devices(traced)} == {100, 101}

    def test_equal_layers_in_a_loop(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "scan_layers", "always")
        model, x = (
            nn.Sequential(*(Block() for _ in range(4))).to("xla"),
            torch.randn(4, SIZE).to("xla"),
        )
        with spmd.profiler.trace(tmp_path):
            y = model(x)
            spmd.sync()
        assert "*.fc" in {event["args"]["module"] for event in of_devices(tmp_path)}, y

    def test_paths_that_differ_in_more_than_a_number(self) -> None:
        assert trace_files._joined(["a.0.fc", "a.1.fc"]) == "a.*.fc"
        assert trace_files._joined(["fc", "fc"]) == "fc"


class TestHostRows:
    """The host's rows are what this library does, and the user's own blocks."""

    def test_rows(self, traced: Path) -> None:
        host = spmd.profiler.summary(traced).host
        counts = {name: count for name, (count, _) in host.items()}
        assert (
            counts["dispatch"] == counts["sync"] == counts["record"] == 3 and counts["compile"] == 1
        )
        assert counts["wait"] >= 2 and host["record"][1] > 0

    def test_lines(self, traced: Path) -> None:
        blocks = events(traced)
        (compiled,) = [event["args"] for event in blocks if event["name"] == "compile"]
        assert "first program of this sync" in compiled["cause"] and __file__ in compiled["line"]
        waits = [event["args"]["for"] for event in blocks if event["name"] == "wait"]
        assert any(f"at {__file__}" in wait for wait in waits)

    def test_blocks_of_the_user(self, traced: Path) -> None:
        named = {event["name"]: event["args"] for event in events(traced)}
        assert named["my block"] == {"part": "head"} and named["train 1"] == {"step_num": "1"}

    def test_nothing_without_a_trace(self) -> None:
        assert (
            trace_rows.span("dispatch", lambda: pytest.fail("no trace is on"))
            is trace_rows._NOTHING
        )
        assert traces._keep not in spmd.core.points.before_run and not spmd.config.module_paths


class TestNoRecompile:
    """A trace compiles nothing again: not here, not in Dynamo, and a replay stays a replay."""

    def test_compiled_step(self, tmp_path: Path) -> None:
        model = Block().to("xla")
        step = spmd.compile(torch.no_grad()(lambda x: model(x).sum()))
        x = torch.randn(2, SIZE).to("xla")
        spmd.config.module_paths = True
        try:
            for _ in range(4):
                step(x)
        finally:
            spmd.config.module_paths = False
        replays = spmd.metrics.counter("replays"), spmd.metrics.num_compiles()
        with spmd.profiler.trace(tmp_path):
            step(x)
        assert (spmd.metrics.counter("replays"), spmd.metrics.num_compiles()) == (
            replays[0] + 1,
            replays[1],
        )
        assert "fc" in {event["args"]["module"] for event in of_devices(tmp_path)}

    def test_torch_compile(self, tmp_path: Path) -> None:
        frames = []

        def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            frames.append(graph)
            return graph.forward

        model, x = Block().to("xla"), torch.randn(2, SIZE).to("xla")
        compiled = torch.compile(model, backend=backend)
        y = compiled(x)
        spmd.sync()
        before = len(frames), spmd.metrics.num_compiles()
        with spmd.profiler.trace(tmp_path):
            y = compiled(x)
            spmd.sync()
        assert (len(frames), spmd.metrics.num_compiles()) == before, y


class TestTorchProfiler:
    """`torch.profiler.profile` shows aten's ops on the device, and the library's sync and
    dispatch."""

    def test_names(self) -> None:
        x = torch.ones(2, 3, device="xla")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
            torch.cosh(x).sum().item()
        names = {event.key for event in profiled.key_averages()}
        assert {
            "aten::cosh",
            "aten::sum",
            "spmd::sync",
            "spmd::dispatch",
            "spmd::compile",
            "spmd::wait",
        } <= names


class TestSummary:
    """The table without a viewer."""

    def test_figures(self, traced: Path) -> None:
        found = spmd.profiler.summary(traced)
        assert found.num_steps == 2 and found.num_devices == 2
        assert sum(row.share for row in found.rows) == pytest.approx(1)
        assert list(found.rows) == sorted(found.rows, key=lambda row: -row.seconds)
        (row,) = [row for row in found.rows if row.name == "0.fc"]
        assert row.ops == ("aten.linear",) and row.bytes > 0
        assert "aten.linear" in {row.name for row in spmd.profiler.summary(traced, by="op").rows}

    def test_text(self, traced: Path) -> None:
        text = str(spmd.profiler.summary(traced))
        assert "─" in text and "module" in text and "steps: 2 of" in text and "record" in text

    def test_time_of_a_loop_is_without_its_body(self) -> None:
        blocks = [(0, 10), (1, 4), (2, 1), (6, 3), (12, 1)]
        found = summaries._own_times(
            {"file": "", "pid": 1, "tid": 1, "ts": ts, "dur": dur} for ts, dur in blocks
        )
        assert [time for _, time in found] == [3, 3, 1, 3, 1]

    def test_errors(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"no \*\.trace\.json\.gz"):
            spmd.profiler.summary(tmp_path)
        with pytest.raises(ValueError, match="'module', 'op', 'line', got 'file'"):
            spmd.profiler.summary(tmp_path, by="file")

    def test_one_trace_at_a_time(self, tmp_path: Path) -> None:
        with (
            spmd.profiler.trace(tmp_path),
            pytest.raises(RuntimeError, match=r"is on; call spmd\.profiler\.stop"),
        ):
            spmd.profiler.start_trace(tmp_path)
