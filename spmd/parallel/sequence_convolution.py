"""Convolutions over a sharded sequence: each device computes its rows, after it has got those next
to them.

A convolution whose result is longer than its input, as one with padding on both sides that a model
cuts afterwards (Mamba's), has a length that the devices do not divide, so that a partitioner
gathers the input.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ..core import config
from ..core.extend import partitioning, registry, rules, windows
from .orders import Axes

aten = torch.ops.aten


@partitioning.partition(aten.convolution.default)
def forward(
    input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, *, returns
):
    """A convolution of one dim over mesh axes."""
    case = ConvolutionCase.of(input, weight, stride, padding, dilation, transposed, groups)
    return None if case is None else case.forward(input, weight, bias, returns)


@partitioning.partition(aten.convolution_backward.default)
def backward(
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
    """The gradients of a convolution of one dim over mesh axes."""
    case = ConvolutionCase.of(input, weight, stride, padding, dilation, transposed, groups)
    return None if case is None else case.backward(grad_output, input, weight, output_mask, returns)


@partitioning.partition(aten.slice_backward.default)
def pad(grad_output, input_sizes, dim, start, end, step):
    """The gradient of a cut sharded dim as padding, which XLA folds with the cut; an update of
    zeros is gathered."""
    is_sharded = (
        config.parallel != "off" and partitioning.axes_of_dims((grad_output, dim)) is not None
    )
    if step != 1 or not is_sharded:
        return None
    low, high, _ = slice(start, end).indices(input_sizes[dim])
    config_of_dims = [(0, 0, 0)] * grad_output.ndim
    config_of_dims[dim] = (low, input_sizes[dim] - high, 0)
    return lax.pad(grad_output, jnp.zeros((), grad_output.dtype), config_of_dims)


@dataclass(frozen=True)
class ConvolutionCase:
    """A convolution with stride 1 whose rows are sharded: x [batch, features, rows], weight [out,
    in, window].

    axes: of batch, features and rows; features are those of a depthwise convolution. num_before,
    num_after: the rows that a result needs next to its own. groups: of a device.
    """

    mesh: Any
    axes: tuple[Axes, Axes, Axes]
    num_before: int
    num_after: int
    dilation: int
    groups: int

    @staticmethod
    def of(
        input, weight, stride, padding, dilation, transposed, groups
    ) -> "ConvolutionCase | None":
        """The case of these operands; None if the partitioner is to compute it."""
        axes_of = partitioning.axes_of_dims(*((input, dim) for dim in range(input.ndim)))
        if config.parallel == "off" or axes_of is None or input.ndim != 3 or transposed:
            return None
        mesh, (batch, features, rows) = axes_of
        (step,), (num_before,), (apart,) = (
            windows.per_dim(values, 1) for values in (stride, padding, dilation)
        )
        reach = apart * (weight.shape[2] - 1)
        shard = input.shape[2] // partitioning.num_shards(mesh, rows)
        is_depthwise = groups == input.shape[1] == weight.shape[0]
        if (
            not rows
            or step != 1
            or num_before > reach
            or reach > shard
            or (features and not is_depthwise)
        ):
            return None
        of_device = groups // partitioning.num_shards(mesh, features)
        return ConvolutionCase(
            mesh, (batch, features, rows), num_before, reach - num_before, apart, of_device
        )

    @property
    def _beyond(self) -> int:
        """The results behind the last row."""
        return max(self.num_before - self.num_after, 0)

    @property
    def _is_last(self) -> jax.Array:
        rows = self.axes[2]
        return lax.axis_index(rows) == partitioning.num_shards(self.mesh, rows) - 1

    def _with_neighbours(self, x: jax.Array) -> jax.Array:
        """A device's rows between those that they need of the devices next to it; zeros at both
        ends."""
        low, high = x[..., x.shape[2] - self.num_before :], x[..., : self.num_after]
        ends = (
            self._moved(low, 1),
            x,
            self._moved(high, -1),
            jnp.zeros((*x.shape[:2], self._beyond), x.dtype),
        )
        return jnp.concatenate(ends, 2)

    def _added_to_neighbours(self, grad: jax.Array) -> jax.Array:
        """The transpose: the gradient of a device's rows, of that with its neighbours' rows."""
        rows = grad.shape[2] - self.num_before - self.num_after - self._beyond
        low, middle, high, _ = jnp.split(
            grad,
            (self.num_before, self.num_before + rows, self.num_before + rows + self.num_after),
            2,
        )
        low = jnp.pad(self._moved(low, -1), ((0, 0), (0, 0), (rows - self.num_before, 0)))
        return (
            middle
            + low
            + jnp.pad(self._moved(high, 1), ((0, 0), (0, 0), (0, rows - self.num_after)))
        )

    def _moved(self, x: jax.Array, by: int) -> jax.Array:
        """x of the device before (by 1) or behind (by -1); zeros where there is none."""
        count = partitioning.num_shards(self.mesh, self.axes[2])
        route = [(i, i + by) for i in range(count) if 0 <= i + by < count]
        return lax.ppermute(x, self.axes[2], route) if x.size else x

    @property
    def _geometry(self) -> tuple[Any, ...]:
        """Arguments of the core's rules on a device: without padding."""
        return [1], [0], [self.dilation], False, [0], self.groups

    def _per_shard(self, body: Callable[..., Any], words: str, shapes: Any) -> Any:
        """words: with the dims of a convolution by groups; a depthwise one has the same features in
        and out."""
        over = dict(zip("nis", self.axes, strict=True))
        words = words.replace("o", "i") if self.axes[1] else words
        return partitioning.per_shard(body, words, self.mesh, over, shapes)

    def forward(self, input, weight, bias, returns):
        batch, features, length = returns.shape
        rows = input.shape[2]

        def body(x, weight, bias):
            shape = x.shape[0], weight.shape[0], x.shape[2] + self._beyond
            promised = jax.ShapeDtypeStruct(shape, returns.dtype)
            rule, x_and_halo = (
                rules.RULES[aten.convolution.default].function,
                self._with_neighbours(x),
            )
            result = rule(x_and_halo, weight, bias, *self._geometry, returns=promised)
            result, last = jnp.split(result, (x.shape[2],), 2)
            return result, jnp.where(self._is_last, last, 0)

        shapes = (batch, features, rows), (batch, features, self._beyond)
        result, last = self._per_shard(body, "n i s, o k j, o -> n o s, n o t", shapes)(
            input, weight, bias
        )
        return jnp.concatenate([result, last], 2)[..., :length]

    def backward(self, grad_output, input, weight, output_mask, returns):
        rows, shapes = input.shape[2], (input.shape, weight.shape, weight.shape[:1])
        dtypes = [input.dtype if x is None else x.dtype for x in returns]

        def body(grad, last, x, weight):
            grad = jnp.concatenate([grad, jnp.where(self._is_last, last, 0)], 2)
            x = self._with_neighbours(x)
            promised = tuple(
                map(jax.ShapeDtypeStruct, (x.shape, weight.shape, weight.shape[:1]), dtypes)
            )
            rule = rules.RULES[aten.convolution_backward.default].function
            grads = rule(grad, x, weight, None, *self._geometry, output_mask, returns=promised)
            of_input, *of_weights = (
                x if want else None for x, want in zip(grads, output_mask, strict=True)
            )
            return None if of_input is None else self._added_to_neighbours(of_input), *of_weights

        missing = rows + self._beyond - grad_output.shape[2]
        grad = jnp.pad(grad_output, ((0, 0), (0, 0), (0, missing)))
        words = "n o s, n o t, n i s, o k j -> n i s, o k j, o"
        run = self._per_shard(body, words, shapes)
        return registry.as_promised(run(grad[..., :rows], grad[..., rows:], input, weight), returns)
