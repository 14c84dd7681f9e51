"""`spmd.compile`: a function that Python runs once, and whose programs alone run for as long as its
guards hold."""

import contextlib
import functools
import importlib
import inspect
import itertools
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from pathlib import Path
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import torch
from torch.compiler import is_compiling
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from ...core import (
    DEVICE,
    LOCK,
    DeviceData,
    Sharding,
    Storage,
    XlaTensor,
    compiled_with,
    counters,
    ends_at_user_line,
    forking,
    messages,
    observation,
    processes,
    recording,
    storage_of,
    syncs,
    tensor_meta,
    user_line,
    view_of,
)
from ...core.extend import (
    SYNC_LOCK,
    Bounded,
    Change,
    attributes_of,
    body,
    deferred,
    interrupt,
    losses,
    record_calls,
    storages,
    walks,
)
from ...tensors import closures
from .argument_objects import ObjectParts, parts_of
from .guards import Guards
from .observed_call import ObservedCall, ReplayError, Seen, is_number
from .recipe import Recipe
from .replay import REPLACED, Replay
from .rows import Rows, Schedule
from .stream_capture import join_stream_capture

P = ParamSpec("P")
R = TypeVar("R")

_MOST_ENTRIES = 8  # recorded calls kept for arguments of one kind
_MOST_KINDS = 64
PLAIN = (str, bytes, int, float, complex, type(None), torch.dtype, torch.device)
_LEAVES = frozenset({XlaTensor, torch.Tensor, int, float, bool, str, type(None)})
_lock = forking.survives_fork(threading.RLock())


@dataclass
class _Entry:
    """A recorded call. follow: the numbers that were formulas when it was recorded, and are in its
    checks. floats: the floats among its arguments that are no formulas, by place. counts: by how
    much it counted up the counters of its arguments."""

    guards: Guards
    replay: Any  # a Replay, or what stands for one
    follow: Collection[tuple[int, Any]]
    floats: Mapping[int, float]
    counts: Sequence[int]
    rows: Rows
    schedule: Schedule
    scope: Seen | None  # what a check looks at; None after one that could not be compared: all

    def stale(self, flat: Sequence[Any]) -> Change | str | None:
        """The reason why the call cannot be replayed now."""
        for index, value in self.floats.items():
            if flat[index] != value:
                return Change(f"argument {index}", None, None, index, value, flat[index])  # type: ignore[arg-type]
        return self.guards.check() or self.replay.ready(flat) or None


class _Check(NamedTuple):
    """A call that is compared with a recorded one: that, and the numbers that its replay would have
    passed."""

    entry: _Entry
    numbers: Sequence[float]


@dataclass
class CallKind:
    """The recorded calls for arguments of one kind.

    entries: the newest first. follow: the numbers that have changed, which are formulas from then
    on. refused: why the last calls in a row could not be replayed.
    """

    entries: list[_Entry] = field(default_factory=list)
    follow: set[tuple[int, Any]] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    # Of calls without other effects than results: the state, and the results with gradients.
    observed: list[tuple[Guards, Any]] = field(default_factory=list)
    num_misses: int = 0  # recordings since the last replay
    num_replayed: int = -1  # of the function, at the last recording


class CompiledFunction(Generic[P, R]):
    """A function that is recorded once and then replayed; made by `spmd.compile`.

    Attributes:
        num_recorded, num_replayed: the calls that were recorded, and those whose guards held.
        num_checked: the latter that ran as Python, to compare what they record with the recording.
        causes: why calls were recorded and why a recorded one cannot be replayed, the last 100,
            oldest first.
        tries: calls in a row that could not be replayed, after which calls of a kind are no longer
            observed.
    """

    tries = 3
    _keeps_recordings = False  # where an equal one has checked them
    _kind_name, _refused_words = "spmd.compile of", "runs uncompiled"

    def __init__(
        self, function: Callable[P, R], static: Collection[str], options: Mapping[str, Any]
    ):
        join_stream_capture()
        functools.update_wrapper(self, function, updated=())
        self._function = self._plain = function
        self._name = getattr(function, "__qualname__", type(function).__name__)
        self._static = frozenset(static)
        self._signature = inspect.signature(function) if static else None
        unknown = self._static.difference(self._signature.parameters) if self._signature else ()
        if unknown:
            raise ValueError(
                f"compile: static_argnames: {self._name} has no argument {sorted(unknown)[0]!r}"
            )
        self._options = options
        self._kinds: OrderedDict[Any, CallKind] = OrderedDict()
        # By their ids, arguments that are part of a kind by their identity.
        self._objects: Bounded[int, tuple[Callable[[], Any], Identity]] = Bounded(32)
        self._whole: set[type] = set()  # of objects whose values or tensors a call has replaced
        self._bound: weakref.WeakKeyDictionary[Any, CompiledFunction[Any, Any]] = (
            weakref.WeakKeyDictionary()
        )
        self.num_recorded = self.num_replayed = self.num_checked = 0
        self._ended: list[str] = []  # why no call is replayed any more
        self.causes: deque[str] = deque(maxlen=100)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        bound = self._bound.get(instance)
        if bound is None:
            method = self._function.__get__(instance, owner)
            bound = self._bound[instance] = CompiledFunction(method, self._static, self._options)
        return bound

    def __repr__(self) -> str:
        counts = f"{self.num_recorded} calls recorded, {self.num_replayed} replayed"
        return (
            f"<{self._kind_name} {self._name}: "
            f"{counts}{f' ({self.num_checked} checked)' * bool(self.num_checked)}>"
        )

    def explain(self) -> str:
        """The calls recorded and replayed, and why calls were recorded, a line each."""
        return "\n".join([repr(self)[1:-1], *self.causes])

    def warm(self, *args: Any, folder: str | Path | None = None, **kwargs: Any) -> int:
        """Compiles the programs of a call with these arguments, which nothing runs; returns their
        number.

        folder: they are written there, for the first call of other processes
        (`spmd.load_programs`). See `spmd.warm`.
        """
        # a tool, needed by this call alone
        warm = importlib.import_module("spmd.tools.planning.planner").warm
        return warm(self._function, *args, folder=folder, compiler_options=self._options, **kwargs)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if is_recorded() or losses.is_transformed():  # a part of what is recorded; other ops
            return self._function(*args, **kwargs)
        with compiled_with(self._options) if self._options else contextlib.nullcontext(), _lock:
            is_flat = self._signature is None and not kwargs and _LEAVES.issuperset(map(type, args))
            if is_flat:
                items, tree = [*args], _tree_of(len(args))
            else:
                items, tree = tree_flatten(
                    (args, kwargs) if self._signature is None else self._bind(args, kwargs)
                )
            apart = {
                i: parts
                for i, item in enumerate(items)
                if not is_flat and (parts := self._parts_of(item)) is not None
            }
            if not self._is_recordable(apart):
                return self._plain(*args, **kwargs)
            flat = [*items, *(tensor for parts in apart.values() for tensor in parts.tensors)]
            # The number of flat arguments is their tree; the hash of a tree takes longer.
            key = len(args) if is_flat else tree, *self._keys_of(flat, apart)
            kind = self._kinds.get(key)
            cause: Change | _Check | str
            if kind is None and not self._repeats(key):
                return self._plain(*args, **kwargs)
            if kind is None:
                cause = (
                    "the first call" if not self._kinds else "the first call with such arguments"
                )
                kind = self._kinds[key] = CallKind(refused=[*self._ended])
                if len(self._kinds) > _MOST_KINDS:
                    self._kinds.popitem(last=False)
            else:
                self._kinds.move_to_end(key)
                began = time.perf_counter()
                entry, result, cause = self._replayed(kind, flat)
                if entry is not None:
                    entry.schedule.replayed(began)
                    counted = [counter for parts in apart.values() for counter in parts.counted]
                    for (thing, name, number), count in zip(counted, entry.counts, strict=True):
                        setattr(thing, name, number + count)
                    self.num_replayed += 1
                    counters.add("replays")
                    if closures.waiting or closures.running:
                        closures.end_step()
                    return result
            call = _Call(self._function, (args, kwargs), flat, tree)
            return self._recorded(kind, flat, call, cause, apart)

    def _repeats(self, key: Any) -> bool:
        """True if calls of a new kind are worth a recording."""
        return True

    def _is_recordable(self, apart: Mapping[int, ObjectParts]) -> bool:
        return True

    def _parts_of(self, item: Any) -> ObjectParts | None:
        if isinstance(item, torch.Tensor) or type(item) in self._whole:
            return None
        return parts_of(item)

    def _bind(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        assert self._signature is not None
        bound = self._signature.bind(*args, **kwargs)
        for name in self._static & bound.arguments.keys():
            bound.arguments[name] = _StaticArgument(bound.arguments[name])
        return bound.args, bound.kwargs

    # --- replay -----------------------------------------------------------------------------------

    def _replayed(
        self, kind: CallKind, flat: Sequence[Any]
    ) -> tuple[_Entry | None, Any, Change | _Check | str]:
        """Runs the recorded call whose guards hold; (None, None, why) where there is none, or where
        it is checked."""
        if not kind.entries:
            return None, None, "no earlier call can be replayed"
        cause: Change | str = ""
        with SYNC_LOCK, LOCK, interrupt.later():
            if unready := self._unready():
                return None, None, unready
            for entry in [*kind.entries]:
                why = entry.stale(flat)
                if has_gone(why):
                    kind.entries.remove(entry)  # it may hold the old tensors
                numbers = "" if why else entry.replay.numbers.now(flat)
                if not isinstance(numbers, str) and (
                    entry.scope is None or entry.schedule.is_due()
                ):
                    return None, None, _Check(entry, numbers)
                vectors = (
                    None if isinstance(numbers, str) else entry.replay.numbers.vectors(numbers)
                )
                if vectors is not None:
                    break
                cause = cause or why or numbers or "random numbers are drawn apart"
            else:
                return None, None, cause
            watch = syncs.Watch()
            result = self._run(entry.replay, flat, vectors)
            kind.entries.remove(entry)
            kind.entries.insert(0, entry)
        self._ran(entry.replay, watch)
        return entry, result, ""

    def _unready(self) -> str:
        """Runs pending values; the reason why they are pending still, or ""."""
        if _is_pending():
            syncs.sync()
        is_left = any(ref() is not None for ref in storages.ASIDE) or _is_pending()
        return (
            "values of other threads, or values that could not be compiled, are pending" * is_left
        )

    def _run(self, replay: Any, flat: Sequence[Any], vectors: Any) -> Any:
        lists = record_calls.at_once.value
        if lists is not None and lists.reads(replay.overwritten(flat)):
            record_calls.at_once.value = None
            syncs.sync()
        return replay.run(flat, vectors)

    def _ran(self, replay: Any, watch: syncs.Watch) -> None:
        """The end of a sync."""
        watch.notify(len(replay.recipe.storages))
        if processes.several():  # as the sync of a call that another process records
            processes.collect_garbage()

    # --- recording --------------------------------------------------------------------------------

    @ends_at_user_line
    def _recorded(
        self,
        kind: CallKind,
        flat: Sequence[Any],
        call: "_Call",
        cause: Change | _Check | str,
        apart: Mapping[int, ObjectParts],
    ) -> Any:
        """Calls the function as it is, and keeps the recording where it can be replayed."""
        deferred.finish()
        check, began = cause if isinstance(cause, _Check) else None, time.perf_counter()
        if check is None:
            self.num_recorded += 1
            counters.add("recordings")
            if len(kind.refused) < self.tries:  # else it runs uncompiled, and the causes say why
                self.causes.append(f"recorded at {user_line()}: {cause}")
        else:
            self.num_replayed += 1
            self.num_checked += 1
            counters.add("replays")
            kind.entries.remove(check.entry)
            # they hold containers that the call may drop, and so what it has put into them
            del check.entry.guards

        if len(kind.refused) >= self.tries:
            result = call(flat)
            self._end_step(runs=True)
            return result
        if isinstance(cause, Change):
            self._follow(kind, cause)
        plain_items = [
            (i, item)
            for i, item in enumerate(flat)
            if not isinstance(item, torch.Tensor) and i not in apart
        ]
        roots = [
            *self._roots(),
            *(
                (f"argument {i}", item.value if type(item) is _StaticArgument else item)
                for i, item in plain_items
            ),
        ]
        scope = None if check is None else check.entry.scope
        follow = frozenset(kind.follow) if check is None else check.entry.follow
        recorded = self._observed(call, flat, roots, kind, follow, apart, scope)
        try:
            if call.has_written:
                raise ReplayError(WRITES)
            counts = self._counts(apart, flat)
            replay, rows = self._replay_of(recorded)
            guards = Guards(recorded.after, replay.recipe.volatile)
        except ReplayError as error:
            kind.follow |= recorded.to_follow
            if check is None:
                self._refuse(kind, str(error), count=not recorded.to_follow)
            elif check.entry.scope is None:
                self._end(check.entry, str(error))
            else:
                # by chance, as where another thread draws at the same time: the next call is
                # checked, too
                check.entry.guards = Guards(recorded.after, check.entry.replay.recipe.volatile)
                check.entry.scope = None
                kind.entries.insert(0, check.entry)
        else:
            schedule = Schedule()
            if check is not None:
                schedule, passed = check.entry.schedule, check.entry.replay.numbers.passed
                for why in check.entry.rows.differences(
                    rows, lambda number: passed(number, check.numbers)
                ):
                    self._end(check.entry, why)
                    return recorded.result
                schedule.checked(began)
                if self._keeps_recordings:  # the numbers of rows are those of their recording
                    replay, rows = check.entry.replay, check.entry.rows
            kind.refused.clear()
            floats = {
                i: item for i, item in plain_items if type(item) is float and (0, i) not in follow
            }
            kind.entries.insert(
                0, _Entry(guards, replay, follow, floats, counts, rows, schedule, recorded.seen)
            )
            del kind.entries[_MOST_ENTRIES:]
        self._end_step(runs=False)
        return recorded.result

    def _follow(self, kind: CallKind, change: Change) -> None:
        """Has a number that has changed be a formula from now on."""
        if is_number(change.old) and is_number(change.new):
            container = change.container
            kind.follow.add((id(container) if container is not None else 0, change.key))

    def _roots(self) -> list[tuple[str, Any]]:
        """The objects whose state a call may read, by name."""
        return [(getattr(self._function, "__name__", "step"), self._function)]

    def _observed(
        self,
        call: "_Call",
        flat: Sequence[Any],
        roots: Sequence[tuple[str, Any]],
        kind: CallKind,
        follow: Collection[tuple[int, Any]],
        apart: Mapping[int, ObjectParts],
        scope: Seen | None,
    ) -> ObservedCall:
        return ObservedCall(call, flat, roots, follow, apart, scope)

    def _replay_of(self, recorded: ObservedCall) -> tuple[Any, Any]:
        """The replay of a call, and what checks compare; raises ReplayError."""
        replay = Replay(Recipe(recorded), recorded)
        return replay, Rows(recorded, replay.recipe)

    def _end_step(self, *, runs: bool) -> None:
        """The end of a call that ran as Python. runs: its programs are still to run."""
        if runs:
            syncs.sync()
        closures.end_step()

    def _counts(self, apart: Mapping[int, ObjectParts], flat: Sequence[Any]) -> list[int]:
        """By how much the call has counted up; raises ReplayError where it has given an object of
        its arguments other values, or other tensors."""
        counts: list[int] = []
        for index, old_parts in apart.items():
            new_parts = parts_of(flat[index])
            if new_parts is None or [*map(id, new_parts.tensors)] != [*map(id, old_parts.tensors)]:
                self._whole.add(type(flat[index]))
                raise ReplayError(
                    f"it replaces a tensor of a {type(flat[index]).__name__} among its arguments"
                )
            if new_parts.key[0] != old_parts.key[0]:
                raise ReplayError(f"it changes a {type(flat[index]).__name__} among its arguments")
            counts += [
                new[2] - old[2]
                for old, new in zip(old_parts.counted, new_parts.counted, strict=True)
            ]
        return counts

    def _end(self, entry: _Entry, why: str) -> None:
        """Has the function run uncompiled from now on, as a check has found what no guard sees."""
        text = (
            f"{self._name.rpartition('.')[2]} runs uncompiled: what no guard sees has changed: "
            f"{why}; pass it as an "
        )
        text += f"argument; up to {entry.schedule.since} calls may have used the old one"
        self._ended = [text] * self.tries
        for kind in self._kinds.values():
            kind.entries.clear()
            kind.refused = [*self._ended]
        self.causes.append(f"checked at {user_line()}: {text}")
        messages.say(text, f"ended {id(self)}", is_error=True)

    def _refuse(self, kind: CallKind, why: str, *, count: bool) -> None:
        kind.refused += [why] * count
        counters.add("recordings_refused")
        self.causes.append(f"not to be replayed: {why}")
        if len(kind.refused) == self.tries:
            name = self._name.rpartition(".")[2]
            messages.say(
                f"{name} {self._refused_words}: {why}",
                "uncompiled",
                f"{self._kind_name} {self._name}: {why}",
            )

    # --- arguments --------------------------------------------------------------------------------

    def _keys_of(self, flat: Sequence[Any], apart: Mapping[int, ObjectParts]) -> Iterable[Any]:
        """The kind of arguments, with their objects of tensors."""
        yield aliases(flat)
        for i, item in enumerate(flat):
            yield apart[i].key if i in apart else self._key_of(item)

    def _key_of(self, item: Any) -> Any:
        """The kind of one argument, which is the same for all calls that one recording may
        serve."""
        if type(item) is XlaTensor:
            rules, view = [], view_of(item)
            while view is not None:
                rules.append(view.rule)
                view = view.parent
            return tensor_meta(item), placed(storage_of(item)), item.requires_grad, *rules
        if isinstance(item, torch.Tensor):
            return "cpu", tuple(item.shape), item.dtype, item.requires_grad, item.device
        if type(item) is float:  # a guard, and where it changes a formula
            return float
        if type(item) is _StaticArgument:
            item = item.value
        if isinstance(item, PLAIN):
            return type(item), item, repr(item)
        known = self._objects.get(id(item))
        if known is None or known[0]() is not item:
            forget = functools.partial(self._objects.rows.pop, id(item))
            try:
                get: Any = weakref.ref(item, forget)
            except TypeError:
                get = functools.partial(_same, item)
            known = self._objects.keep(id(item), (get, Identity(next(_identities))))
        return known[1]


class Identity(int):
    """The number of an object, which no other one has had, as ids have."""


_identities = itertools.count()


def _same(item: Any) -> Any:
    return item


WRITES = "it changes a list, a dict or a tensor's attribute among its arguments"


class _Call:
    """A function, of the flat of its arguments. It gets the containers that were passed where the
    leaves are those in them, else copies.

    has_written: it has changed a container, or an attribute of a tensor.
    """

    def __init__(self, function: Callable[..., Any], passed: Any, flat: Sequence[Any], tree: Any):
        self._function, self._passed, self._tree = function, passed, tree
        self._items = flat[: tree.num_leaves]  # the tensors of objects follow
        self.has_written = False

    def of_copies(self) -> "_Call":
        """The same function, without the arguments that were passed."""
        return _Call(self._function, None, (), self._tree)

    def __call__(self, leaves: Sequence[Any]) -> Any:
        items = leaves[: self._tree.num_leaves]
        if self._passed is not None and all(map(is_, items, self._items)):
            args, kwargs = self._passed
        else:
            values = [item.value if type(item) is _StaticArgument else item for item in items]
            args, kwargs = tree_unflatten(values, self._tree)
        (tree, before) = _contents((args, kwargs))
        result = self._function(*args, **kwargs)
        (tree_now, now) = _contents((args, kwargs))
        self.has_written |= (
            tree != tree_now or len(before) != len(now) or not all(map(is_, before, now))
        )
        return result


def _contents(passed: Any) -> tuple[Any, list[Any]]:
    """What is in the containers among arguments, and the attributes of tensors among them."""
    leaves, tree = tree_flatten(passed)
    attributes = [
        part
        for leaf in leaves
        if type(leaf) is XlaTensor
        for pair in attributes_of(leaf).items()
        for part in pair
    ]
    return tree, [*leaves, *attributes]


def placed(storage: Storage) -> Sharding | None:
    """The sharding of data, or of a value to come; None for one that a program may choose."""
    value = storage.value
    is_on_devices = type(value) is DeviceData and value.host is None
    return replicated_is_none(value.sharding if is_on_devices else storage.sharding)  # type: ignore[union-attr]


def replicated_is_none(sharding: Sharding | None) -> Sharding | None:
    """None for a sharding like that of data on the host."""
    if sharding is not None and sharding.is_replicated() and sharding.memory == DEVICE:
        return None  # such data is replicated over the mesh of the program
    return sharding


class _StaticArgument:
    """A static argument: part of the kind by its value, whatever it holds."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value


def is_recorded() -> bool:
    """True while this thread records a call, a body or a plan, of which what it calls is a part."""
    is_kept = recording.value is not None or observation.active_observation.value is not None
    return is_kept or bool(body.names.value) or is_compiling()


def has_gone(why: Change | str | None) -> bool:
    """True if a tensor, its data or a container of tensors, which a guard holds, is another."""
    if not isinstance(why, Change):
        return why == REPLACED
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(why.old))


@functools.cache
def _tree_of(num_leaves: int) -> Any:
    """The tree of this number of positional arguments without containers."""
    return tree_flatten(((None,) * num_leaves, {}))[1]


def _is_pending() -> bool:
    lists = record_calls.at_once.value
    values = [storage.value for ref in storages.LIVE if (storage := ref()) is not None]
    return not all(
        walks.is_data(value) or (lists is not None and lists.is_token_list(value))
        for value in values
    )


def aliases(flat: Sequence[Any]) -> tuple[int, ...]:
    """For each tensor on xla the place of the first one over the same storage."""
    first: dict[int, int] = {}
    return tuple(
        first.setdefault(id(storage_of(item)), i)
        for i, item in enumerate(flat)
        if type(item) is XlaTensor
    )


@ends_at_user_line
def compile(
    function: Callable[P, R] | None = None,
    *,
    static_argnames: str | Collection[str] = (),
    compiler_options: Mapping[str, Any] | None = None,
) -> Any:
    """Compiles a whole function of tensors on xla, such as a training step: Python runs it once,
    later calls run its programs alone.

    The first calls run as they are and are recorded: forward, backward, optimizer, schedulers,
    clipping, random draws, writes to state. A later call only checks its guards, runs the programs
    and puts their results where the recorded call put them: parameters, buffers, gradients,
    optimizer state, attributes. A sync stands at its end. A call whose guards fail is recorded
    again, and its cause is in `explain()`. State that no guard sees, such as that of an object in
    C, is checked: at least one in `config.check_replays` calls runs as Python, and a difference
    ends the replay.

    Args:
        function: of any nested arguments; also a method, or a module. None: returns a decorator.
        static_argnames: arguments that count by their value. Floats otherwise become scalar
            arguments of the program once they have changed; other Python values are part of the
            kind of call, each with its own recording.
        compiler_options: XLA's options for its programs, name -> value (see
            `spmd.config.compiler_options`).

    Returns a `CompiledFunction`. A recorded call must not read a tensor's value, a file or the
    time, print, draw random numbers on the CPU, change Python state that it reads (except for an
    optimizer's counters and schedulers), or use values of CPU tensors. A function that does runs
    uncompiled, which one line says. Other side effects, such as writing a file by a library, happen
    only where a call is recorded. Results that a backward inside has used come without their graph;
    a result that needs a gradient otherwise is refused.

    Raises TypeError for a function that is not callable, ValueError for an unknown static argument.
    Source: `jax.jit`, `torch.cuda.CUDAGraph`.

    >>> import torch, spmd
    >>> model = torch.nn.Linear(4, 1).to("xla")
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> @spmd.compile
    ... def step(x):
    ...     loss = model(x).square().mean()
    ...     loss.backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    ...     return loss
    >>> losses = [step(torch.ones(2, 4, device="xla")).item() for _ in range(5)]
    >>> step
    <spmd.compile of step: 2 calls recorded, 3 replayed>
    """
    if function is None:
        return functools.partial(
            compile, static_argnames=static_argnames, compiler_options=compiler_options
        )
    if not callable(function):
        raise TypeError(f"compile: expected a function, got {type(function).__name__}")
    names = [static_argnames] if isinstance(static_argnames, str) else static_argnames
    return CompiledFunction(function, names, dict(compiler_options or {}))
