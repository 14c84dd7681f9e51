"""Grid sampling: planes read at positions that are data."""

import itertools
import math

import jax
import jax.numpy as jnp
import torch
from jax import lax

from .floats import widened
from .promised import as_promised, zeros
from .registry import lower

aten = torch.ops.aten

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
    """x clipped to the plane; the gradient of clipped positions, and of those on the border, is zero."""
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
def aten_grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners, *, returns):
    if not input.size or 0 in returns.shape:
        return zeros(returns)
    return _sampled(widened(input), widened(grid), interpolation_mode, padding_mode, align_corners).astype(input.dtype)


@lower(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def aten_grid_sampler_backward(
    grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask, *, returns
):
    if not input.size or not grad_output.size:
        return zeros(returns)

    def sample(x, places):
        return _sampled(x, places, interpolation_mode, padding_mode, align_corners)

    _, pull = jax.vjp(sample, widened(input), widened(grid))
    result = pull(widened(grad_output))
    return as_promised([grad if wanted else None for grad, wanted in zip(result, output_mask, strict=True)], returns)
