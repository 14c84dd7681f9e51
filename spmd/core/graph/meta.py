"""Meta: shape, dtype, strides and offset of a tensor, interned."""

# Why metas are interned: an aten call is looked up by those of its operands, and one object
# compares faster than shapes, strides and dtypes. There are few: a model has some hundred.

import math
from collections.abc import Sequence

import jax
import torch

from ..base.dtypes import to_numpy_dtype
from ..base.tables import Interned


class Meta:
    """Shape, dtype, strides and storage offset of a tensor, interned: equal metas are the same
    object.

    layout: the meta in an op's key: at offset 0, and contiguous if it only has gaps between rows.
    The offset and the row distance of a view do not matter to an op that makes new data.
    """

    __slots__ = ("__weakref__", "dtype", "layout", "numel", "offset", "shape", "strides", "struct")

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...], offset: int
    ):
        self.shape = shape
        self.dtype = dtype
        self.strides = strides
        self.offset = offset
        self.numel = math.prod(shape)
        self.struct = jax.ShapeDtypeStruct(shape, to_numpy_dtype(dtype))
        self.layout = self
        # An op does not depend on a view's offset, nor on gaps: each view would else be another
        # program.
        if offset or (strides and self.numel):
            dense = _contiguous(shape) if _has_only_gaps(shape, strides) else strides
            self.layout = intern_meta(shape, dtype, dense) if offset or dense != strides else self

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    @property
    def encoded(self) -> str:
        """The layout as text that is the same in every process (see `op.encode`)."""
        return f"{self.dtype}{self.shape}{self.strides}{self.offset}"

    def make(self) -> torch.Tensor:
        """Returns a tensor on torch's meta device with this layout."""
        # As long as the last element reaches: torch checks views against the size of their storage.
        span = (
            sum((dim - 1) * stride for dim, stride in zip(self.shape, self.strides, strict=True))
            + 1
        )
        size = self.offset + (span if self.numel else 0)
        storage = torch.empty(size, dtype=self.dtype, device="meta")
        return storage.as_strided(self.shape, self.strides, self.offset)

    def __repr__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}[{','.join(map(str, self.shape))}]"


_METAS: Interned[tuple, Meta] = Interned(4096)


def intern_meta(
    shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...], offset: int = 0
) -> Meta:
    """Returns the interned Meta of these parts."""
    # One object for equal metas: the keys of graphs compare thousands of them, by identity.
    key = (shape, dtype, strides, offset)
    meta = _METAS.rows.get(key)
    return meta if meta is not None else _METAS.of(key, lambda: Meta(*key))


def dense_meta(shape: Sequence[int], dtype: torch.dtype) -> Meta:
    """Returns the Meta of a contiguous tensor."""
    return intern_meta(tuple(shape), dtype, _contiguous(shape))


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of contiguous memory."""
    # As torch does it: a dim of size 0 counts as 1, so that the strides of an empty tensor are not
    # all 0.
    strides, step = [], 1
    for dim in reversed(shape):
        strides.append(step)
        step *= max(dim, 1)
    return tuple(reversed(strides))


def _has_only_gaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True if the elements are in the order of contiguous memory without overlaps; there may be
    gaps between them."""
    reach = 1
    for dim, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride < reach:
            return False
        reach = stride * dim
    return True


def meta_of(tensor: torch.Tensor) -> Meta:
    """Returns the Meta of any strided torch tensor."""
    offset: int = tensor.storage_offset()  # type: ignore[assignment]  # symbolic only in a trace of torch.compile
    return intern_meta(tuple(tensor.shape), tensor.dtype, tuple(tensor.stride()), offset)
