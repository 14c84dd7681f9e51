"""Equal layers of a graph become loops of its program, with their weights and state as stacked
parameters.

The xs and ys of a loop are stack groups, those of a loop that the user wrote (`spmd.scan_layers`)
as well; a list op relates the groups of its operands and of its results.
"""

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from ..base import counters
from ..base.config import config
from ..graph.graph import Graph, Name, Node, TupleElement, Value, origin, value_name
from ..graph.store import StackGroup, full_stores
from ..loop.found_loop import Candidate, Result
from ..loop.loop_op import Loop
from ..loop.row_ops import TakeRows
from ..lower.stack_rows import TAKE_ROWS
from .found_loops import hoist, with_loops
from .repeats import FEWEST_ITERATIONS, find_loops

# The fewest equal layers that "auto" scans: fewer compile as fast unrolled. TPU compilers take
# longer over each.
_ENOUGH = {"tpu": 4}
_ENOUGH_ELSEWHERE = 8
# Next to such a loop, the fewest ops that a loop of fewer iterations spares: of the layers around a
# frozen one.
_LARGE = 32


def scan(graph: Graph, may_scan: bool) -> tuple[Graph, str]:
    """Returns the graph with loops in place of repeated layers (see `config.scan_layers`) and with
    stack groups for the xs of all loops; and a note on the loops, or on why there are none."""
    started = counters.now()
    result, loops, note = _planned_loops(graph, _LARGE if may_scan else None)
    if loops:
        result, hoisted_note = hoist(with_loops(result, loops))
        note = (
            ", ".join(f"{loop.iterations} iterations of {loop.period} ops" for loop in loops)
            + hoisted_note
        )
    counters.add_time("roll", counters.now() - started)
    return result, note


def num_lowered(graph: Graph) -> int:
    """Returns the number of a graph's ops that are compiled: of a loop, those of one iteration."""
    return len(graph.nodes) - sum(
        (loop.iterations - 1) * loop.period for loop in _planned_loops(graph)[1]
    )


def rows_of_loops(graph: Graph) -> set[Name]:
    """Returns the names of the values that are rows of stacks where a graph's layers are scanned:
    those that its loops read and return, and those that list ops pass on."""
    loops = _planned_loops(graph)[1]
    return (
        set(itertools.chain.from_iterable(map(dict.values, _stack_groups(graph, loops))))
        if loops
        else set()
    )


def _loops_of(graph: Graph, min_saved_ops: float, splits: bool) -> tuple[list[Candidate], str]:
    """Returns the loops that a program may have, and the reason why there are none."""
    if config.scan_layers == "never":
        return [], "config.scan_layers is 'never'"
    loops = find_loops(graph.nodes, graph.roots, splits=splits)
    if not loops:
        equal = "of the same ops, shapes, shardings and scalar arguments"
        return (
            [],
            f"no {FEWEST_ITERATIONS} layers {equal} follow each other, and fewer are not a loop",
        )
    if config.scan_layers == "auto":
        # A graph that is too long for a program is cut without its loops.
        enough = (
            FEWEST_ITERATIONS
            if is_staged(graph) or len(graph.nodes) > config.max_program_ops
            else _ENOUGH.get(graph.mesh.platform, _ENOUGH_ELSEWHERE)
        )
        max_iterations = max(loop.iterations for loop in loops)
        if max_iterations < enough:
            return [], f"{max_iterations} equal layers, and a loop is made from {enough} on"
        loops = [
            loop
            for loop in loops
            if loop.iterations >= enough or (loop.iterations - 1) * loop.period >= min_saved_ops
        ]
    return loops, ""


def is_staged(graph: Graph) -> bool:
    """True if rows of a stack lie on devices of their own, or are taken apart by one op: only a
    loop computes each there."""
    return any(sharding.spec.stack for sharding in graph.shardings) or any(
        type(node.op.lowering) is TakeRows for node in graph.nodes
    )


def _planned_loops(
    graph: Graph, min_saved_ops: float | None = _LARGE, splits: bool = False
) -> tuple[Graph, list[Candidate], str]:
    """Returns the graph with its stack groups, the candidates that become loops, and why there are
    none.

    min_saved_ops: the fewest ops that a loop of few layers must save beside a loop of enough
    layers; None: no loops. splits: see `find_loops`.
    """
    loops, reason = (
        ([], "XLA would copy the stacks of their weights")
        if min_saved_ops is None
        else _loops_of(graph, min_saved_ops, splits)
    )
    has_rows = any(any(loop.rows()) for _, loop in _written_loops(graph))
    if not loops and not has_rows and not is_staged(graph):
        return graph, [], reason
    inputs, roots, all_peeled = columns_of(graph, loops)
    stack_groups = tuple(group for group in inputs if _is_kept_in_store(graph, group))
    is_free = config.scan_layers == "always" or is_staged(graph)
    if loops and not is_free and _exceeds_budget(loops, graph, stack_groups):
        # First in runs of layers that share what differs, then without the loops of few layers,
        # then without any.
        if not splits:
            return _planned_loops(graph, min_saved_ops, splits=True)
        if min_saved_ops != math.inf:
            return _planned_loops(graph, math.inf, splits=True)
        result, _, _ = _planned_loops(graph, None)
        return (
            result,
            [],
            "the program would copy their operands into stacks, more than one row of each",
        )
    for loop, peeled in zip(loops, all_peeled, strict=True):
        loop.peeled = peeled
    columns = [group for group in inputs if group not in stack_groups]
    return (
        dataclasses.replace(
            graph, stack_groups=stack_groups, stacked=tuple(roots), columns=columns
        ),
        loops,
        reason,
    )


def _exceeds_budget(
    loops: Sequence[Candidate], graph: Graph, stack_groups: Sequence[StackGroup]
) -> bool:
    """True if the program would copy more bytes into the stacks of its xs than one row of each.
    Values are copied unless they are rows of a loop, a list op or a store. One row is allowed for a
    layer that differs (T5's first).
    """
    # Rows already: of stores, of these loops' results, of list ops.
    rows: set[Name] = {graph.inputs[i] for group in stack_groups for i in group}
    for loop in loops:
        rows.update(node for index in loop.early for node in loop.ops_at(index))
        rows.update(name for result in loop.ys for name in loop.names(result))
        rows.update(value_name(initial) for _, initial in loop.carry)
    makers = {
        node
        for node in graph.nodes
        if type(node.op.lowering) in TAKE_ROWS and len(node.op.metas) > 1
    }
    read = {tuple(map(value_name, values)): values for loop in loops for values in loop.xs}
    copied, one_row = 0, sum(graph.inputs[group[0]].meta.nbytes for group in stack_groups)
    for names, values in read.items():
        are_rows = [
            name in rows or origin(value) in makers
            for name, value in zip(names, values, strict=True)
        ]
        copied += sum(
            value.meta.nbytes for value, is_row in zip(values, are_rows, strict=True) if not is_row
        )
        one_row += values[0].meta.nbytes if any(are_rows) else 0
    return copied > one_row


def _is_kept_in_store(graph: Graph, group: StackGroup) -> bool:
    """True if the next run reads these inputs, or values written over them: a store pays then."""
    return any(graph.donated[i] for i in group) or all(graph.inputs[i].is_state for i in group)


_Column = dict[int, Name]  # a stack group: by row, the name of a value
_GroupRow = tuple[int, int]  # a stack group, a row of it


def _written_loops(graph: Graph) -> Iterator[tuple[Node, Loop]]:
    """Yields the loops that the user wrote."""
    return ((node, node.op.lowering) for node in graph.nodes if isinstance(node.op.lowering, Loop))


_Peeled = list[dict[Result, dict[int, Value]]]  # by loop, see `Candidate.peeled`


def columns_of(
    graph: Graph, loops: Sequence[Candidate]
) -> tuple[list[StackGroup], list[StackGroup], _Peeled]:
    """Returns the stack groups of a graph's inputs and of its roots, each the indices of its rows,
    equal in meta and sharding; and for each loop its `Candidate.peeled`."""
    inputs: dict[Name, int] = {device_data: i for i, device_data in enumerate(graph.inputs)}
    roots = {value_name(root): i for i, root in enumerate(graph.roots)}
    columns = _stack_groups(graph, loops)
    names_by_column = [[name for _, name in sorted(column.items())] for column in columns]

    def groups_among(
        indices: dict[Name, int], kind_of: Callable[[int], Hashable]
    ) -> list[StackGroup]:
        complete = [
            tuple([indices[name] for name in names])
            for names in names_by_column
            if indices.keys() >= set(names)
        ]
        return [
            group for group in complete if len(group) > 1 and len(set(map(kind_of, group))) == 1
        ]

    of_inputs = groups_among(inputs, lambda i: (graph.inputs[i].meta, graph.shardings[i]))
    of_roots = groups_among(roots, lambda i: (graph.roots[i].meta, graph.pinned[i]))
    return of_inputs, of_roots, _peeled(graph, loops, columns)


def _stack_groups(graph: Graph, loops: Sequence[Candidate]) -> list[_Column]:
    """Returns the stack groups of all values: those of loops, and those that list ops pass on."""
    kinds: dict[object, Hashable] = {
        device_data: (device_data.meta, sharding)
        for device_data, sharding in zip(graph.inputs, graph.shardings, strict=True)
    }
    columns: list[_Column] = []
    group_rows: dict[object, _GroupRow] = {}

    def add(names: _Column) -> None:
        group_rows.update({name: (len(columns), row) for row, name in names.items()})
        columns.append(dict(names))

    def add_read(names: _Column) -> None:
        """Adds a group, or extends a known group of some of its rows: backward skips the first
        layer, whose input needs no gradient."""
        if len(set(names.values())) < len(names):
            return  # a value would be two rows
        # The known groups among these values, and by how many rows they are shifted there.
        offsets = {
            (group_rows[name][0], group_rows[name][1] - row)
            for row, name in names.items()
            if name in group_rows
        }
        if not offsets:
            add(names)
        elif len(offsets) == 1:
            ((column, offset),) = offsets
            rows = columns[column]
            new_rows = {row + offset: name for row, name in names.items() if name not in group_rows}
            if (
                rows.keys().isdisjoint(new_rows)
                and len({kinds.get(name) for name in (*rows.values(), *new_rows.values())}) == 1
            ):
                rows.update(new_rows)
                group_rows.update({name: (column, row) for row, name in new_rows.items()})

    # An optimizer alone has no loop: its state lies where the weights do.
    for group in full_stores(graph.inputs, range(len(graph.inputs)) if is_staged(graph) else ()):
        add_read({row: graph.inputs[index] for row, index in enumerate(group)})
    for node, written in _written_loops(graph):
        operands, results = written.rows()
        for run in operands:
            add_read({row: value_name(node.operands[index]) for row, index in enumerate(run)})
        for run in results:
            add({row: (node, index) for row, index in enumerate(run)})
    for loop in loops:
        for values in loop.xs:
            add_read(
                {loop.row(iteration): value_name(value) for iteration, value in enumerate(values)}
            )
        for result in loop.ys:
            add(dict(enumerate(loop.names(result))))
    # Through list ops, such as an optimizer's, until no more groups follow.
    lists = [node for node in graph.nodes if node.op.lowering.elements]
    size = -1
    while size < len(group_rows):
        size = len(group_rows)
        for node in (*lists, *reversed(lists)):
            for names in _aligned(node, group_rows):
                add_read(names)
    return columns


def _peeled(graph: Graph, loops: Sequence[Candidate], columns: Sequence[_Column]) -> _Peeled:
    """Returns `Candidate.peeled` for each loop: the values from outside the loop in the stack
    groups of its ys, where no row is missing in between."""
    inside = {node for loop in loops for node in graph.nodes[loop.start : loop.stop]}
    by_first_row = {column[0]: column for column in columns if 0 in column}
    peeled: _Peeled = []
    for loop in loops:
        peeled.append({})
        for result in loop.ys:
            column = by_first_row.get(loop.names(result)[0], {})
            outside = {
                row: _value(name) for row, name in column.items() if not 0 <= row < loop.iterations
            }
            is_complete = len(column) == max(column, default=0) - min(column, default=0) + 1
            if (
                outside
                and is_complete
                and not any(origin(value) in inside for value in outside.values())
            ):
                peeled[-1][result] = outside
    return peeled


def _value(name: Name) -> Value:
    """Returns the value with this name."""
    return TupleElement(*name) if isinstance(name, tuple) else name


def _aligned(node: Node, group_rows: Mapping[object, _GroupRow]) -> Iterator[_Column]:
    """Yields the stack groups among the operands and results of a list op that follow from the
    known ones."""
    # By an operand or result of the element's op and its stack group: by row, the names of all of
    # the element's operands and results.
    groups: defaultdict[Hashable, dict[int, list[Name]]] = defaultdict(dict)
    is_tuple = len(node.op.metas) > 1
    for part in node.op.lowering.elements:
        names = [value_name(node.operands[index]) for index in part.operands]
        names += [(node, result) if is_tuple else node for result in part.results]
        for position, name in enumerate(names):
            if name in group_rows:
                group_row = group_rows[name]
                groups[part.op, position, group_row[0]][group_row[1]] = names
    for rows in groups.values():
        for column in zip(*rows.values(), strict=True):
            if len(column) > 1 and not group_rows.keys() >= set(column):
                yield dict(zip(rows, column, strict=True))
