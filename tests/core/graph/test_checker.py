"""The checker finds what a wrong pass would make of a graph, and names the pass."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import nn

import spmd
from spmd.core.graph.graph import DeviceData, Graph, Node, TupleElement
from spmd.core.passes import pass_result
from spmd.core.passes.checker import GraphError, check
from spmd.core.record.storage import LOCK
from spmd.core.run import prepare
from spmd.core.run.executables import graph_of
from spmd.core.run.execute import roots_of


@pytest.fixture
def graph() -> Graph:
    """Two inputs, an op with two results, and one that reads both and is written over the first
    input."""
    x, y = torch.ones(4, 3, device="xla"), torch.ones(4, 3, device="xla")
    spmd.sync()
    x.add_(torch.stack((x * y).max(0)).sum(0))
    with LOCK:
        roots = roots_of([x._storage])
        made = graph_of(
            roots, spmd.core.run.pjrt.devices.default_sharding(), dies=lambda data: True
        )
    assert made.onto[0] == 0
    return made


def moved(graph: Graph, place: int, **changes: object) -> Graph:
    """The graph with one of its ops replaced by another, which the later ones read."""
    old = graph.nodes[place]
    given = {"op": old.op, "operands": old.operands, "numbers": old.numbers} | changes
    new = Node(given["op"], given["operands"], given["numbers"])  # type: ignore[arg-type]
    nodes = [*graph.nodes]
    nodes[place] = new
    for node in nodes:
        node.operands = tuple(new if operand is old else operand for operand in node.operands)
    return dataclasses.replace(
        graph, nodes=nodes, roots=[new if root is old else root for root in graph.roots]
    )


def late(graph: Graph) -> Graph:
    return dataclasses.replace(graph, nodes=graph.nodes[::-1])


def without_input(graph: Graph) -> Graph:
    return dataclasses.replace(
        graph,
        inputs=graph.inputs[1:],
        shardings=graph.shardings[1:],
        donated=graph.donated[1:],
        onto=graph.onto[1:],
    )


def with_operand(graph: Graph, tensor: torch.Tensor) -> Graph:
    """The graph whose first op reads another input of this shape and dtype."""
    data = DeviceData(tensor._storage.value.meta, is_abstract=True)
    inputs = [graph.inputs[0], data]
    return moved(dataclasses.replace(graph, inputs=inputs), 0, operands=(inputs[0], data))


def other_shape(graph: Graph) -> Graph:
    return with_operand(graph, torch.ones(3, device="xla"))


def other_dtype(graph: Graph) -> Graph:
    return with_operand(graph, torch.ones(4, 3, dtype=torch.int32, device="xla"))


def third_result(graph: Graph) -> Graph:
    place = next(place for place, node in enumerate(graph.nodes) if len(node.op.metas) == 2)
    reader = next(
        at
        for at, node in enumerate(graph.nodes)
        if any(type(o) is TupleElement for o in node.operands)
    )
    wrong = [TupleElement(graph.nodes[place], 2), *graph.nodes[reader].operands[1:]]
    return moved(graph, reader, operands=tuple(wrong))


def more_numbers(graph: Graph) -> Graph:
    return moved(graph, 0, numbers=(*graph.nodes[0].numbers, 1.0))


def two_writers(graph: Graph) -> Graph:
    return dataclasses.replace(graph, onto=[0, 0], donated=(True, True))


def other_sharding(graph: Graph) -> Graph:
    mesh = spmd.Mesh(range(8), (8,), ("x",))
    data = spmd.mark_sharding(torch.ones(8, 3, device="xla"), mesh, ("x", None))
    return dataclasses.replace(graph, pinned=[data._storage.sharding])


def two_stacks(graph: Graph) -> Graph:
    return dataclasses.replace(graph, stack_groups=((0, 1), (1, 0)))


def missing_flag(graph: Graph) -> Graph:
    return dataclasses.replace(graph, donated=graph.donated[1:])


class TestCheck:
    def test_a_recorded_graph_is_legal(self, graph: Graph) -> None:
        check(graph, "nothing")

    @pytest.mark.parametrize(
        ("wrong", "what"),
        [
            (late, "which is no input and no earlier op"),
            (without_input, "which is no input and no earlier op"),
            (other_shape, "its spec says"),
            (other_dtype, "its spec says"),
            (third_result, "reads result 2 of aten.max.dim, which has 2"),
            (more_numbers, "scalar arguments"),
            (two_writers, "over two inputs"),
            (other_sharding, "is written over an input in"),
            (two_stacks, "a row of two stacks"),
            (missing_flag, "1 donation flags"),
        ],
        ids=lambda value: getattr(value, "__name__", ""),
    )
    def test_a_wrong_one_is_not(
        self, graph: Graph, wrong: Callable[[Graph], Graph], what: str
    ) -> None:
        made = wrong(graph)
        with pytest.raises(
            GraphError, match=f"the pass shuffle has made a graph that is not legal: .*{what}"
        ):
            check(made, "shuffle")

    def test_a_region_is_closed(self) -> None:
        """A loop whose body reads a value that it is not given."""
        spmd.scan(
            lambda carry, x: (carry + x.sin(), x),
            torch.zeros(3, device="xla"),
            torch.ones(4, 3, device="xla"),
        )
        x = torch.ones(4, 3, device="xla")
        total, _ = spmd.scan(lambda carry, x: (carry + x.sin(), x), torch.zeros(3, device="xla"), x)
        with LOCK:
            made = graph_of(
                roots_of([total._storage]), spmd.core.run.pjrt.devices.default_sharding()
            )
        check(made, "nothing")
        body = next(region for node in made.nodes for region in node.op.lowering.regions)
        stranger = DeviceData(body.nodes[0].operands[0].meta, is_abstract=True)
        body.nodes[0].operands = (stranger,)
        with pytest.raises(GraphError, match=r"in a region of spmd\.scan"):
            check(made, "shuffle")


class TestFlag:
    def test_a_wrong_pass_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The loop over the passes checks what each returns; without the flag XLA would see it
        first."""

        def wrong(graph: Graph, sync: pass_result.Sync) -> pass_result.Outcome:
            return pass_result.Changed(late(graph), "shuffled")

        monkeypatch.setattr(prepare, "PASSES", (pass_result.Pass("shuffle", wrong, reads=True),))
        x = torch.arange(5.0, device="xla") * 3 + 1
        with pytest.raises(GraphError, match="the pass shuffle"):
            x.exp().sum().item()
        monkeypatch.undo()
        assert x[1].item() == 4.0


class TestExplain:
    """`spmd.explain(step, passes=True)` says what each pass changed, or why it did not."""

    def layers(self, count: int) -> str:
        model = nn.Sequential(
            *(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.SiLU()) for _ in range(count))
        ).to("xla")
        x = torch.randn(2, 4, device="xla")
        spmd.sync()
        with torch.no_grad():
            model(x).sum().item()
        return spmd.explain(passes=True)

    def test_loops(self) -> None:
        assert "pass scan layers: 9 iterations of 3 ops" in self.layers(9)

    def test_why_not(self) -> None:
        assert "pass scan layers: 7 equal layers, and a loop is made from 8 on" in self.layers(7)

    def test_a_length(self) -> None:
        """A length that differs from run to run is an operand, unless a result is kept at its own
        length."""
        x = torch.randn(64, 8).to("xla")
        spmd.sync()
        for length in range(5, 11):
            (x[:length] * 3.0).exp().sum().item()
        assert "pass learn: lengths are operands" in spmd.explain(passes=True)
        for length in range(5, 11):
            kept = x[:length] * 5.0
            spmd.sync()
        assert kept.shape == (10, 8)
        assert "pass learn: aten.mul.Tensor makes a result that is kept at its own" in spmd.explain(
            passes=True
        )
