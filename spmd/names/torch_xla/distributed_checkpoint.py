"""`torch_xla.experimental.distributed_checkpoint`: planners of torch's checkpoints, and its CheckpointManager.

torch's own module takes seconds to import, so that this one is not imported with the package.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint._nested_dict import set_element

from ...jobs.checkpoint import CheckpointManager as StateManager
from ...jobs.checkpoint.loading import matched_names
from .checkpoint_exchange import is_needed, join_planners
from .checkpoint_reader import FolderReader as FolderReader


class _OfSeveral:
    """A planner that silences torch's warning that it takes this process for the only one, where it is not."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if is_needed():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)


class SPMDSavePlanner(_OfSeveral, DefaultSavePlanner):
    """A planner for `torch.distributed.checkpoint.save`: one chunk for each shard, of copies the first.

    Several processes all call `save`; without a process group they exchange their plans through jax's service, which
    `spmd.initialize` has started.

    >>> import tempfile, warnings, torch, spmd
    >>> import torch.distributed.checkpoint as dcp
    >>> from spmd.torch_xla.distributed_checkpoint import SPMDLoadPlanner, SPMDSavePlanner
    >>> x = spmd.mark_sharding(torch.arange(8.0, device="xla"), spmd.Mesh(range(8), (8,), ("data",)), ("data",))
    >>> y = {"x": torch.zeros(8, device="xla")}
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
    ...     saved = dcp.save({"x": x}, checkpoint_id=folder, planner=SPMDSavePlanner())
    ...     dcp.load(y, checkpoint_id=folder, planner=SPMDLoadPlanner())
    >>> y["x"].sum().item()
    28.0
    """


class SPMDLoadPlanner(_OfSeveral, DefaultLoadPlanner):
    """A planner for `torch.distributed.checkpoint.load` into tensors in any sharding, each process its own shards.

    Names that differ by wrappers alone fit (`spmd.checkpoint.bare_name`): "model._orig_module.weight", as PyTorch/XLA's
    FSDPv2 saves it, is read into "model.weight". Values other than tensors are loaded with `weights_only`.
    """

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None:
        """Called by torch in each process, with the state dict."""
        super().set_up_planner(*args, **kwargs)
        assert self.metadata is not None, "torch reads it first"
        names = {own: name for name, own in matched_names(self.metadata.state_dict_metadata, self.state_dict).items()}
        self.state_dict = {names.get(own, own): value for own, value in self.state_dict.items()}
        self.mappings = {names.get(own, own): place for own, place in self.mappings.items()}

    def create_local_plan(self) -> Any:
        """Called by torch in each process: what it reads."""
        try:
            return super().create_local_plan()
        except (RuntimeError, ValueError) as error:
            folder = getattr(getattr(self.metadata, "storage_meta", None), "checkpoint_id", None)
            raise ValueError(f"SPMDLoadPlanner: the state and the checkpoint in {folder} differ: {error}") from error

    def load_bytes(self, read_item: Any, value: Any) -> None:
        """Called by torch for each value that is no tensor."""
        name, loaded = read_item.dest_index.fqn, torch.load(value, weights_only=True)
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[name], loaded)
        else:
            self.state_dict[name] = loaded


join_planners(SPMDSavePlanner, SPMDLoadPlanner)


class CheckpointManager:
    """PyTorch/XLA's manager by its arguments, over `spmd.CheckpointManager`; the files are those of the latter.

    Args:
        path: the folder. save_interval: as there. max_to_keep: 0: all steps. chkpt_on_preemption: as `on_preemption`.
        max_pending_async: 1, as one save is under way at a time. num_of_threads, process_group: no use is made of them.

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
            raise ValueError(f"CheckpointManager: expected max_pending_async=1, got {max_pending_async!r}")
        self._manager = StateManager(path, save_interval, max_to_keep or None, on_preemption=chkpt_on_preemption)

    def save(self, step: int, state_dict: dict[str, Any], force: bool = False) -> bool:
        """Saves where `should_save(step)`, or with `force`; returns True if it does."""
        return self._manager.save(step, state_dict, force=force)

    def save_async(self, step: int, state_dict: dict[str, Any], force: bool = False) -> bool:
        """As `save`, and returns while a thread writes."""
        return self._manager.save_async(step, state_dict, force=force)

    def restore(self, step: int, state_dict: dict[str, Any]) -> None:
        """Loads a step into a state dict, in place."""
        self._manager.restore(state_dict, step)

    def all_steps(self) -> list[int]:
        """The committed steps."""
        return self._manager.all_steps()

    def join(self) -> None:
        """Waits for the save under way."""
        self._manager.wait()

    def should_save(self, step: int) -> bool:
        """True for a step that `save` writes."""
        return self._manager.should_save(step)

    def reached_preemption(self, step: int) -> bool:
        """True at the step that is saved as the job is to end soon."""
        return self._manager.reached_preemption(step)
