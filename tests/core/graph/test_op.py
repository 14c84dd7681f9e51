"""An op is data: equal parts are one object and one text in every process, whatever was recorded in
between."""

import dataclasses
import gc
import itertools

import numpy as np
import pytest
import torch
from drawing import SETS, draw_program
from programs import check_together, on_cpu
from support import run_script

import spmd
from spmd.core.graph.graph import Graph, Node, origin, walk
from spmd.core.graph.meta import dense_meta
from spmd.core.graph.op import Lowering, OpSpec, digest, encode
from spmd.core.record.annotations import mark_op
from spmd.core.record.calls.lists import EachElement
from spmd.core.sharding.value import Sharding, Spec

aten = torch.ops.aten
FLOATS = dense_meta((4,), torch.float32)


def op_of(tensor: torch.Tensor) -> OpSpec:
    """The op that makes a tensor's value."""
    made = origin(tensor._storage.value)
    assert made is not None
    return made.op


class TestEncode:
    """Values that are not the same have other texts; what has no text is refused."""

    VALUES = (
        None, 0, 1, -1, 0.0, -0.0, 1.0, float("nan"), float("inf"), True, False, 1j, 1 + 0j,
        complex(-0.0, 1), "", "1", "None", (), (1,), [1], ((1,),), (1, 2), ("1,2",), ("1", "2"),
        torch.float32, torch.float64, np.dtype("float32"), torch.strided, torch.contiguous_format,
        torch.device("cpu"), torch.device("meta"), aten.add.Tensor, aten.add.Scalar,
        "aten.add.Tensor", FLOATS, dense_meta((4,), torch.int32), Sharding.single(0),
        Sharding.of((0, 1), (2,), ("a",), Spec.of(("a",))), Sharding.of((0, 1), (2,), ("a",)),
        Sharding.of((1, 0), (2,), ("a",)), int, float,
    )  # fmt: skip

    def test_no_two_alike(self) -> None:
        for one, other in itertools.combinations(self.VALUES, 2):
            assert encode(one) != encode(other), (one, other)

    def test_a_dataclass_by_what_it_compares_by(self) -> None:
        @dataclasses.dataclass(frozen=True)
        class Pair:
            one: int
            other: object = dataclasses.field(compare=False, default=None)

        assert encode(Pair(1)) == encode(Pair(1, object())) != encode(Pair(2))

    def test_refuses_what_has_an_address(self) -> None:
        with pytest.raises(TypeError, match="no text that is the same in every process"):
            encode(object())


class TestInterned:
    """Ops of equal parts are one object, from whichever table they were asked."""

    def test_by_parts(self) -> None:
        x, y = torch.ones(4, device="xla"), torch.zeros(4, device="xla")
        assert op_of(torch.sum(x, 0)) is op_of(y.sum(dim=0))
        assert op_of(torch.softmax(x, 0)) is not op_of(torch.softmax(x, 0, torch.float64))
        assert op_of(x * 2) is op_of(y * 3) is not op_of(x * 2j)

    def test_freed_and_made_again(self) -> None:
        mesh = Sharding.of((0, 1), (2,), ("freed",), Spec.of(("freed",)))
        text = mark_op(dense_meta((2,), torch.float32), mesh).encoded
        gc.collect()
        assert mark_op(dense_meta((2,), torch.float32), mesh).encoded == text

    def test_static_numbers_of_other_types(self) -> None:
        x = torch.ones(4, device="xla")
        made = [op_of(x.pow(exponent)) for exponent in (1, 1.0, 0.0, -0.0, 2)]
        assert len({id(op) for op in made}) == len(made)

    def test_precision_is_a_part(self) -> None:
        x = torch.ones(4, 4, device="xla")
        full = op_of(x @ x)
        torch.set_float32_matmul_precision("medium")
        try:
            less = op_of(x @ x)
        finally:
            torch.set_float32_matmul_precision("highest")
        assert full is not less and less.lowering.precision == "default"
        assert op_of(x @ x) is full

    def test_a_list_op_keeps_its_parts(self) -> None:
        x = [torch.ones(4, device="xla") for _ in range(3)]
        y = [torch.ones(4, device="xla") for _ in range(3)]
        op = op_of(torch._foreach_mul(x, y)[0])
        assert isinstance(op.lowering, EachElement)
        assert [part.operands for part in op.lowering.elements] == [(0, 3), (1, 4), (2, 5)]
        assert {part.op.name for part in op.lowering.elements} == {"aten.mul.Tensor"}
        assert op_of(torch._foreach_mul(y, x)[0]) is op
        assert op_of(torch._foreach_mul(x, [1.0, 2.0, 3.0])[0]).lowering.elements[1].numbers == (1,)


@dataclasses.dataclass(frozen=True, slots=True)
class Twice(Lowering):
    """A region, two times."""

    body: Graph

    @property
    def regions(self) -> tuple[Graph, ...]:
        return (self.body,)


class TestRegions:
    """A graph inside an op is walked with the graph around it, and is part of what the op is."""

    def twice(self, function) -> Node:
        value = function(torch.ones(4, device="xla"))._storage.value
        mesh = Sharding.single(0)
        body = Graph([value.operands[0], value], [], [], [value], [None], (), mesh)
        return Node(OpSpec.of("test.twice", Twice(body), (FLOATS,), ()), ())

    def test_walk(self) -> None:
        node = self.twice(torch.sin)
        names = [inner.op.name for inner in walk([node])]
        assert names[-2:] == ["aten.sin", "test.twice"] and len(names) == 3

    def test_told_apart(self) -> None:
        assert self.twice(torch.sin).op is self.twice(torch.sin).op
        assert self.twice(torch.sin).op is not self.twice(torch.cos).op

    def test_meshes_inside_are_seen(self, mesh8: spmd.Mesh) -> None:
        inside = self.twice(lambda x: spmd.mark_sharding(x, mesh8, ("fsdp",)))
        graph = Graph([inside], [], [], [inside], [None], (), Sharding.single(0))
        assert mesh8.sharding((), 0, "test") in graph.meshes()


class TestDigest:
    """Equal keys have equal digests, other keys others; in every process the same."""

    @pytest.mark.filterwarnings("ignore")
    def test_as_the_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[tuple[object, str]] = []
        plain = Graph.key

        def key(graph: Graph) -> object:
            found = plain(graph)
            seen.append((found, digest(found)))
            return found

        monkeypatch.setattr(Graph, "key", key)
        for iteration in range(2):  # the second finds the first's programs
            programs = [draw_program(seed, meshes=SETS[9]) for seed in range(20, 23)]
            assert not any(
                check_together(programs, [on_cpu(program) or {} for program in programs])
            ), iteration
        monkeypatch.undo()
        assert len({text for _, text in seen}) > 3
        by_key: dict[object, str] = {}
        for found, text in seen:
            assert by_key.setdefault(found, text) == text
        assert len(set(by_key.values())) == len(by_key)

    def test_in_every_process(self) -> None:
        printed = {run_script(SCRIPT, PYTHONHASHSEED=seed) for seed in ("1", "2")}
        assert len(printed) == 1
        assert len(printed.pop().split()) == 1  # each step is the same program


SCRIPT = """
    import torch, spmd
    from spmd.core.graph.op import digest
    from spmd.core.graph.graph import Graph

    spmd.simulate(4)
    seen, plain = [], Graph.key


    def key(graph):
        seen.append(digest(plain(graph)))
        return plain(graph)


    Graph.key = key
    mesh = spmd.Mesh(range(4), (2, 2), ("a", "b"))
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Dropout()
    ).to("xla")
    for parameter in model.parameters():
        spmd.mark_sharding(parameter, mesh, ("a", *[None] * (parameter.dim() - 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        x = spmd.mark_sharding(torch.ones(4, 8).to("xla"), mesh, ("b", None))
        y = model(x)
        y[:, 1:3] = y.t()[2:4].t() + y.as_strided((4, 2), (8, 1), 3)
        y.logsumexp(1).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        spmd.sync()
    print("\\n".join(dict.fromkeys(seen)))
"""
