"""Recording of a function as the body of an op: its arguments are stand-ins for the values of each
iteration."""

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import jax

from ..base.state import PerThread
from ..graph import graph
from ..graph.graph import Node, Value, depending, origin
from ..graph.meta import Meta
from ..graph.op import Arrays, Layouts, Lowering, OpSpec
from ..graph.source import user_line
from .record import NOWHERE, record


class BodyError(RuntimeError):
    """Raised where the recording of a loop's body needs something that only a run knows.

    >>> import torch, spmd
    >>> def body(carry, x):
    ...     return (carry + x if x.item() > 0 else carry), x
    >>> try:
    ...     spmd.scan(body, torch.zeros((), device="xla"), torch.ones(3, device="xla"))
    ... except spmd.BodyError as error:
    ...     print(error)
    item() or bool() at ...; choose with torch.where or spmd.cond, or return it and read it...
    """


# the ops whose bodies the thread records, the innermost last
names = PerThread[tuple[str, ...]](())


def inside(name: str) -> AbstractContextManager[None]:
    """Context: the calling thread records the body of an op."""
    # By thread: another thread may record its own step meanwhile.
    return names.held((*names.value, name))


def body_error(call: str, reason: str) -> BodyError:
    """The error of a call inside the body of an op."""
    return BodyError(f"{call} at {user_line()}, inside the body of {names.value[-1]}: {reason}")


@dataclass(frozen=True, slots=True)
class _StandIn(Lowering):
    """An argument of a body: it has no value while the body is recorded. is_data: outside it is
    data, which nothing waits for."""

    is_data: bool = False

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        # Lowered only if a value of the body has left it, for example through a global list.
        raise BodyError(
            "a value that is known only inside the body of a loop was used outside of it"
        )


def stand_in(meta: Meta, is_data: bool = False) -> Node:
    """A node in the place of an argument of the body. The caller holds LOCK."""
    # It stands for no line of the user.
    return record(_stand_in_op(meta, is_data), (), (), NOWHERE)


@functools.lru_cache(4096)
def _stand_in_op(meta: Meta, is_data: bool) -> OpSpec:
    return OpSpec.of("spmd.stand_in", _StandIn(is_data), (meta,), ())


def is_data(value: Value) -> bool:
    """True if a value exists without a run, or stands for one that does."""
    lowering = None if (node := origin(value)) is None else node.op.lowering
    return graph.is_data(value) or (isinstance(lowering, _StandIn) and lowering.is_data)


def ops_on_stand_ins(values: Sequence[Value], *, since: int = 0) -> dict[Node, None]:
    """Ops behind these values that depend on a stand-in, of serials from `since` on."""
    return depending(values, lambda node: isinstance(node.op.lowering, _StandIn), since=since)
