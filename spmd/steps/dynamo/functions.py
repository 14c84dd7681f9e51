"""The table of this library's functions in torch.compile: those that a graph takes, and those
between two graphs.

The table has names, as torch's own tables of such rules have: the functions are those of folders
above, too, and they are looked up when Dynamo is imported.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Taken:
    """One function: the parameters that are functions of the user's, which Dynamo traces; and its
    result.

    result: "same": its first tensor itself; "like": a new tensor like the first; "run": as the
    function returns it for stand-ins.
    """

    name: str
    bodies: tuple[str, ...] = ()
    result: str = "run"


_ANNOTATE, _MEMORY, _MANUAL = "spmd.tensors.annotate", "spmd.tensors.memory", "spmd.manual"
_CONTROL = "spmd.loops"

TAKEN = (
    *(
        Taken(f"{_ANNOTATE}.{name}", result="same")
        for name in ("mark_sharding", "annotate_custom_sharding", "clear_sharding")
    ),
    *(
        Taken(f"{_ANNOTATE}.{name}", result="like")
        for name in ("mark_sharding_with_gradients", "reshard")
    ),
    Taken(f"{_ANNOTATE}.shard_as"),
    Taken("spmd.names.torch_xla.sharded_tensor._redistribute", result="like"),
    Taken("spmd.names.dtensor.distribute.distribute_tensor", result="same"),
    *(
        Taken(f"{_MEMORY}.{name}", result="like")
        for name in ("place_to_host", "place_to_device", "checkpoint_name")
    ),
    *(
        Taken(f"{_MANUAL}.collectives.{name}")
        for name in (
            "all_reduce",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "collective_permute",
            "broadcast",
            "axis_index",
            "axis_size",
        )
    ),
    Taken(f"{_MANUAL}.shard_map.call_on_shards", bodies=("fn",)),
    Taken(f"{_CONTROL}.scan.scan", bodies=("fn",)),
    Taken(f"{_CONTROL}.while_loop.while_loop", bodies=("cond_fn", "body_fn")),
    Taken(f"{_CONTROL}.cond.cond", bodies=("true_fn", "false_fn")),
    Taken("spmd.loops.recompute.recompute.recomputed", bodies=("function",)),
    Taken("spmd.loops.interop.call_jax.call_jax"),
    Taken("spmd.loops.interop.custom_call.stablehlo_custom_call"),
    Taken("spmd.loops.chunked_cross_entropy.linear_cross_entropy"),
)

# Functions of constants: their result is a constant of the graph.
PURE = tuple(
    f"spmd.loops.recompute.checkpoint_policies.{name}"
    for name in (
        "as_policy",
        "save_and_offload_only_these_names",
        "save_and_offload_only_these_ops",
        "save_any_names_but_these",
        "save_from_both_policies",
        "save_only_these_names",
    )
)

# Classes of context managers: a graph makes, enters and leaves them. A `Mesh` is one, too.
CONTEXTS = ("torch.autograd.graph.save_on_cpu", "spmd.manual.reading.use_sharding")

# Functions and files of Python that only calls such functions, or that does nothing in a graph (the
# hook of a buffer): Dynamo traces it.
TRACED = (
    "spmd.core.torch_state.modules._mark_buffer",
    "spmd.steps.segments.module_slot._called",
    "spmd.steps.segments.segment_calls._norm",
    "spmd.steps.segments.segment_calls._clip",
    "spmd.steps.segments.segment_calls._clip_to",
    "fsdp.attach._note_added",
    "spmd.loops.recompute.recompute.remat",
    f"{_MANUAL}.shard_map.shard_map",
    f"{_CONTROL}.scan.with_policy",
    "spmd.names.torch_xla.custom_kernel.flash_attention",
)
TRACED_FILES = (
    "loops/recompute/wrapped.py",
    "mesh/partition_spec.py",
    "names/torch_xla/xla_loops.py",
    "parallel/eager_experts.py",
)

# Functions in whose place Dynamo traces another one.
REPLACED = {
    f"{_CONTROL}.layers.scan_layers": f"{_CONTROL}.layers.layer_by_layer",
    f"{_CONTROL}.pure.call_recorded": f"{_CONTROL}.pure.call_plainly",
}

# Classes of tuples, which the functions get as they are.
TUPLES = ("spmd.mesh.partition_spec.PartitionSpec",)

# Attributes of tensors that are such functions.
METHODS = {
    "redistribute": "spmd.names.torch_xla.sharded_tensor._redistribute",
    "reshard": f"{_ANNOTATE}.reshard",
}

# The default of a parameter `mesh`: a graph that reads it is guarded by it.
DEFAULT_MESH = "spmd.mesh.global_mesh.get_global_mesh"

# Functions that are a graph break, and the reason.
BREAKS = {
    f"{_ANNOTATE}.get_sharding": "the sharding of a value is known when its program is compiled",
    ("spmd.adaptive.padding.marks.mark_dynamic"): (
        "it marks data; call it on the inputs, outside the compiled function"
    ),
    "spmd.tensors.runtime.sync": "it runs what is recorded",
    "spmd.tensors.runtime.mark_step": "it runs what is recorded",
    "spmd.tensors.shards.local_shards": "it reads values",
    "spmd.tools.show.inspection.inspect": "it compiles what is recorded",
    (f"{_MANUAL}.shard_map.enable_manual_sharding"): (
        "its end may be outside the graph; spmd.shard_map is taken"
    ),
    (f"{_MANUAL}.shard_map.disable_manual_sharding"): (
        "its start may be outside the graph; spmd.shard_map is taken"
    ),
}
