"""`recursive_wrap`: replaces each module that a policy chooses by the result of a user's function."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .policies import AnyPolicy, Policy, resolve


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

    def wrap(one: nn.Module) -> nn.Module:
        return wrapper_cls(one, **{**kwargs, **overrides.get(one, {}), **getattr(one, "_wrap_overrides", {})})

    return _Wrapping(policy, wrap, ignored, left).visit(module, is_left=only_wrap_children)


@dataclass
class _Wrapping:
    """A traversal. ignored: modules. left: ids of parameters that do not count. done: module -> its replacement."""

    policy: Policy
    wrap: Callable[[nn.Module], nn.Module]
    ignored: set[nn.Module]
    left: set[int]
    done: dict[nn.Module, nn.Module] = field(default_factory=dict)

    def visit(self, module: nn.Module, *, is_left: bool = False) -> tuple[nn.Module, int]:
        """Returns a module's replacement, and the number of parameter elements wrapped at and below it."""
        if module in self.done:
            return self.done[module], 0
        numel = sum(parameter.numel() for parameter in module.parameters() if id(parameter) not in self.left)
        if not self.policy(module, True, numel):
            return module, 0
        taken = 0
        for name, child in list(module._modules.items()):  # a module that goes by two names is replaced at both
            if child is not None and child not in self.ignored:
                made, count = self.visit(child)
                taken += count
                if made is not child:
                    setattr(module, name, made)
        if is_left or not self.policy(module, False, numel - taken):
            self.done[module] = module
            return module, taken
        self.done[module] = self.wrap(module)
        return self.done[module], numel
