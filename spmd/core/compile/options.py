"""The compiler options of XLA for one program."""

import torch

from ..base.config import config, is_known_to_libtpu
from ..ir.graph import Graph, walk
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


def options_of(graph: Graph) -> dict[str, str | float]:
    """Returns the user's options (`config.compiler_options`), or those that the program needs."""
    if config.compiler_options != "auto":
        return dict(map(_parsed, config.compiler_options.split()))
    platform = platform_of(graph)
    if platform == "tpu" and not is_here(graph) and _is_exact(graph) and is_known_to_libtpu(_TARGET):
        return {**_PLANNED}
    if platform != "cpu":
        return {}
    names = {node.op.name for node in graph.nodes}
    if "spmd.recompute" in names:
        return {**_KEEPING_BARRIERS}
    if "spmd.renew" in names:
        return {**_FREEING}
    # In the bodies of loops there is no optimization barrier to keep.
    return {**_BY_MEMORY} if any(node.op.name == "spmd.renew" for node in walk(graph.nodes)) else {}


def _is_exact(graph: Graph) -> bool:
    """True if no product of a graph takes fewer passes than exact float32."""
    nodes = [*walk(graph.nodes)]
    dtypes = {meta.dtype for node in nodes for meta in node.op.metas}
    return dtypes.isdisjoint(_FEW_BITS) and not any(":precision_" in node.op.name for node in nodes)


_FEW_BITS = (torch.bfloat16, torch.float16)


def platform_of(graph: Graph) -> str:
    """Returns the kind of devices that a program is for: "cpu", "tpu", ..."""
    return next(iter(graph.mesh.jax.device_set)).platform  # type: ignore[attr-defined]  # jax has no type for devices


def is_here(graph: Graph) -> bool:
    """True if a graph is compiled for the devices of this machine, where it can run."""
    return graph.mesh.target is None and stand_in() is None


# The options of jax that are numbers, not text.
_NUMBERS = ("exec_time_optimization_effort", "memory_fitting_effort")


def _parsed(option: str) -> tuple[str, str | float]:
    name, equals, value = option.partition("=")
    if not equals:
        raise ValueError(f"config.compiler_options: expected name=value, got {option!r}")
    return name, float(value) if name in _NUMBERS else value
