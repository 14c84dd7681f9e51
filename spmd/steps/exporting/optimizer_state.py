"""The state of optimizers before their first step, and counters of steps as tensors, for the length of an export."""

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch


@contextlib.contextmanager
def ready(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """Gives optimizers the state that their first step makes, and counts their steps on the device (`capturable`), so
    that the count is an operand of the step and no number in it; at the end all is as it was."""
    undo = contextlib.ExitStack()
    with undo:
        for optimizer in optimizers:
            _begin(optimizer, undo)
            for group in optimizer.param_groups:
                if group.get("capturable") is False and not group.get("fused"):
                    undo.callback(group.__setitem__, "capturable", False)
                    group["capturable"] = True
                    for parameter in group["params"]:
                        _count_on_device(optimizer.state.get(parameter), undo)
        yield


def _begin(optimizer: torch.optim.Optimizer, undo: contextlib.ExitStack) -> None:
    """Makes the missing state of parameters, as `step` does before it reads a gradient."""
    make = getattr(optimizer, "_init_group", None)
    if make is None:
        return
    has = set(optimizer.state)
    for group in optimizer.param_groups:
        new = [one for one in group["params"] if one.requires_grad and one not in has]
        none = [one for one in new if one.grad is None]
        if not new:
            continue
        for parameter in none:
            parameter.grad = torch.zeros_like(parameter)
        try:
            lists = list(inspect.signature(make).parameters)[1:]
            make({**group, "params": new}, *([] for _ in lists))
        finally:
            for parameter in none:
                parameter.grad = None
        for parameter in new:
            undo.callback(optimizer.state.pop, parameter, None)


def _count_on_device(state: Any, undo: contextlib.ExitStack) -> None:
    count = None if state is None else state.get("step")
    if isinstance(count, torch.Tensor) and count.device.type == "cpu":
        undo.callback(state.__setitem__, "step", count)
        state["step"] = count.to("xla")
