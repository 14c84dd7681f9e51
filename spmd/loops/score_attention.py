"""Long attention with its logsumexp, and perhaps a function of its scores, as one recorded op and
one for its gradient.

The function is recorded once, of one score and its position; a kernel, or the loop over blocks,
calls it where the scores are, with whole tensors that it reads. Not here: which functions are
recorded (`flex_attention`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from ..core import dense_meta, storage_of, tensor_meta, view_of
from ..core.extend import (
    Arrays,
    Layouts,
    Lowering,
    OpSpec,
    Region,
    Score,
    attention,
    call,
    lowering,
    reads,
    soft_cap_of,
    walks,
)
from .capture import Capture
from .gradient import Tensors, record, tensors, with_gradient

# The elements of a tensor of which a loop over blocks carries the gradient.
_MOST = 1 << 16


@dataclass(frozen=True, slots=True)
class ScoreFunction:
    """A recorded function of (score, batch, head, row, column), all scalars, and of tensors, with
    its numbers. wanted: the tensors with a gradient, by their places."""

    body: Region
    numbers: tuple[float | int, ...]
    wanted: tuple[int, ...] = ()

    def __call__(self, *operands: jax.Array) -> jax.Array:
        values = {data: (x,) for data, x in zip(self.body.inputs, operands, strict=True)}
        floats, integers = walks.pack_numbers(self.body.nodes)
        vectors = np.array(floats, np.float64), np.array(integers, np.int64)
        with lowering.known_in(self.body.nodes, {}):
            lowering.lower_nodes(self.body.nodes, values, vectors, {})  # type: ignore[arg-type]
        return lowering.program_value(self.body.roots[0], values)  # type: ignore[return-value,arg-type]

    def score(self, tensors: Sequence[jax.Array]) -> Score:
        """The function of these tensors, as kernels take it."""
        caps: list[float | None] = []

        def look(*operands: jax.Array) -> jax.Array:
            result = self(*operands)
            caps.append(None if tensors else soft_cap_of(result, operands[0]))
            return result

        jax.make_jaxpr(look)(*(data.meta.struct for data in self.body.inputs))
        return Score(self, caps[0], tensors=tuple(tensors), wanted=self.wanted)


def recorded(
    function: Callable[..., Any], dtype: torch.dtype
) -> tuple[ScoreFunction, Tensors] | None:
    """A function of one score and its position as a recorded one, and the tensors that it reads;
    None for one that draws, or whose gradients of tensors need more than a loop may carry."""
    with Capture("flex_attention") as capture:
        metas = [dense_meta((), dtype), *[dense_meta((), torch.int32)] * 4]
        result = capture.run(function, *map(capture.stand_in, metas)).to(dtype)
        root, arguments = reads.operand(result), list(capture.arguments)
        constants = capture.outside([root], arguments)
        names = list(map(walks.value_name, constants))
        # The tensors with a gradient, by their values; views have values of their own.
        sources = {
            walks.value_name(storage_of(tensor).value): tensor
            for tensor in capture.reached(result)
            if view_of(tensor) is None
        }
        is_small = all(x.numel() <= _MOST and x.dtype.itemsize > 2 for x in sources.values())
        if not is_small or len(sources) < len(capture.reached(result)) or sources.keys() - names:
            return None
        nodes = walks.between([root], [*arguments, *constants])
        if any(node.op.draws or node.op.lowering.regions for node in nodes):
            return None
        numbers = tuple(number for node in nodes for number in node.numbers)
        wanted = tuple(place for place, name in enumerate(names) if name in sources)
        read = [
            sources.get(name, tensor)
            for name, tensor in zip(names, capture.tensors(constants), strict=True)
        ]
        body = Region.of([root], [*arguments, *constants])
        return ScoreFunction(body, numbers, wanted), read


@dataclass(frozen=True, slots=True)
class ScoreAttention(Lowering):
    """(output, logsumexp) of query, key, value, a mask and tensors of the function; or the
    gradients of the first three and of tensors, of these, the gradient of the output, the output,
    the logsumexp, and perhaps its gradient."""

    function: ScoreFunction | None
    scale: float
    has_mask: bool
    is_backward: bool = False

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        query, key, value, *rest = operands
        mask = rest.pop(0) if self.has_mask else None
        score = None
        if self.function is not None:
            count = len(self.function.body.inputs) - 5  # a score and its position
            score, rest = self.function.score(rest[:count]), rest[count:]
        how = {"score": score, "scale": self.scale}
        if not self.is_backward:
            return attention.scored_attention(query, key, value, mask, **how)
        grads: Any = attention.scored_attention_backward(query, key, value, mask, *rest, **how)
        return tuple(grads)


_ATTENTION = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
_BACKWARD = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default


def _torchs(func: Any, *args: Any, **named: Any) -> Any:
    """The results of an op of torch, as autograd calls it: with None for tensors of its schema."""
    return call.dispatch(func, (), args, named)


def score_attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    function: ScoreFunction | None,
    scale: float,
    read: Sequence[Any] = (),
) -> Tensors:
    """(output, logsumexp) of attention, perhaps with a recorded function of the scores before the
    mask, and of tensors (read).

    Without such a function these are torch's ops of attention, but for the gradient of a logsumexp.
    """
    operands = [query, key, value, *([] if mask is None else [mask]), *read]
    wanted = [] if function is None else [read[place] for place in function.wanted]
    inputs = [query, key, value, *wanted]
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    shape = *query.shape[:3], value.shape[-1]
    of_gradients = [dense_meta(x.shape, x.dtype) for x in inputs]
    results = dense_meta(shape, query.dtype), dense_meta(shape[:3], wide)
    of_forward = ScoreAttention(function, scale, mask is not None)
    of_backward = ScoreAttention(function, scale, mask is not None, is_backward=True)

    def run(name: str, lowering: ScoreAttention, operands: Sequence[Any], results: Any) -> Tensors:
        metas = tuple(tensor_meta(tensor) for tensor in operands)
        op = OpSpec.of(name, lowering, tuple(results), metas)
        return tensors(record(op, list(map(reads.operand, operands)), ()))

    def forward() -> tuple[Tensors, Sequence[torch.Tensor], Sequence[bool]]:
        if function is None:
            made = _torchs(_ATTENTION, query, key, value, mask, 0.0, False, scale=scale)
            result, saved = list(made[:2]), [made[6]]
        else:
            result, saved = run("spmd.score_attention", of_forward, operands, results), []
        return result, [*operands, *result, *saved], [True, True]

    def backward(saved: Sequence[Any], arriving: Sequence[Any]) -> Sequence[torch.Tensor | None]:
        count = len(operands)
        of_inputs, (output, logsumexp, *seeds) = saved[:count], saved[count:]
        grad = torch.zeros_like(output) if arriving[0] is None else arriving[0]
        if function is None and arriving[1] is None:
            mask = of_inputs[3] if count > 3 else None
            arrays = grad, *of_inputs[:3], mask, [True] * 3 + [False], output, logsumexp
            rest = None, None, output.shape[2], of_inputs[1].shape[2], 0.0, False, *seeds, None
            return _torchs(_BACKWARD, *arrays, *rest, scale=scale)[:3]
        of_logsumexp = [x for x in arriving[1:] if x is not None]
        all_operands = [*of_inputs, grad, output, logsumexp, *of_logsumexp]
        return run("spmd.score_attention_backward", of_backward, all_operands, of_gradients)

    return with_gradient("flex_attention", inputs, forward, backward, zeros=False)
