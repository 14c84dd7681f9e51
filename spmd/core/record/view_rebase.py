"""Views of a tensor that changes its shape in place: they become `as_strided` views.

After a write to memory, autograd renews the grad_fn of each view of it. On strided devices it uses
the view's sizes and strides; for a tensor subclass it replays the view's ops on the base. If the
base has changed its shape, these ops fail or address other elements. `as_strided` depends on no
shape, so views are replaced by it before their base changes its shape, and after they change
theirs.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

Views = set["weakref.ref[torch.Tensor]"]


METHODS = (
    "as_strided_",
    "resize_",
    "resize_as_",
    "squeeze_",
    "swapaxes_",
    "swapdims_",
    "t_",
    "transpose_",
    "unsqueeze_",
)


# The number of calls of `follow`: a change shows that autograd has just made a view.
_num_followed = 0


def follow(storage: Any, view: Any) -> None:
    """Adds a tensor to a storage's views that autograd knows.

    Dead views are dropped when the storage has eight, sixteen, and so on.
    """
    global _num_followed
    _num_followed += 1
    views: Views | None = storage.views
    if views is None:
        storage.views = {weakref.ref(view)}
        return
    count = len(views)
    if count > 7 and not count & (count - 1):
        views -= {ref for ref in views if ref() is None}
    views.add(weakref.ref(view))


def live_views(tensor: Any) -> list[Any]:
    """Autograd's live views of this tensor that show its memory as stored."""
    if tensor._base is not None:
        return []  # autograd has its views as views of its base
    views = [view for ref in tensor._storage.views or () if (view := ref()) is not None]
    return [view for view in views if view._base is tensor and _is_plain(view)]


def make_strided(view: Any) -> None:
    """Makes a view an `as_strided` view of its base for autograd; the Python object stays, with all
    its attributes."""
    base = view._base
    layout = (tuple(view.shape), view.stride(), view.storage_offset())
    if view.retains_grad:  # its graph holds the tensor that would be swapped
        raise RuntimeError(
            f"a view of shape {list(view.shape)} keeps its gradient: on xla, call retain_grad() "
            "after it or its base has changed its shape, not before"
        )
    base.__dict__.setdefault("_strided_layouts", set()).add(layout)
    with torch.enable_grad():
        result: Any = torch.as_strided(base, *layout)
    torch._C._autograd._set_creation_meta(result, torch._C._autograd._get_creation_meta(view))
    torch._C._swap_tensor_impl(view, result)
    # a graph that has saved the view goes on with `result`
    for name in ("_storage", "_view", "_meta"):
        setattr(result, name, getattr(view, name))


def before_shape_change(tensor: Any) -> None:
    """Prepares a change of shape by an op that counts as a write: autograd will renew the grad_fn
    of each view."""
    views = live_views(tensor)
    if views:
        # dispatch is below autograd, which has to see it
        with torch.overrides.enable_reentrant_dispatch():
            for view in views:
                if not _has_own_gradient(view):
                    make_strided(view)


def replace_data(tensor: Any, new: Any) -> None:
    """Changes the tensor's shape or dtype by `.data =`, which is no write, so views keep their
    grad_fn. Views written since autograd last looked at them get a new grad_fn afterwards, on the
    new base.
    """
    # These views need the new base, so their turn comes once the tensor has taken it.
    renewed = []
    for view in live_views(tensor):
        num_followed = _num_followed
        if _has_own_gradient(view):
            continue
        # `_has_own_gradient` has read the grad_fn of a written view, and autograd has renewed it.
        if _num_followed != num_followed and new.dtype is view.dtype:
            renewed.append(view)
        else:
            make_strided(view)
            renew_hooks(view)
    shape = tensor.shape
    tensor._become_alias(new)
    for view in renewed:
        make_strided(view)
    if tensor.shape != shape:
        after_change(tensor)


def after_change(tensor: Any) -> None:
    """Makes a view that has changed its shape an `as_strided` view of its base."""
    if tensor._base is not None and _is_plain(tensor) and not _has_own_gradient(tensor):
        make_strided(tensor)
        renew_hooks(tensor)


def renew_hooks(tensor: Any) -> None:
    """Registers the hooks of a tensor with the autograd of its data: it forgets those of a view
    when it renews the grad_fn, on any device, and has none of a tensor that took other data."""
    if tensor._backward_hooks is not None:
        tensor._backward_hooks = tensor._backward_hooks
    if tensor._post_accumulate_grad_hooks is not None:
        tensor._post_accumulate_grad_hooks = tensor._post_accumulate_grad_hooks


def reshaping_method(name: str) -> Callable[..., torch.Tensor]:
    """Returns torch's in-place method of this name with a call of `after_change` behind it: torch
    holds the tensor until its own method returns."""
    function = getattr(torch.Tensor, name)

    @functools.wraps(function)
    def method(self: Any, *args: object, **kwargs: object) -> torch.Tensor:
        function(self, *args, **kwargs)
        after_change(self)
        return self

    return method


def _has_own_gradient(view: Any) -> bool:
    """True if a view is a leaf with a gradient of its own, which is no part of its base's."""
    return view.is_leaf and view.requires_grad


def _is_plain(view: Any) -> bool:
    """True if no view in the chain shows memory other than as stored (conjugate, negated, of
    another dtype); torch repeats such ops on any device."""
    link = view._view
    while link is not None:
        if link.rule.shown:
            return False
        link = link.parent
    return view.dtype is view._base.dtype
