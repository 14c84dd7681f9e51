"""A call recorded as one graph, its arguments, the state that it reads and overwrites, and its random draws."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...core import (
    DeviceData,
    Storage,
    XlaTensor,
    annotations,
    dense_meta,
    seed,
    storage_of,
    syncs,
    tensor_meta,
    view_of,
    wrap,
)
from ...core.extend import Graph, Recording, pending, schedule, user_lines, walks
from ..reachable import Reachable
from ..saved_state import abstractly
from .nested_values import Description, describe, rebuild
from .optimizer_state import ready
from .state_names import StateNames

# Two places in the stream of draws: what differs by them between two recordings is a draw's key, else it is a change.
_SEEDS = 0x3C6EF372FE94F82B, 0x1F83D9ABFB41BD6B
_FAR = 1 << 40


@dataclass(frozen=True)
class State:
    """A value that the program reads, or overwrites, besides its arguments. role: "parameter", "buffer", "optimizer
    state", "gradient", "state" (any other tensor), "constant" (data that the function makes from host data).

    tensor: the user's, or one of the constant's data.
    """

    name: str
    role: str
    tensor: torch.Tensor


@dataclass(frozen=True)
class Draws:
    """The integers among a graph's scalar arguments that are keys of draws: their places, and for counts the number of
    draws before it. num: the draws of a call."""

    seeds: tuple[int, ...] = ()
    counts: dict[int, int] = field(default_factory=dict)
    num: int = 0


@dataclass(frozen=True)
class RecordedCall:
    """A call as a graph.

    inputs: the nested structures that it takes, `args` and `kwargs`; outputs: that it returns. paths, metas, shardings:
    of the tensors among its arguments (no sharding: unannotated).
    arguments, state: by place, the input of the graph, None for one that is not read; `sources` has the state's values.
    overwrites: by root of the graph, the argument (`place`) or state (`len(arguments) + place`) that takes it.
    results: by returned tensor the root that it is, or ~place of the argument or state that it is unchanged.
    """

    graph: Graph
    inputs: dict[str, Description]
    outputs: Description
    paths: list[str]
    metas: list[Any]
    shardings: list[Any]
    arguments: list[DeviceData | None]
    state: list[DeviceData]
    sources: list[State]
    overwrites: dict[int, int]
    results: list[int]
    draws: Draws


def record(step: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> RecordedCall:
    """Records a call as the second of several is: with an optimizer's state made. Nothing runs, nothing is changed.

    Raises ValueError for a call that is more than one program, or that differs from call to call.
    """
    tensors: list[tuple[str, torch.Tensor]] = []
    inputs = {"args": describe(tuple(args), "args", tensors), "kwargs": describe(dict(kwargs), "kwargs", tensors)}
    syncs.sync()
    given = [_without_data(tensor) for _, tensor in tensors]  # one passed twice may be two in another call
    call = {part: rebuild(description, given.__getitem__) for part, description in inputs.items()}
    optimizers = Reachable(step, None).optimizers
    recording = Recording()
    with ready(optimizers):
        syncs.sync()
        with abstractly(step, None, recording) as reachable:
            names = StateNames(reachable)
            taken: list[_Taken] = []
            for number in range(_MOST_CALLS):
                taken.append(_take(step, call["args"], call["kwargs"], recording, number, given))
                if number and taken[-2].graph.key() == taken[-1].graph.key():
                    break
            else:
                raise ValueError(
                    f"export: the step recorded another program at each of {_MOST_CALLS} calls; what is exported must "
                    "do the same at each call: pass what changes as an argument"
                )
            paths = _named_as_parameters(step, [path for path, _ in tensors])
            call_recorded = _read(taken[-2], taken[-1], inputs, paths, given, names, recording)
    for source in call_recorded.sources:
        if source.tensor.is_meta:
            raise ValueError(
                f"export: {source.name} is on meta, and a program is exported with its values; load them first"
            )
    return call_recorded


_MOST_CALLS = 4
_PATH = re.compile(r"args\[(\d+)\](.*)|kwargs\['(.*?)'\](.*)")


def _named_as_parameters(step: Any, paths: Sequence[str]) -> list[str]:
    """The paths of arguments with the names of the function's parameters where it has them: `x` for `args[0]`."""
    try:
        parameters = inspect.signature(step.forward if isinstance(step, nn.Module) else step).parameters.values()
    except ValueError:  # a function of C++ has none
        return list(paths)
    own = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    found = []
    for path in paths:
        place, rest, keyword, rest_of_keyword = _PATH.fullmatch(path).groups()  # type: ignore[union-attr]
        if keyword is not None:
            path = keyword + rest_of_keyword
        elif int(place) < len(own):
            path = own[int(place)] + rest
        found.append(path)
    return found


def _without_data(tensor: torch.Tensor) -> XlaTensor:
    """A tensor on the device in place of an argument: of its shape and sharding, without data."""
    if tensor.layout is not torch.strided:
        raise TypeError(f"export: expected dense tensors, got one of {tensor.layout}")
    meta = dense_meta(tuple(tensor.shape), tensor.dtype)
    now = annotations.sharding_now(tensor) if type(tensor) is XlaTensor else None
    sharding = None if now is None else now.closed()
    result = wrap(meta, Storage(DeviceData(meta, sharding=sharding, is_abstract=True), meta, sharding))
    return result.requires_grad_(tensor.requires_grad)  # type: ignore[return-value]


@dataclass(frozen=True)
class _Taken:
    """One call, recorded. roots: the storages of the graph's roots; given: the values of the arguments before it."""

    graph: Graph
    outputs: Description
    returned: list[Any]
    storages: list[Storage]
    state: dict[Storage, DeviceData]
    before: list[Any]
    numbers: tuple[list[float], list[int]]
    num_draws: int


def _take(step: Any, args: Any, kwargs: Any, recording: Recording, number: int, given: Sequence[XlaTensor]) -> _Taken:
    seed.set_state((_SEEDS[number % 2], number % 2 * _FAR))
    before, num_programs = [storage_of(tensor).value for tensor in given], len(recording.programs)
    with seed.noted() as draws:
        result = step(*args, **kwargs)
    if len(recording.programs) != num_programs:
        raise ValueError(
            "export: the step syncs before it ends (spmd.sync(), torch_xla.sync() or a read of a value), so that it is "
            "several programs; one is exported: take the sync out of it"
        )
    tensors: list[tuple[str, torch.Tensor]] = []
    outputs = describe(result, "the result", tensors)
    for path, tensor in tensors:
        if not isinstance(tensor, XlaTensor):
            raise TypeError(f"export: {path} is on {tensor.device}; a program returns tensors of the device xla")
    returned = [_whole(tensor) for _, tensor in tensors]  # type: ignore[arg-type]
    written = {storage: storage.data for storage in pending() if storage.data is not None}
    wanted = dict.fromkeys([*(storage_of(tensor) for tensor in returned), *written])
    roots = schedule.roots_of(wanted)
    if not roots and returned:  # arguments and state as they are: the program copies them
        returned = [tensor.detach().clone() for tensor in returned]  # type: ignore[misc]
        wanted = dict.fromkeys(storage_of(tensor) for tensor in returned)
        roots = schedule.roots_of(wanted)
    if not roots:
        raise ValueError("export: the step computes nothing on the device; export the function that computes")
    mesh, *others = schedule.meshes_met(list(wanted), *walks.topological([value for value, _ in roots])).values()
    if others or mesh.target is not None:
        raise ValueError("export: expected one mesh, of devices that are here; the step is on several, or on others")
    graph = schedule.graph_of(roots, mesh)
    taken = _Taken(
        graph, outputs, list(returned), [storage for _, storage in roots], written, before,
        walks.pack_numbers(graph.nodes), len(draws),
    )  # fmt: skip
    syncs.sync()
    return taken


def _whole(tensor: XlaTensor) -> XlaTensor:
    """A returned tensor as one that is no view."""
    return tensor if view_of(tensor) is None else tensor.detach().clone()  # type: ignore[return-value]


def _read(
    first: _Taken,
    last: _Taken,
    inputs: dict[str, Description],
    paths: list[str],
    given: Sequence[XlaTensor],
    names: StateNames,
    recording: Recording,
) -> RecordedCall:
    """Compares two equal recordings, and reads a call from them."""
    graph = last.graph
    if first.outputs != last.outputs:
        raise ValueError("export: the step returned another structure, or another number in it, at its next call")
    draws = _draws(first, last)
    arguments = [value if value in graph.inputs else None for value in last.before]
    of_argument = {value: index for index, value in enumerate(last.before)}
    read = [value for value in graph.inputs if value not in of_argument]
    only_written = [value for value in last.state.values() if value not in of_argument and value not in read]
    state = [*read, *only_written]
    before = dict(zip(last.graph.inputs, first.graph.inputs, strict=True))
    result = set(recording.made)
    sources: list[State] = []
    for value in state:
        holder = value.holder() if value.holder is not None else None
        storage = next((storage for storage, old in last.state.items() if old is value), holder)
        sources.append(_source(value, storage, before.get(value), names, result, len(sources)))
    place_of = {**of_argument, **{value: len(given) + index for index, value in enumerate(state)}}
    overwrites = {
        root: place_of[last.state[storage]] for root, storage in enumerate(last.storages) if storage in last.state
    }
    roots = {storage: root for root, storage in enumerate(last.storages)}
    unchanged = {storage_of(tensor): index for index, tensor in enumerate(given)}
    results = [
        roots[storage_of(tensor)] if storage_of(tensor) in roots else _unchanged(tensor, unchanged, sources, len(given))
        for tensor in last.returned
    ]
    return RecordedCall(
        graph, inputs, last.outputs, paths, [tensor_meta(tensor) for tensor in given],
        [storage_of(tensor).sharding for tensor in given], arguments, state, sources, overwrites, results, draws,
    )  # fmt: skip


def _unchanged(tensor: Any, given: dict[Storage, int], sources: Sequence[State], num_arguments: int) -> int:
    """The ~place of a returned tensor that the call does not compute."""
    if storage_of(tensor) in given:
        return ~given[storage_of(tensor)]
    for index, source in enumerate(sources):
        if isinstance(source.tensor, XlaTensor) and storage_of(source.tensor) is storage_of(tensor):
            return ~(num_arguments + index)
    raise ValueError(
        "export: the step returns data that it neither computes nor takes as an argument; leave it out of the result"
    )


def _source(
    value: DeviceData, storage: Storage | None, before: DeviceData | None, names: StateNames, made: set[Any], place: int
) -> State:
    """The user's tensor behind an input of the graph."""
    found = names.of(storage)
    if found is not None:
        return State(*found)
    if value in made or value.is_abstract:
        raise ValueError(
            f"export: the step reads a value of {value.meta!r} that its first call makes (state that is not there yet, "
            "such as a momentum buffer, or that each call replaces by a new tensor); call the step once before the "
            "export, and write state in place"
        )
    if value.host is not None and (
        before is None or before.host is None or value.host.tobytes() != before.host.tobytes()
    ):
        raise ValueError(
            f"export: the step makes data of {value.meta!r} on the host that differs from call to call; pass it as an "
            "argument"
        )
    return State(f"constant.{place}", "constant", wrap(value.meta, Storage(value, value.meta)))


def _draws(first: _Taken, last: _Taken) -> Draws:
    """Which scalar arguments are keys of draws; raises ValueError where another one has changed."""
    (floats, integers), (floats_after, integers_after) = first.numbers, last.numbers
    changed = [
        index for index, pair in enumerate(zip(floats, floats_after, strict=True)) if pair[0].hex() != pair[1].hex()
    ]
    if changed:
        raise _changes(last.graph, "f", changed[0], floats[changed[0]], floats_after[changed[0]])
    seeds, counts = [], {}
    for index, (one, other) in enumerate(zip(integers, integers_after, strict=True)):
        if {one, other} == set(_SEEDS):
            seeds.append(index)
        elif abs(other - one) == _FAR:
            counts[index] = min(one, other)
        elif one != other:
            raise _changes(last.graph, "i", index, one, other)
    return Draws(tuple(seeds), counts, last.num_draws) if seeds or counts else Draws()


def _changes(graph: Graph, kind: str, place: int, one: float, other: float) -> ValueError:
    """The error about a number that is another one at the next call, with its line."""
    for node in graph.nodes:
        own = node.op.numbers.count(kind) if node.numbers else 0
        if place < own:
            return ValueError(
                f"export: a number of {user_lines.describe(node)} was {one!r} in one call and {other!r} in the next; a "
                "program has one: compute it from tensors, or pass it as an argument (a learning rate as a tensor)"
            )
        place -= own
    raise AssertionError("each number is of an op")
