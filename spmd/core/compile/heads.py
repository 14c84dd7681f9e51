"""Large logits that only a cross entropy reads are not made: the head of a language model, and its gradients, are
lowered to `ops.linear_cross_entropy` where `config.max_logits_bytes` says so.

What is looked for is a product (`nn.Linear`, `x @ w.T`), rows of it (a cast, views, the shift by one token), a cross
entropy of class indices; and in the backward, where there is one, the same way back to the product's gradients. Where
anybody else reads what lies on the way, the user among them, all of it is made as written.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ..config import config
from ..ir.graph import Graph, Node, Value, value_name
from ..ops import linear_cross_entropy as ops
from ..ops.floats import wide
from ..ops.shape import aten_slice
from ..sharding.constrain import constrain
from ..sharding.spec import Spec

Arrays = tuple[jax.Array, ...]
Get = Callable[[Value], jax.Array]

# What chooses, places or casts whole rows of the logits, and what the gradient of it is called, where that matters.
_ROWS = {
    "aten._to_copy": "aten._to_copy",
    "aten.slice.Tensor": "aten.slice_backward",
    **dict.fromkeys(("aten.view", "aten._unsafe_view", "aten.clone", "aten.alias", "mark_sharding")),
}
_BACK = {name for pair in _ROWS.items() for name in pair if name not in (None, "aten.slice.Tensor")}
_TRANSPOSES = ("aten.t", "aten.permute", "aten.transpose.int")


@dataclass(eq=False, slots=True)
class Head:
    """One product, the rows of it that a cross entropy is taken of, and where their gradients go.

    rows: from the product to what the loss reads. back: from the loss's gradient to the product's. gradients: the ops
    that make the product's gradients, each with what its results are: those of (input, weight, bias) by number, the
    weight's transposed as "T".
    """

    product: Node
    rows: list[Node]
    loss: Node
    loss_backward: Node | None = None
    back: list[Node] = field(default_factory=list)
    gradients: dict[Node, tuple[Any, ...]] = field(default_factory=dict)
    made: tuple[Any, ...] | None = None  # while a program is traced: the gradients

    @property
    def skipped(self) -> list[Node]:
        """What is not computed."""
        return [self.product, *self.rows, *([self.loss_backward] if self.loss_backward else []), *self.back]

    def lowering(self, node: Node, get: Get) -> Callable[[Sequence[jax.Array]], Arrays] | None:
        """What makes the results of the loss, or of one of the ops that make gradients; None for what is skipped."""
        return partial(self._lower, node, get) if node is self.loss or node in self.gradients else None

    def _lower(self, node: Node, get: Get, operands: Sequence[jax.Array]) -> Arrays:
        """operands: none, as some were never made."""
        precision = getattr(self.product.entry.lowering, "precision", None)
        with jax.default_matmul_precision(precision) if precision else contextlib.nullcontext():
            if node is self.loss:
                return self._forward(get)
            if self.made is None:
                self.made = self._backward(get)
        grads = {0: self.made[0], 1: self.made[1], 2: self.made[2], "T": self.made[1].T}
        metas = node.entry.metas
        return tuple(grads[place].reshape(meta.shape) for place, meta in zip(self.gradients[node], metas, strict=True))

    def _forward(self, get: Get) -> Arrays:
        input, weight, bias = self._of_product(get)
        target, *class_weights = map(get, self.loss.operands[1:])
        weight = self._placed(weight.T if _name(self.product) == "aten.mm" else weight)
        operands = self._rows_of(input), weight, target, bias, class_weights[0] if class_weights else None
        returns = tuple(meta.struct for meta in self.loss.entry.metas)
        return ops.spmd_linear_cross_entropy(*operands, *self._settings(), returns=returns)

    def _backward(self, get: Get) -> tuple[Any, ...]:
        assert self.loss_backward is not None
        input, weight, bias = self._of_product(get)
        (first, *_) = self.gradients
        if _name(first) == "aten.linear_backward":  # its operands may have been read, or computed, anew
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
        return *(given[name] for name in names), logits.dtype, config.max_logits_bytes // ops.PIECES

    def _rows_of(self, input: jax.Array) -> jax.Array:
        """What of the input becomes the rows of the logits that the loss reads."""
        for node in self.rows:
            if _name(node) == "aten.slice.Tensor":
                input = aten_slice(input, **{name: x for name, x in _arguments(node).items() if name != "self"})
            elif node.entry.sharding is not None:
                spec = Spec(node.entry.sharding.spec.dims[: input.ndim - 1])
                input = constrain(input, node.entry.sharding.with_spec(spec))
            else:
                input = input.reshape(*node.meta.shape[:-1], input.shape[-1])
        return input

    def _placed(self, weight: jax.Array) -> jax.Array:
        """The weight, its classes split as an annotation of the logits wants them."""
        for node in self.rows:
            asked = node.entry.sharding
            if asked is not None and len(asked.spec.dims) == len(node.meta.shape):
                weight = constrain(weight, asked.with_spec(Spec(asked.spec.dims[-1:])))
        return weight


def find(graph: Graph) -> dict[Node, Head]:
    """The ops of a graph that are skipped, or lowered by a head."""
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
    rolled = {
        node for loop in graph.loops for node in graph.nodes[loop.start : loop.stop]
    }  # one turn is lowered for all
    found = [head for head in found if rolled.isdisjoint((*head.skipped, head.loss, *head.gradients))]
    return {node: head for head in found for node in (*head.skipped, head.loss, *head.gradients)}


def _nbytes(logits: Value) -> int:
    """Of logits, in the dtype in which they are summed."""
    return logits.meta.numel * wide(logits.meta.struct.dtype).itemsize


_USER: Any = object()  # stands for whoever holds a result of the program


def _head(loss: Node, readers: dict[Any, list[Node]]) -> Head | None:
    rows: list[Node] = []
    value = loss.operands[0]
    classes = value.meta.shape[-1] if len(value.meta.shape) == 2 else None
    seen = {loss}
    backward = [node for node in readers[value_name(value)] if node is not loss]
    if len(backward) > 1 or any(node.entry.name != "spmd.cross_entropy_backward" for node in backward):
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
    """Whether the weight is a matrix, and the input's last dim is what is summed over."""
    return len(product.operands[1].meta.shape) == 2 and len(product.operands[0].meta.shape) > 1


def _keeps_classes(node: Node) -> bool:
    if _name(node) == "aten.slice.Tensor":
        rank = len(node.meta.shape)
        return _is_call(node) and _arguments(node).get("dim", 0) % rank != rank - 1
    return node.operands[0].meta.shape[-1] == node.meta.shape[-1]


def _with_backward(head: Head, loss_backward: Node, readers: dict[Any, list[Node]]) -> Head | None:
    """The head with its gradients; None where anybody else reads what lies on their way."""
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
    """Adds an op that makes a gradient of the product from that of its result; False for any other op."""
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
    """Adds a product with the gradient (transposed, where it is that) on one side and the other factor on the other."""
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
    """What a value is the transpose of, and whether it is."""
    turned = False
    while type(value) is Node and _name(value) in _TRANSPOSES and len(value.meta.shape) == 2:
        value, turned = value.operands[0], not turned
    return value_name(value), turned


def _transposed(base: tuple[Any, bool]) -> tuple[Any, bool]:
    return base[0], not base[1]


def _name(node: Node) -> str:
    """The op, without the precision that its product may have."""
    return node.entry.name.partition(":")[0]


def _is_call(node: Node) -> bool:
    """Whether it is the op as it was called: not with a lifted position, nor over a padded dim."""
    return hasattr(node.entry.lowering, "arguments")


def _arguments(node: Node) -> dict[str, Any]:
    """The arguments of an aten call; tensors are their places."""
    return dict(node.entry.lowering.arguments)  # type: ignore[attr-defined]  # only calls have these names
