"""spmd.export: a recorded call as StableHLO of jax.export, with its manifest."""

import hashlib
import importlib.metadata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import export as jax_export
from torch import nn

from ...core import (
    Meta,
    Sharding,
    compiler_context,
    config,
    ends_at_user_line,
    extras,
    jax_facts,
    options,
    points,
    processes,
    storage_of,
    topology,
    user_line,
)
from ...core.extend import build, prepare, user_lines, walks
from ...loops.interop.custom_call import CustomCall
from .exported import FORMAT, VERSION, Exported, array_facts, state_arguments, struct
from .exported_call import ExportedStep, record


@ends_at_user_line
def export(
    step: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    platforms: Sequence[str] | None = None,
    custom_calls: Sequence[str] | None = (),
) -> Exported:
    """Returns a call of a module, function or training step as a program that runs without the
    Python that made it.

    The call is recorded (nothing runs): parameters, buffers, the optimizer's state and other
    tensors that it reads are the program's state, which a training step overwrites. Numbers are
    constants of the program, a learning rate among them unless it is a tensor; the counter of Adam
    is state, as with `capturable=True`; a random draw takes its key from the stream of the process
    that runs it. `save` writes the program, the values of the state and a manifest into a folder,
    and `spmd.load_exported` runs it. Of several processes all must call it.

    Args:
        step: a module (its forward, without gradients), an `ExportedProgram` of `torch.export`, or
            a function. The modules and optimizers of a function are found through its closure and
            globals. Modules on the CPU are exported as if they had been moved to xla.
        args, kwargs: its arguments: tensors on xla (with their shardings), on the CPU or on meta,
            in lists, tuples, dicts and dataclasses; anything else is a constant of the program.
        platforms: to lower for, such as ("cpu", "tpu"); None: that of the devices here.
        custom_calls: targets of custom calls that the program may have, besides those that jax
            keeps stable. None: those that the step calls by `stablehlo_custom_call`.

    Raises ValueError for a step that is not one program, that differs from call to call, or that
    reads state its first call makes; `ProcessError` where the processes export different steps;
    ModuleNotFoundError without `flatbuffers` (the extra `export`). Source: `jax.export`;
    `torch_xla.stablehlo`.

    >>> import tempfile, torch, spmd
    >>> model = torch.nn.Linear(4, 2, device="xla")
    >>> program = spmd.export(model, (torch.ones(3, 4, device="xla"),))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     program.save(folder)
    ...     loaded = spmd.load_exported(folder)
    >>> torch.equal(loaded(torch.ones(3, 4, device="xla")), model(torch.ones(3, 4, device="xla")))
    True
    """
    extras.imported("flatbuffers", "export", "export")  # jax writes programs by it
    if isinstance(step, torch.export.ExportedProgram):
        step = step.module()
        if any(tensor.device.type == "xla" for tensor in (*step.parameters(), *step.buffers())):
            step.to("xla")
    if not callable(step):
        raise TypeError(f"export: expected a module or a function, got {type(step).__name__}")
    if isinstance(args, torch.Tensor) or not isinstance(args, (tuple, list)):
        raise TypeError(
            f"export: expected args as a tuple of the arguments, got a {type(args).__name__}"
        )
    with torch.set_grad_enabled(torch.is_grad_enabled() and not isinstance(step, nn.Module)):
        recorded = record(step, args, kwargs or {})
    shardings = _shardings(recorded)
    exported = _lowered(recorded, shardings, platforms, custom_calls)
    if processes.several():
        mark = hashlib.sha256(exported.mlir_module().encode()).digest()
        words = (
            f"spmd.export of {len(recorded.call.graph.nodes):,} ops, its "
            f"{processes.digest('program', mark)}"
        )
        processes.agree(words, mark, user_line())
    serialized = bytes(exported.serialize())
    manifest = _manifest(recorded, shardings, exported, serialized)
    state = (operand.tensor for operand in recorded.operands if operand.role != "argument")
    names = [argument["name"] for argument in state_arguments(manifest)]
    return Exported(serialized, manifest, dict(zip(names, state, strict=True)))


def _shardings(step: ExportedStep) -> list[Sharding]:
    """The sharding in which the program takes each operand."""
    graph, shardings = step.call.graph, list[Sharding]()
    read = dict(zip(graph.inputs, graph.shardings, strict=True))
    pinned = {index: graph.pinned[root] for root, index in step.overwrites.items()}
    for index, operand in enumerate(step.operands):
        is_argument = operand.role == "argument"
        unread = storage_of(operand.tensor).sharding if is_argument else pinned.get(index)  # type: ignore[arg-type]
        sharding = read.get(operand.value, unread or graph.mesh)
        is_elsewhere = is_argument and sharding.devices != graph.mesh.devices
        shardings.append(graph.mesh if is_elsewhere else sharding)
    return shardings


def _lowered(
    step: ExportedStep,
    shardings: Sequence[Sharding],
    platforms: Sequence[str] | None,
    custom: Iterable[str] | None,
) -> jax_export.Exported:
    graph = prepare.run_compile_passes(step.call.graph, passes=points.EXPORT_PASSES)
    compute = build.build(graph, user_lines.describe, is_exported=True)
    floats, integers = map(np.array, walks.pack_numbers(step.call.graph.nodes), "dq")
    if graph.recorded is not None:  # its ops have the indices of their numbers
        orders = map(np.array, walks.pack_numbers(graph.nodes), "qq")
        floats, integers = (
            vector[order] for vector, order in zip((floats, integers), orders, strict=True)
        )
    first_seed, first_draw, num_draws = step.call.draws
    draws = integers - first_draw
    is_count = (draws >= 0) & (draws < num_draws)
    index_of = {operand.value: index for index, operand in enumerate(step.operands)}

    def spmd_exported(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        whole: Any = integers
        if num_draws:
            seed, count = arrays[-1][0], arrays[-1][1]
            whole = jnp.where(
                integers == first_seed, seed, jnp.where(is_count, count + draws, whole)
            )
        return compute(*(arrays[index_of[value]] for value in graph.inputs), floats, whole)

    several = len(graph.meshes()) > 1
    with topology.program_devices(graph.mesh.device_ids if several else None), compiler_context():
        out = tuple(
            None if sharding is None else sharding.in_program() for sharding in graph.pinned
        )
        jitted = jax.jit(spmd_exported, out_shardings=out, keep_unused=True)
        if custom is None:
            calls = (node.op.lowering for node in walks.walk(step.call.graph.nodes))
            custom = {call.target for call in calls if isinstance(call, CustomCall)}
        allowed = [jax_export.DisabledSafetyCheck.custom_call(target) for target in custom]
        structs = [*map(struct, (operand.value.meta for operand in step.operands), shardings)]
        if num_draws:
            structs.append(jax.ShapeDtypeStruct((2,), np.int64))
        exported = jax_export.export(jitted, platforms=platforms, disabled_checks=allowed)(*structs)
        return (
            jax_facts.without_shardings(exported)
            if config.partitioner == "gspmd" or several
            else exported
        )


def _manifest(
    step: ExportedStep,
    shardings: Sequence[Sharding],
    lowered: jax_export.Exported,
    serialized: bytes,
) -> dict[str, Any]:
    graph, num_draws = step.call.graph, step.call.draws[2]
    meshes: list[dict[str, Any]] = []
    order = {device: index for index, device in enumerate(graph.mesh.device_ids)}

    def facts(meta: Meta, sharding: Sharding | None) -> dict[str, Any]:
        return {
            **array_facts(meta),
            "sharding": None if sharding is None else _text(sharding, meshes, order),
        }

    arguments = [
        {"role": operand.role, "name": operand.name, **facts(operand.value.meta, sharding)}
        for operand, sharding in zip(step.operands, shardings, strict=True)
    ]
    if num_draws:
        arguments.append(
            {
                "role": "random",
                "name": "(seed, draws so far)",
                "dtype": "int64",
                "shape": [2],
                "sharding": None,
            }
        )
    results = [
        facts(root.meta, sharding) for root, sharding in zip(graph.roots, graph.pinned, strict=True)
    ]
    for root, operand_index in step.overwrites.items():
        results[root]["overwrites"] = operand_index
    versions = {
        name: importlib.metadata.version(name) for name in ("torch-spmd", "torch", "jax", "jaxlib")
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "made_by": versions,
        "program": {
            "sha256": hashlib.sha256(serialized).hexdigest(),
            "calling_convention_version": lowered.calling_convention_version,
            "platforms": list(lowered.platforms),
            "partitioner": config.partitioner,
            "compiler_options": {graph.mesh.platform: options.options_of(graph)},
            "num_draws": num_draws,
            "has_complex": options.has_complex(graph),
        },
        "num_devices": len(graph.mesh.device_ids),
        "device_ids": list(graph.mesh.device_ids),
        "meshes": meshes,
        "inputs": step.inputs,
        "outputs": step.call.outputs,
        "returned": step.results,
        "arguments": arguments,
        "results": results,
    }


def _text(
    sharding: Sharding, meshes: list[dict[str, Any]], order: dict[int, int]
) -> dict[str, Any]:
    """A sharding as JSON: its mesh, which is added to those met before, the axes of each dim, its
    memory."""
    mesh = {
        "axes": dict(sharding.mesh_axes()),
        "device_order": [order[device] for device in sharding.device_ids],
    }
    if mesh not in meshes:
        meshes.append(mesh)
    dims = [list(dim.axes) for dim in sharding.spec.dims]
    return {"mesh": meshes.index(mesh), "spec": dims, "memory": sharding.memory}
