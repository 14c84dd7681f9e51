"""The Python numbers that are scalar arguments, operands of the program: one table, by op name and schema argument.

A scalar argument may change from step to step without a new program (a learning rate, Adam's bias corrections). A
static one is part of the program: exponents (x ** 2 is a multiplication, x ** s is not), norm orders, eps, dims, and
the matmul family's alpha and beta. In-place, out and foreach forms share the entry of their functional op.
"""

from collections.abc import Sequence
from typing import Any

from torch._ops import OpOverload

SCALAR_ARGUMENTS: dict[str, frozenset[str]] = {
    name: frozenset(arguments)
    for name, arguments in {
        "add": ("other", "alpha", "scalar", "scalars"),
        "sub": ("other", "alpha", "scalar", "scalars"),
        "rsub": ("other", "alpha"),
        "mul": ("other", "scalar", "scalars"),
        "div": ("other", "scalar", "scalars"),
        "true_divide": ("other",),
        "remainder": ("other",),
        "fmod": ("other",),
        "floor_divide": ("other",),
        "fill": ("value",),
        "full": ("fill_value",),
        "full_like": ("fill_value",),
        "new_full": ("fill_value",),
        "masked_fill": ("value",),
        "where": ("self", "other"),
        "lerp": ("weight",),
        "addcmul": ("value", "scalar", "scalars"),
        "addcdiv": ("value", "scalar", "scalars"),
        "clamp": ("min", "max"),
        "clamp_min": ("min", "scalar", "scalars"),
        "clamp_max": ("max", "scalar", "scalars"),
        "maximum": ("scalar", "scalars"),
        "minimum": ("scalar", "scalars"),
        "eq": ("other",),
        "ne": ("other",),
        "lt": ("other",),
        "le": ("other",),
        "gt": ("other",),
        "ge": ("other",),
        "pow": ("self",),
        "scatter": ("value",),
        "index_fill": ("value",),
        "scalar_tensor": ("s",),
        "bernoulli": ("p",),
        "normal": ("mean", "std"),
        "uniform": ("from", "to"),
        "_fused_adagrad": ("lr",),
        "_fused_adam": ("lr", "beta1", "beta2"),
        "_fused_adamw": ("lr", "beta1", "beta2"),
        "_fused_sgd": ("lr",),
    }.items()
}


def is_one_number(values: Sequence[Any]) -> bool:
    """True if a list of scalar arguments is one number many times, as an optimizer's bias corrections are.

    It is one operand then: XLA compiles the kernels of many tensors as one when they read the same number.
    """
    first = values[0] if values else None
    return (
        isinstance(first, (float, int))
        and type(first) is not bool
        and values.count(first) == len(values)
        and len(set(map(type, values))) == 1
    )


# Integers are passed as int64; larger ones that torch takes (for uint64, and rounded for floats) are static.
LARGEST = 2**63 - 1


def base_name(overload: OpOverload) -> str:
    """`aten::_foreach_add_.List` -> `add`: the op whose scalar arguments and rule a derived form shares."""
    name = overload._schema.name.split("::")[1].removeprefix("_foreach_")
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return name


def scalar_arguments(overload: OpOverload) -> frozenset[str]:
    """The names of the schema arguments of `overload` whose numbers are scalar arguments."""
    return SCALAR_ARGUMENTS.get(base_name(overload), frozenset())
