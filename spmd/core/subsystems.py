"""Parts of the core as its door shows them: functions of one subject under one name."""

from typing import TypeAlias

from . import passes
from .aten import copies, fallback
from .base import config, in_flight, jax_private, state
from .base import counters as _counters
from .base import dtypes as _dtypes
from .base import forking as _forking
from .base import messages as _messages
from .base import seed as _seed
from .checks import miscompiles
from .files import disk
from .graph import lent
from .ops import create
from .passes import dynamic
from .programs import cache, compile_log, program
from .record import annotations as _annotations
from .record import call, constraints, record, resolve, storage, threads, watching
from .run import executables, execute, host_reads, prepare, schedule
from .run import syncs as _syncs
from .run.pjrt import devices
from .run.pjrt import processes as _processes
from .run.pjrt import transfer as _transfer
from .sharding import partitioner, text, value
from .sharding import topology as _topology
from .torch_state import backward, device_memory, install, modules, state_shardings, swap


class points:  # used as a module is
    """Registration points: lists that packages join. Each is empty, or has the core's own entry."""

    before_compiling, before_making = cache.before_compiling, cache.before_making
    while_compiling, after_compiling = cache.while_compiling, cache.after_compiling
    describe = cache.describe
    of_program, of_run, refuse_loops = program.of_program, compile_log.of_run, cache.refuse_loops
    given_by = disk.given_by
    after_pass = prepare.after_pass
    before_run, before_recorded_run = executables.before_run, executables.before_recorded_run
    on_launch, noted_by = executables.on_launch, record.noted_by
    on_schedule = execute.on_schedule
    after_read = host_reads.after_read
    after_upload = copies.after_upload
    after_wait = _syncs.after_wait
    after_fallback = fallback.after_fallback
    after_own_op = watching.after_own_op
    between_ops, names_of = call.between_ops, call.names_of
    can_run = storage.can_run
    keeps_start = dynamic.keeps_start
    after_move = modules.after_move
    AT_FIRST_USE = threads.AT_FIRST_USE
    PASSES, COMPILE_PASSES = passes.PASSES, passes.COMPILE_PASSES
    join_while = config.join_while
    when_cleared = _counters.when_cleared


class processes:  # used as a module is
    """The processes of a job, and the proof that all do the same."""

    client, collect_garbage, count = _processes.client, _processes.collect_garbage, _processes.count
    Place: TypeAlias = _processes.Place
    detect = jax_private.ClusterEnv.auto_detect_unset_distributed_params
    index, is_local, polled, publish = _processes.index, _processes.is_local, _processes.polled, _processes.publish
    published, seal, opened = _processes.published, _processes.seal, _processes.opened
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
    last_program, compiler_context = cache.last_program, partitioner.compiler_context


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

    default_sharding, host_memory, is_running = devices.default_sharding, devices.host_memory, devices.is_running
    prepare, resource, use_cpu_devices = devices.prepare, devices.resource, devices.use_cpu_devices
    devices = devices.devices
    free_bytes, mem_get_info = device_memory.free_bytes, device_memory.mem_get_info
    memory_allocated = device_memory.memory_allocated
    is_idle, note_run, stamp = in_flight.is_idle, in_flight.note_run, in_flight.stamp
    unchanged, wait = in_flight.unchanged, in_flight.wait
    num_tpu_chips = jax_private.num_tpu_chips


class transfer:  # used as a module is
    """Values between the host and the devices, whole and by shards."""

    copied, download, filled = _transfer.copied, _transfer.download, _transfer.filled
    global_shape, host_array, host_tensor = _transfer.global_shape, _transfer.host_array, _transfer.host_tensor
    joined, move, respelled, shards_here = _transfer.joined, _transfer.move, _transfer.respelled, _transfer.shards_here
    shards_of, upload_part, upload_shard = _transfer.shards_of, _transfer.upload_part, _transfer.upload_shard
    host_copy = copies.host_copy
    materialise, leased, lent_to = host_reads.materialise, host_reads.leased, host_reads.lent_to
    placed_like = schedule.placed_like
    CHECKPOINT_NAME, TO_DEVICE, TO_HOST = create.CHECKPOINT_NAME, create.TO_DEVICE, create.TO_HOST
    Lender = lent.Lender


class messages:  # used as a module is
    """Lines on stderr."""

    LOCK, fitted, print_line, say = _messages.LOCK, _messages.fitted, _messages.print_line, _messages.say


class annotations:  # used as a module is
    """Shardings that tensors have, and those that they are to have."""

    annotate, annotate_in_program = _annotations.annotate, _annotations.annotate_in_program
    clear_annotation, current_sharding = _annotations.clear_annotation, _annotations.current_sharding
    mark_op, residence, unmarked_op = _annotations.mark_op, _annotations.residence, _annotations.unmarked_op
    sharding_now, with_one_sharding = constraints.sharding_now, constraints.with_one_sharding
    with_sharding = constraints.with_sharding


class grad_shardings:  # used as a module is
    """Shardings of gradients and of optimizers' state, as of their parameters."""

    PINNED, follow, leave, shard_gradient = backward.PINNED, backward.follow, backward.leave, backward.shard_gradient
    shard_state = state_shardings.shard_state


class syncs:  # used as a module is
    """Syncs of the calling thread, and the programs of what is recorded."""

    AFTER, hlo, stablehlo, sync = _syncs.AFTER, _syncs.hlo, _syncs.stablehlo, _syncs.sync


class variables:  # used as a module is
    """Variables that the process was started with, and what its launcher says."""

    gpu_memory_fraction, has_gpu, has_variable = config.gpu_memory_fraction, config.has_gpu, config.has_variable
    known_variables, launched = config.known_variables, config.launched
    names_xla_for_frameworks, requested_cpu_devices = config.names_xla_for_frameworks, config.requested_cpu_devices
    requested_hardware, unknown_variables = config.requested_hardware, config.unknown_variables
    variables_of_process, is_terminal, wants_color = config.variables_of_process, config.is_terminal, config.wants_color
    VALUES, PATH, READ, encoded_name = config.VARIABLES, config.PATH_OF_VARIABLES, config.READ, config.encoded_name
    job_secret = config.job_secret
    OTHER_OWNERS = install.OTHER_OWNERS


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

    OPEN, UNCONSTRAINED, UNSHARDED = value.OPEN, value.UNCONSTRAINED, value.UNSHARDED
    Tiling: TypeAlias = text.Tiling


class dtypes:  # used as a module is
    """dtypes of torch and numpy."""

    NUMPY_TO_TORCH, is_exact, is_integer = _dtypes.NUMPY_TO_TORCH, _dtypes.is_exact, _dtypes.is_integer
    to_numpy_dtype, to_torch_dtype = _dtypes.to_numpy_dtype, _dtypes.to_torch_dtype


class options:  # used as a module is
    """Options of the compiler, and what is known to compile wrongly."""

    compiled_with, options_of, text_of = program.compiled_with, program.options_of, program.text_of
    unknown_options = program.unknown_options
    matmul_precision = resolve.matmul_precision
    MISCOMPILES = miscompiles.MISCOMPILES
    is_private = disk.is_private


class observation:  # used as a module is
    """The observation of a call that is replayed later."""

    active, derived = state.active_observation, state.derived


class module_moves:  # used as a module is
    """Moves of modules to and from the device."""

    ARRIVED, WAITING, to_come = modules.ARRIVED, modules.WAITING, modules.to_come
    exchange, renew_hooks = swap.exchange, swap.renew_hooks
