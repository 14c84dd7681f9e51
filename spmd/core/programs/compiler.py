"""The compiler of graphs: lowering, XLA's options, donation, the check of the shardings that XLA chose."""

import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
import torch

from ..base import counters, interrupt
from ..base.config import config, is_known_to_libtpu
from ..base.jax_private import compile_lowered, ir
from ..base.state import held
from ..graph.graph import Graph, Node, Port, Value, origin, pack_numbers, walk
from ..graph.meta import Meta
from ..graph.source import Line, describe
from ..lower.build import argument_struct, build, hide_complex_constants
from ..lower.lower import Chosen, LoweringError
from ..ops import sharded
from ..run.pjrt import agreement, processes
from ..sharding.partitioner import as_chosen, compiler_context, mark_manual_sorts
from ..sharding.topology import program_devices, stand_in
from ..sharding.value import DEVICE, Sharding
from . import failing
from .program import Program, Requested, listing, record

Compiled = tuple[Any, tuple[tuple[str, str], ...]]  # an executable, and notes on it for the compile log


def _compile(lowered: jax.stages.Lowered, options: dict[str, str | float], platform: str) -> Compiled:
    return compile_lowered(lowered, options), ()


# What compiles a lowered program with XLA's options for a platform; the last one is called.
compile_by: list[Callable[[jax.stages.Lowered, dict[str, str | float], str], Compiled]] = [_compile]


def lower_graph(graph: Graph, chosen: Chosen | None = None) -> jax.stages.Lowered:
    """Returns the graph as a `jax.stages.Lowered`: StableHLO with the sharding attributes, before XLA's passes.

    chosen: see `lower.build`.
    """
    function = build(graph, describe, chosen)
    function.__name__ = "spmd"
    several = len(graph.meshes()) > 1
    with program_devices(graph.mesh.device_ids if several else None), compiler_context():
        inputs = graph.arguments()
        jitted = jax.jit(
            function,
            donate_argnums=tuple(i for i, port in enumerate(inputs) if port.is_donated),
            out_shardings=tuple(
                None if port.sharding is None else port.sharding.in_program() for port in graph.results()
            ),
            keep_unused=True,
        )
        floats, integers = pack_numbers(graph.nodes)
        arguments = list(map(argument_struct, inputs))
        vectors = [jax.ShapeDtypeStruct((len(floats),), np.float64), jax.ShapeDtypeStruct((len(integers),), np.int64)]
        lowered = jitted.lower(*arguments, *vectors)
        module = lowered.compiler_ir()
        assert module is not None, "it is StableHLO"
        hide_complex_constants(graph, module)
        alias_by_memory(graph, module)
        if config.partitioner == "gspmd":
            mark_manual_sorts(module)
        return lowered


def compile_graph(graph: Graph, name: str, line: Line, cause: str, *, is_planned: bool = False) -> Program:
    """Lowers and compiles a graph, for the reason `cause`; adds its line to the compile log.

    Neither the mesh nor the data of the inputs need be on this machine. is_planned: no run needs it yet, so that it is
    not compared with the programs of the other processes.
    """
    started = counters.now()
    chosen: Chosen = []
    # For devices that are not on this machine only the CPU's compiler reports how it sharded a value.
    is_checked = config.check_shardings and (is_here(graph) or graph.mesh.platform == "cpu")
    with interrupt.between_ops(), sharded.unused_axes() as unused:
        lowered = lower_graph(graph, chosen if is_checked else None)
    if unused:
        notes = ((kind, f"{words} at {place}") for (kind, words), place in unused.items())
        graph = dataclasses.replace(graph, notes=(*graph.notes, *notes))
    counters.add_time("lower", counters.now() - started)
    calls_host = bool(lowered._lowering.compile_args["host_callbacks"])
    if calls_host and any(graph.donated):
        # An exception that Python raises during the run must not cost the inputs: they are not donated.
        graph = dataclasses.replace(graph, donated=(False,) * len(graph.donated))
        return compile_graph(graph, name, line, cause, is_planned=is_planned)
    mark = fingerprint(lowered) if processes.several() else b""
    if not is_planned:
        agree_on(graph, name, line, cause, mark)
    try:
        with interrupt.later(), compiler_context():
            options = options_of(graph.recorded or graph)
            executable, miscompiles = compile_by[-1](lowered, options, graph.mesh.platform)
    except jax.errors.JaxRuntimeError as error:
        refused = refusal(error, graph.mesh.platform)
        if refused is not None:
            raise refused from error
        raise failing.not_compiled(Program(name, line, graph, None, []), graph.recorded or graph, error) from error
    with program_devices(graph.mesh.device_ids):
        for node, sharding in chosen:
            requested = node.op.sharding
            assert requested is not None, "annotated ops have one"
            if node.meta.numel:  # else there is nothing to shard
                compare(graph, partial(describe, node), node.meta, requested, as_chosen(sharding, graph.mesh), node)
        results = chosen_shardings(graph, executable)
    program = Program(name, line, graph, executable, results)
    program.calls_host = calls_host
    program.fingerprint = mark
    program.record = record(program, graph, name, cause, line, counters.now() - started, miscompiles)
    if is_here(graph):
        needed = program.record.temp_bytes + program.record.output_bytes - program.record.alias_bytes
        program.bytes_needed = needed * len(executable.runtime_executable().local_devices())
    counters.record_compile(program.record)
    counters.add_time("compile", program.record.seconds)
    counters.add_sample("InputOutputAliasCount", sum(graph.donated))
    return program


def agree_on(graph: Graph, name: str, line: Line, cause: str, mark: bytes) -> None:
    """Waits until each of several processes is about to run a new program with this fingerprint, else ProcessError."""
    if processes.several():
        with interrupt.soon():
            agreement.agree(f"a new program ({name}: {cause}; {_digests(graph)})", mark, line)


def _digests(graph: Graph) -> str:
    """Returns the parts of a graph, each by its digest, for processes to see in which theirs differ."""
    facts = listing(Requested(graph.recorded or graph, 0))
    del facts["lines"]  # they are no part of the program
    parts = (agreement.digest(name, json.dumps(part).encode()) for name, part in facts.items())
    return f"{len(graph.nodes):,} ops; its {', '.join(parts)}"


# The partitioner reports to an address of this process (see `sharding.partitioner.report_sharding`).
_ADDRESS = re.compile(r"(@InspectSharding\(.*?backend_config = )\"[^\"]*\"")


def fingerprint(lowered: jax.stages.Lowered) -> bytes:
    """Returns a digest that is equal in two processes that lower the same program."""
    return hashlib.sha256(_ADDRESS.sub(r"\1", lowered.as_text()).encode()).digest()


_ALIAS, _DONOR = "tf.aliasing_output", "jax.buffer_donor"


def alias_by_memory(graph: Graph, module: ir.Module) -> None:
    """Aliases each donated argument with the result that is written over it, and with no other.

    jax pairs donated arguments with results by shape and dtype, in order; it compares their memories only if both are
    named, which they are not where the compiler chooses. Programs with device memory alone stay as jax makes them.
    """
    inputs, outputs = graph.arguments(), graph.results()
    if all(port.sharding is None or port.sharding.memory == DEVICE for port in (*inputs, *outputs)):
        return
    place_of: dict[object, int] = {port.places: i for i, port in enumerate(outputs)}
    main = next(op for op in module.body.operations if ir.StringAttr(op.attributes["sym_name"]).value == "main")
    arguments = list(ir.ArrayAttr(main.attributes["arg_attrs"]))
    with module.context:
        number = ir.IntegerType.get_signless(32)
        for i, port in enumerate(inputs):
            attributes: Any = ir.DictAttr(arguments[i])  # jaxlib's stubs omit that it is iterable
            by_name = {named.name: named.attr for named in attributes}
            by_name.pop(_ALIAS, None)
            by_name.pop(_DONOR, None)
            result_index = place_of.get(_written_over(graph, port)) if port.is_donated else None
            if result_index is not None:
                by_name[_ALIAS] = ir.IntegerAttr.get(number, result_index)
            arguments[i] = ir.DictAttr.get(by_name)
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(arguments)


def _written_over(graph: Graph, port: Port) -> object:
    """Returns the places of the roots that take an argument's memory (see `Graph.stacked`)."""
    if isinstance(port.places, int):
        return graph.onto[port.places]
    return tuple(graph.onto[place] if graph.donated[place] else ~place for place in port.places)


def chosen_shardings(graph: Graph, executable: Any) -> list[Sharding]:
    """Returns the results' shardings; raises LoweringError if the compiler chose another than the requested one (both
    partitioners may). Inside of `program_devices`, as `compare` is."""
    outputs = list(zip(graph.results(), executable.output_shardings, strict=True))
    if config.check_shardings:
        for port, chosen in zip(graph.arguments(), executable.input_shardings[0], strict=False):
            assert port.sharding is not None, "every input has a sharding"
            compare(graph, lambda: "argument", port.meta, port.sharding, chosen)
        for port, chosen in outputs:
            if port.sharding is not None:
                root = graph.roots[port.places if isinstance(port.places, int) else max(port.places)]
                compare(graph, partial(_label, root), port.meta, port.sharding, chosen, origin(root))
    free = {port.places: chosen for port, chosen in outputs if port.sharding is None}
    meshes = graph.meshes() if free else []
    return [
        Sharding.from_jax(free[index], len(root.meta.shape), meshes) if pinned is None else pinned
        for index, (root, pinned) in enumerate(zip(graph.roots, graph.pinned, strict=True))
    ]


def compare(
    graph: Graph,
    what: Callable[[], str],
    meta: Meta,
    requested: Sharding,
    chosen: jax.sharding.Sharding,
    node: Node | None = None,
) -> None:
    """Raises LoweringError if the compiler chose another sharding than the requested one."""
    if not requested.allows(chosen, len(meta.shape)):
        raise LoweringError(
            f"the partitioner ({config.partitioner}) sharded the {what()} {meta!r} as {chosen} "
            f"instead of {requested!r}",
            node,
        )


def _label(root: Value) -> str:
    node = origin(root)
    return f"result of {'an input' if node is None else describe(node)}"


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
    options = dict(_parsed(word) for word in words if word != _NEEDED)
    return {**_needed(graph), **options} if _NEEDED in words else options


_NEEDED = "auto"


def _needed(graph: Graph) -> dict[str, str | float]:
    platform = graph.mesh.platform
    if platform == "tpu":
        options = of_tpus(_kind(graph)) if len(graph.mesh.device_ids) > 1 else {}
        if not is_here(graph) and _is_exact(graph) and is_known_to_libtpu(_TARGET):
            options |= _PLANNED
        return options
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


def text_of(options: Mapping[str, object]) -> str:
    """Returns options of XLA, name -> value, as a value of `config.compiler_options` that adds them to those that a
    program needs.

    Raises TypeError and ValueError for what cannot be an option; whether XLA has it is known when it compiles (see
    `refusal`).
    """
    return " ".join([_NEEDED, *(_text(name, value) for name, value in options.items())])


_NAME = re.compile(r"\w+")


def _text(name: object, value: object) -> str:
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
def compiled_with(options: Mapping[str, object] | None) -> Iterator[None]:
    """Compiles and finds programs with these options of XLA's inside; None or {}: with those of the process.

    They are part of a program's key, in this process and on disk. The flag is one for all threads.
    """
    with held(config, compiler_options=text_of(options)) if options else contextlib.nullcontext():
        yield


_REFUSED = re.compile(r"No such compile option: '(?P<unknown>\w+)'|While setting option (?P<set>\w+), .*")


def refusal(error: Exception, platform: str) -> ValueError | None:
    """Returns the error in the user's terms if XLA does not take an option that it was given; else None."""
    match = _REFUSED.search(str(error))
    if match is None:
        return None
    if match["unknown"] is None:
        return ValueError(f"compiler_options: XLA refuses the value of an option on {platform}: {match[0]}")
    return ValueError(
        f"compiler_options: XLA has no option {match['unknown']!r} on {platform}: check the name, and that it is an "
        "option of this platform's compiler (xla_tpu_..., xla_gpu_..., xla_cpu_...) and of this version of jaxlib"
    )
