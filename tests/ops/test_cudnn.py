"""cuDNN's attention kernel: which attention it takes on which GPU, what it is told, and values and
gradients by a stand-in for the call.

The kernel cannot run here. The stand-in has the semantics of cuDNN's frontend: causality and a
window of the columns i - window + 1 to i of row i, both counted from the top left; a bias that is
added behind the scale; a backward that makes its own row sums of grad_out * out, and the weights
from the logsumexp. `python -m recipes.benchmarks.race` compares values on a GPU.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.interpreters import mlir
from support import TOLERANCE, check
from torch.nn import functional as F
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import spmd
from spmd import P
from spmd.core.programs import cache
from spmd.core.sharding.partitioner import compiler_context
from spmd.ops import attention, sharded
from spmd.ops.jax_internals import cudnn_attention
from spmd.ops.kernels import cudnn
from spmd.ops.kernels.mask_blocks import band_of, causal
from spmd.ops.kernels.mask_reader import equations_and_values

HOPPER, AMPERE, BLACKWELL = (9, 0), (8, 0), (10, 0)
WINDOW, LENGTH = 100, 512
Mask = Callable[[Any, Any], Any]


# -- The stand-in.


def _scores(query, key, bias, *, scale, mask_type, sliding_window_length, variadic_args):
    group = query.shape[1] // key.shape[1]
    dots = jnp.einsum("bhsd,bhld->bhsl", query, jnp.repeat(key, group, 1).astype(jnp.float32))
    dots = dots * scale + (bias.astype(jnp.float32) if variadic_args[0] else 0)
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, dots.shape, dim) for dim in (2, 3))
    if mask_type == cudnn_attention.MaskType.CAUSAL:
        dots = jnp.where(columns > rows, -jnp.inf, dots)
    if sliding_window_length is not None:
        dots = jnp.where(columns <= rows - sliding_window_length, -jnp.inf, dots)
    return dots


def _options(how):
    names = "scale", "mask_type", "sliding_window_length", "variadic_args"
    return {name: how[name] for name in names}


def _forward(query, key, value, bias, *rest, **how):
    scores = _scores(query, key, bias, **_options(how))
    value = jnp.repeat(value, query.shape[1] // value.shape[1], 1).astype(jnp.float32)
    output = jnp.einsum("bhsl,bhld->bhsd", jax.nn.softmax(scores), value)
    return output.astype(query.dtype), jax.nn.logsumexp(scores, -1)


def _backward(query, key, value, bias, *rest, **how):
    *_, logsumexp, output, grad_output = rest
    heads, group = key.shape[1], query.shape[1] // key.shape[1]
    repeated = [jnp.repeat(x, group, 1).astype(jnp.float32) for x in (key, value)]
    weights = jnp.exp(_scores(query, key, bias, **_options(how)) - logsumexp[..., None])
    grad_weights = jnp.einsum("bhsd,bhld->bhsl", grad_output, repeated[1])
    row_sums = jnp.sum(output.astype(jnp.float32) * grad_output.astype(jnp.float32), -1)
    grad_scores = weights * (grad_weights - row_sums[..., None])

    def of_heads(x):
        return x.reshape(x.shape[0], heads, group, *x.shape[2:]).sum(2)

    grads = [
        how["scale"] * jnp.einsum("bhsl,bhld->bhsd", grad_scores, repeated[0]),
        how["scale"] * of_heads(jnp.einsum("bhsl,bhsd->bhld", grad_scores, query)),
        of_heads(jnp.einsum("bhsl,bhsd->bhld", weights, grad_output)),
    ]
    if how["variadic_args"][1]:
        dims = [dim for dim in (0, 1) if bias.shape[dim] < grad_scores.shape[dim]]
        grads.append(jnp.sum(grad_scores, dims, keepdims=True))
    operands = query, key, value, bias
    return [grad.astype(x.dtype) for grad, x in zip(grads, operands, strict=False)]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Attention of CPU programs by cuDNN's call, which the stand-in computes, in float32, too.

    Returns the form of each call: "cuda", or "default" where it is not taken.
    """
    forms: list[str] = []

    def by_platform(*operands: Any, default: Any, **kernels: Any) -> Any:
        forms.append("cuda" if "cuda" in kernels else "default")
        return kernels.get("cuda", default)(*operands)

    for name, body in (("fwd", _forward), ("bwd", _backward)):
        primitive = getattr(cudnn_attention, f"_dot_product_attention_{name}_p")
        mlir.register_lowering(
            primitive, mlir.lower_fun(body, multiple_results=True), platform="cpu"
        )

    def facts_of(*how: Any) -> sharded.Facts:
        return of(*how)._replace(platform="gpu", capability=HOPPER)

    of = sharded.Facts.of
    monkeypatch.setattr(sharded.Facts, "of", facts_of)
    monkeypatch.setattr(jax.lax, "platform_dependent", by_platform)
    monkeypatch.setitem(cudnn._FORMATS, jnp.dtype(jnp.float32), cudnn._Format(8, 23, -(2.0**40)))
    cache.clear_cache()
    yield forms
    cache.clear_cache()


def _window(rows: Any, columns: Any) -> Any:
    return (rows >= columns) & (rows - columns < WINDOW)


def _documents_and_padding(rows: Any, columns: Any) -> Any:
    """Rows from 400 on are padding, and see nothing."""
    return (rows // 128 == columns // 128) & (rows >= columns) & (rows < 400)


def bias_of(name: str, device: str = "cpu") -> torch.Tensor | None:
    """A mask or bias of [2 sequences, 4 heads]."""
    shapes = {"heads": (1, 4, LENGTH, LENGTH), "sequences": (2, 1, 1, LENGTH), "all": (LENGTH, 1)}
    rows = torch.arange(LENGTH)
    if name in shapes:
        torch.manual_seed(1)
        return torch.randn(shapes[name])
    if name == "hidden":  # float, with rows that see nothing
        seen = _documents_and_padding(rows[:, None], rows)
        return torch.randn(LENGTH, LENGTH).masked_fill(~seen, -torch.inf)
    if name == "lowest":  # of rows of the lowest number the mean, as torch has it
        seen = _documents_and_padding(rows[:, None], rows)
        return torch.zeros(LENGTH, LENGTH).masked_fill(~seen, torch.finfo(torch.float32).min)
    if name == "booleans":
        return _documents_and_padding(rows[:, None], rows)
    if name == "padding":
        return (rows < torch.tensor([[400], [512]]))[:, None, None]
    return None


class TestValues:
    """Values and gradients equal torch's, over two sequences and four heads on eight devices, by
    both partitioners."""

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    @pytest.mark.parametrize(
        ("name", "kv_heads", "is_causal"),
        [
            ("window", 2, False),
            ("window", 4, False),
            ("heads", 4, False),
            ("heads", 2, True),
            ("sequences", 2, False),
            ("all", 4, False),
            ("hidden", 2, False),
            ("lowest", 4, False),
            ("booleans", 4, False),
            ("padding", 2, False),
            ("documents", 4, False),
            ("documents and ids", 2, False),
        ],
    )
    def test_against_torch(
        self,
        name: str,
        kv_heads: int,
        is_causal: bool,
        partitioner: str,
        stand_in: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)
        mesh = spmd.Mesh(range(8), (2, 4) if kv_heads == 4 else (4, 2), ("data", "heads"))
        torch.manual_seed(0)
        operands = [torch.randn(4, heads, LENGTH, 16) for heads in (4, kv_heads, kv_heads)]
        bias, weights = bias_of(name), torch.randn(4, 4, LENGTH, 16) / 4
        if bias is not None and bias.shape[0] == 2:
            bias = bias.repeat(2, 1, 1, 1)

        def run(device: str) -> list[torch.Tensor | None]:
            leaves = [x.detach().to(device).requires_grad_() for x in operands]
            given = None if bias is None else bias.detach().to(device)
            wants_bias = given is not None and name in ("heads", "sequences", "all")
            if device == "xla":
                for leaf in leaves:
                    spmd.mark_sharding(leaf, mesh, P("data", "heads", None, None))
            if given is None:
                places = torch.arange(LENGTH, device=device)
                given = _window(places[:, None], places)
                if name.startswith("documents"):
                    given = _documents_and_padding(places[:, None], places)
                if name == "documents and ids":
                    ids = (torch.arange(LENGTH) // 60).to(device)
                    given = given & (ids[:, None] == ids)
            elif wants_bias:
                given.requires_grad_()
            mask, causal_too = given, is_causal
            if is_causal and device == "cpu":
                upper = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
                mask, causal_too = given.masked_fill(upper, -torch.inf), False
            out = F.scaled_dot_product_attention(
                *leaves, attn_mask=mask, is_causal=causal_too, enable_gqa=kv_heads < 4
            )
            (out * weights.to(device)).sum().backward()
            return [out, *(leaf.grad for leaf in leaves), given.grad if wants_bias else None]

        for made, expected in zip(run("xla"), run("cpu"), strict=True):
            assert (made is None) == (expected is None)
            if made is not None and expected is not None:
                check(made, expected)
        assert set(stand_in) == {"cuda"}

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_gradient_of_the_logsumexp(self, dtype: torch.dtype, stand_in: list[str]) -> None:
        """Sinks, as gpt-oss has them: a product of the output and sigmoid(logsumexp - sink)."""
        torch.manual_seed(0)
        operands = [torch.randn(2, heads, LENGTH, 16, dtype=dtype) for heads in (4, 2, 2)]
        sinks, weights = torch.randn(4), torch.randn(2, 4, LENGTH, 16)

        def run(device: str) -> list[torch.Tensor]:
            leaves = [x.detach().to(device).requires_grad_() for x in (*operands, sinks)]
            *qkv, sink = leaves
            if device == "cpu":
                key, value = (x.repeat_interleave(2, 1) for x in qkv[1:])
                scores = (qkv[0].float() @ key.float().mT) / 4
                places = torch.arange(LENGTH)
                scores = scores.masked_fill(~_window(places[:, None], places), -torch.inf)
                logsumexp, out = scores.logsumexp(-1), scores.softmax(-1) @ value.float()
            else:
                blocks = create_block_mask(
                    lambda b, h, i, j: _window(i, j), None, None, LENGTH, LENGTH, device=device
                )
                out, aux = flex_attention(
                    *qkv, block_mask=blocks, enable_gqa=True, return_aux=AuxRequest(lse=True)
                )
                logsumexp = aux.lse
            out = out.float() * torch.sigmoid(logsumexp - sink[:, None])[..., None]
            (out * weights.to(device)).sum().backward()
            return [out, *(leaf.grad for leaf in leaves if leaf.grad is not None)]

        made, expected = run("xla"), run("cpu")
        rtol, atol = TOLERANCE[dtype]
        for x, y in zip(made, expected, strict=True):
            torch.testing.assert_close(x.cpu().float(), y.float(), rtol=rtol, atol=4 * atol)
        assert set(stand_in) == {"cuda"}

    @pytest.mark.parametrize("exchange", ["ring", "gathered", "all-to-all"])
    @pytest.mark.parametrize("name", ["window", "documents", "padding", "causal padding", "heads"])
    def test_sharded_sequence(
        self, name: str, exchange: str, stand_in: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each pair of chunks by the kernel, with its part of a bias or of a mask."""
        monkeypatch.setattr(spmd.config, "parallel", exchange)
        mesh = spmd.Mesh(range(8), (2, 4), ("data", "context"))
        torch.manual_seed(0)
        operands = [torch.randn(2, 4, LENGTH, 16) for _ in range(3)]
        bias, weights = bias_of(name.removeprefix("causal ")), torch.randn(2, 4, LENGTH, 16)
        known = {"window": _window, "documents": _documents_and_padding}.get(name, torch.ge)

        def run(device: str) -> list[torch.Tensor | None]:
            leaves = [x.detach().to(device).requires_grad_() for x in operands]
            places = torch.arange(LENGTH, device=device)
            mask = known(places[:, None], places) if bias is None else bias.to(device)
            mask = mask & torch.ge(places[:, None], places) if "causal" in name else mask
            if device == "xla":
                for leaf in leaves:
                    spmd.mark_sharding(leaf, mesh, P("data", None, "context", None))
            out = F.scaled_dot_product_attention(*leaves, attn_mask=mask)
            (out * weights.to(device)).sum().backward()
            return [out, *(leaf.grad for leaf in leaves)]

        for made, expected in zip(run("xla"), run("cpu"), strict=True):
            assert made is not None and expected is not None
            check(made, expected)
        assert set(stand_in) == {"cuda"}


class TestCalls:
    """The calls in the StableHLO for a GPU, of forward and backward."""

    def calls(
        self,
        mask: Mask | jax.ShapeDtypeStruct | None = None,
        *,
        widths: tuple[int, int] = (64, 64),
        capability: tuple[int, int] = HOPPER,
        is_causal: bool = False,
        wants_bias: bool = False,
        length: int = 1024,
    ) -> tuple[list[tuple[str, str, int]], int]:
        """(name, kind of mask, window) of each call, and the number of loops."""
        of_keys, of_values = (
            jax.ShapeDtypeStruct((8, 8, length, width), jnp.bfloat16) for width in widths
        )
        bias = mask if isinstance(mask, jax.ShapeDtypeStruct) else None

        def both(q: Any, k: Any, v: Any, bias: Any, grad: Any) -> Any:
            places = jnp.arange(length)
            given = mask(places[:, None], places[None]) if callable(mask) else bias
            statics = 0.0, is_causal
            out, logsumexp, seed = attention.aten_attention(
                q, k, v, given, *statics, draw=(jnp.int64(1), jnp.int64(2))
            )
            saved = out, logsumexp, None, None, length, length, *statics, seed, seed
            returns = q, k, v, given if wants_bias else None
            wanted = [True, True, True, wants_bias]
            grads = attention.aten_attention_backward(
                grad, q, k, v, given, wanted, *saved, returns=returns
            )
            return out, [x for x in grads if x is not None]

        facts = sharded.Facts(platform="gpu", capability=capability)
        with compiler_context(), sharded.tracing(facts):
            traced = jax.jit(both).trace(of_keys, of_keys, of_values, bias, of_values)
            text = traced.lower(lowering_platforms=("cuda",)).as_text()
        lines = [line for line in text.splitlines() if "custom_call @__cudnn" in line]
        pattern = r"@__cudnn\$fmha(\w+).*mask_type\\22: \\22(\w+)\\22.*window_length\\22: (\d+)"
        matches = [re.search(pattern, line) for line in lines]
        found = [(m[1], m[2], int(m[3])) for m in matches if m is not None]
        assert len(found) == len(lines)
        return found, text.count("stablehlo.while")

    def both(self, kind: str, window: int, prefix: str = "Softmax") -> Any:
        return [(prefix, kind, window), (f"{prefix}Backward", kind, window)], 0

    def test_window(self) -> None:
        assert self.calls(_window) == self.both("CAUSAL", WINDOW)
        wider = self.calls(lambda i, j: (i >= j) & (i - j < 4096))
        assert wider == self.both("CAUSAL", 0) == self.calls(jnp.greater_equal)

    def test_window_as_floats(self) -> None:
        """0 and -inf, or the lowest number, in the operands' dtype."""
        lowest = jnp.finfo(jnp.bfloat16).min
        for hidden in (-jnp.inf, lowest):

            def mask(i: Any, j: Any, hidden: Any = hidden) -> Any:
                return jnp.where(_window(i, j), 0.0, hidden).astype(jnp.bfloat16)

            assert self.calls(mask) == self.both("CAUSAL", WINDOW)

    def test_bias(self) -> None:
        prefix = "ScaleBiasSoftmax"
        for shape, dtype in (
            ((1, 8, 1024, 1024), jnp.bfloat16),
            ((8, 1, 1, 1024), jnp.bool_),
            ((1024, 1024), jnp.bfloat16),
        ):
            bias = jax.ShapeDtypeStruct(shape, dtype)
            wants = dtype != jnp.bool_
            assert self.calls(bias, wants_bias=wants) == self.both("NO_MASK", 0, prefix)
        assert self.calls(bias, is_causal=True) == self.both("CAUSAL", 0, prefix)

    def test_other_masks_are_biases(self) -> None:
        """Known ones, and such that hold data; causality stays the kernel's."""
        prefix = "ScaleBiasSoftmax"
        documents = self.calls(lambda i, j: (i >= j) & (i // 128 == j // 128))
        assert documents == self.both("CAUSAL", 0, prefix)
        assert self.calls(lambda i, j: abs(i - j) < WINDOW) == self.both("NO_MASK", 0, prefix)

    def test_widths(self) -> None:
        whole, blocks = self.both("CAUSAL", 0), ([], 2)
        for widths, capability, expected in (
            ((256, 256), HOPPER, whole),
            ((256, 256), AMPERE, blocks),
            ((256, 256), BLACKWELL, blocks),
            ((192, 128), HOPPER, whole),
            ((192, 128), BLACKWELL, whole),
            ((192, 128), AMPERE, blocks),
            ((264, 264), HOPPER, blocks),
            ((128, 64), HOPPER, blocks),
            ((128, 128), AMPERE, whole),
        ):
            made = self.calls(widths=widths, capability=capability, is_causal=True)
            assert made == expected, (widths, capability)

    def test_old_cudnn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cudnn, "cudnn_version", lambda: 90800)
        assert self.calls(widths=(192, 128), is_causal=True) == ([], 2)
        assert self.calls(widths=(256, 256), is_causal=True) == self.both("CAUSAL", 0)

    @pytest.mark.parametrize(
        ("mask", "how"),
        [
            (lambda i, j: (i >= j) & (i // 128 == j // 128), {"length": 1023}),
            (lambda i, j: (i - j).astype(jnp.float32), {}),
            (jax.ShapeDtypeStruct((1, 8, 1024, 1024), jnp.float32), {}),
            (jax.ShapeDtypeStruct((1, 8, 1023, 1023), jnp.bfloat16), {"length": 1023}),
        ],
    )
    def test_blocks(self, mask: Any, how: Any) -> None:
        assert self.calls(mask, **how)[0] == []

    def test_large_bias(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a gradient the kernel writes the gradients of all scores."""
        bias = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
        monkeypatch.setattr(cudnn, "MOST_OF_BIAS", 64 << 20)
        assert self.calls(bias) == self.both("NO_MASK", 0, "ScaleBiasSoftmax")
        made = self.calls(bias, wants_bias=True)[0]
        assert [name for name, _, _ in made] == ["ScaleBiasSoftmax"]


def _band(mask: Mask, rows: int = 40, columns: int = 40) -> Any:
    bands: list[Any] = []

    def trace() -> int:
        places = jnp.arange(rows)[:, None], jnp.arange(columns)[None]
        bands.append(band_of(equations_and_values(mask(*places))[0].of_condition()))
        return 0

    jax.make_jaxpr(trace)()
    return bands[0]


class TestBands:
    """The differences of row and column that a mask leaves."""

    def test_bands(self) -> None:
        assert band_of(causal(40, 30)) == (0, 39)
        assert _band(lambda i, j: (i >= j) & (i - j < 7)) == (0, 6)
        assert _band(lambda i, j: abs(i - j) < 7) == (-6, 6)
        assert _band(lambda i, j: jnp.where(i - j > 3, -jnp.inf, 0.0)) == (-39, 3)

    def test_others(self) -> None:
        assert _band(lambda i, j: (i >= j) & (i // 8 == j // 8)) is None
        assert _band(lambda i, j: (i - j) % 2 == 0) is None
        assert _band(lambda i, j: i - j > 100) is None
        assert _band(lambda i, j: jnp.where(i > j, 1.0, 0.0)) is None
