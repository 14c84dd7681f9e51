"""Layouts of recorded values, read from the shapes of their shards and from inputs and annotations."""

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from ...core import DeviceData, Sharding
from ...core.extend import Graph, Node, Value, walks

Shape = tuple[int, ...]
Entries = tuple[Any, ...]  # of a spec, as a user writes it: an axis, a tuple of axes or None for each dim


class Moved(NamedTuple):
    """A value that is moved: the op that it is an operand or a result of, its name there, and both layouts (None: not
    known)."""

    node: Node
    name: str
    shape: Shape
    before: Entries | None
    after: Entries | None


def spec_text(entries: Entries | None) -> str:
    """The spec as a user writes it.

    >>> spec_text(("data", None))
    "P('data', None)"
    """
    return "" if entries is None else f"P({', '.join(map(repr, entries))})"


def cuts(entries: Entries | None) -> set[tuple[int, Any]]:
    """The axes of a spec, each with its dim."""
    each = enumerate(entries or ())
    return {(dim, axis) for dim, entry in each for axis in (entry if isinstance(entry, tuple) else (entry,))}


def tiles_of(shape: Sequence[int], shard: Sequence[int]) -> tuple[int, ...] | None:
    """The number of tiles of each dim; None if shards of this shape are not those of an array of the other.

    >>> tiles_of((8, 6), (4, 6)), tiles_of((8, 6), (6, 8))
    ((2, 1), None)
    """
    if len(shape) != len(shard) or not all(0 < part <= dim for dim, part in zip(shape, shard, strict=True)):
        return None
    tiles = tuple(-(-dim // part) for dim, part in zip(shape, shard, strict=True))
    is_even = all(-(-dim // cut) == part for dim, cut, part in zip(shape, tiles, shard, strict=True))
    return tiles if is_even else None


class Layouts:
    """The layouts of the values of a graph, as far as inputs, annotations and shapes of shards give them.

    places: of the ops; axis_names: of all meshes.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.places = {node: index for index, node in enumerate(graph.nodes)}
        self.meshes = graph.meshes()
        self.axis_names = tuple(dict.fromkeys(name for mesh in self.meshes for name in mesh.axis_names))
        self.inputs = dict(zip(graph.inputs, graph.shardings, strict=True))
        self.marks: dict[Any, list[Sharding]] = {}
        for node in graph.nodes:
            if node.op.name == "mark_sharding" and node.op.sharding is not None:
                self.marks.setdefault(walks.value_name(node.operands[0]), []).append(node.op.sharding)

    def known(self, value: Value) -> Sharding | None:
        """The layout that an annotation, or data, gives a value."""
        node = walks.origin(value)
        found = self.inputs.get(value) if type(value) is DeviceData else None if node is None else node.op.sharding
        return None if found is None or found.is_open else found

    def marked_after(self, node: Node) -> set[Entries]:
        """The layouts that annotations of the result of an op request."""
        return {mark.partition_spec(len(node.meta.shape)) for mark in self.marks.get(node, ())}

    def moved(self, node: Node, befores: Sequence[Shape], afters: Sequence[Shape]) -> Moved | None:
        """The value that is moved from a shard of one of these shapes to one of the others.

        One with a known layout of such shards is taken first, then one of which both can be shards.
        """
        for is_known in (True, False):
            for holder, name, value in self._values(node):
                found = self._moved(holder, name, value, befores, afters, is_known=is_known)
                if found is not None:
                    return found
        # XLA may have a layout on the way that no spec can name.
        for name, value in (("the result", node), *((f"operand {i}", one) for i, one in enumerate(node.operands))):
            shape = tuple(value.meta.shape)
            if any(tiles_of(shape, one) for one in befores):
                after = next((one for shard in afters if (one := self._named(shape, shard)) is not None), None)
                if after is not None:
                    return Moved(node, name, shape, None, after)
        return None

    def looked_up(self, node: Node, axes: Sequence[str]) -> Moved | None:
        """The operand that is cut over these axes; it would have to be whole along them."""
        for holder, name, value in self._values(node):
            known, shape = self.known(value), tuple(value.meta.shape)
            before = None if known is None else known.partition_spec(len(shape))
            if before is not None and {axis for _, axis in cuts(before)}.issuperset(axes) and value is not node:
                return Moved(holder, name, shape, before, tuple(_without(entry, axes) for entry in before))
        return None

    def _moved(
        self,
        holder: Node,
        name: str,
        value: Value,
        befores: Sequence[Shape],
        afters: Sequence[Shape],
        *,
        is_known: bool,
    ) -> Moved | None:
        shape, known = tuple(value.meta.shape), self.known(value)
        before = None
        if is_known:
            if known is not None and shape and known.shard_shape(shape) in befores:
                before = known.partition_spec(len(shape))
        else:
            before = next((one for shard in befores if (one := self._named(shape, shard)) is not None), None)
        if before is None:
            return None
        marked = self.marked_after(holder) if shape == tuple(holder.meta.shape) else set()
        found = (self._named(shape, shard, unlike=before, marked=marked) for shard in afters)
        after = next((one for one in found if one is not None), None)
        return Moved(holder, name, shape, before, after) if is_known or after is not None else None

    def _values(self, node: Node) -> Iterator[tuple[Node, str, Value]]:
        """Yields the operands of an op, its result, and the operands of the ops before it that XLA takes as one with it
        (views), each with the op and its name there."""
        todo, seen = [node], {node}
        yield from ((node, f"operand {place}", operand) for place, operand in enumerate(node.operands))
        yield node, "the result", node
        while todo and len(seen) < _MOST:
            for before in map(walks.origin, todo.pop(0).operands):
                if before is not None and before not in seen:
                    seen.add(before)
                    todo.append(before)
                    yield from ((before, f"operand {place}", one) for place, one in enumerate(before.operands))

    def _named(
        self, shape: Shape, shard: Shape, unlike: Entries | None = None, marked: Collection[Entries] = ()
    ) -> Entries | None:
        """The spec whose shards have a shape; None if no mesh has one. Of several an annotation's, then the one with
        most axes where another layout, `unlike`, has them, but not that itself."""
        tiles = tiles_of(shape, shard)
        if tiles is None:
            return None
        for mesh in self.meshes:
            found = [
                entries
                for spec in itertools.islice(mesh.specs(tiles), _MOST)
                if (entries := tuple(map(_entry, spec))) != unlike
            ]
            if found:
                return max(found, key=lambda one: (one in marked, len(cuts(one) & cuts(unlike))))
        return None


_MOST = 16


def _entry(axes: tuple[str, ...]) -> Any:
    return None if not axes else axes[0] if len(axes) == 1 else axes


def _without(entry: Any, axes: Sequence[str]) -> Any:
    left = tuple(axis for axis in (entry if isinstance(entry, tuple) else (entry,)) if axis not in axes)
    return _entry(() if left == (None,) else left)
