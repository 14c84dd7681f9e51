"""FSDP as a plan: which modules are units, along which dim each parameter is split. Nothing here touches a device."""

from collections.abc import Collection, Sequence
from typing import Any

from torch import nn

from .library import PartitionSpec
from .policies import Policy


def plan_units(
    module: nn.Module, policy: Policy | None, ignored_modules: Collection[nn.Module] = ()
) -> list[tuple[str, nn.Module]]:
    """The units below a root that a policy chooses, children before parents, as (name, module).

    The root itself is always a unit and is not listed. A module reached by two names is listed once.
    """
    if policy is None:
        return []
    units: list[tuple[str, nn.Module]] = []
    _visit("", module, policy, units, set(ignored_modules))
    return units


def _visit(
    name: str, module: nn.Module, policy: Policy, units: list[tuple[str, nn.Module]], seen: set[nn.Module]
) -> int:
    """Adds the units at and below a module; returns how many parameter elements they have taken."""
    numel = sum(parameter.numel() for parameter in module.parameters())
    if not policy(module, True, numel):
        return 0
    taken = 0
    for child_name, child in module.named_children():
        if child not in seen:
            seen.add(child)
            taken += _visit(f"{name}.{child_name}" if name else child_name, child, policy, units, seen)
    if name and policy(module, False, numel - taken):  # the root has no name, and is a unit whatever the policy says
        units.append((name, module))
        return numel
    return taken


def parameter_spec(shape: Sequence[int], axis: str, size: int, held: Sequence[Any] = ()) -> PartitionSpec:
    """The spec that splits a parameter over `size` devices of a mesh axis, along one dim.

    The largest dim that `size` divides (the first of equals), so that every device holds exactly 1/size; without one,
    the largest dim of at least `size`, padded; a parameter with no such dim is whole on every device. `held` is how the
    parameter is split over other axes (tensor parallel): those dims stay as they are, and one of the others is split.

    >>> parameter_spec((10, 64), "fsdp", 8)
    P(None, 'fsdp')
    >>> parameter_spec((64, 64), "fsdp", 8, held=("tensor", None))
    P('tensor', 'fsdp')
    """
    spec = [*held, *[None] * (len(shape) - len(held))]
    free = [dim for dim, entry in enumerate(spec) if entry is None]
    even = [dim for dim in free if shape[dim] % size == 0 and shape[dim] > 0]
    candidates = even or [dim for dim in free if shape[dim] >= size]
    if size > 1 and candidates:
        spec[max(candidates, key=lambda dim: (shape[dim], -dim))] = axis
    return PartitionSpec(*spec)
