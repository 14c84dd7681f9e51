"""The barrier: runs what is pending; reads of values wait for it. Failed barriers give up no more than they must."""

import weakref
from collections.abc import Sequence

import jax
import numpy as np

from . import compile as compiling
from . import interrupt, loops, metrics, nans, runtime, varying
from .birth import give_birth
from .config import config
from .ir import Leaf, Node, origin, topological
from .placement import wanted
from .running import graph_of, run, run_between, run_whole, values_of
from .source import user_line
from .tensor import LIVE, LOCK, Cell, pending


def sync(*, wait: bool = False) -> None:
    """Runs everything that is pending, as one program, and returns at once unless `wait`.

    State that depends on constants and random keys alone (initialisation) runs first, as a program of its own. With
    `wait` it returns when the devices are done. Errors: see `spmd.sync`.
    """
    interrupt.watch()
    with LOCK:
        cells, turns = pending(), metrics.counter("loop_turns")
        if cells:
            metrics.add("syncs")
            try:
                run(cells, user_line())
            except Exception as error:
                _abandon(cells, error)
                raise
        for ref in LIVE:
            if (cell := ref()) is not None:
                cell.listed = False
        LIVE.clear()
        _rest_until_next_look(had_loop=turns < metrics.counter("loop_turns"))
        metrics.synced_ops = metrics.recorded_ops
    if wait:
        values = [cell.value for cell in cells]
        for device_array in [leaf.buffer for leaf in values if isinstance(leaf, Leaf) and leaf.buffer is not None]:
            device_array.block_until_ready()


_longest = 0  # of the graphs that were synced: a step of this length has no loop in it
_early = 0  # two turns of the loop found last, 0 since a look found none: that many ops may be the loop again
_wait = 0  # from the last look to the next


def _rest_until_next_look(*, had_loop: bool) -> None:
    """A step is as long as the longest so far; only when it grows to three times that, it may have a loop in it."""
    global _longest
    if not had_loop:
        _longest = max(_longest, metrics.recorded_ops - metrics.synced_ops)
    _look_after(_early or max(config.loop_search_ops, 3 * _longest))


def _look_after(num_ops: int) -> None:
    global _wait
    _wait = num_ops
    limit = metrics.synced_ops + config.max_pending_ops
    metrics.look_at = min(metrics.recorded_ops + num_ops, limit) if config.loop_search_ops else limit


def run_turns() -> None:
    """Runs the finished turns of a loop that nobody syncs (see `core.loops`); what is behind them stays recorded.

    The first turns run as soon as they are known to be some, so that the devices need not wait; then more at a time.
    """
    global _early
    with LOCK:
        num_ops = metrics.recorded_ops - metrics.synced_ops
        LIVE[:] = [ref for ref in LIVE if ref() is not None]
        cells = pending()
        nodes, _ = topological([cell.value for cell in cells])
        cuts = [] if nans.looked_for() else loops.cuts(nodes, written=None, goes_on=True)
        if not cuts:
            _early = 0
            _look_after(max(num_ops, config.loop_search_ops))
            return
        line = user_line()
        try:
            if give_birth(cells, line):
                cells = pending()
                nodes, _ = topological([cell.value for cell in cells])
                cuts = loops.cuts(nodes, written=set(), goes_on=True)
            run_between(cuts, nodes, cells, line)
        except Exception as error:
            _abandon(cells, error)
            raise
        left = len(nodes) - cuts[-1] if cuts else len(nodes)
        metrics.synced_ops = metrics.recorded_ops - num_ops * left // len(nodes)
        turn = num_ops * (cuts[-1] - cuts[-2] if len(cuts) > 1 else left) // len(nodes)
        _early = 2 * turn + loops.SHORTEST
        _look_after(max(turn, min(2 * _wait, config.loop_search_ops)))


def materialise(cell: Cell) -> Leaf:
    """The cell's value as a leaf: at once when it has one, or is a number that the host knows; else after a barrier."""
    if type(cell.value) is not Leaf and cell.meta.numel == 1:
        _settle_by_host(cell)
    if type(cell.value) is not Leaf:
        if config.sync_on_read == "needed":
            with LOCK:
                run_whole([cell], user_line(), donate=False)
        else:
            sync()
    leaf = cell.value
    assert type(leaf) is Leaf
    leaf.check()
    return leaf


def _settle_by_host(cell: Cell) -> None:
    """Gives the cell its value where the host can make it of data and other work, which need not be run, is pending."""
    with LOCK:
        nodes = varying.few_small(cell.value)
        if nodes is not None and _is_more_pending(nodes):
            cell.settle(varying.known(cell.value, nodes))


def _is_more_pending(nodes: Sequence[Node]) -> bool:
    """Whether anything but these waits to be run; what was recorded last is asked first."""
    for ref in reversed(LIVE):
        cell = ref()
        if cell is not None and type(cell.value) is not Leaf and origin(cell.value) not in nodes:
            return True
    return False


def placed(cell: Cell) -> Leaf:
    """The cell's value as a device buffer; host data is uploaded now."""
    leaf = materialise(cell)
    with LOCK:
        if leaf.host is not None:
            leaf.sharding = wanted(leaf) or runtime.default_sharding()
            leaf.buffer, leaf.host = runtime.upload(leaf.host, leaf.sharding), None
            cell.home = leaf.sharding
    return leaf


def host_value(cell: Cell) -> np.ndarray:
    """The whole value of a cell as a host array of the logical shape."""
    with LOCK:
        leaf = materialise(cell)
        if leaf.host is not None:
            return leaf.host
        leaf.shared += 1  # another thread's barrier must not donate what this one waits for
    metrics.add("host_reads")
    try:
        return runtime.download(leaf.placed()[0], leaf.meta.shape)
    except jax.errors.JaxRuntimeError as error:
        program = compiling.last_program()
        raise (compiling.explain_failure(program, error) if program else error) from error
    finally:
        with LOCK:
            leaf.shared -= 1


def pending_stablehlo(cells: Sequence[Cell] | None = None) -> str:
    """The StableHLO that the next barrier would compile, with its sharding attributes; nothing runs."""
    with LOCK:
        chosen = [cell for cell in (pending() if cells is None else cells) if type(cell.value) is not Leaf]
        if not chosen:
            return ""
        return str(compiling.lower_graph(graph_of(values_of(chosen), donate=cells is None)).as_text())


def _abandon(cells: list[Cell], error: Exception) -> None:
    """After a failed barrier: a tensor that had data before keeps that data, one that had none says what failed.

    Where the error names the op that failed, only what depends on it is given up; the rest stays pending.
    """
    nodes, leaves = topological([cell.value for cell in cells])
    failed = getattr(error, "node", None)
    gone = {leaf for leaf in leaves if leaf.gone is not None}
    everything = failed is None and not gone
    lost: set[Node] = set()
    for node in nodes:
        if everything or node is failed or any(value in gone or origin(value) in lost for value in node.operands):
            lost.add(node)
    before = {leaf.holder(): leaf for leaf in leaves if leaf.holder is not None and leaf.gone is None}
    for cell in cells:
        if origin(cell.value) not in lost:
            continue
        old = before.get(cell)
        if old is None:
            old = Leaf(cell.meta)
            old.gone = str(error)
        cell.value, cell.past = old, None
        cell.stamp += 1
        old.holder = weakref.ref(cell)
