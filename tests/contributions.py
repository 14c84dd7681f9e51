"""Five contributions made to a copy of the tree, and the files that each edits by hand: python
tests/contributions.py

Beside the code and its test a rule for an op edits one file, a flag one, a public function three, a
mended pass and a renamed function none. Commands write the others; the guards of the tree and the
contribution's test pass then.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from planted import copy_tree

TESTS = "-m", "pytest", "-q", "-p", "no:cacheprovider"
GUARDS = (
    ("-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])"),
    ("-m", "ruff", "check", "."),
    ("tests/docs/ops_page.py", "--check"),
    (*TESTS, "tests/test_floors.py", "tests/test_size.py", "tests/test_public_api.py",
        "tests/test_baseline.py", "tests/docs/test_api.py", "tests/docs/test_reading.py",
        "tests/docs/test_glossary.py", "tests/docs/test_drawn.py"),
)  # fmt: skip
CHANGES = "## Not released\n\n"


def after(words: str, text: str) -> Callable[[str], str]:
    """An edit: the text behind the first occurrence of these words."""

    def edit(source: str) -> str:
        assert words in source, words
        return source.replace(words, words + text, 1)

    return edit


def at_end(text: str) -> Callable[[str], str]:
    return lambda source: source + text


class Contribution(NamedTuple):
    """code, by_hand: an edit for each file. test: a file and what is appended to it. commands: what
    writes the rest. rename: an identifier and its new name, in every Python file. most: the files
    that it may edit by hand."""

    code: dict[str, Callable[[str], str]]
    test: tuple[str, str]
    by_hand: Mapping[str, Callable[[str], str]] = MappingProxyType({})
    commands: tuple[tuple[str, ...], ...] = ()
    rename: tuple[str, str] | None = None
    most: int = 0


CONTRIBUTIONS = {
    "a rule for an op": Contribution(
        {
            "spmd/ops/matmul.py": at_end("""

@lower(aten.addr.default)
def aten_addr(self, vec1, vec2, *, beta=1, alpha=1):
    product = alpha * jnp.outer(vec1, vec2)
    return product if beta == 0 else beta * self + product
""")
        },
        (
            "tests/ops/test_matmul.py",
            """

class TestAddr:
    def test_against_cpu(self) -> None:
        batch = Batch()
        batch.case("addr", torch.addr, torch.randn(3, 5), torch.randn(3), torch.randn(5))
        batch.check()
""",
        ),
        {"CHANGELOG.md": after(CHANGES, "- `torch.addr` has a rule of its own.\n")},
        (("tests/docs/ops_page.py",),),
        most=1,
    ),
    "a flag": Contribution(
        {
            "spmd/core/base/config.py": after(
                "FLAGS = (\n", '    Flag("echo_marks", False, "print each annotation on stderr"),\n'
            ),
        },
        (
            "tests/core/base/test_config.py",
            """

def test_echo_marks() -> None:
    assert spmd.config.echo_marks is False
""",
        ),
        {"CHANGELOG.md": after(CHANGES, "- `spmd.config.echo_marks` prints annotations.\n")},
        (("tests/test_public_api.py",),),
        most=1,
    ),
    "a public function": Contribution(
        {
            "spmd/tensors/runtime.py": at_end('''

def num_devices() -> int:
    """The number of physical devices.

    >>> import spmd
    >>> spmd.num_devices() == len(spmd.device_ids())
    True
    """
    return len(hardware.devices())
''')
        },
        (
            "tests/spmd/test_mesh.py",
            """

def test_num_devices() -> None:
    assert spmd.num_devices() == len(spmd.device_ids())
""",
        ),
        {
            "spmd/__init__.py": after(
                "from .tensors.runtime import manual_seed as manual_seed\n",
                "from .tensors.runtime import num_devices as num_devices\n",
            ),
            "docs/site/api.py": after('"device device_ids ', "num_devices "),
            "CHANGELOG.md": after(CHANGES, "- `spmd.num_devices()`.\n"),
        },
        (("tests/test_public_api.py",), ("docs/site/api.py",)),
        most=3,
    ),
    "a mended pass": Contribution(
        {"spmd/core/passes/repeats.py": at_end("\n_MENDED = True\n")},
        (
            "tests/core/passes/test_scan_layers.py",
            """

def test_is_mended() -> None:
    from spmd.core.passes import repeats

    assert repeats._MENDED
""",
        ),
    ),
    "a renamed function": Contribution(
        {}, ("tests/core/record/test_views.py", ""), rename=("storage_of", "buffer_of")
    ),
}


def failures(contribution: Contribution) -> list[str]:
    """What goes wrong in a copy of the tree with a contribution; empty if it is whole."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copy_tree(copy)
        subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
        for name, edit in {**contribution.code, **contribution.by_hand}.items():
            (copy / name).write_text(edit((copy / name).read_text()))
        file, text = contribution.test
        (copy / file).write_text((copy / file).read_text() + text)
        if contribution.rename is not None:
            old, new = contribution.rename
            for path in (
                path
                for part in ("spmd", "fsdp", "tests", "recipes")
                for path in (copy / part).rglob("*.py")
            ):
                source = path.read_text()
                path.write_text(
                    re.sub(rf"(?<!\.)\b{old}\b|(?<=\.){old}\b", new, source)
                ) if old in source else None
            subprocess.run(
                [sys.executable, "-m", "ruff", "check", "--fix", "-q", "."], cwd=copy, check=False
            )
        environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        lines = []
        for command in (*contribution.commands, *GUARDS, (*TESTS, file)):
            result = subprocess.run(
                [sys.executable, *command],
                cwd=copy,
                env=environment,
                capture_output=True,
                text=True,
            )
            if result.returncode:
                lines.append(f"{' '.join(command[-2:])}: {(result.stdout + result.stderr)[-1200:]}")
        if len(contribution.by_hand) > contribution.most:
            lines.append(
                f"edits {', '.join(contribution.by_hand)} by hand; at most {contribution.most} "
                "files are meant"
            )
        return lines


if __name__ == "__main__":
    is_whole = True
    for title, contribution in CONTRIBUTIONS.items():
        if sys.argv[1:] and title not in sys.argv[1:]:
            continue
        lines = failures(contribution)
        is_whole = is_whole and not lines
        by_hand = ", ".join(contribution.by_hand) or "none"
        print(
            f"{title}: beside code and test {len(contribution.by_hand)} files by hand ({by_hand})",
            *lines,
            sep="\n  ",
        )
    sys.exit(not is_whole)
