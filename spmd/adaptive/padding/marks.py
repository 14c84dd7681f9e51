"""Dims that the user marks as dynamic: the data is held padded, and its length is an operand of
what reads it.

`torch._dynamo.mark_dynamic` and `maybe_mark_dynamic` of a tensor on xla do the same. Of a CPU
tensor torch keeps the marks as attributes, which `.to("xla")` reads. torch's module takes a second
to import, so it is patched when the program imports it.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch._guards import CompileContext, compile_context

from ...core import (
    LOCK,
    DeviceData,
    Storage,
    XlaTensor,
    config,
    ends_at_user_line,
    host_reads,
    patch_when_imported,
    replaces,
    storage_of,
    user_frame,
    user_line,
    view_of,
)
from ...core.extend import Bounded, Node, copies, dynamic, execute, walks
from ...tensors.annotate import on_device
from .case import padded_meta
from .shapes import capacity_of
from .spread import pad_op, padded_on_host


@ends_at_user_line
def mark_dynamic(
    tensor: torch.Tensor,
    dim: int | Sequence[int],
    *,
    min: int | None = None,
    max: int | None = None,
) -> torch.Tensor:
    """Marks dims of a tensor whose length changes from step to step; returns the same tensor, of
    the same shape.

    The data is held with zeros behind the length, up to a capacity that doubles (64, 128, ...), and
    programs that read it take the length as an operand: one program serves all lengths of a
    capacity, from the first step on, with gradients and with several processes. From op to op a
    result has dynamic dims, too; so have ranges, masks and tables of positions cut to the same
    length. All inputs with such a dim are marked. Where an op has no rule for it, the program is
    compiled for this length, and the compile log says which op and line (`spmd.explain`).
    `torch._dynamo.mark_dynamic` and `maybe_mark_dynamic` do the same, also of a CPU tensor before
    `.to("xla")`.

    Args:
        tensor: data on xla, as an input of a step; what is recorded is computed first. dim: one dim
            or several. min, max: the bounds of the length, both included: the capacity is at most
            `max`, and at least that of `min`.

    Raises TypeError for a tensor that is not on xla;
    IndexError for a dim that it does not have; ValueError for a view, or a length out of bounds.
    Source: `torch._dynamo.mark_dynamic`;
    https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html.

    >>> import torch, spmd
    >>> for length in (5, 9, 30):
    ...     x = spmd.mark_dynamic(torch.ones(2, length).to("xla"), 1)
    ...     (x * 2).sum().item()
    20.0
    36.0
    120.0
    """
    target, rank = on_device(tensor, "mark_dynamic"), tensor.dim()
    dims = [dim] if isinstance(dim, int) else list(dim)
    for number in dims:
        if not -rank <= number < rank:
            raise IndexError(
                f"mark_dynamic: expected a dim from {-rank} to {rank - 1}, got {number}"
            )
    if view_of(target) is not None:
        raise ValueError(
            "mark_dynamic: expected a tensor with memory of its own, got a view; mark what it is "
            "a view of"
        )
    _mark(storage_of(target), sorted({number % rank for number in dims}), min, max)
    return tensor


# The most rows that data has counted in a line, with room for half as many more: one capacity for
# all counts to come.
_most_rows: Bounded[tuple[Any, ...], int] = Bounded(512)


def _mark(
    storage: Storage, dims: Sequence[int], least: int | None, most: int | None, room: int = 0
) -> None:
    """Pads a storage's data in these dims, to the next capacity of `room` elements or more."""
    shape = storage.meta.shape
    for dim in dims:
        if not (least or 0) <= shape[dim] <= (shape[dim] if most is None else most):
            raise ValueError(
                f"mark_dynamic: dim {dim} has length {shape[dim]}, and its bounds are {least} and "
                f"{most}"
            )
    if not walks.is_unpadded(storage.value):
        host_reads.materialise(storage, "mark_dynamic")
    with LOCK:
        device_data, marked = storage.value, set()
        if walks.is_unpadded(device_data):
            marked = set(device_data.op.lowering.dims)  # type: ignore[attr-defined]  # an `Unpad`
            (device_data,) = device_data.operands
        assert type(device_data) is DeviceData, "the value was computed just now"
        new = {
            dim: capacity_of(max(shape[dim], least or 0, room)) for dim in dims if dim not in marked
        }
        if most is not None:
            new = {dim: min(capacity, most) for dim, capacity in new.items()}
        if not new:
            return
        padded = _padded(device_data, new)
        view = dynamic.unpadded_view(padded, storage.meta, sorted({*marked, *new}), is_marked=True)
        view.code, view.instruction = user_frame()
        storage.settle_unpadded(view, padded.sharding)


def _padded(device_data: DeviceData, pads: dict[int, int]) -> DeviceData:
    """The data with these capacities: padded on the host before its upload, else by a program of
    one op."""
    meta = padded_meta(device_data.meta, pads)
    if device_data.is_abstract:
        return DeviceData(meta, sharding=device_data.sharding, is_abstract=True)
    if device_data.host is not None:
        return padded_on_host(device_data, meta)
    result = Storage(
        Node(pad_op(device_data.meta, meta), [device_data]), meta, device_data.sharding
    )
    execute.run([result], user_line(), donate=False)
    assert type(result.value) is DeviceData, "the program has run"
    return result.value


def keep_marks(target: XlaTensor, source: torch.Tensor) -> None:
    """Marks the dims that `torch._dynamo.mark_dynamic` has marked of a CPU tensor, or the rows that
    data has counted."""
    if not source.__dict__:
        return
    if hasattr(source, copies.COUNTED) and config.pad_lengths:
        line, rows = user_frame(), len(source) + len(source) // 2
        most_rows = _most_rows.keep(line, max(rows, _most_rows.get(line) or 0))
        return _mark(storage_of(target), [0], None, None, most_rows)
    names = "_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices"
    dims = {dim for name in names for dim in getattr(source, name, ())}
    # torch 2.15 has a range only for the dims that were given one.
    bounds = {
        bound.dim: (bound.min, bound.max)
        for bound in getattr(source, "_dynamo_dynamic_range", None) or ()
    }
    for dim in sorted(dims):
        least, most = bounds.get(dim, (None, None))
        mark_dynamic(target, dim, min=least, max=most)


def _mark_ours(decorators: ModuleType) -> None:
    for name in ("mark_dynamic", "maybe_mark_dynamic"):
        replaces(decorators, name)(_around)


def _around(
    original: Callable[..., Any], t: Any, index: int | Sequence[int], *args: Any, **kwargs: Any
) -> Any:
    if not isinstance(t, XlaTensor):
        return original(t, index, *args, **kwargs)
    # there it is a plain tensor, of which Dynamo keeps marks
    with compile_context(CompileContext(None)):
        original(t, index, *args, **kwargs)
    return mark_dynamic(t, index, min=kwargs.get("min"), max=kwargs.get("max"))


def join_marks() -> None:
    """Patches torch's functions, now or when they are imported."""
    needs = "mark_dynamic(t, index, ...)", "maybe_mark_dynamic(t, index, ...)"
    patch_when_imported(
        "torch._dynamo.decorators", _mark_ours, "marks of dynamic dims on xla", *needs
    )
