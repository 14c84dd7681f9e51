"""Dims that the user marks as dynamic: the data is held padded, and its length is an operand of what reads it."""

from collections.abc import Sequence

from ..graph.graph import DeviceData, is_unpadded
from ..graph.meta import padded_meta
from ..graph.source import user_frame, user_line
from ..ops.padding_shapes import capacity_of
from ..passes import lengths
from ..record.storage import LOCK, Storage
from ..record.tensor import XlaTensor
from ..run.execute import run
from ..run.host_reads import materialise


def mark(tensor: XlaTensor, dims: Sequence[int], least: int | None = None, most: int | None = None) -> None:
    """Pads a tensor's data in these dims, to the next capacity; the tensor keeps its shape.

    least, most: the bounds of the lengths; the capacity is at least the one and at most the other. Dims of size 0 or 1
    stay as they are: an op may repeat them. Raises ValueError for a view, or a length out of bounds.
    """
    if tensor._view is not None:
        raise ValueError(
            "mark_dynamic: expected a tensor with memory of its own, got a view; mark what it is a view of"
        )
    storage, shape = tensor._storage, tensor.shape
    for dim in dims:
        if not (least or 0) <= shape[dim] <= (shape[dim] if most is None else most):
            raise ValueError(f"mark_dynamic: dim {dim} has length {shape[dim]}, and its bounds are {least} and {most}")
    if not is_unpadded(storage.value):
        materialise(storage, "mark_dynamic")
    with LOCK:
        device_data, known = storage.value, set()
        if is_unpadded(device_data):
            known = set(device_data.op.lowering.dims)  # type: ignore[attr-defined]  # an `Unpad`
            (device_data,) = device_data.operands
        assert type(device_data) is DeviceData, "the value was computed just now"
        new = {dim: _capacity(shape[dim], least, most) for dim in dims if dim not in known and shape[dim] > 1}
        if not new:
            return
        padded = _padded(device_data, new)
        view = lengths.unpadded_view(padded, storage.meta, sorted({*known, *new}), is_marked=True)
        view.code, view.instruction = user_frame()
        storage.settle_unpadded(view, padded.sharding)


def _capacity(length: int, least: int | None, most: int | None) -> int:
    capacity = capacity_of(max(length, least or 0))
    return capacity if most is None else min(capacity, most)


def _padded(device_data: DeviceData, pads: dict[int, int]) -> DeviceData:
    """The data with these capacities: padded on the host before its upload, else by a program of one op."""
    meta = padded_meta(device_data.meta, pads)
    if device_data.is_abstract:
        return DeviceData(meta, sharding=device_data.sharding, is_abstract=True)
    if device_data.host is not None:
        return lengths.padded_on_host(device_data, meta)
    result = Storage(lengths.padded_on_device(device_data, meta), meta, device_data.sharding)
    run([result], user_line(), donate=False)
    assert type(result.value) is DeviceData, "the program has run"
    return result.value
