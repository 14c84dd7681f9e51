"""Recording: the only way an op gets into the graph, at the user's line or at a known location."""

from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType
from typing import Protocol, TypeGuard

import torch

from ..base.pace import pace
from ..base.state import PerThread
from ..graph.graph import DeviceData, Node, Value
from ..graph.op import OpSpec
from ..graph.source import THREADS, place_of, user_frame
from .storage import Storage

# Where an op was recorded: the user's code and instruction, and for a backward op autograd's number
# of its forward op (else -1; see `graph.source`).
Location = tuple[CodeType | None, int, int]
NOWHERE: Location = (None, 0, -1)


class AtOnce(Protocol):
    """The integers that the host computes while tokens are decoded
    (`spmd.steps.decoding.host_lists`): small results at once; lists with a token of the device are
    left pending."""

    def computed(
        self, op: OpSpec, operands: Sequence[Value], numbers: Sequence[float | int]
    ) -> DeviceData | None:
        """The result of an op if it is computed at once; None: the op is recorded."""

    def viewed(self, op: OpSpec, base: Value) -> Value | None:
        """`computed` for the read of a view."""

    def left_out(self, storages: Sequence[Storage]) -> list[Node]:
        """Ops to leave pending in a sync of these storages. It may settle some of them."""

    def is_token_list(self, value: Value) -> TypeGuard[Node]:
        """True for a list with a token of the device, which syncs leave pending."""

    def finish(self, storage: Storage) -> None:
        """Settles a storage whose value was left pending, after a sync for a read of the
        storage."""

    def reads(self, data: Iterable[DeviceData]) -> bool:
        """True if one of the ops left pending reads one of these data."""


at_once = PerThread[AtOnce | None](None)

graph_task = torch._C._current_graph_task_id
autograd_node = torch._C._current_autograd_node
_next_sequence = torch._C._autograd._get_sequence_nr


def record(
    op: OpSpec, operands: Sequence[Value], numbers: Sequence[float | int], location: Location
) -> Node:
    """Records one op and counts it.

    The caller holds LOCK and gives the node to a storage or to another node.
    """
    pace.recorded_ops += 1
    return Node(op, operands, numbers, *location)


def record_here(
    op: OpSpec,
    operands: Sequence[Value],
    numbers: Sequence[float | int],
    frame: FrameType | None,
    task: int,
) -> Node:
    """`record` at the user's present line, which a forward op notes for its backward op. The caller
    has called `enter_thread`, too (see `threads`). task: the number of autograd's graph task, -1
    outside backward."""
    number = -1
    if task != -1:
        code, instruction = backward_line(task)
        forward = autograd_node()
        sequence = -1 if forward is None else THREADS.backward.base + forward._sequence_nr()
    else:
        code, instruction = place_of(frame)
        sequence = -1
        # The ring has the line under autograd's number, by which the backward op finds it.
        ring, number = THREADS.ring, _next_sequence() - 1
        slot = number & ring.mask
        if ring.numbers[slot] != number:
            ring.numbers[slot], ring.codes[slot], ring.instructions[slot] = (
                number,
                code,
                instruction,
            )
    pace.recorded_ops += 1
    node = Node(op, operands, numbers, code, instruction, sequence)
    for note in noted_by:
        note(node, number)
    return node


# Called with each op that is recorded at the user's line, and for a forward op with autograd's
# number for it.
noted_by: list[Callable[[Node, int], None]] = []


_last_backward: tuple[int, CodeType | None, int] = (-1, None, 0)


def backward_line(task: int) -> tuple[CodeType | None, int]:
    """(code, instruction) of the user's line that called backward: found once for each run of
    autograd's engine."""
    global _last_backward
    if _last_backward[0] != task:
        _last_backward = (task, *user_frame(2))
    return _last_backward[1], _last_backward[2]
