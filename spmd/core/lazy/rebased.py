"""Views of a tensor that changes its shape in place: from then on torch finds them by their place in memory.

When memory has been written, autograd finds the gradient of a view of it anew. On strided devices it goes by the view's
sizes and strides; for a tensor subclass it repeats the ops that made the view, on the base as it is by then. On a base
of another shape these fail or name other elements. So before a base changes its shape, and after a view does, the view
becomes one that was made by `as_strided`, which asks for no shape.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

Place = tuple[tuple[int, ...], tuple[int, ...], int]
Views = set["weakref.ref[Any]"]


METHODS = (
    "as_strided_", "resize_", "resize_as_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_",
)  # fmt: skip


_num_followed = 0  # since the start: it tells whether autograd has just made a view


def follow(cell: Any, view: Any) -> None:
    """Adds one to the views of a cell that autograd knows; the dead ones go at eight, and whenever that has doubled."""
    global _num_followed
    _num_followed += 1
    views: Views | None = cell.views
    if views is None:
        cell.views = {weakref.ref(view)}
        return
    count = len(views)
    if count > 7 and not count & (count - 1):
        views -= {ref for ref in views if ref() is None}
    views.add(weakref.ref(view))


def living(tensor: Any) -> list[Any]:
    """The views that autograd finds from this tensor, and that are elements of its memory as they lie there."""
    if tensor._base is not None:
        return []  # its views are found from its own base
    found = [view for ref in tensor._cell.views or () if (view := ref()) is not None]
    return [view for view in found if view._base is tensor and _is_plain(view)]


def by_memory(view: Any) -> None:
    """Has autograd find a view by its place in its base's memory; the Python object stays, with all that is its own."""
    base = view._base
    place: Place = (tuple(view.shape), view.stride(), view.storage_offset())
    if view.retains_grad:  # its graph holds what would be swapped
        raise RuntimeError(
            f"a view of shape {list(view.shape)} keeps its gradient: on xla, call retain_grad() after it or its base "
            "has changed its shape, not before"
        )
    base.__dict__.setdefault("_places", set()).add(place)
    with torch.enable_grad():
        made: Any = torch.as_strided(base, *place)
    torch._C._autograd._set_creation_meta(made, torch._C._autograd._get_creation_meta(view))
    torch._C._swap_tensor_impl(view, made)
    for name in ("_cell", "_view", "_meta"):  # what a graph has saved of the view goes on in `made`
        setattr(made, name, getattr(view, name))


def before_write(tensor: Any) -> None:
    """The tensor changes its shape by an op that counts as a write: autograd will find all its views anew."""
    views = living(tensor)
    if views:
        with torch.overrides.enable_reentrant_dispatch():  # dispatch is below autograd, which has to see this
            for view in views:
                if not _is_leaf(view):
                    by_memory(view)


def replace(tensor: Any, new: Any) -> None:
    """The tensor changes its shape or dtype by `.data =`, which is no write: until one, views keep their gradient.

    One whose memory has been written since autograd last looked at it is found anew afterwards, on the new base.
    """
    late = []
    for view in living(tensor):
        before = _num_followed
        if _is_leaf(view):
            continue
        if _num_followed != before and new.dtype is view.dtype:  # autograd has just found it anew
            late.append(view)
        else:
            by_memory(view)
            _hook(view)
    shape = tensor.shape
    tensor._take(new)
    for view in late:
        by_memory(view)
    if tensor.shape != shape:
        after_change(tensor)


def after_change(tensor: Any) -> None:
    """Where the tensor that has changed its shape is itself a view, it is another view of its base by now."""
    if tensor._base is not None and _is_plain(tensor) and not _is_leaf(tensor):
        by_memory(tensor)
        _hook(tensor)


def _hook(view: Any) -> None:
    """Tells autograd of a view's hooks; it forgets those of views that it finds anew, on any device."""
    if view._backward_hooks is not None:
        view._backward_hooks = view._backward_hooks


def changes_shape(name: str) -> Callable[..., Any]:
    """The method of an op that changes a tensor's shape in place: what the op itself has in hand, only we can swap."""
    function = getattr(torch.Tensor, name)

    @functools.wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        function(self, *args, **kwargs)
        after_change(self)
        return self

    return method


def _is_leaf(view: Any) -> bool:
    """Whether a view collects a gradient of its own: then it is no part of its base's."""
    return view.is_leaf and view.requires_grad


def _is_plain(view: Any) -> bool:
    """Whether no view in the chain shows memory otherwise than it lies there; torch repeats such ops on any device."""
    link = view._view
    while link is not None:
        if link.rule.shown:
            return False
        link = link.parent
    return view.dtype is view._base.dtype
