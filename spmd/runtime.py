"""The device and its barrier, as a script sees them."""

from collections.abc import Iterable

import torch

from .annotate import on_device
from .closures import end_step
from .core import seed as seeds
from .core.engine import barrier
from .core.ir.graph import Leaf
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

    Initial values of parameters and buffers run first, in a program of their own; last the closures of
    `add_step_closure`. An error of XLA names the op and the
    user's line that made it. Source: `torch_xla.sync`.

    >>> import torch, spmd
    >>> x = torch.ones(2, device="xla") + 1
    >>> spmd.sync()
    """
    barrier.sync(wait=wait)
    end_step()


def mark_step(wait: bool = False) -> None:
    """`sync` under the name that older PyTorch/XLA scripts use."""
    sync(wait=wait)


def manual_seed(seed: int) -> None:
    """Seeds the device's random stream only; `torch.manual_seed` seeds it together with the CPU's."""
    seeds.manual_seed(seed)


def get_stablehlo(tensors: Iterable[torch.Tensor] | None = None) -> str:
    """The StableHLO of what is recorded, with its sharding attributes, before XLA has seen it; nothing runs.

    Args:
        tensors: the values wanted, views and data too (of data it is a program that returns its argument); all that is
            pending when None.

    Returns "" where nothing is pending. Raises TypeError for a tensor that is not on xla, ValueError for values on
    different devices, which no one program has. Source: `torch_xla.core.xla_model.get_stablehlo`.

    >>> import torch, spmd
    >>> "stablehlo.add" in spmd.get_stablehlo([torch.ones(2, device="xla") + 1])
    True
    """
    return barrier.stablehlo(_on_device(tensors, "get_stablehlo"))


def get_hlo(tensors: Iterable[torch.Tensor] | None = None) -> str:
    """The HLO of the same as XLA has partitioned and optimised it: one device's program. Compiled, and not run.

    What is compiled for it is neither kept nor in the ledger; the barrier compiles anew.

    Args, result and errors: as of `get_stablehlo`. Source: `jax.stages.Compiled.as_text`.

    >>> import torch, spmd
    >>> spmd.get_hlo([torch.ones(2, device="xla") + 1]).startswith("HloModule")
    True
    """
    return barrier.hlo(_on_device(tensors, "get_hlo"))


def _on_device(tensors: Iterable[torch.Tensor] | None, caller: str) -> list[XlaTensor] | None:
    if isinstance(tensors, torch.Tensor):
        raise TypeError(f"{caller}: expected a list of tensors, got one; write {caller}([tensor])")
    found = None if tensors is None else list(tensors)
    for tensor in found or ():
        if not isinstance(tensor, XlaTensor):
            raise TypeError(f"{caller}: expected tensors on xla, got one on {getattr(tensor, 'device', type(tensor))}")
    return found  # type: ignore[return-value]


def residence(tensor: torch.Tensor) -> str:
    """Where a tensor's data is, without touching it; of a view where its base's is.

    Returns:
        "host": on the CPU, to be uploaded at its first use. "pending": recorded, to be computed at the next barrier.
        "devices": in the devices' memory, or where a program that runs will put it (`get_sharding` says which memory).
        "abstract": nowhere, it is only planned with. "lost": its program failed, and the next read says why.

    Raises TypeError for a tensor that is not on xla.

    >>> import torch, spmd
    >>> x = torch.ones(2).to("xla")
    >>> y = x + 1
    >>> spmd.residence(x), spmd.residence(y)
    ('host', 'pending')
    >>> spmd.sync()
    >>> spmd.residence(x), spmd.residence(y)
    ('devices', 'devices')
    """
    value = on_device(tensor, "residence")._cell.value
    if type(value) is not Leaf:
        return "pending"
    if value.gone is not None:
        return "lost"
    if value.is_abstract:
        return "abstract"
    return "devices" if value.host is None else "host"
