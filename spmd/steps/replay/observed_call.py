"""One call, recorded as the user wrote it, with notes of all that a replay must do again or must
find unchanged."""

import contextlib
import functools
import gc
import io
import pickle
import random
import sys
import threading
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from cProfile import Profile
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.amp import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...core import (
    DeviceData,
    Storage,
    XlaTensor,
    described,
    host_reads,
    observation,
    storage_of,
    syncs,
    tensor_meta,
    user_line,
    variables,
    view_of,
)
from ...core.extend import Kind, Objects, contents, reached, store
from .formulas import FormulaObservation, Formulas
from .host_tensors import HostUses, watched


class ReplayError(Exception):
    """A call that cannot be replayed; the text says why, and where."""


_BACKWARD = torch.autograd.backward.__code__


class GroupNumber:
    """A number of an optimizer's parameter group as a source: the value of a key, or an item of it
    (`betas`).

    version: the scheduler's steps in the call before it was read.
    """

    def __init__(self, group: dict[str, Any], key: str, item: int | None, version: int):
        self.group, self.key, self.item, self.version = group, key, item, version

    def now(self, flat: Sequence[Any]) -> float | str:
        """Its value now, or the reason why it is no number any more."""
        value: Any = self.group.get(self.key)
        if self.item is not None and type(value) is tuple and len(value) > self.item:
            value = value[self.item]
        if type(value) is float:
            return value
        return f"{self.key!r} of a parameter group is {described(value)}"


class Argument(NamedTuple):
    """A float among the call's arguments as a source, by its number among their flat."""

    number: int

    def now(self, flat: Sequence[Any]) -> float:
        """Its value now."""
        return flat[self.number]


# The reads of a call: the names and the code that ran, and the encoded names of environment
# variables.
Seen = tuple[set[str], set[types.CodeType], set[Any]]


# Functions in C that return or do something else at each call, by module; those of random
# generators are found by their state.
_IMPURE = {
    "builtins": {"print", "input"},
    "io": {"open", "open_code"},
    "_io": {"open", "open_code"},
    "time": None,
    "posix": {
        "urandom",
        "open",
        "read",
        "write",
        "stat",
        "lstat",
        "access",
        "listdir",
        "scandir",
        "readlink",
    },
}
_NOW = {"now", "utcnow", "today"}
_READS = {"read", "read1", "readall", "readinto", "readline", "readlines"}
# Modules that read files and entropy for their caller. Others read for themselves: importlib,
# logging.
_FOR_CALLER = frozenset({
    "os", "posixpath", "genericpath", "pathlib", "glob", "shutil", "tempfile", "random", "secrets",
    "uuid", "codecs", "gzip", "bz2", "lzma", "zipfile", "tarfile", "json", "pickle", "csv",
    "fileinput", "configparser", "numpy", "_collections_abc", "collections", "torch.serialization",
})  # fmt: skip
_SEED = random.Random.seed.__code__


class ObservedCall:
    """A call of a function on flat (tensors, numbers, anything), which ran as it is.

    scope: what an earlier such call has read, taken for this one's; None: it is found out.
    is_whole: its programs run, and are observed, too; else it is a part of what a sync runs.
    after: the state when it returned. result: what it returned. observation: the core's notes.
    uses: of CPU tensors. formulas: the numbers that Python computed. host_calls: calls of
    schedulers to be made again, in order. volatile: the places that these write. names: those that
    code which ran may have read. gradients: the leaf tensors of the device, whether each had a
    gradient, and whether that is the same one. impure: calls of functions that are no functions of
    the state, in words.
    """

    def __init__(
        self,
        function: Callable[[Sequence[Any]], Any],
        flat: Sequence[Any],
        roots: Sequence[tuple[str, Any]],
        follow: Collection[tuple[int, str]],
        apart: Collection[int] = (),
        scope: Seen | None = None,
        *,
        is_whole: bool = True,
    ) -> None:
        self.flat, self.is_whole = list(flat), is_whole
        self.apart = apart  # places of objects whose tensors are arguments, too
        self.formulas = Formulas()
        self.observation = FormulaObservation()
        self.host_calls: list[tuple[Any, Sequence[Any], dict[str, Any]]] = []
        self.volatile: set[tuple[int, Any]] = set()
        self.impure: list[str] = []
        self.names, self._codes, read = scope or (set[str](), set[types.CodeType](), set())
        # that were read, by encoded names
        self._variables = {name: variables.VARIABLES.get(name) for name in read}
        self._version = 0
        self.follow = set(follow)
        self.followed: set[tuple[int, Any]] = set()
        self.to_follow: set[tuple[int, Any]] = set()
        if is_whole:
            syncs.sync()
        # Hooks of all modules and all optimizers.
        self.roots = [*roots, *(("torch's global hooks", hooks) for hooks in _global_hooks())]
        self.before = Objects(self.roots, *(scope or ())[:2])
        self.optimizers = self.before.of(torch.optim.Optimizer)
        self.schedulers = self.before.of(LRScheduler)
        if self.schedulers:  # they set it, so that it is a formula from the first call on
            self.follow |= {(id(group), "lr") for group in self._groups()}
        tensors = [tensor for _, tensor in self.before.tensors.values()]
        self.paths = {id(tensor): path for path, tensor in self.before.tensors.values()}
        # Tensors that are arguments alone are others at the next call; of a part of a step also
        # those that something holds, as a trainer its batch.
        state = {id(storage_of(tensor)) for tensor in tensors if type(tensor) is XlaTensor}
        self.arguments = {
            index: item
            for index, item in enumerate(flat)
            if isinstance(item, torch.Tensor)
            and (
                id(storage_of(item)) not in state or not (is_whole or storage_of(item).is_state)
                if type(item) is XlaTensor
                else id(item) not in self.paths
            )
        }
        tensors += self.arguments.values()
        self.trainable = [
            t for t in tensors if type(t) is XlaTensor and t.requires_grad and t.is_leaf
        ]
        gradients = [tensor.grad for tensor in self.trainable]
        device_tensors = [tensor for tensor in (*tensors, *gradients) if type(tensor) is XlaTensor]
        storages = [storage_of(tensor) for tensor in device_tensors]
        # No id in these is used twice: the objects are kept, but no storage is, as it may die in
        # the call.
        self.references = {id(storage.ref): storage.ref for storage in storages}
        self.data = {id(s.value): (s.value, s.ref) for s in storages if type(s.value) is DeviceData}
        steps = [
            state["step"]
            for optimizer in self.optimizers
            for state in optimizer.state.values()
            if isinstance(state, dict) and type(state.get("step")) is torch.Tensor
        ]
        self.counters = [step for step in steps if step.device.type == "cpu" and not step.dim()]
        self.versions = [
            (tensor, tensor._version) for tensor in tensors if type(tensor) is not XlaTensor
        ]
        self.uses = HostUses(self.formulas)
        streams = _streams()
        generators = {id(generator): state_of(generator) for _, generator in self.before.generators}
        self.first = store.next_serial()
        with (
            observation.active_observation.held(self.observation),
            host_reads.on_read.held(lambda _, text: self.observation.reads.append(text)),
        ):
            with contextlib.ExitStack() as stack:
                stack.enter_context(watched(tensors, self.counters, self.uses))
                stack.enter_context(_fused_by_formulas())
                self._enter_groups()
                stack.callback(self._leave_groups)
                stack.enter_context(_replaced(self.schedulers, "step", self._step))
                stack.enter_context(
                    _replaced(self.before.of(GradScaler), "_maybe_opt_step", self._chosen_step)
                )
                stack.enter_context(self._profiled() if scope is None else contextlib.nullcontext())
                try:
                    self.result = function(self._symbolic(self.flat))
                except BaseException:
                    if not is_whole:  # the call is made again
                        self.before.restore()
                        for counter in self.counters:
                            counter.fill_(self.uses.values[id(counter)])
                    raise
            self._note_changes(device_tensors, storages, gradients)
            del device_tensors, storages, gradients, tensors, state
            if is_whole:
                syncs.sync()
        self.impure += [
            (
                f"draws from {path}, a generator on the host; pass what it draws as an argument, "
                "or draw on xla"
            )
            for path, generator in self.after.generators
            if generators.get(id(generator)) != state_of(generator)
        ]
        if streams != _streams():
            self.impure.append("draws random numbers on the CPU")

    def _note_changes(
        self,
        device_tensors: Sequence[XlaTensor],
        storages: Sequence[Storage],
        gradients: Sequence[torch.Tensor | None],
    ) -> None:
        """Notes what has changed, and lets go of what is reachable no more: a value that is held is
        one more result of the call's program."""
        self.names = self.names or reached.names_in(self._codes)
        self.seen: Seen = self.names, self._codes, {*self._variables}
        self._settle_numbers()
        self.after = Objects(self.roots, self.names, self._codes)
        self.after.snapshots.append(
            contents.Snapshot(
                variables.VARIABLES, variables.PATH_OF_VARIABLES, Kind.SCOPE, set(self._variables)
            )
        )
        self.impure += [
            f"changes {variables.PATH_OF_VARIABLES}[{name!r}], which it reads"
            for name, value in self._variables.items()
            if variables.VARIABLES.get(name) != value
        ]
        alive_boxes = {id(snapshot.container) for snapshot in self.after.snapshots}
        named = (Kind.ATTRIBUTES, Kind.SCOPE, Kind.CLASS, Kind.SLOTS)
        changes = [
            change
            for change in self.before.changes()
            if id(change.container) in alive_boxes
            and (id(change.container), change.key) not in self.volatile
            and (change.kind not in named or change.key in self.names)
        ]
        # The tensors that the call replaces: gradients, and those in the places that have changed.
        old: list[tuple[Any, Any, Any]] = [
            (tensor, None, gradient)
            for tensor, gradient in zip(self.trainable, gradients, strict=True)
        ]
        old += [(change.container, change.key, change.old) for change in changes]
        self.replaced = [
            (container, key, tensor_meta(tensor), storage_of(tensor).ref)
            for container, key, tensor in old
            if type(tensor) is XlaTensor
            and view_of(tensor) is None
            and sum(storage is storage_of(tensor) for storage in storages) == 1
        ]
        self.gradients = [
            (tensor, gradient is not None, tensor.grad is gradient)
            for tensor, gradient in zip(self.trainable, gradients, strict=True)
        ]
        old_gradients = {id(gradient) for gradient in gradients if gradient is not None}
        alive = {
            *self.after.tensors,
            *(id(item) for item in self.arguments.values()),
        } - old_gradients
        self.device_tensors = [tensor for tensor in device_tensors if id(tensor) in alive]
        self.moved = [
            self.paths.get(id(tensor), "an argument")
            for tensor, storage in zip(device_tensors, storages, strict=True)
            if storage_of(tensor) is not storage and id(tensor) in alive
        ]
        self.changes = [change.settled() for change in changes]
        stale = {key for box, key in self.volatile - self.followed if key in self.names}
        self.to_follow -= self.follow
        if stale:
            self.impure.append(
                f"reads {', '.join(sorted(map(str, stale)))}, which a scheduler changes"
            )
        self.has_backward = any(code is _BACKWARD for code in self._codes)
        del self.before

    def _symbolic(self, flat: Sequence[Any]) -> list[Any]:
        result = list(flat)
        for index, item in enumerate(flat):
            if type(item) is float and (0, index) in self.follow:
                result[index] = self.formulas.source(Argument(index), item)
        return result

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def _enter_groups(self) -> None:
        """Has the followed numbers of parameter groups be symbolic."""
        for group in self._groups():
            for key, value in group.items():
                if (id(group), key) in self.follow and is_number(value):
                    self.followed.add((id(group), key))
                    group[key] = self._sources(group, key, value)

    def _sources(self, group: dict[str, Any], key: str, value: Any) -> Any:
        if type(value) is float:
            return self.formulas.source(GroupNumber(group, key, None, self._version), value)
        items = enumerate(value)
        return tuple(
            self.formulas.source(GroupNumber(group, key, i, self._version), item)
            for i, item in items
        )

    def _leave_groups(self) -> None:
        plain = self.observation.plain
        for group in self._groups():
            for key, value in group.items():
                group[key] = tuple(map(plain, value)) if type(value) is tuple else plain(value)

    def _step(self, scheduler: Any, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A scheduler's step, which changes nothing but Python numbers."""
        self._leave_groups()
        around = Objects([("scheduler", scheduler)])
        # A scheduler that schedules others steps them itself.
        inner = [
            inner_scheduler
            for inner_scheduler in around.of(LRScheduler)
            if inner_scheduler is not scheduler and "step" in inner_scheduler.__dict__
        ]
        bound_steps = [
            (inner_scheduler, inner_scheduler.__dict__.pop("step")) for inner_scheduler in inner
        ]
        runs = len(self.observation.reads)
        profile = sys.getprofile()
        sys.setprofile(None)  # what the scheduler reads for itself is read again by its own step
        result = step(*args, **kwargs)
        sys.setprofile(profile)
        for inner_scheduler, function in bound_steps:
            inner_scheduler.__dict__["step"] = function
        if len(self.observation.reads) > runs:
            self.impure.append(f"the scheduler reads a tensor at {user_line()}")
        changes = around.changes()
        self.volatile |= {(id(change.container), change.key) for change in changes}
        groups = set(map(id, self._groups()))
        self.to_follow |= {
            (id(change.container), change.key)
            for change in changes
            if is_number(change.old) and is_number(change.new) and id(change.container) in groups
        }
        self.host_calls.append((step, args, kwargs))
        self._version += 1
        self._enter_groups()
        return result

    def _chosen_step(
        self,
        _scaler: Any,
        original: Callable[..., Any],
        optimizer: Any,
        optimizer_state: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """The optimizer's step, undone on the device where a gradient is not finite: the gradient
        scaler leaves the choice whether to step to the device."""
        state = [
            value
            for entry in optimizer.state.values()
            for value in entry.values()
            if isinstance(value, torch.Tensor)
        ]
        if any(value.device.type == "cpu" for value in state):
            self.impure.append(
                "skips steps of an optimizer that counts them on the CPU; make it with "
                "capturable=True or fused=True"
            )
            return original(optimizer, optimizer_state, *args, **kwargs)
        parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]
        with torch.no_grad():
            num_infinite: Any = sum(optimizer_state["found_inf_per_device"].values())
            old_values = [(tensor, tensor.detach().clone()) for tensor in (*parameters, *state)]
            result = optimizer.step(*args, **kwargs)
            for tensor, old in old_values:
                tensor.copy_(torch.where(num_infinite > 0, old, tensor))
        return result

    @contextlib.contextmanager
    def _profiled(self) -> Iterator[None]:
        """Notes the code that runs inside, and calls of impure functions by the user's code."""
        codes, outer, thread = self._codes, sys.getprofile(), threading.get_ident()

        def see(frame: Any, event: str, arg: Any) -> None:
            if event == "call":
                codes.add(frame.f_code)
                if frame.f_code is variables.READ and _user_frame(frame) is not None:
                    name = variables.encoded_name(frame.f_locals["key"])
                    self._variables.setdefault(name, variables.VARIABLES.get(name))
                elif (
                    frame.f_code is _SEED
                    and frame.f_locals.get("a") is None
                    and _user_frame(frame) is not None
                ):
                    self.impure.append("seeds a random generator with entropy")
            elif event == "c_call":
                names = _IMPURE.get(getattr(arg, "__module__", None) or "", ())
                name = arg.__name__
                is_read = name in _READS and isinstance(getattr(arg, "__self__", None), io.IOBase)
                if names is None or name in names or name in _NOW or is_read:
                    reader = (
                        frame if _is_users(frame) else None if names is None else _user_frame(frame)
                    )
                    if reader is not None:
                        self.impure.append(
                            f"calls {name} at {reader.f_code.co_filename}:{reader.f_lineno}"
                        )

        profilers: list[Any] = []

        def collecting(phase: str, _info: dict[str, int]) -> None:
            if phase == "start" and threading.get_ident() == thread:
                profilers.append(sys.getprofile())
                sys.setprofile(None)

        def collected(phase: str, _info: dict[str, int]) -> None:
            if phase == "stop" and threading.get_ident() == thread and profilers:
                sys.setprofile(profilers.pop())

        # Calls by the garbage collector (finalizers, other callbacks) are no part of the function:
        # the first callback of a collection pauses the notes, the last one resumes them.
        gc.callbacks.insert(0, collecting)
        gc.callbacks.append(collected)
        sys.setprofile(see)
        try:
            yield
        finally:
            if isinstance(outer, Profile):  # of `cProfile`, which is no function
                outer.enable()
            else:
                sys.setprofile(outer)
            gc.callbacks.remove(collecting)
            gc.callbacks.remove(collected)

    def _settle_numbers(self) -> None:
        """Replaces symbolic numbers that the call has stored, or returned, by the numbers that they
        are."""
        for change in self.before.changes():
            if type(change.new) is torch.SymFloat and isinstance(change.container, (dict, list)):
                change.container[change.key] = self.observation.plain(change.new)
                self.impure.append(f"stores a number that it computes in {change.path}")
        flat, tree = tree_flatten(self.result)
        if any(type(item) is torch.SymFloat for item in flat):
            self.result = tree_unflatten([self.observation.plain(item) for item in flat], tree)
            self.impure.append("returns a number that it computes")


_FUSED = ("_fused_adam_", "_fused_adamw_", "_fused_adagrad_", "_fused_sgd_")


@contextlib.contextmanager
def _fused_by_formulas() -> Iterator[None]:
    """Has the ops of fused optimizers take formulas, of which torch's parser makes guards: a
    schedule would change each call."""
    originals = {name: getattr(torch, name) for name in _FUSED}

    def run(name: str, *args: Any, **kwargs: Any) -> Any:
        is_formula = any(type(value) is torch.SymFloat for value in kwargs.values())
        if not is_formula or {*map(type, args[0])} != {XlaTensor}:
            return originals[name](*args, **kwargs)
        op, handle = getattr(torch.ops.aten, name).default, XlaTensor.__torch_dispatch__
        # As torch passes them: in the order of the schema, without those that are as by default.
        given = {
            one.name: float(value) if type(value) is int else value
            for one in op._schema.arguments
            if (value := kwargs.get(one.name, one.default_value)) is not one.default_value
        }
        return handle(op, (XlaTensor,), args, given)

    for name in _FUSED:
        setattr(torch, name, functools.partial(run, name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)


@contextlib.contextmanager
def _replaced(instances: Sequence[Any], name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Has `function` stand for a method of objects inside; it takes the object and its method
    besides the arguments."""
    for instance in instances:
        instance.__dict__[name] = functools.partial(function, instance, getattr(instance, name))
    try:
        yield
    finally:
        for instance in instances:
            instance.__dict__.pop(name, None)


def is_number(value: Any) -> bool:
    """True for a float, and for a tuple of floats, as `betas` are."""
    return type(value) is float or (
        type(value) is tuple and bool(value) and all(type(element) is float for element in value)
    )


def _global_hooks() -> list[Any]:
    scopes = (sys.modules[name] for name in ("torch.nn.modules.module", "torch.optim.optimizer"))
    scopes_values = (
        value
        for scope in scopes
        for name, value in vars(scope).items()
        if name.startswith("_global_")
    )
    return [value for value in scopes_values if isinstance(value, dict)]


def _is_users(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in {
        *reached.LIBRARIES,
        "fsdp",
    }


def _user_frame(frame: Any) -> Any:
    """The user's frame that has a module read for it; None where a library reads for itself."""
    while frame is not None and _FOR_CALLER.intersection(
        (name := str(frame.f_globals.get("__name__", "")), name.partition(".")[0])
    ):
        frame = frame.f_back
    return frame if frame is not None and _is_users(frame) else None


# By the class of a random generator of the host; that of the system reads entropy.
_STATES: dict[type, Callable[[Any], Any]] = {
    torch.Generator: lambda generator: generator.get_state().numpy(),
    random.SystemRandom: lambda generator: None,
    random.Random: lambda generator: generator.getstate(),
    np.random.RandomState: lambda generator: generator.get_state(legacy=False),
    np.random.Generator: lambda generator: generator.bit_generator.state,
    np.random.BitGenerator: lambda generator: generator.state,
}


def state_of(generator: Any) -> bytes:
    """The state of a random generator of the host."""
    return pickle.dumps(
        next(read(generator) for kind, read in _STATES.items() if isinstance(generator, kind))
    )


def _streams() -> tuple[bytes, ...]:
    return (
        state_of(random._inst),
        state_of(np.random.mtrand._rand),
        state_of(torch.default_generator),
    )
