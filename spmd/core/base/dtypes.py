"""torch dtypes and JAX dtypes, in both directions, and nothing else."""

import functools

import ml_dtypes
import numpy as np
import torch

# Both call them by the same names. ml_dtypes adds the narrow floats that numpy lacks; jaxlib
# depends on it, so it is always installed.
_NAMES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
    "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu",
)  # fmt: skip

TORCH_TO_NUMPY: dict[torch.dtype, np.dtype] = {
    getattr(torch, name): np.dtype(getattr(ml_dtypes, name, name)) for name in _NAMES
}

NUMPY_TO_TORCH: dict[np.dtype, torch.dtype] = {
    numpy_dtype: dtype for dtype, numpy_dtype in TORCH_TO_NUMPY.items()
}


def to_numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """Returns the numpy and JAX dtype of a torch dtype; NotImplementedError where XLA has no such
    type.

    Not a TypeError: Python takes one that is raised inside an operator for a missing operator, and
    drops its message.
    """
    try:
        return TORCH_TO_NUMPY[dtype]
    except KeyError:
        raise NotImplementedError(
            f"dtype {dtype} has no XLA counterpart (known: {', '.join(map(str, TORCH_TO_NUMPY))})"
        ) from None


@functools.lru_cache(4096, typed=True)
def check_fits(name: str, number: complex, dtype: torch.dtype) -> None:
    """Raises RuntimeError, as torch does, for a Python number outside the range of the dtype that
    it is to fill."""
    try:
        # With one element torch would take any number for a narrow float.
        torch.full((2,), number, dtype=dtype, device="cpu")
    except RuntimeError:
        raise RuntimeError(
            f"{name}: value {number} cannot be converted to {dtype} without overflow"
        ) from None


def is_exact(dtype: torch.dtype) -> bool:
    """True for types whose arithmetic never rounds: integers and booleans."""
    return not dtype.is_floating_point and not dtype.is_complex


def is_integer(dtype: torch.dtype) -> bool:
    """True for integers: they have neither NaN nor infinity, and no defined result of a cast from
    these."""
    return is_exact(dtype) and dtype is not torch.bool


def to_torch_dtype(dtype: np.dtype) -> torch.dtype:
    """Returns the torch dtype of a numpy or JAX dtype; TypeError where torch has none."""
    try:
        return NUMPY_TO_TORCH[np.dtype(dtype)]
    except KeyError:
        raise TypeError(f"dtype {dtype} has no torch counterpart") from None
