"""The recording of a function of tensors as two ops, for its call and for its gradient.

Not here: their calls (`recorded_call`).
"""

import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from ..core import (
    DeviceData,
    Meta,
    Sharding,
    XlaTensor,
    grad_shardings,
    processes,
    resolve,
    seed,
    storage_of,
    tensor_meta,
    view_of,
)
from ..core.extend import (
    Bounded,
    Draw,
    Node,
    OpSpec,
    Region,
    Value,
    deferred,
    op_specs,
    reads,
    record_calls,
    regions,
    storages,
    store,
    views,
    walks,
)
from .capture import Capture, Outside
from .gradient import Tensors, read_in_backward, sharding_of
from .gradient_pool import GradientPool

Passed = Callable[[Any], Any] | None
_IS_STORED, _STORED = map(operator.attrgetter, ("is_stored", "tensor._storage.value"))


class NotOneOpError(NotImplementedError):
    """Raised for a function that cannot be one op, with the reason; it runs op by op."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One of the ops: its OpSpec, its scalar arguments as recorded, the places among them of each
    draw, and the values from outside that are its first operands."""

    op: OpSpec
    numbers: list[float | int]
    draws: list[tuple[int, int]]
    constants: "list[Outside]"
    number: int = field(default_factory=itertools.count().__next__)  # of no other part

    def operands(self) -> list[Value]:
        """Returns the values from outside."""
        if all(map(_IS_STORED, self.constants)):
            return [*map(_STORED, self.constants)]
        return [constant.value() for constant in self.constants]

    def called(self, numbers: Sequence[float | int]) -> Node:
        """The op recorded at the user's line, without operands."""
        return record_calls.record_here(
            self.op, (), numbers, sys._getframe(1), record_calls.graph_task()
        )

    def at(self, draws: dict[Draw, Draw], passed: Passed = None) -> Sequence[float | int]:
        """Returns the scalar arguments with other draws, and others in place of formulas."""
        numbers = list(self.numbers if passed is None else map(passed, self.numbers))
        for seed_index, count in self.draws:
            numbers[seed_index], numbers[count] = draws[
                int(numbers[seed_index]), int(numbers[count])
            ]
        return numbers


class RecordedOps:
    """A function of tensors on xla, recorded on stand-ins for them.

    function: takes the tensors and returns a pytree. name: the op's. tensors: the arguments of the
    first call; later ones have the same shapes, dtypes, shardings and flags (`signature`). Values
    from outside that the function reads are read again at each call. writes: it is a part of a
    step: it may write into tensors from outside, and has gradients of its gradients. uses: for
    each result, in order, the meta of the gradient that comes to it, None for none; None: all, as
    the results lie. new_uses: the results to which one comes in a later backward where they are
    others. has_second_gradient: a gradient of its gradient was taken. has_hooks: gradients of leaf
    tensors pass a `PlayedHook`.

    Raises NotOneOpError, NotImplementedError or `BodyError` where the function cannot be one op.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        tensors: Sequence[XlaTensor],
        writes: bool = False,
        uses: Sequence[Meta | None] | None = None,
        dropped: Sequence[int] = (),
    ):
        self.name, self._may_write, self._function, self._uses = name, writes, function, uses
        self._dropped = dropped
        self.new_uses: Sequence[bool] | None = None
        self.has_second_gradient = False
        self.num_waiting = 0  # calls since the last backward
        self._state = state = seed.get_state()
        try:
            with Capture(name, gathers=not writes) as capture:
                self._record(capture, function, tensors)
            self._recorded_draws: list[Draw] | None = capture.draws.draws
            self._generators, lost = capture.draws.generators, capture.lost
            fresh = {read for _, read, _ in capture.gathered_outside.values()}
            del capture  # it holds the stand-ins
            if writes and any(ref() is not None for ref in lost):
                raise NotOneOpError(
                    "a tensor that it makes and does not return is alive at its end"
                )
        except BaseException:
            seed.set_state(state)  # the draws of a recording that is given up are drawn again
            raise
        self._was_gathered = [
            (tensor, key, storage_of(tensor).reads.known[key] in fresh)
            for tensor, key in self._reads
        ]
        self._was_any_gathered = any(was for *_, was in self._was_gathered)
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
        self._pool: GradientPool | None = None
        self._reads_storages = writes and all(map(_IS_STORED, self.constants()))
        # Of a function without state, as one that clips, it would hold the state of others.
        has_state = bool(self.outer or self.constants())
        self._steps: Bounded[Any, Any] | None = Bounded(16) if has_state else None
        if writes:
            read_or_written = [*(kept.tensor for kept in self.constants()), *self.outer]
            deferred.watch([*map(storage_of, read_or_written)])

    def _may_be_deferred(self) -> bool:
        return self._reads_storages and deferred.is_on() and not processes.several()

    def forget_steps(self) -> None:
        """Drops the steps with its calls: they hold the storages of tensors, also of replaced
        ones."""
        if self._steps is not None:
            self._steps.clear()

    def is_gathered_otherwise(self) -> bool:
        """True if a call now would gather other values than the recording did."""
        if not (storages.READ or self._was_any_gathered):
            return False
        return any(
            was is not _is_fresh(storage_of(tensor).reads.known.get(key))
            for tensor, key, was in self._was_gathered
        )

    def constants(self) -> list[Outside]:
        """The values from outside that both ops read."""
        return [*self.forward.constants, *(self.backward.constants if self.backward else ())]

    def numbers(self) -> list[Any]:
        """The scalar arguments of both ops, formulas among them."""
        return [*self.forward.numbers, *(self.backward.numbers if self.backward else ())]

    def differences(self, later: "RecordedOps", passed: Callable[[Any], Any]) -> Iterator[str]:
        """The differences of a later recording in words. passed: the number that a call would have
        passed in place of a recorded one."""
        for old, new in ((self.forward, later.forward), (self.backward, later.backward)):
            if old is None or new is None or old.op is not new.op:
                if old is not new:
                    yield "it records other ops"
                continue
            drawn = set(itertools.chain.from_iterable(old.draws))
            for index, number in enumerate(map(passed, old.numbers)):
                if index not in drawn and float(number).hex() != float(new.numbers[index]).hex():
                    yield f"a number is {new.numbers[index]}, and was {number}"
        if [value for kind, value in self.sources if kind != "static"] != [
            value for kind, value in later.sources if kind != "static"
        ]:
            yield "it returns other tensors"

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
                is_data=(
                    self._may_write
                    and view_of(tensor) is None
                    and walks.is_data(storage_of(tensor).value)
                ),
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
        outputs = self._sort_results(capture, capture.run(function, *arguments), arguments)
        self._note_annotations(arguments, tensors)
        self._note_writes(capture, arguments, tensors)
        self.has_gradient_of, reached = capture.reached_by(outputs)
        saved = capture.saved()
        # results of which others are made
        self._inner = [
            i for i, x in enumerate(outputs) if capture.num_edges[x.grad_fn, x.output_nr]
        ]
        # Whether a result is still alive when its gradient arrives is the caller's choice.
        alive = {*self._inner}.difference(self._dropped)
        self.pinned = [
            i
            for i, x in enumerate(outputs)
            if self._may_write
            and i not in alive
            and grad_shardings.unpin(x)
            and i not in self._inner
        ]
        self.sums_gradients = any(
            count > 1 and node.name() == "torch::autograd::AccumulateGrad"
            for (node, _), count in capture.num_edges.items()
        )
        self.has_gradient = [i in self.has_gradient_of for i in range(len(outputs))]
        stand_in_index = {tensor: i for i, tensor in enumerate(stand_ins)}
        self.needs: list[Any] = [stand_in_index.get(tensor, tensor) for tensor in reached]
        # What is gathered behind the call, and behind its backward: later ops do not gather it.
        outer = set(map(storage_of, self.outer))  # a write makes their reads stale
        every = [x for x in capture.gathered() if self._may_write and storage_of(x[0]) not in outer]
        self._reads = [(tensor, key) for tensor, key, _ in every]
        self.gathered = [x for x in every if x[2] is None or not capture.is_outside(x[2])]
        forward_values = [x for *_, x in self.gathered if x is not None]
        middle = store.next_serial()
        come = self._uses or [*map(tensor_meta, outputs)]
        self.arriving_of = [i for i in self.has_gradient_of if come[i]]
        stood_in = [capture.stand_in(meta) for i in self.arriving_of if (meta := come[i])]
        arriving = [storage_of(tensor).value for tensor in stood_in]
        # the gradients that leaf tensors have before
        onto = {
            leaf: capture.stand_in(
                tensor_meta(leaf), sharding_of(leaf) if grad_shardings.is_pinned(leaf) else None
            )
            for leaf in (reached if self._may_write else ())
            if leaf.is_leaf and leaf not in stand_in_index
        }
        old_gradients = {leaf: storage_of(old).value for leaf, old in onto.items()}

        unmarked: dict[XlaTensor, Value] = {}
        place_of = {tensor: place for place, tensor in enumerate(reached)}
        # Of gradients that are views, by place: the view of what the op returns.
        self._views: dict[int, views.View] = {}

        def note_gradient(source: XlaTensor, gradient: XlaTensor | None) -> Any:
            if gradient is None:
                return None
            if view_of(source) is None:
                grad_shardings.shard_gradient(storage_of(source), gradient)
            value, view = _base(capture, gradient)
            if view is not None:
                self._views[place_of[source]] = view
            return value

        def at_leaf(leaf: XlaTensor, gradient: XlaTensor) -> None:
            if leaf in onto:
                unmarked[leaf] = reads.operand(gradient)
                onto[leaf].add_(gradient)
            if grad_shardings.is_pinned(leaf):
                grad_shardings.shard_gradient(storage_of(leaf), gradient)

        # The places of such leaf tensors, and of other inputs with a gradient.
        self._own = [place for place, tensor in enumerate(reached) if tensor in onto]
        self._others = [place for place, tensor in enumerate(reached) if tensor not in onto]
        if self._own:
            self.needs.append(grad_shardings.END)
        annotated = capture.annotated()  # those of tensors that backward is about to drop
        found = capture.grad(
            [outputs[i] for i in self.arriving_of],
            reached,
            stood_in,
            note_gradient if self._may_write else None,
            at_leaf,
        )
        self.reaches = [value is not None for value in found] or [False] * len(reached)
        self._reached = [place for place, is_reached in enumerate(self.reaches) if is_reached]
        gradients = [value for value in found if value is not None]
        unwritten = [value for i, value in enumerate(argument_values) if i not in self.written]
        # Those that backward reads are gathered again behind a sync, as those of an op are.
        read_again = {
            walks.value_name(value): (value, Outside(tensor, is_stored=False, read=key))
            for tensor, key, value in self.gathered
            if value is not None
        }
        at_hand = {walks.value_name(value) for value in (*unwritten, *arriving)} | read_again.keys()
        saved_values = [
            value
            for value in read_in_backward(capture, gradients, [*unwritten, *arriving], middle)
            if walks.value_name(value) not in at_hand
        ]
        written = [storage_of(arguments[i]).value for i in self.written]
        bases = [
            _base(capture, x) if self._may_write else (reads.operand(x), None) for x in outputs
        ]
        self.forward = self._part(
            capture,
            self.name,
            [
                *(value for value, _ in bases),
                *written,
                *self._outer_values,
                *saved_values,
                *forward_values,
            ],
            argument_values,
        )
        self._num_saved = len(saved_values)
        self._saved_shardings = [annotated.get(walks.value_name(value)) for value in saved_values]
        self.results = [_described(x, view) for x, (_, view) in zip(outputs, bases, strict=True)]
        output_of: dict[Any, int] = {}  # outputs may share memory
        self.shared = [output_of.setdefault(storage_of(x), i) for i, x in enumerate(outputs)]
        self.backward: Part | None = None
        self._leaves: list[XlaTensor] = []
        self.has_hooks = False
        if gradients:
            inputs = [*saved_values, *arriving, *argument_values, *forward_values]
            read = capture.read(gradients, inputs) - set(map(walks.value_name, saved_values))
            self.read = [
                i for i, value in enumerate(argument_values) if walks.value_name(value) in read
            ]
            gathers = [gather for name, gather in read_again.items() if name in read]
            self.read_again = [outside for _, outside in gathers]
            operands = [
                *saved_values,
                *(argument_values[i] for i in self.read),
                *arriving,
                *(value for value, _ in gathers),
            ]
            behind = capture.gathered() if self._may_write else []
            known = {walks.value_name(x) for x in (*forward_values, *operands)}
            self.gathered_behind = [
                (tensor, key, x)
                for tensor, key, x in behind
                if x is None or (not capture.is_outside(x) and walks.value_name(x) not in known)
            ]
            backward_values = [x for *_, x in self.gathered_behind if x is not None]
            part = partial(self._part, capture, f"{self.name}.backward")
            self.backward = part([*gradients, *backward_values], operands)
            pairs = [pair for pair in zip(reached, found, strict=True) if pair[1] is not None]
            self._leaves = [leaf for leaf, _ in pairs if leaf in onto]
            self._leaf_hooks = grad_shardings.LeafHooks(self._leaves)
            self.has_hooks = any(
                grad_shardings.played_hooks(leaf._backward_hooks) for leaf in self._leaves
            )
            # The results that are gradients of these, and of others, with their places.
            numbers = [*enumerate(self._reached)]
            self._given = [(i, place) for i, place in numbers if reached[place] in onto]
            self._returned = [(i, place) for i, place in numbers if reached[place] not in onto]
            # Gradients that go elsewhere have not their leaf's sharding; others are added.
            plain = [unmarked.get(leaf, x) for leaf, x in pairs]
            self._unmarked = part([*plain, *backward_values], operands)
            sums = [storage_of(onto[leaf]).value if leaf in onto else x for leaf, x in pairs]
            operands += [old_gradients[leaf] for leaf in self._leaves]
            self._adding = part([*sums, *backward_values], operands)
        # Those from outside alone: autograd has saved arguments for the call's own backward.
        from_outside = {id(kept.tensor): kept.tensor for kept in self.constants()}.values()
        self._saved = [x for x in from_outside if storage_of(x) in saved and not x.is_inference()]

    def _sort_results(self, capture: Capture, result: Any, arguments: Tensors) -> Tensors:
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
                is_shared = id(value) not in outputs and storage_of(value) in storages
                if is_shared and not (self._may_write and _are_whole(value, outputs.values())):
                    raise NotOneOpError(
                        "it returns a view of an argument, or two tensors that share memory"
                    )
                if self._may_write and capture.is_outer(value):
                    raise NotOneOpError("it returns a tensor from outside, or a view of one")
                # Data has one holder: each call's result would have the same.
                if type(storage_of(value).value) is DeviceData:
                    raise NotOneOpError("it returns data that no op makes")
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
        outer = capture.written()
        if outer and not self._may_write:
            raise NotOneOpError("it writes in place into a tensor that is not among its arguments")
        # Tensors, as a storage may have gone when its tensor has other data.
        tensors_of_outer = {storage_of(x): x for x in capture.seen()}
        self.outer = [tensors_of_outer[storage] for storage in outer]
        self._outer_values = [value for _, value in outer.values()]
        self.versions = capture.with_new_version()
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
    ) -> Part:
        """Returns one of the ops."""
        constants = capture.outside(roots, inputs)
        region = Region.of(roots, [*constants, *inputs])
        op = regions.called_op(name, region, [device_data.meta for device_data in region.inputs])
        return Part(
            op,
            regions.body_numbers(region),
            op_specs.draws_in(region.nodes),
            capture.sources(constants),
        )


def _is_fresh(view: Any) -> bool:
    return view is not None and view.is_read and view.is_fresh()


def _base(capture: Capture, tensor: XlaTensor) -> tuple[Value, views.View | None]:
    """The value of a result that is a view of all of a tensor made inside, and the view: the first
    op that uses the result reads it. Else the result's own value."""
    view, value = view_of(tensor), storage_of(tensor).value
    is_inside = not capture.is_outside(value) and value not in capture.arguments
    if view is None or not is_inside or value.meta.numel != view.meta.numel:
        return reads.operand(tensor), None
    return value, view.without_cache()


def _are_whole(result: XlaTensor, outputs: Iterable[XlaTensor]) -> bool:
    """True if a result and the outputs with which it shares memory, of which there are some, have
    all elements of it."""
    storage = storage_of(result)
    sharing = [output for output in outputs if storage_of(output) is storage]
    return bool(sharing) and all(x.numel() == storage.meta.numel for x in (result, *sharing))


def _described(
    tensor: XlaTensor, view: views.View | None
) -> tuple[Meta, Sharding | None, views.View | None]:
    """The meta and the sharding of what the op returns for a tensor, and the view of it."""
    if view is not None:
        return storage_of(tensor).meta, storage_of(tensor).sharding, view
    annotated = storage_of(tensor) if view_of(tensor) is None else view_of(tensor)
    return tensor_meta(tensor).layout, annotated.sharding, None


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
