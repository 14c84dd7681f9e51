"""torch's own higher-order ops on the device: `torch.cond`, `while_loop`, `scan` and `map` as ours, and others.

torch compiles the function around such an op before it calls the op; `uncompiled` prevents that. The functions below
are the op's kernels for the device, above autograd.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch._higher_order_ops.associative_scan import associative_scan_op, generic_associative_scan
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_op
from torch._higher_order_ops.flex_attention import flex_attention_backward as flex_attention_backward_op
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..core import XlaTensor
from .cond import cond
from .flex_attention import flex_attention, flex_attention_backward
from .scan import scan
from .uncompiled import PATCHES
from .while_loop import while_loop

Function = Callable[..., Any]


def _cond(pred: Any, true_fn: Function, false_fn: Function, operands: Sequence[Any]) -> Any:
    return cond(pred, true_fn, false_fn, tuple(operands))


def _while_loop(cond_fn: Function, body_fn: Function, carried: Sequence[Any], additional: Sequence[Any]) -> Any:
    tree: Any = None

    def body(*values: Any) -> tuple[Any, ...]:
        nonlocal tree
        result, tree = tree_flatten(body_fn(*values, *additional))
        return tuple(result)

    last = while_loop(lambda *values: cond_fn(*values, *additional), body, tuple(carried))
    return tree_unflatten(last, tree)


def _scan(combine_fn: Function, init: Sequence[Any], xs: Sequence[Any], additional_inputs: Sequence[Any]) -> Any:
    tree: Any = None

    def iteration(carry: list[Any], x: list[Any]) -> tuple[list[Any], Any]:
        nonlocal tree
        after, y = combine_fn(*carry, *x, *additional_inputs)
        flat, tree = tree_flatten(after)
        return flat, y

    last, ys = scan(iteration, list(init), list(xs))
    return tree_unflatten(last, tree), ys


def _map(f: Function, xs: Sequence[Any], pos_args: Sequence[Any], mutated_arg_indices: str = "") -> Any:
    # In-place writes of a body are found by Dynamo, and named from torch 2.15 on; without Dynamo there are none.
    assert not mutated_arg_indices
    return scan(lambda carry, x: ((), f(*x, *pos_args)), (), list(xs))[1]


def _associative_scan(combine_fn: Function, xs: Sequence[Any], additional_inputs: Sequence[Any]) -> Any:
    count, fixed = len(xs), (None,) * len(additional_inputs)
    rows = torch.vmap(combine_fn, in_dims=(*[0] * 2 * count, *fixed))
    return generic_associative_scan(rows, list(xs), additional_inputs=tuple(additional_inputs))


for _patch in PATCHES:
    _patch.apply()
for _op, _kernel in (
    (cond_op, _cond), (while_loop_op, _while_loop), (scan_op, _scan), (map_impl, _map),
    (associative_scan_op, _associative_scan), (flex_attention_op, flex_attention),
    (flex_attention_backward_op, flex_attention_backward),
):  # fmt: skip
    # As the other devices' autocast keys: a body's ops see autocast, an op with a body does not.
    _op.fallthrough(DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]
    for _key in (DispatchKey.AutogradPrivateUse1, XlaTensor):  # the latter in inference mode
        _op.py_impl(_key)(_kernel)
