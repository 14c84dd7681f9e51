"""The table of PyTorch/XLA's modules: which name of ours, or of torch's, each name of theirs is; and hints for others.

A place is "module:attribute". `fsdp` is named as text, as this package never imports it.
"""

# What libraries compare: the last release of PyTorch/XLA whose names these are.
VERSION = "2.9.0+spmd"

_XM, _XR, _ONE = "spmd.torch_xla.xla_model", "spmd.torch_xla.xla_runtime", "spmd.torch_xla.one_process"
_XC = "spmd.torch_xla.xla_collectives"


def _same(module: str, names: str) -> dict[str, str]:
    """Names that are the same in a module of ours."""
    return {name: f"{module}:{name}" for name in names.split()}


_SHARDING = _same(
    "spmd.torch_xla",
    "EinsumLinear HybridMesh MarkShardingFunction Mesh PartitionSpec ShardingSpec ShardingType XLAShard "
    "XLAShardedTensor annotate_custom_sharding apply_backward_optimization_barrier apply_xla_patch_to_nn_linear "
    "clear_sharding construct_v1_sharding_str disable_manual_sharding enable_manual_sharding get_1d_mesh "
    "get_global_mesh mark_sharding mark_sharding_with_gradients set_global_mesh shard_as unwrap_sharded_tensor "
    "visualize_sharding visualize_tensor_sharding wrap_as_sharded_tensor wrap_if_sharded",
)
_WRAPPING = _same(
    "fsdp", "always_wrap_policy lambda_auto_wrap_policy recursive_wrap size_based_auto_wrap_policy "
    "transformer_auto_wrap_policy",
)  # fmt: skip

NAMES: dict[str, dict[str, str]] = {
    "torch_xla": {
        **_same(_XM, "real_devices"),
        **_same(_ONE, "launch"),
        **_same("spmd", "device manual_seed sync"),
        "device_count": f"{_XR}:one",
    },
    "torch_xla._XLAC": {"_xla_get_tensor_id": "spmd.torch_xla.tensor_ids:tensor_id"},
    "torch_xla.core": {},
    "torch_xla.core.xla_model": {
        **_same(
            _XM,
            "broadcast_master_param fork_rng get_memory_info get_rng_state get_stablehlo get_stablehlo_bytecode "
            "get_xla_supported_devices is_master_ordinal mark_step master_print mesh_reduce optimizer_step "
            "reduce_gradients rendezvous run_step_closures save send_cpu_data_to_device set_rng_state unlazy "
            "wait_device_ops xla_device xla_device_hw xla_real_devices",
        ),
        **_same(
            _XC,
            "REDUCE_AND REDUCE_MAX REDUCE_MIN REDUCE_MUL REDUCE_OR REDUCE_SUM all_gather all_reduce all_to_all "
            "collective_broadcast collective_permute reduce_scatter",
        ),
        **_same("spmd.torch_xla", "add_step_closure optimization_barrier_"),
        **_same(_ONE, "do_on_ordinals"),
        "_fetch_gradients": f"{_XM}:fetch_gradients",
        "_maybe_convert_to_cpu": f"{_XM}:to_cpu",
        "get_local_ordinal": f"{_XR}:zero",
        "get_ordinal": f"{_XR}:zero",
        "set_replication": f"{_XR}:no_replication",
        "xrt_world_size": f"{_XR}:one",
    },
    "torch_xla.core.functions": _same(_XC, "all_gather all_reduce all_to_all collective_permute reduce_scatter"),
    "torch_xla.runtime": {
        **_same(
            _XR,
            "addressable_runtime_device_count get_master_ip get_num_cached_compilation_graph "
            "global_runtime_device_count host_index initialize_cache is_bf16_supported is_spmd "
            "runtime_device_attributes set_device_type use_spmd using_pjrt",
        ),
        **_same("spmd", "process_count process_index"),
        "addressable_device_count": f"{_XR}:one",
        "device_type": f"{_XM}:device_type",
        "global_device_count": f"{_XR}:one",
        "global_ordinal": f"{_XR}:zero",
        "global_runtime_device_attributes": "spmd.tensors.runtime:global_runtime_device_attributes",
        "local_device_count": f"{_XR}:one",
        "local_ordinal": f"{_XR}:zero",
        "local_process_count": f"{_XR}:one",
        "world_size": f"{_XR}:one",
        "xla_device": f"{_XM}:xla_device",
    },
    "torch_xla.distributed": {},
    "torch_xla.distributed.spmd": _SHARDING,
    "torch_xla.distributed.spmd.xla_sharding": _SHARDING,
    "torch_xla.distributed.spmd.xla_sharded_tensor": _same("spmd.torch_xla", "XLAShard XLAShardedTensor"),
    "torch_xla.distributed.spmd.debugging": _same(
        "spmd.torch_xla", "construct_v1_sharding_str visualize_sharding visualize_tensor_sharding"
    ),
    "torch_xla.distributed.parallel_loader": _same("spmd.torch_xla.parallel_loader", "MpDeviceLoader ParallelLoader"),
    "torch_xla.distributed.xla_multiprocessing": _same(_ONE, "MpModelWrapper MpSerialExecutor spawn"),
    "torch_xla.distributed.fsdp": _same(
        "fsdp",
        "XlaFullyShardedDataParallel checkpoint_module consolidate_sharded_model_checkpoints "
        "consolidate_sharded_state_dicts",
    ),
    "torch_xla.distributed.fsdp.wrap": _WRAPPING,
    "torch_xla.distributed.fsdp.utils": _same("fsdp", "checkpoint_module"),
    "torch_xla.experimental": {},
    "torch_xla.experimental.custom_kernel": _same("spmd.torch_xla.custom_kernel", "flash_attention"),
    "torch_xla.experimental.spmd_fully_sharded_data_parallel": _same("fsdp", "SpmdFullyShardedDataParallel"),
    "torch_xla.debug": {},
    "torch_xla.debug.metrics": {
        **_same(
            "spmd.torch_xla.xla_metrics",
            "clear_all counter_names counter_value executed_fallback_ops metric_data metric_names metrics_report "
            "short_metrics_report",
        ),
        "clear_counters": "spmd.torch_xla.xla_metrics:clear_all",
        "clear_metrics": "spmd.torch_xla.xla_metrics:clear_all",
    },
    "torch_xla.amp": _same("spmd.torch_xla.syncfree", "GradScaler autocast"),
    "torch_xla.amp.syncfree": _same("spmd.torch_xla.syncfree", "Adam AdamW SGD"),
    "torch_xla._internal": {},
    "torch_xla._internal.tpu": {
        "num_available_chips": f"{_XR}:available_tpus", "num_available_devices": f"{_XR}:available_tpus",
    },  # fmt: skip
}

HINTS: dict[str, str] = {}
