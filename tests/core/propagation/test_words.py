"""The table of words: a word in an operand and in a result is a dim that the op computes position
by position."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from spmd.core.propagation.walk import FLOWS, WORDS, DimWords, OpShapes, Shape, flow_of
from spmd.ops import RULES

aten = torch.ops.aten
B, H, S, T, D, E, K, M, N, V = 2, 3, 5, 4, 6, 7, 8, 9, 10, 11
MASK = [True, True, True]


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float64)


def ints(*shape: int) -> Shape:
    return ("int", *shape)  # type: ignore[return-value]  # a shape of indices


ATTENTION = aten._scaled_dot_product_fused_attention_overrideable
# By name: the overload, the shapes of its operands by name, its other arguments, the shapes of its
# results.
CASES = {
    "aten.addmm": (
        aten.addmm.default, {"self": (N,), "mat1": (M, K), "mat2": (K, N)}, {}, [(M, N)],
    ),
    "aten.baddbmm": (
        aten.baddbmm.default, {"self": (B, M, N), "batch1": (B, M, K), "batch2": (B, K, N)}, {},
        [(B, M, N)],
    ),
    "aten.bmm": (aten.bmm.default, {"self": (B, M, K), "mat2": (B, K, N)}, {}, [(B, M, N)]),
    "aten.mm": (aten.mm.default, {"self": (M, K), "mat2": (K, N)}, {}, [(M, N)]),
    "aten.mv": (aten.mv.default, {"self": (M, K), "vec": (K,)}, {}, [(M,)]),
    "aten.linear": (
        aten.linear.default, {"input": (B, S, K), "weight": (N, K), "bias": (N,)}, {}, [(B, S, N)],
    ),
    "aten.linear_backward": (
        aten.linear_backward.default,
        {"self": (B, S, K), "grad_output": (B, S, N), "weight": (N, K)}, {"output_mask": MASK},
        [(B, S, K), (N, K), (N,)],
    ),
    "aten.embedding": (
        aten.embedding.default, {"weight": (V, D), "indices": ints(B, S)}, {}, [(B, S, D)],
    ),
    "aten.embedding_dense_backward": (
        aten.embedding_dense_backward.default, {"grad_output": (B, S, D), "indices": ints(B, S)},
        {"num_weights": V, "padding_idx": -1, "scale_grad_by_freq": False}, [(V, D)],
    ),
    "aten.convolution": (
        aten.convolution.default, {"input": (B, D, S), "weight": (E, D, 3), "bias": (E,)},
        {
            "stride": [1], "padding": [1], "dilation": [1], "transposed": False,
            "output_padding": [0], "groups": 1,
        },
        [(B, E, S)],
    ),
    "aten.convolution_backward": (
        aten.convolution_backward.default,
        {"grad_output": (B, E, S), "input": (B, D, S), "weight": (E, D, 3)},
        {
            "bias_sizes": [E], "stride": [1], "padding": [1], "dilation": [1], "transposed": False,
            "output_padding": [0], "groups": 1, "output_mask": MASK,
        },
        [(B, D, S), (E, D, 3), (E,)],
    ),
    "aten._scaled_dot_product_fused_attention_overrideable": (
        ATTENTION.default, {"query": (B, H, S, D), "key": (B, H, T, D), "value": (B, H, T, E)},
        {"draw": (np.int64(1), np.int64(2))}, [(B, H, S, E), (B, H, S)],
    ),
    "aten._scaled_dot_product_fused_attention_overrideable_backward": (
        torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default,
        {
            "grad_out": (B, H, S, E), "query": (B, H, S, D), "key": (B, H, T, D),
            "value": (B, H, T, E), "out": (B, H, S, E), "logsumexp": (B, H, S),
        },
        {
            "attn_bias": None, "grad_input_mask": [*MASK, False], "cum_seq_q": None,
            "cum_seq_k": None, "max_q": S, "max_k": T, "dropout_p": 0.0, "is_causal": False,
            "philox_seed": None, "philox_offset": None,
        },
        [(B, H, S, D), (B, H, T, D), (B, H, T, E), None],
    ),
    "aten.t": (aten.t.default, {"self": (M, K)}, {}, [(K, M)]),
    "aten.transpose.int": (
        aten.transpose.int, {"self": (B, M, K)}, {"dim0": 0, "dim1": -1}, [(K, M, B)],
    ),
    "aten.permute": (aten.permute.default, {"self": (B, M, K)}, {"dims": [1, -1, 0]}, [(M, K, B)]),
    "aten.expand": (aten.expand.default, {"self": (M, 1)}, {"size": [B, M, K]}, [(B, M, K)]),
}  # fmt: skip
# Words whose positions read others, their neighbours or the whole row: shards of these are shards,
# with an exchange.
READ_OTHERS = {
    "aten.convolution": {-1},
    "aten.convolution_backward": {-1},
    "aten._scaled_dot_product_fused_attention_overrideable_backward": {"t", "d", "e"},
}


def operand(shape: Shape) -> np.ndarray:
    draw = np.random.default_rng(0)
    return draw.integers(0, V, shape[1:]) if shape[:1] == ("int",) else draw.standard_normal(shape)


@pytest.mark.parametrize("name", CASES)
def test_a_word_is_a_position(name: str) -> None:
    """With all other positions of a word changed, in all operands, the results at one position are
    the same."""
    overload, shapes, static, results = CASES[name]
    operands = {key: operand(shape) for key, shape in shapes.items()}
    operand_indices = {key: index for index, key in enumerate(operands)}
    flow = flow_of(
        name,
        OpShapes(
            operand_indices,
            static,
            [x.shape for x in operands.values()],
            [shape or () for shape in results],
            False,
        ),
    )
    order = [argument.name for argument in overload._schema.arguments]

    def run(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        given: dict[str, Any] = {
            key: jnp.asarray(value) for key, value in zip(operands, values, strict=True)
        } | static
        keywords = {key: value for key, value in given.items() if key not in order}
        returns = [None if shape is None else struct(*shape) for shape in results]
        if RULES[overload].wants_returns:
            keywords["returns"] = tuple(returns) if len(returns) > 1 else returns[0]
        positional = [given[key] for key in order if key in given]
        made = RULES[overload].function(*positional, **keywords)
        return [
            np.asarray(x)
            for x in (made if isinstance(made, (tuple, list)) else [made])
            if x is not None
        ]

    with jax.enable_x64(True):
        compare(flow, operands, run, READ_OTHERS.get(name, set()))


def compare(
    flow: DimWords,
    operands: dict[str, np.ndarray],
    run: Callable[..., list[np.ndarray]],
    skipped: set[Any],
) -> None:
    before = run(list(operands.values()))
    words = {word for of_result in flow.results for word in of_result if word is not None}
    shared = words & {word for of_operand in flow.operands.values() for word in of_operand}
    assert shared
    for word in shared - skipped:
        changed = []
        for place, value in enumerate(operands.values()):
            others = value.copy()
            for dim, of_dim in enumerate(flow.operands.get(place, ())):
                if of_dim == word and value.shape[dim] != 1:
                    rows = np.moveaxis(others, dim, 0)
                    rows[1:] = (rows[1:] + 1) % V if value.dtype.kind == "i" else rows[1:] + 1
            changed.append(others)
        for old, new, of_result in zip(before, run(changed), flow.results, strict=False):
            if word in of_result:
                first = [np.moveaxis(x, of_result.index(word), 0)[0] for x in (old, new)]
                np.testing.assert_allclose(*first, rtol=1e-9, atol=1e-9)


def test_every_entry_has_a_case() -> None:
    others = {name for name in {*WORDS, *FLOWS} if name.startswith("spmd.")}
    assert {*WORDS, *FLOWS} - others - {
        "aten.index.Tensor",
        "aten._grouped_mm",
        "aten.stack",
        "aten.unbind.int",
    } == set(CASES)
