"""Resampling of planes and volumes: interpolation. Sampling at positions that are data is in `grid`.

Interpolation works one dim at a time. Its forward gathers the few taps of each output position, so that an infinity
does not spread; its gradient is a product with the small matrix of the taps, as a scatter-add would be slower.
"""

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from .floats import widened
from .registry import lower, present

aten = torch.ops.aten


def _computed(x):
    """x in the compute dtype of interpolation; integers (uint8 images) in float32."""
    return widened(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)


def _stored(x, dtype):
    if jnp.issubdtype(dtype, jnp.inexact):
        return x.astype(dtype)
    limits = jnp.iinfo(dtype)
    return jnp.clip(jnp.round(x), limits.min, limits.max).astype(dtype)


# -- Taps: for one dim, the positions of the input that an output position reads ([taps, out]), and their weights.


def _scale(size, out, align_corners, factor, real):
    if align_corners:
        return real(size - 1) / real(out - 1) if out > 1 else real(0)
    return real(1 / factor) if factor is not None and factor > 0 else real(size) / real(out)


def _nearest_taps(size, out, factor, offset):
    scale = np.float32(1 / factor) if factor is not None and factor > 0 else np.float32(size) / np.float32(out)
    steps = np.arange(out, dtype=np.float32) + np.float32(offset)
    return np.minimum(np.floor(steps * scale).astype(np.int64), size - 1)


def _sources(size, out, align_corners, factor, real, clip):
    scale, steps = _scale(size, out, align_corners, factor, real), np.arange(out, dtype=real)
    made = steps * scale if align_corners else (steps + real(0.5)) * scale - real(0.5)
    return np.maximum(made, real(0)) if clip else made


def _linear_taps(size, out, align_corners, factor, real):
    sources = _sources(size, out, align_corners, factor, real, clip=True)
    low = np.minimum(np.floor(sources).astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    weight = np.clip(sources - low, 0, 1).astype(real)
    return np.stack([low, high]), np.stack([1 - weight, weight])


def _cubic_weight(distance, a):
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _cubic_taps(size, out, align_corners, factor, real):
    sources = _sources(size, out, align_corners, factor, real, clip=False)
    low = np.floor(sources).astype(np.int64)
    offsets = np.arange(-1, 3)[:, None]
    weights = _cubic_weight((sources - low)[None] - offsets, -0.75).astype(real)
    return np.clip(low + offsets, 0, size - 1), weights


def _lanczos_weight(distance):
    return np.where(np.abs(distance) < 3, np.sinc(distance) * np.sinc(distance / 3), 0)


_FILTERS = {
    "linear": (1, lambda x: np.maximum(1 - np.abs(x), 0)),
    "cubic": (2, lambda x: _cubic_weight(x, -0.5)),
    "lanczos": (3, _lanczos_weight),
}


def _smooth_matrix(size, out, align_corners, factor, real, mode):
    """[out, in] weights of an antialiased resize: the filter is as wide as the scale."""
    reach, function = _FILTERS[mode]
    scale = float(_scale(size, out, align_corners, factor, real))
    support, inverse = (reach * scale, 1 / scale) if scale >= 1 else (float(reach), 1.0)
    centers = scale * (np.arange(out) + 0.5)
    first = np.maximum((centers - support + 0.5).astype(np.int64), 0)[:, None]
    last = np.minimum((centers + support + 0.5).astype(np.int64), size)[:, None]
    positions = np.arange(size)[None]
    weights = function((positions - centers[:, None] + 0.5) * inverse)
    weights = np.where((positions >= first) & (positions < last), weights, 0)
    return weights / weights.sum(axis=1, keepdims=True)


def _matrix(taps, size):
    indices, weights = taps
    made = np.zeros((indices.shape[1], size), np.float64)
    for index, weight in zip(indices, weights, strict=True):
        np.add.at(made, (np.arange(made.shape[0]), index), weight)
    return made


def _product(x, matrix, axis):
    """x with one axis multiplied by a matrix of [new, old]."""
    made = jnp.tensordot(x, jnp.asarray(matrix, x.dtype), (axis, 1), precision=lax.Precision.HIGHEST)
    return jnp.moveaxis(made, -1, axis)


def _gathered(x, taps, axis):
    indices, weights = taps
    shape = [-1 if dim == axis else 1 for dim in range(x.ndim)]
    parts = [
        jnp.take(x, index, axis=axis) * jnp.asarray(weight, x.dtype).reshape(shape)
        for index, weight in zip(indices, weights, strict=True)
    ]
    return sum(parts[1:], parts[0])


def _real(x):
    return np.float64 if x.dtype == jnp.float64 else np.float32


# -- Interpolation.

_TAPS = {"linear": _linear_taps, "cubic": _cubic_taps}


def _interpolated(x, output_size, align_corners, factors, mode):
    made = _computed(x)
    for dim, (out, factor) in enumerate(zip(output_size, factors, strict=True)):
        taps = _TAPS[mode](x.shape[2 + dim], out, align_corners, factor, _real(made))
        made = _gathered(made, taps, 2 + dim)
    return _stored(made, x.dtype)


def _interpolated_grad(grad, input_size, output_size, align_corners, factors, mode):
    made = widened(grad)
    for dim, (out, factor) in enumerate(zip(output_size, factors, strict=True)):
        size = input_size[2 + dim]
        matrix = _matrix(_TAPS[mode](size, out, align_corners, factor, _real(made)), size)
        made = _product(made, matrix.T, 2 + dim)
    return made.astype(grad.dtype)


@lower(aten.upsample_linear1d.default)
def aten_upsample_linear1d(self, output_size, align_corners, scales=None):
    return _interpolated(self, output_size, align_corners, (scales,), "linear")


@lower(aten.upsample_bilinear2d.default)
def aten_upsample_bilinear2d(self, output_size, align_corners, scales_h=None, scales_w=None):
    return _interpolated(self, output_size, align_corners, (scales_h, scales_w), "linear")


@lower(aten.upsample_trilinear3d.default)
def aten_upsample_trilinear3d(self, output_size, align_corners, scales_d=None, scales_h=None, scales_w=None):
    return _interpolated(self, output_size, align_corners, (scales_d, scales_h, scales_w), "linear")


@lower(aten.upsample_bicubic2d.default)
def aten_upsample_bicubic2d(self, output_size, align_corners, scales_h=None, scales_w=None):
    return _interpolated(self, output_size, align_corners, (scales_h, scales_w), "cubic")


@lower(aten.upsample_linear1d_backward.default)
def aten_upsample_linear1d_backward(grad_output, output_size, input_size, align_corners, scales=None):
    return _interpolated_grad(grad_output, input_size, output_size, align_corners, (scales,), "linear")


@lower(aten.upsample_bilinear2d_backward.default)
def aten_upsample_bilinear2d_backward(
    grad_output, output_size, input_size, align_corners, scales_h=None, scales_w=None
):
    return _interpolated_grad(grad_output, input_size, output_size, align_corners, (scales_h, scales_w), "linear")


@lower(aten.upsample_trilinear3d_backward.default)
def aten_upsample_trilinear3d_backward(
    grad_output, output_size, input_size, align_corners, scales_d=None, scales_h=None, scales_w=None
):
    factors = (scales_d, scales_h, scales_w)
    return _interpolated_grad(grad_output, input_size, output_size, align_corners, factors, "linear")


@lower(aten.upsample_bicubic2d_backward.default)
def aten_upsample_bicubic2d_backward(grad_output, output_size, input_size, align_corners, scales_h=None, scales_w=None):
    return _interpolated_grad(grad_output, input_size, output_size, align_corners, (scales_h, scales_w), "cubic")


# -- Antialiased: many taps when the image shrinks, so both directions are matrix products.


def _smooth(mode):
    def forward(self, output_size, align_corners, scales_h=None, scales_w=None):
        made = _computed(self)
        for dim, (out, factor) in enumerate(zip(output_size, (scales_h, scales_w), strict=True)):
            made = _product(
                made, _smooth_matrix(self.shape[2 + dim], out, align_corners, factor, _real(made), mode), 2 + dim
            )
        return _stored(made, self.dtype)

    def backward(grad_output, output_size, input_size, align_corners, scales_h=None, scales_w=None):
        made = widened(grad_output)
        for dim, (out, factor) in enumerate(zip(output_size, (scales_h, scales_w), strict=True)):
            matrix = _smooth_matrix(input_size[2 + dim], out, align_corners, factor, _real(made), mode)
            made = _product(made, matrix.T, 2 + dim)
        return made.astype(grad_output.dtype)

    return forward, backward


for _mode, _name in (
    ("linear", "_upsample_bilinear2d_aa"),
    ("cubic", "_upsample_bicubic2d_aa"),
    ("lanczos", "_upsample_lanczos2d_aa"),  # torch 2.13 has it, torch 2.11 does not
):
    _forward, _backward = _smooth(_mode)
    lower(*present(f"aten.{_name}.default"))(_forward)
    lower(*present(f"aten.{_name}_backward.default"))(_backward)


# -- Nearest: `offset` 0 reads the position below, 0.5 the truly nearest one ("nearest_exact").


def _nearest_axis(x, axis, out, factor, offset):
    size = x.shape[axis]
    indices = _nearest_taps(size, out, factor, offset)
    if out % size == 0 and (indices == np.arange(out) // (out // size)).all():
        return jnp.repeat(x, out // size, axis=axis)
    return jnp.take(x, indices, axis=axis)


def _nearest(x, output_size, factors, offset):
    for dim, (out, factor) in enumerate(zip(output_size, factors, strict=True)):
        x = _nearest_axis(x, 2 + dim, out, factor, offset)
    return x


def _nearest_grad(grad, input_size, output_size, factors, offset):
    made = widened(grad)
    for dim, (out, factor) in enumerate(zip(output_size, factors, strict=True)):
        axis, size = 2 + dim, input_size[2 + dim]
        indices = _nearest_taps(size, out, factor, offset)
        if out % size == 0 and (indices == np.arange(out) // (out // size)).all():
            made = made.reshape(*made.shape[:axis], size, out // size, *made.shape[axis + 1 :]).sum(axis + 1)
        else:
            made = _product(made, (indices[None] == np.arange(size)[:, None]).astype(np.float64), axis)
    return made.astype(grad.dtype)


def _register_nearest(name, offset):
    def forward1d(self, output_size, scales=None):
        return _nearest(self, output_size, (scales,), offset)

    def forward2d(self, output_size, scales_h=None, scales_w=None):
        return _nearest(self, output_size, (scales_h, scales_w), offset)

    def forward3d(self, output_size, scales_d=None, scales_h=None, scales_w=None):
        return _nearest(self, output_size, (scales_d, scales_h, scales_w), offset)

    def backward1d(grad_output, output_size, input_size, scales=None):
        return _nearest_grad(grad_output, input_size, output_size, (scales,), offset)

    def backward2d(grad_output, output_size, input_size, scales_h=None, scales_w=None):
        return _nearest_grad(grad_output, input_size, output_size, (scales_h, scales_w), offset)

    def backward3d(grad_output, output_size, input_size, scales_d=None, scales_h=None, scales_w=None):
        return _nearest_grad(grad_output, input_size, output_size, (scales_d, scales_h, scales_w), offset)

    rules = ((forward1d, backward1d), (forward2d, backward2d), (forward3d, backward3d))
    for rank, (forward, backward) in enumerate(rules, start=1):
        lower(getattr(aten, f"{name}{rank}d").default)(forward)
        lower(getattr(aten, f"{name}{rank}d_backward").default)(backward)


_register_nearest("upsample_nearest", 0.0)
_register_nearest("_upsample_nearest_exact", 0.5)
