"""A recorded call as what a replay needs: its programs, the origin of each argument, the destination of each result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten

from ..core.hlo.program import Program
from ..core.ir.graph import DeviceData, Graph
from ..core.ir.meta import Meta
from ..core.lazy.storage import Storage
from ..core.lazy.tensor import XlaTensor
from ..core.lazy.views import View
from ..core.sharding.value import Sharding
from .host_tensors import Upload
from .recorded_call import RecordedCall, RefusedError
from .snapshot import Change, Kind, Snapshot, missing


class State(NamedTuple):
    """A storage that is the same at each call, by its place in `Recipe.storages`."""

    place: int


class Given(NamedTuple):
    """An argument of the call, by its place among the leaves."""

    place: int


class Result(NamedTuple):
    """A result of one of the programs, by the places of the program and of the root."""

    run: int
    root: int


class Replaced(NamedTuple):
    """A tensor that each call replaces (a gradient, a hidden state), by its place in `Recipe.replaced`."""

    place: int


class Constant(NamedTuple):
    """Data that the call made of Python values which the guards compare."""

    data: DeviceData


@dataclass(frozen=True)
class Uploaded:
    """Host data made of a CPU tensor: of an argument, by its place, or of one that is the same at each call."""

    upload: Upload
    place: int | None


Origin = State | Given | Replaced | Result | Constant | Uploaded


@dataclass(frozen=True)
class NewTensor:
    """A tensor over a result of a program, or over the storage of an argument or of state."""

    over: Result | State | Given
    meta: Meta
    view: View | None
    sharding: Sharding | None
    is_inference: bool = False


@dataclass(frozen=True)
class Run:
    """One program of the call, with the origins of its graph's inputs and the destinations of its roots; a root that is
    no state and no argument is new data."""

    program: Program
    graph: Graph
    inputs: Sequence[Origin]
    roots: Sequence[State | Given | Replaced | Result]


class Recipe:
    """What a replay does.

    runs: the programs, in order. storages: those of `State`. same: arguments that must be the same tensors, as they are
    state, too. slots: (container, key, new tensor) to be stored. gradients: (leaf tensor, whether it had a gradient,
    the new one: None for none, True for that it had). result: the leaves of the result, new tensors or values.
    replaced: the tensors that the call reads and replaces, as (object, key, meta): a leaf tensor with key None for its
    gradient, else a container.

    Raises RefusedError for a call that a replay could not repeat.
    """

    def __init__(self, call: RecordedCall, after: Snapshot):
        _check(call, after)
        self._call = call
        self.volatile = set(call.volatile)
        self.replaced: list[tuple[Any, Any, Meta]] = []
        self._replaced: dict[int, Replaced] = {}
        changes = self._changes()
        self._find_replaced(changes)
        self._fresh: dict[int, Result] = {}
        self._places: dict[int, int] = {}
        self.storages: list[Storage] = []
        self._given = {id(leaf._storage): Given(i) for i, leaf in call.arguments.items() if type(leaf) is XlaTensor}
        self._results = {
            id(data): Result(run, root)
            for run, one in enumerate(call.observation.ran)
            for root, data in enumerate(one.outputs)
        }
        self.runs = [self._run(run, one) for run, one in enumerate(call.observation.ran)]
        self.same = [
            (place, leaf)
            for place, leaf in enumerate(call.leaves)
            if isinstance(leaf, torch.Tensor) and place not in call.arguments
        ]
        self.slots = [self._slot(change) for change in changes]
        self._check_storages()
        self.gradients = [
            (tensor, before is not None, self._gradient(tensor, before))
            for tensor, before in zip(call.leaf_tensors, call.gradients, strict=True)
        ]
        leaves, self.tree = tree_flatten(call.result)
        self.result = [self._leaf(leaf) for leaf in leaves]

    def _find_replaced(self, changes: Sequence[Change]) -> None:
        call = self._call
        grads = zip(call.leaf_tensors, call.gradients, strict=True)
        old: list[tuple[Any, Any, Any]] = []
        old += [(tensor, None, before) for tensor, before in grads if before is not None]
        old += [(change.container, change.key, change.old) for change in changes]
        for container, key, tensor in old:
            if type(tensor) is not XlaTensor:
                continue
            storage = tensor._storage
            shared = sum(one is storage for one in call.tensor_storages) > 1
            if tensor._view is None and not shared:
                self._replaced[id(storage)] = Replaced(len(self.replaced))
                self.replaced.append((container, key, tensor._meta))

    def _run(self, run: int, one: Any) -> Run:
        inputs = [self._origin(data, one.program.donated[i]) for i, data in enumerate(one.graph.inputs)]
        roots = [self._destination(Result(run, root), storage) for root, (_, storage) in enumerate(one.roots)]
        return Run(one.program, one.graph, inputs, roots)

    def _state(self, storage: Storage) -> State | Given | Replaced:
        given = self._given.get(id(storage)) or self._replaced.get(id(storage))
        if given is not None:
            return given
        place = self._places.setdefault(id(storage), len(self.storages))
        if place == len(self.storages):
            self.storages.append(storage)
        return State(place)

    def _origin(self, data: DeviceData, is_donated: bool) -> Origin:
        call = self._call
        if id(data) in self._results:
            return self._results[id(data)]
        storage = call.data.get(id(data))
        if storage is not None:
            return self._state(storage)
        upload = call.uses.uploads.get(data)
        if upload is not None:
            return Uploaded(upload, next((i for i, leaf in enumerate(call.leaves) if leaf is upload.tensor), None))
        source = next((source for source, made in call.observation.uploads if made is data), None)
        if source is not None and (id(source) in call.paths or any(source is leaf for leaf in call.leaves)):
            raise RefusedError(f"it moves {call.paths.get(id(source), 'an argument')} to xla by an unknown function")
        if data.serial >= call.first and is_donated:
            raise RefusedError("it makes state")
        if data.serial < call.first:
            raise RefusedError(f"it reads a tensor {data.meta!r} that is not reachable from the function")
        return Constant(data)

    def _destination(self, result: Result, storage: Storage) -> State | Given | Replaced | Result:
        if type(storage.value) is not DeviceData:
            raise RefusedError("it makes a tensor of dynamic length")
        if id(storage) in self._call.storages:
            return self._state(storage)
        self._fresh[id(storage)] = result
        return result

    def _changes(self) -> list[Change]:
        """The changes of Python state in places that code which ran may read."""
        named = (Kind.ATTRIBUTES, Kind.SCOPE, Kind.CLASS, Kind.SLOTS)
        return [
            change
            for change in self._call.before.changes()
            if (id(change.container), change.key) not in self.volatile
            and (change.kind not in named or change.key in self._call.names)
        ]

    def _slot(self, change: Change) -> tuple[Any, Any, NewTensor]:
        settable = change.kind in (Kind.DICT, Kind.LIST, Kind.ATTRIBUTES, Kind.SCOPE)
        if not settable or type(change.new) is not XlaTensor or change.old is missing:
            raise RefusedError(f"it changes Python state: {change}")
        self.volatile.add((id(change.container), change.key))
        return change.container, change.key, self._tensor(change.new, change.path)

    def _check_storages(self) -> None:
        for tensor, storage in zip(self._call.device_tensors, self._call.tensor_storages, strict=True):
            if tensor._storage is not storage:
                raise RefusedError(f"it replaces the data of {self._call.paths.get(id(tensor), 'an argument')}")

    def _gradient(self, tensor: torch.Tensor, before: torch.Tensor | None) -> NewTensor | bool | None:
        after = tensor.grad
        return True if after is before else None if after is None else self._tensor(after, "a gradient")

    def _tensor(self, tensor: Any, what: str) -> NewTensor:
        storage = tensor._storage
        over: Any = self._fresh.get(id(storage)) or self._given.get(id(storage))
        if over is None and id(storage) in self._places:
            over = State(self._places[id(storage)])
        if over is None:
            raise RefusedError(f"{what} is no result of its programs")
        if tensor.requires_grad and not self._call.has_backward:
            raise RefusedError(
                f"{what} needs a gradient that is not computed in the call; call it under torch.no_grad(), "
                "or move backward() into it"
            )
        return NewTensor(over, tensor._meta, tensor._view, storage.sharding, tensor.is_inference())

    def _leaf(self, leaf: Any) -> Any:
        call = self._call
        if type(leaf) is XlaTensor:
            for place, given in enumerate(call.leaves):
                if given is leaf:
                    return Given(place)
            return leaf if id(leaf) in call.paths else self._tensor(leaf, "a result")
        if isinstance(leaf, torch.Tensor) and id(leaf) not in call.paths:
            raise RefusedError("it returns a CPU tensor")
        if isinstance(leaf, (list, dict, set)) or type(leaf).__name__ == "SymFloat":
            raise RefusedError(f"it returns a {type(leaf).__name__} that torch's pytree does not know")
        return leaf


def _check(call: RecordedCall, after: Snapshot) -> None:
    """Raises RefusedError for what no replay can repeat."""
    seen = call.observation
    reasons = [
        *(f"it reads a value: {read}" for read in seen.reads),
        *(f"it {what}" for what in call.impure),
        *(f"it uses a CPU tensor: {use}" for use in call.uses.refused),
        *(f"it may read the iterator {path}; pass its items as arguments" for path in after.iterators),
        *(f"it may read {path}, which is too large to be compared" for path in after.opaque),
        *(f"it may read {path}, an array of numpy's; move it to xla" for path, _ in after.arrays),
        *(
            f"it writes {call.paths.get(id(tensor), 'an argument')}, a CPU tensor"
            for tensor, version in call.versions
            if tensor._version != version and id(tensor) not in call.uses.counters
        ),
    ]
    if not seen.ran:
        reasons.append("it runs no program")
    elif len(seen.ran) != seen.num_runs:
        reasons.append("it initializes state")
    if seen.other_draws:
        reasons.append("it draws random numbers from a stream of its own")
    if reasons:
        raise RefusedError(reasons[0])
