"""Application of sharding rules to a module: annotations now or on arrival, hooks on activations,
FSDP's units."""

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from ..core import Sharding, XlaTensor, config, ends_at_user_line, module_moves, storage_of
from ..mesh.global_mesh import needed_mesh
from ..mesh.hints import did_you_mean, kind_of
from ..mesh.mesh import Mesh
from ..mesh.partition_spec import PartitionSpec
from ..tensors.annotate import CHECKS, marked, resharded
from ..tensors.structures import leaves, map_tensors
from .patterns import HookSite, matches


class Table(Protocol):
    """The interface of a table of rules (`ShardingRules`, which imports this file)."""

    units: Any
    checkpoint: dict[str, str]

    def of_parameters(self) -> list[tuple[str, PartitionSpec]]: ...
    def of_activations(self) -> list[tuple[str, HookSite, PartitionSpec]]: ...


class Applied:
    """The handle on rules that were applied. `tensors`: path -> pattern of its rule; `sites`:
    module path -> patterns.

    `remove()` removes the hooks and the annotations of tensors that have not arrived on the device;
    tensors keep their shardings, and FSDP's units stay units.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, str] = {}
        self.sites: dict[str, list[str]] = {}
        self._hooks: list[Any] = []
        self._arrivals: list[tuple[nn.Module, _Arrived]] = []

    def remove(self) -> None:
        """Removes the hooks."""
        for hook in self._hooks:
            hook.remove()
        for module, arrived in self._arrivals:
            if module.__dict__.get(module_moves.ARRIVED) is arrived:
                del module.__dict__[module_moves.ARRIVED]
        self._hooks, self._arrivals = [], []

    def __enter__(self) -> "Applied":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def apply(
    rules: Table, model: nn.Module, mesh: Mesh | None, *, strict: bool, how: Mapping[str, Any]
) -> Applied:
    """See `ShardingRules.apply`."""
    mesh = needed_mesh("ShardingRules.apply") if mesh is None else mesh
    _check(rules, model, mesh, how)
    applied = Applied()
    specs = _specs(rules, model, mesh, applied)
    sites = _sites(rules, model, mesh, applied)
    modules = _modules(model)
    if strict:
        _refuse_idle(rules, applied, specs, modules)
    stage = _stage(rules, mesh)
    for path, module_specs in _by_module(specs).items():
        arrived = _Arrived(
            mesh, module_specs, modules[path], stage if _is_in_unit(rules, path) else ()
        )
        modules[path].__dict__[module_moves.ARRIVED] = arrived
        applied._arrivals.append((modules[path], arrived))
        arrived.mark(modules[path])
    if rules.checkpoint:
        _checkpoint(rules.checkpoint, modules)
    if rules.units is not None and (not stage or rules.units.shard_axis in mesh.axes):
        _gather(rules, model, mesh, how, specs)
    elif any(isinstance(tensor, XlaTensor) for _, tensor in _tensors_of(model)):
        moved(model)  # modules that shard their parameters further do so again
        _check_kept(model, mesh, applied)
    for module, site, spec in sites:
        applied._hooks.append(_Sharded(site, spec, mesh).hook(module))
    return applied


def _check(rules: Table, model: Any, mesh: Any, how: Mapping[str, Any]) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"ShardingRules.apply: expected a torch.nn.Module, got {kind_of(model)}; the order is "
            "apply(model, mesh)"
        )
    if not isinstance(mesh, Mesh):
        raise TypeError(f"ShardingRules.apply: expected a spmd.Mesh, got {type(mesh).__name__}")
    if how and rules.units is None:
        raise TypeError(
            f"ShardingRules.apply: got {', '.join(how)}, which fsdp takes, but the table has no "
            "units; add them: ShardingRules(..., units=['layers.*'])"
        )


def _stage(rules: Table, mesh: Mesh) -> tuple[str, ...]:
    """The axis over which the units of a table are split, of a pipeline; none without one.

    Raises ValueError where it is not in the mesh.
    """
    units = rules.units
    if units is None or units.stages is None:
        return ()
    if units.stages not in mesh.axes:
        raise ValueError(
            f"ShardingRules: stages={units.stages!r} is not in the mesh (axes: "
            f"{', '.join(mesh.axes)}){did_you_mean(units.stages, mesh.axes)}"
        )
    if units.micro_batches is not None:
        config.micro_batches = units.micro_batches
    return (units.stages,)


def _of_root(rules: Table, tensor: torch.Tensor, mesh: Mesh) -> PartitionSpec | None:
    """The spec of a matrix outside of the layers of a pipeline, such as an embedding's: over stages
    and the axis of FSDP, as the batch is there; None where they do not divide it."""
    sizes, axes = mesh.shape(), (rules.units.stages, rules.units.shard_axis)
    if tensor.dim() < 2 or axes[1] not in sizes:
        return None
    is_even = tensor.shape[0] % math.prod(sizes[axis] for axis in axes) == 0
    return PartitionSpec(axes, *[None] * (tensor.dim() - 1)) if is_even else None


def _is_in_unit(rules: Table, path: str) -> bool:
    """True for the path of a unit, and of what is in it."""
    parts = path.split(".")
    paths = [".".join(parts[: count + 1]) for count in range(len(parts))]
    patterns = () if rules.units is None else rules.units.modules
    return any(matches(pattern, prefix) for pattern in patterns for prefix in paths)


def _check_kept(model: nn.Module, mesh: Mesh, applied: Applied) -> None:
    """Raises ValueError where the units of a model, over another mesh, have sharded a tensor
    again."""
    for path, tensor in _tensors_of(model):
        sharding = (
            storage_of(tensor).sharding
            if path in applied.tensors and isinstance(tensor, XlaTensor)
            else None
        )
        if sharding is not None and sharding.mesh_axes() != mesh.shape():
            applied.remove()
            raise ValueError(
                "ShardingRules.apply: FSDP has wrapped the model over the mesh "
                f"{dict(sharding.mesh_axes())} and shards {path} again, but the rules are over "
                f"{dict(mesh.shape())}: use one mesh with the axes of both"
            )


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    """Every module by its path in parameter names: a wrapper of one `module` that keeps the names
    is left out."""
    names = {path for path, _ in _tensors_of(model)}
    inner = model._modules.get("module")
    is_wrapper = (
        inner is not None and names and not any(name.startswith("module.") for name in names)
    )
    return dict((inner if is_wrapper else model).named_modules())  # type: ignore[union-attr]


def moved(model: nn.Module) -> None:
    """Makes the modules of a model shard their tensors on the device, as they do at the end of any
    move to it."""
    model._apply(lambda tensor: tensor)


def _tensors_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by all their names."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _specs(
    rules: Table, model: nn.Module, mesh: Mesh, applied: Applied
) -> dict[str, PartitionSpec]:
    """Path -> spec, checked against the mesh and the tensor's rank; the same for all paths of a
    tied tensor."""
    table = rules.of_parameters()
    first: dict[int, tuple[str, PartitionSpec]] = {}
    specs: dict[str, PartitionSpec] = {}
    stages = rules.units is not None and rules.units.stages
    outside: tuple[tuple[str, nn.Parameter], ...] = ()
    for path, tensor in _tensors_of(model):
        pattern, rule_spec = next(
            ((pattern, spec) for pattern, spec in table if matches(pattern, path)), ("", None)
        )
        if rule_spec is None and stages and isinstance(tensor, nn.Parameter):
            in_layer = _is_in_unit(rules, path.rpartition(".")[0])
            # every parameter of a layer lies on the layer's stage
            rule_spec = PartitionSpec(*[None] * tensor.dim()) if in_layer else None
            outside += () if in_layer else ((path, tensor),)
        if rule_spec is None:
            continue
        spec = fitted(
            rule_spec,
            tensor.dim(),
            mesh,
            f"the rule {pattern!r} for {path} of shape {tuple(tensor.shape)}",
        )
        first_path, first_spec = first.setdefault(id(tensor), (path, spec))
        if first_spec != spec:
            raise ValueError(
                f"ShardingRules: {first_path} and {path} are one tensor (tied), which one rule "
                f"shards as {first_spec!r} and another as {spec!r}; give both the same spec"
            )
        specs[path], applied.tensors[path] = spec, pattern
    # A tied tensor keeps the rule of another of its names.
    of_root = {
        path: _of_root(rules, tensor, mesh) for path, tensor in outside if id(tensor) not in first
    }
    return specs | {path: spec for path, spec in of_root.items() if spec is not None}


def fitted(spec: PartitionSpec, rank: int, mesh: Mesh, label: str) -> PartitionSpec:
    """A rule's spec for a tensor of this rank.

    Raises ValueError where it does not fit the rank or the mesh.
    """
    full = spec or PartitionSpec(*[None] * rank)
    mesh.sharding(full, rank, f"ShardingRules: {label}")
    return full


def _sites(
    rules: Table, model: nn.Module, mesh: Mesh, applied: Applied
) -> list[tuple[nn.Module, HookSite, PartitionSpec]]:
    """The modules that get hooks; for each side of a module the first rule of each part counts."""
    table = rules.of_activations()
    for pattern, _, spec in table:
        mesh.sharding(spec, len(spec), f"ShardingRules: the rule {pattern!r}")
    sites = []
    for path, module in _modules(model).items():
        parts = set()
        for pattern, site, spec in table:
            part = site.part(spec)
            if matches(site.path, path) and part not in parts:
                parts.add(part)
                sites.append((module, site._replace(path=path), spec))
                applied.sites.setdefault(path, []).append(pattern)
    return sites


def _refuse_idle(
    rules: Table, applied: Applied, specs: Mapping[str, Any], modules: Mapping[str, nn.Module]
) -> None:
    """Raises ValueError for a rule that matches nothing in the model; rules shadowed by earlier
    ones are accepted."""
    paths = [path for path, _ in _tensors_of(modules[""])]
    for pattern, _ in rules.of_parameters():
        if not any(matches(pattern, path) for path in paths):
            raise ValueError(_nowhere(pattern, pattern, paths, "parameter or buffer"))
    units = () if rules.units is None else rules.units.modules
    sites = [(pattern, site.path) for pattern, site, _ in rules.of_activations()]
    for pattern, path in [
        *sites,
        *((module_pattern, module_pattern) for module_pattern in (*rules.checkpoint, *units)),
    ]:
        if not any(matches(path, module) for module in modules):
            raise ValueError(_nowhere(pattern, path, modules, "module"))


def _nowhere(pattern: str, path: str, paths: Iterable[str], kind: str) -> str:
    return (
        f"ShardingRules.apply: the rule {pattern!r} matches no {kind} of the model; "
        f"{did_you_mean(path, paths, '{} ', cutoff=0.4)}strict=False accepts rules for other models"
    )


def _by_module(specs: Mapping[str, PartitionSpec]) -> dict[str, dict[str, PartitionSpec]]:
    by_module: dict[str, dict[str, PartitionSpec]] = {}
    for path, spec in specs.items():
        module, _, name = path.rpartition(".")
        by_module.setdefault(module, {})[name] = spec
    return by_module


class _Arrived:
    """Annotates a module's own tensors that are on the device by now; an attribute of the module,
    copied with it."""

    def __init__(
        self,
        mesh: Mesh,
        specs: dict[str, PartitionSpec],
        module: nn.Module | None,
        stage: tuple[str, ...] = (),
    ):
        self.mesh, self.specs, self.stage = mesh, specs, stage
        # None: of a file, until it moves
        self._module = None if module is None else weakref.ref(module)
        module_moves.WAITING.add(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Arrived":
        module = None if self._module is None else memo.get(id(self._module()))
        return _Arrived(self.mesh, self.specs, module, self.stage)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Arrived, (self.mesh, self.specs, None, self.stage)

    def __call__(self, module: nn.Module) -> None:
        """Annotates tensors without an annotation. The others keep theirs: FSDP adds an axis to the
        rules' specs, and a user's later annotation counts."""
        self.mark(module, replaces=False)

    def mark(self, module: nn.Module, *, replaces: bool = True) -> None:
        """Annotates the module's tensors that are on the device. replaces: also those with an
        annotation."""
        self._module = weakref.ref(module)
        for name, spec in self.specs.items():
            tensor = _held(module, name)
            if isinstance(tensor, XlaTensor) and (replaces or storage_of(tensor).sharding is None):
                marked(tensor, self._sharding(spec, tensor))

    def _sharding(self, spec: PartitionSpec, tensor: torch.Tensor) -> Sharding:
        """The sharding of a tensor by its spec; on the layer's stage, for one of a pipeline."""
        sharding = self.mesh.sharding(spec, tensor.dim(), "ShardingRules")
        if not self.stage or not isinstance(tensor, nn.Parameter):
            return sharding
        return sharding.with_spec(sharding.spec._replace(stack=self.stage))

    def future_sharding(self, tensor: torch.Tensor) -> Sharding | None:
        """The future sharding of a tensor of the module; None for another tensor."""
        module = None if self._module is None else self._module()
        if module is None or module.__dict__.get(module_moves.ARRIVED) is not self:
            return None
        spec = next(
            (spec for name, spec in self.specs.items() if _held(module, name) is tensor), None
        )
        return None if spec is None else self._sharding(spec, tensor)


def _held(module: nn.Module, name: str) -> torch.Tensor | None:
    return module._parameters.get(name, module._buffers.get(name))


# --- activations ----------------------------------------------------------------------------------


class _Sharded:
    """The resharding at one site; `hook` makes a module call it."""

    def __init__(self, site: HookSite, spec: PartitionSpec, mesh: Mesh):
        self.site, self.spec, self.mesh = site, spec, mesh
        self.caller = f"the rule of {site}"

    def hook(self, module: nn.Module) -> Any:
        if self.site.side == "input":
            return module.register_forward_pre_hook(self.before, with_kwargs=True)
        return module.register_forward_hook(self.after)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key_path = self.site.key_path
        part = (
            (args, kwargs)
            if not key_path
            else _at(kwargs if isinstance(key_path[0], str) else args, key_path, self.site)
        )
        return _replaced((args, kwargs), self._resharded(part))

    def after(self, module: nn.Module, args: Any, output: Any) -> Any:
        return _replaced(output, self._resharded(_at(output, self.site.key_path, self.site)))

    def _resharded(self, value: Any) -> dict[int, torch.Tensor]:
        """The resharded tensor for each tensor's id; other reads of the tensor are not changed."""
        arriving = tensors(value)
        if self.site.key_path:
            specs = [fitted(self.spec, tensor.dim(), self.mesh, self.caller) for tensor in arriving]
            return {
                id(tensor): self._as(tensor, spec)
                for tensor, spec in zip(arriving, specs, strict=True)
            }
        fitting = [tensor for tensor in arriving if not self.spec or tensor.dim() == len(self.spec)]
        if arriving and not fitting:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in arriving)
            raise ValueError(
                f"ShardingRules: the rule of {self.site} is for tensors with {len(self.spec)} "
                f"dims ({self.spec!r}), but the tensors there have shape {shapes}"
            )
        return {
            id(tensor): self._as(tensor, self.spec or [None] * tensor.dim()) for tensor in fitting
        }

    def _as(self, tensor: torch.Tensor, spec: Any) -> torch.Tensor:
        # A dim of 1 is broadcast, as that of a table of positions among a layer's inputs.
        entries = [
            None if size == 1 else entry for size, entry in zip(tensor.shape, spec, strict=True)
        ]
        return resharded(tensor, self.mesh.sharding(entries, tensor.dim(), self.caller))


def _replaced(value: Any, replacements: Mapping[int, torch.Tensor]) -> Any:
    """The same structure with the replaced tensors; without replacements, the same object."""
    if not replacements:
        return value
    return map_tensors(value, lambda tensor: replacements.get(id(tensor), tensor))


def _at(value: Any, steps: tuple[int | str, ...], site: HookSite) -> Any:
    for step in steps:
        try:
            value = (
                value[step]
                if isinstance(step, int) or isinstance(value, Mapping)
                else getattr(value, step)
            )
        except (IndexError, KeyError, AttributeError, TypeError):
            has = (
                ", ".join(map(str, value))
                if isinstance(value, Mapping)
                else f"a {type(value).__name__}"
            )
            raise ValueError(
                f"ShardingRules: the rule of {site} finds no [{step}] in {has}"
            ) from None
    return value


def tensors(value: Any) -> list[XlaTensor]:
    """Every tensor on xla in a value: a tensor, tuple, dict, dataclass, nested."""
    return [part for part in leaves(value) if isinstance(part, XlaTensor)]


# --- units and checkpoints ------------------------------------------------------------------------


def _checkpoint(saved: Mapping[str, str], modules: Mapping[str, nn.Module]) -> None:
    for path, module in modules.items():
        word = next((word for pattern, word in saved.items() if matches(pattern, path)), None)
        if word is not None:
            _unit_maker().checkpoint(module, policy=word)


def _gather(
    rules: Table,
    model: nn.Module,
    mesh: Mesh,
    how: Mapping[str, Any],
    specs: Mapping[str, PartitionSpec],
) -> None:
    """Makes FSDP units of modules, in place.

    A spec that names the shard axis of the units is not changed.
    """
    units = rules.units
    named = {
        id(tensor): specs[path]
        for path, tensor in _tensors_of(model)
        if _has(specs.get(path), units.shard_axis)
    }
    unit_modules = {
        module
        for path, module in model.named_modules()
        if any(matches(pattern, path) for pattern in units.modules)
    }
    keywords: dict[str, Any] = {
        "auto_wrap_policy": lambda module, recurse, nonwrapped_numel: (
            recurse or module in unit_modules
        ),
        "shard_axis": units.shard_axis,
        "extra_data_axis": units.extra_data_axis or units.stages,
        "reshard_after_forward": units.reshard_after_forward,
        "shard_placement_fn": lambda parameter: named.get(id(parameter)),
    }
    # The wrapper itself is dropped: it only adds hooks to a model, which stay.
    _unit_maker().wrap(model, mesh, **keywords | dict(how))


class _UnitMaker(NamedTuple):
    wrap: Callable[..., Any]
    checkpoint: Callable[..., Any]


_registered: _UnitMaker | None = None


@ends_at_user_line
def register_units(
    wrap: Callable[..., Any],
    checkpoint: Callable[..., Any],
    check_mark: Callable[[torch.Tensor, Any], None] | None = None,
) -> None:
    """Registers what makes the `units` and the `checkpoint` modules of `ShardingRules`; the package
    `fsdp` does.

    Args:
        wrap: called as `wrap(model, mesh, auto_wrap_policy=..., shard_axis=...,
            extra_data_axis=..., reshard_after_forward=...,
            shard_placement_fn=...)`; makes modules of the model units, in place.
        checkpoint: called with each module whose forward is to be recomputed in the backward pass,
            and with `policy=`, the word for what is saved.
        check_mark: called before each `mark_sharding` of a tensor that is sharded, with it and the
            new sharding; may warn.

    >>> import spmd, fsdp
    >>> spmd.register_units(fsdp.FullyShardedDataParallel, fsdp.checkpoint_module)
    """
    global _registered
    CHECKS.extend(() if check_mark is None else (check_mark,))
    _registered = _UnitMaker(wrap, checkpoint)


def _unit_maker() -> _UnitMaker:
    if _registered is None:
        raise RuntimeError(
            "ShardingRules: units and checkpoint need the package fsdp: `import fsdp` before apply"
        )
    return _registered


def _has(spec: PartitionSpec | None, axis: str) -> bool:
    return spec is not None and any(
        axis in (entry if isinstance(entry, tuple) else (entry,)) for entry in spec
    )
