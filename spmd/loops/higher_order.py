"""torch's own higher-order ops on the device: `torch.cond`, `while_loop`, `scan` and `map` as ours,
and others.

The functions are the ops' kernels for the device, above autograd. torch compiles the function
around such an op before it calls the op: patches prevent that, and the device records the code
around it itself.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch._C import DispatchKey
from torch._higher_order_ops import utils
from torch._higher_order_ops.associative_scan import associative_scan_op, generic_associative_scan
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_op
from torch._higher_order_ops.flex_attention import (
    flex_attention_backward as flex_attention_backward_op,
)
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..core import Patch, XlaTensor, patch_when_imported, replaces
from .cond import cond
from .flex_attention import flex_attention, flex_attention_backward
from .scan import scan
from .while_loop import while_loop

Function = Callable[..., Any]


def _cond(pred: Any, true_fn: Function, false_fn: Function, operands: Sequence[Any]) -> Any:
    return cond(pred, true_fn, false_fn, tuple(operands))


def _while_loop(
    cond_fn: Function, body_fn: Function, carried: Sequence[Any], additional: Sequence[Any]
) -> Any:
    tree: Any = None

    def body(*values: Any) -> tuple[Any, ...]:
        nonlocal tree
        result, tree = tree_flatten(body_fn(*values, *additional))
        return tuple(result)

    last = while_loop(lambda *values: cond_fn(*values, *additional), body, tuple(carried))
    return tree_unflatten(last, tree)


def _scan(
    combine_fn: Function, init: Sequence[Any], xs: Sequence[Any], additional_inputs: Sequence[Any]
) -> Any:
    tree: Any = None

    def iteration(carry: list[Any], x: list[Any]) -> tuple[list[Any], Any]:
        nonlocal tree
        after, y = combine_fn(*carry, *x, *additional_inputs)
        flat, tree = tree_flatten(after)
        return flat, y

    last, ys = scan(iteration, list(init), list(xs))
    return tree_unflatten(last, tree), ys


def _map(
    f: Function, xs: Sequence[Any], pos_args: Sequence[Any], mutated_arg_indices: str = ""
) -> Any:
    # In-place writes of a body are found by Dynamo, and named from torch 2.15 on; without Dynamo
    # there are none.
    assert not mutated_arg_indices
    return scan(lambda carry, x: ((), f(*x, *pos_args)), (), list(xs))[1]


def _associative_scan(
    combine_fn: Function, xs: Sequence[Any], additional_inputs: Sequence[Any]
) -> Any:
    count, fixed = len(xs), (None,) * len(additional_inputs)
    rows = torch.vmap(combine_fn, in_dims=(*[0] * 2 * count, *fixed))
    return generic_associative_scan(rows, list(xs), additional_inputs=tuple(additional_inputs))


def _flex_attention(query: Any, *arguments: Any, **named: Any) -> tuple[Any, ...]:
    # Dynamo's tensors have shapes alone: the op is traced as torch's.
    is_fake = isinstance(query, FakeTensor)
    kernel = flex_attention_op.py_kernels[DispatchKey.Autograd] if is_fake else flex_attention
    result: tuple[Any, ...] = kernel(query, *arguments, **named)
    return result


# --- torch's functions around the ops -------------------------------------------------------------


def _join_control_flow() -> None:
    """Has torch call the ops of `torch.cond` and its like directly where a tensor of the device is
    among their arguments."""
    # torch 2.11, where each function compiles its op itself
    if not hasattr(utils, "_hop_compile_and_call"):
        return

    @replaces(utils, "_hop_compile_and_call")
    def call(compiled: Any, fn: Any, args: Any, kwargs: Any = None) -> Any:
        if any(isinstance(value, XlaTensor) for value in tree_flatten((args, kwargs))[0]):
            if fn.__name__ == "_cond_op_wrapper":
                args = _with_flat_operands(*args)
            return fn(*args, **(kwargs or {}))
        return compiled(fn, args, kwargs)


def _with_flat_operands(pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> tuple[Any, ...]:
    """The arguments of `torch.cond` as its op takes them: no pytrees among the operands."""
    flat, tree = tree_flatten(tuple(operands))

    def of_flat(function: Any) -> Any:
        return lambda *values: function(*tree_unflatten(values, tree))

    return pred, of_flat(true_fn), of_flat(false_fn), tuple(flat)


def _join_flex_attention() -> None:
    """Has torch's `flex_attention` take tensors of the device, and call its op directly."""
    needs = "_validate_device(query, key, value)", "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    patch_when_imported(
        "torch.nn.attention.flex_attention", _change_flex_attention, "flex_attention on xla", *needs
    )


class _IsEager(threading.local):
    """True in a thread's call of `flex_attention` with tensors of the device.

    In place of torch's flag for debugging, which does the same for all devices. The function itself
    cannot be replaced: programs may have imported it already.
    """

    is_on = False

    def __bool__(self) -> bool:
        return self.is_on


def _change_flex_attention(module: Any) -> None:
    validate, is_eager = module._validate_device, _IsEager()
    flag = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"

    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        on_device = query.device.type == "xla"
        if not torch.compiler.is_dynamo_compiling():
            is_eager.is_on = on_device
            # also where a program has set it and taken it back
            if on_device and not getattr(module, flag):
                setattr(module, flag, is_eager)
        if not on_device:
            validate(query, key, value)

    module._validate_device = validate_device


def _join_associative_scan() -> None:
    """Has torch's `associative_scan` take tensors of the device in both modes, of which the
    pointwise one is CUDA's.

    The function gets another body, since programs may have imported it already.
    """
    function = sys.modules["torch._higher_order_ops.associative_scan"].associative_scan
    names, code = function.__globals__, function.__code__
    names["_associative_scan_of_torch"] = FunctionType(
        code, names, function.__name__, function.__defaults__
    )
    # In torch's file and line: Dynamo traces what stands there.
    function.__code__ = _generic_associative_scan.__code__.replace(
        co_filename=code.co_filename, co_firstlineno=code.co_firstlineno
    )


def _generic_associative_scan(combine_fn, xs, dim, reverse=False, combine_mode="pointwise"):
    # Runs with the names of torch's module; it has no function of its own, which Dynamo would find
    # here.
    for x in pytree.tree_leaves(xs):  # noqa: F821
        if combine_mode == "pointwise" and isinstance(x, torch.Tensor) and x.device.type == "xla":
            combine_mode = "generic"
    return _associative_scan_of_torch(combine_fn, xs, dim, reverse, combine_mode)  # noqa: F821


PATCHES = (
    Patch("the compiler around torch.cond", "it is an op of ours", _join_control_flow),
    Patch("the checks of `flex_attention`", "its op is one of ours", _join_flex_attention),
    Patch(
        "`torch._higher_order_ops.associative_scan.associative_scan(combine_fn, xs, dim, reverse, "
        "combine_mode)`",
        "its pointwise mode, which is CUDA's",
        _join_associative_scan,
    ),
)

for _patch in PATCHES:
    _patch.apply()
for _op, _kernel in (
    (cond_op, _cond),
    (while_loop_op, _while_loop),
    (scan_op, _scan),
    (map_impl, _map),
    (associative_scan_op, _associative_scan),
    (flex_attention_op, _flex_attention),
    (flex_attention_backward_op, flex_attention_backward),
):
    # As the other devices' autocast keys: a body's ops see autocast, an op with a body does not.
    _op.fallthrough(DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]
    for _key in (DispatchKey.AutogradPrivateUse1, XlaTensor):  # the latter in inference mode
        _op.py_impl(_key)(_kernel)
