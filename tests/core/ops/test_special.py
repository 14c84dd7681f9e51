"""Bessel and Airy functions, erfcx and orthogonal polynomials against torch on CPU."""

import pytest
import torch
from support import Batch

FUNCTIONS = [
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_i0", "modified_bessel_i1",
    "modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
    "spherical_bessel_j0", "erfcx",
]  # fmt: skip
CHEBYSHEV = [f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"]
POLYNOMIALS = [
    *CHEBYSHEV,
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
]


def points(dtype: torch.dtype) -> torch.Tensor:
    edges = torch.tensor([0.0, -0.0, 2.0, 5.0, -2.09, 2.09, 110.0, torch.inf, -torch.inf, torch.nan])
    return torch.cat([torch.linspace(-12, 12, 54), edges]).to(dtype)


def polynomials(batch: Batch, dtype: torch.dtype) -> None:
    x = torch.tensor([-1.5, -1.0, -0.7, -0.2, 0.0, 0.3, 0.9, 1.0, 1.2]).to(dtype).repeat(8, 1)
    degrees = torch.tensor([-1, 0, 1, 2, 3, 5, 7, 10])[:, None].to(dtype)
    for name in POLYNOMIALS:
        function = getattr(torch.special, name)
        batch.case(name, function, x, degrees, gradient=False)
        batch.case(f"{name} number", lambda x, f=function: f(x, 4), x, gradient=False)
        batch.case(f"{name} at a number", lambda n, f=function: f(0.3, n), degrees, gradient=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
class TestFunctions:
    """Both sides of every boundary between approximations, and NaN and infinity."""

    def test_against_cpu(self, dtype):
        batch = Batch()
        for name in FUNCTIONS:
            batch.case(name, getattr(torch.special, name), points(dtype), gradient=False)
        batch.check()


class TestPolynomials:
    """Degrees as a tensor and as a number."""

    def test_against_cpu(self):
        batch = Batch()
        polynomials(batch, torch.float64)
        batch.check()


class TestSharded:
    """Elementwise, whatever the layout; the loop's length is the largest degree of all shards."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        polynomials(batch, torch.float64)
        for name in FUNCTIONS:
            batch.case(name, getattr(torch.special, name), points(torch.float64), gradient=False)
        batch.check()
