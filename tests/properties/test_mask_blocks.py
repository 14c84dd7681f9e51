"""The table of a mask's blocks against the mask itself, of random masks of rows and columns."""

import random
import time
import tracemalloc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spmd.core.sharding.partitioner import compiler_context
from spmd.ops.kernels.mask_blocks import (
    ALL,
    NONE,
    PART,
    MaskEquations,
    Span,
    causal,
    table,
)
from spmd.ops.kernels.mask_reader import equations_and_values

Condition = Callable[[ModuleType, Any, Any], Any]  # of numpy or jax.numpy, rows, columns


def band(draw: random.Random, length: int) -> Condition:
    low, high = sorted(draw.choices(range(-length // 2, length // 2), k=2))
    return draw.choice([
        lambda numpy, row, column: (row - column >= low) & (row - column <= high),
        lambda numpy, row, column: (column - row > low) & (column < row + high),
        lambda numpy, row, column: abs(row - column) < high,
        lambda numpy, row, column: numpy.clip(column - row, low, high) == column - row,
    ])  # fmt: skip


def in_order(draw: random.Random, length: int) -> Condition:
    shift = draw.choice([0, 0, 1, -3, length // 2])
    return draw.choice([
        lambda numpy, row, column: column <= row + shift,
        lambda numpy, row, column: row - column >= shift,
    ])  # fmt: skip


def prefix(draw: random.Random, length: int) -> Condition:
    first = draw.randrange(1, length)
    return lambda numpy, row, column: (column < first) | (column <= row)


def chunked(draw: random.Random, length: int) -> Condition:
    size, back = draw.randrange(1, length), draw.choice([0, 0, 1, 2])
    return draw.choice([
        lambda numpy, row, column: (row // size - column // size <= back) & (column <= row),
        lambda numpy, row, column: row // size == column // size,
    ])  # fmt: skip


def dilated(draw: random.Random, length: int) -> Condition:
    step = draw.randrange(2, 9)
    return draw.choice([
        lambda numpy, row, column: (row - column) % step == 0,
        lambda numpy, row, column: (column % step == row % step) & (column <= row),
        lambda numpy, row, column: numpy.fmod(column - row, step) == 0,
    ])  # fmt: skip


def documents(draw: random.Random, length: int) -> Condition:
    starts = np.sort(draw.sample(range(length), k=min(4, length)))
    by_table = np.searchsorted(starts, np.arange(256), side="right")
    size = draw.randrange(1, length)
    return draw.choice([
        lambda numpy, row, column: row // size == column // size,
        lambda numpy, row, column: (
            (row[..., None] >= starts).sum(-1) == (column[..., None] >= starts).sum(-1)
        ),
        lambda numpy, row, column: numpy.asarray(by_table)[row] == numpy.asarray(by_table)[column],
    ])  # fmt: skip


def padding(draw: random.Random, length: int) -> Condition:
    end, start = draw.randrange(length), draw.randrange(length)
    return draw.choice([
        lambda numpy, row, column: column < end,
        lambda numpy, row, column: (row >= start) | (column == end),
        lambda numpy, row, column: column.astype(numpy.float32) * 0.5 < end,
    ])  # fmt: skip


KINDS = (band, in_order, prefix, chunked, dilated, documents, padding)


def condition(draw: random.Random, length: int) -> Condition:
    """One kind of mask, or the union, intersection or difference of two or three."""
    parts = [draw.choice(KINDS)(draw, length) for _ in range(draw.choice([1, 1, 2, 3]))]
    joins = [draw.choice(["logical_and", "logical_or", "not_equal"]) for _ in parts[1:]]

    def joined(numpy: ModuleType, row: Any, column: Any) -> Any:
        mask = parts[0](numpy, row, column)
        for join, part in zip(joins, parts[1:], strict=True):
            mask = getattr(numpy, join)(mask, part(numpy, row, column))
        return mask

    return joined


def traced(mask: Callable[[ModuleType], Any]) -> tuple[MaskEquations, np.ndarray]:
    """The equations of a mask as a program has them, and its elements."""
    equations: list[MaskEquations] = []

    def program() -> Any:
        value = mask(jnp)
        equations.append(equations_and_values(value)[0])
        return value

    with compiler_context():
        jax.make_jaxpr(program)()
    return equations[0], np.asarray(mask(np))


def on_square(of: Condition, length: int) -> Callable[[ModuleType], Any]:
    """The mask of a condition on all rows and columns of one length."""

    def mask(numpy: ModuleType) -> Any:
        at = numpy.arange(length)
        return numpy.broadcast_to(of(numpy, at[:, None], at[None]), (length, length))

    return mask


def blocks(mask: np.ndarray, rows: Span, columns: Span) -> np.ndarray:
    """The kind of each block, by all of its elements."""
    inside = mask[
        rows.start : rows.start + rows.length, columns.start : columns.start + columns.length
    ]
    kinds = np.empty((rows.num_blocks, columns.num_blocks), np.int8)
    for row, column in np.ndindex(*kinds.shape):
        block = inside[
            row * rows.block : (row + 1) * rows.block,
            column * columns.block : (column + 1) * columns.block,
        ]
        kinds[row, column] = ALL if block.all() else PART if block.any() else NONE
    return kinds


class TestTable:
    """A block of the table is of its mask's kind, or a part."""

    @pytest.mark.parametrize("seed", range(10))
    def test_random_masks(self, seed: int) -> None:
        """500 in all."""
        draw, num_decided, num_kinds = random.Random(seed), 0, 0
        for _ in range(50):
            num_rows, num_columns = draw.randrange(1, 200), draw.randrange(2, 200)
            of = condition(draw, min(num_rows, num_columns) + 2)

            def mask(
                numpy: ModuleType,
                of: Condition = of,
                shape: tuple[int, int] = (num_rows, num_columns),
            ) -> Any:
                row, column = map(numpy.arange, shape)
                return numpy.broadcast_to(of(numpy, row[:, None], column[None]), shape)

            equations, elements = traced(mask)
            rows = Span(0, num_rows, draw.randrange(1, 40))
            columns = Span(0, num_columns, draw.randrange(1, 40))
            if draw.random() < 0.3 and num_rows > 4 and num_columns > 4:
                rows = Span(3, num_rows - 4, rows.block)
                columns = Span(2, num_columns - 3, columns.block)
            found, exact = table([equations], rows, columns), blocks(elements, rows, columns)
            assert ((found == PART) | (found == exact)).all()
            num_decided += np.count_nonzero(found != PART)
            num_kinds += np.count_nonzero(exact != PART)
            if equations.is_known:
                at = np.indices(elements.shape)
                assert (equations(*at) == elements).all()
                if equations.leaves_no_row_out(num_rows, num_columns):
                    assert elements.any(1).all()
        assert num_decided > 0.75 * num_kinds

    @pytest.mark.parametrize("kind", [band, in_order, prefix, chunked, documents])
    def test_usual_masks_are_decided(self, kind: Callable[..., Condition]) -> None:
        """Each block of a band, of a prefix, of chunks and of documents is known."""
        for seed in range(8):
            of = kind(random.Random(seed), 120)
            equations, elements = traced(on_square(of, 128))
            span = Span(0, 128, 16)
            assert (table([equations], span, span) == blocks(elements, span, span)).all()

    def test_intersection_with_causality(self) -> None:
        def condition(numpy: ModuleType, row: Any, column: Any) -> Any:
            return numpy.where(row - column < 20, 0.0, -numpy.inf)

        equations, elements = traced(on_square(condition, 96))
        span = Span(0, 96, 8)
        found = table([equations, causal(96, 96)], span, span)
        exact = blocks((elements == 0) & np.tri(96, dtype=bool), span, span)
        assert (found == exact).all()

    def test_masks_of_the_batch(self) -> None:
        """A block is of one kind if it is for each sequence and head."""

        def mask(numpy: ModuleType) -> Any:
            size = numpy.array([8, 24])[:, None]
            ids = numpy.arange(48)[None] // size
            same = ids[:, None, :, None] == ids[:, None, None, :]
            return same & numpy.ones((1, 2, 1, 1), bool)

        equations, elements = traced(mask)
        span = Span(0, 48, 8)
        exact = np.where(elements.all((0, 1)), ALL, np.where(elements.any((0, 1)), PART, NONE))
        found = table([equations], span, span)
        assert (found == exact.reshape(6, 8, 6, 8)[:, 0, :, 0]).all()
        assert not equations.is_shared

    @pytest.mark.parametrize("block", [2, 16])
    @pytest.mark.parametrize("is_causal", [True, False])
    def test_data_is_a_part(self, block: int, *, is_causal: bool) -> None:
        """Ids that are data decide nothing; causality beside them does."""
        equations: list[MaskEquations] = []

        def program(ids: Any) -> Any:
            at = jnp.arange(64)
            mask = ids[:, None] == ids
            mask = mask & (at[:, None] >= at) if is_causal else mask
            equations.append(equations_and_values(mask)[0])
            return mask

        jax.make_jaxpr(program)(np.zeros(64, np.int64))
        span = Span(0, 64, block)
        found = table(equations, span, span)
        assert not equations[0].is_known
        ones = np.ones((64 // block, 64 // block))
        assert (found == PART * (np.tril(ones) if is_causal else ones)).all()


@pytest.mark.parametrize("form", ["sum", "choice", "lowest"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_bias_of_data_in_a_mask(form: str, dtype: Any) -> None:
    """What is added to -inf, or not chosen, is hidden; the lowest number, too, beside a number."""
    equations: list[MaskEquations] = []

    def program(bias: Any) -> Any:
        at = jnp.arange(64)
        before = at[:, None] >= at
        number = jnp.finfo(dtype).min if form == "lowest" else -jnp.inf
        if form == "sum":
            mask = bias + jnp.where(before, jnp.asarray(0, dtype), jnp.asarray(number, dtype))
        else:
            mask = jnp.where(before, bias, jnp.asarray(number, dtype))
        equations.append(equations_and_values(mask)[0].hiding_lowest())
        return mask

    jax.make_jaxpr(program)(np.zeros((2, 1, 1), dtype))
    span = Span(0, 64, 16)
    assert (table(equations, span, span) == PART * np.tri(4)).all()


def test_the_lowest_number_in_all_of_a_row() -> None:
    """Such a row has the mean of all columns, in torch: nothing is hidden."""
    equations: list[MaskEquations] = []

    def program(bias: Any) -> Any:
        at = jnp.arange(64)
        mask = jnp.where(at[:, None] > at, bias, jnp.finfo(jnp.float32).min)
        equations.append(equations_and_values(mask)[0].hiding_lowest())
        return mask

    jax.make_jaxpr(program)(np.zeros((64, 64), np.float32))
    assert (table(equations, Span(0, 64, 16), Span(0, 64, 16)) == PART).all()


def test_a_million_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """A table of 1,048,576 rows takes the memory of its blocks and little more."""
    length = 1 << 20

    def mask() -> Any:
        at = jnp.arange(length)
        return (
            (at[:, None] >= at) & (at[:, None] - at < 4096) & (at[:, None] // 65536 == at // 65536)
        )

    equations: list[MaskEquations] = []
    jax.eval_shape(lambda: (value := mask(), equations.append(equations_and_values(value)[0]))[0])
    span = Span(0, length, 512)
    tracemalloc.start()
    start = time.perf_counter()
    found = table(equations, span, span)
    seconds, (_, peak) = time.perf_counter() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    with capsys.disabled():
        print(f"\n{seconds:.2f} s, {peak / 1e6:.1f} MB, {np.count_nonzero(found)} of {found.size}")
    assert peak < 10e6
    assert np.count_nonzero(found) == sum(min(row % 128, 8) + 1 for row in range(2048))
