"""`spmd.scan`: a function over the rows of tensors, recorded once."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_leaves, tree_map, tree_unflatten
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from .. import checkpoint_policies
from ..backend.checkpoint import remat
from ..lazy.tensor import XlaTensor
from .loop import Rows, Tensors, run_loop


def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    *,
    dim: int = 0,
    reverse: bool = False,
    length: int | None = None,
    policy: "Policy" = None,
) -> tuple[Any, Any]:
    """Applies a function to the rows of `xs` one after the other, as one loop of the program: (carry, stacked ys).

    The same as

        carry, ys = init, []
        for x in xs:                     # rows along `dim`, of every tensor in the pytree
            carry, y = fn(carry, x)
            ys.append(y)
        return carry, torch.stack(ys)    # of every tensor in the pytree

    but `fn` runs once in Python, and XLA compiles it once, whatever the number of rows. Gradients reach `init`, `xs`
    and what `fn` closes over; backward is a loop, too, which gets what autograd saved of each turn, or what
    `policy` says, and computes the rest again. Random draws are those of the plain loop.
    What `fn` writes in place outside (a buffer) goes from turn to turn. Without a tensor on xla among the arguments it
    is the plain loop.

    Args:
        fn: (carry, x) -> (carry, y). The carry keeps its structure, shapes and dtypes; y may be any pytree of tensors
            (and None). It must not ask for values (`.item()`) nor write in place into `x`; the carry is the body's own:
            what it writes in place into it reaches what it returns and not `init`.
        init: a pytree of tensors; what is no tensor in it stays the same in each turn.
        xs: a pytree of tensors of the same size along `dim`; None where `length` says how many turns there are.
        dim: along which rows lie, in `xs` and in the ys. reverse: the last row comes first; the ys lie as the rows do.
        length: the number of turns. policy: as in `spmd.scan_layers`.

    Raises ValueError for rows that differ in number and for a carry that changes its structure, shape or dtype,
    TypeError for tensors that are not on xla beside some that are, `BodyError` (a RuntimeError) for a value that is
    asked for, NotImplementedError for a gradient of the gradient.
    Source: `torch._higher_order_ops.scan`, `torch_xla.experimental.scan`, `jax.lax.scan`.

    >>> import torch, spmd
    >>> rows = torch.arange(4.0).to("xla").requires_grad_()
    >>> total, sums = spmd.scan(lambda carry, x: (carry + x, carry * x), torch.zeros((), device="xla"), rows)
    >>> total.item(), sums.tolist()
    (6.0, [0.0, 0.0, 2.0, 9.0])
    >>> total.backward()
    >>> rows.grad.tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    expect_functions("scan", fn=fn)
    turns = _num_turns(xs, dim, length)
    fn = with_policy(fn, policy, "scan")
    if not on_device("scan", (init, xs)):
        return _plain(fn, init, xs, dim, reverse, turns)
    flat_init, tree = tree_flatten(init)
    flat_xs, xs_tree = tree_flatten(xs)
    places = [i for i, leaf in enumerate(flat_init) if type(leaf) is XlaTensor]
    rows = [_rows(leaf, dim) for leaf in flat_xs if type(leaf) is XlaTensor]
    ys_tree: Any = None
    tensor_places: list[int] = []
    flat_ys: list[Any] = []

    def body(carry: Tensors, row: Tensors) -> tuple[Tensors, Tensors]:
        nonlocal ys_tree, tensor_places, flat_ys
        given, queue = list(flat_init), iter(row)
        for place, tensor in zip(places, carry, strict=True):
            given[place] = tensor
        x = [next(queue) if type(leaf) is XlaTensor else leaf for leaf in flat_xs]
        made = fn(tree_unflatten(given, tree), tree_unflatten(x, xs_tree))
        if not isinstance(made, tuple) or len(made) != 2:
            raise TypeError(f"spmd.scan: fn must return a pair (carry, y), got {type(made).__name__}")
        flat_ys, ys_tree = tree_flatten(made[1])
        tensor_places = [i for i, leaf in enumerate(flat_ys) if leaf is not None]
        return carried("spmd.scan", init, made[0]), [_row_of(flat_ys[i]) for i in tensor_places]

    last, stacks, _ = run_loop("spmd.scan", body, [flat_init[i] for i in places], rows, turns, reverse=reverse)
    final = list(flat_init)
    for place, tensor in zip(places, last, strict=True):
        final[place] = tensor
    ys = list(flat_ys)
    for place, stack in zip(tensor_places, stacks, strict=True):
        ys[place] = stack.movedim(0, dim)
    return tree_unflatten(final, tree), tree_unflatten(ys, ys_tree)


# What of a turn is kept for its backward.
Policy = str | checkpoint_policies.Policy | Callable[..., Any] | Sequence[Any] | None


def with_policy(function: Callable[..., Any], policy: Policy, caller: str) -> Callable[..., Any]:
    """The function, of which so much is kept for its backward pass; None: all that autograd saves."""
    if policy is None:
        return function
    if isinstance(policy, (str, checkpoint_policies.Policy)):
        chosen = checkpoint_policies.as_policy(policy, caller)
        return remat(lambda *args, **kwargs: function(*args, **kwargs), policy=chosen)
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return functools.partial(checkpoint, function, use_reentrant=False, context_fn=contexts)


def expect_functions(caller: str, **functions: Any) -> None:
    """TypeError for an argument that must be called and cannot be."""
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(f"spmd.{caller}: {name} must be a function, got {function!r}")


def own_tensors(tree: Any) -> Any:
    """A pytree with copies of its tensors, which a body may write in place."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


def on_device(name: str, given: Any) -> bool:
    """Whether tensors among these are on xla; TypeError where only some are."""
    tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
    ours = [tensor for tensor in tensors if type(tensor) is XlaTensor]
    if ours and len(ours) < len(tensors):
        other = next(tensor for tensor in tensors if type(tensor) is not XlaTensor)
        raise TypeError(
            f"spmd.{name}: expected all tensors on xla, got one of shape {list(other.shape)} on {other.device}; move "
            'it with .to("xla") first'
        )
    return bool(ours)


def carried(name: str, before: Any, after: Any) -> Tensors:
    """The tensors of a carry as a turn leaves it; ValueError where it is not like the one that came in."""
    old, tree = tree_flatten_with_path(before)
    new, other = tree_flatten(after)
    if tree != other:
        raise ValueError(f"{name}: the carry goes in as {tree} and comes out as {other}")
    found = []
    for (path, one), leaf in zip(old, new, strict=True):
        place = f"the carry{keystr(path)}"
        if type(one) is not XlaTensor:
            if leaf is not one and leaf != one:
                raise ValueError(f"{name}: {place} is no tensor and must stay {one!r}, but a turn makes it {leaf!r}")
            continue
        if type(leaf) is not XlaTensor:
            raise TypeError(f"{name}: {place} must stay a tensor on xla, but a turn makes it {leaf!r}")
        if (one.shape, one.dtype) != (leaf.shape, leaf.dtype):
            raise ValueError(
                f"{name}: {place} goes in as {one._meta!r} and comes out as {leaf._meta!r}; a turn must carry on what "
                "it is given"
            )
        found.append(leaf)
    return found


def _rows(tensor: Any, dim: int) -> Rows:
    return Rows([tensor if dim in (0, -tensor.dim()) else tensor.movedim(dim, 0)], is_whole=True)


def _row_of(leaf: Any) -> XlaTensor:
    if type(leaf) is not XlaTensor:
        raise TypeError(f"spmd.scan: y must hold tensors on xla (or None), got {leaf!r}")
    return leaf


def _num_turns(xs: Any, dim: int, length: int | None) -> int:
    found = {} if length is None else {length: "length"}
    for path, leaf in tree_flatten_with_path(xs)[0]:
        if isinstance(leaf, torch.Tensor):
            if not -leaf.dim() <= dim < leaf.dim():
                raise ValueError(f"spmd.scan: xs{keystr(path)} of shape {list(leaf.shape)} has no dim {dim}")
            found.setdefault(leaf.shape[dim], f"xs{keystr(path)}")
    if len(found) != 1:
        what = ", ".join(f"{name} has {size}" for size, name in found.items()) or "no tensor in xs and no length"
        raise ValueError(f"spmd.scan: expected rows of one number, got {what}")
    return next(iter(found))


def _plain(fn: Any, init: Any, xs: Any, dim: int, reverse: bool, turns: int) -> tuple[Any, Any]:
    """The loop in Python."""
    flat_xs, tree = tree_flatten(xs)
    carry, found = init, []
    for turn in reversed(range(turns)) if reverse else range(turns):
        row = [leaf.select(dim, turn) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat_xs]
        carry, y = fn(own_tensors(carry), tree_unflatten(row, tree))
        found.append(tree_flatten(y))
    if not found:
        raise ValueError("spmd.scan: no rows; a plain loop cannot know what y is like")
    found = found[::-1] if reverse else found
    stacks = [
        None if parts[0] is None else torch.stack(parts, dim)
        for parts in zip(*(leaves for leaves, _ in found), strict=True)
    ]
    return carry, tree_unflatten(stacks, found[0][1])
