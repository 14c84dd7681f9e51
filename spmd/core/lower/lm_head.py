"""Avoids large logits that only a cross entropy reads: the LM head and its gradients are lowered to
`ops.linear_cross_entropy` if the logits exceed `config.max_logits_bytes`.

The pattern is a product (`nn.Linear`, `x @ w.T`), ops on its rows (a cast, views, the shift by one token), a cross
entropy of class indices; and in the backward pass, if there is one, the same way back to the product's gradients. If an
intermediate value has another reader, the user among them, all of it is computed as written.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ..base.config import config
from ..ir.graph import Graph, Node, Value, value_name
from ..ops import linear_cross_entropy as ops
from ..ops.floats import wide
from ..ops.shape import aten_slice
from ..sharding.constrain import constrain
from ..sharding.spec import Spec

Arrays = tuple[jax.Array, ...]
Get = Callable[[Value], jax.Array]

# Ops that select, shard or cast rows of the logits, each with the op of its gradient, where one is required.
_ROWS = {
    "aten._to_copy": "aten._to_copy",
    "aten.slice.Tensor": "aten.slice_backward",
    **dict.fromkeys(("aten.view", "aten._unsafe_view", "aten.clone", "aten.alias", "mark_sharding")),
}
_BACK = {name for pair in _ROWS.items() for name in pair if name not in (None, "aten.slice.Tensor")}
_TRANSPOSES = ("aten.t", "aten.permute", "aten.transpose.int")


@dataclass(eq=False, slots=True)
class Head:
    """One product, the ops between it and a cross entropy, and the ops of its gradients.

    rows: from the product to the operand of the loss. back: from the loss's gradient to the product's. gradients: the
    ops that compute the product's gradients, each with its results: those of (input, weight, bias) by number, the
    transposed weight's as "T".
    """

    product: Node
    rows: list[Node]
    loss: Node
    loss_backward: Node | None = None
    back: list[Node] = field(default_factory=list)
    gradients: dict[Node, tuple[Any, ...]] = field(default_factory=dict)
    made: tuple[Any, ...] | None = None  # the gradients, while a program is traced

    @property
    def skipped(self) -> list[Node]:
        """The ops that are not computed."""
        return [self.product, *self.rows, *([self.loss_backward] if self.loss_backward else []), *self.back]

    def lowering(self, node: Node, get: Get) -> Callable[[Sequence[jax.Array]], Arrays] | None:
        """Returns the function that computes the results of the loss or of an op of gradients; None for a skipped
        op."""
        return partial(self._lower, node, get) if node is self.loss or node in self.gradients else None

    def _lower(self, node: Node, get: Get, operands: Sequence[jax.Array]) -> Arrays:
        # `operands` is empty, as some of the op's operands are never computed.
        precision = getattr(self.product.op.lowering, "precision", None)
        with jax.default_matmul_precision(precision) if precision else contextlib.nullcontext():
            if node is self.loss:
                return self._forward(get)
            if self.made is None:
                self.made = self._backward(get)
        grads = {0: self.made[0], 1: self.made[1], 2: self.made[2], "T": self.made[1].T}
        metas = node.op.metas
        return tuple(grads[place].reshape(meta.shape) for place, meta in zip(self.gradients[node], metas, strict=True))

    def _forward(self, get: Get) -> Arrays:
        input, weight, bias = self._of_product(get)
        target, *class_weights = map(get, self.loss.operands[1:])
        weight = self._placed(weight.T if _name(self.product) == "aten.mm" else weight)
        operands = self._rows_of(input), weight, target, bias, class_weights[0] if class_weights else None
        returns = tuple(meta.struct for meta in self.loss.op.metas)
        return ops.spmd_linear_cross_entropy(*operands, *self._settings(), returns=returns)

    def _backward(self, get: Get) -> tuple[Any, ...]:
        assert self.loss_backward is not None
        input, weight, bias = self._of_product(get)
        (first, *_) = self.gradients
        if _name(first) == "aten.linear_backward":  # its operands may be gathered or recomputed ones
            input, weight = get(first.operands[0]), get(first.operands[2])
        weight = self._placed(weight.T if _name(self.product) == "aten.mm" else weight)
        grad_output, target, *rest = (get(x) for i, x in enumerate(self.loss_backward.operands) if i != 1)
        *class_weights, logsumexp, total_weight = rest
        rows, pull = jax.vjp(self._rows_of, input)
        operands = rows, weight, target, bias, class_weights[0] if class_weights else None
        returns = rows, weight, jnp.zeros(weight.shape[:1], input.dtype) if bias is None else bias
        grad_rows, *grads = ops.spmd_linear_cross_entropy_backward(
            grad_output, *operands, *self._settings(), logsumexp, total_weight, (True, True, True), returns=returns
        )
        return *pull(grad_rows), *grads

    def _of_product(self, get: Get) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        input, weight, *bias = map(get, self.product.operands)
        return input, weight, bias[0] if bias else None

    def _settings(self) -> tuple[Any, ...]:
        given = _arguments(self.loss)
        logits = self.loss.operands[0].meta.struct
        names = "reduction", "ignore_index", "label_smoothing"
        return *(given[name] for name in names), logits.dtype, config.max_logits_bytes // ops.CHUNKS

    def _rows_of(self, input: jax.Array) -> jax.Array:
        """Returns the rows of the input that belong to the rows of the logits that the loss reads."""
        for node in self.rows:
            if _name(node) == "aten.slice.Tensor":
                input = aten_slice(input, **{name: x for name, x in _arguments(node).items() if name != "self"})
            elif node.op.sharding is not None:
                spec = Spec(node.op.sharding.spec.dims[: input.ndim - 1])
                input = constrain(input, node.op.sharding.with_spec(spec))
            else:
                input = input.reshape(*node.meta.shape[:-1], input.shape[-1])
        return input

    def _placed(self, weight: jax.Array) -> jax.Array:
        """Returns the weight, its classes sharded as an annotation of the logits requests."""
        for node in self.rows:
            requested = node.op.sharding
            if requested is not None and len(requested.spec.dims) == len(node.meta.shape):
                weight = constrain(weight, requested.with_spec(Spec(requested.spec.dims[-1:])))
        return weight


def find(graph: Graph) -> dict[Node, Head]:
    """Returns the ops of a graph that an LM head skips or lowers."""
    limit = config.max_logits_bytes * len(graph.mesh.device_ids)
    losses = [node for node in graph.nodes if _name(node) == "spmd.cross_entropy" and _is_call(node)]
    losses = [loss for loss in losses if 0 < limit < _nbytes(loss.operands[0])]
    if not losses:
        return {}
    readers: dict[Any, list[Node]] = {value_name(root): [_USER] for root in graph.roots}
    for node in graph.nodes:
        for operand in node.operands:
            readers.setdefault(value_name(operand), []).append(node)
    found = [head for loss in losses if (head := _head(loss, readers)) is not None]
    return {node: head for head in found for node in (*head.skipped, head.loss, *head.gradients)}


def _nbytes(logits: Value) -> int:
    """The bytes of logits in the dtype in which they are summed."""
    return logits.meta.numel * wide(logits.meta.struct.dtype).itemsize


_USER: Any = object()  # the reader of the program's results


def _head(loss: Node, readers: dict[Any, list[Node]]) -> Head | None:
    rows: list[Node] = []
    value = loss.operands[0]
    classes = value.meta.shape[-1] if len(value.meta.shape) == 2 else None
    seen = {loss}
    backward = [node for node in readers[value_name(value)] if node is not loss]
    if len(backward) > 1 or any(node.op.name != "spmd.cross_entropy_backward" for node in backward):
        return None
    seen.update(backward)
    while type(value) is Node and value.meta.shape[-1:] == (classes,) and seen.issuperset(readers[value]):
        if _name(value) in ("aten.linear", "aten.mm"):
            head = Head(value, rows, loss)
            if sum(_name(node) == "aten._to_copy" for node in rows) > 1 or not _is_usual(value):
                return None
            return _with_backward(head, backward[0], readers) if backward else head
        if _name(value) not in _ROWS or value.numbers or not _keeps_classes(value):
            return None
        rows.insert(0, value)
        seen.add(value)
        value = value.operands[0]
    return None


def _is_usual(product: Node) -> bool:
    """True if the weight is a matrix, and the product sums over the input's last dim."""
    return len(product.operands[1].meta.shape) == 2 and len(product.operands[0].meta.shape) > 1


def _keeps_classes(node: Node) -> bool:
    if _name(node) == "aten.slice.Tensor":
        rank = len(node.meta.shape)
        return _is_call(node) and _arguments(node).get("dim", 0) % rank != rank - 1
    return node.operands[0].meta.shape[-1] == node.meta.shape[-1]


def _with_backward(head: Head, loss_backward: Node, readers: dict[Any, list[Node]]) -> Head | None:
    """Returns the head with its gradients; None if a value between them has another reader."""
    head.loss_backward = value = loss_backward
    while (read_by := readers.get(value, [])) and len(read_by) == 1 and _name(read_by[0]) in _BACK:
        (value,) = read_by
        head.back.append(value)
    wanted = [_ROWS[_name(node)] for node in reversed(head.rows)]
    if [name for name in wanted if name] != [_name(node) for node in head.back if _name(node) in _ROWS.values()]:
        return None
    if not read_by or value.meta.shape != head.product.meta.shape:
        return None
    for node in read_by:
        if node is _USER or not _take_gradient(head, node, value, readers):
            return None
    return head


def _take_gradient(head: Head, node: Node, grad: Node, readers: dict[Any, list[Node]]) -> bool:
    """Adds an op that computes a gradient of the product from that of its result; returns False for any other op."""
    name, product = _name(node), head.product
    if name == "aten.linear_backward" and _is_call(node) and node.operands[1] is grad and not head.gradients:
        wanted = _arguments(node)["output_mask"]
        head.gradients[node] = tuple(place for place in range(3) if wanted[place])
        return True
    if name in _TRANSPOSES and len(node.meta.shape) == 2:
        head.back.append(node)
        return all(
            reader is not _USER and _take_mm(head, reader, node, "T", 1) for reader in readers.get(node, [_USER])
        )
    return _take_mm(head, node, grad, 0, "T") and _name(product) == "aten.mm"


def _take_mm(head: Head, node: Node, grad: Node, as_left: Any, as_right: Any) -> bool:
    """Adds a product of the gradient (perhaps transposed) and the other factor; returns False for any other op."""
    if _name(node) != "aten.mm" or _name(head.product) != "aten.mm":
        return False
    factors = [_base(operand) for operand in head.product.operands]
    left, right = node.operands
    if left is grad and as_left == 0 and _base(right) == _transposed(factors[1]):  # grad @ mat2.T
        head.gradients[node] = (0,)
    elif left is grad and as_left == "T" and _base(right) == factors[0]:  # grad.T @ self
        head.gradients[node] = (1,)
    elif right is grad and as_right == "T" and _base(left) == _transposed(factors[0]):  # self.T @ grad
        head.gradients[node] = ("T",)
    else:
        return False
    return True


def _base(value: Value) -> tuple[Any, bool]:
    """Returns the name of the value of which this is a chain of transposes, and whether their number is odd."""
    is_odd = False
    while type(value) is Node and _name(value) in _TRANSPOSES and len(value.meta.shape) == 2:
        value, is_odd = value.operands[0], not is_odd
    return value_name(value), is_odd


def _transposed(base: tuple[Any, bool]) -> tuple[Any, bool]:
    return base[0], not base[1]


def _name(node: Node) -> str:
    """Returns the op's name without the precision of its product."""
    return node.op.name.partition(":")[0]


def _is_call(node: Node) -> bool:
    """True if the op is as it was called: without a dynamic start and over no padded dim."""
    return hasattr(node.op.lowering, "arguments")


def _arguments(node: Node) -> dict[str, Any]:
    """Returns the arguments of an aten call; tensors are their places."""
    return dict(node.op.lowering.arguments)  # type: ignore[attr-defined]  # only calls have these names
