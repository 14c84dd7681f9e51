"""Factorizations, solvers and spectra with their gradients against torch on CPU."""

import pytest
import torch
from support import Batch


def positive(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Well conditioned and symmetric positive-definite."""
    x = torch.randn(*shape, shape[-1], dtype=dtype)
    return x @ x.mH + shape[-1] * torch.eye(shape[-1], dtype=dtype)


def solvers(batch: Batch, dtype: torch.dtype) -> None:
    a, b = positive(8, 4, dtype=dtype), torch.randn(8, 4, 3, dtype=dtype)
    batch.case("cholesky", torch.linalg.cholesky, a)
    batch.case("cholesky upper", lambda a: torch.linalg.cholesky(a, upper=True), a)
    batch.case(
        "cholesky_solve", lambda b, a: torch.cholesky_solve(b, torch.linalg.cholesky(a)), b, a
    )
    batch.case("cholesky_inverse", lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a)), a)
    batch.case("inv", torch.linalg.inv, a)
    batch.case("solve", torch.linalg.solve, a, b)
    batch.case("solve vector", lambda a, b: torch.linalg.solve(a, b[..., 0]), a, b)
    batch.case("solve right", lambda a, b: torch.linalg.solve(a, b.mT, left=False), a, b)
    batch.case("solve transposed", lambda a, b: torch.linalg.solve(a.mT, b), a, b)
    batch.case(
        "solve_triangular",
        lambda a, b: torch.linalg.solve_triangular(a.tril(), b, upper=False),
        a,
        b,
    )
    batch.case("lu", lambda a: torch.linalg.lu(a)[1:], torch.randn(8, 4, 4, dtype=dtype))
    batch.case("lu_solve", lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b), a, b)
    batch.case("det", torch.linalg.det, a)
    batch.case("slogdet", lambda a: torch.linalg.slogdet(a)[1], a)
    batch.case(
        "lstsq",
        lambda a, b: torch.linalg.lstsq(a, b).solution,
        torch.randn(8, 6, 4, dtype=dtype),
        torch.randn(8, 6, 2, dtype=dtype),
    )
    for driver in ("gelsy", "gels", "gelsd", "gelss"):  # which decides what else is given
        given = torch.randn(6, 4, dtype=dtype), torch.randn(6, 2, dtype=dtype)
        batch.case(
            driver,
            lambda a, b, d=driver: tuple(torch.linalg.lstsq(a, b, driver=d)),
            *given,
            gradient=False,
        )
    batch.case("pinv", torch.linalg.pinv, torch.randn(8, 5, 3, dtype=dtype))
    batch.case("matrix_exp", torch.matrix_exp, torch.randn(8, 3, 3, dtype=dtype) / 2)
    batch.case(
        "cross", torch.linalg.cross, torch.randn(8, 3, dtype=dtype), torch.randn(8, 3, dtype=dtype)
    )


def spectra(batch: Batch, dtype: torch.dtype) -> None:
    x, symmetric = torch.randn(8, 5, 3, dtype=dtype), positive(8, 3, dtype=dtype)
    batch.case("qr", lambda x: torch.linalg.qr(x), x)
    batch.case("qr complete", lambda x: torch.linalg.qr(x, mode="complete"), x, gradient=False)
    batch.case("qr r", lambda x: torch.linalg.qr(x, mode="r")[1], x, gradient=False)
    batch.case("svdvals", torch.linalg.svdvals, x)
    batch.case(
        "svd",
        lambda x: (lambda u, s, v: (u * s[..., None, :]) @ v)(
            *torch.linalg.svd(x, full_matrices=False)
        ),
        x,
    )
    batch.case("eigvalsh", torch.linalg.eigvalsh, symmetric)
    batch.case(
        "eigh",
        lambda x: (lambda s, v: (v * s[..., None, :].sqrt()) @ v.mT)(*torch.linalg.eigh(x)),
        symmetric,
    )
    batch.case(
        "norms",
        lambda x: (
            torch.linalg.matrix_norm(x, 2),
            torch.linalg.matrix_norm(x, "nuc"),
            torch.linalg.cond(x),
        ),
        x,
    )
    batch.case("geqrf", torch.geqrf, x, gradient=False)
    batch.case(
        "ormqr",
        lambda x, y: torch.ormqr(*torch.geqrf(x), y),
        x,
        torch.randn(8, 5, 2, dtype=dtype),
        gradient=False,
    )
    batch.case(
        "householder",
        lambda x: torch.linalg.householder_product(*torch.geqrf(x)),
        x,
        gradient=False,
    )


@pytest.mark.parametrize("kind", [solvers, spectra])
class TestDoubles:
    """Values and gradients."""

    def test_against_cpu(self, kind):
        batch = Batch()
        kind(batch, torch.float64)
        batch.check()


class TestEigenvalues:
    """Of a matrix that is not symmetric; complex results, sorted before they are compared."""

    def test_eig(self):
        x = torch.randn(4, 4, dtype=torch.float64)
        values, vectors = torch.linalg.eig(x.to("xla"))
        rebuilt = vectors @ torch.diag(values) @ torch.linalg.inv(vectors)
        torch.testing.assert_close(torch.view_as_real(rebuilt).cpu()[..., 0], x)
        expected = sorted(torch.linalg.eigvals(x).abs().tolist())
        assert sorted(torch.linalg.eigvals(x.to("xla")).abs().tolist()) == pytest.approx(expected)


class TestIndefinite:
    """LDL with pivots of both sizes."""

    def test_factor_and_solve(self):
        x = torch.randn(3, 5, 5, dtype=torch.float64)
        x, b = x + x.mT, torch.randn(3, 5, 2, dtype=torch.float64)
        x[0].fill_diagonal_(0)
        batch = Batch()
        batch.case("ldl_factor", torch.linalg.ldl_factor, x, gradient=False)
        batch.case(
            "ldl_solve",
            lambda x, b: torch.linalg.ldl_solve(*torch.linalg.ldl_factor(x), b),
            x,
            b,
            gradient=False,
        )
        batch.check()


class TestFailures:
    """A factorization that fails raises torch's error; the _ex form says where."""

    def test_not_positive_definite(self):
        x = torch.eye(3)
        x[1, 1] = -1
        assert (
            torch.linalg.cholesky_ex(x.to("xla")).info.item()
            == torch.linalg.cholesky_ex(x).info.item()
            == 2
        )
        with pytest.raises(torch.linalg.LinAlgError, match="minor of order 2"):
            torch.linalg.cholesky(x.to("xla"))

    def test_singular(self):
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            torch.linalg.inv(torch.zeros(2, 2, device="xla"))
        assert torch.linalg.det(torch.zeros(2, 2, device="xla")).item() == 0


class TestEmpty:
    """Matrices without elements."""

    def test_against_cpu(self):
        batch = Batch()
        for shape in ((0, 3, 3), (2, 0, 0)):
            x = torch.zeros(shape)
            batch.case("inv", torch.linalg.inv, x, gradient=False)
            batch.case("det", torch.linalg.det, x, gradient=False)
            batch.case("svd", torch.linalg.svdvals, x, gradient=False)
        batch.check()


class TestSharded:
    """A batch of matrices split over eight devices."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        solvers(batch, torch.float64)
        spectra(batch, torch.float64)
        batch.check()
