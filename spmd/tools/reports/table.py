"""A plan as a table for a terminal."""

import dataclasses
import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ...core import Collective
from ..planning.layout import NUMBER, LayoutRow, PlanFinding
from ..planning.report import Plan
from ..profiler.summaries import Summary
from ..suggestions.suggestion import Suggestion, Trial, precision_name
from ..verification.evidence import Compared, Verification, share

SHOWN = 20  # rows of the collectives' table
_IN_A_PIPE = 200  # columns


def text_of(result: Any) -> str:
    """The table of a result, as wide as the terminal; in a pipe or a file, wide enough that no word
    is broken."""
    out, file = Console(), io.StringIO()
    width = max(out.width, 100) if out.is_terminal else _IN_A_PIPE
    # there rich would show it and return nothing
    Console(file=file, width=width, force_jupyter=False).print(result)
    return file.getvalue().rstrip("\n")


def scaled(count: float) -> tuple[int, str]:
    """The largest unit that a number of bytes fills, and its name."""
    units = [
        (1 << bits, name)
        for bits, name in ((30, "GiB"), (20, "MiB"), (10, "KiB"))
        if abs(count) >= 1 << bits
    ]
    return units[0] if units else (1, "B")


def size(count: float) -> str:
    """The text of a number of bytes, with a unit."""
    unit, name = scaled(count)
    return f"{count / unit:,.{0 if unit == 1 else 2}f} {name}"


def headline(plan: Plan) -> str:
    """One line: the devices, and if the plan fits."""
    axes = ", ".join(f"{name}={count}" for name, count in plan.mesh.items())
    where = plan.target or f"{plan.num_devices} device(s) here"
    if plan.verdict:
        fits = "does not fit"
    elif plan.memory is None:
        fits = "the devices' memory is not known"
    else:
        fits = (
            f"{'fits' if plan.fits else 'does not fit'}: {size(plan.peak)} of {size(plan.memory)}"
        )
    return f"{where} ({axes}): {fits}"


def parts(plan: Plan) -> list[tuple[str, int]]:
    """The parts of a device's memory, by name."""
    on_host = [("host memory", plan.host)] if plan.host else []
    # libtpu counts both for itself, and the one may be the smaller: temporaries that are never in
    # use together.
    peak = "peak" if plan.peak >= plan.temporaries else "peak, of what is in use at once"
    return [
        ("parameters", plan.parameters),
        ("gradients", plan.gradients),
        ("optimizer state", plan.optimizer_state),
        ("inputs", plan.inputs),
        ("arguments of the program", plan.arguments),
        ("results", plan.results),
        ("of which in place", plan.in_place),
        ("temporaries", plan.temporaries),
        (peak, plan.peak),
        *on_host,
    ]


def figures(plan: Plan) -> list[tuple[str, str, str]]:
    """The figures of one device: (name, text with a unit, exact number)."""
    over: Counter[str] = Counter()
    for row in plan.collectives:
        over[row.link] += row.moved_bytes
    moved = [("moved by collectives", plan.moved_bytes)]
    moved += [("of which overlapped", plan.hidden_bytes)] if plan.hidden_bytes else []
    moved += [(f"of which over {link}", count) for link, count in sorted(over.items()) if link]
    rows = [(name, size(count), f"{count:,}") for name, count in (*parts(plan), *moved)]
    rows.insert(
        -len(moved), ("floating-point operations", f"{plan.flops:.4g}", f"{plan.flops:,.0f}")
    )
    return rows


def _table(
    heads: Iterable[str],
    rows: Iterable[Iterable[str | Text]],
    right: Iterable[str] = (),
    title: str | None = None,
) -> Table:
    """A table with these heads. right: those of columns of numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) if isinstance(text, str) else text for text in row))
    return table


def table_of(plan: Plan) -> Any:
    """The full plan: memory, time, collectives, findings, advice."""
    memory = _table(("per device", "", "bytes"), figures(plan), ("", "bytes"), headline(plan))
    memory.columns[2].style = "dim"
    programs = "1 program" if plan.num_programs == 1 else f"{plan.num_programs} programs"
    compiled = f"{programs} of {plan.num_ops:,} ops, compiled in {plan.compile_seconds:.2f} s"
    if plan.planning_bytes:
        compiled += (
            f", planned in {plan.planning_seconds:.2f} s with {size(plan.planning_bytes)} of the "
            "host's memory"
        )
    sections = (
        memory,
        plan.num_programs and Text(compiled),
        Text(
            "\n".join(filter(None, [plan.formula, plan.bottleneck and f"time: {plan.bottleneck}"]))
        ),
        plan.terms and _table(TIME, time_rows(plan), TIME[1:-1]),
        (any(row.rule for row in plan.layout) or not plan.num_programs)
        and _table(LAYOUT, layout_rows(plan.layout), LAYOUT[-1:], "layout"),
        plan.collectives and _collectives(plan),
        plan.findings and _findings(plan),
        plan.verdict and Text(f"The compiler: {plan.verdict}", style="bold red"),
        plan.largest and Text("\n  ".join(["The largest values:", *plan.largest])),
        plan.advice and Text("\n  - ".join(["Advice:", *plan.advice])),
        *(Text(note, style="dim") for note in plan.notes),
    )
    return Group(*(section for section in sections if section))


_Row = TypeVar("_Row", Collective, LayoutRow, PlanFinding)


def _merged(
    rows: Iterable[_Row], path: str, key: Callable[[_Row], Any]
) -> list[tuple[str, list[_Row]]]:
    """Groups rows of equal keys whose paths, in this attribute, differ only by the number of a
    layer; with the path of each group, in which * stands for the number."""
    groups: dict[Any, list[_Row]] = {}
    for row in rows:
        groups.setdefault((NUMBER.sub("*", getattr(row, path)), key(row)), []).append(row)
    return [
        (
            pattern if len({getattr(row, path) for row in group}) > 1 else getattr(group[0], path),
            group,
        )
        for (pattern, _), group in groups.items()
    ]


def equal_collectives(rows: Iterable[Collective]) -> list[tuple[Collective, str, int, int]]:
    """Merges rows that differ only by the number of a layer: (the first with the times of all, path
    of all, count, bytes moved)."""
    groups = _merged(
        rows,
        "path",
        lambda row: (
            row.kind,
            row.axes,
            row.bytes,
            row.dtype,
            kind_of(row),
            row.core,
            row.link,
            row.op,
            row.line,
        ),
    )
    merged = []
    for path, group in groups:
        times = {name: sum(getattr(row, name) for row in group) for name in ("seconds", "waiting")}
        count, moved = sum(row.count for row in group), sum(row.moved_bytes for row in group)
        merged.append((dataclasses.replace(group[0], **times), path, count, moved))
    return sorted(merged, key=lambda entry: -entry[3])


LAYOUT = ("path", "dtype, shape", "spec", "rule", "per device")


def layout_rows(rows: Iterable[LayoutRow]) -> Iterator[tuple[str, ...]]:
    """The texts of `LAYOUT` for each parameter and buffer, merged where they differ only by the
    number of a layer."""
    for path, group in _merged(
        rows, "path", lambda row: (row.dtype, row.shape, row.spec, row.rule)
    ):
        row, times = group[0], f" x {len(group):,}" if len(group) > 1 else ""
        total = size(sum(row.bytes for row in group))
        yield f"{path}{times}", f"{row.dtype}{list(row.shape)}", row.spec, row.rule or "-", total


def ranked(suggestion: Suggestion) -> Any:
    """The table of a search: a row for each compiled trial, and the other trials by reason. Choices
    other than the layout have columns where they differ; the front has those of which no other is
    better in everything."""
    compiled = [trial for trial in suggestion.trials if trial.plan is not None]
    choices = {
        name: text
        for name, text in _CHOICES.items()
        if len({text(trial) for trial in compiled}) > 1
        or (name == "money / 1,000" and suggestion.trials[0].price)
    }
    front, rows = set(map(id, suggestion.front)), []
    by_reason: dict[str, list[Trial]] = {}
    for trial in suggestion.trials:
        if trial.plan is None or trial.seconds is None:
            by_reason.setdefault(trial.reason, []).append(trial)
            continue
        figures = (
            f"{trial.seconds * 1e3:,.4g}",
            size(trial.plan.moved_bytes),
            size(trial.plan.peak),
        )
        choice_texts = (text(trial) for text in choices.values())
        mark = "*" if id(trial) in front else ""
        rows.append((trial.name, *choice_texts, *figures, mark, trial.reason or "the best"))
    numbers = (*choices, "ms", "moved", "peak", "front")
    table = _table(("layout", *numbers, "reason"), rows, numbers, "layouts, best first")
    lines = [
        Text(f"{reason}: {_few([trial.name for trial in trials])}", style="dim")
        for reason, trials in by_reason.items()
    ]
    texts = [Text(f"ranked by {suggestion.measure}; {suggestion.spent:,.0f} s")]
    first = suggestion.trials[0]
    if first.fits and first.mesh is not None:
        texts += _alternatives(suggestion)
        ids = list(first.mesh.device_ids)
        # a search takes all devices in their order
        mesh = repr(first.mesh).replace(str(ids), f"range({len(ids)})")
        texts.append(Text(f"\nthe best: {mesh}\n{first.rules}"))
    return Group(table, *lines, *texts)


# The choices of a search other than the layout, as texts of a trial.
_CHOICES: dict[str, Callable[[Trial], str]] = {
    "devices": lambda trial: trial.target or "here",
    "rows": lambda trial: f"{trial.rows:,}",
    "precision": lambda trial: precision_name(trial.precision),
    "step": lambda trial: ", ".join(f"{name}={value}" for name, value in trial.keywords.items()),
    "money / 1,000": lambda trial: "" if trial.money is None else f"{trial.money:.4g}",
}


def _alternatives(suggestion: Suggestion) -> Iterator[Text]:
    """The trials with the least memory and the least money, where these are others than the
    first."""
    first = suggestion.best
    assert first.plan is not None
    least = suggestion.least_memory
    if least is not first and least.plan is not None:
        share = f"{least.plan.peak / first.plan.peak:.0%} of the best's peak"
        yield Text(f"the least memory: {least.name}: {share}, {least.reason}")
    cheap = suggestion.least_money if first.money is not None else first
    if cheap is not first and cheap.money is not None and first.money:
        yield Text(
            f"the least money: {cheap.name}: {cheap.money / first.money:.0%} of the best's, "
            f"{cheap.reason}"
        )


def verified(verification: Verification) -> Any:
    """The table of a verification: the worst row of each value and precision, equal ones of a kind
    as one row, and the first op that differs."""
    wrong = len(verification.differences)
    count = f"{len(verification.rows):,} comparisons"
    title = f"{wrong:,} of {count} differ" if wrong else f"{count}, all equal"
    texts: list[tuple[str | Text, ...]] = []
    same: dict[Any, list[Compared]] = {}
    for row in verification.worst():
        same.setdefault((row.kind, row.dtype, "" if row.is_equal else row.path), []).append(row)
    for rows in same.values():
        row, several = (
            max(rows, key=share),
            f"{len(rows)} {rows[0].kind}s, worst: " if len(rows) > 1 else "",
        )
        figures = (f"{number:.3g}" for number in (row.difference, row.tolerance, row.magnitude))
        texts.append(
            (
                several + f"{row.kind} {row.path}".strip(),
                row.dtype,
                *figures,
                f"{row.roundings:,}",
                f"{row.layout}, {row.partitioner}",
                "" if row.is_equal else Text("differs", style="bold red"),
            )
        )
    numbers = ("worst difference", "allowed", "largest", "roundings")
    heads = ("value", "precision", *numbers, "layout, partitioner", "")
    table = _table(
        heads, texts, numbers, f"one device and meshes: {title} ({verification.seconds:,.1f} s)"
    )
    lines = [f"the first op that differs: {verification.first}"] if verification.first else []
    return Group(
        table, *map(Text, [*lines, *([verification.repair] if verification.repair else [])])
    )


def summed(trace: Summary) -> Any:
    """The table of a trace, and its sums."""
    numbers = ("count", "time", "share", "bytes")
    table = _table((trace.by, "ops", *numbers), trace.texts(), numbers)
    return Group(table, *map(Text, trace.lines()))


def _few(names: list[str]) -> str:
    return " | ".join(names[:3]) + (f" | and {len(names) - 3:,} more" if len(names) > 3 else "")


TIME = ("step time", "ms", "at best", "at worst", "source")


def time_rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    """The texts of `TIME` for each part of the step's time."""
    for term in plan.terms:
        numbers = (f"{seconds * 1e3:,.3f}" for seconds in (term.seconds, term.low, term.high))
        yield term.name, *numbers, term.source


def _findings(plan: Plan) -> Text:
    """The findings, those that differ only by the number of a layer as one."""
    lines = [Text("\nfindings", style="bold")]
    for subject, group in _merged(
        plan.findings,
        "subject",
        lambda plan_finding: (plan_finding.kind, plan_finding.text, plan_finding.line),
    )[:SHOWN]:
        finding, times = (
            dataclasses.replace(group[0], subject=subject),
            f" (x {len(group):,})" if len(group) > 1 else "",
        )
        lines.append(Text(f"  {finding}{times}"))
        lines += [Text(f"    {finding.line}", style="dim")] if finding.line else []
    return Text("\n").join(lines)


COLLECTIVES = ("kind", "axes", "dtype", "count", "bytes", "moved")


def collective_rows(plan: Plan) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """For equal collectives the texts of `COLLECTIVES`, the module with the op and the times, and
    the user's line."""
    for row, path, count, moved in equal_collectives(plan.collectives):
        axes = f"{' x '.join(row.axes)} ({row.devices}{', ' * bool(row.link)}{row.link})"
        texts = (kind_of(row), axes, row.dtype, f"{count:,}", size(row.bytes), size(moved))
        core = ", on the SparseCore" if row.core == "sparsecore" else ""
        times = (
            f"{row.seconds * 1e3:,.3g} ms, {row.waiting * 1e3:,.3g} of them waiting{core}"
            if row.seconds
            else ""
        )
        yield texts, ", ".join(filter(None, [f"{path} {row.op}".strip(), times])), row.line


def _collectives(plan: Plan) -> Text:
    """The table of collectives, with the module, op and line below each row, for narrow
    terminals."""
    lines = [Text("\ncollectives", style="bold"), Text(_row(*COLLECTIVES), style="dim")]
    for texts, origin, line in itertools.islice(collective_rows(plan), SHOWN):
        lines.append(Text(_row(*texts)))
        lines += [Text(f"    {part}", style="dim") for part in (origin, line) if part]
    remaining_rows = equal_collectives(plan.collectives)[SHOWN:]
    if remaining_rows:
        count, moved = sum(row[2] for row in remaining_rows), sum(row[3] for row in remaining_rows)
        lines.append(
            Text(_row(f"{len(remaining_rows)} more", "", "", f"{count:,}", "", size(moved)))
        )
    return Text("\n").join(lines)


def _row(kind: str, axes: str, dtype: str, count: str, bytes_each: str, moved: str) -> str:
    return f"{kind:<19} {axes:<18} {dtype:<6} {count:>7} {bytes_each:>12} {moved:>12}"


def kind_of(row: Collective) -> str:
    """The displayed kind of a collective; an asterisk: it is overlapped with computation."""
    return f"{row.kind}{' + slice' if row.is_sliced else ''}{'*' if row.is_async else ''}"
