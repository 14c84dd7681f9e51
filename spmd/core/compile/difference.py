"""In words, why a graph is not a program that there is: the setting, an input, an op, a layout, what is kept."""

import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any

from ..config import config
from ..ir.graph import Graph, Leaf, Node, Pick, Value
from ..ir.op import PADDED, Entry
from ..ir.source import Line, node_line
from ..sharding.value import Sharding

# The flags that make two programs of one graph.
SETTINGS = ("partitioner", "compiler_options", "roll_layers", "max_logits_bytes")

_LIST = re.compile(r"\[[-\d, ]*\]")  # a shape, in the text of an op's arguments
_ARGUMENT = re.compile(r"(?:^|, )(\w+)=")
_OPERAND = re.compile(r"\[?(?:bool|(?:u?int|float|bfloat|complex)\d+\w*)\[[-\d,]*\].*")
# Longer stretches than this that differ are compared op by op, not aligned: that takes the square of their length.
_ALIGNED = 2_000

Place = tuple[int, int]  # (which op, which of its results) makes a value; of leaf i (~i, 0)


class Asked:
    """What a graph was for which a program was made: ops and their lines, inputs (meta, how they lie), what each op
    reads and what is kept (roots) by their places, how results must lie, what might be donated, the flags.

    run: the number of the run that needed it first.
    """

    __slots__ = ("donated", "entries", "leaves", "lines", "pinned", "roots", "run", "settings", "wiring")

    def __init__(self, graph: Graph, run: int):
        self.entries = [node.entry for node in graph.nodes]
        self.lines = [node_line(node) for node in graph.nodes]
        self.leaves = [(leaf.meta, lies) for leaf, lies in zip(graph.leaves, graph.lies, strict=True)]
        place = _places(graph)
        self.wiring = [tuple(map(place, node.operands)) for node in graph.nodes]
        self.roots = list(map(place, graph.roots))
        self.pinned = list(graph.pinned)
        self.donated = graph.donated
        self.settings = _settings()
        self.run = run


def _settings() -> tuple[Any, ...]:
    return tuple(getattr(config, name) for name in SETTINGS)


def _places(graph: Graph) -> Callable[[Value], Place]:
    """What tells the place of a value of a graph."""
    position: dict[Value, int] = {leaf: ~i for i, leaf in enumerate(graph.leaves)}
    position |= {node: i for i, node in enumerate(graph.nodes)}
    return lambda value: (position[value.node], value.index) if type(value) is Pick else (position[value], 0)


def difference(before: Asked, graph: Graph, *, num_alike: int = 0) -> str:
    """What makes a graph another program than this one, the first thing in the order of recording.

    num_alike: how many programs of its barrier have the same ops, on whatever shapes.
    """
    changed = changed_input(before, graph)
    if changed is not None:
        return (
            changed if num_alike < 2 else f"{changed} ({num_alike} programs here differ from this one by shapes alone)"
        )
    return (
        _changed_setting(before)
        or _grown(before, graph)
        or _changed_ops(before, graph)
        or _changed_wiring(before, graph)
        or _changed_input_layout(before, graph)
        or _changed_results(before, graph)
        or _changed_donation(before, graph)
        or "the same ops, on a mesh whose devices stand in another order"
    )


def changed_input(before: Asked, graph: Graph) -> str | None:
    """Of the inputs whose shape or dtype has changed the greatest, where nothing else has; else None."""
    if len(before.entries) != len(graph.nodes) or len(before.leaves) != len(graph.leaves):
        return None
    if not all(_is_reshaped(old, node.entry) for old, node in zip(before.entries, graph.nodes, strict=True)):
        return None
    changed = [
        (leaf, meta) for (meta, _), leaf in zip(before.leaves, graph.leaves, strict=True) if meta is not leaf.meta
    ]
    if not changed:
        return None
    leaf, meta = max(changed, key=lambda pair: pair[0].meta.nbytes)
    return f"an input is now {leaf.meta!r}, before {meta!r}{_read_at(leaf, graph.nodes)}"


def _is_reshaped(old: Entry, new: Entry) -> bool:
    """Whether two ops are one, but for shapes."""
    return old is new or (old.name == new.name and _LIST.sub("", old.statics) == _LIST.sub("", new.statics))


def _read_at(leaf: Leaf, nodes: Sequence[Node]) -> str:
    reader = next((node for node in nodes if any(operand is leaf for operand in node.operands)), None)
    return "" if reader is None else f"; {reader.entry.name} reads it at {node_line(reader)}"


# --- the setting ------------------------------------------------------------------------------------------------------


def _changed_setting(before: Asked) -> str | None:
    for name, old, new in zip(SETTINGS, before.settings, _settings(), strict=True):
        if old != new:
            return f"spmd.config.{name} is now {new!r}, before {old!r}"
    return None


# --- the ops ----------------------------------------------------------------------------------------------------------


def _grown(before: Asked, graph: Graph) -> str | None:
    """The op whose length has become an operand."""
    for old, node in zip(before.entries, graph.nodes, strict=False):
        if node.entry.statics == PADDED != old.statics and node.entry.name == old.name:
            return (
                f"{old.name}: the length ({old.statics}) differs from run to run and is an operand from now on at "
                f"{Line(node.code, node.instruction)}"
            )
    return None


def _changed_ops(before: Asked, graph: Graph) -> str | None:
    """The first op that is new, gone, another one or changed; and how many there are, where their number differs."""
    olds, news = before.entries, graph.nodes
    first = next((i for i, (old, node) in enumerate(zip(olds, news, strict=False)) if old is not node.entry), None)
    if first is None and len(olds) == len(news):
        return None
    start = min(len(olds), len(news)) if first is None else first
    said = _first_change(before, graph, start)
    return said if len(olds) == len(news) else f"{said}; the graph has {len(news)} ops, before {len(olds)}"


def _first_change(before: Asked, graph: Graph, start: int) -> str:
    """What the ops from this place on, the first where they part, have become."""
    olds, news = before.entries[start:], graph.nodes[start:]
    while olds and news and olds[-1] is news[-1].entry:
        olds, news = olds[:-1], news[:-1]
    if olds and news and (olds[0].name == news[0].entry.name or len(olds) + len(news) > _ALIGNED):
        kind, gone, new = "replace", 1, 1
    else:
        names = [entry.name for entry in olds], [node.entry.name for node in news]
        parts = SequenceMatcher(None, *names, autojunk=False).get_opcodes()
        kind, low, high, begin, end = next(part for part in parts if part[0] != "equal")
        gone, new = high - low, end - begin
    if kind == "insert":
        return f"{_op_of(news[0].entry)} is new{_more(new)} at {_line(news[0])}"
    if kind == "delete":
        return f"{_op_of(olds[0])} is gone{_more(gone)}; it was at {before.lines[start]}"
    old, node = olds[0], news[0]
    if old.name != node.entry.name:
        return f"op {node.entry.name} instead of {old.name} at {_line(node)}"
    return f"{_changed_op(old, node, graph)} at {_line(node)}"


def _more(count: int) -> str:
    return f" with {count - 1} behind it" if count > 1 else ""


def _line(node: Node) -> Line:
    """Where an op was written; of a backward op, its forward op."""
    return node_line(node)


def _op_of(entry: Entry) -> str:
    """An op by its name and plain arguments; an annotation by what it says."""
    if entry.name == "mark_sharding" and entry.sharding is not None:
        return f"the annotation of {entry.metas[0]!r} as {_spec(entry.sharding, entry)}"
    told = ", ".join(f"{name}={text}" for name, text in _arguments(entry.statics).items() if _is_plain(text))
    return f"op {entry.name}" + (f"({told})" if 0 < len(told) <= _TOLD else "")


_TOLD = 80  # characters of arguments that are told of an op


def _is_plain(argument: str) -> bool:
    """Whether the text of an argument is neither a tensor nor a number that may change."""
    return bool(argument) and not _OPERAND.match(argument) and "lifted" not in argument


def _spec(lies: Sharding, entry: Entry) -> str:
    return f"P{lies.partition_spec(len(entry.metas[0].shape))!r}"


def _changed_op(old: Entry, node: Node, graph: Graph) -> str:
    new = node.entry
    if old.sharding is not new.sharding and old.sharding is not None and new.sharding is not None:
        told = _spec(new.sharding, new), _spec(old.sharding, old)
        now, was = told if told[0] != told[1] else (repr(new.sharding), repr(old.sharding))
        return f"the annotation of {new.metas[0]!r} is now {now}, before {was}"
    for operand, meta, was_meta in zip(node.operands, new.operands, old.operands, strict=False):
        if meta is not was_meta and type(operand) is Leaf:
            return f"an input is now {meta!r}, before {was_meta!r}; {new.name} reads it"
    if old.moving is not None and old.moving[0] is new:
        return f"{new.name}: the position ({old.statics}) differs from run to run and is an operand from now on"
    if len(old.operands) != len(new.operands):
        listed = ", ".join(map(repr, new.operands)), ", ".join(map(repr, old.operands))
        return f"{new.name} now reads {listed[0]}, before {listed[1]}"
    changed = _changed_arguments(old.statics, new.statics)
    if changed:
        return f"{new.name}: {', '.join(now for now, _ in changed)}, before {', '.join(was for _, was in changed)}"
    if old.numbers != new.numbers:
        kinds = {"f": "a float", "i": "an integer"}
        pairs = [(kinds[a], kinds[b]) for a, b in zip(old.numbers, new.numbers, strict=False) if a != b]
        return f"{new.name}: a number that was {pairs[0][0]} is {pairs[0][1]} now" if pairs else _shapes(old, new)
    if new.lowering.opaque:
        return f"{new.name} calls another function"
    return _shapes(old, new)


def _shapes(old: Entry, new: Entry) -> str:
    if old.metas != new.metas:
        return f"{new.name}: makes {_listed(new.metas)}, before {_listed(old.metas)}"
    return f"{new.name}: {new.statics or 'no arguments'}, before {old.statics or 'no arguments'}; or other memory"


def _listed(metas: Sequence[Any]) -> str:
    return ", ".join(map(repr, metas))


def _changed_arguments(old: str, new: str) -> list[tuple[str, str]]:
    """The arguments, tensors aside, that two texts of them have otherwise: each as (now, before)."""
    was, now = _arguments(old), _arguments(new)
    names = [name for name in now | was if now.get(name) != was.get(name)]
    changed = [(f"{name}={now.get(name, '(none)')}", f"{name}={was.get(name, '(none)')}") for name in names]
    return [
        pair
        for name, pair in zip(names, changed, strict=True)
        if not (_OPERAND.match(now.get(name, "")) and _OPERAND.match(was.get(name, "")))
    ]


def _arguments(statics: str) -> dict[str, str]:
    """A text of arguments by name; one that has no names is one argument."""
    found = list(_ARGUMENT.finditer(statics))
    if not found or found[0].start():
        return {"arguments": statics} if statics else {}
    ends = [match.start() for match in found[1:]] + [len(statics)]
    return {match[1]: statics[match.end() : end] for match, end in zip(found, ends, strict=True)}


# --- the same ops -----------------------------------------------------------------------------------------------------


def _changed_wiring(before: Asked, graph: Graph) -> str | None:
    """The first op that reads another value."""
    places = _places(graph)
    for node, old in zip(graph.nodes, before.wiring, strict=True):
        new = tuple(map(places, node.operands))
        if new != old:
            i = next(i for i, (a, b) in enumerate(zip(new, old, strict=True)) if a != b)
            entries, lines = [node.entry for node in graph.nodes], [node_line(node) for node in graph.nodes]
            now = _value(new[i], entries, lines, [leaf.meta for leaf in graph.leaves])
            was = _value(old[i], before.entries, before.lines, [meta for meta, _ in before.leaves])
            return f"{node.entry.name} at {node_line(node)} reads {now}, before {was}"
    return None


def _value(place: Place, entries: Sequence[Entry], lines: Sequence[Line], metas: Sequence[Any]) -> str:
    """A value of a program by its place."""
    at, _ = place
    return f"input {~at} ({metas[~at]!r})" if at < 0 else f"the result of {entries[at].name} at {lines[at]}"


def _changed_input_layout(before: Asked, graph: Graph) -> str | None:
    for (meta, was), leaf, lies in zip(before.leaves, graph.leaves, graph.lies, strict=False):
        if meta is not leaf.meta:
            return f"an input is now {leaf.meta!r}, before {meta!r}{_read_at(leaf, graph.nodes)}"
        if was is not lies:
            at = _read_at(leaf, graph.nodes)
            return f"the input {leaf.meta!r} now lies as {lies!r}, before as {was!r}{at}"
    return None


def _changed_results(before: Asked, graph: Graph) -> str | None:
    """The first result that is kept and was not, is not and was, or must lie otherwise."""
    place = _places(graph)
    now = dict(zip(map(place, graph.roots), graph.pinned, strict=True))
    was = dict(zip(before.roots, before.pinned, strict=True))
    entries, lines, metas = (
        before.entries,
        [node_line(node) for node in graph.nodes],
        [leaf.meta for leaf in graph.leaves],
    )
    for at in now:
        if at not in was:
            return (
                f"{_value(at, entries, lines, metas)} is kept, before it was not: a tensor more is alive at the "
                f"barrier ({len(now)}, before {len(was)})"
            )
    for at in was:
        if at not in now:
            return (
                f"{_value(at, entries, before.lines, metas)} is not kept any more: a tensor less is alive at the "
                f"barrier ({len(now)}, before {len(was)})"
            )
    for at, lies in now.items():
        if lies is not was[at]:
            told = [_asked(one) for one in (lies, was[at])]
            return f"{_value(at, entries, lines, metas)} is to lie {told[0]}, before {told[1]}"
    if list(now) != list(was):
        return "the same values are kept, written in another order"
    return None


def _asked(lies: Sharding | None) -> str:
    return "as the compiler likes" if lies is None else f"as {lies!r}"


def _changed_donation(before: Asked, graph: Graph) -> str | None:
    for leaf, is_given, was_given in zip(graph.leaves, graph.donated, before.donated, strict=False):
        if is_given != was_given:
            now = "may be written over, before it had to stay" if is_given else "must stay, before it was written over"
            return f"the input {leaf.meta!r} {now}: who else holds its tensor has changed{_read_at(leaf, graph.nodes)}"
    return None
