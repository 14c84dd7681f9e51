"""Plans: facts of an overload, known before its arguments."""

import functools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from ...ops import RULES, Rule, base_name
from ...ops.registry import PLACEMENT_ARGUMENTS, SCALAR_ARGUMENTS
from ..base.tables import Interned

aten = torch.ops.aten

FUNCTION, VIEW, MUTATION = "function", "view", "mutation"

# An argument or result of a torch call: tensors, numbers, dtypes, None, and lists of these.
TorchValue = Any
Args = tuple[TorchValue, ...]  # by position
Kwargs = dict[str, TorchValue]  # and by name
Handler = Callable[[OpOverload, Args, Kwargs], TorchValue]


def by_arguments(function: Callable[..., TorchValue]) -> Handler:
    """Returns a handler that calls a function with the op's own parameters."""

    @functools.wraps(function, updated=())
    def handler(func: OpOverload, args: Args, kwargs: Kwargs) -> TorchValue:
        return function(*args, **kwargs)

    return handler


# Ops that fill their result with one number: the number, or `"lifted"` for their first scalar
# argument.
CONSTANTS: dict[str, float | str] = {
    "full": "lifted", "full_like": "lifted", "new_full": "lifted", "fill.Scalar": "lifted",
    "zero": 0, "zeros_like": 0, "new_zeros": 0, "ones_like": 1, "new_ones": 1,
    "empty": 0, "empty_like": 0, "new_empty": 0, "new_empty_strided": 0, "empty_strided": 0,
}  # fmt: skip
# Draws and constants that read only the shape and dtype of the tensor passed to them.
SHAPE_ONLY_DRAWS = frozenset(
    (
        "uniform",
        "normal_functional",
        "normal.default",
        "bernoulli.p",
        "exponential",
        "random",
        "geometric",
    )
)
LIKE = {"zeros_like", "ones_like", "full_like", "empty_like", "clone"}
# Ops that write one number of the caller's into a tensor, whose dtype it must fit: their only
# scalar argument.
FILLS = {"full", "full_like", "new_full", "fill", "masked_fill", "index_fill", "scatter"}
INDEX_OPS = {"index", "index_put", "_index_put_impl", "_unsafe_index"}


# The families of rules whose work is matrix products and convolutions. Decompositions and solvers
# (`ops.linalg`) are not among them: torch's settings of precision do not reach those, either.
_PRODUCTS = frozenset({"matmul", "conv", "attention", "rnn", "distance"})


class Operand(int):
    """The index of a tensor operand in a rule's arguments."""


class Number(int):
    """The index of a scalar argument in a rule's arguments."""


class Large(int):
    """An integer too large for a scalar argument: static."""


def fill(
    value: TorchValue, operand: Callable[[int], TorchValue], number: Callable[[int], TorchValue]
) -> TorchValue:
    """The value with operands and numbers put back by the two functions."""
    if type(value) is Operand:
        return operand(int(value))
    if type(value) is Number:
        return number(int(value))
    if type(value) is list:
        return [fill(item, operand, number) for item in value]
    return value


class Plan:
    """Facts of one overload, known before its arguments, and its op table.

    `record.resolve.plan_of` completes them. is_plain: the operands and scalar
    arguments alone decide what is recorded: no draw, no check of the data.
    """

    def __init__(self, overload: OpOverload):
        schema = overload._schema
        # Tables name torch's ops and ours so; the same word in another library is another op.
        base = base_name(overload) if overload.namespace in ("aten", "spmd") else schema.name
        self.overload = overload
        self.base = base
        self.name = str(overload).removesuffix(".default")
        self.kind = kind_of(overload)
        self.table: Interned[tuple[Hashable, ...], Any] = Interned()
        self.entries = self.table.rows  # for reading
        self.outs = tuple(argument.name for argument in schema.arguments if argument.is_out)
        self.ignored = PLACEMENT_ARGUMENTS | {*self.outs}
        self.scalar_argument_names = SCALAR_ARGUMENTS.get(base, frozenset())
        self.scalar_args = tuple(
            argument.name in self.scalar_argument_names for argument in schema.arguments
        )
        self.returns_targets = any(returned.alias_info is not None for returned in schema.returns)
        self.returns_list = len(schema.returns) == 1 and str(schema.returns[0].type).startswith(
            "List"
        )
        self.twin = functional_twin(overload) if self.kind is MUTATION else overload
        self.rule: Rule | None = RULES.get(self.twin) if self.twin is not None else None
        # jax's name of the precision of a product in less than full float32
        self.precision: str | None = None
        self.draws = self.rule is not None and self.rule.wants_draw
        self.is_list = is_foreach(overload)
        names = (base, f"{base}.{overload._overloadname}")
        # The number that an op fills its result with, `"lifted"` for its first scalar argument, or
        # None.
        self.constant = next((CONSTANTS[name] for name in names if name in CONSTANTS), None)
        self.ignores_operands = not self.is_list and (
            self.constant is not None or not SHAPE_ONLY_DRAWS.isdisjoint(names)
        )
        self.fills = base in FILLS and "Tensor" not in overload._overloadname
        self.inherits_sharding = base in LIKE and self.kind is FUNCTION
        self.takes_host_indices = base in INDEX_OPS
        # `record.resolve` sets both: the handler that replaces the rule, and the check of the data
        # before it.
        self.handler: Handler | None = None
        self.check_data: Callable[[Args, Kwargs], None] | None = None
        self.is_plain = not (self.fills or self.draws or self.ignores_operands)
        family = (
            None
            if self.rule is None or self.rule.opaque
            else self.rule.function.__module__.rpartition(".")[2]
        )
        self.is_product = family in _PRODUCTS

    def returned(self, targets: Sequence[torch.Tensor]) -> TorchValue:
        """The return value of a call with these targets; some ops write more than they return."""
        if not self.returns_targets:
            return None
        returns_first = len(targets) == 1 or (
            len(self.overload._schema.returns) == 1 and not self.returns_list
        )
        return targets[0] if returns_first else tuple(targets)


def written(
    overload: OpOverload, args: Sequence[TorchValue], kwargs: Mapping[str, TorchValue]
) -> list[torch.Tensor]:
    """The targets of a call, with lists among them flattened."""
    values = [args[key] if type(key) is int else kwargs[key] for key in _target_keys(overload)]  # type: ignore[index]
    return [target for value in values for target in as_list(value)]


def is_foreach(overload: OpOverload) -> bool:
    """True for torch's list ops."""
    return overload._schema.name.startswith("aten::_foreach_")


def functional_twin(overload: OpOverload) -> OpOverload | None:
    """The functional twin of an in-place or out= form: `add_.Tensor` -> `add.Tensor`."""
    if is_foreach(overload):
        return None
    namespace, name = overload._schema.name.split("::")
    base = "normal_functional" if name == "normal_" else base_name(overload)
    packet = getattr(getattr(torch.ops, namespace), base, None)
    parameters = parameters_of(overload)
    return next(
        (
            twin
            for twin in overloads_of(packet)
            if kind_of(twin) is FUNCTION and parameters_of(twin) == parameters
        ),
        None,
    )


def overload_named(name: str) -> OpOverload:
    """An overload of torch's by its name in a schema: `ctc_loss.Tensor`."""
    base, _, form = name.partition(".")
    overload: OpOverload = getattr(getattr(aten, base), form or "default")
    return overload


def overloads_of(packet: OpOverloadPacket | None) -> list[OpOverload]:
    """The overloads of an op by name; none where torch has no such op."""
    return [] if packet is None else [getattr(packet, name) for name in packet.overloads()]


def parameters_of(overload: OpOverload, without: Collection[str] = ()) -> list[tuple[str, str]]:
    """Names and types of an overload's parameters, except for `out` and those in `without`."""
    arguments = [argument for argument in overload._schema.arguments if not argument.is_out]
    return [
        (argument.name, str(argument.type))
        for argument in arguments
        if argument.name not in without
    ]


def kind_of(overload: OpOverload) -> str:
    """The kind of an overload by the aliases in its schema: MUTATION, VIEW or FUNCTION."""
    if overload._schema.is_mutable:
        return MUTATION
    return VIEW if overload.is_view else FUNCTION


@functools.cache
def _target_keys(overload: OpOverload) -> tuple[int | str, ...]:
    """The position, or the name of a keyword, of each argument that a call writes."""
    arguments = overload._schema.arguments
    return tuple(
        argument.name if argument.kwarg_only else position
        for position, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def as_list(value: TorchValue) -> list[TorchValue]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def makes_tensors(overload: OpOverload) -> bool:
    """True if an overload is a factory: it takes its result's device."""
    return any(argument.name == "device" for argument in overload._schema.arguments)
