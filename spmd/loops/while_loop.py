"""`spmd.while_loop`: a loop whose trip count follows from its data."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..core import XlaTensor, dense_meta, ends_at_user_line, seed
from ..core.extend import Node, Region, reads, regions
from .capture import Capture
from .gradient import Tensors, as_one_op, record, tensors, with_gradient
from .scan import carried, expect_functions, on_device, own_tensors, refilled, tensors_of


@ends_at_user_line
def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Sequence[Any]
) -> tuple[Any, ...]:
    """Repeats `body_fn` for as long as `cond_fn` is true, as one loop of the program that ends by
    its own data.

    The same as

        while cond_fn(*carried_inputs):
            carried_inputs = body_fn(*carried_inputs)

    but both functions run once in Python, and no value comes to the host. It has no gradient, as
    XLA cannot know how much to save: a backward through it raises; use `spmd.scan` with the largest
    trip count. Random draws have keys of the loop's own, one per iteration: another stream than the
    Python loop's. A tensor from outside that the body writes in place is part of the carry. Without
    a tensor on xla among the inputs this is the Python loop.

    Args:
        cond_fn: the carried values -> a bool tensor of one element. body_fn: the carried values ->
            as many of the same structure, shapes and dtypes, as a tuple or list.
        carried_inputs: a tuple or list of pytrees of tensors on xla; anything else stays the same.
            In-place writes of `body_fn` to its arguments reach its results and not these inputs.

    Raises ValueError for a carry that changes its structure, shape or dtype, TypeError for a
    condition that is no bool tensor, NotImplementedError from a backward through it, `BodyError`
    for a read of a value.
    Source: `torch._higher_order_ops.while_loop`, `jax.lax.while_loop`.

    >>> import torch, spmd
    >>> start = torch.tensor(27).to("xla"), torch.tensor(0).to("xla")
    >>> def collatz(n, steps):
    ...     return torch.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1
    >>> spmd.while_loop(lambda n, steps: n != 1, collatz, start)[1].item()
    111
    """
    expect_functions("while_loop", cond_fn=cond_fn, body_fn=body_fn)
    if not isinstance(carried_inputs, (tuple, list)):
        raise TypeError(
            "spmd.while_loop: carried_inputs must be a tuple or list, got "
            f"{type(carried_inputs).__name__}"
        )
    state = tuple(carried_inputs)
    if not on_device("while_loop", state):
        while cond_fn(*state):
            state = tuple(body_fn(*own_tensors(state)))
        return state
    name, start = "spmd.while_loop", tensors_of(state)
    with as_one_op():
        with Capture(name) as capture:
            stand_ins = [
                capture.stand_in(dense_meta(tensor.shape, tensor.dtype)) for tensor in start
            ]
            goes_on = capture.run(cond_fn, *refilled(state, stand_ins))
            if (
                not isinstance(goes_on, XlaTensor)
                or goes_on.dtype is not torch.bool
                or goes_on.numel() != 1
            ):
                shown = list(goes_on.shape) if isinstance(goes_on, torch.Tensor) else goes_on
                raise TypeError(
                    f"{name}: cond_fn must return a bool tensor of one element on xla, got "
                    f"{shown!r}"
                )
            if capture.written() or not all(map(capture.is_unwritten, stand_ins)):
                raise NotImplementedError(f"{name}: cond_fn writes in place; do so in body_fn")
            condition = reads.operand(goes_on)
            result = capture.run(body_fn, *refilled(state, map(capture.own, stand_ins)))
            after = carried(
                name, state, tuple(result) if isinstance(result, (tuple, list)) else result
            )
            sources = [tensor for tensor in start if tensor.requires_grad] + capture.reached_by(
                after
            )[1]
            written = capture.written()
            outside = [old for old, _ in written.values()]
            carry = [*capture.arguments, *outside]
            roots = [*map(reads.operand, after), *(new for _, new in written.values())]
            constants = capture.outside([condition, *roots], carry)
            bodies = [Region.of(results, [*constants, *carry]) for results in ([condition], roots)]

        def forward() -> tuple[Tensors, Tensors, list[bool]]:
            steps, numbers = _numbers([node for region in bodies for node in region.nodes])
            operands = [*constants, *map(reads.operand, start), *outside]
            loop = regions.While(bodies[0], bodies[1], len(constants), steps)
            values = record(
                regions.region_op(name, loop, [value.meta for value in operands], roots),
                operands,
                numbers,
            )
            for storage, value in zip(written, values[len(start) :], strict=True):
                storage.write(value)
            last = tensors(values[: len(start)])
            return last, [], [tensor.is_floating_point() or tensor.is_complex() for tensor in last]

        last = with_gradient(
            "", sources if torch.is_grad_enabled() else [], forward, _refuse_gradient
        )
    return tuple(refilled(state, last))


def _refuse_gradient(saved_tensors: Sequence[Any], arriving: Sequence[Any]) -> Any:
    raise NotImplementedError(
        "spmd.while_loop has no gradient, as its trip count is not known before it runs: call it "
        "under torch.no_grad(), or use spmd.scan with the largest trip count"
    )


def _numbers(nodes: Sequence[Node]) -> tuple[tuple[int, ...], list[float | int]]:
    """The scalar arguments and how they change: the count of a draw is the iteration's number."""
    steps: list[int] = []
    numbers: list[float | int] = []
    for node in nodes:
        start = len(numbers)
        numbers += node.numbers
        steps += [0] * len(node.numbers)
        for seed_index, count in node.op.draws:
            draw = int(numbers[start + seed_index]), int(numbers[start + count])
            numbers[start + seed_index], numbers[start + count] = seed.loop_seed(draw), 0
            steps[start + count] = 1
    return tuple(steps), numbers
