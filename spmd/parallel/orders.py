"""Orders of a sharded sequence for attention: the chunks of rows, and of heads, that each device
computes.

Under a causal mask late rows meet more keys than early ones. Of 2G chunks of rows a group of
devices therefore has chunks g and 2G-1-g (zigzag: Llama 3, arXiv:2407.21783, section 3.3.2), so
that all groups have the same work. Rows or heads are exchanged inside of attention alone: nothing
outside sees the order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Axes = tuple[str, ...]
Route = list[tuple[int, int]]
Chunks = Any  # a pytree of arrays with the chunks of a device as their first dim


@dataclass(frozen=True, slots=True)
class Order(ABC):
    """axes, num_devices: of the sequence. length: the rows of a chunk.

    Shards are [batch, heads, rows, ...].
    """

    axes: Axes
    num_devices: int
    length: int

    @property
    def num_groups(self) -> int:
        """The groups of devices; those of one group have the same rows."""
        return self.num_devices

    @property
    def group(self) -> jax.Array:
        """The group of this device."""
        return lax.axis_index(self.axes)

    @abstractmethod
    def chunks(self, shard: Any) -> Chunks:
        """The chunks of this device, of the shards of all devices."""

    @abstractmethod
    def shard(self, chunks: Any) -> Any:
        """The shard of this device, of the chunks of all devices."""

    def heads(self, x: jax.Array) -> jax.Array:
        """This device's part of all heads; x: [batch, heads, ...]."""
        return x

    def all_heads(self, x: jax.Array) -> jax.Array:
        """x, of this device's part of the heads, with zeros for the others."""
        return x

    def numbers(self, group: int) -> tuple[int, ...]:
        """The chunks of a group, by their numbers in the sequence."""
        return group, 2 * self.num_groups - 1 - group

    def starts(self, group: jax.Array) -> jax.Array:
        """The first rows of the chunks of a group."""
        numbers = [self.numbers(group) for group in range(self.num_groups)]
        return jnp.asarray(np.array(numbers, np.int32))[group] * self.length

    def route(self, distance: int = 1) -> Route:
        """From each device to that with its heads in a later group."""
        return [(i, (i + distance) % self.num_devices) for i in range(self.num_devices)]


@dataclass(frozen=True, slots=True)
class Consecutive(Order):
    """A device has its shard, as one chunk: without a causal mask."""

    def chunks(self, shard: Any) -> Chunks:
        return jax.tree.map(lambda x: x[None], shard)

    def shard(self, chunks: Any) -> Any:
        return jax.tree.map(lambda x: x[0], chunks)

    def numbers(self, group: int) -> tuple[int, ...]:
        return (group,)


@dataclass(frozen=True, slots=True)
class HalfOfHeads(Order):
    """Devices i and n-1-i have the rows of both, each for half of the heads: one exchange, and half
    of the keys to travel. Heads, also those of keys, and devices are even in number."""

    @property
    def num_groups(self) -> int:
        return self.num_devices // 2

    @property
    def group(self) -> jax.Array:
        device = lax.axis_index(self.axes)
        return jnp.minimum(device, self.num_devices - 1 - device)

    @property
    def _is_low(self) -> jax.Array:
        return lax.axis_index(self.axes) < self.num_groups

    def chunks(self, shard: Any) -> Chunks:
        is_low = self._is_low

        def sent(x: jax.Array) -> jax.Array:
            first, second = (x, x) if x.shape[1] == 1 else jnp.split(x, 2, 1)
            return jnp.where(is_low, second, first)

        def paired(x: jax.Array, received: jax.Array) -> jax.Array:
            local_half = x if x.shape[1] == 1 else self.heads(x)
            return jnp.stack(
                [jnp.where(is_low, local_half, received), jnp.where(is_low, received, local_half)]
            )

        return jax.tree.map(paired, shard, self._swapped(jax.tree.map(sent, shard)))

    def shard(self, chunks: Any) -> Any:
        is_low = self._is_low
        received = self._swapped(jax.tree.map(lambda x: jnp.where(is_low, x[1], x[0]), chunks))

        def joined(x: jax.Array, received: jax.Array) -> jax.Array:
            local_half = jnp.where(is_low, x[0], x[1])
            first, second = (
                jnp.where(is_low, local_half, received),
                jnp.where(is_low, received, local_half),
            )
            return jnp.concatenate([first, second], 1)

        return jax.tree.map(joined, chunks, received)

    def _swapped(self, arrays: Any) -> Any:
        """The arrays of the other device of the group."""
        route = [(i, self.num_devices - 1 - i) for i in range(self.num_devices)]
        return together(lambda x: lax.ppermute(x, self.axes, route), arrays)

    def heads(self, x: jax.Array) -> jax.Array:
        first, second = jnp.split(x, 2, 1)
        return jnp.where(self._is_low, first, second)

    def all_heads(self, x: jax.Array) -> jax.Array:
        zeros = jnp.zeros_like(x)
        return jnp.concatenate(
            [jnp.where(self._is_low, x, zeros), jnp.where(self._is_low, zeros, x)], 1
        )

    def route(self, distance: int = 1) -> Route:
        groups, last = self.num_groups, self.num_devices - 1
        low = [(group, (group + distance) % groups) for group in range(groups)]
        return [*low, *((last - source, last - target) for source, target in low)]


@dataclass(frozen=True, slots=True)
class ZigzagRows(Order):
    """A device has the rows of two chunks, and all heads: for any number of heads, by two
    exchanges."""

    def chunks(self, shard: Any) -> Chunks:
        is_even, (even_route, odd_route) = self.group % 2 == 0, self._routes()
        even = self._moved(jax.tree.map(lambda x: jnp.split(x, 2, 2)[0], shard), even_route)
        odd = self._moved(jax.tree.map(lambda x: jnp.split(x, 2, 2)[1], shard), odd_route)
        return jax.tree.map(
            lambda even, odd: jnp.stack(
                [jnp.where(is_even, even, odd), jnp.where(is_even, odd, even)]
            ),
            even,
            odd,
        )

    def shard(self, chunks: Any) -> Any:
        is_even, (even_route, odd_route) = self.group % 2 == 0, self._routes()
        even = jax.tree.map(lambda x: jnp.where(is_even, x[0], x[1]), chunks)
        odd = jax.tree.map(lambda x: jnp.where(is_even, x[1], x[0]), chunks)
        even = self._moved(even, [(target, source) for source, target in even_route])
        odd = self._moved(odd, [(target, source) for source, target in odd_route])
        return jax.tree.map(lambda even, odd: jnp.concatenate([even, odd], 2), even, odd)

    def _moved(self, arrays: Any, route: Route) -> Any:
        return together(lambda x: lax.ppermute(x, self.axes, route), arrays)

    def _routes(self) -> list[Route]:
        """Of the chunks with even numbers, and of those with odd ones, from shards to the order."""
        last = 2 * self.num_devices - 1
        return [
            [(i, min(chunk, last - chunk)) for i, chunk in enumerate(range(odd, last + 1, 2))]
            for odd in (0, 1)
        ]


def together(collective: Callable[[jax.Array], jax.Array], arrays: Any) -> Any:
    """A collective of each of the arrays; of those of one dtype and shape but for heads, as one
    array."""
    parts, tree = jax.tree.flatten(arrays)
    results: list[Any] = [None] * len(parts)
    kinds: dict[Any, list[int]] = {}
    for index, x in enumerate(parts):
        kinds.setdefault((x.dtype, x.shape[:1], x.shape[2:]), []).append(index)
    for indices in kinds.values():
        joined, start = collective(jnp.concatenate([parts[index] for index in indices], 1)), 0
        for index in indices:
            stop = start + parts[index].shape[1]
            results[index] = lax.slice_in_dim(joined, start, stop, axis=1)
            start = stop
    return jax.tree.unflatten(tree, results)
