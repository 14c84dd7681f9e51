"""Transfers to the host: the check before a read or an op on the host, and the context that forbids
both."""

import sys
from contextlib import AbstractContextManager
from types import FrameType

from ...base import forking
from ...base.state import PerThread
from ...graph.source import is_library, user_line

is_forbidden = PerThread(False)  # whether the thread is in a `no_host_transfer` block


def no_host_transfer() -> AbstractContextManager[None]:
    """A context in which nothing may leave the device: a call that takes data to the host raises at
    the user's line.

    Forbidden are reads of values (`item`, `tolist`, `bool`, `cpu`, `numpy`, `print`, the checks of
    `torch.linalg`) and ops that run on the host (`nonzero`, `masked_select`, a boolean index, the
    CPU fallback). Host data may still go to the device. Outside of the context they are counted:
    `spmd.metrics.counter("host_reads")` and `("host_ops")`. It holds for the calling thread and may
    be nested. The call itself raises RuntimeError.

    >>> import torch, spmd
    >>> x = torch.ones(3, device="xla")
    >>> with spmd.no_host_transfer():
    ...     total = x.sum()
    >>> total.item()
    3.0
    """
    return is_forbidden.held(True)


def leaving(call: str, description: object) -> None:
    """Checks that `call` may take the described value to the host; raises RuntimeError inside
    `no_host_transfer`."""
    forking.check()
    if is_forbidden.value:
        raise RuntimeError(
            f"no_host_transfer: {_method() or call} would take {description} to the host, at "
            f"{user_line()}. Keep it on the device (torch.where in place of a branch or a boolean "
            "index, a sum that is read after the block), or move the call out of the block."
        )


def _method() -> str | None:
    """Returns the Python method of a tensor that the user called (`tolist`, `__repr__`), or
    None."""
    frame: FrameType | None = sys._getframe(2)
    outermost = None
    while frame is not None and is_library(frame.f_code):
        outermost, frame = frame.f_code, frame.f_back
    is_tensor = outermost is not None and outermost.co_filename.endswith(
        ("record/tensor.py", "torch/_tensor.py")
    )
    return outermost.co_name if is_tensor and outermost is not None else None
