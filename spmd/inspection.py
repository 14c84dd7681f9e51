"""How a tensor lies, whatever it is: data, annotated or not, a view, a value that is recorded and has not run."""

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, overload

import torch

from .core.backend.modules import to_come
from .core.compile.collectives import source_of
from .core.engine import asked
from .core.ir.graph import Leaf, origin
from .core.ir.source import Line, node_line
from .core.lazy import annotate
from .core.lazy.cell import BARRIER, LOCK
from .core.lazy.tensor import XlaTensor
from .core.sharding.value import Sharding
from .mesh import Mesh
from .partition_spec import PartitionSpec


@dataclass(frozen=True, repr=False)
class Inspection:
    """How a tensor lies, as `inspect` found it.

    Attributes:
        shape, dtype: the tensor's. residence: "devices" (data there), "host" (data that is not uploaded yet),
            "pending" (recorded, not run), "abstract" (only planned with), "lost", or, of another device than xla, that
            device's type: "cpu", "meta".
        sharding: how it lies or, once it is run, uploaded or moved, will; None where nobody has said and it is on no
            device.
        decided_by: "annotation", "rules" (those of a `ShardingRules` that was applied to its module, which is
            elsewhere), "compiler" (what it propagates to a recorded value), "last run" (where that left it), "default"
            (one device, whole) or "".
        bytes_per_device: of one piece, padding and all. line: the user's line that made a recorded value, or at which
            data was run; "" of what was uploaded. read_as: the specs that ops read it in where they are others (FSDP
            gathers so).
        mesh, spec, text: of the sharding: a `spmd.Mesh`, a `PartitionSpec`, GSPMD text ("" without one).
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    residence: str
    sharding: Sharding | None = None
    decided_by: str = ""
    line: str = ""
    read_as: tuple[PartitionSpec, ...] = ()

    @property
    def mesh(self) -> Mesh | None:
        lies = self.sharding
        if lies is None:
            return None
        is_nameless = lies.axis_names == tuple(map(str, range(len(lies.axis_names))))
        return Mesh(lies.device_ids, lies.mesh_shape, None if is_nameless else lies.axis_names, target=lies.target)

    @property
    def spec(self) -> PartitionSpec | None:
        return None if self.sharding is None else PartitionSpec(*self.sharding.partition_spec(len(self.shape)))

    @property
    def text(self) -> str:
        return "" if self.sharding is None else self.sharding.text(len(self.shape))

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """The shape of one device's piece, padding and all."""
        return self.shape if self.sharding is None else self.sharding.shard_shape(self.shape)

    @property
    def bytes_per_device(self) -> int:
        return math.prod(self.shard_shape) * self.dtype.itemsize

    @property
    def headline(self) -> str:
        """What it is and where, in one line."""
        where = {"devices": "on devices", "host": "on the host, not uploaded yet", "pending": "recorded, not run"}
        head = f"{_typed(self.dtype, self.shape)} {where.get(self.residence, self.residence)}"
        if self.sharding is None:
            return head
        axes = ", ".join(f"{name}={size}" for name, size in self.sharding.mesh_axes().items())
        head += ", on arrival" if self.decided_by == "rules" else ","
        return f"{head} as {_written(self.sharding, len(self.shape))} over {axes}"

    @property
    def each(self) -> str:
        """What one device has, in one line."""
        count = 1 if self.sharding is None else len(self.sharding.device_ids)
        piece = f"{_typed(self.dtype, self.shard_shape)}, {self.bytes_per_device:,} B"
        return f"each of {count} devices holds {piece}" + (f"; decided by {self.decided_by}" if self.decided_by else "")

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("", self.headline), ("", self.each)] if self.sharding is not None else [("", self.headline)]
        rows += [("GSPMD", self.text), ("memory", "" if self.sharding is None else self.sharding.memory)]
        rows += [("read as", repr(spec)) for spec in self.read_as]
        return [(name, text) for name, text in [*rows, ("line", self.line)] if text]

    def __str__(self) -> str:
        return "\n".join(f"{name + ': ' if name else ''}{text}" for name, text in self._rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in self._rows())
        return f"<table>{rows}</table>"

    def __rich__(self) -> Any:
        table = importlib.import_module("rich.table").Table.grid(padding=(0, 1))
        text = importlib.import_module("rich.text").Text
        for name, told in self._rows():
            table.add_row(text(name, style="bold"), text(told))
        return table


def _typed(dtype: torch.dtype, shape: Sequence[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"


def _written(lies: Sharding, rank: int) -> str:
    return repr(PartitionSpec(*lies.partition_spec(rank)))


@overload
def inspect(tensor: torch.Tensor, /) -> Inspection: ...
@overload
def inspect(*tensors: torch.Tensor) -> "tuple[Inspection, ...]": ...
def inspect(*tensors: torch.Tensor) -> "Inspection | tuple[Inspection, ...]":
    """How a tensor lies, or will lie: shape, dtype, sharding, bytes per device, and who decided it.

    Of a value that is recorded and not annotated the compiler is asked what it propagates, in the program that the next
    barrier would run: compiled, not run, and not counted. Nothing changes by it: what is pending stays so, no later
    barrier compiles another program, the ledger has no line of it; asking again costs no compile. Several tensors share
    one. A later op may still change the answer, as propagation looks at the whole program.

    Args:
        tensors: on xla, data, views and recorded values, parameters of FSDP (as they are stored); tensors of other
            devices are told as such. Inside `spmd.plan` and the bodies of loops the compiler is not asked.

    Returns an `Inspection`; of several tensors a tuple of them.

    Raises TypeError for what is no tensor, and what compiling raises, where an op that is pending cannot be compiled.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> x = spmd.mark_sharding(torch.ones(8, 4, device="xla"), mesh, ("data", None))
    >>> found = spmd.inspect(x * 2)
    >>> found.residence, found.text, found.bytes_per_device
    ('pending', '{replicated}', 128)
    """
    if not tensors:
        raise TypeError("inspect: expected one tensor or more, got none")
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"inspect: expected tensors, got {type(tensor).__name__}; of a list inspect(*tensors), of a module "
                "inspect(*module.parameters())"
            )
    with BARRIER, LOCK:
        open_ = [t for t in tensors if isinstance(t, XlaTensor) and _said(t) is None and not _is_unplaced(t)]
        ask = [] if asked.is_unknown() else open_
        told = dict(zip(map(id, ask), asked.propagated(ask) if ask else (), strict=True))
        found = tuple(_found(tensor, told.get(id(tensor))) for tensor in tensors)
    return found[0] if len(found) == 1 else found


def _said(tensor: XlaTensor) -> Sharding | None:
    """How a tensor lies where that need not be asked: as annotated in all dims, else as its data does."""
    view, cell = tensor._view, tensor._cell
    lies = cell.sharding if view is None else view.sharding
    if lies is not None and not lies.is_open:
        return lies
    is_there = view is None and type(cell.value) is Leaf and cell.value.host is None
    return cell.value.sharding if is_there else None  # type: ignore[union-attr]  # a leaf


def _is_unplaced(tensor: XlaTensor) -> bool:
    """Whether it is data of the host that nobody has annotated: it goes where the first program needs it."""
    cell = tensor._cell
    return (
        tensor._view is None
        and type(cell.value) is Leaf
        and (cell.value.host is not None or cell.value.gone is not None)
    )


def _found(tensor: torch.Tensor, told: Sharding | None) -> Inspection:
    if not isinstance(tensor, XlaTensor):
        lies = to_come(tensor)
        by = "" if lies is None else "rules"
        return Inspection(tuple(tensor.shape), tensor.dtype, tensor.device.type, lies, by)
    cell, view = tensor._cell, tensor._view
    said = _said(tensor)
    asked_for = cell.sharding if view is None else view.sharding
    by = "annotation" if said is not None and said is asked_for else "last run" if said is not None else ""
    if told is not None:
        by = "compiler" if len(told.device_ids) > 1 else "default"
    rank = len(tensor.shape)
    layouts = [] if view is not None or cell.reads is None else [read for read in cell.reads.known if read is not said]
    return Inspection(
        tuple(tensor.shape),
        tensor.dtype,
        annotate.residence(cell.value),
        said if said is not None else told,
        by,
        _line(tensor),
        tuple(PartitionSpec(*layout.partition_spec(rank)) for layout in layouts),
    )


def _line(tensor: XlaTensor) -> str:
    """The line of a view, of a recorded value, or of the barrier that ran data; "" where there is none."""
    view, value = tensor._view, tensor._cell.value
    if view is not None and view.code is not None:
        return str(Line(view.code, view.instruction))
    node = origin(value)
    if node is not None:
        return str(node_line(source_of(node)))
    assert type(value) is Leaf, "only a leaf has no op"
    program = None if value.maker is None else value.maker()
    return "" if program is None else str(program.line)
