"""A user's function of arrays that each device computes of its own shards: JAX, Pallas, one op with
its gradients."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import torch

from ..core import Meta, dense_meta, ends_at_user_line
from ..core.extend import Arrays, Interned, partitioning
from ..loops.interop.call_jax import ApplyJax, JaxCall, is_float
from ..tensors.annotate import on_device

Function = Callable[..., Any]


@ends_at_user_line
def kernel(
    function: Function, words: str, *, sharded: str, backward: Function | None = None
) -> "KernelOfShards":
    """A JAX function that each device computes of its own shards, as one recorded, differentiable
    op.

    No partitioner can place a Pallas kernel, and it replicates a loop. The function runs under
    `jax.shard_map` over the mesh axes that are known to shard its operands; other axes stay the
    partitioner's. Where none is known it runs as it is. A sharded dim whose name is not in
    `sharded` is gathered, which a plan's findings and the compile log show.

    Args:
        function: takes an array for each operand, or a device's shard of it, and returns one, or a
            tuple of them.
        words: the names of the dims of operands and results, as "b h s d, b h t d -> b h s d".
        sharded: those of these names along which a shard of the results needs only shards of the
            operands. A result without such a name is the sum of those of all devices along it.
        backward: takes the operands and the gradients of the results, and returns those of all
            operands, shard by shard, too. None: by `jax.vjp`.

    Raises ValueError for words without an arrow and for a name in `sharded` that no operand has; in
    a call TypeError for a tensor that is not on xla, and ValueError for operands of another number
    or rank.
    Source: `jax.experimental.custom_partitioning`'s `sharding_rule`, which programs for TPUs cannot
    have (jax#38196).

    >>> import jax.numpy as jnp, torch, spmd
    >>> normed = spmd.kernel(
    ...     lambda x, w: x / jnp.abs(x).max(-1, keepdims=True) * w, "b d, d -> b d", sharded="b"
    ... )
    >>> normed(torch.tensor([[1.0, 2.0]], device="xla"), torch.ones(2, device="xla")).tolist()
    [[0.5, 1.0]]
    """
    operands, arrow, results = words.partition("->")
    if not arrow:
        raise ValueError(f"kernel: expected words as 'b s d, d -> b s d', got {words!r}")
    for name in sharded.split():
        if name not in operands.replace(",", " ").split():
            raise ValueError(f"kernel: {name!r} of sharded is no dim of an operand in {words!r}")
    return KernelOfShards(
        function, _dims(operands), _dims(results), tuple(sharded.split()), backward
    )


def _dims(side: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(part.split()) for part in side.split(","))


@dataclass(frozen=True)
class KernelOfShards:
    """See `kernel`. operands, results: the words of the dims of each."""

    function: Function
    operands: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]
    sharded: tuple[str, ...]
    backward: Function | None = None

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def words(self) -> str:
        return " -> ".join(", ".join(map(" ".join, side)) for side in (self.operands, self.results))

    def __call__(self, *tensors: torch.Tensor) -> Any:
        operands = [on_device(tensor, "kernel") for tensor in tensors]
        if [tensor.dim() for tensor in operands] != [len(dims) for dims in self.operands]:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in operands)
            raise ValueError(
                f"kernel: expected operands of {self.words.partition(' ->')[0]!r}, got shapes "
                f"{shapes}"
            )
        metas = tuple(dense_meta(tensor.shape, tensor.dtype) for tensor in operands)
        call = _CALLS.of((self, metas), lambda: _KernelCall(self, metas))
        return jax.tree.unflatten(call.tree, ApplyJax.apply(call, *operands))

    def placed(self, arrays: Arrays, results: tuple[Meta, ...]) -> Function:
        """The function of these operands on the devices that are known to have their shards."""
        dims = [
            (array, dim)
            for array, names in zip(arrays, self.operands, strict=True)
            for dim in range(len(names))
        ]
        axes_of = partitioning.axes_of_dims(*dims)
        if axes_of is None:
            return self.function
        mesh, axes = axes_of
        over: dict[str, tuple[str, ...]] = {}
        for word, of_dim in zip(
            [word for names in self.operands for word in names], axes, strict=True
        ):
            if of_dim and word in self.sharded:
                over.setdefault(word, of_dim)
            elif of_dim:
                partitioning.note_finding(
                    f"kernel {self.name} gathers dim {word!r} over {', '.join(of_dim)}"
                )
        if not over:
            return self.function
        shapes = [meta.shape for meta in results]
        body = lambda *shards: tuple(jax.tree.leaves(self.function(*shards)))  # noqa: E731  # a body, not a name
        run = partitioning.per_shard(body, self.words, mesh, over, shapes)
        return lambda *operands: run(*operands) if len(shapes) > 1 else run(*operands)[0]


class _KernelCall(JaxCall):
    """The op of a kernel over operands of known shapes."""

    def __init__(self, kernel: KernelOfShards, metas: tuple[Meta, ...]):
        self.kernel, self.results = kernel, ()
        super().__init__(kernel.function, kernel.function, metas, f"{kernel}")

    def placed(self, arrays: Arrays) -> Function:
        return self.kernel.placed(arrays, self.results)

    def gradient(self, needed: tuple[bool, ...]) -> JaxCall:
        backward = self.kernel.backward
        if backward is None or needed in self.gradients:
            return super().gradient(needed)
        indices = [i for i, need in enumerate(needed) if need]
        words = tuple(self.kernel.operands[i] for i in indices)
        function = partial(_some, backward, indices)
        results = zip(self.kernel.results, self.results, strict=True)
        of_grads, metas = zip(
            *((names, meta) for names, meta in results if is_float(meta)), strict=True
        )
        kernel = KernelOfShards(
            function, (*self.kernel.operands, *of_grads), words, self.kernel.sharded
        )
        self.gradients[needed] = _KernelCall(kernel, (*self.metas, *metas))
        return self.gradients[needed]


def _some(backward: Function, indices: list[int], *arrays: Any) -> tuple[Any, ...]:
    """The gradients of the operands at these indices."""
    grads = backward(*arrays)
    return tuple(grads[i] for i in indices)


_CALLS: Interned[Any, _KernelCall] = Interned(32)
