"""A segment: a function of tensors that is recorded once, and then is one op of the graph for as
long as its guards hold."""

import contextlib
import operator
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ...core import (
    Meta,
    Storage,
    XlaTensor,
    grad_shardings,
    messages,
    storage_of,
    syncs,
    tensor_meta,
)
from ...core.extend import Bounded, Change, Interned, deferred, walks
from ...loops.gradient_pool import Late, late
from ...loops.recorded_call import RecordedFunction
from ...loops.recorded_ops import NotOneOpError, of_tensors
from ..replay.argument_objects import ObjectParts
from ..replay.compiled_function import (
    PLAIN,
    WRITES,
    CallKind,
    CompiledFunction,
    Identity,
    aliases,
    has_gone,
    placed,
    replicated_is_none,
)
from ..replay.guards import FormulaNumbers, Guards, in_cache
from ..replay.observed_call import ObservedCall, ReplayError, Seen
from ..replay.recipe import Recipe
from ..replay.replay import REPLACED, Known
from .object_results import opened

# One op adds the gradients of its own call, before those of another one come.
_SUMS = "it is called again before a backward, and uses a weight twice: sums would round otherwise"
_SECOND = "a gradient of its gradient is taken"
_STORAGE, _VIEW, _VALUE, _SHARDING, _LAYOUT, _STRIDES, _REQUIRES_GRAD = map(
    operator.attrgetter,
    ("_storage", "_view", "value", "sharding", "_meta.layout", "_meta.strides", "requires_grad"),
)
_GRADIENT = {"grad", "_grad"}
_RESULTS = frozenset({walks.TupleElement})
_MOST_MISSES = 16  # recordings without a replay
_MOST_RECORDED = 128  # calls, of which fewer are replayed
_MOST_OBJECTS = 16  # kinds of calls by an object among their arguments
_MOST_STATES = 4  # that calls of one kind take turns in, as of training and of evaluation
_INNER = "a gradient comes to a result of which others are made, for itself"
_USES = "gradients come to other results of it"
_PASSES = "gradients come to its results in several backward passes"
_OBJECTS = "an object among its arguments is another one at each call"


class _KnownTensors(Known):
    """The facts of the tensors of a segment. It holds no storage: one that has gone would be a
    result of the step."""

    def __init__(self, recipe: Recipe, call: ObservedCall):
        super().__init__(recipe, call)
        deferred.watch(self._storages())

    def _storages(self) -> Sequence[Storage]:
        return [*map(_STORAGE, in_cache(self._tensors))]


class _RanAsPythonError(Exception):
    """Ends a recording whose call was made as Python; result: what it returned."""

    def __init__(self, result: Any):
        self.result = result


class _Facts:
    """What tensors of calls of one kind have in common; equal ones are one object, whose hash
    costs nothing."""


class _NumbersNow(FormulaNumbers):
    """The scalar arguments of the op that formulas give."""

    def vectors(self, values: Sequence[float]) -> Sequence[float]:
        """The results of the formulas."""
        return values

    def now_passed(self, values: Sequence[float], number: Any) -> Any:
        """The number that takes the place of a recorded one."""
        new = self.passed(number, values)
        return number if new is None else new


def _next(tensor: torch.Tensor) -> Sequence[Any]:
    return () if tensor.grad_fn is None else tensor.grad_fn.next_functions


def _without_dynamo() -> contextlib.AbstractContextManager[Any]:
    """Compiled functions run as they were written: the mode of a recording is no part of what
    Dynamo's graphs are guarded by."""
    is_imported = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if is_imported else contextlib.nullcontext()


class _Uses:
    """The results of a call to which gradients come from outside of it, as the next backward pass
    shows. It holds no node of autograd's.

    has_second_gradient: a gradient of its gradient is taken. has_inner_gradient: a gradient comes
    to a result of which others are made, for itself. has_passes: gradients come to some results in
    one backward pass, and to others in another. dropped: the places, among the new results, of
    such results that had gone when their gradient came, so that it got no sharding.
    """

    def __init__(self, result: Any, flat: Sequence[Any], first: int):
        self._range = range(first, torch._C._autograd._get_sequence_nr())
        arguments = {id(item) for item in flat}
        leaves = [leaf for leaf in tree_leaves(result) if type(leaf) is XlaTensor]
        new = {id(leaf): leaf for leaf in leaves if id(leaf) not in arguments}
        self._edges = [
            None if leaf.grad_fn is None else (leaf.grad_fn._sequence_nr(), leaf.output_nr)
            for leaf in new.values()
        ]
        self._metas = [*map(tensor_meta, new.values())]  # of gradients
        inside = self._walk([x for leaf in new.values() for x in _next(leaf)], goes_on=True)
        self._inner = {
            place: weakref.ref(leaf)
            for place, (leaf, edge) in enumerate(zip(new.values(), self._edges, strict=True))
            if edge in inside
        }
        for place, leaf in enumerate(new.values()):
            if leaf.grad_fn is not None and place not in self._inner:
                leaf.grad_fn.register_prehook(partial(self._note, place, leaf.output_nr))
        self.dropped: list[int] = []
        self._hooks = {grad_shardings.PIN}  # of the call itself, and so in its recording
        for place, ref in self._inner.items():
            hooks: Any = new[id(ref())]._backward_hooks or {}
            self._hooks |= hooks.keys()
            if grad_shardings.PIN in hooks:
                hooks[grad_shardings.PIN] = partial(self._arrive, place, hooks[grad_shardings.PIN])
        self._reached: set[tuple[int, int]] = set()
        self.has_second_gradient = self.has_inner_gradient = self.has_passes = False
        grad_shardings.BEFORE.append(self._look)

    def _look(
        self, roots: Sequence[torch.Tensor], creates_graph: bool, inputs: Sequence[Any]
    ) -> None:
        for result in [x for ref in self._inner.values() if (x := ref()) is not None]:
            hooks = {*(result._backward_hooks or ())} - self._hooks
            self.has_inner_gradient |= bool(hooks) or result.retains_grad
            self.has_inner_gradient |= any(result is x for x in inputs)
        reached = self._walk([(root.grad_fn, root.output_nr) for root in roots], goes_on=False)
        of_results = reached.intersection(self._edges)
        self.has_passes |= bool(self._reached and of_results - self._reached)
        self._reached |= reached
        self.has_second_gradient |= creates_graph and bool(reached)

    def _walk(self, stack: list[Any], *, goes_on: bool) -> set[tuple[int, int]]:
        """The edges of the call that gradients reach from these. goes_on: all behind them, too."""
        reached: set[tuple[int, int]] = set()
        passed: set[Any] = set()
        while stack:
            node, number = stack.pop()
            if node is None or (node, number) in passed:
                continue
            passed.add((node, number))
            is_inside = node._sequence_nr() in self._range
            if is_inside:
                reached.add((node._sequence_nr(), number))
            if goes_on is is_inside:
                stack += node.next_functions
        return reached

    def _note(self, place: int, number: int, arriving: Sequence[Any]) -> None:
        if type(arriving[number]) is XlaTensor:
            self._metas[place] = tensor_meta(arriving[number])

    def _arrive(self, place: int, pin: Any, gradient: torch.Tensor) -> None:
        self.dropped += [place] * (pin.args[0]() is None)
        pin(gradient)

    def end(self) -> None:
        """Looks at no other backward pass."""
        if self._look in grad_shardings.BEFORE:
            grad_shardings.BEFORE.remove(self._look)

    def of_results(self) -> list[Meta | None] | None:
        """For each new tensor of the result, in order, the meta of the gradient that comes to it,
        None for none; None where no backward pass has come."""
        pairs = zip(self._metas, self._edges, strict=True)
        return (
            [meta if x in self._reached else None for meta, x in pairs] if self._reached else None
        )


class SegmentReplay:
    """The op of a recorded call, ready to be recorded for the state as it is.

    Raises ReplayError for a call that this could not repeat.
    """

    writes = ()

    def __init__(self, call: ObservedCall, recipe: Recipe, function: RecordedFunction):
        self.recipe, self.function = recipe, function
        # What it reads and writes: storages, and of one that the call made its value on the host.
        self._outside = [
            *((_source_of(call, storage_of(x.tensor)), *x[1:]) for x in function.constants()),
            *((storage_of(x).ref,) for x in function.outer),
        ]
        self.numbers = _NumbersNow(call, function.numbers())
        self._known = _KnownTensors(self.recipe, call)

    def ready(self, flat: Sequence[Any]) -> str:
        """The reason why the state is another one, or ""."""
        for index, tensor in self.recipe.same:
            if flat[index] is not tensor:
                return f"argument {index} was a parameter, or other state, and is another tensor"
        is_other, why = self.function.new_uses is not None, self._known.check()
        if why == REPLACED:
            self.function.forget_steps()
        return (
            self.ended()
            or _USES * is_other
            or why
            or "other weights are gathered" * self.function.is_gathered_otherwise()
        )

    def ended(self) -> str:
        """The reason why no call is replayed any more, or ""."""
        function = self.function
        is_sum = (function.sums_gradients or function.has_hooks) and function.num_waiting > 0
        return _SUMS * is_sum or _SECOND * function.has_second_gradient

    def run(self, flat: Sequence[Any], values: Sequence[float], found: Late | None) -> Any:
        """Records the op; returns the call's result. found: of the tensors among its arguments."""
        passed = partial(self.numbers.now_passed, values)
        result = self.function(_tensors(flat), passed, found)
        self.numbers.counters.advance()
        return result

    def differences(self, later: "SegmentReplay", passed: Callable[[Any], Any]) -> Iterator[str]:
        """The differences of a later call in words (see `Rows.differences`)."""
        yield from self.function.differences(later.function, passed)
        pairs = [*zip(self._outside, later._outside, strict=False)]
        if len(self._outside) != len(later._outside) or not all(
            old[1:] == new[1:] and _are_equal(old[0], new[0]) for old, new in pairs
        ):
            yield "it reads or writes other tensors"


class SegmentFunction(CompiledFunction[..., Any]):
    """A part of a step, as `spmd.compile` replays a whole one; no program runs at its end.

    The second call of a kind is observed as it runs: one with effects is not made twice. The third
    one is recorded, later ones are the recording. of: the object whose state it reads, which it
    does not hold: that dies with its last reference.
    """

    _kind_name, _refused_words = "segment", "is not replayed"
    _keeps_recordings = True  # by its ops equal steps are known

    def __init__(self, of: Any, function: Callable[..., Any]):
        super().__init__(function, (), {})
        self._name, self._of = getattr(of, "__name__", type(of).__name__), weakref.ref(of)
        self._known_keys: Bounded[int, bool] = Bounded(4096)
        self._num_of_objects = 0  # kinds of calls by an object among their arguments
        # of tensors that deferred calls give
        self._facts_of_late: Bounded[Any, Any] = Bounded(16)
        self._known_facts: Interned[Any, _Facts] = Interned(64)
        self._found: Late | None = None  # those of a call that is about to run

    def _roots(self) -> list[tuple[str, Any]]:
        return [(self._name, self._of())]

    def _let_go(self, call: ObservedCall) -> ObservedCall:
        """The call, without the object in what guards compare."""
        held = [x for x in call.after.snapshots if x.container is not self._of()]
        call.after.snapshots = held
        return call

    def _keys_of(self, flat: Sequence[Any], apart: Mapping[int, ObjectParts]) -> Iterable[Any]:
        tensors = _tensors(flat)
        others = [
            (i, super(SegmentFunction, self)._key_of(item))
            for i, item in enumerate(flat)
            if type(item) is not XlaTensor
        ]
        found = late(tensors)
        rest = [x for x in found.others(tensors) if x is not None]
        self._found = None if len(rest) == len(tensors) else found
        if self._found is None:
            return *others, self._facts_of(tensors)
        # Gradients of deferred calls are as they were after the same ones.
        key = found.givers, found.places, self._facts_of(rest)
        known = self._facts_of_late.get(key)
        if known is None:
            deferred.finish()
            known = self._facts_of_late.keep(key, self._facts_of(tensors))
        return *others, known

    def _facts_of(self, tensors: Sequence[XlaTensor]) -> _Facts:
        return self._known_facts.of(self._compared(tensors), _Facts)

    def _compared(self, tensors: Sequence[XlaTensor]) -> tuple[Any, ...]:
        storages = [*map(_STORAGE, tensors)]
        values = [*map(_VALUE, storages)]
        if _RESULTS.issuperset(map(type, values)):  # of one op, as gradients are
            is_data = (False,) * len(tensors)
            places = map(replicated_is_none, map(_SHARDING, storages))
        else:
            is_data = tuple(
                view is None and walks.is_data(value)
                for view, value in zip(map(_VIEW, tensors), values, strict=True)
            )
            places = map(placed, storages)
        with torch._C.DisableTorchFunctionSubclass():
            requires_grad = tuple(map(_REQUIRES_GRAD, tensors))
        return (
            aliases(tensors) if len(tensors) > len({*storages}) else (),
            # Where a view begins does not matter: its value is recorded in front of the call.
            tuple(map(_LAYOUT, tensors)),
            tuple(map(_STRIDES, tensors)),
            tuple(places),
            requires_grad,
            is_data,
        )

    def _repeats(self, key: Any) -> bool:
        if self._known_keys.get(hash(key)) is None:  # a key may hold text of any length
            self._known_keys.keep(hash(key), True)
            return False
        self._num_of_objects += any(type(x) is tuple and type(x[-1]) is Identity for x in key[1:-1])
        if self._num_of_objects > _MOST_OBJECTS:
            self.pass_by(_OBJECTS)
        return self._num_of_objects <= _MOST_OBJECTS

    def _is_recordable(self, apart: Mapping[int, ObjectParts]) -> bool:
        if apart:
            self.pass_by("an object among its arguments holds tensors; pass these")
        return not apart

    def _unready(self) -> str:
        return ""

    def _run(self, replay: Any, flat: Sequence[Any], vectors: Any) -> Any:
        found, self._found = self._found, None
        return replay.run(flat, vectors, found)

    def _ran(self, replay: Any, watch: syncs.Watch) -> None:
        """Nothing has run."""

    def _end_step(self, *, runs: bool) -> None:
        """The step goes on."""

    def _recorded(self, kind: CallKind, *arguments: Any) -> Any:
        self._found = None
        try:
            return super()._recorded(kind, *arguments)
        except _RanAsPythonError as error:
            return error.result

    def _observed(
        self,
        call: Any,
        flat: Sequence[Any],
        roots: Sequence[tuple[str, Any]],
        kind: CallKind,
        follow: Collection[tuple[int, Any]],
        apart: Mapping[int, ObjectParts],
        scope: Seen | None,
    ) -> ObservedCall:
        functions: list[RecordedFunction] = []
        ended = next(filter(None, (entry.replay.ended() for entry in kind.entries)), "")
        for _, uses in kind.observed:
            uses.end()
            ended = ended or _SECOND * uses.has_second_gradient or _INNER * uses.has_inner_gradient
            ended = ended or _PASSES * uses.has_passes
        kind.num_misses *= kind.num_replayed == self.num_replayed
        kind.num_misses, kind.num_replayed = kind.num_misses + 1, self.num_replayed
        if kind.num_misses > _MOST_MISSES:
            ended = ended or f"no recording is replayed: {self.causes[-1]}"
        if self.num_recorded > max(_MOST_RECORDED, self.num_replayed):
            ended = ended or "its arguments are of another kind at most calls"
            self._ended = [ended] * self.tries  # of kinds to come
        if ended:
            self._stop(kind, ended)
            raise _RanAsPythonError(call(flat))
        for entry in [entry for entry in kind.entries if entry.replay.function.new_uses]:
            kind.observed.clear()
            kind.entries.remove(entry)
        whys = [guards.check() for guards, _ in kind.observed]
        seen = next(
            (uses for why, (_, uses) in zip(whys, kind.observed, strict=True) if not why), None
        )
        kind.observed = [
            one for one, why in zip(kind.observed, whys, strict=True) if not has_gone(why)
        ]
        if scope is None and seen is None:
            for why in filter(None, whys[:1]):
                if isinstance(why, Change):
                    self._follow(kind, why)
                self._refuse(kind, str(why), count=False)  # state is made in the first steps
            first = torch._C._autograd._get_sequence_nr()
            with _without_dynamo():
                recorded = ObservedCall(call, flat, roots, kind.follow, apart, is_whole=False)
            result, recorded.result = recorded.result, None
            uses = _Uses(opened(result), flat, first)
            try:
                if call.has_written:
                    raise ReplayError(WRITES)
                recipe = self._recipe_of(self._let_go(recorded))
                guards = Guards(recorded.after, recipe.volatile)
                kind.observed = [(guards, uses), *kind.observed][:_MOST_STATES]
            except ReplayError as error:
                uses.end()
                kind.follow |= recorded.to_follow
                self._refuse(kind, str(error), count=not recorded.to_follow)
            raise _RanAsPythonError(result)

        def record(leaves: Sequence[Any]) -> None:
            copied = call.of_copies()  # the recording keeps it
            make = partial(
                RecordedFunction,
                f"spmd.{self._name}",
                of_tensors(lambda values: opened(copied(values)), leaves),
                tensors := _tensors(leaves),
                writes=True,
                uses=seen and seen.of_results(),
                dropped=seen.dropped if seen else (),
            )
            with _without_dynamo():
                recorded = make()
                if annotated := recorded.annotated:  # by an op in front of the call, and none in it
                    recorded.draw_again()
                    recorded.annotate(tensors)
                    recorded = make()
                    recorded.annotated = annotated
            if copied.has_written:
                recorded.draw_again()
                raise NotOneOpError(WRITES)
            _check_results(recorded)
            functions.append(recorded)

        try:
            recorded = ObservedCall(record, flat, roots, follow, apart, scope, is_whole=False)
        except Exception as error:  # also one of the user's, which the call raises again
            self._refuse(kind, f"{type(error).__name__}: {error}", count=True)
            raise _RanAsPythonError(call(flat)) from None
        recorded.result = functions[0], functions[0](_tensors(flat))
        return recorded

    def _recipe_of(self, call: ObservedCall) -> Recipe:
        """The facts of a call whose result is apart; raises ReplayError."""
        if call.observation.num_runs:
            raise ReplayError("it runs a program")
        recipe = Recipe(call)
        if recipe.slots or any(new is not True for *_, new in recipe.gradients):
            raise ReplayError("it replaces a tensor that it finds")
        # Whether an argument has a gradient is up to the caller, and others that no code names
        # count for nothing.
        arguments = {id(item) for item in call.arguments.values()}
        recipe.gradients = [
            entry
            for entry in recipe.gradients
            if id(entry[0]) not in arguments and not _GRADIENT.isdisjoint(call.names)
        ]
        return recipe

    def _stop(self, kind: CallKind, why: str) -> None:
        kind.refused = [why] * self.tries
        kind.entries.clear()
        self.pass_by(why)

    def pass_by(self, why: str) -> None:
        """Says once why calls run as Python."""
        text = f"{self._name} {self._refused_words}: {why}"
        if text not in self.causes:
            self.causes.append(text)
            messages.say(text, f"segment {id(self)}")

    def _replay_of(self, recorded: ObservedCall) -> tuple[Any, Any]:
        (function, result), recorded.result = recorded.result, None
        try:
            self._let_go(recorded)
            replay = SegmentReplay(recorded, self._recipe_of(recorded), function)
        finally:
            recorded.result = result
        return replay, replay


def _check_results(function: RecordedFunction) -> None:
    """Raises NotOneOpError for a result that another call could not return, too."""
    for kind, value in function.sources:
        if kind == "static" and not isinstance(value, PLAIN):
            raise NotOneOpError(f"it returns a {type(value).__name__} that is no pytree of torch's")


def _tensors(flat: Sequence[Any]) -> list[XlaTensor]:
    return [item for item in flat if type(item) is XlaTensor]


def _source_of(call: ObservedCall, storage: Storage) -> Any:
    """A storage from outside, weakly, or the tensor on the host from which the call has made its
    data; raises ReplayError for one that guards do not see, or that is an argument's."""
    if id(storage.ref) in call.references:
        return storage.ref
    sources = [source for source, data in call.observation.uploads if data is storage.value]
    if not sources or id(sources[0]) in call.paths or any(sources[0] is x for x in call.flat):
        raise ReplayError(f"it reads a tensor {storage.meta!r} that is not reachable from it")
    return sources[0]


def _are_equal(old: Any, new: Any) -> bool:
    """True for the same storage, or for equal tensors on the host."""
    are_tensors = isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)
    return torch.equal(old, new) if are_tensors else old is new
