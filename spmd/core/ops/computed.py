"""A block of a matrix that is computed, made by itself: a mask of positions need not be there as a whole.

What users make of `arange` (a sliding window, a shift, documents of a packed sequence) is a few operations on elements,
and what goes into them is a row or a column. Where such a mask is the operand of a loop over blocks, XLA makes it whole
before the loop; here the operations that made it are done again for one block, and the whole is used by nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from . import split

# Operations on elements, whose operands have the result's shape, but for dims of size 1, or none.
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
        """The block of a matrix, made by itself where the matrix is computed; a dim of size 1 stands for all."""
        return _made(matrix, self) if _is_computed(matrix) else _cut(matrix, self)


@dataclass(frozen=True, slots=True)
class _Inner:
    """A value inside a jitted function."""

    var: Any
    scope: "_Scope"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.var.aval.shape)


class _Scope:
    """The equations of a jitted function, by what they make, and the operands it was called with."""

    def __init__(self, jaxpr: Any, operands: Sequence[Any]):
        self.made_by = {out: eqn for eqn in jaxpr.eqns for out in eqn.outvars}
        self.operands = dict(zip(jaxpr.invars, operands, strict=True))

    def value(self, atom: Any) -> Any:
        if hasattr(atom, "val"):
            return atom.val
        return self.operands.get(atom) if atom in self.operands else _Inner(atom, self)


def _producer(value: Any) -> tuple[Any, dict[str, Any], list[Any]] | None:
    """(primitive, parameters, operands) of what made a value; None for an input, a constant, or one of many results."""
    if isinstance(value, _Inner):
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


def _is_whole(value: Any) -> bool:
    """Whether it has rows and columns: what has only one of them is small."""
    shape = _shape(value)
    return len(shape) > 1 and shape[-1] > 1 and shape[-2] > 1


def _parts(value: Any) -> list[Any] | None:
    """The operands, with rows and columns, of which a block of the value needs the same block; None: not known how."""
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
            if not _is_whole(operands[0]):
                return [x for x in operands[:1] if isinstance(x, _Inner)]
            rank, places = len(shape), params["broadcast_dimensions"]
            return operands[:1] if tuple(places[-2:]) == (rank - 2, rank - 1) else None
    return None


def _is_computed(matrix: Any) -> bool:
    """Whether all of a matrix with rows and columns is computed, or an array of the program to take blocks of."""
    if not _is_whole(matrix) or _parts(matrix) is None:
        return False
    todo, seen = [matrix], set()
    while todo:
        value = todo.pop()
        is_inner = isinstance(value, _Inner)
        name = (value.var, id(value.scope)) if is_inner else id(value)
        if name in seen or not (is_inner or _is_whole(value)):
            continue
        seen.add(name)
        parts = _parts(value) if _is_whole(value) else (_producer(value) or (0, 0, None))[2]
        if parts is None and is_inner:
            return False  # the program has no such array
        todo.extend(parts or ())
    return True


def _full(value: Any) -> Any:
    """All of a value that is no matrix."""
    if not isinstance(value, _Inner):
        return value
    primitive, params, operands = _producer(value)  # type: ignore[misc]  # as was seen
    return primitive.bind(*map(_full, operands), **params)


def _made(value: Any, block: Block) -> Any:
    """The block of a value; of what is no matrix, what of it the block needs."""
    parts = _parts(value) if _is_whole(value) else None
    if parts is None:
        return _cut(_full(value), block)
    primitive, params, operands = _producer(value)  # type: ignore[misc]  # what has parts was made
    shape = (*_shape(value)[:-2], block.rows, block.columns)
    match primitive.name:
        case "iota":
            start = block.row if params["dimension"] == len(shape) - 2 else block.column
            made = lax.broadcasted_iota(params["dtype"], shape, params["dimension"])
            is_placed = params["dimension"] >= len(shape) - 2
            return made + lax.convert_element_type(start, params["dtype"]) if is_placed else made
        case "reshape":
            return lax.reshape(_made(operands[0], block), shape)
        case "broadcast_in_dim":
            places = params["broadcast_dimensions"]
            source = (
                _made(operands[0], block)
                if _is_whole(operands[0])
                else _cut_along(_full(operands[0]), places, len(shape), block)
            )
            return lax.broadcast_in_dim(source, shape, places)
        case name if name in _SAME:
            return _made(operands[0], block)
    return primitive.bind(*(_made(x, block) for x in operands), **params)


def _cut(array: Any, block: Block) -> Any:
    if array.dtype == jnp.bool_ and _is_whole(array) and split.platform() == "tpu":
        # XLA would lay all of the booleans out anew for each block; a cast to bytes it would move into the loop.
        return _cut(array.view(jnp.int8), block) != 0
    rank = len(_shape(array))
    return _cut_along(array, range(rank), rank, block)


def _cut_along(array: Any, places: Sequence[int], rank: int, block: Block) -> Any:
    """The part of an array, whose dims stand at these places of a matrix of `rank` dims, that a block of it needs."""
    runs = {rank - 2: (block.row, block.rows), rank - 1: (block.column, block.columns)}
    for dim, place in enumerate(places):
        if place in runs and array.shape[dim] > 1:
            array = lax.dynamic_slice_in_dim(array, *runs[place], dim)
    return array
