"""`config.print_graphs`: the graph after each pass that changed it."""

import pytest
import torch

import spmd


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests before have left unread is in no graph that is printed here."""
    monkeypatch.setattr(spmd.config, "sync_on_read", "needed")


def test_scanned_layers(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(spmd.config, "print_graphs", True)
    monkeypatch.setattr(spmd.config, "scan_layers", "always")
    weights = [torch.full((3, 3), float(i)).to("xla") for i in range(40)]
    x = torch.ones(2, 3, device="xla")
    for weight in weights:
        x = torch.tanh(x @ weight)
    x.tolist()
    first, *ops, results = capfd.readouterr().err.strip().splitlines()
    assert first.startswith("spmd: after 'scan layers' (40 iterations of 2 ops)"), first
    assert first.endswith(" ops, 40 inputs"), first
    (loop,) = [op for op in ops if "spmd.layers(" in op]
    assert "... 36 more ..., in39) -> float32[2,3]" in loop and "test_graph_text.py" in loop, loop
    assert results.strip() == f"results: {loop.split()[0]}"


def test_the_middle_of_a_long_graph_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spmd.config, "print_graphs", True)
    monkeypatch.setattr(spmd.config, "scan_layers", "always")
    x = torch.ones(2, device="xla")
    for _ in range(70):  # each op with a shape of its own: no loop
        x = torch.cat([x, x[:1]])
    for _ in range(10):
        x = torch.tanh(x) * 2 + 1
    x.tolist()
    lines = capfd.readouterr().err.strip().splitlines()
    assert (
        lines[0].endswith(": 142 ops, 0 inputs")
        and lines[31] == "  ... 82 ops ..."
        and len(lines) == 63
    ), lines


def test_a_graph_that_no_pass_changes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spmd.config, "print_graphs", True)
    (torch.ones(7, device="xla") * 3).tolist()
    assert capfd.readouterr().err == ""
