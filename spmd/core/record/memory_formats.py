"""Tensors that are no dense array: sparse, nested, quantized, mkldnn.

The device has none; their ops raise.
"""

from collections.abc import Callable
from typing import NoReturn

import torch


class UnsupportedLayout(NotImplementedError):
    """A tensor that the device cannot hold."""


_INSTEAD = {
    "sparse": (
        "call `.to_dense()` first (and make layers with sparse=False, which sparse gradients come "
        "from)"
    ),
    "nested": "pad them with `.to_padded_tensor(0.0)` first",
    "quantized": "call `.dequantize()` first",
    "mkldnn": "call `.to_dense()` first",
}

# The prefixes of torch's ops on such tensors, and the ops that have no particular prefix.
_PREFIXES = {
    "sparse": ("sparse_", "_sparse_", "to_sparse", "_to_sparse", "_spdiags", "_nnz", "_coalesce"),
    "nested": ("_nested_", "nested_", "_jagged_", "_padded_dense_to_jagged"),
    "quantized": (
        "quantize_",
        "quantized_",
        "q_",
        "_make_per_",
        "_empty_affine",
        "_empty_per_channel",
        "int_repr",
    ),
    "mkldnn": ("to_mkldnn", "mkldnn_"),
}
_NAMES = {
    **dict.fromkeys(
        ("indices", "_indices", "values", "_values", "crow_indices", "col_indices", "ccol_indices",
            "row_indices", "coalesce", "is_coalesced", "dense_dim", "hspmm", "sspaddmm", "smm",
            "copy_sparse_to_sparse"),
        "sparse",
    ),
    "dequantize": "quantized",
}  # fmt: skip

# torch's keys for such tensors of the device.
_KEYS = {
    "SparsePrivateUse1": "sparse",
    "SparseCsrPrivateUse1": "sparse",
    "NestedTensorPrivateUse1": "nested",
    "QuantizedPrivateUse1": "quantized",
}

# Ops by which torch's C++ makes such tensors of dense ones with Python dispatch switched off.
_MAKERS = {
    "_sparse_compressed_tensor_unsafe": "sparse",
    "_sparse_csr_tensor_unsafe": "sparse",
    "_sparse_csc_tensor_unsafe": "sparse",
    "_sparse_bsr_tensor_unsafe": "sparse",
    "_sparse_bsc_tensor_unsafe": "sparse",
    "_sparse_coo_tensor_unsafe": "sparse",
    "_nested_tensor_from_tensor_list": "nested",
}

# torch makes a compressed sparse tensor of the device without any call of ours (`csr.to("xla")`).
# It can do nothing: these are the ops that would not come to the fallback of its key.
_COMPRESSED = (
    "crow_indices",
    "col_indices",
    "ccol_indices",
    "row_indices",
    "values",
    "add.Tensor",
    "sub.Tensor",
    "mul.Tensor",
    "div.Tensor",
    "sum",
    "sum.dim_IntList",
    "_to_copy",
    "neg",
)


def refuse(kind: str) -> NoReturn:
    """Raises UnsupportedLayout for a tensor of this kind, with what to do instead."""
    raise UnsupportedLayout(f"{kind} tensors are not supported on xla: {_INSTEAD[kind]}")


def refuse_op(name: str) -> None:
    """Refuses an op, by its name in the schema, that makes such tensors or reads them."""
    if name in _NAMES:
        refuse(_NAMES[name])
    for kind, prefixes in _PREFIXES.items():
        if name.startswith(prefixes):
            refuse(kind)


def cure_of(name: str) -> str:
    """What brings a CPU tensor of this name ("": no known one) to where an op reads it."""
    optimizer, is_state, _ = name.partition(".state.")
    if is_state:
        return (
            f"bring its state there by {optimizer}.load_state_dict({optimizer}.state_dict()), or "
            "make the optimizer after the model has moved"
        )
    return (
        'move it with .to("xla") (only 0-dim CPU tensors, and indices in x[i], may be on the CPU)'
    )


def refuse_tensor(tensor: torch.Tensor) -> None:
    """Refuses a tensor of another device that is no dense array."""
    if tensor.is_nested:
        refuse("nested")
    if tensor.is_quantized:
        refuse("quantized")
    refuse_layout(tensor.layout)


def refuse_layout(layout: torch.layout | None) -> None:
    """Refuses a result's layout other than strided."""
    if layout is not None and layout is not torch.strided:
        refuse("mkldnn" if layout is torch._mkldnn else "sparse")  # type: ignore[attr-defined]


_libraries: list[torch.library.Library] = []


def register_refusals() -> None:
    """Registers the refusals as torch's kernels for such tensors of the device."""
    fallbacks, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")

    def refusal_of(kind: str) -> Callable[..., NoReturn]:
        return lambda *args, **kwargs: refuse(kind)

    for key, kind in _KEYS.items():
        fallbacks.fallback(refusal_of(kind), key)
    for name, kind in _MAKERS.items():
        for key in ("PrivateUse1", "AutogradPrivateUse1"):
            aten.impl(name, refusal_of(kind), key)
    for name in _COMPRESSED:
        aten.impl(name, refusal_of("sparse"), "SparseCsrPrivateUse1")
    _libraries.extend((fallbacks, aten))
