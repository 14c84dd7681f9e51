"""A plan as a table for a terminal."""

import dataclasses
import io
import re
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..core.base.counters import Collective
from ..planning.layout import Finding, Row
from ..planning.report import Plan
from ..suggestions.search import Suggestion, Trial

SHOWN = 20  # rows of the collectives' table
_IN_A_PIPE = 200  # columns


def text_of(shown: Plan | Suggestion) -> str:
    """The table as text, as wide as the terminal; in a pipe or a file, wide enough that no word is broken."""
    out = Console()
    console = Console(file=io.StringIO(), width=max(out.width, 100) if out.is_terminal else _IN_A_PIPE)
    console.print(table_of(shown) if isinstance(shown, Plan) else ranked(shown))
    file: Any = console.file
    return file.getvalue().rstrip("\n")


def size(count: float) -> str:
    """The text of a number of bytes, with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:,.0f} B" if unit == "B" else f"{count:,.2f} {unit}"
        count /= 1024
    raise AssertionError("the last unit takes all")


def headline(plan: Plan) -> str:
    """One line: the devices, and if the plan fits."""
    axes = ", ".join(f"{name}={count}" for name, count in plan.mesh.items())
    where = plan.target or f"{plan.num_devices} device(s) here"
    if plan.verdict:
        fits = "does not fit"
    elif plan.memory is None:
        fits = "the devices' memory is not known"
    else:
        fits = f"{'fits' if plan.fits else 'does not fit'}: {plan.peak / plan.memory:.1%} of {size(plan.memory)}"
    return f"{where} ({axes}): {fits}"


def parts(plan: Plan) -> list[tuple[str, int]]:
    """The parts of a device's memory, by name."""
    on_host = [("host memory", plan.host)] if plan.host else []
    return [
        ("parameters", plan.parameters),
        ("gradients", plan.gradients),
        ("optimizer state", plan.optimizer_state),
        ("inputs", plan.inputs),
        ("arguments of the program", plan.arguments),
        ("results", plan.results),
        ("of which in place", plan.in_place),
        ("temporaries", plan.temporaries),
        ("peak", plan.peak),
        *on_host,
    ]


def table_of(plan: Plan) -> Any:
    """The full plan: memory, time, collectives, findings, advice."""
    memory = Table(title=headline(plan), title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    memory.add_column("per device")
    memory.add_column("", justify="right")
    memory.add_column("bytes", justify="right", style="dim")
    for name, count in parts(plan):
        memory.add_row(name, size(count), f"{count:,}")
    memory.add_row("floating-point operations", f"{plan.flops:.4g}", f"{plan.flops:,.0f}")
    memory.add_row("moved by collectives", size(plan.moved_bytes), f"{plan.moved_bytes:,}")
    if plan.hidden_bytes:
        memory.add_row("of which overlapped", size(plan.hidden_bytes), f"{plan.hidden_bytes:,}")
    for link in sorted({row.link for row in plan.collectives if row.link}):
        moved = sum(row.moved_bytes for row in plan.collectives if row.link == link)
        memory.add_row(f"of which over {link}", size(moved), f"{moved:,}")
    said: list[Any] = [memory]
    programs = "1 program" if plan.num_programs == 1 else f"{plan.num_programs} programs"
    if plan.num_programs:
        said.append(Text(f"{programs} of {plan.num_ops:,} ops, compiled in {plan.compile_seconds:.2f} s"))
    if plan.formula:
        said.append(Text(plan.formula))
    if any(row.rule for row in plan.layout) or not plan.num_programs:
        said.append(_layout(plan))
    if plan.collectives:
        said.append(_collectives(plan))
    if plan.findings:
        said.append(_findings(plan))
    if plan.verdict:
        said.append(Text(f"The compiler: {plan.verdict}", style="bold red"))
    if plan.largest:
        said.append(Text("\n".join(["The largest values:", *(f"  {line}" for line in plan.largest)])))
    if plan.advice:
        said.append(Text("\n".join(["Advice:", *(f"  - {line}" for line in plan.advice)])))
    said += [Text(note, style="dim") for note in plan.notes]
    return Group(*said)


def equal_collectives(rows: Iterable[Collective]) -> list[tuple[Collective, str, int, int]]:
    """Merges rows that differ only by the number of a layer: (the first, path of all, count, bytes moved)."""
    groups: dict[Any, list[Collective]] = {}
    for row in rows:
        pattern = _NUMBER.sub("*", row.path)
        groups.setdefault(
            (row.kind, row.axes, row.bytes, kind_of(row), row.link, row.op, row.line, pattern), []
        ).append(row)
    found = [
        (
            group[0],
            key[-1] if len({row.path for row in group}) > 1 else group[0].path,
            sum(row.count for row in group),
            sum(row.moved_bytes for row in group),
        )
        for key, group in groups.items()
    ]
    return sorted(found, key=lambda one: -one[3])


_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def ranked(found: Suggestion) -> Any:
    """The table of a search: a row for each compiled trial, and the other trials by reason."""
    table = Table(title="layouts, best first", title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for name in ("layout", "ms", "cycles M", "moved", "peak", "reason"):
        table.add_column(name, justify="left" if name in ("layout", "reason") else "right", overflow="fold")
    others: dict[str, list[Trial]] = {}
    for trial in found.trials:
        plan = trial.plan
        if plan is None or trial.seconds is None:
            others.setdefault(trial.reason, []).append(trial)
            continue
        cycles = f"{plan.cycles / 1e6:,.1f}" if plan.cycles else "-"
        figures = (f"{trial.seconds * 1e3:,.4g}", cycles, size(plan.moved_bytes), size(plan.peak))
        table.add_row(Text(trial.name), *figures, Text(trial.reason or "the best"))
    lines = [
        Text(f"{reason}: {_few([trial.name for trial in trials])}", style="dim") for reason, trials in others.items()
    ]
    said = [Text(f"ranked by {found.measure}; {found.spent:,.0f} s")]
    first = found.trials[0]
    if first.plan is not None and first.plan.fits:
        least = found.least_memory
        if least is not first and least.plan is not None:
            share = f"{least.plan.peak / first.plan.peak:.0%} of the best's peak"
            said.append(Text(f"the least memory: {least.name}: {share}, {least.reason}"))
        said.append(Text(f"\nthe best: {first.mesh!r}\n{first.rules}"))
    return Group(table, *lines, *said)


def _few(names: list[str]) -> str:
    return " | ".join(names[:3]) + (f" | and {len(names) - 3:,} more" if len(names) > 3 else "")


def equal_layers(rows: Iterable[Row]) -> list[tuple[str, Row, int, int]]:
    """Merges rows that differ only by the number of a layer: (their path, the first, count, bytes of all)."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        key = _NUMBER.sub("*", row.path), row.dtype, row.shape, row.spec, row.rule
        groups.setdefault(key, []).append(row)
    return [
        (key[0] if len(group) > 1 else group[0].path, group[0], len(group), sum(row.bytes for row in group))
        for key, group in groups.items()
    ]


def _layout(plan: Plan) -> Table:
    found = Table(title="layout", title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for name in ("path", "dtype, shape", "spec", "rule"):
        found.add_column(name, overflow="fold")
    found.add_column("per device", justify="right")
    for path, row, count, total in equal_layers(plan.layout):
        times = f" x {count:,}" if count > 1 else ""
        texts = (f"{path}{times}", f"{row.dtype}{list(row.shape)}", row.spec, row.rule or "-")
        found.add_row(*(Text(text) for text in texts), size(total))
    return found


def equal_findings(findings: Iterable[Finding]) -> list[tuple[Finding, int]]:
    """Merges findings that differ only by the number of a layer: (the first, count)."""
    groups: dict[Any, list[Finding]] = {}
    for found in findings:
        groups.setdefault((found.kind, _NUMBER.sub("*", found.subject), found.text, found.line), []).append(found)
    return [
        (dataclasses.replace(group[0], subject=key[1]) if len(group) > 1 else group[0], len(group))
        for key, group in groups.items()
    ]


def _findings(plan: Plan) -> Text:
    lines = [Text("\nfindings", style="bold")]
    for found, count in equal_findings(plan.findings)[:SHOWN]:
        lines.append(Text(f"  {found}{f' (x {count:,})' if count > 1 else ''}"))
        lines += [Text(f"    {found.line}", style="dim")] if found.line else []
    return Text("\n").join(lines)


def _collectives(plan: Plan) -> Text:
    """The table of collectives, with the module, op and line below each row, for narrow terminals."""
    found = equal_collectives(plan.collectives)
    lines = [Text("\ncollectives", style="bold"), Text(_row("kind", "axes", "count", "bytes", "moved"), style="dim")]
    for row, path, count, moved in found[:SHOWN]:
        axes = f"{' x '.join(row.axes)} ({row.devices}{', ' * bool(row.link)}{row.link})"
        lines.append(Text(_row(kind_of(row), axes, f"{count:,}", size(row.bytes), size(moved))))
        lines += [Text(f"    {part}", style="dim") for part in (f"{path} {row.op}".strip(), row.line) if part]
    rest = found[SHOWN:]
    if rest:
        count, moved = sum(one[2] for one in rest), sum(one[3] for one in rest)
        lines.append(Text(_row(f"{len(rest)} more", "", f"{count:,}", "", size(moved))))
    return Text("\n").join(lines)


def _row(kind: str, axes: str, count: str, each: str, moved: str) -> str:
    return f"{kind:<19} {axes:<18} {count:>7} {each:>12} {moved:>12}"


def kind_of(row: Collective) -> str:
    """The displayed kind of a collective; an asterisk: it is overlapped with computation."""
    return f"{row.kind}{' + slice' if row.is_sliced else ''}{'*' if row.is_async else ''}"
