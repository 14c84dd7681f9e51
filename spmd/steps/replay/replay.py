"""The replay of a recorded call: arguments in, programs run, state settled in place, results out;
no user code runs."""

import operator
import weakref
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch.utils._pytree import tree_unflatten

from ...core import (
    DeviceData,
    Sharding,
    Storage,
    XlaTensor,
    gradients_of,
    points,
    storage_of,
    tensor_meta,
    transfer,
    view_of,
    wrap,
)
from ...core.extend import deferred, executables, failing, pace, schedule, store, tensors
from .guards import OF_ATTRIBUTES, DictVersions, ReplayedNumbers, in_cache
from .host_tensors import uploaded
from .observed_call import ObservedCall
from .recipe import (
    Constant,
    Derived,
    Filled,
    NewTensor,
    OfArgument,
    OfReplaced,
    OfResult,
    OfState,
    Origin,
    Recipe,
    Uploaded,
)

_is, _REQUIRES_GRAD = operator.is_, operator.attrgetter("requires_grad")
_FROZEN = "requires_grad has changed"
REPLACED = "the data of a tensor was replaced"
_OTHER_GRADIENTS = "other parameters have a gradient"


class Known:
    """The facts of the tensors of a call: attributes that are no Python state.

    [Note: facts] Most tensors are never replaced. A tensor's attributes are a dict with a version,
    its storage counts assignments (`core.record.deferred`), and the rest, which torch keeps in C++,
    is one list of marks, compared where such attributes were assigned (`tensors.last_assignment`;
    gradients, which every step assigns: `last_gradient`); `requires_grad` is compared always, as
    functions of torch set it past the class. The facts themselves are compared where one of these
    has changed.
    """

    def __init__(self, recipe: Recipe, call: ObservedCall):
        arguments = {id(item) for item in call.arguments.values()}
        self._tensors = [tensor for tensor in call.device_tensors if id(tensor) not in arguments]
        self._trainable = [tensor for tensor, *_ in recipe.gradients]
        self._requiring = [tensor for tensor in self._tensors if tensor.requires_grad]
        self._frozen = [tensor for tensor in self._tensors if not tensor.requires_grad]
        self._recipe = recipe
        self._names = call.names  # of attributes that the call may read
        self._facts = self._facts_now() | {
            _OTHER_GRADIENTS: [had for _, had, _ in recipe.gradients]
        }
        self._marks: list[Any] = []
        # The last ones when the marks, and the gradients, were read.
        self._assignment: object = None
        self._gradient: object = None
        self._versions = DictVersions([])
        self._seen: Any = None  # the versions and the count at the last comparison

    def _marks_now(self) -> list[Any]:
        # an attribute of torch's is read in a third of the time
        with torch._C.DisableTorchFunctionSubclass():
            return [
                *self._hooks(),
                *map(vars, self._tensors),  # torch's `swap_tensors` exchanges them
            ]

    def _storages(self) -> Sequence[Storage]:
        return self._recipe.storages

    def _requires_grad(self) -> list[bool]:
        # one call for most, which are the optimizer's
        with torch._C.DisableTorchFunctionSubclass():
            return [
                torch._C._any_requires_grad(*self._frozen),
                *map(_REQUIRES_GRAD, in_cache(self._requiring)),
            ]

    def _have_gradients(self) -> list[bool]:
        return [gradient is not None for gradient in gradients_of(self._trainable)]

    def _hooks(self) -> list[Any]:
        return [
            *[tensor._backward_hooks for tensor in self._trainable],
            *[tensor._post_accumulate_grad_hooks for tensor in self._trainable],
        ]

    def _facts_now(self) -> dict[str, list[Any]]:
        tensors = self._tensors
        return {
            # by references: a storage that is held would be a result of the program
            REPLACED: [storage_of(tensor).ref for tensor in tensors],
            "the shape of a tensor has changed": [tensor_meta(tensor) for tensor in tensors],
            _FROZEN: self._requires_grad(),
            "a tensor has other attributes": [
                len(vars(tensor).keys() & self._names) for tensor in tensors
            ],
            "a sharding was annotated": [storage.sharding for storage in self._storages()],
            "a hook was added or removed": [
                hook for hooks in self._hooks() if hooks for hook in hooks.values()
            ],
            _OTHER_GRADIENTS: self._have_gradients(),
        }

    def check(self) -> str:
        """The reason why the tensors are others; "" where they are the same."""
        if self._requires_grad() != self._facts[_FROZEN]:
            return _FROZEN
        if self._gradient is not tensors.last_gradient:
            self._gradient = tensors.last_gradient
            if self._have_gradients() != self._facts[_OTHER_GRADIENTS]:
                self._gradient = None
                return _OTHER_GRADIENTS
        num_annotated = deferred.num_annotated
        is_same = OF_ATTRIBUTES and self._seen == (self._versions.now(), num_annotated)
        if not is_same or self._assignment is not tensors.last_assignment:
            self._assignment, marks = tensors.last_assignment, self._marks_now()
            is_same = is_same and all(map(_is, marks, self._marks))
        if not is_same:
            dicts = [mark for mark in marks if isinstance(mark, dict)]
            self._versions, self._marks = DictVersions(dicts), marks
            seen = self._versions.now(), num_annotated
            for words, facts in self._facts_now().items():
                known = self._facts[words]
                if len(facts) != len(known) or not all(map(_is, facts, known)):
                    self._seen = None
                    return words
            self._seen = seen
            reads = [storage.reads for storage in self._storages()]
            self._entered = [x.active for x in reads if x is not None]
        return "it is called inside spmd.use_sharding" * any(self._entered)


class BoundState:
    """The data of storages, as the arguments and results of programs. It holds no storage: one that
    has gone would be a result of the program.

    data: of each storage, as it was bound last.
    """

    def __init__(self, storages: Sequence[Storage], tasks: "Sequence[Task]"):
        self._refs, self._tasks = [storage.ref for storage in storages], tasks
        self._shardings = {
            origin.number: sharding
            for task in tasks
            for origin, sharding in zip(task.inputs, task.shardings, strict=True)
            if isinstance(origin, OfState)
        }
        deferred.watch(storages)
        self.data: list[Any] = []
        self._is_bound = False
        self._stores: list[Any] | None = None  # of the data, when arguments were bound
        self._bound = (-1, -1)  # the counts of changes when they were

    def ready(self) -> str:
        """Binds the data as it is now; the reason why the programs cannot read it, or ""."""
        is_same = self._bound == (deferred.num_assigned, store.num_moved)
        return "" if is_same else self._bind()

    def storages(self) -> list[Any]:
        """The storages, None for one that has gone."""
        return [ref() for ref in self._refs]

    def give_up(self, line: Any) -> None:
        """Drops the data that a run, which did not finish, has taken."""
        for data in self.data:
            if data.is_lost():
                data.give_up(f"its buffer was donated to the run at {line}, which did not finish")

    def _bind(self) -> str:
        """Binds the programs to the state's present data; the reason why they cannot read it, or
        ""."""
        storages = self.storages()
        if None in storages:
            self.data.clear()
            return REPLACED
        values: list[Any] = deferred.values(storages)
        if not all(type(value) is DeviceData for value in values):
            return "a tensor has no data"
        is_new = not self._is_bound or not all(map(_is, values, self.data))
        for index, value in enumerate(values):
            # Another program may have moved data to its own devices, a row of a stack as well.
            wanted = self._shardings.get(index)
            is_elsewhere = wanted and value.store is None and value.sharding is not wanted
            if is_new or is_elsewhere or value.lost_reason is not None:
                why = self._moved(index, value)
                if why:
                    return why
        if is_new:
            self.data, self._stores, self._is_bound = values, None, True
        # Other programs stack the same data, and each stack that is made here takes data from other
        # arguments.
        while self._stores is None or not all(
            map(_is, [data.store for data in values], self._stores)
        ):
            self._stores = [data.store for data in values]
            for task in self._tasks:
                task.bind(values)
        self._bound = deferred.num_assigned, store.num_moved
        return ""

    def _moved(self, index: int, value: Any) -> str:
        sharding = self._shardings.get(index)
        if value.is_abstract:
            return "a tensor has no data"
        value.check()
        if sharding is not None and value.host is None and value.sharding is not sharding:
            return f"a tensor {value.meta!r} is sharded as {value.sharding!r}, not {sharding!r}"
        if sharding is not None:
            schedule.bring([value], [sharding])
        return ""


class Replay:
    """The programs of a recorded call, ready to run on the state as it is."""

    def __init__(self, recipe: Recipe, call: ObservedCall):
        self.recipe = recipe
        self.numbers = ReplayedNumbers(call)
        self._host_calls = call.host_calls
        self._tasks = [*map(Task, call.observation.ran, recipe.inputs, recipe.roots)]
        self._state = BoundState(recipe.storages, self._tasks)
        roots = [root for task in self._tasks for root in task.roots]
        places = {root.number for root in roots if isinstance(root, OfState)}
        # Of the arguments that the programs write: place, and sharding before and after.
        self._overwritten = sorted({root.number for root in roots if isinstance(root, OfArgument)})
        self._in_place = [entry for task in self._tasks for entry in task.in_place]
        self.writes = bool(places or self._overwritten)
        self._written = [recipe.storages[index] for index in sorted(places)]
        self._written_refs = [storage.ref for storage in self._written]
        written = {id(storage) for storage in self._written}
        tensors = [tensor for tensor in call.device_tensors if id(storage_of(tensor)) in written]
        self._parameters = [tensor for tensor in tensors if tensor.requires_grad]
        self._buffers = [tensor for tensor in tensors if not tensor.requires_grad]
        self._num_ops = -1  # `pace.recorded_ops` when the versions of buffers were last counted up
        self._known = Known(recipe, call)
        # `Known` has seen that the others are as the call leaves them.
        self._gradients = [
            (x, new) for x, had, new in recipe.gradients if new is not True and (had or new)
        ]
        self._replaced: list[Storage] = []
        origins = [origin for task in self._tasks for origin in task.inputs]
        of_host = [
            source_of(origin)
            for origin in origins
            if isinstance(origin, Derived) and origin.is_of_host
        ]
        self._of_host = [
            source for source in of_host if isinstance(source, (OfState, OfArgument, OfReplaced))
        ]
        self.line = self._tasks[0].program.line

    def ready(self, flat: Sequence[Any]) -> str:
        """Brings state to where the programs read it; the reason why they cannot, or ""."""
        for index, tensor in self.recipe.same:
            if flat[index] is not tensor:
                return f"argument {index} was a parameter, or other state, and is another tensor"
        why = self._known.check()
        if why:
            return why
        why = self._state.ready()
        if why:
            return why
        self._replaced = []
        for container, key, meta in self.recipe.replaced:
            tensor = container.grad if key is None else container[key]
            if (
                type(tensor) is not XlaTensor
                or tensor_meta(tensor) is not meta
                or view_of(tensor) is not None
            ):
                return "a tensor that the call replaces has another shape"
            if type(storage_of(tensor).value) is not DeviceData:
                return "a tensor has no data"
            self._replaced.append(storage_of(tensor))
        objects = self._found(flat)
        if any(objects.value(origin).host is None for origin in self._of_host):
            return "a tensor whose data the host pads, or moves, is on the device"
        return ""

    def _found(self, flat: Sequence[Any]) -> "Found":
        return Found(flat, self.recipe.storages, self._state.data, self._replaced, [], {})

    def overwritten(self, flat: Sequence[Any]) -> list[Any]:
        """The data of state and of arguments that the programs write over."""
        arguments = [storage_of(flat[number]) for number in self._overwritten]
        return [storage.value for storage in (*self._written, *arguments)]

    def _own_data(self, flat: Sequence[Any]) -> dict[int, DeviceData]:
        """By place, the data of arguments that the programs write, which takes the new buffers as
        state does; none where some has another layout, or another holder."""
        own: dict[int, DeviceData] = {}
        storages = [storage_of(flat[number]) for number, _ in self._in_place]
        for storage, (number, sharding) in zip(storages, self._in_place, strict=True):
            data = storage.value
            if (
                type(data) is not DeviceData
                or data.store is not None
                or not data.is_on_devices()
                or data.sharding is not sharding
                or data.holder is not storage.ref
            ):
                return {}
            own[number] = data
        for storage in storages:
            storage.stamp += 1
        return own

    def run(self, flat: Sequence[Any], vectors: Sequence[tuple[np.ndarray, np.ndarray]]) -> Any:
        """Runs the programs; returns the call's result. The caller holds the locks of a sync."""
        for task in self._tasks:
            # raises CollectiveError for a program that `spmd.allow` does not allow
            for look in points.before_run:
                look(task.program)
        # Here, as the tensors that `Known` has looked at are still in the processor's cache. By its
        # version autograd refuses a saved tensor that was written since: none but a parameter is
        # saved where no op was recorded.
        deferred.increment_versions(self._parameters)
        if self._num_ops != pace.recorded_ops:
            self._num_ops = pace.recorded_ops
            deferred.increment_versions(self._buffers)
        objects = self._found(flat)._replace(own=self._own_data(flat))
        try:
            for task, numbers in zip(self._tasks, vectors, strict=True):
                objects.results.append(task.run(objects, numbers))
        except BaseException:
            self._state.give_up(self.line)
            raise
        deferred.count_up(self._written_refs)
        self.numbers.counters.advance()
        return self._results(objects)

    def _results(self, objects: "Found") -> Any:
        flat, recipe = objects.flat, self.recipe
        storages: dict[OfResult, Storage] = {}

        def tensor_of(new: NewTensor) -> XlaTensor:
            over = new.over
            if isinstance(over, OfResult):
                storage = storages.get(over)
                if storage is None:
                    data = objects.results[over.run][over.root]
                    storage = storages[over] = Storage(data, data.meta, new.sharding)
                    storage.home = data.sharding
            else:
                storage = objects.storage(over)
            view = None if new.view is None else new.view.without_cache()
            if new.is_inference:
                with torch.inference_mode():
                    return wrap(new.meta, storage, view)
            return wrap(new.meta, storage, view)

        for tensor, new in self._gradients:
            tensor.grad = tensor_of(new) if isinstance(new, NewTensor) else None
        for container, key, new in recipe.slots:
            container[key] = tensor_of(new)
        for function, args, kwargs in self._host_calls:
            function(*args, **kwargs)
        result = [
            tensor_of(item)
            if isinstance(item, NewTensor)
            else flat[item.number]
            if isinstance(item, OfArgument)
            else item
            for item in recipe.result
        ]
        return tree_unflatten(result, recipe.tree)


def _written(
    ports: Sequence[Any],
    origins: Sequence[Any],
    shardings: Sequence[Sharding],
    written: Collection[OfArgument],
) -> tuple[dict[int, int], set[tuple[int, Sharding]]]:
    """By port, the places of these written arguments, without rows of stacks; and with their
    shardings."""
    members = [
        (index, port.indices)
        for index, port in enumerate(ports)
        if isinstance(port.indices, int) and port.indices >= 0
    ]
    places = {
        index: (origins[member].number, shardings[member])
        for index, member in members
        if isinstance(origins[member], OfArgument) and origins[member] in written
    }
    return {index: number for index, (number, _) in places.items()}, {*places.values()}


def source_of(origin: Origin) -> Origin:
    """The origin of the data that others are made of."""
    return source_of(origin.of) if isinstance(origin, Derived) else origin


class Found(NamedTuple):
    """The objects of one replay: the arguments, the storages of state and their data, the storages
    of replaced tensors, results so far, and the data of arguments that takes new buffers."""

    flat: Sequence[Any]
    storages: Sequence[Storage]
    data: Sequence[Any]
    replaced: Sequence[Storage]
    results: list[dict[int, DeviceData]]
    own: dict[int, DeviceData]

    def storage(self, over: Any) -> Storage:
        match over:
            case OfState(index):
                return self.storages[index]
            case OfArgument(index):
                return storage_of(self.flat[index])
        return self.replaced[over.number]

    def value(self, over: Any) -> Any:
        """The device data of a tensor that was there before the call."""
        return self.storage(over).value


class Task:
    """One program, its inputs and roots (see `Recipe`), and the objects whose buffers it takes and
    gives."""

    def __init__(self, ran: Any, inputs: Sequence[Origin], roots: Sequence[Any]):
        self.program, self.inputs, self.roots = ran.program, inputs, roots
        self.shardings: Sequence[Sharding] = ran.graph.shardings
        self._num_devices = len(ran.graph.mesh.device_ids)
        self._metas = [value.meta for value, _ in ran.roots]
        self._ref = weakref.ref(ran.program)
        # by argument: device data, or a store; None: another at each call
        self._owners: list[Any] = []
        self._others: list[tuple[int, Any]] = []  # (argument, its port)
        # (output, device data or store that takes its buffer)
        self._into: list[tuple[int, Any]] = []
        self._new: list[tuple[int, Any, Sharding]] = []  # (output, places of roots, sharding)
        # By index of an input and of an output, the places of arguments that the program writes.
        written = {root for root in roots if isinstance(root, OfArgument)}
        self._own_inputs, read = _written(self.program.inputs, inputs, self.shardings, written)
        self._own_outputs, made = _written(
            self.program.outputs, roots, self.program.results, written
        )
        self.in_place = read | made

    def bind(self, data: Sequence[DeviceData]) -> None:
        """Finds the owners of arguments and results for the state's present data."""
        self._owners = [self._owner(port.indices, data) for port in self.program.inputs]
        self._others = [
            (index, port)
            for index, port in enumerate(self.program.inputs)
            if self._owners[index] is None
        ]
        self._into, self._new = [], []
        for index, port in enumerate(self.program.outputs):
            root_indices = (port.indices,) if isinstance(port.indices, int) else port.indices
            sharding = self.program.results[max(root_indices)]
            roots = [
                self.inputs[~root_index] if root_index < 0 else self.roots[root_index]
                for root_index in root_indices
            ]
            owner = self._taker(roots, data, sharding, is_stack=not isinstance(port.indices, int))
            if owner is not None:
                self._into.append((index, owner))
            else:
                self._new.append((index, port.indices, sharding))

    def _owner(self, places: Any, data: Sequence[DeviceData]) -> Any:
        """The state that an argument is, or the store of it, which may be made; None where it is
        not of state alone."""
        is_stack = not isinstance(places, int)
        members = [self.inputs[input_index] for input_index in (places if is_stack else (places,))]
        data_of = [data[member.number] for member in members if isinstance(member, OfState)]
        if len(data_of) < len(members) or (not is_stack and data_of[0].store is not None):
            return None
        if not is_stack:
            return data_of[0]
        return executables.full_store(data_of, self.shardings[places[0]])

    def _taker(
        self,
        roots: Sequence[Any],
        data: Sequence[DeviceData],
        sharding: Sharding,
        *,
        is_stack: bool,
    ) -> Any:
        if not all(isinstance(root, OfState) for root in roots):
            return None
        data_of = [data[root.number] for root in roots]
        if any(state_data.sharding is not sharding for state_data in data_of):
            return None
        if is_stack:
            return executables.store_of(data_of)
        return data_of[0] if data_of[0].store is None else None

    def run(self, objects: Found, numbers: tuple[np.ndarray, np.ndarray]) -> dict[int, DeviceData]:
        """Runs the program; returns the new data by root."""

        def arguments() -> list[jax.Array]:
            buffers = store.buffers_of(self._owners)
            if objects.own:
                own = [objects.own[number] for number in self._own_inputs.values()]
                for index, buffer in zip(self._own_inputs, store.buffers_of(own), strict=True):
                    buffers[index] = buffer
            for index, port in self._others:
                if buffers[index] is None:
                    buffers[index] = self._buffer(objects, port)
            return buffers

        try:
            buffers = executables.launch(self.program, self._num_devices, arguments, numbers)
        except jax.errors.JaxRuntimeError as error:
            raise failing.explain(self.program, error) from error
        for index, owner in self._into:
            store.refill(owner, buffers[index])
        new: dict[int, DeviceData] = {}
        for index, places, sharding in self._new:
            if objects.own and index in self._own_outputs:
                store.refill(objects.own[self._own_outputs[index]], buffers[index])
                continue
            self._give(buffers[index], places, sharding, objects, new)
        return new

    def _buffer(self, objects: Found, port: Any) -> jax.Array:
        if not isinstance(port.indices, int):
            rows = [
                self._data_of(objects, self.inputs[input_index]) for input_index in port.indices
            ]
            sharding = self.shardings[port.indices[0]]
            executables.bring_rows(rows, sharding)
            return executables.stacked(rows, sharding)
        origin, sharding = self.inputs[port.indices], self.shardings[port.indices]
        if isinstance(origin, Filled):
            return transfer.filled(
                origin.meta.shape, origin.meta.struct.dtype, origin.number, sharding
            )
        data = self._data_of(objects, origin)
        if data.host is None and data.sharding is sharding and not port.is_donated:
            return data.placed()[0]
        schedule.bring([data], [sharding], stays=False)
        buffer = executables.buffer_of(data, sharding, is_donated=port.is_donated)
        # Its tensor may be held elsewhere, and read later.
        return (
            transfer.copied(buffer, sharding)
            if port.is_donated and isinstance(origin, OfReplaced)
            else buffer
        )

    def _data_of(self, objects: Found, origin: Origin) -> DeviceData:
        match origin:
            case Derived(of, renew):
                return renew(self._data_of(objects, of))
            case OfResult(run, root):
                data: DeviceData | None = objects.results[run][root]
            case Constant(data):
                pass
            case Uploaded(move, tensor):
                data = uploaded(move, objects.flat[tensor] if isinstance(tensor, int) else tensor)
            case _:
                data = objects.value(origin)
        assert data is not None, "data that was there when the call was recorded"
        return data

    def _give(
        self,
        buffer: jax.Array,
        places: Any,
        sharding: Sharding,
        objects: Found,
        new: dict[int, DeviceData],
    ) -> None:
        """Gives a buffer to new data, or to storages that were rows of a store, or arguments."""
        is_one, members = isinstance(places, int), []
        for root_index in (places,) if is_one else places:
            if root_index < 0:
                members.append(objects.data[self.inputs[~root_index].number])
                continue
            own_buffer = buffer if is_one else None
            new_data = DeviceData(
                self._metas[root_index],
                buffer=own_buffer,
                sharding=sharding,
                maker=self._ref,
                source=root_index,
            )
            new[root_index] = new_data
            members.append(new_data)
            root = self.roots[root_index]
            if not isinstance(root, OfResult):
                objects.storage(root).settle(new_data)
        if not is_one:
            store.Store(buffer, sharding, members)
