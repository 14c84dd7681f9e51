"""The options that XLA gets for one program."""

from ..config import config
from ..ir.graph import Graph, walk

# XLA's CPU compiler runs gathers as early as it can, joins all reductions into one that waits for every gradient, and
# takes barriers away before it decides where a gradient is cut. What a program frees would then be there all at once.
_FREEING_ON_CPU = {
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "xla_disable_hlo_passes": "cpu-all-reduce-combiner,cse_barrier_expander",
}


def options_of(graph: Graph) -> dict[str, str]:
    """Those that the user gives (`config.compiler_options`), or what the program is in need of."""
    if config.compiler_options != "auto":
        return dict(map(_parsed, config.compiler_options.split()))
    renews = any(node.entry.name == "spmd.renew" for node in walk(graph.nodes))
    return _FREEING_ON_CPU if renews and platform_of(graph) == "cpu" else {}


def platform_of(graph: Graph) -> str:
    """What kind of devices a program is for: "cpu", "tpu", ..."""
    return next(iter(graph.mesh.jax.device_set)).platform  # type: ignore[attr-defined]  # jax has no type for devices


def _parsed(option: str) -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if not equals:
        raise ValueError(f"config.compiler_options: expected name=value, got {option!r}")
    return name, value
