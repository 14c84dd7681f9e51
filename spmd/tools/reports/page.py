"""A plan as one self-contained HTML page: pictures inline, the full table of collectives, no
external files."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jinja2 import Environment, StrictUndefined

from ..planning.report import Plan
from . import table

_GREY = "#9aa5b1"
_COLORS = {
    "parameters": "#4c78a8",
    "gradients": "#72b7b2",
    "optimizer state": "#54a24b",
    "inputs": "#b279a2",
    "other arguments": _GREY,
    "temporaries": "#f58518",
    "free": "#e8ecf0",
}
_KIND_COLORS = {
    "all-gather": "#4c78a8",
    "reduce-scatter": "#54a24b",
    "all-reduce + slice": "#88d27a",
    "all-reduce": "#e45756",
    "all-to-all": "#b279a2",
    "collective-permute": "#f58518",
}
_TIME_COLORS = ("#4c78a8", "#72b7b2", "#b279a2", "#54a24b", _GREY, "#e45756", "#f58518", "#eeca3b")
_BARS = 12  # in the picture of collectives


@dataclass(frozen=True)
class _PagePart:
    """A part of a bar, or a bar. start, size: in units of the axis."""

    name: str
    color: str
    start: float
    size: float
    text: str


@dataclass(frozen=True)
class _Picture:
    """A picture of bars. rows: the parts of each bar; lines: (place, color, text) of vertical ones;
    end: of axis."""

    title: str
    unit: str
    rows: Sequence[tuple[str, Sequence[_PagePart]]]
    end: float
    legend: Sequence[tuple[str, str]]
    lines: Sequence[tuple[float, str, str]] = ()

    @property
    def ticks(self) -> list[float]:
        """The places on the axis that have a number: four to eight round ones."""
        step = 10.0 ** len(str(int(self.end))) / 100 if self.end >= 1 else 0.01
        while self.end / step > 8:
            step *= 2 if str(step).strip("0.")[0] in "15" else 2.5
        return [step * i for i in range(int(self.end / step) + 1)]


_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Plan: {{ plan.target or "devices here" }}</title><style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; color: #1f2933; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; vertical-align: top; }
th { border-bottom: 2px solid #cbd2d9; } tr:nth-child(even) { background: #f5f7fa; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
code { font-size: .85em; color: #52606d; word-break: break-word; }
svg { width: 100%; font: 12px system-ui, sans-serif; }
.bad { color: #b42318; font-weight: 600; } .good { color: #1b7f3b; font-weight: 600; } .note { color: #52606d; }
</style></head><body>
{%- macro cell(value) %}
{%- if value is string %}{{ value }}{% else %}{{ value[0] }}<br><code>{{ value[1] }}</code>{% endif %}
{%- endmacro %}
{%- macro grid(heads, rows, numbers) %}
<table><tr>
{%- for head in heads %}<th{% if loop.index0 in numbers %} class=n{% endif %}>{{ head }}</th>{% endfor %}</tr>
{%- for row in rows %}
<tr>
{%- for value in row %}<td{% if loop.index0 in numbers %} class=n{% endif %}>{{ cell(value) }}</td>{% endfor %}</tr>
{%- endfor %}
</table>
{%- endmacro %}
{%- macro listed(items) %}
<ul>{% for item in items %}<li>{{ cell(item) }}</li>{% endfor %}</ul>
{%- endmacro %}
{%- macro drawn(picture) %}
{%- set left = 330 if picture.rows | length > 1 else 10 %}
{%- set top = 22 * ((picture.legend | length + 2) // 3) + 12 %}
{%- set high = 26 * picture.rows | length %}
{%- set scale = (980 - left) / picture.end %}
<svg role="img" aria-label="{{ picture.title }}" viewBox="0 0 1000 {{ top + high + 44 }}">
<title>{{ picture.title }}</title>
{%- for name, color in picture.legend %}
{%- set x = 10 + 330 * (loop.index0 % 3) %}
{%- set y = 22 * (loop.index0 // 3) %}
<rect x="{{ x }}" y="{{ y + 4 }}" width="12" height="12" fill="{{ color }}"
{%- if "overlapped" in name %} fill-opacity=".55"{% endif %}/>
<text x="{{ x + 18 }}" y="{{ y + 14 }}">{{ name }}</text>
{%- endfor %}
{%- for tick in picture.ticks %}
{%- set x = left + tick * scale %}
<line x1="{{ x }}" x2="{{ x }}" y1="{{ top }}" y2="{{ top + high }}" stroke="#e8ecf0"/>
<text x="{{ x }}" y="{{ top + high + 16 }}" text-anchor="middle">{{ "%g" | format(tick) }}</text>
{%- endfor %}
{%- for label, parts in picture.rows %}
{%- set y = top + 26 * loop.index0 %}
<text x="{{ left - 8 }}" y="{{ y + 17 }}" text-anchor="end">{{ label }}</text>
{%- for part in parts %}
<rect x="{{ left + part.start * scale }}" y="{{ y + 3 }}" width="{{ part.size * scale }}" height="20"
 fill="{{ part.color }}"{% if part.name.endswith("*") %} fill-opacity=".55"{% endif %}>
<title>{{ part.name }}: {{ part.text }}</title></rect>
{%- endfor %}{%- endfor %}
{%- for place, color, text in picture.lines %}
{%- set x = left + place * scale %}
<line x1="{{ x }}" x2="{{ x }}" y1="{{ top }}" y2="{{ top + high }}" stroke="{{ color }}" stroke-width="2"/>
{%- endfor %}
<text x="{{ (left + 980) / 2 }}" y="{{ top + high + 36 }}" text-anchor="middle">{{ picture.unit }}</text>
</svg>
{%- endmacro %}
<h1>Plan of a step</h1><p class="{{ 'good' if plan.fits else 'bad' }}">{{ headline }}</p>
<p class="note">{{ plan.line }}</p>
<h2>Memory of one device</h2>{{ drawn(memory) }}{{ grid(("per device", "", "exactly"), figures, (1, 2)) }}
{% if plan.formula %}<h2>Time</h2><p>{{ plan.formula }}</p>{% endif %}
{% if plan.terms %}{{ drawn(time) }}{{ grid(TIME, times, (1, 2, 3)) }}{% endif %}
{% if plan.verdict %}<h2>The compiler</h2><p class="bad">{{ plan.verdict }}</p>{% endif %}
{% if plan.largest %}<h2>The largest values</h2>{{ listed(plan.largest) }}{% endif %}
{% if plan.advice %}<h2>Advice</h2>{{ listed(plan.advice) }}{% endif %}
{% if collectives %}<h2>Collectives</h2>{{ drawn(traffic) }}{{ grid(COLLECTIVES, collectives, (3, 4, 5)) }}{% endif %}
{% if plan.layout %}<h2>Layout</h2>{{ grid(LAYOUT, layout, (4,)) }}{% endif %}
{% if findings %}<h2>Findings</h2>{{ listed(findings) }}{% endif %}
{% for note in plan.notes %}<p class="note">{{ note }}</p>{% endfor %}
</body></html>
"""


def page_of(plan: Plan) -> str:
    """The HTML text of the page."""
    compiled = f"{plan.num_programs} program(s), {plan.num_ops:,} ops"
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_PAGE)
    return template.render(
        plan=plan,
        headline=table.headline(plan),
        memory=_memory(plan),
        figures=[*table.figures(plan), ("compile time", f"{plan.compile_seconds:.2f} s", compiled)],
        time=_time(plan) if plan.terms else None,
        TIME=table.TIME,
        times=[*table.time_rows(plan)],
        traffic=_traffic(plan) if plan.collectives else None,
        COLLECTIVES=(*table.COLLECTIVES, "from"),
        collectives=[
            (*texts, (origin, line)) for texts, origin, line in table.collective_rows(plan)
        ],
        LAYOUT=table.LAYOUT,
        layout=[*table.layout_rows(plan.layout)],
        findings=[(str(finding), finding.line) for finding in plan.findings],
    )


def _row(parts: Iterable[tuple[str, str, float, str]]) -> list[_PagePart]:
    """Parts one after the other, of (name, color, size, text)."""
    bars, start = [], 0.0
    for name, color, size, text in parts:
        if size:
            bars.append(_PagePart(name, color, start, size, text))
            start += size
    return bars


def _memory(plan: Plan) -> _Picture:
    """One bar: the parts of a device's memory, and the rest."""
    amounts_known = {
        name: count
        for name, count in table.parts(plan)
        if name in _COLORS and name != "temporaries"
    }
    other_arguments = max(
        plan.arguments + plan.results - plan.in_place - sum(amounts_known.values()), 0
    )
    amounts = amounts_known | {"other arguments": other_arguments, "temporaries": plan.temporaries}
    total = sum(amounts.values())
    memory = plan.memory if plan.memory is not None and plan.memory <= 40 * max(total, 1) else None
    amounts["free"] = max((memory or 0) - total, 0)
    unit, name = table.scaled(max(total, memory or 0))
    parts = _row(
        (part, _COLORS[part], count / unit, table.size(count)) for part, count in amounts.items()
    )
    lines = [(plan.peak / unit, "#1f2933", f"peak ({table.size(plan.peak)})")]
    if memory is not None:
        lines.append((memory / unit, "#b42318", f"the device's memory ({table.size(memory)})"))
    legend = [(f"{part.name} ({part.text})", part.color) for part in parts]
    legend += [(text, color) for _, color, text in lines]
    end = (
        max([part.start + part.size for part in parts] + [position for position, *_ in lines])
        or 1.0
    )
    return _Picture("memory of one device", f"{name} per device", [("", parts)], end, legend, lines)


def _time(plan: Plan) -> _Picture:
    """One bar: the parts of a step's time."""
    parts = _row(
        (term.name, color, term.seconds * 1e3, f"{term.seconds * 1e3:,.2f} ms")
        for term, color in zip(plan.terms, itertools.cycle(_TIME_COLORS), strict=False)
    )
    end = max(sum(part.size for part in parts), 1e-9)
    legend = [(f"{part.name} ({part.text})", part.color) for part in parts]
    return _Picture("time of a step", "ms", [("", parts)], end, legend)


def _traffic(plan: Plan) -> _Picture:
    """A bar for each of the collectives that move most."""
    groups = table.equal_collectives(plan.collectives)
    bars = [
        (f"{path or row.op or 'made by the compiler'} ({count:,} x)", table.kind_of(row), moved)
        for row, path, count, moved in groups[:_BARS]
    ]
    remaining_bytes = sum(moved for *_, moved in groups[_BARS:])
    if remaining_bytes:
        bars.append((f"{len(groups) - _BARS} more", "others", remaining_bytes))
    unit, name = table.scaled(max(moved for *_, moved in bars))
    colors = {kind: _KIND_COLORS.get(kind.rstrip("*"), _GREY) for _, kind, _ in bars}
    rows = [
        (
            label if len(label) < 50 else f"...{label[-47:]}",
            _row([(kind, colors[kind], moved / unit, table.size(moved))]),
        )
        for label, kind, moved in bars
    ]
    legend = [
        (kind + " (overlapped with computation)" * kind.endswith("*"), color)
        for kind, color in colors.items()
    ]
    end = max(moved for *_, moved in bars) / unit or 1.0
    return _Picture(
        "bytes that collectives move", f"{name} sent by each device in a step", rows, end, legend
    )
