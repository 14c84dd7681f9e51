"""Auto-wrap policies: which modules become units. A policy is any callable (module, recurse, nonwrapped_numel) -> bool.

It is asked twice for a module: with recurse=True, whether to look at its children; with recurse=False, after the
children, whether the module itself becomes a unit; `nonwrapped_numel` counts the parameter elements that no child unit
has taken. Bind a policy's own arguments with `functools.partial`. Source: `torch.distributed.fsdp.wrap`,
`torch_xla.distributed.fsdp.wrap`.
"""

from collections.abc import Callable, Iterable

from torch import nn

Policy = Callable[[nn.Module, bool, int], bool]


def always_wrap_policy(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """Every module becomes a unit.

    >>> always_wrap_policy(nn.Linear(2, 2), False, 6)
    True
    """
    return True


def lambda_auto_wrap_policy(
    module: nn.Module, recurse: bool, nonwrapped_numel: int, lambda_fn: Callable[[nn.Module], bool]
) -> bool:
    """The modules for which `lambda_fn(module)` is true become units.

    >>> lambda_auto_wrap_policy(nn.Linear(2, 2), False, 6, lambda_fn=lambda module: isinstance(module, nn.Linear))
    True
    """
    return recurse or bool(lambda_fn(module))


def transformer_auto_wrap_policy(
    module: nn.Module, recurse: bool, nonwrapped_numel: int, transformer_layer_cls: Iterable[type[nn.Module]]
) -> bool:
    """The modules of the given layer classes become units.

    >>> transformer_auto_wrap_policy(nn.Linear(2, 2), False, 6, transformer_layer_cls={nn.Linear})
    True
    """
    classes = tuple(transformer_layer_cls)
    if not classes or not all(isinstance(cls, type) for cls in classes):
        raise TypeError(
            f"transformer_auto_wrap_policy: transformer_layer_cls must be a set of module classes, got {classes!r}"
        )
    return recurse or isinstance(module, classes)


def size_based_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    nonwrapped_numel: int,
    min_num_params: int = int(1e8),
    force_leaf_modules: set[type[nn.Module]] | None = None,
    exclude_wrap_modules: set[type[nn.Module]] | None = None,
) -> bool:
    """A module with at least `min_num_params` parameter elements that no child unit has taken becomes a unit.

    Children of `force_leaf_modules` (default: `nn.MultiheadAttention`) are not looked at; modules of
    `exclude_wrap_modules` (default: `nn.ModuleList`, `nn.ModuleDict`, which have no forward) never become units.

    >>> size_based_auto_wrap_policy(nn.Linear(2, 2), False, 6, min_num_params=5)
    True
    """
    leaves = FORCE_LEAF_MODULES if force_leaf_modules is None else force_leaf_modules
    excluded = EXCLUDE_WRAP_MODULES if exclude_wrap_modules is None else exclude_wrap_modules
    is_large = nonwrapped_numel >= min_num_params
    if recurse:
        return is_large and not isinstance(module, tuple(leaves))
    return is_large and not isinstance(module, tuple(excluded))


FORCE_LEAF_MODULES: set[type[nn.Module]] = {nn.MultiheadAttention}
EXCLUDE_WRAP_MODULES: set[type[nn.Module]] = {nn.ModuleList, nn.ModuleDict}
size_based_auto_wrap_policy.FORCE_LEAF_MODULES = FORCE_LEAF_MODULES  # type: ignore[attr-defined]
size_based_auto_wrap_policy.EXCLUDE_WRAP_MODULES = EXCLUDE_WRAP_MODULES  # type: ignore[attr-defined]
