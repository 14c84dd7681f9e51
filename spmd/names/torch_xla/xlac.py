"""The functions of `torch_xla._XLAC`, PyTorch/XLA's C++ module, that its users' scripts and tests
call."""

import hashlib
from collections.abc import Sequence

import torch

from ...core import Sharding, storage_of, syncs
from ...tensors.annotate import mark_sharding, on_device
from ...tensors.runtime import get_hlo, residence
from .script_tools import check_env_flag
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

    With XLA_DUMP_POST_OPTIMIZATIONS=1 that of `spmd.get_hlo`, after them: one device's program.

    >>> import torch, spmd
    >>> "HloModule" in spmd.torch_xla.xlac._get_xla_tensors_hlo([torch.ones(2, device="xla") + 1])
    True
    """
    if check_env_flag("XLA_DUMP_POST_OPTIMIZATIONS"):
        return get_hlo(tensors)
    return syncs.stablehlo([on_device(tensor, "_get_xla_tensors_hlo") for tensor in tensors], "hlo")


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """A number that is the same for tensors of one storage, and another for others that are alive.

    >>> import torch, spmd
    >>> x = torch.ones(2, 2, device="xla")
    >>> spmd.torch_xla.xlac._xla_get_tensor_id(x) == spmd.torch_xla.xlac._xla_get_tensor_id(x[0])
    True
    """
    return tensor.untyped_storage().data_ptr()


def _get_graph_hash(tensors: Tensors) -> bytes:
    """A digest of the program of these values: equal for equal graphs.

    >>> import torch, spmd
    >>> x = torch.ones(2, device="xla")
    >>> hashes = [spmd.torch_xla.xlac._get_graph_hash([x + y]) for y in (x, x, x * 2)]
    >>> hashes[0] == hashes[1], hashes[0] == hashes[2]
    (True, False)
    """
    values = [on_device(tensor, "_get_graph_hash") for tensor in tensors]
    return hashlib.sha256(syncs.stablehlo(values).encode()).digest()


def _get_xla_tensor_debug_info(tensor: torch.Tensor) -> str:
    """Lines of a tensor's number, shape, sharding, the op that makes it and where its data is.

    >>> import torch, spmd
    >>> info = spmd.torch_xla.xlac._get_xla_tensor_debug_info(torch.ones(2, device="xla") + 1)
    >>> "XLA Shape: f32[2]{0}" in info, "IR: [] aten::add" in info, "XLAData: None" in info
    (True, True, True)
    """
    if tensor.device.type != "xla":
        return "Not a XLATensor\n"
    place, shape = residence(tensor), _xla_shape(tensor)
    lines = [
        "XLATensor {",
        f"TensorID: {_xla_get_tensor_id(tensor)}",
        "Device: SPMD:0",
        f"XLA Shape: {shape}",
        f"ShardingSpec: {_get_xla_sharding_spec(tensor) or None}",
        f"IR: {_op(tensor)}",
        f"XLAShardedData: {{ Data Shape: {shape} }}" if place == "devices" else "XLAData: None",
        f"Tensor on host: {f'with size {[*tensor.shape]}' if place == 'host' else None}",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _op(tensor: torch.Tensor) -> str | None:
    """The op that makes a pending value, as "[] aten::add"."""
    value = storage_of(on_device(tensor, "_get_xla_tensor_debug_info")).value
    op = getattr(getattr(value, "node", value), "op", None)  # data has none
    if op is None:
        return None
    return f"[] {'::'.join(op.name.split('.')[:2])}, xla_shape={_xla_shape(tensor)}"


def _xla_shape(tensor: torch.Tensor) -> str:
    """A shape as XLA writes it: "f32[2,3]{1,0}"."""
    dtype, bits = tensor.dtype, tensor.dtype.itemsize * 8
    integer = f"{'s' if str(dtype)[6] == 'i' else 'u'}{bits}"
    name = f"c{bits}" if dtype.is_complex else f"f{bits}" if dtype.is_floating_point else integer
    name = {torch.bool: "pred", torch.bfloat16: "bf16"}.get(dtype, name)
    sizes, order = ",".join(map(str, tensor.shape)), ",".join(map(str, range(tensor.dim())[::-1]))
    return f"{name}[{sizes}]{{{order}}}"
