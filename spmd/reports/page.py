"""A plan as one self-contained HTML page: pictures inline, the full table of collectives, no external files."""

import base64
import io
from collections.abc import Collection, Iterable, Sequence
from html import escape

from matplotlib.figure import Figure

from ..planning.report import Plan
from . import table

_GREY = "#9aa5b1"
_COLORS = {
    "parameters": "#4c78a8", "gradients": "#72b7b2", "optimizer state": "#54a24b", "inputs": "#b279a2",
    "other arguments": _GREY, "temporaries": "#f58518", "free": "#e8ecf0",
}  # fmt: skip
_KIND_COLORS = {
    "all-gather": "#4c78a8", "reduce-scatter": "#54a24b", "all-reduce + slice": "#88d27a", "all-reduce": "#e45756",
    "all-to-all": "#b279a2", "collective-permute": "#f58518",
}  # fmt: skip
_BARS = 12  # in the picture of collectives

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; color: #1f2933; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; vertical-align: top; }
th { border-bottom: 2px solid #cbd2d9; } tr:nth-child(even) { background: #f5f7fa; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
code { font-size: .85em; color: #52606d; word-break: break-word; } img { max-width: 100%; }
.bad { color: #b42318; font-weight: 600; } .good { color: #1b7f3b; font-weight: 600; } .note { color: #52606d; }
"""


def page_of(plan: Plan) -> str:
    """The HTML text of the page."""
    compiled = f"{plan.num_programs} program(s), {plan.num_ops:,} ops"
    rows = [*table.figures(plan), ("compile time", f"{plan.compile_seconds:.2f} s", compiled)]
    collectives: list[tuple[_Cell, ...]] = [
        (*texts, (origin, line)) for texts, origin, line in table.collective_rows(plan)
    ]
    sections = {
        "Memory of one device": _memory(plan) + _table(("per device", "", "exactly"), rows, {1, 2}),
        "Time": plan.formula
        and f"<p>{escape(plan.formula)}</p>" + _table(table.TIME, table.time_rows(plan), {1, 2, 3}) * bool(plan.terms),
        "The compiler": plan.verdict and f"<p class='bad'>{escape(plan.verdict)}</p>",
        "The largest values": _list(plan.largest),
        "Advice": _list(plan.advice),
        "Collectives": collectives and _traffic(plan) + _table((*table.COLLECTIVES, "from"), collectives, {2, 3, 4}),
        "Layout": plan.layout and _table(table.LAYOUT, table.layout_rows(plan.layout), {4}),
        "Findings": _list([(str(found), found.line) for found in plan.findings]),
    }
    body = [
        f'<h1>Plan of a step</h1><p class="{"good" if plan.fits else "bad"}">{escape(table.headline(plan))}</p>',
        f"<p class='note'>{escape(plan.line)}</p>",
        *(f"<h2>{heading}</h2>{content}" for heading, content in sections.items() if content),
        *(f"<p class='note'>{escape(note)}</p>" for note in plan.notes),
    ]
    title = escape(plan.target or "devices here")
    return (
        f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>Plan: {title}</title>"
        f"<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


_Cell = str | tuple[str, str]  # a text, or a text with a user's line below


def _html(cell: _Cell) -> str:
    return escape(cell) if isinstance(cell, str) else f"{escape(cell[0])}<br><code>{escape(cell[1])}</code>"


def _list(items: Iterable[_Cell]) -> str:
    """A list in HTML; "" without items."""
    lines = "".join(f"<li>{_html(item)}</li>" for item in items)
    return lines and f"<ul>{lines}</ul>"


def _table(heads: Sequence[str], rows: Iterable[Iterable[_Cell]], numbers: Collection[int]) -> str:
    """A table in HTML. numbers: the columns that hold numbers."""

    kinds = [" class=n" if i in numbers else "" for i in range(len(heads))]

    def line(tag: str, cells: Iterable[_Cell]) -> str:
        made = (f"<{tag}{kind}>{_html(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(made)}</tr>"

    return f"<table>{line('th', heads)}{''.join(line('td', row) for row in rows)}</table>"


def _picture(figure: Figure, what: str) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=144)
    return f'<img alt="{what}" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">'


def _memory(plan: Plan) -> str:
    """One bar: the parts of a device's memory, and the rest."""
    known = {name: count for name, count in table.parts(plan) if name in _COLORS and name != "temporaries"}
    other = max(plan.arguments + plan.results - plan.in_place - sum(known.values()), 0)
    amounts = known | {"other arguments": other, "temporaries": plan.temporaries}
    total = sum(amounts.values())
    memory = plan.memory if plan.memory is not None and plan.memory <= 40 * max(total, 1) else None
    amounts["free"] = max((memory or 0) - total, 0)
    unit, name = table.scaled(max(total, memory or 0))
    figure = Figure(figsize=(9, 2.4), layout="constrained")
    axes = figure.subplots()
    start = 0.0
    for part, count in amounts.items():
        if count:
            label = f"{part} ({table.size(count)})"
            axes.barh(0, count / unit, left=start, color=_COLORS[part], edgecolor="white", label=label)
            start += count / unit
    if memory is not None:
        axes.axvline(memory / unit, color="#b42318", linewidth=2, label=f"the chip's memory ({table.size(memory)})")
    peak = f"peak ({table.size(plan.peak)})"
    axes.axvline(plan.peak / unit, color="#1f2933", linestyle="--", linewidth=1.5, label=peak)
    axes.set(yticks=[], xlabel=f"{name} per device", xlim=(0, None))
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return _picture(figure, "memory of one device")


def _traffic(plan: Plan) -> str:
    """A bar for each of the collectives that move most."""
    found = table.equal_collectives(plan.collectives)
    rest = sum(moved for *_, moved in found[_BARS:])
    bars = [
        (f"{path or row.op or 'made by the compiler'} ({count:,} x)", table.kind_of(row), moved)
        for row, path, count, moved in found[:_BARS]
    ]
    if rest:
        bars.append((f"{len(found) - _BARS} more", "", rest))
    unit, name = table.scaled(max(moved for *_, moved in bars))
    figure = Figure(figsize=(9, 1.2 + 0.32 * len(bars)), layout="constrained")
    axes = figure.subplots()
    seen: set[str] = set()
    for place, (_, kind, moved) in enumerate(bars):
        color = _KIND_COLORS.get(kind, _GREY)
        axes.barh(place, moved / unit, color=color, label=None if kind in seen or not kind else kind)
        seen.add(kind)
    axes.set_yticks(range(len(bars)), [label if len(label) < 60 else f"...{label[-57:]}" for label, *_ in bars])
    axes.invert_yaxis()
    axes.set_xlabel(f"{name} sent by each device in a step")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    return _picture(figure, "bytes that collectives move")
