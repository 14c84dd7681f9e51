"""The outcome of a pass, and the facts that it may read in addition to the graph."""

import types
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..graph.graph import Graph, Node, Value
from ..graph.op import Lowering
from ..graph.source import Line


class Changed(NamedTuple):
    """A changed graph that computes the same, and a description of the change. is_last: no later
    pass looks at the graph."""

    graph: Graph
    description: str
    is_last: bool = True


class Cut(NamedTuple):
    """Several programs in place of one, described in words: `nodes`, cut at `ends`.

    ends: indices in `nodes`, each the number of ops before it. has_rest: the ops behind the last
    place go through the passes again. replaced: new values for results of the graph, by name.
    """

    nodes: Sequence[Node]
    ends: Sequence[int]
    description: str
    has_rest: bool = False
    replaced: Mapping[object, Value] = types.MappingProxyType({})


class OnHost(NamedTuple):
    """Ops that the host computes, and the reason in words. The ops between them become programs."""

    nodes: Collection[Node]
    reason: str


# Text: the reason why the graph is not changed; "": it has nothing that the pass is about.
Outcome = Changed | Cut | OnHost | str


class Sync(NamedTuple):
    """The sync of a graph.

    line: the user's line. key, counts: of the recorded graph, its key and the numbers of its ops'
    scalar arguments. written: the ops of the values of state that several steps have written since
    the sync before. is_rest: iterations of a loop were cut out of the graph.
    """

    line: Line
    key: Hashable
    counts: Sequence[int]
    written: Collection[Node] = ()
    is_rest: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """A function from a graph to its outcome, and where it applies.

    processes: it looks at the graph alone, not at earlier runs, so that each of several processes
    decides alike. threads: it also applies while several threads record. reads: it also applies to
    what a read needs, where nothing is donated. plans: it also applies to a step that is planned.
    """

    name: str
    run: Callable[[Graph, Sync], Outcome]
    processes: bool = False
    threads: bool = True
    reads: bool = False
    plans: bool = False


# Of the graph that is compiled: its name; a function from the graph, and whether it may be scanned,
# to another, with the change in words; the ops, by name or by kind of lowering, without which it
# changes nothing (None: any).
CompilePass = tuple[
    str, Callable[[Graph, bool], tuple[Graph, str]], Collection[str | type[Lowering]] | None
]


# The compile passes in their order, of the package's door; packages insert theirs.
COMPILE_PASSES: list[CompilePass]
# Those of them that an export runs, too: its text says what they make.
EXPORT_PASSES: list[CompilePass] = []


def runs(needs: Collection[str | type[Lowering]] | None, graph: Graph) -> bool:
    """True if a graph has an op of those that a compile pass needs."""
    return needs is None or any(
        node.op.name in needs or type(node.op.lowering) in needs for node in graph.nodes
    )


class Passes(list[Pass]):
    """The passes in their order; packages join theirs."""

    def join(self, new_pass: Pass, successor: str = "") -> None:
        """Inserts a pass before the pass named `successor`, or appends it."""
        names = [existing.name for existing in self]
        self.insert(names.index(successor) if successor else len(self), new_pass)
