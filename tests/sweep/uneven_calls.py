"""Calls of the rules that no op of torch's database reaches, by overload: a function and its
tensors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

aten = torch.ops.aten
Call = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def _floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def _index(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(high))


def _positive(size: int) -> torch.Tensor:
    return _floats(size, size) @ _floats(size, size).T + size * torch.eye(size)


def _planes(*shape: int) -> tuple[torch.Tensor]:
    return (_floats(3, 5, *shape),)


_CLASSES = (_floats(3, 5, 7, 6).log_softmax(1), _index(5, 3, 7, 6))
_SPACES = _floats(3, 5, 7, 6), [7, 6], [3, 5, 7, 6]
_OFFSETS = torch.tensor([0, 2, 5])
_SCALES = _floats(13).abs() + 0.1


def _bag_gradient(grad: torch.Tensor, ids: torch.Tensor, owner: torch.Tensor) -> Any:
    sizes = torch.tensor([2, 3, 2], device=grad.device)
    return aten._embedding_bag_dense_backward(
        grad, ids, owner, sizes, ids[:3, None].expand(3, 6), 13, False, 0, None
    )


def _scatter(overload: Any, *value: float) -> Callable[..., Any]:
    return lambda x, i, v: overload(x, 0, i, *(value or (v,)), reduce="add")


_MATRICES = _floats(5, 6), _floats(6, 7)


def _in_float32(product: Callable[..., Any], *factors: torch.Tensor) -> torch.Tensor:
    """A product of bfloat16 in float32, which the CPU has no kernel for."""
    narrow = [factor.bfloat16() for factor in factors]
    if narrow[0].is_cpu:
        added = [term.float() for term in getattr(product, "args", ())]
        return sum(added, narrow[0].float() @ narrow[1].float())
    return product(*narrow, out_dtype=torch.float32)


def _with_gradients(
    function: Callable[..., torch.Tensor], *leaves: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    leaves = tuple(leaf.detach().requires_grad_() for leaf in leaves)
    result = function(*leaves)
    return result.detach(), *torch.autograd.grad(result.sin().sum(), leaves)


def _gru(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    def run(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(1, 5, 3, device=x.device)
        return torch.gru(x, state, weights, False, 1, 0.0, False, False, False)[0]

    return _with_gradients(run, x, *weights)


def _loss(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return _with_gradients(lambda x, weight: F.linear_cross_entropy(x, weight, target), x, weight)


CALLS: dict[str, Call] = {
    "aten.fake_quantize_per_tensor_affine_cachemask.default": (
        lambda x: aten.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 3, 0, 15),
        (_floats(13, 6),),
    ),
    "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": (
        lambda x, scale, zero, is_on: (
            aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
                x, scale, zero, is_on, 0, 15
            )
        ),
        (_floats(13, 6), torch.tensor([0.1]), torch.tensor([3]).int(), torch.tensor([1])),
    ),
    "aten.fake_quantize_per_channel_affine_cachemask.default": (
        lambda *x: aten.fake_quantize_per_channel_affine_cachemask(*x, 0, 0, 15),
        (_floats(13, 6), _SCALES, torch.zeros(13, dtype=torch.int32)),
    ),
    "aten._fake_quantize_learnable_per_tensor_affine.default": (
        lambda *x: aten._fake_quantize_learnable_per_tensor_affine(*x, 0, 15),
        (_floats(13, 6), torch.tensor([0.1]), torch.tensor([3.0])),
    ),
    "aten._fake_quantize_learnable_per_channel_affine.default": (
        lambda *x: aten._fake_quantize_learnable_per_channel_affine(*x, 0, 0, 15),
        (_floats(13, 6), _SCALES, torch.zeros(13)),
    ),
    "aten._fake_quantize_learnable_per_tensor_affine_backward.default": (
        lambda *x: aten._fake_quantize_learnable_per_tensor_affine_backward(*x, 0, 15),
        (_floats(13, 6), _floats(13, 6), torch.tensor([0.1]), torch.tensor([3.0])),
    ),
    "aten._fake_quantize_learnable_per_channel_affine_backward.default": (
        lambda *x: aten._fake_quantize_learnable_per_channel_affine_backward(*x, 0, 0, 15),
        (_floats(13, 6), _floats(13, 6), _SCALES, torch.zeros(13)),
    ),
    "aten._cholesky_solve_helper.default": (
        lambda b, a: torch.cholesky_solve(b, torch.linalg.cholesky(a)),
        (_floats(5, 3), _positive(5)),
    ),
    "aten._convolution.default": (
        lambda x, w: aten._convolution(
            x, w, None, [1], [1], [1], False, [0], 1, False, False, False, False
        ),
        (_floats(3, 5, 7), _floats(6, 5, 3)),
    ),
    "aten._embedding_bag_dense_backward.default": (
        _bag_gradient,
        (_floats(3, 6), _index(13, 7), torch.tensor([0, 0, 1, 1, 1, 2, 2])),
    ),
    "aten._embedding_bag_forward_only.default": (
        lambda table, ids, ends: aten._embedding_bag_forward_only(table, ids, ends)[0],
        (_floats(13, 6), _index(13, 7), _OFFSETS),
    ),
    "aten._index_put_impl.default": (
        lambda x, i, v: aten._index_put_impl(x, [i], v, True),
        (_floats(13, 6), _index(13, 7), _floats(7, 6)),
    ),
    "aten._int_mm.default": (
        lambda a, b: torch._int_mm(a, b),
        (_index(9, 18, 6).char(), _index(9, 6, 8).char()),
    ),
    "aten._linalg_eigvals.default": (
        lambda a: aten._linalg_eigvals(a).abs().sort()[0],
        (_positive(5),),
    ),
    "aten.linalg_eigvals.default": (
        lambda a: aten.linalg_eigvals(a).abs().sort()[0],
        (_positive(5),),
    ),
    "aten._native_batch_norm_legit.no_stats": (
        lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5),
        _planes(7),
    ),
    "aten._native_batch_norm_legit_no_training.default": (
        lambda x, m: aten._native_batch_norm_legit_no_training(
            x, None, None, m, m.square() + 1, 0.1, 1e-5
        )[0],
        (_floats(3, 5, 7), _floats(5)),
    ),
    "aten.mm.dtype": (lambda a, b: _in_float32(torch.mm, a, b), _MATRICES),
    "aten.bmm.dtype": (lambda a, b: _in_float32(torch.bmm, a[None], b[None]), _MATRICES),
    "aten.addmm.dtype": (
        lambda a, b: _in_float32(partial(torch.addmm, a.bfloat16()[:, :1]), a, b),
        _MATRICES,
    ),
    "aten.baddbmm.dtype": (
        lambda a, b: _in_float32(
            partial(torch.baddbmm, a.bfloat16()[None, :, :1]), a[None], b[None]
        ),
        _MATRICES,
    ),
    "aten._grouped_mm.default": (
        lambda a, b: torch._grouped_mm(
            a.bfloat16(),
            b.bfloat16().expand(2, -1, -1),
            offs=torch.tensor([2, 5], dtype=torch.int32, device=a.device),
        ),
        (_floats(5, 8), _floats(8, 16)),
    ),
    "spmd.recurrence.default": (_gru, (_floats(7, 5, 6), _floats(9, 6), _floats(9, 3))),
    "spmd.recurrence_backward.default": (_gru, (_floats(7, 5, 6), _floats(9, 6), _floats(9, 3))),
    "spmd.linear_cross_entropy.default": (_loss, (_floats(13, 6), _floats(10, 6), _index(10, 13))),
    "spmd.linear_cross_entropy_backward.default": (
        _loss,
        (_floats(13, 6), _floats(10, 6), _index(10, 13)),
    ),
    "aten.all.dims": (lambda x: aten.all.dims(x > -3, [0, 1]), _planes(7)),
    "aten.bucketize.Scalar": (lambda x: aten.bucketize.Scalar(0.3, x.sort()[0]), (_floats(13),)),
    "aten.searchsorted.Scalar": (lambda x: torch.searchsorted(x.sort()[0], 0.3), (_floats(13),)),
    "aten.l1_loss.default": (lambda x: aten.l1_loss(x, x.roll(1)), (_floats(13),)),
    "aten.nll_loss2d_forward.default": (
        lambda x, y: aten.nll_loss2d_forward(x, y, None, 1, -100)[0],
        _CLASSES,
    ),
    "aten.nll_loss2d_backward.default": (
        lambda x, y: aten.nll_loss2d_backward(x.mean(), x, y, None, 1, -100, x.mean() * 0 + 126),
        _CLASSES,
    ),
    "aten.norm.ScalarOpt_dim_dtype": (
        lambda x: aten.norm.ScalarOpt_dim_dtype(x, 2, [0], False, dtype=torch.float64),
        _planes(7),
    ),
    "aten.norm.ScalarOpt_dtype": (
        lambda x: aten.norm.ScalarOpt_dtype(x, 2, dtype=torch.float64),
        _planes(7),
    ),
    "aten.repeat_interleave.Tensor": (
        lambda n: aten.repeat_interleave.Tensor(n * 0 + 2, output_size=26),
        (_index(3, 13),),
    ),
    "aten.scatter.reduce": (
        _scatter(aten.scatter.reduce),
        (_floats(13, 6), _index(13, 7, 6), _floats(7, 6)),
    ),
    "aten.scatter.value_reduce": (
        _scatter(aten.scatter.value_reduce, 2.0),
        (_floats(13), _index(13, 7), _floats(7)),
    ),
    "aten.sort.stable": (lambda x: aten.sort.stable(x, stable=True, dim=0)[0], (_floats(13, 6),)),
    **{
        f"aten.{kind}_pad{rank}d{end}.default": (function, _planes(*(7, 6, 5)[:rank]))
        for kind, rank in (("reflection", 2), ("reflection", 3), ("replication", 3))
        for end, function in (
            ("", lambda x, k=kind, r=rank: getattr(aten, f"{k}_pad{r}d")(x, [1] * 2 * r)),
            (
                "_backward",
                lambda x, k=kind, r=rank: getattr(aten, f"{k}_pad{r}d_backward")(
                    torch.nn.functional.pad(x, [1] * 2 * r), x, [1] * 2 * r
                ),
            ),
        )
    },
    **{
        f"aten.{kind}{rank}d{end}.default": (function, _planes(*(7, 6, 5)[:rank]))
        for kind, rank in (
            ("upsample_nearest", 2),
            ("upsample_nearest", 3),
            ("_upsample_nearest_exact", 2),
            ("_upsample_nearest_exact", 3),
        )
        for end, function in (
            ("", lambda x, k=kind, r=rank: getattr(aten, f"{k}{r}d")(x, [9, 8, 7][:r])),
            (
                "_backward",
                lambda x, k=kind, r=rank: getattr(aten, f"{k}{r}d_backward")(
                    x, list(x.shape[2:]), [3, 5, 4, 3, 2][: 2 + r]
                ),
            ),
        )
    },
    **{
        f"aten._upsample_{kind}2d_aa{end}.default": (function, _planes(7, 6))
        for kind in ("bicubic", "lanczos")
        if f"_upsample_{kind}2d_aa" in dir(aten)
        for end, function in (
            ("", lambda x, k=kind: getattr(aten, f"_upsample_{k}2d_aa")(x, [5, 9], False)),
            (
                "_backward",
                lambda x, k=kind: getattr(aten, f"_upsample_{k}2d_aa_backward")(
                    x, [7, 6], [3, 5, 9, 5], False
                ),
            ),
        )
    },
}

# Rules that need no case: those that make or draw values, views, and those that compute each
# element alone. Besides these, every rule whose operands torch promotes is elementwise.
ALONE = frozenset({
    "aten.arange.default", "aten.arange.start", "aten.empty.memory_format",
    "aten.empty_like.default", "aten.empty_strided.default", "aten.full.default",
    "aten.full_like.default", "aten.linspace.Scalar_Tensor", "aten.new_empty.default",
    "aten.new_empty_strided.default", "aten.new_full.default", "aten.new_ones.default",
    "aten.new_zeros.default", "aten.ones_like.default", "aten.scalar_tensor.default",
    "aten.zero.default", "aten.zeros_like.default", "aten.fill.Scalar", "aten.fill.Tensor",
    "aten.bernoulli.Tensor", "aten.binomial.default", "aten.poisson.default", "aten.random.default",
    "aten.random.to", "aten.randperm.default", "aten._standard_gamma.default",
    "aten._standard_gamma_grad.default", "aten.normal.float_Tensor", "aten.alias.default",
    "aten.detach.default",
    "aten.lift_fresh.default", "aten.lift_fresh_copy.default", "aten._reshape_alias.default",
    "aten._neg_view.default", "aten.view.dtype",
    "aten._amp_foreach_non_finite_check_and_unscale.default", "aten._amp_update_scale.default",
    "aten._fused_adagrad.default", "aten._fused_adagrad.tensor_lr", "aten._fused_adam.default",
    "aten._fused_adam.tensor_lr", "aten._fused_adamw.default", "aten._fused_adamw.tensor_lr",
    "aten._fused_sgd.default", "aten._fused_sgd.tensor_lr", "spmd.checkpoint_name.default",
    "spmd.place_to_device.default", "spmd.place_to_host.default",
})  # fmt: skip
