"""No line of the tree has pip look for this project on an index, which does not have it: a stranger
could."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from spmd.core.base import extras

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMES = {PROJECT["name"], "spmd", "fsdp"}
# Its extras of extras: the build backend and pip resolve them to the project itself.
EXEMPT = {"pyproject.toml", Path(__file__).relative_to(ROOT).as_posix()}

_INSTALLERS = r"\b(?:pip[\d.]*|pipx|uv|uvx|conda|mamba|poetry|pdm)\b"
_COMMAND = re.compile(
    rf"{_INSTALLERS}[^\n`;|&#]*?\b(?:install|add|download|wheel|run)\b(?P<rest>[^\n`;|&#]*)", re.I
)
_WORD = re.compile(r"""[^\s"'\\,()]+""")
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?=$|[\[=<>~!@{:.])")
_EXTRA = re.compile(
    r"(?<![\w./-])(?P<name>torch[-_.]spmd|spmd|fsdp)\[[a-z][a-z,{}-]*\](?!\()", re.I
)
_PLACEHOLDER = re.compile(r"\{[^}]*\b(?:NAME|__package__)\b[^}]*\}")
_ENTRY = re.compile(
    r"^[ \t]*(?:- )?[\"']?(?:torch[-_.]spmd|spmd|fsdp)[ \t]*(?:[=<>~!@].*)?[\"']?[ \t]*$",
    re.I | re.M,
)
_FILES_OF_REQUIREMENTS = re.compile(
    r"(requirements|constraints|environment|versions)[^/]*\.(txt|ya?ml)$"
)


def lines(name: str, text: str) -> Iterator[str]:
    """The lines of a file that would have an installer look for this project on an index."""
    # A command may go on: behind a backslash, or in a span of code that Markdown wraps.
    text = re.sub(
        r"(?<!`)`[^`\n]+(?:\n[^`\n]+)?`(?!`)", lambda span: span[0].replace("\n", " "), text
    )
    text = re.sub(r"\\\n", " ", text)
    for command in _COMMAND.finditer(text):
        words = _WORD.findall(command["rest"])
        requirements = filter(None, map(_REQUIREMENT.match, words))
        if any(normal(match["name"]) in NAMES for match in requirements) or _PLACEHOLDER.search(
            command["rest"]
        ):
            yield command[0]
    yield from (match[0] for match in _EXTRA.finditer(text))
    if _FILES_OF_REQUIREMENTS.search(name):
        yield from (match[0] for match in _ENTRY.finditer(text))


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def tracked() -> Iterator[tuple[str, str]]:
    """The files of the tree that are text, by their names."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in listed.rstrip("\0").split("\0"):
        content = (ROOT / name).read_bytes()
        if name not in EXEMPT and b"\0" not in content:
            yield name, content.decode()


def test_name() -> None:
    assert PROJECT["name"] == extras.NAME


def test_tree() -> None:
    """Code, pages, notebooks, recipes, and the README, which is the wheel's description."""
    files = dict(tracked())
    suffixes = {
        ".py",
        ".md",
        ".ipynb",
        ".toml",
        ".yml",
        ".json",
        ".txt",
        ".Dockerfile",
        ".sh",
        ".jinja",
    }
    assert suffixes <= {Path(name).suffix for name in (*files, *EXEMPT)} and {
        "Makefile",
        PROJECT["readme"],
    } <= {*files}
    assert {name: found for name, text in files.items() if (found := [*lines(name, text)])} == {}


@pytest.mark.parametrize(
    "text",
    [
        "pip install torch-spmd",
        "pip install -U Torch_SPMD==0.9",
        "python -m pip install --quiet 'torch.spmd>=0.9'",
        '"%pip install --quiet \\"torch-spmd[tpu,gpu-plan]\\""',
        '"%pip install --quiet torch-spmd"',
        "Install `'torch-spmd[export]'` for it.",
        "needs spmd[tpu]",
        'f"pip install {NAME}"',
        "f'lacks it: pip install \"{extras.NAME}[{extra}]\"'",
        "RUN pip install torch==2.13.0 \\\n    torch-spmd",
        "(`pip install\n'torch-spmd'`)",
        "uv pip install spmd",
        "uv add fsdp",
        "conda install -c forge torch-spmd",
        '["pip", "install", "torch-spmd"]',
        "pipx run torch-spmd",
    ],
)
def test_planted(text: str) -> None:
    assert [*lines("docs/page.md", text)] != []


@pytest.mark.parametrize(
    "text", ["torch-spmd==0.9\n", "numpy\n- spmd\n", "fsdp\n", "  - torch-spmd>=0.9  \n"]
)
def test_planted_in_requirements(text: str) -> None:
    assert [*lines("requirements.txt", text)] != [] and [*lines("docs/page.md", text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "pip install .  # torch-spmd in a checkout",
        "pip install './torch_spmd-0.10.0rc1-py3-none-any.whl[tpu]'",
        "pip install -e '.[test]'",
        '"%pip install --quiet \\"../..[tpu]\\""',
        'pip install "jax[tpu]"',
        "docker build -t torch-spmd:cpu .",
        "spmd.config[name]",
        "pip install orbax-checkpoint; import spmd",
        "uv sync",
        "pip install dist/torch_spmd-0.10.0rc1.tar.gz",
        "`pip install xprof`, then `python -m spmd doctor`",
    ],
)
def test_right(text: str) -> None:
    assert [*lines("docs/page.md", text)] == []


def test_extras_of_a_checkout() -> None:
    """Each extra that a line names for a checkout or a wheel is one of pyproject.toml."""
    named = {
        extra
        for _, text in tracked()
        for match in re.finditer(
            r"""[Ii]nstall[^\n]*['"` ](?:\.|\.\./\.\.|[^\s'"`]+\.whl)\[([a-z,-]+)\]""", text
        )
        for extra in match[1].split(",")
    }
    assert len(named) > 5 and named <= {*PROJECT["optional-dependencies"]}
