"""Detects a scanned program that copies its stacks, as XLA's CPU compiler may: layers without a
loop need less memory."""

import math

import jax

from ..core.extend import Computation, Graph, Loop, Module, hlo_text

_FILLS = ("broadcast", "constant")


def costs_more(executable: jax.stages.Compiled, graph: Graph) -> bool:
    """True if a program over CPU devices copies more of its loops' stacks than one row of each
    stack group."""
    loops = [node.op.lowering for node in graph.nodes if isinstance(node.op.lowering, Loop)]
    is_staged = any(sharding.spec.stack for sharding in graph.shardings)
    if not loops or is_staged or graph.mesh.platform != "cpu":
        return False
    stacks = {(len(group), *graph.inputs[group[0]].meta.shape) for group in graph.stack_groups}
    for loop in loops:
        shapes = [
            root.meta.shape for root in loop.body.roots[len(loop.body.roots) - len(loop.ys) :]
        ]
        stacks.update((loop.iterations + extra, *shape) for shape in shapes for extra in (0, 1))
    module = Module.of(executable)
    outer = [
        computation
        for computation in module.computations.values()
        if computation.count and not computation.is_inner
    ]
    spare = 0
    for group in graph.stack_groups:
        device_data, shardings = graph.inputs[group[0]], graph.shardings[group[0]]
        spare += (
            math.prod(shardings.shard_shape(device_data.meta.shape))
            * device_data.meta.struct.dtype.itemsize
        )
    return sum(_copied(computation, stacks) for computation in outer) > spare


def _copied(computation: Computation, stacks: set[tuple[int, ...]]) -> int:
    """The bytes of stacks, of these unsharded shapes, that a computation copies and does not
    fill."""
    copied = 0
    for line in computation.lines:
        if line.opcode != "copy" and not (
            line.opcode == "fusion" and line.name.startswith("wrapped_copy")
        ):
            continue
        made_by = computation.by_name.get(line.operands[0])
        is_fill = made_by is not None and any(word in made_by.name for word in _FILLS)
        for _, dims, size in hlo_text.arrays(line.shape):
            if not is_fill and any(_is_part(dims, stack) for stack in stacks):
                copied += size
    return copied


def _is_part(dims: tuple[int, ...], stack: tuple[int, ...]) -> bool:
    """True if a shape is that of a stack's shard."""
    is_part = len(dims) == len(stack) and dims[0] == stack[0]
    return is_part and all(
        a == b or (a > 0 and b % a == 0) for a, b in zip(dims, stack, strict=True)
    )
