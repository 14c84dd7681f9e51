"""The CPU fallback: of ops without a rule where `config.fallback` allows it, and of the table
`ops.ON_CPU` always."""

import functools
from collections.abc import Callable

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from ....ops import ON_CPU
from ...base import counters, messages
from ...base.config import config
from ...graph.errors import AbstractError
from ...graph.source import Line, user_line
from ...run.pjrt.host import leaving
from .. import body
from ..overloads import VIEW, Args, Kwargs, kind_of, written
from ..tensor import XlaTensor

# Called after each op that ran on the CPU, with the op, the user's line, and the seconds.
after_fallback: list[Callable[[str, Line, float], None]] = []


def runs_on_cpu(func: OpOverload) -> bool:
    """True for ops of the table `ON_CPU`, and under `config.fallback` for all but views."""
    return func._schema.name in ON_CPU or (config.fallback == "cpu" and kind_of(func) is not VIEW)


def on_cpu(func: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Runs an op on the CPU, and copies its results, and what it wrote, back to the device."""
    _tell(str(func._overloadpacket))
    leaving(
        str(func), "its operands, as it has no lowering rule (spmd.register_lowering gives it one),"
    )
    counters.add_fallback(str(func))
    copy_of: dict[int, tuple[XlaTensor, torch.Tensor]] = {}

    def to_cpu(value: object) -> object:
        if isinstance(value, XlaTensor):
            # One copy per tensor, for all its uses: the op's writes are in it.
            return copy_of.setdefault(id(value), (value, value.cpu()))[1]
        return (
            torch.device("cpu")
            if isinstance(value, torch.device) and value.type == "xla"
            else value
        )

    started = counters.now()
    try:
        copies, keywords = tree_map(to_cpu, (args, kwargs))
    except (AbstractError, body.BodyError) as error:
        inside = (
            f"the body of {body.names.value[-1]}"
            if body.names.value
            else "spmd.plan and spmd.export"
        )
        raise type(error)(
            f"{func} at {user_line()} runs on the CPU, and in {inside} its operands have no value "
            "yet; give it a lowering rule with spmd.register_lowering, or take it out of there"
        ) from None
    result = func(*copies, **keywords)
    for note in after_fallback:
        note(str(func), user_line(), counters.now() - started)
    # Writes of the op to copies are repeated on the tensors of the device.
    tensor_of = {id(copy): tensor for tensor, copy in copy_of.values()}
    for target, source in zip(
        written(func, args, kwargs), written(func, copies, keywords), strict=True
    ):
        target.copy_(source)

    def to_device(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        return tensor_of[id(value)] if id(value) in tensor_of else value.to("xla")

    return tree_map(to_device, result)


@functools.cache
def _tell(op: str) -> None:
    """Prints, once an op, a line about its run on the CPU."""
    messages.say(
        f"{op} runs on the CPU; spmd.register_lowering gives it a rule, at {user_line().short()}",
        op,
    )
