"""Recording of a function as the body of an op: its arguments are stand-ins for the values of each iteration."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import jax

from ..base.tables import Interned
from ..ir.graph import Node, Value, origin
from ..ir.meta import Meta
from ..ir.op import Arrays, Layouts, Lowering, OpSpec
from ..ir.source import user_line
from .record import NOWHERE, record


class BodyError(RuntimeError):
    """Raised where the recording of a loop's body needs something that only a run knows."""


_thread = threading.local()  # .names: the ops whose bodies this thread records, innermost last


def names() -> list[str]:
    """The ops whose bodies the calling thread records, the innermost last."""
    return getattr(_thread, "names", [])


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """Context in which the calling thread records the body of an op."""
    before = names()
    _thread.names = [*before, name]
    try:
        yield
    finally:
        _thread.names = before


def refuse(call: str, what: str) -> None:
    """Raises BodyError where the calling thread records a body."""
    if names():
        raise BodyError(f"{call} at {user_line()}, inside the body of {names()[-1]}: {what}")


_STAND_INS: Interned[Meta, OpSpec] = Interned(4096)


@dataclass(frozen=True, slots=True)
class _StandIn(Lowering):
    """An argument of a body: it has no value while the body is recorded."""

    def lower(self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        raise BodyError("a value that is known only inside the body of a loop was used outside of it")


def stand_in(meta: Meta) -> Node:
    """A node in the place of a value that is passed to the body. The caller holds LOCK."""
    op = _STAND_INS.of(meta, lambda: OpSpec.of("spmd.stand_in", _StandIn(), (meta,), ()))
    return record(op, (), (), NOWHERE)


def is_inside(value: Value, known: dict[Node, bool], *, since: int = 0) -> bool:
    """True if a value depends on a stand-in; `known` keeps the answers. Ops recorded before `since` do not count."""
    top = origin(value)
    if top is None:
        return False
    stack = [top]
    while stack:
        node = stack[-1]
        if node in known:
            stack.pop()
        elif node.serial < since:
            known[node] = False
        elif isinstance(node.op.lowering, _StandIn):
            known[node] = True
        else:
            behind = [maker for maker in map(origin, node.operands) if maker is not None]
            waiting = [maker for maker in behind if maker not in known]
            if waiting:
                stack.extend(waiting)
            else:
                known[node] = any(known[maker] for maker in behind)
    return known[top]
