"""A function that is recorded once and then called as one op of the lazy graph, with one op for its gradient.

Its ops are put back before a program is compiled (`passes.called_bodies`): only the recording is spared.
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
    options,
    seed,
    storage_of,
    tensor_meta,
    view_of,
    wrap,
)
from ..core.extend import SYNC_LOCK, Draw, OpSpec, Region, Value, reads, record_calls, recorded, regions, walks
from .capture import Capture
from .gradient import Backward, Tensors, record, refuse_second, sharding_of, with_gradient
from .gradient import tensors as tensors_of
from .saved import saved


class NotOneOpError(NotImplementedError):
    """Raised for a function that cannot be one op, with the reason; it runs op by op."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One op of the two: its OpSpec, its scalar arguments as recorded, and the places among them of each draw."""

    op: OpSpec
    numbers: tuple[float | int, ...]
    draws: tuple[tuple[int, int], ...]

    def at(self, draws: dict[Draw, Draw]) -> Sequence[float | int]:
        """Returns the scalar arguments with other draws."""
        if not self.draws:
            return self.numbers
        numbers = list(self.numbers)
        for at, count in self.draws:
            numbers[at], numbers[count] = draws[int(numbers[at]), int(numbers[count])]
        return numbers


class RecordedCall:
    """A function of tensors on xla, recorded on stand-ins for them.

    function: takes the tensors and returns a pytree. name: the op's. tensors: the arguments of the first call; later
    ones have the same shapes, dtypes, shardings and flags (`signature`). Values from outside that the function reads
    are read again at each call.

    Raises NotOneOpError, NotImplementedError or `BodyError` where the function cannot be one op.
    """

    def __init__(self, name: str, function: Callable[..., Any], tensors: Sequence[XlaTensor]):
        self.name = name
        state = seed.get_state()
        try:
            with SYNC_LOCK, LOCK, Capture(name) as capture:
                self._record(capture, function, tensors)
        except BaseException:
            seed.set_state(state)  # the draws of a recording that is given up are drawn again
            raise
        self._recorded_draws: list[Draw] | None = capture.draws.draws
        self._generators = capture.draws.generators
        known = set(self._recorded_draws)
        for part in (self.forward, *([self.backward] if self.backward else [])):
            if not {(part.numbers[at], part.numbers[count]) for at, count in part.draws} <= known:
                raise NotOneOpError("it draws random numbers apart from the stream (torch.random.fork_rng)")
        self._first_draws = tuple(self._recorded_draws)

    # --- recording ----------------------------------------------------------------------------------------------------

    def _record(self, capture: Capture, function: Callable[..., Any], tensors: Sequence[XlaTensor]) -> None:
        is_on = torch.is_grad_enabled()
        stand_ins = [
            capture.stand_in(tensor_meta(tensor), sharding_of(tensor), requires_grad=is_on and tensor.requires_grad)
            for tensor in tensors
        ]
        given = list(capture.given)
        # A tensor with a history may be written in place, a leaf tensor that requires a gradient may not.
        own = [
            capture.own(one) if one.requires_grad and not tensor.is_leaf else one
            for one, tensor in zip(stand_ins, tensors, strict=True)
        ]
        for one, tensor in zip(own, tensors, strict=True):
            storage, like = storage_of(one), storage_of(tensor)
            storage.is_state, storage.is_parameter = like.is_state, like.is_parameter
        result = capture.run(function, *own)
        self._sort_results(result, own)
        self._note_annotations(own, tensors)
        if capture.written():
            raise NotOneOpError("it writes in place into a tensor that is not among its arguments")
        self.written = [
            place
            for place, (one, before) in enumerate(zip(own, given, strict=True))
            if not capture.passes_on(storage_of(one).value, before)
        ]
        for place in self.written:
            if own[place].requires_grad:
                raise NotOneOpError("it writes in place into an argument that requires a gradient")
        if self.written and len({storage_of(tensor) for tensor in tensors}) < len(tensors):
            raise NotOneOpError("it writes in place into arguments that share memory")
        self._differentiate(capture, stand_ins, given)
        after = [storage_of(own[place]).value for place in self.written]
        roots = [*map(record_calls.operand, self._outputs), *after, *self._saved]
        constants = capture.outside(roots, given)
        self.constants = capture.tensors(constants)
        self.num_results = len(self._outputs)
        self.results = [
            (tensor_meta(tensor).layout, sharding_of(tensor) if view_of(tensor) is None else view_of(tensor).sharding)
            for tensor in self._outputs
        ]
        self.forward = _part(self.name, Region.of(roots, [*constants, *given]))
        self._make_backward(capture, given)
        del self._outputs, self._saved, self._gradients, self._arriving, self._arriving_of

    def _note_annotations(self, own: Tensors, tensors: Sequence[XlaTensor]) -> None:
        """Notes of each argument the annotation that the function gives to it, and whether its gradient follows."""
        self.annotated: list[tuple[int, Sharding | None, bool | None]] = []
        for index, (one, tensor) in enumerate(zip(own, tensors, strict=True)):
            after, follows = storage_of(one).sharding, one.__dict__.get("_pins_grad")
            if after is not sharding_of(tensor):
                self.annotated.append((index, after, None if follows is None else bool(follows)))

    def _sort_results(self, made: Any, own: Tensors) -> None:
        """Notes of each result whether it is an argument, a new tensor, or anything else; the new ones are outputs."""
        flat, self.tree = tree_flatten(made)
        place = {id(tensor): i for i, tensor in enumerate(own)}
        inputs, storages = {storage_of(tensor) for tensor in own}, set[Storage]()
        self._outputs: Tensors = []
        self.sources: list[tuple[str, Any]] = []
        seen: dict[int, int] = {}
        for value in flat:
            if not isinstance(value, torch.Tensor):
                self.sources.append(("static", value))
            elif type(value) is not XlaTensor:
                raise NotOneOpError(f"it returns a tensor on {value.device}")
            elif id(value) in place:
                self.sources.append(("argument", place[id(value)]))
            elif id(value) in seen:
                self.sources.append(("output", seen[id(value)]))
            elif storage_of(value) in inputs or storage_of(value) in storages:
                raise NotOneOpError("it returns a view of an argument, or two tensors that share memory")
            else:
                storages.add(storage_of(value))
                seen[id(value)] = len(self._outputs)
                self.sources.append(("output", len(self._outputs)))
                self._outputs.append(value)

    def _differentiate(self, capture: Capture, stand_ins: Tensors, given: Sequence[Value]) -> None:
        """Records the gradients of the arguments, and of tensors from outside, that results reach."""
        reached = {i: each for i, tensor in enumerate(self._outputs) if (each := capture.reached(tensor))}
        met = list(dict.fromkeys(tensor for each in reached.values() for tensor in each))
        place = {tensor: i for i, tensor in enumerate(stand_ins)}
        self.needs = [place.get(tensor, tensor) for tensor in met]
        self.has_gradient = [i in reached for i in range(len(self._outputs))]
        self._arriving_of = list(reached)
        self._saved: list[Value] = []
        self._arriving: list[Value] = []
        self._gradients: list[Value] = []
        if not reached:
            return
        middle = walks.next_serial()
        reads.next_generation()  # values gathered in forward are gathered again in backward
        arriving = [capture.stand_in(tensor_meta(self._outputs[i])) for i in reached]
        self._arriving = [storage_of(tensor).value for tensor in arriving]
        found = capture.grad([self._outputs[i] for i in reached], met, arriving)
        with torch.no_grad():
            for tensor, gradient in zip(met, found, strict=True):
                if gradient is None:
                    gradient = torch.zeros_like(tensor)
                if view_of(tensor) is None:
                    record_calls.shard_gradient(storage_of(tensor), gradient)
                self._gradients.append(record_calls.operand(gradient))
        kept = [value for place, value in enumerate(given) if place not in self.written]
        self._saved = saved(capture, self._gradients, [*kept, *self._arriving], middle)

    def _make_backward(self, capture: Capture, given: Sequence[Value]) -> None:
        self.backward: _Part | None = None
        if not self._gradients:
            return
        own = [*self._saved, *self._arriving]
        read = capture.read(self._gradients, [*own, *given]) - set(map(walks.value_name, self._saved))
        self.read = [place for place, value in enumerate(given) if walks.value_name(value) in read]
        before = [*self._saved, *(given[place] for place in self.read), *self._arriving]
        constants = capture.outside(self._gradients, before)
        self.kept_constants = capture.tensors(constants)
        self.arriving_of = self._arriving_of
        self.backward = _part(f"{self.name}.backward", Region.of(self._gradients, [*constants, *before]))

    # --- calls --------------------------------------------------------------------------------------------------------

    def __call__(self, tensors: Sequence[Any]) -> Any:
        """Records one call, for tensors like those of the first one."""
        record_calls.enter_thread()
        self._annotate(tensors)
        draws = self._draw()
        inputs = [tensors[need] if isinstance(need, int) else need for need in self.needs]

        def forward() -> tuple[Tensors, Sequence[torch.Tensor], Sequence[bool]]:
            with LOCK:
                operands = [record_calls.operand(tensor) for tensor in (*self.constants, *tensors)]
                values = record(self.forward.op, operands, self.forward.at(draws))
                result = [
                    wrap(meta, Storage(value, meta, sharding))
                    for value, (meta, sharding) in zip(values, self.results, strict=False)
                ]
                kept_from = self.num_results + len(self.written)
                for place, value in zip(self.written, values[self.num_results : kept_from], strict=True):
                    _write(tensors[place], value)
                saved = tensors_of(values[kept_from:])
            if self.backward is None:
                return result, [], self.has_gradient
            read = [tensors[place] for place in self.read]
            return result, [*self.kept_constants, *saved, *read], self.has_gradient

        outputs = with_gradient(inputs, forward, self._gradient(draws, inputs))
        recorded()
        for place in self.written:
            if not tensors[place].is_inference():  # those have no version
                torch.autograd.graph.increment_version(tensors[place])
        flat = [
            tensors[value] if kind == "argument" else outputs[value] if kind == "output" else value
            for kind, value in self.sources
        ]
        return tree_unflatten(flat, self.tree)

    def _annotate(self, tensors: Sequence[XlaTensor]) -> None:
        for place, sharding, follows in self.annotated:
            if sharding is None:
                annotations.clear_annotation(tensors[place])
                continue
            annotations.annotate(tensors[place], sharding)
            if follows is not None:
                (grad_shardings.follow if follows else grad_shardings.leave)(tensors[place])

    def _draw(self) -> dict[Draw, Draw]:
        """Returns this call's draws by those of the recording, which are the first call's."""
        if self._recorded_draws is not None:
            own, self._recorded_draws = self._recorded_draws, None
        else:
            own = [seed.next_draw(generator) for generator in self._generators]
        return dict(zip(self._first_draws, own, strict=True))

    def _gradient(self, draws: dict[Draw, Draw], inputs: Sequence[XlaTensor]) -> Backward | None:
        part = self.backward
        if part is None:
            return None
        shardings = [sharding_of(tensor) if tensor.is_leaf else None for tensor in inputs]

        def backward(kept: Sequence[Any], arriving: Sequence[Any]) -> Tensors:
            refuse_second(self.name)
            with LOCK:
                operands = [
                    record_calls.operand(tensor) for tensor in (*kept, *(arriving[i] for i in self.arriving_of))
                ]
                values = record(part.op, operands, part.at(draws))
            result = [
                wrap(value.meta, Storage(value, value.meta, sharding))
                for value, sharding in zip(values, shardings, strict=True)
            ]
            recorded()
            return result

        return backward


def _part(name: str, region: Region) -> _Part:
    op = regions.called_op(name, region, [device_data.meta for device_data in region.inputs])
    numbers = tuple(number for node in region.nodes for number in node.numbers)
    return _Part(op, numbers, tuple(regions.draws_in(region.nodes)))


def _write(tensor: XlaTensor, value: Value) -> None:
    if view_of(tensor) is None:
        storage_of(tensor).write(value)
    else:
        record_calls.write(tensor, value)


def signature(tensor: XlaTensor) -> tuple[Any, ...]:
    """Returns all of an argument that a recording depends on."""
    storage = storage_of(tensor)
    return tensor_meta(tensor).layout, sharding_of(tensor), tensor.requires_grad, tensor.is_leaf, storage.is_parameter


def settings() -> tuple[Any, ...]:
    """Returns the settings of torch that decide what a function records."""
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("xla"),
        torch.get_autocast_dtype("xla"), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
        options.matmul_precision(),
    )  # fmt: skip
