"""Cross entropy of a linear layer's outputs, a chunk of the classes at a time: the logits are never
in memory in full.

The forward keeps a running maximum and total of each target's logits, as attention in blocks does
(`flash.py`), and returns two numbers a target; the backward computes each chunk of the logits again
(Wijmans et al. 2024, "Cut your losses in large-vocabulary language models", arXiv:2411.09009).
Where the sharding of targets and classes is known, each device processes its own classes for its
own targets, and the results are reduced once, at the end (Shoeybi et al. 2019, arXiv:1909.08053).
The numbers are those of `aten.linear` and `spmd.cross_entropy`, rounded where these round.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import torch
from jax import lax

from . import loss, sharded
from .floats import wide, widened
from .registry import Function, as_promised, lower

_library = torch.library.Library("spmd", "FRAGMENT")
# max_bytes: the most bytes that the logits in memory at a time take on a device. logits_dtype: the
# dtype to which the logits are cast before the loss, and the dtype of the loss.
_OPERANDS = "Tensor input, Tensor linear_weight, Tensor target, Tensor? linear_bias, Tensor? weight"
_SETTINGS = (
    "int reduction, int ignore_index, float label_smoothing, ScalarType logits_dtype, int max_bytes"
)
_library.define(
    f"linear_cross_entropy({_OPERANDS}, {_SETTINGS}) -> (Tensor loss, Tensor logsumexp, Tensor "
    "total_weight)"
)
_library.define(
    f"linear_cross_entropy_backward(Tensor grad_output, {_OPERANDS}, {_SETTINGS}, Tensor "
    "logsumexp, Tensor total_weight, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
)

LINEAR_CROSS_ENTROPY = torch.ops.spmd.linear_cross_entropy.default
LINEAR_CROSS_ENTROPY_BACKWARD = torch.ops.spmd.linear_cross_entropy_backward.default

# The number of chunks of logits that are as large as `config.max_logits_bytes`.
CHUNKS = 8
# Fewer classes at a time would leave a matrix unit idle; their number is a multiple of its width.
FEWEST, WIDTH = 1024, 128


@lower(LINEAR_CROSS_ENTROPY)
def spmd_linear_cross_entropy(
    input,
    linear_weight,
    target,
    linear_bias,
    weight,
    reduction,
    ignore_index,
    label_smoothing,
    logits_dtype,
    max_bytes,
    *,
    returns,
):
    target = target.astype(jnp.int64)  # ignore_index is no byte
    classes, weights = loss.target_weights(target, weight, ignore_index, wide(logits_dtype))
    head = _Head.of(
        input, linear_weight, linear_bias, weight, label_smoothing, logits_dtype, max_bytes
    )
    highest, log_sum, picked, weighted_sum = head.placed(head.forward, (True,) * 4, input, classes)
    losses = jnp.where(
        (classes < 0) | (classes >= linear_weight.shape[0]), jnp.nan, weights * (log_sum - picked)
    )
    if label_smoothing > 0:
        num_classes = linear_weight.shape[0]
        losses = (1 - label_smoothing) * losses + label_smoothing / num_classes * (
            loss.sum_of_weights(num_classes, weight) * log_sum - weighted_sum
        )
    losses = loss.unless_ignored(losses, target, ignore_index)
    losses, total_weight = loss.reduced(losses, weights, reduction)
    return losses.astype(returns[0].dtype), highest + log_sum, total_weight


@lower(LINEAR_CROSS_ENTROPY_BACKWARD)
def spmd_linear_cross_entropy_backward(
    grad_output,
    input,
    linear_weight,
    target,
    linear_bias,
    weight,
    reduction,
    ignore_index,
    label_smoothing,
    logits_dtype,
    max_bytes,
    logsumexp,
    total_weight,
    output_mask,
    *,
    returns,
):
    target = target.astype(jnp.int64)  # ignore_index is no byte
    classes, weights = loss.target_weights(target, weight, ignore_index, wide(logits_dtype))
    share = loss.share(grad_output, target, reduction, ignore_index, total_weight)
    shares = loss.shares(share * weights, share, linear_weight.shape[0], weight, label_smoothing)
    head = _Head.of(
        input, linear_weight, linear_bias, weight, label_smoothing, logits_dtype, max_bytes
    )
    nothing = jnp.zeros((), logsumexp.dtype)
    shares = (jnp.broadcast_to(nothing if x is None else x, target.shape) for x in shares)
    operands = input, classes, logsumexp, *shares
    grad_input, *grads = head.placed(head.backward, (True, False, False), *operands)
    return as_promised((grad_input, *(grad[: head.num_classes] for grad in grads)), returns)


@dataclass(frozen=True, slots=True)
class _Head:
    """A linear layer and its loss, placed on devices.

    weight: [classes, width], with rows of zeros after `num_classes` where the devices do not divide
    these. mesh: None where no sharding is known. targets: for each dim of the targets, the mesh
    axes that shard it. classes: the axes that shard the classes.
    """

    weight: jax.Array
    bias: jax.Array
    class_weights: jax.Array | None  # float, where label smoothing needs them
    num_classes: int
    logits_dtype: jnp.dtype
    max_bytes: int
    mesh: sharded.AnyMesh | None
    targets: tuple[sharded.Axes, ...]
    classes: sharded.Axes

    @staticmethod
    def of(
        input: jax.Array,
        weight: jax.Array,
        bias: jax.Array | None,
        class_weights: jax.Array | None,
        label_smoothing: float,
        logits_dtype: jnp.dtype,
        max_bytes: int,
    ) -> "_Head":
        num_classes, num_dims = weight.shape[0], input.ndim - 1
        split = sharded.axes_of_dims(
            *((input, dim) for dim in range(num_dims)), (weight, 0), uneven=num_dims
        )
        mesh, axes = split or (None, [()] * (num_dims + 1))
        missing = -num_classes % sharded.num_shards(mesh, axes[-1]) if mesh is not None else 0
        bias = jnp.zeros((num_classes,), weight.dtype) if bias is None else bias
        smoothing_weights, dtype = None, wide(logits_dtype)
        if label_smoothing > 0:
            smoothing_weights = (
                jnp.ones((num_classes,), dtype)
                if class_weights is None
                else class_weights.astype(dtype)
            )
        if missing:
            weight = jnp.pad(weight, ((0, missing), (0, 0)))
            bias = jnp.pad(bias, (0, missing))
            smoothing_weights = (
                None if smoothing_weights is None else jnp.pad(smoothing_weights, (0, missing))
            )
        return _Head(
            weight,
            bias,
            smoothing_weights,
            num_classes,
            logits_dtype,
            max_bytes,
            mesh,
            tuple(axes[:-1]),
            axes[-1],
        )

    def placed(
        self, body: Function, are_rows: tuple[bool, ...], *of_targets: jax.Array
    ) -> tuple[jax.Array, ...]:
        """`body` of arrays that are sharded as the targets, and of the weights. are_rows: which
        results are, too."""
        weights = self.weight, self.bias, self.class_weights
        if self.mesh is not None:
            rows, by_class = sharded.spec(*self.targets), sharded.spec(self.classes)
            operands = (
                *(rows,) * len(of_targets),
                *(None if x is None else by_class for x in weights),
            )
            results = tuple(rows if is_rows else by_class for is_rows in are_rows)
            body = jax.shard_map(
                body, mesh=self.mesh, in_specs=operands, out_specs=results, check_vma=False
            )
        return body(*of_targets, *weights)

    # -- On one device: its targets, its classes.

    def forward(self, input, classes, weight, bias, class_weights):
        """For each target's logits: the highest, the log of the sum of exp(logit - highest), the
        target's own less the highest; and the weighted sum of all less the highest (zeros without
        label smoothing)."""
        rows, shape = input.reshape(-1, input.shape[-1]), classes.shape
        chunks = self._chunks(rows, weight)
        classes = classes.reshape(-1).astype(jnp.int32)
        dtype = wide(self.logits_dtype)

        def step(carry, start):
            highest_before, total, picked, weighted_sum = carry
            numbers, fresh = chunks.classes(start), chunks.is_fresh(start)
            logits = chunks.logits(start, weight, bias)
            fresh = fresh & (numbers < self.num_classes)
            highest = jnp.maximum(
                highest_before, jnp.max(jnp.where(fresh, logits, -jnp.inf), axis=1)
            )
            base = jnp.where(highest == -jnp.inf, jnp.zeros_like(highest), highest)
            weights = jnp.where(fresh, jnp.exp(logits - base[:, None]), jnp.zeros((), dtype))
            total = total * jnp.exp(highest_before - base) + jnp.sum(weights, axis=1)
            hit = fresh & (numbers == classes[:, None])
            picked = picked + jnp.sum(jnp.where(hit, logits, jnp.zeros((), dtype)), axis=1)
            if class_weights is not None:
                weighted_logits = logits * chunks.cut(class_weights, start)
                weighted_sum = weighted_sum + jnp.sum(
                    jnp.where(fresh, weighted_logits, jnp.zeros((), dtype)), axis=1
                )
            return (highest, total, picked, weighted_sum), None

        nothing = jnp.zeros(classes.shape, dtype)
        carry = jnp.full(classes.shape, -jnp.inf, dtype), nothing, nothing, nothing
        highest, total, picked, weighted_sum = chunks.loop(step, carry)
        if self.classes:
            own_highest, highest = highest, lax.pmax(highest, self.classes)
            base = jnp.where(highest == -jnp.inf, jnp.zeros_like(highest), highest)
            total, picked, weighted_sum = lax.psum(
                (total * jnp.exp(own_highest - base), picked, weighted_sum), self.classes
            )
        if class_weights is not None:
            sum_of_weights = jnp.sum(class_weights)
            weighted_sum = weighted_sum - highest * (
                lax.psum(sum_of_weights, self.classes) if self.classes else sum_of_weights
            )
        return tuple(
            x.reshape(shape) for x in (highest, jnp.log(total), picked - highest, weighted_sum)
        )

    def backward(
        self,
        input,
        classes,
        logsumexp,
        of_softmax,
        at_target,
        elsewhere,
        weight,
        bias,
        class_weights,
    ):
        """The gradients of input, weight and bias, from the shares of the softmax, of the target
        and of every class in the loss's gradient."""
        rows = input.reshape(-1, input.shape[-1])
        chunks = self._chunks(rows, weight)
        classes, dtype = classes.reshape(-1).astype(jnp.int32), wide(self.logits_dtype)
        logsumexp, of_softmax, at_target, elsewhere = (
            x.reshape(-1, 1) for x in (logsumexp, of_softmax, at_target, elsewhere)
        )

        def step(carry, start):
            grad_rows, grad_weight, grad_bias = carry
            numbers = chunks.classes(start)
            grad = of_softmax * jnp.exp(chunks.logits(start, weight, bias) - logsumexp)
            grad = grad - jnp.where(numbers == classes[:, None], at_target, jnp.zeros((), dtype))
            if class_weights is not None:
                grad = grad - elsewhere * chunks.cut(class_weights, start)
            if self.weight.shape[0] != self.num_classes:
                grad = jnp.where(numbers < self.num_classes, grad, jnp.zeros((), dtype))
            grad = grad.astype(self.logits_dtype).astype(input.dtype)
            # Classes that two chunks share are the same in both: their weights get the same
            # gradient twice, the second write over the first; in the sum over classes they count in
            # the first.
            once = (
                jnp.where(chunks.is_fresh(start), grad, jnp.zeros((), grad.dtype))
                if chunks.overlap
                else grad
            )
            grad_rows = grad_rows + _product(once, chunks.cut(weight, start), (1, 0))
            of_weight = _product(grad, rows, (0, 0)).astype(weight.dtype)
            of_bias = jnp.sum(widened(grad), axis=0).astype(bias.dtype)
            return (
                grad_rows,
                chunks.put(grad_weight, of_weight, start),
                chunks.put(grad_bias, of_bias, start),
            ), None

        carry = (
            jnp.zeros(rows.shape, wide(input.dtype)),
            jnp.zeros_like(weight),
            jnp.zeros_like(bias),
        )
        grad_rows, grad_weight, grad_bias = chunks.loop(step, carry)
        if self.classes:
            grad_rows = lax.psum(grad_rows, self.classes)
        axes = tuple(axis for axes in self.targets for axis in axes)
        if axes:
            grad_weight, grad_bias = lax.psum((grad_weight, grad_bias), axes)
        return grad_rows.astype(input.dtype).reshape(input.shape), grad_weight, grad_bias

    def _chunks(self, rows: jax.Array, weight: jax.Array) -> "_Chunks":
        num_classes = weight.shape[0]
        first = lax.axis_index(self.classes) * num_classes if self.classes else 0
        most = self.max_bytes // (max(rows.shape[0], 1) * wide(self.logits_dtype).itemsize)
        count = math.ceil(num_classes / max(most, FEWEST))
        size = math.ceil(num_classes / max(count, 1) / WIDTH) * WIDTH
        return _Chunks(rows, num_classes, first, min(size, num_classes), self.logits_dtype)


def _product(lhs, rhs, dims):
    """The product over one dim of each, in the dtype of the accumulator."""
    return lax.dot_general(
        lhs, rhs, ((dims[:1], dims[1:]), ((), ())), preferred_element_type=wide(lhs.dtype)
    )


@dataclass(frozen=True, slots=True)
class _Chunks:
    """The classes of one device in chunks of one size; the last is moved back to fit, and overlaps
    the one before."""

    rows: jax.Array
    num_classes: int
    first: int | jax.Array  # the number of this device's first class among all
    size: int
    logits_dtype: jnp.dtype

    @property
    def overlap(self) -> bool:
        return bool(self.size and self.num_classes % self.size)

    def loop(self, step: Function, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        starts = jnp.arange(0, self.num_classes, max(self.size, 1), dtype=jnp.int32)
        if len(starts) == 1:
            return step(carry, 0)[0]
        return lax.scan(step, carry, starts)[0]

    def _begin(self, start: int | jax.Array) -> jax.Array:
        return jnp.minimum(start, self.num_classes - self.size)

    def cut(self, x: jax.Array, start: int | jax.Array) -> jax.Array:
        return (
            x
            if self.size == self.num_classes
            else lax.dynamic_slice_in_dim(x, self._begin(start), self.size, 0)
        )

    def put(self, x: jax.Array, chunk: jax.Array, start: int | jax.Array) -> jax.Array:
        if self.size == self.num_classes:
            return chunk
        return lax.dynamic_update_slice_in_dim(x, chunk, self._begin(start), 0)

    def _places(self, start: int | jax.Array) -> jax.Array:
        return self._begin(start) + lax.broadcasted_iota(jnp.int32, (1, self.size), 1)

    def classes(self, start: int | jax.Array) -> jax.Array:
        """The numbers of the classes among all, [1, size]."""
        return self._places(start) + jnp.asarray(self.first, jnp.int32)

    def is_fresh(self, start: int | jax.Array) -> jax.Array:
        """True for the classes that no chunk before has had."""
        return self._places(start) >= start

    def logits(self, start: int | jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        """[rows, size], rounded as the linear layer and the cast of its outputs would."""
        product = _product(self.rows, self.cut(weight, start), (1, 1))
        product = product + self.cut(bias, start).astype(product.dtype)
        return widened(product.astype(self.rows.dtype).astype(self.logits_dtype))
