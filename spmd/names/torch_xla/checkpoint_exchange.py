"""The plans of torch's checkpoints, exchanged by several processes through jax's key-value store.

`torch.distributed.checkpoint` speaks to a process group through one small class, of which a save or load makes one; for
the planners of `distributed_checkpoint` it makes ours where several processes have no group.
"""

import base64
import functools
import inspect
import itertools
import pickle
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from torch.distributed import is_initialized
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.utils import _DistWrapper

from ...core import guarded, processes, user_line
from ...jobs.exchange import Words

_PIECE = 1 << 20  # characters of one word


def is_needed() -> bool:
    """True where several processes have no process group."""
    return processes.several() and not is_initialized()


class _Exchange(_DistWrapper):
    """The calls of one save or load, which all processes make in the same order."""

    def __init__(self, group: Any, use_dist: bool, coordinator_rank: int) -> None:
        super().__init__(None, False, coordinator_rank)
        processes.agree("torch.distributed.checkpoint", b"torch.distributed.checkpoint", user_line())
        self._words, self._calls = Words(), itertools.count()
        self.rank = self._words.index
        self.is_coordinator = self.rank == coordinator_rank

    def get_world_size(self) -> int:
        return self._words.count

    def _publish(self, name: str, value: Any) -> None:
        text = base64.b64encode(pickle.dumps(value)).decode()
        pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
        self._words.publish(name, str(len(pieces)))
        for number, piece in enumerate(pieces):
            self._words.publish(f"{name}/{number}", piece)

    def _read(self, name: str) -> Any:
        pieces = [self._words.read(f"{name}/{number}") for number in range(int(self._words.read(name)))]
        return pickle.loads(base64.b64decode("".join(pieces)))  # of this job's own processes

    def broadcast_object(self, object: Any) -> Any:
        name = f"{next(self._calls)}/broadcast"
        if not self.is_coordinator:
            return self._read(name)
        self._publish(name, object)
        return object

    def all_gather_object(self, object: Any) -> list[Any]:
        call = next(self._calls)
        self._publish(f"{call}/{self.rank}", object)
        return [object if rank == self.rank else self._read(f"{call}/{rank}") for rank in range(self._words.count)]

    def gather_object(self, object: Any) -> list[Any] | None:
        call = next(self._calls)
        if not self.is_coordinator:
            self._publish(f"{call}/{self.rank}", object)
            return None
        return [object if rank == self.rank else self._read(f"{call}/{rank}") for rank in range(self._words.count)]

    def scatter_object(self, object_list: list[Any] | None) -> Any:
        call = next(self._calls)
        if object_list is None:
            return self._read(f"{call}/{self.rank}")
        for rank, value in enumerate(object_list):
            if rank != self.rank:
                self._publish(f"{call}/{rank}", value)
        return object_list[self.rank]

    def barrier(self) -> None:
        self.all_gather_object(None)


# True in a save or load by a planner of ours, of several processes without a group.
_is_exchanged = ContextVar("is_exchanged", default=False)


def _wrapper(group: Any, use_dist: bool, coordinator_rank: int) -> _DistWrapper:
    return (_Exchange if _is_exchanged.get() else _DistWrapper)(group, use_dist, coordinator_rank)


def _exchanging(function: Callable[..., Any], planners: tuple[type, ...]) -> Callable[..., Any]:
    """torch's function of a save or load, with an exchange where it is needed."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: Any, **given: Any) -> Any:
        planner = signature.bind(*args, **given).arguments.get("planner")
        token = _is_exchanged.set(isinstance(planner, planners) and is_needed())
        try:
            return function(*args, **given)
        finally:
            _is_exchanged.reset(token)

    return called


def join_planners(*planners: type) -> None:
    """Has torch's checkpoints exchange the plans of planners of these classes."""
    for module, name in ((state_dict_saver, "_save_state_dict"), (state_dict_loader, "_load_state_dict")):
        start, parameters = module.__name__, "self, group, use_dist, coordinator_rank"
        needs = f"{start}.{name}", f"{start}._DistWrapper.__init__({parameters})"
        guarded(needs, "plans between processes without a group", functools.partial(_join, module, name, planners))


def _join(module: Any, name: str, planners: tuple[type, ...]) -> None:
    module._DistWrapper = _wrapper
    setattr(module, name, _exchanging(getattr(module, name), planners))
