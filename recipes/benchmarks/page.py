"""docs/benchmarks.md and its charts, from docs/results/ and the words in docs/site/benchmarks.md.jinja."""

import re
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
from matplotlib import pyplot

from recipes.benchmarks import results
from recipes.benchmarks.results import Run
from recipes.benchmarks.sections import SECTIONS

PAGE = results.ROOT / "docs" / "benchmarks.md"
_WORDS = results.ROOT / "docs" / "site"
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_GREY = "#808080"  # to be read on white and on black
Table = dict[str, Any]


def number(text: str) -> float | None:
    """The number that a cell stands for: a ratio behind "=", else its first one."""
    match = _NUMBER.search(text.rpartition("=")[2])
    return float(match[0].replace(",", "")) if match else None


def joined(tables: list[Table], rows: tuple[str, ...]) -> Table:
    """One table of several whose first columns name the same figures: a row of "ours / other = ratio" for each."""
    found = []
    for table in tables:
        sides = [place for place, name in enumerate(table["columns"]) if name not in ("", "ratio", "bar")]
        by_name = {row[0]: [row[place] for place in sides] for row in table["rows"]}
        found.append([table["title"], *(_compared(by_name.get(name, ["-"])) for name in rows)])
    shown = [place for place in range(len(rows) + 1) if any(row[place] != "-" for row in found)]
    columns = ["step: ours / JAX by hand", *rows]
    return {"title": "", "columns": [columns[n] for n in shown], "rows": [[row[n] for n in shown] for row in found]}


def _compared(cells: list[str]) -> str:
    numbers = [number(cell) for cell in cells]
    if len(cells) != 2 or not all(numbers):
        return " / ".join(cells) if set(cells) != {"-"} else "-"
    ratio = f"{(numbers[0] or 0) / (numbers[1] or 1):.2f}"
    return f"{' / '.join(cells)} = **{ratio}**"


def tables_of(name: str, run: Run) -> list[Table]:
    tables: list[Table] = run["tables"]
    return [joined(tables, SECTIONS[name].rows)] if SECTIONS[name].rows else tables


def markdown(table: Table) -> str:
    """A table in Markdown, with numbers to the right."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (table["columns"], *table["rows"])]
    sides = ["---:" if all(map(_is_number, column)) else "---" for column in zip(*cells[1:], strict=True)]
    lines = [f"| {' | '.join(row)} |" for row in (cells[0], sides, *cells[1:])]
    return "\n".join([*([table["title"], ""] if table["title"] else []), *lines])


def _is_number(cell: str) -> bool:
    return not cell.strip() or cell in ("-", "yes", "no") or _NUMBER.match(cell.lstrip("*")) is not None


def origin(name: str, run: Run) -> str:
    """A line that says where figures are from, and one where they are older than their code."""
    machine, versions = run["machine"], ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    size = f"{machine['processor']}, {machine['cores']} cores, {machine['memory']} GiB"
    load = f", load {run['load']} before" if run.get("load") is not None else ""
    seconds = f", {run['seconds']} s" if run["seconds"] is not None else ""
    line = f"{run['date']}, commit {run['commit']}{seconds} on {size}{load}; {versions}."
    changed = results.changed_since(name, run)
    old = (
        f"\n\n**Older than its code**: changed since are {', '.join(f'`{path}`' for path in changed)}."
        if changed
        else ""
    )
    return f"<small>{line}</small>{old}"


def section(name: str) -> str:
    """The commands of a section, their tables and lines, and where they are from."""
    parts = []
    for run in results.runs_of(name):
        parts += [f"    {run['command']}", *map(markdown, tables_of(name, run))]
        parts += ["\n".join(f"- {line}" for line in run.get("shown", ()))] if run.get("shown") else []
        parts.append(origin(name, run))
    if SECTIONS[name].charted:
        parts.append(f"![the ratios of the table as bars](results/{name}.svg)")
    return "\n\n".join(parts) or "No run is kept."


def value(name: str, row: str, column: str, table: int = 0, run: int = 0) -> str:
    """A cell of a section, by the text that its row begins with, for sentences of the page."""
    of_run = results.runs_of(name)[run]
    found = tables_of(name, of_run)[table]
    cells = next(cells for cells in found["rows"] if cells[0].startswith(row))
    return str(cells[found["columns"].index(column)])


def text() -> str:
    words = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_WORDS), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    return words.get_template("benchmarks.md.jinja").render(section=section, value=value)


def chart(name: str, path: Path) -> None:
    """Draws the charted columns of a section's first table as bars, a group for each row."""
    found = tables_of(name, results.runs_of(name)[0])[0]
    columns = [column for column in SECTIONS[name].charted if column in found["columns"]]
    first = found["columns"].index(columns[0])
    labels = [" ".join(row[: max(1, min(first, 2))]) if first > 1 else row[0] for row in found["rows"]]
    style = {"text.color": _GREY, "axes.labelcolor": _GREY, "xtick.color": _GREY, "ytick.color": _GREY}
    settings: dict[Any, Any] = {
        **style,
        "axes.edgecolor": _GREY,
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.family": "sans-serif",
    }
    with matplotlib.rc_context():
        matplotlib.rcParams.update(settings)
        figure, axes = pyplot.subplots(figsize=(9, 4), layout="constrained")
        width = 0.8 / len(columns)
        for place, column in enumerate(columns):
            heights = [number(row[found["columns"].index(column)]) or 0.0 for row in found["rows"]]
            at = [group + (place - (len(columns) - 1) / 2) * width for group in range(len(labels))]
            axes.bar_label(axes.bar(at, heights, 0.9 * width, label=column), fmt="{:.2f}", padding=2, size=8)
        axes.axhline(1.0, color=_GREY, linewidth=1, linestyle="--", label="JAX by hand")
        axes.set_xticks(range(len(labels)), [label.replace(" ", "\n", 1) for label in labels])
        axes.set(ylabel="of JAX by hand")
        figure.legend(loc="outside lower center", ncols=5, frameon=False)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def write() -> None:
    """Writes the page and the charts."""
    matplotlib.use("agg")  # needs no screen
    for name, section in SECTIONS.items():
        if section.charted and results.runs_of(name):
            chart(name, results.FOLDER / f"{name}.svg")
    PAGE.write_text(text())
