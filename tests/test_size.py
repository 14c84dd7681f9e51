"""Each package has at most 1 % more statements than tests/size.tsv says.

python tests/test_size.py    # writes the file for the tree as it is, for a commit of its own
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from size import statements

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests/size.tsv"
SLACK = 1.01


def committed() -> dict[str, int]:
    rows = (line.split("\t") for line in TABLE.read_text().splitlines())
    return {package: int(size) for package, size in rows}


def excesses(sizes: Counter[str], limits: dict[str, int]) -> Iterator[str]:
    for package, size in sizes.items():
        if size > limits.get(package, 0) * SLACK:
            yield (
                f"{package}: {size:,} statements, committed {limits.get(package, 0):,} and 1 %; "
                "shorten it, or run python tests/test_size.py and commit tests/size.tsv alone, "
                "with what the statements are for"
            )


def test_size() -> None:
    limits, sizes = committed(), statements(ROOT)
    assert limits.keys() == sizes.keys()
    assert [*excesses(sizes, limits)] == []


def test_excess_names_the_command() -> None:
    words = [*excesses(Counter(core=1012, tools=1010), {"core": 1000, "tools": 1000})]
    assert (
        len(words) == 1
        and words[0].startswith("core: 1,012 statements")
        and "python tests/test_size.py" in words[0]
    )


if __name__ == "__main__":
    TABLE.write_text(
        "".join(f"{package}\t{size}\n" for package, size in sorted(statements(ROOT).items()))
    )
