"""Attention by cuDNN's fused kernel, forward and backward: when it may be called, how, and how it
is partitioned.

`jax.nn.dot_product_attention(implementation="cudnn")` is the public way to the kernel. It looks for
cuDNN while it is traced, which a machine without a GPU does not have; its backward would run the
forward again, whose results torch's backward has at hand; and it refuses a sharded length, or keys
and values sharded otherwise than the queries. So the two operations behind it are bound here, under
a partitioning of our own.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .. import sharded
from ..jax_internals import cudnn_attention as kernel
from ..jax_internals import cudnn_attention_options, cudnn_version
from .flash import ONE_PLACE, Masking
from .mask_blocks import MaskEquations, band_of, conditions_of, reached

Arrays = tuple[jax.Array, ...]
Run = Callable[..., Arrays]

# Hopper alone has all widths to this one, and backward's as well. Keys wider than values: those of
# DeepSeek, from cuDNN 9.10 on, also on Blackwell.
_WIDEST, _WIDEST_OF_HOPPER, _LATENT, _LATENT_VERSION = 128, 256, (192, 128), 91000
# The bytes of a device for a bias as the kernel adds it, and for the gradients of scores, all of
# which it writes where the bias has one.
MOST_OF_BIAS = 1 << 30
# The columns that a logsumexp's gradient adds to all widths, which are multiples of 8.
_MORE = 8


class _Format(NamedTuple):
    """A dtype: its bits of exponent and mantissa, and the lowest number that a bias keeps.

    -inf becomes twice as low: cuDNN subtracts such numbers from each other.
    """

    exponent: int
    mantissa: int
    lowest: float


_FORMATS = {
    jnp.dtype(jnp.bfloat16): _Format(8, 7, -(2.0**40)),
    jnp.dtype(jnp.float16): _Format(5, 10, -(2.0**14)),
}


@dataclass(frozen=True, slots=True)
class KernelCall:
    """The static arguments of the kernel.

    window: the columns that a row sees under causality, its own the last; None: all of them.
    wants_bias: the bias has a gradient.
    """

    scale: float
    is_causal: bool = False
    window: int | None = None
    has_bias: bool = False
    wants_bias: bool = False


def refusal(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    masking: Masking,
    bias: jax.Array | None,
    dropout_p: float,
    wants_bias: bool = False,
    has_logsumexp: bool = False,
) -> str:
    """Why the kernel does not compute this attention on the program's GPU, or, where that is not
    known, on every GPU that has it (Ampere and later); empty if it does.

    Dropout is excluded: the kernel's random numbers are its own, and would change with the mesh.
    """
    if kernel is None:
        return "a jax without the kernel"
    if reason := masking.refusal(None, dropout_p):
        return reason
    if query.dtype not in _FORMATS or {key.dtype, value.dtype} != {query.dtype}:
        return f"operands of {', '.join(str(x.dtype) for x in (query, key, value))}"
    more = _MORE if has_logsumexp else 0
    if reason := _refusal_of_widths(query.shape[-1] + more, value.shape[-1] + more):
        return reason
    if 0 in (*query.shape, *key.shape):
        return "no rows or columns"
    if masking.score is not None:
        return "a soft cap"
    order = _Order.of(masking, bias is not None)
    if order.window is not None and query.shape[2] > key.shape[2]:
        return "a window of more rows than columns"
    if bias is None and order.is_whole:
        return ""
    reason = _refusal_of_bias(query, key, bias, wants_bias)
    is_other = reason and bias is None
    return f"{reason}, as which the kernel takes this mask" if is_other else reason


class _Order(NamedTuple):
    """What the kernel itself computes of a mask: causality, and a window of columns. is_whole:
    that is all of what is known; else it takes the mask as a bias."""

    is_causal: bool
    window: int | None
    is_whole: bool

    @staticmethod
    def of(masking: Masking, has_bias: bool) -> "_Order":
        mask, places = masking.equations, masking.places
        at_start = places.traced is None and places.starts == ONE_PLACE.starts
        # Along a dim of 1 a mask is broadcast.
        band = None if mask is None or 1 in mask.shape[-2:] else band_of(mask)
        if mask is not None and band is not None:
            rows, columns = mask.shape[-2:]
            if band == (1 - columns, rows - 1):
                mask = None
            # A chunk under causality alone is on the diagonal, or visible as a whole.
            elif band[0] == 0 and (at_start or (band[1] == rows - 1 and not has_bias)):
                return _Order(True, None if band[1] == rows - 1 else band[1] + 1, True)
        bands = (
            band_of(MaskEquations(tuple(reached(known.lines, index)), known.shape))
            for known in masking.masks
            for index in conditions_of(known.lines)
        )
        is_causal = at_start and any(band is not None and band[0] >= 0 for band in bands)
        return _Order(is_causal, None, mask is None)


def _refusal_of_widths(width: int, of_values: int) -> str:
    """By the checks of cuDNN's frontend, and of jax."""
    capability = sharded.facts().capability or (8, 0)
    widest = _WIDEST_OF_HOPPER if capability[0] == 9 else _WIDEST
    if width == of_values and width % 8 == 0 and 0 < width <= widest:
        return ""
    version = cudnn_version()
    is_new = version is None or version >= _LATENT_VERSION
    if (width, of_values) == _LATENT and capability[0] in (9, 10) and is_new:
        return ""
    return f"heads of widths {width} and {of_values}"


def _refusal_of_bias(
    query: jax.Array, key: jax.Array, bias: jax.Array | None, wants_bias: bool
) -> str:
    """bias: None for a known mask, which all rows of batch and heads share."""
    # Within a branch of another platform's program a computed mask would become an array.
    if sharded.platform() != "gpu":
        return "a bias"
    rows, columns = query.shape[2], key.shape[2]
    if bias is not None and bias.dtype not in (jnp.bool_, query.dtype):
        return f"a bias of {bias.dtype}"
    if rows % 2 or columns % 2:
        return "a bias of an odd length"
    devices = sharded.num_devices()
    of_heads = 1 if bias is None else math.prod(bias.shape[:-2])
    of_bias = of_heads * rows * columns * query.dtype.itemsize
    of_scores = math.prod(query.shape[:2]) * rows * columns * query.dtype.itemsize
    # Whether the devices share the batch of a bias is not known before the partitioner.
    num_bytes = max(of_bias // devices, rows * columns * query.dtype.itemsize)
    num_bytes += 2 * (of_scores // devices) if wants_bias else 0
    if num_bytes > MOST_OF_BIAS:
        return f"a bias of {num_bytes >> 20:,} MiB"
    return ""


def call_of(
    masking: Masking, bias: jax.Array | None, scale: float, wants_bias: bool = False
) -> KernelCall:
    """The call for a mask that is not refused."""
    order = _Order.of(masking, bias is not None)
    has_bias = bias is not None or not order.is_whole
    return KernelCall(scale, order.is_causal, order.window, has_bias, wants_bias)


def forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    call: KernelCall,
    masking: Masking,
    bias: jax.Array | None,
    run: Run | None = None,
) -> Arrays:
    """(output, logsumexp of the scores in float32). run: by default `shard_forward`."""
    biases = _biases(query, key, masking, bias)
    output, logsumexp = (run or shard_forward)(call, query, key, value, *biases)
    if not biases:
        return output, logsumexp
    # torch promises zeros for a row that sees nothing; the kernel has a mean.
    is_hidden = logsumexp < 1.5 * _FORMATS[query.dtype].lowest
    zero, nothing = jnp.zeros((), output.dtype), jnp.float32(-jnp.inf)
    return jnp.where(is_hidden[..., None], zero, output), jnp.where(is_hidden, nothing, logsumexp)


def backward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    grad_out: jax.Array,
    out: jax.Array,
    logsumexp: jax.Array,
    grad_logsumexp: jax.Array | None = None,
    *,
    call: KernelCall,
    masking: Masking,
    bias: jax.Array | None,
    run: Run | None = None,
) -> tuple[jax.Array | None, ...]:
    """The gradients of query, key, value and bias; None for a bias without."""
    biases, widths = _biases(query, key, masking, bias), (query.shape[-1], value.shape[-1])
    grad_out, out = grad_out.astype(query.dtype), out.astype(query.dtype)
    is_hidden = logsumexp == -jnp.inf
    if grad_logsumexp is not None:
        # The gradient of a row's scores is weights * (grad_out @ value - rowsum(grad_out * out) +
        # grad_logsumexp). The kernel makes the row sums itself. So grad_logsumexp enters the
        # product, by columns of ones; these are zero in `out`, and in the queries and keys.
        parts = _parts(jnp.where(is_hidden, 0, grad_logsumexp), query.dtype)
        grad_out = jnp.concatenate([grad_out, parts], -1)
        ones = [(0, 0)] * 3 + [(0, _MORE)]
        value = jnp.pad(value, ones, constant_values=1)
        query, key, out = (jnp.pad(x, ones) for x in (query, key, out))
    if biases:  # The weights of a row that sees nothing are exp(2 * lowest - 0).
        logsumexp = jnp.where(is_hidden, 0, logsumexp)
    operands = query, key, value, *biases, logsumexp, out, grad_out
    of_query, of_key, of_value, *of_bias = (run or shard_backward)(call, *operands)
    grads = of_query[..., : widths[0]], of_key[..., : widths[0]], of_value[..., : widths[1]]
    return *grads, _summed(of_bias[0], bias) if bias is not None and of_bias else None


def _parts(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Numbers of 32 bits as sums of numbers of 16, along a last dim."""
    parts, rest = [], x.astype(jnp.float32)
    for _ in range(_MORE):
        # XLA would take the rounding for one that may be left out.
        parts.append(lax.reduce_precision(rest, *_FORMATS[dtype][:2]))
        rest = rest - parts[-1]
    return jnp.stack(parts, -1).astype(dtype)


def _biases(query: jax.Array, key: jax.Array, masking: Masking, bias: jax.Array | None) -> Arrays:
    """The bias as the kernel adds it: [batch or 1, heads or 1, rows, columns] of finite numbers,
    with what it does not compute of a known mask; () without either."""
    mask, shape, dtype = None, (query.shape[2], key.shape[2]), query.dtype
    if masking.equations is not None and not _Order.of(masking, bias is not None).is_whole:
        rows, columns = (
            jnp.asarray(start, jnp.int32) + lax.broadcasted_iota(jnp.int32, shape, dim)
            for dim, start in enumerate(masking.places.start)
        )
        mask = masking.equations(rows, columns, jnp)
        is_visible = masking.places.is_visible
        mask = mask if is_visible is None else mask & is_visible
    lowest, hidden = (jnp.asarray(times * _FORMATS[dtype].lowest, dtype) for times in (1, 2))
    if bias is not None and bias.dtype != jnp.bool_:
        bias = jnp.where(bias == -jnp.inf, hidden, jnp.maximum(bias, lowest))
    elif bias is not None:
        bias = jnp.where(bias, jnp.zeros((), dtype), hidden)
    if mask is not None:
        bias = jnp.where(mask, jnp.zeros((), dtype) if bias is None else bias, hidden)
    if bias is None:
        return ()
    bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    return (jnp.broadcast_to(bias, (*bias.shape[:2], *shape)),)


def _summed(grad: jax.Array, bias: jax.Array) -> jax.Array:
    """The gradient of a bias, summed over rows and columns along which it was broadcast."""
    shape = (1,) * (4 - bias.ndim) + bias.shape
    dims = tuple(dim for dim in (2, 3) if shape[dim] < grad.shape[dim])
    total = jnp.sum(grad.astype(jnp.float32), dims) if dims else grad
    return total.astype(bias.dtype).reshape(bias.shape)


def _kernel(
    name: str, call: KernelCall, qkv: Arrays, biases: Arrays, saved: Arrays, **options: object
) -> Arrays:
    """One of the two operations; the six operands between are for packed sequences and pages."""
    assert kernel is not None, "`refusal` was called first"
    primitive: Primitive = getattr(kernel, f"_dot_product_attention_{name}_p")
    empty = jnp.zeros(0, qkv[0].dtype)
    result = primitive.bind(
        *qkv,
        *(biases or (empty,)),
        *[empty] * 6,
        *saved,
        scale=call.scale,
        seed=0,
        dropout_rate=0.0,
        variadic_args=(call.has_bias, call.wants_bias),
        mask_type=kernel.MaskType.CAUSAL if call.is_causal else kernel.MaskType.NO_MASK,
        layout=kernel.AttentionLayout.BNTH.value,
        sliding_window_length=call.window,
        **cudnn_attention_options,
        **options,
    )
    return tuple(result)


def run_forward(call: KernelCall, *operands: jax.Array) -> Arrays:
    """The kernel on one device: (query, key, value, bias if there is one) -> (output,
    logsumexp)."""
    return _kernel("fwd", call, operands[:3], operands[3:], (), is_training=True)


def run_backward(call: KernelCall, *operands: jax.Array) -> Arrays:
    """The kernel on one device: (query, key, value, bias if there is one, logsumexp, output, its
    gradient) -> the gradients of the first three, and of a bias that has one."""
    return _kernel("bwd", call, operands[:3], operands[3:-3], operands[-3:])


# -- Partitioned.

shard_forward = partial(custom_partitioning, static_argnums=(0,))(run_forward)
shard_backward = partial(custom_partitioning, static_argnums=(0,))(run_backward)


class _Split(NamedTuple):
    """The shardings of operands and results, and those of a bias; the axes over which devices add
    up the gradient of a bias."""

    of_rest: NamedSharding
    of_bias: NamedSharding
    summed: tuple[str, ...]

    @staticmethod
    def of(call: KernelCall, mesh: Mesh, operands: Sequence[jax.ShapeDtypeStruct]) -> "_Split":
        """Batch and heads as of the queries, where that divides the keys evenly.

        All are [batch, heads, ...], and a device with some heads of the keys needs only their
        queries.
        """
        query, key = operands[:2]
        spec = query.sharding.spec[:2] if isinstance(query.sharding, NamedSharding) else ()
        even: list[tuple[str, ...]] = []
        for axes, size in zip(spec, key.shape, strict=False):
            names = () if axes is None else axes if isinstance(axes, tuple) else (axes,)
            divides = size % math.prod(mesh.shape[name] for name in names) == 0
            even.append(names if divides else ())
        shape = operands[3].shape if call.has_bias else ()
        of_bias = [names if size > 1 else () for names, size in zip(even, shape, strict=False)]
        summed = [name for names in even for name in names if (names not in of_bias)]
        rest, bias = (
            NamedSharding(mesh, PartitionSpec(*(names or None for names in dims)))
            for dims in (even, of_bias)
        )
        return _Split(rest, bias, tuple(summed))

    def shardings(self, words: str) -> tuple[NamedSharding, ...]:
        """Those of operands or results, by the rule's words."""
        return tuple(
            self.of_bias if word.endswith("s l") else self.of_rest for word in words.split(", ")
        )


def _define(function: custom_partitioning, body: Callable[..., Arrays], is_backward: bool) -> None:
    """Registers with both partitioners that the function is sharded along batch and heads."""

    # Heads of queries and of keys are two factors, as their numbers differ; `_Split` relates them.
    def words(call: KernelCall, batch: str = "x", heads: str = "y") -> tuple[str, str]:
        """The dims of operands and of results. batch, heads: of the bias."""
        qkv, bias = "b h s d, b k l d, b k l e", f", {batch} {heads} s l"
        operands = qkv + bias * call.has_bias
        if not is_backward:
            return operands, "b h s e, b h s"
        return f"{operands}, b h s, b h s e, b h s e", qkv + bias * call.wants_bias

    def infer(
        call: KernelCall, mesh: Mesh, operands: Any, results: Any
    ) -> tuple[NamedSharding, ...]:
        return _Split.of(call, mesh, operands).shardings(words(call)[1])

    def partition(call: KernelCall, mesh: Mesh, operands: Any, results: Any) -> tuple[Any, ...]:
        split = _Split.of(call, mesh, operands)

        def on_shard(*shards: jax.Array) -> Arrays:
            made = body(call, *shards)
            if not (call.wants_bias and split.summed):
                return made
            total = lax.psum(made[3].astype(jnp.float32), split.summed)
            return *made[:3], total.astype(made[3].dtype)

        of_operands, of_results = map(split.shardings, words(call))
        return mesh, on_shard, of_results, of_operands

    def rule(call: KernelCall, mesh: Mesh, types: Any, _: Any) -> tuple[str, dict[str, Any]]:
        sizes = zip("bh", "xy", types[3].shape if call.has_bias else (), strict=False)
        of_bias = [name if size > 1 else other for name, other, size in sizes]
        # Shardy takes the replicated factors in the order in which the rule names them.
        return " -> ".join(words(call, *of_bias)), {
            "need_replication_factors": ("s", "d", "l", "e")
        }

    function.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=rule)


_define(shard_forward, run_forward, is_backward=False)
_define(shard_backward, run_backward, is_backward=True)
