"""`torch_xla.experimental.distributed_checkpoint`: planners of torch's checkpoints, and its
CheckpointManager.

torch's own module takes seconds to import, so that this one is not imported with the package.
"""

import base64
import functools
import inspect
import itertools
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed import is_initialized
from torch.distributed.checkpoint import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    state_dict_loader,
    state_dict_saver,
)
from torch.distributed.checkpoint._nested_dict import set_element
from torch.distributed.checkpoint.utils import _DistWrapper
from torch.utils._pytree import tree_map_only

from ...core import guarded, processes, replaces, user_line
from ...jobs.checkpoint import CheckpointManager as StateManager
from ...jobs.checkpoint.common_calls import Words
from ...jobs.checkpoint.loading import matched_names
from ...jobs.checkpoint_hooks import write_items
from ...jobs.launching import sealed_objects as objects
from ...tensors.shards import Shard, begins, local_shards
from .checkpoint_reader import FolderReader as FolderReader
from .sharded_tensor import XLAShardedTensor
from .sharding_spec import ShardingType

_PIECE = 1 << 20  # characters of one word


def _is_needed() -> bool:
    """True where several processes have no process group."""
    return processes.several() and not is_initialized()


class _Exchange(_DistWrapper):
    """The calls of one save or load, which all processes make in the same order, through jax's
    key-value store.

    `torch.distributed.checkpoint` speaks to a process group through one small class, of which a
    save or load makes one; for the planners of this file it makes this one where several processes
    have no group.
    """

    def __init__(self, group: Any, use_dist: bool, coordinator_rank: int) -> None:
        super().__init__(None, False, coordinator_rank)
        processes.agree(
            "torch.distributed.checkpoint", b"torch.distributed.checkpoint", user_line()
        )
        self._words, self._calls = Words(), itertools.count()
        self.rank = self._words.index
        self.is_coordinator = self.rank == coordinator_rank

    def get_world_size(self) -> int:
        return self._words.count

    def _publish(self, name: str, value: Any) -> None:
        text = base64.b64encode(objects.dumps(value)).decode()
        pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
        self._words.publish(name, str(len(pieces)))
        for number, piece in enumerate(pieces):
            self._words.publish(f"{name}/{number}", piece)

    def _read(self, name: str) -> Any:
        pieces = [
            self._words.read(f"{name}/{number}") for number in range(int(self._words.read(name)))
        ]
        return objects.loads(base64.b64decode("".join(pieces)))

    def all_gather_object(self, object: Any, is_reader: bool = True) -> Any:
        call = next(self._calls)
        self._publish(f"{call}/{self.rank}", object)
        if not is_reader:
            return None
        return [
            object if rank == self.rank else self._read(f"{call}/{rank}")
            for rank in range(self._words.count)
        ]

    def gather_object(self, object: Any) -> Any:
        return self.all_gather_object(object, self.is_coordinator)

    def scatter_object(self, object_list: list[Any] | None) -> Any:
        call = next(self._calls)
        for rank, value in enumerate(object_list or ()):
            if rank != self.rank:
                self._publish(f"{call}/{rank}", value)
        return self._read(f"{call}/{self.rank}") if object_list is None else object_list[self.rank]

    def broadcast_object(self, object: Any) -> Any:
        name = f"{next(self._calls)}/broadcast"
        if not self.is_coordinator:
            return self._read(name)
        self._publish(name, object)
        return object

    def barrier(self) -> None:
        self.all_gather_object(None)


# True in a save or load by a planner of ours, of several processes without a group.
_is_exchanged = ContextVar("is_exchanged", default=False)


def _wrapper(group: Any, use_dist: bool, coordinator_rank: int) -> _DistWrapper:
    return (_Exchange if _is_exchanged.get() else _DistWrapper)(group, use_dist, coordinator_rank)


def _join(module: Any, name: str) -> None:
    """Has torch's function of a save or load exchange the plans of planners of this file, where it
    is needed."""
    module._DistWrapper = _wrapper

    @replaces(module, name)
    def exchange(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        planner = inspect.signature(function).bind(*args, **kwargs).arguments.get("planner")
        token = _is_exchanged.set(isinstance(planner, _OfSeveral) and _is_needed())
        try:
            return function(*args, **kwargs)
        finally:
            _is_exchanged.reset(token)


for _module, _name in (
    (state_dict_saver, "_save_state_dict"),
    (state_dict_loader, "_load_state_dict"),
):
    _wrapped = f"{_module.__name__}._DistWrapper.__init__(self, group, use_dist, coordinator_rank)"
    guarded(
        (f"{_module.__name__}.{_name}", _wrapped),
        "plans between processes without a group",
        functools.partial(_join, _module, _name),
    )


def is_sharded_tensor(x: Any) -> bool:
    """True for a tensor whose devices have different parts of it.

    >>> import torch
    >>> from spmd.torch_xla.distributed_checkpoint import is_sharded_tensor
    >>> is_sharded_tensor(torch.ones(8, device="xla"))
    False
    """
    kind = getattr(x, "sharding_type", None)
    return isinstance(x, XLAShardedTensor) and kind is not ShardingType.REPLICATED


@dataclass
class CpuShards:
    """The shards of a tensor on the CPU, which `SPMDSavePlanner` writes as it writes the tensor.

    shards: one of each place, of this process's devices. global_shape: of the tensor.
    """

    shards: list[Shard]
    global_shape: torch.Size

    def __create_write_items__(self, fqn: str, value: Any) -> list[Any]:
        """Called by torch for what to write."""
        chunks = [(begins(one.indices), tuple(one.unpadded_data.shape)) for one in self.shards]
        return write_items(fqn, self.shards[0].data, self.global_shape, chunks)

    def at(self, offset: torch.Size) -> torch.Tensor:
        """The shard that begins at an index."""
        return next(one.unpadded_data for one in self.shards if begins(one.indices) == (*offset,))


def sharded_cpu_state_dict(state_dict: dict[str, Any]) -> dict[str, Any]:
    """A copy of a state dict on the CPU: sharded tensors as `CpuShards`, so that no process holds
    all of one. Source: `_sharded_cpu_state_dict` of
    `torch_xla.experimental.distributed_checkpoint._helpers`.

    >>> import torch
    >>> from spmd.torch_xla.distributed_checkpoint import sharded_cpu_state_dict
    >>> sharded_cpu_state_dict({"x": torch.ones(2, device="xla")})
    {'x': tensor([1., 1.])}
    """

    def on_cpu(tensor: torch.Tensor) -> Any:
        if not is_sharded_tensor(tensor):
            return tensor.detach().cpu()
        first = {begins(shard.indices): shard for shard in local_shards(tensor)}
        shards = [one for one in first.values() if one.unpadded_data.numel()]
        return CpuShards(shards, tensor.shape)

    result: dict[str, Any] = tree_map_only(torch.Tensor, on_cpu, state_dict)
    return result


class _OfSeveral:
    """A planner that silences torch's warning that it takes this process for the only one, where it
    is not."""

    state_dict: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if _is_needed():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)

    @property
    def sharded_state_dict(self) -> dict[str, Any]:
        """The tensors of the flat state dict whose devices have different parts of them."""
        return {
            name: value
            for name, value in self.state_dict.items()
            if isinstance(value, CpuShards) or is_sharded_tensor(value)
        }

    @property
    def unsharded_state_dict(self) -> dict[str, Any]:
        """The other values of the flat state dict."""
        sharded = self.sharded_state_dict
        return {name: value for name, value in self.state_dict.items() if name not in sharded}


class SPMDSavePlanner(_OfSeveral, DefaultSavePlanner):
    """A planner for `torch.distributed.checkpoint.save`: one chunk for each shard, of copies the
    first.

    Several processes all call `save`; without a process group they exchange their plans through
    jax's service, which `spmd.initialize` has started.

    >>> import tempfile, warnings, torch, spmd
    >>> import torch.distributed.checkpoint as dcp
    >>> from spmd.torch_xla.distributed_checkpoint import SPMDLoadPlanner, SPMDSavePlanner
    >>> x = spmd.mark_sharding(
    ...     torch.arange(8.0, device="xla"), spmd.Mesh(range(8), (8,), ("data",)), ("data",)
    ... )
    >>> y = {"x": torch.zeros(8, device="xla")}
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
    ...     saved = dcp.save({"x": x}, checkpoint_id=folder, planner=SPMDSavePlanner())
    ...     dcp.load(y, checkpoint_id=folder, planner=SPMDLoadPlanner())
    >>> y["x"].sum().item()
    28.0
    """

    def lookup_object(self, index: Any) -> Any:
        """Called by torch in each process: the value that an item writes."""
        value = self.state_dict[index.fqn]
        if isinstance(value, CpuShards):
            return value.at(index.offset)
        return super().lookup_object(index)


class SPMDLoadPlanner(_OfSeveral, DefaultLoadPlanner):
    """A planner for `torch.distributed.checkpoint.load` into tensors in any sharding, each process
    its own shards.

    Names that differ by wrappers alone fit (`spmd.checkpoint.bare_name`):
    "model._orig_module.weight", as PyTorch/XLA's FSDPv2 saves it, is read into "model.weight".
    Values other than tensors are loaded with `weights_only`.
    """

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None:
        """Called by torch in each process, with the state dict."""
        super().set_up_planner(*args, **kwargs)
        assert self.metadata is not None, "torch reads it first"
        stored = self.metadata.state_dict_metadata
        names = {
            name: stored_name
            for stored_name, name in matched_names(stored, self.state_dict).items()
        }
        self.state_dict = {names.get(name, name): value for name, value in self.state_dict.items()}
        self.mappings = {names.get(name, name): path for name, path in self.mappings.items()}

    def create_local_plan(self) -> Any:
        """Called by torch in each process: what it reads."""
        try:
            return super().create_local_plan()
        except (RuntimeError, ValueError) as error:
            folder = getattr(getattr(self.metadata, "storage_meta", None), "checkpoint_id", None)
            raise ValueError(
                f"SPMDLoadPlanner: the state and the checkpoint in {folder} differ: {error}"
            ) from error

    def load_bytes(self, read_item: Any, value: Any) -> None:
        """Called by torch for each value that is no tensor."""
        name, loaded = read_item.dest_index.fqn, torch.load(value, weights_only=True)
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[name], loaded)
        else:
            self.state_dict[name] = loaded


class CheckpointManager(StateManager):
    """PyTorch/XLA's manager by its arguments: `spmd.CheckpointManager`, whose files it writes.

    Args:
        path: the folder. save_interval: as there. max_to_keep: 0: all steps. chkpt_on_preemption:
            as `on_preemption`.
        max_pending_async: 1, as one save is under way at a time. num_of_threads, process_group: no
            use is made of them.

    >>> import tempfile, torch
    >>> from spmd.torch_xla.distributed_checkpoint import CheckpointManager
    >>> state = {"x": torch.ones(2, device="xla")}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manager = CheckpointManager(folder, save_interval=2)
    ...     saved = [manager.save(step, state) for step in range(3)]
    ...     manager.restore(2, state)
    ...     print(saved, manager.all_steps())
    [True, False, True] [0, 2]
    """

    def __init__(
        self,
        path: str | Path,
        save_interval: int,
        max_to_keep: int | None = 0,
        max_pending_async: int = 1,
        num_of_threads: int = 1,
        process_group: Any = None,
        chkpt_on_preemption: bool = True,
    ) -> None:
        if max_pending_async != 1:
            raise ValueError(
                f"CheckpointManager: expected max_pending_async=1, got {max_pending_async!r}"
            )
        super().__init__(
            path, save_interval, max_to_keep or None, on_preemption=chkpt_on_preemption
        )

    def save(self, step: int, state_dict: dict[str, Any], force: bool = False) -> bool:
        """Saves where `should_save(step)`, or with `force`; returns True if it does."""
        return super().save(step, state_dict, force=force)

    def save_async(self, step: int, state_dict: dict[str, Any], force: bool = False) -> bool:
        """As `save`, and returns while a thread writes."""
        return super().save_async(step, state_dict, force=force)

    def restore(self, step: int, state_dict: dict[str, Any]) -> None:  # type: ignore[override]
        """Loads a step into a state dict, in place."""
        super().restore(state_dict, step)

    join = StateManager.wait
