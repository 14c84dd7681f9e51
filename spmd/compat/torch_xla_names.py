"""The table of PyTorch/XLA's modules: which name of ours, or of torch's, each name of theirs is; and hints for others.

A place is "module:attribute". `fsdp` is named as text, as this package never imports it.
"""

# What libraries compare: the last release of PyTorch/XLA whose names these are.
VERSION = "2.9.0+spmd"

_XM, _XR, _ONE = "spmd.torch_xla.xla_model", "spmd.torch_xla.xla_runtime", "spmd.torch_xla.one_process"
_XC, _MET, _STEP = "spmd.torch_xla.xla_collectives", "spmd.torch_xla.xla_metrics", "spmd.torch_xla.compiled_step"
_LOOPS, _SAMPLES = "spmd.torch_xla.xla_loops", "spmd.torch_xla.sample_data"


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
_FSDP = _same("fsdp", "XlaFullyShardedDataParallel checkpoint_module")
_CONSOLIDATING = _same("fsdp", "consolidate_sharded_model_checkpoints consolidate_sharded_state_dicts")
_EAGER = {**_same(_LOOPS, "eager_mode eager_mode_context is_eager_mode"), **_same(_STEP, "compile")}
_WRAPPING = _same(
    "fsdp", "always_wrap_policy lambda_auto_wrap_policy recursive_wrap size_based_auto_wrap_policy "
    "transformer_auto_wrap_policy",
)  # fmt: skip

_RUNTIME = {
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
}

NAMES: dict[str, dict[str, str]] = {
    "torch_xla": {
        **_same(_XM, "real_devices"),
        **_same(_ONE, "launch"),
        **_same(_STEP, "compile set_custom_compile_options step"),
        "device": "spmd:device",
        "device_count": f"{_XR}:one",
        "devices": f"{_XM}:logical_devices",
        "manual_seed": f"{_XM}:set_rng_state",
        "sync": f"{_XM}:mark_step",
    },
    "torch_xla._XLAC": {
        **_same(
            "spmd.torch_xla.xlac",
            "_get_xla_sharding_spec _get_xla_sharding_specs _get_xla_sharding_type _get_xla_tensors_hlo "
            "_xla_get_cpu_tensors _xla_get_default_device _xla_get_tensor_id _xla_mark_sharding _xla_step_marker "
            "_xla_sync_multi",
        ),
        "_xla_counter_names": f"{_MET}:counter_names",
        "_xla_counter_value": f"{_MET}:counter_value",
        "_xla_metric_data": f"{_MET}:metric_data",
        "_xla_metric_names": f"{_MET}:metric_names",
        "_xla_metrics_report": f"{_MET}:metrics_report",
        "_xla_real_devices": f"{_XM}:xla_real_devices",
        "_xla_wait_device_ops": f"{_XM}:wait_device_ops",
    },
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
        **_same(_SAMPLES, "RateTracker"),
        "_fetch_gradients": f"{_XM}:fetch_gradients",
        "_maybe_convert_to_cpu": f"{_XM}:to_cpu",
        "get_local_ordinal": f"{_XR}:zero",
        "get_ordinal": f"{_XR}:zero",
        "set_replication": f"{_XR}:no_replication",
        "xrt_world_size": f"{_XR}:one",
    },
    "torch_xla.core.functions": _same(_XC, "all_gather all_reduce all_to_all collective_permute reduce_scatter"),
    "torch_xla.runtime": _RUNTIME,
    "torch_xla.distributed": {},
    "torch_xla.distributed.spmd": {
        **_SHARDING,
        "xla_distribute_module": "spmd.dtensor:distribute_module",
        "xla_distribute_tensor": "spmd.dtensor:distribute_tensor",
    },
    "torch_xla.distributed.zero_redundancy_optimizer": _same("fsdp", "ZeroRedundancyOptimizer"),
    "torch_xla.distributed.spmd.xla_sharding": _SHARDING,
    "torch_xla.distributed.spmd.xla_sharded_tensor": _same("spmd.torch_xla", "XLAShard XLAShardedTensor"),
    "torch_xla.distributed.spmd.debugging": _same(
        "spmd.torch_xla", "construct_v1_sharding_str visualize_sharding visualize_tensor_sharding"
    ),
    "torch_xla.distributed.parallel_loader": _same("spmd.torch_xla.parallel_loader", "MpDeviceLoader ParallelLoader"),
    "torch_xla.distributed.xla_multiprocessing": _same(_ONE, "MpModelWrapper MpSerialExecutor spawn"),
    "torch_xla.distributed.fsdp": {**_FSDP, **_CONSOLIDATING},
    "torch_xla.distributed.fsdp.state_dict_utils": _CONSOLIDATING,
    "torch_xla.distributed.fsdp.utils": {
        **_same("fsdp", "checkpoint_module"),
        **_same("spmd.torch_xla", "apply_xla_patch_to_nn_linear"),
    },
    "torch_xla.distributed.fsdp.wrap": _WRAPPING,
    "torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel": _FSDP,
    "torch_xla.experimental": _EAGER,
    "torch_xla.experimental.assume_pure": _same("spmd.torch_xla.purity", "PureModule assume_pure assume_pure_torch"),
    "torch_xla.experimental.custom_kernel": _same("spmd.torch_xla.custom_kernel", "flash_attention"),
    "torch_xla.experimental.distributed_checkpoint": _same(
        "spmd.torch_xla.distributed_checkpoint", "CheckpointManager SPMDLoadPlanner SPMDSavePlanner prime_optimizer"
    ),
    "torch_xla.experimental.eager": _EAGER,
    "torch_xla.experimental.fori_loop": _same(_LOOPS, "while_loop"),
    "torch_xla.experimental.gradient_accumulation": _same("fsdp", "gradient_accumulation"),
    "torch_xla.experimental.gru": {"GRU": "torch.nn:GRU"},  # a loop of the program here, too
    "torch_xla.experimental.pjrt": {**_RUNTIME, "broadcast_master_param": f"{_XM}:broadcast_master_param"},
    "torch_xla.experimental.scan": _same(_LOOPS, "default_partition scan"),
    "torch_xla.experimental.scan_layers": _same(_LOOPS, "scan_layers"),
    "torch_xla.experimental.spmd_fully_sharded_data_parallel": _same("fsdp", "SpmdFullyShardedDataParallel"),
    "torch_xla.experimental.stablehlo_custom_call": {
        **_same("spmd.torch_xla", "stablehlo_custom_call"),
        **_same("spmd", "place_to_device place_to_host"),
    },
    "torch_xla.experimental.xla_sharding": _SHARDING,
    "torch_xla.debug": {},
    "torch_xla.debug.metrics": {
        **_same(
            _MET,
            "clear_all clear_counters clear_metrics counter_names counter_value executed_fallback_ops metric_data "
            "metric_names metrics_report short_metrics_report",
        ),
    },
    "torch_xla.debug.profiler": {
        **_same(
            "spmd.torch_xla.xla_profiler",
            "StepTrace Trace start_server start_trace stop_trace trace trace_detached trace_me",
        ),
    },
    "torch_xla.amp": _same("spmd.torch_xla.syncfree", "GradScaler autocast"),
    "torch_xla.amp.syncfree": _same("spmd.torch_xla.syncfree", "Adam AdamW SGD"),
    "torch_xla.stablehlo": _same(
        "spmd.torch_xla",
        "StableHLOExportOptions StableHLOGraphModule exported_program_to_stablehlo save_as_stablehlo "
        "save_torch_model_as_stablehlo",
    ),
    "torch_xla.utils": {},
    "torch_xla.utils.checkpoint": {
        **_same(_LOOPS, "checkpoint"),
        "CheckpointFunction": "torch.utils.checkpoint:CheckpointFunction",
    },
    "torch_xla.utils.dlpack": _same("torch.utils.dlpack", "from_dlpack to_dlpack"),
    "torch_xla.utils.utils": _same(_SAMPLES, "FnDataGenerator SampleGenerator"),
    "torch_xla._internal": {},
    "torch_xla._internal.tpu": {
        "num_available_chips": f"{_XR}:available_tpus",
        "num_available_devices": f"{_XR}:available_tpus",
    },
}

_NO_GROUPS = "there are no process groups on xla, each program has all devices; spmd.initialize joins processes"
_PALLAS = "call a Pallas kernel by spmd.call_jax, or torch's own op"

# By name: what serves instead.
HINTS: dict[str, str] = {
    "torch_xla._XLAC.OpSharding": "mesh.get_op_sharding(spec) makes a sharding, spmd.mark_sharding takes GSPMD's text",
    "torch_xla._XLAC._get_xla_tensors_dot": "spmd.config.print_graphs prints recorded graphs",
    "torch_xla._XLAC._get_xla_tensors_text": "spmd.config.print_graphs prints recorded graphs",
    "torch_xla.core.dynamo_bridge": "no torch.compile is needed: recorded ops become one program",
    "torch_xla.core.xla_builder": "spmd.call_jax makes an op of a JAX function",
    "torch_xla.core.xla_env_vars": "spmd.config lists the flags and their variables",
    "torch_xla.core.xla_op_registry": "spmd.call_jax makes an op of a JAX function, spmd.register_lowering a rule",
    "torch_xla.distributed.xla_backend": _NO_GROUPS,
    "torch_xla.distributed.xla_dist": "start one process a machine by torchrun or srun, and call spmd.initialize",
    "torch_xla.distributed.spmd.XlaShardingSpec": "ShardingSpec of this module",
    "torch_xla.distributed.spmd.auto_policy": "spmd.suggest compares the layouts of a model",
    "torch_xla.distributed.spmd.convert_to_xla_mesh": "spmd takes a DeviceMesh wherever it takes a Mesh",
    "torch_xla.experimental.custom_kernel.gmm": _PALLAS,
    "torch_xla.experimental.custom_kernel.make_kernel_from_pallas": _PALLAS,
    "torch_xla.experimental.custom_kernel.paged_attention": _PALLAS,
    "torch_xla.experimental.custom_kernel.ragged_paged_attention": _PALLAS,
    "torch_xla.experimental.fori_loop.fori_loop": "spmd.scan (of a known length) or spmd.while_loop",
    "torch_xla.test": "it is PyTorch/XLA's own test helpers",
}
