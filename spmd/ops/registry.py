"""The table of lowering rules: aten overload -> pure function of JAX arrays. Each op family has a
file of rules.

Also the results that torch promises, the arguments that are operands of a program, and the ops
without a rule.
"""

import functools
import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch._ops import OpOverload
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promote

# Schema arguments for the device, layout and memory of a tensor, not for its values: rules do not
# receive them.
PLACEMENT_ARGUMENTS = frozenset(
    {"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"}
)


Function = Callable[..., Any]  # of arrays, as a rule is


@dataclass(frozen=True, slots=True)
class Rule:
    """One lowering rule and how its operands are prepared (see `lower`).

    opaque: the rule is a user's, identified only by its number in this process.
    """

    function: Function
    promote: Promote | None
    wants_returns: bool
    wants_draw: bool
    opaque: bool = True
    serial: int = field(default_factory=itertools.count().__next__, init=False)

    @property
    def encoded(self) -> str:
        return f"rule {self.serial}"


# An op without a rule is recorded as torch's decomposition of it (`core.record.resolve`). Rules are
# for ops of which a layer of a model consists, and for those whose decomposition is none for XLA:
# it reads a value, gathers what a slice takes, or loses digits. A loss that a step computes once
# needs none.
RULES: dict[OpOverload, Rule] = {}


def lower(
    *overloads: OpOverload,
    promote: Promote | None = None,
    opaque: bool = False,
    empty: bool = False,
    **static: object,
) -> Callable[[Function], Function]:
    """Registers a function as the lowering rule of one or more aten overloads.

    The function's parameters are the schema's, in its order (`from` is written `from_`), without
    those that place a tensor (device, layout, pin_memory, memory_format, non_blocking, generator).
    Parameters with a default may be absent from the schema: overloads of one op share a rule. It
    receives jax arrays for tensors, lists of them for tensor lists, `None` for an absent optional,
    numpy dtypes for dtypes, Python values for static arguments, 0-d jax arrays for scalar
    arguments. It returns one array, or a tuple for several results.

    promote: torch's type promotion, done before the rule is called: every tensor operand and scalar
    argument then has the compute dtype (float32 for bfloat16, as torch's own kernels compute) and
    the result is cast to torch's result dtype. Without it operands come as they are and the result
    must already have the right dtype.

    A parameter before `/` may have any name: the schema's name of it differs between torch's
    versions.

    A keyword-only parameter `returns` receives a `jax.ShapeDtypeStruct` (a tuple of them for
    several results) of the op's results in torch; a keyword-only `draw` receives the (seed,
    counter) pair of a random draw.

    opaque: the rule is a user's, whose programs are not kept on disk.

    empty: the results are zeros where an operand has no elements, or no result has any; the
    function is not called.

    static: further keyword arguments of the function, by which ops that share a rule differ, as the
    number of dims of a window:

        @lower(aten.avg_pool2d.default, rank=2)
        @lower(aten.avg_pool3d.default, rank=3)
    """

    def register(function: Function) -> Function:
        signature = inspect.signature(function)
        parameters = signature.parameters
        rule = (
            functools.update_wrapper(functools.partial(function, **static), function)
            if static
            else function
        )
        rule = _unless_empty(rule, "returns" in parameters) if empty else rule
        for overload in overloads:
            if not isinstance(overload, OpOverload):
                raise TypeError(
                    f"lower: expected an overload such as aten.add.Tensor, got {overload!r}"
                )
            if overload in RULES:
                first = RULES[overload].function
                raise ValueError(
                    f"{overload} has two rules: {_place(first)} and {_place(function)}"
                )
            _check_names(overload, function, signature, static)
            RULES[overload] = Rule(
                rule, promote, empty or "returns" in parameters, "draw" in parameters, opaque
            )
        return function

    return register


def _unless_empty(function: Function, wants_returns: bool) -> Function:
    """The rule, with zeros as the results of operands without elements."""

    @functools.wraps(function)
    def rule(*arguments, returns, **keywords):
        arrays = (
            value for value in (*arguments, *keywords.values()) if isinstance(value, jax.Array)
        )
        results = returns if isinstance(returns, tuple) else (returns,)
        if any(not array.size for array in arrays) or all(
            like is None or 0 in like.shape for like in results
        ):
            return zeros(returns)
        return function(*arguments, **keywords, **({"returns": returns} if wants_returns else {}))

    return rule


def present(*names: str) -> list[OpOverload]:
    """The overloads among `names`, such as "aten.cholesky.default", that this torch has.

    For ops that are added or removed within the range of torch's versions that pyproject.toml
    names: the caller adds a comment with the versions that have them. Every other op is written as
    `aten.add.Tensor`, and its absence is an error at import.
    """
    overloads = []
    for name in names:
        namespace, op, overload = name.split(".")
        packet = getattr(getattr(torch.ops, namespace), op, None)
        if packet is not None and overload in packet.overloads():
            overloads.append(getattr(packet, overload))
    return overloads


@functools.cache
def rule_arguments(overload: OpOverload) -> tuple[torch.Argument, ...]:
    """The schema arguments that a rule of `overload` receives."""
    return tuple(
        arg
        for arg in overload._schema.arguments
        if arg.name not in PLACEMENT_ARGUMENTS and not arg.is_out
    )


def _check_names(
    overload: OpOverload,
    function: Function,
    signature: inspect.Signature,
    static: dict[str, object],
) -> None:
    """Raises ValueError where a call with the schema's arguments, as dispatch makes it, does not
    reach the parameters of these names."""
    arguments, parameters = rule_arguments(overload), signature.parameters
    positional = [argument.name for argument in arguments if not argument.kwarg_only]
    named = {argument.name for argument in arguments if argument.kwarg_only} | {
        "returns",
        "draw",
    } & parameters.keys()
    try:
        result = signature.bind(*positional, **{name: name for name in named}, **static)
        fits = all(
            bound == name.removesuffix("_") or name in static
            for name, bound in result.arguments.items()
            if parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
    except TypeError:
        fits = False
    if not fits:
        names = [name.removesuffix("_") for name in parameters if name not in ("returns", "draw")]
        expected = [argument.name for argument in arguments]
        raise ValueError(
            f"{_place(function)}: parameters {names} do not match the schema of {overload}: "
            f"{expected}"
        )


def _place(function: Function) -> str:
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


# --- results: a rule's `returns`, one or a tuple, with None for no result -------------------------


def zeros(returns):
    """Zeros for each promised result."""
    if isinstance(returns, tuple):
        return tuple(map(zeros, returns))
    return None if returns is None else jnp.zeros(returns.shape, returns.dtype)


def as_promised(values, returns):
    """Each value in the promised shape and dtype; zeros for None, nothing where torch returns an
    empty tensor."""
    return tuple(
        zeros(like)
        if value is None or like is None or 0 in like.shape
        else value.reshape(like.shape).astype(like.dtype)
        for value, like in zip(values, returns, strict=True)
    )


# --- scalar arguments: the Python numbers that are operands of a program, by op name and schema
# argument

# A scalar argument may change from step to step without a new program (a learning rate, Adam's bias
# corrections). A static one is part of the program: exponents (x ** 2 is a multiplication, x ** s
# is not), norm orders, eps, dims, and the matmul family's alpha and beta. In-place, out and foreach
# forms share the entry of their functional op.
_BY_ARGUMENTS = {
    "other alpha scalar scalars": "add sub",
    "other alpha": "rsub",
    "other scalar scalars": "mul div",
    "other": "true_divide remainder fmod floor_divide eq ne lt le gt ge",
    "value": "fill masked_fill scatter index_fill",
    "fill_value": "full full_like new_full",
    "self other": "where",
    "self": "pow",
    "weight": "lerp",
    "value scalar scalars": "addcmul addcdiv",
    "min max": "clamp",
    "min scalar scalars": "clamp_min",
    "max scalar scalars": "clamp_max",
    "scalar scalars": "maximum minimum",
    "s": "scalar_tensor",
    "p": "bernoulli",
    "mean std": "normal",
    "scale zero_point": "fake_quantize_per_tensor_affine_cachemask",
    "from to": "uniform",
    "lr": "_fused_adagrad _fused_sgd",
    "lr beta1 beta2": "_fused_adam _fused_adamw",
}
SCALAR_ARGUMENTS: dict[str, frozenset[str]] = {
    name: frozenset(arguments.split())
    for arguments, names in _BY_ARGUMENTS.items()
    for name in names.split()
}


def base_name(overload: OpOverload) -> str:
    """`aten::_foreach_add_.List` -> `add`: the op whose scalar arguments and rule a derived form
    shares."""
    name = overload._schema.name.split("::")[1].removeprefix("_foreach_")
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return name


# --- ops that torch's own CPU kernel computes, whatever `config.fallback` says: no model is trained
# with them

# Why a table and no rules: a rule of one of these is a kernel of its own (a series by range, a
# pivoted factorization), fifty lines that few programs call. Gradients are torch's formulas; the
# ops in them that are as rare stand here, too.

# By the op's name in the schema.
ON_CPU = frozenset(
    f"aten::{name}"
    for name in (
        "special_airy_ai", "special_bessel_j0", "special_bessel_j1", "special_bessel_y0",
        "special_bessel_y1", "special_modified_bessel_k0", "special_modified_bessel_k1",
        "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1",
        "special_spherical_bessel_j0",
        *(
            f"special_{shifted}chebyshev_polynomial_{kind}"
            for shifted in ("", "shifted_")
            for kind in "tuvw"
        ),
        "special_hermite_polynomial_h", "special_hermite_polynomial_he",
        "special_laguerre_polynomial_l", "special_legendre_polynomial_p", "linalg_ldl_factor_ex",
        "linalg_ldl_solve", "ormqr", "triangular_solve", "histogram", "_histogramdd_bin_edges",
        "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors", "segment_reduce",
        "_segment_reduce_backward", "hash_tensor",
        *(f"fractional_max_pool{rank}d{end}" for rank in (2, 3) for end in ("", "_backward")),
        "multilabel_margin_loss_forward", "multilabel_margin_loss_backward",
    )
)  # fmt: skip
