"""Mixtral with its experts sharded over a mesh axis, and its training step, written by hand in JAX
as an expert would.

Nothing is allocated: programs are compiled from shapes alone. It imports neither torch nor spmd.

The batch is sharded over all devices. Rows travel to the devices of their experts and back in
rounds of an all-to-all, each with 1.25 times an even share of rows for a pair of devices, until the
longest queue is empty: no row is dropped, and memory does not depend on the router (Lepikhin et al.
2020, arXiv:2006.16668, drops the rows of later rounds). On a device rows are sorted by expert and
multiplied in groups by jax's kernels for TPUs (Gale et al. 2022, arXiv:2211.15841). Backward keeps
the inputs of a layer of experts alone, and is a loop of the same rounds. Weights are cast and
gathered over fsdp, not over the experts, in the scan's body; layers are recomputed; logits are
computed in chunks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from recipes.benchmarks.jax_llama import AdamW, Tree, rms_norm, rope, splash_attention

P = PartitionSpec
ALL = ("fsdp", "expert")  # the axes of the mesh; the batch is sharded over both
_ROOM = 1.25  # rows of a round, in parts of an even share
_ROWS, _COLUMNS = 512, 1024  # of a block of the kernels for products
_ROWS_OF_LOGITS = 2048


# -- Products of rows in groups, one group for each expert of a device, the rows of no expert last.


class Products(NamedTuple):
    """of_rows: (rows [n, in], weights [experts, in, out], group) -> [n, out], undefined for rows of
    no expert; the weights may be transposed. of_groups: (left [n, in], right [n, out], group, sums
    [experts, in, out]) -> the sums, with the product of each group added. block: rows come in
    multiples of so many."""

    of_rows: Callable[..., jax.Array]
    of_groups: Callable[..., jax.Array]
    block: int


class Group(NamedTuple):
    """sizes: the rows of each expert. computed: the rows that a kernel computes if the router is
    balanced."""

    sizes: jax.Array
    computed: int


def _rows_by_ragged_dot(
    rows: jax.Array, weights: jax.Array, group: Group, *, is_transposed: bool = False
) -> jax.Array:
    return lax.ragged_dot(
        rows, jnp.swapaxes(weights, 1, 2) if is_transposed else weights, group.sizes
    )


def _groups_by_ragged_dot(
    left: jax.Array, right: jax.Array, group: Group, sums: jax.Array
) -> jax.Array:
    dims = lax.RaggedDotDimensionNumbers(
        (((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
    )
    return sums + lax.ragged_dot_general(left, right, group.sizes, dims)


BY_RAGGED_DOT = Products(_rows_by_ragged_dot, _groups_by_ragged_dot, 1)


def _rows_by_kernel(
    rows: jax.Array, weights: jax.Array, group: Group, *, is_transposed: bool = False
) -> jax.Array:
    how = {"tiling": (_ROWS, _COLUMNS, _COLUMNS), "transpose_rhs": is_transposed}
    with _scope(group):
        return gmm(rows, weights, group.sizes, preferred_element_type=rows.dtype, **how)


def _groups_by_kernel(
    left: jax.Array, right: jax.Array, group: Group, sums: jax.Array
) -> jax.Array:
    # The kernel has the sums twice, each with two buffers, and a block in float32: wider ones do
    # not fit into VMEM.
    how = {"tiling": (_ROWS, _COLUMNS, _COLUMNS // 2), "existing_out": sums}
    with _scope(group):
        return tgmm(left.T, right, group.sizes, preferred_element_type=sums.dtype, **how)


def _scope(group: Group) -> Any:
    # The kernels' own cost estimate is of all rows of the buffer: the benchmark reads this scope
    # instead.
    return jax.named_scope(f"rows={group.computed}")


BY_KERNEL = Products(_rows_by_kernel, _groups_by_kernel, _ROWS)


# -- Rounds. All of this is inside of `shard_map`.


class Part(NamedTuple):
    """The rows of a round, [devices * rows]: the choices sent, the places of what returns (past the
    last choice for unused rows), and the experts of rows received, their number for unused ones."""

    choices: jax.Array
    targets: jax.Array
    experts: jax.Array


@dataclass(frozen=True)
class Queues:
    """A device's choices sorted by expert, as a queue for each device of the axis. A choice is
    numbered by its rank, then by its token: a sum over a token's choices is then one of whole
    arrays.

    order: [choices]. starts, lengths: [devices], of the queues in that order. ends: [devices,
    experts], of the experts in the queues that others have for this device. rows: of a queue in a
    round.
    """

    order: jax.Array
    starts: jax.Array
    lengths: jax.Array
    ends: jax.Array
    rows: int

    @classmethod
    def of(cls, index: jax.Array, num_experts: int, block: int) -> "Queues":
        """index: the choices, [tokens, chosen]; num_experts: of a device; block: rows come in
        multiples of so many."""
        choices, num_devices = index.T.reshape(-1), lax.axis_size("expert")
        counts = _counts(choices, num_experts * num_devices).reshape(num_devices, num_experts)
        lengths = jnp.sum(counts, 1)
        step = block // math.gcd(block, num_devices)
        rows = -(-math.ceil(_ROOM * choices.size / num_devices) // step) * step
        return cls(
            jnp.argsort(choices),
            jnp.cumsum(lengths) - lengths,
            lengths,
            jnp.cumsum(_exchanged(counts), 1),
            rows,
        )

    def num_rounds(self) -> jax.Array:
        return lax.pmax(jnp.max((self.lengths + self.rows - 1) // self.rows), ALL)

    def part(self, number: jax.Array) -> Part:
        places = number * self.rows + jnp.arange(self.rows)
        is_used = (places < self.lengths[:, None]).reshape(-1)
        choices = self.order[jnp.where(is_used, (self.starts[:, None] + places).reshape(-1), 0)]
        unused = self.order.size + jnp.arange(choices.size)
        experts = jnp.sum(places[:, None] >= self.ends[:, None], -1, dtype=jnp.int32)
        return Part(choices, jnp.where(is_used, choices, unused), experts.reshape(-1))


def _counts(ids: jax.Array, count: int) -> jax.Array:
    """The number of times that each id below the count occurs."""
    return jnp.sum(ids[:, None] == jnp.arange(count), 0, dtype=jnp.int32)


def _exchanged(x: jax.Array) -> jax.Array:
    """The parts of dim 0 that the devices of the axis have for this one; it is its own inverse."""
    return lax.all_to_all(x, "expert", 0, 0, tiled=True)


def _put(results: jax.Array, part: Part, rows: jax.Array) -> jax.Array:
    return results.at[part.targets].set(rows, mode="drop", unique_indices=True)


def _sorted(part: Part, num_experts: int, computed: int) -> tuple[jax.Array, jax.Array, Group]:
    """The order of rows by expert, its inverse, and their group. Rows of no expert are the last:
    products neither read nor write them, and what returns of them is dropped."""
    order = jnp.argsort(part.experts)
    # A block of rows is computed once for each expert that it has rows of.
    group = Group(_counts(part.experts, num_experts), computed + (num_experts - 1) * _ROWS)
    return order, jnp.argsort(order), group


def _of_choices(index: jax.Array, x: jax.Array) -> jax.Array:
    """A row for each choice, to be written: each choice is in one round."""
    return lax.empty((index.size, x.shape[1]), x.dtype)


def _gated(gate: jax.Array, up: jax.Array) -> jax.Array:
    return jax.nn.silu(gate) * up


def _of_tokens(values: jax.Array, weights: jax.Array, dtype: Any) -> jax.Array:
    """The weighted sum over each token's choices. weights: [tokens, chosen]."""
    total = jnp.zeros((), jnp.float32)
    # Not one sum over the leading dim, before which XLA stores all products in float32.
    for part, weight in zip(values.reshape(*weights.T.shape, -1), weights.T, strict=True):
        total = total + part.astype(jnp.float32) * weight[:, None]
    return total.astype(dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def rounds(
    products: Products, x: jax.Array, index: jax.Array, weights: jax.Array, *stacks: jax.Array
) -> jax.Array:
    """The weighted sum of the chosen experts' results for each token, [tokens, width].

    x: a device's tokens, [tokens, width]. index, weights: [tokens, chosen], the weights in float32.
    stacks: of this device's experts, gate and up [experts, width, hidden], down [experts, hidden,
    width].
    """
    return _rounds_forward(products, x, index, weights, *stacks)[0]


def _rounds_forward(
    products: Products, *inputs: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    x, index, weights, gate, up, down = inputs
    queues = Queues.of(index, len(gate), products.block)

    def one_round(carry: Any) -> Any:
        number, results = carry
        part = queues.part(number)
        order, inverse, group = _sorted(part, len(gate), index.size)
        rows = _exchanged(x[part.choices % len(x)])[order]
        hidden = _gated(*(products.of_rows(rows, stack, group) for stack in (gate, up)))
        back = _exchanged(products.of_rows(hidden, down, group)[inverse])
        return number + 1, _put(results, part, back)

    results = _loop(queues, one_round, _of_choices(index, x))
    return _of_tokens(results, weights, x.dtype), inputs


def _rounds_backward(
    products: Products, inputs: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[Any, ...]:
    x, index, weights, gate, up, down = inputs
    queues = Queues.of(index, len(gate), products.block)

    def one_round(carry: Any) -> Any:
        number, (of_x, of_weights, of_gate, of_up, of_down) = carry
        part = queues.part(number)
        order, inverse, group = _sorted(part, len(gate), index.size)
        tokens = part.choices % len(x)
        rows, grads = _exchanged(x[tokens])[order], _exchanged(gradient[tokens])[order]
        weight = _exchanged(weights.T.reshape(-1)[part.choices])[order, None]
        hidden, pull_back = jax.vjp(
            _gated, *(products.of_rows(rows, stack, group) for stack in (gate, up))
        )
        # The gradient of a weight is result . gradient = hidden . (gradient @ down'): no result is
        # computed again.
        of_hidden = products.of_rows(grads, down, group, is_transposed=True).astype(jnp.float32)
        of_weight = jnp.sum(hidden * of_hidden, axis=1)
        of_down = products.of_groups((hidden * weight).astype(x.dtype), grads, group, of_down)
        sides = pull_back((of_hidden * weight).astype(x.dtype))
        of_gate, of_up = (
            products.of_groups(rows, side, group, sums)
            for side, sums in zip(sides, (of_gate, of_up), strict=True)
        )
        of_rows = sum(
            products.of_rows(side, stack, group, is_transposed=True)
            for side, stack in zip(sides, (gate, up), strict=True)
        )
        of_x = _put(of_x, part, _exchanged(of_rows[inverse]))
        of_weights = _put(of_weights, part, _exchanged(of_weight[inverse]))
        return number + 1, (of_x, of_weights, of_gate, of_up, of_down)

    # One round is the rule: sums over rounds need no wider dtype than the gradients.
    start = (
        _of_choices(index, x),
        jnp.zeros(index.size, weights.dtype),
        *map(jnp.zeros_like, (gate, up, down)),
    )
    of_x, of_weights, *of_stacks = _loop(queues, one_round, start)
    return (
        _of_tokens(of_x, jnp.ones_like(weights), x.dtype),
        None,
        of_weights.reshape(weights.T.shape).T,
        *of_stacks,
    )


rounds.defvjp(_rounds_forward, _rounds_backward)


def _loop(queues: Queues, one_round: Callable[[Any], Any], start: Any) -> Any:
    num_rounds = queues.num_rounds()
    return lax.while_loop(
        lambda carry: carry[0] < num_rounds, one_round, (jnp.zeros_like(num_rounds), start)
    )[1]


# -- A layer of experts.

Weight = tuple[tuple[int, ...], PartitionSpec]  # a shape and its spec


def gathered(weight: jax.Array, spec: PartitionSpec, dtype: Any) -> jax.Array:
    """A weight cast and gathered over fsdp, inside of `shard_map`."""
    weight = weight.astype(dtype)
    return (
        lax.all_gather(weight, "fsdp", axis=spec.index("fsdp"), tiled=True)
        if "fsdp" in spec
        else weight
    )


@dataclass(frozen=True)
class Experts:
    """The shapes of a layer of experts, and the layer on one device. hidden: of one expert."""

    width: int
    hidden: int
    num_experts: int
    chosen: int
    products: Products = BY_KERNEL

    def weights(self) -> dict[str, Weight]:
        num_experts, width, hidden = self.num_experts, self.width, self.hidden
        return {
            "router": ((width, num_experts), P("fsdp", None)),
            "gate": ((num_experts, width, hidden), P("expert", "fsdp", None)),
            "up": ((num_experts, width, hidden), P("expert", "fsdp", None)),
            "down": ((num_experts, hidden, width), P("expert", "fsdp", None)),
        }

    def __call__(self, x: jax.Array, weights: Tree) -> jax.Array:
        """x: [tokens, width]; weights: gathered. Inside of `shard_map`."""
        probabilities = jax.nn.softmax((x @ weights["router"]).astype(jnp.float32), axis=-1)
        shares, index = lax.top_k(probabilities, self.chosen)
        shares = shares / jnp.sum(shares, axis=-1, keepdims=True)
        return rounds(
            self.products, x, index, shares, *(weights[name] for name in ("gate", "up", "down"))
        )

    def loss(self, mesh: Mesh, stored: Tree, x: jax.Array) -> jax.Array:
        """The sum of the sines of the results for x, [tokens, width]."""
        specs = {name: spec for name, (_, spec) in self.weights().items()}

        def on_device(x: jax.Array, stored: Tree) -> jax.Array:
            return self(
                x, {name: gathered(weight, specs[name], x.dtype) for name, weight in stored.items()}
            )

        layer = jax.shard_map(
            on_device, mesh=mesh, in_specs=(P(ALL), specs), out_specs=P(ALL), check_vma=False
        )
        return jnp.sum(jnp.sin(layer(x, stored).astype(jnp.float32)))

    def lower(self, mesh: Mesh, num_tokens: int, dtype: Any) -> Any:
        """Returns `loss` with its gradients by weights and x as a `jax.stages.Lowered`, from shapes
        alone."""
        weights = _structs(self.weights(), mesh, dtype)
        x = jax.ShapeDtypeStruct(
            (num_tokens, self.width), dtype, sharding=NamedSharding(mesh, P(ALL))
        )
        out_shardings = NamedSharding(mesh, P()), jax.tree.map(lambda x: x.sharding, (weights, x))
        function = jax.value_and_grad(partial(self.loss, mesh), argnums=(0, 1))
        return jax.jit(function, out_shardings=out_shardings).lower(weights, x)


def _is_weight(x: Any) -> bool:
    return isinstance(x, tuple)


def _structs(weights: Tree, mesh: Mesh, dtype: Any) -> Tree:
    def struct(weight: Weight) -> Any:
        return jax.ShapeDtypeStruct(weight[0], dtype, sharding=NamedSharding(mesh, weight[1]))

    return jax.tree.map(struct, weights, is_leaf=_is_weight)


# -- The model and its step.


@dataclass(frozen=True)
class Mixtral:
    """The shapes of a model: those of Mixtral 8x7B by default (arXiv:2401.04088). hidden: of one
    expert."""

    layers: int
    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14_336
    vocabulary: int = 32_000
    num_experts: int = 8
    chosen: int = 2
    theta: float = 1e6
    eps: float = 1e-5
    products: Products = BY_KERNEL

    @property
    def experts(self) -> Experts:
        return Experts(self.width, self.hidden, self.num_experts, self.chosen, self.products)

    def layer(self) -> dict[str, Weight]:
        """The weights of a layer."""
        width, keys = self.width, self.kv_heads * (self.width // self.heads)
        shapes = {
            "query": (width, width),
            "key": (width, keys),
            "value": (width, keys),
            "out": (width, width),
        }
        weights = {name: (shape, P("fsdp", None)) for name, shape in shapes.items()}
        norms = {name: ((width,), P("fsdp")) for name in ("norm1", "norm2")}
        return {**weights, **norms, **self.experts.weights()}

    def weights(self) -> Tree:
        """All weights; those of a layer have the number of layers as leading dim."""
        layers = {
            name: ((self.layers, *shape), P(None, *spec))
            for name, (shape, spec) in self.layer().items()
        }
        ends = {
            "embed": ((self.vocabulary, self.width), P("fsdp", None)),
            "head": ((self.width, self.vocabulary), P("fsdp", None)),
            "norm": ((self.width,), P("fsdp")),
        }
        return {"layers": layers, **ends}


@dataclass(frozen=True)
class Step:
    """A training step over a mesh with the axes fsdp and expert."""

    model: Mixtral
    mesh: Mesh
    batch: int
    sequence: int
    attention: Callable[..., jax.Array] = splash_attention
    stored: Any = jnp.float32  # the dtype of weights and of AdamW's moments
    dtype: Any = jnp.bfloat16  # the dtype of gathered weights and of the layers' computation
    optimizer: AdamW = AdamW()

    def on_devices(
        self, function: Callable[..., Any], weights: Tree, out_specs: Any
    ) -> Callable[..., Any]:
        """A function of weights and arrays, which are sharded by the batch, on each device.
        weights: with their specs; the function takes them gathered."""
        specs = jax.tree.map(lambda weight: weight[1], weights, is_leaf=_is_weight)

        def on_device(stored: Tree, *batch: jax.Array) -> Any:
            gather = partial(gathered, dtype=self.dtype)
            return function(
                jax.tree.map(lambda spec, weight: gather(weight, spec), specs, stored), *batch
            )

        def run(stored: Tree, *batch: jax.Array) -> Any:
            in_specs = (specs, *[P(ALL)] * len(batch))
            body = jax.shard_map(
                on_device, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
            )
            return body(stored, *batch)

        return run

    def layer(self, weights: Tree, x: jax.Array) -> jax.Array:
        """x: a device's [batch, length, width]."""
        model = self.model
        shape = (*x.shape[:2], model.kv_heads, -1, model.width // model.heads)
        normed = rms_norm(x, weights["norm1"], model.eps)
        query, key, value = (
            (normed @ weights[name]).reshape(shape) for name in ("query", "key", "value")
        )
        key, value = key[:, :, :, 0], value[:, :, :, 0]
        mixed = self.attention(rope(query, model.theta), rope(key, model.theta), value)
        x = x + mixed.reshape(x.shape) @ weights["out"]
        normed = rms_norm(x, weights["norm2"], model.eps)
        return x + model.experts(normed.reshape(-1, model.width), weights).reshape(x.shape)

    def summed_losses(self, weights: Tree, x: jax.Array, targets: jax.Array) -> jax.Array:
        """The sum of the cross entropies of all devices; never with the logits of all rows of
        one."""

        def chunk(total: jax.Array, operands: Any) -> Any:
            rows, targets = operands
            logits = jnp.dot(rows, weights["head"], preferred_element_type=jnp.float32)
            chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
            return total + jnp.sum(jax.nn.logsumexp(logits, axis=-1) - chosen), None

        x = rms_norm(x, weights["norm"], self.model.eps)
        size = min(_ROWS_OF_LOGITS, targets.size)
        chunks = x.reshape(-1, size, x.shape[-1]), targets.reshape(-1, size)
        total, _ = lax.scan(jax.checkpoint(chunk), jnp.zeros((), jnp.float32), chunks)
        return lax.psum(total, ALL)

    def loss(self, parameters: Tree, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        """The mean cross entropy of tokens and targets, both [batch, length]."""

        def ends(*names: str) -> tuple[Tree, Tree]:
            return {name: weights[name] for name in names}, {
                name: parameters[name] for name in names
            }

        weights = self.model.weights()
        of_embed, embed = ends("embed")
        x = self.on_devices(lambda weights, tokens: weights["embed"][tokens], of_embed, P(ALL))(
            embed, tokens
        )
        layer = self.on_devices(self.layer, self.model.layer(), P(ALL))
        layer = jax.checkpoint(
            layer, prevent_cse=False, policy=jax.checkpoint_policies.nothing_saveable
        )
        x, _ = lax.scan(lambda x, stored: (layer(stored, x), None), x, parameters["layers"])
        of_head, head = ends("norm", "head")
        return self.on_devices(self.summed_losses, of_head, P())(head, x, targets) / targets.size

    def __call__(
        self, state: Tree, tokens: jax.Array, targets: jax.Array
    ) -> tuple[Tree, jax.Array]:
        value, gradients = jax.value_and_grad(self.loss)(state[0], tokens, targets)
        # The optimizer computes in float32.
        updated = self.optimizer.update(state, gradients)
        return jax.tree.map(lambda new, old: new.astype(old.dtype), updated, state), value

    def lower(self) -> Any:
        """Returns the step as a `jax.stages.Lowered`, from shapes alone."""
        weights = _structs(self.model.weights(), self.mesh, self.stored)
        replicated = NamedSharding(self.mesh, P())
        state = (
            weights,
            weights,
            weights,
            jax.ShapeDtypeStruct((), jnp.float32, sharding=replicated),
        )
        batch = NamedSharding(self.mesh, P(ALL))
        tokens = jax.ShapeDtypeStruct((self.batch, self.sequence), jnp.int32, sharding=batch)
        out_shardings = (jax.tree.map(lambda x: x.sharding, state), replicated)
        return jax.jit(self, donate_argnums=0, out_shardings=out_shardings).lower(
            state, tokens, tokens
        )
