"""Errors of values without data."""


class LostError(RuntimeError):
    """Raised where a tensor is read whose data was given up by a failed run."""


class RefusedError(RuntimeError):
    """Raised before a program is compiled or run, where the user has forbidden it. Recorded ops
    stay recorded: a sync elsewhere runs them."""


class AbstractError(RuntimeError):
    """Raised where a value is read or run that has no data, or is placed on devices that are not in
    this process.

    >>> import torch, spmd
    >>> x = torch.ones(4, device="xla")
    >>> try:
    ...     spmd.plan(lambda: x.sum().item())
    ... except spmd.AbstractError:
    ...     print("a plan runs nothing: return the loss instead of reading it")
    a plan runs nothing: return the loss instead of reading it
    """
