"""`python -m spmd doctor`: versions, devices, cache, variables and what clashes."""

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

import spmd
from spmd.__main__ import main
from spmd.core import extras
from spmd.core.programs.miscompiles import MISCOMPILES
from spmd.jobs.launching import installation


def found(capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    status = main(["doctor"])
    return status, capsys.readouterr().out.splitlines()


def test_here(capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = found(capsys)
    assert status == 0, lines
    assert any(
        line.split()[:3] == ["ok", "torch", importlib.metadata.version("torch") + ","]
        for line in lines
    )
    assert any(line.startswith("ok    devices     8 x cpu") for line in lines)
    assert any("a step" in line and "its gradient is the CPU's" in line for line in lines)
    assert not any(line.startswith("WRONG") for line in lines)
    named = {
        line.split("miscompile  ")[1].split(":")[0] for line in lines if "note  miscompile" in line
    }
    assert named == {row.name for row in MISCOMPILES if "cpu" in row.platforms and row.is_here()}


def test_a_variable_that_sets_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPMD_SCAN_LAYER", "never")
    monkeypatch.setenv("SPMD_PARTITIONER", "shardy")
    status, lines = found(capsys)
    assert status == 1
    assert (
        "WRONG variable    SPMD_SCAN_LAYER sets nothing; did you mean 'SPMD_SCAN_LAYERS'?" in lines
    )
    assert "ok    variable    SPMD_PARTITIONER=shardy" in lines


def test_other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version

    def older(name: str) -> str:
        if name == "einops":
            raise importlib.metadata.PackageNotFoundError(name)
        return {"torch": "2.9.1+cu128", "jax-cuda12-plugin": "0.9.0"}.get(name) or version(name)

    monkeypatch.setattr(importlib.metadata, "version", older)
    wrong = {
        one.subject: one.words for one in installation.findings() if one.mark == installation.WRONG
    }
    assert wrong.keys() == {"torch", "einops", "jax-cuda12-plugin"}
    assert wrong["torch"].startswith("2.9.1+cu128, expected ") and wrong["einops"].startswith(
        "is not installed"
    )


def test_extras_of_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `tpu` is jax's extra of that name, which asks for libtpu, for which jax has a
    range."""
    requires = {
        extras.NAME: [
            "jax>=0.10",
            'jax[tpu]>=0.10; extra == "tpu"',
            f'{extras.NAME}[tpu]; extra == "all"',
            'einops>=0.8; extra == "plain"',
            'nosuch; sys_platform == "none" and extra == "plain"',
        ],
        "jax": ["numpy", 'libtpu==0.0.42.*; extra == "tpu"', 'nosuch; extra == "cuda"'],
    }
    versions: dict[str, str | None] = {extras.NAME: "0.1", "jax": "0.10.2", "einops": "0.8"}
    monkeypatch.setattr(importlib.metadata, "requires", requires.get)
    monkeypatch.setattr(installation, "_installed", versions.get)

    def lacking(extra: str) -> list[str]:
        return [*installation._lacking(extras.NAME, extra, set())]

    assert lacking("tpu") == lacking("all") == ["libtpu"] and lacking("plain") == []
    versions["libtpu"] = "0.0.41"
    assert lacking("tpu") == ["libtpu ==0.0.42.* (here is 0.0.41)"]
    versions["libtpu"] = "0.0.42.1"
    assert lacking("tpu") == []


def test_what_a_missing_extra_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages by their own names: no index has the library's."""
    monkeypatch.setattr(
        installation, "_lacking", lambda name, extra, seen: ["xprof"] if extra == "xprof" else []
    )
    missing = [one.words for one in installation._extras() if one.mark == installation.NOTE]
    assert missing == ["xprof lacks xprof: pip install 'xprof>=2.20'"]


def test_another_owner_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    spec: Any = importlib.util.find_spec("json")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: spec if name == "torch_xla" else find(name)
    )
    assert [one.mark for one in installation.findings() if one.subject == "torch_xla"] == [
        installation.NOTE
    ]


def test_a_folder_that_others_may_enter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def cache() -> str:
        return next(one.mark for one in installation.findings() if one.subject == "cache")

    monkeypatch.setattr(spmd.config, "program_cache", True)
    monkeypatch.setattr(spmd.config, "program_cache_dir", str(tmp_path / "private"))
    assert cache() == installation.OK
    (tmp_path / "private").mkdir(mode=0o700)
    assert cache() == installation.OK
    (tmp_path / "private").chmod(0o755)
    assert cache() == installation.WRONG
    monkeypatch.setattr(spmd.config, "program_cache", False)
    assert cache() == installation.NOTE


@pytest.mark.parametrize(
    ("version", "ranges", "fits"),
    [
        ("2.13.0+cpu", ">=2.11,<2.16", True),
        ("2.16.0", "<2.16,>=2.11", False),
        ("2.10.9", ">=2.11", False),
        ("3.13.2", ">=3.11,<3.14", True),
        ("1.0", "==1.0", True),
        ("0.12", "<=0.12", True),
        ("0.13", "<=0.12", False),
    ],
)
def test_ranges(version: str, ranges: str, fits: bool) -> None:
    assert installation._fits(version, SpecifierSet(ranges)) == fits
