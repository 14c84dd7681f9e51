"""Bessel and Airy functions, erfcx and orthogonal polynomials against torch on CPU."""

import math

import pytest
import torch
from support import Batch, check

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


class TestIncompleteGamma:
    """Against the finite sum that they are for whole numbers, and at the edges; torch's CPU keeps nine digits."""

    @staticmethod
    def upper(count: int, x: float) -> float:
        """Q(count, x) = exp(-x) times the sum of x^k / k! below count."""
        return math.fsum(math.exp(k * math.log(x) - x - math.lgamma(k + 1)) for k in range(count))

    def test_values(self) -> None:
        points = [
            (count, count * ratio)
            for count in (1, 5, 20, 21, 60, 300, 10_000)
            for ratio in (0.5, 0.72, 0.9, 0.999, 1.0, 1.01, 1.28, 1.6)
        ]
        nan, inf = math.nan, math.inf
        a = [inf, inf, 1.0, 0.0, 0.0, 2.0, -1.0, 1.0, inf]
        x = [1.0, inf, inf, 2.0, 0.0, 0.0, 1.0, -1.0, 0.0]
        edges = [1.0, nan, 0.0, 0.0, nan, 1.0, nan, nan, 1.0]
        for dtype in (torch.float64, torch.float32):
            one, other = (
                torch.tensor([*column, *more], dtype=dtype)
                for column, more in zip(zip(*points, strict=True), (a, x), strict=True)
            )
            exact = [self.upper(n, at) for (n, _), at in zip(points, other.tolist(), strict=False)]
            expected = torch.tensor([*exact, *edges], dtype=torch.float64)
            if dtype == torch.float64:
                check(torch.special.gammaincc(one.to("xla"), other.to("xla")), expected)
            else:  # one of the two: each compiles for seconds
                check(torch.special.gammainc(one.to("xla"), other.to("xla")), (1 - expected).float())
