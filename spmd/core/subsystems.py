"""Parts of the core as its door shows them: functions of one subject under one name."""

from . import passes as _passes
from .aten import copies as _copies
from .aten import fallback as _fallback
from .base import config as _config
from .base import counters as _counters
from .base import dtypes as _dtypes
from .base import forking as _forking
from .base import in_flight as _in_flight
from .base import jax_private as _jax_private
from .base import joins as _joins
from .base import messages as _messages
from .base import observation as _observation
from .base import samples as _samples
from .base import seed as _seed
from .checks import miscompiles as _miscompiles
from .graph import lent as _lent
from .ops import offload as _offload
from .passes import dynamic_places as _dynamic_places
from .programs import cache as _cache
from .programs import compile_log as _compile_log
from .programs import options as _options
from .programs.persistent import disk as _disk
from .record import annotations as _annotations
from .record import call as _call
from .record import constraints as _constraints
from .record import precision as _precision
from .record import storage as _storage
from .record import threads as _threads
from .record import watching as _watching
from .run import executables as _executables
from .run import execute as _execute
from .run import host_reads as _host_reads
from .run import placement as _placement
from .run import prepare as _prepare
from .run import syncs as _syncs
from .run.pjrt import agreement as _agreement
from .run.pjrt import devices as _devices
from .run.pjrt import held as _held
from .run.pjrt import processes as _processes
from .run.pjrt import transfer as _transfer
from .sharding import gpus as _gpus
from .sharding import text as _text
from .sharding import topology as _topology
from .sharding import value as _value
from .torch_state import grad_shardings as _grad_shardings
from .torch_state import install as _install
from .torch_state import modules as _modules
from .torch_state import swap as _swap


class points:  # used as a module is
    """Registration points: lists that packages join. Each is empty, or has the core's own entry."""

    before_compiling = _cache.before_compiling
    before_making = _cache.before_making
    while_compiling = _cache.while_compiling
    after_compiling = _cache.after_compiling
    describe = _cache.describe
    of_program = _compile_log.of_program
    of_run = _compile_log.of_run
    given_by = _disk.given_by
    after_pass = _prepare.after_pass
    before_run = _executables.before_run
    before_recorded_run = _executables.before_recorded_run
    on_launch = _executables.on_launch
    on_schedule = _execute.on_schedule
    after_read = _host_reads.after_read
    after_upload = _copies.after_upload
    after_wait = _syncs.after_wait
    after_fallback = _fallback.after_fallback
    after_own_op = _watching.after_own_op
    between_ops = _call.between_ops
    names_of = _call.names_of
    can_run = _storage.can_run
    keeps_start = _dynamic_places.keeps_start
    after_move = _modules.after_move
    AT_FIRST_USE = _threads.AT_FIRST_USE
    PASSES = _passes.PASSES
    COMPILE_PASSES = _passes.COMPILE_PASSES
    join_while = staticmethod(_joins.join_while)


class processes:  # used as a module is
    """The processes of a job, and the proof that all do the same."""

    client = staticmethod(_processes.client)
    collect_garbage = staticmethod(_processes.collect_garbage)
    count = staticmethod(_processes.count)
    find_place = staticmethod(_processes.find_place)
    index = staticmethod(_processes.index)
    polled = staticmethod(_processes.polled)
    reached_preemption = staticmethod(_processes.reached_preemption)
    several = staticmethod(_processes.several)
    start = staticmethod(_processes.start)
    agree = staticmethod(_agreement.agree)
    agree_once = staticmethod(_agreement.agree_once)
    digest = staticmethod(_agreement.digest)
    join = staticmethod(_agreement.join)
    note = staticmethod(_agreement.note)


class counters:  # used as a module is
    """Counters, times and the compile log of this process."""

    add = staticmethod(_counters.add)
    add_note = staticmethod(_counters.add_note)
    clear = staticmethod(_counters.clear)
    clear_counters = staticmethod(_counters.clear_counters)
    compiles = staticmethod(_counters.compiles)
    counter = staticmethod(_counters.counter)
    counter_names = staticmethod(_counters.counter_names)
    explain = staticmethod(_counters.explain)
    fallback_ops = staticmethod(_counters.fallback_ops)
    now = _counters.now
    num_compiles = staticmethod(_counters.num_compiles)
    num_loaded = staticmethod(_counters.num_loaded)
    num_logged = staticmethod(_counters.num_logged)
    report = staticmethod(_counters.report)
    silent = staticmethod(_counters.silent)
    timer = staticmethod(_counters.timer)
    trivial_dispatch_seconds = staticmethod(_cache.trivial_dispatch_seconds)


class samples:  # used as a module is
    """Samples of metrics, and of places that cost time."""

    add = staticmethod(_samples.add)
    clear_metrics = staticmethod(_samples.clear_metrics)
    metric = staticmethod(_samples.metric)
    names = staticmethod(_samples.names)
    note = staticmethod(_samples.note)
    places = staticmethod(_samples.places)


class seed:  # used as a module is
    """The stream of random numbers."""

    apart = staticmethod(_seed.apart)
    fork = staticmethod(_seed.fork)
    get_state = staticmethod(_seed.get_state)
    manual_seed = staticmethod(_seed.manual_seed)
    next_draw = staticmethod(_seed.next_draw)
    noted = staticmethod(_seed.noted)
    set_state = staticmethod(_seed.set_state)
    take = staticmethod(_seed.take)
    iteration = staticmethod(_seed.iteration)
    repeated = staticmethod(_seed.repeated)


class hardware:  # used as a module is
    """The devices that programs run on, their memory, and what is in flight."""

    default_sharding = staticmethod(_devices.default_sharding)
    devices = staticmethod(_devices.devices)
    host_memory = staticmethod(_devices.host_memory)
    is_running = staticmethod(_devices.is_running)
    prepare = staticmethod(_devices.prepare)
    resource = _devices.resource
    use_cpu_devices = staticmethod(_devices.use_cpu_devices)
    free_bytes = staticmethod(_held.free_bytes)
    mem_get_info = staticmethod(_held.mem_get_info)
    memory_allocated = staticmethod(_held.memory_allocated)
    is_idle = staticmethod(_in_flight.is_idle)
    note_run = staticmethod(_in_flight.note_run)
    stamp = staticmethod(_in_flight.stamp)
    unchanged = staticmethod(_in_flight.unchanged)
    wait = staticmethod(_in_flight.wait)
    num_tpu_chips = staticmethod(_jax_private.num_tpu_chips)


class transfer:  # used as a module is
    """Values between the host and the devices, whole and by shards."""

    copied = _transfer.copied
    filled = staticmethod(_transfer.filled)
    global_shape = staticmethod(_transfer.global_shape)
    host_array = staticmethod(_transfer.host_array)
    host_tensor = staticmethod(_transfer.host_tensor)
    joined = staticmethod(_transfer.joined)
    move = staticmethod(_transfer.move)
    respelled = _transfer.respelled
    shards_here = staticmethod(_transfer.shards_here)
    shards_of = staticmethod(_transfer.shards_of)
    upload_part = staticmethod(_transfer.upload_part)
    upload_shard = staticmethod(_transfer.upload_shard)
    host_copy = staticmethod(_copies.host_copy)
    materialise = staticmethod(_host_reads.materialise)
    leased = staticmethod(_host_reads.leased)
    lent_to = staticmethod(_host_reads.lent_to)
    placed_like = staticmethod(_placement.placed_like)
    CHECKPOINT_NAME = _offload.CHECKPOINT_NAME
    TO_DEVICE = _offload.TO_DEVICE
    TO_HOST = _offload.TO_HOST
    Lender = _lent.Lender


class messages:  # used as a module is
    """Lines on stderr."""

    say = staticmethod(_messages.say)
    status = staticmethod(_messages.status)


class annotations:  # used as a module is
    """Shardings that tensors have, and those that they are to have."""

    annotate = staticmethod(_annotations.annotate)
    annotate_in_program = staticmethod(_annotations.annotate_in_program)
    clear_annotation = staticmethod(_annotations.clear_annotation)
    current_sharding = staticmethod(_annotations.current_sharding)
    mark_op = staticmethod(_annotations.mark_op)
    residence = staticmethod(_annotations.residence)
    unmarked_op = staticmethod(_annotations.unmarked_op)
    sharding_now = staticmethod(_constraints.sharding_now)
    with_one_sharding = staticmethod(_constraints.with_one_sharding)
    with_sharding = staticmethod(_constraints.with_sharding)


class grad_shardings:  # used as a module is
    """Shardings of gradients, as of their parameters."""

    follow = staticmethod(_grad_shardings.follow)
    leave = staticmethod(_grad_shardings.leave)
    may_follow = staticmethod(_grad_shardings.may_follow)


class syncs:  # used as a module is
    """Syncs of the calling thread, and the programs of what is recorded."""

    AFTER = _syncs.AFTER
    hlo = staticmethod(_syncs.hlo)
    stablehlo = staticmethod(_syncs.stablehlo)
    sync = staticmethod(_syncs.sync)


class variables:  # used as a module is
    """Variables that the process was started with, and what its launcher says."""

    gpu_memory_fraction = staticmethod(_config.gpu_memory_fraction)
    has_gpu = staticmethod(_config.has_gpu)
    has_variable = staticmethod(_config.has_variable)
    known_variables = staticmethod(_config.known_variables)
    launched = staticmethod(_config.launched)
    names_xla_for_frameworks = staticmethod(_config.names_xla_for_frameworks)
    requested_cpu_devices = staticmethod(_config.requested_cpu_devices)
    requested_hardware = staticmethod(_config.requested_hardware)
    unknown_variables = staticmethod(_config.unknown_variables)
    variables_of_process = staticmethod(_config.variables_of_process)
    wants_color = staticmethod(_config.wants_color)
    OTHER_OWNERS = _install.OTHER_OWNERS


class forking:  # used as a module is
    """Processes that are forked: what survives, and what must not be used."""

    check = staticmethod(_forking.check)
    is_in_bad_fork = staticmethod(_forking.is_in_bad_fork)
    survives_fork = staticmethod(_forking.survives_fork)


class topology:  # used as a module is
    """Devices as numbers, of this machine and of targets that are not here."""

    PLUGINS = _topology.PLUGINS
    all_devices = staticmethod(_topology.all_devices)
    is_simulated = staticmethod(_topology.is_simulated)
    num_devices = staticmethod(_topology.num_devices)
    ordinal = staticmethod(_topology.ordinal)
    slices = staticmethod(_topology.slices)
    stand_in = staticmethod(_topology.stand_in)
    standing_in = staticmethod(_topology.standing_in)
    GPUS = _gpus.GPUS
    add_description = staticmethod(_gpus.add_description)


class specs:  # used as a module is
    """Specs: the mesh axes of each dim."""

    OPEN = _value.OPEN
    UNCONSTRAINED = _value.UNCONSTRAINED
    UNSHARDED = _value.UNSHARDED
    open_dims = staticmethod(_text.open_dims)
    read = staticmethod(_text.read)
    read_tiled = staticmethod(_text.read_tiled)


class dtypes:  # used as a module is
    """dtypes of torch and numpy."""

    NUMPY_TO_TORCH = _dtypes.NUMPY_TO_TORCH
    is_exact = staticmethod(_dtypes.is_exact)
    to_numpy_dtype = staticmethod(_dtypes.to_numpy_dtype)
    to_torch_dtype = staticmethod(_dtypes.to_torch_dtype)


class options:  # used as a module is
    """Options of the compiler, and what is known to compile wrongly."""

    compiled_with = staticmethod(_options.compiled_with)
    options_of = staticmethod(_options.options_of)
    matmul_precision = staticmethod(_precision.matmul_precision)
    MISCOMPILES = _miscompiles.MISCOMPILES
    text_of = staticmethod(_options.text_of)
    is_private = staticmethod(_disk.is_private)


class observation:  # used as a module is
    """The observation of a call that is replayed later."""

    active = staticmethod(_observation.active)
    derived = staticmethod(_observation.derived)
    observed = staticmethod(_observation.observed)


class module_moves:  # used as a module is
    """Moves of modules to and from the device."""

    ARRIVED = _modules.ARRIVED
    WAITING = _modules.WAITING
    to_come = staticmethod(_modules.to_come)
    exchange = staticmethod(_swap.exchange)
    renew_hooks = staticmethod(_swap.renew_hooks)
