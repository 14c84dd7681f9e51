"""torch's own control flow on the device: `torch.cond`, `while_loop`, `scan` and `map` as ours.

torch compiles the function around such an op before it calls the op; `install` takes that out of the way
(`backend.compiled`). What is below is the op's kernel for the device, above autograd.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch._C import DispatchKey
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from ..lazy.tensor import XlaTensor
from .cond import cond
from .scan import scan
from .while_loop import while_loop

Function = Callable[..., Any]


def _cond(pred: Any, true_fn: Function, false_fn: Function, operands: Sequence[Any]) -> Any:
    return cond(pred, true_fn, false_fn, tuple(operands))


def _while_loop(cond_fn: Function, body_fn: Function, carried: Sequence[Any], additional: Sequence[Any]) -> Any:
    tree: Any = None

    def body(*values: Any) -> tuple[Any, ...]:
        nonlocal tree
        made, tree = tree_flatten(body_fn(*values, *additional))
        return tuple(made)

    last = while_loop(lambda *values: cond_fn(*values, *additional), body, tuple(carried))
    return tree_unflatten(last, tree)


def _scan(combine_fn: Function, init: Sequence[Any], xs: Sequence[Any], additional_inputs: Sequence[Any]) -> Any:
    tree: Any = None

    def turn(carry: list[Any], row: list[Any]) -> tuple[list[Any], Any]:
        nonlocal tree
        after, y = combine_fn(*carry, *row, *additional_inputs)
        tree = tree_flatten(after)[1]
        return tree_leaves(after), y

    last, ys = scan(turn, list(init), list(xs))
    return tree_unflatten(last, tree), ys


def _map(f: Function, xs: Sequence[Any], pos_args: Sequence[Any], mutated_arg_indices: str = "") -> Any:
    # What a body writes in place is found by Dynamo, and named from torch 2.15 on; without Dynamo that is nothing.
    assert not mutated_arg_indices
    return scan(lambda carry, row: ((), f(*row, *pos_args)), (), list(xs))[1]


for _op, _kernel in ((cond_op, _cond), (while_loop_op, _while_loop), (scan_op, _scan), (map_impl, _map)):
    for _key in (DispatchKey.AutogradPrivateUse1, XlaTensor):  # the latter in inference mode
        _op.py_impl(_key)(_kernel)
