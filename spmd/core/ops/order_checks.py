"""Checks of reductions, searches and sorting that torch's meta kernels lack. See `checks`."""

from collections.abc import Callable, Sequence

import torch
from torch._prims_common import canonicalize_dim

from .checks import CHECKS, checks

aten = torch.ops.aten


# --- reductions that have no result for no elements -------------------------------------------------------------------


def _need_elements(name: str, self: torch.Tensor, dims: Sequence[int]) -> None:
    for dim in dims:
        if self.dim() and self.shape[canonicalize_dim(self.dim(), dim)] == 0:
            raise IndexError(f"{name}: Expected reduction dim {dim} to have non-zero size.")


def _whole(name: str) -> Callable[..., None]:
    def check(self, **_):
        if not self.numel():
            raise RuntimeError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim "
                "with the 'dim' argument."
            )

    return check


def _over_dims(name: str) -> Callable[..., None]:
    def check(self, dim=(), keepdim=False):
        _need_elements(f"{name}()", self, dim)
        if not dim:
            _whole(name)(self)

    return check


def _over_dim(name: str, default: int | None = None) -> Callable[..., None]:
    def check(self, dim=default, keepdim=False):
        _need_elements(f"{name}()", self, [dim])

    return check


@checks(aten.aminmax.default)
def aminmax(self, *, dim=None, keepdim=False):
    if dim is not None:
        _need_elements("aminmax", self, [dim])
    elif not self.numel():
        raise RuntimeError(
            "aminmax(): cannot compute aminmax over an empty dimension as the operation has no identity."
        )


CHECKS |= {getattr(aten, name).default: _over_dims(name) for name in ("amax", "amin")}
CHECKS |= {getattr(aten, name).default: _whole(name) for name in ("max", "min")}
CHECKS |= {getattr(aten, name).dim: _over_dim(name) for name in ("max", "min", "median", "nanmedian")}
CHECKS[aten.mode.default] = _over_dim("mode", -1)


# --- search and order -------------------------------------------------------------------------------------------------


@checks(aten.searchsorted.Tensor)
def searchsorted(sorted_sequence, self, *, side=None, sorter=None, **_):
    if side not in (None, "left", "right"):
        raise RuntimeError(f"searchsorted: side can only be 'left' or 'right' but got {side}")
    if sorter is not None and sorter.dtype != torch.int64:
        raise RuntimeError(f"searchsorted: sorter must be a tensor of long dtype but got dtype {sorter.dtype}")
    if sorted_sequence.dim() == 0:
        raise RuntimeError("searchsorted: boundaries tensor should have positive dimension, but got 0 dimension")
    if sorted_sequence.dim() != 1 and (
        self.dim() != sorted_sequence.dim() or self.shape[:-1] != sorted_sequence.shape[:-1]
    ):
        raise RuntimeError(
            "searchsorted: expected boundaries of 1 dim, or values whose first dims are theirs, got boundaries of "
            f"shape {list(sorted_sequence.shape)} and values of shape {list(self.shape)}"
        )


@checks(aten.searchsorted.Scalar)
def searchsorted_number(sorted_sequence, self, **named):
    searchsorted(sorted_sequence, sorted_sequence.new_empty(()), **named)


@checks(aten.sort.default, aten.sort.stable)
def sort(self, dim=-1, *_, **named):
    canonicalize_dim(self.dim(), named.get("dim", dim))


@checks(aten.kthvalue.default)
def kthvalue(self, k, dim=-1, keepdim=False):
    _need_elements("kthvalue()", self, [dim])


@checks(aten.argmax.default, aten.argmin.default)
def argmax(self, dim=None, keepdim=False):
    if dim is not None:
        _need_elements("argmax()", self, [dim])
    elif not self.numel():
        raise IndexError("argmax(): Expected reduction dim to be specified for input.numel() == 0.")


@checks(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats, *, output_size=None):
    if output_size and not repeats.numel():
        raise RuntimeError(f"repeat_interleave: expected output_size 0, as there are no repeats, got {output_size}")


@checks(aten.geqrf.default)
def geqrf(self):
    if self.dim() < 2:
        raise RuntimeError(f"torch.geqrf: input must have at least 2 dimensions, got shape {list(self.shape)}")
