"""A graph that is too long for one program is cut into several."""

from collections.abc import Hashable

from ..base.config import config
from ..base.pace import pace
from ..base.tables import Bounded
from ..graph.graph import Graph
from . import long_graphs, scan_layers
from .outcome import Cut, Outcome, Sync

# The places where a graph was cut, by its key: a warm step searches nothing.
_long: Bounded[Hashable, list[int]] = Bounded(512)
# A cut stores what crosses it, and gathers and recomputes nothing later: a step that loops make this much shorter, as
# that of a model with a few layers of another kind, stays one program.
_SHARE_OF_LOWERED = 8
# The rest of a graph whose loop iterations have run is no program of a step anyway: the limit divided by this makes it
# long.
_SHARE_OF_REST = 4


def forget() -> None:
    """Forgets where graphs were cut."""
    _long.clear()


def long_again(graph: Graph, sync: Sync) -> Outcome:
    """Cuts a graph that `long` has cut before at the same places."""
    ends = _long.get(sync.key)
    return "" if ends is None else Cut(graph.nodes, ends, "as before")


def long(graph: Graph, sync: Sync) -> Outcome:
    """Cuts a graph that has more ops than one program may have, equal layers counted once."""
    nodes, limit = graph.nodes, config.max_program_ops
    if sync.is_rest or pace.has_cut:
        limit //= _SHARE_OF_REST
    if len(nodes) <= limit or scan_layers.num_lowered(graph) <= max(limit, len(nodes) // _SHARE_OF_LOWERED):
        return ""
    ends = _long.keep(sync.key, [*long_graphs.stretches(nodes, limit), len(nodes)])
    return Cut(nodes, ends, f"more than {limit:,} ops")
