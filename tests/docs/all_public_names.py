"""Each public name as a typed program uses it.

`mypy --strict` reads this file; it is not run (test_typed.py).
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fsdp
import fsdp.state_dict
import spmd
from spmd.checkpoint import CheckpointManager
from spmd.compat import install
from spmd.data import PackedDocuments
from spmd.dtensor import Shard
from spmd.profiler import StepMeter
from spmd.torch_xla import ShardingSpec

Step = Callable[[Tensor], Tensor]


def meshes() -> spmd.Mesh:
    spmd.simulate(8, slices=2)
    slices: spmd.HybridMesh = spmd.HybridMesh(
        ici_mesh_shape=(2, 2), dcn_mesh_shape=(2, 1), axis_names=("data", "model")
    )
    ids: list[int] = spmd.device_ids()
    mesh = spmd.Mesh(ids, (2, 4), ("data", "model"))
    size: int = mesh.size() + slices.size()
    shape: dict[str | int, int] = mesh.shape()
    rest: spmd.PartitionSpec = spmd.PartitionSpec("data", None)
    return mesh if size and shape and rest == spmd.P("data", None) else slices


def shardings(mesh: spmd.Mesh, x: Tensor) -> str:
    x = spmd.mark_sharding(x.to(spmd.device()), mesh, spmd.P("data", None))
    y: Tensor = spmd.reshard(x, spmd.P(None, "model"), mesh)
    y, _ = spmd.shard_as(y, spmd.clear_sharding(x))
    sharding: spmd.Sharding | None = spmd.get_sharding(y)
    if sharding is not None:
        axes: Any = sharding.mesh_axes()
        shard: tuple[int, ...] = tuple(sharding.shard_shape(y.shape))
        print(axes, shard, spmd.dtensor.placements_of(sharding, 2))
    with spmd.use_sharding([x], mesh, spmd.P(None, None)):
        print(spmd.inspect(x).bytes_per_device, [one.residence for one in spmd.inspect(x, y)])
    spmd.show_sharding(x).save("x.svg")
    spmd.sync(wait=True)
    spmd.on_sync(print).remove()
    spmd.manual_seed(0)
    full: Tensor = spmd.full_tensor(x)
    shards = [shard.data for shard in spmd.local_shards(x)]
    spmd.load_local_shards_(x, shards)
    copy: Tensor = spmd.from_local_shards(shards, mesh, spmd.P("data", None))
    return spmd.residence(full + copy)


def rules(model: nn.Module, mesh: spmd.Mesh) -> spmd.ShardingRules:
    made = spmd.ShardingRules({"*.weight": spmd.P("model", None)}, units=("layers.*",))
    made.apply(model, mesh)

    def keep(module: nn.Module, **_: Any) -> nn.Module:
        return module

    spmd.register_units(keep, keep)
    return made


def planned(step: Step, model: nn.Module, batch: Tensor, mesh: spmd.Mesh) -> spmd.Plan:
    spmd.describe_gpu("ours", "description.txt", peak_flops=1e15, link_bytes=1e11)
    plan: spmd.Plan = spmd.plan(step, batch, target="v5e:2x4", mesh=mesh)
    programs: int = spmd.warm(step, batch, folder="programs") + spmd.load_programs(Path("programs"))
    print(plan.peak, programs, spmd.suggest(step, batch, target="v5e:2x4", model=model))
    return plan


def checked(step: Step, batch: Tensor, mesh: spmd.Mesh) -> spmd.Verification:
    with ExitStack() as stack:
        stack.enter_context(spmd.eager())
        stack.enter_context(spmd.nan_guard(inf=False))
        stack.enter_context(spmd.no_host_transfer())
        stack.enter_context(spmd.no_recompile(max_programs=1))
        stack.enter_context(spmd.allow(above=1024, all_gather=True))
        try:
            step(batch)
        except (
            spmd.RecompileError,
            spmd.CollectiveError,
            spmd.AbstractError,
            spmd.BodyError,
        ) as error:
            print(error)
    alone: Step = spmd.no_recompile(step)
    spmd.check(alone, batch)
    texts: list[str] = [spmd.explain(step), spmd.get_hlo([batch]), spmd.get_stablehlo([batch])]
    result: spmd.Verification = spmd.verify(step, batch, meshes=[mesh])
    print(texts, bool(result))
    return result


def compiled(step: Step, model: nn.Module, batch: Tensor) -> spmd.LoadedProgram:
    replayed: Step = spmd.compile(step)
    pure: Step = spmd.assume_pure(replayed)
    module: spmd.PureModule = spmd.PureModule(model)
    exported: spmd.Exported = spmd.export(pure, (module(batch),))
    exported.save("program")
    return spmd.load_exported("program")


def saved(model: nn.Module, optimizer: torch.optim.Optimizer, mesh: spmd.Mesh) -> CheckpointManager:
    manager: spmd.CheckpointManager = spmd.CheckpointManager("job", save_interval=10, keep=2)
    state: dict[str, Any] = {"model": model, "random": spmd.checkpoint.RandomState()}
    try:
        is_saved: bool = manager.save(10, state)
        report: spmd.checkpoint.SaveReport | None = manager.last_save
        plan: spmd.checkpoint.RestorePlan = manager.plan_restore(state)
        processes: tuple[spmd.checkpoint.ProcessPlan, ...] = plan.processes
        print(is_saved, report, processes)
    except (spmd.checkpoint.SaveError, spmd.checkpoint.DamagedError) as error:
        print(error)
    spmd.save_checkpoint(model, "model.safetensors", max_shard_size="5GB")
    missing, unexpected = spmd.load_checkpoint(model, "model.safetensors", strict=False)
    spmd.checkpoint.save_orbax(state, "orbax", force=True)
    print(
        missing, unexpected, spmd.checkpoint.load_orbax(state, "orbax"), spmd.full_state_dict(model)
    )
    spmd.checkpoint.prime_optimizer(spmd.offload_optimizer(optimizer))

    def read(indices: tuple[slice, ...]) -> Tensor:
        return torch.zeros(8)[indices]

    spmd.checkpoint.fill_shards(torch.empty(8, device="xla"), read)
    print(spmd.checkpoint.bare_name("_orig_mod.weight"), mesh)
    return manager


def loaded(documents: list[list[int]], mesh: spmd.Mesh) -> spmd.DataLoader:
    rows = spmd.data.PackedDocuments([torch.tensor(document) for document in documents], 128)
    loader = spmd.DataLoader(
        torch.utils.data.DataLoader(rows, batch_size=8), mesh, spmd.P("data", None)
    )
    for batch in loader:
        spmd.mark_dynamic(batch["tokens"], 1, max=128)
    return loader


def loops(layers: list[nn.Module], x: Tensor, target: Tensor) -> Tensor:
    def add(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return carry + row, carry

    total, sums = spmd.scan(add, x[0], x)
    try:
        x = spmd.scan_layers(layers, x)
    except spmd.LayersDifferError as error:
        print(error)
    (x,) = spmd.while_loop(lambda x: x.sum() < 8, lambda x: (x + 1,), (x,))
    x = spmd.cond(x.sum() > 0, lambda x: x, lambda x: -x, (x,))
    double = spmd.kernel(lambda x: x * 2, "n d -> n d", sharded="n")
    spmd.register_lowering(torch.ops.aten.relu.default, lambda x: x)
    x = spmd.call_jax(lambda x: x, double(x))
    return spmd.linear_cross_entropy(x + total + sums, layers[0].get_parameter("weight"), target)


def memory(block: nn.Module, x: Tensor) -> Tensor:
    policies = spmd.checkpoint_policies
    both = policies.save_from_both_policies("dots", policies.save_only_these_names("x"))
    print(policies.save_any_names_but_these("x"))
    print(
        policies.save_and_offload_only_these_names(
            names_which_can_be_saved=["x"], names_which_can_be_offloaded=["y"]
        )
    )
    print(policies.save_and_offload_only_these_ops)
    y: nn.Module = spmd.remat(block, policy=both)
    x = spmd.checkpoint_name(y(x), "x")
    return spmd.place_to_device(spmd.place_to_host(x))


def per_shard(mesh: spmd.Mesh, x: Tensor) -> Tensor:
    def body(x: Tensor) -> Tensor:
        manual = spmd.manual
        x = manual.all_reduce(x, "sum", axis="model")
        x = manual.reduce_scatter(
            manual.all_gather(x, dim=0, axis="model"), "sum", dim=0, axis="model"
        )
        x = manual.all_to_all(x, 0, 1, axis="model")
        x = manual.collective_permute(x, [(0, 1), (1, 0)], axis="model")
        size: int = manual.axis_size("model")
        index: Tensor = manual.axis_index("model")
        return manual.broadcast(x, source=0, axis="model") * index / size  # type: ignore[no-any-return]

    run = spmd.shard_map(body, mesh, in_specs=spmd.P("model"), out_specs=spmd.P("model"))
    print(spmd.manual.shard_map is spmd.shard_map)
    spmd.reduce_gradient_in(x, torch.float32)
    summands = spmd.unreduced([x], mesh, ("data",), ("data",))
    print(summands)
    result: Tensor = run(x)
    return result


def processes(mesh: spmd.Mesh, x: Tensor) -> Tensor:
    try:
        spmd.initialize("host:1234", num_processes=2, process_id=0)
    except spmd.ProcessError as error:
        print(error)
    rows = x.chunk(spmd.process_count())[spmd.process_index()]
    return spmd.from_process_local(rows, mesh, spmd.P("data", None))


def profiled(step: Step, batch: Tensor) -> spmd.profiler.Summary:
    profiler = spmd.profiler
    meter: spmd.profiler.StepMeter = profiler.StepMeter(8, unit="rows")
    with (
        profiler.trace("trace"),
        profiler.Trace("block"),
        profiler.StepTrace("train", step_num=1),
        meter.step(),
    ):
        step(batch)
    profiler.start_trace("trace", python=True)
    files: Path = profiler.stop_trace()
    port: int = profiler.start_server(0)
    print(profiler.capture(f"localhost:{port}", files, seconds=1), profiler.trainer_callback(meter))
    profiler.stop_server()
    hints: list[spmd.profiler.Hint] = profiler.hints()
    print(hints, profiler.lightning_callback(meter))
    return profiler.summary(files, by="op")


def measured() -> str:
    metrics = spmd.metrics
    records: list[spmd.metrics.CompileRecord] = metrics.compiles()
    traffic: list[spmd.metrics.Collective] = [row for record in records for row in record.traffic]
    moves: list[spmd.metrics.Move] = [move for record in records for move in record.moves]
    counts: dict[str, int] = {
        name: metrics.counter(name) for name in metrics.counter_names()
    } | metrics.fallback_ops()
    seconds: float = metrics.timer("compile") + metrics.trivial_dispatch_seconds()
    programs: int = metrics.num_compiles() + metrics.num_loaded()
    print(traffic, moves, counts, seconds, programs, metrics.explain(), spmd.config.partitioner)
    metrics.clear()
    return metrics.report()


def pytorch_xla(x: Tensor, model: nn.Module, program: torch.export.ExportedProgram) -> Any:
    xla = spmd.torch_xla
    mesh: spmd.Mesh | None = xla.get_global_mesh()
    xla.set_global_mesh(mesh or xla.get_1d_mesh("data"))
    spec: ShardingSpec = xla.ShardingSpec(
        xla.Mesh([0], (1,), ("data",)), xla.PartitionSpec("data", None)
    )
    kinds: list[spmd.torch_xla.ShardingType] = list(xla.ShardingType)
    shards: list[spmd.torch_xla.XLAShard] = spmd.local_shards(x)
    print(spec, kinds, shards, xla.HybridMesh, isinstance(x, xla.XLAShardedTensor))
    x = xla.wrap_as_sharded_tensor(xla.unwrap_sharded_tensor(xla.wrap_if_sharded(x)))
    x = xla.mark_sharding(xla.clear_sharding(x), mesh, xla.P("data", None))
    x = xla.mark_sharding_with_gradients(x, mesh, ("data", None))
    x = xla.annotate_custom_sharding(x, mesh, ("data", None))
    x = xla.MarkShardingFunction.apply(x, mesh, ("data", None))
    x, _ = xla.shard_as(x, x)
    part = xla.enable_manual_sharding(x, ("data", None), mesh=mesh)
    x = xla.disable_manual_sharding(part, ("data", None), (8, 8), mesh=mesh)
    print(
        xla.visualize_sharding(xla.construct_v1_sharding_str(x)), xla.visualize_tensor_sharding(x)
    )
    xla.add_step_closure(print, (x,))
    xla.mark_step()
    attributes: spmd.torch_xla.DeviceAttributes = xla.device_attributes(0)
    xla.optimization_barrier_([x])
    xla.apply_backward_optimization_barrier(model)
    linear: nn.Linear = xla.EinsumLinear(8, 8)
    print(attributes.kind, linear, xla.apply_xla_patch_to_nn_linear(model))
    options = xla.StableHLOExportOptions(save_weights=True)
    graph: spmd.torch_xla.StableHLOGraphModule = xla.exported_program_to_stablehlo(program, options)
    xla.save_as_stablehlo(program, "folder")
    xla.save_torch_model_as_stablehlo(model, (x,), "folder")
    return graph, xla.stablehlo_custom_call([x], "target", [(8, 8)], [torch.float32])


def dtensors(model: nn.Module) -> list[Tensor]:
    dtensor = spmd.dtensor
    mesh: spmd.dtensor.DeviceMesh = dtensor.init_device_mesh(
        "xla", (2, 4), mesh_dim_names=("data", "model")
    )
    placements: list[spmd.dtensor.Placement] = [dtensor.Shard(0), dtensor.Replicate()]
    x = dtensor.distribute_tensor(torch.zeros(8, 8), mesh, placements)
    print(
        isinstance(x, dtensor.DTensor),
        dtensor.Partial("sum"),
        dtensor.distribute_module(model, mesh),
    )
    plan: dict[str, spmd.dtensor.ParallelStyle] = {
        "up": dtensor.ColwiseParallel(),
        "down": dtensor.RowwiseParallel(),
        "norm": dtensor.SequenceParallel(),
        "in": dtensor.PrepareModuleInput(
            input_layouts=Shard(0), desired_input_layouts=dtensor.Replicate()
        ),
        "out": dtensor.PrepareModuleOutput(
            output_layouts=Shard(0), desired_output_layouts=dtensor.Replicate()
        ),
        "both": dtensor.PrepareModuleInputOutput(
            input_layouts=Shard(0),
            desired_input_layouts=Shard(0),
            output_layouts=Shard(0),
            desired_output_layouts=Shard(0),
        ),
    }
    dtensor.parallelize_module(model, mesh["model"], plan)
    with dtensor.loss_parallel():
        makers = (dtensor.empty, dtensor.ones, dtensor.rand, dtensor.randn, dtensor.zeros)
        makes = [make(8, 8, device_mesh=mesh, placements=placements) for make in makers]
    return [*makes, dtensor.full((8, 8), 1.0, device_mesh=mesh, placements=placements)]


def sharded(model: nn.Module, block: type[nn.Module], mesh: spmd.Mesh, batch: Tensor) -> nn.Module:
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    offload: fsdp.OffloadPolicy = fsdp.CPUOffloadPolicy()
    for part in model.children():
        fsdp.checkpoint_module(
            fsdp.fully_shard(part, mesh=mesh, mp_policy=policy, offload_policy=offload)
        )
    model = fsdp.fully_shard(model, mesh=mesh)
    if isinstance(model, fsdp.FSDPModule):
        handle: fsdp.UnshardHandle | None = model.unshard(async_op=True)
        print(handle)
    fsdp.register_fsdp_forward_method(model, "generate")
    shown: fsdp.Shown = fsdp.show(model)
    units: list[tuple[str, nn.Module]] = fsdp.plan_units(model, fsdp.always_wrap_policy)
    spec: spmd.PartitionSpec = fsdp.parameter_spec((8, 8), "fsdp", 8)
    with fsdp.summon_full_params(model, writeback=False):
        print(shown, units, spec, fsdp.policy_from_config({"min_num_params": 100}))
    loss: Tensor = fsdp.accumulate_gradients(
        model, nn.functional.mse_loss, (batch, batch), 4, reduce="once"
    )
    fsdp.gradient_accumulation(lambda x: x.sum(), (batch,), model)
    chosen: bool = fsdp.transformer_auto_wrap_policy(model, False, 0, {block})
    chosen |= fsdp.size_based_auto_wrap_policy(model, False, 0, min_num_params=100)
    chosen |= fsdp.lambda_auto_wrap_policy(
        model, False, 0, lambda module: isinstance(module, block)
    )
    chosen |= fsdp.or_policy(model, False, 0, [fsdp.always_wrap_policy])
    wrapped: fsdp.FullyShardedDataParallel = fsdp.FullyShardedDataParallel(model, mesh)
    norm: Tensor = wrapped.clip_grad_norm_(1.0)
    v1: nn.Module = fsdp.XlaFullyShardedDataParallel(model)
    v2: nn.Module = fsdp.SpmdFullyShardedDataParallel(model, mesh)
    model, count = fsdp.recursive_wrap(
        model, fsdp.always_wrap_policy, fsdp.FullyShardedDataParallel
    )
    print(loss, chosen, norm, v1, v2, count)
    return model


def sharded_state(model: nn.Module, mesh: spmd.Mesh) -> dict[str, Any]:
    optimizer: torch.optim.Optimizer = fsdp.ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, mesh=mesh, axis="data", lr=0.1
    )
    fsdp.save_checkpoint(model, "model.safetensors")
    fsdp.load_checkpoint(model, "model.safetensors")
    whole: dict[str, Tensor] = fsdp.consolidate_sharded_state_dicts([], {})
    whole, path = fsdp.consolidate_sharded_model_checkpoints("prefix")
    of_model = fsdp.state_dict.get_model_state_dict(model)
    of_optimizer = fsdp.state_dict.get_optimizer_state_dict(model, optimizer)
    of_model, of_optimizer = fsdp.state_dict.get_state_dict(model, optimizer)
    fsdp.state_dict.set_model_state_dict(model, of_model)
    fsdp.state_dict.set_optimizer_state_dict(model, optimizer, of_optimizer)
    fsdp.state_dict.set_state_dict(
        model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer
    )
    print(path)
    return whole


def frameworks() -> tuple[type, ...]:
    spmd.use()
    install()
    spmd.compat.install()
    spmd.compat.uninstall()
    return (PackedDocuments, StepMeter, spmd.checkpoint.CheckpointManager, spmd.data.DataLoader)


SAVED = (spmd.checkpoint.save_checkpoint, spmd.checkpoint.load_checkpoint)
