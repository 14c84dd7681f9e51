"""Auto-wrap policies: they choose the modules that become units.

A policy is any callable (module, recurse, nonwrapped_numel) -> bool. It is called twice for a
module: with recurse=True it returns True if the children are to be visited; with recurse=False,
after the children, True if the module itself becomes a unit. `nonwrapped_numel` counts the
parameter elements that no child unit has taken. Bind a policy's own arguments with
`functools.partial`. Each function that takes a policy also takes a set of module classes, torch's
`ModuleWrapPolicy` and `CustomPolicy`, and the result of `policy_from_config`. Source:
`torch.distributed.fsdp.wrap`, `torch_xla.distributed.fsdp.wrap`.
"""

# Why policies see modules and sizes alone: which modules become units must be the same on a machine
# without devices, where a plan is made, and under torch's own FSDP, whose policies are the same
# functions.

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TypeVar

from torch import nn

from spmd.mesh.notes import ends_at_user_line

Policy = Callable[[nn.Module, bool, int], bool]
AnyPolicy = Any  # a Policy, classes, or an object with torch's `_run_policy`
Overrides = Mapping[nn.Module, dict[str, Any]]
_CLASSES = set, frozenset, list, tuple  # of module classes


F = TypeVar("F", bound=Callable[..., bool])


def _policy(function: F) -> F:
    """Decorates a policy: a call without a module, or without its own arguments, says how they are
    bound."""
    signature = inspect.signature(function)
    name, own = function.__name__, [*signature.parameters][3:4]

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> bool:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            bound = f"functools.partial({name}, {own[0]}=...)" if own else name
            raise TypeError(
                f"{name}: {error}; FSDP calls a policy with each module: write "
                f"auto_wrap_policy={bound}"
            ) from None
        return function(*args, **kwargs)

    return ends_at_user_line(call)  # type: ignore[return-value]


@_policy
def always_wrap_policy(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """Returns True: every module becomes a unit.

    >>> always_wrap_policy(nn.Linear(2, 2), False, 6)
    True
    """
    return True


@_policy
def lambda_auto_wrap_policy(
    module: nn.Module, recurse: bool, nonwrapped_numel: int, lambda_fn: Callable[[nn.Module], bool]
) -> bool:
    """Returns True for the modules for which `lambda_fn(module)` is true.

    >>> lambda_auto_wrap_policy(
    ...     nn.Linear(2, 2), False, 6, lambda_fn=lambda module: isinstance(module, nn.Linear)
    ... )
    True
    """
    return recurse or bool(lambda_fn(module))


@_policy
def transformer_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    nonwrapped_numel: int,
    transformer_layer_cls: Iterable[type[nn.Module]],
) -> bool:
    """Returns True for the modules of the given layer classes.

    >>> transformer_auto_wrap_policy(nn.Linear(2, 2), False, 6, transformer_layer_cls={nn.Linear})
    True
    """
    _refuse_class("transformer_auto_wrap_policy", transformer_layer_cls)
    classes = tuple(transformer_layer_cls)
    if not classes or not all(isinstance(cls, type) for cls in classes):
        raise TypeError(
            "transformer_auto_wrap_policy: transformer_layer_cls must be a set of module classes, "
            f"got {classes!r}"
        )
    return recurse or isinstance(module, classes)


@_policy
def size_based_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    nonwrapped_numel: int,
    min_num_params: int = int(1e8),
    force_leaf_modules: set[type[nn.Module]] | None = None,
    exclude_wrap_modules: set[type[nn.Module]] | None = None,
) -> bool:
    """Returns True for a module with at least `min_num_params` parameter elements that no child
    unit has taken.

    Children of `force_leaf_modules` (default: `nn.MultiheadAttention`) are not visited; modules of
    `exclude_wrap_modules` (default: `nn.ModuleList`, `nn.ModuleDict`, which have no forward) never
    become units.

    >>> size_based_auto_wrap_policy(nn.Linear(2, 2), False, 6, min_num_params=5)
    True
    """
    opaque = FORCE_LEAF_MODULES if force_leaf_modules is None else force_leaf_modules
    excluded = EXCLUDE_WRAP_MODULES if exclude_wrap_modules is None else exclude_wrap_modules
    return nonwrapped_numel >= min_num_params and not isinstance(
        module, tuple(opaque if recurse else excluded)
    )


FORCE_LEAF_MODULES: set[type[nn.Module]] = {nn.MultiheadAttention}
EXCLUDE_WRAP_MODULES: set[type[nn.Module]] = {nn.ModuleList, nn.ModuleDict}
# torch has them as attributes of the function, too.
_OF_TORCH = {"FORCE_LEAF_MODULES": FORCE_LEAF_MODULES, "EXCLUDE_WRAP_MODULES": EXCLUDE_WRAP_MODULES}
vars(size_based_auto_wrap_policy).update(_OF_TORCH)


@_policy
def or_policy(
    module: nn.Module, recurse: bool, nonwrapped_numel: int, policies: Iterable[AnyPolicy]
) -> bool:
    """Returns True for the modules that any of several policies chooses.

    >>> linear = partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear})
    >>> or_policy(nn.Conv2d(1, 1, 1), False, 2, policies=[linear, {nn.Conv2d}])
    True
    """
    return any(_callable(policy)(module, recurse, nonwrapped_numel) for policy in policies)


def resolve(
    policy: AnyPolicy, root: nn.Module, ignored: Collection[nn.Module]
) -> tuple[Policy, Overrides]:
    """Returns a user's policy as a callable, with the keywords that it overrides for single
    modules.

    Raises TypeError for anything else.
    """
    if not hasattr(policy, "_run_policy"):
        return _callable(policy), {}
    # torch's ModuleWrapPolicy and CustomPolicy choose for a whole model at once, with overrides for
    # single modules.
    module_kwargs = policy._run_policy(root, set(ignored), {})

    def is_chosen(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        return recurse or module in module_kwargs

    return is_chosen, module_kwargs


def refuse_absent(policy: AnyPolicy, root: nn.Module) -> None:
    """Raises ValueError if a model has no module of a policy's classes: only the root would be a
    unit."""
    if isinstance(policy, partial) and policy.func is transformer_auto_wrap_policy:
        layer_classes = policy.keywords.get("transformer_layer_cls", ())
        # the policy's own error says it
        layer_classes = () if isinstance(layer_classes, type) else layer_classes
    else:
        layer_classes = (
            policy if isinstance(policy, _CLASSES) else getattr(policy, "_module_classes", ())
        )
    classes = tuple(kind for kind in layer_classes if isinstance(kind, type))
    if classes and not any(isinstance(module, classes) for module in root.modules()):
        names = ", ".join(sorted(kind.__name__ for kind in classes))
        present = ", ".join(sorted({type(module).__name__ for module in root.modules()}))
        raise ValueError(
            f"auto_wrap_policy: no module of the class(es) {names} in {type(root).__name__}; its "
            f"classes are {present}"
        )


def _refuse_class(caller: str, classes: object) -> None:
    if isinstance(classes, type):
        name = classes.__name__
        raise TypeError(f"{caller}: expected a set of classes, got {name}: write {{{name}}}")


def _callable(policy: AnyPolicy) -> Policy:
    """A user's policy as a function; module classes become `transformer_auto_wrap_policy`."""
    if isinstance(policy, _CLASSES):
        return partial(transformer_auto_wrap_policy, transformer_layer_cls=policy)
    _refuse_class("auto_wrap_policy", policy)
    if not callable(policy) or isinstance(policy, nn.Module):
        raise TypeError(
            "auto_wrap_policy: expected a function (module, recurse, nonwrapped_numel) -> bool, a "
            f"set of module classes or a policy of torch.distributed.fsdp.wrap, got {policy!r}; "
            "inside or_policy each must be a function or a set of classes"
        )
    function: Policy = policy
    return function


@dataclass(frozen=True)
class ClassNamePolicy:
    """A policy that chooses the modules whose class has one of the given names. Like torch's
    `ModuleWrapPolicy` it is applied to a whole model; it raises ValueError for a name that no
    module's class has."""

    names: tuple[str, ...]

    def _run_policy(
        self,
        root_module: nn.Module,
        ignored_modules: set[nn.Module],
        root_kwargs: dict[str, object],
    ) -> dict[nn.Module, dict[str, object]]:
        """The chosen modules of a model, each with the keywords of the root (torch's protocol of
        policies)."""
        classes = {type(module).__name__ for module in root_module.modules()}
        missing = [name for name in self.names if name not in classes]
        if missing:
            raise ValueError(
                f"transformer_layer_cls_to_wrap: no module of the class(es) {', '.join(missing)} "
                f"in {type(root_module).__name__}; its classes are {', '.join(sorted(classes))}"
            )
        modules = [module for module in root_module.modules() if module not in ignored_modules]
        return {
            module: dict(root_kwargs) for module in modules if type(module).__name__ in self.names
        }


_LAYERS = ("transformer_layer_cls_to_wrap", "fsdp_transformer_layer_cls_to_wrap")
_LEAST = ("min_num_params", "fsdp_min_num_params")


@ends_at_user_line
def policy_from_config(config: Mapping[str, Any]) -> AnyPolicy | None:
    """Returns the policy that a Hugging Face `fsdp_config` describes, or None where it describes
    none.

    It reads the keys `transformer_layer_cls_to_wrap` (names of classes: a list, or text with
    commas) and `min_num_params`, each also with the prefix `fsdp_`, and ignores all others. Raises
    ValueError where both are given, and for a key that is nearly one of these.

    >>> policy_from_config({"fsdp_transformer_layer_cls_to_wrap": "GPT2Block"})
    ClassNamePolicy(names=('GPT2Block',))
    """
    # A misspelt key would be ignored in silence, and the model trained as one unit.
    for key in config:
        close = difflib.get_close_matches(key, (*_LAYERS, *_LEAST), n=1, cutoff=0.8)
        if close and key not in (*_LAYERS, *_LEAST):
            raise ValueError(f"policy_from_config: got the key {key!r}; did you mean {close[0]!r}?")
    layers, least = (next(filter(None, map(config.get, keys)), None) for keys in (_LAYERS, _LEAST))
    if layers and least:
        raise ValueError(
            f"policy_from_config: expected either {_LAYERS[0]} or {_LEAST[0]}, got {layers!r} and "
            f"{least!r}"
        )
    if layers:
        names = layers.split(",") if isinstance(layers, str) else layers
        return ClassNamePolicy(tuple(name.strip() for name in names))
    return partial(size_based_auto_wrap_policy, min_num_params=least) if least else None
