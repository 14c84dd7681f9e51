"""`spmd.scan`: a function applied to slices of tensors in sequence, recorded once."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from ..core import XlaTensor, ends_at_user_line, tensor_meta
from .gradient import Tensors
from .loop import ScanInput, run_loop
from .recompute import checkpoint_policies
from .recompute.recompute import recomputed


@ends_at_user_line
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
    """Applies a function to the slices of `xs` in sequence, as one loop of the program: (carry,
    stacked ys).

    The same as

        carry, ys = init, []
        for x in xs:                     # slices along `dim`, of every tensor in the pytree
            carry, y = fn(carry, x)
            ys.append(y)
        return carry, torch.stack(ys)    # of every tensor in the pytree

    but `fn` runs once in Python, and XLA compiles it once, whatever the trip count. Gradients reach
    `init`, `xs` and tensors that `fn` closes over; backward is a loop, too, which reads the values
    that autograd saved in each iteration, or those that `policy` names, and recomputes the rest.
    Random draws are those of the Python loop. A tensor from outside that `fn` writes in place (a
    buffer) is part of the carry. Without a tensor on xla among the arguments, and inside
    `torch.func.vmap` and `torch.func.grad`, this is the Python loop.

    Args:
        fn: (carry, x) -> (carry, y). The carry keeps its structure, shapes and dtypes; y may be any
            pytree of tensors (and None). It must not read values (`.item()`) nor write in place
            into `x`; it may write in place into the carry, which reaches its results and not
            `init`.
        init: a pytree of tensors; anything else in it stays the same in each iteration.
        xs: a pytree of tensors of the same size along `dim`; None where `length` gives the trip
            count.
        dim: the dim that is sliced in `xs` and stacked in the ys. reverse: the last slice comes
            first; the ys keep the order of `xs`.
        length: the trip count. policy: as in `spmd.scan_layers`.

    Raises ValueError for xs that differ in length and for a carry that changes its structure, shape
    or dtype, TypeError where only some tensors are on xla, `BodyError` (a RuntimeError) for a read
    of a value, NotImplementedError for a gradient of the gradient.
    Source: `torch._higher_order_ops.scan`, `torch_xla.experimental.scan`, `jax.lax.scan`.

    >>> import torch, spmd
    >>> rows = torch.arange(4.0).to("xla").requires_grad_()
    >>> total, sums = spmd.scan(
    ...     lambda carry, x: (carry + x, carry * x), torch.zeros((), device="xla"), rows
    ... )
    >>> total.item(), sums.tolist()
    (6.0, [0.0, 0.0, 2.0, 9.0])
    >>> total.backward()
    >>> rows.grad.tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    expect_functions("scan", fn=fn)
    iterations = _num_iterations(xs, dim, length)
    fn = with_policy(fn, policy, "scan")
    if not on_device("scan", (init, xs)):
        return _plain(fn, init, xs, dim, reverse, iterations)
    y: Any = None

    def body(carry: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
        nonlocal y
        result = fn(refilled(init, carry), refilled(xs, rows))
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(
                f"spmd.scan: fn must return a pair (carry, y), got {type(result).__name__}"
            )
        after, y = result
        ys = result_tensors("spmd.scan: y must hold", y)
        return carried("spmd.scan", init, after), ys

    rows_first = (
        tensor if dim in (0, -tensor.dim()) else tensor.movedim(dim, 0) for tensor in tensors_of(xs)
    )
    inputs = [ScanInput([tensor], is_stack=True) for tensor in rows_first]
    last, stacks, _ = run_loop(
        "spmd.scan", body, tensors_of(init), inputs, iterations, reverse=reverse
    )
    return refilled(init, last), refilled(y, [stack.movedim(0, dim) for stack in stacks])


# The values of an iteration that are saved for its backward.
Policy = str | checkpoint_policies.Policy | Callable[..., Any] | Sequence[Any] | None


def with_policy(function: Callable[..., Any], policy: Policy, caller: str) -> Callable[..., Any]:
    """Returns the function with a policy of the values saved for its backward; None: all that
    autograd saves."""
    if policy is None:
        return function
    if isinstance(policy, (str, checkpoint_policies.Policy)):
        # The inner partial hides the function's closure: a recomputation would hold back the
        # tensors in it.
        return functools.partial(
            recomputed, checkpoint_policies.as_policy(policy, caller), functools.partial(function)
        )
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return functools.partial(checkpoint, function, use_reentrant=False, context_fn=contexts)


def expect_functions(caller: str, **functions: Any) -> None:
    """Raises TypeError for an argument that is not callable."""
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(f"spmd.{caller}: {name} must be a function, got {function!r}")


def tensors_of(tree: Any) -> list[Any]:
    """Returns the tensors of a pytree."""
    return [value for value in tree_leaves(tree) if isinstance(value, torch.Tensor)]


def result_tensors(what_must: str, tree: Any) -> Tensors:
    """Returns the tensors of a function's result, which may hold None; a TypeError begins with
    `what_must`."""
    values = [value for value in tree_leaves(tree) if value is not None]
    for value in values:
        if not isinstance(value, XlaTensor):
            raise TypeError(f"{what_must} tensors on xla (or None), got {value!r}")
    return values


def refilled(tree: Any, tensors: Iterable[Any]) -> Any:
    """Returns a pytree with other tensors in place of its own."""
    queue = iter(tensors)
    return tree_map(lambda value: next(queue) if isinstance(value, torch.Tensor) else value, tree)


def own_tensors(tree: Any) -> Any:
    """Returns a pytree with copies of its tensors, which a body may write in place."""
    return refilled(tree, [tensor.clone() for tensor in tensors_of(tree)])


def on_device(name: str, tree: Any) -> bool:
    """True if tensors among these are on xla; TypeError where only some are.

    False inside a transform of torch.func (vmap, grad), which wraps tensors: its ops are recorded
    one by one.
    """
    if torch._C._are_functorch_transforms_active():
        return False
    tensors = tensors_of(tree)
    ours = [tensor for tensor in tensors if isinstance(tensor, XlaTensor)]
    if ours and len(ours) < len(tensors):
        foreign_tensor = next(tensor for tensor in tensors if not isinstance(tensor, XlaTensor))
        raise TypeError(
            f"spmd.{name}: expected all tensors on xla, got one of shape "
            f"{list(foreign_tensor.shape)} on "
            f'{foreign_tensor.device}; move it with .to("xla") first'
        )
    return bool(ours)


def carried(name: str, carry: Any, after: Any) -> Tensors:
    """Returns the tensors of a carry after an iteration; ValueError where it differs from the carry
    before."""
    old, tree = tree_flatten_with_path(carry)
    new, new_tree = tree_flatten(after)
    if tree != new_tree:
        raise ValueError(f"{name}: the carry goes in as {tree} and comes out as {new_tree}")
    for (path, tensor), value in zip(old, new, strict=True):
        entry = f"{name}: the carry{keystr(path)}"
        if not isinstance(tensor, XlaTensor):
            if value is not tensor and value != tensor:
                raise ValueError(
                    f"{entry} is no tensor and must stay {tensor!r}, but an iteration returns "
                    f"{value!r}"
                )
        elif not isinstance(value, XlaTensor):
            raise TypeError(
                f"{entry} must stay a tensor on xla, but an iteration returns {value!r}"
            )
        elif (tensor.shape, tensor.dtype) != (value.shape, value.dtype):
            raise ValueError(
                f"{entry} goes in as {tensor_meta(tensor)!r} and comes out as "
                f"{tensor_meta(value)!r}; an iteration must return the shape and dtype that it "
                "receives"
            )
    return [
        value for (_, tensor), value in zip(old, new, strict=True) if isinstance(tensor, XlaTensor)
    ]


def _num_iterations(xs: Any, dim: int, length: int | None) -> int:
    names = {} if length is None else {length: "length"}
    for path, value in tree_flatten_with_path(xs)[0]:
        if isinstance(value, torch.Tensor):
            if not -value.dim() <= dim < value.dim():
                raise ValueError(
                    f"spmd.scan: xs{keystr(path)} of shape {list(value.shape)} has no dim {dim}"
                )
            names.setdefault(value.shape[dim], f"xs{keystr(path)}")
    if len(names) != 1:
        lengths = (
            ", ".join(f"{name} has {size}" for size, name in names.items())
            or "no tensor in xs and no length"
        )
        raise ValueError(f"spmd.scan: expected one length of all xs along dim {dim}, got {lengths}")
    return next(iter(names))


def _plain(
    fn: Any, init: Any, xs: Any, dim: int, reverse: bool, iterations: int
) -> tuple[Any, Any]:
    """The same as a loop in Python."""
    carry, ys = init, []
    for iteration in reversed(range(iterations)) if reverse else range(iterations):
        x = refilled(xs, [tensor.select(dim, iteration) for tensor in tensors_of(xs)])
        carry, y = fn(own_tensors(carry), x)
        ys.append(y)
    if not ys:
        raise ValueError(
            "spmd.scan: xs are empty, and without an iteration on the CPU the shape of y is not "
            "known"
        )
    ys = ys[::-1] if reverse else ys
    return carry, tree_map(
        lambda *parts: None if parts[0] is None else torch.stack(parts, dim), *ys
    )
