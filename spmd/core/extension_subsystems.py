"""Parts of the core as its extension door shows them: functions of one subject under one name."""

from . import ops as _ops
from .aten import copies as _copies
from .base import in_flight as _in_flight
from .base import interrupt as _interrupt
from .base import sealed_json as _sealed_json
from .base import spans as _spans
from .graph import graph as _graph
from .graph import lent as _lent
from .graph import module_paths as _module_paths
from .graph import source as _source
from .loop import loop_counter as _loop_counter
from .loop import loop_op as _loop_op
from .lower import build as _build
from .lower import called as _called
from .lower import constants as _constants
from .lower import lower as _lower
from .lower import region as _region
from .ops import blocks as _blocks
from .ops import collective as _collective
from .ops import dynamic_start as _dynamic_start
from .ops import floats as _floats
from .ops import linear_cross_entropy as _linear_cross_entropy
from .ops import partial as _partial
from .ops import partition as _partition
from .ops import registry as _registry
from .ops import shape as _shape
from .ops import sharded as _sharded
from .ops import windows as _windows
from .passes import dynamic_places as _dynamic_places
from .passes import long_graphs as _long_graphs
from .passes import nans as _nans
from .passes import on_host as _on_host
from .passes import scan_layers as _scan_layers
from .passes import stretches as _stretches
from .passes import unpadded as _unpadded
from .programs import cache as _cache
from .programs import compile_log as _compile_log
from .programs import compiler as _compiler
from .programs import failing as _failing
from .programs import stored as _stored
from .programs.persistent import setting as _setting
from .propagation import words as _words
from .record import body as _body
from .record import call as _call
from .record import lowerings as _lowerings
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
from .run import abstract as _abstract
from .run import executables as _executables
from .run import execute as _execute
from .run import failed as _failed
from .run import initialization as _initialization
from .run import placement as _placement
from .run import prepare as _prepare
from .run import schedule as _schedule
from .run.pjrt import host as _host
from .sharding import constrain as _constrain


class reads:  # used as a module is
    """The shardings in which ops read a tensor."""

    next_generation = staticmethod(_reads.next_generation)


class body:  # used as a module is
    """Functions recorded on stand-ins: bodies."""

    inside = staticmethod(_body.inside)
    names = staticmethod(_body.names)
    on_stand_ins = staticmethod(_body.on_stand_ins)
    stand_in = staticmethod(_body.stand_in)


class recordings:  # used as a module is
    """Calls recorded without data."""

    recorded = staticmethod(_abstract.recorded)


class executables:  # used as a module is
    """Programs of subgraphs, found, made and launched."""

    formed = staticmethod(_executables.formed)
    launch = staticmethod(_executables.launch)
    planned_for = staticmethod(_executables.planned_for)
    file_of = staticmethod(_stored.file_of)
    why_not_kept = staticmethod(_stored.why_not_kept)
    cause = staticmethod(_cache.cause)
    find = staticmethod(_cache.find)
    most_similar = staticmethod(_cache.most_similar)
    num_equal = staticmethod(_cache.num_equal)
    part = staticmethod(_cache.part)
    explain = staticmethod(_failing.explain)
    num_flops = staticmethod(_compile_log.num_flops)
    short = staticmethod(_compile_log.short)
    compile_graph = staticmethod(_compiler.compile_graph)


class nans:  # used as a module is
    """The search for the op that makes a NaN or an infinity."""

    INFINITE = _nans.INFINITE
    NAN = _nans.NAN
    guard = _nans.guard


class dynamic:  # used as a module is
    """Ops that differ from run to run: by their places in the code, computed by the host, of padded data."""

    START = _dynamic_places.START
    add = staticmethod(_dynamic_places.add)
    dims_of = staticmethod(_dynamic_places.dims_of)
    dynamic_start_positions = staticmethod(_dynamic_places.dynamic_start_positions)
    note_dynamic_start = staticmethod(_dynamic_places.note_dynamic_start)
    has_host_kernel = staticmethod(_on_host.has_host_kernel)
    is_forbidden = staticmethod(_host.is_forbidden)
    KEPT = _unpadded.KEPT
    unpadded_view = staticmethod(_unpadded.unpadded_view)


class schedule:  # used as a module is
    """The order of a sync: roots, subgraphs, their runs."""

    by_mesh = staticmethod(_schedule.by_mesh)
    graph_of = staticmethod(_execute.graph_of)
    roots_of = staticmethod(_execute.roots_of)
    run = staticmethod(_execute.run)
    run_schedule = staticmethod(_execute.run_schedule)
    between = staticmethod(_prepare.between)
    initialize_state = staticmethod(_initialization.initialize_state)
    give_up = staticmethod(_failed.give_up)
    bring = staticmethod(_placement.bring)
    meshes_met = staticmethod(_placement.meshes_met)


class calls:  # used as a module is
    """Aten calls: their kinds, plans and lowerings."""

    VIEW = _overloads.VIEW
    is_foreach = staticmethod(_overloads.is_foreach)
    kind_of = staticmethod(_overloads.kind_of)
    PLANS = _resolve.PLANS
    SPECIALS = _resolve.SPECIALS
    new_plan = staticmethod(_resolve.new_plan)
    no_rule = staticmethod(_resolve.no_rule)
    HOST_HANDLERS = _copies.HOST_HANDLERS
    dispatch = staticmethod(_call.dispatch)
    fill = staticmethod(_lowerings.fill)


class stretches:  # used as a module is
    """Ops of a graph that repeat."""

    numbered = staticmethod(_stretches.numbered)
    repeated = staticmethod(_stretches.repeated)
    symbol = staticmethod(_stretches.symbol)
    carried_bytes = staticmethod(_long_graphs.carried_bytes)
    cuts = staticmethod(_long_graphs.stretches)
    is_within_line = staticmethod(_long_graphs.is_within_line)
    why_not = staticmethod(_scan_layers.why_not)


class regions:  # used as a module is
    """Ops with a body."""

    body_numbers = staticmethod(_region.body_numbers)
    draws_in = staticmethod(_region.draws_in)
    is_annotation = staticmethod(_region.is_annotation)
    kinds_of = staticmethod(_region.kinds_of)
    called_op = staticmethod(_called.called_op)
    build = staticmethod(_build.build)
    has_complex = staticmethod(_constants.has_complex)
    hide = staticmethod(_constants.hide)
    EACH = _loop_counter.EACH
    loop_op = staticmethod(_loop_op.loop_op)
    constrain = staticmethod(_constrain.constrain)
    cut = staticmethod(_constrain.cut)
    on_device = staticmethod(_constrain.on_device)
    wait_for_all = staticmethod(_constrain.wait_for_all)
    lower_region = staticmethod(_lower.lower_region)
    unreported = staticmethod(_lower.unreported)


class persistent:  # used as a module is
    """The setting that a program file is of, and its owner."""

    process = staticmethod(_setting.process)
    readable = staticmethod(_setting.readable)


class running:  # used as a module is
    """Room for programs in flight, and signals that wait."""

    later = staticmethod(_interrupt.later)
    make_room = staticmethod(_in_flight.make_room)
    spare = staticmethod(_lent.spare)
    parsed = staticmethod(_sealed_json.parsed)
    text = staticmethod(_sealed_json.text)
    keep_programs = staticmethod(_spans.keep_programs)
    kept_programs = staticmethod(_spans.kept_programs)
    end_recording = staticmethod(_spans.end_recording)


class rules:  # used as a module is
    """Rules of ops, and functions that they share."""

    RULES = _ops.RULES
    ON_CPU = _ops.ON_CPU
    blocks = staticmethod(_blocks.blocks)
    wide = staticmethod(_floats.wide)
    CHUNKS = _linear_cross_entropy.CHUNKS
    spmd_linear_cross_entropy = staticmethod(_linear_cross_entropy.spmd_linear_cross_entropy)
    spmd_linear_cross_entropy_backward = staticmethod(_linear_cross_entropy.spmd_linear_cross_entropy_backward)
    run_of = staticmethod(_dynamic_start.run_of)
    per_dim = staticmethod(_windows.per_dim)
    aten_slice = staticmethod(_shape.aten_slice)
    SUMS = _partial.SUMS
    lower = staticmethod(_registry.lower)
    collective = staticmethod(_collective.function_of)


class partitioning:  # used as a module is
    """Partition rules of ops, and the known shardings that they ask for."""

    WORDS = _words.WORDS
    partition = staticmethod(_partition.partition)
    per_shard = staticmethod(_partition.per_shard)
    axes_of_dims = staticmethod(_sharded.axes_of_dims)
    in_front = staticmethod(_sharded.in_front)
    note_unused = staticmethod(_sharded.note_unused)
    reshaped = staticmethod(_sharded.reshaped)
    same = staticmethod(_sharded.same)


class storages:  # used as a module is
    """Storages and tensors, beyond what one tensor says."""

    ASIDE = _storage.ASIDE
    take_up = staticmethod(_storage.take_up)
    OURS = _tensor.OURS
    tensors_of = staticmethod(_tensor.tensors_of)
    watcher = staticmethod(_watching.watcher)
    watching = staticmethod(_watching.watching)
    recorded = staticmethod(_watching.recorded)
    UNDO = _storage.UNDO
    forget_reads = staticmethod(_storage.forget_reads)
    is_run_here = staticmethod(_recorders.is_run_here)
    longest_step = staticmethod(_recorders.longest_step)
    has_several_recorders = staticmethod(_recorders.has_several_recorders)


class user_lines:  # used as a module is
    """Lines of the user, and what the program calls its values."""

    describe = staticmethod(_source.describe)
    forward_line = staticmethod(_source.forward_line)
    is_library = staticmethod(_source.is_library)
    line_of = staticmethod(_source.line_of)
    lines_of = staticmethod(_source.lines_of)
    node_line = staticmethod(_source.node_line)
    source_of = staticmethod(_source.source_of)
    plain_name = staticmethod(_module_paths.plain_name)


class walks:  # used as a module is
    """Walks over a graph and its values."""

    UNPADDED = _graph.UNPADDED
    between = staticmethod(_graph.between)
    buffers_of = staticmethod(_graph.buffers_of)
    depending = staticmethod(_graph.depending)
    is_data = staticmethod(_graph.is_data)
    next_serial = staticmethod(_graph.next_serial)
    origin = staticmethod(_graph.origin)
    pack_numbers = staticmethod(_graph.pack_numbers)
    refill = staticmethod(_graph.refill)
    replace_operands = staticmethod(_graph.replace_operands)
    result_index = staticmethod(_graph.result_index)
    results = staticmethod(_graph.results)
    topological = staticmethod(_graph.topological)
    up_to = staticmethod(_graph.up_to)
    value_name = staticmethod(_graph.value_name)


class record_calls:  # used as a module is
    """Ops recorded by hand."""

    graph_task = _record.graph_task
    record = staticmethod(_record.record)
    record_here = staticmethod(_record.record_here)
    operand = staticmethod(_reads.operand)
    record_op = staticmethod(_reads.record_op)
    shard_gradient = staticmethod(_reads.shard_gradient)
    join = staticmethod(_reads.join)
    latest_generation = staticmethod(_reads.latest_generation)
    next_generation = staticmethod(_reads.next_generation)
    read_in = staticmethod(_reads.read_in)
    enter_thread = staticmethod(_threads.enter_thread)
    read = staticmethod(_views.read)
    write = staticmethod(_views.write)
    keep = staticmethod(_reads.keep)
    renew = staticmethod(_reads.renew)
