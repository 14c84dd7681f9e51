"""What a table of rules does to a module: marks now or on arrival, hooks on activations, FSDP's units."""

import dataclasses
import difflib
import importlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from ..annotate import laid, mark_sharding
from ..core.backend.modules import ARRIVED, WAITING
from ..core.lazy.tensor import XlaTensor
from ..core.sharding.value import Sharding
from ..global_mesh import needed_mesh
from ..mesh import Mesh
from ..partition_spec import PartitionSpec
from .patterns import Site, matches


class Rules(Protocol):
    """What is asked of a table here (`ShardingRules`, which stands above)."""

    units: Any
    checkpoint: tuple[str, ...]

    def of_parameters(self) -> list[tuple[str, PartitionSpec]]: ...
    def of_activations(self) -> list[tuple[str, Site, PartitionSpec]]: ...


class Applied:
    """The handle on rules that were applied. `tensors`: path -> pattern of its rule; `sites`: module path -> patterns.

    `remove()` takes the hooks away and forgets what was yet to be laid out; tensors stay as they lie, and FSDP's units
    stay units.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, str] = {}
        self.sites: dict[str, list[str]] = {}
        self._hooks: list[Any] = []
        self._arrivals: list[tuple[nn.Module, _Arrived]] = []

    def remove(self) -> None:
        """Takes the hooks away."""
        for hook in self._hooks:
            hook.remove()
        for module, arrived in self._arrivals:
            if module.__dict__.get(ARRIVED) is arrived:
                del module.__dict__[ARRIVED]
        self._hooks, self._arrivals = [], []

    def __enter__(self) -> "Applied":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def apply(rules: Rules, model: nn.Module, mesh: Mesh | None, *, strict: bool, how: Mapping[str, Any]) -> Applied:
    """See `ShardingRules.apply`."""
    mesh = needed_mesh("ShardingRules.apply") if mesh is None else mesh
    _check(rules, model, mesh, how)
    applied = Applied()
    specs = _specs(rules, model, mesh, applied)
    sites = _sites(rules, model, mesh, applied)
    modules = _modules(model)
    if strict:
        _refuse_idle(rules, applied, specs, modules)
    for path, own in _by_module(specs).items():
        arrived = _Arrived(mesh, own, modules[path])
        modules[path].__dict__[ARRIVED] = arrived
        applied._arrivals.append((modules[path], arrived))
        arrived.mark(modules[path])
    if rules.checkpoint:
        _checkpoint(rules.checkpoint, modules)
    if rules.units is not None:
        _gather(rules, model, mesh, how, specs)
    elif any(isinstance(tensor, XlaTensor) for _, tensor in _tensors_of(model)):
        moved(model)  # modules that split their parameters further do so again
    for module, site, spec in sites:
        applied._hooks.append(_hooked(module, site, spec, mesh))
    return applied


def _check(rules: Rules, model: Any, mesh: Any, how: Mapping[str, Any]) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"ShardingRules.apply: expected a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(mesh, Mesh):
        raise TypeError(f"ShardingRules.apply: expected a spmd.Mesh, got {type(mesh).__name__}")
    if how and rules.units is None:
        raise TypeError(
            f"ShardingRules.apply: got {', '.join(how)}, which fsdp takes, but the table has no units; "
            "give it some: ShardingRules(..., units=['layers.*'])"
        )


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    """Every module by the path that the model's own parameters have: what wraps one `module` and names its parameters
    as that does has no part in it."""
    names = {path for path, _ in _tensors_of(model)}
    inner = model._modules.get("module")
    is_wrapper = inner is not None and names and not any(name.startswith("module.") for name in names)
    return dict((inner if is_wrapper else model).named_modules())  # type: ignore[union-attr]


def moved(model: nn.Module) -> None:
    """Has the modules of a model lay out what stands on the device, as they do at the end of any move to it."""
    model._apply(_same)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _tensors_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by every name that they have."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _specs(rules: Rules, model: nn.Module, mesh: Mesh, applied: Applied) -> dict[str, PartitionSpec]:
    """Path -> spec, checked against the mesh and the tensor's rank. A tied tensor has one."""
    table = rules.of_parameters()
    first: dict[int, tuple[str, PartitionSpec]] = {}
    found: dict[str, PartitionSpec] = {}
    for path, tensor in _tensors_of(model):
        pattern, said = next(((pattern, spec) for pattern, spec in table if matches(pattern, path)), ("", None))
        if said is None:
            continue
        spec = fitted(said, tensor.dim(), mesh, f"the rule {pattern!r} for {path} of shape {tuple(tensor.shape)}")
        before, other = first.setdefault(id(tensor), (path, spec))
        if other != spec:
            raise ValueError(
                f"ShardingRules: {before} and {path} are one tensor (tied), which one rule lays out as {other!r} and "
                f"another as {spec!r}; have both say the same"
            )
        found[path], applied.tensors[path] = spec, pattern
    return found


def fitted(spec: PartitionSpec, rank: int, mesh: Mesh, what: str) -> PartitionSpec:
    """A rule's spec for a tensor of this rank. Raises ValueError where it does not fit it, or the mesh."""
    full = spec or PartitionSpec(*[None] * rank)
    mesh.sharding(full, rank, f"ShardingRules: {what}")
    return full


def _sites(rules: Rules, model: nn.Module, mesh: Mesh, applied: Applied) -> list[tuple[nn.Module, Site, PartitionSpec]]:
    """The modules that hooks go on; for each side of a module the first rule of each part counts."""
    table = rules.of_activations()
    for pattern, _, spec in table:
        mesh.sharding(spec, len(spec), f"ShardingRules: the rule {pattern!r}")
    found = []
    for path, module in _modules(model).items():
        taken = set()
        for pattern, site, spec in table:
            part = site.side, site.at, None if site.at else len(spec)
            if matches(site.path, path) and part not in taken:
                taken.add(part)
                found.append((module, site._replace(path=path), spec))
                applied.sites.setdefault(path, []).append(pattern)
    return found


def _refuse_idle(rules: Rules, applied: Applied, specs: Mapping[str, Any], modules: Mapping[str, nn.Module]) -> None:
    """Raises ValueError for a rule that is of nothing in the model, whether or not others stand in front of it."""
    paths = [path for path, _ in _tensors_of(modules[""])]
    for pattern, _ in rules.of_parameters():
        if not any(matches(pattern, path) for path in paths):
            raise ValueError(_nowhere(pattern, pattern, paths, "parameter or buffer"))
    units = () if rules.units is None else rules.units.modules
    sites = [(pattern, site.path) for pattern, site, _ in rules.of_activations()]
    for pattern, path in [*sites, *((one, one) for one in (*rules.checkpoint, *units))]:
        if not any(matches(path, module) for module in modules):
            raise ValueError(_nowhere(pattern, path, modules, "module"))


def _nowhere(pattern: str, path: str, paths: Iterable[str], what: str) -> str:
    near = difflib.get_close_matches(path, paths, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return (
        f"ShardingRules.apply: the rule {pattern!r} matches no {what} of the model; {hint}"
        "strict=False lets a table have rules for other models"
    )


def _by_module(specs: Mapping[str, PartitionSpec]) -> dict[str, dict[str, PartitionSpec]]:
    found: dict[str, dict[str, PartitionSpec]] = {}
    for path, spec in specs.items():
        module, _, name = path.rpartition(".")
        found.setdefault(module, {})[name] = spec
    return found


class _Arrived:
    """Lays out a module's own tensors, those that are on the device by now; the module keeps it, and copies have it."""

    def __init__(self, mesh: Mesh, specs: dict[str, PartitionSpec], module: nn.Module | None):
        self.mesh, self.specs = mesh, specs
        self._module = None if module is None else weakref.ref(module)  # None: of a file, until it moves
        WAITING.add(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Arrived":
        return _Arrived(self.mesh, self.specs, None if self._module is None else memo.get(id(self._module())))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Arrived, (self.mesh, self.specs, None)

    def __call__(self, module: nn.Module) -> None:
        """Marks what has come without a mark. What has one keeps it: FSDP adds an axis to what the rules say, and a
        user's later mark counts."""
        self._mark(module, lambda tensor: tensor._cell.sharding is None)

    def mark(self, module: nn.Module) -> None:
        """Marks everything that is on the device."""
        self._mark(module, lambda tensor: True)

    def _mark(self, module: nn.Module, wanted: Callable[[XlaTensor], bool]) -> None:
        self._module = weakref.ref(module)
        for name, spec in self.specs.items():
            tensor = _held(module, name)
            if isinstance(tensor, XlaTensor) and wanted(tensor):
                mark_sharding(tensor, self.mesh, spec)

    def to_come(self, tensor: torch.Tensor) -> Sharding | None:
        """How a tensor of the module will lie, and None of any other."""
        module = None if self._module is None else self._module()
        if module is None or module.__dict__.get(ARRIVED) is not self:
            return None
        spec = next((spec for name, spec in self.specs.items() if _held(module, name) is tensor), None)
        return None if spec is None else self.mesh.sharding(spec, tensor.dim(), "ShardingRules")


def _held(module: nn.Module, name: str) -> torch.Tensor | None:
    return module._parameters.get(name, module._buffers.get(name))


# --- activations ------------------------------------------------------------------------------------------------------


def _hooked(module: nn.Module, site: Site, spec: PartitionSpec, mesh: Mesh) -> Any:
    hook = _Laid(site, spec, mesh)
    if site.side == "input":
        return module.register_forward_pre_hook(hook.before, with_kwargs=True)
    return module.register_forward_hook(hook.after)


class _Laid:
    """The hook at one site."""

    def __init__(self, site: Site, spec: PartitionSpec, mesh: Mesh):
        self.site, self.spec, self.mesh = site, spec, mesh
        self.caller = f"the rule of {site}"

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        at = self.site.at
        part = (args, kwargs) if not at else _at(kwargs if isinstance(at[0], str) else args, at, self.site)
        return _replaced((args, kwargs), self._laid(part))

    def after(self, module: nn.Module, args: Any, output: Any) -> Any:
        return _replaced(output, self._laid(_at(output, self.site.at, self.site)))

    def _laid(self, value: Any) -> dict[int, torch.Tensor]:
        """What takes the place of each tensor, by its id: who reads it elsewhere reads it as it was."""
        found = tensors(value)
        if self.site.at:
            specs = [fitted(self.spec, tensor.dim(), self.mesh, self.caller) for tensor in found]
            return {id(one): self._as(one, spec) for one, spec in zip(found, specs, strict=True)}
        fitting = [tensor for tensor in found if not self.spec or tensor.dim() == len(self.spec)]
        if found and not fitting:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in found)
            raise ValueError(
                f"ShardingRules: the rule of {self.site} is of tensors with {len(self.spec)} dims ({self.spec!r}), and "
                f"what passes there has shape {shapes}"
            )
        return {id(tensor): self._as(tensor, self.spec or [None] * tensor.dim()) for tensor in fitting}

    def _as(self, tensor: torch.Tensor, spec: Any) -> torch.Tensor:
        return laid(tensor, self.mesh.sharding(spec, tensor.dim(), self.caller))


def _replaced(value: Any, made: Mapping[int, torch.Tensor]) -> Any:
    """The same form, with what was made for each tensor; where nothing was, the same object."""
    return tree_map(partial(_one_replaced, made), value) if made else value


def _one_replaced(made: Mapping[int, torch.Tensor], leaf: Any) -> Any:
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        parts = {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf) if field.init}
        return dataclasses.replace(leaf, **{name: _replaced(part, made) for name, part in parts.items()})
    return made.get(id(leaf), leaf)


def _at(value: Any, steps: tuple[int | str, ...], site: Site) -> Any:
    for step in steps:
        try:
            value = value[step] if isinstance(step, int) or isinstance(value, Mapping) else getattr(value, step)
        except (IndexError, KeyError, AttributeError, TypeError):
            has = ", ".join(map(str, value)) if isinstance(value, Mapping) else f"a {type(value).__name__}"
            raise ValueError(f"ShardingRules: the rule of {site} finds no [{step}] there, which is {has}") from None
    return value


def tensors(value: Any) -> list[XlaTensor]:
    """Every tensor of the device in a value: a tensor, tuple, dict, dataclass, nested."""
    found: list[XlaTensor] = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, XlaTensor):
            found.append(leaf)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            found += tensors([getattr(leaf, field.name) for field in dataclasses.fields(leaf)])
    return found


# --- units and checkpoints --------------------------------------------------------------------------------------------


def _checkpoint(patterns: tuple[str, ...], modules: Mapping[str, nn.Module]) -> None:
    for path, module in modules.items():
        if any(matches(pattern, path) for pattern in patterns):
            _fsdp().checkpoint_module(module)


class _Chosen:
    """An auto-wrap policy, of the modules that patterns name."""

    def __init__(self, patterns: tuple[str, ...]):
        self.patterns = patterns

    def _run_policy(self, root_module: nn.Module, ignored_modules: Any, root_kwargs: dict[str, Any]) -> Any:
        return {
            module: dict(root_kwargs)
            for path, module in root_module.named_modules()
            if any(matches(pattern, path) for pattern in self.patterns) and module not in ignored_modules
        }


def _gather(
    rules: Rules, model: nn.Module, mesh: Mesh, how: Mapping[str, Any], specs: Mapping[str, PartitionSpec]
) -> None:
    """Makes units of modules, in place. A spec that names the axis of the units is taken as it is."""
    units = rules.units
    named = {id(tensor): specs[path] for path, tensor in _tensors_of(model) if _has(specs.get(path), units.shard_axis)}
    keywords: dict[str, Any] = {
        "shard_axis": units.shard_axis,
        "extra_data_axis": units.extra_data_axis,
        "reshard_after_forward": units.reshard_after_forward,
        "shard_placement_fn": lambda parameter: named.get(id(parameter)),
    }
    # The wrapper itself is let go: all that it does to a model are hooks, which stay.
    _fsdp().FullyShardedDataParallel(model, mesh, auto_wrap_policy=_Chosen(units.modules), **keywords | dict(how))


def _fsdp() -> Any:
    """It stands on this package: asked for by name, and only where a table has units or checkpoints."""
    return importlib.import_module("fsdp")


def _has(spec: PartitionSpec | None, axis: str) -> bool:
    return spec is not None and any(axis in (entry if isinstance(entry, tuple) else (entry,)) for entry in spec)
