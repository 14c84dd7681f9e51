"""Every private name of jax and jaxlib that the library uses; only this file and
`ops/jax_internals` import `jax._src`.

A name is imported from its place in each jax that `pyproject.toml` allows (0.10, 0.11 and 0.12),
with a note of what jax's public API lacks. A name that one of these versions or the next lacks is
None there, and its caller has an alternative. `jax.experimental.shard_alike` (0.10 only) is not
used in any version: see `sharding.partitioner.shard_as`. Module attributes that are replaced in jax
itself are behind a function.
"""

import dataclasses
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax._src import config as _config
from jax._src import distributed as _distributed
from jax._src import hardware_utils as _hardware_utils
from jax._src import xla_bridge as _xla_bridge

# Exists in jax 0.10 to 0.12. The launchers that jax detects (SLURM, Open MPI, TPU pods); only
# `jax.distributed.initialize` reads them, and it does not return its findings.
from jax._src.clusters import ClusterEnv as ClusterEnv

# Exists in jax 0.10 to 0.12. By class, the type of a value as jax's functions see it; the public
# `jax.core.pytype_aval_mappings` warns that it goes.
from jax._src.core import pytype_aval_mappings as pytype_aval_mappings
from jax._src.export import _export

# Exists in jax 0.10 to 0.12. Finds SciPy's LAPACK for XLA's kernels; jax calls it where such an op
# is lowered, which a program from the disk is not, and without it the process ends.
from jax._src.lax.linalg import initialize_lapack as initialize_lapack

# Exists in jax 0.10 to 0.12. The bindings of XLA: devices in addition to those of `jax.devices()`,
# a program's layouts, the partitioner's report.
from jax._src.lib import utils as _utils
from jax._src.lib import xla_client as xla_client

# Exists in jax 0.10 to 0.12. MLIR's bindings; `jax.interpreters.mlir` re-exports `ir` of them, and
# no dialect.
from jax._src.lib.mlir import ir as ir
from jax._src.lib.mlir.dialects import hlo as hlo
from jax._src.lib.mlir.dialects import sdy as sdy

# Exists in jax 0.10 to 0.12. A sharding known only by its text, as a partitioner reports one.
from jax._src.sharding_impls import GSPMDSharding as GSPMDSharding

# Exists in jax 0.10 to 0.12. The shape of an array of which each process has a part, as jax's own
# upload of parts computes it.
from jax._src.sharding_impls import local_to_global_shape as local_to_global_shape
from jax.experimental import serialize_executable

from ...ops.jax_internals import is_reordered as is_reordered
from ...ops.jax_internals import use_shardy_partitioner as use_shardy_partitioner

# Exists in jax 0.10 to 0.12. All settings that a trace depends on.
trace_context: Callable[[], tuple[Any, ...]] = _config.trace_context

# Exists in jax 0.10 to 0.12. True if a backend is up; each public function would start one.
backends_are_initialized: Callable[[], bool] = _xla_bridge.backends_are_initialized

# Exists in jax 0.10 to 0.12. This process among the others; updated by
# `jax.distributed.initialize`.
distributed_state: Any = _distributed.global_state


# Exists in jax 0.10 to 0.12. The least severity that XLA logs from now on (see
# `config.LOGS_WARNINGS`).
set_log_level: Callable[[int], None] = _utils.absl_set_min_log_level


def num_tpu_chips() -> int:
    """The number of TPU chips of this machine; starts no backend. Exists in jax 0.10 to 0.12."""
    return _hardware_utils.num_available_tpu_chips_and_device_id()[0]


def has_started_in_parent() -> bool:
    """`backends_are_initialized` in a forked child: without the lock, which may stay taken there.
    Exists in jax 0.10 to 0.12."""
    return bool(_xla_bridge._backends)


def wrap_fork_warning(wrap: Callable[[Callable[[], None]], Callable[[], None]]) -> None:
    """Replaces the warning that jax hands to `os.register_at_fork` when its backend starts.
    Exists in jax 0.10 to 0.12."""
    _xla_bridge._at_fork = wrap(_xla_bridge._at_fork)


# --- private attributes of public objects: jax 0.10 to 0.12 ---------------------------------------


def device_order(sharding: Any) -> Sequence[Any]:
    """The devices of a jax sharding in the order of its shards; the public `device_set` has no
    order."""
    return sharding._device_assignment


def hlo_sharding(sharding: Any, rank: int) -> Any:
    """XLA's `HloSharding` of a jax sharding for an array of this rank."""
    return sharding._to_xla_hlo_sharding(rank)


def compile_lowered(lowered: Any, options: Mapping[str, object]) -> Any:
    """Compiles a `jax.stages.Lowered`; accepts every tiling that the partitioner chooses for a
    result.

    jax 0.10 names each tiling by the axes of the first argument's mesh, and raises IndivisibleError
    for a tiling that these cannot name. If no sharding has names, jax keeps the tilings as XLA has
    them. Exists in jax 0.10 to 0.12.
    """
    try:
        return lowered.compile(compiler_options=options)
    except ValueError as error:
        arguments = lowered._lowering.compile_args
        if type(error).__name__ != "IndivisibleError" or not any(
            map(_is_named, arguments["in_shardings"])
        ):
            raise
    # Without names jax keeps each tiling as XLA has it; a named sharding of a result names the
    # mesh, too.
    for shardings, avals in (
        ("in_shardings", "global_in_avals"),
        ("out_shardings", "global_out_avals"),
    ):
        arguments[shardings] = [*map(_without_names, arguments[shardings], arguments[avals])]
    arguments["intermediate_shardings"] = ()
    return lowered.compile(compiler_options=options)


def _is_named(sharding: object) -> bool:
    return isinstance(sharding, jax.sharding.NamedSharding)


def _without_names(sharding: Any, aval: Any) -> Any:
    """A named sharding of an array as the tiling that it means; others as they are."""
    if not _is_named(sharding):
        return sharding
    tiling = hlo_sharding(sharding, len(aval.shape))
    return GSPMDSharding(device_order(sharding), tiling, memory_kind=sharding.memory_kind)


def text_with_constants(compiled: Any) -> str:
    """The optimised program of a `jax.stages.Compiled` as text with its constants, of which
    `as_text` elides those of more than ten elements. Exists in jax 0.10 to 0.12."""
    [module] = compiled.runtime_executable().hlo_modules()
    options: Any = vars(sys.modules[type(module).__module__])["HloPrintOptions"]()
    options.print_large_constants = True
    return str(module.to_string(options))


def dump_executable(compiled: Any) -> bytes:
    """Returns the executable of a `jax.stages.Compiled` in the form that `load_executable` takes.

    The public `jax.experimental.serialize_executable.serialize` refuses programs that keep a Python
    function alive, as the partitioner's reports do: those are called while it compiles, and dropped
    here.
    """
    unloaded = dataclasses.replace(compiled._executable._unloaded_executable, keepalive=())
    file = io.BytesIO()
    serialize_executable._JaxPjrtPickler(file).dump(
        (unloaded, jax.tree.flatten(compiled.args_info)[0], compiled._no_kwargs)
    )
    return file.getvalue()


# Exists in jax 0.10 to 0.12. The targets of custom calls that jax lets into a program of
# `jax.export`; none calls back to Python.
stable_custom_calls: frozenset[str] = frozenset(_export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE)


def custom_calls(module: Any) -> set[str]:
    """Returns the targets of the custom calls of a StableHLO module. Exists in jax 0.10 to 0.12."""
    targets: set[str] = set()

    def note(operation: Any) -> Any:
        if operation.name == "stablehlo.custom_call":
            targets.add(ir.StringAttr(operation.attributes["call_target_name"]).value)
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    return targets


def without_shardings(exported: Any) -> Any:
    """Returns a `jax.export.Exported` without shardings of arguments and results but those in its
    StableHLO.

    jax lowers a call of a program for GSPMD as one for Shardy if its shardings are named, refuses
    another mesh, and a named sharding has lost its order of devices. Exists in jax 0.10 to 0.12.
    """
    ins, outs = (None,) * len(exported.in_avals), (None,) * len(exported.out_avals)
    return dataclasses.replace(
        exported,
        in_shardings_hlo=ins,
        out_shardings_hlo=outs,
        _in_named_shardings=ins,
        _out_named_shardings=outs,
    )
