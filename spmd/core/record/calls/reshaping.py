"""Calls that give memory another shape: aliases, parts, strided views, and in-place changes of a
shape.

`t_` turns a tensor into the view of itself that `t` returns.
"""

import functools
from collections.abc import Hashable, Sequence

import torch
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format

from ....ops.shape import PARTS, part
from ...graph.meta import Meta, meta_of
from ...graph.source import user_frame
from .. import view_rebase
from ..overlap import byte_range
from ..overloads import Args, Handler, Kwargs, aten, by_arguments
from ..storage import LOCK
from ..tensor import XlaTensor, alias, no_bytes
from ..views import View, refused_rule, shown, strided_rule
from .determinism import fill_of

Sizes = Sequence[int]


def _split(func: OpOverload, args: Args, kwargs: Kwargs) -> list[torch.Tensor]:
    """split, split_with_sizes, unbind: several slices or selections."""
    base = args[0]
    arguments = (*args[1:], *kwargs.values())
    count = _part_count(
        func, base._meta, *(tuple(value) if type(value) is list else value for value in arguments)
    )
    calls = [part(func, base._meta.shape, arguments, index) for index in range(count)]
    return [overload(base, *statics) for overload, statics in calls]


@functools.lru_cache(4096)
def _part_count(func: OpOverload, meta: Meta, *arguments: Hashable) -> int:
    """The number of parts, by torch on meta tensors."""
    return len(func(meta.make(), *arguments))


def _as_strided(
    base: XlaTensor, size: Sizes, stride: Sizes, storage_offset: int | None = None
) -> XlaTensor:
    """`as_strided`: a view by strides and offset in memory. Out of bounds it raises at once; a view
    of autograd's raises when it is read."""
    meta = meta_of(base._meta.make().as_strided(size, stride, storage_offset))
    with LOCK:
        code, instruction = user_frame(2)
        try:
            _check_bounds(base._storage.meta, meta)
            rule = strided_rule(base._storage.meta, meta, shown(base._view))
        except (RuntimeError, NotImplementedError) as error:
            if (meta.shape, meta.strides, meta.offset) not in base.__dict__.get(
                "_strided_layouts", ()
            ):
                raise
            # Autograd makes a view of the base's former layout again for its gradient, and does not
            # read it.
            rule = refused_rule(meta, error)
        result = alias(base, meta, View(rule, None, code, instruction))
        if base.requires_grad:
            view_rebase.follow(base._storage, result)
        return result


def _check_bounds(base: Meta, meta: Meta) -> None:
    """Raises RuntimeError for a view beyond its base's memory: torch's meta device lets
    `as_strided` make it, every real device refuses."""
    # The bounds are bytes, as a view may show memory in another dtype.
    begin, end = byte_range(meta)
    memory_begin = base.offset * base.dtype.itemsize
    memory_end = memory_begin + base.nbytes
    if meta.numel and (end > memory_end or begin < memory_begin):
        raise RuntimeError(
            f"setStorage: sizes {list(meta.shape)}, strides {list(meta.strides)}, storage offset "
            f"{meta.offset}, and itemsize {meta.dtype.itemsize} requiring a storage size of {end} "
            f"are out of bounds for storage of size {memory_end}"
        )


def _detach(func: OpOverload, args: Args, kwargs: Kwargs) -> XlaTensor:
    """`detach` and its like: another tensor over the same memory."""
    tensor = args[0]
    return alias(tensor, tensor._meta, tensor._view)


def _set_(tensor: XlaTensor, source: torch.Tensor | None = None) -> XlaTensor:
    """Makes the tensor an alias of its source."""
    source = tensor.new_empty(0) if source is None else source
    if not isinstance(source, XlaTensor) or source.dtype != tensor.dtype:
        raise RuntimeError(
            f"set_: expected a {tensor.dtype} tensor on xla:0, got {source.dtype} on "
            f"{source.device}"
        )
    return _become(tensor, alias(source, source._meta, source._view))


def _is_set_to(tensor: XlaTensor, source: XlaTensor) -> bool:
    return tensor._storage is source._storage and tensor._meta is source._meta


def _same_storage_numel(*tensors: torch.Tensor) -> bool:
    """True if two tensors' memories have equal numbers of elements."""
    sizes = [
        x._storage.meta.numel
        if isinstance(x, XlaTensor)
        else x.untyped_storage().nbytes() // x.itemsize
        for x in tensors
    ]
    return sizes[0] == sizes[1]


def _become(tensor: XlaTensor, new: torch.Tensor) -> XlaTensor:
    """Makes the tensor an alias of another one, in place."""
    assert isinstance(new, XlaTensor)
    view_rebase.before_shape_change(tensor)
    # Replaces the sizes and strides that torch has; the tensor's gradient and version stay.
    torch._C.TensorBase.data.__set__(tensor, new)  # type: ignore[attr-defined]
    tensor._storage, tensor._view, tensor._meta = new._storage, new._view, new._meta
    return tensor


def _view_in_place(view: OpOverload) -> Handler:
    """The handler of a view op's in-place form."""
    return lambda func, args, kwargs: _become(args[0], view(*args, **kwargs))


def _resize_(
    tensor: XlaTensor, size: Sizes, *, memory_format: torch.memory_format | None = None
) -> XlaTensor:
    """Gives the tensor's memory, from its first element on, another shape. New elements are zeros,
    or torch's fill value under deterministic algorithms."""
    size = torch.Size(size)
    if memory_format is torch.preserve_format:
        raise RuntimeError(
            "resize_: unsupported memory format preserve_format; pass another, or none"
        )
    if size == tensor.shape and memory_format is None:
        return tensor
    memory = tensor._storage.meta
    # The elements from the tensor's first one to the end of its memory.
    stored = (
        memory.numel - (tensor.storage_offset() - memory.offset)
        if tensor.dtype == memory.dtype
        else tensor.numel()
    )
    missing = size.numel() - stored
    if missing > 0:
        flat = (
            tensor.as_strided((stored,), (1,))
            if tensor.dtype == memory.dtype
            else tensor.reshape(-1)
        )
        fresh = tensor.new_full((missing,), fill_of(tensor.dtype) or 0)
        flat = torch.cat([flat, fresh]) if stored else fresh
    else:
        flat = tensor.as_strided((size.numel(),), (1,)) if size.numel() else tensor.new_zeros(0)
    if memory_format is None or memory_format is torch.contiguous_format:
        return _become(tensor, flat.view(size))
    strides = torch.empty(size, device="meta", memory_format=memory_format).stride()
    return _become(tensor, flat.as_strided(size, strides))


def _resize_as_(
    tensor: XlaTensor, template: torch.Tensor, *, memory_format: torch.memory_format | None = None
) -> XlaTensor:
    if memory_format is torch.preserve_format:
        memory_format = suggest_memory_format(template)
    return _resize_(tensor, template.shape, memory_format=memory_format)


def _as_strided_scatter(
    tensor: XlaTensor,
    source: torch.Tensor,
    size: Sizes,
    stride: Sizes,
    storage_offset: int | None = None,
) -> torch.Tensor:
    """`as_strided_scatter`, on a copy of all memory: the layout may name any element of it."""
    memory, begin = tensor._storage.meta, tensor._storage.meta.offset
    offset = tensor.storage_offset() if storage_offset is None else storage_offset
    result = tensor.as_strided((memory.numel,), (1,), begin).clone()
    result.as_strided(size, stride, offset - begin).copy_(source)
    return result.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - begin)


HANDLERS: dict[OpOverload, Handler] = {
    **dict.fromkeys(PARTS, _split),
    aten.detach.default: _detach,
    aten.alias.default: _detach,
    aten.lift_fresh.default: _detach,
    aten.is_set_to.default: by_arguments(_is_set_to),
    aten.set_.default: by_arguments(_set_),
    aten.set_.source_Tensor: by_arguments(_set_),
    **{
        getattr(aten.squeeze_, form): _view_in_place(getattr(aten.squeeze, form))
        for form in ("default", "dim", "dims")
    },
    aten.unsqueeze_.default: _view_in_place(aten.unsqueeze.default),
    aten.transpose_.default: _view_in_place(aten.transpose.int),
    aten.t_.default: _view_in_place(aten.t.default),
    aten.as_strided_.default: _view_in_place(aten.as_strided.default),
    aten.resize_.default: by_arguments(_resize_),
    aten.resize_as_.default: by_arguments(_resize_as_),
    aten.as_strided_scatter.default: by_arguments(_as_strided_scatter),
    aten._has_same_storage_numel.default: by_arguments(_same_storage_numel),
    aten.as_strided.default: by_arguments(_as_strided),
    # in inference mode; else autograd does all of it
    aten.detach_.default: lambda func, args, kwargs: args[0],
    aten.set_.source_Storage: no_bytes,
    aten.set_.source_Storage_storage_offset: no_bytes,
}
