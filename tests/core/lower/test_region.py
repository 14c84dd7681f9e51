"""Ops with a body: a recorded piece of graph runs as a loop, on any mesh, and is known by what it
computes."""

import gc
import re

import pytest
import torch
from support import check

import spmd
from spmd.core.graph.graph import DeviceData, Region, Value
from spmd.core.graph.meta import dense_meta
from spmd.core.graph.source import user_frame
from spmd.core.loop.loop_counter import EACH
from spmd.core.loop.loop_op import Loop, Y, loop_op
from spmd.core.lower.lower import LoweringError
from spmd.core.lower.region import body_numbers
from spmd.core.programs import cache, failing
from spmd.core.record.reads import operand
from spmd.core.record.record import record
from spmd.core.record.storage import LOCK, Storage
from spmd.core.record.tensor import XlaTensor, tensors_of, wrap


def stand_in(*shape: int) -> XlaTensor:
    """A tensor that stands for one that a body will be given."""
    meta = dense_meta(shape, torch.float32)
    return wrap(meta, Storage(DeviceData(meta, is_abstract=True), meta))


def value(tensor: torch.Tensor) -> Value:
    return operand(tensor)  # type: ignore[arg-type]


def run(
    name: str, scan: Loop, operands: list[torch.Tensor], numbers: list[float | int] = ()
) -> list[torch.Tensor]:
    """Records a scan."""
    with LOCK:
        values = [value(tensor) for tensor in operands]
        op = loop_op(name, scan, [each.meta for each in values])
        return list(tensors_of(record(op, values, numbers, (*user_frame(), -1))))


def linear() -> Region:
    """weight, x, row -> x @ weight + row, its sum."""
    weight, x, row = stand_in(4, 4), stand_in(8, 4), stand_in(4)
    y = x @ weight + row
    region = Region.of([value(y), value(y.sum())], [value(weight), value(x), value(row)])
    # An op's first call leaves a cycle with its result, which the next read of all that is pending
    # would run.
    gc.collect()
    return region


def expected(
    weight: torch.Tensor, x: torch.Tensor, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    sums = []
    for row in rows:
        x = x @ weight + row
        sums.append(x.sum())
    return x, torch.stack(sums)


class TestScan:
    """Constants, a carry, rows in either form, results in either form, numbers of turns,
    backwards."""

    @pytest.mark.parametrize("whole", [True, False])
    @pytest.mark.parametrize("reverse", [True, False])
    def test_against_the_plain_loop(self, whole: bool, reverse: bool, mesh2x4: spmd.Mesh) -> None:
        weight, x, rows = torch.randn(4, 4) / 2, torch.randn(8, 4), torch.randn(3, 4)
        wanted, sums = expected(weight, x, rows.flip(0) if reverse else rows)
        scan = Loop(linear(), 3, 1, 1, (whole,), (Y(whole),), reverse=reverse)
        for mesh in (None, mesh2x4):
            ours = [tensor.to("xla") for tensor in (weight, x, *((rows,) if whole else rows))]
            if mesh is not None:
                spmd.mark_sharding(ours[0], mesh, ("fsdp", None))
                spmd.mark_sharding(ours[1], mesh, ("data", None))
            last, *made = run("spmd.scan", scan, ours)
            check(last, wanted)
            got = made[0] if whole else torch.stack(made)
            check(got, sums.flip(0) if reverse else sums)

    def test_numbers_of_each_turn(self) -> None:
        x, row = stand_in(2), stand_in(2)
        body = Region.of([value(x * 3.0 + row * 7.0 + 100)], [value(x), value(row)])
        assert [number for number in body_numbers(body) if number not in (1, 1.0)] == [
            3.0,
            7.0,
            100,
        ]
        steps = {3.0: EACH, 7.0: 0, 100: 5}
        spread = {3.0: [1.0, 2.0, 4.0], 7.0: [7.0], 100: [100]}
        recorded = body_numbers(body)
        scan = Loop(body, 3, 0, 1, (True,), (), tuple(steps.get(n, 0) for n in recorded))
        numbers = [each for n in recorded for each in spread.get(n, [n])]
        rows = torch.randn(3, 2)
        (last,) = run("spmd.scan", scan, [torch.ones(2).to("xla"), rows.to("xla")], numbers)
        wanted = torch.ones(2)
        for iteration, factor in enumerate((1.0, 2.0, 4.0)):
            wanted = wanted * factor + rows[iteration] * 7.0 + 100 + 5 * iteration
        check(last, wanted)

    def test_no_rows(self) -> None:
        x = stand_in(2)
        body = Region.of([value(x * 2)], [value(x)])
        scan = Loop(body, 5, 0, 1, (), (), (0,) * len(body_numbers(body)))
        (last,) = run("spmd.scan", scan, [torch.ones(2).to("xla")], body_numbers(body))
        check(last, torch.full((2,), 32.0))

    def test_rows_that_operands_fill(self) -> None:
        """Two results whose stacks have equal room: each gets its own row, of iterations that run
        at once."""
        x = stand_in(2)
        body = Region.of([value(x.sin()), value(x.cos())], [value(x)])
        room = Y(after=1, filled=(2,))
        scan = Loop(body, 2, 0, 0, (False,), (room, room))
        given = [torch.randn(2) for _ in range(4)]
        made = run("spmd.scan", scan, [tensor.to("xla") for tensor in given])
        wanted = [*map(torch.sin, given[:2]), given[2], *map(torch.cos, given[:2]), given[3]]
        for got, one in zip(made, wanted, strict=True):
            check(got, one)

    def test_annotations_inside(self, mesh8: spmd.Mesh) -> None:
        weight, x = stand_in(16, 16), stand_in(8, 16)
        y = spmd.mark_sharding(x @ weight, mesh8, ("fsdp", None))
        scan = Loop(Region.of([value(y)], [value(x), value(weight)]), 2, 0, 1, (False,), ())
        del y  # else the barrier would run it
        given = torch.randn(8, 16), torch.randn(16, 16) / 4, torch.randn(16, 16) / 4
        (last,) = run("spmd.scan", scan, [tensor.to("xla") for tensor in given])
        assert "sharding" in spmd.get_stablehlo([last])
        check(last, given[0] @ given[1] @ given[2])

    def test_inside_a_scan(self) -> None:
        x = stand_in(2)
        body = Region.of([value(x + 1)], [value(x)])
        numbers = body_numbers(body)
        inner = Loop(body, 3, 0, 1, (), (), (0,) * len(numbers))
        outer_x = stand_in(2)
        (made,) = run("spmd.scan", inner, [outer_x], numbers)
        outer = Region.of([value(made * 2.0)], [value(outer_x)])
        del made
        scan = Loop(outer, 2, 0, 1, (), (), (0,) * len(body_numbers(outer)))
        (last,) = run("spmd.scan", scan, [torch.zeros(2).to("xla")], body_numbers(outer))
        check(last, torch.full((2,), 18.0))


class TestMessages:
    """XLA's message about an op in a body is traced to the line inside."""

    def test_a_late_error(self) -> None:
        (last, _) = run(
            "spmd.scan",
            Loop(linear(), 3, 1, 1, (True,), (Y(True),)),
            [torch.ones(4, 4).to("xla"), torch.ones(8, 4).to("xla"), torch.ones(3, 4).to("xla")],
        )
        last.cpu()
        program = cache.last_program()
        assert program is not None
        (place,) = [i for i, op in enumerate(program.entries) if op.name == "spmd.scan"]
        text = (
            "no such thing in "
            f'"jit(spmd)/spmd.scan#{place}/while/body/region0/aten.mm#0/dot_general"'
        )
        assert re.search(
            r"XLA failed in aten\.mm, recorded at .*test_region\.py:\d+ in linear: y = x @ weight",
            str(failing.explain(program, RuntimeError(text))),
        )


class TestRegion:
    """A region is closed, its own, and known by its text."""

    def test_needs_what_it_reads(self) -> None:
        x, weight = stand_in(2), stand_in(2)
        with pytest.raises(
            ValueError, match=r"the region needs float32\[2\], which it is not given"
        ):
            Region.of([value(x * weight)], [value(x)])

    def test_same_text_is_one_op(self) -> None:
        one, other = (Loop(linear(), 3, 1, 1, (True,), (Y(True),)) for _ in range(2))
        metas = [dense_meta(shape, torch.float32) for shape in ((4, 4), (8, 4), (3, 4))]
        assert loop_op("spmd.scan", one, metas) is loop_op("spmd.scan", other, metas)
        assert loop_op("spmd.scan", one, metas) is not loop_op(
            "spmd.scan", Loop(other.body, 3, 1, 1, (True,), (Y(True),), reverse=True), metas
        )

    def test_refuses_what_does_not_fit(self) -> None:
        metas = [dense_meta(shape, torch.float32) for shape in ((4, 4), (8, 4), (3, 5))]
        with pytest.raises(ValueError, match="the body takes"):
            loop_op("spmd.scan", Loop(linear(), 3, 1, 1, (True,), (Y(True),)), metas)
        x = stand_in(2)
        with pytest.raises(ValueError, match="the carry goes in as"):
            loop_op(
                "spmd.scan",
                Loop(Region.of([value(x.sum())], [value(x)]), 3, 0, 1, (), ()),
                [dense_meta((2,), torch.float32)],
            )

    def test_a_failing_rule_names_the_line_inside(self) -> None:
        library = torch.library.Library("region_test", "FRAGMENT")
        library.define("refuses(Tensor x) -> Tensor")
        torch.library.register_fake("region_test::refuses", torch.empty_like)

        def rule(x: object) -> object:
            raise ValueError("on purpose")

        spmd.register_lowering(torch.ops.region_test.refuses.default, rule)
        x = stand_in(2)
        y = torch.ops.region_test.refuses(x)  # the line
        body = Region.of([value(y)], [value(x)])
        del y  # else the barrier would run it
        (last,) = run("spmd.scan", Loop(body, 2, 0, 1, (), ()), [torch.ones(2).to("xla")])
        with pytest.raises(
            LoweringError, match=r"(?s)region_test\.refuses.*# the line.*on purpose"
        ):
            spmd.sync()
        del last
