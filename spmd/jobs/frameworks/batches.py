"""Batches of a framework's loop, or of a script's own, sharded over all devices where nothing else
shards them."""

import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakIdKeyDictionary

from ...core import XlaTensor, counters, processes, replaces, storage_of, user_line
from ...mesh.mesh import Mesh, get_1d_mesh
from ...mesh.notes import note_whole, say_once
from ...mesh.partition_spec import PartitionSpec
from ...tensors.annotate import get_sharding, mark_sharding
from ..data.trees import Path, mapped


def shard_batch(caller: str, batch: Any, mesh: Mesh, axes: tuple[str, ...]) -> None:
    """Shards dim 0 of a batch's tensors over axes of a mesh, in place. A batch whose rows the axes
    do not divide is replicated, and a line says so; so are tensors with another dim 0 than the
    first one."""
    tensors: dict[Path, Tensor] = {}
    mapped(batch, _has_rows, tensors.setdefault)
    ways = math.prod(mesh.shape()[axis] for axis in axes)
    shape = next((tuple(tensor.shape) for tensor in tensors.values()), (0,))
    if ways > 1 and not processes.several():
        SHARED[:] = [(mesh, axes)]
    if shape[0] % ways:
        note_whole(caller, shape, 0, ways)
    for tensor in tensors.values() if ways > 1 else ():
        entry = axes if shape[0] % ways == 0 and tensor.shape[0] == shape[0] else None
        mark_sharding(tensor, mesh, PartitionSpec(entry, *[None] * (tensor.dim() - 1)))


# The mesh and the axes of the batches, whose devices share the steps of optimizers.
SHARED: list[tuple[Mesh, tuple[str, ...]]] = []
# By optimizer, the size of its state and the first tensors in it: those that are sharded.
_shared_states: Any = WeakIdKeyDictionary()


def _shard_state(optimizer: Optimizer, *_: object) -> None:
    """Shards each new tensor of a state that has the shape of its parameter, where nothing shards
    parameters: each device holds and computes its part of an optimizer's step (ZeRO,
    arXiv:1910.02054)."""
    state = optimizer.state
    present = len(state), *map(id, next(iter(state.values()), {}).values())
    if not SHARED or _shared_states.get(optimizer) == present:
        return
    _shared_states[optimizer] = present
    ((mesh, axes),) = SHARED
    ways = math.prod(mesh.shape()[axis] for axis in axes)
    if any(not isinstance(parameter, XlaTensor) or _is_sharded(parameter) for parameter in state):
        return
    for parameter, values in state.items():
        even = [dim for dim, size in enumerate(parameter.shape) if size and size % ways == 0]
        for value in values.values() if even else ():
            if isinstance(value, XlaTensor) and value.shape == parameter.shape:
                spec: list[Any] = [None] * value.dim()
                spec[max(even, key=value.shape.__getitem__)] = axes
                mark_sharding(value, mesh, PartitionSpec(*spec))


register_optimizer_step_post_hook(_shard_state)


def _is_sharded(tensor: XlaTensor) -> bool:
    sharding = get_sharding(tensor)
    return sharding is not None and not sharding.is_replicated()


def shard_loader(kind: Any, caller: str, is_left: Callable[[], bool] = processes.several) -> None:
    """Has a framework's loaders of a class shard their batches over all devices, unless `is_left`
    says, at the start of an epoch, that something else shards them."""

    @replaces(kind, "__iter__")
    def batches(iterate: Callable[..., Iterator[Any]], self: Any) -> Iterator[Any]:
        mesh, shards = get_1d_mesh("fsdp"), not is_left()
        for batch in iterate(self):
            if shards:
                shard_batch(caller, batch, mesh, ("fsdp",))
            yield batch


# By line, shape and dtype of a copy to the device, the programs that had run before the first one.
_first_copies: dict[Any, int] = {}
_MOST = 1024  # of these, as of batches of many lengths
# Folders of packages: their loops shard batches by patches of their own (`choice.PATCHES`).
_INSTALLED = {"site-packages", "dist-packages"}


def shard_copy(tensor: XlaTensor, source: Tensor) -> None:
    """Shards dim 0 of what a script that knows of no mesh copies to the device again at one of its
    lines, another program later: a batch. Joins `points.after_upload`."""
    mesh, line = get_1d_mesh("fsdp"), user_line()
    is_own = line.code is not None and _INSTALLED.isdisjoint(line.code.co_filename.split(os.sep))
    is_new = storage_of(tensor).stamp == 1  # and no weight that a state dict is copied into
    if not (is_own and is_new) or isinstance(source, nn.Parameter) or processes.several():
        return
    if not tensor.dim() or tensor.shape[0] < mesh.size() or mesh.size() == 1:
        return
    key = str(line), tuple(tensor.shape), tensor.dtype
    num_runs = counters.counter("runs")
    first = _first_copies.get(key)
    if first is None:
        if len(_first_copies) == _MOST:
            _first_copies.clear()
        _first_copies[key] = num_runs
    elif first < num_runs and not _knows_meshes(line.code):
        say_once(
            f"batches copied at {line.short()} are sharded along dim 0 over {mesh.size()} devices"
        )
        shard_batch("use", [tensor], mesh, ("fsdp",))


def _knows_meshes(code: Any) -> bool:
    """True if the script, or the module of this code, which is running, imports this library, whose
    marks are its own."""
    frame = next(frame for frame, _ in traceback.walk_stack(None) if frame.f_code is code)
    values = [*vars(sys.modules["__main__"]).values(), *frame.f_globals.values()]
    names = (getattr(value, name, None) for value in values for name in ("__name__", "__module__"))
    return any(str(name).partition(".")[0] in ("spmd", "fsdp", "torch_xla") for name in names)


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "xla" and value.dim() > 0
