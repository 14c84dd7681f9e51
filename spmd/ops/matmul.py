"""Products of matrices and vectors.

Narrow floats accumulate in float32; scaling and bias come before rounding.
"""

import itertools
import math

import jax.numpy as jnp
import torch
from jax import lax

from . import folds, partial_sums, sharded
from .floats import cast
from .kernels.grouped import groups_of_rows, rows_by_group
from .registry import lower
from .sharded import is_rounded, total

aten = torch.ops.aten


def _accumulator(dtype):
    return jnp.float32 if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize <= 2 else dtype


def _product(lhs, rhs):
    """lhs @ rhs, not yet rounded to the operands' dtype."""
    return _matmul(lhs, rhs, _accumulator(lhs.dtype))


def _rounded_product(lhs, rhs, dtype):
    """lhs @ rhs in a dtype, with nothing added before rounding.

    Over several devices a narrow dtype is the result dtype of the product itself, which accumulates
    in float32 all the same: where the mesh shards the summed dim, the partial sums then travel at
    half the bytes. On one device that would only make XLA's CPU compiler leave out the rounding
    between two products. A gradient may have another dtype than its operands' (`ops.sharded`).
    """
    if is_rounded(lhs, dtype):
        return _matmul(lhs, rhs, dtype)
    return cast(_product(lhs, rhs), dtype)


def _with_parts(result, lhs, rhs, place=None):
    """The result, a product with the rows of lhs and the columns of rhs, with its known parts."""
    if result.shape != (*lhs.shape[:-1], rhs.shape[-1]):
        return result  # dims of its rows were merged
    kind = lhs.dtype if is_rounded(lhs, lhs.dtype) else _accumulator(lhs.dtype)
    return partial_sums.note(result, lhs, rhs, kind, place)


def _matmul(lhs, rhs, dtype):
    """lhs @ rhs accumulated in `dtype`; rows, columns and batch dims that a reshape has merged stay
    apart in it."""
    if lhs.ndim != rhs.ndim or lhs.ndim < 2:
        return jnp.matmul(lhs, rhs, precision=None, preferred_element_type=dtype)
    lead = range(lhs.ndim - 2)
    # To sum over a merged dim of which a later part is sharded would gather it. Otherwise the sum
    # is over the merged dim, which saves XLA's CPU compiler a transposed copy.
    inner = sharded.is_split_inside(lhs, -1) or sharded.is_split_inside(rhs, -2)
    a, of_a = folds.apart(lhs, *lead, -2, *([-1] if inner else ()))
    b, of_b = folds.apart(rhs, *lead, -1, *([-2] if inner else ()))
    if a is lhs and b is rhs:
        return jnp.matmul(lhs, rhs, precision=None, preferred_element_type=dtype)
    # both operands have these dims, in the same parts
    for dims in (*((dim, dim) for dim in lead), (-1, -2)):
        of_a[dims[0]] = of_b[dims[1]] = max(of_a[dims[0]], of_b[dims[1]], key=len)
    a, b = (folds.reshaped(x, sum(of, ())) for x, of in ((lhs, of_a), (rhs, of_b)))
    batch = tuple(range(sum(map(len, of_a[:-2]))))
    num_rows, num_summed = len(of_a[-2]), len(of_a[-1])
    summed = (
        tuple(range(len(batch) + num_rows, a.ndim)),
        tuple(range(len(batch), len(batch) + num_summed)),
    )
    result = lax.dot_general(a, b, (summed, (batch, batch)), preferred_element_type=dtype)
    return result.reshape(*lhs.shape[:-1], rhs.shape[-1])


def _affine(self, product, beta, alpha):
    # torch promises that beta=0 ignores self, even where it is nan; beta and alpha are static (see
    # `registry`).
    if alpha != 1:
        product = product * jnp.asarray(alpha, product.dtype)
    if beta == 0:
        return product
    self = self.astype(product.dtype)
    self = self if beta == 1 else self * jnp.asarray(beta, product.dtype)
    return folds.elementwise(jnp.add, self, product)


def _in_batch(result, lhs, rhs):
    """The result of a batched product, over the batch's axes where others shard the summed dim.

    XLA computes it wrongly where a reader wants the summed dim's axes in the batch
    (docs/decisions/copies-in-sums.md).
    """
    mesh = sharded.mesh()
    for operand, summed in ((lhs, 2), (rhs, 1)):
        dims = sharded.dims_of(operand)
        if (
            mesh is not None
            and dims is not None
            and result.ndim == 3
            and any(axes for _, axes in dims[summed])
        ):
            batch = dims[0][0][1] if len(dims[0]) == 1 else ()
            return sharded.in_front(result, mesh, batch) if batch else result
    return result


@lower(aten.mm.default, aten.bmm.default)
def aten_mm(self, mat2, *, returns):
    result = _in_batch(_rounded_product(self, mat2, returns.dtype), self, mat2)
    return _with_parts(result, self, mat2) if self.ndim == 2 else result


@lower(aten.mm.dtype, aten.bmm.dtype)
def aten_mm_dtype(self, mat2, out_dtype):
    return cast(_product(self, mat2), out_dtype)


@lower(
    aten.addmm.default,
    aten.addmm.dtype,
    aten.baddbmm.default,
    aten.baddbmm.dtype,
    aten.addmv.default,
)
def aten_addmm(self, lhs, rhs, /, out_dtype=None, *, beta=1, alpha=1, returns):
    product = _in_batch(_product(lhs, rhs), lhs, rhs)
    return cast(_affine(self, product, beta, alpha), returns.dtype)


def _rows(array):
    """An array whose last dim are features, as a matrix on one device: one product of matrices is
    what XLA's CPU compiler does best. Over several devices the other dims stay apart, including
    those that a reshape has merged; XLA itself makes matrices of a device's shard."""
    if sharded.num_devices() == 1:
        return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
    return sharded.reshaped(folds.apart(array, *range(array.ndim - 1))[0], array)


def _summed_rows(lhs, rhs):
    """The rows, over which a product sums, as one dim, unless a dim of them after the first is
    known to be sharded."""
    if any(sharded.axes_at(x, dim) for x in (lhs, rhs) for dim in range(1, x.ndim - 1)):
        return lhs, rhs
    return tuple(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) for x in (lhs, rhs))


@lower(aten.linear.default)
def aten_linear(input, weight, bias=None, *, returns):
    rows, columns = _rows(input), jnp.atleast_2d(weight).T
    if bias is None:
        result = _rounded_product(rows, columns, returns.dtype).reshape(returns.shape)
        return _with_parts(result, rows, columns)
    product = _product(rows, columns)
    product = bias.astype(product.dtype) + product
    return cast(product.reshape(returns.shape), returns.dtype)


def _summed_over_rows(lhs, rhs, dtype):
    """The product (m, n) of (..., m) and (..., n), summed over all other dims."""
    if lhs.ndim == 2:
        return _rounded_product(lhs.T, rhs, dtype)
    rows = tuple(range(lhs.ndim - 1))
    kind = dtype if is_rounded(lhs, dtype) else _accumulator(lhs.dtype)
    return cast(
        lax.dot_general(lhs, rhs, ((rows, rows), ((), ())), preferred_element_type=kind), dtype
    )


def _gathered(grad_output, self):
    """The gradient of a product's result, unsharded along the axes that shard the features of
    `self`.

    Where the forward's partial sums were scattered along rows (sequence parallel,
    arXiv:2205.05198), the gradient is gathered once for both gradients. By themselves, partitioners
    gather the weight and exchange the input's gradient.
    """
    of_input, of_grad = sharded.axes_of(self), sharded.axes_of(grad_output)
    if of_input is None or of_grad is None or of_input[0] != of_grad[0]:
        return grad_output
    (mesh, (*_, features)), (_, dims) = of_input, of_grad
    gathered_dims = [tuple(axis for axis in axes if axis not in features) for axes in dims]
    return (
        grad_output if gathered_dims == dims else sharded.placed(grad_output, mesh, *gathered_dims)
    )


def _dims_of_input(self, grad_output):
    """The mesh and the axes of the dims of a product's input, where devices have partial sums of
    its gradient, which is sharded as the input: by itself, a partitioner may scatter the sum of
    each of several products of one input, one by one. None: as the partitioner has it."""
    of_input, of_grad = sharded.axes_of(self), sharded.axes_of(grad_output)
    if of_input is None or of_grad is None or of_input[0] != of_grad[0] or not of_grad[1][-1]:
        return None
    is_free = set(of_grad[1][-1]).isdisjoint(itertools.chain(*of_input[1]))
    return of_input if is_free else None


def _input_gradient(rows, grad, weight, shape, dtype):
    """The gradient of a product's input, in this shape and dtype."""
    product, dims = _rounded_product(grad, weight, grad.dtype), _dims_of_input(rows, grad)
    if dims is not None:
        product = sharded.placed(product.reshape(rows.shape), dims[0], *dims[1])
    result = cast(product.reshape(shape), dtype)
    return _with_parts(result, grad, weight, None if dims is None else dims[1])


@lower(aten.linear_backward.default)
def aten_linear_backward(self, grad_output, weight, output_mask, *, returns):
    rows, grad = _rows(self), _rows(grad_output)
    if rows.shape[:-1] != grad.shape[:-1]:  # only one of them is merged
        lead = max(rows.shape[:-1], grad.shape[:-1], key=len)
        rows, grad = (
            sharded.reshaped(folds.reshaped(x, (*lead, x.shape[-1])), x) for x in (rows, grad)
        )
    grad = _gathered(grad, rows)
    by_row, right = _summed_rows(grad, rows)
    summed = tuple(range(by_row.ndim - 1))
    grads = (
        _input_gradient(rows, grad, weight, returns[0].shape, returns[0].dtype)
        if output_mask[0]
        else None,
        _summed_over_rows(by_row, right, returns[1].dtype) if output_mask[1] else None,
        total(by_row.astype(_accumulator(by_row.dtype)), summed, by_row, returns[2].dtype)
        if output_mask[2]
        else None,
    )
    pairs = zip(grads, returns, strict=True)
    return tuple(
        None if grad is None else cast(grad.reshape(like.shape), like.dtype) for grad, like in pairs
    )


@lower(aten.addbmm.default)
def aten_addbmm(self, batch1, batch2, *, beta=1, alpha=1, returns):
    contract = (((0, 2), (0, 1)), ((), ()))
    product = lax.dot_general(
        batch1, batch2, contract, preferred_element_type=_accumulator(batch1.dtype)
    )
    return cast(_affine(self, product, beta, alpha), returns.dtype)


@lower(aten.mv.default, aten.dot.default)
def aten_mv(self, vec, /):
    return _product(self, vec).astype(self.dtype)


@lower(aten._int_mm.default)
def aten_int_mm(self, mat2):
    return jnp.matmul(self, mat2, preferred_element_type=jnp.int32)


@lower(aten._scaled_mm.default)
def aten_scaled_mm(
    self,
    mat2,
    scale_a,
    scale_b,
    bias=None,
    scale_result=None,
    out_dtype=None,
    use_fast_accum=False,
    *,
    returns,
):
    """The product of eight-bit floats, its sums in float32, times their scales: one a matrix or one
    a row and column. use_fast_accum: the chip's units may add in fewer bits."""
    precision = lax.Precision.DEFAULT if use_fast_accum else lax.Precision.HIGHEST
    product = jnp.matmul(self, mat2, precision=precision, preferred_element_type=jnp.float32)
    product = product * scale_a * scale_b
    if bias is not None:
        product = product + bias.astype(product.dtype)
    if returns.dtype in (jnp.float8_e4m3fn, jnp.float8_e5m2):
        if scale_result is not None:  # torch ignores it elsewhere
            product = product / scale_result
        # CUDA's instruction for this rounding stops at the largest number (`cvt.satfinite`; it has
        # no other mode). CPU kernels differ: torch's own returns infinities of e5m2, oneDNN's, on
        # processors with AMX, NaN.
        limit = float(jnp.finfo(returns.dtype).max)
        product = jnp.clip(product, -limit, limit)
    return cast(product, returns.dtype)


@lower(aten._scaled_mm_v2.default)
def aten_scaled_mm_v2(
    self,
    mat2,
    scale_a,
    recipe_a,
    swizzle_a,
    scale_b,
    recipe_b,
    swizzle_b,
    bias,
    out_dtype,
    contraction_dim=(),
    use_fast_accum=False,
    *,
    returns,
):
    return aten_scaled_mm(
        self, mat2, *scale_a, *scale_b, bias, use_fast_accum=use_fast_accum, returns=returns
    )


@lower(aten._grouped_mm.default)
def aten_grouped_mm(
    self,
    mat2,
    offs=None,
    bias=None,
    out_dtype=None,
    *,
    returns,
    products=(rows_by_group, groups_of_rows),
):
    """One product a group: `offs` has the end of each group's rows (columns, or inner dim when both
    are matrices)."""
    of_rows, of_groups = products
    if offs is None:
        product = _product(self, mat2)
    elif self.ndim == 3:  # a group is a run of mat2's columns
        product = of_rows(mat2.T, jnp.swapaxes(self, 1, 2), offs).T
    else:
        product = (of_rows if mat2.ndim == 3 else of_groups)(self, mat2, offs)
    if bias is not None:
        product = product + bias.astype(product.dtype)
    return product.astype(returns.dtype)


@lower(aten._trilinear.default)
def aten_trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim, unroll_dim=1):
    """The sum over `sumdim` of the product of three arrays, with new dims of size 1 inserted first
    (for `bilinear`, too)."""
    arrays = [
        jnp.expand_dims(array, tuple(dims))
        for array, dims in ((i1, expand1), (i2, expand2), (i3, expand3))
    ]
    wide = [array.astype(_accumulator(array.dtype)) for array in arrays]
    return jnp.sum(wide[0] * wide[1] * wide[2], axis=tuple(sumdim)).astype(i1.dtype)
