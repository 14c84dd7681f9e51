"""Tensors that a body closes over and that are computed from others: the body's graph of autograd
ends at them.

A gradient that went on from them inside the body would be counted again outside, where the op's
gradient reaches them, and would free the graph outside.
"""

import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._pytree import tree_leaves

from ..core import (
    Storage,
    XlaTensor,
    grad_shardings,
    storage_of,
    tensor_meta,
    view_of,
    wrap,
)
from ..core.extend import Node, Value, body, deferred, storages, walks

_next_sequence = torch._C._autograd._get_sequence_nr
# the bodies under way, the innermost last; a thread that records has SYNC_LOCK
_recording: list["ClosedOver"] = []


def stands_for(stand_in: Node) -> Value | None:
    """Returns the value that a stand-in replaces in a body under recording, or None."""
    return next(
        (
            recording.outer_values[stand_in]
            for recording in _recording
            if stand_in in recording.outer_values
        ),
        None,
    )


def note(tensor: XlaTensor) -> None:
    """Notes a tensor that an op recorded without dispatch reads, for the body under recording, if
    there is one."""
    if _recording and body.names.value:
        _recording[-1].note((tensor,))


class ClosedOver:
    """The tensors from outside that a body under recording reads, as far as gradients are
    concerned.

    A tensor that is no leaf tensor is replaced in the arguments of torch's functions by an alias:
    another tensor of the same value, at which the body's graph ends. In a body inside of a body the
    outer one's alias is replaced.

    start: values with a lower serial are from outside.
    """

    def __init__(self, name: str):
        self.name = name
        self.start = 0
        # by the stand-in that takes its place in the body
        self.outer_values: dict[Node, Value] = {}
        self._own: set[Storage] = set()
        self._seen: dict[int, XlaTensor] = {}  # the tensors from outside that the body's ops read
        self._versions: dict[int, int] = {}  # of these, before the body
        self._aliases: dict[XlaTensor, XlaTensor] = {}
        self._originals: dict[XlaTensor, XlaTensor] = {}
        self._ends: dict[Any, XlaTensor] = {}  # the original by its alias's node
        # By the tensor from outside, the edges and leaf tensors at which the body's graph ends.
        self._ends_of: dict[XlaTensor, dict[Any, None]] = {}
        self._is_differentiated = False
        self.num_edges = Counter[Any]()  # between ops of autograd's graph, by where they end
        self._walked: set[Any] = set()  # those ops

    def _begin(self) -> None:
        deferred.finish()
        _watch_apply()
        self._log = storages.UndoLog()
        self._outer = _recording[-1] if _recording else None
        self._first = _next_sequence()  # autograd's sequence number at the start
        _recording.append(self)
        storages.UNDO.append(self._log)

    def _end(self) -> None:
        storages.UNDO.remove(self._log)
        _recording.pop()
        if self._outer is not None:
            self._outer.note(self._seen.values())

    def is_outside(self, value: Value) -> bool:
        """True if a value is device data, or was recorded before the body."""
        node = walks.origin(value)
        return node is None or node.serial < self.start

    def note(self, values: Iterable[Any]) -> None:
        """Notes the tensors from outside that ops read: backward needs them, and they may have a
        gradient."""
        for value in values:
            if isinstance(value, XlaTensor):
                if storage_of(value) not in self._own and self.is_outside(storage_of(value).value):
                    original = self._originals.get(value, value)
                    if id(original) not in self._seen:
                        self._versions[id(original)] = original._version
                    self._seen[id(original)] = original
            elif type(value) in (list, tuple):
                self.note(value)

    def seen(self) -> Iterable[XlaTensor]:
        """The tensors from outside that ops read, or write."""
        return self._seen.values()

    def with_new_version(self) -> list[XlaTensor]:
        """The tensors from outside whose writes autograd has counted."""
        return [x for number, x in self._seen.items() if x._version != self._versions[number]]

    def alias(self, tensor: XlaTensor, sequence: int | None = None) -> XlaTensor:
        """Returns what replaces a tensor in the body: its alias if it is from outside and has a
        history.

        sequence: autograd's sequence number before any look at the tensor. Autograd makes the node
        of a view again, at the first look at it, where its memory has been written since.
        """
        if sequence is None:
            sequence = _next_sequence()
        if not tensor.requires_grad or tensor.is_leaf:
            return tensor
        if (
            not self.is_outside(storage_of(tensor).value)
            and storage_of(tensor).ref not in self._log.storages
        ):
            return tensor
        if tensor in self._aliases or tensor in self._originals:
            return self._aliases.get(tensor, tensor)
        original = self._outer.alias(tensor, sequence) if self._outer else tensor
        if original is tensor and self._first <= tensor.grad_fn._sequence_nr() < sequence:  # type: ignore[union-attr]
            return tensor  # a view that the body has made
        result: Any = wrap(tensor_meta(tensor), storage_of(tensor), view_of(tensor))
        result.requires_grad = True  # not `requires_grad_`, which torch.func refuses
        # A node of torch with no way on. A leaf tensor would do for gradients, but autocast keeps
        # the casts of those.
        result = torch._C._functions.DelayedError(
            f".backward() inside the body of {self.name} reaches a tensor from outside: the body "
            "is recorded and has no .grad to keep; return the loss and call .backward() outside, "
            "or use torch.autograd.grad here",
            1,
        )(result)
        self._aliases[tensor], self._originals[result], self._ends[result.grad_fn] = (
            result,
            original,
            original,
        )
        return result

    def replaced(self, values: Sequence[Any]) -> Any:
        """Returns arguments with aliases in place of their originals."""
        return map_nested(
            lambda value: self.alias(value) if isinstance(value, XlaTensor) else value, values
        )

    def refuse_writes(self) -> None:
        """Raises NotImplementedError where the body has written into an alias: the graph outside
        would not show it."""
        for alias, original in self._originals.items():
            if alias._version:
                refuse_write(self.name, original, "make a new tensor instead (x = x + 1)")

    # --- gradients --------------------------------------------------------------------------------

    def reached(self, output: XlaTensor) -> dict[XlaTensor, None]:
        """The tensors from outside, and the stand-ins, that a gradient of an output reaches."""
        output = self.alias(output)
        if output.grad_fn is None:
            return dict.fromkeys([output]) if output.requires_grad else {}
        edges = {(tensor.grad_fn, tensor.output_nr): tensor for tensor in self._seen.values()}
        reached: dict[XlaTensor, None] = {}
        passed = set()
        stack: list[tuple[Any, int]] = [(output.grad_fn, output.output_nr)]
        while stack:
            edge = stack.pop()
            if edge in passed:
                continue
            passed.add(edge)
            node, _ = edge
            end: Any
            if node in self._ends:
                source, end = self._ends[node], GradientEdge(*edge)
            elif node.name() == "torch::autograd::AccumulateGrad":
                source = end = node.variable
            elif node._sequence_nr() >= self._first:
                following = [edge for edge in node.next_functions if edge[0] is not None]
                if node not in self._walked:
                    self._walked.add(node)
                    self.num_edges.update(following)
                stack += following
                continue
            elif edge in edges:
                source = end = edges[edge]
            else:
                raise NotImplementedError(
                    f"{self.name}: the body reads a tensor from outside that has a gradient, by "
                    f"an op that does not show it ({node.name()}); pass it to the body as an "
                    "argument"
                )
            reached[source] = None
            self._ends_of.setdefault(source, {})[end] = None
        return reached

    def saved(self) -> set[Storage]:
        """The storages from outside that autograd has saved, between the outputs and what `reached`
        has found."""
        # Unpacked, they would run a checkpointed module again.
        packed = [
            getattr(node, name)
            for node in self._walked
            for name in dir(type(node))
            if name.startswith("_raw_saved_")
        ]
        values = [saved.data for saved in tree_leaves(packed) if saved is not None]
        found = {storage_of(x) for x in values if isinstance(x, XlaTensor)}
        return found.intersection(map(storage_of, self._seen.values()))

    def _gradients(
        self,
        outputs: Sequence[XlaTensor],
        sources: Sequence[XlaTensor],
        arriving: Sequence[XlaTensor],
        at_leaf: Callable[[XlaTensor, XlaTensor], None] | None = None,
    ) -> list[Any]:
        """The gradients of stand-ins and tensors from outside, from those that arrive at the
        outputs. at_leaf: called with a leaf tensor and its gradient, when this arrives."""
        self._is_differentiated = True
        ends_of = [list(self._ends_of.get(source, (source,))) for source in sources]
        ends = list(itertools.chain(*ends_of))
        tensors = [end for end in ends if isinstance(end, XlaTensor)]
        self._refuse_earlier(tensors)
        hooks = {end: end._backward_hooks for end in tensors if end._backward_hooks}
        for end in hooks:
            end._backward_hooks = None  # they run where the gradient arrives outside
        if at_leaf is not None:
            for end in tensors:
                for hook in grad_shardings.played_hooks(hooks.setdefault(end, None)):
                    end.register_hook(hook)
                end.register_hook(functools.partial(at_leaf, end))
        try:
            gradients = iter(
                torch.autograd.grad([*map(self.alias, outputs)], ends, arriving, allow_unused=True)
            )
        finally:
            for end, end_hooks in hooks.items():
                end._backward_hooks = end_hooks
        with torch.no_grad():
            return [_sum(itertools.islice(gradients, len(source_ends))) for source_ends in ends_of]

    def _refuse_earlier(self, ends: Sequence[XlaTensor]) -> None:
        """Raises NotImplementedError where the graph outside goes on from one of these tensors to
        another one.

        The former is none that torch's functions have shown, or it had an alias.
        """
        edges: set[Any] = {
            (tensor.grad_fn, tensor.output_nr) for tensor in ends if not tensor.is_leaf
        }
        passed, stack, leaves = set[Any](), [node for node, _ in edges], set(ends)
        while stack:
            for edge in stack.pop().next_functions:
                node: Any = edge[0]
                if edge in edges or getattr(node, "variable", None) in leaves:
                    raise NotImplementedError(
                        f"{self.name}: the body reads two tensors from outside of which one is "
                        f"computed from the other ({node.name()}), by a function that torch does "
                        "not show; pass one of them as an argument"
                    )
                if node is not None and node not in passed:
                    passed.add(node)
                    stack.append(node)

    def grad_inside(self, outputs: Any, inputs: Any, **settings: Any) -> Sequence[Any]:
        """`torch.autograd.grad` as a body calls it: from the aliases it goes on through the graph
        outside."""
        further = self._outer.grad_inside if self._outer else torch.autograd.grad
        outputs = self.replaced(outputs)
        if self._is_differentiated or not self._ends:
            return (torch.autograd.grad if self._is_differentiated else further)(
                outputs, inputs, **settings
            )
        optional = settings | {"allow_unused": True, "materialize_grads": False}
        inner = [tensor for tensor in inputs if tensor not in self._aliases]
        first = torch.autograd.grad(
            outputs, [*inner, *(GradientEdge(node, 0) for node in self._ends)], **optional
        )
        gradients: dict[Any, Any] = dict(zip(inner, first, strict=False))
        arrived = zip(self._ends.values(), first[len(inner) :], strict=True)
        reached = {original: gradient for original, gradient in arrived if gradient is not None}
        if reached:
            optional |= {"grad_outputs": [*reached.values()], "retain_graph": True}
            for tensor, gradient in zip(
                inputs, further([*reached], inputs, **optional), strict=True
            ):
                gradients[tensor] = _sum([gradients.get(tensor), gradient])
        if settings["materialize_grads"]:
            return [
                torch.zeros_like(tensor) if gradients.get(tensor) is None else gradients[tensor]
                for tensor in inputs
            ]
        result = [gradients.get(tensor) for tensor in inputs]
        if not settings["allow_unused"] and any(gradient is None for gradient in result):
            raise RuntimeError(  # torch's own text
                "One of the differentiated Tensors appears to not have been used in the graph. "
                "Set allow_unused=True if this is the desired behavior."
            )
        return result


def refuse_write(name: str, tensor: XlaTensor, instead: str) -> None:
    """Raises NotImplementedError for a write of a body into a tensor from outside that has a
    gradient."""
    raise NotImplementedError(
        f"{name}: the body writes in place into a tensor from outside that requires a gradient "
        f"({tensor_meta(tensor)!r}); {instead}"
    )


def _sum(gradients: Iterable[Any]) -> Any:
    arrived = [gradient for gradient in gradients if gradient is not None]
    return functools.reduce(torch.add, arrived) if arrived else None


def map_nested(function: Callable[[Any], Any], values: Any) -> Any:
    """Returns the arguments of one of torch's functions, lists and tuples among them, with a
    function's results."""
    result = [
        map_nested(function, value) if type(value) in (list, tuple) else function(value)
        for value in values
    ]
    return tuple(result) if type(values) is tuple else result


# --- torch's functions ----------------------------------------------------------------------------


def aliasing() -> AbstractContextManager[Any]:
    """Context in which the body's function runs: the ops of the innermost body under recording get
    aliases."""
    is_on = any(isinstance(mode, _Aliasing) for mode in _get_current_function_mode_stack())
    return contextlib.nullcontext() if is_on else _Aliasing()


_OF_ITSELF = frozenset(
    {"register_hook", "register_post_accumulate_grad_hook", "retain_grad", "requires_grad_"}
)
_VIEWS = frozenset({"H", "T", "imag", "mH", "mT", "real"})  # attributes that are ops


class _Aliasing(TorchFunctionMode):
    """Gives torch's functions that a body calls aliases of tensors from outside, above autograd."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recording = _recording[-1]
        if func is torch.autograd.grad:
            return tuple(recording.grad_inside(*args, **kwargs))
        name = getattr(func, "__name__", "")
        if name in _OF_ITSELF or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if name in ("__get__", "__set__") and func.__self__.__name__ not in _VIEWS:
            return func(*args, **kwargs)
        if kwargs:
            kwargs = dict(zip(kwargs, recording.replaced([*kwargs.values()]), strict=True))
        return func(*recording.replaced(args), **kwargs)


# Called with the class and the arguments of a `torch.autograd.Function` that a body applies; return
# the arguments.
WHEN_APPLIED: list[Callable[[Any, Sequence[Any]], Sequence[Any]]] = [
    lambda cls, args: _recording[-1].replaced(args)
]


@functools.cache
def _watch_apply() -> None:
    """Has a body's calls of `torch.autograd.Function.apply` pass by these functions: no mode of
    torch sees `apply`."""
    # a class method; a C++ one from torch 2.15 on
    original: Any = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if body.names.value and torch.is_grad_enabled():
            with torch._C.DisableTorchFunction():
                for function in WHEN_APPLIED:
                    args = tuple(function(cls, args))
        return original.__get__(None, cls)(*args, **kwargs)

    apply.__doc__ = original.__doc__
    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
