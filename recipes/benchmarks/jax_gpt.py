"""The reference program: the GPT of `recipes/gpt.py` and its training step, written by hand in JAX
as an expert would.

Lives here: parameters, loss, AdamW, clipping, and their compilation over a mesh. It imports neither
torch nor spmd.

It is fast on XLA's CPU backend because activations are flattened to 2-d before each matmul (worth
20%), queries, keys and values are split before they are cut into heads (2%), the state is donated
and its shardings are pinned, weights are gathered once, and every block's output is constrained to
the batch's sharding. Measured alternately with it, and no faster: weights stored (in, out),
`jax.nn.dot_product_attention`, batch and heads merged, one-hot products instead of gathers, Shardy.

The layouts "data" and "tensor" are the same program with other shardings: parameters replicated, or
heads, hidden units and vocabulary sharded as in Megatron (arXiv:1909.08053) and activations between
them replicated. Heads are sharded only where queries, keys and values are three parameters.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Parameters = dict[str, jax.Array]  # by the names of the torch model's state_dict
# parameters, first and second moments, steps done
State = tuple[Parameters, Parameters, Parameters, jax.Array]


@dataclass(frozen=True)
class AdamW:
    """AdamW as `torch.optim.AdamW` defines it, after clipping by the global norm as
    `clip_grad_norm_` does."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    max_norm: float = 1.0

    def update(self, state: State, gradients: Parameters, learning_rate: jax.Array) -> State:
        parameters, first, second, count = state
        count = count + 1
        squares = sum(jnp.sum(jnp.square(gradient)) for gradient in gradients.values())
        clip = jnp.minimum(1.0, self.max_norm / (jnp.sqrt(squares) + 1e-6))
        correction1 = 1 - self.beta1**count
        correction2 = jnp.sqrt(1 - self.beta2**count)
        new: tuple[Parameters, Parameters, Parameters] = ({}, {}, {})
        for name, parameter in parameters.items():
            gradient = gradients[name] * clip
            mean = self.beta1 * first[name] + (1 - self.beta1) * gradient
            square = self.beta2 * second[name] + (1 - self.beta2) * jnp.square(gradient)
            step = mean / (jnp.sqrt(square) / correction2 + self.eps)
            decayed = parameter * (1 - learning_rate * self.weight_decay)
            new[0][name] = decayed - (learning_rate / correction1) * step
            new[1][name], new[2][name] = mean, square
        return *new, count


def linear(x: jax.Array, parameters: Parameters, name: str) -> jax.Array:
    """Returns x (tokens, in) @ weight.T + bias; the weight is stored (out, in), as in torch."""
    return x @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]


def layer_norm(x: jax.Array, parameters: Parameters, name: str, eps: float = 1e-5) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return (
        centred * jax.lax.rsqrt(variance + eps) * parameters[f"{name}.weight"]
        + parameters[f"{name}.bias"]
    )


def attention(
    x: jax.Array, parameters: Parameters, name: str, *, batch: int, heads: int
) -> jax.Array:
    """Returns causal self-attention of x (batch * sequence, width)."""
    tokens, width = x.shape
    if f"{name}.qkv.weight" in parameters:
        parts = jnp.split(linear(x, parameters, f"{name}.qkv"), 3, axis=-1)
    else:
        parts = [linear(x, parameters, f"{name}.{part}") for part in ("query", "key", "value")]
    query, key, value = (
        part.reshape(batch, tokens // batch, heads, width // heads).transpose(0, 2, 1, 3)
        for part in parts
    )
    scores = jnp.einsum("bhqd,bhkd->bhqk", query * (width // heads) ** -0.5, key)
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    y = jnp.einsum("bhqk,bhkd->bhqd", weights, value)
    return linear(y.transpose(0, 2, 1, 3).reshape(tokens, width), parameters, f"{name}.out")


def block(x: jax.Array, parameters: Parameters, name: str, *, batch: int, heads: int) -> jax.Array:
    normed = layer_norm(x, parameters, f"{name}.norm1")
    x = x + attention(normed, parameters, f"{name}.attention", batch=batch, heads=heads)
    hidden = linear(layer_norm(x, parameters, f"{name}.norm2"), parameters, f"{name}.mlp.up")
    return x + linear(jax.nn.gelu(hidden, approximate=True), parameters, f"{name}.mlp.down")


def loss(
    parameters: Parameters,
    tokens: jax.Array,
    targets: jax.Array,
    *,
    heads: int,
    batched: NamedSharding,
    used: Mapping[str, NamedSharding],
) -> jax.Array:
    """Returns the mean cross entropy of tokens and targets, both (batch, sequence).

    used: the sharding in which the step computes with each parameter.
    """
    batch, sequence = tokens.shape
    # With this constraint each weight is gathered once (otherwise LayerNorm's twice) and the
    # gradients, which get the same constraint in backward, share one variadic all-reduce instead of
    # 150; time and memory stay the same.
    parameters = {
        name: jax.lax.with_sharding_constraint(value, used[name])
        for name, value in parameters.items()
    }
    x = parameters["tokens.weight"][tokens] + parameters["positions.weight"][jnp.arange(sequence)]
    x = jax.lax.with_sharding_constraint(x.reshape(batch * sequence, -1), batched)
    for i in range(num_layers(parameters)):
        x = block(x, parameters, f"blocks.{i}", batch=batch, heads=heads)
        x = jax.lax.with_sharding_constraint(x, batched)
    logits = layer_norm(x, parameters, "norm") @ parameters["head.weight"].T
    log_probabilities = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(log_probabilities, targets.reshape(-1, 1), axis=-1).mean()


def num_layers(parameters: Mapping[str, Any]) -> int:
    return sum(name.endswith("norm1.weight") for name in parameters)


@contextmanager
def use_partitioner(name: str | None) -> Iterator[None]:
    """A context that compiles with the partitioner "gspmd" or "shardy" (None: the process's)."""
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", before if name is None else name == "shardy")
    try:
        yield
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


def spec(shape: tuple[int, ...], axis: str, size: int) -> PartitionSpec:
    """Returns a spec that shards the largest dim that `size` divides, the first of equals; an empty
    one without such a dim."""
    dims = [dim for dim in range(len(shape)) if shape[dim] % size == 0]
    cut = max(dims, key=lambda dim: shape[dim], default=None)
    return PartitionSpec() if cut is None else PartitionSpec(*[None] * cut, axis)


def tensor_spec(name: str, axis: str) -> PartitionSpec:
    """Returns the spec of a parameter in the layout "tensor": heads, hidden units and vocabulary
    are sharded."""
    if re.search(r"(query|key|value|up)\.(weight|bias)$|^(tokens|head)\.weight$", name):
        return PartitionSpec(axis)
    return PartitionSpec(None, axis) if re.search(r"(out|down)\.weight$", name) else PartitionSpec()


def stored(
    shapes: Mapping[str, tuple[int, ...]], layout: str, mesh: Mesh
) -> dict[str, NamedSharding]:
    """Returns the sharding of each parameter between steps in a layout, which is the name of the
    mesh's axis."""
    specs = {
        "fsdp": lambda name: spec(shapes[name], layout, mesh.size),
        "data": lambda name: PartitionSpec(),
        "tensor": lambda name: tensor_spec(name, layout),
    }
    return {name: NamedSharding(mesh, specs[layout](name)) for name in shapes}


@dataclass(frozen=True)
class Program:
    """A compiled training step over a mesh: `step(state, tokens, targets, learning_rate) -> (state,
    loss)`."""

    step: Any  # jax.stages.Compiled
    initialise: Callable[[Mapping[str, np.ndarray]], State]
    put_batch: Callable[[np.ndarray], jax.Array]

    @property
    def flops(self) -> float:
        """Floating-point operations of one device."""
        return self.step.cost_analysis()["flops"]

    @property
    def temp_bytes(self) -> int:
        """Temporary memory of one device."""
        return self.step.memory_analysis().temp_size_in_bytes

    @property
    def collectives(self) -> dict[str, int]:
        """The number of collectives of each kind in the compiled program; an asynchronous pair
        counts once."""
        kinds = "all-gather|all-reduce|reduce-scatter|collective-permute|all-to-all"
        found = re.findall(rf" ({kinds})(?:-start)?\(", self.step.as_text())
        return dict(sorted(Counter(found).items()))


def build(
    shapes: Mapping[str, tuple[int, ...]],
    *,
    batch: int,
    sequence: int,
    heads: int,
    devices: int | Sequence[Any],
    layout: str = "fsdp",
    optimizer: AdamW = AdamW(),
    partitioner: str = "gspmd",
    compiler_options: Mapping[str, str] | None = None,
) -> Program:
    """Compiles the training step over one mesh axis.

    devices: their number, or those of a topology, for which it is only compiled. layout: "fsdp"
    shards state and batch, "data" the batch, "tensor" heads, hidden units and vocabulary.
    """
    mesh = Mesh(
        np.array(jax.devices()[:devices] if isinstance(devices, int) else devices), (layout,)
    )
    batched = NamedSharding(mesh, PartitionSpec(None if layout == "tensor" else layout, None))
    replicated = NamedSharding(mesh, PartitionSpec())
    cut = stored(shapes, layout, mesh)
    used = cut if layout == "tensor" else dict.fromkeys(shapes, replicated)
    shardings = (cut, cut, cut, replicated)

    @partial(jax.jit, donate_argnums=0, out_shardings=(shardings, replicated))
    def step(
        state: State, tokens: jax.Array, targets: jax.Array, learning_rate: jax.Array
    ) -> tuple[State, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(
            state[0], tokens, targets, heads=heads, batched=batched, used=used
        )
        return optimizer.update(state, gradients, learning_rate), value

    def initialise(values: Mapping[str, np.ndarray]) -> State:
        zeros = {name: np.zeros(value.shape, value.dtype) for name, value in values.items()}
        return jax.device_put((dict(values), zeros, zeros, np.zeros((), np.float32)), shardings)

    def abstract(
        shape: tuple[int, ...], dtype: Any, sharding: NamedSharding
    ) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    weights = {name: abstract(shape, np.float32, cut[name]) for name, shape in shapes.items()}
    tokens = abstract((batch, sequence), np.int32, batched)
    scalar = abstract((), np.float32, replicated)
    # Products of torch's precision: JAX's own default for TPUs is one pass of bfloat16.
    with (
        jax.enable_x64(False),
        use_partitioner(partitioner),
        jax.default_matmul_precision("highest"),
    ):
        lowered = step.lower((weights, weights, weights, scalar), tokens, tokens, scalar)
        compiled = lowered.compile(compiler_options=dict(compiler_options or {}))
    return Program(
        compiled, initialise, lambda values: jax.device_put(values.astype(np.int32), batched)
    )
