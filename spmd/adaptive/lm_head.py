"""Avoids large logits that only a cross entropy reads: the LM head and its gradients become two
ops, lowered to `ops.linear_cross_entropy`, if the logits exceed `config.max_logits_bytes`.

The pattern is a linear layer (`nn.Linear`, `F.linear`), ops on its rows (a cast, views, the shift
by one token), a cross entropy of class indices; and in the backward pass, if there is one, the same
way back to the product's gradients. If an intermediate value has another reader, the user among
them, all of it is computed as written.
"""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ..core import Spec, config, dense_meta
from ..core.extend import (
    Graph,
    Layouts,
    Lowering,
    Node,
    OpSpec,
    Rewrite,
    Value,
    chunked_losses,
    constrain,
    floats,
    partitioning,
    rewrite,
    slices,
    walks,
)

# Ops that select, shard or cast rows of the logits, each with the op of its gradient, where one is
# required.
_ROWS = {
    "aten._to_copy": "aten._to_copy",
    "aten.slice.Tensor": "aten.slice_backward",
    **dict.fromkeys(
        ("aten.view", "aten._unsafe_view", "aten.clone", "aten.alias", "mark_sharding")
    ),
}
_BACK = {name for pair in _ROWS.items() for name in pair if name not in (None, "aten.slice.Tensor")}


@dataclass(eq=False, slots=True)
class Head:
    """One product, the ops between it and a cross entropy, and the ops of its gradients.

    rows: from the product to the operand of the loss. back: from the loss's gradient to the
    product's. gradient: the op of the product's gradients. lowering: of the op of the loss, once it
    is added.
    """

    product: Node
    rows: list[Node]
    loss: Node
    loss_backward: Node | None = None
    back: list[Node] = field(default_factory=list)
    gradient: Node | None = None
    lowering: "_LmHead | None" = None

    @property
    def skipped(self) -> list[Node]:
        """The ops that are not computed."""
        return [
            self.product,
            *self.rows,
            *([self.loss_backward] if self.loss_backward else []),
            *self.back,
        ]

    def forward(self, new: Rewrite, loss: Node) -> None:
        """Adds the op of the loss; its operands are input, weight, bias (where there is one),
        target, weights of the classes (where there are any)."""
        rows = tuple([(_name(node), node.op) for node in self.rows])
        precision = getattr(self.product.op.lowering, "precision", None)
        self.lowering = lowering = _LmHead(
            rows, len(self.product.operands) > 2, self.loss.op, precision
        )
        operands = [*self.product.operands, *self.loss.operands[1:]]
        new.put(loss, _op("spmd.lm_head", lowering, loss.op.metas, operands), operands)

    def backward(self, new: Rewrite, gradient: Node) -> None:
        """Adds the op of the gradients; its operands are those of the loss, then the loss's
        gradient and what else its backward reads."""
        assert self.loss_backward is not None and self.lowering is not None
        input, _, weight = gradient.operands  # may be gathered or recomputed ones
        grad_output, _, *loss_operands = self.loss_backward.operands
        lowering = _LmHeadBackward(self.lowering, tuple(_arguments(gradient.op)["output_mask"]))
        metas = tuple([dense_meta(meta.shape, meta.dtype) for meta in gradient.op.metas])
        operands = [
            input,
            weight,
            *self.product.operands[2:],
            *loss_operands[:-2],
            grad_output,
            *loss_operands[-2:],
        ]
        new.put(gradient, _op("spmd.lm_head_backward", lowering, metas, operands), operands)


def _op(name: str, lowering: Lowering, metas: Sequence[Any], operands: Sequence[Value]) -> OpSpec:
    return OpSpec.of(name, lowering, tuple(metas), tuple([operand.meta for operand in operands]))


@dataclass(frozen=True, slots=True)
class _LmHead(Lowering):
    """A linear layer, ops on rows of its result (names and ops), and a cross entropy.

    loss: the op of the cross entropy. precision: of the product.
    """

    rows: tuple[tuple[str, OpSpec], ...]
    has_bias: bool
    loss: OpSpec
    precision: str | None

    def lower(
        self,
        op: OpSpec,
        operands: Sequence[jax.Array],
        numbers: Sequence[jax.Array],
        layouts: Layouts,
    ) -> tuple[jax.Array, ...]:
        input, weight, target, *bias_and_weights = self.taken_in(operands)
        returns, rows = (
            tuple(meta.struct for meta in op.metas),
            self.rows_of(self.applied(input), input),
        )
        arguments = (
            rows,
            weight,
            target.reshape(rows.shape[:-1]),
            *bias_and_weights,
            *self.settings(),
        )
        with self.in_precision():
            results = chunked_losses.spmd_linear_cross_entropy(*arguments, returns=returns)
        return tuple(x.reshape(struct.shape) for x, struct in zip(results, returns, strict=True))

    def taken_in(self, operands: Sequence[jax.Array]) -> tuple[Any, ...]:
        """Returns the input of the product, its weight, the target, the bias and the weights of the
        classes."""
        input, weight, *optional_operands = operands
        bias = optional_operands.pop(0) if self.has_bias else None
        target, *class_weights = optional_operands
        return (
            input,
            self._placed(weight),
            target,
            bias,
            class_weights[0] if class_weights else None,
        )

    def in_precision(self) -> contextlib.AbstractContextManager[None]:
        return (
            jax.default_matmul_precision(self.precision)
            if self.precision
            else contextlib.nullcontext()
        )

    def settings(self) -> tuple[Any, ...]:
        arguments = _arguments(self.loss)
        names = "reduction", "ignore_index", "label_smoothing"
        return (
            *(arguments[name] for name in names),
            self.loss.operands[0].struct.dtype,
            config.max_logits_bytes // chunked_losses.CHUNKS,
        )

    def applied(self, input: jax.Array) -> tuple[tuple[str, OpSpec], ...]:
        """Returns the ops on rows, without the last views: of sharded rows they would be a
        gather."""
        is_split = (
            partitioning.axes_of_dims(*((input, dim) for dim in range(1, input.ndim - 1)))
            is not None
        )
        selectors = (
            name == "aten.slice.Tensor" or op.sharding is not None for name, op in self.rows
        )
        last = max(itertools.compress(itertools.count(1), selectors), default=0)
        return self.rows[:last] if is_split else self.rows

    @staticmethod
    def rows_of(rows: tuple[tuple[str, OpSpec], ...], input: jax.Array) -> jax.Array:
        """Returns the rows of the input that belong to the rows of the logits that the loss
        reads."""
        for name, op in rows:
            if name == "aten.slice.Tensor":
                places = {name: x for name, x in _arguments(op).items() if name != "self"}
                input = partitioning.same(slices.aten_slice(input, **places), input)
            elif op.sharding is not None:
                input = constrain.constrain(
                    input, op.sharding.with_spec(Spec(op.sharding.spec.dims[: input.ndim - 1]))
                )
            else:
                input = partitioning.reshaped(
                    input.reshape(*op.metas[0].shape[:-1], input.shape[-1]), input
                )
        return input

    def _placed(self, weight: jax.Array) -> jax.Array:
        """Returns the weight, its classes sharded as an annotation of the logits requests."""
        for _, op in self.rows:
            requested = op.sharding
            if requested is not None and len(requested.spec.dims) == len(op.metas[0].shape):
                weight = constrain.constrain(
                    weight, requested.with_spec(Spec(requested.spec.dims[-1:]))
                )
        return weight


@dataclass(frozen=True, slots=True)
class _LmHeadBackward(Lowering):
    """The gradients of `_LmHead`'s input, weight and bias, as far as the mask has them."""

    forward: _LmHead
    output_mask: tuple[bool, ...]

    def lower(
        self,
        op: OpSpec,
        operands: Sequence[jax.Array],
        numbers: Sequence[jax.Array],
        layouts: Layouts,
    ) -> tuple[jax.Array, ...]:
        *of_forward, grad_output, logsumexp, total_weight = operands
        input, weight, target, bias, class_weights = self.forward.taken_in(of_forward)
        with self.forward.in_precision():
            rows_of = partial(self.forward.rows_of, self.forward.applied(input))
            rows, (_, pull) = rows_of(input), jax.vjp(rows_of, input)
            shape = rows.shape[:-1]
            grad_output = grad_output.reshape(shape) if grad_output.ndim else grad_output
            returns = (
                rows,
                weight,
                jnp.zeros(weight.shape[:1], input.dtype) if bias is None else bias,
            )
            grad_rows, *grads = chunked_losses.spmd_linear_cross_entropy_backward(
                grad_output,
                rows,
                weight,
                target.reshape(shape),
                bias,
                class_weights,
                *self.forward.settings(),
                logsumexp.reshape(shape),
                total_weight,
                (True, True, True),
                returns=returns,
            )
        masked_grads = itertools.compress((*pull(grad_rows), *grads), self.output_mask)
        return tuple(
            grad.reshape(meta.shape) for grad, meta in zip(masked_grads, op.metas, strict=True)
        )


def fuse(graph: Graph, may_scan: bool) -> tuple[Graph, str]:
    """Returns the graph with each LM head whose logits are large as two ops; and their number, in
    words."""
    heads = find(graph)
    if not heads:
        return graph, ""
    changes: dict[Node, Callable[[Rewrite, Node], None]] = {}
    for head in heads:
        changes |= {**dict.fromkeys(head.skipped, Rewrite.drop), head.loss: head.forward}
        if head.gradient is not None:
            changes[head.gradient] = head.backward
    return rewrite.rewrite(graph, changes), f"{len(heads)} LM heads in chunks"


def find(graph: Graph) -> list[Head]:
    """Returns the LM heads of a graph whose logits are large."""
    limit = config.max_logits_bytes * len(graph.mesh.device_ids)
    calls = (node for node in graph.nodes if _name(node) == "spmd.cross_entropy" and _is_call(node))
    losses = [node for node in calls if 0 < limit < _nbytes(node.operands[0])]
    if not losses:
        return []
    readers: dict[Any, list[Node]] = {walks.value_name(root): [_USER] for root in graph.roots}
    for node in graph.nodes:
        for operand in node.operands:
            readers.setdefault(walks.value_name(operand), []).append(node)
    return [head for loss in losses if (head := _head(loss, readers)) is not None]


def _nbytes(logits: Value) -> int:
    """The bytes of logits in the dtype in which they are summed."""
    return logits.meta.numel * floats.wide(logits.meta.struct.dtype).itemsize


_USER: Any = object()  # the reader of the program's results


def _head(loss: Node, readers: dict[Any, list[Node]]) -> Head | None:
    rows: list[Node] = []
    value = loss.operands[0]
    classes = value.meta.shape[-1] if len(value.meta.shape) == 2 else None
    visited = {loss}
    backward = [node for node in readers[walks.value_name(value)] if node is not loss]
    if len(backward) > 1 or any(node.op.name != "spmd.cross_entropy_backward" for node in backward):
        return None
    visited.update(backward)
    while (
        type(value) is Node
        and value.meta.shape[-1:] == (classes,)
        and visited.issuperset(readers[value])
    ):
        if _name(value) == "aten.linear":
            head = Head(value, rows, loss)
            if sum(_name(node) == "aten._to_copy" for node in rows) > 1 or not _is_usual(value):
                return None
            return _with_backward(head, backward[0], readers) if backward else head
        if _name(value) not in _ROWS or value.numbers or not _keeps_classes(value):
            return None
        rows.insert(0, value)
        visited.add(value)
        value = value.operands[0]
    return None


def _is_usual(product: Node) -> bool:
    """True if the weight is a matrix, and the product sums over the input's last dim."""
    return len(product.operands[1].meta.shape) == 2 and len(product.operands[0].meta.shape) > 1


def _keeps_classes(node: Node) -> bool:
    if _name(node) == "aten.slice.Tensor":
        rank = len(node.meta.shape)
        return _is_call(node) and _arguments(node.op).get("dim", 0) % rank != rank - 1
    return node.operands[0].meta.shape[-1] == node.meta.shape[-1]


def _with_backward(head: Head, loss_backward: Node, readers: dict[Any, list[Node]]) -> Head | None:
    """Returns the head with its gradients; None if a value between them has another reader."""
    head.loss_backward = value = loss_backward
    while (
        len(read_by := readers.get(value, [])) == 1
        and read_by[0] is not _USER
        and _name(read_by[0]) in _BACK
    ):
        (value,) = read_by
        head.back.append(value)
    expected_names = [_ROWS[_name(node)] for node in reversed(head.rows)]
    if [name for name in expected_names if name] != [
        _name(node) for node in head.back if _name(node) in _ROWS.values()
    ]:
        return None
    if len(read_by) != 1 or read_by[0] is _USER or _name(read_by[0]) != "aten.linear_backward":
        return None
    head.gradient = read_by[0]
    return head if _is_call(head.gradient) and head.gradient.operands[1] is value else None


def _name(node: Node) -> str:
    """Returns the op's name without the precision of its product."""
    return node.op.name.partition(":")[0]


def _is_call(node: Node) -> bool:
    """True if the op is as it was called: without a dynamic start and over no padded dim."""
    return hasattr(node.op.lowering, "arguments")


def _arguments(op: OpSpec) -> dict[str, Any]:
    """Returns the arguments of an aten call; tensors are their places."""
    return dict(op.lowering.arguments)  # type: ignore[attr-defined]  # only calls have these names
