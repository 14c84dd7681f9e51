"""A function that is recorded once and then called as one op of the lazy graph, with one op for its
gradient.

Its ops are put back before a program is compiled (`passes.called_bodies`): only the recording is
spared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..core import (
    LOCK,
    Sharding,
    Storage,
    XlaTensor,
    annotations,
    grad_shardings,
    resolve,
    seed,
    storage_of,
    tensor_meta,
    threads,
    view_of,
    wrap,
)
from ..core.extend import (
    Draw,
    OpSpec,
    Region,
    Value,
    op_specs,
    op_watch,
    reads,
    regions,
    store,
    views,
    walks,
)
from .capture import Capture
from .gradient import Backward, Tensors, record, saved, sharding_of, with_gradient
from .gradient import tensors as tensors_of


class NotOneOpError(NotImplementedError):
    """Raised for a function that cannot be one op, with the reason; it runs op by op."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One op of the two: its OpSpec, its scalar arguments as recorded, and the places among them of
    each draw."""

    op: OpSpec
    numbers: list[float | int]
    draws: list[tuple[int, int]]

    def at(self, draws: dict[Draw, Draw]) -> Sequence[float | int]:
        """Returns the scalar arguments with other draws."""
        numbers = list(self.numbers)
        for seed_index, count in self.draws:
            numbers[seed_index], numbers[count] = draws[
                int(numbers[seed_index]), int(numbers[count])
            ]
        return numbers


class RecordedFunction:
    """A function of tensors on xla, recorded on stand-ins for them.

    function: takes the tensors and returns a pytree. name: the op's. tensors: the arguments of the
    first call; later ones have the same shapes, dtypes, shardings and flags (`signature`). Values
    from outside that the function reads are read again at each call.

    Raises NotOneOpError, NotImplementedError or `BodyError` where the function cannot be one op.
    """

    def __init__(self, name: str, function: Callable[..., Any], tensors: Sequence[XlaTensor]):
        self.name = name
        state = seed.get_state()
        try:
            with Capture(name) as capture:
                self._record(capture, function, tensors)
        except BaseException:
            seed.set_state(state)  # the draws of a recording that is given up are drawn again
            raise
        self._recorded_draws: list[Draw] | None = capture.draws.draws
        self._generators = capture.draws.generators
        drawn = set(self._recorded_draws)
        for part in (self.forward, *([self.backward] if self.backward else [])):
            if (
                not {
                    (part.numbers[seed_index], part.numbers[count])
                    for seed_index, count in part.draws
                }
                <= drawn
            ):
                raise NotOneOpError(
                    "it draws random numbers apart from the stream (torch.random.fork_rng)"
                )
        self._first_draws = tuple(self._recorded_draws)

    # --- recording --------------------------------------------------------------------------------

    def _record(
        self, capture: Capture, function: Callable[..., Any], tensors: Sequence[XlaTensor]
    ) -> None:
        is_on = torch.is_grad_enabled()
        stand_ins = [
            capture.stand_in(
                tensor_meta(tensor),
                sharding_of(tensor),
                requires_grad=is_on and tensor.requires_grad,
            )
            for tensor in tensors
        ]
        argument_values = list(capture.arguments)
        # A tensor with a history may be written in place, a leaf tensor that requires a gradient
        # may not.
        arguments = [
            capture.own(stand_in) if stand_in.requires_grad and not tensor.is_leaf else stand_in
            for stand_in, tensor in zip(stand_ins, tensors, strict=True)
        ]
        for argument, tensor in zip(arguments, tensors, strict=True):
            storage, like = storage_of(argument), storage_of(tensor)
            storage.is_state, storage.is_parameter = like.is_state, like.is_parameter
        outputs = self._sort_results(capture.run(function, *arguments), arguments)
        self._note_annotations(arguments, tensors)
        self._note_writes(capture, arguments, tensors)
        self.has_gradient_of, reached = capture.reached_by(outputs)
        self.has_gradient = [i in self.has_gradient_of for i in range(len(outputs))]
        stand_in_index = {tensor: i for i, tensor in enumerate(stand_ins)}
        self.needs = [stand_in_index.get(tensor, tensor) for tensor in reached]
        middle = store.next_serial()
        stood_in = [capture.stand_in(tensor_meta(outputs[i])) for i in self.has_gradient_of]
        arriving = [storage_of(tensor).value for tensor in stood_in]
        gradients = capture.grad([outputs[i] for i in self.has_gradient_of], reached, stood_in)
        unwritten = [value for i, value in enumerate(argument_values) if i not in self.written]
        saved_values = saved(capture, gradients, [*unwritten, *arriving], middle)
        written = [storage_of(arguments[i]).value for i in self.written]
        self.forward, self.constants = self._part(
            capture,
            self.name,
            [*map(reads.operand, outputs), *written, *saved_values],
            argument_values,
        )
        self.results = [
            (
                tensor_meta(tensor).layout,
                sharding_of(tensor) if view_of(tensor) is None else view_of(tensor).sharding,
            )
            for tensor in outputs
        ]
        self.backward: _Part | None = None
        if gradients:
            read = capture.read(gradients, [*saved_values, *arriving, *argument_values]) - set(
                map(walks.value_name, saved_values)
            )
            self.read = [
                i for i, value in enumerate(argument_values) if walks.value_name(value) in read
            ]
            operands = [*saved_values, *(argument_values[i] for i in self.read), *arriving]
            self.backward, self.kept_constants = self._part(
                capture, f"{self.name}.backward", gradients, operands
            )

    def _sort_results(self, result: Any, arguments: Tensors) -> Tensors:
        """Notes of each result whether it is an argument, a new tensor, or anything else; returns
        the new ones."""
        flat, self.tree = tree_flatten(result)
        argument_index = {id(tensor): i for i, tensor in enumerate(arguments)}
        storages = {storage_of(tensor) for tensor in arguments}
        outputs: dict[int, XlaTensor] = {}
        self.sources: list[tuple[str, Any]] = []
        for value in flat:
            if not isinstance(value, torch.Tensor):
                self.sources.append(("static", value))
            elif not isinstance(value, XlaTensor):
                raise NotOneOpError(f"it returns a tensor on {value.device}")
            elif id(value) in argument_index:
                self.sources.append(("argument", argument_index[id(value)]))
            else:
                if id(value) not in outputs and storage_of(value) in storages:
                    raise NotOneOpError(
                        "it returns a view of an argument, or two tensors that share memory"
                    )
                storages.add(storage_of(value))
                outputs.setdefault(id(value), value)
                self.sources.append(("output", list(outputs).index(id(value))))
        return list(outputs.values())

    def _note_annotations(self, arguments: Tensors, tensors: Sequence[XlaTensor]) -> None:
        """Notes of each argument the annotation that the function gives to it, and whether its
        gradient follows."""
        self.annotated: list[tuple[int, Sharding | None, bool | None]] = []
        for index, (argument, tensor) in enumerate(zip(arguments, tensors, strict=True)):
            after, follows = storage_of(argument).sharding, argument.__dict__.get("_pins_grad")
            if after is not sharding_of(tensor):
                self.annotated.append((index, after, None if follows is None else bool(follows)))

    def _note_writes(
        self, capture: Capture, arguments: Tensors, tensors: Sequence[XlaTensor]
    ) -> None:
        """Notes the arguments that the function writes in place."""
        if capture.written():
            raise NotOneOpError("it writes in place into a tensor that is not among its arguments")
        self.written = [
            i
            for i, (argument, value) in enumerate(zip(arguments, capture.arguments, strict=True))
            if not capture.passes_on(storage_of(argument).value, value)
        ]
        if any(arguments[i].requires_grad for i in self.written):
            raise NotOneOpError("it writes in place into an argument that requires a gradient")
        if self.written and len({storage_of(tensor) for tensor in tensors}) < len(tensors):
            raise NotOneOpError("it writes in place into arguments that share memory")

    def _part(
        self, capture: Capture, name: str, roots: Sequence[Value], inputs: Sequence[Value]
    ) -> tuple[_Part, Tensors]:
        """Returns one of the ops, and the tensors from outside that are its first operands."""
        constants = capture.outside(roots, inputs)
        region = Region.of(roots, [*constants, *inputs])
        op = regions.called_op(name, region, [device_data.meta for device_data in region.inputs])
        return _Part(
            op, regions.body_numbers(region), op_specs.draws_in(region.nodes)
        ), capture.tensors(constants)

    # --- calls ------------------------------------------------------------------------------------

    def __call__(self, tensors: Sequence[XlaTensor]) -> Any:
        """Records one call, for tensors like those of the first one."""
        threads.enter_thread()
        self._annotate(tensors)
        draws = self._draw()
        inputs = [tensors[need] if isinstance(need, int) else need for need in self.needs]

        def forward() -> tuple[Tensors, Sequence[torch.Tensor], Sequence[bool]]:
            with LOCK:
                operands = [reads.operand(tensor) for tensor in (*self.constants, *tensors)]
                values = record(self.forward.op, operands, self.forward.at(draws))
                result = [
                    wrap(meta, Storage(value, meta, sharding))
                    for value, (meta, sharding) in zip(values, self.results, strict=False)
                ]
                kept_from = len(result) + len(self.written)
                for i, value in zip(self.written, values[len(result) : kept_from], strict=True):
                    views.write(tensors[i], value)
                saved_tensors = tensors_of(values[kept_from:])
            if self.backward is not None:
                saved_tensors = [
                    *self.kept_constants,
                    *saved_tensors,
                    *(tensors[i] for i in self.read),
                ]
            return result, saved_tensors, self.has_gradient

        outputs = with_gradient(self.name, inputs, forward, self._gradient(draws, inputs))
        op_watch.note_own_op()
        for i in self.written:
            if not tensors[i].is_inference():  # those have no version
                torch.autograd.graph.increment_version(tensors[i])
        flat = [
            tensors[value] if kind == "argument" else outputs[value] if kind == "output" else value
            for kind, value in self.sources
        ]
        return tree_unflatten(flat, self.tree)

    def _annotate(self, tensors: Sequence[XlaTensor]) -> None:
        for i, sharding, follows in self.annotated:
            if sharding is None:
                annotations.clear_annotation(tensors[i])
                continue
            annotations.annotate(tensors[i], sharding)
            if follows is not None:
                (grad_shardings.follow if follows else grad_shardings.leave)(tensors[i])

    def _draw(self) -> dict[Draw, Draw]:
        """Returns this call's draws by those of the recording, which are the first call's."""
        draws, self._recorded_draws = self._recorded_draws, None
        if draws is None:
            draws = [seed.next_draw(generator) for generator in self._generators]
        return dict(zip(self._first_draws, draws, strict=True))

    def _gradient(self, draws: dict[Draw, Draw], inputs: Sequence[XlaTensor]) -> Backward | None:
        part = self.backward
        if part is None:
            return None
        shardings = [sharding_of(tensor) if tensor.is_leaf else None for tensor in inputs]

        def backward(saved_tensors: Sequence[Any], arriving: Sequence[Any]) -> Tensors:
            tensors = [*saved_tensors, *(arriving[i] for i in self.has_gradient_of)]
            values = record(part.op, list(map(reads.operand, tensors)), part.at(draws))
            return tensors_of(values, shardings)

        return backward


_TENSOR = object()  # in place of a tensor among the arguments


def of_tensors(function: Callable[[list[Any]], Any], values: Sequence[Any]) -> Callable[..., Any]:
    """Returns a function of a list of values as one of what takes the places of the tensors on xla
    among them; it holds the other values."""
    static = [_TENSOR if isinstance(value, XlaTensor) else value for value in values]

    def filled(*operands: Any) -> Any:
        queue = iter(operands)
        return function([next(queue) if value is _TENSOR else value for value in static])

    return filled


def signature(tensor: XlaTensor) -> tuple[Any, ...]:
    """Returns all of an argument that a recording depends on."""
    storage = storage_of(tensor)
    return (
        tensor_meta(tensor).layout,
        sharding_of(tensor),
        tensor.requires_grad,
        tensor.is_leaf,
        storage.is_parameter,
    )


def settings() -> tuple[Any, ...]:
    """Returns the settings of torch that decide what a function records."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("xla"),
        torch.get_autocast_dtype("xla"),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        resolve.matmul_precision(),
    )
