"""`torch.distributed._functional_collectives` on tensors on xla: its ops become those of
`spmd.manual`.

A group is an axis of the mesh: its name, a tuple of names, or (mesh, axis); there are no process
groups. torch's module is patched at the first manual computation after its import, for tensors on
xla only.
"""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..core import XlaTensor, guarded, replaces
from ..loops.vma import tracker
from ..mesh.mesh import Mesh
from . import collectives, manual_steps

_MODULE = "torch.distributed._functional_collectives"
_NEEDS = (
    "_maybe_wrap_tensor(self)",
    "permute_tensor(self, src_dst, group, tag)",
    "c10d._get_group_size_by_name(group_name)",
)
_libraries: list[torch.library.Library] = []


def install() -> None:
    """Patches torch's functional collectives, where the user has imported them."""
    module = sys.modules.get(_MODULE)
    if module is not None and not _libraries:
        # torch 2.11
        resolve = "_resolve_group" if hasattr(module, "_resolve_group") else "_resolve_group_name"
        needs = [f"{_MODULE}.{need}" for need in (f"{resolve}(group, tag)", *_NEEDS)]
        guarded(needs, "its functions on xla", lambda: _join(module, resolve))


def _join(module: Any, resolve: str) -> None:
    library = torch.library.Library("_c10d_functional", "IMPL")
    for name, kernel in _KERNELS.items():
        library.impl(name, kernel, "AutogradPrivateUse1")
    _libraries.append(library)
    replaces(module, resolve)(lambda torchs, group, tag="": _named(group) or torchs(group, tag))
    replaces(module, "_maybe_wrap_tensor")(
        lambda torchs, result: result if isinstance(result, XlaTensor) else torchs(result)
    )
    if hasattr(module, "_maybe_wrap_tensors"):  # from torch 2.15 on, of the coalesced ones
        replaces(module, "_maybe_wrap_tensors")(_unwrapped)
    replaces(module, "permute_tensor")(_permute_tensor)
    replaces(module.c10d, "_get_group_size_by_name")(_size)


def _size(torchs: Callable[[str], int], group: str) -> int:
    return group.size if isinstance(group, _Group) else torchs(group)


def _unwrapped(torchs: Any, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the results unchanged: a program waits for its collectives by itself."""
    return (
        [*results] if all(isinstance(result, XlaTensor) for result in results) else torchs(results)
    )


class _Group(str):
    """The names of axes, joined by commas, with the number of shards along them."""

    size: int


def _named(group: Any) -> _Group | None:
    """The axes of a group; None where it is one of torch's."""
    scope, mesh, axes = tracker(), None, group
    if isinstance(group, tuple) and len(group) == 2 and isinstance(group[0], Mesh):
        mesh, axes = group
    axes = (axes,) if isinstance(axes, (str, int)) else axes
    sharding = (
        mesh.sharding((), 0)
        if mesh is not None
        else scope.mesh
        if scope is not None
        else manual_steps.latest
    )
    is_listed = isinstance(axes, (tuple, list)) and all(
        isinstance(axis, (str, int)) for axis in axes
    )
    if sharding is None or not is_listed:
        return None
    sizes = sharding.mesh_axes()
    if mesh is None and scope is None and not all(axis in sizes for axis in axes):
        return None  # a group of torch's, outside of a manual computation
    names = [
        tuple(sizes)[axis] if isinstance(axis, int) and axis < len(sizes) else str(axis)
        for axis in axes
    ]
    joined = _Group(",".join(names))
    # an unknown one is refused by the collective
    joined.size = math.prod(sizes.get(name, 1) for name in names)
    return joined


def _axes(group: Any) -> tuple[str, ...]:
    if not isinstance(group, str):
        raise TypeError(
            "functional collectives on xla: expected an axis of the mesh as the group (a name, a "
            f"tuple of names, or (mesh, axis)), got {group!r}; there are no process groups on xla"
        )
    return tuple(group.split(","))


def _permute_tensor(
    torchs: Any, tensor: Any, src_dst: Sequence[int], group: Any, tag: str = ""
) -> Any:
    if not isinstance(tensor, XlaTensor):
        return torchs(tensor, src_dst, group, tag)
    return collectives.collective_permute(
        tensor, list(enumerate(src_dst)), _axes(_named(group) or group)
    )


def _all_to_all(tensor: Any, out_sizes: Sequence[int], in_sizes: Sequence[int], group: Any) -> Any:
    if len({*out_sizes, *in_sizes}) > 1:
        raise NotImplementedError(
            f"all_to_all_single on xla: splits of several sizes ({list(in_sizes)} out, "
            f"{list(out_sizes)} in); each shard runs the same program, so pad them to one size"
        )
    return collectives.all_to_all(tensor, 0, 0, _axes(group))


def _of_each(kernel: Callable[..., Any]) -> Callable[..., list[Any]]:
    return lambda tensors, *how: [kernel(tensor, *how) for tensor in tensors]


# By the names of torch's ops; each takes a tensor first and its group last.
_ONE_BY_ONE: dict[str, Callable[..., Any]] = {
    "all_reduce": lambda tensor, op, group: collectives.all_reduce(tensor, op, _axes(group)),
    "all_gather_into_tensor": lambda tensor, size, group: collectives.all_gather(
        tensor, 0, _axes(group)
    ),
    "reduce_scatter_tensor": lambda tensor, op, size, group: collectives.reduce_scatter(
        tensor, op, 0, _axes(group)
    ),
}
_KERNELS: dict[str, Callable[..., Any]] = {
    **_ONE_BY_ONE,
    **{f"{name}_coalesced": _of_each(kernel) for name, kernel in _ONE_BY_ONE.items()},
    "all_to_all_single": _all_to_all,
    "broadcast": lambda tensor, source, group: collectives.broadcast(tensor, source, _axes(group)),
    "wait_tensor": lambda tensor: tensor.view_as(tensor),
}
