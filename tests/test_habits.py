"""Files that a repository is expected to have: they agree with each other, and name what is to be
filled in."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from commit_message import faults

import fsdp
import spmd

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDERS = ("OWNER/torch-spmd", "OWNER.github.io", "SECURITY-CONTACT", "The torch-spmd authors")
PACKAGES = ("spmd", "fsdp")


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    return [
        ROOT / name
        for name in listed
        if name.endswith((".md", ".toml", ".yml", ".cff", ".txt", ".py", "LICENSE"))
    ]


class TestOneFact:
    """The version, and who the project belongs to, are said in one way."""

    def test_version(self) -> None:
        number = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == number
        assert f"\n## {number} " in (ROOT / "CHANGELOG.md").read_text()

    @pytest.mark.parametrize("text", PLACEHOLDERS)
    def test_what_is_to_be_filled_in(self, text: str) -> None:
        """CONTRIBUTING lists the files of each unknown, and no other file has it."""
        here = Path(__file__).resolve()
        holding = {
            path.relative_to(ROOT).as_posix()
            for path in tracked()
            if path != here and text in path.read_text()
        }
        row = next(
            line
            for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines()
            if line.startswith(f"| `{text}`")
        )
        assert holding - {"CONTRIBUTING.md"} == {
            name.strip(" `") for name in row.split("|")[3].split(",")
        }


class TestLlms:
    """llms.txt is made of the pages as they are."""

    def test_as_made(self) -> None:
        script = (
            "import sys; sys.path.insert(0, 'docs/site'); import llms; "
            "sys.stdout.write(llms.llms())"
        )
        printed = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert printed.stdout == (ROOT / "llms.txt").read_text(), "run python docs/site/llms.py"


class TestCommitMessage:
    """The hook of commits takes a short subject, an empty line and a reason."""

    @pytest.mark.parametrize(
        ("message", "found"),
        [
            ("A table instead of hooks\n\nEach reader had one of its own.\n", ""),
            ("A table\n# Please enter the commit message\n\nWhy.\n", ""),
            ("Merge branch 'x'\n", ""),
            ("", "is empty"),
            ("A" * 73 + "\n\nWhy.", "has 73 characters"),
            ("A table.\n\nWhy.", "full stop"),
            ("A table\nWhy.", "second line"),
            ("A table\n", "must say why"),
        ],
    )
    def test_faults(self, message: str, found: str) -> None:
        assert (found in "; ".join(faults(message))) if found else not faults(message)

    def test_as_a_hook(self, tmp_path: Path) -> None:
        (tmp_path / "message").write_text("A table\n")
        done = subprocess.run(
            [sys.executable, ROOT / "tests/commit_message.py", tmp_path / "message"],
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (
            1,
            "'A table': after an empty line the message must say why\n",
        )


class TestNames:
    """`spmd.<tab>` and `from spmd import *` have what docs/api.md lists, and no folder of the
    code."""

    @pytest.mark.parametrize("package", [spmd, fsdp], ids=PACKAGES)
    def test_no_folder(self, package: object) -> None:
        files = (ROOT / package.__name__).iterdir()  # type: ignore[attr-defined]
        parts = {path.stem for path in files if path.suffix != ".pyi"}
        known = {"manual", "fully_shard"}  # the module, and the function of that name
        assert not (parts & set(dir(package))) - known
        assert set(package.__all__) == {name for name in dir(package) if name[0] != "_"}  # type: ignore[attr-defined]
