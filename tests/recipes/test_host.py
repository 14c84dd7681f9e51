"""The benchmark of syncs and reads, tiny: its step has one program, and its reads start none."""

import pytest

from recipes.benchmarks import host


@pytest.mark.parametrize("devices", ["1", "8"])
def test_syncs(devices: str) -> None:
    args = host.parse(["--layers", "1", "--batch", "8", "--rounds", "1", "--devices", devices])
    seconds = host.sync_seconds(args)
    assert list(seconds) == ["recording", "sync but the launch", "launch", "eager torch"]
    assert all(part > 0 for parts in seconds.values() for part in parts)


def test_reads(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(host, "SCALARS", 20)
    monkeypatch.setattr(host, "LOOP", 2)
    host.show(host.read_seconds(host.parse(["--rounds", "1"])), "One read", "us", 1)
    assert "a scalar of one sync, jax" in capsys.readouterr().out
