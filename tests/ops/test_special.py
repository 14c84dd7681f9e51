"""Bessel functions, erfcx, polygamma, incomplete gamma functions against torch on CPU; see also
`test_on_cpu`."""

import math

import pytest
import torch
from support import Batch, check

FUNCTIONS = ("modified_bessel_i0", "modified_bessel_i1", "erfcx")


def points(dtype: torch.dtype) -> torch.Tensor:
    edges = torch.tensor(
        [0.0, -0.0, 2.0, 5.0, -2.09, 2.09, 9.283, 26.6, 110.0, torch.inf, -torch.inf, torch.nan]
    )
    return torch.cat([torch.linspace(-12, 12, 54), edges]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
class TestFunctions:
    """On both sides of 0, where they are large, and at NaN and infinity."""

    def test_against_cpu(self, dtype):
        batch = Batch()
        for name in FUNCTIONS:
            batch.case(name, getattr(torch.special, name), points(dtype), gradient=False)
        batch.check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_polygamma(dtype: torch.dtype) -> None:
    """Between the poles too, of every order: the terms of Hurwitz' zeta function change their sign
    there."""
    x = torch.cat(
        [torch.arange(-20, 20) + 0.25, torch.arange(-9, 3) - 0.4, torch.tensor([0.01, 30.5])]
    )
    batch = Batch()
    for order in range(5):
        batch.case(
            f"of order {order}", lambda x, n=order: torch.special.polygamma(n, x), x.to(dtype)
        )
    batch.check()


class TestSharded:
    """Elementwise, whatever the layout."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        for name in FUNCTIONS:
            batch.case(name, getattr(torch.special, name), points(torch.float64), gradient=False)
        batch.check()


class TestIncompleteGamma:
    """Against the finite sum that they are for whole numbers, and at the edges; torch's CPU keeps
    nine digits."""

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
        a = [inf, inf, 1.0, 0.0, 0.0, 0.0, 2.0, -1.0, 1.0, inf]
        x = [1.0, inf, inf, 2.0, 1e-6, 0.0, 0.0, 1.0, -1.0, 0.0]
        edges = [1.0, nan, 0.0, 0.0, 0.0, nan, 1.0, nan, nan, 1.0]
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
                check(
                    torch.special.gammainc(one.to("xla"), other.to("xla")), (1 - expected).float()
                )
