"""Blocks of a computed matrix: a mask of positions need not be in memory in full.

The masks that users make of `arange` (a sliding window, a shift, documents of a packed sequence) take a few elementwise
operations, of a row or a column. Where such a mask is the operand of a loop over blocks, XLA computes it in full before
the loop; here the operations that made it are repeated for one block, and the full matrix is unused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .. import sharded

# Elementwise operations, whose operands have the result's shape, except for dims of size 1, or none.
_ELEMENTWISE = frozenset((
    "add", "sub", "mul", "div", "rem", "neg", "sign", "abs", "max", "min", "floor", "exp", "log", "and", "or", "xor",
    "not", "eq", "ne", "lt", "le", "gt", "ge", "select_n", "convert_element_type", "is_finite", "clamp",
    "shift_right_arithmetic", "shift_right_logical", "shift_left",
))  # fmt: skip
_SAME = frozenset(("sharding_constraint", "copy", "copy_p", "optimization_barrier"))


@dataclass(frozen=True, slots=True)
class Block:
    """Rows and columns of the last two dims, from (row, column) on; both may be traced."""

    row: Any
    column: Any
    rows: int
    columns: int

    def of(self, matrix: jax.Array) -> jax.Array:
        """The block of a matrix, computed by itself where the matrix is computed; a dim of size 1 broadcasts."""
        return _made(matrix, self) if is_computed(matrix) else _cut(matrix, self)


@dataclass(frozen=True, slots=True)
class _InnerLoop:
    """A value inside a jitted function."""

    var: Any
    scope: "_Scope"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.var.aval.shape)


class _Scope:
    """The equations of a jitted function, by their results, and the operands of its call."""

    def __init__(self, jaxpr: Any, operands: Sequence[Any]):
        self.made_by = {out: eqn for eqn in jaxpr.eqns for out in eqn.outvars}
        self.operands = dict(zip(jaxpr.invars, operands, strict=True))

    def value(self, atom: Any) -> Any:
        if hasattr(atom, "val"):
            return atom.val
        return self.operands.get(atom) if atom in self.operands else _InnerLoop(atom, self)


def _producer(value: Any) -> tuple[Any, dict[str, Any], list[Any]] | None:
    """(primitive, parameters, operands) of a value's equation; None for an input, a constant, or one of several
    results."""
    if isinstance(value, _InnerLoop):
        eqn: Any = value.scope.made_by.get(value.var)
        operands = [] if eqn is None else [value.scope.value(atom) for atom in eqn.invars]
    else:
        eqn = getattr(value, "parent", None)
        operands = [] if eqn is None else list(eqn.in_tracers)
    if eqn is None or len(eqn.outvars) != 1:
        return None
    if eqn.primitive.name not in ("jit", "pjit"):
        return eqn.primitive, eqn.params, operands
    closed = eqn.params["jaxpr"]
    if closed.consts or len(closed.jaxpr.invars) != len(operands):
        return None
    return _producer(_Scope(closed.jaxpr, operands).value(closed.jaxpr.outvars[0]))


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _is_matrix(value: Any) -> bool:
    """True if a value has rows and columns: a value with only one of them is small."""
    shape = _shape(value)
    return len(shape) > 1 and shape[-1] > 1 and shape[-2] > 1


def _parts(value: Any) -> list[Any] | None:
    """The operands, with rows and columns, of which a block of the value needs the same block; None if unknown."""
    found = _producer(value)
    if found is None:
        return None
    primitive, params, operands = found
    shape = _shape(value)
    match primitive.name:
        case name if name in _ELEMENTWISE:
            return operands if all(len(_shape(x)) in (0, len(shape)) for x in operands) else None
        case name if name in _SAME:
            return operands
        case "iota":
            return []
        case "reshape":
            return operands if _shape(operands[0])[-2:] == shape[-2:] else None
        case "broadcast_in_dim":
            if not _is_matrix(operands[0]):
                return [x for x in operands[:1] if isinstance(x, _InnerLoop)]
            rank, places = len(shape), params["broadcast_dimensions"]
            return operands[:1] if tuple(places[-2:]) == (rank - 2, rank - 1) else None
    return None


def is_computed(matrix: Any) -> bool:
    """True if a matrix is computed, and every matrix that it comes from is computed or an array of the program."""
    if not _is_matrix(matrix) or _parts(matrix) is None:
        return False
    todo, seen = [matrix], set()
    while todo:
        value = todo.pop()
        is_inner = isinstance(value, _InnerLoop)
        name = (value.var, id(value.scope)) if is_inner else id(value)
        if name in seen or not (is_inner or _is_matrix(value)):
            continue
        seen.add(name)
        parts = _parts(value) if _is_matrix(value) else (_producer(value) or (0, 0, None))[2]
        if parts is None and is_inner:
            return False  # the program has no such array
        todo.extend(parts or ())
    return True


def _full(value: Any) -> Any:
    """All of a value that is no matrix."""
    if not isinstance(value, _InnerLoop):
        return value
    primitive, params, operands = _producer(value)  # type: ignore[misc]  # as was seen
    return primitive.bind(*map(_full, operands), **params)


def _made(value: Any, block: Block) -> Any:
    """The block of a value; of a value that is no matrix, the part that the block needs."""
    parts = _parts(value) if _is_matrix(value) else None
    if parts is None:
        return _cut(_full(value), block)
    primitive, params, operands = _producer(value)  # type: ignore[misc]  # a value with parts has an equation
    shape = (*_shape(value)[:-2], block.rows, block.columns)
    match primitive.name:
        case "iota":
            start = block.row if params["dimension"] == len(shape) - 2 else block.column
            result = lax.broadcasted_iota(params["dtype"], shape, params["dimension"])
            is_placed = params["dimension"] >= len(shape) - 2
            return result + lax.convert_element_type(start, params["dtype"]) if is_placed else result
        case "reshape":
            return lax.reshape(_made(operands[0], block), shape)
        case "broadcast_in_dim":
            places = params["broadcast_dimensions"]
            source = (
                _made(operands[0], block)
                if _is_matrix(operands[0])
                else _cut_along(_full(operands[0]), places, len(shape), block)
            )
            return lax.broadcast_in_dim(source, shape, places)
        case name if name in _SAME:
            return _made(operands[0], block)
    return primitive.bind(*(_made(x, block) for x in operands), **params)


def _cut(array: Any, block: Block) -> Any:
    if array.dtype == jnp.bool_ and _is_matrix(array) and sharded.platform() == "tpu":
        # XLA would change the layout of all of the booleans for each block; a cast to bytes it would move into the
        # loop.
        return _cut(array.view(jnp.int8), block) != 0
    rank = len(_shape(array))
    return _cut_along(array, range(rank), rank, block)


def _cut_along(array: Any, places: Sequence[int], rank: int, block: Block) -> Any:
    """The part of an array that a block needs; `places` are the array's dims in the block's matrix of `rank` dims."""
    runs = {rank - 2: (block.row, block.rows), rank - 1: (block.column, block.columns)}
    for dim, place in enumerate(places):
        if place in runs and array.shape[dim] > 1:
            array = lax.dynamic_slice_in_dim(array, *runs[place], dim)
    return array
