"""CPU tensors that a recorded call uses: uploads and step counters are replayed, any other use is
noted."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from ...core import DeviceData, XlaTensor, storage_of, user_line, view_of
from .formulas import Formulas

_METADATA = frozenset({
    "shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_leaf", "grad", "grad_fn",
    "is_cuda", "is_cpu", "is_meta", "is_sparse", "is_quantized", "names", "is_mps", "is_xla",
    "is_xpu", "is_nested", "dim", "size", "numel", "nelement", "stride", "is_floating_point",
    "is_complex", "is_contiguous", "__len__", "element_size", "itemsize", "storage_offset",
    "is_inference", "is_pinned", "get_device", "type", "ndimension", "__hash__", "nbytes",
    "data_ptr", "is_sparse_csr", "_version", "_is_view", "has_names", "is_mkldnn", "is_vulkan",
    "is_ipu", "is_maia",
})  # fmt: skip
_MOVES = frozenset({"to", "xla", "_to_copy"})
_ADDS = frozenset({"add_", "__iadd__", "_foreach_add_"})


Move = Callable[[torch.Tensor], Any]  # of a CPU tensor to the device


def uploaded(move: Move, tensor: torch.Tensor) -> DeviceData | None:
    """The host data of a tensor that is moved; None where the result is not of that kind."""
    result = move(tensor)
    value = (
        storage_of(result).value if type(result) is XlaTensor and view_of(result) is None else None
    )
    return value if type(value) is DeviceData else None


class HostUses:
    """The uses of CPU tensors by a call.

    uploads: tensors and their moves, by the device data that came of it. counters: 0-dim tensors
    that the call has added constants to, with the sum; refused: uses that cannot be replayed, in
    words.
    """

    def __init__(self, formulas: Formulas):
        self.formulas = formulas
        self.uploads: dict[DeviceData, tuple[torch.Tensor, Move]] = {}
        self.counters: dict[int, float] = {}
        self.refused: list[str] = []
        self.values: dict[int, float] = {}  # of counters, when the call began


_uses: HostUses | None = None


class HostTensor(torch.Tensor):
    """The class that a CPU tensor has while a call that may use it is recorded."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            uses = _uses
            name = getattr(func, "__name__", str(func))
            if name == "__get__":
                name = getattr(getattr(func, "__self__", None), "__name__", name)
            if uses is None or name in _METADATA:
                return func(*args, **kwargs)
            watching = [value for value in tree_leaves(args) if type(value) is HostTensor]
            if name in _ADDS and _counts(uses, args, kwargs):
                return func(*args, **kwargs)
            if name == "item" and len(watching) == 1 and id(watching[0]) in uses.values:
                return _number(uses, watching[0])
            if name in _MOVES and len(watching) == 1:
                result = func(*args, **kwargs)
                value = storage_of(result).value if type(result) is XlaTensor else None
                if type(value) is DeviceData:
                    uses.uploads[value] = watching[0], _move(func, args[1:], kwargs)
                    return result
                if result is watching[0]:
                    return result
            for tensor in watching[:1]:
                uses.refused.append(
                    f"{name} of a CPU tensor {list(tensor.shape)} at {user_line()}; move it to "
                    "xla first"
                )
            args, kwargs = tree_map_only(torch.SymFloat, float, (args, kwargs))
            return func(*args, **kwargs)


def _move(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Move:
    return lambda tensor: function(tensor, *args, **kwargs)


def _counts(uses: HostUses, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Notes an addition of one constant to counters; False for any other addition."""
    targets = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
    amount = args[1] if len(args) == 2 else None
    if type(amount) is torch.Tensor and not amount.dim() and amount.device.type == "cpu":
        amount = amount.item()
    alpha = kwargs.get("alpha", 1)
    if (
        type(amount) not in (int, float)
        or type(alpha) not in (int, float)
        or set(kwargs) - {"alpha"}
    ):
        return False
    if not all(id(target) in uses.values for target in targets):
        return False
    for target in targets:
        uses.counters[id(target)] = uses.counters.get(id(target), 0.0) + float(amount * alpha)
    return True


def _number(uses: HostUses, tensor: torch.Tensor) -> Any:
    plus = uses.counters.get(id(tensor), 0.0)
    value = tensor.item()
    return (
        uses.formulas.source(Counter(uses.values[id(tensor)]), value, plus)
        if isinstance(value, float)
        else value
    )


@dataclass(frozen=True)
class Counter:
    """The counters that had a value when the call began, as one source of numbers."""

    value: float


@contextlib.contextmanager
def watched(
    tensors: Sequence[torch.Tensor], counters: Sequence[torch.Tensor], uses: HostUses
) -> Iterator[None]:
    """Notes the uses of these CPU tensors inside. counters: those of them that may be counters of
    steps."""
    global _uses
    changed = [
        tensor for tensor in tensors if type(tensor) is torch.Tensor and tensor.device.type == "cpu"
    ]
    for tensor in counters:
        uses.values[id(tensor)] = float(tensor.item())
    try:
        for tensor in changed:
            tensor.__class__ = HostTensor
        _uses = uses
        yield
    finally:
        _uses = None
        for tensor in changed:
            tensor.__class__ = torch.Tensor
