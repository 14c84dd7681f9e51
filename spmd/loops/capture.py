"""A function is recorded once, on stand-ins, as the body of an op: its results, closed-over
tensors, writes and draws.

Not here: where its graph of autograd ends (`closed_over`); the use of it (`saved`, `loop`, `scan`).
"""

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..core import (
    LOCK,
    DeviceData,
    Meta,
    Sharding,
    Storage,
    XlaTensor,
    grad_shardings,
    held,
    seed,
    storage_of,
    tensor_meta,
    threads,
    view_of,
    wrap,
)
from ..core.extend import (
    SYNC_LOCK,
    Node,
    Value,
    body,
    call,
    op_watch,
    pace,
    reads,
    set_storage,
    storages,
    store,
    walks,
)
from .closed_over import ClosedOver, aliasing, refuse_write

_Result = TypeVar("_Result")
# so many ops are never recorded: no pass looks at a graph while a body is recorded
_NEVER = 1 << 60
_SAME = frozenset({"spmd.renew", "mark_sharding", "spmd.unmarked"})


# A read of a tensor by its key (see `reads.Read`), and its value.
Gathered = tuple[XlaTensor, reads.ReadKey, Value | None]


class Capture(ClosedOver):
    """The ops that a thread records inside `with`: the body of the op `name`. Other threads wait
    until it ends.

    gathers: values gathered outside are gathered again in the body, and behind it. arguments: the
    values of the stand-ins. lost: the storages of the body that are still
    alive behind it. draws: the draws of one iteration
    (`seed.IterationDraws`). The end of the block takes back writes to tensors from outside.
    """

    def __init__(self, name: str, *, gathers: bool = True):
        super().__init__(name)
        self._gathers = gathers
        self.arguments: list[Value] = []
        self.lost: list[Any] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Capture":
        threads.enter_thread()
        with contextlib.ExitStack() as stack:
            stack.enter_context(SYNC_LOCK)
            stack.enter_context(LOCK)
            stack.enter_context(_unwatched(self.name, self._see))
            self._num_live, self._num_read = len(storages.LIVE), len(storages.READ)
            self._begin()
            stack.callback(self._leave)
            self.draws = stack.enter_context(seed.iteration())
            self._stack = stack.pop_all()
        self.start = store.next_serial()
        self._begin_gathering()
        self.gathered_outside = {
            walks.value_name(view.value): (view.value, view, storage)
            for view, *_ in ([] if self._gathers else storages.READ)
            if view.is_read and view.is_fresh() and (storage := view.owner()) is not None
        }
        return self

    def _begin_gathering(self) -> None:
        if self._gathers:
            reads.next_generation()

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def stand_in(
        self,
        meta: Meta,
        sharding: Sharding | None = None,
        *,
        requires_grad: bool = False,
        is_data: bool = False,
    ) -> XlaTensor:
        """Returns a tensor that stands for an argument of the body. is_data: for data outside."""
        node = body.stand_in(meta.layout, is_data)
        self.arguments.append(node)
        storage = Storage(node, meta.layout, sharding)
        self._own.add(storage)
        return wrap(meta.layout, storage).requires_grad_(requires_grad)  # type: ignore[return-value]

    def run(
        self,
        function: Callable[..., _Result],
        *args: Any,
        unwritten: Iterable[XlaTensor] = (),
        refusal: str = "",
    ) -> _Result:
        """Calls the user's function as the body, or as a part of it.

        Raises NotImplementedError with the text `refusal`, if any, where it writes in place into
        one of the stand-ins `unwritten`, or into a leaf tensor that requires a gradient.
        """
        try:
            with aliasing():
                result = function(*args)
        except RuntimeError as error:
            if refusal and str(error).startswith(
                "a leaf Variable that requires grad is being used in an in-place"
            ):
                raise NotImplementedError(refusal) from error
            raise
        if not all(map(self.is_unwritten, unwritten)):
            raise NotImplementedError(refusal)
        return result

    def own(self, stand_in: XlaTensor) -> XlaTensor:
        """Returns a tensor with a stand-in's value and gradient that the body may write in
        place."""
        result: Any = _Own.apply(stand_in)
        self._own.add(storage_of(result))
        return result

    def swapped(self, tensor: XlaTensor, *, requires_grad: bool) -> XlaTensor:
        """Has one of the caller's tensors stand for an argument of the body until the capture
        ends."""
        storage, required_grad, hooks = (
            storage_of(tensor),
            tensor.requires_grad,
            tensor._backward_hooks,
        )
        stand_in = self.stand_in(tensor_meta(tensor), storage.sharding)
        storage_of(stand_in).is_state = storage.is_state
        self.outer_values[self.arguments[-1]] = storage.value  # type: ignore[index]  # a node
        set_storage(tensor, storage_of(stand_in), view_of(tensor))
        tensor._backward_hooks = None  # they run where the gradient arrives outside
        if requires_grad:
            tensor.requires_grad_()

        def back() -> None:
            set_storage(tensor, storage, view_of(tensor))
            tensor._backward_hooks = hooks
            if tensor.requires_grad is not required_grad:
                tensor.requires_grad_(required_grad)

        self._stack.callback(back)
        return tensor

    def _see(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.note(args)
        if kwargs:
            self.note(kwargs.values())
        return call.dispatch(func, types, args, kwargs)

    def _leave(self) -> None:
        """Takes back writes to tensors from outside; tensors of the body that the user keeps lose
        their value."""
        self._end()
        self._log.undo()
        storages.drop_reads(self._num_read)  # a gather inside may wait for a stand-in
        for value, read, storage in self.gathered_outside.values():
            read.keep(value, storage)
        self._begin_gathering()
        recorded_since = self._recorded_since()
        inside = body.ops_on_stand_ins(
            [storage.value for storage in recorded_since], since=self.start
        )
        for storage in recorded_since:
            if walks.origin(storage.value) in inside:
                self.lost.append(storage.ref)
                lost = DeviceData(storage.meta)
                lost.give_up(
                    f"it was made inside the body of {self.name}, where it stands for every "
                    "iteration (or shard); return it"
                )
                storage.settle(lost)

    def _recorded_since(self) -> list[Storage]:
        refs = storages.LIVE[self._num_live :]
        return [storage for ref in refs if (storage := ref()) is not None]

    def annotated(self) -> dict[Any, Sharding]:
        """The annotations of the body's own storages, by the names of their values."""
        return {
            walks.value_name(storage.value): storage.sharding
            for storage in self._recorded_since()
            if storage.sharding is not None
        }

    def written(self) -> dict[Storage, tuple[Value, Value]]:
        """Returns the storages from outside that the body has written, with their value outside and
        the new one."""
        self.refuse_writes()
        return {
            storage: (value, storage.value)
            for storage, value in self._log.values().items()
            if not self.passes_on(storage.value, value)
        }

    def is_unwritten(self, stand_in: XlaTensor) -> bool:
        """True if the body has not written a stand-in."""
        return any(
            self.passes_on(storage_of(stand_in).value, argument) for argument in self.arguments
        )

    def gathered(self) -> list[Gathered]:
        """The reads of tensors from outside, each with its value now, None for one that is to be
        gathered again."""
        tensors = {storage_of(tensor): tensor for tensor in self._seen.values()}
        return [
            (tensor, key, read.value if read.stamp == storage.stamp else None)
            for storage, tensor in tensors.items()
            if storage.reads is not None
            for key, read in storage.reads.known.items()
        ]

    def is_outer(self, tensor: XlaTensor) -> bool:
        """True for a tensor over a storage from outside."""
        storage = storage_of(tensor)
        seen = {storage_of(outside) for outside in self._seen.values()}
        return storage in seen or (storage not in self._own and self.is_outside(storage.value))

    def passes_on(self, value: Value, source: Value) -> bool:
        """True if a value is another one, perhaps annotated or behind an optimization barrier that
        delays a gather."""
        node = walks.origin(value)
        while node is not None and node.serial >= self.start and node.op.name in _SAME:
            value = node.operands[getattr(value, "index", 0)]
            node = walks.origin(value)
        return walks.value_name(value) == walks.value_name(source)

    def outside(self, roots: Sequence[Value], inputs: Sequence[Value]) -> list[Value]:
        """The values from outside that the roots need in addition to `inputs`, in the order of
        reading."""
        names = {walks.value_name(value) for value in inputs}
        read = [value for node in self.nodes(roots, inputs) for value in node.operands]
        values = {
            walks.value_name(value): value for value in (*read, *roots) if self.is_outside(value)
        }
        return [value for name, value in values.items() if name not in names]

    def tensors(self, values: Sequence[Value]) -> list[XlaTensor]:
        """Returns a tensor for each value from outside, to be read later: the user's own tensor
        where there is one."""
        return [outside.tensor for outside in self.sources(values)]

    def sources(self, values: Sequence[Value]) -> list["Outside"]:
        """Returns for each value from outside where a later call finds it."""
        sources: dict[Any, Outside] = {}
        before = self._log.values()  # of what the body has written
        for name, (_, read, storage) in self.gathered_outside.items():
            tensor = wrap(storage.meta, storage)
            sources[name] = Outside(tensor, is_stored=False, read=read.key)
        for tensor in self._seen.values():
            storage = storage_of(tensor)
            if view_of(tensor) is not None:
                tensor = wrap(storage.meta, storage)
            stored, read = Outside(tensor, is_stored=True), Outside(tensor, is_stored=False)
            sources.setdefault(walks.value_name(before.get(storage, storage.value)), stored)
            sources.setdefault(walks.value_name(read.value()), read)
            # A gather reads all of its group.
            for known in storage.reads.known.values() if storage.reads else ():
                for member in reads.live_reads(known.group).values():
                    outside = Outside(wrap(member.meta, member), is_stored=True)
                    sources.setdefault(walks.value_name(member.value), outside)
        return [
            sources.get(walks.value_name(value))
            or Outside(wrap(value.meta, Storage(value, value.meta)), is_stored=True)
            for value in values
        ]

    def nodes(self, roots: Sequence[Value], inputs: Sequence[Value]) -> list[Node]:
        """The body's own ops that the roots need in addition to `inputs`, in the order of
        recording."""
        return walks.between(roots, inputs, since=self.start)

    def read(self, roots: Sequence[Value], inputs: Sequence[Value]) -> set[Any]:
        """The names of the roots, and of the values that the body's ops between `inputs` and the
        roots read."""
        values = [value for node in self.nodes(roots, inputs) for value in node.operands]
        return set(map(walks.value_name, (*values, *roots)))

    def refuse_written(
        self, tensors: Iterable[XlaTensor], written: Container[Storage], instead: str
    ) -> None:
        """Raises NotImplementedError for tensors from outside with a gradient that the body has
        written."""
        for tensor in tensors:
            if storage_of(tensor) in written:
                refuse_write(self.name, tensor, instead)

    # --- gradients --------------------------------------------------------------------------------

    def reached_by(self, outputs: Sequence[XlaTensor]) -> tuple[list[int], list[XlaTensor]]:
        """The numbers of the outputs that have a gradient, and the tensors that those gradients
        reach."""
        reached = {
            i: sources for i, output in enumerate(outputs) if (sources := self.reached(output))
        }
        return list(reached), list(
            dict.fromkeys(source for sources in reached.values() for source in sources)
        )

    def grad(
        self,
        outputs: Sequence[XlaTensor],
        sources: Sequence[XlaTensor],
        arriving: Sequence[XlaTensor],
        value_of: "Callable[[XlaTensor, XlaTensor | None], Value] | None" = None,
        at_leaf: Callable[[XlaTensor, XlaTensor], None] | None = None,
    ) -> list[Value]:
        """Records the gradients of such tensors, from those that arrive at the outputs, and returns
        their values.

        value_of: returns the value for a source's gradient, or for None, where nothing arrives at
        it. at_leaf: called with a leaf tensor and its gradient when this arrives; values that
        forward has gathered are read again, as in a backward pass outside of a body.
        """
        if not outputs:
            return []
        if at_leaf is None:
            reads.next_generation()  # values gathered in forward are gathered again in backward
        gradients = self._gradients(outputs, sources, arriving, at_leaf)
        with torch.no_grad():
            return list(map(value_of or sharded_gradient, sources, gradients))


class Outside(NamedTuple):
    """A value from outside: what a tensor's storage has, or the value that ops read of it (FSDP
    gathers it), by the read of a key or that of the op's context."""

    tensor: XlaTensor
    is_stored: bool
    read: reads.ReadKey | None = None

    def value(self) -> Value:
        """The value now."""
        storage = storage_of(self.tensor)
        if self.read is None:
            return storage.value if self.is_stored else reads.operand(self.tensor)
        assert storage.reads is not None
        return storage.reads.known[self.read].value_of(storage)


def sharded_gradient(source: XlaTensor, gradient: Any, *, unsharded: bool = False) -> Value:
    """Returns the value of a tensor's gradient, zeros for None, sharded like the tensor."""
    if gradient is None:
        gradient = torch.zeros_like(source)
    if view_of(source) is None and not unsharded:
        grad_shardings.shard_gradient(storage_of(source), gradient)
    return reads.operand(gradient)


class _Own(torch.autograd.Function):
    """Copies a tensor without an op of the graph: values are immutable, so a second tensor of one
    is enough."""

    @staticmethod
    def forward(ctx: Any, tensor: XlaTensor) -> XlaTensor:
        storage = storage_of(tensor)
        return wrap(tensor_meta(tensor), Storage(storage.value, storage.meta, storage.sharding))

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> Any:
        return arriving[0]


@contextlib.contextmanager
def _unwatched(name: str, see: Any) -> Iterator[None]:
    """Records without side effects: no dispatch mode, no hook on what autograd saves, no autocast
    cache, no run of pending ops."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(held(pace, look_at=_NEVER, recorded_ops=pace.recorded_ops))
        stack.enter_context(body.inside(name))
        stack.enter_context(op_watch.watching(see))
        if torch._C._len_torch_dispatch_stack():
            stack.enter_context(_disable_current_modes())
        if hooks is not None:
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(_same, _same))
        torch.clear_autocast_cache()
        stack.callback(torch.clear_autocast_cache)
        yield


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
