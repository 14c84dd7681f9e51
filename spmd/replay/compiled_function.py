"""`spmd.compile`: a function that is recorded once, and then replayed for as long as its guards hold."""

import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..core.base import counters, forking, interrupt, messages, observation
from ..core.base.config import config
from ..core.base.state import held
from ..core.engine import syncs
from ..core.engine.abstract import recording
from ..core.ir.graph import DeviceData, is_data
from ..core.ir.source import user_line
from ..core.lazy import body
from ..core.lazy.storage import ASIDE, LIVE, LOCK, SYNC_LOCK
from ..core.lazy.tensor import XlaTensor
from ..core.pjrt import processes
from ..tensors.closures import end_step
from .guards import Guards
from .recipe import Recipe
from .recorded_call import RecordedCall, RefusedError
from .replay import Replay
from .snapshot import Change, Snapshot

P = ParamSpec("P")
R = TypeVar("R")

_MOST = 8  # recorded calls kept for arguments of one kind
_TRIES = 3  # calls in a row that could not be replayed, after which a function is no longer recorded
_lock = forking.survives_fork(threading.RLock())


@dataclass
class _Entry:
    """A recorded call: its guards and its replay."""

    guards: Guards
    replay: Replay


@dataclass
class _Kind:
    """What is known for arguments of one kind.

    entries: the newest first. follow: the numbers that have changed, which are formulas from then on. refused: why the
    last calls could not be replayed, one text for each.
    """

    entries: list[_Entry]
    follow: set[tuple[int, str]]
    refused: list[str]


class CompiledFunction(Generic[P, R]):
    """A function that is recorded once and then replayed; made by `spmd.compile`.

    Attributes:
        causes: why calls were recorded, one text for each, the oldest first (the last 100).
        num_recorded, num_replayed: the calls that ran as Python, and those that did not.
    """

    def __init__(self, function: Callable[P, R], static: Collection[str], options: str):
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._static = frozenset(static)
        self._options = options
        self._kinds: dict[Any, _Kind] = {}
        self._held: list[Any] = []  # keys have ids of these
        self._bound: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self.causes: deque[str] = deque(maxlen=100)
        self.num_recorded = self.num_replayed = 0

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        found = self._bound.get(instance)
        if found is None:
            method = self._function.__get__(instance, owner)
            found = self._bound[instance] = CompiledFunction(method, self._static, self._options)
        return found

    def __repr__(self) -> str:
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        return f"<spmd.compile of {name}: {self.num_recorded} calls recorded, {self.num_replayed} replayed>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if recording() is not None or body.names() or observation.active() is not None or _is_traced():
            return self._function(*args, **kwargs)  # a part of what is recorded
        with self._with_options(), _lock:
            leaves, tree = tree_flatten((args, kwargs))
            key = tree, self._options, *map(self._key_of, leaves), _aliases(leaves)
            kind = self._kinds.get(key)
            if kind is None:
                kind = self._kinds[key] = _Kind([], set(), [])
                self._held.append(leaves)
                cause: Change | str = "the first call" if len(self._kinds) == 1 else "arguments of another kind"
            else:
                done, result, cause = self._replayed(kind, leaves)
                if done:
                    self.num_replayed += 1
                    counters.add("replays")
                    end_step()
                    return result  # type: ignore[no-any-return]
            return self._recorded(kind, leaves, tree, cause)

    def _with_options(self) -> AbstractContextManager[None]:
        return held(config, compiler_options=self._options) if self._options else nullcontext()

    # --- replay ---------------------------------------------------------------------------------------------------

    def _replayed(self, kind: _Kind, leaves: Sequence[Any]) -> tuple[bool, Any, Change | str]:
        """Runs the recorded call whose guards hold; (False, None, why) where there is none."""
        cause: Change | str = "no call of this kind can be replayed"
        with SYNC_LOCK, LOCK, interrupt.later():
            if kind.entries and any((s := ref()) is not None and not is_data(s.value) for ref in LIVE):
                syncs.sync()
            if ASIDE or any((s := ref()) is not None and not is_data(s.value) for ref in LIVE):
                return False, None, "values of other threads, or that could not be compiled, are pending"
            for place, entry in enumerate(kind.entries):
                why = entry.guards.check() or entry.replay.ready(leaves)
                if why:
                    cause = why if place == 0 else cause
                    continue
                numbers = entry.replay.numbers.now(leaves)
                vectors = None if isinstance(numbers, str) else entry.replay.numbers.vectors(numbers)
                if vectors is None:
                    cause = numbers if isinstance(numbers, str) else "random numbers are drawn apart"
                    continue
                watch = syncs.Watch()
                result = entry.replay.run(leaves, vectors)
                if place:
                    kind.entries.insert(0, kind.entries.pop(place))
                break
            else:
                return False, None, cause
        watch.notify(len(entry.replay.recipe.storages))
        return True, result, ""

    # --- recording ------------------------------------------------------------------------------------------------

    def _recorded(self, kind: _Kind, leaves: Sequence[Any], tree: Any, cause: Change | str) -> Any:
        """Calls the function as it is, and keeps the recording where it can be replayed."""
        self.num_recorded += 1
        self._note(f"{cause}, at {user_line()}")

        def call(given: Sequence[Any]) -> Any:
            args, kwargs = tree_unflatten(list(given), tree)
            return self._function(*args, **kwargs)

        if len(kind.refused) >= _TRIES or processes.several():
            result = call(leaves)
            syncs.sync()
            end_step()
            return result
        self._follow(kind, leaves, cause)
        roots = [(getattr(self._function, "__name__", "step"), self._function)]
        roots += [(f"argument {place}", leaf) for place, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)]
        recorded = RecordedCall(call, leaves, roots, kind.follow)
        try:
            recipe = Recipe(recorded)
            replay = Replay(recipe, recorded)
            guards = Guards(Snapshot(roots, recorded.names), {*recipe.volatile, *recorded.follow})
            why = replay.ready(leaves if not recipe.same else leaves) if False else ""
        except RefusedError as error:
            self._refuse(kind, str(error))
        else:
            kind.refused.clear()
            kind.entries.insert(0, _Entry(guards, replay))
            del kind.entries[_MOST:]
        end_step()
        return recorded.result

    def _follow(self, kind: _Kind, leaves: Sequence[Any], cause: Change | str) -> None:
        """Has a number that has changed be a formula from now on: of a parameter group, or a float among arguments."""
        if isinstance(cause, Change) and type(cause.old) is float and type(cause.new) is float:
            kind.follow.add((id(cause.container), cause.key))

    def _refuse(self, kind: _Kind, why: str) -> None:
        kind.refused.append(why)
        self._note(f"not replayed: {why}")
        if len(kind.refused) == _TRIES:
            name = getattr(self._function, "__qualname__", type(self._function).__name__)
            messages.say(f"spmd.compile: {name} runs uncompiled: {why}", "uncompiled", f"spmd.compile: {name}: {why}")

    def _note(self, text: str) -> None:
        self.causes.append(text)
        counters.add("recordings" if not text.startswith("not replayed") else "recordings_refused")

    # --- arguments ------------------------------------------------------------------------------------------------

    def _key_of(self, leaf: Any) -> Any:
        if type(leaf) is XlaTensor:
            storage, view = leaf._storage, leaf._view
            value = storage.value
            placed = value.sharding if type(value) is DeviceData and value.host is None else None
            rules = []
            while view is not None:
                rules.append(view.rule)
                view = view.parent
            return leaf._meta, placed or storage.sharding, leaf.requires_grad, tuple(rules)
        if isinstance(leaf, torch.Tensor):
            return "cpu", tuple(leaf.shape), leaf.dtype, leaf.requires_grad, leaf.device
        if isinstance(leaf, (str, bytes, int, float, complex, type(None), torch.dtype, torch.device)):
            return type(leaf), leaf, str(leaf) if isinstance(leaf, (float, complex)) else ""
        return id(leaf)


def _aliases(leaves: Sequence[Any]) -> tuple[int, ...]:
    """For each tensor on xla the place of the first one over the same storage."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(leaf._storage), i) for i, leaf in enumerate(leaves) if type(leaf) is XlaTensor)


def _is_traced() -> bool:
    return torch.compiler.is_compiling()


def compile(
    function: Callable[P, R] | None = None,
    *,
    static_argnames: str | Collection[str] = (),
    compiler_options: str = "",
) -> Any:
    """Compiles a whole function of tensors on xla, a training step or an inference function: Python runs it once, and
    later calls only run its programs.
    """
    if function is None:
        return functools.partial(compile, static_argnames=static_argnames, compiler_options=compiler_options)
    if not callable(function):
        raise TypeError(f"compile: expected a function, got {function!r}")
    names = [static_argnames] if isinstance(static_argnames, str) else static_argnames
    return CompiledFunction(function, names, compiler_options)
