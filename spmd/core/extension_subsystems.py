"""Parts of the core as its extension door shows them: functions of one subject under one name."""

from typing import TypeAlias

from . import ops as _ops
from .aten import copies as _copies
from .base import counters as _counters
from .base import in_flight as _in_flight
from .base import interrupt as _interrupt
from .base import jax_private as _jax_private
from .base import state as _state
from .checks import hlo as _hlo
from .files import disk as _disk
from .files import stored as _stored
from .graph import graph as _graph
from .graph import lent as _lent
from .graph import meta as _meta
from .graph import op as _op
from .graph import rewrite as _rewrite
from .graph import source as _source
from .graph import store as _store
from .loop import loop_counter as _loop_counter
from .loop import loop_op as _loop_op
from .loop import updates as _updates
from .lower import build as _build
from .lower import lower as _lower
from .lower import region as _region
from .ops import attention as _attention
from .ops import floats as _floats
from .ops import linear_cross_entropy as _linear_cross_entropy
from .ops import partition as _partition
from .ops import registry as _registry
from .ops import shape as _shape
from .ops import sharded as _sharded
from .ops import windows as _windows
from .ops.kernels import computed as _computed
from .ops.kernels import cudnn as _cudnn
from .ops.kernels import grouped as _grouped
from .ops.kernels import splash as _splash
from .passes import cuts as _cuts
from .passes import dynamic as _dynamic
from .passes import on_host as _on_host
from .passes import repeats as _repeats
from .programs import cache as _cache
from .programs import compile_log as _compile_log
from .programs import compiler as _compiler
from .programs import failing as _failing
from .programs import program as _program
from .propagation import walk as _walk
from .record import body as _body
from .record import call as _call
from .record import overloads as _overloads
from .record import reads as _reads
from .record import record as _record
from .record import recorders as _recorders
from .record import resolve as _resolve
from .record import storage as _storage
from .record import tensor as _tensor
from .record import threads as _threads
from .record import views as _views
from .record import watching as _watching
from .run import executables as _executables
from .run import execute as _execute
from .run import failed as _failed
from .run import initialization as _initialization
from .run import prepare as _prepare
from .run import recording as _recording
from .run import schedule as _schedule
from .run import syncs as _syncs
from .run.pjrt import host as _host
from .sharding import constrain as _constrain
from .sharding import partitioner as _partitioner
from .sharding import topology as _topology
from .step import objects as _objects
from .step import saved_state as _saved_state
from .step import state_names as _state_names


class body:  # used as a module is
    """Functions recorded on stand-ins: bodies."""

    inside, names, on_stand_ins, stand_in = _body.inside, _body.names, _body.on_stand_ins, _body.stand_in


class recordings:  # used as a module is
    """Calls recorded without data."""

    recorded = _recording.recorded


class abstract_calls:  # used as a module is
    """Calls of a step without data, and the user's objects restored behind them."""

    abstractly, kept, restore_module = _saved_state.abstractly, _saved_state.kept, _saved_state.restore_module


class reached:  # used as a module is
    """The objects that a function reaches, beyond their classes."""

    LIBRARIES, is_same, missing, outermost = _objects.LIBRARIES, _objects.is_same, _objects.missing, _objects.outermost
    Held: TypeAlias = _objects.Held
    Named: TypeAlias = _state_names.Named


class executables:  # used as a module is
    """Programs of subgraphs, found, made and launched."""

    buffer_of, formed, launch = _executables.buffer_of, _executables.formed, _executables.launch
    planned_for = _executables.planned_for
    full_store, stacked, store_of = _executables.full_store, _executables.stacked, _executables.store_of
    file_of, why_not_kept = _stored.file_of, _stored.why_not_kept
    cause, find, most_similar, num_equal = _cache.cause, _cache.find, _cache.most_similar, _cache.num_equal
    part = _cache.part
    explain = _failing.explain
    num_flops, short = _program.num_flops, _compile_log.short
    compile_graph = _compiler.compile_graph


class dynamic:  # used as a module is
    """Ops that differ from run to run: by their places in the code, computed by the host, of padded data."""

    START, NAMES, add, dims_of = _dynamic.START, _dynamic.NAMES, _dynamic.add, _dynamic.dims_of
    dynamic_start_positions = _dynamic.dynamic_start_positions
    note_dynamic_start = _dynamic.note_dynamic_start
    LARGEST, compute, constant = _on_host.LARGEST, _on_host.compute, _on_host.constant
    has_host_kernel = _on_host.has_host_kernel
    is_forbidden = _host.is_forbidden
    KEPT, unpadded_view = _dynamic.KEPT, _dynamic.unpadded_view


class schedule:  # used as a module is
    """The order of a sync: roots, subgraphs, their runs."""

    by_mesh = _schedule.by_mesh
    graph_of, roots_of, run = _execute.graph_of, _execute.roots_of, _execute.run
    run_schedule = _execute.run_schedule
    between = _prepare.between
    initialize_state = _initialization.initialize_state
    give_up, guard = _failed.give_up, _execute.guard
    bring, meshes_met = _schedule.bring, _schedule.meshes_met


class calls:  # used as a module is
    """Aten calls: their kinds, plans and lowerings."""

    VIEW, is_foreach, kind_of = _overloads.VIEW, _overloads.is_foreach, _overloads.kind_of
    PLANS, SPECIALS, new_plan = _resolve.PLANS, _resolve.SPECIALS, _resolve.new_plan
    no_rule = _resolve.no_rule
    HOST_HANDLERS = _copies.HOST_HANDLERS
    dispatch = _call.dispatch
    fill = _overloads.fill


class stretches:  # used as a module is
    """Ops of a graph that repeat."""

    element_chains = _updates.element_chains
    numbered, repeated, symbol = _repeats.numbered, _repeats.repeated, _repeats.symbol
    carried_bytes, cuts = _cuts.carried_bytes, _cuts.stretches
    is_within_line = _cuts.is_within_line


class regions:  # used as a module is
    """Ops with a body."""

    body_numbers, draws_in, is_annotation = _region.body_numbers, _op.draws_in, _region.is_annotation
    kinds_of = _region.kinds_of
    called_op = _region.called_op
    build = _build.build
    has_complex, hide = _program.has_complex, _partitioner.hide
    EACH = _loop_counter.EACH
    loop_op = _loop_op.loop_op
    constrain, cut, on_device = _constrain.constrain, _constrain.cut, _constrain.on_device
    wait_for_all = _constrain.wait_for_all
    lower_region, unreported = _lower.lower_region, _lower.unreported
    region_op = _region.region_op


class persistent:  # used as a module is
    """The setting that a program file is of, and its owner."""

    process, readable = _disk.process, _disk.readable
    file_of_stack = _disk.file_of_stack
    listing = _program.listing


class running:  # used as a module is
    """Room for programs in flight, and signals that wait."""

    later = _interrupt.later
    is_done, make_room, started = _in_flight.is_done, _in_flight.make_room, _in_flight.started
    Started: TypeAlias = _in_flight.Started
    spare = _lent.spare
    end_recording, note_op = _counters.end_recording, _counters.note_op
    Watch: TypeAlias = _syncs.Watch


class rules:  # used as a module is
    """Rules of ops, and functions that they share."""

    RULES, ON_CPU = _ops.RULES, _ops.ON_CPU
    blocks = _sharded.blocks
    wide, as_promised = _floats.wide, _registry.as_promised
    CHUNKS = _linear_cross_entropy.CHUNKS
    spmd_linear_cross_entropy = _linear_cross_entropy.spmd_linear_cross_entropy
    spmd_linear_cross_entropy_backward = _linear_cross_entropy.spmd_linear_cross_entropy_backward
    run_of = _shape.run_of
    per_dim = _windows.per_dim
    aten_slice = _shape.aten_slice
    SUMS = _sharded.SUMS
    lower = _registry.lower


class partitioning:  # used as a module is
    """Partition rules of ops, and the known shardings that they ask for."""

    WORDS = _walk.WORDS
    partition, per_shard = _partition.partition, _partition.per_shard
    axes_of_dims, in_front, note_unused = _sharded.axes_of_dims, _sharded.in_front, _sharded.note_unused
    reshaped, same = _sharded.reshaped, _sharded.same
    of_rows, of_groups = _grouped.of_rows, _grouped.of_groups
    sizes_of, computed_rows, platform = _grouped.sizes_of, _grouped.computed_rows, _sharded.platform
    mesh, note_finding, num_shards = _sharded.mesh, _sharded.note_finding, _sharded.num_shards


class storages:  # used as a module is
    """Storages and tensors, beyond what one tensor says."""

    ASIDE, take_up = _storage.ASIDE, _storage.take_up
    OURS, tensors_of = _tensor.OURS, _tensor.tensors_of
    watcher, watching, recorded = _watching.watcher, _watching.watching, _watching.recorded
    UNDO, forget_reads = _storage.UNDO, _storage.forget_reads
    is_run_here, longest_step = _recorders.is_run_here, _recorders.longest_step
    has_several_recorders = _recorders.has_several_recorders
    LIVE = _storage.LIVE
    UndoLog: TypeAlias = _storage.UndoLog
    pending = _storage.pending
    set_storage = _tensor.set_storage
    Store: TypeAlias = _store.Store


class user_lines:  # used as a module is
    """Lines of the user, and what the program calls its values."""

    describe, forward_line, is_library = _source.describe, _source.forward_line, _source.is_library
    line_of, lines_of, node_line = _source.line_of, _source.lines_of, _source.node_line
    place_of, plain_name, source_of = _source.place_of, _source.plain_name, _source.source_of


class walks:  # used as a module is
    """Walks over a graph and its values."""

    UNPADDED, between, buffers_of = _graph.UNPADDED, _graph.between, _store.buffers_of
    depending, is_data, next_serial = _graph.depending, _graph.is_data, _store.next_serial
    origin, pack_numbers, refill = _graph.origin, _graph.pack_numbers, _store.refill
    replace_operands, result_index, results = _graph.replace_operands, _graph.result_index, _graph.results
    rewrite = _rewrite.rewrite
    topological, up_to, value_name = _graph.topological, _graph.up_to, _graph.value_name
    intern_meta = _meta.intern_meta
    meta_of = _meta.meta_of


class record_calls:  # used as a module is
    """Ops recorded by hand."""

    graph_task, record, record_here = _record.graph_task, _record.record, _record.record_here
    operand, record_op = _reads.operand, _reads.record_op
    join, latest_generation, next_generation = _reads.join, _reads.latest_generation, _reads.next_generation
    read_in = _reads.read_in
    enter_thread = _threads.enter_thread
    read, write = _views.read, _views.write
    keep, renew = _reads.keep, _reads.renew
    at_once = _record.at_once


class attention:  # used as a module is
    """Attention: the forms of it on one device, and the devices that compute it."""

    Place = _splash.AttentionDevices
    batched, of_four_dims, scale_of = _attention._batched, _attention._of_four_dims, _attention._scale
    Block, is_computed = _computed.Block, _computed.is_computed
    blocks_forward, blocks_backward = _attention._long_forward, _attention._long_backward
    cudnn_takes, cudnn_forward, cudnn_backward = _cudnn.takes, _cudnn._forward, _cudnn._backward
    splash_takes, splash_forward, splash_backward = _splash.takes, _splash._forward, _splash._backward
    when_lowered = _splash._when_lowered


class jax_facts:  # used as a module is
    """Private names of jax, and the devices of a program that is lowered."""

    compile_lowered = _jax_private.compile_lowered
    distributed_state = _jax_private.distributed_state
    use_shardy_partitioner = _jax_private.use_shardy_partitioner
    without_shardings = _jax_private.without_shardings
    program_devices = _topology.program_devices


class observed:  # used as a module is
    """Notes on a recorded call: its numbers and draws."""

    DrawNumber: TypeAlias = _state.DrawNumber
    Observation: TypeAlias = _state.Observation
    Scalar: TypeAlias = _state.Scalar


class hlo_text:  # used as a module is
    """Shapes in a program's text."""

    arrays = _hlo.arrays
    num_bytes = _hlo.num_bytes
