"""What dispatch knows of an overload before it sees arguments: its kind and rule, or how it is done without one."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from . import metrics
from .config import config
from .host import leaving
from .ops import RULES, Rule, base_name, lifted_arguments
from .ops.registry import PLACEMENT_ARGUMENTS
from .out_forms import COMPUTES_IN_OUT, fill_out
from .overlap import check_operands, check_target
from .tensor import XlaTensor

aten = torch.ops.aten

FUNCTION, VIEW, MUTATION = "function", "view", "mutation"

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

# Ops that fill their result with one number: the number, or "lifted" for their first lifted argument.
CONSTANTS: dict[str, Any] = {
    "full": "lifted", "full_like": "lifted", "new_full": "lifted", "fill.Scalar": "lifted",
    "zero": 0, "zeros_like": 0, "new_zeros": 0, "ones_like": 1, "new_ones": 1,
    "empty": 0, "empty_like": 0, "new_empty": 0, "new_empty_strided": 0, "empty_strided": 0,
}  # fmt: skip
# Draws and constants that look only at the shape and dtype of the tensor they are given.
SHAPE_ONLY_DRAWS = {"uniform", "normal_functional", "normal", "bernoulli.p", "exponential", "random", "geometric"}
LIKE = {"zeros_like", "ones_like", "full_like", "empty_like"}
# Ops that write one number of the caller's into a tensor, whose dtype it must fit: their only lifted argument.
FILLS = {"full", "full_like", "new_full", "fill", "masked_fill", "index_fill", "scatter"}
INDEX_OPS = {"index", "index_put", "_index_put_impl", "_unsafe_index", "index_put_"}


class Plan:
    """All that dispatch knows of one overload before it sees arguments, and the table of its entries."""

    __slots__ = (
        "bounds", "draws", "entries", "fills", "handler", "ignored", "ignores_operands", "inherits_sharding", "kind",
        "lifted", "lifted_names", "mutated", "name", "overload", "returns_list", "returns_targets", "rule",
        "takes_host_indices", "twin",
    )  # fmt: skip

    def __init__(self, overload: OpOverload, handlers: dict[OpOverload, Handler]):
        schema = overload._schema
        base = base_name(overload)
        self.overload = overload
        self.name = str(overload).removesuffix(".default")
        self.kind = _kind(overload)
        self.entries: dict[tuple[Any, ...], Any] = {}
        self.ignored = PLACEMENT_ARGUMENTS | {argument.name for argument in schema.arguments if argument.is_out}
        self.lifted_names = lifted_arguments(overload)
        self.lifted = tuple(argument.name in self.lifted_names for argument in schema.arguments)
        self.mutated = _mutated(overload)
        self.returns_targets = any(returned.alias_info is not None for returned in schema.returns)
        self.returns_list = len(schema.returns) == 1 and str(schema.returns[0].type).startswith("List")
        self.twin = functional_twin(overload) if self.kind is MUTATION else overload
        self.rule: Rule | None = RULES.get(self.twin) if self.twin is not None else None
        self.draws = self.rule is not None and self.rule.wants_draw
        self.ignores_operands = not is_foreach(overload) and (
            constant_of(self) is not None
            or base in SHAPE_ONLY_DRAWS
            or f"{base}.{overload._overloadname}" in SHAPE_ONLY_DRAWS
        )
        self.fills = base in FILLS and "Tensor" not in overload._overloadname
        self.inherits_sharding = base in LIKE and self.kind is FUNCTION
        self.takes_host_indices = schema.name.split("::")[1] in INDEX_OPS
        self.handler = handlers.get(overload)
        self.bounds: Callable[[tuple[Any, ...]], None] | None = None  # looks at indices; see `core.bounds`


def make_plan(overload: OpOverload, handlers: dict[OpOverload, Handler]) -> Plan:
    """The plan of an overload; one without a rule gets a handler that decomposes it, or says clearly that it cannot."""
    plan = Plan(overload, handlers)
    if (
        plan.handler is None
        and not is_foreach(overload)
        and any(argument.is_out for argument in overload._schema.arguments)
    ):
        plan.handler = _out_form(plan)
    if plan.handler is None and plan.rule is None and not is_foreach(overload):
        plan.handler = _decomposition(plan, handlers)
    return plan


def is_foreach(overload: OpOverload) -> bool:
    """Whether this is one of torch's list-at-once forms, which are derived from the element's op."""
    return overload._schema.name.startswith("aten::_foreach_")


def functional_twin(overload: OpOverload) -> OpOverload | None:
    """The overload without mutation that an in-place or out= form computes: `add_.Tensor` -> `add.Tensor`."""
    if is_foreach(overload):
        return None
    name = overload._schema.name.split("::")
    base = base_name(overload) if not name[1].startswith("_fused") else name[1].removesuffix("_")
    base = "normal_functional" if name[1] == "normal_" else base
    packet = getattr(getattr(torch.ops, name[0]), base, None)
    if packet is None:
        return None
    wanted = [(a.name, str(a.type)) for a in overload._schema.arguments if not a.is_out]
    for candidate in packet.overloads():
        found = getattr(packet, candidate)
        if _kind(found) is FUNCTION and [(a.name, str(a.type)) for a in found._schema.arguments] == wanted:
            return found
    return None


def _kind(overload: OpOverload) -> str:
    schema = overload._schema
    if any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments):
        return MUTATION
    if any(returned.alias_info is not None for returned in schema.returns):
        return VIEW
    return FUNCTION


def _mutated(overload: OpOverload) -> tuple[int | str, ...]:
    arguments = overload._schema.arguments
    return tuple(
        argument.name if argument.kwarg_only else position
        for position, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def constant_of(plan: Plan) -> Any:
    """The number that an op fills its result with, "lifted" for its first lifted argument, or None."""
    base = base_name(plan.overload)
    if base in CONSTANTS:
        return CONSTANTS[base]
    return CONSTANTS.get(f"{base}.{plan.overload._overloadname}")


# --- decomposition ----------------------------------------------------------------------------------------------------


# The key of kernels that are written in other ops and leave the gradient to their own formula.
_COMPOSITE = torch._C.DispatchKey.CompositeExplicitAutograd


def _decomposition(plan: Plan, handlers: dict[OpOverload, Handler]) -> Handler:
    overload = plan.overload
    found = decomposition_table.get(overload)
    if found is not None:
        return lambda func, args, kwargs: found(*args, **kwargs)
    if overload._can_decompose():
        return lambda func, args, kwargs: func.decompose(*args, **kwargs)
    if overload.namespace == "prims":  # torch's references, which some decompositions are, are written in these
        return lambda func, args, kwargs: func._overloadpacket.impl_aten(*args, **kwargs)
    if overload.namespace != "aten" and plan.kind is FUNCTION and overload.has_kernel_for_dispatch_key(_COMPOSITE):
        return lambda func, args, kwargs: func._op_dk(_COMPOSITE, *args, **kwargs)
    twin = plan.twin
    if (
        plan.kind is MUTATION
        and twin is not None
        and (twin in decomposition_table or twin._can_decompose() or twin in handlers)
    ):
        return lambda func, args, kwargs: _through_twin(plan, twin, args, kwargs)
    return _no_rule


def _through_twin(plan: Plan, twin: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    outs = {argument.name for argument in plan.overload._schema.arguments if argument.is_out}
    made = twin(*args, **{name: value for name, value in kwargs.items() if name not in outs})
    made = made if isinstance(made, (tuple, list)) else (made,)
    targets = [args[where] if isinstance(where, int) else kwargs[where] for where in plan.mutated]
    for target, value in zip(targets, made, strict=True):
        target.copy_(value)
    return targets[0] if len(targets) == 1 else tuple(targets)


# What an out= form computes where the form without it writes, too: running statistics.
_OUT_TWINS = {aten._native_batch_norm_legit.out: aten._native_batch_norm_legit.default}


def _out_form(plan: Plan) -> Handler | None:
    """`out=`: the op without it, whose results the given tensors then take, resized where they do not fit."""
    outs = {argument.name for argument in plan.overload._schema.arguments if argument.is_out}
    twin = plan.twin or _OUT_TWINS.get(plan.overload)
    factory = None if twin is not None else _factory_of(plan.overload)
    if twin is None and factory is None:
        return None

    def handler(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = [kwargs[where] for where in plan.mutated if where in outs]
        targets = [target for each in given for target in _as_list(each)]
        rest = {name: value for name, value in kwargs.items() if name not in outs}
        for target in targets:
            _check_out(plan, target, (*args, *rest.values()))
        if base_name(plan.overload) in COMPUTES_IN_OUT and rest.get("dtype") is None:
            rest["dtype"] = targets[0].dtype
        if twin is not None:
            made = twin(*args, **rest)
        else:
            assert factory is not None
            made = factory(*args, **{"dtype": targets[0].dtype, **rest, "device": targets[0].device})
        for target, value in zip(targets, made if isinstance(made, (tuple, list)) else (made,), strict=True):
            fill_out(plan.overload, plan.name, target, value)
        if not plan.returns_targets:
            return None
        return given[0] if len(given) == 1 else tuple(given)

    return handler


def _factory_of(overload: OpOverload) -> OpOverload | None:
    """The factory that an out= form without tensor operands belongs to: `eye.m_out` -> `eye.m`."""
    arguments = [(a.name, str(a.type)) for a in overload._schema.arguments if not a.is_out]
    packet = getattr(aten, base_name(overload), None)
    for name in packet.overloads() if packet is not None else ():
        found = getattr(packet, name)
        rest = PLACEMENT_ARGUMENTS | {"dtype"}
        placed = [(a.name, str(a.type)) for a in found._schema.arguments if a.name not in rest]
        if makes_tensors(found) and placed == arguments:
            return found
    return None


def _check_out(plan: Plan, target: Any, operands: tuple[Any, ...]) -> None:
    if type(target) is not XlaTensor:
        raise RuntimeError(f"{plan.name}: expected out to be on xla:0, got a tensor on {target.device}; make it there")
    base = base_name(plan.overload)
    check_target(plan.name, base, target._meta)
    check_operands(plan.name, target, operands, base=base)


def _no_rule(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if config.fallback == "cpu" and _kind(func) is not VIEW:
        return _on_cpu(func, args, kwargs)
    raise NotImplementedError(
        f"{func} has no lowering rule on xla, and torch has no decomposition of it. Give it one with "
        'spmd.register_lowering, move its inputs with .cpu(), or set spmd.config.fallback = "cpu" to run such '
        "ops on the CPU."
    )


def _on_cpu(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The CPU fallback: operands to the host, results (and what the op wrote) back to the device."""
    leaving(str(func), "its operands, as it has no lowering rule and config.fallback is 'cpu',")
    metrics.add_fallback(str(func))
    written: dict[int, tuple[XlaTensor, torch.Tensor]] = {}

    def to_cpu(value: Any) -> Any:
        if type(value) is XlaTensor:
            # One copy for one tensor: what the op writes is found again by it.
            return written.setdefault(id(value), (value, value.cpu()))[1]
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == "xla" else value

    copies, keywords = tree_map(to_cpu, (args, kwargs))
    made = func(*copies, **keywords)
    by_copy = {id(copy): tensor for tensor, copy in written.values()}
    for argument, given, copy in _arguments(func, args, kwargs, copies, keywords):
        if argument.alias_info is not None and argument.alias_info.is_write:
            for target, source in zip(_as_list(given), _as_list(copy), strict=True):
                target.copy_(source)

    def to_device(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return by_copy[id(value)] if id(value) in by_copy else value.to("xla")

    return tree_map(to_device, made)


def _arguments(func: OpOverload, args: Any, kwargs: Any, copies: Any, keywords: Any) -> Iterator[tuple[Any, Any, Any]]:
    """(schema argument, what was given for it, its copy) for each argument of a call."""
    for argument, given, copy in zip(func._schema.arguments, args, copies, strict=False):
        yield argument, given, copy
    named = {argument.name: argument for argument in func._schema.arguments}
    for name, given in kwargs.items():
        yield named[name], given, keywords[name]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def args_have_tensor(args: tuple[Any, ...]) -> bool:
    """Whether a tensor stands among the arguments (a factory has none)."""
    return any(isinstance(value, torch.Tensor) for value in args)


def makes_tensors(overload: OpOverload) -> bool:
    """Whether an overload is a factory: it says where its result lives."""
    return any(argument.name == "device" for argument in overload._schema.arguments)
