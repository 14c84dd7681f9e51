"""The workflow of GitHub, read without it: its matrix is tests/versions.txt, and what it runs are
targets of make."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
LINES = [
    line.split()
    for line in (ROOT / "tests" / "versions.txt").read_text().splitlines()
    if line[:1] not in "#"
]
# what a user may install
PYPROJECT = (ROOT / "pyproject.toml").read_text().partition("[tool.uv]")[0]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def rows() -> list[dict[str, str]]:
    return WORKFLOW["jobs"]["versions"]["strategy"]["matrix"]["include"]


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


class TestWorkflow:
    """Each environment once, on a Python of its line, by a target that there is."""

    def test_environments_are_those_of_the_file(self) -> None:
        assert [row["environment"] for row in rows()] == [name for name, *_ in LINES]
        for row, (_, pythons, *_) in zip(rows(), LINES, strict=True):
            assert row["python"] == pythons.split(",")[0], row

    def test_targets(self) -> None:
        jobs = WORKFLOW["jobs"]
        named = {*jobs["tests"]["strategy"]["matrix"]["target"], *(row["target"] for row in rows())}
        assert named <= TARGETS, named - TARGETS
        assert commands(jobs["tests"]) == ["make ${{ matrix.target }}"]
        assert commands(jobs["versions"]) == [
            "make ${{ matrix.target }} OLD=${{ matrix.environment }}"
        ]

    def test_what_continuous_integration_runs(self) -> None:
        run_here = set(
            re.findall(r"^make ([a-z-]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
        )
        named = set(WORKFLOW["jobs"]["tests"]["strategy"]["matrix"]["target"])
        assert named <= run_here and {"lint", "site", "test"} <= named, run_here ^ named

    @pytest.mark.parametrize(
        ("commit", "target"),
        [("1e", "smoke-newest"), ("f0", "smoke-newest"), ("ef", "smoke-oldest")],
    )
    def test_short_forms_alternate(self, commit: str, target: str) -> None:
        (line,) = [
            line for line in (ROOT / ".ci" / "run").read_text().splitlines() if "smoke" in line
        ]
        script = f"git() {{ echo {commit}; }}; make() {{ echo $1; }}; {line}"
        assert (
            subprocess.run(["bash", "-euc", script], capture_output=True, text=True).stdout
            == f"{target}\n"
        )


class TestVersions:
    """Pins lie in the ranges of pyproject.toml, and the oldest are its floors."""

    @pytest.mark.parametrize("line", LINES, ids=lambda line: line[0])
    def test_pins_are_allowed(self, line: list[str]) -> None:
        _, pythons, extras, *pins = line
        for minor in pythons.split(","):
            assert f"Programming Language :: Python :: {minor}" in PYPROJECT
        for extra in extras.split(","):
            assert re.search(rf"^{extra} = \[", PYPROJECT, re.MULTILINE), extra
        for pin in map(Requirement, pins):
            for allowed in re.findall(rf'"{pin.name}([<>=][^"]*)"', PYPROJECT):
                versions = [each.version for each in pin.specifier if each.operator == "=="]
                assert all(SpecifierSet(allowed).contains(version) for version in versions), (
                    pin,
                    allowed,
                )

    def test_oldest_are_the_floors(self) -> None:
        pins = {Requirement(pin).name: pin.partition("==")[2] for pin in LINES[0][3:]}
        # trl's floor; 4.50 has its own line
        assert LINES[0][0] == "oldest" and pins["transformers"] == "4.53.2"
        # the latter is lightning's other name
        for name in pins.keys() - {"transformers", "pytorch-lightning"}:
            (floor,) = set(re.findall(rf'"{name}>=([0-9.]+)', PYPROJECT))
            assert Version(pins[name]) == Version(floor), name

    def test_an_unknown_name(self) -> None:
        done = subprocess.run(
            [ROOT / "tests" / "environment.sh", "older", "folder"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (
            1,
            "tests/environment.sh: no 'older' in tests/versions.txt\n",
        )
