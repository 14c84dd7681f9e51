"""torch's higher-order ops without dynamo: torch traces the code around such an op, which the device records itself."""

import sys
import threading
from types import FunctionType
from typing import Any

import torch
from torch._higher_order_ops import utils
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..core import Patch, XlaTensor, patch_when_imported


def _join_control_flow() -> None:
    """Has torch call the ops of `torch.cond` and its like directly where a tensor of the device is among their
    arguments."""
    if not hasattr(utils, "_hop_compile_and_call"):  # torch 2.11, where each function compiles its op itself
        return
    compiled = utils._hop_compile_and_call

    def call(fn: Any, args: Any, kwargs: Any = None) -> Any:
        if any(type(value) is XlaTensor for value in tree_flatten((args, kwargs))[0]):
            if fn.__name__ == "_cond_op_wrapper":
                args = _with_flat_operands(*args)
            return fn(*args, **(kwargs or {}))
        return compiled(fn, args, kwargs)

    utils._hop_compile_and_call = call


def _with_flat_operands(pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> tuple[Any, ...]:
    """The arguments of `torch.cond` as its op takes them: no pytrees among the operands."""
    flat, tree = tree_flatten(tuple(operands))

    def of_flat(function: Any) -> Any:
        return lambda *values: function(*tree_unflatten(values, tree))

    return pred, of_flat(true_fn), of_flat(false_fn), tuple(flat)


def _join_flex_attention() -> None:
    """Has torch's `flex_attention` take tensors of the device, and call its op directly."""
    needs = "_validate_device(query, key, value)", "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    patch_when_imported("torch.nn.attention.flex_attention", _change_flex_attention, "flex_attention on xla", *needs)


class _IsEager:
    """True in a thread's call of `flex_attention` with tensors of the device.

    In place of torch's flag for debugging, which does the same for all devices. The function itself cannot be replaced:
    programs may have imported it already.
    """

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def __bool__(self) -> bool:
        return threading.get_ident() in self.threads


def _change_flex_attention(module: Any) -> None:
    validate, is_eager = module._validate_device, _IsEager()
    flag = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"

    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        on_device = query.device.type == "xla"
        if not torch.compiler.is_dynamo_compiling():
            (is_eager.threads.add if on_device else is_eager.threads.discard)(threading.get_ident())
            if on_device and not getattr(module, flag):  # also where a program has set it and taken it back
                setattr(module, flag, is_eager)
        if not on_device:
            validate(query, key, value)

    module._validate_device = validate_device


def _join_associative_scan() -> None:
    """Has torch's `associative_scan` take tensors of the device in both modes, of which the pointwise one is CUDA's.

    The function gets another body, since programs may have imported it already.
    """
    function = sys.modules["torch._higher_order_ops.associative_scan"].associative_scan
    names = function.__globals__
    before = function.__code__
    names["_associative_scan_of_torch"] = FunctionType(before, names, function.__name__, function.__defaults__)
    # At torch's place: Dynamo traces what stands there.
    place = {"co_filename": before.co_filename, "co_firstlineno": before.co_firstlineno}
    function.__code__ = _associative_scan.__code__.replace(**place)


def _associative_scan(combine_fn, xs, dim, reverse=False, combine_mode="pointwise"):
    # Runs with the names of torch's module; it has no function of its own, which Dynamo would find here.
    for x in pytree.tree_leaves(xs):  # noqa: F821
        if combine_mode == "pointwise" and isinstance(x, torch.Tensor) and x.device.type == "xla":
            combine_mode = "generic"
    return _associative_scan_of_torch(combine_fn, xs, dim, reverse, combine_mode)  # noqa: F821


PATCHES = (
    Patch("the compiler around torch.cond", "it is an op of ours", _join_control_flow),
    Patch("the checks of `flex_attention`", "its op is one of ours", _join_flex_attention),
    Patch("`torch._higher_order_ops.associative_scan.associative_scan(combine_fn, xs, dim, reverse, combine_mode)`",
          "its pointwise mode, which is CUDA's", _join_associative_scan),
)  # fmt: skip
