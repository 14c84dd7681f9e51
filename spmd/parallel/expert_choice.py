"""One op of a layer of experts: where its operands are, and which exchange brings rows and weights
together.

The choice is made from the bytes that each exchange moves and keeps, of this batch and these
weights.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ..core import config
from ..core.extend import partitioning
from .expert_exchanges import BLOCK, ExpertsOnDevice
from .expert_rows import RowBody
from .orders import Axes

# Weights of a layer that take more bytes are not gathered.
MOST_GATHERED = 4 << 30
# Rows whose products take more bytes are computed in parts.
MOST_ROWS = 320 << 20
# Products of so many operations hide a gathered byte: what chips compute while a byte comes, and as
# much again, as weights must arrive before the layer begins. Rows that travel are hidden by
# nothing.
_HIDDEN = 4000
# The rows that a pair of devices exchanges at once, and in each round of those that are left: parts
# of an even share.
_ROOM, _ROUND = 17 / 16, 1 / 4


@dataclass(frozen=True)
class ExpertsCase:
    """One op of experts: its choices, [..., chosen], and the operands of its body."""

    body: RowBody
    num_experts: int
    choices: jax.Array
    operands: tuple[jax.Array, ...]
    scalars: Mapping[int, Sequence[jax.Array]]

    # -- Operands.

    def _of_kind(self, *kinds: str) -> dict[int, int]:
        """The places of the operands that steps of these kinds take, each with the first such
        step."""
        places: dict[int, int] = {}
        for index, step in enumerate(self.body.steps):
            if step.kind in kinds:
                places.setdefault(step.sources[-1], index)
        return places

    @property
    def stacks(self) -> list[int]:
        return list(self._of_kind("product", "expert"))

    @cached_property
    def placed(self) -> tuple[Any, tuple[int, ...], list[Axes], Axes]:
        """The mesh (None: one device), the dims of tokens, the axes that shard each, and those of
        the experts."""
        num_tokens, num_choices = (
            self.choices.size // self.choices.shape[-1],
            self.choices.shape[-1],
        )
        mesh = partitioning.mesh()
        experts: Axes = ()
        for operand_index in self.stacks:
            axes_of = partitioning.axes_of_dims((self.operands[operand_index], 0), uneven=0)
            experts = experts or (axes_of[1][0] if axes_of else ())
        grid, axes = tuple(self.choices.shape[:-1]), list[Axes]([()] * (self.choices.ndim - 1))
        for x in [
            self.choices,
            *(self.operands[operand_index] for operand_index in self._of_kind("token")),
        ]:
            count = next(n for n in range(1, x.ndim + 1) if math.prod(x.shape[:n]) == num_tokens)
            axes_of = partitioning.axes_of_dims(*((x, dim) for dim in range(count)))
            if axes_of is not None and sum(map(len, axes_of[1])) > sum(map(len, axes)):
                grid, axes = tuple(x.shape[:count]), axes_of[1]
        assert math.prod(grid) * num_choices == self.choices.size
        if mesh is None or not (experts or any(axes)):
            return mesh, grid, axes, ()
        # The devices of further axes have the same tokens: each takes a part of them.
        manual = jax.sharding.get_abstract_mesh().manual_axes  # of a stage, say
        for name in [*experts, *(name for name in mesh.axis_names if name not in experts)]:
            if mesh.shape[name] == 1 or name in manual or any(name in of_dim for of_dim in axes):
                continue
            for dim, size in enumerate(grid):
                if size % partitioning.num_shards(mesh, (*axes[dim], name)) == 0:
                    axes[dim] = (*axes[dim], name)
                    break
        if not set(experts) <= {axis for of_dim in axes for axis in of_dim}:
            # All of the experts' axes have other tokens, or none: else results of different tokens
            # would be added up.
            axes = [tuple(axis for axis in of_dim if axis not in experts) for of_dim in axes]
        return mesh, grid, axes, experts

    @property
    def axes_of_tokens(self) -> Axes:
        return tuple(axis for of_dim in self.placed[2] for axis in of_dim)

    @property
    def num_shards(self) -> int:
        """The devices of the axes of experts."""
        mesh, _, _, experts = self.placed
        return partitioning.num_shards(mesh, experts) if experts else 1

    @property
    def of_device(self) -> int:
        """The experts of a device."""
        return -(-self.num_experts // self.num_shards)

    # -- The choice.

    @cached_property
    def exchange(self) -> str:
        """The exchange: "gathered", "all-to-all" (rounds) or "ring"; "" where each device has all
        experts, and "replicated" where the devices of an axis have the same tokens."""
        if self.num_shards == 1:
            return ""
        if not set(self.placed[3]) <= set(self.axes_of_tokens):
            return "replicated"
        if config.parallel != "auto":
            return config.parallel
        moved = self.moved
        if self.weights <= MOST_GATHERED and moved["gathered"] * _HIDDEN <= self.work:
            return "gathered"
        return min(("all-to-all", "ring"), key=moved.__getitem__)

    @property
    def rows(self) -> int:
        """The rows of a device."""
        mesh, axes = self.placed[0], self.axes_of_tokens
        return self.choices.size // (partitioning.num_shards(mesh, axes) if axes else 1)

    @property
    def computed(self) -> int:
        """The rows that a device multiplies at a time if the router is balanced."""
        return (
            self.rows // self.num_shards if self.exchange in ("ring", "replicated") else self.rows
        )

    def num_parts(self, rows: int) -> int:
        """The parts in which so many rows are computed, of whole blocks, that none takes too much
        memory."""
        widest = max(step.width for step in self.body.steps if step.kind == "product") * rows
        blocks = rows // BLOCK if rows % BLOCK == 0 else 1
        return next((n for n in range(-(-widest // MOST_ROWS), blocks) if n and blocks % n == 0), 1)

    @property
    def weights(self) -> int:
        """The bytes of all experts' weights."""
        return sum(
            self.operands[operand_index].size * self.operands[operand_index].dtype.itemsize
            for operand_index in self.stacks
        )

    @property
    def work(self) -> int:
        """The operations of a device's products."""
        matrices = [step.sources[1] for step in self.body.steps if step.kind == "product"]
        sizes = [self.operands[operand_index].size for operand_index in matrices]
        sizes += [math.prod(end.shape) for end in self.body.exits if len(end.sources) == 2]
        return 2 * self.rows * sum(sizes) // self.num_experts

    @property
    def moved(self) -> dict[str, int]:
        """The bytes that a device sends, by exchange."""
        num_peers, steps = self.num_shards - 1, self.body.steps
        sent, returned, _ = self.body.exchanged
        row = sum(steps[index].width for index in (*sent, *returned))
        sums = sum(
            math.prod(end.shape) * end.dtype.itemsize
            for end in self.body.exits
            if end.kind == "expert"
        )
        tokens = self.rows // self.choices.shape[-1]
        of_token = sum(step.width for step in steps if step.kind == "token")
        of_token += sum(
            steps[end.sources[0]].width for end in self.body.exits if end.kind == "token"
        )
        return {
            "gathered": (self.weights + sums) * num_peers // self.num_shards,
            "all-to-all": self.at_once * num_peers * row,
            "ring": self.num_shards * tokens * of_token,
        }

    @property
    def at_once(self) -> int:
        """The rows that a pair of devices exchanges at once."""
        return self._of_pair(_ROOM)

    @property
    def of_round(self) -> int:
        """The rows that a pair of devices exchanges in a round of those that are left."""
        return self._of_pair(_ROUND)

    def _of_pair(self, share: float) -> int:
        """The rows of a pair of devices, about so many parts of an even share."""
        rows = math.ceil(share * self.rows / self.num_shards)
        unit = (
            max(2 * BLOCK // math.gcd(2 * BLOCK, self.num_shards), 8)
            if rows * self.num_shards >= 8 * BLOCK
            else 8
        )
        return min(-(-rows // unit) * unit, self.rows)

    def finding(self) -> str:
        """A sentence on the exchange."""
        axes, moved = " x ".join(self.placed[3]), self.moved
        if self.exchange == "replicated":
            return (
                f"experts over {axes}: each device computes its own experts' rows of the same "
                "tokens"
            )
        names = {
            "gathered": "weights are gathered",
            "all-to-all": "rows travel in rounds",
            "ring": "tokens travel",
        }
        alternatives = ", ".join(
            f"{moved[name]:,} {name}" for name in moved if name != self.exchange
        )
        enough = (
            math.ceil(moved["gathered"] * _HIDDEN * self.rows / max(self.work, 1))
            // self.choices.shape[-1]
        )
        least = f"weights are gathered from {enough:,} tokens a device on"
        if self.weights > MOST_GATHERED:
            least = f"weights of {self.weights:,} bytes are never gathered"
        rounds = ""
        if self.exchange == "all-to-all":
            size, more = self.at_once, self.of_round
            rounds = (
                f"; {size:,} rows a pair, and while a queue is longer {more:,} more, in the same "
                "memory: no round "
            )
            rounds += (
                f"if the router is balanced, {-(-(self.rows - size) // more)} where all choose "
                "one device"
            )
        return (
            f"experts over {axes}: {names[self.exchange]}, {moved[self.exchange]:,} bytes "
            f"({alternatives}; {least}){rounds}"
        )

    # -- The op.

    def results(self) -> list[jax.Array]:
        """The results, in the order of the body's exits; the dims of tokens as they are sharded."""
        mesh, grid, axes, experts = self.placed
        if experts:
            partitioning.note_finding(self.finding(), "exchange")
        num_choices, is_gathered = self.choices.shape[-1], self.exchange in ("", "gathered")
        of_experts = () if is_gathered else experts
        padded = self.of_device * self.num_shards - self.num_experts
        kinds = self._kinds
        operands, specs = list[jax.Array](), list[PartitionSpec]()
        for x, kind in zip((self.choices, *self.operands), ("choice", *kinds), strict=True):
            if kind in ("token", "base", "choice"):
                inner = (num_choices,) if kind == "choice" else ()
                x = x.reshape(*grid, *inner, *_trailing(x.shape, math.prod((*grid, *inner))))
                specs.append(partitioning.spec(*axes))
            elif kind == "stack":
                x = (
                    jnp.pad(x, [(0, padded)] + [(0, 0)] * (x.ndim - 1))
                    if padded and of_experts
                    else x
                )
                specs.append(partitioning.spec(of_experts))
            else:
                specs.append(PartitionSpec())
            operands.append(x)
        outs, apart = (
            list[PartitionSpec](),
            tuple(axis for axis in self.axes_of_tokens if axis not in of_experts),
        )
        for end in self.body.exits:
            dims = (apart, of_experts) if end.kind == "expert" else axes
            outs.append(partitioning.spec(*dims))
        scalars = {index: list(values) for index, values in self.scalars.items() if len(values)}

        def on_device(
            scalars: Any, choices: jax.Array, *operands: jax.Array
        ) -> tuple[jax.Array, ...]:
            return ExpertsOnDevice(self, kinds, choices, operands, scalars).results()

        run: Callable[..., Any] = on_device
        if mesh is not None:
            run = jax.shard_map(
                on_device,
                mesh=mesh,
                in_specs=(PartitionSpec(), *specs),
                out_specs=tuple(outs),
                check_vma=False,
            )
        results = list(run(scalars, *operands))
        for index, end in enumerate(self.body.exits):
            if end.kind == "expert":
                # as a product: a partitioner scatters its sums where they are wanted
                total = partitioning.exchanged(results[index], results[index].dtype)
                results[index] = total[: self.num_experts]
        return results

    @property
    def _kinds(self) -> list[str]:
        """The kind of each operand: "token", "base", "choice", "stack" or "shared"."""
        kinds = dict.fromkeys(self.stacks, "stack")
        for kind in ("base", "token", "choice", "shared"):
            kinds |= dict.fromkeys(self._of_kind(kind), kind)
        return [kinds[index] for index in range(len(self.operands))]


def _trailing(shape: Sequence[int], count: int) -> tuple[int, ...]:
    """The dims behind those that have so many elements."""
    first = next(n for n in range(len(shape) + 1) if math.prod(shape[:n]) == count)
    return tuple(shape[first:])
