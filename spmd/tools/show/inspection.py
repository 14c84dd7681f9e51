"""The sharding of any tensor: data, annotated or not, a view, a value that is recorded and has not
run."""

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, overload

import torch

from ...core import (
    LOCK,
    DeviceData,
    Sharding,
    XlaTensor,
    annotations,
    ends_at_user_line,
    module_moves,
    recording,
    storage_of,
    view_of,
)
from ...core.extend import SYNC_LOCK, Line, body, user_lines, walks
from ...mesh.mesh import Mesh
from ...mesh.partition_spec import PartitionSpec
from .propagated import propagated_shardings


@dataclass(frozen=True, repr=False)
class Inspection:
    """The sharding of a tensor and its origin, as `inspect` returns it.

    Attributes:
        shape, dtype: the tensor's. residence: "devices" (data there), "host" (data that is not
            uploaded yet), "pending" (recorded, not run), "abstract" (in a plan only), "lost", or,
            for another device than xla, that device's type: "cpu", "meta".
        sharding: the tensor's, now or, once it is run, uploaded or moved; None for data without an
            annotation that is on no device.
        decided_by: "annotation", "rules" (of a `ShardingRules` that was applied to its module,
            which is elsewhere), "compiler" (the sharding that it propagates to a recorded value),
            "last run" (the sharding that the run left), "default" (one device, unsharded) or "".
        bytes_per_device: of one shard, with padding. line: the user's line that made a recorded
            value, or at which data was run; "" for uploaded data. read_as: the specs in which ops
            read it where these differ (FSDP gathers so).
        mesh, spec, text: of the sharding: a `spmd.Mesh`, a `PartitionSpec`, GSPMD text ("" without
            one).
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
        if (sharding := self.sharding) is None:
            return None
        return Mesh(
            sharding.device_ids, sharding.mesh_shape, sharding.given_names, target=sharding.target
        )

    @property
    def spec(self) -> PartitionSpec | None:
        return (
            None
            if self.sharding is None
            else PartitionSpec(*self.sharding.partition_spec(len(self.shape)))
        )

    @property
    def text(self) -> str:
        return "" if self.sharding is None else self.sharding.text(len(self.shape))

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """The shape of one device's shard, with padding."""
        return self.shape if self.sharding is None else self.sharding.shard_shape(self.shape)

    @property
    def bytes_per_device(self) -> int:
        return math.prod(self.shard_shape) * self.dtype.itemsize

    @property
    def headline(self) -> str:
        """One line: dtype, shape, residence and sharding."""
        where = {
            "devices": "on devices",
            "host": "on the host, not uploaded yet",
            "pending": "recorded, not run",
        }
        head = f"{_typed(self.dtype, self.shape)} {where.get(self.residence, self.residence)}"
        if self.sharding is None:
            return head
        axes = ", ".join(f"{name}={size}" for name, size in self.sharding.mesh_axes().items())
        head += ", on arrival" if self.decided_by == "rules" else ","
        return f"{head} as {self.spec!r} over {axes}"

    @property
    def each(self) -> str:
        """One line: the shard of one device, and `decided_by`."""
        count = 1 if self.sharding is None else len(self.sharding.device_ids)
        shard = f"{_typed(self.dtype, self.shard_shape)}, {self.bytes_per_device:,} B"
        return f"each of {count} devices holds {shard}" + (
            f"; decided by {self.decided_by}" if self.decided_by else ""
        )

    def _rows(self) -> list[tuple[str, str]]:
        rows = (
            [("", self.headline), ("", self.each)]
            if self.sharding is not None
            else [("", self.headline)]
        )
        rows += [
            ("GSPMD", self.text),
            ("memory", "" if self.sharding is None else self.sharding.memory),
        ]
        rows += [("read as", repr(spec)) for spec in self.read_as]
        return [(name, text) for name, text in [*rows, ("line", self.line)] if text]

    def __str__(self) -> str:
        return "\n".join(f"{name + ': ' if name else ''}{text}" for name, text in self._rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>"
            for name, text in self._rows()
        )
        return f"<table>{rows}</table>"

    def __rich__(self) -> Any:
        table = importlib.import_module("rich.table").Table.grid(padding=(0, 1))
        text = importlib.import_module("rich.text").Text
        for name, value in self._rows():
            table.add_row(text(name, style="bold"), text(value))
        return table


def _typed(dtype: torch.dtype, shape: Sequence[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"


@overload
def inspect(tensor: torch.Tensor, /) -> Inspection: ...
@overload
def inspect(*tensors: torch.Tensor) -> "tuple[Inspection, ...]": ...
@ends_at_user_line
def inspect(*tensors: torch.Tensor) -> "Inspection | tuple[Inspection, ...]":
    """Returns shape, dtype, present or future sharding, bytes per device, and the origin of the
    sharding.

    For a value that is recorded and not annotated, the compiler propagates the sharding in the
    program that the next sync would run: compiled, not run, and not counted. Nothing changes by it:
    pending values stay pending, no later sync compiles another program, the compile log gets no
    line; a second call costs no compilation. Several tensors share one. A later op may still change
    the answer, as propagation looks at the full program.

    Args:
        tensors: on xla, data, views and recorded values, parameters of FSDP (as they are stored);
            tensors of other devices are reported as such. Inside `spmd.plan` and the bodies of
            loops nothing is compiled.

    Returns an `Inspection`; for several tensors a tuple of them.

    Raises TypeError for an argument that is not a tensor, and the compiler's error, where a pending
    op cannot be compiled.

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
                f"inspect: expected tensors, got {type(tensor).__name__}; for a list call "
                "inspect(*tensors), for a module inspect(*module.parameters())"
            )
    with SYNC_LOCK, LOCK:
        open_ = [
            tensor for tensor in tensors if isinstance(tensor, XlaTensor) and _known(tensor) is None
        ]
        # In the recording of a plan or of a loop's body the compiler cannot choose.
        unresolved_tensors = [] if recording.value is not None or body.names.value else open_
        propagated = dict(
            zip(
                map(id, unresolved_tensors),
                propagated_shardings(unresolved_tensors) if unresolved_tensors else (),
                strict=True,
            )
        )
        inspections = tuple(_found(tensor, propagated.get(id(tensor))) for tensor in tensors)
    return inspections[0] if len(inspections) == 1 else inspections


def _known(tensor: XlaTensor) -> tuple[Sharding | None, str] | None:
    """The sharding without the compiler, and what decided it: the annotation, if it covers all
    dims, else the data's.

    Host data without an annotation has none, as the first program that reads it places it, nor has
    lost data. Returns None where the compiler propagates the sharding.
    """
    view, storage, value = view_of(tensor), storage_of(tensor), storage_of(tensor).value
    sharding = storage.sharding if view is None else view.sharding
    if sharding is not None and not sharding.is_open:
        return sharding, "annotation"
    if view is not None or type(value) is not DeviceData:
        return None
    if value.host is None and value.sharding is not None:
        return value.sharding, "last run"
    return None if value.host is None and value.lost_reason is None else (None, "")


def _found(tensor: torch.Tensor, propagated: Sharding | None) -> Inspection:
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if not isinstance(tensor, XlaTensor):
        sharding = module_moves.future_sharding(tensor)
        return Inspection(
            shape, dtype, tensor.device.type, sharding, "" if sharding is None else "rules"
        )
    storage = storage_of(tensor)
    sharding, by = _known(tensor) or (None, "")
    reads = () if view_of(tensor) is not None or storage.reads is None else storage.reads.known
    read_as = tuple(
        PartitionSpec(*read.partition_spec(len(shape))) for read, _ in reads if read is not sharding
    )
    if propagated is not None:
        sharding, by = propagated, "compiler" if len(propagated.device_ids) > 1 else "default"
    return Inspection(
        shape, dtype, annotations.residence(storage.value), sharding, by, _line(tensor), read_as
    )


def _line(tensor: XlaTensor) -> str:
    """The line of a view, of a recorded value, or of the sync that ran data; "" where there is
    none."""
    view, value = view_of(tensor), storage_of(tensor).value
    if view is not None and view.code is not None:
        return str(Line(view.code, view.instruction))
    node = walks.origin(value)
    if node is not None:
        return str(user_lines.node_line(user_lines.source_of(node)))
    assert type(value) is DeviceData, "only device data has no op"
    program = None if value.maker is None else value.maker()
    return "" if program is None else str(program.line)
