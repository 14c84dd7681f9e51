"""The state of optimizers before their first step, and counters of steps as tensors, for the length
of an export."""

import inspect
from collections.abc import Sequence

import torch


def make_ready(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Gives optimizers the state that their first step makes, and counts their steps on the device
    (`capturable`), so that the count is an operand of the step and no number in it. The caller
    restores them."""
    for optimizer in optimizers:
        _begin(optimizer)
        for group in optimizer.param_groups:
            if group.get("capturable") is False and not group.get("fused"):
                group["capturable"] = True
                for parameter in group["params"]:
                    state = optimizer.state.get(parameter, {})
                    count = state.get("step")
                    if isinstance(count, torch.Tensor) and count.device.type == "cpu":
                        state["step"] = count.to("xla")


def _begin(optimizer: torch.optim.Optimizer) -> None:
    """Makes the missing state of parameters, as `step` does before it reads a gradient."""
    make = getattr(optimizer, "_init_group", None)
    if make is None:
        return
    lists = list(inspect.signature(make).parameters)[1:]
    for group in optimizer.param_groups:
        new = [p for p in group["params"] if p.requires_grad and p not in optimizer.state]
        without_gradient = [parameter for parameter in new if parameter.grad is None]
        for parameter in without_gradient:
            parameter.grad = torch.zeros_like(parameter)
        if new:
            make({**group, "params": new}, *([] for _ in lists))
        for parameter in without_gradient:
            parameter.grad = None
