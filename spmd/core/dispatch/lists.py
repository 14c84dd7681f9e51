"""List ops: each `_foreach_*` op comes from its element's op, whose rule runs for every element.

The op of a fused optimizer, over many parameters, becomes one op for each of them in the same way.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload

from ..base.dtypes import is_exact
from ..ir.meta import Meta, dense_meta, meta_of
from ..ir.op import OpSpec, Part, Slot
from ..lazy.overlap import check_targets
from ..lazy.tensor import XlaTensor
from ..ops import base_name
from ..ops.scalar_arguments import LARGEST, is_one_number
from .elements import Each, Norms
from .infer import check_complex, new_op, run_on_meta
from .lowerings import Call, Number, Operand, fill
from .overloads import MUTATION, Plan, is_foreach
from .resolve import plan_of

aten = torch.ops.aten


def op_for(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The OpSpec (for a view op: the ViewRule) of one new combination of operands and statics, list ops included."""
    if is_foreach(plan.overload):
        return _list_op(plan, args, kwargs)
    made = new_op(plan, args, kwargs)
    return _by_parameter(made) if made.name in _FUSED else made


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
        own = OpSpec.of(
            op.name, dataclasses.replace(call, arguments=arguments), tuple([op.metas[k] for k in results]),
            tuple([op.operands[place] for place in places]), numbers=op.numbers,
        )  # fmt: skip
        parts.append(Part(own, tuple(places), tuple(range(len(op.numbers))), tuple(results)))
    return OpSpec.of(
        op.name, Each(tuple(parts)), op.metas, op.operands, numbers=op.numbers, statics=op.statics,
        layout=op.layout,
    )  # fmt: skip


def _list_op(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpSpec:
    """The op spec of a `_foreach_*` op: the element's own rule for each element."""
    given = [*args, *(value for name, value in kwargs.items() if name not in plan.ignored)]
    names = [a.name for a in plan.overload._schema.arguments][: len(args)] + [
        n for n in kwargs if n not in plan.ignored
    ]
    count = next(len(value) for value in given if _is_tensors(value))
    if any(len(value) != count for value in given if isinstance(value, (list, tuple))):
        run_on_meta(plan, args, kwargs)  # raises torch's own error
    operand_places, number_places, numbers = _flat_places(plan, given, names, count)
    is_mutation = plan.kind is MUTATION
    parts: list[Part] = []
    metas: list[Meta] = []
    for i in range(count):
        elements = {name: _element(value, i) for name, value in zip(names, given, strict=True)}
        if is_mutation:
            check_complex(plan, tuple(elements.values()))
        op = _element_op(plan, elements)
        operand_index = [places[i] for places in operand_places]
        number_index = [place for places in number_places if (place := places[i]) is not None]
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
        parts.append(Part(op, tuple(operand_index), tuple(number_index), (i,)))
        metas.append(target)
    if is_mutation:
        run_on_meta(plan, args, kwargs)  # a value that an element cannot hold is torch's own error
        check_targets(plan.name, base_name(plan.overload), args[0])
    kinds = "".join("f" if type(number) is float else "i" for number in numbers)
    is_norm = base_name(plan.overload) == "norm" and float(given[1] if len(given) > 1 else 2) == 2.0
    each = Norms(tuple(parts)) if is_norm and "dtype" not in names else Each(tuple(parts))
    operands = tuple(_operand_metas(given))
    return OpSpec.of(
        plan.name, each, tuple(metas), operands, numbers=kinds, statics=f"{count} tensors", layout=(Slot,) * count
    )


def _operand_metas(given: list[Any]) -> Iterator[Meta]:
    """The layouts of the tensors among the arguments, in the order in which dispatch takes them as operands."""
    for value in given:
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, torch.Tensor):
                yield item._meta.layout if type(item) is XlaTensor else dense_meta(item.shape, item.dtype)


def _element_op(plan: Plan, elements: dict[str, Any]) -> OpSpec:
    overload, args, kwargs = _element_call(plan.overload, elements)
    element_plan = plan_of(overload)
    if element_plan.rule is None:
        raise NotImplementedError(f"{plan.name}: {overload} has no lowering rule on xla; use foreach=False")
    key: tuple[Any, ...] = (
        "foreach",
        *((name, _element_key(value, name in plan.scalar_argument_names)) for name, value in elements.items()),
    )
    # An element's dtypes may be decided by torch's default dtype.
    key = (*key, torch.get_default_dtype()) if not any(map(_is_inexact, elements.values())) else key
    return element_plan.table.of(key, lambda: new_op(element_plan, args, kwargs))


def _is_inexact(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not is_exact(value.dtype)


def meta_of_target(tensor: Any) -> Meta:
    """The meta of a tensor that a list op writes into."""
    return tensor._meta.layout if type(tensor) is XlaTensor else meta_of(tensor)


def _flat_places(
    plan: Plan, given: list[Any], names: list[str], count: int
) -> tuple[list[list[int]], list[list[int | None]], list[float | int]]:
    """The places of each argument's elements in dispatch's scan: (among operands, among numbers, the numbers).

    An element of a list of numbers that is no scalar argument, a bool or a complex one, has no place: it is static.
    """
    operand_places: list[list[int]] = []
    number_places: list[list[int | None]] = []
    num_operands = 0
    numbers: list[float | int] = []

    def lift(value: Any) -> int | None:
        if type(value) not in (int, float):
            return None
        if value > LARGEST and type(value) is int:
            raise RuntimeError(f"{plan.name}: value {value} cannot be converted to type int64_t without overflow")
        numbers.append(value)
        return len(numbers) - 1

    for name, value in zip(names, given, strict=True):
        if _is_tensors(value):
            operand_places.append([num_operands + i for i in range(count)])
            num_operands += count
        elif isinstance(value, torch.Tensor):
            operand_places.append([num_operands] * count)
            num_operands += 1
        elif name in plan.scalar_argument_names and isinstance(value, (list, tuple)) and not is_one_number(value):
            number_places.append([lift(item) for item in value])
        elif name in plan.scalar_argument_names:
            place = lift(value[0] if isinstance(value, (list, tuple)) else value)
            number_places.append([place] * count)
    return operand_places, number_places, numbers


def _is_tensors(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], torch.Tensor)


def _element(value: Any, index: int) -> Any:
    return value[index] if isinstance(value, (list, tuple)) else value


def _element_key(value: Any, is_scalar_argument: bool) -> Any:
    if isinstance(value, torch.Tensor):
        return value._meta.layout if type(value) is XlaTensor else dense_meta(value.shape, value.dtype)
    if is_scalar_argument and type(value) in (int, float):
        return type(value)
    if type(value) is float:
        return ("f", value.hex())
    return (type(value), value)


def _element_call(overload: OpOverload, given: dict[str, Any]) -> tuple[OpOverload, tuple[Any, ...], dict[str, Any]]:
    """The element's op for one element of a list op: (overload, arguments, keyword arguments)."""
    base = base_name(overload)
    values = list(given.values())
    second_is_tensor = len(values) > 1 and isinstance(values[1], torch.Tensor)
    if base in ("add", "sub", "mul", "div"):
        keywords = {"alpha": given["alpha"]} if "alpha" in given else {}
        return getattr(aten, base).Tensor, tuple(values[:2]), keywords
    if base in ("maximum", "minimum"):
        target = (
            getattr(aten, base).default
            if second_is_tensor
            else getattr(aten, {"maximum": "clamp_min", "minimum": "clamp_max"}[base]).default
        )
        return target, tuple(values), {}
    if base in ("clamp_min", "clamp_max"):
        return getattr(getattr(aten, base), "Tensor" if second_is_tensor else "default"), tuple(values), {}
    if base == "pow":
        first_is_tensor = isinstance(values[0], torch.Tensor)
        kind = (
            "Tensor_Tensor"
            if first_is_tensor and second_is_tensor
            else "Tensor_Scalar"
            if first_is_tensor
            else "Scalar"
        )
        return getattr(aten.pow, kind), tuple(values), {}
    if base == "lerp":
        return (
            getattr(aten.lerp, "Tensor" if isinstance(values[2], torch.Tensor) else "Scalar"),
            tuple(values),
            {},
        )
    if base in ("addcmul", "addcdiv"):
        if len(values) > 3 and isinstance(values[3], torch.Tensor):
            raise NotImplementedError(
                f"{overload}: scalars as one tensor are not supported on xla; pass a list of numbers"
            )
        keywords = {"value": values[3]} if len(values) > 3 else {}
        return getattr(aten, base).default, tuple(values[:3]), keywords
    if base == "norm":
        keywords = {"dtype": given["dtype"]} if given.get("dtype") is not None else {}
        return aten.linalg_vector_norm.default, (values[0], given.get("ord", 2)), keywords
    return getattr(aten, base).default, tuple(values), {}
