"""`spmd.while_loop`: turns for as long as the data say."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from .. import seed
from ..compile.region import While, region_entry
from ..debug.check import recorded
from ..ir.graph import Node, Region, results
from ..ir.meta import dense_meta
from ..lazy.cell import BARRIER, LOCK, Cell
from ..lazy.reads import operand
from ..lazy.record import graph_task, record_here
from ..lazy.tensor import XlaTensor, wrap
from .capture import Capture
from .scan import carried, expect_functions, on_device, own_tensors


def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Sequence[Any]
) -> tuple[Any, ...]:
    """Repeats `body_fn` for as long as `cond_fn` is true, as one loop of the program that ends by its own data.

    The same as

        while cond_fn(*carried_inputs):
            carried_inputs = body_fn(*carried_inputs)

    but both functions run once in Python, and no value comes to the host. It has no gradient, as XLA cannot know how
    much to keep: a backward through it raises; take `spmd.scan` with the largest number of turns. Random draws have
    keys of the loop's own, one for each turn: another stream than the plain loop's. What the body writes in place
    outside goes from turn to turn. Without a tensor on xla among the inputs it is the plain loop.

    Args:
        cond_fn: the carried values -> a bool tensor of one element. body_fn: the carried values -> as many of the same
            structure, shapes and dtypes, as a tuple or list.
        carried_inputs: a tuple or list of pytrees of tensors on xla; what is no tensor stays the same. What `body_fn`
            writes in place into what it is given reaches what it returns and not these.

    Raises ValueError for a carry that changes its structure, shape or dtype, TypeError for a condition that is no bool
    tensor, NotImplementedError from a backward through it, `BodyError` for a value that is asked for.
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
        raise TypeError(f"spmd.while_loop: carried_inputs must be a tuple or list, got {type(carried_inputs).__name__}")
    before = tuple(carried_inputs)
    if not on_device("while_loop", before):
        while cond_fn(*before):
            before = tuple(body_fn(*own_tensors(before)))
        return before
    flat, tree = tree_flatten(before)
    places = [i for i, leaf in enumerate(flat) if type(leaf) is XlaTensor]
    name = "spmd.while_loop"
    with BARRIER, LOCK:
        with Capture(name) as capture:
            given = list(flat)
            for i in places:
                given[i] = capture.stand_in(dense_meta(flat[i].shape, flat[i].dtype))
            goes_on = cond_fn(*tree_unflatten(given, tree))
            if type(goes_on) is not XlaTensor or goes_on.dtype is not torch.bool or goes_on.numel() != 1:
                shown = list(goes_on.shape) if isinstance(goes_on, torch.Tensor) else goes_on
                raise TypeError(f"{name}: cond_fn must return a bool tensor of one element on xla, got {shown!r}")
            if capture.written() or not all(capture.is_unwritten(given[i]) for i in places):
                raise NotImplementedError(f"{name}: cond_fn writes in place; do so in body_fn")
            condition = operand(goes_on)
            own = [capture.own(leaf) if type(leaf) is XlaTensor else leaf for leaf in given]
            made = body_fn(*tree_unflatten(own, tree))
            after = carried(name, before, tuple(made) if isinstance(made, (tuple, list)) else made)
            sources = [flat[i] for i in places if flat[i].requires_grad]
            sources += [tensor for each in after for tensor in capture.reached(each)]
            written = capture.written()
            carry = [*capture.given, *(old for old, _ in written.values())]
            roots = [*(operand(tensor) for tensor in after), *(new for _, new in written.values())]
            constants = capture.outside([condition, *roots], carry)
            regions = [Region.of(wanted, [*constants, *carry]) for wanted in ([condition], roots)]
        starts = [*(operand(flat[i]) for i in places), *(old for old, _ in written.values())]
        steps, numbers = _numbers([node for region in regions for node in region.nodes])
        loop = While(regions[0], regions[1], len(constants), steps)
        operands = [*constants, *starts]
        entry = region_entry(name, loop, [value.meta for value in operands], roots)
        last = list(results(record_here(entry, operands, numbers, sys._getframe(1), graph_task())))
        for cell, value in zip(written, last[len(places) :], strict=True):
            cell.write(value)
        for i, value in zip(places, last, strict=False):
            flat[i] = wrap(value.meta, Cell(value, value.meta))
    if sources and torch.is_grad_enabled():
        made = _WithoutGradient.apply(len(places), *(flat[i] for i in places), *sources)
        for i, tensor in zip(places, made, strict=True):
            flat[i] = tensor
    recorded()
    return tuple(tree_unflatten(flat, tree))


class _WithoutGradient(torch.autograd.Function):
    """The results of a loop whose inputs have a gradient: nobody may ask for it."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = tuple(tensor.detach() for tensor in tensors[:count])
        ctx.mark_non_differentiable(*(tensor for tensor in made if not tensor.is_floating_point()))
        return made

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> Any:
        raise NotImplementedError(
            "spmd.while_loop has no gradient, as nobody knows how many turns there will be: call it under "
            "torch.no_grad(), or use spmd.scan with the largest number of turns"
        )


def _numbers(nodes: Sequence[Node]) -> tuple[tuple[int, ...], list[float | int]]:
    """The lifted numbers and how they change: the count of a draw is the turn's number."""
    steps: list[int] = []
    numbers: list[float | int] = []
    for node in nodes:
        own, own_steps = list(node.numbers), [0] * len(node.numbers)
        for at, count in node.entry.lowering.draws(node.entry):
            own[at], own[count] = seed.apart((int(own[at]), int(own[count]))), 0
            own_steps[count] = 1
        numbers += own
        steps += own_steps
    return tuple(steps), numbers
