"""A recorded function, called as one op of the lazy graph, with one op for its gradient.

Its ops are put back before a graph has a key (`run.inlined_calls`): only the recording is spared.
"""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..core import (
    LOCK,
    Kept,
    Storage,
    XlaTensor,
    annotations,
    grad_shardings,
    gradients_of,
    seed,
    set_gradients,
    storage_of,
    threads,
    view_of,
    wrap,
)
from ..core.extend import (
    Draw,
    Node,
    Value,
    deferred,
    op_watch,
    reads,
    storages,
    views,
    walks,
)
from .capture import Gathered
from .gradient import Backward, Partial, Tensors, are_batched, sharding_of, with_gradient
from .gradient import tensors as tensors_of
from .gradient_pool import GradientPool, Late, late
from .recorded_ops import Part, Passed, RecordedOps

_VERSION = operator.attrgetter("_version")


class RecordedFunction(RecordedOps):
    """A recorded function as one op of each call's graph, and one op of its backward pass."""

    def __call__(
        self, tensors: Sequence[XlaTensor], passed: Passed = None, known: Late | None = None
    ) -> Any:
        """Records one call, for tensors like those of the first one. passed: the scalar argument in
        place of a recorded one. known: which of them are gradients of deferred calls, if it has
        been found."""
        threads.enter_thread()
        self.annotate(tensors)
        state, draws = self._draw()
        self.num_waiting += 1
        inputs = [tensors[need] if isinstance(need, int) else need for need in self.needs]
        residuals: list[Kept] = []
        waiting: list[deferred.DeferredCall] = []
        versions: list[int] = []
        seen: list[Any] = []  # the counts of writes when these were read

        def forward() -> tuple[Tensors, Sequence[torch.Tensor], Sequence[bool]]:
            part, is_deferred = self.forward, self._may_be_deferred()
            with LOCK:
                num_deferred = len(deferred.calls)
                is_known = known is not None and known.num_calls == num_deferred
                found = known if known is not None and is_known else late(tensors)
                written = {i: tensors[i] for i in self.written if found.places[i] is None}
                if not (is_deferred and all(map(_is_watched, written.values()))):
                    is_deferred = False
                    deferred.finish()
                constants = None if is_deferred else part.operands()
                arguments = [x if x is None else reads.operand(x) for x in found.others(tensors)]
                if len(deferred.calls) < num_deferred:  # a read has finished them
                    found, arguments = late(tensors), [*map(reads.operand, tensors)]
                # No other argument is kept: who has one is to say whether it is a result.
                written = {i: tensors[i] for i in self.written if found.places[i] is None}
                node = part.called(part.at(draws, passed))
                result: Tensors = []
                for i, (meta, sharding, view) in enumerate(self.results):
                    if self.shared[i] == i:
                        storage = Storage(_result(node, i), meta, sharding)
                    else:
                        storage = storage_of(result[self.shared[i]])
                    result.append(_viewed(wrap(meta, storage), view))

                def finish() -> None:
                    operands = part.operands() if constants is None else constants
                    given = found.tensors()
                    node.operands = (
                        *operands,
                        *(
                            reads.operand(tensor) if value is None else value
                            for value, tensor in zip(arguments, given, strict=True)
                        ),
                    )
                    values = walks.results(node)
                    start = len(self.results) + len(self.written)
                    for i, value in zip(
                        self.written, values[len(self.results) : start], strict=True
                    ):
                        views.write(written.get(i, given[i]), value)
                    for storage, value in zip(
                        map(storage_of, self.outer), values[start:], strict=False
                    ):
                        storage.write(value)
                    start += len(self.outer)
                    _keep(self.gathered, values[start + self._num_saved :])
                    if self.backward is not None:
                        saved = values[start : start + self._num_saved]
                        residuals.append(Kept(saved, self._saved_shardings))

                if is_deferred:
                    key = part.number, found.givers, found.places
                    present = [x for x in arguments if x is not None]
                    call = deferred.DeferredCall(
                        node, key, present, finish, self._steps, self.backward is None
                    )
                    deferred.calls.append(call)
                    waiting.append(call)
                else:
                    finish()
                deferred.increment_versions(self.versions)
            if self.backward is None:
                return result, (), self.has_gradient
            versions.extend(map(_VERSION, self._saved))
            seen.append(deferred.writes())
            return result, [tensors[i] for i in self.read], self.has_gradient

        name = self.name
        backward = self._gradient(draws, passed, inputs, residuals, waiting, versions, seen)
        if backward is not None and self._may_write:
            again = partial(self._again, tensors, inputs, state, _autocast())
            name, backward = "", partial(self._backward, backward, again)
        outputs = with_gradient(name, inputs, forward, backward, zeros=bool(name))
        if backward is not None and self._own:
            others = [x if x.is_leaf else x.grad_fn for x in (inputs[i] for i in self._others)]
            grad_shardings.PlayedCall(self._leaves, others, self._decide).note(
                outputs[self.has_gradient_of[0]].grad_fn
            )
        for i in self.pinned:
            grad_shardings.follow(outputs[i])
        for i in self._inner if self._may_write else ():
            vars(outputs[i]).update(dict.fromkeys(_HOOKING, partial(_refuse_hook, self.name)))
        op_watch.note_own_op()
        if self.written:
            written = [tensors[i] for i in self.written]
            try:
                deferred.increment_versions(written)
            except RuntimeError:  # those of inference mode have no version
                deferred.increment_versions([x for x in written if not x.is_inference()])
        flat = [
            tensors[value] if kind == "argument" else outputs[value] if kind == "output" else value
            for kind, value in self.sources
        ]
        return tree_unflatten(flat, self.tree)

    def _backward(
        self, recorded: Backward, again: Callable[[Sequence[Any]], Tensors], *arguments: Any
    ) -> Sequence[torch.Tensor | None]:
        self.num_waiting = 0
        arriving = arguments[1]
        if [i for i in self.has_gradient_of if arriving[i] is not None] != self.arriving_of:
            self.new_uses = [gradient is not None for gradient in arriving]
            return self._partial(again, arriving)
        if not (torch.is_grad_enabled() or are_batched(arriving)) and not (
            self.has_hooks and self._where_gradients_go()[0] is self._unmarked
        ):
            return self._accumulated(recorded(*arguments))
        return self._accumulated(again(arriving))

    def _partial(
        self, again: Callable[[Sequence[Any]], Tensors], arriving: Sequence[Any]
    ) -> Partial:
        return Partial(self._accumulated(again(arriving)), partial(self._partial, again))

    def _decide(self, decisions: dict[Any, Any]) -> Sequence[torch.Tensor] | None:
        decisions[self] = self._where_gradients_go()
        return None if decisions[self][0] is self._unmarked else self._leaf_hooks.visited

    def _accumulated(self, found: Sequence[Any]) -> Sequence[Any]:
        """Gradients for autograd, which accumulates them, or leaves leaf tensors out."""
        found = [*found, *(None for _ in self.needs[len(found) :])]
        own = [place for place in self._own if found[place] is not None]
        if own and grad_shardings.decided.value is not None:
            gradients = [found[place] for place in own]
            torch.autograd.backward([self.needs[place] for place in own], gradients)
            for place in own:
                found[place] = None
        return found

    def _again(
        self,
        tensors: Sequence[XlaTensor],
        inputs: Sequence[XlaTensor],
        state: Any,
        autocast: torch.autocast,
        arriving: Any,
    ) -> Any:
        """Returns the gradients of the inputs by the function's own ops, recorded once more: with a
        graph of their own (create_graph=True), or where others arrive than at the recording."""
        deferred.finish()
        log, now, creates_graph = storages.UndoLog(), seed.get_state(), torch.is_grad_enabled()
        if not creates_graph:  # gradients end at the arguments
            ends: list[Any] = [
                x if x.is_leaf else x.detach().requires_grad_(x.requires_grad) for x in tensors
            ]
            end_of = {id(x): end for x, end in zip(tensors, ends, strict=True)}
            tensors, inputs = ends, [end_of.get(id(x), x) for x in inputs]
        self.has_second_gradient |= creates_graph
        storages.UNDO.append(log)
        seed.set_state(state)
        try:
            with torch.enable_grad(), autocast:
                flat, _ = tree_flatten(self._function(*tensors))
        finally:
            seed.set_state(now)
            storages.UNDO.remove(log)
            log.undo()
        places = [i for i in self.has_gradient_of if arriving[i] is not None]
        with grad_shardings.without_hooks([x for x in inputs if x.is_leaf]):
            return torch.autograd.grad(
                [flat[self.sources.index(("output", i))] for i in places],
                inputs,
                [arriving[i] for i in places],
                create_graph=creates_graph,
                allow_unused=True,
            )

    def annotate(self, tensors: Sequence[XlaTensor]) -> None:
        """Gives arguments the annotations that the function gives to them."""
        for i, sharding, follows in self.annotated:
            if sharding is None:
                annotations.clear_annotation(tensors[i])
                continue
            annotations.annotate(tensors[i], sharding)
            if follows is not None:
                (grad_shardings.follow if follows else grad_shardings.leave)(tensors[i])

    def draw_again(self) -> None:
        """Gives the draws back to the stream, where another recording takes its place."""
        seed.set_state(self._state)

    def _draw(self) -> tuple[Any, dict[Draw, Draw]]:
        """Returns the state of the stream before this call's draws, and these by those of the
        recording, which are the first call's."""
        draws, self._recorded_draws = self._recorded_draws, None
        state = self._state
        if draws is None:
            state, draws = seed.get_state(), [seed.next_draw(x) for x in self._generators]
        return state, dict(zip(self._first_draws, draws, strict=True))

    def _gradient(
        self,
        draws: dict[Draw, Draw],
        passed: Passed,
        inputs: Sequence[XlaTensor],
        residuals: list[Kept],
        waiting: list[deferred.DeferredCall],
        versions: list[int],
        seen: list[Any],
    ) -> Backward | None:
        part = self.backward
        if part is None:
            return None

        def backward(watched: Sequence[Any], arriving: Sequence[Any]) -> Sequence[Any]:
            # what autograd does for saved tensors, each of which would be an object of its own
            is_same = self._may_write and seen == [deferred.writes()]
            now = versions if is_same else [*map(_VERSION, self._saved)]
            if now != versions:
                place = [*map(operator.ne, now, versions)].index(True)
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: a tensor {[*self._saved[place].shape]}, which {self.name} "
                    f"reads, is at version {now[place]}; expected version {versions[place]} instead"
                )
            decided = grad_shardings.decided.value or {}
            used, old = decided.get(self) or self._where_gradients_go()
            keeps = torch._C._autograd._get_current_graph_task_keep_graph()
            leaves, is_unmarked = self._leaves, used is not part and not old
            pool = self._pool_of(used, keeps=keeps)
            if pool is None:
                deferred.finish()
            constants = used.operands() if pool is None else None
            arguments = [
                *map(reads.operand, watched),
                *(reads.operand(arriving[i]) for i in self.arriving_of),
            ]
            # What a deferred call refers to would be held by others.
            onto = pool.storages if pool is not None and old else old
            old = ()
            # Where the forward call still waits, its gathers are as new behind it.
            is_late = any(call in deferred.calls for call in waiting)
            gathered = None if is_late else [outside.value() for outside in self.read_again]
            node = used.called(used.at(draws, passed))

            def finish() -> None:
                operands = used.operands() if constants is None else constants
                weights = gathered or [outside.value() for outside in self.read_again]
                kept_values = [value for kept in residuals for value in kept.values()]
                sums = [storage.value for storage in onto]
                node.operands = (*operands, *kept_values, *arguments, *weights, *sums)
                if not keeps:
                    residuals.clear()  # else a sync would compute them
                values = walks.results(node)
                _keep(self.gathered_behind, values[len(self._reached) :])
                given = [values[number] for number, _ in self._given]
                if onto:
                    for storage, value in zip(onto, given, strict=True):
                        storage.write(value)
                elif pool is not None:
                    pool.give(given)

            if pool is None:
                finish()
            else:
                for call in waiting:
                    call.is_read = True
                giver = None if onto else pool
                call = deferred.DeferredCall(
                    node, used.number, arguments, finish, self._steps, pool=giver
                )
                if not onto:
                    pool.empty()
                deferred.calls.append(call)
            if onto:
                deferred.increment_versions([leaf.grad for leaf in leaves])
            elif not is_unmarked:
                if pool is None:
                    taken = [_result(node, number) for number, _ in self._given]
                    made = tensors_of(taken, map(sharding_of, leaves))
                    made = self._viewed([place for _, place in self._given], made)
                    self._pool = None if self._views else GradientPool(leaves, made)
                set_gradients(leaves, pool.tensors if pool else made)
            found: list[torch.Tensor | None] = [None] * len(self.reaches)
            for number, place in self._returned + self._given * is_unmarked:
                source = inputs[place]
                is_marked = source.is_leaf and not is_unmarked
                value = _result(node, number)
                made = tensors_of([value], [sharding_of(source) if is_marked else None])
                is_own = is_unmarked and place in self._own
                (found[place],) = made if is_own else self._viewed([place], made)
            return found

        return backward

    def _pool_of(self, used: Part, *, keeps: bool) -> GradientPool | None:
        """The gradients that a backward pass by this op gives, or adds to, where it may be
        deferred; else None."""
        if keeps or not self._may_be_deferred():
            return None
        if used is self.backward:
            pool = self._pool
            return pool if pool is not None and pool.is_free() and pool.is_as_made() else None
        pools = (call.pool for call in deferred.calls if used is self._adding and call.pool)
        return next((pool for pool in pools if pool.are_gradients(self._leaves)), None)

    def _viewed(self, places: Sequence[int], bases: Tensors) -> Tensors:
        """Returns gradients, or their views."""
        if not self._views:
            return bases
        each = map(self._views.get, places)
        return [_viewed(base, view) for base, view in zip(bases, each, strict=True)]

    def _where_gradients_go(self) -> tuple[Part, Sequence[Storage]]:
        """The op for a backward pass, and the gradients of leaf tensors to which it adds, if any:
        autograd gives each leaf tensor its gradient, or adds it, or returns it."""
        leaves = self._leaves
        assert self.backward is not None
        if not leaves:
            return self.backward, ()
        if grad_shardings.accumulates.value and self._leaf_hooks.look():
            old: list[Any] = gradients_of(leaves)
            if not any([gradient is not None for gradient in old]):  # noqa: C419
                return self.backward, ()
            if all(map(grad_shardings.adds_plainly, leaves)):
                return self._adding, [*map(storage_of, old)]
        return self._unmarked, ()


_HOOKING = ("register_hook", "retain_grad")  # methods of a tensor


def _refuse_hook(name: str, *_: Any) -> None:
    raise RuntimeError(
        f"a replayed call of {name} has no gradient for a result from which it computes another; "
        "set the hook from the loop's second step on, or spmd.config.replay_steps = False"
    )


def _viewed(base: XlaTensor, view: views.View | None) -> XlaTensor:
    return wrap(view.meta, storage_of(base), view.without_cache()) if view else base


def _result(node: Node, index: int) -> Value:
    return node if len(node.op.metas) == 1 else walks.TupleElement(node, index)


def _is_watched(tensor: XlaTensor) -> bool:
    return view_of(tensor) is None and deferred.is_watched(storage_of(tensor))


def _keep(gathered: Sequence[Gathered], values: Sequence[Value]) -> None:
    """Has reads keep these values, in order, those without a value none."""
    queue = iter(values)
    for tensor, key, value in gathered:
        storage = storage_of(tensor)
        read = storage.reads.known[key]
        if value is None:
            read.value, read.stamp = None, -1
        else:
            read.keep(next(queue), storage)


def _autocast() -> torch.autocast:
    """A context of the thread's present autocast, for a backward pass, which runs outside of it."""
    dtype, is_on = torch.get_autocast_dtype("xla"), torch.is_autocast_enabled("xla")
    return torch.autocast("xla", dtype, is_on)
