"""The moves of an optimised program that no annotation requests: a pass over its collectives (see `Move`).

Collectives of one op that follow each other are one move, from the layout of the first one's operand to that of the
last one's result. The text of a partitioned program has the shapes of single shards, and a value's whole shape is that
of an operand or a result of the recorded op: the two together are its layout.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ...core import Move
from ...core.extend import Graph, Module, Node, Value, user_lines, walks
from .chains import Chain, chain_of
from .hlo_collectives import Placed, scope_of
from .shard_layouts import Layouts, Moved, cuts, spec_text, tiles_of

_AXIS = re.compile(r"'[^']*'")  # in a spec
# A move, with the place of the recorded op.
Placement = tuple[Move, int]


def moves(module: Module, graph: Graph, found: Sequence[Placed], unused: str = "") -> tuple[Placement, ...]:
    """Returns the moves of a program, of these collectives, without lines; most bytes first.

    graph: as it was recorded. unused: sentences on axes that an op cannot use, whose marks are not to be undone. Equal
    moves of one op are one.
    """
    layouts = Layouts(graph)
    by_line = {(one.computation.name, one.line.name): one for one in found}
    done: set[tuple[str, str]] = set()
    result: dict[Any, Placement] = {}
    for one in found:
        if one.node is None or (one.computation.name, one.line.name) in done:
            continue
        chain = chain_of(module, one, by_line)
        done |= {(link.computation.name, link.line.name) for link in chain.links}
        last = chain.links[-1].node
        move, place = _move(one.node if last is None else last, chain, layouts, unused)
        if move is not None:
            key = dataclasses.replace(move, bytes=0), place
            before = result.get(key)
            result[key] = dataclasses.replace(move, bytes=move.bytes + (before[0].bytes if before else 0)), place
    return tuple(sorted(result.values(), key=lambda found: -found[0].bytes))


def listed(
    found: Iterable[Placement], graph: Graph, above: int, paths: Callable[[Node], str] = lambda node: ""
) -> tuple[Move, ...]:
    """Returns the moves with a collective of more than `above` bytes, with the lines of the ops of this graph.

    paths: returns the path of the module that an op belongs to, or "".
    """
    return tuple(
        dataclasses.replace(
            move, line=str(user_lines.line_of(graph.nodes[place], graph.nodes)), path=paths(graph.nodes[place])
        )
        for move, place in found
        if move.largest > above
    )


def _move(place: int, chain: Chain, layouts: Layouts, unused: str) -> tuple[Move | None, int]:
    """The move of a chain of collectives, None for a requested one, and the place of its op."""
    node = layouts.graph.nodes[place]
    rows = [link.row for link in chain.links]
    is_lookup = _is_lookup(chain)
    if _is_sum(chain) and not is_lookup:
        return None, place
    axes = tuple(dict.fromkeys(axis for row in rows for axis in row.axes))
    value = layouts.looked_up(node, axes) if is_lookup else layouts.moved(node, chain.befores, chain.afters)
    is_given_up = value is not None and _is_given_up(chain, value.shape)
    # XLA may name a gather that an annotation requests after the op that reads its result.
    holders = [node] if value is None else [node, value.node]
    is_annotation = any(holder.op.name in _ANNOTATIONS for holder in holders)
    is_requested = is_annotation or (value is not None and _is_marked(value, layouts))
    if is_requested and not is_given_up:
        return None, place
    move = Move(
        "given up" if is_given_up else "move",
        user_lines.source_of(node).op.name,
        collectives=tuple(dict.fromkeys(row.kind for row in rows)),
        axes=axes,
        largest=max(row.bytes for row in rows),
        bytes=sum(row.moved_bytes for row in rows),
    )
    if value is None:
        return move, place
    changed = {axis for _, axis in cuts(value.before) ^ cuts(value.after or value.before)} if value.before else set()
    if is_given_up and chain.afters[0] in chain.befores:  # it comes back: updated, or by two annotations
        value = value._replace(after=value.before)
    op, before, after = user_lines.source_of(value.node).op.name, spec_text(value.before), spec_text(value.after)
    name = _markable(value)
    is_advised = name and after not in ("", before) and not undoes(before, after, unused)
    mark = f"mark_sharding of {name}, {list(value.shape)}, as {after}" if is_advised else ""
    move = dataclasses.replace(
        move,
        op=op,
        value=value.name,
        shape=value.shape,
        before=before,
        after=after,
        axes=tuple(axis for axis in layouts.axis_names if axis in changed) or axes,
        mark=mark,
    )
    return move, layouts.places[value.node]


def _markable(moved: Moved) -> str:
    """The moved value as one that a step can annotate: of a backward op the forward result that it reads, else ""."""
    value: Value = moved.node
    if moved.name.startswith("operand") and user_lines.source_of(moved.node).sequence >= 0:
        value = moved.node.operands[int(moved.name.split()[1])]
    maker = walks.origin(value)
    if maker is None or user_lines.source_of(maker).sequence >= 0:  # a parameter or an input, or a gradient
        return ""
    return f"{'the result' if value is not moved.node else moved.name} of {user_lines.source_of(maker).op.name}"


def undoes(before: str, after: str, unused: str) -> bool:
    """True if a spec lacks an axis of the one before that an op cannot use: the sentences `unused` say so instead."""
    gone = set(_AXIS.findall(before)) - set(_AXIS.findall(after))
    return any(axis in unused for axis in gone)


# --- which moves were requested ---------------------------------------------------------------------------------------

# Ops that say how a value is to be sharded, and those whose body is the user's own exchange.
_ANNOTATIONS = {
    "mark_sharding", "spmd.renew", "spmd.gather", "spmd.shard_as", "spmd.manual", "spmd.to_shard", "spmd.from_shards",
}  # fmt: skip
_SUMS = {"all-reduce", "reduce-scatter"}
# What jax traces for ops that only move elements: a sum over devices puts together what each of them has looked up.
_LOOKUPS = {"gather", "dynamic_slice", "dynamic_update_slice", "scatter", "concatenate", "slice", "pad", "rev", "sort"}


def _is_sum(chain: Chain) -> bool:
    return {link.row.kind for link in chain.links} <= _SUMS


def _is_lookup(chain: Chain) -> bool:
    scopes = {scope_of(link.computation, link.line).rpartition("/")[2] for link in chain.links}
    return _is_sum(chain) and not scopes.isdisjoint(_LOOKUPS)


def _is_marked(value: Moved, layouts: Layouts) -> bool:
    """True for an operand that an op takes in the layout of its annotated result."""
    return _is_pointwise(value.node.op.name) and bool(layouts.marked_after(value.node))


@functools.cache
def _is_pointwise(name: str) -> bool:
    """True for an op that computes each element by itself: XLA moves its operand to where its result is annotated."""
    namespace, _, rest = name.partition(".")
    packet = getattr(torch.ops.aten, rest.partition(".")[0], None) if namespace == "aten" else None
    overloads = [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]
    return any(torch.Tag.pointwise in overload.tags for overload in overloads)


def _is_given_up(chain: Chain, shape: tuple[int, ...]) -> bool:
    """True if devices gather a value and keep another slice of it."""
    kinds = {link.row.kind for link in chain.links}
    return chain.is_cut and "all-gather" in kinds and any(tiles_of(shape, shard) for shard in chain.afters)
