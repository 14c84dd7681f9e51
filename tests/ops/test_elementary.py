"""Elementary functions of complex numbers at zeros, infinities and NaN: C99's values (Annex G),
which numpy has."""

import numpy as np
import pytest
import torch

NAMES = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "log10": np.log10,
    "sqrt": np.sqrt, "abs": np.abs, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan,
}  # fmt: skip
PARTS = [0.0, -0.0, 1.0, -1.0, 0.7, np.inf, -np.inf, np.nan, 710.0, -600.0]


def same(one: np.ndarray, other: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Equal within rounding, signs of zeros and infinities too, where C99 says which: not beside a
    NaN or at the exponential of minus infinity in no direction."""
    told = np.isfinite(point)
    sign = ~told | (np.signbit(one) == np.signbit(other))
    close = np.abs(one - other) <= 1e-9 * np.abs(other)
    alike = (
        (np.isnan(one) & np.isnan(other))
        | (one == other)
        | close
        | (~told & (np.abs(one) == np.abs(other)))
    )
    return alike & (sign | np.isnan(other))


@pytest.mark.parametrize("name", NAMES)
def test_edges(name: str) -> None:
    points = np.array([complex(x, y) for x in PARTS for y in PARTS])
    with np.errstate(all="ignore"):
        expected = NAMES[name](points)
    made = getattr(torch, name)(torch.from_numpy(points).to("xla")).cpu().numpy()
    with np.errstate(all="ignore"):
        wrong = ~(same(made.real, expected.real, points) & same(made.imag, expected.imag, points))
    shown = list(zip(points[wrong], made[wrong], expected[wrong], strict=True))
    assert not wrong.any(), f"(at, made, expected): {shown}"
