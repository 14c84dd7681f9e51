"""Writes spmd/missing.tsv: what to write for a name of another library, from the first
tables of the pages for its users.

python tests/docs/others_names.py            writes the table
python tests/docs/others_names.py --check    writes nothing; fails where the table is out of date
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import fsdp
import spmd

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "spmd/missing.tsv"
# By page: whose names it has, and where "the same" name is.
PAGES = {
    "from-jax": ("JAX", {"spmd": spmd}),
    "from-dtensor": ("DTensor and FSDP2", {"fsdp": fsdp, "spmd.dtensor": spmd.dtensor}),
    "from-torch-xla": ("PyTorch/XLA", {"fsdp": fsdp, "spmd.torch_xla": spmd.torch_xla}),
}
_NAME = re.compile(r"[A-Za-z][\w.]*")
_NO_NAMES = {"import", "isinstance", "str", "with"}


def document() -> str:
    """Returns the text of the table: a name and an answer in each row, the nearest answer first."""
    rows = dict.fromkeys(
        (name, _names(span)[0] != name, answer)
        for page in PAGES
        for span, here, notes in _rows(page)
        for name in _names(span)
        if name and name not in dir(spmd) and (answer := _answer(name, span, here, notes, page))
    )
    modules = {"spmd": dir(spmd), "fsdp": dir(fsdp)}
    for name in {*modules["spmd"]} ^ {*modules["fsdp"]}:
        owner = next(owner for owner, names in modules.items() if name in names)
        rows[name, False, f"it is {owner}.{name}"] = None
    return "".join(
        f"{name}\t{answer}\n"
        for name, _, answer in sorted(rows, key=lambda row: (*row[:2], not row[2].startswith("it")))
        if name[0] != "_"
    )


def _rows(page: str) -> Iterator[tuple[str, str, str]]:
    """Each code span of the first column, with the text of the others, of a page's tables of three
    columns."""
    for line in (ROOT / f"docs/{page}.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and len(cells) == 3:
            for span in re.findall(r"`([^`]+)`", cells[0]):
                yield span, cells[1], cells[2]


def _names(span: str) -> list[str]:
    """The names that a reader would look for, in order: of `jit(f).lower(...)` both."""
    text = re.sub(r"\"[^\"]*\"|\([^()]*\)", "", span).replace(").", " ").split("=")[0]
    found = [one.rpartition(".")[2] for one in _NAME.findall(text)]
    return [one for one in found if one and one not in _NO_NAMES and one[0] != "_"] or [""]


def _answer(name: str, span: str, here: str, notes: str, page: str) -> str:
    """What to write; empty where the page names nothing."""
    owner, modules = PAGES[page]
    words, notes = (
        re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", text).strip() for text in (here, notes)
    )
    if words.startswith("the same"):
        place = next((place for place, one in modules.items() if name in dir(one)), None)
        words = words.removeprefix("the same: ") if place is None else f"{place}.{name}"
    if words.startswith("the same"):
        return ""
    if words == "nothing" and notes:
        words = f"nothing, as {notes}"
    return words and f"for {span} of {owner} write {words} (docs/{page}.md)"


if __name__ == "__main__":
    if "--check" not in sys.argv:
        TABLE.write_text(document())
    elif TABLE.read_text() != document():
        sys.exit(f"{TABLE} is out of date: run python tests/docs/others_names.py")
