"""Layers whose weights are split over a mesh axis run as the stages of a pipeline (`pipeline`).

The weights of a loop are rows of a stack. Where the stack's leading dim is sharded, as a user's own
`P("stage")` or `ShardingRules(stages=...)` has it, the loop becomes a pipeline over these axes.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..core import Sharding, config, points
from ..core.extend import (
    Graph,
    Loop,
    Node,
    OpSpec,
    Rewrite,
    lowering,
    propagation,
    repeats,
    rewrite,
    user_lines,
    walks,
)
from .pipeline import Pipeline
from .stack_loops import shardings_of, source_of

STAGES = "spmd.stages"
FEWEST = repeats.FEWEST_ITERATIONS


def pipelines(graph: Graph, may_scan: bool) -> tuple[Graph, str]:
    """Returns the graph with a pipeline in the place of each loop over a stack that is split by
    rows; and their number, in words."""
    shardings = shardings_of(graph)
    found = {
        node: split
        for node in graph.nodes
        if isinstance(node.op.lowering, Loop)
        and node.op.lowering.num_carried
        and (split := _split_stack(node, node.op.lowering, shardings)) is not None
    }
    if not found:
        _refuse_unequal(graph, shardings)
        return graph, ""
    rules = {node: partial(_put, *split) for node, split in found.items()}
    words = f"{len(found)} loop{'s' * (len(found) > 1)} in stages"
    return rewrite.rewrite(graph, rules), words


_PRODUCTS = frozenset({"aten.addmm", "aten.bmm", "aten.convolution", "aten.linear", "aten.mm"})
_SAME = frozenset({"mark_sharding", "spmd.gather", "spmd.renew", "aten._to_copy", "aten.t"})


def _refuse_unequal(graph: Graph, shardings: Mapping[Any, Sharding]) -> None:
    """Raises LoweringError for a product with a weight on a stage outside of any loop: each device
    would compute it."""
    on_stage = {name for name, sharding in shardings.items() if sharding.spec.stack}
    for node in graph.nodes if on_stage else ():
        reads = [operand for operand in node.operands if walks.value_name(operand) in on_stage]
        if reads and node.op.name in _SAME:
            on_stage.update(map(walks.value_name, walks.results(node)))
        elif reads and node.op.name in _PRODUCTS:
            recorded = graph.sources.get(node, (node,))[0]
            raise lowering.LoweringError(
                f"{node.op.name} at {user_lines.node_line(recorded)} reads the weight of a layer "
                f"that lies on a stage, outside of a loop over {FEWEST} or more equal layers: each "
                "device would compute all of them; leave out stages=, or make the layers equal "
                "(explain(step, passes=True) says where they differ)",
                recorded,
            )


_Split = tuple[int, Sharding, tuple[str, ...]]  # an x, its sharding, the axes that split its rows


def _split_stack(node: Node, loop: Loop, shardings: Mapping[Any, Sharding]) -> _Split | None:
    """Returns the first x of a loop whose rows lie on devices of their own."""
    for index, (run, is_stack) in enumerate(zip(loop.operand_runs(), loop.xs, strict=True)):
        source = source_of(node.operands[run.start], shardings)
        if source is None:
            continue
        sharding, is_row = source
        dims = sharding.spec.dims
        axes = sharding.spec.stack if not (is_stack or is_row) else dims[0].axes if dims else ()
        if axes:
            return index, sharding, axes
    return None


def _put(index: int, sharding: Sharding, axes: tuple[str, ...], new: Rewrite, node: Node) -> None:
    """Puts the pipeline in the place of a loop."""
    loop, mesh = node.op.lowering, sharding.replicated()
    assert isinstance(loop, Loop)
    pipeline = Pipeline(loop, mesh, axes, index, config.micro_batches or None)
    op = OpSpec.of(
        STAGES,
        pipeline,
        node.op.metas,
        node.op.operands,
        numbers=node.op.numbers,
        statics=node.op.statics,
        sharding=mesh,
    )
    new.put(node, op, node.operands, new.numbers[node])


lowering.SHARDED_AS[STAGES] = lambda node, index: node.op.lowering.loop.root_of(index)  # type: ignore[attr-defined]
propagation.STEPS[Pipeline] = lambda node: propagation.of_loop(node, node.op.lowering.loop)  # type: ignore[attr-defined]
points.COMPILE_PASSES.insert(
    [name for name, *_ in points.COMPILE_PASSES].index("scan layers") + 1,
    ("stages", pipelines, None),
)
