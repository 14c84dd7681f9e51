"""A call recorded as one graph, its arguments, the state that it reads and overwrites, and its random draws."""

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...core import DeviceData, Storage, XlaTensor, constraints, dense_meta, seed, storage_of, syncs, view_of, wrap
from ...core.extend import (
    Graph,
    Objects,
    Recording,
    abstract_calls,
    execute,
    schedule,
    state_names,
    storages,
    user_lines,
    walks,
)
from .nested_values import Description, describe, rebuild
from .optimizer_state import make_ready

# The places in the stream of draws (seed, draws before) at which calls are recorded, in turn: integers that follow from
# them in two recordings are keys of draws, and no numbers of the user's.
_PLACES = (0x3C6EF372FE94F82B, 0x0A09E667F3BCC908), (0x1F83D9ABFB41BD6B, 0x0B67AE8584CAA73B)


@dataclass(frozen=True)
class StepOperand:
    """An argument of the call, or another value that the program reads or overwrites. role: "argument", "parameter",
    "buffer", "optimizer state", "gradient", "state" (any other tensor), "constant" (data that the function makes from
    host data).

    tensor: the user's state, or one in place of an argument, or one of the constant's data. value: an input of the
    graph, if the graph reads it.
    """

    name: str
    role: str
    tensor: torch.Tensor
    value: DeviceData


@dataclass(frozen=True)
class ExportedStep:
    """A call as a graph.

    inputs: the nested structures that it takes, `args` and `kwargs`; outputs: that it returns. operands: the tensors
    among its arguments, in order, then its state. overwrites: by root of the graph, the place of the operand that takes
    it. results: by returned tensor the root that it is, or ~place of the operand that it is unchanged. draws: the
    place in the stream at which the graph was recorded, and the number of its draws.
    """

    graph: Graph
    inputs: dict[str, Description]
    outputs: Description
    operands: list[StepOperand]
    overwrites: dict[int, int]
    results: list[int]
    draws: tuple[int, int, int]


def record(step: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> ExportedStep:
    """Records a call as the second of several is: with an optimizer's state made. Nothing runs, nothing is changed.

    Raises ValueError for a call that is more than one program, or that differs from call to call.
    """
    tensors: list[tuple[str, torch.Tensor]] = []
    inputs = {"args": describe(tuple(args), "args", tensors), "kwargs": describe(dict(kwargs), "kwargs", tensors)}
    syncs.sync()
    stand_ins = [_without_data(tensor) for _, tensor in tensors]  # one passed twice may be two in another call
    call = {part: rebuild(description, stand_ins.__getitem__) for part, description in inputs.items()}
    objects = Objects.of_step(step, None)
    recording = Recording()
    with abstract_calls.kept(objects):
        make_ready(objects.of(torch.optim.Optimizer))
        syncs.sync()
        with abstract_calls.abstractly(step, None, recording) as reachable:
            names = state_names.StateNames(reachable)
            taken: list[_Taken] = []
            for number in range(_MOST_CALLS):
                place = _PLACES[number % 2]
                taken.append(_take(step, call["args"], call["kwargs"], recording, place, stand_ins))
                if len(taken) > 1 and taken[-2].graph.key() == taken[-1].graph.key():
                    break
            else:
                raise ValueError(
                    f"export: the step recorded another program at each of {_MOST_CALLS} calls; what is exported must "
                    "do the same at each call: pass what changes as an argument"
                )
            first, last = taken[-2:]
            _check_same(first, last)
            paths = _named_as_parameters(step, [path for path, _ in tensors])
            arguments = zip(paths, itertools.repeat("argument"), stand_ins, last.values_before, strict=False)
            operands = [*itertools.starmap(StepOperand, arguments), *_state(first, last, names, recording)]
    for operand in operands:
        if operand.tensor.is_meta:
            raise ValueError(
                f"export: {operand.name} is on meta, and a program is exported with its values; load them first"
            )
    return _exported_step(inputs, operands, last)


_MOST_CALLS = 4
_PATH = re.compile(r"args\[(\d+)\]|kwargs\['(.*?)'\]")


def _named_as_parameters(step: Any, paths: Sequence[str]) -> list[str]:
    """The paths of arguments with the names of the function's parameters where it has them: `x` for `args[0]`."""
    try:
        parameters = inspect.signature(step.forward if isinstance(step, nn.Module) else step).parameters.values()
    except ValueError:  # a function of C++ has none
        return list(paths)
    names = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]

    def named(match: re.Match[str]) -> str:
        position, keyword = match.groups()
        return keyword or (names[int(position)] if int(position) < len(names) else match[0])

    return [_PATH.sub(named, path, count=1) for path in paths]


def _without_data(tensor: torch.Tensor) -> XlaTensor:
    """A tensor on the device in place of an argument: of its shape and sharding, without data."""
    if tensor.layout is not torch.strided:
        raise TypeError(f"export: expected dense tensors, got one of {tensor.layout}")
    meta = dense_meta(tuple(tensor.shape), tensor.dtype)
    now = constraints.sharding_now(tensor) if type(tensor) is XlaTensor else None
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
    values_before: list[Any]
    numbers: list[Sequence[float | int]]
    draws: tuple[int, int, int]

    def numbers_of(self, place: int) -> list[object]:
        """The numbers of an op; of keys of draws that they are a seed, or the number of the draw."""
        start, before, count = self.draws
        named = {start: "seed", **{before + draw: f"draw {draw}" for draw in range(count)}}
        return [named.get(number, number) if type(number) is int else number for number in self.numbers[place]]


def _take(
    step: Any, args: Any, kwargs: Any, recording: Recording, place: tuple[int, int], given: Sequence[XlaTensor]
) -> _Taken:
    seed.set_state(place)
    values_before, num_programs = [storage_of(tensor).value for tensor in given], len(recording.programs)
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
    # A view is returned as a tensor of its own.
    returned: list[Any] = [t if view_of(t) is None else t.detach().clone() for _, t in tensors]  # type: ignore[arg-type]
    written = {storage: storage.data for storage in storages.pending() if storage.data is not None}
    wanted = dict.fromkeys([*(storage_of(tensor) for tensor in returned), *written])
    roots = execute.roots_of(wanted)
    if not roots and returned:  # arguments and state as they are: the program copies them
        returned = [tensor.detach().clone() for tensor in returned]
        wanted = dict.fromkeys(storage_of(tensor) for tensor in returned)
        roots = execute.roots_of(wanted)
    if not roots:
        raise ValueError("export: the step computes nothing on the device; export the function that computes")
    mesh, *others = schedule.meshes_met(list(wanted), *walks.topological([value for value, _ in roots])).values()
    if others or mesh.target is not None:
        raise ValueError("export: expected one mesh, of devices that are here; the step is on several, or on others")
    graph = execute.graph_of(roots, mesh)
    taken = _Taken(
        graph, outputs, returned, [storage for _, storage in roots], written, values_before,
        [node.numbers for node in graph.nodes], (*place, sum(key == place[0] for key, _ in draws)),
    )  # fmt: skip
    syncs.sync()
    return taken


def _state(first: _Taken, last: _Taken, names: state_names.StateNames, recording: Recording) -> Iterator[StepOperand]:
    """The values besides the arguments that a call reads or overwrites, with the user's tensors behind them."""
    value_before = dict(zip(last.graph.inputs, first.graph.inputs, strict=True))
    overwritten, computed = {value: storage for storage, value in last.state.items()}, set(recording.made)
    state = dict.fromkeys(value for value in (*last.graph.inputs, *overwritten) if value not in last.values_before)
    for place, value in enumerate(state):
        holder = value.holder() if value.holder is not None else None
        named = names.of(overwritten.get(value, holder))
        if named is None:
            _check_constant(value, value_before.get(value), is_computed=value in computed)
            named = state_names.Named(f"constant.{place}", "constant", wrap(value.meta, Storage(value, value.meta)))
        yield StepOperand(*named, value)


def _check_constant(value: DeviceData, before: DeviceData | None, *, is_computed: bool) -> None:
    """Raises ValueError for data behind no tensor of the user's that are not the same at each call."""
    if is_computed or value.is_abstract:
        raise ValueError(
            f"export: the step reads a value of {value.meta!r} that its first call makes (state that is not there yet, "
            "such as a momentum buffer, or that each call replaces by a new tensor); call the step once before the "
            "export, and write state in place"
        )
    host_before = None if before is None else before.host
    if value.host is not None and (host_before is None or value.host.tobytes() != host_before.tobytes()):
        raise ValueError(
            f"export: the step makes data of {value.meta!r} on the host that differs from call to call; pass it as an "
            "argument"
        )


def _exported_step(inputs: dict[str, Description], operands: list[StepOperand], last: _Taken) -> ExportedStep:
    place_of = {operand.value: place for place, operand in enumerate(operands)}
    overwrites = {
        root: place_of[last.state[storage]] for root, storage in enumerate(last.storages) if storage in last.state
    }
    tensors = {~place: operand.tensor for place, operand in enumerate(operands)}
    result_of = {storage_of(tensor): place for place, tensor in tensors.items() if isinstance(tensor, XlaTensor)}
    result_of |= {storage: root for root, storage in enumerate(last.storages)}
    if not result_of.keys() >= {storage_of(tensor) for tensor in last.returned}:
        raise ValueError(
            "export: the step returns data that it neither computes nor takes as an argument; leave it out of the "
            "result"
        )
    results = [result_of[storage_of(tensor)] for tensor in last.returned]
    return ExportedStep(last.graph, inputs, last.outputs, operands, overwrites, results, last.draws)


def _check_same(first: _Taken, last: _Taken) -> None:
    """Raises ValueError where two calls of one program return another structure, or have another number in it."""
    if first.outputs != last.outputs:
        raise ValueError("export: the step returned another structure, or another number in it, at its next call")
    for place, node in enumerate(last.graph.nodes):
        for number, number_after in zip(first.numbers_of(place), last.numbers_of(place), strict=True):
            if repr(number) != repr(number_after):
                raise ValueError(
                    f"export: a number of {user_lines.describe(node)} was {number!r} in one call and {number_after!r} "
                    "in the next; a program has one: compute it from tensors, or pass it as an argument (a learning "
                    "rate as a tensor)"
                )
