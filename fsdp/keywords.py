"""Keywords of PyTorch's and PyTorch/XLA's FSDP, translated into ours; a warning names those without
a meaning."""

# Why a keyword without a meaning is accepted: scripts written for torch's FSDP run unchanged. The
# warning names the mechanism that takes its place; a value that is the default there gives none, as
# frameworks pass every keyword.

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

import spmd
from spmd.mesh.notes import ends_at_user_line, warn

from .api import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from .plan import Placement

# Reasons: the mechanism that takes the place of a setting of other implementations.
SCHEDULED = "XLA schedules the collectives of the whole step"
REDUCED = "set_requires_gradient_sync says which backward passes reduce gradients"
ONE_VIEW = "there is one global view of the model, and no rank or process group"

HOOKS = (
    "the program reduces gradients, and calls no hook for it; "
    "parameter.register_post_accumulate_grad_hook gets each reduced gradient, "
    "MixedPrecisionPolicy(reduce_dtype=) narrows the sum, no_sync defers it"
)
_CHECKPOINTS = (
    "state_dict() of model and optimizer has full tensors; spmd.CheckpointManager writes shards"
)
# Names of torch's wrapper that ours lacks, with the alternative.
LACKING = {
    **dict.fromkeys(("register_comm_hook", "set_all_reduce_hook"), HOOKS),
    **dict.fromkeys(
        ("set_state_dict_type", "get_state_dict_type", "state_dict_type"), _CHECKPOINTS
    ),
    **dict.fromkeys(
        ("full_optim_state_dict", "sharded_optim_state_dict", "shard_full_optim_state_dict"),
        _CHECKPOINTS,
    ),
    **dict.fromkeys(
        ("flatten_sharded_optim_state_dict", "scatter_full_optim_state_dict"), _CHECKPOINTS
    ),
    **dict.fromkeys(
        ("rekey_optim_state_dict", "optim_state_dict", "optim_state_dict_to_load"), _CHECKPOINTS
    ),
    **dict.fromkeys(
        ("fsdp_modules", "check_is_root"), "fsdp.show(model) lists the units, the root first"
    ),
}

Keywords = dict[str, Any]
# The meaning of a keyword: a function (its value, our keywords so far) -> our keywords; or why it
# changes nothing, which a warning says unless the value is None or False. A tuple has the reason,
# and the values without a warning in place of False.
Meaning = Callable[[Any, Keywords], Keywords] | str | tuple[str, *tuple[object, ...]]
Table = Mapping[str, Meaning]


def translate(
    caller: str, keywords: Keywords, table: Table, parameters: Mapping[str, object]
) -> Keywords:
    """Returns a caller's keywords, some of them another library's, as ours.

    Raises TypeError for an unknown keyword, and for two that set the same one of ours.
    """
    ours = {name: value for name, value in keywords.items() if name in parameters}
    reasons = {}
    for name, value in keywords.items():
        if name in ours:
            continue
        if name not in table:
            names = sorted((*parameters, *table))
            close = difflib.get_close_matches(name, names, n=1)
            hint = (
                f"; did you mean {close[0]!r}?"
                if close
                else f"; expected some of {', '.join(names)}"
            )
            raise TypeError(f"{caller}: got an unexpected keyword argument {name!r}{hint}")
        meaning = table[name]
        if callable(meaning):
            translated = meaning(value, ours)
            duplicates = sorted(translated.keys() & keywords.keys())
            if duplicates:  # else the order of keywords would decide
                raise TypeError(
                    f"{caller}: got both {name} and {duplicates[0]}, which it becomes; give "
                    "one of them"
                )
            ours.update(translated)
            continue
        reason, *defaults = (meaning, False) if isinstance(meaning, str) else meaning
        if not any(
            type(value) is type(default) and value == default for default in (None, *defaults)
        ):
            reasons[name] = reason
    warn_without_meaning(caller, reasons)
    return ours


def warn_without_meaning(caller: str, reasons: Mapping[str, str]) -> None:
    """Warns once of names that change nothing; reasons: name -> the mechanism that takes its
    place."""
    if reasons:
        listed = "; ".join(f"{name} ({reason})" for name, reason in reasons.items())
        warn(f"{caller}: accepted, but changes nothing here: {listed}")


def takes(table: Table) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns a decorator that makes a constructor accept the keywords of another library, too."""

    def decorate(init: Callable[..., None]) -> Callable[..., None]:
        """The constructor with the other library's keywords translated."""
        parameters = dict.fromkeys(list(inspect.signature(init).parameters)[2:])

        @functools.wraps(init)
        def constructor(
            self: nn.Module, module: nn.Module, mesh: spmd.Mesh | None = None, **keywords: Any
        ) -> None:
            if mesh is not None:
                keywords["mesh"] = mesh
            ends_at_user_line(init)(
                self, module, **translate(type(self).__name__, keywords, table, parameters)
            )

        return constructor

    return decorate


def _replicated(parameter: nn.Parameter) -> Placement:
    return spmd.PartitionSpec(*(None for _ in parameter.shape))


# By the name of a `torch.distributed.fsdp.ShardingStrategy`.
_STRATEGIES: dict[str, Keywords] = {
    "FULL_SHARD": {},
    "SHARD_GRAD_OP": {"reshard_after_forward": False},
    "NO_SHARD": {"shard_placement_fn": _replicated},
    "HYBRID_SHARD": {},
    "_HYBRID_SHARD_ZERO2": {"reshard_after_forward": False},
}


def _strategy(value: object, ours: Keywords) -> Keywords:
    """Our keywords for a `torch.distributed.fsdp.ShardingStrategy`, or the name of one."""
    name = "FULL_SHARD" if value is None else getattr(value, "name", value)
    if name not in _STRATEGIES:
        raise ValueError(
            f"sharding_strategy: expected {', '.join(_STRATEGIES)} or None, got {value!r}"
        )
    # Hybrid sharding needs the axis of replicas, for which torch's FSDP takes a process group.
    if "HYBRID" not in name or "extra_data_axis" in ours:
        return _STRATEGIES[name]
    mesh, axis = ours.get("mesh"), ours.get("shard_axis", "fsdp")
    replica_axes = (
        [] if mesh is None else [mesh_axis for mesh_axis in mesh.axes if mesh_axis != axis]
    )
    if len(replica_axes) != 1:
        raise ValueError(
            f"sharding_strategy={name}: expected a mesh of two axes, {axis!r} and one of "
            f"replicas, or extra_data_axis that names it; got {mesh!r}"
        )
    return {**_STRATEGIES[name], "extra_data_axis": replica_axes[0]}


def _on_dim_0(parameter: nn.Parameter) -> Placement:
    return 0 if parameter.dim() else None


_BATCH_NORM = nn.modules.batchnorm._BatchNorm


# torch's MixedPrecision keeps modules of some classes in full precision: they become units of their
# own here.
def _mixed_precision(value: Any, ours: Keywords) -> Keywords:
    """Our keywords for a `torch.distributed.fsdp.MixedPrecision`."""
    if value is None:
        return {}
    # A root whose inputs are cast passes values of that dtype on: units below that cast to none
    # would not run.
    casts_inputs = value.cast_forward_inputs or value.cast_root_forward_inputs
    exempt_classes = tuple(value._module_classes_to_ignore)
    has_units = ours.get("auto_wrap_policy") is not None
    # batch norm is torch's default
    ignored = [kind.__name__ for kind in exempt_classes if kind is not _BATCH_NORM]
    reasons = {}
    if value.keep_low_precision_grads:
        reasons["keep_low_precision_grads"] = "gradients arrive in the dtype of their parameter"
    if ignored and not has_units:
        reasons[f"_module_classes_to_ignore={', '.join(ignored)}"] = (
            "as in torch, without an auto_wrap_policy"
        )
    warn_without_meaning("mixed_precision", reasons)
    policy = MixedPrecisionPolicy(
        param_dtype=value.param_dtype,
        reduce_dtype=value.reduce_dtype,
        buffer_dtype=value.buffer_dtype,
        cast_forward_inputs=casts_inputs,
    )
    return {
        "mp_policy": policy,
        **({"full_precision_modules": exempt_classes} if exempt_classes and has_units else {}),
    }


def _cpu_offload(value: Any, _: Keywords) -> Keywords:
    """Our keywords for a `torch.distributed.fsdp.CPUOffload`."""
    return {
        "offload_policy": CPUOffloadPolicy() if value and value.offload_params else OffloadPolicy()
    }


def _ignored_states(value: Iterable[object] | None, _: Keywords) -> Keywords:
    """torch's `ignored_states`, modules or parameters, as ours."""
    states = list(value or ())
    modules = [state for state in states if isinstance(state, nn.Module)]
    parameters = [state for state in states if isinstance(state, torch.Tensor)]
    if len(modules) + len(parameters) != len(states):
        raise TypeError("ignored_states: expected parameters or modules alone")
    return {
        name: members
        for name, members in (("ignored_modules", modules), ("ignored_params", parameters))
        if members
    }


def _policy_dtype(name: str) -> Callable[[torch.dtype | None, Keywords], Keywords]:
    """The meaning of a keyword that sets one dtype of the precision policy; several such keywords
    make the policy together."""

    def meaning(value: torch.dtype | None, ours: Keywords) -> Keywords:
        policy = ours.pop("mp_policy", None) or MixedPrecisionPolicy()
        return {"mp_policy": MixedPrecisionPolicy(**{**vars(policy), name: value})}

    return meaning


# `torch.distributed.fsdp.FullyShardedDataParallel`.
TORCH: Table = {
    "process_group": ONE_VIEW,
    "sharding_strategy": _strategy,
    "cpu_offload": _cpu_offload,
    "backward_prefetch": SCHEDULED,
    "forward_prefetch": SCHEDULED,
    "limit_all_gathers": (SCHEDULED, True),
    "mixed_precision": _mixed_precision,
    "device_id": 'the device is "xla"',
    "sync_module_states": ONE_VIEW,
    "use_orig_params": ("parameters are always the module's own", True),
    "ignored_states": _ignored_states,
    "ignored_parameters": lambda value, _: {"ignored_params": list(value or ())},
    "device_mesh": lambda value, _: {} if value is None else {"mesh": value},
}

_WHOLE_STEP = "XLA compiles the whole step"
_AXES = "the axes of the mesh are the groups"

# `torch_xla.distributed.fsdp.XlaFullyShardedDataParallel`, in the order of its arguments.
XLA: Table = {
    "flatten_parameters": "each parameter stays itself; small ones share a gather",
    "execute_sharding_on_init": ("parameters are sharded as they are uploaded", True),
    "optimization_barrier_in_forward": ("a gather waits for the unit's input", True),
    "optimization_barrier_in_backward": ("a gather waits for the arriving gradient", True),
    "sync_on_finalization": "spmd.sync() ends a step",
    "disable_reshard_on_root": ("the root keeps its gathered parameters", True),
    "compute_dtype": _policy_dtype("param_dtype"),
    "buffer_dtype": _policy_dtype("buffer_dtype"),
    "fp32_reduce_scatter": lambda value, ours: (
        _policy_dtype("reduce_dtype")(torch.float32, ours) if value else {}
    ),
    "sharding_groups": _AXES,
    "sharding_rank": ONE_VIEW,
    "sharding_world_size": "the size of the mesh's axis",
    "shard_param_on_dim_0": lambda value, _: {"shard_placement_fn": _on_dim_0} if value else {},
    "pin_layout_in_collective_ops": (_WHOLE_STEP, True),
    "reduce_scatter_bucket_size_mb": (SCHEDULED, 0),
    "coalesce_all_gather_ops": "small parameters share a gather",
    "opt_flatten_overlap": SCHEDULED,
    "mark_step_on_finalization": "spmd.sync() ends a step",
    "_shard_size_multiple": ("shards are padded where a dim is uneven", 128),
    "_use_xla_patched_linear": ("products keep their shardings", True),
    "_debug_dummy_forward_pass": _WHOLE_STEP,
    "_debug_msg": ("fsdp.show(model) names units", "xla_fsdp"),
    "_debug_print": "fsdp.show(model) names units",
}

# `torch_xla.distributed.zero_redundancy_optimizer.ZeroRedundancyOptimizer`, in the order of its
# arguments.
ZERO: Table = {
    "optimizer_dtype": "state has the dtype that the optimizer gives it",
    "pin_layout": (_WHOLE_STEP, True, False),
    "sharding_groups": _AXES,
    "grad_norm_groups": _AXES,
    "lazy_init": ("state is made by the first step", True, False),
    "bucket_cap_mb_all_gather": (SCHEDULED, 0),
    "bucket_cap_mb_reduce_scatter": (SCHEDULED, 0),
    "use_grad_acc_hook": "backward adds to parameter.grad, in the parameter's dtype",
    "save_master_weights": "state_dict has no weights; parameters are updated directly",
    "higher_cc_precision": "gradients are reduced in their own dtype",
    "coalesce_cc": SCHEDULED,
}
