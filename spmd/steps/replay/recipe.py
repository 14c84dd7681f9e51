"""A recorded call as what a replay needs: its programs, the origin of each argument, the
destination of each result."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten

from ...core import DeviceData, Meta, Sharding, Storage, XlaTensor, storage_of, tensor_meta, view_of
from ...core.extend import Change, Kind, contents, views
from .host_tensors import Move
from .observed_call import ObservedCall, ReplayError


class OfState(NamedTuple):
    """A storage that is the same at each call, by its place in `Recipe.storages`."""

    number: int


class OfArgument(NamedTuple):
    """An argument of the call, by its place among the flat."""

    number: int


class OfResult(NamedTuple):
    """A result of one of the programs, by the places of the program and of the root."""

    run: int
    root: int


class OfReplaced(NamedTuple):
    """A tensor that each call replaces (a gradient, a hidden state), by its place in
    `Recipe.replaced`."""

    number: int


class Constant(NamedTuple):
    """Data that the call made of Python values which the guards compare."""

    data: DeviceData


class Filled(NamedTuple):
    """New data that holds one number, and that the programs write over."""

    meta: Meta
    number: Any


class Uploaded(NamedTuple):
    """Host data made of a CPU tensor: of an argument, by its place, or of one that is the same at
    each call."""

    move: Move
    tensor: torch.Tensor | int


class Derived(NamedTuple):
    """Data that a function makes of other data without a program: a batch that the host pads, or
    moves to a mesh."""

    of: "Origin"
    renew: Callable[[DeviceData], DeviceData]
    is_of_host: bool  # the function takes host data


Origin = OfState | OfArgument | OfReplaced | OfResult | Constant | Filled | Uploaded | Derived


@dataclass(frozen=True)
class NewTensor:
    """A tensor over a result of a program, or over the storage of an argument or of state."""

    over: OfResult | OfState | OfArgument
    meta: Meta
    view: views.View | None
    sharding: Sharding | None
    is_inference: bool = False


class Recipe:
    """The steps of a replay.

    inputs, roots: by program, in order, the origins of its inputs, and the destinations of its
    results; one that is no state and no argument is new data. storages: those of `OfState`. same:
    arguments that must be the same tensors, as they are state, too. slots: (container, key, new
    tensor) to be stored. gradients: (item tensor, whether it had a gradient, the new one: None for
    none, True for that it had). result: the flat of the result, new tensors or values. replaced:
    the tensors that the call reads and replaces, as (object, key, meta): a item tensor with key
    None for its gradient, else a container.

    Raises ReplayError for a call that a replay could not repeat.
    """

    def __init__(self, call: ObservedCall):
        _check(call)
        self._call = call
        self.volatile = {*call.volatile, *call.followed}
        self.replaced = [(container, key, meta) for container, key, meta, _ in call.replaced]
        self._known: dict[int, OfState | OfArgument | OfReplaced] = {
            id(ref): OfReplaced(index) for index, (*_, ref) in enumerate(call.replaced)
        }
        for index, item in call.arguments.items():
            if type(item) is XlaTensor:
                self._known[id(storage_of(item).ref)] = OfArgument(index)
        self._fresh: dict[int, OfResult] = {}
        self.storages: list[Storage] = []
        self._results = {
            id(data): OfResult(run, root)
            for run, program_run in enumerate(call.observation.ran)
            for root, data in enumerate(program_run.outputs)
        }
        self.roots = [
            [
                self._destination(OfResult(run, root), storage)
                for root, (_, storage) in enumerate(program_run.roots)
            ]
            for run, program_run in enumerate(call.observation.ran)
        ]
        self._check_state()
        self.inputs = [
            list(map(self._origin, ran.graph.inputs, ran.program.donated))
            for ran in call.observation.ran
        ]
        self.same = [
            (index, item)
            for index, item in enumerate(call.flat)
            if isinstance(item, torch.Tensor) and index not in call.arguments
        ]
        self.slots = [self._slot(change) for change in call.changes]
        self.gradients = [
            (
                tensor,
                had,
                True
                if is_kept
                else None
                if tensor.grad is None
                else self._tensor(tensor.grad, "a gradient"),
            )
            for tensor, had, is_kept in call.gradients
        ]
        flat, self.tree = tree_flatten(call.result)
        self.result = [self._result_of(item) for item in flat]
        del self._call  # with the tensors of this call alone

    def _check_state(self) -> None:
        """Refuses tensors that were there before the call and have data now that no program of it
        has computed."""
        for ref in self._call.references.values():
            storage = ref()
            value = None if storage is None else storage.value
            if type(value) is not DeviceData or id(value) in self._results:
                continue
            _, owner = self._call.data.get(id(value), (None, None))
            if owner is not ref:
                raise ReplayError(f"it gives a tensor {value.meta!r} data that no program computes")

    def _state(self, ref: Any) -> OfState | OfArgument | OfReplaced:
        origin = self._known.get(id(ref))
        if origin is None:
            storage = ref()
            if storage is None:
                raise ReplayError("it reads a tensor that it drops")
            origin = self._known[id(ref)] = OfState(len(self.storages))
            self.storages.append(storage)
        return origin

    def _origin(self, data: DeviceData, is_donated: bool) -> Origin:
        call = self._call
        result = self._results.get(id(data))
        if result is not None:
            return self.roots[result.run][result.root]
        _, ref = call.data.get(id(data), (None, None))
        if ref is not None:
            return self._state(ref)
        upload = call.uses.uploads.get(data)
        if upload is not None:
            tensor, move = upload
            return Uploaded(
                move, next((i for i, item in enumerate(call.flat) if item is tensor), tensor)
            )
        source = next(
            (source for source, upload_data in call.observation.uploads if upload_data is data),
            None,
        )
        if source is not None and (
            id(source) in call.paths or any(source is item for item in call.flat)
        ):
            raise ReplayError(
                f"it moves {call.paths.get(id(source), 'an argument')} to xla by an unknown "
                "function"
            )
        derived = call.observation.derived.get(data)
        if derived is not None and not is_donated:
            return Derived(self._origin(derived[0], False), derived[1], derived[0].host is not None)
        if data in call.observation.filled and data.store is None:
            return Filled(data.meta, call.observation.filled[data])
        if data.serial >= call.first and is_donated:
            raise ReplayError("it makes state")
        if data.serial < call.first:
            raise ReplayError(
                f"it reads a tensor {data.meta!r} that is not reachable from the function"
            )
        if source is None:
            raise ReplayError(f"it reads {data.meta!r}, which the host makes of other values")
        return Constant(data)

    def _destination(
        self, result: OfResult, storage: Storage
    ) -> OfState | OfArgument | OfReplaced | OfResult:
        if type(storage.value) is not DeviceData:
            raise ReplayError("it makes a tensor of dynamic length")
        if id(storage.ref) in self._call.references:
            return self._state(storage.ref)
        self._fresh[id(storage)] = result
        return result

    def _slot(self, change: Change) -> tuple[Any, Any, NewTensor]:
        settable = change.kind in (Kind.DICT, Kind.LIST, Kind.ATTRIBUTES, Kind.SCOPE)
        if not settable or type(change.new) is not XlaTensor or change.old is contents.missing:
            raise ReplayError(f"it changes Python state: {change}")
        self.volatile.add((id(change.container), change.key))
        return change.container, change.key, self._tensor(change.new, change.path)

    def _tensor(self, tensor: Any, label: str) -> NewTensor:
        storage = storage_of(tensor)
        over: Any = self._fresh.get(id(storage)) or self._known.get(id(storage.ref))
        if over is None:
            raise ReplayError(f"{label} is no result of its programs")
        if tensor.requires_grad and not self._call.has_backward:
            raise ReplayError(
                f"{label} needs a gradient that is not computed in the call; call it under "
                "torch.no_grad(), or move backward() into it"
            )
        return NewTensor(
            over, tensor_meta(tensor), view_of(tensor), storage.sharding, tensor.is_inference()
        )

    def _result_of(self, item: Any) -> Any:
        call = self._call
        places = range(len(call.flat)) if type(item) is XlaTensor else call.apart
        for index in places:
            if call.flat[index] is item:
                return OfArgument(index)
        if type(item) is XlaTensor:
            return item if id(item) in call.paths else self._tensor(item, "a result")
        if isinstance(item, torch.Tensor) and id(item) not in call.paths:
            raise ReplayError("it returns a CPU tensor")
        if isinstance(item, (list, dict, set)) or type(item).__name__ == "SymFloat":
            raise ReplayError(f"it returns a {type(item).__name__} that is no pytree of torch's")
        return item


def _check(call: ObservedCall) -> None:
    """Raises ReplayError for what no replay can repeat."""
    notes, after = call.observation, call.after
    reasons = [
        *(f"it {reason}" for reason in call.impure),
        *(f"it reads a value: {read}" for read in notes.reads),
        *(f"it uses a CPU tensor: {use}" for use in call.uses.refused),
        *(
            f"it may read the iterator {path}; pass its items as arguments"
            for path in after.iterators
        ),
        *(f"it may read {path}, which is too large to be compared" for path in after.opaque),
        *(f"it may read {path}, an array of numpy's; move it to xla" for path, _ in after.arrays),
        *(
            f"it writes {call.paths.get(id(tensor), 'an argument')}, a CPU tensor"
            for tensor, version in call.versions
            if tensor._version != version and id(tensor) not in call.uses.counters
        ),
    ]
    reasons += [f"it replaces the data of {path}" for path in call.moved]
    if not notes.ran and call.is_whole:
        reasons.append("it runs no program")
    elif len(notes.ran) != notes.num_runs:
        reasons.append("it initializes state")
    if notes.other_draws:
        reasons.append("it draws random numbers from a stream of its own")
    if reasons:
        raise ReplayError(reasons[0])
