"""Resampling of planes and volumes: interpolation, grid sampling, windows as columns, reflection and replication.

Interpolation works one dim at a time. Its forward gathers the few taps of each output position, so that an infinity
stays where it is; its gradient is a product with the small matrix of the taps, as a scatter-add would be slower.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from .registry import lower

aten = torch.ops.aten


def _wide(x):
    return x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x


def _computed(x):
    """x in the dtype that interpolation computes in; integers (uint8 images) in float32."""
    return _wide(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)


def _stored(x, dtype):
    if jnp.issubdtype(dtype, jnp.inexact):
        return x.astype(dtype)
    limits = jnp.iinfo(dtype)
    return jnp.clip(jnp.round(x), limits.min, limits.max).astype(dtype)


# -- Taps: for one dim, which positions of the input an output position reads ([taps, out]) and with which weights.


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
    made = _wide(grad)
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
        made = _wide(grad_output)
        for dim, (out, factor) in enumerate(zip(output_size, (scales_h, scales_w), strict=True)):
            matrix = _smooth_matrix(input_size[2 + dim], out, align_corners, factor, _real(made), mode)
            made = _product(made, matrix.T, 2 + dim)
        return made.astype(grad_output.dtype)

    return forward, backward


for _mode, _forward, _backward in (
    ("linear", aten._upsample_bilinear2d_aa.default, aten._upsample_bilinear2d_aa_backward.default),
    ("cubic", aten._upsample_bicubic2d_aa.default, aten._upsample_bicubic2d_aa_backward.default),
    ("lanczos", aten._upsample_lanczos2d_aa.default, aten._upsample_lanczos2d_aa_backward.default),
):
    _rules = _smooth(_mode)
    lower(_forward)(_rules[0])
    lower(_backward)(_rules[1])


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
    made = _wide(grad)
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


# -- Grid sampling: modes and paddings are torch's numbers.

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _unnormalized(coordinate, size, align_corners):
    return (coordinate + 1) / 2 * (size - 1) if align_corners else ((coordinate + 1) * size - 1) / 2


def _reflected(x, twice_low, twice_high):
    if twice_low == twice_high:
        return jnp.zeros_like(x)
    low, span = twice_low / 2, (twice_high - twice_low) / 2
    x = jnp.abs(x - low)
    flips, extra = jnp.floor(x / span), jnp.fmod(x, span)
    return jnp.where(flips % 2 == 0, extra + low, span - extra + low)


def _within(x, size):
    """x cut to the plane; the gradient of what was cut, or lies on the border, is zero."""
    return jnp.where((x > 0) & (x < size - 1), x, lax.stop_gradient(jnp.clip(x, 0, size - 1)))


def _padded(x, size, padding_mode, align_corners):
    if padding_mode == _ZEROS:
        return x
    if padding_mode == _REFLECTION:
        x = _reflected(x, 0, 2 * (size - 1)) if align_corners else _reflected(x, -1, 2 * size - 1)
    x = _within(x, size)
    return jnp.where(jnp.isnan(x), jnp.zeros_like(x), x)


def _lookup(planes, positions, sizes):
    """planes [N, C, elements] at integer positions (one [N, places] array per dim); zero outside."""
    inside, flat = True, 0
    for position, size in zip(positions, sizes, strict=True):
        inside = inside & (position >= 0) & (position <= size - 1)
        flat = flat * size + jnp.clip(jnp.nan_to_num(position), 0, size - 1).astype(jnp.int32)
    values = jnp.take_along_axis(planes, flat[:, None], axis=2)
    return jnp.where(inside[:, None], values, jnp.zeros((), planes.dtype))


def _cubic_coefficients(t):
    a = -0.75

    def near(x):
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x):
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _bicubic_axis(source, size, padding_mode, align_corners):
    """[(positions, weights)] of four taps; torch pads each tap by itself."""
    low = jnp.floor(source)
    weights = _cubic_coefficients(source - low)
    return [
        (_padded(lax.stop_gradient(low) + place - 1, size, padding_mode, align_corners), weights[place])
        for place in range(4)
    ]


def _sampled(x, grid, mode, padding_mode, align_corners):
    sizes, rank = x.shape[2:], x.ndim - 2
    planes = x.reshape(*x.shape[:2], -1)
    # The grid's last dim is (x, y, z): the reverse of the order of dims.
    sources = [
        _unnormalized(grid[..., rank - 1 - dim].reshape(grid.shape[0], -1), sizes[dim], align_corners)
        for dim in range(rank)
    ]
    if mode == _BICUBIC:
        axes = [_bicubic_axis(s, n, padding_mode, align_corners) for s, n in zip(sources, sizes, strict=True)]
    else:
        sources = [_padded(s, n, padding_mode, align_corners) for s, n in zip(sources, sizes, strict=True)]
        axes = [_nearest_axis_taps(s) if mode == _NEAREST else _linear_axis_taps(s) for s in sources]
    total = 0
    for taps in itertools.product(*axes):
        weight = math.prod(weight for _, weight in taps)
        values = _lookup(planes, [lax.stop_gradient(position) for position, _ in taps], sizes)
        total = total + (values if isinstance(weight, int) else values * weight[:, None])
    return total.reshape(*x.shape[:2], *grid.shape[1:-1])


def _nearest_axis_taps(source):
    return [(jnp.round(source), 1)]


def _linear_axis_taps(source):
    low = lax.stop_gradient(jnp.floor(source))
    return [(low, (low + 1) - source), (low + 1, source - low)]


@lower(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def aten_grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners):
    return _sampled(_wide(input), _wide(grid), interpolation_mode, padding_mode, align_corners).astype(input.dtype)


@lower(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def aten_grid_sampler_backward(
    grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask, *, returns
):
    def sample(x, places):
        return _sampled(x, places, interpolation_mode, padding_mode, align_corners)

    _, pull = jax.vjp(sample, _wide(input), _wide(grid))
    made = pull(_wide(grad_output))
    return tuple(
        None if promised is None else (grad if wanted else jnp.zeros_like(grad)).astype(promised.dtype)
        for grad, wanted, promised in zip(made, output_mask, returns, strict=True)
    )


# -- Windows as columns.


def _windows(x, kernel_size, dilation, padding, stride):
    """[N, C, kernel places, window places] of x [N, C, H, W]."""
    pads = [(0, 0, 0)] * 2 + [(pad, pad, 0) for pad in padding]
    padded = lax.pad(x, jnp.zeros((), x.dtype), pads)
    counts = [(padded.shape[2 + d] - dilation[d] * (kernel_size[d] - 1) - 1) // stride[d] + 1 for d in range(2)]
    parts = []
    for place in np.ndindex(*kernel_size):
        start = [0, 0] + [place[d] * dilation[d] for d in range(2)]
        stop = list(x.shape[:2]) + [start[2 + d] + (counts[d] - 1) * stride[d] + 1 for d in range(2)]
        parts.append(lax.slice(padded, start, stop, (1, 1, *stride)).reshape(*x.shape[:2], -1))
    return jnp.stack(parts, axis=2)


def _pair(values):
    return tuple(values) * 2 if len(values) == 1 else tuple(values)


@lower(aten.im2col.default)
def aten_im2col(self, kernel_size, dilation, padding, stride, *, returns):
    if 0 in returns.shape:
        return jnp.zeros(returns.shape, returns.dtype)
    batched = self.reshape(-1, *self.shape[-3:])
    made = _windows(batched, *map(_pair, (kernel_size, dilation, padding, stride)))
    return made.reshape(returns.shape)


@lower(aten.col2im.default)
def aten_col2im(self, output_size, kernel_size, dilation, padding, stride, *, returns):
    kernel_size, dilation, padding, stride = map(_pair, (kernel_size, dilation, padding, stride))
    shape = (math.prod(returns.shape[:-3]), *returns.shape[-3:])
    if self.size == 0:
        return jnp.zeros(returns.shape, returns.dtype)
    wide = _wide(self)
    like = jax.ShapeDtypeStruct(shape, wide.dtype)
    function = lambda x: _windows(x, kernel_size, dilation, padding, stride)  # noqa: E731
    columns = wide.reshape(jax.eval_shape(function, like).shape)
    (made,) = jax.linear_transpose(function, like)(columns)
    return made.reshape(returns.shape).astype(self.dtype)


# -- Padding by reflection ("reflect") and by repetition ("edge"); negative padding cuts.


def _bordered(x, padding, mode):
    pairs = [(padding[2 * i], padding[2 * i + 1]) for i in reversed(range(len(padding) // 2))]
    widths = [(0, 0)] * (x.ndim - len(pairs)) + [(max(low, 0), max(high, 0)) for low, high in pairs]
    made = jnp.pad(x, widths, mode=mode)
    lead = x.ndim - len(pairs)
    for dim, (low, high) in enumerate(pairs):
        made = lax.slice_in_dim(made, max(-low, 0), made.shape[lead + dim] - max(-high, 0), axis=lead + dim)
    return made


def _register_padding(name, mode):
    def forward(self, padding):
        return _bordered(self, padding, mode)

    def backward(grad_output, self, padding):
        wide = _wide(grad_output)
        like = jax.ShapeDtypeStruct(self.shape, wide.dtype)
        (made,) = jax.linear_transpose(lambda x: _bordered(x, padding, mode), like)(wide)
        return made.astype(grad_output.dtype)

    for rank in (1, 2, 3):
        lower(getattr(aten, f"{name}{rank}d").default)(forward)
        lower(getattr(aten, f"{name}{rank}d_backward").default)(backward)


_register_padding("reflection_pad", "reflect")
_register_padding("replication_pad", "edge")
