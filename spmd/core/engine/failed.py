"""What a barrier that failed gives up: no more than it must."""

from collections.abc import Sequence

import torch

from ..compile.failing import RunError
from ..compile.recompile import RecompileError
from ..ir.errors import LostError
from ..ir.graph import Leaf, Node, origin, topological
from ..lazy.cell import ASIDE, LIVE, Cell
from ..passes import nans

# Errors of a program that ran, or could not for its size: it will not be tried again.
FINAL = (torch.OutOfMemoryError, RunError, LostError, nans.NanError)


def give_up(cells: Sequence[Cell], error: Exception) -> None:
    """After a barrier for these cells that failed. What cannot be lowered or compiled stays recorded: the annotation or
    the rule can be mended. What only must not be compiled now stays pending."""
    if isinstance(error, RecompileError):
        return
    if isinstance(error, FINAL):
        _abandon(cells, error)
    else:
        _set_aside(cells, error)


def depends(cell: Cell, error: Exception) -> bool:
    """Whether a value needs the op that an error names; where it names none, any may be the one."""
    failed = getattr(error, "node", None)
    return failed is None or failed in topological([cell.value])[0]


def _set_aside(cells: Sequence[Cell], error: Exception) -> None:
    """Takes what an error is about out of the sight of barriers, as it was recorded; the rest stays pending."""
    aside = {cell for cell in cells if type(cell.value) is not Leaf and depends(cell, error)}
    LIVE[:] = [ref for ref in LIVE if ref() not in aside]
    ASIDE[:] = [ref for ref in ASIDE if ref() is not None and ref() not in aside]
    for cell in aside:
        cell.listed = False
        ASIDE.append(cell.ref)


def _abandon(cells: Sequence[Cell], error: Exception) -> None:
    """After a run that failed: a tensor that had data before takes it back, one that had none says what failed.

    Where the error names the op that failed, only what depends on it is given up; the rest stays pending.
    """
    nodes, leaves = topological([cell.value for cell in cells])
    failed = getattr(error, "node", None)
    gone = {leaf for leaf in leaves if leaf.gone is not None or leaf.is_lost()}
    everything = failed is None and not gone
    why = next((leaf.gone for leaf in gone if leaf.gone is not None), None) or str(error)
    lost: set[Node] = set()
    for node in nodes:
        if everything or node is failed or any(value in gone or origin(value) in lost for value in node.operands):
            lost.add(node)
    for cell in cells:
        if origin(cell.value) not in lost:
            continue
        old = cell.data
        if old is None or old.gone is not None or old.is_lost():
            old = Leaf(cell.meta)
            old.give_up(why)
        cell.settle(old)
