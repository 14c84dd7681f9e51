"""The functions of `torch_xla._XLAC`, PyTorch/XLA's C++ module, that its users' scripts and tests
call."""

from collections.abc import Sequence

import torch

from ...core import Sharding, syncs
from ...tensors.annotate import mark_sharding, on_device
from .sharding_spec import ShardingType

Tensors = Sequence[torch.Tensor]


def _get_xla_sharding_spec(tensor: torch.Tensor) -> str:
    """The sharding as GSPMD's text; "" where there is none, or for a tensor that is not on xla.

    >>> import torch, spmd
    >>> spmd.torch_xla.xlac._get_xla_sharding_spec(torch.ones(2, device="xla"))
    ''
    """
    return getattr(tensor, "sharding_spec", "")


def _get_xla_sharding_specs(tensors: Tensors) -> list[str]:
    """The shardings as GSPMD's texts.

    >>> import spmd
    >>> spmd.torch_xla.xlac._get_xla_sharding_specs([])
    []
    """
    return [_get_xla_sharding_spec(tensor) for tensor in tensors]


def _get_xla_sharding_type(tensor: torch.Tensor) -> ShardingType | None:
    """The kind of the sharding; None where there is none.

    >>> import torch, spmd
    >>> spmd.torch_xla.xlac._get_xla_sharding_type(torch.ones(2, device="xla"))
    """
    return getattr(tensor, "sharding_type", None)


def _xla_mark_sharding(tensor: torch.Tensor, sharding: Sharding) -> None:
    """Shards a tensor by the result of `mesh.get_op_sharding(spec)`.

    >>> import torch, spmd
    >>> mesh, x = spmd.Mesh([0], (1,), ("data",)), torch.ones(2, device="xla")
    >>> spmd.torch_xla.xlac._xla_mark_sharding(x, mesh.get_op_sharding(("data",)))
    >>> x.mesh_shape
    (1,)
    """
    mark_sharding(tensor, sharding)


def _get_xla_tensors_hlo(tensors: Tensors) -> str:
    """The HLO of these values with its sharding attributes, before XLA's passes; nothing runs.

    `spmd.get_hlo` has it after them: one device's program.

    >>> import torch, spmd
    >>> "HloModule" in spmd.torch_xla.xlac._get_xla_tensors_hlo([torch.ones(2, device="xla") + 1])
    True
    """
    return syncs.stablehlo([on_device(tensor, "_get_xla_tensors_hlo") for tensor in tensors], "hlo")


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """A number that is the same for tensors of one storage, and another for others that are alive.

    >>> import torch, spmd
    >>> x = torch.ones(2, 2, device="xla")
    >>> spmd.torch_xla.xlac._xla_get_tensor_id(x) == spmd.torch_xla.xlac._xla_get_tensor_id(x[0])
    True
    """
    # Savers of Hugging Face ask for what `__tensor_flatten__` names, too, which is no tensor but
    # has the same address.
    return tensor.untyped_storage().data_ptr()
