"""Entry: an op as data, with all that is the same each time it is recorded, and how it is lowered."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import jax
import torch

from ..forking import survives_fork
from ..ops.moving import Run
from ..ops.offload import TO_HOST
from ..ops.padding import NoRule, Pads
from ..sharding.value import DEVICE, HOST, Sharding
from .encode import digest
from .meta import Meta

Arrays = Sequence[jax.Array]
Layouts = Sequence[Sharding | None]
OnHost = Callable[[list[torch.Tensor], Sequence[float | int]], list[torch.Tensor]]


# The static arguments, as text, of an op on padded operands.
PADDED = "padded"

_TO_HOST = str(TO_HOST).removesuffix(".default")


class Padded(NamedTuple):
    """An op on padded operands: what is padded of its results, and the integers that it lifts besides."""

    entry: "Entry"
    pads: tuple[Pads, ...]
    numbers: tuple[int, ...]


class Columns(NamedTuple):
    """Places of operands and of results; those of each run are alike, and belong together in this order."""

    operands: Sequence[range]
    results: Sequence[range]


class Slot:
    """Stands for a tensor result in `Entry.layout`."""


@dataclass(frozen=True, slots=True)
class Lowering:
    """What an op computes, as data: each kind is a frozen dataclass of what is static in it, and one rule.

    regions: the bodies inside the op (`ir.graph.Region`). An op that has some takes its lifted numbers as two vectors,
    the floats and the integers, and not one by one. elements: of a list op, each element's own op. takes_rows: whether
    its operands may be rows of one array (`compile.rows.Row`); the results of a list op are then.
    """

    @property
    def elements(self) -> "tuple[Part, ...]":
        return ()

    @property
    def takes_rows(self) -> bool:
        return bool(self.elements)

    @property
    def columns(self) -> "Columns":
        """Of an op that runs in turns: which operands, and which results, are one for each turn."""
        return Columns((), ())

    @property
    def opaque(self) -> bool:
        """Whether it holds a user's function, which only this process knows."""
        return False

    @property
    def any_memory(self) -> bool:
        """Whether it takes operands that lie in the host's memory as they are; others get them on the device."""
        return False

    @property
    def regions(self) -> tuple[Any, ...]:
        return ()

    def lower(self, op: "Entry", operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        """The results' arrays. layouts: how each operand is known to lie (None: unknown)."""
        raise NotImplementedError(f"{type(self).__name__} has no lowering")

    def moving(self, op: "Entry") -> "tuple[Entry, int] | None":
        """Of an op that takes elements from a static position on: the op that has the position lifted, the position."""
        return None

    @property
    def taken(self) -> Run | None:
        """Of an op with its position lifted that takes a run of its operand: that run."""
        return None

    def padded(self, op: "Entry", pads: Sequence[Pads], begins: Sequence[int]) -> "Padded":
        """The op where dims of its operands are padded (see `ops.padding`); `begins`: where nothing is, and its result
        grows in these dims. Raises NoRule."""
        raise NoRule("has no rule for a padded dim")

    def draws(self, op: "Entry") -> Sequence[tuple[int, int]]:
        """Where among its lifted numbers the seed and the count of each draw are, of an op that draws."""
        return ()

    def on_host(self, op: "Entry") -> OnHost | None:
        """The op on CPU tensors (operands, lifted numbers), where torch could run it with the same result."""
        return None


class Entry:
    """One op together with everything that is the same each time it is recorded: a row of the shape-and-dtype table.

    Entries are interned by construction: of equal parts there is one, for as long as anyone has it, so that graph keys
    compare by identity. Make them with `Entry.of`.

    Attributes:
        name: the op, as aten spells it. lowering: what it computes. metas: what each result looks like. operands: the
        layouts of the operands. numbers: "f" or "i" for each lifted number. statics: the static arguments as text, for
        people. sharding: what a sharding annotation asks for. constant: set where the op fills its result with one
        number: that number, or "lifted" for its first lifted number. layout: for ops that return more than tensors,
        what they return, in order: a `Slot` for the next result, anything else as it is. encoded: all of these as text
        that is the same in every process.
    """

    __slots__ = (
        "__weakref__", "_moving", "_on_host", "constant", "encoded", "layout", "lowering", "metas", "name", "numbers",
        "operands", "sharding", "statics",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        lowering: Lowering,
        metas: tuple[Meta, ...],
        operands: tuple[Meta, ...],
        *,
        numbers: str,
        statics: str,
        sharding: Sharding | None,
        constant: Any,
        layout: tuple[Any, ...] | None,
    ):
        self.name = name
        self.lowering = lowering
        self.metas = metas
        self.operands = operands
        self.numbers = numbers
        self.statics = statics
        self.sharding = sharding
        self.constant = constant
        self.layout = layout
        self.encoded = digest((name, lowering, metas, operands, numbers, sharding, constant, layout))

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
    ) -> "Entry":
        """The one op of these parts."""
        made = Entry(
            name, lowering, metas, operands, numbers=numbers, statics=statics, sharding=sharding, constant=constant,
            layout=layout,
        )  # fmt: skip
        with _lock:
            return _alive.setdefault(made.encoded, made)

    def lower(self, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        """The results' arrays (see `Lowering.lower`)."""
        return self.lowering.lower(self, operands, numbers, layouts)

    @property
    def memory(self) -> str:
        """The memory in which its results are left: the device's, but by an annotation or `place_to_host`."""
        if self.sharding is not None:
            return self.sharding.memory
        return HOST if self.name == _TO_HOST else DEVICE

    @property
    def moving(self) -> "tuple[Entry, int] | None":
        """See `Lowering.moving`; found once."""
        try:
            return self._moving
        except AttributeError:
            self._moving: tuple[Entry, int] | None = self.lowering.moving(self)
            return self._moving

    @property
    def on_host(self) -> OnHost | None:
        """See `Lowering.on_host`; found once."""
        try:
            return self._on_host
        except AttributeError:
            self._on_host: OnHost | None = self.lowering.on_host(self)
            return self._on_host

    def __repr__(self) -> str:
        return f"{self.name}({self.statics}) -> {', '.join(map(repr, self.metas))}"


@dataclass(frozen=True, slots=True)
class Part:
    """One element of a list op: its own op, which of the list op's operands and lifted numbers it takes, and which of
    its results it makes."""

    entry: Entry
    operands: tuple[int, ...]
    numbers: tuple[int, ...]
    results: tuple[int, ...]


_alive: "WeakValueDictionary[str, Entry]" = WeakValueDictionary()
_lock = survives_fork(threading.RLock())  # what is dropped may run a user's `__del__`, which records
