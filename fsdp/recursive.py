"""`recursive_wrap`: replaces each module that a policy chooses by the result of a user's function."""

from collections.abc import Callable, Collection
from typing import Any

from torch import nn

from .plan import visit
from .policies import AnyPolicy, resolve


def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: AnyPolicy,
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: Collection[nn.Module] = (),
    ignored_params: Collection[nn.Parameter] = (),
    only_wrap_children: bool = False,
    **kwargs: Any,
) -> tuple[nn.Module, int]:
    """Replaces each module that a policy chooses by `wrapper_cls(module, **kwargs)`, children before parents.

    `wrapper_cls` is a class or a function, such as `fsdp.fully_shard`, which returns the module itself. A module's
    `_wrap_overrides` take precedence over `kwargs`. `only_wrap_children` leaves the module itself as it is. Returns the
    module or its wrapper, and the number of wrapped parameter elements, without those of `ignored_params`.

    Source: `torch_xla.distributed.fsdp.wrap.recursive_wrap`.

    >>> import torch, spmd, fsdp
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    >>> mesh = spmd.Mesh([0], (1,), ("fsdp",))
    >>> model, wrapped = fsdp.recursive_wrap(model, {torch.nn.Linear}, fsdp.fully_shard, mesh=mesh)
    >>> wrapped, type(model[0]).__name__
    (30, 'FSDPLinear')
    """
    ignored = {below for chosen in ignored_modules for below in chosen.modules()}
    policy, overrides = resolve(auto_wrap_policy, module, ignored)
    left = {id(parameter) for parameter in ignored_params}
    chosen: list[tuple[str, nn.Module]] = []
    numel = visit("", module, policy, chosen, set(ignored), left, asks_root=not only_wrap_children)
    places: dict[
        nn.Module | None, list[tuple[nn.Module, str]]
    ] = {}  # a module that goes by two names is replaced at both
    for parent in module.modules():
        for name, child in parent._modules.items() if parent not in ignored else ():
            places.setdefault(child, []).append((parent, name))
    for _, one in chosen:
        result = wrapper_cls(one, **{**kwargs, **overrides.get(one, {}), **getattr(one, "_wrap_overrides", {})})
        for parent, name in places.get(one, ()) if result is not one else ():
            setattr(parent, name, result)
        module = result if one is module else module
    return module, numel
