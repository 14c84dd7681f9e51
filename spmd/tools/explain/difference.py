"""States in words why a graph has no program yet: a flag, an input, an op, a sharding, a result
that is kept."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from operator import attrgetter
from typing import Any

from ...core import DeviceData, Sharding, messages, options
from ...core.extend import Graph, Line, Node, OpSpec, Program, op_specs, user_lines
from ...mesh.hints import listed

_LIST = re.compile(r"\[[-\d, ]*\]")  # a shape, in the text of an op's arguments
_ARGUMENT = re.compile(r"(?:^|, )(\w+)=")
_RESHAPED = re.compile(r"an input is now (\w+)\[[^]]*\], before \1\[")
_COUNTS = "; the graph has"
_OPERAND = re.compile(r"\[?(?:bool|(?:u?int|float|bfloat|complex)\d+\w*)\[[-\d,]*\].*")
# Ops, a letter for each name, that repeat.
_REPEATED = re.compile(r"(.{1,512}?)\1{2,}", re.DOTALL)
_MARKS = (
    "spmd.scan compiles the body of a loop once, spmd.while_loop is one program for any number of "
    "iterations"
)
# Differing stretches longer than this are compared op by op and not aligned, which takes the square
# of their length.
_ALIGNED = 2_000


def difference(old_request: options.Requested, graph: Graph, *, num_equal: int = 0) -> str:
    """Returns the first difference, in the order of recording, between a graph and the one of a
    program.

    num_equal: the number of programs of its sync that have the same ops, on any shapes.
    """
    changed = changed_input(old_request, graph)
    if changed is not None:
        return (
            changed
            if num_equal < 2
            else f"{changed} ({num_equal} programs here differ from this one by shapes alone)"
        )
    new_request = options.Requested(graph, old_request.run)
    return (
        _changed_setting(old_request, new_request)
        or _new_dynamic_length(old_request, graph)
        or _changed_iterations(old_request, graph)
        or _changed_ops(old_request, graph)
        or _changed_wiring(old_request, new_request)
        or _changed_input_layout(old_request, graph)
        or _changed_results(old_request, new_request)
        or _changed_donation(old_request, graph)
        or "the same ops, on a mesh whose devices are in another order"
    )


def is_of_shapes(cause: str) -> bool:
    """True if the shape of an input is the difference that a cause names, and not another model: a
    parameter of another shape, another number of ops, the program of another line.

    >>> is_of_shapes(
    ...     "an input is now float32[5], before float32[8]; aten.mm reads it at a.py:3 in f: x @ w"
    ... )
    True
    """
    return _RESHAPED.match(cause) is not None and _COUNTS not in cause


def changed_input(old_request: options.Requested, graph: Graph) -> str | None:
    """Describes the largest input whose shape or dtype has changed, if nothing else has; else None.
    A parameter or buffer comes before other inputs: it is of another model."""
    if len(old_request.entries) != len(graph.nodes) or len(old_request.inputs) != len(graph.inputs):
        return None
    if not all(
        _is_reshaped(old, node.op)
        for old, node in zip(old_request.entries, graph.nodes, strict=True)
    ):
        return None
    changed = [
        (device_data, meta)
        for (meta, _), device_data in zip(old_request.inputs, graph.inputs, strict=True)
        if meta is not device_data.meta
    ]
    if not changed:
        return None
    device_data, meta = max(changed, key=lambda pair: (pair[0].is_state, pair[0].meta.nbytes))
    return _now(device_data, device_data.meta, meta) + read_at(device_data, graph.nodes)


def _now(device_data: DeviceData, meta: Any, was: Any) -> str:
    kind = "a parameter or buffer" if device_data.is_state else "an input"
    return f"{kind} is now {meta!r}, before {was!r}"


def _is_reshaped(old: OpSpec, new: OpSpec) -> bool:
    """True if two ops are equal but for shapes."""
    return old is new or (
        old.name == new.name and _LIST.sub("", old.statics) == _LIST.sub("", new.statics)
    )


def read_at(device_data: DeviceData, nodes: Sequence[Node]) -> str:
    """Describes the first op that reads an input, with its line."""
    reader = next(
        (node for node in nodes if any(operand is device_data for operand in node.operands)), None
    )
    return (
        "" if reader is None else f"; {reader.op.name} reads it at {user_lines.node_line(reader)}"
    )


# --- the setting ----------------------------------------------------------------------------------


def _changed_setting(old_request: options.Requested, new_request: options.Requested) -> str | None:
    for name, old in old_request.settings.items():
        if old != new_request.settings[name]:
            return f"spmd.config.{name} is now {new_request.settings[name]!r}, before {old!r}"
    return None


# --- the ops --------------------------------------------------------------------------------------


def _new_dynamic_length(old_request: options.Requested, graph: Graph) -> str | None:
    """Describes the first op whose length has become an operand."""
    for old, node in zip(old_request.entries, graph.nodes, strict=False):
        if node.op.statics == op_specs.PADDED != old.statics and node.op.name == old.name:
            return (
                f"{old.name}: the length ({old.statics}) differs from run to run and is an "
                f"operand from now on at {Line(node.code, node.instruction)}"
            )
    return None


def _changed_iterations(old_request: options.Requested, graph: Graph) -> str | None:
    """Describes the first stretch that repeats more or less often than before, in a graph of
    otherwise the same ops."""
    letters: dict[str, str] = {}
    recorded = [node.op for node in graph.nodes], old_request.entries
    new_letters, was = (
        "".join(letters.setdefault(op.name, chr(len(letters))) for op in ops) for ops in recorded
    )
    if len(new_letters) == len(was) or _REPEATED.sub(r"\1", new_letters) != _REPEATED.sub(
        r"\1", was
    ):
        return None
    for new, old in zip(_REPEATED.finditer(new_letters), _REPEATED.finditer(was), strict=False):
        if len(new[0]) != len(old[0]):
            times = f"{len(new[0]) // len(new[1])} times, before {len(old[0]) // len(old[1])}"
            line = user_lines.lines_of(graph.nodes)[new.start()]
            return f"{len(new[1])} ops repeat {times}, from {line} on: {_MARKS}"
    return None


def _changed_ops(old_request: options.Requested, graph: Graph) -> str | None:
    """Describes the first op that was added, removed, replaced or changed, and the number of ops if
    that differs."""
    olds, news = old_request.entries, graph.nodes
    first = next(
        (i for i, (old, node) in enumerate(zip(olds, news, strict=False)) if old is not node.op),
        None,
    )
    if first is None and len(olds) == len(news):
        return None
    start = min(len(olds), len(news)) if first is None else first
    change = _first_change(old_request, graph, start)
    return (
        change
        if len(olds) == len(news)
        else f"{change}{_COUNTS} {len(news)} ops, before {len(olds)}"
    )


def _first_change(old_request: options.Requested, graph: Graph, start: int) -> str:
    """Describes the change at `start`, the first place at which the ops differ."""
    olds, news = old_request.entries[start:], graph.nodes[start:]
    while olds and news and olds[-1] is news[-1].op:
        olds, news = olds[:-1], news[:-1]
    if olds and news and (olds[0].name == news[0].op.name or len(olds) + len(news) > _ALIGNED):
        kind, low, high, begin, end = "replace", 0, 1, 0, 1
    else:
        names = [*map(attrgetter("name"), olds)], [*map(attrgetter("op.name"), news)]
        parts = SequenceMatcher(None, *names, autojunk=False).get_opcodes()
        kind, low, high, begin, end = next(part for part in parts if part[0] != "equal")
    if kind == "insert":
        return (
            f"{_op_of(news[0].op)} is new{_more(end - begin)} at "
            f"{user_lines.lines_of(graph.nodes)[start]}"
        )
    if kind == "delete":
        return f"{_op_of(olds[0])} is gone{_more(high - low)}; it was at {old_request.lines[start]}"
    old, node = olds[0], news[0]
    if old.name != node.op.name:
        return (
            f"op {node.op.name} instead of {old.name} at {user_lines.lines_of(graph.nodes)[start]}"
        )
    return f"{_changed_op(old, node, graph)} at {user_lines.lines_of(graph.nodes)[start]}"


def _more(count: int) -> str:
    return f" with {count - 1} behind it" if count > 1 else ""


def _op_of(op: OpSpec) -> str:
    """Describes an op by its name and plain arguments; an annotation by its spec."""
    if op.name == "mark_sharding" and op.sharding is not None:
        return f"the annotation of {op.metas[0]!r} as {_spec(op.sharding, op)}"
    plain = ", ".join(
        f"{name}={text}" for name, text in _arguments(op.statics).items() if _is_plain(text)
    )
    return f"op {op.name}" + (f"({plain})" if 0 < len(plain) <= _MAX_ARGUMENTS else "")


_MAX_ARGUMENTS = 80  # characters; longer arguments are left out of the description of an op


def _is_plain(argument: str) -> bool:
    """True if the text of an argument is neither a tensor nor a scalar argument."""
    return bool(argument) and not _OPERAND.match(argument) and "lifted" not in argument


def _spec(sharding: Sharding, op: OpSpec) -> str:
    return f"P{sharding.partition_spec(len(op.metas[0].shape))!r}"


def _changed_op(old: OpSpec, node: Node, graph: Graph) -> str:
    new = node.op
    if old.sharding is not new.sharding and old.sharding is not None and new.sharding is not None:
        specs = _spec(new.sharding, new), _spec(old.sharding, old)
        new_text, was = specs if specs[0] != specs[1] else (repr(new.sharding), repr(old.sharding))
        return f"the annotation of {new.metas[0]!r} is now {new_text}, before {was}"
    for operand, meta, was_meta in zip(node.operands, new.operands, old.operands, strict=False):
        if meta is not was_meta and type(operand) is DeviceData:
            return f"{_now(operand, meta, was_meta)}; {new.name} reads it"
    if old.dynamic_start is not None and old.dynamic_start[0] is new:
        return (
            f"{new.name}: the position ({old.statics}) differs from run to run and is an operand "
            "from now on"
        )
    if len(old.operands) != len(new.operands):
        return f"{new.name} now reads {listed(new.operands)}, before {listed(old.operands)}"
    changed = _changed_arguments(old.statics, new.statics)
    if changed:
        return (
            f"{new.name}: {', '.join(new_text for new_text, _ in changed)}, before "
            f"{', '.join(was for _, was in changed)}"
        )
    if old.numbers != new.numbers:
        kinds = {"f": "a float", "i": "an integer"}
        pairs = [
            (kinds[a], kinds[b]) for a, b in zip(old.numbers, new.numbers, strict=False) if a != b
        ]
        return (
            f"{new.name}: a number that was {pairs[0][0]} is {pairs[0][1]} now"
            if pairs
            else _shapes(old, new)
        )
    return f"{new.name} calls another function" if new.is_opaque else _shapes(old, new)


def _shapes(old: OpSpec, new: OpSpec) -> str:
    if old.metas != new.metas:
        return f"{new.name}: makes {listed(new.metas)}, before {listed(old.metas)}"
    return (
        f"{new.name}: {new.statics or 'no arguments'}, before {old.statics or 'no arguments'}; or "
        "other memory"
    )


def _changed_arguments(old: str, new: str) -> list[tuple[str, str]]:
    """Returns the arguments, tensors aside, that differ between two texts: each as (now,
    before)."""
    was, new_arguments = _arguments(old), _arguments(new)
    return [
        (f"{name}={new_arguments.get(name, '(none)')}", f"{name}={was.get(name, '(none)')}")
        for name in new_arguments | was
        if new_arguments.get(name) != was.get(name)
        and not (_OPERAND.match(new_arguments.get(name, "")) and _OPERAND.match(was.get(name, "")))
    ]


def _arguments(statics: str) -> dict[str, str]:
    """Splits a text of arguments by name; a text without names is one argument."""
    matches = list(_ARGUMENT.finditer(statics))
    if not matches or matches[0].start():
        return {"arguments": statics} if statics else {}
    ends = [match.start() for match in matches[1:]] + [len(statics)]
    return {match[1]: statics[match.end() : end] for match, end in zip(matches, ends, strict=True)}


# --- the same ops ---------------------------------------------------------------------------------


def _changed_wiring(old_request: options.Requested, new_request: options.Requested) -> str | None:
    """Describes the first op that reads another value."""
    for op, line, new, old in zip(
        new_request.entries, new_request.lines, new_request.wiring, old_request.wiring, strict=True
    ):
        for operand, was in zip(new, old, strict=True):
            if operand != was:
                return (
                    f"{op.name} at {line} reads {new_request.value(operand)}, before "
                    f"{old_request.value(was)}"
                )
    return None


def _changed_input_layout(old_request: options.Requested, graph: Graph) -> str | None:
    for (meta, was), device_data, sharding in zip(
        old_request.inputs, graph.inputs, graph.shardings, strict=False
    ):
        if meta is not device_data.meta:
            return _now(device_data, device_data.meta, meta) + read_at(device_data, graph.nodes)
        if was is not sharding:
            location = read_at(device_data, graph.nodes)
            return (
                f"the input {device_data.meta!r} is now sharded as {sharding!r}, before as "
                f"{was!r}{location}"
            )
    return None


def _changed_results(old_request: options.Requested, new_request: options.Requested) -> str | None:
    """Describes the first result that is newly kept, is no longer kept, or must have another
    sharding."""
    new, old = (
        dict(zip(requested.roots, requested.graph.pinned, strict=True))
        for requested in (new_request, old_request)
    )
    counts = f"alive at the sync ({len(new)}, before {len(old)})"
    for reference in new:
        if reference not in old:
            return (
                f"{new_request.value(reference)} is kept, before it was not: a tensor more is "
                f"{counts}"
            )
    for reference in old:
        if reference not in new:
            return f"{old_request.value(reference)} is not kept any more: a tensor less is {counts}"
    for reference, sharding in new.items():
        if sharding is not old[reference]:
            return (
                f"{new_request.value(reference)} is to be sharded {_requested(sharding)}, before "
                f"{_requested(old[reference])}"
            )
    return "the same values are kept, written in another order" if list(new) != list(old) else None


def _requested(sharding: Sharding | None) -> str:
    return "as the compiler chooses" if sharding is None else f"as {sharding!r}"


def _changed_donation(old_request: options.Requested, graph: Graph) -> str | None:
    for device_data, is_given, was_given in zip(
        graph.inputs, graph.donated, old_request.graph.donated, strict=False
    ):
        if is_given != was_given:
            constraint = (
                "may be written over, before it had to stay"
                if is_given
                else "must stay, before it was written over"
            )
            location = read_at(device_data, graph.nodes)
            return (
                f"the input {device_data.meta!r} {constraint}: the other holders of its tensor "
                f"have changed{location}"
            )
    return None


# The number of programs of one sync, different in shapes alone, at which a hint is printed.
_MANY = 4


def described(program: Program, graph: Graph, line: Line, num_equal: int) -> str:
    """Describes a difference; prints a hint, once, for a sync whose many programs differ by their
    shapes alone."""
    changed = changed_input(program.requested, graph) if num_equal == _MANY else None
    if changed is not None and is_of_shapes(changed):
        messages.say(
            f"{_MANY} programs at {line.short()} differ by shapes alone: pad to a few sizes",
            "many shapes",
            f"{_MANY} programs were compiled at {line} and another one is, only because shapes "
            f"change: {changed}. XLA compiles a program per shape: pad to a few sizes, or write "
            "into a tensor of the full size.",
        )
    return difference(program.requested, graph, num_equal=num_equal)
