"""Hooks on syncs, and closures that run at the end of a step."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch.utils.hooks import RemovableHandle

from ..core import ends_at_user_line, syncs


@ends_at_user_line
def on_sync(function: Callable[[syncs.Synced], Any]) -> RemovableHandle:
    """Calls a function after each sync, explicit (`sync`) or by a read, with a description of the
    sync.

    The programs have been handed to the devices and may still run. The function may read tensors;
    it is not called for the syncs that it starts itself. Its exceptions come out of the sync's
    call. The function is not called after a sync that fails, nor for the iterations of a loop that
    run without a sync.

    Returns torch's handle: `.remove()`, or a `with` block, ends it. The function gets a
    `spmd.core.run.syncs.Synced`: `.line`, `.num_tensors`, `.num_programs`, `.compiled`. Raises
    TypeError for an argument that is not callable.

    >>> import torch, spmd
    >>> seen = []
    >>> with spmd.on_sync(seen.append):
    ...     _ = (torch.ones(2, device="xla") + 1).sum().item()
    >>> seen[0].num_programs
    1
    """
    if not callable(function):
        raise TypeError(f"on_sync: expected a function of a Synced, got {function!r}")
    handle = RemovableHandle(syncs.AFTER)
    syncs.AFTER[handle.id] = function
    return handle


waiting: deque[tuple[Callable[..., Any], Sequence[Any], bool]] = deque()  # for the end of the step
running: deque[Future[Any]] = deque()
# One thread, so that the closures run in the order of their steps; it starts with the first of
# them.
_thread = ThreadPoolExecutor(1, thread_name_prefix="spmd.torch_xla.add_step_closure")


def end_step() -> None:
    """Runs the waiting closures, in order; raises the exceptions of these and of the thread's."""
    while running and running[0].done():
        running.popleft().result()
    for _ in range(len(waiting)):
        closure, args, run_async = waiting.popleft()
        if run_async:
            running.append(_thread.submit(closure, *args))
        else:
            closure(*args)


@ends_at_user_line
def add_step_closure(
    closure: Callable[..., Any], args: Sequence[Any] = (), run_async: bool = False
) -> None:
    """Calls a function once, at the end of the step: when the next `sync` (or `mark_step`) has
    started the programs.

    Reading a loss in the midst of a step is a sync, which cuts the step in two; a closure reads it
    after the step's own. Reads start no closures. Closures run in the order in which they were
    added.

    Args:
        closure: called with `args`, whose tensors have been computed by then. Its exception comes
            out of `sync`; the closures after it run at the next one.
        run_async: runs it in a thread, concurrently with the next steps, one closure after another;
            its exception comes out of a later `sync`. Do not pass tensors that the next step writes
            in place.

    Raises TypeError for a closure that is not callable, or args that are not a tuple or list.
    Source: `torch_xla.core.xla_model.add_step_closure`.

    >>> import torch, spmd
    >>> loss = torch.ones(2, device="xla").sum()
    >>> spmd.torch_xla.add_step_closure(lambda loss: print(loss.item()), args=(loss,))
    >>> spmd.sync()
    2.0
    """
    if not callable(closure):
        raise TypeError(f"add_step_closure: expected a function, got {closure!r}")
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            f"add_step_closure: expected args as a tuple, got {type(args).__name__}; one is (loss,)"
        )
    waiting.append((closure, tuple(args), run_async))
