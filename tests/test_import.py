"""Importing the library changes nothing for a program that uses no xla tensor."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("cpu_programs.py")


def printed(*arguments: str) -> dict[str, str]:
    """What each row of the table prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300, cwd=SCRIPT.parents[1]
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    text = re.sub(r"0x[0-9a-f]+", "0x", done.stdout)
    return {row.partition("\n")[0]: row for row in text.split("\n== ")}


class TestImport:
    """torch's own behaviour, to the letter of what programs print: those that meet each patch that we make of torch."""

    def test_rows(self) -> None:
        without, with_us = printed(), printed("with")
        assert [*with_us] == [*without] and len(without) > 15
        differing = {name: (with_us[name], text) for name, text in without.items() if with_us[name] != text}
        assert differing == {}
