"""Recovery after a failed sync: no more values than necessary are given up."""

# Why what could not be compiled stays recorded: a corrected mark or a new rule makes it run, and
# what does not depend on it must not be lost. Why it is left out of later syncs until it is read:
# each of them would fail again.

from collections.abc import Collection, Sequence

import torch

from ..graph.errors import LostError, RefusedError
from ..graph.graph import (
    DeviceData,
    Node,
    components,
    depending,
    is_data,
    origin,
    topological,
)
from ..programs.failing import RunError
from ..record.storage import ASIDE, LIVE, Storage
from .execute import GuardError
from .initialization import initial_values

# Errors of a program that ran, or could not for its size: no later sync tries it again.
FINAL = (torch.OutOfMemoryError, RunError, LostError, GuardError)


def give_up(storages: Sequence[Storage], error: Exception) -> None:
    """Recovers after a sync of these storages that failed. Values that cannot be lowered or
    compiled stay recorded: the annotation or the rule can be corrected. Values whose program must
    not be compiled or run now stay pending."""
    # Nothing was lost: the call is refused, and the ops run at the next sync outside of the block.
    if isinstance(error, RefusedError):
        return
    if isinstance(error, FINAL):
        _abandon([storage for storage in storages if not is_data(storage.value)], error)
    else:
        _set_aside(
            {
                storage
                for storage in storages
                if type(storage.value) is not DeviceData and depends(storage, error)
            }
        )


def depends(storage: Storage, error: Exception) -> bool:
    """True if a value needs the op that an error names, or if the error names no op."""
    failed = getattr(error, "node", None)
    return failed is None or failed in topological([storage.value])[0]


def _set_aside(storages: Collection[Storage]) -> None:
    """Moves storages from LIVE to ASIDE: syncs skip them, reads still run their recorded ops."""
    LIVE[:] = [ref for ref in LIVE if ref() not in storages]
    ASIDE[:] = [ref for ref in ASIDE if ref() is not None and ref() not in storages]
    for storage in storages:
        storage.listed = False
        ASIDE.append(storage.ref)


def _abandon(storages: list[Storage], error: Exception) -> None:
    """Recovers after a failed run. Values outside of the failure stay pending; tensors in it get
    back their former data or initial value.

    A tensor without either stays recorded, and a read tries again. If its inputs are lost or a
    guard blames them, its data is given up, with the reason.
    """
    values = [storage.value for storage in storages]
    nodes, inputs = topological(values)
    lost_inputs = {
        device_data
        for device_data in inputs
        if device_data.lost_reason is not None or device_data.is_lost()
    }
    why = next(
        (
            device_data.lost_reason
            for device_data in lost_inputs
            if device_data.lost_reason is not None
        ),
        None,
    ) or str(error)
    blamed = {*lost_inputs, error.value} if isinstance(error, GuardError) else lost_inputs
    lost = set(
        depending(values, lambda node: node in blamed or not blamed.isdisjoint(node.operands))
    )
    failed = lost
    # A guard, and data that is gone, say what has failed.
    if not isinstance(error, GuardError) and not (lost and isinstance(error, LostError)):
        failed = lost | _part_of_failure(nodes, error)
    # A parameter that has never run has no data to go back to, but a recorded initial value.
    initial = initial_values(storages)
    aside: set[Storage] = set()
    for storage in storages:
        maker = origin(storage.value)
        if maker not in failed:
            continue
        old_data, initial_value = storage.data, initial.get(storage)
        # The data from before the step first: a half of the new state with a half of the old one
        # would be no state.
        if old_data is not None and old_data.lost_reason is None and not old_data.is_lost():
            storage.settle(old_data)
        elif (
            initial_value is not None
            and initial_value is not storage.value
            and origin(initial_value) not in lost
        ):
            storage.reset(initial_value)
        elif maker in lost:
            data = DeviceData(storage.meta)
            data.give_up(why)
            storage.settle(data)
        else:
            # It can be tried again by a read: its inputs are there.
            aside.add(storage)
    _set_aside(aside)


def _part_of_failure(nodes: Sequence[Node], error: Exception) -> set[Node]:
    """The failed ops among these: the connected component of the op that the error names.

    A step is one component, lost or retained as a whole: half of an optimizer's step is no state.
    When memory runs out the error names no op; the component with the largest value has failed.
    """
    program_nodes = set(getattr(error, "nodes", ()))
    all_components = components(nodes)
    candidates = [
        component for component in all_components if not program_nodes.isdisjoint(component)
    ] or all_components
    named = [component for component in candidates if getattr(error, "node", None) in component]
    if named or not isinstance(error, torch.OutOfMemoryError):
        return set().union(*(named or candidates))
    # XLA names no op where memory runs out; the largest value is the best guess at what did not
    # fit.
    return max(candidates, key=_largest, default=set())


def _largest(nodes: Collection[Node]) -> int:
    """The bytes of the largest value that these ops read or make."""
    metas = [
        meta
        for node in nodes
        for meta in (*node.op.metas, *(value.meta for value in node.operands))
    ]
    return max((meta.nbytes for meta in metas), default=0)
