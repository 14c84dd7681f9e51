"""The LDL factorization of symmetric and Hermitian matrices (Bunch and Kaufman 1977), as LAPACK's sytf2 and sytrs do.

A block of D is 1 x 1, or 2 x 2 where the diagonal is too small; a negative pivot, given for both of its rows, marks it.
"""

import functools
import math

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ..promised import as_promised, zeros
from ..registry import lower

aten = torch.ops.aten

_ALPHA = (1 + math.sqrt(17)) / 8


def _size(x):
    """LAPACK's cheap absolute value of complex numbers."""
    return jnp.abs(x.real) + jnp.abs(x.imag) if jnp.issubdtype(x.dtype, jnp.complexfloating) else jnp.abs(x)


def _largest(values, allowed):
    """(position, value) of the largest allowed value; 0 where none is."""
    sizes = jnp.where(allowed, values, -1.0)
    place = jnp.argmax(sizes)
    return place, jnp.maximum(sizes[place], 0.0)


def _swapped(x, first, second, rows):
    """x with two rows exchanged."""
    order = jnp.where(rows == first, second, jnp.where(rows == second, first, rows))
    return x[order]


def _pivot(a, k, rows):
    """(the row that becomes the block's last, True if the block is 2 x 2, True if the column is zero)."""
    diagonal = _size(a[k, k])
    i, column = _largest(_size(a[:, k]), rows > k)
    _, row = _largest(_size(a[i]), (rows >= k) & (rows != i))
    row = jnp.where(row == 0, 1.0, row)
    stays = (diagonal >= _ALPHA * column) | (diagonal >= _ALPHA * column * (column / row))
    is_zero = jnp.maximum(diagonal, column) == 0
    is_two = ~stays & (_size(a[i, i]) < _ALPHA * row) & ~is_zero
    return jnp.where(stays | is_zero, k, i), is_two, is_zero


def _block_inverse(a, k, after, is_two, is_zero):
    """The inverse of D's block at k as 2 x 2; a 1 x 1 block is its first element."""
    one = jnp.where(is_zero, jnp.ones((), a.dtype), a[k, k])
    p, q, r, s = a[k, k], a[k, after], a[after, k], a[after, after]
    determinant = jnp.where(is_two, p * s - q * r, jnp.ones((), a.dtype))
    two = jnp.stack([jnp.stack([s, -q]), jnp.stack([-r, p])]) / determinant
    single = jnp.zeros((2, 2), a.dtype).at[0, 0].set(jnp.where(is_zero, 0, 1 / one))
    return jnp.where(is_two, two, single)


def _factored(x, conjugate):
    """(L and D packed in the lower triangle, pivots counted from 1, info) of one matrix."""
    size = x.shape[-1]
    rows = jnp.arange(size)
    below = jnp.tril(x, -1)
    turned = jnp.conj(below.T) if conjugate else below.T
    diagonal = jnp.diagonal(x)
    diagonal = diagonal.real.astype(x.dtype) if conjugate else diagonal
    full = below + turned + jnp.diag(diagonal)

    def step(state):
        k, a, packed, pivots, info = state
        place, is_two, is_zero = _pivot(a, k, rows)
        last = jnp.where(is_two, k + 1, k)
        a = _swapped(_swapped(a, last, place, rows).T, last, place, rows).T
        after = jnp.minimum(k + 1, size - 1)
        inverse = _block_inverse(a, k, after, is_two, is_zero)
        rest = rows > last
        columns = jnp.where(rest[:, None], jnp.stack([a[:, k], jnp.where(is_two, a[:, after], 0)], axis=1), 0)
        factors = columns @ inverse
        # The packed factor's values of these columns: D's block, and L below it.
        first = jnp.where(rest, factors[:, 0], jnp.where(rows >= k, a[:, k], packed[:, k]))
        second = jnp.where(rest, factors[:, 1], jnp.where(rows == after, a[after, after], packed[:, after]))
        packed = packed.at[:, after].set(jnp.where(is_two, second, packed[:, after])).at[:, k].set(first)
        a = a - jnp.where(rest[None, :], factors @ (jnp.conj(columns.T) if conjugate else columns.T), 0)
        pivot = jnp.where(is_two, -(place + 1), place + 1).astype(pivots.dtype)
        pivots = jnp.where((rows >= k) & (rows <= last), pivot, pivots)
        info = jnp.where((info == 0) & is_zero, k + 1, info).astype(info.dtype)
        return last + 1, a, packed, pivots, info

    state = (jnp.asarray(0), full, jnp.zeros_like(x), jnp.zeros((size,), jnp.int32), jnp.asarray(0, jnp.int32))
    _, _, packed, pivots, info = lax.while_loop(lambda state: state[0] < size, step, state)
    return jnp.tril(packed), pivots, info


def _solved(packed, pivots, b, conjugate):
    size = packed.shape[-1]
    rows = jnp.arange(size)

    def turned(x):
        return jnp.conj(x) if conjugate else x

    def blocks(k):
        """(True if 2 x 2, its last row, the row exchanged, L's two columns)."""
        is_two = pivots[k] < 0
        after = jnp.where(is_two, jnp.minimum(k + 1, size - 1), k)
        rest = rows > after
        first = jnp.where(rest, packed[:, k], 0)
        second = jnp.where(rest & is_two, packed[:, after], 0)
        return is_two, after, jnp.abs(pivots[k]) - 1, first, second

    def down(state):
        k, b = state
        is_two, after, place, first, second = blocks(k)
        b = _swapped(b, after, place, rows)
        b = b - first[:, None] * b[k] - second[:, None] * b[after]
        low = packed[after, k]
        block = jnp.stack([jnp.stack([packed[k, k], turned(low)]), jnp.stack([low, packed[after, after]])])
        inverse = _block_inverse(block, 0, 1, is_two, block[0, 0] == 0)
        inverse = jnp.where(is_two, inverse, jnp.zeros_like(inverse).at[0, 0].set(1 / packed[k, k]))
        result = inverse @ jnp.stack([b[k], b[after]])
        b = jnp.where((rows == after)[:, None], result[1], b)
        return after + 1, jnp.where((rows == k)[:, None], result[0], b)

    def up(state):
        k, b = state  # the last row of a block
        k = jnp.where(pivots[k] < 0, k - 1, k)
        is_two, after, place, first, second = blocks(k)
        new_first = b[k] - turned(first) @ b
        new_second = b[after] - turned(second) @ b
        b = jnp.where(((rows == after) & is_two)[:, None], new_second, b)
        b = jnp.where((rows == k)[:, None], new_first, b)
        return k - 1, _swapped(b, after, place, rows)

    _, b = lax.while_loop(lambda state: state[0] < size, down, (jnp.asarray(0), b))
    return lax.while_loop(lambda state: state[0] >= 0, up, (jnp.asarray(size - 1), b))[1]


def _is_conjugate(x, hermitian):
    return hermitian and jnp.issubdtype(x.dtype, jnp.complexfloating)


@lower(aten.linalg_ldl_factor_ex.default)
def aten_linalg_ldl_factor_ex(self, *, hermitian=False, check_errors=False, returns):
    if self.size == 0:
        return zeros(returns)
    function = functools.partial(_factored, conjugate=_is_conjugate(self, hermitian))
    result = jax.vmap(function)(self.reshape(-1, *self.shape[-2:]))
    return as_promised(result, returns)


@lower(aten.linalg_ldl_solve.default)
def aten_linalg_ldl_solve(LD, pivots, B, *, hermitian=False, returns):
    if B.size == 0 or LD.size == 0:
        return zeros(returns)
    lead = returns.shape[:-2]
    packed = jnp.broadcast_to(LD, lead + LD.shape[-2:]).reshape(-1, *LD.shape[-2:])
    places = jnp.broadcast_to(pivots, lead + pivots.shape[-1:]).reshape(-1, pivots.shape[-1])
    right = jnp.broadcast_to(B, lead + B.shape[-2:]).reshape(-1, *B.shape[-2:])
    function = functools.partial(_solved, conjugate=_is_conjugate(LD, hermitian))
    return jax.vmap(function)(packed, places, right).reshape(returns.shape).astype(returns.dtype)
