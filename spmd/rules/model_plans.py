"""A model's own plans, transformers' `_tp_plan`, `_ep_plan` and `_fsdp_plan`, translated into rules
and FSDP's units.

The plans name a style of local code for each module or parameter. Here the program is global, so of
a style only the sharding of its parameters is left; its collectives are the partitioner's.
transformers is not imported.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..core import warn
from ..mesh.hints import did_you_mean, kind_of
from ..mesh.partition_spec import PartitionSpec
from .patterns import matches

Axis = str | tuple[str, ...] | None
KINDS = ("tp_plan", "ep_plan", "fsdp_plan")

# Style -> the dim of a parameter that it shards, by the parameter's own name and rank; None: it is
# not sharded. A packed weight (gate and up in one) is split as one dim: the partitioner moves what
# `chunk` then takes apart.
_DIMS: dict[str, Callable[[str, int], int | None]] = {
    **dict.fromkeys(
        ("colwise", "colwise_rep", "colwise_gather_output", "packed_colwise"),
        lambda name, rank: max(rank - 2, 0),
    ),
    **dict.fromkeys(
        ("rowwise", "rowwise_rep", "rowwise_split_input"),
        lambda name, rank: None if name == "bias" else rank - 1,
    ),
    "packed_rowwise": lambda name, rank: None if rank == 1 else rank - 1,
    "embedding_rowwise": lambda name, rank: 0,
    "embedding_colwise": lambda name, rank: 1,
    "grouped_gemm": lambda name, rank: 0,
}
SEQUENCE = "sequence_parallel"
# Styles that name collectives or conversions of the local code around a module: nothing is left of
# them.
_LOCAL = frozenset(
    {
        "all_reduce",
        "ep_dispatch_experts",
        "local_params",
        "mla_kv_a_proj",
        "moe_identity_expert",
        "moe_tp_experts",
        "replicate",
        "replicated_with_grad_allreduce",
    }
)
# Other entries of a configuration: sizes, which are the mesh's here, and the ways of local code.
_SAID = (
    "tp_size",
    "ep_size",
    "pp_size",
    "fsdp_size",
    "dp_replicate_size",
    "enable_sequence_parallel",
    "enable_expert_parallel",
    "ep_implementation",
    "fsdp_cpu_offload",
    "fsdp_mixed_precision",
)
_UNITS = ("free_full_weight", "keep_full_weight")


@dataclass(frozen=True)
class ModelPlans:
    """The rules and FSDP's units of a model's plans; units: None without the axis of FSDP."""

    rules: list[tuple[str, PartitionSpec]]
    units: list[str] | None


def plans_of(
    model: Any, config: Any, *, fsdp: str | None, tensor: Axis, expert: Axis, stages: str | None
) -> ModelPlans:
    """See `ShardingRules.of`."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"ShardingRules.of: expected a torch.nn.Module, got {kind_of(model)}")
    config = (
        getattr(getattr(model, "config", None), "distributed_config", None)
        if config is None
        else config
    )
    _refuse_unmeant(config, expert, stages)
    axes = {"tp_plan": tensor, "ep_plan": expert, "fsdp_plan": fsdp}
    plans = {
        kind: _plan(kind, model, config) if axis is not None else {} for kind, axis in axes.items()
    }
    if expert is not None and not plans["ep_plan"]:
        raise ValueError(
            f"ShardingRules.of: {type(model).__name__} has no _ep_plan for expert={expert!r}; "
            "leave expert out: its _tp_plan shards the experts, if it has any"
        )
    # A module with an expert's entry, and what is below it, keeps no entry of tensor parallelism.
    is_expert = re.compile(rf"(?:{'|'.join(map(re.escape, plans['ep_plan']))})(?:\..+)?").fullmatch
    plans["tp_plan"] = {
        name: style for name, style in plans["tp_plan"].items() if not is_expert(name)
    }

    idle = _idle(model, plans)
    is_idle = all(len(names) == len(plans[kind]) for kind, names in idle.items())
    if is_idle and stages is None:
        raise ValueError(
            "ShardingRules.of: expected a model with a _tp_plan or an _fsdp_plan (transformers' "
            f"classes have them), got {type(model).__name__}, in which {_nothing(idle)}; write "
            "the rules as a table, or ask spmd.suggest"
        )
    if any(idle.values()):
        warn(
            f"ShardingRules.of({type(model).__name__}): these entries match nothing in the model: "
            f"{_listed(idle)}"
        )
    rules = [*_parameters(model, [(plans["ep_plan"], expert), (plans["tp_plan"], tensor)])]
    rules += _sequences(model, plans["ep_plan"], expert) + _sequences(
        model, plans["tp_plan"], tensor
    )
    units = None if fsdp is None else _units(model, plans["fsdp_plan"])
    return ModelPlans(rules, units if stages is None else _layers(model))


def _layers(model: nn.Module) -> list[str]:
    """The pattern of the layers that a model's `_pp_plan` splits over stages: lists of modules."""
    patterns = [
        f"{path}.{name}.*" if path else f"{name}.*"
        for path, module in model.named_modules()
        for name in _pp_plan(module)
        if isinstance(getattr(module, name, None), nn.ModuleList)
    ]
    if not patterns:
        raise ValueError(
            f"ShardingRules.of: {type(model).__name__} has no _pp_plan that names a list of "
            "layers; write the table: ShardingRules(rules, units=['model.layers.*'], stages=...)"
        )
    return patterns


def _pp_plan(module: nn.Module) -> Mapping[str, Any]:
    """The plan of stages of a module, or of its configuration."""
    of_config = getattr(getattr(module, "config", None), "base_model_pp_plan", None)
    return {**(of_config or {}), **(getattr(module, "_pp_plan", None) or {})}


# --- the plans ------------------------------------------------------------------------------------


def _plan(kind: str, model: nn.Module, config: Any) -> dict[str, str]:
    """The plan of the outermost modules that have one (an empty one, too), with what a
    configuration overrides."""
    plan: dict[str, str] = {}
    prefixes: list[str] = []
    for path, module in model.named_modules():
        entries = vars(module).get(f"_{kind}", getattr(type(module), f"_{kind}", None))
        if entries is not None and not any(path.startswith(parent) for parent in prefixes):
            prefix = f"{path}." if path else ""
            prefixes.append(prefix)
            plan |= {prefix + name: style for name, style in entries.items()}
    requested = _setting(config, kind)
    if isinstance(requested, Mapping):
        if kind == "tp_plan" and not requested:
            return {}
        _refuse_unknown(kind, requested, plan, model)
        plan |= requested
    styles = _UNITS if kind == "fsdp_plan" else (*_DIMS, *sorted(_LOCAL), SEQUENCE)
    for name, style in plan.items():
        if style not in styles:
            raise ValueError(
                f"ShardingRules.of: the {kind} of {type(model).__name__} has the style {style!r} "
                f"for {name!r}, expected one of {', '.join(styles)}{did_you_mean(style, styles)}; "
                "set one, or delete the entry"
            )
    return plan


def _setting(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _refuse_unmeant(config: Any, expert: Axis, stages: str | None) -> None:
    """Raises or warns for what a configuration requests and a table cannot do, and for what is
    none."""
    if config is not None and not isinstance(config, Mapping) and not hasattr(config, "tp_plan"):
        raise TypeError(
            "ShardingRules.of: expected a transformers.distributed.DistributedConfig or a dict, "
            f"got {type(config).__name__}; a mesh is passed to `apply`"
        )
    for name in config if isinstance(config, Mapping) else ():
        if name not in (*KINDS, *_SAID):
            raise ValueError(
                f"ShardingRules.of: the configuration has {name!r}, expected {', '.join(KINDS)} "
                f"or a field of DistributedConfig{did_you_mean(name, (*KINDS, *_SAID))}"
            )
    if (_setting(config, "pp_size") or 1) > 1 and stages is None:
        raise ValueError(
            "ShardingRules.of: pp_size of the configuration requests pipeline stages; name the "
            "mesh axis: stages=..."
        )
    if (_setting(config, "ep_size") or 1) > 1 and expert is None:
        raise ValueError(
            "ShardingRules.of: ep_size of the configuration requests expert parallelism; name the "
            "mesh axis: expert=..."
        )
    for name, keyword in (
        ("fsdp_cpu_offload", "offload_policy"),
        ("fsdp_mixed_precision", "mp_policy"),
    ):
        if _setting(config, name):
            warn(
                f"ShardingRules.of: {name} of the configuration is no part of a table; hand "
                f"{keyword}=... to `apply`"
            )


def _refuse_unknown(
    kind: str, requested: Mapping[str, str], plan: Mapping[str, str], model: nn.Module
) -> None:
    names = {
        _generic(name) for name, _ in (*model.named_modules(), *model.named_parameters())
    } | plan.keys()
    for name in requested:
        if name not in names:
            raise ValueError(
                f"ShardingRules.of: {name!r} in the configuration's {kind} matches nothing in "
                f"{type(model).__name__}{did_you_mean(name, names)}; a layer's number is written "
                "as *"
            )


def _generic(name: str) -> str:
    """A path with `*` for each part that is a number, as plans name it."""
    return ".".join(
        "*" if part.isdecimal() and index else part for index, part in enumerate(name.split("."))
    )


def _idle(model: nn.Module, plans: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """The entries of each plan that match nothing: no module or parameter, or, where parameters are
    to be sharded, a module that has none itself (its layer was replaced by one of several
    parts)."""
    parameters = {_generic(path) for path, _ in model.named_parameters(remove_duplicate=False)}
    modules = {_generic(path) for path, _ in model.named_modules()}
    holders = {path.rpartition(".")[0] for path in parameters}

    def is_idle(name: str, style: str) -> bool:
        return name not in parameters and name not in (holders if style in _DIMS else modules)

    return {
        kind: sorted(name for name, style in plan.items() if is_idle(name, style))
        for kind, plan in plans.items()
    }


def _nothing(idle: Mapping[str, list[str]]) -> str:
    listed = _listed(idle)
    return f"these entries match nothing: {listed}" if listed else "there is none"


def _listed(idle: Mapping[str, list[str]]) -> str:
    return "; ".join(f"_{kind}: {', '.join(names)}" for kind, names in idle.items() if names)


# --- as rules -------------------------------------------------------------------------------------


def _parameters(
    model: nn.Module, plans: Iterable[tuple[Mapping[str, str], Axis]]
) -> Iterable[tuple[str, PartitionSpec]]:
    """The rules of parameters, in the model's order.

    Of the names of a tied one the first with an entry counts.
    """
    specs: dict[str, PartitionSpec] = {}
    paths, parameter_ids = [], set()
    for path, parameter in model.named_parameters(remove_duplicate=False):
        paths.append(path)
        match = next(
            ((style, axis) for plan, axis in plans if (style := _style(path, plan)) is not None),
            None,
        )
        if match is not None and id(parameter) not in parameter_ids:
            parameter_ids.add(id(parameter))
            spec = _spec(path, parameter.dim(), *match)
            if spec is not None:
                specs[path] = spec
    for pattern, members in _grouped(specs, paths).items():
        yield pattern, specs[members[0]]


def _style(path: str, plan: Mapping[str, str]) -> str | None:
    """The style of a parameter by its own entry, else by that of its module; None without one."""
    generic = _generic(path)
    return plan.get(generic, plan.get(generic.rpartition(".")[0]))


def _spec(path: str, rank: int, style: str, axis: Axis) -> PartitionSpec | None:
    """The spec of a parameter by its style; None where it is not sharded."""
    if style not in _DIMS or rank == 0:
        return None
    dim = _DIMS[style](path.rpartition(".")[2], rank)
    return (
        None
        if dim is None
        else PartitionSpec(*(axis if index == dim else None for index in range(rank)))
    )


def _sequences(
    model: nn.Module, plan: Mapping[str, str], axis: Axis
) -> list[tuple[str, PartitionSpec]]:
    """The rules of activations that are split along the sequence, dim 1 of (batch, sequence,
    features)."""
    open_ = PartitionSpec.UNCONSTRAINED
    sequence_paths = {
        path for path, _ in model.named_modules() if plan.get(_generic(path)) == SEQUENCE
    }
    patterns = _grouped(dict.fromkeys(sequence_paths), [path for path, _ in model.named_modules()])
    spec = PartitionSpec(open_, axis, open_)
    return [(f"{pattern}:{side}", spec) for pattern in patterns for side in ("input[0]", "output")]


def _units(model: nn.Module, plan: Mapping[str, str]) -> list[str]:
    """The patterns of the modules that free their gathered parameters. Modules that keep them
    belong to the root, whose parameters stay gathered from forward to backward; so does a table of
    embeddings that another module shares."""
    styles = {path: plan.get(_generic(path)) for path, _ in model.named_modules()}
    freed = [path for path, style in styles.items() if style == "free_full_weight"]
    for path, style in styles.items():
        above = next((unit for unit in freed if path.startswith(f"{unit}.")), None)
        if style == "keep_full_weight" and above is not None:
            raise ValueError(
                f"ShardingRules.of: the fsdp_plan keeps the parameters of {path!r}, in {above!r}, "
                "which frees its own; give both the same style"
            )
    holders: dict[int, list[str]] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        holders.setdefault(id(parameter), []).append(path)

    def is_tied(unit: str) -> bool:
        inside = [
            names
            for names in holders.values()
            if any(name.startswith(f"{unit}.") for name in names)
        ]
        return bool(inside) and all(
            any(not name.startswith(f"{unit}.") for name in names) for names in inside
        )

    return [*_grouped({path: None for path in freed if not is_tied(path)}, styles)]


def _grouped(values_by_path: Mapping[str, Any], paths: Iterable[str]) -> dict[str, list[str]]:
    """The paths by pattern: one for all layers where it matches only those with the same value,
    else each path by itself."""
    groups: dict[tuple[str, Any], list[str]] = {}
    for path, value in values_by_path.items():
        groups.setdefault((_generic(path), value), []).append(path)
    patterns: dict[str, list[str]] = {}
    for (pattern, value), members in groups.items():
        fits = all(
            path in values_by_path and values_by_path[path] == value
            for path in paths
            if matches(pattern, path)
        )
        patterns |= {pattern: members} if fits else {member: [member] for member in members}
    return patterns
