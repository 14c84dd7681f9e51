"""List ops: each `_foreach_*` op comes from its element's op, whose rule runs for every element.

The op of a fused optimizer, over many parameters, becomes one op for each of them in the same way. Elements that are
rows of one array are computed at once.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_iter

from ..base.dtypes import is_exact
from ..graph.graph import topological
from ..graph.meta import Meta, dense_meta, meta_of
from ..graph.op import Arrays, Layouts, Lowering, OpSpec, Part, Slot
from ..lower.stack_rows import ANY_MEMORY, TAKE_ROWS, Made, Stacked, StackRow, fetched, plain
from ..ops import base_name
from ..ops.floats import cast
from ..record.annotations import MESHES
from ..record.infer import bind, check_complex, new_op, op_for, run_on_meta
from ..record.lowerings import Call
from ..record.overlap import check_targets
from ..record.overloads import MUTATION, Args, Kwargs, Large, Number, Operand, Plan, fill, is_foreach
from ..record.resolve import LIST_HANDLERS, SPECIALS, plan_of
from ..record.tensor import XlaTensor
from ..record.views import ViewRule
from ..run.schedule import home_of, mesh_homes
from ..sharding.buckets import EvenCut, cut_of, to_rows
from ..sharding.constrain import constrain, near, on_device, space_of
from ..sharding.value import HOST

aten = torch.ops.aten


# --- lowering ---------------------------------------------------------------------------------------------------------


class _ElementGroup(NamedTuple):
    """Elements (by index) that are the same op on neighbouring rows, or a single element."""

    elements: list[int]
    part: Part
    metas: tuple[Meta, ...]


@dataclass(frozen=True, slots=True)
class EachElement(Lowering):
    """The lowering of a list op: the element's op for every element."""

    parts: tuple[Part, ...]

    @property
    def elements(self) -> tuple[Part, ...]:
        return self.parts

    def lower(self, op: OpSpec, operands: Sequence[Made], numbers: Arrays, layouts: Layouts) -> tuple[Any, ...]:
        results: dict[int, Made] = {}
        for group in self._groups(op, operands):
            self._lower_group(group, operands, numbers, layouts, results)
        return tuple(map(results.get, range(len(op.metas))))  # None: of elements that a loop has computed

    def _lower_group(
        self, group: _ElementGroup, operands: Sequence[Made], numbers: Arrays, layouts: Layouts,
        results: dict[int, Made],
    ) -> None:  # fmt: skip
        """Sets the results of a group's elements among those of all."""
        if len(group.elements) == 1:
            results.update(zip(group.part.results, _single(group, operands, numbers, layouts), strict=True))
            return
        stacks = _together(self.parts, group, operands, numbers, layouts)
        for row, i in enumerate(group.elements):
            results.update(zip(self.parts[i].results, (StackRow(stack, row) for stack in stacks), strict=True))

    def _groups(self, op: OpSpec, operands: Sequence[Made]) -> Iterator[_ElementGroup]:
        """The groups of elements: those of the same op on the same stacks together, row by row."""
        by_op: dict[tuple, list[int]] = {}
        for i, part in enumerate(self.parts):
            metas = tuple(map(op.metas.__getitem__, part.results))
            taken = map(operands.__getitem__, part.operands)
            stacks = tuple([id(operand.stack if isinstance(operand, StackRow) else operand) for operand in taken])
            by_op.setdefault((part.op, metas, stacks, len(part.numbers)), []).append(i)
        for (_, metas, _, _), members in by_op.items():
            if len(members) == 1:
                yield _ElementGroup(members, self.parts[members[0]], metas)
                continue
            at = {i: _rows_read(self.parts[i], operands) for i in members}
            members.sort(key=lambda i: at[i])
            start = 0
            for end in range(1, len(members) + 1):
                if end < len(members) and at[members[end]] and _is_next(at[members[end - 1]], at[members[end]]):
                    continue
                yield _ElementGroup(members[start:end], self.parts[members[start]], metas)
                start = end


def _rows_read(part: Part, operands: Sequence[Made]) -> list[int]:
    return [operand.index for i in part.operands if isinstance(operand := operands[i], StackRow)]


def _is_next(some: list[int], others: list[int]) -> bool:
    return all(b == a + 1 for a, b in zip(some, others, strict=True))


def _single(group: _ElementGroup, operands: Sequence[Made], numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
    part = group.part
    result = part.op.lowering.lower(
        part.op,
        [plain(operands[place]) for place in part.operands],
        list(map(numbers.__getitem__, part.numbers)),
        list(map(layouts.__getitem__, part.operands)),
    )
    return _cast(result, group)


def _cast(arrays: Arrays, group: _ElementGroup) -> tuple[jax.Array, ...]:
    dtypes = map(attrgetter("struct.dtype"), group.metas)
    return tuple([x if x.dtype == dtype else cast(x, dtype) for x, dtype in zip(arrays, dtypes, strict=True)])


def _together(
    parts: Sequence[Part], group: _ElementGroup, operands: Sequence[Made], numbers: Arrays, layouts: Layouts
) -> tuple[jax.Array, ...]:
    """The results of all elements of a group: one stack for each result of the element's op."""
    count, part = len(group.elements), group.part
    arrays = [_taken(operands[place], count) for place in part.operands]
    axes = [0 if isinstance(operands[place], StackRow) else None for place in part.operands]
    scalar_args = [_numbers(numbers, [parts[i].numbers[k] for i in group.elements]) for k in range(len(part.numbers))]
    shardings = [layouts[index] for index in part.operands]

    def element(arrays: list[jax.Array], scalar_args: list[jax.Array]) -> tuple[jax.Array, ...]:
        return _cast(part.op.lowering.lower(part.op, arrays, scalar_args, shardings), group)

    return jax.vmap(element, (axes, [number.ndim - 1 if number.ndim else None for number in scalar_args]))(
        arrays, scalar_args
    )


def _taken(operand: Made, count: int) -> jax.Array:
    """The operand of a group of `count` elements: as many rows from this one on, or the array that they share."""
    if isinstance(operand, StackRow) and count > 1:
        return Stacked(operand.stack, range(operand.index, operand.index + count)).alone()
    return plain(operand)


def _numbers(numbers: Arrays, places: list[int]) -> jax.Array:
    """The scalar arguments at these places as one array, or the only one where the places are one."""
    return numbers[places[0]] if len(set(places)) == 1 else jnp.stack([numbers[place] for place in places])


def _sums_of_squares(arrays: Sequence[jax.Array], cuts: Sequence[EvenCut]) -> jax.Array:
    """The sum of squares of each array, and of each row of a stack of them, by one all-reduce of a vector.

    All cuts have the same rows. Of a stack on the host one row at a time is fetched.
    """
    partial = []
    for array, cut in zip(arrays, cuts, strict=True):

        def by_shard(array: jax.Array, cut: EvenCut = cut) -> jax.Array:
            return jnp.sum(jnp.square(to_rows(on_device(array), cut)), axis=1)

        if array.ndim == cut.ndim:
            partial.append(jnp.expand_dims(by_shard(array), 1))
        elif space_of(array) == HOST:
            partial.append(jax.lax.map(by_shard, array).T)
        else:
            partial.append(jax.vmap(by_shard, out_axes=1)(array))
    return jnp.sum(constrain(jnp.concatenate(partial, axis=1), cuts[0].rows), axis=0)


@dataclass(frozen=True, slots=True)
class Norms(EachElement):
    """The lowering of the 2-norms of many tensors: those that the mesh cuts in the same way share one all-reduce."""

    def lower(self, op: OpSpec, operands: Sequence[Made], numbers: Arrays, layouts: Layouts) -> tuple[Any, ...]:
        results: dict[int, Made] = {}
        shared: dict[object, list[tuple[_ElementGroup, EvenCut]]] = {}
        for group in self._groups(op, operands):
            places = [self.parts[i].operands[0] for i in group.elements]
            meta = op.operands[places[0]]
            shardings = [layouts[place] for place in places]
            cuts = {cut_of(meta.shape, None if sharding is None else near(sharding)) for sharding in shardings}
            cut = cuts.pop() if len(cuts) == 1 else None
            if cut is not None and meta.dtype in (torch.float32, torch.float64):
                shared.setdefault((cut.rows, meta.dtype), []).append((group, cut))
            else:
                self._lower_group(group, fetched(operands, places, layouts), numbers, layouts, results)
        for members in shared.values():
            arrays = [_taken(operands[group.part.operands[0]], len(group.elements)) for group, _ in members]
            squares = _sums_of_squares(arrays, [cut for _, cut in members])
            norms = jnp.sqrt(squares)
            elements = itertools.chain.from_iterable(group.elements for group, _ in members)
            results.update((i, StackRow(norms, row)) for row, i in enumerate(elements))
        return tuple(results[index] for index in range(len(self.parts)))


# --- recording --------------------------------------------------------------------------------------------------------


TAKE_ROWS |= {EachElement, Norms}
ANY_MEMORY.add(Norms)


def _op_for(plan: Plan, args: Args, kwargs: Kwargs) -> OpSpec | ViewRule:
    """The OpSpec (for a view op: the ViewRule) of one new combination of operands and statics, list ops included."""
    if is_foreach(plan.overload):
        return _list_op(plan, args, kwargs)
    op = new_op(plan, args, kwargs)
    return _by_parameter(op) if isinstance(op, OpSpec) and op.name in _FUSED else op


_FUSED = frozenset({"aten._fused_adam_", "aten._fused_adamw_", "aten._fused_sgd_", "aten._fused_adagrad_"})


def _by_parameter(op: OpSpec) -> OpSpec:
    """The op spec of a fused optimizer, whose results are concatenated lists, as a list op."""
    call = op.lowering
    assert isinstance(call, Call), "a fused op has a rule"
    count = len(call.arguments[0][1])
    parts = []
    for i in range(count):
        places: list[int] = []

        def operand(place: int, places: list[int] = places) -> Operand:
            places.append(place)
            return Operand(len(places) - 1)

        arguments = tuple(
            (name, fill(value[i : i + 1] if type(value) is list else value, operand, Number))
            for name, value in call.arguments
        )
        results = range(i, len(op.metas), count)
        element = OpSpec.of(
            op.name, dataclasses.replace(call, arguments=arguments), tuple([op.metas[k] for k in results]),
            tuple([op.operands[place] for place in places]), numbers=op.numbers,
        )  # fmt: skip
        parts.append(Part(element, tuple(places), tuple(range(len(op.numbers))), tuple(results)))
    return OpSpec.of(
        op.name, EachElement(tuple(parts)), op.metas, op.operands, numbers=op.numbers, statics=op.statics,
        layout=op.layout,
    )  # fmt: skip


def _list_op(plan: Plan, args: Args, kwargs: Kwargs) -> OpSpec:
    """The op spec of a `_foreach_*` op: the element's own rule for each element."""
    names = [argument.name for argument in plan.overload._schema.arguments]
    passed = dict(zip(names, args, strict=False))
    passed |= {name: value for name, value in kwargs.items() if name not in plan.ignored}
    count = next(len(value) for value in passed.values() if _is_tensors(value))
    if any(len(value) != count for value in passed.values() if isinstance(value, (list, tuple))):
        run_on_meta(plan, args, kwargs)  # raises torch's own error
    bound = bind(plan, args, kwargs)
    for value in tree_iter([*bound.arguments.values()]):
        if type(value) is Large:
            raise RuntimeError(f"{plan.name}: value {value} cannot be converted to type int64_t without overflow")
    is_mutation = plan.kind is MUTATION
    parts: list[Part] = []
    metas: list[Meta] = []
    for i in range(count):
        elements = {name: _element(value, i) for name, value in passed.items()}
        if is_mutation:
            check_complex(plan, tuple(elements.values()))
        op = _element_op(plan, elements)
        places = [_element(value, i) for value in bound.arguments.values()]
        target = meta_of_target(args[0][i]) if is_mutation else op.metas[0]
        if not torch.can_cast(op.metas[0].dtype, target.dtype):
            raise RuntimeError(
                f"{plan.name}: result type {op.metas[0].dtype} can't be cast to the desired output type {target.dtype}"
            )
        if target.shape != op.metas[0].shape:
            raise RuntimeError(
                f"{plan.name}: output with shape {list(target.shape)} doesn't match the broadcast shape "
                f"{list(op.metas[0].shape)}"
            )
        operands = tuple(int(place) for place in places if type(place) is Operand)
        parts.append(Part(op, operands, tuple(int(place) for place in places if type(place) is Number), (i,)))
        metas.append(target)
    if is_mutation:
        run_on_meta(plan, args, kwargs)  # a value that an element cannot hold is torch's own error
        check_targets(plan.name, base_name(plan.overload), args[0])
    is_norm = base_name(plan.overload) == "norm" and float(passed.get("ord", 2)) == 2.0
    each = Norms(tuple(parts)) if is_norm and "dtype" not in passed else EachElement(tuple(parts))
    return OpSpec.of(
        plan.name, each, tuple(metas), tuple(meta.layout for meta in bound.metas), numbers=bound.kinds,
        statics=f"{count} tensors", layout=(Slot,) * count,
    )  # fmt: skip


def _element_op(plan: Plan, elements: Kwargs) -> OpSpec:
    overload, args, kwargs = _element_call(plan.overload, elements)
    element_plan = plan_of(overload)
    if element_plan.rule is None:
        raise NotImplementedError(f"{plan.name}: {overload} has no lowering rule on xla; use foreach=False")
    key: tuple[object, ...] = (
        "foreach",
        *((name, _element_key(value, name in plan.scalar_argument_names)) for name, value in elements.items()),
    )
    # An element's dtypes may be decided by torch's default dtype.
    key = (*key, torch.get_default_dtype()) if not any(map(_is_inexact, elements.values())) else key
    return element_plan.table.of(key, lambda: new_op(element_plan, args, kwargs))


def _is_inexact(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not is_exact(value.dtype)


def meta_of_target(tensor: torch.Tensor) -> Meta:
    """The meta of a tensor that a list op writes into."""
    return tensor._meta.layout if isinstance(tensor, XlaTensor) else meta_of(tensor)


def _is_tensors(value: object) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], torch.Tensor)


def _element(value: object, index: int) -> object:
    return value[index] if isinstance(value, (list, tuple)) else value


def _element_key(value: object, is_scalar_argument: bool) -> object:
    if isinstance(value, torch.Tensor):
        return value._meta.layout if isinstance(value, XlaTensor) else dense_meta(value.shape, value.dtype)
    if is_scalar_argument and type(value) in (int, float):
        return type(value)
    if type(value) is float:
        return ("f", value.hex())
    return (type(value), value)


def _element_call(overload: OpOverload, elements: Kwargs) -> tuple[OpOverload, Args, Kwargs]:
    """The element's op for one element of a list op: (overload, arguments, keyword arguments)."""
    base, name = base_name(overload), "default"
    values, keywords = list(elements.values()), {}
    are_tensors = [isinstance(value, torch.Tensor) for value in values]
    if base in ("add", "sub", "mul", "div"):
        name, keywords = "Tensor", {"alpha": elements["alpha"]} if "alpha" in elements else {}
        values = values[:2]
    elif base in ("maximum", "minimum") and not are_tensors[1]:
        base = {"maximum": "clamp_min", "minimum": "clamp_max"}[base]
    elif base in ("clamp_min", "clamp_max") and are_tensors[1]:
        name = "Tensor"
    elif base == "pow":
        name = "Scalar" if not are_tensors[0] else "Tensor_Tensor" if are_tensors[1] else "Tensor_Scalar"
    elif base == "lerp":
        name = "Tensor" if are_tensors[2] else "Scalar"
    elif base in ("addcmul", "addcdiv") and len(values) > 3:
        if are_tensors[3]:
            raise NotImplementedError(
                f"{overload}: scalars as one tensor are not supported on xla; pass a list of numbers"
            )
        keywords = {"value": values.pop()}
    elif base == "norm":
        base, values = "linalg_vector_norm", [values[0], elements.get("ord", 2)]
        keywords = {"dtype": elements["dtype"]} if elements.get("dtype") is not None else {}
    return getattr(getattr(aten, base), name), tuple(values), keywords


# --- several meshes ---------------------------------------------------------------------------------------------------


def _by_mesh(func: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """A list op over tensors of several meshes as one op for each mesh: torch groups such lists by device."""
    if len(MESHES) < 2:
        return NotImplemented
    elements = [*zip(*filter(_is_tensors, (*args, *kwargs.values())), strict=False)]
    storages = [[tensor._storage for tensor in tensors if isinstance(tensor, XlaTensor)] for tensors in elements]
    homes = mesh_homes(topological([storage.value for element in storages for storage in element])[0])
    by_home: dict[frozenset[int] | None, list[int]] = {}
    for i, element in enumerate(storages):
        met = (x.sharding.devices if x.sharding else home_of(x.value, homes) for x in element)
        by_home.setdefault(next(filter(None, met), None), []).append(i)
    if len(by_home.keys() - {None}) < 2:
        return NotImplemented
    results: dict[int, object] = {}
    for indices in by_home.values():

        def part(value: object, indices: list[int] = indices) -> object:
            if isinstance(value, (list, tuple)) and len(value) == len(elements):
                return [value[i] for i in indices]
            return value

        done = func(*map(part, args), **{name: part(value) for name, value in kwargs.items()})
        results.update(zip(indices, done or (), strict=False))
    return [results[i] for i in sorted(results)] or None


LIST_HANDLERS.append(_by_mesh)
SPECIALS.update((getattr(aten, name.removeprefix("aten.")).default, _by_mesh) for name in _FUSED)
op_for.append(_op_for)
