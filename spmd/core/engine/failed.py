"""What a barrier that failed gives up: no more than it must."""

from collections.abc import Collection, Sequence

import torch

from ..compile.failing import RunError
from ..compile.recompile import RecompileError
from ..ir.errors import LostError
from ..ir.graph import Leaf, Node, Value, is_data, origin, topological
from ..lazy.cell import ASIDE, LIVE, Cell
from ..passes import nans
from .init import initial_values

# Errors of a program that ran, or could not for its size: no later barrier tries it again.
FINAL = (torch.OutOfMemoryError, RunError, LostError, nans.NanError)


def give_up(cells: Sequence[Cell], error: Exception) -> None:
    """After a barrier for these cells that failed. What cannot be lowered or compiled stays recorded: the annotation or
    the rule can be mended. What only must not be compiled now stays pending."""
    if isinstance(error, RecompileError):
        return
    if isinstance(error, FINAL):
        _abandon([cell for cell in cells if not is_data(cell.value)], error)
    else:
        _set_aside({cell for cell in cells if type(cell.value) is not Leaf and depends(cell, error)})


def depends(cell: Cell, error: Exception) -> bool:
    """Whether a value needs the op that an error names; where it names none, any may be the one."""
    failed = getattr(error, "node", None)
    return failed is None or failed in topological([cell.value])[0]


def _set_aside(aside: Collection[Cell]) -> None:
    """Takes cells out of the sight of barriers, as they were recorded; the rest stays pending."""
    LIVE[:] = [ref for ref in LIVE if ref() not in aside]
    ASIDE[:] = [ref for ref in ASIDE if ref() is not None and ref() not in aside]
    for cell in aside:
        cell.listed = False
        ASIDE.append(cell.ref)


def _abandon(cells: list[Cell], error: Exception) -> None:
    """After a run that failed: what is not part of the failure stays pending; of what is, a tensor that had data, or
    an initial value, takes it back.

    Another one stays recorded, for a read to try again, unless its inputs are gone or a NaN guard blames them: then it
    says what failed.
    """
    nodes, leaves = topological([cell.value for cell in cells])
    gone = {leaf for leaf in leaves if leaf.gone is not None or leaf.is_lost()}
    why = next((leaf.gone for leaf in gone if leaf.gone is not None), None) or str(error)
    if isinstance(error, nans.NanError):
        lost = _dependents(nodes, {*gone, error.value})
        failed = lost
    else:
        lost = _dependents(nodes, gone)
        failed = lost if lost and isinstance(error, LostError) else lost | _part_of_failure(nodes, error)
    initial = initial_values(cells)
    aside: set[Cell] = set()
    for cell in cells:
        maker = origin(cell.value)
        if maker not in failed:
            continue
        old, begin = cell.data, initial.get(cell)
        if old is not None and old.gone is None and not old.is_lost():
            cell.settle(old)
        elif begin is not None and begin is not cell.value and origin(begin) not in lost:
            cell.go_back(begin)
        elif maker in lost:
            data = Leaf(cell.meta)
            data.give_up(why)
            cell.settle(data)
        else:
            aside.add(cell)
    _set_aside(aside)


def _dependents(nodes: Sequence[Node], values: Collection[Value]) -> set[Node]:
    """The ops, of these in order, that make or need one of these values."""
    found: set[Node] = set()
    for node in nodes:
        if node in values or any(value in values or origin(value) in found for value in node.operands):
            found.add(node)
    return found


def _part_of_failure(nodes: Sequence[Node], error: Exception) -> set[Node]:
    """The ops that failed with a program, of all that were to run: those that share ops with the one that the error
    names.

    A step is such a set, and is given up or kept as one: half of an optimizer's step would be no state of before. Where
    memory ran out and no op is named, it is the set with the largest value.
    """
    sets = _connected(nodes)
    ran = set(getattr(error, "nodes", ()))
    met = [one for one in sets if not ran.isdisjoint(one)] or sets
    node = getattr(error, "node", None)
    named = [one for one in met if node in one]
    if named or not isinstance(error, torch.OutOfMemoryError):
        return set().union(*(named or met))
    return max(met, key=_largest, default=set())


def _connected(nodes: Sequence[Node]) -> list[set[Node]]:
    """The ops in sets that share none: each reads only its own and data."""
    known: dict[Node, set[Node]] = {}
    for node in nodes:
        own = {node}
        read = [known[maker] for maker in map(origin, node.operands) if maker in known]
        for other in {id(one): one for one in read}.values():
            if len(other) > len(own):
                own, other = other, own
            own |= other
            known.update(dict.fromkeys(other, own))
        known[node] = own
    return list({id(one): one for one in known.values()}.values())


def _largest(nodes: Collection[Node]) -> int:
    """The bytes of the largest value that ops read or make."""
    metas = [meta for node in nodes for meta in (*node.entry.metas, *(value.meta for value in node.operands))]
    return max((meta.nbytes for meta in metas), default=0)
