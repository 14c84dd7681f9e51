"""Golden graphs: the StableHLO that XLA is given for a few programs is the kept one, to the letter.

The files beside this one are meant to be reviewed: a change of lowering, sharding or donation is a
diff of them. `python tests/golden/record.py` writes them anew.
"""

import difflib
from itertools import islice

import pytest
from golden.programs import PROGRAMS, kept_file, text_of

SHOWN = 40  # lines of a difference


def explain(name: str, kept: str, made: str) -> str:
    """The first lines of the difference, and what to do about it."""
    file = kept_file(name).name
    diff = difflib.unified_diff(kept.splitlines(), made.splitlines(), file, "now", n=1, lineterm="")
    shown = [line if len(line) <= 200 else f"{line[:200]}..." for line in islice(diff, SHOWN)]
    return "\n".join(
        [
            f"{name} is another program than the one kept in tests/golden/{file}:",
            *shown,
            *(["... and more"] if next(diff, None) is not None else []),
            (
                f"If that is meant, `python tests/golden/record.py {name}` records it anew; "
                "commit what `git diff` then shows."
            ),
        ]
    )


class TestGolden:
    """A change that should not change numbers gives the same programs under both partitioners."""

    @pytest.mark.parametrize("name", PROGRAMS)
    def test_program(self, name: str) -> None:
        kept, made = kept_file(name).read_text(), text_of(name)
        if made.split("\n", 1)[1] != kept.split("\n", 1)[1]:  # the first line names versions
            pytest.fail(explain(name, kept, made), pytrace=False)

    def test_every_file_has_a_program(self) -> None:
        folder = kept_file("").parent
        files = {
            f"{name}.{partitioner}.mlir" for name in PROGRAMS for partitioner in ("gspmd", "shardy")
        }
        assert {path.name for path in folder.glob("*.mlir")} == files


class TestDifference:
    """A program that has changed is shown as a short diff, with the command that records it
    anew."""

    def test_message(self) -> None:
        kept = "\n".join(f"line {i}" for i in range(100))
        message = explain("two_meshes", kept, kept.replace("line 7\n", "another line\n"))
        assert (
            "-line 7\n+another line\n" in message
            and "line 9\n" not in message
            and "and more" not in message
        )
        assert "`python tests/golden/record.py two_meshes` records it anew" in message

    def test_a_long_difference_is_cut(self) -> None:
        message = explain("two_meshes", "a\n" * 100, "b\n" * 99 + "c" * 1000)
        assert len(message.splitlines()) == SHOWN + 3 and "... and more" in message
