"""What holds while a function is recorded as the body of an op: its arguments are stand-ins, for each turn's values."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import jax

from ..ir.graph import Node, Value, origin
from ..ir.meta import Meta
from ..ir.op import Arrays, Entry, Layouts, Lowering
from ..ir.source import user_line
from ..tables import Interned
from .record import NOWHERE, record


class BodyError(RuntimeError):
    """Inside the body of a loop something was asked for that only a run knows."""


_thread = threading.local()  # .names: the ops whose bodies this thread records, innermost last


def names() -> list[str]:
    """The ops whose bodies the calling thread records, the innermost last."""
    return getattr(_thread, "names", [])


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """The calling thread records the body of an op."""
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


_STAND_INS: Interned[Meta, Entry] = Interned(4096)


@dataclass(frozen=True, slots=True)
class _StandIn(Lowering):
    """No value, but the place of one."""

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        raise BodyError("a value that is known only inside the body of a loop was used outside of it")


def stand_in(meta: Meta) -> Node:
    """A value that stands for one that the body will be given. The caller holds LOCK."""
    entry = _STAND_INS.of(meta, lambda: Entry.of("spmd.stand_in", _StandIn(), (meta,), ()))
    return record(entry, (), (), NOWHERE)


def is_inside(value: Value, known: dict[Node, bool], *, since: int = 0) -> bool:
    """Whether a value depends on a stand-in; `known` keeps what was found. Ops recorded before `since` do not count."""
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
        elif isinstance(node.entry.lowering, _StandIn):
            known[node] = True
        else:
            behind = [maker for maker in map(origin, node.operands) if maker is not None]
            waiting = [maker for maker in behind if maker not in known]
            if waiting:
                stack.extend(waiting)
            else:
                known[node] = any(known[maker] for maker in behind)
    return known[top]
