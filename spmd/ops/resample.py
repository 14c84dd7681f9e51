"""Resampling of planes and volumes: interpolation, and grid sampling, at positions that are data.

Interpolation works one dim at a time. Its forward gathers the few taps of each output position, so
that an infinity does not spread; its gradient is a product with the small matrix of the taps, as a
scatter-add would be slower.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from .floats import widened
from .registry import as_promised, lower, present
from .windows import multiplied

aten = torch.ops.aten


def _computed(x):
    """x in the compute dtype of interpolation; integers (uint8 images) in float32."""
    return widened(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)


def _stored(x, dtype):
    if jnp.issubdtype(dtype, jnp.inexact):
        return x.astype(dtype)
    limits = jnp.iinfo(dtype)
    return jnp.clip(jnp.round(x), limits.min, limits.max).astype(dtype)


# -- Taps: for one dim, the positions of the input that an output position reads ([taps, out]), and
# their weights.


def _scale(size, out, align_corners, factor, real):
    if align_corners:
        return real(size - 1) / real(out - 1) if out > 1 else real(0)
    return real(1 / factor) if factor is not None and factor > 0 else real(size) / real(out)


def _sources(size, out, align_corners, factor, real, clip):
    scale, steps = _scale(size, out, align_corners, factor, real), np.arange(out, dtype=real)
    result = steps * scale if align_corners else (steps + real(0.5)) * scale - real(0.5)
    return np.maximum(result, real(0)) if clip else result


def _linear_taps(size, out, align_corners, factor, real):
    sources = _sources(size, out, align_corners, factor, real, clip=True)
    low = np.minimum(np.floor(sources).astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    weight = np.clip(sources - low, 0, 1).astype(real)
    return np.stack([low, high]), np.stack([1 - weight, weight])


def _cubic_near(x, a):
    return ((a + 2) * x - (a + 3)) * x * x + 1


def _cubic_far(x, a):
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def _cubic_weight(distance, a):
    x = np.abs(distance)
    return np.where(x <= 1, _cubic_near(x, a), np.where(x < 2, _cubic_far(x, a), 0))


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
    """The taps as a matrix [out, in]."""
    indices, weights = taps
    return np.einsum(
        "to,toi->oi", weights.astype(np.float64), indices[..., None] == np.arange(size)
    )


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


# is_smooth: antialiased, with many taps where the image shrinks, so that both directions are
# products.
@lower(
    aten.upsample_linear1d.default,
    aten.upsample_bilinear2d.default,
    aten.upsample_trilinear3d.default,
    mode="linear",
)
@lower(aten.upsample_bicubic2d.default, mode="cubic")
@lower(aten._upsample_bilinear2d_aa.default, mode="linear", is_smooth=True)
@lower(aten._upsample_bicubic2d_aa.default, mode="cubic", is_smooth=True)
# torch 2.13 has it, torch 2.11 does not
@lower(*present("aten._upsample_lanczos2d_aa.default"), mode="lanczos", is_smooth=True)
def aten_upsample(self, output_size, align_corners, *factors, mode, is_smooth=False):
    result = _computed(self)
    for axis, (out, factor) in enumerate(zip(output_size, factors, strict=True), 2):
        how = self.shape[axis], out, align_corners, factor, _real(result)
        if is_smooth:
            result = multiplied(result, _smooth_matrix(*how, mode), axis)
        else:
            result = _gathered(result, _TAPS[mode](*how), axis)
    return _stored(result, self.dtype)


@lower(
    aten.upsample_linear1d_backward.default,
    aten.upsample_bilinear2d_backward.default,
    aten.upsample_trilinear3d_backward.default,
    mode="linear",
)
@lower(aten.upsample_bicubic2d_backward.default, mode="cubic")
@lower(aten._upsample_bilinear2d_aa_backward.default, mode="linear", is_smooth=True)
@lower(aten._upsample_bicubic2d_aa_backward.default, mode="cubic", is_smooth=True)
@lower(*present("aten._upsample_lanczos2d_aa_backward.default"), mode="lanczos", is_smooth=True)
def aten_upsample_backward(
    grad_output, output_size, input_size, align_corners, *factors, mode, is_smooth=False
):
    result = widened(grad_output)
    for axis, (size, out, factor) in enumerate(
        zip(input_size[2:], output_size, factors, strict=True), 2
    ):
        how = size, out, align_corners, factor, _real(result)
        matrix = _smooth_matrix(*how, mode) if is_smooth else _matrix(_TAPS[mode](*how), size)
        result = multiplied(result, matrix.T, axis)
    return result.astype(grad_output.dtype)


# -- Nearest: `offset` 0 reads the position below, 0.5 the truly nearest one ("nearest_exact").


def _nearest(size, out, factor, offset):
    """The position of the input that each output position reads; and the number of times that each
    is read, if it is the same for all, else None."""
    scale = _scale(size, out, False, factor, np.float32)
    steps = np.arange(out, dtype=np.float32) + np.float32(offset)
    indices = np.minimum(np.floor(steps * scale).astype(np.int64), size - 1)
    is_even = out % size == 0 and (indices == np.arange(out) // (out // size)).all()
    return indices, out // size if is_even else None


@lower(*(getattr(aten, f"upsample_nearest{rank}d").default for rank in (1, 2, 3)), offset=0.0)
@lower(
    *(getattr(aten, f"_upsample_nearest_exact{rank}d").default for rank in (1, 2, 3)), offset=0.5
)
def aten_upsample_nearest(self, output_size, *factors, offset):
    for axis, (out, factor) in enumerate(zip(output_size, factors, strict=True), 2):
        indices, times = _nearest(self.shape[axis], out, factor, offset)
        self = (
            jnp.take(self, indices, axis=axis)
            if times is None
            else jnp.repeat(self, times, axis=axis)
        )
    return self


@lower(
    *(getattr(aten, f"upsample_nearest{rank}d_backward").default for rank in (1, 2, 3)), offset=0.0
)
@lower(
    *(getattr(aten, f"_upsample_nearest_exact{rank}d_backward").default for rank in (1, 2, 3)),
    offset=0.5,
)
def aten_upsample_nearest_backward(grad_output, output_size, input_size, *factors, offset):
    result = widened(grad_output)
    for axis, (size, out, factor) in enumerate(
        zip(input_size[2:], output_size, factors, strict=True), 2
    ):
        indices, times = _nearest(size, out, factor, offset)
        if times is None:
            result = multiplied(result, indices[None] == np.arange(size)[:, None], axis)
        else:
            result = result.reshape(
                *result.shape[:axis], size, times, *result.shape[axis + 1 :]
            ).sum(axis + 1)
    return result.astype(grad_output.dtype)


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
    """x clipped to the plane; the gradient of clipped positions, and of those on the border, is
    zero."""
    return jnp.where((x > 0) & (x < size - 1), x, lax.stop_gradient(jnp.clip(x, 0, size - 1)))


def _padded(x, size, padding_mode, align_corners):
    if padding_mode == _ZEROS:
        return x
    if padding_mode == _REFLECTION:
        x = _reflected(x, 0, 2 * (size - 1)) if align_corners else _reflected(x, -1, 2 * size - 1)
    x = _within(x, size)
    return jnp.where(jnp.isnan(x), jnp.zeros_like(x), x)


def _lookup(planes, positions, sizes):
    """planes [N, C, elements] at integer positions (one [N, places] array per dim); zero
    outside."""
    inside, flat = True, 0
    for position, size in zip(positions, sizes, strict=True):
        inside = inside & (position >= 0) & (position <= size - 1)
        flat = flat * size + jnp.clip(jnp.nan_to_num(position), 0, size - 1).astype(jnp.int32)
    values = jnp.take_along_axis(planes, flat[:, None], axis=2)
    return jnp.where(inside[:, None], values, jnp.zeros((), planes.dtype))


def _cubic_coefficients(t):
    return [
        _cubic_far(t + 1, -0.75),
        _cubic_near(t, -0.75),
        _cubic_near(1 - t, -0.75),
        _cubic_far(2 - t, -0.75),
    ]


def _axis_taps(source, size, mode, padding_mode, align_corners):
    """The (position, weight) of each tap along a dim."""
    if mode == _BICUBIC:  # torch pads each tap by itself
        low = jnp.floor(source)
        return [
            (_padded(lax.stop_gradient(low) + tap - 1, size, padding_mode, align_corners), weight)
            for tap, weight in enumerate(_cubic_coefficients(source - low))
        ]
    source = _padded(source, size, padding_mode, align_corners)
    if mode == _NEAREST:
        return [(jnp.round(source), 1)]
    low = lax.stop_gradient(jnp.floor(source))
    return [(low, (low + 1) - source), (low + 1, source - low)]


def _sampled(x, grid, mode, padding_mode, align_corners):
    sizes, rank = x.shape[2:], x.ndim - 2
    planes = x.reshape(*x.shape[:2], -1)
    # The grid's last dim is (x, y, z): the reverse of the order of dims.
    sources = [
        _unnormalized(
            grid[..., rank - 1 - dim].reshape(grid.shape[0], -1), sizes[dim], align_corners
        )
        for dim in range(rank)
    ]
    axes = [
        _axis_taps(s, n, mode, padding_mode, align_corners)
        for s, n in zip(sources, sizes, strict=True)
    ]
    total = 0
    for taps in itertools.product(*axes):
        weight = math.prod(weight for _, weight in taps)
        values = _lookup(planes, [lax.stop_gradient(position) for position, _ in taps], sizes)
        total = total + (values if isinstance(weight, int) else values * weight[:, None])
    return total.reshape(*x.shape[:2], *grid.shape[1:-1])


@lower(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default, empty=True)
def aten_grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners):
    return _sampled(
        widened(input), widened(grid), interpolation_mode, padding_mode, align_corners
    ).astype(input.dtype)


@lower(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default, empty=True)
def aten_grid_sampler_backward(
    grad_output,
    input,
    grid,
    interpolation_mode,
    padding_mode,
    align_corners,
    output_mask,
    *,
    returns,
):
    def sample(x, places):
        return _sampled(x, places, interpolation_mode, padding_mode, align_corners)

    _, pull = jax.vjp(sample, widened(input), widened(grid))
    result = pull(widened(grad_output))
    return as_promised(
        [grad if is_needed else None for grad, is_needed in zip(result, output_mask, strict=True)],
        returns,
    )
