"""docs/benchmarks.md, its charts and rows of the README: docs/results/ and the words of
docs/site/*.jinja."""

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
README = results.ROOT / "README.md"
_BEGIN, _END = "<!-- make bench-all writes these rows -->\n", "<!-- to here -->\n"
_WORDS = results.ROOT / "docs" / "site"
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
NOT_RUN = "Planned, not run"  # the heading of a table of plans
_GREY = "#808080"  # to be read on white and on black
Table = dict[str, Any]


def number(text: str) -> float | None:
    """The number of a text: a ratio behind "=", else its first one."""
    match = _NUMBER.search(text.rpartition("=")[2])
    return float(match[0].replace(",", "")) if match else None


def joined(tables: list[Table], rows: tuple[str, ...]) -> Table:
    """One table of several whose first columns name the same figures: a row of "ours / other =
    ratio" for each."""
    found = []
    for table in tables:
        sides = [
            place for place, name in enumerate(table["columns"]) if name not in ("", "ratio", "bar")
        ]
        by_name = {row[0]: [row[place] for place in sides] for row in table["rows"]}
        found.append([table["title"], *(_compared(by_name.get(name, ["-"])) for name in rows)])
    shown = [place for place in range(len(rows) + 1) if any(row[place] != "-" for row in found)]
    columns = ["step: ours / JAX by hand", *rows]
    return {
        "title": "",
        "columns": [columns[n] for n in shown],
        "rows": [[row[n] for n in shown] for row in found],
    }


def _compared(texts: list[str]) -> str:
    numbers = [number(each) for each in texts]
    if len(texts) != 2 or not all(numbers):
        return " / ".join(texts) if set(texts) != {"-"} else "-"
    ratio = (numbers[0] or 0) / (numbers[1] or 1)
    return f"{' / '.join(texts)} = " + (f"**{ratio:.2f}**" if ratio < 0.995 else f"{ratio:.2f}")


def tables_of(name: str, run: Run) -> list[Table]:
    tables: list[Table] = run["tables"]
    tables = [joined(tables, SECTIONS[name].rows)] if SECTIONS[name].rows else tables
    if not SECTIONS[name].is_planned:
        return tables
    return [
        {**table, "title": ": ".join(filter(None, (NOT_RUN, table["title"])))} for table in tables
    ]


def markdown(table: Table) -> str:
    """A table in Markdown, with numbers to the right."""
    texts = [
        [each.replace("|", "\\|") for each in row] for row in (table["columns"], *table["rows"])
    ]
    sides = [
        "---:" if all(map(_is_number, column)) else "---" for column in zip(*texts[1:], strict=True)
    ]
    lines = [f"| {' | '.join(row)} |" for row in (texts[0], sides, *texts[1:])]
    return "\n".join([*([table["title"], ""] if table["title"] else []), *lines])


def _is_number(text: str) -> bool:
    return re.fullmatch(r"(yes|no|[-\d.,\s/=*()%]|to)*", text) is not None


def origin(run: Run) -> str:
    """A line that says where figures are from."""
    machine, versions = (
        run["machine"],
        ", ".join(f"{name} {number}" for name, number in run["versions"].items()),
    )
    size = f"{machine['processor']}, {machine['cores']} cores, {machine['memory']} GiB"
    load = f", load {run['load']} before" if run.get("load") is not None else ""
    seconds = f", {run['seconds']} s" if run["seconds"] is not None else ""
    line = f"{run['date']}, commit {run['commit']}{seconds} on {size}{load}; {versions}."
    return f"<small>{line}</small>"


def age(name: str) -> list[str]:
    """A line that says which code of a section has changed since its runs, if any has."""
    changed = dict.fromkeys(
        path for run in results.runs_of(name) for path in results.changed_since(name, run)
    )
    return (
        [f"**Older than its code**: changed since are {', '.join(map('`{}`'.format, changed))}."]
        if changed
        else []
    )


def section(name: str) -> str:
    """The commands of a section, their tables and lines, and where they are from."""
    parts = []
    for run in results.runs_of(name):
        parts += [f"    {run['command']}", *map(markdown, tables_of(name, run))]
        shown = (
            [line for line in run["lines"] if line.startswith(SECTIONS[name].lines)]
            if SECTIONS[name].lines
            else []
        )
        parts += ["\n".join(f"- {line}" for line in shown)] if shown else []
        parts.append(origin(run))
    parts += age(name)
    if SECTIONS[name].charted and parts:
        parts.append(f"![the ratios of the table as bars](results/{name}.svg)")
    return "\n\n".join(parts) or "No run is kept."


def value(name: str, row: str, column: str, run: int = 0, title: str = "") -> str:
    """A value of a section, in the first of its tables that has the column and whose title begins
    so; row: how its row begins, in one text."""
    tables = tables_of(name, results.runs_of(name)[run])
    table = next(
        each for each in tables if column in each["columns"] and each["title"].startswith(title)
    )
    return next(
        str(texts[table["columns"].index(column)])
        for texts in table["rows"]
        if " ".join(texts).startswith(row)
    )


def line(name: str, begins: str, run: int = 0) -> str:
    """The first word of a printed line behind how it begins."""
    lines = results.runs_of(name)[run]["lines"]
    return str(
        next(each.removeprefix(begins).split()[0] for each in lines if each.startswith(begins))
    )


def filled(template: str) -> str:
    """The text of a template with figures in it."""
    words = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_WORDS),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    return words.get_template(template).render(section=section, value=value, line=line)


def readme() -> str:
    """The README with its measured rows."""
    before, begin, rest = README.read_text().partition(_BEGIN)
    return f"{before}{begin}{filled('measured.md.jinja')}{_END}{rest.partition(_END)[2]}"


def chart(name: str, path: Path) -> None:
    """Draws the charted columns of a section's first table as bars, a group for each row."""
    found = tables_of(name, results.runs_of(name)[0])[0]
    columns = [column for column in SECTIONS[name].charted if column in found["columns"]]
    first = found["columns"].index(columns[0])
    labels = [
        " ".join(row[: max(1, min(first, 2))]) if first > 1 else row[0] for row in found["rows"]
    ]
    style = {
        "text.color": _GREY,
        "axes.labelcolor": _GREY,
        "xtick.color": _GREY,
        "ytick.color": _GREY,
    }
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
            axes.bar_label(
                axes.bar(at, heights, 0.9 * width, label=column), fmt="{:.2f}", padding=2, size=8
            )
        axes.axhline(1.0, color=_GREY, linewidth=1, linestyle="--", label="JAX by hand")
        axes.set_xticks(range(len(labels)), [label.replace(" ", "\n", 1) for label in labels])
        axes.set(ylabel="of JAX by hand")
        figure.legend(loc="outside lower center", ncols=5, frameon=False)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def write() -> None:
    """Writes the page, its charts and the rows of the README."""
    matplotlib.use("agg")  # needs no screen
    for name, section in SECTIONS.items():
        if section.charted and results.runs_of(name):
            chart(name, results.FOLDER / f"{name}.svg")
    PAGE.write_text(filled("benchmarks.md.jinja"))
    README.write_text(readme())
