"""The optimised program read back: turns of loops, operations and cycles in them."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from spmd.core.programs.hlo import Module, num_bytes
from spmd.tools.hlo.program_facts import (
    cycles,
    exact_cycles,
    kernels,
    product_flops,
    repeated_flops,
)

N = 32


def module(function: Any, *shapes: tuple[int, ...]) -> Module:
    """A JAX function's optimised program."""
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return Module(jax.jit(function).lower(*arguments).compile().as_text())


def dots(parsed: Module) -> list[int]:
    """The number of runs of each product in the program."""
    found = [
        c.count for c in parsed.computations.values() for line in c.lines if line.opcode == "dot"
    ]
    return sorted(count for count in found if count)


def step(carry: Any, _: Any) -> Any:
    return jnp.tanh(carry @ carry), None


# What a TPU's compiler writes and the CPU's does not: computations of its other cores, kernels with
# what they take.
ON_A_TPU = """HloModule step

%add (one: s32[], two: s32[]) -> s32[] {
  %one = s32[] parameter(0)
  ROOT %sum = s32[] add(%one, %one)
}, execution_thread="sparsecore"

%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %state = (s32[], f32[8]) parameter(0)
  %rows = f32[8] custom-call(%state), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"","cost_estimate":{"flops":"1000","transcendentals":"0"}}}
}

%condition (state: (s32[], f32[8])) -> pred[] {
  %state = (s32[], f32[8]) parameter(0)
}

ENTRY %main (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %state = (s32[], f32[8]) parameter(0)
  %turn = s32[] call-start(%state), to_apply=%add
  ROOT %loop = (s32[], f32[8]) while(%state), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
}
"""  # noqa: E501


class TestIterations:
    """Each computation counts once for every turn of the loops around it."""

    def test_no_loop(self) -> None:
        assert dots(module(lambda a: a @ a, (N, N))) == [1]

    @pytest.mark.parametrize("length", [2, 12])
    def test_scan(self, length: int) -> None:
        parsed = module(lambda a: jax.lax.scan(step, a, None, length=length)[0], (N, N))
        assert dots(parsed) == [length] and not parsed.unknown

    def test_nested(self) -> None:
        def outer(carry: Any, _: Any) -> Any:
            inner = jax.lax.scan(step, carry, None, length=5)[0]
            return inner @ carry, None

        parsed = module(lambda a: jax.lax.scan(outer, a, None, length=7)[0], (N, N))
        assert dots(parsed) == [7, 35] and not parsed.unknown

    def test_scan_over_rows_and_back(self) -> None:
        def loss(weights: Any, x: Any) -> Any:
            return jax.lax.scan(lambda carry, w: (jnp.tanh(carry @ w), None), x, weights)[0].sum()

        parsed = module(jax.grad(loss), (6, N, N), (N, N))
        assert sum(dots(parsed)) == 18 and set(dots(parsed)) == {6}  # one forward, two backward

    def test_loop_that_data_ends(self) -> None:
        parsed = module(
            lambda a: jax.lax.while_loop(lambda c: c.sum() < 9.0, lambda c: c @ c, a), (N, N)
        )
        assert dots(parsed) == [1] and len(parsed.unknown) == 1


# As a TPU's compiler leaves a counter of 64 bits: two of 32, and no word of the number of turns.
SPLIT_COUNTER = """HloModule split

%fused (p0: u32[], p1: u32[]) -> u32[] {
  %p0 = u32[] parameter(0)
  %p1 = u32[] parameter(1)
  ROOT %sum = u32[] add(%p0, %p1)
}

%body (state: (u32[], u32[], f32[4])) -> (u32[], u32[], f32[4]) {
  %state = (u32[], u32[], f32[4]{0}) parameter(0)
  %low = u32[] get-tuple-element(%state), index=0
  %high = u32[] get-tuple-element(%state), index=1
  %data = f32[4]{0} get-tuple-element(%state), index=2
  %one = u32[] constant(1)
  %next = u32[] fusion(%low, %one), kind=kLoop, calls=%fused
  %carries = pred[] compare(%next, %low), direction=LT
  %carry = u32[] convert(%carries)
  %above = u32[] add(%high, %carry)
  %twice = f32[4]{0} add(%data, %data), backend_config={"window_config":{"estimated_cycles":"100"}}
  ROOT %made = (u32[], u32[], f32[4]{0}) tuple(%next, %above, %twice)
}

%condition (state.1: (u32[], u32[], f32[4])) -> pred[] {
  %state.1 = (u32[], u32[], f32[4]{0}) parameter(0)
  %low.1 = u32[] get-tuple-element(%state.1), index=0
  %high.1 = u32[] get-tuple-element(%state.1), index=1
  %zero = u32[] constant(0)
  %ten = u32[] constant(10)
  %same = pred[] compare(%high.1, %zero), direction=EQ
  %less = pred[] compare(%low.1, %ten), direction=LT
  %both = pred[] and(%same, %less)
  %signed = s32[] bitcast-convert(%high.1)
  %none = s32[] constant(0)
  %negative = pred[] compare(%signed, %none), direction=LT
  ROOT %goes_on = pred[] or(%both, %negative)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %start = u32[] constant(3)
  %zeros = u32[] constant(0)
  %copied = u32[] copy(%start)
  %first = (u32[], u32[], f32[4]{0}) tuple(%copied, %zeros, %x)
  %loop = (u32[], u32[], f32[4]{0}) while(%first), condition=%condition, body=%body
  %result = f32[4]{0} get-tuple-element(%loop), index=2
  ROOT %last = f32[4]{0} negate(%result), backend_config={"window_config":{"estimated_cycles":"7"}}
}
"""


class TestCosts:
    """Cycles by turns, products by turns, products by hand."""

    def test_counter_of_two_halves(self) -> None:
        parsed = Module(SPLIT_COUNTER)
        counts = {name: computation.count for name, computation in parsed.computations.items()}
        assert counts == {"main": 1, "body": 7, "condition": 8, "fused": 7} and not parsed.unknown
        assert cycles(parsed) == (7 * 100 + 7, 107)

    def test_products(self) -> None:
        parsed = module(
            lambda a, b: jax.lax.scan(lambda c, _: (c @ b, None), a, None, length=9)[0],
            (4, 8),
            (8, 8),
        )
        (line,) = [
            (c, line)
            for c in parsed.computations.values()
            for line in c.lines
            if line.opcode == "dot"
        ]
        assert product_flops(*line) == 2 * 4 * 8 * 8
        assert repeated_flops(parsed) == 8 * 2 * 4 * 8 * 8

    def test_branch_of_stated_runs(self) -> None:
        """Of a conditional whose scope states its runs, each branch counts its own."""

        def tick(carry: Any, number: Any) -> Any:
            with jax.named_scope("runs=4of7"):
                return jax.lax.cond(number < 4, lambda x: x @ x, jnp.sin, carry), None

        parsed = module(lambda a: jax.lax.scan(tick, a, jnp.arange(7))[0], (8, 8))
        counts = {
            line.opcode: computation.count
            for computation, line in parsed.lines()
            if line.opcode in ("conditional", "dot", "sine")
        }
        assert counts == {"conditional": 7, "dot": 4, "sine": 3}
        assert repeated_flops(parsed) == 3 * 2 * 8**3

    @pytest.mark.parametrize(
        ("images", "kernel", "padding", "stride"),
        [((2, 3, 8, 8), (5, 3, 3, 3), "VALID", 1), ((2, 3, 8, 9), (5, 3, 3, 2), "SAME", 2)],
    )
    def test_convolution_as_xla_counts_it(
        self, images: Any, kernel: Any, padding: str, stride: int
    ) -> None:
        arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (images, kernel)]
        lowered = jax.jit(lambda a, b: jax.lax.conv(a, b, (stride, stride), padding)).lower(
            *arguments
        )
        parsed = Module(lowered.compile().as_text())
        found = [
            (c, line)
            for c in parsed.computations.values()
            for line in c.lines
            if line.opcode == "convolution"
        ]
        assert found and product_flops(*found[0]) == lowered.cost_analysis()["flops"]

    def test_kernel_that_tells_its_own(self) -> None:
        parsed = Module(ON_A_TPU)
        assert parsed.computations["body"].count == 3 and "%" not in "".join(parsed.computations)
        assert [line.name for line in parsed.computations["add"].lines] == ["one", "sum"]
        assert repeated_flops(parsed) == 2 * 1000
        assert kernels(parsed) == (3 * 1000, 0)

    def test_kernel_that_tells_nothing(self) -> None:
        assert kernels(Module(ON_A_TPU.replace("cost_estimate", ""))) == (0, 3)

    def test_kernel_that_is_estimated(self) -> None:
        assert kernels(Module(ON_A_TPU.replace('"body":', '"estimated_cycles":"7","body":'))) == (
            0,
            0,
        )

    def test_bytes_of_a_shape(self) -> None:
        assert num_bytes("f32[8,4]{1,0:T(8,128)}") == 128
        assert (
            num_bytes("(bf16[2,3]{1,0}, /*index=1*/pred[5], s4[3], f8e4m3fn[7], token[])")
            == 12 + 5 + 2 + 7
        )


class TestExactProducts:
    """The cycles of float32 products that round no operand: in a loop those of each iteration."""

    @pytest.mark.parametrize(
        ("precision", "dtype", "expected"),
        [("highest", "f32", 6300), ("high", "f32", 0), ("highest", "bf16", 0)],
    )
    def test_cycles(self, precision: str, dtype: str, expected: int) -> None:
        text = EXACT.replace("PRECISION", precision).replace("DTYPE", dtype)
        assert exact_cycles(Module(text)) == expected


EXACT = """HloModule step

%product (a: DTYPE[256,256], b: DTYPE[256,256]) -> f32[256,256] {
  %a = DTYPE[256,256]{1,0} parameter(0)
  %b = DTYPE[256,256]{1,0} parameter(1)
  ROOT %c = f32[256,256]{1,0} convolution(%a, %b), dim_labels=bf_io->bf, operand_precision={PRECISION,PRECISION}
}

ENTRY %main (x: DTYPE[256,256]) -> f32[256,256] {
  %x = DTYPE[256,256]{1,0} parameter(0)
  ROOT %f = f32[256,256]{1,0} fusion(%x, %x), kind=kOutput, calls=%product, backend_config={"estimated_cycles":"6300"}
}
"""  # noqa: E501
