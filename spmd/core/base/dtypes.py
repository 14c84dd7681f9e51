"""torch dtypes and JAX dtypes, in both directions, and nothing else."""

import math

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


def _range_of(dtype: torch.dtype) -> tuple[float, float]:
    """The least and the largest Python number that torch converts to a dtype."""
    if dtype.is_complex or dtype.is_floating_point:
        return torch.finfo(dtype).min, torch.finfo(dtype).max
    limits = torch.iinfo(dtype)
    # torch accepts a negative number for a large unsigned one.
    return (limits.min if dtype.is_signed else -limits.max), limits.max


_RANGES = {dtype: _range_of(dtype) for dtype in TORCH_TO_NUMPY if dtype is not torch.bool}


def check_fits(name: str, number: complex, dtype: torch.dtype) -> None:
    """Raises RuntimeError, as torch does, for a Python number outside the range of the dtype that
    it is to fill."""
    if dtype not in _RANGES:
        return
    if isinstance(number, complex):
        if dtype.is_complex or number.imag == 0:
            return
    else:
        low, high = _RANGES[dtype]
        if type(number) is float and not dtype.is_signed:
            # A float must not be negative for an unsigned dtype; an int may (see `_range_of`).
            low = 0
        if low <= number <= high or (
            not is_exact(dtype) and (number != number or abs(number) == math.inf)
        ):
            return
    raise RuntimeError(f"{name}: value {number} cannot be converted to {dtype} without overflow")


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
