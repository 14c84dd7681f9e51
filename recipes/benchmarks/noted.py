"""Run a benchmark, and write the tables and lines that it prints by rich as JSON.

    python -m recipes.benchmarks.noted out/step.json recipes.benchmarks.step --pairs 8

`results.py` calls it for each command of docs/benchmarks.md, in a process of its own.
"""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

Note = dict[str, Any]


def plain(value: Any) -> str:
    """The text of a value, without markup."""
    return " ".join(
        (value if isinstance(value, Text) else Text.from_markup(str(value))).plain.split()
    )


def note_of(table: Table) -> Note:
    """A table as lists of texts."""
    columns = [plain(column.header) for column in table.columns]
    rows = [
        [*map(plain, row)] for row in zip(*(column.cells for column in table.columns), strict=True)
    ]
    return {"title": plain(table.title or ""), "columns": columns, "rows": rows}


def main() -> None:
    path, module, *arguments = sys.argv[1:]
    printed: list[Any] = []
    show = Console.print

    def noted(console: Console, *objects: Any, **options: Any) -> None:
        printed.extend(objects)
        show(console, *objects, **options)

    setattr(Console, "print", noted)  # noqa: B010  # its type is that of all of its keywords
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    tables = [note_of(each) for each in printed if isinstance(each, Table)]
    lines = [plain(each) for each in printed if isinstance(each, str)]
    Path(path).write_text(json.dumps({"tables": tables, "lines": lines}))


if __name__ == "__main__":
    main()
