"""A plan as one self-contained HTML page: pictures inline, the full table of collectives, no external files."""

import base64
import html
import io

from matplotlib.figure import Figure

from ..planning.report import Plan
from .table import equal_collectives, equal_layers, headline, kind_of, parts, size

_GREY, _FREE = "#9aa5b1", "#e8ecf0"
_COLORS = {
    "parameters": "#4c78a8", "gradients": "#72b7b2", "optimizer state": "#54a24b", "inputs": "#b279a2",
    "other arguments": _GREY, "temporaries": "#f58518",
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
    fits = f'<p class="{"good" if plan.fits else "bad"}">{_text(headline(plan))}</p>'
    body = [
        f"<h1>Plan of a step</h1>{fits}<p class='note'>{_text(plan.line)}</p>",
        f"<h2>Memory of one device</h2>{_picture(_memory(plan), 'memory of one device')}{_figures(plan)}",
    ]
    if plan.formula:
        body.append(f"<h2>Time</h2><p>{_text(plan.formula)}</p>")
    if plan.verdict:
        body.append(f"<h2>The compiler</h2><p class='bad'>{_text(plan.verdict)}</p>")
    for heading, lines in (("The largest values", plan.largest), ("Advice", plan.advice)):
        if lines:
            body.append(f"<h2>{heading}</h2><ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>")
    if plan.collectives:
        shown = _picture(_traffic(plan), "bytes that collectives move")
        body.append(f"<h2>Collectives</h2>{shown}{_collectives(plan)}")
    if plan.layout:
        body.append(f"<h2>Layout</h2>{_layout(plan)}")
    if plan.findings:
        items = [f"<li>{_text(str(found))}<br><code>{_text(found.line)}</code></li>" for found in plan.findings]
        body.append(f"<h2>Findings</h2><ul>{''.join(items)}</ul>")
    body += [f"<p class='note'>{_text(note)}</p>" for note in plan.notes]
    title = _text(plan.target or "devices here")
    return (
        f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>Plan: {title}</title>"
        f"<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _text(text: str) -> str:
    return html.escape(text)


def _figures(plan: Plan) -> str:
    rows = [(name, size(count), f"{count:,}") for name, count in parts(plan)]
    rows.append(("floating-point operations", f"{plan.flops:.4g}", f"{plan.flops:,.0f}"))
    rows.append(("moved by collectives", size(plan.moved_bytes), f"{plan.moved_bytes:,}"))
    rows.append(
        ("compile time", f"{plan.compile_seconds:.2f} s", f"{plan.num_programs} program(s), {plan.num_ops:,} ops")
    )
    lines = [f"<tr><td>{_text(a)}</td><td class=n>{_text(b)}</td><td class=n>{_text(c)}</td></tr>" for a, b, c in rows]
    return f"<table><tr><th>per device</th><th class=n></th><th class=n>exactly</th></tr>{''.join(lines)}</table>"


def _collectives(plan: Plan) -> str:
    lines = []
    for row, path, count, moved in equal_collectives(plan.collectives):
        texts = (kind_of(row), f"{' x '.join(row.axes)} ({row.devices})")
        numbers = (f"{count:,}", size(row.bytes), size(moved))
        came = f"{_text(f'{path} {row.op}'.strip())}<br><code>{_text(row.line)}</code>"
        lines.append(
            "<tr>"
            + "".join(f"<td>{_text(text)}</td>" for text in texts)
            + "".join(f"<td class=n>{number}</td>" for number in numbers)
            + f"<td>{came}</td></tr>"
        )
    heads = "<th>kind</th><th>axes</th><th class=n>count</th><th class=n>bytes</th><th class=n>moved</th><th>from</th>"
    return f"<table><tr>{heads}</tr>{''.join(lines)}</table>"


def _layout(plan: Plan) -> str:
    lines = []
    for path, row, count, total in equal_layers(plan.layout):
        times = f" x {count:,}" if count > 1 else ""
        texts = (f"{path}{times}", f"{row.dtype}{list(row.shape)}", row.spec, row.rule or "-")
        lines.append(f"<tr>{''.join(f'<td>{_text(text)}</td>' for text in texts)}<td class=n>{size(total)}</td></tr>")
    heads = "<th>path</th><th>dtype, shape</th><th>spec</th><th>rule</th><th class=n>per device</th>"
    return f"<table><tr>{heads}</tr>{''.join(lines)}</table>"


def _picture(figure: Figure, what: str) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=144)
    return f'<img alt="{what}" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">'


def _scaled(count: float) -> tuple[float, str]:
    """The unit for an axis up to this number of bytes, and its name."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return float(unit), name
    return 1.0, "B"


def _memory(plan: Plan) -> Figure:
    """One bar: the parts of a device's memory, and the rest."""
    known = {name: count for name, count in parts(plan) if name in _COLORS and name != "temporaries"}
    other = max(plan.arguments + plan.results - plan.in_place - sum(known.values()), 0)
    amounts = known | {"other arguments": other, "temporaries": plan.temporaries}
    total = sum(amounts.values())
    has = plan.memory is not None and plan.memory <= 40 * max(total, 1)
    unit, name = _scaled(max(total, plan.memory if has and plan.memory is not None else 0))
    figure = Figure(figsize=(9, 2.4), layout="constrained")
    axes = figure.subplots()
    start = 0.0
    for part, count in amounts.items():
        if count:
            width = count / unit
            axes.barh(0, width, left=start, color=_COLORS[part], edgecolor="white", label=f"{part} ({size(count)})")
            start += width
    if has and plan.memory is not None:
        limit = plan.memory / unit
        if limit > start:
            axes.barh(0, limit - start, left=start, color=_FREE, label=f"free ({size(plan.memory - total)})")
        axes.axvline(limit, color="#b42318", linewidth=2, label=f"the chip's memory ({size(plan.memory)})")
    axes.axvline(plan.peak / unit, color="#1f2933", linestyle="--", linewidth=1.5, label=f"peak ({size(plan.peak)})")
    axes.set(yticks=[], xlabel=f"{name} per device", xlim=(0, None))
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure


def _traffic(plan: Plan) -> Figure:
    """A bar for each of the collectives that move most."""
    found = equal_collectives(plan.collectives)
    rest = sum(moved for *_, moved in found[_BARS:])
    bars = [
        (f"{path or row.op or 'made by the compiler'} ({count:,} x)", kind_of(row), moved)
        for row, path, count, moved in found[:_BARS]
    ]
    if rest:
        bars.append((f"{len(found) - _BARS} more", "", rest))
    unit, name = _scaled(max(moved for *_, moved in bars))
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
    return figure
