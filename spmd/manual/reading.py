"""`spmd.use_sharding`: reads in another sharding than the stored one."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..core import Sharding, XlaTensor, ends_at_user_line, grad_shardings, storage_of, view_of
from ..core.extend import reads
from ..mesh.mesh import Mesh
from ..mesh.partition_spec import PartitionSpec
from ..tensors.annotate import on_device


@ends_at_user_line
class use_sharding:
    """A context in which ops read tensors with another spec than the stored one.

    FSDP stores a parameter sharded and computes with it unsharded: entering gathers once, however
    often the value is read, and the gradient arrives with the same sharding before it is sharded
    like the parameter (an all-reduce and a slice, which XLA joins into a reduce-scatter where the
    hardware has one). Backward ops read as their forward ops did. Reusable; entering records
    nothing by itself. Contexts nest, also of the same tensor: the innermost counts. `.data =` keeps
    the sharding.

    Args:
        tensors: tensors on xla, not views. mesh: as in `mark_sharding`.
        partition_spec: the spec to read them in; None: replicated.
        over: gathers over this mesh axis only: a tensor that other axes shard too (tensor parallel)
            stays sharded over them.
        dtype: the eight-bit float in which devices exchange floating-point tensors of two dims or
            more, `torch.float8_e4m3fn` or `torch.float8_e5m2`. They are cast on their shards with
            scales, powers of two, one for each index of the gathered dim, and widened to their own
            dtype after the gather. Gradients pass as if they were not rounded. None: their own.
            A sequence has one for each tensor.

    Raises TypeError for a tensor that is not on xla and for another dtype, ValueError for a view or
    a spec that does not fit.

    >>> import torch, spmd
    >>> weight = torch.ones(4, 2, device="xla")
    >>> with spmd.use_sharding([weight], spmd.Mesh([0], (1,), ("fsdp",))):
    ...     y = weight * 2
    >>> y.sum().item()
    16.0
    """

    def __init__(
        self,
        tensors: Iterable[torch.Tensor],
        mesh: Mesh,
        partition_spec: Sequence[Any] | None = None,
        *,
        over: str | None = None,
        dtype: torch.dtype | Sequence[torch.dtype | None] | None = None,
    ):
        if over is not None and (partition_spec is not None or over not in mesh.axes):
            raise ValueError(
                f"use_sharding: expected over={over!r} to be an axis of the mesh "
                f"({', '.join(mesh.axes)}), and no partition_spec with it"
            )
        self._tensors = tuple(on_device(tensor, "use_sharding") for tensor in tensors)
        self._dtypes = (
            tuple(dtype) if isinstance(dtype, Sequence) else (dtype,) * len(self._tensors)
        )
        for narrow in self._dtypes:
            if narrow not in (None, torch.float8_e4m3fn, torch.float8_e5m2):
                raise TypeError(
                    "use_sharding: expected dtype to be torch.float8_e4m3fn, torch.float8_e5m2 or "
                    f"None, got {narrow!r}"
                )
        if len(self._dtypes) != len(self._tensors):
            raise ValueError(
                f"use_sharding: expected a dtype for each of {len(self._tensors)} tensors, got "
                f"{len(self._dtypes)}"
            )
        self._mesh, self._spec, self._over = mesh, partition_spec, over
        self._iteration, self._first = -1, 0
        for tensor in self._tensors:
            if view_of(tensor) is not None:
                raise ValueError(
                    "use_sharding: expected tensors that are not views, got a view; pass its base"
                )
            if partition_spec is not None:
                mesh.sharding(partition_spec, tensor.dim(), "use_sharding")
        # looked up when the context is entered, by the marks of that moment
        self._reads: list[reads.Read] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "use_sharding":
        return use_sharding(
            [copy.deepcopy(tensor, memo) for tensor in self._tensors],
            self._mesh,
            self._spec,
            over=self._over,
            dtype=self._dtypes,
        )

    def __enter__(self) -> "use_sharding":
        self._bind()
        self._forget_what_ran()
        for tensor, read in zip(self._tensors, self._reads, strict=True):
            storage_of(tensor).reads.enter(read)
            # a tensor that was frozen when it was annotated may have been unfrozen since
            grad_shardings.follow(tensor)
        self._take_generation()
        self._first = torch._C._autograd._get_sequence_nr()
        return self

    def __exit__(self, *_: object) -> None:
        span = (self._first, torch._C._autograd._get_sequence_nr())
        for tensor, read in zip(self._tensors, self._reads, strict=True):
            if storage_of(tensor).reads is not None:
                storage_of(tensor).reads.leave(read.key, span)
        if self._reads and self._iteration != reads.generation:
            # the values gathered inside may be freed: backward begins outside
            reads.next_generation()

    def keep(self, mesh: Mesh, before: torch.Tensor) -> list[Any]:
        """Reshards the gathered values over another mesh, by their stored specs, and returns them
        for `renew`.

        Its axes have the same names; a shorter axis keeps more per device, nearer to the gathered
        value. The result is computed before `before`, so that the gathered values are freed. Raises
        TypeError for a tensor that is not on xla.
        """
        layouts = []
        for tensor in self._tensors:
            stored = storage_of(tensor).sharding
            spec = (None,) * tensor.dim() if stored is None else stored.partition_spec(tensor.dim())
            layouts.append(mesh.sharding(spec, tensor.dim(), "use_sharding.keep"))
        return reads.reshard(self._reads, layouts, on_device(before, "use_sharding.keep"))

    def renew(self, after: torch.Tensor, kept: Sequence[Any] = ()) -> None:
        """Makes the next read gather the tensors again, after `after` is computed, to free the
        gathered values.

        Does nothing where no other `use_sharding` was entered or renewed since, nor an enclosing
        one left: the gathered values still exist. FSDP calls it with the gradient that arrives at a
        unit. `kept`, the result of `keep`, is gathered instead of the stored values. Raises
        TypeError for a tensor that is not on xla.

        >>> import torch, spmd
        >>> weight = torch.ones(4, 4, device="xla")
        >>> unsharded = spmd.use_sharding([weight], spmd.Mesh([0], (1,), ("fsdp",)))
        >>> with unsharded:
        ...     y = weight * 2
        ...     unsharded.renew(y)
        ...     z = weight * y
        >>> z.sum().item()
        32.0
        """
        after = on_device(after, "use_sharding.renew")
        if self._iteration != reads.generation:
            self._bind()
            self._forget_what_ran()
            reads.renew(self._reads, after, kept)
            self._take_generation()

    def _forget_what_ran(self) -> None:
        for read in self._reads:
            if not read.is_fresh():
                read.stamp = -1

    def _take_generation(self) -> None:
        if self._reads:
            self._iteration = reads.next_generation()

    def _bind(self) -> None:
        """Looks the reads up again where a tensor has got another storage."""
        if len(self._reads) != len(self._tensors) or not all(
            map(_is_bound, self._tensors, self._reads)
        ):
            self._reads = [
                reads.read_in(
                    storage_of(tensor),
                    self._layout_of(tensor),
                    # scales of a vector would be as many as its elements
                    dtype if tensor.is_floating_point() and tensor.dim() > 1 else None,
                )
                for tensor, dtype in zip(self._tensors, self._dtypes, strict=True)
            ]
            reads.group(self._reads)

    def _layout_of(self, tensor: XlaTensor) -> Sharding:
        spec, stored = self._spec, storage_of(tensor).sharding
        if spec is None and self._over is not None and stored is not None:
            spec = PartitionSpec(*stored.partition_spec(tensor.dim())).without(self._over)
        return self._mesh.sharding(
            (None,) * tensor.dim() if spec is None else spec, tensor.dim(), "use_sharding"
        )


def _is_bound(tensor: XlaTensor, read: reads.Read) -> bool:
    stored = storage_of(tensor).reads
    return stored is not None and stored.known.get(read.key) is read
