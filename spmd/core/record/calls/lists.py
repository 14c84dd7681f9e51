"""List ops: a `_foreach_*` op runs the rule of its element's op for every element.

The op of a fused optimizer is one such element a parameter. Rows of one array are computed at once.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_iter

from ....ops.floats import cast
from ...graph.graph import topological
from ...graph.meta import Meta, meta_of
from ...graph.op import Arrays, Layouts, Lowering, OpSpec, Part, Slot, encode
from ...lower.stack_rows import ANY_MEMORY, TAKE_ROWS, Made, Stacked, StackRow, fetched, plain
from ...run.schedule import home_of, mesh_homes
from ...sharding.buckets import EvenCut, cut_of, to_rows
from ...sharding.constrain import constrain, near, on_device, space_of
from ...sharding.value import HOST
from ..annotations import MESHES
from ..infer import bind, check_complex, new_op, run_on_meta
from ..lowerings import Call
from ..overlap import check_targets
from ..overloads import MUTATION, Args, Kwargs, Large, Number, Operand, Plan, aten, fill, is_foreach
from ..tensor import XlaTensor
from ..views import ViewRule

# --- lowering -------------------------------------------------------------------------------------


class _ElementGroup(NamedTuple):
    """Elements (by index) with one op on neighbouring rows, or a single element."""

    elements: list[int]
    part: Part
    metas: tuple[Meta, ...]


@dataclass(frozen=True, slots=True)
class EachElement(Lowering):
    """The lowering of a list op: the element's op for every element."""

    elements: tuple[Part, ...]  # type: ignore[misc]  # without any for other lowerings

    def lower(
        self, op: OpSpec, operands: Sequence[Made], numbers: Arrays, layouts: Layouts
    ) -> tuple[Any, ...]:
        results: dict[int, Made] = {}
        for group in self._groups(op, operands):
            self._lower_group(group, operands, numbers, layouts, results)
        return tuple(map(results.get, range(len(op.metas))))

    def _lower_group(
        self,
        group: _ElementGroup,
        operands: Sequence[Made],
        numbers: Arrays,
        layouts: Layouts,
        results: dict[int, Made],
    ) -> None:
        """Adds the results of a group's elements to `results`, by index."""
        if len(group.elements) == 1:
            results.update(
                zip(
                    group.part.results,
                    _lower_element(group, operands, numbers, layouts),
                    strict=True,
                )
            )
            return
        stacks = _lower_rows(self.elements, group, operands, numbers, layouts)
        for row, i in enumerate(group.elements):
            results.update(
                zip(
                    self.elements[i].results,
                    (StackRow(stack, row) for stack in stacks),
                    strict=True,
                )
            )

    def _groups(self, op: OpSpec, operands: Sequence[Made]) -> Iterator[_ElementGroup]:
        """Yields the groups of elements: of one op, on neighbouring rows of the same stacks."""
        by_op: dict[tuple, list[int]] = {}
        for i, part in enumerate(self.elements):
            metas = tuple(map(op.metas.__getitem__, part.results))
            part_operands = map(operands.__getitem__, part.operands)
            stacks = tuple(
                [
                    id(operand.stack if isinstance(operand, StackRow) else operand)
                    for operand in part_operands
                ]
            )
            by_op.setdefault((part.op, metas, stacks, len(part.numbers)), []).append(i)
        for (_, metas, _, _), members in by_op.items():
            rows_of = {i: _rows_read(self.elements[i], operands) for i in members}
            members.sort(key=lambda i: rows_of[i])
            # Equal for neighbours: their rows are at one distance from their numbers. Elements that
            # read no rows are groups by themselves.
            distances = [
                [row - number for row in rows_of[i]] or number for number, i in enumerate(members)
            ]
            for _, run in itertools.groupby(
                zip(distances, members, strict=True), key=itemgetter(0)
            ):
                elements = [i for _, i in run]
                yield _ElementGroup(elements, self.elements[elements[0]], metas)


def _rows_read(part: Part, operands: Sequence[Made]) -> list[int]:
    """The index of each row among an element's operands."""
    return [operand.index for i in part.operands if isinstance(operand := operands[i], StackRow)]


def _lower_element(
    group: _ElementGroup, operands: Sequence[Made], numbers: Arrays, layouts: Layouts
) -> tuple[jax.Array, ...]:
    """The results of the only element of a group."""
    part = group.part
    result = part.op.lowering.lower(
        part.op,
        [plain(operands[index]) for index in part.operands],
        list(map(numbers.__getitem__, part.numbers)),
        list(map(layouts.__getitem__, part.operands)),
    )
    return _cast_results(result, group)


def _cast_results(arrays: Arrays, group: _ElementGroup) -> tuple[jax.Array, ...]:
    """The results of an element's rule in torch's dtypes."""
    dtypes = map(attrgetter("struct.dtype"), group.metas)
    return tuple(
        [x if x.dtype == dtype else cast(x, dtype) for x, dtype in zip(arrays, dtypes, strict=True)]
    )


def _lower_rows(
    parts: Sequence[Part],
    group: _ElementGroup,
    operands: Sequence[Made],
    numbers: Arrays,
    layouts: Layouts,
) -> tuple[jax.Array, ...]:
    """The results of all elements of a group, by `vmap`: one stack for each result of the op."""
    count, part = len(group.elements), group.part
    arrays = [_group_operand(operands[index], count) for index in part.operands]
    axes = [0 if isinstance(operands[index], StackRow) else None for index in part.operands]
    scalar_args = [
        _scalar_argument(numbers, [parts[i].numbers[position] for i in group.elements])
        for position in range(len(part.numbers))
    ]
    shardings = [layouts[index] for index in part.operands]

    def element(arrays: list[jax.Array], scalar_args: list[jax.Array]) -> tuple[jax.Array, ...]:
        return _cast_results(part.op.lowering.lower(part.op, arrays, scalar_args, shardings), group)

    # A shared number has no axis.
    scalar_axes = [number.ndim - 1 if number.ndim else None for number in scalar_args]
    return jax.vmap(element, (axes, scalar_axes))(arrays, scalar_args)


def _group_operand(operand: Made, count: int) -> jax.Array:
    """The operand of a group of `count` elements: their rows, or the array they share."""
    if isinstance(operand, StackRow) and count > 1:
        return Stacked(operand.stack, range(operand.index, operand.index + count)).alone()
    return plain(operand)


def _scalar_argument(numbers: Arrays, indices: list[int]) -> jax.Array:
    """The scalar argument of a group: its elements' numbers stacked, or the number they share."""
    return (
        numbers[indices[0]]
        if len(set(indices)) == 1
        else jnp.stack([numbers[index] for index in indices])
    )


def _sums_of_squares(arrays: Sequence[jax.Array], cuts: Sequence[EvenCut]) -> jax.Array:
    """The sum of squares of each array, and of each row of a stack of them, by one all-reduce of a
    vector.

    All cuts have the same rows. A stack on the host is fetched row by row.
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
    """The lowering of the 2-norms of many tensors: equal cuts of the mesh share one all-reduce."""

    def lower(
        self, op: OpSpec, operands: Sequence[Made], numbers: Arrays, layouts: Layouts
    ) -> tuple[Any, ...]:
        """Norms of arrays with equal cuts by one all-reduce, those of others by their own op."""
        results: dict[int, Made] = {}
        # By cut and dtype, the groups that share an all-reduce.
        shared: dict[object, list[tuple[_ElementGroup, EvenCut]]] = {}
        for group in self._groups(op, operands):
            indices = [self.elements[i].operands[0] for i in group.elements]
            meta = op.operands[indices[0]]
            shardings = [layouts[index] for index in indices]
            cuts = {
                cut_of(meta.shape, None if sharding is None else near(sharding))
                for sharding in shardings
            }
            cut = cuts.pop() if len(cuts) == 1 else None
            if cut is not None and meta.dtype in (torch.float32, torch.float64):
                shared.setdefault((cut.rows, meta.dtype), []).append((group, cut))
            else:
                self._lower_group(
                    group, fetched(operands, indices, layouts), numbers, layouts, results
                )
        for members in shared.values():
            arrays = [
                _group_operand(operands[group.part.operands[0]], len(group.elements))
                for group, _ in members
            ]
            squares = _sums_of_squares(arrays, [cut for _, cut in members])
            norms = jnp.sqrt(squares)
            elements = itertools.chain.from_iterable(group.elements for group, _ in members)
            results.update((i, StackRow(norms, row)) for row, i in enumerate(elements))
        return tuple(results[index] for index in range(len(self.elements)))


# --- recording ------------------------------------------------------------------------------------


TAKE_ROWS |= {EachElement, Norms}
ANY_MEMORY.add(Norms)


def op_for(plan: Plan, args: Args, kwargs: Kwargs) -> OpSpec | ViewRule:
    """The OpSpec (for a view op: the ViewRule) of one new combination of operands and statics, list
    ops included."""
    if is_foreach(plan.overload):
        return _list_op(plan, args, kwargs)
    op: OpSpec | ViewRule = new_op(plan, args, kwargs)
    return _split_by_parameter(op) if plan.overload in HANDLERS and isinstance(op, OpSpec) else op


def _split_by_parameter(op: OpSpec) -> OpSpec:
    """The op spec of a fused optimizer as a list op: one element for each parameter."""
    call = op.lowering
    assert isinstance(call, Call), "a fused op has a rule"
    count = len(call.arguments[0][1])
    parts = []
    for i in range(count):
        # Element i has the i-th tensor of each list; its operands are numbered anew.
        indices: list[int] = []

        def operand(index: int, indices: list[int] = indices) -> Operand:
            indices.append(index)
            return Operand(len(indices) - 1)

        arguments = tuple(
            (name, fill(value[i : i + 1] if type(value) is list else value, operand, Number))
            for name, value in call.arguments
        )
        # The lists of results are concatenated: result i of each list is element i's.
        results = range(i, len(op.metas), count)
        element = OpSpec.of(
            op.name,
            dataclasses.replace(call, arguments=arguments),
            tuple([op.metas[index] for index in results]),
            tuple([op.operands[index] for index in indices]),
            numbers=op.numbers,
        )
        parts.append(Part(element, tuple(indices), tuple(range(len(op.numbers))), tuple(results)))
    return OpSpec.of(
        op.name,
        EachElement(tuple(parts)),
        op.metas,
        op.operands,
        numbers=op.numbers,
        statics=op.statics,
        layout=op.layout,
    )


def _list_op(plan: Plan, args: Args, kwargs: Kwargs) -> OpSpec:
    """The op spec of a `_foreach_*` op: the element's own rule for each element."""
    names = [argument.name for argument in plan.overload._schema.arguments]
    passed = dict(zip(names, args, strict=False))
    passed |= {name: value for name, value in kwargs.items() if name not in plan.ignored}
    count = next(len(value) for value in passed.values() if _is_tensors(value))
    is_mutation = plan.kind is MUTATION
    if any(len(value) != count for value in passed.values() if isinstance(value, (list, tuple))):
        run_on_meta(plan, args, kwargs)  # raises torch's own error
    bound = bind(plan, args, kwargs)
    for value in tree_iter([*bound.arguments.values()]):
        if type(value) is Large:
            raise RuntimeError(
                f"{plan.name}: value {value} cannot be converted to type int64_t without overflow"
            )
    parts: list[Part] = []
    metas: list[Meta] = []
    # Of each element: its op, its indices among the list op's operands and numbers, its result.
    for i in range(count):
        elements = {name: _element(value, i) for name, value in passed.items()}
        if is_mutation:
            check_complex(plan, tuple(elements.values()))
        op = _element_op(plan, elements)
        entries = [_element(value, i) for value in bound.arguments.values()]
        operands, numbers = (
            tuple(int(entry) for entry in entries if type(entry) is kind)
            for kind in (Operand, Number)
        )
        parts.append(Part(op, operands, numbers, (i,)))
        target = meta_of(args[0][i]).layout if is_mutation else op.metas[0]
        if not torch.can_cast(op.metas[0].dtype, target.dtype):
            raise RuntimeError(
                f"{plan.name}: result type {op.metas[0].dtype} can't be cast to the desired "
                f"output type {target.dtype}"
            )
        if target.shape != op.metas[0].shape:
            raise RuntimeError(
                f"{plan.name}: output with shape {list(target.shape)} doesn't match the broadcast "
                f"shape {list(op.metas[0].shape)}"
            )
        metas.append(target)
    if is_mutation:
        run_on_meta(plan, args, kwargs)  # a value that an element cannot hold is torch's own error
        check_targets(plan.name, plan.base, args[0])
    is_norm = plan.base == "norm" and float(passed.get("ord", 2)) == 2.0
    lowering = (
        Norms(tuple(parts)) if is_norm and "dtype" not in passed else EachElement(tuple(parts))
    )
    return OpSpec.of(
        plan.name,
        lowering,
        tuple(metas),
        tuple(meta.layout for meta in bound.metas),
        numbers=bound.kinds,
        statics=f"{count} tensors",
        layout=(Slot,) * count,
    )


def _element_op(plan: Plan, elements: Kwargs) -> OpSpec:
    """The op spec of one element, in the table of the list op."""
    overload, args, kwargs = _element_call(plan, elements)
    keys = [
        (name, _element_key(value, name in plan.scalar_argument_names))
        for name, value in elements.items()
    ]

    def new_element_op() -> OpSpec:
        element_plan = Plan(overload)
        if element_plan.rule is None:
            raise NotImplementedError(
                f"{plan.name}: {overload} has no lowering rule on xla; use foreach=False"
            )
        return new_op(element_plan, args, kwargs)

    # torch's default dtype may decide the dtypes of an element.
    return plan.table.of((overload, torch.get_default_dtype(), *keys), new_element_op)


def _is_tensors(value: object) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], torch.Tensor)


def _element(value: object, index: int) -> object:
    return value[index] if isinstance(value, (list, tuple)) else value


def _element_key(value: object, is_scalar_argument: bool) -> object:
    if isinstance(value, torch.Tensor):
        return meta_of(value).layout
    return type(value) if is_scalar_argument and type(value) in (int, float) else encode(value)


def _element_call(plan: Plan, elements: Kwargs) -> tuple[OpOverload, Args, Kwargs]:
    """The element's op for one element of a list op: (overload, arguments, keyword arguments)."""
    base, keywords = (
        plan.base,
        {name: elements[name] for name in ("alpha", "dtype") if elements.get(name) is not None},
    )
    values = [value for name, value in elements.items() if name not in ("alpha", "dtype")]
    # List ops take numbers where the op of one element has another name.
    if base in ("maximum", "minimum") and not isinstance(values[1], torch.Tensor):
        base = {"maximum": "clamp_min", "minimum": "clamp_max"}[base]
    elif base in ("addcmul", "addcdiv") and len(values) > 3:
        keywords["value"] = values.pop()
        if isinstance(keywords["value"], torch.Tensor):
            raise NotImplementedError(
                f"{plan.overload}: scalars as one tensor are not supported on xla; pass a list of "
                "numbers"
            )
    elif base == "norm":
        base, values = "linalg_vector_norm", [values[0], elements.get("ord", 2)]
    packet = getattr(aten, base, None)
    if packet is None:
        raise NotImplementedError(
            f"{plan.name}: torch has no op of one element, {base!r}; compute it tensor by tensor"
        )
    name = torch._C._jit_resolve_packet(packet._qualified_op_name, *values, **keywords)
    return getattr(packet, name), tuple(values), keywords


# --- several meshes -------------------------------------------------------------------------------


def by_mesh(func: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Records one list op for each mesh, as torch groups lists by device; NotImplemented for one
    mesh."""
    if len(MESHES) < 2:
        return NotImplemented
    elements = [*zip(*filter(_is_tensors, (*args, *kwargs.values())), strict=False)]
    storages = [
        [tensor._storage for tensor in tensors if isinstance(tensor, XlaTensor)]
        for tensors in elements
    ]
    homes = mesh_homes(
        topological([storage.value for element in storages for storage in element])[0]
    )
    by_home: dict[frozenset[int] | None, list[int]] = {}
    for i, element in enumerate(storages):
        devices = (x.sharding.devices if x.sharding else home_of(x.value, homes) for x in element)
        by_home.setdefault(next(filter(None, devices), None), []).append(i)
    return (
        in_groups(func, args, kwargs, [*by_home.values()])
        if len(by_home.keys() - {None}) > 1
        else NotImplemented
    )


def in_groups(
    func: OpOverload, args: Args, kwargs: Kwargs, groups: Sequence[Sequence[int]]
) -> object:
    """Records a list op as one op for each group of its elements, by index. A group reads the
    writes of the groups before it."""
    count = sum(map(len, groups))
    results: dict[int, object] = {}
    for indices in groups:

        def in_group(value: object, indices: Sequence[int] = indices) -> object:
            is_list = isinstance(value, (list, tuple)) and len(value) == count
            return [value[i] for i in indices] if is_list else value  # type: ignore[index]

        result = func(
            *map(in_group, args), **{name: in_group(value) for name, value in kwargs.items()}
        )
        results.update(zip(indices, result or (), strict=False))
    return [results[i] for i in sorted(results)] or None


# The ops of fused optimizers; list ops all have the same handler.
HANDLERS = dict.fromkeys(
    (
        aten._fused_adam_.default,
        aten._fused_adamw_.default,
        aten._fused_sgd_.default,
        aten._fused_adagrad_.default,
    ),
    by_mesh,
)
