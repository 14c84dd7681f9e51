"""The plan of FSDP: the modules that are units, the dim along which each parameter is sharded.

No device is touched.
"""

# Why small parameters are sharded like large ones, and gathered together: a replicated bias would
# need an all-reduce of its gradient, and an optimizer state on every device; one collective for all
# of a unit's small ones costs one latency.

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from torch import nn

from spmd.mesh.notes import ends_at_user_line

from .library import PartitionSpec
from .policies import AnyPolicy, Policy, or_policy, refuse_absent, resolve

# The result of `shard_placement_fn`: a PartitionSpec, the dim to shard as a number or as torch's
# `Shard(dim)`, torch's `Replicate()`, or None for the dim that `parameter_spec` chooses.
Placement = Any


@ends_at_user_line
def plan_units(
    module: nn.Module, policy: AnyPolicy | None, ignored_modules: Collection[nn.Module] = ()
) -> list[tuple[str, nn.Module]]:
    """The units below a root that a policy chooses, children before parents, as (name, module).

    The root itself is always a unit and is not listed. A module with two names is listed once.
    `policy` is anything that `auto_wrap_policy` takes (`fsdp.policies`).

    >>> import torch, fsdp
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    >>> [name for name, _ in fsdp.plan_units(model, fsdp.always_wrap_policy)]
    ['0', '1']
    """
    return [(name, unit) for name, unit, _ in plan_overrides(module, policy, ignored_modules)]


def plan_overrides(
    module: nn.Module,
    policy: AnyPolicy | None,
    ignored_modules: Collection[nn.Module] = (),
    unit_classes: Collection[type[nn.Module]] = (),
) -> list[tuple[str, nn.Module, dict[str, Any]]]:
    """`plan_units` with the keywords that override each unit's settings: a policy's, and those of
    the module's `_wrap_overrides`.

    Modules of `unit_classes` are units, too.
    """
    if policy is not None:
        refuse_absent(policy, module)
    # Without a policy `unit_classes` are the policy.
    policy = tuple(unit_classes) or None if policy is None else policy
    if policy is None:
        return []
    ignored = {below for ignored_module in ignored_modules for below in ignored_module.modules()}
    is_chosen, overrides = resolve(policy, module, ignored)
    if unit_classes:
        is_chosen = partial(or_policy, policies=[is_chosen, tuple(unit_classes)])
    units: list[tuple[str, nn.Module]] = []
    ignored_ids = {
        id(parameter)
        for ignored_module in ignored_modules
        for parameter in ignored_module.parameters()
    }
    visit("", module, is_chosen, units, set(ignored), ignored_ids)
    return [
        (name, unit, {**overrides.get(unit, {}), **getattr(unit, "_wrap_overrides", {})})
        for name, unit in units
    ]


def visit(
    name: str,
    module: nn.Module,
    policy: Policy,
    units: list[tuple[str, nn.Module]],
    visited: set[nn.Module],
    ignored_ids: set[int],
    *,
    asks_root: bool = False,
) -> int:
    """Appends the modules at and below a module that a policy chooses, children first; returns the
    number of their parameter elements.

    visited: modules that are not visited again. ignored_ids: the ids of parameters that do not
    count. asks_root: the policy also decides on the root, whose name is ""; else the root is never
    appended.
    """
    # As torch's policies count: first all elements that are not ignored, then without those of
    # child units.
    numel = sum(
        parameter.numel() for parameter in module.parameters() if id(parameter) not in ignored_ids
    )
    if not policy(module, True, numel):
        return 0
    nested_numel = 0
    for child_name, child in module.named_children():
        if child not in visited:
            visited.add(child)
            nested_numel += visit(
                f"{name}.{child_name}" if name else child_name,
                child,
                policy,
                units,
                visited,
                ignored_ids,
            )
    if (name or asks_root) and policy(module, False, numel - nested_numel):
        units.append((name, module))
        return numel
    return nested_numel


@ends_at_user_line
def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: AnyPolicy,
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: Collection[nn.Module] = (),
    ignored_params: Collection[nn.Parameter] = (),
    only_wrap_children: bool = False,
    **kwargs: object,
) -> tuple[nn.Module, int]:
    """Replaces each module that a policy chooses by `wrapper_cls(module, **kwargs)`, children
    before parents.

    `wrapper_cls` is a class or a function, such as `fsdp.fully_shard`, which returns the module
    itself. A module's `_wrap_overrides` take precedence over `kwargs`. `only_wrap_children` leaves
    the module itself as it is. Returns the module or its wrapper, and the number of wrapped
    parameter elements, without those of `ignored_params`.

    Source: `torch_xla.distributed.fsdp.wrap.recursive_wrap`.

    >>> import torch, spmd, fsdp
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    >>> mesh = spmd.Mesh([0], (1,), ("fsdp",))
    >>> model, wrapped = fsdp.recursive_wrap(model, {torch.nn.Linear}, fsdp.fully_shard, mesh=mesh)
    >>> wrapped, type(model[0]).__name__
    (30, 'FSDPLinear')
    """
    ignored = {below for ignored_module in ignored_modules for below in ignored_module.modules()}
    policy, overrides = resolve(auto_wrap_policy, module, ignored)
    ignored_ids = {id(parameter) for parameter in ignored_params}
    units: list[tuple[str, nn.Module]] = []
    numel = visit(
        "", module, policy, units, set(ignored), ignored_ids, asks_root=not only_wrap_children
    )
    parents = defaultdict[nn.Module | None, list[tuple[nn.Module, str]]](list)
    for parent in module.modules():
        for name, child in parent._modules.items() if parent not in ignored else ():
            # A module with two names is replaced under both.
            parents[child].append((parent, name))
    for _, unit in units:
        result = wrapper_cls(
            unit, **{**kwargs, **overrides.get(unit, {}), **getattr(unit, "_wrap_overrides", {})}
        )
        for parent, name in parents[unit] if result is not unit else ():
            setattr(parent, name, result)
        module = result if unit is module else module
    return module, numel


@ends_at_user_line
def parameter_spec(
    shape: Sequence[int], axis: str, size: int, held: Sequence[Any] = ()
) -> PartitionSpec:
    """The spec that shards a parameter over the `size` devices of a mesh axis, along one dim.

    The largest dim that `size` divides is sharded (the first of equals): each device has 1/size.
    Else the largest dim of at least `size`, padded; else the parameter is replicated. `held` is its
    spec over other axes (tensor parallel); dims that it shards are not sharded over `axis`.

    >>> parameter_spec((10, 64), "fsdp", 8)
    P(None, 'fsdp')
    >>> parameter_spec((64, 64), "fsdp", 8, held=("tensor", None))
    P('tensor', 'fsdp')
    """
    spec = [*held, *[None] * (len(shape) - len(held))]
    free = [dim for dim, entry in enumerate(spec) if entry is None]
    # An even dim first: XLA pads an uneven one, and moves the padding in each all-gather.
    even = [dim for dim in free if shape[dim] % size == 0 and shape[dim] > 0]
    candidates = even or [dim for dim in free if shape[dim] >= size]
    if size > 1 and candidates:
        spec[max(candidates, key=lambda dim: (shape[dim], -dim))] = axis
    return PartitionSpec(*spec)


def placement(
    parameter: nn.Parameter,
    axis: str,
    size: int,
    base_spec: PartitionSpec,
    rule: Callable[[nn.Parameter], Placement] | None,
) -> PartitionSpec:
    """The spec that a user's rule gives a parameter; where it returns None, the spec of
    `parameter_spec`.

    Raises TypeError for a result that is no placement, ValueError for one that does not fit the
    parameter.
    """
    result = None if rule is None else rule(parameter)
    if result is None:
        return parameter_spec(parameter.shape, axis, size, base_spec)
    if isinstance(result, tuple):
        return PartitionSpec(*result)
    if hasattr(result, "is_replicate") and result.is_replicate():
        return base_spec
    dim = result.dim if hasattr(result, "is_shard") and result.is_shard() else result
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise TypeError(
            "shard_placement_fn: expected a PartitionSpec, a dim, torch's Shard(dim) or "
            f"Replicate(), or None, got {result!r}"
        )
    rank = len(parameter.shape)
    if not -rank <= dim < rank:
        raise ValueError(
            f"shard_placement_fn: a parameter of shape {tuple(parameter.shape)} has no dim {dim}"
        )
    spec = [*base_spec, *[None] * (rank - len(base_spec))]
    # A dim may have two axes, but which one is the outer is the user's decision: a full spec says
    # it.
    if spec[dim] is not None:
        raise ValueError(
            f"shard_placement_fn: dim {dim} of a parameter of shape {tuple(parameter.shape)} is "
            f"sharded over {spec[dim]!r} already; choose another dim, or give the full "
            "PartitionSpec"
        )
    spec[dim] = axis
    return PartitionSpec(*spec)
