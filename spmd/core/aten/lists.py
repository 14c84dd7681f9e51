"""List ops: each `_foreach_*` op comes from its element's op, whose rule runs for every element.

The op of a fused optimizer, over many parameters, becomes one op for each of them in the same way.
"""

import dataclasses
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_iter

from ..base.dtypes import is_exact
from ..graph.meta import Meta, dense_meta, meta_of
from ..graph.op import OpSpec, Part, Slot
from ..ops import base_name
from ..record.infer import bind, check_complex, new_op, op_for, run_on_meta
from ..record.lowerings import Call, Large, Number, Operand, fill
from ..record.overlap import check_targets
from ..record.overloads import MUTATION, Args, Kwargs, Plan, is_foreach
from ..record.resolve import plan_of
from ..record.tensor import XlaTensor
from .elements import Each, Norms

aten = torch.ops.aten


def _op_for(plan: Plan, args: Args, kwargs: Kwargs) -> Any:
    """The OpSpec (for a view op: the ViewRule) of one new combination of operands and statics, list ops included."""
    if is_foreach(plan.overload):
        return _list_op(plan, args, kwargs)
    result = new_op(plan, args, kwargs)
    return _by_parameter(result) if result.name in _FUSED else result


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


def _list_op(plan: Plan, args: Args, kwargs: Kwargs) -> OpSpec:
    """The op spec of a `_foreach_*` op: the element's own rule for each element."""
    names = [argument.name for argument in plan.overload._schema.arguments]
    given = dict(zip(names, args, strict=False))
    given |= {name: value for name, value in kwargs.items() if name not in plan.ignored}
    count = next(len(value) for value in given.values() if _is_tensors(value))
    if any(len(value) != count for value in given.values() if isinstance(value, (list, tuple))):
        run_on_meta(plan, args, kwargs)  # raises torch's own error
    bound = bind(plan, args, kwargs)
    for value in tree_iter([*bound.arguments.values()]):
        if type(value) is Large:
            raise RuntimeError(f"{plan.name}: value {value} cannot be converted to type int64_t without overflow")
    is_mutation = plan.kind is MUTATION
    parts: list[Part] = []
    metas: list[Meta] = []
    for i in range(count):
        elements = {name: _element(value, i) for name, value in given.items()}
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
    is_norm = base_name(plan.overload) == "norm" and float(given.get("ord", 2)) == 2.0
    each = Norms(tuple(parts)) if is_norm and "dtype" not in given else Each(tuple(parts))
    return OpSpec.of(
        plan.name, each, tuple(metas), tuple(meta.layout for meta in bound.metas), numbers=bound.kinds,
        statics=f"{count} tensors", layout=(Slot,) * count,
    )  # fmt: skip


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


def _is_inexact(value: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and not is_exact(value.dtype)


def meta_of_target(tensor: torch.Tensor) -> Meta:
    """The meta of a tensor that a list op writes into."""
    return tensor._meta.layout if type(tensor) is XlaTensor else meta_of(tensor)


def _is_tensors(value: torch.Tensor) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], torch.Tensor)


def _element(value: torch.Tensor, index: int) -> Any:
    return value[index] if isinstance(value, (list, tuple)) else value


def _element_key(value: torch.Tensor, is_scalar_argument: bool) -> Any:
    if isinstance(value, torch.Tensor):
        return value._meta.layout if type(value) is XlaTensor else dense_meta(value.shape, value.dtype)
    if is_scalar_argument and type(value) in (int, float):
        return type(value)
    if type(value) is float:
        return ("f", value.hex())
    return (type(value), value)


def _element_call(overload: OpOverload, given: dict[str, Any]) -> tuple[OpOverload, Args, Kwargs]:
    """The element's op for one element of a list op: (overload, arguments, keyword arguments)."""
    base, name = base_name(overload), "default"
    values, keywords = list(given.values()), {}
    are_tensors = [isinstance(value, torch.Tensor) for value in values]
    if base in ("add", "sub", "mul", "div"):
        name, keywords = "Tensor", {"alpha": given["alpha"]} if "alpha" in given else {}
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
        base, values = "linalg_vector_norm", [values[0], given.get("ord", 2)]
        keywords = {"dtype": given["dtype"]} if given.get("dtype") is not None else {}
    return getattr(getattr(aten, base), name), tuple(values), keywords


op_for.append(_op_for)
