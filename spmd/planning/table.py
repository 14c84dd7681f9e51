"""A plan as a table on a terminal."""

import io
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from .report import Plan

SHOWN = 20  # rows of the collectives' table


def text_of(plan: Plan) -> str:
    """The table as text, as wide as the terminal."""
    console = Console(file=io.StringIO(), width=max(Console().width, 100))
    console.print(table_of(plan))
    file: Any = console.file
    return file.getvalue().rstrip("\n")


def size(count: float) -> str:
    """Bytes for a reader."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:,.0f} B" if unit == "B" else f"{count:,.2f} {unit}"
        count /= 1024
    raise AssertionError("the last unit takes all")


def headline(plan: Plan) -> str:
    """Where, and whether it fits, in one line."""
    axes = ", ".join(f"{name}={count}" for name, count in plan.mesh.items())
    where = plan.target or f"{plan.num_devices} device(s) here"
    if plan.verdict:
        verdict = "does not fit"
    elif plan.memory is None:
        verdict = "the devices' memory is not known"
    else:
        verdict = f"{'fits' if plan.fits else 'does not fit'}: {plan.peak / plan.memory:.1%} of {size(plan.memory)}"
    return f"{where} ({axes}): {verdict}"


def parts(plan: Plan) -> list[tuple[str, int]]:
    """What a device's memory goes to."""
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
    ]


def table_of(plan: Plan) -> Any:
    """The whole plan: memory, time, collectives, what to do."""
    memory = Table(title=headline(plan), title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    memory.add_column("per device")
    memory.add_column("", justify="right")
    memory.add_column("bytes", justify="right", style="dim")
    for name, count in parts(plan):
        memory.add_row(name, size(count), f"{count:,}")
    memory.add_row("floating-point operations", f"{plan.flops:.4g}", f"{plan.flops:,.0f}")
    memory.add_row("moved by collectives", size(plan.moved_bytes), f"{plan.moved_bytes:,}")
    said: list[Any] = [memory]
    programs = "1 program" if plan.num_programs == 1 else f"{plan.num_programs} programs"
    said.append(Text(f"{programs} of {plan.num_ops:,} ops, compiled in {plan.compile_seconds:.2f} s"))
    if plan.formula:
        said.append(Text(plan.formula))
    if plan.collectives:
        said.append(_collectives(plan))
    if plan.verdict:
        said.append(Text(f"The compiler: {plan.verdict}", style="bold red"))
    if plan.largest:
        said.append(Text("\n".join(["The largest values:", *(f"  {line}" for line in plan.largest)])))
    if plan.advice:
        said.append(Text("\n".join(["What would shrink it:", *(f"  - {line}" for line in plan.advice)])))
    said += [Text(note, style="dim") for note in plan.notes]
    return Group(*said)


def _collectives(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="collectives", title_justify="left", title_style="bold")
    for heading in ("kind", "axes", "count", "bytes", "moved"):
        table.add_column(heading, justify="left" if heading in ("kind", "axes") else "right", no_wrap=True)
    table.add_column("from", overflow="fold")
    for row in plan.collectives[:SHOWN]:
        kind = f"{row.kind} + slice" if row.is_sliced else row.kind
        came = "\n".join(part for part in (f"{row.path} {row.op}".strip(), row.line) if part)
        axes = f"{' x '.join(row.axes)} ({row.devices})"
        table.add_row(kind, axes, f"{row.count:,}", size(row.bytes), size(row.moved_bytes), came)
    rest = plan.collectives[SHOWN:]
    if rest:
        moved = sum(row.moved_bytes for row in rest)
        table.add_row(f"{len(rest)} more rows", "", f"{sum(row.count for row in rest):,}", "", size(moved), "")
    return table
