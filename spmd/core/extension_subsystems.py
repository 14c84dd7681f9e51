"""Parts of the core as its extension door shows them: functions of one subject under one name."""

from typing import TypeAlias

from . import ops
from .aten import copies, fused
from .base import counters, in_flight, interrupt, jax_private, state
from .checks import hlo
from .files import disk, stored
from .graph import graph, lent, meta, op, rewrite, source, store
from .loop import loop_counter, loop_op, updates
from .lower import build, lower, region, stack_rows
from .ops import attention as _attention
from .ops import floats, linear_cross_entropy, partition, registry, shape, sharded, windows
from .ops.kernels import computed, cudnn, grouped, splash
from .passes import cuts, on_host, repeats
from .passes import dynamic as _dynamic
from .programs import cache, compile_log, compiler, failing, program
from .propagation import walk
from .record import body as _body
from .record import call, overloads, reads, record, recorders, resolve, storage, tensor, threads, views, watching
from .run import executables as _executables
from .run import execute, failed, initialization, prepare, recording, syncs
from .run import schedule as _schedule
from .run.pjrt import host
from .sharding import constrain, partitioner, topology, uneven_writes
from .step import contents, objects, saved_state, state_names


class body:  # used as a module is
    """Functions recorded on stand-ins: bodies."""

    inside, names, on_stand_ins, stand_in = _body.inside, _body.names, _body.on_stand_ins, _body.stand_in


class recordings:  # used as a module is
    """Calls recorded without data."""

    recorded = recording.recorded


class abstract_calls:  # used as a module is
    """Calls of a step without data, and the user's objects restored behind them."""

    abstractly, kept, restore_module = saved_state.abstractly, saved_state.kept, saved_state.restore_module


class reached:  # used as a module is
    """The objects that a function reaches, beyond their classes."""

    LIBRARIES, is_same, missing, outermost = objects.LIBRARIES, contents.is_same, contents.missing, objects.outermost
    names_in = objects.names_in
    Held: TypeAlias = contents.Held
    Named: TypeAlias = state_names.Named


class executables:  # used as a module is
    """Programs of subgraphs, found, made and launched."""

    buffer_of, formed, launch = _executables.buffer_of, _executables.formed, _executables.launch
    planned_for = _executables.planned_for
    full_store, stacked, store_of = _executables.full_store, _executables.stacked, _executables.store_of
    file_of, why_not_kept = stored.file_of, stored.why_not_kept
    cause, find, most_similar, num_equal = cache.cause, cache.find, cache.most_similar, cache.num_equal
    part = cache.part
    explain = failing.explain
    num_flops, short = program.num_flops, compile_log.short
    compile_graph = compiler.compile_graph


class dynamic:  # used as a module is
    """Ops that differ from run to run: by their places in the code, computed by the host, of padded data."""

    START, NAMES, add, dims_of = _dynamic.START, _dynamic.NAMES, _dynamic.add, _dynamic.dims_of
    dynamic_start_positions, note_dynamic_start = _dynamic.dynamic_start_positions, _dynamic.note_dynamic_start
    KEPT, unpadded_view = _dynamic.KEPT, _dynamic.unpadded_view
    LARGEST, compute, constant = on_host.LARGEST, on_host.compute, on_host.constant
    has_host_kernel = on_host.has_host_kernel
    is_forbidden = host.is_forbidden


class schedule:  # used as a module is
    """The order of a sync: roots, subgraphs, their runs."""

    by_mesh, bring, meshes_met = _schedule.by_mesh, _schedule.bring, _schedule.meshes_met
    graph_of, roots_of, run, run_schedule = execute.graph_of, execute.roots_of, execute.run, execute.run_schedule
    between = prepare.between
    initialize_state = initialization.initialize_state
    give_up, guard = failed.give_up, execute.guard


class calls:  # used as a module is
    """Aten calls: their kinds, plans and lowerings."""

    VIEW, is_foreach, kind_of, fill = overloads.VIEW, overloads.is_foreach, overloads.kind_of, overloads.fill
    PLANS, SPECIALS, new_plan, no_rule = resolve.PLANS, resolve.SPECIALS, resolve.new_plan, resolve.no_rule
    HOST_HANDLERS = copies.HOST_HANDLERS
    dispatch = call.dispatch


class stretches:  # used as a module is
    """Ops of a graph that repeat."""

    element_chains = updates.element_chains
    numbered, repeated, symbol = repeats.numbered, repeats.repeated, repeats.symbol
    carried_bytes, is_within_line, cuts = cuts.carried_bytes, cuts.is_within_line, cuts.stretches


class regions:  # used as a module is
    """Ops with a body."""

    body_numbers, is_annotation, kinds_of = region.body_numbers, region.is_annotation, region.kinds_of
    called_op, region_op, draws_in = region.called_op, region.region_op, op.draws_in
    contains_function, ANY_MEMORY = op.contains_function, stack_rows.ANY_MEMORY
    build = build.build
    has_complex, hide, pad_scatters = program.has_complex, partitioner.hide, uneven_writes.pad_scatters
    EACH, loop_op = loop_counter.EACH, loop_op.loop_op
    cut, on_device, wait_for_all = constrain.cut, constrain.on_device, constrain.wait_for_all
    constrain = constrain.constrain
    lower_region, unreported = lower.lower_region, lower.unreported


class persistent:  # used as a module is
    """The setting that a program file is of, and its owner."""

    process, readable = disk.process, disk.readable
    file_of_stack, given_content = disk.file_of_stack, disk.given_content
    listing = program.listing


class running:  # used as a module is
    """Room for programs in flight, and signals that wait."""

    later = interrupt.later
    is_done, make_room, started = in_flight.is_done, in_flight.make_room, in_flight.started
    Started: TypeAlias = in_flight.Started
    spare = lent.spare
    end_recording, note_op = counters.end_recording, counters.note_op
    Watch: TypeAlias = syncs.Watch


class rules:  # used as a module is
    """Rules of ops, and functions that they share."""

    RULES, ON_CPU = ops.RULES, ops.ON_CPU
    SUMS = sharded.SUMS
    wide = floats.wide
    as_promised, lower = registry.as_promised, registry.lower
    CHUNKS, spmd_linear_cross_entropy = linear_cross_entropy.CHUNKS, linear_cross_entropy.spmd_linear_cross_entropy
    spmd_linear_cross_entropy_backward = linear_cross_entropy.spmd_linear_cross_entropy_backward
    run_of, aten_slice = shape.run_of, shape.aten_slice
    per_dim = windows.per_dim


class losses:  # used as a module is
    """Losses that are one op with a gradient of their own."""

    IN_TORCHS_OPS, takes_torchs_ops = fused.IN_TORCHS_OPS, fused.takes_torchs_ops
    Loss: TypeAlias = fused.Loss
    LossKind: TypeAlias = fused.LossKind


class partitioning:  # used as a module is
    """Partition rules of ops, and the known shardings that they ask for."""

    WORDS = walk.WORDS
    partition, per_shard = partition.partition, partition.per_shard
    axes_of_dims, in_front, note_unused = sharded.axes_of_dims, sharded.in_front, sharded.note_unused
    reshaped, same = sharded.reshaped, sharded.same
    of_rows, of_groups = grouped.of_rows, grouped.of_groups
    sizes_of, computed_rows, platform = grouped.sizes_of, grouped.computed_rows, sharded.platform
    mesh, note_finding, num_shards = sharded.mesh, sharded.note_finding, sharded.num_shards


class storages:  # used as a module is
    """Storages and tensors, beyond what one tensor says."""

    ASIDE, take_up, UNDO, forget_reads = storage.ASIDE, storage.take_up, storage.UNDO, storage.forget_reads
    LIVE, pending = storage.LIVE, storage.pending
    set_storage = tensor.set_storage
    watcher, recorded, watching = watching.watcher, watching.recorded, watching.watching
    is_run_here, longest_step = recorders.is_run_here, recorders.longest_step
    has_several_recorders = recorders.has_several_recorders
    UndoLog: TypeAlias = storage.UndoLog
    Store: TypeAlias = store.Store


class user_lines:  # used as a module is
    """Lines of the user, and what the program calls its values."""

    describe, forward_line, is_library = source.describe, source.forward_line, source.is_library
    line_of, lines_of, node_line, source_of = source.line_of, source.lines_of, source.node_line, source.source_of
    place_of, plain_name = source.place_of, source.plain_name


class walks:  # used as a module is
    """Walks over a graph and its values."""

    UNPADDED, between, depending, is_data = graph.UNPADDED, graph.between, graph.depending, graph.is_data
    origin, pack_numbers, replace_operands = graph.origin, graph.pack_numbers, graph.replace_operands
    result_index, results, topological, up_to = graph.result_index, graph.results, graph.topological, graph.up_to
    value_name = graph.value_name
    buffers_of, next_serial, refill = store.buffers_of, store.next_serial, store.refill
    rewrite = rewrite.rewrite
    intern_meta, meta_of = meta.intern_meta, meta.meta_of


class record_calls:  # used as a module is
    """Ops recorded by hand."""

    graph_task, record_here, at_once, record = record.graph_task, record.record_here, record.at_once, record.record
    operand, record_op, join, latest_generation = reads.operand, reads.record_op, reads.join, reads.latest_generation
    next_generation, read_in, keep, renew = reads.next_generation, reads.read_in, reads.keep, reads.renew
    enter_thread = threads.enter_thread
    read, write = views.read, views.write


class attention:  # used as a module is
    """Attention: the forms of it on one device, and the devices that compute it."""

    Place, when_lowered = splash.AttentionDevices, splash._when_lowered
    splash_takes, splash_forward, splash_backward = splash.takes, splash._forward, splash._backward
    batched, of_four_dims, scale_of = _attention._batched, _attention._of_four_dims, _attention._scale
    blocks_forward, blocks_backward = _attention._long_forward, _attention._long_backward
    Block, is_computed = computed.Block, computed.is_computed
    cudnn_takes, cudnn_forward, cudnn_backward = cudnn.takes, cudnn._forward, cudnn._backward


class jax_facts:  # used as a module is
    """Private names of jax, and the devices of a program that is lowered."""

    compile_lowered, distributed_state = jax_private.compile_lowered, jax_private.distributed_state
    use_shardy_partitioner, without_shardings = jax_private.use_shardy_partitioner, jax_private.without_shardings
    stable_custom_calls, custom_calls = jax_private.stable_custom_calls, jax_private.custom_calls
    program_devices = topology.program_devices


class observed:  # used as a module is
    """Notes on a recorded call: its numbers and draws."""

    DrawNumber: TypeAlias = state.DrawNumber
    Observation: TypeAlias = state.Observation
    Scalar: TypeAlias = state.Scalar


class hlo_text:  # used as a module is
    """Shapes in a program's text."""

    arrays, num_bytes = hlo.arrays, hlo.num_bytes
