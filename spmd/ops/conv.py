"""Convolution of one, two and three dimensions, its transpose, and the gradients of both."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from . import sharded
from .floats import wide, widened
from .registry import as_promised, lower
from .sharded import exchanged, is_rounded, total
from .windows import per_dim, taken

aten = torch.ops.aten

_SPECS = {1: ("NCW", "OIW", "NCW"), 2: ("NCHW", "OIHW", "NCHW"), 3: ("NCDHW", "OIDHW", "NCDHW")}
# The gradient of the kernel convolves the input with the output's gradient, with batch and feature
# dims swapped.
_KERNEL_SPECS = {
    1: ("CNW", "IOW", "CNW"),
    2: ("CNHW", "IOHW", "CNHW"),
    3: ("CNDHW", "IODHW", "CNDHW"),
}


# The most elements of a window whose pixels are taken one element after the other, 3 x 3 x 3; the
# most terms of a sum in groups, the elements of a window times the features of a group: 7 x 7 of
# depthwise ones, 3 x 3 of four.
_MOST = 27
_MOST_TERMS = 49
# The most elements of a depthwise window of one dim that a TPU adds one after the other: Mamba's
# (4), forward and all gradients, in 1.40 million cycles, and in 3.96 by convolutions.
_MOST_ON_TPU = 8
# The most groups that are computed each by itself.
_MOST_GROUPS = 32
# From so many pixels of a gradient on the gradient of the kernel is a sum of products of single
# images.
_MANY = 512
# From so many on groups are computed image by image, which fit the cache, as long as one device has
# them all.
_MANY_OF_GROUPS = 256


def _is_product(num_pixels, window, groups):
    """True for a window of one element, and for one that has more elements than the image or
    gradient has pixels."""
    # XLA's own loops compute what its kernels refuse, an image smaller than the window. Of 512
    # channels at 2 x 2 under a window of 3 x 3 the product takes 1/180 of their time, the gradients
    # of input and kernel 1/100 and 1/10; at 4 x 4 with 64 channels twice the time of the kernels. A
    # large window would make as many slices. Of 1 x 1 it takes 0.4 to 1 of the kernels' time, and
    # the gradients 0.5 to 0.8 and 1/10 to 0.6 (docs/decisions/convolutions.md).
    size = math.prod(window)
    return groups == 1 and (size == 1 or num_pixels < size <= _MOST)


def _is_wide(num_pixels, x, grad):
    """True for many pixels and features: products of single images take 0.57 to 0.73 of XLA's
    convolution."""
    # The image of the gradient is the window of that convolution, which takes as long or less where
    # there are fewer.
    features = x.shape[1], grad.shape[1]
    return (
        num_pixels >= _MANY and min(features) >= 64 and max(features) >= 128 and _is_whole(x, grad)
    )


def _is_sum(inner, window, *images):
    """True for groups whose elements of the window are added one after the other: 1/6 to 1/38 of
    XLA's own loops."""
    return inner * math.prod(window) <= _MOST_TERMS and _is_whole(*images)


def _is_short(groups, inner, window, *images):
    """True for depthwise windows of one dim and few elements, which a TPU, too, adds one after the
    other."""
    is_depthwise = groups > inner == len(window) == 1
    return is_depthwise and window[0] <= _MOST_ON_TPU and _is_whole(*images)


def _is_apart(groups, *arrays):
    """True for groups that are convolved each by itself: 1/2 to 1/7 of the time of XLA's kernels
    for groups."""
    return groups <= _MOST_GROUPS and _is_whole(*arrays, first=1)


def _is_whole(*images, first=2):
    """True for unsharded pixels.

    Of sharded ones each element of the window would be an exchange with the neighbour.
    """
    dims = [(image, dim) for image in images for dim in range(first, image.ndim)]
    split = sharded.axes_of_dims(*dims) if sharded.num_devices() > 1 else None
    return split is None or not any(split[1])


def _gathering(*images):
    """A function that gathers the pixels of an image, a kernel or a result where a mesh has several
    axes.

    In the sums of a convolution with split pixels XLA adds up copies, of the image, the kernel or
    the result (jaxlib 0.10.2, both partitioners). Images of the same axes, each device with another
    part, stay split: then all of the kernel is gathered. In a manual region each device has its
    own.
    """
    mesh, manual = sharded.mesh(), jax.sharding.get_abstract_mesh().manual_axes
    if mesh is None or mesh.size in mesh.shape.values() or {*mesh.axis_names} <= {*manual}:
        return lambda array, is_kernel=False: array
    axes = {_axes_but_features(image) for image in images}
    split = sum(axes.pop() or (), ()) if len(axes) == 1 else ()
    if split and sharded.num_shards(mesh, split) == mesh.size:
        return lambda array, is_kernel=False: _whole(array, mesh, first=0) if is_kernel else array
    return lambda array, is_kernel=False: _whole(array, mesh, first=2)


def _axes_but_features(image):
    """The known axes of the batch and of the pixels; None where they are unknown, or shard no
    pixels."""
    dims = sharded.dims_of(image)
    axes = [tuple(axis for _, of_part in parts for axis in of_part) for parts in dims or ()]
    return (axes[0], *axes[2:]) if any(axes[2:]) else None


def _whole(array, mesh, first):
    """The array with these dims and those that follow gathered."""
    dims, space = sharded.dims_of(array), (None,) * (array.ndim - first)
    spec = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * first, *space)
    whole = lax.with_sharding_constraint(array, NamedSharding(mesh, spec))
    return whole if dims is None else sharded.note(whole, (*dims[:first], *[()] * len(space)))


def _each_group(function, groups, x, y, *, into):
    """A function of one group for each of them: x and the other operand (its features are dim
    `into`) are split, the results joined in the other of the first two dims."""
    parts = zip(jnp.split(x, groups, 1), jnp.split(y, groups, into), strict=True)
    return jnp.concatenate([function(*part) for part in parts], 1 - into)


def _on_cpu(product, convolution, *operands, is_short=False):
    """The convolution; in the program of a CPU, and of a TPU if `is_short`, the equal product
    (None: none is faster)."""
    platforms = ("cpu", "tpu") if is_short else ("cpu",)
    if product is None or sharded.platform() not in (None, *platforms):
        return convolution(*operands)
    return lax.platform_dependent(
        *operands, **dict.fromkeys(platforms, product), default=convolution
    )


def _taken(x, *windows):
    """The pixels under each element of a kernel, one after the other, in the dtype to accumulate
    in."""
    return [widened(pixels) for pixels in taken(x, *windows)]


def _patches(x, window, stride, pads, dilation):
    """These pixels as one array [N, C, window, pixels of the result]."""
    slices = _taken(x, window, stride, pads, dilation)
    return jnp.stack(slices, 2).reshape(*x.shape[:2], len(slices), -1), slices[0].shape[2:]


def _product(x, kernel, stride, pads, dilation):
    """`_plain` of one group as a product over patches."""
    if math.prod(kernel.shape[2:]) == 1:
        (pixels,) = _taken(x, kernel.shape[2:], stride, pads, dilation)
        return jnp.einsum(
            "nc...,oc->no...", pixels, kernel.astype(pixels.dtype).reshape(kernel.shape[:2])
        )
    patches, sizes = _patches(x, kernel.shape[2:], stride, pads, dilation)
    kernel = kernel.astype(patches.dtype).reshape(*kernel.shape[:2], -1)
    return jnp.einsum("nckp,ock->nop", patches, kernel).reshape(x.shape[0], kernel.shape[0], *sizes)


def _sum(x, kernel, stride, pads, dilation, groups):
    """`_plain` as a sum over the elements of the window and the features of a group."""
    inner, window = kernel.shape[1], kernel.shape[2:]
    factors = kernel.astype(wide(x.dtype)).reshape(
        groups, -1, inner, math.prod(window), *[1] * len(window)
    )

    def of_image(x):
        slices = _taken(x, window, stride, pads, dilation)
        apart = (
            pixels.reshape(x.shape[0], groups, 1, inner, *pixels.shape[2:]) for pixels in slices
        )
        terms = (
            pixels[:, :, :, c] * factors[:, :, c, i]
            for i, pixels in enumerate(apart)
            for c in range(inner)
        )
        result = sum(terms)
        return result.reshape(x.shape[0], kernel.shape[0], *result.shape[3:])

    is_few = math.prod(x.shape[2:]) < _MANY_OF_GROUPS
    if sharded.num_devices() > 1 or sharded.platform() == "tpu" or is_few:
        return of_image(x)
    # XLA would also compute parts of such a sum again in each op that reads it; the results of a
    # loop it does not.
    return lax.map(lambda image: of_image(image[None])[0], x)


def _convolve(x, kernel, stride, pads, dilation, groups):
    """The plain convolution: x [N, C, ...], kernel [O, C / groups, ...], pads one (low, high) per
    dim."""
    sizes = zip(x.shape[2:], kernel.shape[2:], pads, dilation, stride, strict=True)
    num_pixels = math.prod(
        (size + sum(pad) - (w - 1) * d - 1) // s + 1 for size, w, pad, d, s in sizes
    )
    how = {"stride": stride, "pads": pads, "dilation": dilation}
    product = None
    if _is_product(num_pixels, kernel.shape[2:], groups):
        product = partial(_product, **how)
    elif groups > 1 and _is_sum(*_sizes(kernel), x):
        product = partial(_sum, **how, groups=groups)
    elif groups > 1 and _is_apart(groups, x, kernel):
        product = partial(_each_group, partial(_convolve, **how, groups=1), groups, into=0)
    plain, is_short = partial(_plain, **how, groups=groups), _is_short(groups, *_sizes(kernel), x)
    return _on_cpu(product, plain, x, kernel, is_short=is_short)


def _sizes(kernel):
    """The features of a group, and the window."""
    return kernel.shape[1], kernel.shape[2:]


def _plain(x, kernel, stride, pads, dilation, groups):
    return lax.conv_general_dilated(
        x,
        kernel,
        stride,
        pads,
        rhs_dilation=dilation,
        dimension_numbers=_SPECS[x.ndim - 2],
        feature_group_count=groups,
        preferred_element_type=wide(x.dtype),
    )


def _spread(x, kernel, stride, padding, dilation, groups, sizes):
    """The transpose of `_convolve` in x: x [N, O, ...], kernel [O, C / groups, ...], result [N, C,
    *sizes]."""
    rank, (features, inner, *window) = x.ndim - 2, kernel.shape
    pads = []
    for dim in range(rank):
        reach = dilation[dim] * (window[dim] - 1)
        low = reach - padding[dim]
        pads.append((low, sizes[dim] + reach - low - (x.shape[2 + dim] - 1) * stride[dim] - 1))

    def turned(kernel):
        # Within each group input and output features are swapped; space is flipped.
        flipped = jnp.flip(kernel, tuple(range(2, kernel.ndim))).reshape(
            groups, features // groups, inner, *window
        )
        return jnp.swapaxes(flipped, 1, 2).reshape(groups * inner, features // groups, *window)

    def product_of_groups(x, kernel):
        config = ((0, 0, 0), (0, 0, 0), *((0, 0, step - 1) for step in stride))
        spaced = lax.pad(x, jnp.zeros((), x.dtype), config)
        return _sum(spaced, turned(kernel), (1,) * rank, pads, dilation, groups)

    def convolution(x, kernel):
        return lax.conv_general_dilated(
            x,
            turned(kernel),
            (1,) * rank,
            pads,
            lhs_dilation=stride,
            rhs_dilation=dilation,
            dimension_numbers=_SPECS[rank],
            feature_group_count=groups,
            preferred_element_type=wide(x.dtype),
        )

    # Between pixels that a stride spaces out XLA has no kernel for a window larger than the
    # gradient.
    num_pixels = math.prod(x.shape[2:] if max(stride) > 1 else sizes)
    how = {"stride": stride, "padding": padding, "dilation": dilation, "sizes": sizes}
    product = None
    if _is_product(num_pixels, window, groups):
        product = partial(_spread_by_element, **how)
    elif groups > 1 and _is_sum(features // groups, window, x):
        product = product_of_groups
    elif groups > 1 and _is_apart(groups, x, kernel):
        product = partial(_each_group, partial(_spread, **how, groups=1), groups, into=0)
    is_short = _is_short(groups, features // groups, window, x)
    return _on_cpu(product, convolution, x, kernel, is_short=is_short)


def _spread_by_element(x, kernel, stride, padding, dilation, sizes):
    """`_spread` of one group: one product, and for each element of the window its part of it added
    where it belongs."""
    window, dtype = kernel.shape[2:], wide(x.dtype)
    # The kernel is read as it is: turned, with its features swapped, it would be copied (38 ms of
    # 512 x 512 x 3 x 3).
    parts = jnp.einsum(
        "no...,ock->knc...", x.astype(dtype), kernel.astype(dtype).reshape(*kernel.shape[:2], -1)
    )
    result = jnp.zeros((), dtype)
    for part, element in zip(parts, itertools.product(*map(range, window)), strict=True):
        config = [(0, 0, 0), (0, 0, 0)]
        for i, d, pad, n, step, size in zip(
            element, dilation, padding, x.shape[2:], stride, sizes, strict=True
        ):
            low = i * d - pad
            config.append((low, size - low - (n - 1) * step - 1, step - 1))
        result += lax.pad(part, jnp.zeros((), dtype), config)
    return result


def _kernel_grad(x, grad, window, stride, padding, dilation, groups):
    """The gradient of `_convolve` in its kernel: x [N, C, ...], grad [N, O, ...], result [O, C /
    groups, *window]."""
    rank, pads, num_pixels = x.ndim - 2, [], math.prod(grad.shape[2:])
    for dim in range(rank):
        covered = (window[dim] - 1) * dilation[dim] + (grad.shape[2 + dim] - 1) * stride[dim] + 1
        pads.append((padding[dim], covered - x.shape[2 + dim] - padding[dim]))

    def product_of_elements(x, grad):
        slices = _taken(x, window, stride, pads, dilation)
        grad = grad.astype(slices[0].dtype)
        if num_pixels < _MANY:
            products = [jnp.einsum("nc...,no...->oc", pixels, grad) for pixels in slices]
        else:
            products = [jnp.einsum("nc...,no...->noc", pixels, grad).sum(0) for pixels in slices]
        return jnp.stack(products, -1).reshape(grad.shape[1], x.shape[1], *window)

    def product(x, grad):
        patches, _ = _patches(x, window, stride, pads, dilation)
        grad = grad.astype(patches.dtype).reshape(*grad.shape[:2], -1)
        return jnp.einsum("nckp,nop->ock", patches, grad).reshape(
            grad.shape[1], x.shape[1], *window
        )

    is_short = grad.shape[1] == groups and _is_short(groups, x.shape[1] // groups, window, x, grad)

    def product_of_groups(x, grad):
        # XLA's own loops, its only way on a CPU, take up to 300 times as long (32 groups of 4).
        inner = x.shape[1] // groups
        grad = grad.astype(wide(x.dtype)).reshape(x.shape[0], groups, -1, *grad.shape[2:])

        def of_images(x, grad):
            slices = _taken(x, window, stride, pads, dilation)
            slices = [
                pixels.reshape(x.shape[0], groups, inner, *pixels.shape[2:]) for pixels in slices
            ]
            if sharded.platform() == "tpu":  # which would make products of one element of them
                sums = [(pixels * grad).sum((0, *range(3, grad.ndim))) for pixels in slices]
                return jnp.stack(sums, -1)[:, None]
            return jnp.stack(
                [jnp.einsum("ngc...,ngo...->goc", pixels, grad) for pixels in slices], -1
            )

        is_few = num_pixels < _MANY_OF_GROUPS
        if sharded.num_devices() > 1 or sharded.platform() == "tpu" or is_few:
            result = of_images(x, grad)
        else:
            zeros = jnp.zeros((*grad.shape[1:3], inner, math.prod(window)), grad.dtype)
            add = lambda total, image: (total + of_images(*(a[None] for a in image)), None)  # noqa: E731
            result, _ = lax.scan(add, zeros, (x, grad))
        return result.reshape(-1, inner, *window)

    def convolution(x, grad):
        return lax.conv_general_dilated(
            x,
            grad,
            dilation,
            pads,
            rhs_dilation=stride,
            dimension_numbers=_KERNEL_SPECS[rank],
            batch_group_count=groups,
            preferred_element_type=wide(x.dtype),
        )

    if groups > 1 and x.shape[1] > groups and _is_apart(groups, x, grad):
        of_group = partial(
            _kernel_grad, window=window, stride=stride, padding=padding, dilation=dilation, groups=1
        )
        return _on_cpu(partial(_each_group, of_group, groups, into=1), convolution, x, grad)
    if groups > 1:
        is_few = math.prod(window) <= _MOST_TERMS and _is_whole(x, grad)
        product = product_of_groups if is_few else None
        return _on_cpu(product, convolution, x, grad, is_short=is_short)
    if math.prod(window) == 1 or _is_wide(num_pixels, x, grad):
        return _on_cpu(product_of_elements, convolution, x, grad)
    return _on_cpu(
        product if _is_product(num_pixels, window, groups) else None, convolution, x, grad
    )


def _kernel_grad_in(x, grad, window, stride, padding, dilation, groups, dtype):
    """`_kernel_grad` in a dtype. Where that is narrower than the accumulator, each device sums its
    own rows and rounds the sum before the exchange: no convolution has a narrower result than its
    operands."""
    how = (window, stride, padding, dilation, groups)
    split = _rows_split(x, grad, groups) if is_rounded(x, dtype) else None
    if split is None:
        return _kernel_grad(x, grad, *how).astype(dtype)
    mesh, rows, inner, features = split
    parts = jax.shard_map(
        lambda x, grad: _kernel_grad(x, grad, *how)[None],
        mesh=mesh,
        check_vma=False,
        in_specs=(sharded.spec(rows, inner), sharded.spec(rows, features)),
        out_specs=sharded.spec(rows, features, inner),
    )
    return exchanged(parts(x, grad), dtype)


def _rows_split(x, grad, groups):
    """The mesh, and the axes that shard the batch, the input's features and the output's. None
    where the batch is not known to be sharded, or where the other sharded dims take more than one
    product per device."""
    rank = x.ndim - 2
    space = [(array, 2 + dim) for array in (x, grad) for dim in range(rank)]
    for array in (x, grad):
        split = sharded.axes_of_dims((array, 0), (x, 1), (grad, 1), *space)
        if split is not None and split[1][0]:
            mesh, (rows, inner, features, *space_axes) = split
            is_one_product = not any(space_axes) and (groups == 1 or not (inner or features))
            return (mesh, rows, inner, features) if is_one_product else None
    return None


@lower(aten.convolution.default, aten._convolution.default)
def aten_convolution(
    input,
    weight,
    bias,
    stride,
    padding,
    dilation,
    transposed,
    output_padding,
    groups,
    *flags,
    returns,
):
    rank = weight.ndim - 2
    gathered = _gathering(input)
    input, weight = gathered(input), gathered(weight, is_kernel=True)
    stride, padding, dilation = (per_dim(values, rank) for values in (stride, padding, dilation))
    if 0 in (input.size, weight.size, *returns.shape):
        result = jnp.zeros(returns.shape, wide(input.dtype))
    elif transposed:
        result = _spread(input, weight, stride, padding, dilation, groups, returns.shape[2:])
    else:
        result = _convolve(input, weight, stride, [(pad, pad) for pad in padding], dilation, groups)
    result = gathered(result)
    return (result if bias is None else result + bias.reshape(1, -1, *[1] * rank)).astype(
        returns.dtype
    )


@lower(aten.convolution_backward.default, empty=True)
def aten_convolution_backward(
    grad_output,
    input,
    weight,
    bias_sizes,
    stride,
    padding,
    dilation,
    transposed,
    output_padding,
    groups,
    output_mask,
    *,
    returns,
):
    rank = weight.ndim - 2
    gathered = _gathering(grad_output, input)
    grad_output, input, weight = (
        gathered(grad_output),
        gathered(input),
        gathered(weight, is_kernel=True),
    )
    stride, padding, dilation = (per_dim(values, rank) for values in (stride, padding, dilation))
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        if transposed:
            # Only the part of the gradient that the input reaches: output padding made the rest.
            reach = [
                _reach(input.shape[2 + d], weight.shape[2 + d], stride[d], padding[d], dilation[d])
                for d in range(rank)
            ]
            pads = [
                (padding[d], reach[d] - grad_output.shape[2 + d] + padding[d]) for d in range(rank)
            ]
            grad_input = _convolve(grad_output, weight, stride, pads, dilation, groups)
        else:
            grad_input = _spread(
                grad_output, weight, stride, padding, dilation, groups, input.shape[2:]
            )
        grad_input = gathered(grad_input)
    if output_mask[1]:
        window = weight.shape[2:]
        x, grad = (grad_output, input) if transposed else (input, grad_output)
        how = (window, stride, padding, dilation, groups)
        grad_weight = gathered(_kernel_grad_in(x, grad, *how, dtype=returns[1].dtype))
    if output_mask[2]:
        axes = (0, *range(2, grad_output.ndim))
        grad_bias = total(
            grad_output.astype(wide(grad_output.dtype)), axes, grad_output, returns[2].dtype
        )
    return as_promised((grad_input, grad_weight, grad_bias), returns)


def _reach(size, window, stride, padding, dilation):
    """The length of a transposed convolution's result without output padding."""
    return (size - 1) * stride - 2 * padding + dilation * (window - 1) + 1
