"""An optimizer's state made before its first step, so that there are tensors to load into."""

import torch

from ...core import ends_at_user_line


@ends_at_user_line
def prime_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Makes the state of an optimizer that has taken no step, by a step of zero gradients; returns
    the optimizer.

    Parameters keep their values. The state is that after such a step (counts are 1): load a
    checkpoint into it, of `torch.distributed.checkpoint` or of PyTorch/XLA. Nothing is computed for
    what is loaded before the next sync. `CheckpointManager.restore` needs none of it.

    Raises ValueError where gradients are there already: they would be lost. Source:
    `torch_xla.experimental.distributed_checkpoint.prime_optimizer`.

    >>> import torch, spmd
    >>> model = torch.nn.Linear(4, 2, device="xla")
    >>> optimizer = spmd.checkpoint.prime_optimizer(torch.optim.AdamW(model.parameters()))
    >>> sorted(optimizer.state[model.weight])
    ['exp_avg', 'exp_avg_sq', 'step']
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if optimizer.state:
        return optimizer
    if any(parameter.grad is not None for parameter in parameters):
        raise ValueError(
            "prime_optimizer: expected parameters without gradients; call optimizer.zero_grad() "
            "first"
        )
    values = [parameter.detach().clone() for parameter in parameters]
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer.step()
    finally:
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                parameter.copy_(value)
    return optimizer
