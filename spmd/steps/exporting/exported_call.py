"""A call recorded as one graph, its arguments, the state that it reads and overwrites, and its
random draws."""

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...core import (
    DeviceData,
    Storage,
    XlaTensor,
    constraints,
    dense_meta,
    seed,
    storage_of,
    syncs,
    view_of,
    wrap,
)
from ...core.extend import (
    Graph,
    Objects,
    Recording,
    abstract_calls,
    executables,
    execute,
    inlined_calls,
    schedule,
    state_names,
    storages,
    user_lines,
    walks,
)
from .nested_values import Description, describe, rebuild
from .optimizer_state import make_ready

# Positions (seed, number of earlier draws) in the stream of draws at which calls are recorded, in
# turn: integers that follow from them in two recordings are keys of draws, and no numbers of the
# user's.
_POSITIONS = (0x3C6EF372FE94F82B, 0x0A09E667F3BCC908), (0x1F83D9ABFB41BD6B, 0x0B67AE8584CAA73B)


@dataclass(frozen=True)
class StepOperand:
    """An argument of the call, or another value that the program reads or overwrites. role:
    "argument", "parameter", "buffer", "optimizer state", "gradient", "state" (any other tensor),
    "constant" (data that the function makes from host data).

    tensor: the user's state, or one in place of an argument, or one of the constant's data. value:
    an input of the graph, if the graph reads it.
    """

    name: str
    role: str
    tensor: torch.Tensor
    value: DeviceData


@dataclass(frozen=True)
class RecordedCall:
    """One call of a step.

    returned: the tensors of its result, whose structure is `outputs`. storages: those of the
    graph's roots. state: the values of overwritten storages. arguments: the values of the arguments
    before the call. draws: the position in the stream at which the call was recorded, and the
    number of its draws.
    """

    graph: Graph
    outputs: Description
    returned: list[Any]
    storages: list[Storage]
    state: dict[Storage, DeviceData]
    arguments: list[Any]
    numbers: list[Sequence[float | int]]
    draws: tuple[int, int, int]

    def numbers_of(self, node: int) -> list[object]:
        """The numbers of a node; keys of draws as "seed", or as the number of the draw."""
        seed_number, first_draw, count = self.draws
        names = {
            seed_number: "seed",
            **{first_draw + draw: f"draw {draw}" for draw in range(count)},
        }
        return [
            names.get(number, number) if type(number) is int else number
            for number in self.numbers[node]
        ]


@dataclass(frozen=True)
class ExportedStep:
    """A call with its operands: the tensors among its arguments, in order, then its state.

    inputs: the nested structures of `args` and `kwargs`. overwrites: root of the graph -> index of
    the operand that it replaces. results: by returned tensor its root, or ~index of the operand
    that it is unchanged.
    """

    call: RecordedCall
    inputs: dict[str, Description]
    operands: list[StepOperand]
    overwrites: dict[int, int]
    results: list[int]


def record(step: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> ExportedStep:
    """Records a call as the second of several is: with an optimizer's state made. Nothing runs,
    nothing is changed.

    Raises ValueError for a call that is more than one program, or that differs from call to call.
    """
    tensors: list[tuple[str, torch.Tensor]] = []
    inputs = {
        "args": describe(tuple(args), "args", tensors),
        "kwargs": describe(dict(kwargs), "kwargs", tensors),
    }
    syncs.sync()
    # one passed twice may be two in another call
    stand_ins = [_without_data(tensor) for _, tensor in tensors]
    call = {
        part: rebuild(description, stand_ins.__getitem__) for part, description in inputs.items()
    }
    objects = Objects.of_step(step, None)
    recording = Recording()
    with abstract_calls.restored_after(objects):
        make_ready(objects.of(torch.optim.Optimizer))
        syncs.sync()
        with abstract_calls.abstractly(step, None, recording) as reachable:
            names = state_names.StateNames(reachable)
            calls: list[RecordedCall] = []
            while len(calls) < 2 or calls[-2].graph.key() != calls[-1].graph.key():
                if len(calls) == _MOST_CALLS:
                    raise ValueError(
                        f"export: the step recorded another program at each of {_MOST_CALLS} "
                        "calls; what is exported must do the same at each call: pass what changes "
                        "as an argument"
                    )
                position = _POSITIONS[len(calls) % 2]
                calls.append(
                    _recorded(step, call["args"], call["kwargs"], recording, position, stand_ins)
                )
            first, last = calls[-2:]
            _check_same(first, last)
            paths = _named_as_parameters(step, [path for path, _ in tensors])
            arguments = zip(
                paths, itertools.repeat("argument"), stand_ins, last.arguments, strict=False
            )
            operands = [
                *itertools.starmap(StepOperand, arguments),
                *_state(first, last, names, recording),
            ]
    for operand in operands:
        if operand.tensor.is_meta:
            raise ValueError(
                f"export: {operand.name} is on meta, and a program is exported with its values; "
                "load them first"
            )
    return _exported_step(inputs, operands, last)


_MOST_CALLS = 4
_PATH = re.compile(r"args\[(\d+)\]|kwargs\['(.*?)'\]")


def _named_as_parameters(step: Any, paths: Sequence[str]) -> list[str]:
    """The paths of arguments with the names of the function's parameters where it has them: `x` for
    `args[0]`."""
    try:
        parameters = inspect.signature(
            step.forward if isinstance(step, nn.Module) else step
        ).parameters.values()
    except ValueError:  # a function of C++ has none
        return list(paths)
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]

    def named(match: re.Match[str]) -> str:
        position, keyword = match.groups()
        return keyword or (names[int(position)] if int(position) < len(names) else match[0])

    return [_PATH.sub(named, path, count=1) for path in paths]


def _without_data(tensor: torch.Tensor) -> XlaTensor:
    """A tensor on the device in place of an argument: of its shape and sharding, without data."""
    if tensor.layout is not torch.strided:
        raise TypeError(f"export: expected dense tensors, got one of {tensor.layout}")
    meta = dense_meta(tuple(tensor.shape), tensor.dtype)
    current = constraints.effective_sharding(tensor) if type(tensor) is XlaTensor else None
    sharding = None if current is None else current.closed()
    result = wrap(
        meta, Storage(DeviceData(meta, sharding=sharding, is_abstract=True), meta, sharding)
    )
    return result.requires_grad_(tensor.requires_grad)  # type: ignore[return-value]


def _recorded(
    step: Any,
    args: Any,
    kwargs: Any,
    recording: Recording,
    position: tuple[int, int],
    stand_ins: Sequence[XlaTensor],
) -> RecordedCall:
    seed.set_state(position)
    arguments, num_programs = (
        [storage_of(tensor).value for tensor in stand_ins],
        len(recording.programs),
    )
    with seed.noted() as draws:
        result = step(*args, **kwargs)
    if len(recording.programs) != num_programs:
        raise ValueError(
            "export: the step syncs before it ends (spmd.sync(), torch_xla.sync() or a read of a "
            "value), so that it is several programs; one is exported: take the sync out of it"
        )
    tensors: list[tuple[str, torch.Tensor]] = []
    outputs = describe(result, "the result", tensors)
    for path, tensor in tensors:
        if not isinstance(tensor, XlaTensor):
            raise TypeError(
                f"export: {path} is on {tensor.device}; a program returns tensors of the device xla"
            )
    # A view is returned as a tensor of its own.
    returned: list[Any] = [t if view_of(t) is None else t.detach().clone() for _, t in tensors]  # type: ignore[arg-type]
    written = {storage: storage.data for storage in storages.pending() if storage.data is not None}
    outcomes = dict.fromkeys([*(storage_of(tensor) for tensor in returned), *written])
    roots = execute.roots_of(inlined_calls.inline([*outcomes])[0])
    if not roots and returned:  # arguments and state as they are: the program copies them
        returned = [tensor.detach().clone() for tensor in returned]
        outcomes = dict.fromkeys(storage_of(tensor) for tensor in returned)
        roots = execute.roots_of(outcomes)
    if not roots:
        raise ValueError(
            "export: the step computes nothing on the device; export the function that computes"
        )
    mesh, *more = schedule.meshes_met(
        list(outcomes), *walks.topological([value for value, _ in roots])
    ).values()
    if more or mesh.target is not None:
        raise ValueError(
            "export: expected one mesh, of devices that are here; the step is on several, or on "
            "others"
        )
    graph = executables.graph_of(roots, mesh)
    numbers = [node.numbers for node in graph.nodes]
    num_draws = sum(key == position[0] for key, _ in draws)
    syncs.sync()
    root_storages = [storage for _, storage in roots]
    return RecordedCall(
        graph, outputs, returned, root_storages, written, arguments, numbers, (*position, num_draws)
    )


def _state(
    first: RecordedCall, last: RecordedCall, names: state_names.StateNames, recording: Recording
) -> Iterator[StepOperand]:
    """The values besides the arguments that a call reads or overwrites, with the user's tensors
    behind them."""
    earlier = dict(zip(last.graph.inputs, first.graph.inputs, strict=True))
    overwritten, computed = (
        {value: storage for storage, value in last.state.items()},
        set(recording.results),
    )
    state = dict.fromkeys(
        value for value in (*last.graph.inputs, *overwritten) if value not in last.arguments
    )
    for index, value in enumerate(state):
        holder = value.holder() if value.holder is not None else None
        named = names.of(overwritten.get(value, holder))
        if named is None:
            _check_constant(value, earlier.get(value), is_computed=value in computed)
            named = state_names.Named(
                f"constant.{index}", "constant", wrap(value.meta, Storage(value, value.meta))
            )
        yield StepOperand(*named, value)


def _check_constant(value: DeviceData, earlier: DeviceData | None, *, is_computed: bool) -> None:
    """Raises ValueError for data behind no tensor of the user's that are not the same at each
    call."""
    if is_computed or value.is_abstract:
        raise ValueError(
            f"export: the step reads a value of {value.meta!r} that its first call makes (state "
            "that is not there yet, such as a momentum buffer, or that each call replaces by a "
            "new tensor); call the step once before the export, and write state in place"
        )
    earlier_host = None if earlier is None else earlier.host
    if value.host is not None and (
        earlier_host is None or value.host.tobytes() != earlier_host.tobytes()
    ):
        raise ValueError(
            f"export: the step makes data of {value.meta!r} on the host that differs from call to "
            "call; pass it as an argument"
        )


def _exported_step(
    inputs: dict[str, Description], operands: list[StepOperand], call: RecordedCall
) -> ExportedStep:
    index_of = {operand.value: index for index, operand in enumerate(operands)}
    overwrites = {
        root: index_of[call.state[storage]]
        for root, storage in enumerate(call.storages)
        if storage in call.state
    }
    tensors = {~index: operand.tensor for index, operand in enumerate(operands)}
    result_of = {
        storage_of(tensor): index
        for index, tensor in tensors.items()
        if isinstance(tensor, XlaTensor)
    }
    result_of |= {storage: root for root, storage in enumerate(call.storages)}
    if not result_of.keys() >= {storage_of(tensor) for tensor in call.returned}:
        raise ValueError(
            "export: the step returns data that it neither computes nor takes as an argument; "
            "leave it out of the result"
        )
    results = [result_of[storage_of(tensor)] for tensor in call.returned]
    return ExportedStep(call, inputs, operands, overwrites, results)


def _check_same(first: RecordedCall, last: RecordedCall) -> None:
    """Raises ValueError where two calls of one program return another structure, or have another
    number in it."""
    if first.outputs != last.outputs:
        raise ValueError(
            "export: the step returned another structure, or another number in it, at its next call"
        )
    for index, node in enumerate(last.graph.nodes):
        for number, later in zip(first.numbers_of(index), last.numbers_of(index), strict=True):
            if repr(number) != repr(later):
                raise ValueError(
                    f"export: a number of {user_lines.describe(node)} was {number!r} in one call "
                    f"and {later!r} in the next; a program has one: compute it from tensors, or "
                    "pass it as an argument (a learning rate as a tensor)"
                )
