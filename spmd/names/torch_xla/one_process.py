"""PyTorch/XLA's ways to start processes (`xmp.spawn`, `torch_xla.launch`): the function runs once,
for all devices."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...core import ends_at_user_line
from . import data_parallel
from .xla_model import is_master_ordinal


def spawn(fn: Callable[..., Any], args: Sequence[Any] = (), nprocs: int | None = None) -> None:
    """`launch` by the arguments of `xmp.spawn`: nprocs=1 is one device; all others are all devices,
    as there.

    Several processes, one a machine, are those of `spmd.initialize`. Source:
    `torch_xla.distributed.xla_multiprocessing.spawn`.

    >>> import spmd
    >>> spmd.torch_xla.one_process.spawn(print, args=("of one",))
    0 of one
    """
    launch(fn, args, debug_single_process=nprocs == 1)


@ends_at_user_line
def launch(
    fn: Callable[..., Any], args: Sequence[Any] = (), debug_single_process: bool = False
) -> None:
    """Calls `fn(0, *args)` once, in this process, as rank 0 of 1: data parallelism over all
    devices.

    Its loaders (`MpDeviceLoader`, `ParallelLoader`) join as many batches as there are devices, and
    split them over all of them. `xr.use_spmd()` ends that: such a script shards by itself.
    debug_single_process: uses one device.

    Raises TypeError where `fn` does not take the index and `args`, which come behind it. Source:
    `torch_xla.launch`.

    >>> import spmd
    >>> spmd.torch_xla.one_process.launch(print, args=("of one",))
    0 of one
    """
    try:
        inspect.signature(fn).bind(0, *args)
    except TypeError as error:
        name, call = getattr(fn, "__name__", repr(fn)), ", ".join(map(repr, (0, *args)))
        raise TypeError(
            f"launch: args={tuple(args)!r} are what {name} takes behind its index, so that the "
            f"call is {name}({call}): {error}. Write launch({name}) for a function of the index "
            "alone"
        ) from None
    except ValueError:  # a builtin without a signature
        pass
    with data_parallel.launched(is_single=debug_single_process):
        fn(0, *args)


class MpModelWrapper:
    """A model that several processes would share; here `to` moves the one that there is.

    >>> import torch, spmd
    >>> spmd.torch_xla.one_process.MpModelWrapper(torch.nn.Linear(2, 1)).to(
    ...     "xla"
    ... ).weight.device.type
    'xla'
    """

    def __init__(self, model: torch.nn.Module):
        self._model = model

    def to(self, device: Any) -> torch.nn.Module:
        """Moves the model and returns it."""
        return self._model.to(device)


class MpSerialExecutor:
    """Runs functions one process after the other: here at once.

    >>> import spmd
    >>> spmd.torch_xla.one_process.MpSerialExecutor().run(lambda: 3)
    3
    """

    def run(self, fn: Callable[[], Any]) -> Any:
        """Calls the function and returns its result."""
        return fn()


def do_on_ordinals(
    target: Callable[..., Any], data: Any = (), ordinals: Sequence[int] = (0,)
) -> Any:
    """Calls `target(*data)` where the one logical device, 0, is among the ordinals, in the first
    process.

    >>> import spmd
    >>> spmd.torch_xla.one_process.do_on_ordinals(print, ("saved",))
    saved
    """
    return target(*data) if 0 in ordinals and is_master_ordinal(local=False) else None
