"""The shape-and-dtype table's slow side: the Entry of one new combination of operands.

An Entry is built once per (operand metas, static arguments): torch runs the op on meta tensors for the result's shape,
dtype and strides (and raises its own errors for bad shapes), and the rule's arguments are bound.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch._ops import OpOverload
from torch._prims_common import elementwise_dtypes

from .dtypes import check_fits, is_exact, to_numpy_dtype
from .ir import Entry, Meta, Slot, dense_meta, meta_of
from .ops import Rule, base_name
from .ops.checks import CHECKS
from .ops.create import cast
from .ops.lifting import is_one_number
from .ops.meta import META_FUNCTIONS
from .ops.moving import move_of
from .ops.registry import rule_arguments
from .overlap import check_targets
from .plans import MUTATION, VIEW, Plan, args_have_tensor, constant_of, makes_tensors
from .tensor import XlaTensor
from .views import ViewRule, view_rule

aten = torch.ops.aten


# --- binding arguments ------------------------------------------------------------------------------------------------


class _Operand(int):
    """The index of a tensor operand in a rule's arguments."""


class _Number(int):
    """The index of a lifted number in a rule's arguments."""


@dataclass(slots=True)
class _Binding:
    """An overload's arguments with tensors and lifted numbers replaced by their places, in dispatch's order."""

    arguments: dict[str, Any]
    metas: list[Meta]
    numbers: list[float | int]


def _bind(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Binding:
    binding = _Binding({}, [], [])
    for argument, value in zip(plan.overload._schema.arguments, args, strict=False):
        binding.arguments[argument.name] = _place(value, argument.name in plan.lifted_names, binding)
    for name, value in kwargs.items():
        if name not in plan.ignored:
            binding.arguments[name] = _place(value, name in plan.lifted_names, binding)
    return binding


def _place(value: Any, is_lifted: bool, binding: _Binding) -> Any:
    if isinstance(value, torch.Tensor):
        binding.metas.append(value._meta if type(value) is XlaTensor else dense_meta(value.shape, value.dtype))
        return _Operand(len(binding.metas) - 1)
    if isinstance(value, (list, tuple)):
        if is_lifted and is_one_number(value):
            return [_place(value[0], True, binding)] * len(value)
        return [_place(item, is_lifted, binding) for item in value]
    if is_lifted and type(value) in (int, float):
        binding.numbers.append(value)
        return _Number(len(binding.numbers) - 1)
    return value


def _fill(value: Any, operand: Callable[[int], Any], number: Callable[[int], Any]) -> Any:
    """The value with operands and numbers put back by the two functions."""
    if type(value) is _Operand:
        return operand(int(value))
    if type(value) is _Number:
        return number(int(value))
    if type(value) is list:
        return [_fill(item, operand, number) for item in value]
    return value


def run_on_meta(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What torch says the op returns, with torch's own errors for arguments it does not take."""

    def to_meta(value: Any) -> Any:
        if isinstance(value, XlaTensor):
            return value._meta.make()
        if isinstance(value, torch.Tensor):
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        if isinstance(value, (list, tuple)):
            return [to_meta(item) for item in value]
        return value

    keywords = {name: to_meta(value) for name, value in kwargs.items() if name not in ("generator", "pin_memory")}
    if "device" in keywords or (makes_tensors(plan.overload) and not args_have_tensor(args)):
        keywords["device"] = torch.device("meta")
    run = META_FUNCTIONS.get(plan.overload, plan.overload)
    arguments = [to_meta(value) for value in args]
    check = CHECKS.get(plan.overload)
    if check is not None:
        check(*arguments, **keywords)
    try:
        made = run(*arguments, **keywords)
    except AssertionError as error:  # some of torch's meta kernels in Python check so; its other kernels raise
        raise RuntimeError(f"{plan.name}: {error}") from error
    if plan.kind is MUTATION:
        targets = [arguments[w] if isinstance(w, int) else keywords[w] for w in plan.mutated]
        return [tensor for target in targets for tensor in (target if isinstance(target, list) else [target])]
    return made


# --- entries ----------------------------------------------------------------------------------------------------------


def new_entry(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The Entry (for a view op: the ViewRule) of one new combination of operands and static arguments."""
    if plan.fills and isinstance(args[0], torch.Tensor):  # numbers that come later are looked at by dispatch
        for value, lifted in zip(args, plan.lifted, strict=False):
            if lifted and isinstance(value, (int, float, complex)):
                check_fits(plan.name, value, kwargs.get("dtype") or args[0].dtype)
    made = run_on_meta(plan, args, kwargs)
    binding = _bind(plan, args, kwargs)
    if plan.kind is VIEW:
        return _view_rule(plan, args[0], binding, meta_of(made))
    flat = list(made) if isinstance(made, (tuple, list)) else [made]
    metas = tuple(meta_of(item).layout for item in flat if isinstance(item, torch.Tensor))
    if plan.kind is MUTATION:
        for where in plan.mutated:
            check_targets(plan.name, base_name(plan.overload), args[where] if isinstance(where, int) else kwargs[where])
        _check_unchanged(plan, args, kwargs, metas)
        check_complex(plan, args)
    plain = all(isinstance(item, torch.Tensor) for item in flat)
    layout = None if plain else tuple(Slot if isinstance(item, torch.Tensor) else item for item in flat)
    kinds = "".join("f" if type(number) is float else "i" for number in binding.numbers) + ("ii" if plan.draws else "")
    constant = constant_of(plan)
    if constant == "lifted" and not binding.numbers:  # a bool or complex number is static
        constant = next(binding.arguments[name] for name in binding.arguments if name in plan.lifted_names)
    lower = _fill_with(constant, metas[0]) if constant is not None else _bound_rule(plan, binding, metas, layout)
    statics = ", ".join(f"{name}={_show(value, binding)}" for name, value in binding.arguments.items())
    entry = Entry(plan.name, lower, metas, numbers=kinds, statics=statics, constant=constant, layout=layout)
    entry.moving = _moving(plan, binding, metas)
    if not plan.draws and plan.overload.namespace == "aten" and plan.twin is not None:
        entry.on_host = _on_host(plan.twin, binding, metas, constant)
    return entry


def _on_host(overload: OpOverload, binding: _Binding, metas: tuple[Meta, ...], constant: Any) -> Any:
    """The op as torch's own CPU kernel, for integers and booleans, whose bits are the same wherever computed."""
    if not all(is_exact(meta.dtype) for meta in (*metas, *binding.metas)):
        return None
    placed = {"device": torch.device("cpu")} if makes_tensors(overload) else {}

    def run(operands: list[torch.Tensor], numbers: Sequence[float | int]) -> list[torch.Tensor]:
        if constant is not None:
            value = numbers[0] if constant == "lifted" else constant
            return [torch.full(metas[0].shape, value, dtype=metas[0].dtype, device="cpu")]
        given = {
            name: _fill(value, operands.__getitem__, numbers.__getitem__) for name, value in binding.arguments.items()
        }
        made = overload(**given, **placed)
        made = made if isinstance(made, (tuple, list)) else [made]
        return [item for item in made if isinstance(item, torch.Tensor)]

    return run


def _moving(plan: Plan, binding: _Binding, metas: tuple[Meta, ...]) -> tuple[Entry, int] | None:
    """The op's Entry with its position lifted, one for all positions, and this call's position."""
    move = move_of(plan.twin, binding.arguments, [meta.shape for meta in binding.metas], metas[0].struct)
    if move is None:
        return None
    key = ("moving", move.kind, *(meta.layout for meta in binding.metas))
    found = plan.entries.get(key)
    if found is None:

        def lower(operands: list, numbers: list) -> tuple:
            draw = [(numbers[1], numbers[2])] if plan.draws else []
            return (move.function(operands, numbers[0], *draw),)

        kinds = "iii" if plan.draws else "i"
        found = plan.entries[key] = Entry(plan.name, lower, metas, numbers=kinds, statics=f"moving, {move.kind[1:]}")
    return found, move.start


def _show(value: Any, binding: _Binding) -> str:
    shown = _fill(value, lambda i: binding.metas[i], lambda i: "lifted")
    return str(shown)


_ARITHMETIC = {"add", "sub", "mul", "div", "pow", "rsub", "addcmul", "addcdiv", "lerp"}


def check_complex(plan: Plan, args: tuple[Any, ...]) -> None:
    """torch's meta device lets arithmetic write a complex result into a real tensor; every real device refuses."""
    target = args[0]
    if base_name(plan.overload) not in _ARITHMETIC or not isinstance(target, torch.Tensor) or target.is_complex():
        return
    for value in args[1:]:
        if isinstance(value, complex) or (isinstance(value, torch.Tensor) and value.is_complex()):
            found = "ComplexDouble" if target.dtype == torch.float64 else "ComplexFloat"
            raise RuntimeError(
                f"{plan.name}: result type {found} can't be cast to the desired output type {target.dtype}"
            )


def _check_unchanged(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], metas: tuple[Meta, ...]) -> None:
    targets: list[Any] = []
    for where in plan.mutated:
        value = args[where] if isinstance(where, int) else kwargs[where]
        targets.extend(value) if isinstance(value, (list, tuple)) else targets.append(value)
    for target, meta in zip(targets, metas, strict=True):
        if isinstance(target, XlaTensor) and (target._meta.shape, target._meta.dtype) != (meta.shape, meta.dtype):
            raise NotImplementedError(
                f"{plan.name} would change {target._meta!r} into {meta!r}; on xla a tensor keeps its shape: use the "
                "out-of-place form and rebind the name"
            )


def _view_rule(plan: Plan, base: XlaTensor, binding: _Binding, meta: Meta) -> ViewRule:
    """The rule of a view; how it is read and written is one for all places in memory at which the base may begin."""
    parent = base._meta.layout
    statics = ", ".join(f"{name}={value}" for name, value in list(binding.arguments.items())[1:])
    found = plan.entries.get(("layout", parent, statics))
    if found is None:
        entry = Entry(plan.name, _bound_rule(plan, binding, (meta.layout,), None), (meta.layout,), statics=statics)
        entry.moving = _moving(plan, binding, entry.metas)
        entry.on_host = _on_host(plan.overload, binding, entry.metas, None)
        arguments = dict(list(binding.arguments.items())[1:])
        found = plan.entries["layout", parent, statics] = view_rule(plan.overload, entry, parent, arguments)
    return ViewRule(found.read, found.write, meta)


def _fill_with(constant: Any, meta: Meta) -> Callable[[list[jax.Array], list[jax.Array]], tuple[jax.Array, ...]]:
    def lower(operands: list[jax.Array], numbers: list[jax.Array]) -> tuple[jax.Array]:
        value = numbers[0] if constant == "lifted" else np.asarray(constant)
        return (jnp.full(meta.shape, cast(jnp.asarray(value), meta.struct.dtype)),)

    return lower


def _bound_rule(
    plan: Plan, binding: _Binding, metas: tuple[Meta, ...], layout: tuple[Any, ...] | None
) -> Callable[[list[jax.Array], list[jax.Array]], tuple[jax.Array, ...]]:
    """The rule as a function of operand arrays and lifted numbers: arguments placed, types promoted, results cast."""
    rule = plan.rule
    assert rule is not None and plan.twin is not None
    positional, keywords = _rule_arguments(plan.twin, binding)
    compute = _compute_dtype(plan.twin, rule, binding)
    structs = [meta.struct for meta in metas]
    if layout is not None:
        queue = iter(structs)
        returns: Any = tuple(next(queue) if item is Slot else None for item in layout)
    else:
        returns = structs[0] if len(structs) == 1 else tuple(structs)
    is_cast = rule.promote is not None or plan.kind is MUTATION
    shape_only = plan.ignores_operands

    def lower(operands: list[jax.Array], numbers: list[jax.Array]) -> tuple[jax.Array, ...]:
        draw = (numbers[-2], numbers[-1]) if rule.wants_draw else None

        def operand(index: int) -> Any:
            if shape_only:
                return binding.metas[index].struct
            return operands[index] if compute is None else cast(operands[index], compute)

        def number(index: int) -> Any:
            return numbers[index] if compute is None else cast(numbers[index], compute)

        arguments = [_fill(value, operand, number) for value in positional]
        named = {name: _fill(value, operand, number) for name, value in keywords.items()}
        if rule.wants_returns:
            named["returns"] = returns
        if draw is not None:
            named["draw"] = draw
        made = rule.function(*arguments, **named)
        flat = tuple(_leaves(made))
        if is_cast:
            flat = tuple(cast(array, meta.struct.dtype) for array, meta in zip(flat, metas, strict=True))
        if plan.kind is MUTATION:
            flat = tuple(jnp.broadcast_to(array, meta.shape) for array, meta in zip(flat, metas, strict=True))
        return flat

    return lower


def _leaves(made: Any) -> Iterator[jax.Array]:
    if isinstance(made, (tuple, list)):
        for item in made:
            yield from _leaves(item)
    elif made is not None:
        yield made


def _rule_arguments(twin: OpOverload, binding: _Binding) -> tuple[list[Any], dict[str, Any]]:
    """The rule's arguments by position and by name, with the schema's defaults filled in and dtypes as numpy's."""
    positional, keywords = [], {}
    for argument in rule_arguments(twin):
        value = binding.arguments.get(argument.name, argument.default_value if argument.has_default_value() else None)
        if isinstance(value, torch.dtype):
            value = to_numpy_dtype(value)
        if argument.kwarg_only:
            keywords["from_" if argument.name == "from" else argument.name] = value
        else:
            positional.append(value)
    return positional, keywords


def _compute_dtype(twin: OpOverload, rule: Rule, binding: _Binding) -> np.dtype | None:
    if rule.promote is None:
        return None
    promoted = []
    for argument in twin._schema.arguments:
        if argument.kwarg_only or argument.name not in binding.arguments:
            continue
        value = _fill(binding.arguments[argument.name], lambda i: binding.metas[i].make(), lambda i: binding.numbers[i])
        if isinstance(value, torch.Tensor) or (type(value) in (int, float, bool, complex) and _is_scalar(argument)):
            promoted.append(value)
    compute, _ = elementwise_dtypes(*promoted, type_promotion_kind=rule.promote)
    if compute.is_floating_point and compute.itemsize == 1:
        compute = torch.float32  # torch computes float8 so, too; its table of types does not know them
    return to_numpy_dtype(compute)


def _is_scalar(argument: torch.Argument) -> bool:
    return str(argument.type) in ("number", "Optional[number]", "Tensor", "Optional[Tensor]")
