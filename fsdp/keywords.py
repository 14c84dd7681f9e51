"""Keywords of PyTorch's and PyTorch/XLA's FSDP, translated into ours; a warning names those without a meaning."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import spmd
from spmd.mesh.notes import ends_at_user_line

from .api import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from .notices import ONE_VIEW, SCHEDULED, unknown_keyword, warn_without_meaning
from .plan import Placement

Given = dict[str, Any]


@dataclass(frozen=True)
class Nothing:
    """A keyword that changes nothing. reason: the mechanism that takes its place. silent: values without a warning."""

    reason: str
    silent: tuple[Any, ...] = (None, False)


# By keyword: nothing, or what it becomes: (its value, our keywords so far) -> our keywords.
Table = Mapping[str, Nothing | Callable[[Any, Given], Given]]


def translate(caller: str, given: Given, table: Table, known: Mapping[str, Any]) -> Given:
    """Returns our keywords for the given ones, of which some are another library's.

    Raises TypeError for an unknown keyword, and for two that set the same one of ours.
    """
    ours = {name: value for name, value in given.items() if name in known}
    reasons = {}
    for name, value in given.items():
        if name in ours:
            continue
        if name not in table:
            raise unknown_keyword(caller, name, (*known, *table))
        meaning = table[name]
        if isinstance(meaning, Nothing):
            if not any(type(value) is type(silent) and value == silent for silent in meaning.silent):
                reasons[name] = meaning.reason
            continue
        translated = meaning(value, ours)
        twice = sorted(translated.keys() & given.keys())
        if twice:
            raise TypeError(f"{caller}: got both {name} and {twice[0]}, which it becomes; give one of them")
        ours.update(translated)
    warn_without_meaning(caller, reasons, stacklevel=4)
    return ours


def takes(table: Table) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns a decorator that makes a constructor accept the keywords of another library, too."""

    def wrapped(init: Callable[..., None]) -> Callable[..., None]:
        known = dict.fromkeys(list(inspect.signature(init).parameters)[2:])

        @functools.wraps(init)
        def taking(self: Any, module: nn.Module, mesh: spmd.Mesh | None = None, **given: Any) -> None:
            if mesh is not None:
                given["mesh"] = mesh
            keywords = translate(type(self).__name__, given, table, known)
            ends_at_user_line(init)(self, module, **keywords)

        return taking

    return wrapped


def _replicated(parameter: nn.Parameter) -> Placement:
    return spmd.PartitionSpec(*(None for _ in parameter.shape))


# By the name of a `torch.distributed.fsdp.ShardingStrategy`.
_STRATEGIES: dict[str, Given] = {
    "FULL_SHARD": {},
    "SHARD_GRAD_OP": {"reshard_after_forward": False},
    "NO_SHARD": {"shard_placement_fn": _replicated},
    "HYBRID_SHARD": {},
    "_HYBRID_SHARD_ZERO2": {"reshard_after_forward": False},
}


def _strategy(value: Any, ours: Given) -> Given:
    """Our keywords for a `torch.distributed.fsdp.ShardingStrategy`, or the name of one."""
    name = "FULL_SHARD" if value is None else getattr(value, "name", value)
    if name not in _STRATEGIES:
        raise ValueError(f"sharding_strategy: expected {', '.join(_STRATEGIES)} or None, got {value!r}")
    if "HYBRID" not in name or "extra_data_axis" in ours:
        return _STRATEGIES[name]
    mesh, axis = ours.get("mesh"), ours.get("shard_axis", "fsdp")
    others = [] if mesh is None else [other for other in mesh.axis_names if other != axis]
    if len(others) != 1:
        raise ValueError(
            f"sharding_strategy={name}: expected a mesh of two axes, {axis!r} and one of replicas, or "
            f"extra_data_axis that names it; got {mesh!r}"
        )
    return {**_STRATEGIES[name], "extra_data_axis": others[0]}


def _on_dim_0(parameter: nn.Parameter) -> Placement:
    return 0 if parameter.dim() else None


_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_OWN_DTYPE = "gradients arrive in the dtype of their parameter"
_NO_UNITS = "as in torch, without an auto_wrap_policy"


def _mixed_precision(value: Any, ours: Given) -> Given:
    """Our keywords for a `torch.distributed.fsdp.MixedPrecision`."""
    if value is None:
        return {}
    # A root whose inputs are cast passes values of that dtype on: units below that cast to none would not run.
    casts_inputs = value.cast_forward_inputs or value.cast_root_forward_inputs
    kept = tuple(value._module_classes_to_ignore)
    has_units = ours.get("auto_wrap_policy") is not None
    ignored = [kind.__name__ for kind in kept if kind is not _BATCH_NORM]  # batch norm is torch's default
    reasons = {
        **({"keep_low_precision_grads": _OWN_DTYPE} if value.keep_low_precision_grads else {}),
        **({f"_module_classes_to_ignore={', '.join(ignored)}": _NO_UNITS} if ignored and not has_units else {}),
    }
    warn_without_meaning("mixed_precision", reasons, stacklevel=6)
    policy = MixedPrecisionPolicy(
        param_dtype=value.param_dtype, reduce_dtype=value.reduce_dtype, buffer_dtype=value.buffer_dtype,
        cast_forward_inputs=casts_inputs,
    )  # fmt: skip
    return {"mp_policy": policy, **({"full_precision_modules": kept} if kept and has_units else {})}


def _cpu_offload(value: Any, _: Given) -> Given:
    """Our keywords for a `torch.distributed.fsdp.CPUOffload`."""
    return {"offload_policy": CPUOffloadPolicy() if value and value.offload_params else OffloadPolicy()}


def _ignored_states(value: Any, _: Given) -> Given:
    states = list(value or ())
    modules = [state for state in states if isinstance(state, nn.Module)]
    parameters = [state for state in states if isinstance(state, torch.Tensor)]
    if len(modules) + len(parameters) != len(states):
        raise TypeError("ignored_states: expected parameters or modules alone")
    return {
        **({"ignored_modules": modules} if modules else {}),
        **({"ignored_params": parameters} if parameters else {}),
    }


def _dtypes(name: str) -> Callable[[Any, Given], Given]:
    """A keyword that sets one dtype of the precision policy; several such keywords make the policy together."""

    def of(value: Any, ours: Given) -> Given:
        policy = ours.pop("mp_policy", None) or MixedPrecisionPolicy()
        return {"mp_policy": MixedPrecisionPolicy(**{**vars(policy), name: value})}

    return of


# `torch.distributed.fsdp.FullyShardedDataParallel`.
TORCH: Table = {
    "process_group": Nothing(ONE_VIEW),
    "sharding_strategy": _strategy,
    "cpu_offload": _cpu_offload,
    "backward_prefetch": Nothing(SCHEDULED),
    "forward_prefetch": Nothing(SCHEDULED),
    "limit_all_gathers": Nothing(SCHEDULED, silent=(None, True)),
    "mixed_precision": _mixed_precision,
    "device_id": Nothing('the device is "xla"'),
    "sync_module_states": Nothing(ONE_VIEW),
    "use_orig_params": Nothing("parameters are always the module's own", silent=(None, True)),
    "ignored_states": _ignored_states,
    "ignored_parameters": lambda value, _: {"ignored_params": list(value or ())},
    "device_mesh": lambda value, _: {} if value is None else {"mesh": value},
}

_WHOLE_STEP = "XLA compiles the whole step"
_AXES = "the axes of the mesh are the groups"

# `torch_xla.distributed.fsdp.XlaFullyShardedDataParallel`, in the order of its arguments.
XLA: Table = {
    "flatten_parameters": Nothing("each parameter stays itself; small ones share a gather"),
    "execute_sharding_on_init": Nothing("parameters are sharded as they are uploaded", silent=(None, True)),
    "optimization_barrier_in_forward": Nothing("a gather waits for the unit's input", silent=(None, True)),
    "optimization_barrier_in_backward": Nothing("a gather waits for the arriving gradient", silent=(None, True)),
    "sync_on_finalization": Nothing("spmd.sync() ends a step"),
    "disable_reshard_on_root": Nothing("the root keeps its gathered parameters", silent=(None, True)),
    "compute_dtype": _dtypes("param_dtype"),
    "buffer_dtype": _dtypes("buffer_dtype"),
    "fp32_reduce_scatter": lambda value, ours: _dtypes("reduce_dtype")(torch.float32, ours) if value else {},
    "sharding_groups": Nothing(_AXES),
    "sharding_rank": Nothing(ONE_VIEW),
    "sharding_world_size": Nothing("the size of the mesh's axis"),
    "shard_param_on_dim_0": lambda value, _: {"shard_placement_fn": _on_dim_0} if value else {},
    "pin_layout_in_collective_ops": Nothing(_WHOLE_STEP, silent=(None, True)),
    "reduce_scatter_bucket_size_mb": Nothing(SCHEDULED, silent=(None, 0)),
    "coalesce_all_gather_ops": Nothing("small parameters share a gather"),
    "opt_flatten_overlap": Nothing(SCHEDULED),
    "mark_step_on_finalization": Nothing("spmd.sync() ends a step"),
    "_shard_size_multiple": Nothing("shards are padded where a dim is uneven", silent=(None, 128)),
    "_use_xla_patched_linear": Nothing("products keep their shardings", silent=(None, True)),
    "_debug_dummy_forward_pass": Nothing(_WHOLE_STEP),
    "_debug_msg": Nothing("fsdp.show(model) names units", silent=(None, "xla_fsdp")),
    "_debug_print": Nothing("fsdp.show(model) names units"),
}

# `torch_xla.distributed.zero_redundancy_optimizer.ZeroRedundancyOptimizer`, in the order of its arguments.
ZERO: Table = {
    "optimizer_dtype": Nothing("state has the dtype that the optimizer gives it"),
    "pin_layout": Nothing(_WHOLE_STEP, silent=(None, True, False)),
    "sharding_groups": Nothing(_AXES),
    "grad_norm_groups": Nothing(_AXES),
    "lazy_init": Nothing("state is made by the first step", silent=(None, True, False)),
    "bucket_cap_mb_all_gather": Nothing(SCHEDULED, silent=(None, 0)),
    "bucket_cap_mb_reduce_scatter": Nothing(SCHEDULED, silent=(None, 0)),
    "use_grad_acc_hook": Nothing("backward adds to parameter.grad, in the parameter's dtype"),
    "save_master_weights": Nothing("state_dict has no weights; parameters are updated directly"),
    "higher_cc_precision": Nothing("gradients are reduced in their own dtype"),
    "coalesce_cc": Nothing(SCHEDULED),
}
