"""Inputs and outputs of modules: the tensors in a structure, and their sharding over the batch
axes."""

# Why inputs of the root and outputs of units are sharded along the batch: nothing else says that
# the batch is split. From there the partitioner knows the rest; left alone it may gather a batch to
# meet a sharded weight.

import functools
import math
from typing import TypeVar

import torch
from torch import nn

import spmd
from spmd import P
from spmd.mesh.notes import note_whole
from spmd.tensors.structures import leaves, map_tensors

_T = TypeVar("_T")
_Entry = object  # of a spec: the axes of one dim, by name or number


def tensors(output: object) -> list[torch.Tensor]:
    """The tensors on the device xla in an output: a tensor, tuple, dict, dataclass, or these
    nested."""
    return [
        value
        for value in leaves(output)
        if isinstance(value, torch.Tensor) and value.device.type == "xla"
    ]


def cast(output: _T, dtype: torch.dtype | None) -> _T:
    """Casts the floating-point tensors of a nested output; None: no cast."""
    if dtype is None:
        return output
    return map_tensors(
        output, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor
    )


_SEQUENCES = (
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)


def is_time_first(module: nn.Module) -> bool:
    """True for torch's modules of sequences with batch_first=False: dim 1 of their tensors is the
    batch."""
    return isinstance(module, _SEQUENCES) and not next(
        (below.batch_first for below in module.modules() if hasattr(below, "batch_first")), True
    )


def time_first_note(module: nn.Module) -> str:
    """A line on a time-first module inside this one, whose dim 0 is taken for the batch; "" without
    one."""
    name = next(
        (name for name, below in module.named_modules() if name and is_time_first(below)), None
    )
    if name is None:
        return ""
    kind = type(module.get_submodule(name)).__name__
    return (
        f"fsdp: dim 0 of the input is split as the batch, and {kind} {name!r} takes (time, batch, "
        "...): if the input is time first, write mark_sharding(x, mesh, P(None, 'fsdp', None)) "
        "before the model, else batch_first=True"
    )


class BatchSplit:
    """Shards dim 0 of tensors over the batch axes. XLA chooses the sharding of vectors, of scalars
    and of tensors whose dim 0 the axes do not divide.

    It references no module: a hook with a BatchSplit is in no reference cycle with parameters.
    """

    def __init__(self, mesh: spmd.Mesh, axes: tuple[str, ...]):
        self.mesh = mesh
        self.axes = axes
        # The number of shards of a batch; each must have equal rows, as XLA would pad the last one.
        self.ways = math.prod(mesh.shape()[axis] for axis in axes)
        # Other axes are tensor or sequence parallel's, whose marks would follow a gather.
        self._rest: _Entry = None if self.ways == len(mesh.device_ids) else P.UNCONSTRAINED
        self._of_length: dict[int, _Entry] = {}  # the entry of the spec of dim 1, by its size

    def note_sequences(self, inputs: object) -> None:
        """Takes over the user's sharding of an input's dim 1 (sequences): outputs of that length,
        with three or more dims, get it, too."""
        entries: dict[int, _Entry] = {}
        for tensor in tensors(inputs):
            sharding = spmd.get_sharding(tensor) if tensor.dim() > 1 else None
            entry = None if sharding is None else sharding.partition_spec(tensor.dim())[1]
            if entry is not None and set(self.axes).isdisjoint(
                entry if isinstance(entry, tuple) else (entry,)
            ):
                entries[tensor.shape[1]] = entry
        if entries != self._of_length:  # a compiled step has a guard on the dict
            self._of_length = entries

    def __call__(self, output: object, dim: int = 0, *, is_batch: bool = False) -> None:
        """Shards a dim of the tensors in an output; of stacks and time-first tensors it is dim 1.
        is_batch: prints a line if no tensor can be sharded."""
        uneven_shapes = []
        # Vectors and scalars, such as a loss, have no rows of the batch that a mark could name.
        batches = [
            tensor for tensor in tensors(output) if tensor.dim() >= 2 and tensor.shape[dim] > 0
        ]
        for tensor in batches:
            if tensor.shape[dim] % self.ways == 0:
                is_sequence = dim == 0 and tensor.dim() > 2
                sequence = self._of_length.get(tensor.shape[1]) if is_sequence else None
                spec = _spec(tensor.dim(), dim, self.axes, self._rest, sequence)
                spmd.mark_sharding(tensor, self.mesh, spec)
            else:
                uneven_shapes.append(tuple(tensor.shape))
        if is_batch and uneven_shapes and len(uneven_shapes) == len(batches):
            note_whole("fsdp", uneven_shapes[0], dim, self.ways)


# Cached: a unit marks its inputs and outputs in each pass, and a spec is checked when it is made.
@functools.cache
def _spec(
    rank: int, dim: int, axes: tuple[str, ...], rest: _Entry, sequence: _Entry
) -> spmd.PartitionSpec:
    """The spec that shards one dim over axes. rest: the entry of each other dim; sequence: that of
    dim 1, if any."""
    entries = [axes if i == dim else rest for i in range(rank)]
    if sequence is not None:
        entries[1] = sequence
    return P(*entries)
