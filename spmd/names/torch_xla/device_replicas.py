"""`torch_xla.distributed.data_parallel`, and the results of several processes: with one logical
device there is one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from . import data_parallel
from .parallel_loader import MpDeviceLoader


@dataclass(eq=False)
class Context:
    """Attributes that a loop function keeps between epochs."""

    device: Any

    def getattr_or(self, name: str, defval: Any) -> Any:
        """The attribute; where it is not there, `defval` (called, where it is a function), which is
        kept."""
        if name not in self.__dict__:
            setattr(self, name, defval() if callable(defval) else defval)
        return getattr(self, name)


class DataParallel:
    """A model whose loop runs over a loader, once for each logical device: there is one.

    network: a module, or a function that makes it. Source:
    `torch_xla.distributed.data_parallel.DataParallel`.

    >>> import torch, spmd
    >>> def loop(model, loader, device, context):
    ...     return sum(model(x).shape[0] for x in loader)
    >>> model = spmd.torch_xla.device_replicas.DataParallel(torch.nn.Linear(4, 2), ["xla:0"])
    >>> model(loop, [torch.ones(3, 4), torch.ones(3, 4)])
    [6]
    """

    def __init__(self, network: Any, device_ids: Iterable[Any] | None = None, **kwargs: Any):
        module = network if isinstance(network, torch.nn.Module) else network()
        self.devices = [str(device) for device in device_ids or ()][:1] or ["xla:0"]
        self.models = [module.to(self.devices[0])]
        self._context, self._loader_kwargs = Context(torch.device(self.devices[0])), kwargs

    def __call__(
        self, loop_fn: Callable[..., Any], loader: Iterable[Any], batchdim: int = 0, **kwargs: Any
    ) -> Any:
        """Calls `loop_fn(model, loader, device, context)` and returns its result, in a list."""
        batches = MpDeviceLoader(loader, self.devices[0], **self._loader_kwargs)
        return [loop_fn(self.models[0], batches, self._context.device, self._context, **kwargs)]


def run_multiprocess(
    fn: Callable[..., Any], *args: Any, start_method: str = "spawn", **kwargs: Any
) -> dict[int, Any]:
    """Calls a function in this process, which has all devices: {0: its result}.

    start_method: has no meaning here. Source: `torch_xla._internal.pjrt.run_multiprocess`.

    >>> import spmd
    >>> spmd.torch_xla.device_replicas.run_multiprocess(abs, -3)
    {0: 3}
    """
    with data_parallel.launched(is_single=True):
        return {0: fn(*args, **kwargs)}
