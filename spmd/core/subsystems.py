"""Parts of the core as its door shows them: functions of one subject under one name."""

from typing import TypeAlias

from . import passes as _passes
from .aten import copies as _copies
from .aten import fallback as _fallback
from .base import config as _config
from .base import counters as _counters
from .base import dtypes as _dtypes
from .base import forking as _forking
from .base import in_flight as _in_flight
from .base import jax_private as _jax_private
from .base import messages as _messages
from .base import seed as _seed
from .base import state as _state
from .checks import miscompiles as _miscompiles
from .files import disk as _disk
from .graph import lent as _lent
from .ops import create as _create
from .passes import dynamic as _dynamic
from .programs import cache as _cache
from .programs import compile_log as _compile_log
from .programs import program as _program
from .record import annotations as _annotations
from .record import call as _call
from .record import constraints as _constraints
from .record import precision as _precision
from .record import record as _record
from .record import storage as _storage
from .record import threads as _threads
from .record import watching as _watching
from .run import executables as _executables
from .run import execute as _execute
from .run import host_reads as _host_reads
from .run import prepare as _prepare
from .run import schedule as _schedule
from .run import syncs as _syncs
from .run.pjrt import devices as _devices
from .run.pjrt import processes as _processes
from .run.pjrt import transfer as _transfer
from .sharding import partitioner as _partitioner
from .sharding import text as _text
from .sharding import topology as _topology
from .sharding import value as _value
from .torch_state import backward as _backward
from .torch_state import device_memory as _device_memory
from .torch_state import install as _install
from .torch_state import modules as _modules
from .torch_state import swap as _swap


class points:  # used as a module is
    """Registration points: lists that packages join. Each is empty, or has the core's own entry."""

    before_compiling, before_making = _cache.before_compiling, _cache.before_making
    while_compiling, after_compiling = _cache.while_compiling, _cache.after_compiling
    describe = _cache.describe
    of_program, of_run = _program.of_program, _compile_log.of_run
    given_by = _disk.given_by
    after_pass = _prepare.after_pass
    before_run, before_recorded_run = _executables.before_run, _executables.before_recorded_run
    on_launch, noted_by = _executables.on_launch, _record.noted_by
    on_schedule = _execute.on_schedule
    after_read = _host_reads.after_read
    after_upload = _copies.after_upload
    after_wait = _syncs.after_wait
    after_fallback = _fallback.after_fallback
    after_own_op = _watching.after_own_op
    between_ops, names_of = _call.between_ops, _call.names_of
    can_run = _storage.can_run
    keeps_start = _dynamic.keeps_start
    after_move = _modules.after_move
    AT_FIRST_USE = _threads.AT_FIRST_USE
    PASSES, COMPILE_PASSES = _passes.PASSES, _passes.COMPILE_PASSES
    join_while = _config.join_while
    when_cleared = _counters.when_cleared


class processes:  # used as a module is
    """The processes of a job, and the proof that all do the same."""

    client, collect_garbage, count = _processes.client, _processes.collect_garbage, _processes.count
    Place: TypeAlias = _processes.Place
    detect = _jax_private.ClusterEnv.auto_detect_unset_distributed_params
    index, polled = _processes.index, _processes.polled
    reached_preemption, several, start = _processes.reached_preemption, _processes.several, _processes.start
    agree, agree_once, digest = _processes.agree, _processes.agree_once, _processes.digest
    join, note, proofs = _processes.join, _processes.note, _processes.proofs


class counters:  # used as a module is
    """Counters, times and the compile log of this process."""

    add, add_note, clear = _counters.add, _counters.add_note, _counters.clear
    clear_counters, compiles, counter = _counters.clear_counters, _counters.compiles, _counters.counter
    counter_names, fallback_ops = _counters.counter_names, _counters.fallback_ops
    now, num_compiles, num_loaded = _counters.now, _counters.num_compiles, _counters.num_loaded
    num_logged, place_of_code, report = _counters.num_logged, _counters.place_of_code, _counters.report
    silent, timer = _counters.silent, _counters.timer
    last_program, compiler_context = _cache.last_program, _partitioner.compiler_context


class samples:  # used as a module is
    """Samples of metrics."""

    add, clear_metrics = _counters.add_sample, _counters.clear_metrics
    metric, names = _counters.metric, _counters.metric_names


class seed:  # used as a module is
    """The stream of random numbers."""

    apart, fork, get_state, manual_seed = _seed.apart, _seed.fork, _seed.get_state, _seed.manual_seed
    next_draw, noted, set_state, take = _seed.next_draw, _seed.noted, _seed.set_state, _seed.take
    iteration, repeated = _seed.iteration, _seed.repeated


class hardware:  # used as a module is
    """The devices that programs run on, their memory, and what is in flight."""

    default_sharding, devices, host_memory = _devices.default_sharding, _devices.devices, _devices.host_memory
    is_running, prepare, resource = _devices.is_running, _devices.prepare, _devices.resource
    use_cpu_devices = _devices.use_cpu_devices
    free_bytes, mem_get_info = _device_memory.free_bytes, _device_memory.mem_get_info
    memory_allocated = _device_memory.memory_allocated
    is_idle, note_run, stamp = _in_flight.is_idle, _in_flight.note_run, _in_flight.stamp
    unchanged, wait = _in_flight.unchanged, _in_flight.wait
    num_tpu_chips = _jax_private.num_tpu_chips


class transfer:  # used as a module is
    """Values between the host and the devices, whole and by shards."""

    copied, download = _transfer.copied, _transfer.download
    filled, global_shape = _transfer.filled, _transfer.global_shape
    host_array, host_tensor, joined = _transfer.host_array, _transfer.host_tensor, _transfer.joined
    move, respelled, shards_here = _transfer.move, _transfer.respelled, _transfer.shards_here
    shards_of, upload_part, upload_shard = _transfer.shards_of, _transfer.upload_part, _transfer.upload_shard
    host_copy = _copies.host_copy
    materialise, leased, lent_to = _host_reads.materialise, _host_reads.leased, _host_reads.lent_to
    placed_like = _schedule.placed_like
    CHECKPOINT_NAME, TO_DEVICE, TO_HOST = _create.CHECKPOINT_NAME, _create.TO_DEVICE, _create.TO_HOST
    Lender = _lent.Lender


class messages:  # used as a module is
    """Lines on stderr."""

    LOCK, fitted = _messages.LOCK, _messages.fitted
    print_line, say = _messages.print_line, _messages.say


class annotations:  # used as a module is
    """Shardings that tensors have, and those that they are to have."""

    annotate, annotate_in_program = _annotations.annotate, _annotations.annotate_in_program
    clear_annotation, current_sharding = _annotations.clear_annotation, _annotations.current_sharding
    mark_op, residence, unmarked_op = _annotations.mark_op, _annotations.residence, _annotations.unmarked_op
    sharding_now, with_one_sharding = _constraints.sharding_now, _constraints.with_one_sharding
    with_sharding = _constraints.with_sharding


class grad_shardings:  # used as a module is
    """Shardings of gradients, as of their parameters."""

    PINNED, follow, leave = _backward.PINNED, _backward.follow, _backward.leave
    shard_gradient = _backward.shard_gradient


class syncs:  # used as a module is
    """Syncs of the calling thread, and the programs of what is recorded."""

    AFTER, hlo, stablehlo, sync = _syncs.AFTER, _syncs.hlo, _syncs.stablehlo, _syncs.sync


class variables:  # used as a module is
    """Variables that the process was started with, and what its launcher says."""

    gpu_memory_fraction, has_gpu = _config.gpu_memory_fraction, _config.has_gpu
    has_variable, known_variables, launched = _config.has_variable, _config.known_variables, _config.launched
    names_xla_for_frameworks = _config.names_xla_for_frameworks
    requested_cpu_devices, requested_hardware = _config.requested_cpu_devices, _config.requested_hardware
    unknown_variables, variables_of_process = _config.unknown_variables, _config.variables_of_process
    is_terminal, wants_color = _config.is_terminal, _config.wants_color
    OTHER_OWNERS = _install.OTHER_OWNERS


class forking:  # used as a module is
    """Processes that are forked: what survives, and what must not be used."""

    check, is_in_bad_fork, on_bad_fork = _forking.check, _forking.is_in_bad_fork, _forking.on_bad_fork
    survives_fork = _forking.survives_fork


class topology:  # used as a module is
    """Devices as numbers, of this machine and of targets that are not here."""

    PLUGINS, all_devices, is_simulated = _topology.PLUGINS, _topology.all_devices, _topology.is_simulated
    num_devices, ordinal, slices = _topology.num_devices, _topology.ordinal, _topology.slices
    stand_in, standing_in = _topology.stand_in, _topology.standing_in
    GPU_DESCRIPTIONS = _topology.GPU_DESCRIPTIONS


class specs:  # used as a module is
    """Specs: the mesh axes of each dim."""

    OPEN, UNCONSTRAINED, UNSHARDED = _value.OPEN, _value.UNCONSTRAINED, _value.UNSHARDED
    Tiling: TypeAlias = _text.Tiling


class dtypes:  # used as a module is
    """dtypes of torch and numpy."""

    NUMPY_TO_TORCH, is_exact, is_integer = _dtypes.NUMPY_TO_TORCH, _dtypes.is_exact, _dtypes.is_integer
    to_numpy_dtype, to_torch_dtype = _dtypes.to_numpy_dtype, _dtypes.to_torch_dtype


class options:  # used as a module is
    """Options of the compiler, and what is known to compile wrongly."""

    compiled_with, options_of = _program.compiled_with, _program.options_of
    matmul_precision = _precision.matmul_precision
    MISCOMPILES = _miscompiles.MISCOMPILES
    text_of = _program.text_of
    is_private = _disk.is_private


class observation:  # used as a module is
    """The observation of a call that is replayed later."""

    active, derived = _state.active_observation, _state.derived


class module_moves:  # used as a module is
    """Moves of modules to and from the device."""

    ARRIVED, WAITING, to_come = _modules.ARRIVED, _modules.WAITING, _modules.to_come
    exchange, renew_hooks = _swap.exchange, _swap.renew_hooks
