"""The public surface, frozen: a name or a signature changes only together with this file."""

import inspect
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import fsdp
import fsdp.state_dict
import spmd
import spmd.dtensor
from spmd import P
from spmd.packages import PATHS

NAMES = {
    spmd: (
        "AbstractError BodyError CheckpointManager CollectiveError DataLoader Exported HybridMesh LayersDifferError "
        "LoadedProgram Mesh P PartitionSpec Plan ProcessError PureModule RecompileError Sharding ShardingRules "
        "Verification allow assume_pure call_jax check checkpoint_name clear_sharding compile cond config describe_gpu "
        "device device_ids eager explain export from_local_shards "
        "from_process_local full_state_dict full_tensor get_hlo get_sharding get_stablehlo initialize inspect kernel "
        "linear_cross_entropy load_checkpoint load_exported load_local_shards_ load_programs local_shards "
        "manual_seed mark_dynamic mark_sharding nan_guard no_host_transfer no_recompile offload_optimizer on_sync "
        "place_to_device place_to_host plan process_count process_index reduce_gradient_in register_lowering "
        "register_units remat reshard residence save_checkpoint scan scan_layers shard_as shard_map show_sharding "
        "simulate suggest sync unreduced use use_sharding verify warm while_loop"
    ),
    spmd.checkpoint: (
        "CheckpointManager DamagedError ProcessPlan RandomState RestorePlan SaveError SaveReport bare_name fill_shards "
        "load_checkpoint load_orbax prime_optimizer save_checkpoint save_orbax"
    ),
    spmd.compat: "install uninstall",
    spmd.data: "DataLoader PackedDocuments",
    spmd.dtensor: (
        "ColwiseParallel DTensor DeviceMesh ParallelStyle Partial Placement PrepareModuleInput "
        "PrepareModuleInputOutput PrepareModuleOutput Replicate RowwiseParallel SequenceParallel Shard "
        "distribute_module distribute_tensor empty full init_device_mesh loss_parallel ones parallelize_module "
        "placements_of rand randn zeros"
    ),
    spmd.manual: (
        "all_gather all_reduce all_to_all axis_index axis_size broadcast collective_permute reduce_scatter shard_map"
    ),
    spmd.metrics: (
        "Collective CompileRecord Move clear compiles counter counter_names explain fallback_ops num_compiles "
        "num_loaded report timer trivial_dispatch_seconds"
    ),
    spmd.profiler: (
        "Hint StepMeter StepTrace Summary Trace capture hints lightning_callback start_server start_trace stop_server "
        "stop_trace summary trace trainer_callback"
    ),
    spmd.torch_xla: (
        "DeviceAttributes EinsumLinear HybridMesh MarkShardingFunction Mesh P PartitionSpec ShardingSpec ShardingType "
        "StableHLOExportOptions StableHLOGraphModule exported_program_to_stablehlo save_as_stablehlo "
        "save_torch_model_as_stablehlo XLAShard XLAShardedTensor add_step_closure annotate_custom_sharding "
        "apply_backward_optimization_barrier apply_xla_patch_to_nn_linear clear_sharding construct_v1_sharding_str "
        "device_attributes disable_manual_sharding enable_manual_sharding get_1d_mesh get_global_mesh mark_sharding "
        "mark_sharding_with_gradients mark_step optimization_barrier_ set_global_mesh shard_as stablehlo_custom_call "
        "unwrap_sharded_tensor visualize_sharding visualize_tensor_sharding wrap_as_sharded_tensor wrap_if_sharded"
    ),
    fsdp: (
        "CPUOffloadPolicy FSDPModule FullyShardedDataParallel MixedPrecisionPolicy OffloadPolicy Shown "
        "SpmdFullyShardedDataParallel UnshardHandle XlaFullyShardedDataParallel ZeroRedundancyOptimizer "
        "accumulate_gradients always_wrap_policy checkpoint_module consolidate_sharded_model_checkpoints "
        "consolidate_sharded_state_dicts fully_shard gradient_accumulation lambda_auto_wrap_policy load_checkpoint "
        "or_policy parameter_spec plan_units policy_from_config recursive_wrap "
        "register_fsdp_forward_method save_checkpoint show size_based_auto_wrap_policy summon_full_params "
        "transformer_auto_wrap_policy"
    ),
}  # fmt: skip

SIGNATURES = {
    spmd.Mesh: "(device_ids, mesh_shape=None, axis_names=None, *, target=None)",
    spmd.Mesh.size: "(self)",
    spmd.Mesh.shape: "(self)",
    spmd.Mesh.get_logical_mesh: "(self)",
    spmd.Mesh.get_axis_name_idx: "(self, name)",
    spmd.Mesh.sharding: "(self, partition_spec, rank, caller='sharding')",
    spmd.Mesh.get_jax_mesh: "(self)",
    spmd.Mesh.get_op_sharding: "(self, partition_spec)",
    spmd.Mesh.from_str: "(mesh_str)",
    spmd.Mesh.link: "(self, axis)",
    spmd.dtensor.DeviceMesh: "(device_type, mesh, *, mesh_dim_names=None, target=None)",
    spmd.dtensor.init_device_mesh: "(device_type, mesh_shape, *, mesh_dim_names=None, target=None)",
    spmd.HybridMesh: "(*, ici_mesh_shape, dcn_mesh_shape=None, axis_names=None, target=None)",
    spmd.torch_xla.ShardingSpec: "(mesh, partition_spec, minibatch=False)",
    spmd.torch_xla.get_1d_mesh: "(axis_name=None)",
    spmd.torch_xla.get_global_mesh: "()",
    spmd.torch_xla.set_global_mesh: "(mesh)",
    spmd.simulate: "(num_devices, *, slices=1)",
    spmd.PartitionSpec: "(*entries)",
    spmd.tensors.shards.Shard: "(data, indices, device, replica_id)",
    spmd.Sharding.mesh_axes: "(self)",
    spmd.Sharding.partition_spec: "(self, rank)",
    spmd.Sharding.shard_shape: "(self, shape)",
    spmd.Sharding.text: "(self, rank, *, iota=False)",
    spmd.manual.all_gather: "(tensor, dim=0, axis=(), tiled=True)",
    spmd.manual.all_reduce: "(tensor, op='sum', axis=())",
    spmd.manual.all_to_all: "(tensor, split_dim, concat_dim, axis=())",
    spmd.load_programs: "(path)",
    spmd.Plan.save_program: "(self, path)",
    spmd.manual.axis_index: "(axis)",
    spmd.manual.axis_size: "(axis)",
    spmd.manual.broadcast: "(tensor, source=0, axis=())",
    spmd.DataLoader: "(loader, mesh, spec, *, default=None, prefetch=2, last='keep', lengths=(), padding=0)",
    spmd.DataLoader.load_state_dict: "(self, state_dict)",
    spmd.DataLoader.set_epoch: "(self, epoch)",
    spmd.DataLoader.state_dict: "(self)",
    spmd.data.PackedDocuments: "(documents, length, *, split=False, padding=0)",
    spmd.data.PackedDocuments.load_state_dict: "(self, state_dict)",
    spmd.data.PackedDocuments.set_epoch: "(self, epoch)",
    spmd.data.PackedDocuments.state_dict: "(self)",
    spmd.call_jax: "(fn, *tensors, **static)",
    spmd.check: "(fn, *args, cpu=None)",
    spmd.kernel: "(function, words, *, sharded, backward=None)",
    spmd.clear_sharding: "(tensor)",
    spmd.manual.collective_permute: "(tensor, pairs, axis=())",
    spmd.cond: "(pred, true_fn, false_fn, operands=())",
    spmd.device: "(index=None)",
    spmd.device_ids: "()",
    spmd.torch_xla.construct_v1_sharding_str: "(t)",
    spmd.torch_xla.device_attributes: "(device_id, *, target=None)",
    spmd.torch_xla.disable_manual_sharding: "(tensor, partition_spec, full_shape, *, mesh=None)",
    spmd.eager: "()",
    spmd.torch_xla.enable_manual_sharding: "(tensor, partition_spec, *, mesh=None)",
    spmd.compat.install: "()",
    spmd.compat.uninstall: "()",
    spmd.checkpoint.fill_shards: "(tensor, read)",
    spmd.checkpoint.prime_optimizer: "(optimizer)",
    spmd.checkpoint.save_orbax: "(state, folder, *, nested=True, force=False)",
    spmd.checkpoint.load_orbax: "(state, folder, *, strict=True, rename=None)",
    spmd.CheckpointManager: (
        "(folder, save_interval=1, keep=None, *, async_=False, on_preemption=True, device_bytes=None)"
    ),
    spmd.CheckpointManager.all_steps: "(self)",
    spmd.CheckpointManager.latest_step: "(self)",
    spmd.CheckpointManager.plan_restore: "(self, state, step=None)",
    spmd.CheckpointManager.reached_preemption: "(self, step)",
    spmd.CheckpointManager.restore: "(self, state, step=None, *, skip_damaged=False)",
    spmd.CheckpointManager.save: "(self, step, state, *, force=False)",
    spmd.CheckpointManager.save_async: "(self, step, state, *, force=False)",
    spmd.CheckpointManager.should_save: "(self, step)",
    spmd.CheckpointManager.verify: "(self, step=None)",
    spmd.CheckpointManager.wait: "(self)",
    spmd.from_process_local: "(data, mesh, partition_spec)",
    spmd.full_state_dict: "(module)",
    spmd.full_tensor: "(tensor)",
    spmd.get_sharding: "(tensor)",
    spmd.get_stablehlo: "(tensors=None)",
    spmd.initialize: (
        "(coordinator_address=None, num_processes=None, process_id=None, *, local_device_count=None, "
        "heartbeat_timeout_seconds=30, initialization_timeout_seconds=300)"
    ),
    spmd.inspect: "(*tensors)",
    spmd.allow: "(*, above=65536, **kinds)",
    spmd.no_recompile: "(function=None, /, *, max_programs=0, allow_first=False)",
    spmd.show_sharding: "(what, shape=None)",
    spmd.tools.show.pictures.Picture.save: "(self, path)",
    spmd.tools.show.pictures.Picture.svg: "(self)",
    spmd.tools.show.pictures.Picture.text: "(self, *, use_color=False, scale=1.0, min_width=5, max_width=80)",
    spmd.torch_xla.visualize_sharding: "(sharding, use_color=True, scale=1.0, min_width=9, max_width=80)",
    spmd.torch_xla.visualize_tensor_sharding: "(t, use_color=True, scale=1.0, min_width=9, max_width=80)",
    spmd.linear_cross_entropy: (
        "(input, linear_weight, target, *, linear_bias=None, weight=None, reduction='mean', ignore_index=-100, "
        "label_smoothing=0.0, max_bytes=None)"
    ),
    spmd.load_checkpoint: "(module, path, *, strict=True, dtype=None, key=None, rename=None)",
    spmd.save_checkpoint: "(state, path, *, max_shard_size='5GB', metadata=None)",
    spmd.local_shards: "(tensor)",
    spmd.manual_seed: "(seed)",
    spmd.checkpoint.bare_name: "(name)",
    spmd.checkpoint_name: "(tensor, name)",
    spmd.mark_dynamic: "(tensor, dim, *, min=None, max=None)",
    spmd.mark_sharding: "(tensor, mesh=None, partition_spec=None, *, memory_kind=None, gradient=True)",
    spmd.torch_xla.add_step_closure: "(closure, args=(), run_async=False)",
    spmd.torch_xla.annotate_custom_sharding: "(tensor, mesh, partition_spec=None)",
    spmd.from_local_shards: "(shards, mesh, partition_spec=None, shape=None)",
    spmd.export: "(step, args=(), kwargs=None, *, platforms=None, custom_calls=())",
    spmd.Exported.save: "(self, path)",
    spmd.Exported.state: "(self)",
    spmd.Exported.stablehlo: "(self)",
    spmd.load_exported: "(path, mesh=None, *, custom_calls=())",
    spmd.LoadedProgram.save: "(self, path)",
    spmd.LoadedProgram.stablehlo: "(self)",
    spmd.torch_xla.exported_program_to_stablehlo: "(exported_model, options=None)",
    spmd.torch_xla.save_as_stablehlo: "(exported_model, stablehlo_dir, options=None)",
    spmd.torch_xla.save_torch_model_as_stablehlo: "(torchmodel, args, path, options=None)",
    spmd.get_hlo: "(tensors=None)",
    spmd.load_local_shards_: "(tensor, shards)",
    spmd.torch_xla.mark_sharding_with_gradients: "(tensor, mesh, partition_spec=None)",
    spmd.on_sync: "(function)",
    spmd.reshard: "(tensor, partition_spec, mesh=None, *, memory_kind=None, gradient=True)",
    spmd.residence: "(tensor)",
    spmd.shard_as: "(a, b)",
    spmd.torch_xla.unwrap_sharded_tensor: "(t)",
    spmd.torch_xla.wrap_as_sharded_tensor: "(t, mesh_shape=None, partition_spec=None, **unknown)",
    spmd.torch_xla.wrap_if_sharded: "(x)",
    spmd.offload_optimizer: "(optimizer)",
    spmd.place_to_device: "(tensor)",
    spmd.place_to_host: "(tensor)",
    spmd.remat: "(function, *, policy=None)",
    spmd.torch_xla.stablehlo_custom_call: (
        "(args, call_target, output_shapes, output_dtypes, has_side_effect=False, backend_config='', api_version=0, "
        "frontend_attributes=None)"
    ),
    spmd.torch_xla.mark_step: "(wait=False)",
    spmd.nan_guard: "(*, inf=True)",
    spmd.no_host_transfer: "()",
    spmd.plan: (
        "(step, *args, target=None, mesh=None, rules=None, compiler_options=None, check_marks=False, **kwargs)"
    ),
    spmd.Plan.diff: "(self, other)",
    spmd.Plan.from_json: "(text)",
    spmd.Plan.save: "(self, path)",
    spmd.Plan.to_json: "(self)",
    spmd.process_count: "()",
    spmd.process_index: "()",
    spmd.manual.reduce_scatter: "(tensor, op='sum', dim=0, axis=())",
    spmd.register_lowering: "(op, rule=None, *, promote=None)",
    spmd.scan: "(fn, init, xs=None, *, dim=0, reverse=False, length=None, policy=None)",
    spmd.assume_pure: "(fn, *, add_rng_seed_argument=False)",
    spmd.PureModule: "(module)",
    spmd.torch_xla.purity.assume_pure_torch: "(func, use_cache=False)",
    spmd.scan_layers: "(layers, x, *args, policy=None, **kwargs)",
    spmd.shard_map: "(fn=None, mesh=None, in_specs=None, out_specs=None, *, axis_names=None, check_vma=True)",
    spmd.sync: "(wait=False)",
    spmd.reduce_gradient_in: "(leaf, dtype)",
    spmd.ShardingRules: (
        "(rules=(), *, units=None, shard_axis='fsdp', extra_data_axis=None, reshard_after_forward=True, checkpoint=())"
    ),
    spmd.ShardingRules.apply: "(self, model, mesh=None, *, strict=True, **fsdp)",
    spmd.ShardingRules.of: "(model, config=None, *, fsdp='fsdp', tensor='tensor', expert=None)",
    spmd.ShardingRules.put: "(self, pattern, spec, *, before=None)",
    spmd.ShardingRules.without: "(self, pattern)",
    spmd.ShardingRules.load: "(path)",
    spmd.ShardingRules.save: "(self, path)",
    spmd.register_units: "(wrap, checkpoint, check_mark=None)",
    spmd.suggest: (
        "(step, *args, target=None, model=None, mp_policy=None, batches=None, grid=None, price=None, budget=600.0, "
        "max_trials=24, file=None, progress=True, **kwargs)"
    ),
    spmd.unreduced: "(gradients, mesh, batch_axes, over)",
    spmd.use: "()",
    spmd.verify: "(step, *args, meshes=(), rules=(), evidence=None, progress=True, **kwargs)",
    spmd.Verification.raise_on_difference: "(self)",
    spmd.Verification.save: "(self, path)",
    spmd.Verification.to_json: "(self)",
    spmd.use_sharding: "(tensors, mesh, partition_spec=None, *, over=None)",
    spmd.warm: "(step, *args, folder=None, mesh=None, rules=None, compiler_options=None, **kwargs)",
    spmd.while_loop: "(cond_fn, body_fn, carried_inputs)",
    spmd.profiler.capture: "(address, folder, seconds=1.0)",
    spmd.profiler.StepMeter: ("(items_per_step=0, *, unit='tokens', plan=None, flops=None, peak_flops=None)"),
    spmd.profiler.StepMeter.batches: "(self, loader)",
    spmd.profiler.StepMeter.lap: "(self, kind)",
    spmd.profiler.StepMeter.spent: "(self, kind)",
    spmd.profiler.hints: "()",
    spmd.profiler.lightning_callback: "(meter)",
    spmd.profiler.trainer_callback: "(meter)",
    spmd.profiler.start_server: "(port, host='127.0.0.1')",
    spmd.profiler.start_trace: "(folder, *, python=False)",
    spmd.profiler.stop_server: "()",
    spmd.profiler.stop_trace: "()",
    spmd.profiler.summary: "(folder, *, by='module')",
    spmd.profiler.trace: "(folder, *, python=False)",
    spmd.metrics.clear: "()",
    spmd.metrics.compiles: "()",
    spmd.metrics.counter: "(name)",
    spmd.metrics.counter_names: "()",
    spmd.metrics.explain: "(step=None, *, passes=False)",
    spmd.metrics.fallback_ops: "()",
    spmd.metrics.num_compiles: "()",
    spmd.metrics.num_loaded: "()",
    spmd.metrics.report: "()",
    spmd.metrics.timer: "(name)",
    fsdp.CPUOffloadPolicy: "(pin_memory=True)",
    fsdp.FSDPModule.reset_iter_state: "(self)",
    fsdp.FSDPModule.reshard: "(self)",
    fsdp.FSDPModule.set_gradient_divide_factor: "(self, factor)",
    fsdp.FSDPModule.set_reshard_after_forward: "(self, reshard_after_forward, recurse=True)",
    fsdp.FSDPModule.unshard: "(self, async_op=False)",
    fsdp.FullyShardedDataParallel: (
        "(module, mesh=None, *, auto_wrap_policy=None, extra_data_axis=None, shard_output=None, shard_axis='fsdp', "
        "ignored_modules=(), ignored_params=(), reshard_after_forward=True, "
        "mp_policy=MixedPrecisionPolicy(param_dtype=None, reduce_dtype=None, output_dtype=None, "
        "cast_forward_inputs=True, buffer_dtype=None), full_precision_modules=(), offload_policy=OffloadPolicy(), "
        "shard_placement_fn=None, min_shard_numel=0, param_init_fn=None, auto_wrapper_callable=None)"
    ),
    fsdp.FullyShardedDataParallel.clip_grad_norm_: (
        "(self, max_norm, norm_type=2.0, groups=None, *, error_if_nonfinite=False)"
    ),
    fsdp.FullyShardedDataParallel.no_sync: "(self, over=None)",
    fsdp.FullyShardedDataParallel.params_with_grad: "(self)",
    fsdp.FullyShardedDataParallel.set_gradient_divide_factors: "(self, pre, post, recursive)",
    fsdp.FullyShardedDataParallel.summon_full_params: (
        "(module, recurse=True, writeback=True, rank0_only=False, offload_to_cpu=False, with_grads=False)"
    ),
    fsdp.MixedPrecisionPolicy: (
        "(param_dtype=None, reduce_dtype=None, output_dtype=None, cast_forward_inputs=True, buffer_dtype=None)"
    ),
    fsdp.OffloadPolicy: "()",
    fsdp.XlaFullyShardedDataParallel: "(module, reshard_after_forward=True, *more, **how)",
    fsdp.accumulate_gradients: "(model, loss_fn, batch, num_micro_batches, *, carried=(), reduce='each')",
    fsdp.checkpoint_module: "(module, *, policy=None)",
    fsdp.fully_shard: (
        "(module, *, mesh=None, reshard_after_forward=None, shard_placement_fn=None, "
        "mp_policy=MixedPrecisionPolicy(param_dtype=None, reduce_dtype=None, output_dtype=None, "
        "cast_forward_inputs=True, buffer_dtype=None), offload_policy=OffloadPolicy(), ignored_params=None, "
        "dp_mesh_dims=None, shard_axis=None, extra_data_axis=None, min_shard_numel=0)"
    ),
    fsdp.gradient_accumulation: "(train_step, iterable_tensors, model, *carried)",
    fsdp.or_policy: "(module, recurse, nonwrapped_numel, policies)",
    fsdp.policy_from_config: "(config)",
    fsdp.register_fsdp_forward_method: "(module, method_name)",
    fsdp.show: "(model)",
    fsdp.summon_full_params: "(module, *, recurse=True, writeback=True, with_grads=False)",
    fsdp.consolidate_sharded_model_checkpoints: (
        "(ckpt_prefix, ckpt_suffix='_rank-*-of-*.pth', save_path='', save_model=True)"
    ),
    fsdp.consolidate_sharded_state_dicts: "(state_dict_list, shard_metadata)",
    fsdp.state_dict.get_model_state_dict: "(model, *, submodules=None, options=None)",
    fsdp.state_dict.get_optimizer_state_dict: "(model, optimizers, *, submodules=None, options=None)",
    fsdp.state_dict.get_state_dict: "(model, optimizers, *, submodules=None, options=None)",
    fsdp.state_dict.set_model_state_dict: "(model, model_state_dict, *, options=None)",
    fsdp.state_dict.set_optimizer_state_dict: "(model, optimizers, optim_state_dict, *, options=None)",
    fsdp.state_dict.set_state_dict: "(model, optimizers, *, model_state_dict, optim_state_dict, options=None)",
    fsdp.always_wrap_policy: "(module, recurse, nonwrapped_numel)",
    fsdp.lambda_auto_wrap_policy: "(module, recurse, nonwrapped_numel, lambda_fn)",
    fsdp.transformer_auto_wrap_policy: "(module, recurse, nonwrapped_numel, transformer_layer_cls)",
    fsdp.size_based_auto_wrap_policy: (
        "(module, recurse, nonwrapped_numel, min_num_params=100000000, force_leaf_modules=None, "
        "exclude_wrap_modules=None)"
    ),
    fsdp.parameter_spec: "(shape, axis, size, held=())",
    fsdp.plan_units: "(module, policy, ignored_modules=())",
}


def public(module: ModuleType) -> set[str]:
    return {name for name in dir(module) if not name.startswith("_") and not inspect.ismodule(getattr(module, name))}


def bare(function: object) -> str:
    """A signature without types."""
    signature = inspect.signature(function)
    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


class TestPublicApi:
    """The names that a script may use, with their signatures."""

    @pytest.mark.parametrize("module", NAMES, ids=lambda module: module.__name__)
    def test_names(self, module: ModuleType) -> None:
        assert public(module) == set(NAMES[module].split())

    @pytest.mark.parametrize(
        "module", [spmd.checkpoint, spmd.data, spmd.manual, spmd.torch_xla], ids=lambda module: module.__name__
    )
    def test_a_name_at_two_doors_is_one_object(self, module: ModuleType) -> None:
        both = public(module) & public(spmd)
        assert both and all(getattr(module, name) is getattr(spmd, name) for name in both)

    @pytest.mark.parametrize(
        "function", SIGNATURES, ids=lambda function: f"{function.__module__}.{function.__qualname__}"
    )
    def test_signature(self, function: object) -> None:
        assert bare(function) == SIGNATURES[function]

    def test_flags(self) -> None:
        flags = {line.split(" = ")[0] for line in repr(spmd.config).splitlines()}
        assert flags == {
            "calibration_file", "check_graphs", "check_replays", "check_shardings", "compiler_options", "fallback",
            "graphs_file",
            "hang_seconds", "hints", "loop_search_ops", "max_logits_bytes", "max_pending_ops", "max_program_ops",
            "module_paths", "moves_above", "num_slices", "op_table_size", "pad_lengths", "parallel", "partitioner",
            "print_graphs", "process_timeout_seconds", "program_cache", "program_cache_bytes", "program_cache_dir",
            "program_cache_size", "record_modules", "scan_layers", "slow_compile_seconds", "sync_on_read",
            "traceback_filtering",
        }  # fmt: skip

    def test_every_public_name_says_what_it_does(self) -> None:
        ours = [(name, getattr(module, name)) for module in NAMES for name in NAMES[module].split()]
        silent = [name for name, what in ours if not what.__doc__ and not what.__module__.startswith("torch.")]
        assert not silent


def _linear() -> nn.Linear:
    return nn.Linear(2, 2, bias=False)


def _value() -> torch.Tensor:
    return torch.ones(2, device="xla")


# What takes any keyword: each hands it on to what knows its keywords, or compares it with those that there are.
TAKING_KEYWORDS = {
    "spmd.ShardingRules.apply": lambda **given: spmd.ShardingRules({"weight": P()}).apply(
        _linear(), spmd.Mesh([0], (1,), ("fsdp",)), **given
    ),
    "spmd.torch_xla.XLAShardedTensor": lambda **given: spmd.torch_xla.XLAShardedTensor(_value(), **given),
    "spmd.torch_xla.wrap_as_sharded_tensor": lambda **given: spmd.torch_xla.wrap_as_sharded_tensor(_value(), **given),
    "spmd.call_jax": lambda **given: spmd.call_jax(lambda x: x, _value(), **given),
    "spmd.allow": lambda **given: spmd.allow(**given),
    "spmd.plan": lambda **given: spmd.plan(lambda: None, **given),
    "spmd.warm": lambda **given: spmd.warm(lambda: None, **given),
    "spmd.suggest": lambda **given: spmd.suggest(_linear(), lambda: None, **given),
    "spmd.verify": lambda **given: spmd.verify(lambda: None, meshes=[spmd.Mesh([0], (1,), ("data",))], **given),
    "spmd.scan_layers": lambda **given: spmd.scan_layers([_linear().to("xla")], _value(), **given),
    "spmd.dtensor.DTensor": lambda **given: spmd.dtensor.DTensor(_value(), **given),
    **{
        f"spmd.dtensor.{name}": lambda name=name, **given: getattr(spmd.dtensor, name)(2, **given)
        for name in ("empty", "ones", "rand", "randn", "zeros")
    },
    "spmd.dtensor.full": lambda **given: spmd.dtensor.full((2,), 1.0, **given),
    "fsdp.XlaFullyShardedDataParallel": lambda **given: fsdp.XlaFullyShardedDataParallel(_linear(), **given),
    "fsdp.ZeroRedundancyOptimizer": lambda **given: fsdp.ZeroRedundancyOptimizer(
        [_value()], torch.optim.SGD, lr=0.1, **given
    ),
    "fsdp.ZeroRedundancyOptimizer.step": lambda **given: fsdp.ZeroRedundancyOptimizer(
        [_value()], torch.optim.SGD, lr=0.1
    ).step(**given),
    "fsdp.recursive_wrap": lambda **given: fsdp.recursive_wrap(
        _linear(), fsdp.always_wrap_policy, fsdp.FullyShardedDataParallel, set(), set(), **given
    ),
}
# A function of autograd's, torch's setters without a meaning here, which warn, and rows of a trace with arguments.
TAKING_ALL = {
    "spmd.PureModule.forward", "spmd.torch_xla.MarkShardingFunction", "fsdp.FSDPModule",
    "fsdp.FullyShardedDataParallel.forward", "spmd.profiler.StepTrace", "spmd.profiler.Trace",
}  # fmt: skip


def takes_any_keyword(function: Any) -> bool:
    """True for a callable of ours with `**keywords`."""
    if not callable(function) or not str(getattr(function, "__module__", "")).startswith(("spmd", "fsdp")):
        return False
    if inspect.isclass(function) and issubclass(function, BaseException):  # these are raised; some have no signature
        return False
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds


class TestKeywords:
    """No public function swallows a keyword that nothing knows."""

    def test_all_are_listed(self) -> None:
        found = set()
        for module in NAMES:
            shown = {path: name for name, path in PATHS.items()}.get(module.__name__, module.__name__)
            for name in public(module):
                owner = getattr(module, name)
                methods = vars(owner).items() if inspect.isclass(owner) else ()
                for key, function in [("", owner), *((f".{key}", value) for key, value in methods if key[0] != "_")]:
                    if takes_any_keyword(function) and not key.startswith(".set_"):
                        found.add(f"{shown}.{name}{key}")
        assert found == {*TAKING_KEYWORDS, *TAKING_ALL}

    @pytest.mark.parametrize("name", TAKING_KEYWORDS)
    def test_unknown(self, name: str) -> None:
        with pytest.raises(TypeError, match="misspelt"):
            TAKING_KEYWORDS[name](misspelt=1)
