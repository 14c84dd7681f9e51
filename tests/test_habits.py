"""Files that a repository is expected to have: they agree with each other, and name what is to be
filled in."""

import shutil
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
OWNER = tomllib.loads((ROOT / "owner.toml").read_text())
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

    @pytest.mark.parametrize("name", OWNER)
    def test_what_the_owner_fills_in(self, name: str) -> None:
        """owner.toml lists the files that hold each value, and no other file holds it."""
        texts = [text.format(OWNER[name]["value"]) for text in OWNER[name]["texts"]]
        holding = {
            path.relative_to(ROOT).as_posix()
            for path in tracked()
            if any(text in path.read_text() for text in texts)
        }
        assert holding - {"owner.toml"} == {*OWNER[name]["files"]}

    def test_a_script_fills_it_in(self, tmp_path: Path) -> None:
        """In a copy of the tree each value is in all of its files, the old one in none, and once
        more another one."""
        for path in tracked():
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text())
        script = tmp_path / ".ci/fill.py"
        for values in (("some-body", "a@example.org", "Some Body"), ("x", "b@example.org", "B, C")):
            options = [f"--{name}={value}" for name, value in zip(OWNER, values, strict=True)]
            done = subprocess.run(
                [sys.executable, script, *options], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            listed = {file for row in OWNER.values() for file in row["files"]}
            assert {*done.stdout.split()} == {"owner.toml", *listed}
            for value, row in zip(values, OWNER.values(), strict=True):
                for text in [(tmp_path / file).read_text() for file in row["files"]]:
                    assert any(form.format(value) in text for form in row["texts"])
        old = [form.format(row["value"]) for row in OWNER.values() for form in row["texts"]]
        texts = [(tmp_path / path.relative_to(ROOT)).read_text() for path in tracked()]
        assert not any(each in text for each in old for text in texts)
        assert tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["authors"] == [
            {"name": "B, C"}
        ]
        assert yaml.safe_load((tmp_path / "CITATION.cff").read_text())["authors"] == [
            {"name": "B, C"}
        ]

    @pytest.mark.parametrize(
        "option", [("--owner", "a/b"), ("--authors", "A: B"), ("--security-contact", "two words")]
    )
    def test_what_a_file_cannot_hold(self, option: tuple[str, str], tmp_path: Path) -> None:
        """Such a value is refused before anything is written."""
        shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
        for name in {"owner.toml", *(file for row in OWNER.values() for file in row["files"])}:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
        command = [sys.executable, tmp_path / ".ci/fill.py", *option]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2 and f"error: {option[0]}: expected" in done.stderr
        assert (tmp_path / "owner.toml").read_text() == (ROOT / "owner.toml").read_text()


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
