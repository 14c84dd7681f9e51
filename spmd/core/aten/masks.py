"""Indexing by tensors: torch's refusals, and masks, whose hits the host counts."""

from typing import Any

import torch

from ..base import counters
from ..record.overloads import Args, Kwargs
from ..run.pjrt.host import leaving

aten = torch.ops.aten

_MASKS = (torch.bool, torch.uint8)
_KINDS = (*_MASKS, torch.int64, torch.int32)


def _check(tensor: torch.Tensor, indices: Any) -> list[torch.Tensor]:
    """The masks among the indices; IndexError, as torch's, where one does not fit or has no index dtype."""
    masks, place = [], 0
    for index in indices:
        if index is None:
            place += 1
            continue
        if index.dtype not in _KINDS:
            raise IndexError(f"tensors used as indices must be long, int, byte or bool tensors, got {index.dtype}")
        if index.dtype not in _MASKS:
            place += 1
            continue
        if index.shape != tensor.shape[place : place + index.dim()]:
            raise IndexError(
                f"The shape of the mask {list(index.shape)} at index {place} does not match the shape of the indexed "
                f"tensor {list(tensor.shape)} at index {place}"
            )
        place += index.dim()
        masks.append(index)
    return masks


def _index(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Indexing by a boolean mask: the result has one element per True, a number that only the host can know."""
    tensor, indices = args[0], args[1]
    if not _check(tensor, indices):
        return NotImplemented
    return func(tensor, _as_integers(tensor, indices), *args[2:], **kwargs)


def _as_integers(tensor: torch.Tensor, indices: Any) -> list[torch.Tensor | None]:
    """The indices with each mask replaced by the positions of its hits, which the host counts."""
    expanded: list[torch.Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in _MASKS:
            leaving("a boolean index", f"a mask of shape {list(index.shape)}")
            counters.add("host_ops")
            expanded.extend(index.cpu().nonzero().unbind(1))
        else:
            expanded.append(index)
    return expanded


def _index_put(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """A write of several values through masks; one value for all hits of one mask stays on the device."""
    tensor, indices, values = args[:3]
    masks = _check(tensor, indices)
    given = [index for index in indices if index is not None]
    if not masks or (len(given) == 1 and masks[0].dtype == torch.bool and values.dim() == 0):
        return NotImplemented
    return func(tensor, _as_integers(tensor, indices), values, *args[3:], **kwargs)


HANDLERS: dict[torch._ops.OpOverload, Any] = {
    aten.index.Tensor: _index,
    aten.index_put.default: _index_put,
    aten.index_put_.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten._index_put_impl.default: _index_put,
    aten._index_put_impl_.default: _index_put,
}
