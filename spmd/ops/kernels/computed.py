"""Blocks of a computed matrix: a mask of positions need not be in memory in full.

The masks that users make of `arange` (a sliding window, a shift, documents of a packed sequence)
take a few elementwise operations, of a row or a column. Where such a mask is the operand of a loop
over blocks, XLA computes it in full before the loop; here the operations that made it are repeated
for one block, and the full matrix is unused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Jaxpr, Literal, Primitive, Var

from .. import sharded

# Elementwise operations, whose operands have the result's shape, except for dims of size 1, or
# none.
_ELEMENTWISE = frozenset((
    "add", "sub", "mul", "div", "rem", "neg", "sign", "abs", "max", "min", "floor", "exp", "log",
    "and", "or", "xor", "not", "eq", "ne", "lt", "le", "gt", "ge", "select_n",
    "convert_element_type", "is_finite", "clamp", "shift_right_arithmetic", "shift_right_logical",
    "shift_left",
))  # fmt: skip
SAME = frozenset(("sharding_constraint", "copy", "copy_p", "optimization_barrier"))


@dataclass(frozen=True, slots=True)
class Block:
    """Rows and columns of the last two dims, from (row, column) on; both may be traced."""

    row: int | jax.Array
    column: int | jax.Array
    rows: int
    columns: int

    def sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the block of an array of this shape."""
        return *shape[:-2], self.rows, self.columns

    def of(self, matrix: jax.Array) -> jax.Array:
        """The block of a matrix, computed by itself where the matrix is computed; a dim of size 1
        broadcasts."""
        return _block_of(matrix, self) if is_computed(matrix) else _cut(matrix, self)


@dataclass(frozen=True, slots=True)
class InnerLoop:
    """A value inside a jitted function."""

    var: Var
    scope: "_Scope"

    @property
    def shape(self) -> tuple[int, ...]:
        aval = self.var.aval
        return tuple(aval.shape) if isinstance(aval, jax.core.ShapedArray) else ()


class _Scope:
    """The equations of a jitted function, by their results, and the operands of its call."""

    def __init__(self, jaxpr: Jaxpr, operands: "Sequence[Value]"):
        self.made_by = {out: eqn for eqn in jaxpr.eqns for out in eqn.outvars}
        self.operands = dict(zip(jaxpr.invars, operands, strict=True))

    def value(self, atom: Var | Literal) -> "Value":
        if isinstance(atom, Literal):
            return atom.val
        return self.operands[atom] if atom in self.operands else InnerLoop(atom, self)


# An array of the program, also a constant, or a value inside a jitted function.
Value = jax.Array | InnerLoop
Produced = tuple[Primitive, dict[str, Any], list[Value]]


def lowered(value: Value) -> Value:
    """A constant, where a tracer is one: also a value from outside of a loop's body."""
    return value.full_lower() if isinstance(value, jax.core.Tracer) else value


def producer(value: Value) -> Produced | None:
    """(primitive, parameters, operands) of a value's equation; None for an input, a constant, or
    one of several results."""
    value = lowered(value)
    if isinstance(value, InnerLoop):
        eqn = value.scope.made_by.get(value.var)
        operands = [] if eqn is None else list(map(value.scope.value, eqn.invars))
    else:
        eqn = getattr(value, "parent", None)
        operands = list(getattr(eqn, "in_tracers", ()))
    if eqn is None or len(eqn.outvars) != 1:
        return None
    if eqn.primitive.name not in ("jit", "pjit"):
        return eqn.primitive, eqn.params, operands
    closed = eqn.params["jaxpr"]
    if closed.consts or len(closed.jaxpr.invars) != len(operands):
        return None
    return producer(_Scope(closed.jaxpr, operands).value(closed.jaxpr.outvars[0]))


def name_of(value: Value) -> object:
    """What is equal for one value alone, as long as it lives."""
    value = lowered(value)
    return (value.var, id(value.scope)) if isinstance(value, InnerLoop) else id(value)


def shape_of(value: Value) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _is_matrix(value: Value) -> bool:
    """True if a value has rows and columns: a value with only one of them is small."""
    shape = shape_of(value)
    return len(shape) > 1 and shape[-1] > 1 and shape[-2] > 1


# The operands of which a block of a value needs the same block, and the function that computes it
# of the block's place.
Step = tuple[Sequence[Value], Callable[["Block"], jax.Array]]


def _step(value: Value) -> Step | None:
    """The last step of the computation of a value with rows and columns; None if unknown."""
    produced = producer(value)
    if produced is None:
        return None
    (primitive, params, operands), shape = produced, shape_of(value)
    rank, first = len(shape), operands[0] if operands else value
    match primitive.name:
        case name if name in _ELEMENTWISE and all(len(shape_of(x)) in (0, rank) for x in operands):
            return operands, lambda block: primitive.bind(
                *(_block_of(x, block) for x in operands), **params
            )
        case name if name in SAME:
            return operands, lambda block: _block_of(first, block)
        case "iota":
            return [], lambda block: _iota_of(block, shape, params["dimension"], params["dtype"])
        case "reshape" if shape_of(first)[-2:] == shape[-2:]:
            return operands, lambda block: lax.reshape(_block_of(first, block), block.sizes(shape))
        case "broadcast_in_dim":
            places = params["broadcast_dimensions"]
            if _is_matrix(first) and tuple(places[-2:]) != (rank - 2, rank - 1):
                return None

            def broadcast(block: Block) -> jax.Array:
                is_matrix = _is_matrix(first)
                part = (
                    _block_of(first, block)
                    if is_matrix
                    else _cut_along(full_of(first), places, rank, block)
                )
                return lax.broadcast_in_dim(part, block.sizes(shape), places)

            return operands[:1], broadcast
    return None


def _iota_of(block: Block, shape: tuple[int, ...], dimension: int, dtype: jnp.dtype) -> jax.Array:
    """The block of the positions along a dim."""
    result = lax.broadcasted_iota(dtype, block.sizes(shape), dimension)
    if dimension < len(shape) - 2:
        return result
    start = block.row if dimension == len(shape) - 2 else block.column
    return result + lax.convert_element_type(start, dtype)


def is_computed(matrix: Value) -> bool:
    """True if a matrix is computed, and every matrix that it comes from is computed or an array of
    the program."""
    if not _is_matrix(matrix) or _step(matrix) is None:
        return False
    todo, visited = [matrix], set[object]()
    while todo:
        value = todo.pop()
        is_inner, name = isinstance(value, InnerLoop), name_of(value)
        if name in visited or not (is_inner or _is_matrix(value)):
            continue
        visited.add(name)
        sources = (
            (_step(value) or (None,))[0]
            if _is_matrix(value)
            else (producer(value) or (0, 0, None))[2]
        )
        if sources is None and is_inner:
            return False  # the program has no such array
        todo.extend(sources or ())
    return True


def full_of(value: Value) -> jax.Array:
    """All of a value that is no matrix."""
    if not isinstance(value, InnerLoop):
        return value
    produced = producer(value)
    assert produced is not None, "is_computed has seen it"
    primitive, params, operands = produced
    return primitive.bind(*map(full_of, operands), **params)


def _block_of(value: Value, block: Block) -> jax.Array:
    """The block of a value; of a value that is no matrix, the part that the block needs."""
    step = _step(value) if _is_matrix(value) else None
    return _cut(full_of(value), block) if step is None else step[1](block)


def _cut(array: jax.Array, block: Block) -> jax.Array:
    if array.dtype == jnp.bool_ and _is_matrix(array) and sharded.platform() == "tpu":
        # XLA would change the layout of all of the booleans for each block; a cast to bytes it
        # would move into the loop.
        return _cut(array.view(jnp.int8), block) != 0
    rank = len(shape_of(array))
    return _cut_along(array, range(rank), rank, block)


def _cut_along(array: jax.Array, dims: Sequence[int], rank: int, block: Block) -> jax.Array:
    """The part of an array that a block needs; `dims` are the array's in the block's matrix of
    `rank` dims."""
    runs = {rank - 2: (block.row, block.rows), rank - 1: (block.column, block.columns)}
    for axis, dim in enumerate(dims):
        if dim in runs and array.shape[axis] > 1:
            array = lax.dynamic_slice_in_dim(array, *runs[dim], axis)
    return array
