"""`show`: the units of a model, with the bytes that each gathers and that each device keeps."""

import itertools
from dataclasses import dataclass

import torch
from torch import nn

import spmd
from spmd.mesh.notes import ends_at_user_line

from .units import Unit, names_by_id, wrapped_units

# Why bytes and not only specs: a unit is too large where its gathered bytes do not fit next to the
# activations, and too small where its all-gather takes less time than its start; both are seen in
# this table before a program runs.

_HEAD = ("unit / parameter", "shape", "dtype", "spec", "gathered", "kept per device", "")


@dataclass(frozen=True)
class ParameterSummary:
    """One parameter. names: all of its names (tied weights have several). notes: "frozen", "tied",
    "ignored", "kept above" (a unit listed before has it, too: its bytes are counted there)."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    spec: spmd.PartitionSpec | None
    num_bytes: int
    kept_bytes: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class UnitSummary:
    """One unit. gathered_bytes: those of its unsharded parameters, in the dtype they are gathered
    in, and of sharded buffers; kept_bytes: those of its parameters on one device."""

    name: str
    kind: str
    reshards: bool | int
    parameters: tuple[ParameterSummary, ...]
    gathered_bytes: int
    kept_bytes: int


@dataclass(frozen=True)
class Shown:
    """The units of a model, parents first; printed as a table, in which equal neighbours share one
    entry.

    >>> import torch, spmd, fsdp
    >>> model = fsdp.fully_shard(torch.nn.Linear(8, 8), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> len(fsdp.show(model).units)
    1
    """

    units: tuple[UnitSummary, ...]

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [_HEAD]
        # Equal neighbours share one entry.
        for _, group in itertools.groupby(self.units, key=_look):
            equal = list(group)
            unit = equal[0]
            notes = "" if unit.reshards is True else "kept after forward"
            notes += f", split over {unit.reshards}" if unit.reshards and notes else ""
            sizes = (_size(unit.gathered_bytes), _size(unit.kept_bytes))
            title = f"{unit.name or '(root)'}: {unit.kind}"
            if len(equal) > 1:
                title = f"{unit.name} to {equal[-1].name}: {unit.kind}, {len(equal)} equal"
            rows.append((title, "", "", "", *sizes, notes))
            rows += [_row(parameter) for parameter in unit.parameters]
        totals = (
            sum(unit.gathered_bytes for unit in self.units),
            sum(unit.kept_bytes for unit in self.units),
        )
        rows.append(("total", "", "", "", *map(_size, totals), ""))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(_aligned, row, widths, _HEAD)).rstrip() for row in rows)

    def __repr__(self) -> str:
        return str(self)


@ends_at_user_line
def show(model: nn.Module) -> Shown:
    """The units of a wrapped model: parameters, specs, bytes gathered at once, bytes kept per
    device; print it.

    Raises ValueError for a model without units.

    >>> import torch, spmd, fsdp
    >>> model = fsdp.fully_shard(torch.nn.Linear(4, 2), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> print(fsdp.show(model))
    unit / parameter    shape   dtype    spec           gathered  kept per device
    (root): FSDPLinear                                      40 B             40 B  kept after...
      weight            (2, 4)  float32  P(None, None)                       32 B
      bias              (2,)    float32  P(None)                              8 B
    total                                                   40 B             40 B
    """
    units, names = wrapped_units("show", model), names_by_id(model)
    counted_ids: set[int] = set()  # a tied parameter is in two units, and in memory once
    return Shown(tuple(_unit(unit, modules, names, counted_ids) for unit, modules in units.items()))


def _unit(
    unit: Unit,
    modules: list[tuple[str, nn.Module]],
    names: dict[int, list[str]],
    counted_ids: set[int],
) -> UnitSummary:
    """The summary of a unit. counted_ids: the ids of parameters that earlier units have counted;
    those of this unit are added."""
    rows = [_parameter(parameter, names, counted_ids) for parameter in unit.parameters]
    rows += [
        _parameter(parameter, names, counted_ids, is_ignored=True) for parameter in unit.ignored
    ]
    return UnitSummary(
        name=", ".join(name for name, _ in modules if name != "module").removeprefix("module."),
        kind=", ".join(type(module).__name__ for _, module in modules),
        reshards=unit.reshards
        if unit.kept_on is None
        else unit.kept_on.shape()[unit.settings.shard_axis],
        parameters=tuple(rows),
        gathered_bytes=sum(unit.gathered_bytes(parameter) for parameter in unit.parameters)
        + sum(buffer.nbytes for buffer in unit.sharded_buffers),
        kept_bytes=sum(row.kept_bytes for row in rows),
    )


def _parameter(
    parameter: nn.Parameter,
    names: dict[int, list[str]],
    counted_ids: set[int],
    *,
    is_ignored: bool = False,
) -> ParameterSummary:
    """The summary of a parameter; 0 kept bytes for one in `counted_ids`."""
    is_above = id(parameter) in counted_ids
    counted_ids.add(id(parameter))
    sharding = None if parameter.device.type != "xla" else spmd.get_sharding(parameter)
    called = tuple(name.removeprefix("module.") for name in names.get(id(parameter), ()))
    shape = tuple(parameter.shape)
    shard = shape if sharding is None else sharding.shard_shape(shape)
    notes = {
        "ignored": is_ignored,
        "frozen": not parameter.requires_grad,
        "tied": len(called) > 1,
        "kept above": is_above,
        "on the host": sharding is not None and sharding.memory != "device",
    }
    return ParameterSummary(
        names=called,
        shape=shape,
        dtype=parameter.dtype,
        spec=None
        if sharding is None
        else spmd.PartitionSpec(*sharding.partition_spec(parameter.dim())),
        num_bytes=parameter.numel() * parameter.element_size(),
        kept_bytes=0 if is_above else torch.Size(shard).numel() * parameter.element_size(),
        notes=tuple(note for note, is_so in notes.items() if is_so),
    )


def _look(unit: UnitSummary) -> tuple[object, ...]:
    """The printed figures of a unit, without its name and with relative names of parameters: equal
    units are printed once."""
    parameters = tuple(
        (tuple(name.removeprefix(unit.name) for name in row.names), *_row(row)[1:])
        for row in unit.parameters
    )
    return unit.kind, unit.reshards, unit.gathered_bytes, unit.kept_bytes, parameters


def _row(parameter: ParameterSummary) -> tuple[str, ...]:
    dtype = str(parameter.dtype).removeprefix("torch.")
    spec = "not on the device" if parameter.spec is None else repr(parameter.spec)
    names = f"  {' = '.join(parameter.names)}"
    return (
        names,
        str(parameter.shape),
        dtype,
        spec,
        "",
        _size(parameter.kept_bytes),
        ", ".join(parameter.notes),
    )


def _aligned(text: str, width: int, column: str) -> str:
    return text.rjust(width) if column in ("gathered", "kept per device") else text.ljust(width)


def _size(count: int) -> str:
    power = min(max(count.bit_length() - 1, 0) // 10, 3)
    return f"{count / 1024**power:,.{2 if power else 0}f} {('B', 'KiB', 'MiB', 'GiB')[power]}"
