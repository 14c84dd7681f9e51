"""OpSpec: an op as data, without the operands and numbers of one call; its lowering; its text."""

import dataclasses
import functools
import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

import jax
import numpy as np
import torch
from torch._ops import OpOverload

from ...ops.create import TO_HOST
from ..base.forking import survives_fork
from ..sharding.value import DEVICE, HOST, Sharding
from .meta import Meta

# Why a lowering is a frozen dataclass and no closure: its fields are part of the key of programs,
# in this process and on disk. What a closure captures has no text, so that two that differ would be
# taken for one program.


Arrays = Sequence[jax.Array]
Layouts = Sequence[Sharding | None]
OnHost = Callable[[list[torch.Tensor], Sequence[float | int]], list[torch.Tensor]]


# The static arguments, as text, of an op on padded operands.
PADDED = "padded"

_TO_HOST = str(TO_HOST).removesuffix(".default")


class Slot:
    """Stands for a tensor result in `OpSpec.layout`."""


@dataclass(frozen=True, slots=True)
class Lowering:
    """The description of an op, as data: each kind is a frozen dataclass of the op's static
    arguments, with one rule.

    regions: the bodies inside the op (`graph.Region`). An op with regions takes its scalar
    arguments as two vectors, the floats and the integers, and not one by one. elements: of a list
    op, each element's own op.
    """

    regions: ClassVar[Any] = ()
    elements: ClassVar[Any] = ()

    def lower(
        self, op: "OpSpec", operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        """Returns the results' arrays. layouts: the known sharding of each operand (None:
        unknown)."""
        raise NotImplementedError(f"{type(self).__name__} has no lowering")


class HasOp(Protocol):
    """An op that is recorded, or an element of a list op."""

    @property
    def op(self) -> "OpSpec": ...


def draws_in(nodes: Iterable[HasOp]) -> list[tuple[int, int]]:
    """Returns `OpSpec.draws` for the ops of a body, as indices into the body's scalar arguments."""
    draws, start = list[tuple[int, int]](), 0
    for node in nodes:
        draws += [(start + seed, start + count) for seed, count in node.op.draws]
        start += len(node.op.numbers)
    return draws


class Identity(Lowering):
    """An op whose results are its first operands."""


@dataclass(eq=False, repr=False)
class OpSpec:
    """One op without the operands and numbers of a call: a row of the shape-and-dtype table.

    Op specs are interned while they are referenced, so graph keys compare by identity. Make them
    with `OpSpec.of`.

    Attributes:
        name: as aten spells it.
        lowering: its lowering.
        metas: of the results.
        operands: the metas of the operands.
        numbers: "f" or "i" for each scalar argument.
        statics: the static arguments as text, for messages.
        sharding: requested by an annotation; for an op with regions, their mesh.
        constant: of an op that fills its result: the number, or `"lifted"` for the first scalar
            argument.
        layout: of an op that returns more than tensors: the return value with a `Slot` for each
            tensor.
        encoded: all of these as text, equal in every process.
    """

    name: str
    lowering: Lowering
    metas: tuple[Meta, ...]
    operands: tuple[Meta, ...]
    numbers: str
    statics: str
    sharding: Sharding | None
    constant: Any
    layout: tuple[Any, ...] | None
    # with a default, as `encode` looks for it in the class
    encoded: str = field(init=False, default="")

    def __post_init__(self) -> None:
        # Made once, when an op is met for the first time: later calls find their spec by a plan of
        # the call.
        self.encoded = digest(
            (
                self.name,
                self.lowering,
                self.metas,
                self.operands,
                self.numbers,
                self.sharding,
                self.constant,
                self.layout,
            )
        )

    @staticmethod
    def of(
        name: str,
        lowering: Lowering,
        metas: tuple[Meta, ...],
        operands: tuple[Meta, ...],
        *,
        numbers: str = "",
        statics: str = "",
        sharding: Sharding | None = None,
        constant: Any = None,
        layout: tuple[Any, ...] | None = None,
    ) -> "OpSpec":
        """Returns the interned OpSpec of these parts."""
        result = OpSpec(
            name, lowering, metas, operands, numbers, statics, sharding, constant, layout
        )
        # Two threads that meet an op at once would else have two specs of it, and so two programs
        # of one graph.
        with _lock:
            return _alive.setdefault(result.encoded, result)

    # Cached properties, as searches read them for each node of each graph.
    @functools.cached_property
    def memory(self) -> str:
        """The memory of the op's results: the device's, except for an annotation or
        `place_to_host`."""
        if self.sharding is not None:
            return self.sharding.memory
        return HOST if self.name == _TO_HOST else DEVICE

    @functools.cached_property
    def dynamic_start(self) -> "tuple[OpSpec, int] | None":
        """The op with its start as a scalar argument, and that start; None for an op without a
        static start."""
        return starts(self.lowering, self)

    @functools.cached_property
    def draws(self) -> Sequence[tuple[int, int]]:
        """For each random draw, (index of its seed, index of its count) among the scalar
        arguments."""
        return draws_of(self.lowering, self)

    @functools.cached_property
    def on_host(self) -> OnHost | None:
        """The op on CPU tensors (operands, scalar arguments), where torch could run it with the
        same result."""
        return host_kernels(self.lowering, self)

    @functools.cached_property
    def on_host_rounded(self) -> OnHost | None:
        """As `on_host`, also for an op whose last bits the host may round otherwise."""
        return host_kernels(self.lowering, self, rounds=True)

    @property
    def is_opaque(self) -> bool:
        """True if the op contains a user's function, which no other process can rebuild."""
        return contains_function(self.lowering)

    def __repr__(self) -> str:
        return f"{self.name}({self.statics}) -> {', '.join(map(repr, self.metas))}"


# --- tables of these properties by the kind of lowering; a lowering registers its rows ------------


@functools.singledispatch
def starts(lowering: Lowering, op: OpSpec) -> tuple[OpSpec, int] | None:
    """See `OpSpec.dynamic_start`."""
    return None


@functools.singledispatch
def draws_of(lowering: Lowering, op: OpSpec) -> Sequence[tuple[int, int]]:
    """See `OpSpec.draws`. Default: the draws of the op's bodies."""
    return draws_in(node for region in lowering.regions for node in region.nodes)


@functools.singledispatch
def host_kernels(lowering: Lowering, op: OpSpec, *, rounds: bool = False) -> OnHost | None:
    """See `OpSpec.on_host`; rounds: see `OpSpec.on_host_rounded`."""
    return None


@functools.singledispatch
def contains_function(lowering: Lowering) -> bool:
    """See `OpSpec.is_opaque`.

    Not cached by op: a rule that is registered later may make an op opaque.
    """
    inner_ops = (
        *lowering.elements,
        *(node for region in lowering.regions for node in region.nodes),
    )
    return any(node.op.is_opaque for node in inner_ops)


@dataclass(frozen=True, slots=True)
class Part:
    """One element of a list op: its own op, and the indices of its operands, numbers and results
    among the list op's."""

    op: OpSpec
    operands: tuple[int, ...]
    numbers: tuple[int, ...]
    results: tuple[int, ...]


_alive: "WeakValueDictionary[str, OpSpec]" = WeakValueDictionary()
# dropping a value may run a user's `__del__`, which records
_lock = survives_fork(threading.RLock())


# Why a text of our own and no pickle or hash of Python: it must be the same in every process and at
# every start, or the processes would differ and no program would ever be found on disk.


_NAMED = (torch.dtype, torch.layout, torch.memory_format, torch.device, OpOverload)
_shardings: "WeakKeyDictionary[Sharding, str]" = WeakKeyDictionary()


def encode(value: Any) -> str:
    """Returns the text of a value. Different values have different texts: 1, 1.0 and True differ,
    as 0.0 and -0.0 do.

    Takes Python's plain values, torch's names of things, numpy dtypes, tuples and lists, shardings,
    frozen dataclasses (by the fields that they compare by), and values with an `encoded` text of
    their own. Raises TypeError for others.
    """
    # By the exact type, as bool is an int and 1 == True: filled with either, an array has another
    # dtype.
    kind = type(value)
    if value is None or kind is int or kind is bool:
        return str(value)
    if isinstance(value, (tuple, list)):
        return (
            f"{'(' if isinstance(value, tuple) else '['}"
            f"{','.join([encode(item) for item in value])})"
        )
    if kind is str:
        return repr(value)
    if isinstance(value, float):
        return f"f{value.hex()}"
    if kind is complex:
        return f"c{value.real.hex()}:{value.imag.hex()}"
    if kind is Sharding:
        return _shardings.get(value) or _shardings.setdefault(
            value, f"S{encode(value.__reduce__()[1])}"
        )
    if hasattr(kind, "encoded"):
        return str(value.encoded)
    if isinstance(value, _NAMED):
        return f"<{value}>"
    if isinstance(value, np.dtype):
        return f"<numpy {value.name}>"
    if isinstance(value, int):  # a subclass of int: the index of an operand, of a scalar argument
        return f"{kind.__qualname__}{int(value)}"
    if isinstance(value, type):
        return f"<{value.__module__}.{value.__qualname__}>"
    if dataclasses.is_dataclass(value):
        fields = [
            getattr(value, field.name) for field in dataclasses.fields(value) if field.compare
        ]
        return f"{kind.__module__}.{kind.__qualname__}{encode(tuple(fields))}"
    # An error and no `repr`: that may hold an address, which no other process has.
    raise TypeError(f"no text that is the same in every process: {value!r} ({kind.__name__})")


def digest(value: object) -> str:
    """Returns the sha256 of a value's text."""
    return hashlib.sha256(encode(value).encode()).hexdigest()
