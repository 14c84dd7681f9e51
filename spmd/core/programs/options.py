"""The compiler options of XLA for one program."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..base.config import config, is_known_to_libtpu
from ..base.state import held
from ..graph.graph import Graph, walk
from ..sharding.topology import stand_in

# XLA's CPU compiler joins all reductions into one that waits for every gradient, and removes optimization barriers
# before it decides where a gradient is sharded and what is recomputed: memory that a program frees in between would
# then be allocated all at once.
_KEEPING_BARRIERS = {"xla_disable_hlo_passes": "cpu-all-reduce-combiner,cse_barrier_expander"}
# It also runs gathers as early as it can. With recomputed activations its default order still needs least memory, and
# the memory-optimized one defers every product that makes a weight's gradient.
_BY_MEMORY = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
_FREEING = {**_BY_MEMORY, **_KEEPING_BARRIERS}


# For an exact float32 product the TPU's compiler generates code of many windows, in 7 to 17 s of processor time.
# With this target it takes 1 to 4 s, and the window has at most 2 % more cycles (libtpu 0.0.42, v5e; docs/planning.md);
# of products in one pass it has up to 15 % more. A run is compiled with the compiler's own default.
_TARGET = "xla_jf_convolution_performance_target"
_PLANNED = {_TARGET: "0.97"}


# Options by which a TPU's compiler hides collectives behind computation. That of gathers is for a v5e alone: of other
# chips libtpu 0.0.42 warns of wrong results and hangs, and 0.0.50 refuses it (docs/decisions/overlap.md).
_OVERLAPPED = (
    "xla_tpu_enable_async_collective_fusion",
    "xla_tpu_enable_async_collective_fusion_multiple_steps",
    "xla_tpu_overlap_compute_collective_tc",
    "xla_enable_async_all_gather",
)
_OVERLAPPED_OF_V5E = "xla_tpu_enable_async_collective_fusion_fuse_all_gather"

# Options by which collectives run on the SparseCore of the chips that have one, next to the other cores
# (docs/decisions/overlap.md; the fastest published steps of MaxText set them).
_OFFLOAD = "xla_tpu_enable_sparse_core_collective_offload_"
_SPARSE_CORE = {
    **{
        _OFFLOAD + name: "True"
        for name in (
            "all_gather", "2d_all_gather", "3d_all_gather", "reduce_scatter", "nd_reduce_scatter", "all_reduce",
        )
    },
    "xla_tpu_enable_sparse_core_reduce_scatter_v2": "True",
    "xla_tpu_prefer_async_allgather_to_allreduce": "True",
    "xla_tpu_enable_all_gather_offload_tracing": "True",
    "xla_tpu_enable_reduce_scatter_offload_tracing": "True",
    "xla_tpu_use_tc_device_shape_on_sc": "True",
    "xla_sc_disable_megacore_partitioning": "True",
    _OVERLAPPED_OF_V5E: "False",
}  # fmt: skip
_WITH_SPARSE_CORE = ("TPU v5", "TPU v6 lite", "TPU7x")

# The compiler of GPUs that are not here cannot measure kernels to choose one.
_WITHOUT_GPU = {"xla_gpu_autotune_level": "0"}


def options_of(graph: Graph) -> dict[str, str | float]:
    """Returns the options of `config.compiler_options`: the word `auto` in it stands for those that the program
    needs, of which an option named there as well takes the place."""
    words = config.compiler_options.split()
    given = dict(_parsed(word) for word in words if word != _NEEDED)
    return {**_needed(graph), **given} if _NEEDED in words else given


_NEEDED = "auto"


def _needed(graph: Graph) -> dict[str, str | float]:
    platform = graph.mesh.platform
    if platform == "tpu":
        found = of_tpus(_kind(graph)) if len(graph.mesh.device_ids) > 1 else {}
        if not is_here(graph) and _is_exact(graph) and is_known_to_libtpu(_TARGET):
            found |= _PLANNED
        return found
    if platform == "gpu" and not is_here(graph):
        return {**_WITHOUT_GPU}
    if platform != "cpu":
        return {}
    names = {node.op.name for node in graph.nodes}
    if "spmd.loops.recompute" in names:
        return {**_KEEPING_BARRIERS}
    if "spmd.renew" in names:
        return {**_FREEING}
    # In the bodies of loops there is no optimization barrier to keep.
    return {**_BY_MEMORY} if "spmd.renew" in {node.op.name for node in walk(graph.nodes)} else {}


def of_tpus(kind: str) -> dict[str, str | float]:
    """The options for programs over several TPUs of a kind, as far as the installed libtpu has them."""
    wanted = dict.fromkeys(_OVERLAPPED, "True") | (_SPARSE_CORE if kind in _WITH_SPARSE_CORE else {})
    if kind == "TPU v5 lite":
        wanted[_OVERLAPPED_OF_V5E] = "True"
    return {name: value for name, value in wanted.items() if is_known_to_libtpu(name)}


def _kind(graph: Graph) -> str:
    """The kind of the devices, as jax names it."""
    device: Any = next(iter(graph.mesh.jax.device_set))
    return str(device.device_kind)


def _is_exact(graph: Graph) -> bool:
    """True if no product of a graph takes fewer passes than exact float32."""
    nodes = [*walk(graph.nodes)]
    dtypes = {meta.dtype for node in nodes for meta in node.op.metas}
    return dtypes.isdisjoint(_FEW_BITS) and not any(":precision_" in node.op.name for node in nodes)


_FEW_BITS = (torch.bfloat16, torch.float16)


def is_here(graph: Graph) -> bool:
    """True if a graph is compiled for the devices of this machine, where it can run."""
    return graph.mesh.target is None and stand_in() is None


# The options of jax that are numbers, not text.
_NUMBERS = ("exec_time_optimization_effort", "memory_fitting_effort")
_TRUTHS = {"true": "True", "false": "False"}  # as XLA's options take them: not "true"


def _parsed(option: str) -> tuple[str, str | float]:
    name, equals, value = option.partition("=")
    if not equals:
        raise ValueError(f"config.compiler_options: expected name=value, got {option!r}")
    return name, float(value) if name in _NUMBERS else _TRUTHS.get(value, value)


def text_of(options: Mapping[str, Any]) -> str:
    """Returns options of XLA, name -> value, as a value of `config.compiler_options` that adds them to those that a
    program needs.

    Raises TypeError and ValueError for what cannot be an option; whether XLA has it is known when it compiles (see
    `refusal`).
    """
    return " ".join([_NEEDED, *(_text(name, value) for name, value in options.items())])


_NAME = re.compile(r"\w+")


def _text(name: Any, value: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"compiler_options: expected the name of an option of XLA's, such as 'xla_dump_to', got {name!r}"
        )
    if not isinstance(value, (bool, int, float, str)):
        raise TypeError(f"compiler_options: expected text, a number or a bool for {name!r}, got {value!r}")
    if not str(value) or len(str(value).split()) != 1:
        raise ValueError(f"compiler_options: the value of {name!r} must have no blank and must not be empty: {value!r}")
    return f"{name}={value}"


@contextlib.contextmanager
def compiled_with(options: Mapping[str, Any] | None) -> Iterator[None]:
    """Compiles and finds programs with these options of XLA's inside; None or {}: with those of the process.

    They are part of a program's key, in this process and on disk. The flag is one for all threads.
    """
    with held(config, compiler_options=text_of(options)) if options else contextlib.nullcontext():
        yield


_REFUSED = re.compile(r"No such compile option: '(?P<unknown>\w+)'|While setting option (?P<set>\w+), .*")


def refusal(error: Exception, platform: str) -> ValueError | None:
    """Returns the error in the user's terms if XLA does not take an option that it was given; else None."""
    found = _REFUSED.search(str(error))
    if found is None:
        return None
    if found["unknown"] is None:
        return ValueError(f"compiler_options: XLA refuses the value of an option on {platform}: {found[0]}")
    return ValueError(
        f"compiler_options: XLA has no option {found['unknown']!r} on {platform}: check the name, and that it is an "
        "option of this platform's compiler (xla_tpu_..., xla_gpu_..., xla_cpu_...) and of this version of jaxlib"
    )
