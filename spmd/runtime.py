"""The device and its barrier, as a script sees them."""

from collections.abc import Iterable

import torch

from .core import seed as seeds
from .core.engine import barrier
from .core.lazy.tensor import XlaTensor
from .core.pjrt.devices import devices
from .core.pjrt.devices import simulate as simulate


def device(index: int | None = None) -> torch.device:
    """The one logical device, `xla:0`, behind which all physical devices stand.

    Raises ValueError for another index than 0.

    >>> import spmd
    >>> spmd.device()
    device(type='xla', index=0)
    """
    if index not in (None, 0):
        raise ValueError(f"device: there is one logical device, xla:0; got index {index}")
    return torch.device("xla:0")


def device_ids() -> list[int]:
    """The ids of all physical devices: 0 to n-1, those of the first process first; what a `Mesh` is made of.

    >>> import spmd
    >>> 0 in spmd.device_ids()
    True
    """
    return list(range(len(devices())))


def sync(wait: bool = False) -> None:
    """The barrier: runs everything recorded since the last one, as one program, and returns while it runs.

    Args:
        wait: return only when the devices are done.

    Initial values of parameters and buffers run first, in a program of their own. An error of XLA names the op and the
    user's line that made it. Source: `torch_xla.sync`.

    >>> import torch, spmd
    >>> x = torch.ones(2, device="xla") + 1
    >>> spmd.sync()
    """
    barrier.sync(wait=wait)


def mark_step(wait: bool = False) -> None:
    """`sync` under the name that older PyTorch/XLA scripts use."""
    barrier.sync(wait=wait)


def manual_seed(seed: int) -> None:
    """Seeds the device's random stream only; `torch.manual_seed` seeds it together with the CPU's."""
    seeds.manual_seed(seed)


def get_stablehlo(tensors: Iterable[torch.Tensor] | None = None) -> str:
    """The StableHLO of what is recorded, with its sharding attributes, before XLA has seen it; nothing runs.

    Args:
        tensors: the values wanted; all that is pending when None.

    Returns "" where nothing is pending. Source: `torch_xla.core.xla_model.get_stablehlo`.

    >>> import torch, spmd
    >>> "stablehlo.add" in spmd.get_stablehlo([torch.ones(2, device="xla") + 1])
    True
    """
    if tensors is None:
        return barrier.pending_stablehlo()
    cells = []
    for tensor in tensors:
        if not isinstance(tensor, XlaTensor):
            raise TypeError(
                f"get_stablehlo: expected tensors on xla, got one on {getattr(tensor, 'device', type(tensor))}"
            )
        cells.append(tensor._cell)
    return barrier.pending_stablehlo(cells)
