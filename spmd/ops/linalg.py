"""Dense linear algebra: factorizations, solvers and spectra with LAPACK's conventions, batched over
leading dims.

A factorization that fails sets its `info`, as in torch; a caller that must raise reads `info` (see
`dispatch.specials`). Gradients are torch's own formulas, written with these and ordinary ops.
"""

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.scipy import linalg as scipy_linalg

from .registry import as_promised, lower

aten = torch.ops.aten


def _adjoint(x):
    return jnp.conj(x.mT)


def _batch(*arrays):
    """The arrays with their leading dims broadcast against each other."""
    lead = jnp.broadcast_shapes(*(array.shape[:-2] for array in arrays))
    return [jnp.broadcast_to(array, lead + array.shape[-2:]) for array in arrays]


# -- Cholesky.


def _cholesky(x, upper):
    """(factor, a mask of the matrices that are not positive-definite: XLA fills their factor with
    NaN)."""
    lower_half = _adjoint(x) if upper else x
    factor = lax.linalg.cholesky(lower_half, symmetrize_input=False)
    failed = jnp.isnan(jnp.real(jnp.diagonal(factor, axis1=-2, axis2=-1))).any(-1)
    return _adjoint(factor) if upper else factor, failed


def _first_bad_minor(x, upper):
    """The order of the first leading minor that is not positive (0: none), by elimination without
    pivoting."""
    size = x.shape[-1]
    below = jnp.tril(_adjoint(x) if upper else x)
    matrix = below + _adjoint(jnp.tril(below, -1))

    def step(k, state):
        matrix, info = state
        pivot = jnp.real(matrix[..., k, k])
        info = jnp.where((info == 0) & ~(pivot > 0), k + 1, info)
        column = matrix[..., :, k]
        scale = jnp.where(pivot > 0, pivot, jnp.ones_like(pivot))[..., None, None]
        return matrix - column[..., :, None] * jnp.conj(column)[..., None, :] / scale, info

    return lax.fori_loop(0, size, step, (matrix, jnp.zeros(x.shape[:-2], jnp.int32)))[1]


@lower(aten.linalg_cholesky_ex.default, empty=True)
def aten_linalg_cholesky_ex(self, *, upper=False, check_errors=False, returns):
    factor, failed = _cholesky(self, upper)
    info = lax.cond(
        failed.any(),
        lambda: jnp.where(failed, jnp.maximum(_first_bad_minor(self, upper), 1), 0),
        lambda: jnp.zeros(failed.shape, jnp.int32),
    )
    return as_promised((factor, info), returns)


@lower(aten.cholesky_solve.default, aten._cholesky_solve_helper.default, empty=True)
def aten_cholesky_solve(b, factor, /, upper=False):
    b, factor = _batch(b, factor)
    return scipy_linalg.cho_solve((factor, not upper), b)


@lower(aten.cholesky_inverse.default, empty=True)
def aten_cholesky_inverse(self, upper=False):
    return aten_cholesky_solve(_eye(self), self, upper)


# -- QR and Householder reflectors.


def _eye(like):
    """An identity matrix for each matrix of a promised result."""
    return jnp.broadcast_to(jnp.eye(*like.shape[-2:], dtype=like.dtype), like.shape)


@lower(aten.linalg_qr.default)
def aten_linalg_qr(A, mode="reduced", *, returns):
    q, r = lax.linalg.qr(A, full_matrices=mode == "complete")
    return as_promised((q, jnp.triu(r)), returns)


@lower(aten.geqrf.default, empty=True)
def aten_geqrf(self, *, returns):
    packed, tau = jnp.linalg.qr(self, mode="raw")
    return as_promised((packed.mT, tau), returns)


@lower(aten.linalg_householder_product.default)
def aten_linalg_householder_product(input, tau):
    return lax.linalg.householder_product(input, tau)


# -- LU.


def _lu(x):
    """(packed factors, pivots counted from 1, info: the first zero on U's diagonal)."""
    packed, pivots, _ = lax.linalg.lu(x)
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1)
    zero = (diagonal == 0) | jnp.isnan(jnp.real(diagonal))
    info = jnp.where(zero.any(-1), jnp.argmax(zero, axis=-1) + 1, 0).astype(jnp.int32)
    return packed, pivots + 1, info


def _lu_in_place(x):
    """Elimination without pivoting."""
    steps, rows, columns = min(x.shape[-2:]), jnp.arange(x.shape[-2]), jnp.arange(x.shape[-1])

    def step(k, matrix):
        below = rows > k
        factors = jnp.where(below, matrix[..., :, k] / matrix[..., k, k][..., None], 0)
        row = jnp.where(columns > k, matrix[..., k, :], 0)
        result = matrix - factors[..., :, None] * row[..., None, :]
        return jnp.where(below[:, None] & (columns == k), factors[..., :, None], result)

    return lax.fori_loop(0, steps, step, x)


@lower(aten.linalg_lu_factor_ex.default, empty=True)
def aten_linalg_lu_factor_ex(A, *, pivot=True, check_errors=False, returns):
    if pivot:
        return as_promised(_lu(A), returns)
    packed = _lu_in_place(A)
    pivots = jnp.broadcast_to(jnp.arange(1, returns[1].shape[-1] + 1), returns[1].shape)
    return as_promised((packed, pivots, None), returns)


def _factors(packed, order, *, has_matrix, returns):
    """P, L and U of A = P L U; the rows of A in this order are those of L U."""
    permutation = (
        jnp.swapaxes(jax.nn.one_hot(order, packed.shape[-2]), -1, -2) if has_matrix else None
    )
    size = min(packed.shape[-2:])
    lower_factor = jnp.tril(packed[..., :, :size], -1) + jnp.eye(
        packed.shape[-2], size, dtype=packed.dtype
    )
    return as_promised((permutation, lower_factor, jnp.triu(packed[..., :size, :])), returns)


@lower(aten.linalg_lu.default)
def aten_linalg_lu(A, *, pivot=True, returns):
    packed, _, order = lax.linalg.lu(A) if pivot else (_lu_in_place(A), None, None)
    return _factors(packed, order, has_matrix=pivot, returns=returns)


# torch promises an empty tensor for each factor not unpacked.
@lower(aten.lu_unpack.default)
def aten_lu_unpack(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True, *, returns):
    order = lax.linalg.lu_pivots_to_permutation(LU_pivots.astype(jnp.int32) - 1, LU_data.shape[-2])
    return _factors(LU_data, order, has_matrix=unpack_pivots, returns=returns)


@lower(aten.linalg_lu_solve.default, empty=True)
def aten_linalg_lu_solve(LU, pivots, B, *, left=True, adjoint=False, returns):
    LU, B = _batch(LU, B)
    if not left:  # X A = B is A^H X^H = B^H
        B, adjoint = _adjoint(B), not adjoint
    result = scipy_linalg.lu_solve((LU, pivots - 1), B, trans=2 if adjoint else 0)
    return (result if left else _adjoint(result)).astype(returns.dtype)


@lower(aten.linalg_inv_ex.default, empty=True)
def aten_linalg_inv_ex(A, *, check_errors=False, returns):
    packed, pivots, info = _lu(A)
    return as_promised((scipy_linalg.lu_solve((packed, pivots - 1), _eye(A)), info), returns)


@lower(aten.linalg_solve_triangular.default, empty=True)
def aten_linalg_solve_triangular(self, B, *, upper, left=True, unitriangular=False):
    a, b = _batch(self, B)
    return lax.linalg.triangular_solve(
        a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular
    )


# -- Spectra.


@lower(aten._linalg_svd.default)
def aten_linalg_svd(A, full_matrices=False, compute_uv=True, *, driver=None, returns):
    if not compute_uv:
        return as_promised((None, jnp.linalg.svd(A, compute_uv=False), None), returns)
    return as_promised(jnp.linalg.svd(A, full_matrices=full_matrices), returns)


@lower(aten._linalg_eigh.default, empty=True)
def aten_linalg_eigh(A, UPLO="L", compute_v=True, *, returns):
    values, vectors = jnp.linalg.eigh(A, UPLO=UPLO.upper(), symmetrize_input=False)
    return as_promised((values, vectors if compute_v else None), returns)


@lower(aten.linalg_eig.default, empty=True)
def aten_linalg_eig(self, *, returns):
    return as_promised(jnp.linalg.eig(self), returns)


@lower(aten._linalg_eigvals.default, aten.linalg_eigvals.default, empty=True)
def aten_linalg_eigvals(self, *, returns):
    return jnp.linalg.eigvals(self).astype(returns.dtype)


# -- Functions of a matrix, least squares.


@lower(aten.linalg_matrix_exp.default, empty=True)
def aten_linalg_matrix_exp(self):
    # Repeated squaring doubles the relative error each time: in float32 large norms would lose
    # three digits.
    wide = jnp.complex128 if jnp.issubdtype(self.dtype, jnp.complexfloating) else jnp.float64
    flat = self.reshape(-1, *self.shape[-2:]).astype(wide)
    return jax.vmap(scipy_linalg.expm)(flat).reshape(self.shape).astype(self.dtype)


def _tolerance(atol, rtol, largest, shape, dtype):
    """The bound for a singular value that counts as zero, relative to the largest; by default
    torch's."""
    if rtol is None:
        rtol = float(jnp.finfo(dtype).eps) * max(shape[-2:])
        rtol = rtol if atol is None else jnp.where(jnp.asarray(atol) > 0, 0.0, rtol)
    bound = jnp.asarray(rtol, largest.dtype) * largest
    return bound if atol is None else jnp.maximum(jnp.asarray(atol, largest.dtype), bound)


def _pseudo_inverse(x, atol, rtol, hermitian):
    if hermitian:
        values, vectors = jnp.linalg.eigh(x, symmetrize_input=False)
        size, u, vh = jnp.abs(values), vectors, _adjoint(vectors)
    else:
        u, values, vh = jnp.linalg.svd(x, full_matrices=False)
        size = values
    bound = _tolerance(atol, rtol, size.max(-1), x.shape, values.dtype)
    is_large = size > bound[..., None]
    inverse = jnp.where(is_large, 1 / jnp.where(is_large, values, 1), 0)
    return (_adjoint(vh) * inverse[..., None, :]) @ _adjoint(u)


@lower(aten.linalg_pinv.atol_rtol_tensor, empty=True)
def aten_linalg_pinv(self, *, atol=None, rtol=None, hermitian=False, returns):
    return _pseudo_inverse(self, atol, rtol, hermitian).astype(returns.dtype)


@lower(aten.linalg_lstsq.default, empty=True)
def aten_linalg_lstsq(self, b, rcond=None, *, driver=None, returns):
    """Least squares. Every overdetermined system has residuals; torch leaves them out when it finds
    the rank deficient."""
    is_vector = b.ndim == self.ndim - 1
    right = b[..., None] if is_vector else b
    singular = jnp.linalg.svd(self, compute_uv=False)
    bound = _tolerance(None, rcond, singular.max(-1), self.shape, singular.dtype)
    rank = (singular > bound[..., None]).sum(-1)
    if driver == "gels":
        bound = jnp.zeros_like(bound)
    result = _pseudo_inverse(self, bound, 0.0, False) @ right
    residuals = jnp.sum(jnp.abs(self @ result - right) ** 2, axis=-2)
    result = result[..., 0] if is_vector else result
    return as_promised((result, residuals, rank, singular), returns)


@lower(aten.linalg_cross.default)
def aten_linalg_cross(self, other, *, dim=-1):
    return jnp.cross(*jnp.broadcast_arrays(self, other), axis=dim)
