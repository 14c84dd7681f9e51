"""Scaled dot-product attention against torch on CPU: as one array of scores, block by block, and
lowered for a GPU."""

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from support import Batch, check, run_script
from torch.nn import functional as F

import spmd
from spmd.core.programs import cache
from spmd.core.sharding.partitioner import compiler_context
from spmd.ops import attention
from spmd.ops.kernels import flash

sdpa = F.scaled_dot_product_attention
BATCH, HEADS, LENGTH = (
    ("fsdp", None, None, None),
    (None, "fsdp", None, None),
    (None, None, "fsdp", None),
)


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks so short that few rows make several; neither length below is a multiple of its
    block."""
    use_blocks(monkeypatch, 4, 3)
    yield
    cache.clear_cache()


def use_blocks(monkeypatch: pytest.MonkeyPatch, *block: int) -> None:
    """Everything block by block, in blocks of this size; what was compiled for other blocks is
    forgotten."""
    cache.clear_cache()
    monkeypatch.setattr(attention, "LONG", 1)
    monkeypatch.setattr(flash, "BLOCK", block)


def causal_and(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: torch.Tensor
) -> torch.Tensor:
    """Attention by a mask or bias and causality. The CPU takes one of them from torch 2.15 on."""
    if not q.is_xla:
        upper = torch.ones(given.shape[-2:], dtype=torch.bool).triu(1)
        given = given.masked_fill(upper, False if given.dtype == torch.bool else float("-inf"))
        return sdpa(q, k, v, given, enable_gqa=q.shape[1] != k.shape[1])
    return sdpa(q, k, v, given, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def attentions(batch: Batch, dtype: torch.dtype) -> None:
    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(dtype)

    q, k, v = make(8, 4, 5, 8), make(8, 4, 7, 8), make(8, 4, 7, 8)
    batch.case("plain", sdpa, q, k, v)
    batch.case("causal", lambda q, k, v: sdpa(q, k, v, is_causal=True), q, k, v)
    batch.case(
        "causal, more queries than keys", lambda q, k, v: sdpa(q, k, v, is_causal=True), k, q, q
    )
    batch.case("scale", lambda q, k, v: sdpa(q, k, v, scale=0.3), q, k, v)
    batch.case("value of another width", sdpa, q, k, make(8, 4, 7, 3))
    batch.case(
        "heads without a batch", sdpa, make(8, 5, 8), make(8, 7, 8), make(8, 7, 8), make(8, 5, 7)
    )
    for shape in ((8, 4, 5, 7), (1, 1, 5, 7), (5, 7), (8, 1, 1, 7), (4, 5, 1)):
        bias = make(*shape)
        # The same for all columns, it has a gradient of 0: float16 keeps rounding errors alone,
        # which depend on the processor.
        if shape != (4, 5, 1) or dtype is not torch.float16:
            batch.case(f"bias {shape}", sdpa, q, k, v, bias)
    mask = torch.rand(5, 7) > 0.4
    mask[:, 0] = True
    batch.case("mask", sdpa, q, k, v, mask)
    mask[2] = False
    batch.case("mask of a whole row", sdpa, q, k, v, mask)
    batch.case(
        "bias that forbids a whole row", sdpa, q, k, v, make(5, 7).masked_fill(~mask, float("-inf"))
    )
    for name, given in (
        ("mask", mask.clone()),
        ("bias", make(5, 7)),
        ("bias of heads", make(8, 4, 5, 7)),
    ):
        batch.case(f"{name}, causal", causal_and, q, k, v, given)
        batch.case(
            f"{name}, causal, grouped", causal_and, q, k[:, :2].clone(), v[:, :2].clone(), given
        )
    sequences = (torch.arange(8) % 3 > 0).reshape(8, 1, 1, 1).expand(8, 1, 1, 7)
    batch.case("mask of whole sequences", sdpa, q, k, v, sequences)
    one, width = make(8, 1, 7, 8), make(8, 1, 7, 3)
    batch.case("one head of keys and values for all", sdpa, q, one, one)
    batch.case("one head of values, of another width", sdpa, q, k, width)
    batch.case("one head of queries", sdpa, q[:, :1].clone(), k, v)
    for kv_heads in (1, 2):
        k, v = make(8, kv_heads, 7, 8), make(8, kv_heads, 7, 8)
        batch.case(
            f"grouped {kv_heads}",
            lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True),
            q,
            k,
            v,
        )
        bias = make(8, 4, 5, 7)
        batch.case(
            f"grouped {kv_heads}, bias",
            lambda q, k, v, b: sdpa(q, k, v, b, enable_gqa=True),
            q,
            k,
            v,
            bias,
        )


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
class TestAttention:
    """Causal, scaled, biased, masked and grouped attention, with gradients of every input."""

    def test_against_cpu(self, dtype):
        batch = Batch()
        attentions(batch, dtype)
        batch.check()

    def test_blocks(self, dtype, short_blocks):
        batch = Batch()
        attentions(batch, dtype)
        batch.check()


class TestLong:
    """From `LONG` scores a head on the scores are made block by block, at the true block size."""

    @pytest.mark.parametrize("lengths", [(512, 512), (530, 600)])
    def test_against_cpu(self, lengths):
        rows, columns = lengths
        q, k, v = (
            torch.randn(1, 2, rows, 8),
            torch.randn(1, 1, columns, 8),
            torch.randn(1, 1, columns, 8),
        )
        batch = Batch()
        batch.case(
            "causal", lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True), q, k, v
        )
        batch.case(
            "bias",
            lambda q, k, v, b: sdpa(q, k, v, b, enable_gqa=True),
            q,
            k,
            v,
            torch.randn(rows, columns),
        )
        batch.case("mask, causal", causal_and, q, k, v, torch.rand(rows, columns) > 0.3)
        batch.check()

    @pytest.mark.parametrize(
        ("lengths", "block"),
        [
            ((8192, 8192), (256, 256)),
            ((1, 500_000), (1, 65_536)),
            ((8192, 64), (1024, 64)),
            ((40, 30), (40, 30)),
        ],
    )
    def test_block(self, lengths, block):
        query, key = jnp.ones((1, 1, 1, lengths[0], 1)), jnp.ones((1, 1, lengths[1], 1))
        scores = flash._Scores.with_block(query, key, None, flash.NO_MASK, 1.0)
        assert scores.block == block

    def test_short_is_whole(self):
        assert not attention.is_long(jnp.ones((16, 8, 128, 1)), jnp.ones((16, 8, 128, 1)))


def dropped_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, seed: int = 0, **how: Any
) -> Any:
    """(output, gradients of q, k and v) of attention on the device under dropout, all from one
    seed."""
    torch.manual_seed(seed)
    operands = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    output = sdpa(*operands, dropout_p=0.4, enable_gqa=True, **how)
    cotangent = torch.linspace(0.5, 1.5, output.numel()).reshape(output.shape).to(output.device)
    return [output.detach(), *torch.autograd.grad(output, operands, cotangent)]


class TestDropout:
    """Dropout keeps the expectation, and the backward drops what the forward dropped, however the
    work is cut."""

    def test_gradient_matches_mask(self):
        # With v the identity the output is the dropped probabilities themselves; the gradient of v
        # shows the same mask.
        q, k = torch.randn(1, 1, 16, 16), torch.randn(1, 1, 16, 16)
        v = torch.eye(16)[None, None].to("xla").requires_grad_()
        out = sdpa(q.to("xla"), k.to("xla"), v, dropout_p=0.5)
        cotangent = torch.eye(16)[None, None].to("xla")
        (grad,) = torch.autograd.grad(out, v, cotangent)
        dropped = out.detach().cpu()[0, 0]
        torch.testing.assert_close(grad.cpu()[0, 0], dropped.T)
        assert 0.3 < (dropped == 0).float().mean() < 0.7

    def test_expectation(self):
        # Equal scores and values of one: an output row is the share that was kept, scaled up. 64 x
        # 2,048 numbers.
        q, k, v = torch.zeros(1, 4, 16, 8), torch.zeros(1, 4, 2048, 8), torch.ones(1, 4, 2048, 8)
        kept = sdpa(q.to("xla"), k.to("xla"), v.to("xla"), dropout_p=0.25).cpu()[..., 0]
        deviation = (0.25 / 0.75 / 2048) ** 0.5
        assert (kept - 1).abs().max() < 5 * deviation
        assert 0.5 * deviation < kept.std() < 1.5 * deviation
        assert len(set(kept.flatten().tolist())) > 16  # no two rows share their numbers

    @pytest.mark.parametrize("how", [{}, {"is_causal": True}])
    def test_values_and_gradients(self, how, short_blocks):
        q, k, v = torch.randn(2, 4, 13, 8), torch.randn(2, 2, 11, 8), torch.randn(2, 2, 11, 8)
        eye = torch.eye(11).expand(2, 2, 11, 11)
        keep = dropped_attention(q.to("xla"), k.to("xla"), eye.to("xla"), **how)[0].cpu() != 0
        made = dropped_attention(q.to("xla"), k.to("xla"), v.to("xla"), **how)
        operands = [tensor.requires_grad_() for tensor in (q, k, v)]
        scores = q @ k.repeat_interleave(2, 1).mT / 8**0.5
        if how:
            scores = scores.masked_fill(torch.ones(13, 11).tril() == 0, float("-inf"))
        output = (scores.softmax(-1) * keep / 0.6) @ v.repeat_interleave(2, 1)
        cotangent = torch.linspace(0.5, 1.5, output.numel()).reshape(output.shape)
        for one, other in zip(
            made, (output, *torch.autograd.grad(output, operands, cotangent)), strict=True
        ):
            check(one, other)

    def test_same_numbers_however_cut(self, monkeypatch, mesh8):
        q, k, v = (
            torch.randn(8, heads, length, 8) for heads, length in ((8, 10), (8, 12), (8, 12))
        )
        whole = [
            made.cpu() for made in dropped_attention(*(tensor.to("xla") for tensor in (q, k, v)))
        ]
        assert any(
            not torch.equal(made.cpu(), other)
            for made, other in zip(
                dropped_attention(*(tensor.to("xla") for tensor in (q, k, v)), seed=1),
                whole,
                strict=True,
            )
        )
        for block in ((4, 3), (10, 100)):
            use_blocks(monkeypatch, *block)
            for made, other in zip(
                dropped_attention(*(x.to("xla") for x in (q, k, v))), whole, strict=True
            ):
                check(made, other)
            for spec in (BATCH, HEADS):
                sharded = [spmd.mark_sharding(x.to("xla"), mesh8, spec) for x in (q, k, v)]
                for made, other in zip(dropped_attention(*sharded), whole, strict=True):
                    check(made, other)
        cache.clear_cache()

    def test_everything(self):
        q, k, v = (torch.randn(1, 1, 4, 8).to("xla").requires_grad_() for _ in range(3))
        output = sdpa(q, k, v, dropout_p=1.0)
        for made in (output, *torch.autograd.grad(output.sum(), (q, k, v))):
            check(made, torch.zeros(1, 1, 4, 8))


class TestMemory:
    """The memory of a compiled program besides its arguments and results grows with the length, not
    with its square."""

    LENGTH, WIDTH = 8192, 16

    def temporary_bytes(
        self, heads: int, kv_heads: int, mask: torch.Tensor | None = None, **how: Any
    ) -> int:
        """Of a program of forward and backward over one sequence, which is compiled and does not
        run."""

        def step(*operands: torch.Tensor) -> None:
            sdpa(*operands, enable_gqa=heads != kv_heads, **how).sum().backward()

        shapes = [(1, n, self.LENGTH, self.WIDTH) for n in (heads, kv_heads, kv_heads)]
        operands = [torch.empty(shape, device="meta", requires_grad=True) for shape in shapes]
        return spmd.plan(step, *operands, *([] if mask is None else [mask])).temporaries

    def bound(self, heads: int) -> int:
        """Sixteen arrays like the query, and eight of one block's scores, all in float32."""
        return 4 * heads * (16 * self.LENGTH * self.WIDTH + 8 * flash.BLOCK[0] * flash.BLOCK[1])

    def test_causal(self):
        assert self.temporary_bytes(1, 1, is_causal=True) < self.bound(1) < self.LENGTH**2 / 2

    def test_grouped_with_dropout(self):
        assert (
            self.temporary_bytes(4, 1, is_causal=True, dropout_p=0.1)
            < self.bound(4)
            < self.LENGTH**2 * 4 / 2
        )

    def test_mask_is_neither_copied_nor_broadcast(self):
        mask = torch.empty(1, 1, self.LENGTH, self.LENGTH, device="meta")
        assert self.temporary_bytes(2, 2, mask) < self.bound(2)

    def test_mask_of_keys(self):
        assert self.temporary_bytes(
            2, 2, torch.empty(1, 1, 1, self.LENGTH, device="meta")
        ) < self.bound(2)


class TestSharded:
    """Batch, heads or length over eight devices."""

    def test_batch(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        attentions(batch, torch.float32)
        batch.check()

    def test_batch_in_blocks(self, mesh8, short_blocks):
        batch = Batch(mesh=mesh8, axis="fsdp")
        attentions(batch, torch.bfloat16)  # float32 is below
        batch.check()

    @pytest.mark.parametrize("spec", [BATCH, HEADS, LENGTH])
    @pytest.mark.parametrize("how", ["plain", "causal", "grouped", "mask"])
    def test_communication(self, mesh8, spec, how, short_blocks):
        heads = 16 if how == "grouped" else 8
        cpu = [torch.randn(8, number, 16, 8) for number in (heads, 8, 8, heads)]
        device = [spmd.mark_sharding(tensor.to("xla"), mesh8, spec) for tensor in cpu]
        bias = torch.randn(1, 1, 16, 16)
        masks = (
            (bias, spmd.mark_sharding(bias.to("xla"), mesh8, (None,) * 4))
            if how == "mask"
            else (None, None)
        )
        spmd.sync()
        results = []
        for (*operands, cotangent), mask in zip((cpu, device), masks, strict=True):
            operands = [operand.requires_grad_() for operand in operands]
            output = sdpa(*operands, mask, is_causal=how == "causal", enable_gqa=how == "grouped")
            results.append([output, *torch.autograd.grad(output, operands, cotangent)])
        spmd.sync()
        counts = spmd.metrics.compiles()[-1].collectives
        # keys and values, twice; none in the loops
        assert counts.get("all-gather", 0) <= (7 if spec is LENGTH else 0)
        assert spec is LENGTH or not counts
        for made, expected in zip(*reversed(results), strict=True):
            check(made, expected)


CONTEXT = ("data", "tensor", "context", None)
ROWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "grouped, causal": {"is_causal": True, "kv_heads": 2},
    "more queries than keys, causal": {"is_causal": True, "columns": 11},
    "heads that the axis does not divide": {"is_causal": True, "kv_heads": 1},
    "mask": {"mask": lambda: torch.rand(16, 16) > 0.3},
    "bias": {"mask": lambda: torch.randn(16, 16)},
    "bias of heads, causal": {"is_causal": True, "mask": lambda: torch.randn(2, 4, 16, 16)},
    "bias of keys": {"mask": lambda: torch.randn(1, 4, 1, 16)},
    "rows that the axis does not divide": {"is_causal": True, "rows": 15},
}


class TestRowsOfShards:
    """Rows of queries over a mesh axis, beside batch and heads: each device computes its own, and
    gathers keys and values once. Without the package of exchanges."""

    @pytest.fixture
    def mesh(self, monkeypatch: pytest.MonkeyPatch) -> spmd.Mesh:
        monkeypatch.setattr(spmd.config, "parallel", "off")
        return spmd.Mesh(range(8), (2, 2, 2), ("data", "tensor", "context"))

    def sharded(self, mesh: spmd.Mesh, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """On the device, with the axes that divide the dims."""
        named = [zip(CONTEXT, x.shape, strict=True) for x in tensors]
        specs = [tuple(axis if size % 2 == 0 else None for axis, size in dims) for dims in named]
        return [
            spmd.mark_sharding(x.to("xla"), mesh, spec)
            for x, spec in zip(tensors, specs, strict=True)
        ]

    @pytest.mark.parametrize("name", ROWS)
    def test_against_cpu(self, mesh, name, short_blocks):
        case = dict(ROWS[name])
        kv_heads, mask = case.pop("kv_heads", 4), case.pop("mask", None)
        keys = 2, kv_heads, case.pop("columns", 16), 8
        queries = 2, 4, case.pop("rows", 16), 8
        *qkv, cotangent = (torch.randn(shape) for shape in (queries, keys, keys, queries))
        masks = [] if mask is None else [mask()]
        device = self.sharded(mesh, [*qkv, cotangent])
        given = [x.to("xla") for x in masks]
        results = []
        for *operands, grad in ((*qkv, *masks, cotangent), (*device[:3], *given, device[3])):
            leaves = [x.requires_grad_() for x in operands if x.dtype != torch.bool]
            is_both = len(operands) == 4 and case
            form = causal_and if is_both else lambda *x: sdpa(*x, enable_gqa=kv_heads != 4, **case)
            output = form(*operands)
            results.append([output, *torch.autograd.grad(output, leaves, grad)])
        spmd.sync()
        for made, expected in zip(*reversed(results), strict=True):
            check(made, expected)

    @pytest.mark.parametrize("how", [{}, {"is_causal": True}])
    def test_dropout_is_the_same(self, mesh, how, short_blocks):
        operands = [torch.randn(2, heads, 16, 8) for heads in (4, 2, 2)]
        whole = dropped_attention(*(x.to("xla") for x in operands), **how)
        for made, other in zip(
            dropped_attention(*self.sharded(mesh, operands), **how), whole, strict=True
        ):
            check(made, other.cpu())

    def test_computed_mask_is_computed_in_the_loop(self, mesh, short_blocks):
        operands = [torch.randn(2, 4, 16, 8) for _ in range(3)]
        results = []
        for tensors in (operands, self.sharded(mesh, operands)):
            at = torch.arange(16, device=tensors[0].device)
            window = (at <= at[:, None]) & (at > at[:, None] - 5)
            leaves = [x.requires_grad_() for x in tensors]
            output = sdpa(*leaves, window)
            results.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
        assert "tensor<1x1x8x16xi1>" not in spmd.get_stablehlo(results[1])
        for made, expected in zip(*reversed(results), strict=True):
            check(made, expected)

    def test_in_scanned_layers(self, mesh, short_blocks, monkeypatch):
        """A loop over layers gathers keys and values once a layer, and not in the loop over
        blocks."""
        monkeypatch.setattr(spmd.config, "scan_layers", "always")
        weights = [torch.randn(8, 24) / 4 for _ in range(4)]
        x = torch.randn(2, 16, 8)

        def forward(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
            for weight in weights:
                q, k, v = (x @ weight).reshape(2, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
                x = x + sdpa(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 16, 8)
            return x.square().sum()

        leaves = [weight.to("xla").requires_grad_() for weight in weights]
        grads = torch.autograd.grad(
            forward(spmd.mark_sharding(x.to("xla"), mesh, ("data", "context", None)), leaves),
            leaves,
        )
        text = spmd.get_stablehlo(list(grads))
        spmd.sync()
        assert spmd.metrics.compiles()[-1].collectives.get("all-gather", 0) <= 4 * 12
        # four layers would have eight loops over blocks
        assert "manual" in text and text.count("stablehlo.while") < 8
        leaves = [weight.requires_grad_() for weight in weights]
        for made, expected in zip(
            grads, torch.autograd.grad(forward(x, leaves), leaves), strict=True
        ):
            check(made, expected)


class TestGPU:
    """Half precision without dropout is cuDNN's on a GPU (masks: `test_cudnn.py`); all else is
    as on CPU. Lowered, not run, here."""

    def calls(self, dtype: Any, *, dropout: float = 0.0, width: int = 64) -> tuple[list[str], int]:
        """(what is called, number of loops) in the StableHLO for a GPU of forward and backward with
        grouped heads."""
        q, k = (jax.ShapeDtypeStruct((8, heads, 1024, width), dtype) for heads in (8, 2))

        def both(q, k, v, grad):
            statics, draw = (dropout, True), (jnp.int64(1), jnp.int64(2))
            out, logsumexp, seed = attention.aten_attention(q, k, v, None, *statics, draw=draw)
            grads = attention.aten_attention_backward(
                grad,
                q,
                k,
                v,
                None,
                [True, True, True, False],
                out,
                logsumexp,
                None,
                None,
                1024,
                1024,
                *statics,
                seed,
                seed,
                returns=(q, k, v, None),
            )
            return out, grads[:3]

        with compiler_context():
            lowered = jax.jit(both).trace(q, k, k, q).lower(lowering_platforms=("cuda",))
        text = lowered.as_text()
        return re.findall(r"custom_call @([\w$]+)", text), text.count("stablehlo.while")

    @pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
    def test_kernel(self, dtype):
        assert self.calls(dtype) == (["__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"], 0)

    def test_kernel_is_partitioned(self, tmp_path):
        # XLA partitions the GPU's program here, too, and stops only where the host has no such
        # kernel. Its last text shows what one device would call: its own batch or heads without
        # communication, never a part of the length.
        program = """
            import re
            from pathlib import Path
            import spmd

            spmd.simulate(8)
            import jax, jax.numpy as jnp
            from spmd.ops import attention
            from spmd.core.sharding.partitioner import compiler_context


            def both(q, k, v, grad):
                rest = None, 0.0, True
                out, logsumexp, seed = attention.aten_attention(
                    q, k, v, *rest, draw=(jnp.int64(1), jnp.int64(2))
                )
                grads = attention.aten_attention_backward(
                    grad,
                    q,
                    k,
                    v,
                    None,
                    [True] * 4,
                    out,
                    logsumexp,
                    None,
                    None,
                    1024,
                    1024,
                    0.0,
                    True,
                    seed,
                    seed,
                    returns=(q, k, v, None),
                )
                return out, grads[:3]


            mesh = spmd.Mesh(range(8), (8,), ("x",))
            for spec, kv_heads in zip(["x...", ".x..", ".x..", "..x."], [8, 8, 2, 8]):
                sharding = mesh.sharding(
                    tuple(None if axis == "." else axis for axis in spec), 4
                ).jax
                whole = mesh.sharding((None,) * 4, 4).jax
                q = jax.ShapeDtypeStruct((8, 16, 1024, 64), jnp.bfloat16, sharding=sharding)
                k = jax.ShapeDtypeStruct(
                    (8, kv_heads, 1024, 64),
                    jnp.bfloat16,
                    sharding=sharding if kv_heads == 8 else whole,
                )
                with compiler_context():
                    lowered = jax.jit(both).trace(q, k, k, q).lower(lowering_platforms=("cuda",))
                    try:
                        lowered.compile()
                    except jax.errors.JaxRuntimeError as error:
                        assert "No registered implementation" in str(error), error
                text = sorted(Path(FOLDER).glob("*cpu_after_optimizations.txt"))[-1].read_text()
                calls = re.findall(
                    r"= .(bf16.[0-9,]*.).*custom_call_target=.(__cudnn.fmha[A-Za-z]*)", text
                )
                print(
                    spec,
                    kv_heads,
                    *(f"{name[8:]} {shape}" for shape, name in calls),
                    "all-" in text,
                )
        """
        printed = run_script(
            program.replace("FOLDER", repr(str(tmp_path))), XLA_FLAGS=f"--xla_dump_to={tmp_path}"
        ).splitlines()

        def line(spec: str, kv_heads: int, shape: str, gathers: bool) -> str:
            return f"{spec} {kv_heads} fmhaSoftmax {shape} fmhaSoftmaxBackward {shape} {gathers}"

        assert printed == [
            line("x...", 8, "bf16[1,16,1024,64]", False),
            line(".x..", 8, "bf16[8,2,1024,64]", False),
            line(".x..", 2, "bf16[8,16,1024,64]", True),
            line("..x.", 8, "bf16[8,16,1024,64]", True),
        ]

    @pytest.mark.parametrize(
        ("dtype", "how"),
        [
            (jnp.float32, {}),
            (jnp.bfloat16, {"dropout": 0.1}),
            (jnp.bfloat16, {"width": 60}),
        ],
    )
    def test_blocks_where_the_kernel_cannot(self, dtype, how):
        assert self.calls(dtype, **how) == ([], 2)
