"""jax's attention kernel for TPUs: its numbers, interpreted, against torch on CPU, and where a
TPU's program has it."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import PartitionSpec
from rule_calls import known, rule
from support import TOLERANCE
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
from spmd.core.sharding.partitioner import compiler_context
from spmd.ops import attention, sharded
from spmd.ops.kernels import document_ids, splash
from spmd.ops.kernels.flash import NO_MASK, Masking, Places, Score
from spmd.ops.kernels.mask_blocks import MaskEquations, causal
from spmd.ops.kernels.mask_reader import equations_and_values

CASES: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True},
    "plain": {},
    "grouped, causal": {"is_causal": True, "kv_heads": 2},
    "more keys than queries, causal": {"is_causal": True, "columns": 384},
    "more queries than keys, causal": {"is_causal": True, "columns": 128},
    "value of another width": {"value_width": 32, "kv_heads": 1},
}


def operands(
    dtype: torch.dtype, *, columns: int = 256, kv_heads: int = 4, value_width: int = 16
) -> list[torch.Tensor]:
    """Query, key, value and the output's gradient."""
    shapes = (
        (2, 4, 256, 16),
        (2, kv_heads, columns, 16),
        (2, kv_heads, columns, value_width),
        (2, 4, 256, value_width),
    )
    return [torch.randn(shape).to(dtype) for shape in shapes]


class TestNumbers:
    """Forward and backward, interpreted: values, logsumexp, gradients."""

    @pytest.mark.parametrize("is_joined", [True, False])
    @pytest.mark.parametrize(
        ("name", "dtype"),
        [*((name, torch.float32) for name in CASES), ("grouped, causal", torch.bfloat16)],
    )
    def test_against_cpu(
        self, name: str, dtype: torch.dtype, is_joined: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By one backward kernel, and by two."""
        monkeypatch.setattr(splash, "INTERPRET", True)
        monkeypatch.setattr(splash, "_BLOCKS", (128, 128, 128))
        monkeypatch.setattr(splash, "_MOST_OF_PARTS", 1 << 30 if is_joined else 0)
        case = dict(CASES[name])
        is_causal = case.pop("is_causal", False)
        *qkv, grad = operands(dtype, **case)
        arrays = [
            jnp.asarray(x.float().numpy(), str(dtype).removeprefix("torch.")) for x in (*qkv, grad)
        ]
        mask = causal(256, arrays[1].shape[2]) if is_causal else None
        how = {"masking": Masking(mask), "scale": 0.25}
        with compiler_context(), jax.default_matmul_precision("highest"):
            assert not splash.refusal(*arrays[:3], Masking(mask), None, 0.0)
            out, logsumexp = splash.shard_forward(*arrays[:3], **how)
            made = [out, *splash.shard_backward(*arrays, out, logsumexp, **how)[:3]]
        leaves = [x.requires_grad_() for x in qkv]
        expected = F.scaled_dot_product_attention(
            *leaves, is_causal=is_causal, scale=0.25, enable_gqa=True
        )
        scores = (
            0.25 * qkv[0].double() @ qkv[1].double().repeat_interleave(4 // qkv[1].shape[1], 1).mT
        )
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -torch.inf)
        rtol, atol = TOLERANCE[dtype]
        np.testing.assert_allclose(logsumexp, scores.logsumexp(-1).detach(), rtol, atol)
        for one, other in zip(
            made, [expected, *torch.autograd.grad(expected, leaves, grad)], strict=True
        ):
            np.testing.assert_allclose(one.astype(jnp.float32), other.detach().float(), rtol, atol)

    @pytest.mark.parametrize("is_causal", [True, False])
    def test_rows_of_shards(self, is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two shards of the rows, each by the kernel's mask of its own: the numbers of one kernel
        over all."""
        monkeypatch.setattr(splash, "INTERPRET", True)
        q, k, v, grad = (jnp.asarray(x.numpy()) for x in operands(torch.float32, kv_heads=2))
        mask = causal(256, 256) if is_causal else None
        how = {"masking": Masking(mask), "scale": 0.25}
        with compiler_context(), jax.default_matmul_precision("highest"):
            out, logsumexp = splash.shard_forward(q, k, v, **how)
            expected = splash.shard_backward(q, k, v, grad, out, logsumexp, **how)[:3]
            grads = []
            for shard in range(2):
                rows = slice(128 * shard, 128 * (shard + 1))
                places = Places(((0, 0), (128, 0)), shard)
                of_shard = {**how, "masking": Masking(mask, places=places)}
                output, lse = splash.shard_forward(q[:, :, rows], k, v, **of_shard)
                np.testing.assert_allclose(output, out[:, :, rows], 1e-5, 1e-6)
                np.testing.assert_allclose(lse, logsumexp[:, :, rows], 1e-5, 1e-6)
                by_row = grad[:, :, rows], output, lse
                grads.append(splash.shard_backward(q[:, :, rows], k, v, *by_row, **of_shard)[:3])
        summed = (
            jnp.concatenate([grad[0] for grad in grads], 2),
            *(a + b for a, b in zip(*grads, strict=True)),
        )
        for one, other in zip((summed[0], *summed[2:]), expected, strict=True):
            np.testing.assert_allclose(one, other, 1e-5, 1e-5)

    def test_what_it_does_not_take(self) -> None:
        q = jnp.ones((1, 4, 256, 64))
        assert not splash.refusal(q, q, q, NO_MASK, None, 0.0)
        assert splash.refusal(q, q, q, NO_MASK, None, 0.1)
        assert splash.refusal(q, q, q, NO_MASK, q, 0.0)
        for shape in ((1, 4, 250, 64), (1, 4, 256, 512)):
            other = jnp.ones(shape)
            assert splash.refusal(other, other, other, NO_MASK, None, 0.0)
        half = q.astype(jnp.float16)
        assert splash.refusal(half, half, half, NO_MASK, None, 0.0)

    def test_is_known_to_this_jax(self) -> None:
        assert splash._is_there()


class TestComputed:
    """The blocks of scores that a head computes: those that a mask of all elements leaves."""

    @pytest.mark.parametrize(
        ("lengths", "is_causal"),
        [
            ((1024, 1024), True),
            ((512, 2048), True),
            ((2048, 512), True),
            ((384, 512), True),
            ((1024, 512), False),
        ],
    )
    def test_blocks_of_the_mask(self, lengths: tuple[int, int], is_causal: bool) -> None:
        of_case = causal(*lengths) if is_causal else None
        case = splash._Case(2, lengths, ((0, 0),), of_case, None, 1.0, False, True, 1, True, 0)
        rows, columns = np.arange(lengths[0])[:, None], np.arange(lengths[1])
        mask = (rows >= columns) | (not is_causal)
        height, forward_width = case.block
        forward, of_keys = (forward_width, splash._by_rows), (case.joined_columns, splash._all)
        for width, layout in (forward, of_keys):
            blocks = mask.reshape(-1, height, lengths[1] // width, width).any((1, 3))
            info = case.mask_info(width, jnp.int32(0), layout)
            of_kernel = (
                blocks.size if info.block_mask is None else np.count_nonzero(info.block_mask[0])
            )
            assert of_kernel == blocks.sum()

    def test_one_kernel_where_its_parts_fit(self) -> None:
        """The gradient of queries in parts, one for each 1,024 columns of a causal mask, 2,048
        without."""
        for is_causal, parts in ((True, 8), (False, 4)):
            query = jax.ShapeDtypeStruct((1, 1, 8192, 128), jnp.bfloat16)
            most = splash._MOST_OF_PARTS // (parts * 8192 * 128 * 2)
            for heads in (most, most + 1):
                many = jax.ShapeDtypeStruct((1, heads, 8192, 128), jnp.bfloat16)
                mask = causal(8192, 8192) if is_causal else None
                case = splash._Case.of(many, query, query, Masking(mask), 1.0)
                assert case.joined_columns == (8192 // parts if heads == most else 0)


OP = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
BACKWARD = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward


def text(
    mesh: jax.sharding.Mesh | None, spec: PartitionSpec, kv_heads: int = 8, length: int = 1024
) -> str:
    """The StableHLO for a TPU of forward and backward; what it is told of its inputs' layout is in
    `spec`."""
    sharding = None if mesh is None else jax.NamedSharding(mesh, spec)
    of_keys = (
        sharding
        if kv_heads > 1 or sharding is None
        else jax.NamedSharding(mesh, PartitionSpec(spec[0]))
    )
    q, k = (
        jax.ShapeDtypeStruct((8, heads, length, 64), jnp.bfloat16, sharding=each)
        for heads, each in ((8, sharding), (kv_heads, of_keys))
    )

    def both(*arrays: jax.Array) -> Any:
        q, k, v, grad = arrays
        with known(arrays, [] if sharding is None else [sharding, of_keys, of_keys, sharding]):
            draw = jnp.int64(1), jnp.int64(2)
            out, logsumexp, seed = rule(OP.default)(q, k, v, None, 0.0, True, draw=draw)
            return rule(BACKWARD.default)(
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
                length,
                length,
                0.0,
                True,
                seed,
                seed,
                returns=(q, k, v, None),
            )[:3]

    with compiler_context():
        return jax.jit(both).trace(q, k, k, q).lower(lowering_platforms=("tpu",)).as_text()


class TestTPU:
    """Lowered for a TPU, whatever this machine has: the kernel, on each device's batch and
    heads."""

    @pytest.fixture
    def mesh(self) -> jax.sharding.Mesh:
        return jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "tensor"))

    # Of two lengths, as a kernel that is traced stays.
    @pytest.mark.parametrize(("most", "length", "kernels"), [(1 << 30, 1024, 2), (0, 1536, 3)])
    def test_one_device(
        self, most: int, length: int, kernels: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(splash, "_MOST_OF_PARTS", most)
        assert text(None, PartitionSpec(), length=length).count("@tpu_custom_call") == kernels

    @pytest.mark.parametrize(
        ("spec", "kv_heads", "shape"),
        [
            (("data", "tensor"), 8, "2x4x1024x64"),
            (("data", "tensor"), 2, "2x4x1024x64"),
            ((("data", "tensor"),), 8, "8x1024x64"),
            ((None, "tensor", "data"), 8, "8x4x256x64"),
            (("data", "tensor"), 1, "2x8x512x64"),
        ],
    )
    def test_on_each_device(
        self,
        mesh: jax.sharding.Mesh,
        spec: Any,
        kv_heads: int,
        shape: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(spmd.config, "parallel", "off")  # the core's rule alone
        made = text(mesh, PartitionSpec(*spec), kv_heads)
        calls = [line for line in made.splitlines() if "@tpu_custom_call" in line]
        assert len(calls) == 2 and all(f"tensor<{shape}xbf16>" in line for line in calls)

    def test_blocks_where_the_length_has_no_block(self, mesh: jax.sharding.Mesh) -> None:
        made = text(mesh, PartitionSpec("data"), length=1000)
        assert "@tpu_custom_call" not in made and made.count("stablehlo.while") == 2


def test_a_program_for_tpus_has_one_form() -> None:
    """jax traces the forms of all platforms, where it may lower another."""

    def traced(facts: sharded.Facts) -> list[str]:
        forms: list[str] = []

        def form(name: str) -> Callable[[jax.Array], jax.Array]:
            return lambda x: (forms.append(name), x)[1]

        how = {name: form(name) for name in ("default", "tpu", "cuda")}
        with sharded.tracing(facts):
            jax.make_jaxpr(lambda x: sharded.by_platform(x, **how))(1.0)
        return sorted(forms)

    assert traced(sharded.Facts(platform="tpu")) == ["tpu"]
    every = ["cuda", "default", "tpu"]
    assert traced(sharded.Facts(platform="tpu", is_exported=True)) == every
    assert traced(sharded.Facts(platform="cpu")) == every


# Of two lengths, as a kernel that is traced stays.
@pytest.mark.parametrize(("most", "length", "tables"), [(1 << 30, 640, [1, 1]), (0, 896, [1, 2])])
def test_each_kernel_has_its_table(
    most: int, length: int, tables: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is made for the other direction."""
    monkeypatch.setattr(splash, "_MOST_OF_PARTS", most)
    layouts, of = [], splash._Case.mask_info

    def noted(case: Any, width: int, place: Any, layout: Any, left: Any = None) -> Any:
        layouts.append(layout)
        return of(case, width, place, layout, left)

    monkeypatch.setattr(splash._Case, "mask_info", noted)
    q = jax.ShapeDtypeStruct((1, 1, length, 32), jnp.float32)
    of_rows = jax.ShapeDtypeStruct((1, 1, length), jnp.float32)
    masking = Masking(causal(length, length))
    counts = []
    for function, arrays in (
        (splash.shard_forward, (q, q, q)),
        (splash.shard_backward, (q, q, q, q, q, of_rows)),
    ):
        jax.eval_shape(partial(function, masking=masking, scale=0.5), *arrays)
        counts.append(len(layouts))
    assert [counts[0], counts[1] - counts[0]] == tables


class TestInLoops:
    """In layers that are rolled by themselves it is known how values are split, forward, backward
    and recomputed."""

    @pytest.mark.parametrize("checkpointed", [False, True])
    def test_batch_is_found(
        self, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch, checkpointed: bool
    ) -> None:
        places: list[splash.AttentionDevices | None] = []
        find = splash.AttentionDevices.of
        monkeypatch.setattr(
            splash.AttentionDevices,
            "of",
            lambda *arrays: places.append(find(*arrays)) or places[-1],
        )
        config = GPTConfig(layers=4, width=16, heads=2, sequence=512, vocabulary=16)
        model = GPT(config)
        if checkpointed:
            for block in model.blocks:
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
        wrapped = fsdp.FullyShardedDataParallel(model, mesh8, auto_wrap_policy=policy)
        spmd.sync()
        tokens = torch.zeros(8, config.sequence, dtype=torch.int64)
        monkeypatch.setattr(spmd.config, "scan_layers", "always")
        cross_entropy(wrapped(tokens.to("xla")), tokens.to("xla")).backward()
        assert "stablehlo.while" in spmd.get_stablehlo(
            [parameter.grad for parameter in wrapped.parameters()]
        )
        # more where a loop's body is traced for the first time
        assert len(places) >= (3 if checkpointed else 2)
        assert [place and place.batch for place in places] == [("fsdp",)] * len(places)


def by_mask(condition: Callable[[Any, Any], Any], rows: int, columns: int) -> MaskEquations:
    """The equations of a mask of rows and columns."""
    equations: list[MaskEquations] = []

    def program() -> Any:
        mask = condition(jnp.arange(rows)[:, None], jnp.arange(columns)[None])
        equations.append(equations_and_values(mask)[0].of_matrix())
        return mask

    with compiler_context():
        jax.make_jaxpr(program)()
    return equations[0]


MASKS: dict[str, Callable[[Any, Any], Any]] = {
    "window": lambda row, column: (column <= row) & (row - column < 100),
    "documents": lambda row, column: (column <= row) & (row // 96 == column // 96),
    "documents, both ways": lambda row, column: row // 96 == column // 96,
    "chunks and a window": lambda row, column: (row // 128 == column // 128) & (row - column < 9),
    "prefix": lambda row, column: (column < 70) | (column <= row),
    "every third column": lambda row, column: (column <= row) & ((row - column) % 3 == 0),
    "rows that see nothing": lambda row, column: (column > row + 90) & (row // 64 == column // 64),
    "most rows see nothing": lambda row, column: (column < row) & (row < 40),
}


class TestMasks:
    """Masks of rows and columns in the kernel: values and gradients, zeros for a row that sees
    nothing."""

    @pytest.mark.parametrize("is_joined", [True, False])
    @pytest.mark.parametrize("name", MASKS)
    def test_against_cpu(self, name: str, is_joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(splash, "INTERPRET", True)
        monkeypatch.setattr(splash, "_BLOCKS", (128, 128, 128))
        monkeypatch.setattr(splash, "_MOST_OF_PARTS", 1 << 30 if is_joined else 0)
        *qkv, grad = operands(torch.float32, kv_heads=2, columns=384, value_width=32)
        arrays = [jnp.asarray(x.numpy()) for x in (*qkv, grad)]
        mask = by_mask(MASKS[name], 256, 384)
        assert not splash.refusal(*arrays[:3], Masking(mask), None, 0.0)
        how = {"masking": Masking(mask), "scale": 0.25}
        with compiler_context(), jax.default_matmul_precision("highest"):
            out, logsumexp = splash.shard_forward(*arrays[:3], **how)
            made = [out, *splash.shard_backward(*arrays, out, logsumexp, **how)[:3]]
        allowed = torch.tensor(mask(*np.indices((256, 384))))
        leaves = [x.requires_grad_() for x in qkv]
        expected = F.scaled_dot_product_attention(*leaves, allowed, scale=0.25, enable_gqa=True)
        rtol, atol = TOLERANCE[torch.float32]
        expected_grads = torch.autograd.grad(expected, leaves, grad)
        for one, other in zip(made, [expected, *expected_grads], strict=True):
            np.testing.assert_allclose(one, other.detach(), rtol, atol)
        is_out = ~allowed.any(1).numpy()
        assert (np.asarray(out)[:, :, is_out] == 0).all()
        assert (np.asarray(logsumexp)[:, :, is_out] == -np.inf).all()

    @pytest.mark.parametrize("is_joined", [True, False])
    def test_soft_cap(self, is_joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(splash, "INTERPRET", True)
        monkeypatch.setattr(splash, "_MOST_OF_PARTS", 1 << 30 if is_joined else 0)
        *qkv, grad = operands(torch.float32, kv_heads=2)
        arrays = [jnp.asarray(x.numpy()) for x in (*qkv, grad)]
        score = Score(lambda score, *at: 2 * jnp.tanh(score / 2), 2.0)
        masking = Masking(by_mask(MASKS["window"], 256, 256), score=score)
        assert not splash.refusal(*arrays[:3], masking, None, 0.0)
        how = {"masking": masking, "scale": 0.25}
        with compiler_context(), jax.default_matmul_precision("highest"):
            out, logsumexp = splash.shard_forward(*arrays[:3], **how)
            made = [out, *splash.shard_backward(*arrays, out, logsumexp, **how)[:3]]
        leaves = [x.requires_grad_() for x in qkv]
        query, key, value = (x.repeat_interleave(4 // x.shape[1], 1) for x in leaves)
        scores = 2 * torch.tanh(0.25 * query @ key.mT / 2)
        at = torch.arange(256)
        is_out = (at > at[:, None]) | (at[:, None] - at >= 100)
        expected = scores.masked_fill(is_out, -torch.inf).softmax(-1) @ value
        rtol, atol = TOLERANCE[torch.float32]
        expected_grads = torch.autograd.grad(expected, leaves, grad)
        for one, other in zip(made, [expected, *expected_grads], strict=True):
            np.testing.assert_allclose(one, other.detach(), rtol, atol)

    @pytest.mark.parametrize("is_joined", [True, False])
    @pytest.mark.parametrize("name", ["window", "rows that see nothing"])
    def test_gradient_of_the_logsumexp(
        self, name: str, is_joined: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(splash, "INTERPRET", True)
        monkeypatch.setattr(splash, "_MOST_OF_PARTS", 1 << 30 if is_joined else 0)
        *qkv, grad = operands(torch.float32, kv_heads=2)
        of_sum = torch.randn(grad.shape[:3])
        arrays = [jnp.asarray(x.numpy()) for x in (*qkv, grad)]
        mask = by_mask(MASKS[name], 256, 256)
        how = {"masking": Masking(mask), "scale": 0.25}
        with compiler_context(), jax.default_matmul_precision("highest"):
            saved = splash.shard_forward(*arrays[:3], **how)
            made = splash.shard_backward(*arrays, *saved, jnp.asarray(of_sum.numpy()), **how)[:3]
        leaves = [x.requires_grad_() for x in qkv]
        query, key, value = (x.repeat_interleave(4 // x.shape[1], 1) for x in leaves)
        allowed = torch.tensor(mask(*np.indices((256, 256))))
        is_out = ~allowed.any(1)
        scores = (0.25 * query @ key.mT).masked_fill(~allowed, -torch.inf)
        scores = scores.masked_fill(is_out[:, None], -1e30)
        output = (scores.softmax(-1) @ value).masked_fill(is_out[:, None], 0)
        total = scores.logsumexp(-1).masked_fill(is_out, 0)
        expected = torch.autograd.grad([output, total], leaves, [grad, of_sum])
        rtol, atol = TOLERANCE[torch.float32]
        for one, other in zip(made, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol, atol)

    @pytest.mark.parametrize("name", ["window", "documents", "rows that see nothing"])
    def test_rows_of_shards(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(splash, "INTERPRET", True)
        q, k, v, grad = (jnp.asarray(x.numpy()) for x in operands(torch.float32, kv_heads=2))
        mask = by_mask(MASKS[name], 256, 256)
        how = {"masking": Masking(mask), "scale": 0.25}
        with compiler_context(), jax.default_matmul_precision("highest"):
            out, logsumexp = splash.shard_forward(q, k, v, **how)
            expected = splash.shard_backward(q, k, v, grad, out, logsumexp, **how)[:3]
            sums = [0, 0]
            for shard in range(2):
                rows = slice(128 * shard, 128 * (shard + 1))
                places = Places(((0, 0), (128, 0)), shard)
                of_shard = {**how, "masking": Masking(mask, places=places)}
                output, lse = splash.shard_forward(q[:, :, rows], k, v, **of_shard)
                np.testing.assert_allclose(output, out[:, :, rows], 1e-5, 1e-6)
                of_query, *of_columns = splash.shard_backward(
                    q[:, :, rows], k, v, grad[:, :, rows], output, lse, **of_shard
                )[:3]
                np.testing.assert_allclose(of_query, expected[0][:, :, rows], 1e-5, 1e-5)
                sums = [a + b for a, b in zip(sums, of_columns, strict=True)]
        for one, other in zip(sums, expected[1:], strict=True):
            np.testing.assert_allclose(one, other, 1e-5, 1e-5)

    def test_a_window_computes_its_blocks(self) -> None:
        """Of 64 blocks a head those of a window, in both directions."""
        mask = by_mask(lambda row, column: (column <= row) & (row - column < 512), 4096, 4096)
        case = splash._Case(2, (4096, 4096), ((0, 0),), mask, None, 1.0, False, True, 1, True, 0)
        forward = case.mask_info(case.block[1], jnp.int32(0), splash._by_rows)
        assert np.count_nonzero(forward.block_mask) == 15
        assert forward.block_mask.shape == (1, 8, 2)
        backward = case.mask_info(case.joined_columns, jnp.int32(0), splash._all)
        assert np.count_nonzero(backward.block_mask) * case.joined_columns <= 22 * 512


def _same(ids: Any) -> Any:
    return ids[:, None, :, None] == ids[:, None, None, :]


# Of ids [2, 256] or [1, 256], rows and columns; of torch's arrays and jax's.
DOCUMENTS: dict[str, tuple[int, Callable[..., Any]]] = {
    "shared, causal": (1, lambda ids, row, column: _same(ids) & (row >= column)),
    "by sequence, in a window": (
        2,
        lambda ids, row, column: _same(ids) & (row >= column) & (row - column < 100),
    ),
    "by sequence, alone": (2, lambda ids, row, column: _same(ids)),
    "padding": (2, lambda ids, row, column: (ids > 1)[:, None, None, :] & (row > -1)),
    "padding and documents": (
        2,
        lambda ids, row, column: (
            (ids > 1)[:, None, :, None] & (ids > 0)[:, None, None, :] & _same(ids)
        ),
    ),
}


def _looked_up(array: Any, numpy: Any) -> tuple[Any, Any]:
    """The values of rows and of columns, as transformers looks them up."""
    at, sequences = numpy.arange(256), numpy.arange(len(array))[:, None, None, None]
    return array[sequences, at[:, None]], array[sequences, at]


def packed_mask(
    positions: Any,
    numpy: Any,
    *,
    window: int = 256,
    step: int = 1,
    compared: Any = None,
    is_started: Callable[[Any], Any] = lambda started: started,
) -> Any:
    """The mask that transformers makes of positions [batch, 256] of packed documents."""
    before = numpy.concatenate([positions[:, :1] - 1, positions[:, :-1]], 1)
    ids = numpy.cumsum(is_started(positions - before != step), 1)
    (row_ids, column_ids), (row, column) = (
        _looked_up(x, numpy) for x in (ids, positions if compared is None else compared)
    )
    return (row_ids == column_ids) & (row >= column) & (row - column < window)


class TestDocumentIds:
    """Ids that are data: the table is made on the device."""

    @pytest.mark.parametrize("is_joined", [True, False])
    @pytest.mark.parametrize("is_sorted", [True, False])
    @pytest.mark.parametrize("name", DOCUMENTS)
    def test_against_cpu(
        self, name: str, is_sorted: bool, is_joined: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Documents that come again, too; ids of 64 bits; rows that see nothing."""
        monkeypatch.setattr(splash, "INTERPRET", True)
        monkeypatch.setattr(splash, "_BLOCKS", (128, 128, 128))
        monkeypatch.setattr(splash, "_MOST_OF_PARTS", 1 << 30 if is_joined else 0)
        *qkv, grad = operands(torch.float32, kv_heads=2)
        batch, mask_of = DOCUMENTS[name]
        ids = torch.randint(0, 5, (batch, 256))
        if is_sorted:
            ids = ids.sort(1)[0]
        ids[ids == 4] += 1 << 33
        at = torch.arange(256)
        self.compare(
            lambda ids: mask_of(ids, jnp.arange(256)[:, None], jnp.arange(256)),
            ids,
            mask_of(ids, at[:, None], at),
            [*qkv, grad],
        )

    def compare(
        self,
        mask_of: Callable[[jax.Array], jax.Array],
        ids: torch.Tensor,
        allowed: torch.Tensor,
        operands: list[torch.Tensor],
    ) -> None:
        """Compares values and gradients of the kernel with torch's."""
        *qkv, grad = operands
        arrays = [jnp.asarray(x.numpy()) for x in (*qkv, grad)]

        def attend(ids: jax.Array, *arrays: jax.Array) -> Any:
            masking, bias = attention.masking_of(mask_of(ids), False, *arrays[:2])
            assert masking.documents is not None
            assert not splash.refusal(*arrays[:3], masking, bias, 0.0)
            ids = document_ids.of_32_bits(*masking.documents.arrays(), arrays[0].shape[2])
            how = {"masking": masking, "scale": 0.25, "ids": ids}
            saved = splash.shard_forward(*arrays[:3], **how)
            return saved[0], *splash.shard_backward(*arrays, *saved, **how)[:3]

        with compiler_context(), jax.default_matmul_precision("highest"):
            made = jax.jit(attend)(jnp.asarray(ids.numpy()), *arrays)
        leaves = [x.requires_grad_() for x in qkv]
        expected = F.scaled_dot_product_attention(*leaves, allowed, scale=0.25, enable_gqa=True)
        rtol, atol = TOLERANCE[torch.float32]
        expected_grads = torch.autograd.grad(expected, leaves, grad)
        for one, other in zip(made, [expected, *expected_grads], strict=True):
            np.testing.assert_allclose(one, other.detach(), rtol, atol)

    @pytest.mark.parametrize("window", [256, 100])
    @pytest.mark.parametrize("batch", [1, 2])
    def test_positions(self, batch: int, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Positions that are data, of which the ids are made: rows and columns of the kernel. Also
        of documents that do not begin at 0."""
        monkeypatch.setattr(splash, "INTERPRET", True)
        monkeypatch.setattr(splash, "_BLOCKS", (128, 128, 128))
        lengths = [[50, 120, 86], [200, 1, 55]][:batch]
        rows = [torch.cat([torch.arange(n) + n // 60 for n in of_row]) for of_row in lengths]
        positions, of_masks = torch.stack(rows), {"window": window}
        allowed = torch.from_numpy(packed_mask(positions.numpy(), np, **of_masks))
        mask_of = lambda positions: packed_mask(positions, jnp, **of_masks)  # noqa: E731
        self.compare(mask_of, positions, allowed, operands(torch.float32, kv_heads=2))

    @pytest.mark.parametrize(
        ("is_by_rows", "how"),
        [
            (True, {}),
            (True, {"is_started": lambda started: started | (jnp.arange(256) == 9)}),
            (False, {"is_started": lambda started: started & (jnp.arange(256) == 9)}),
            (False, {"is_started": lambda started: started.astype(np.int8)}),
            (False, {"step": 2}),
            (False, {"compared": jnp.arange(256)[None] * 2}),
        ],
    )
    def test_which_positions(self, is_by_rows: bool, how: dict[str, Any]) -> None:
        """Of positions that need not rise by one inside of a document the mask stays data."""

        def program(positions: jax.Array) -> jax.Array:
            mask = packed_mask(positions, jnp, **how)
            mask = mask if len(mask) > 1 else mask.reshape(256, 256)
            found = document_ids.Documents.of(mask)
            assert (found is not None and found.rest is not None) == is_by_rows
            return mask

        for batch in (1, 2):
            jax.eval_shape(program, jax.ShapeDtypeStruct((batch, 256), np.int64))

    def test_blocks(self) -> None:
        """Sorted ids leave the blocks of their documents, padding none of its own."""
        ids = jnp.arange(64, dtype=jnp.int32)[None] // 16
        assert (document_ids.visible(ids, ids, (8, 16)) == np.eye(4).repeat(2, 0)).all()
        assert (document_ids.visible(ids, ids - 2, (16, 16)) == np.eye(4, k=2)).all()
        both = document_ids.visible(ids, jnp.concatenate([ids, ids - 2]), (16, 16))
        assert (both == np.stack([np.eye(4), np.eye(4, k=2)])).all()

    @pytest.mark.parametrize("width", [256, 512])
    @pytest.mark.parametrize("window", [4096, 600])
    @pytest.mark.parametrize("num_places", [1, 2])
    @pytest.mark.parametrize("layout", ["_by_rows", "_by_columns", "_all"])
    def test_layouts(self, layout: str, num_places: int, window: int, width: int) -> None:
        """Of the blocks that a known mask leaves those that ids leave, each once, in any layout."""
        mask = by_mask(lambda row, column: (column <= row) & (row - column < window), 2048, 2048)
        rows = 2048 // num_places
        starts = tuple((number * rows, 0) for number in range(num_places))
        case = splash._Case(2, (rows, 2048), starts, mask, None, 1.0, True, True, 1, True, 0)
        ids = jnp.sort(jax.random.randint(jax.random.key(window), (1, 2048), 0, 5, jnp.int32))
        for place, (row, _) in enumerate(starts):
            (by_ids,) = document_ids.visible(ids[:, row : row + rows], ids, case.block)
            wide = by_ids.reshape(len(by_ids), 2048 // width, -1).any(2)
            left = wide & (case._tables(width)[place] != 0)
            info = case.mask_info(width, jnp.int32(place), getattr(splash, layout), by_ids)
            axis, computed = 2 if layout == "_by_rows" else 1, info.block_mask != 0
            blocks = [*np.indices(computed.shape)[1:]]
            blocks[axis - 1] = info.data_next
            found = np.zeros(left.shape, int)
            np.add.at(found, tuple(np.asarray(x)[np.asarray(computed)] for x in blocks), 1)
            np.testing.assert_array_equal(found, left)
            assert (info.data_next < left.shape[axis - 1]).all()

    @pytest.mark.parametrize(
        ("mask_of", "may_leave_out"),
        [
            (lambda ids, row, column: _same(ids) & (row >= column), False),
            (lambda ids, row, column: _same(ids) & (row > column), True),
            (lambda ids, row, column: _same(ids) & (column < 9), True),
            (lambda ids, row, column: _same(ids) & (ids > 0)[:, None, None], True),
            (lambda ids, row, column: ids[:, None, :, None] == ids[::-1, None, None], True),
        ],
    )
    def test_rows_that_see_themselves(self, mask_of: Any, may_leave_out: bool) -> None:
        """No result is replaced where each row is known to see the column of its number."""

        def program(ids: jax.Array) -> jax.Array:
            at = jnp.arange(256)
            mask = mask_of(ids, at[:, None], at)
            query = jnp.zeros((2, 4, 256, 64), jnp.bfloat16)
            masking, _ = attention.masking_of(mask, False, query, query)
            case = splash._Case.of(query, query, query, masking, 1.0)
            assert case.may_leave_rows_out((ids, ids)) == may_leave_out
            return mask

        jax.eval_shape(program, jax.ShapeDtypeStruct((2, 256), np.int64))

    @pytest.mark.parametrize("name", ["positions", "heads", "a number of both"])
    def test_other_data(self, name: str) -> None:
        """Data that is no id."""

        def program(ids: jax.Array, other: jax.Array) -> jax.Array:
            mask = _same(ids)
            if name == "positions":
                mask = mask & (other[:, None, :, None] >= other[:, None, None, :])
            elif name == "heads":
                mask = mask & (other[:2, :2] > 0)[..., None, None]
            else:
                mask = mask | (other[:, None, None, :] > 0)
            assert document_ids.Documents.of(mask) is None
            return mask

        shapes = [jax.ShapeDtypeStruct((2, 256), np.int64)] * 2
        jax.eval_shape(program, *shapes)


class TestFindings:
    """Why attention for a TPU is computed in blocks; nothing where the kernel computes it."""

    def found(self, bias: Any = None, *, width: int = 64, **how: Any) -> list[str]:
        q = jnp.ones((1, 2, 1024, width), jnp.bfloat16)
        facts = sharded.Facts(platform="tpu")

        def forward(q: jax.Array, bias: Any) -> Any:
            mask = bias() if callable(bias) else bias
            return rule(OP.default)(q, q, q, mask, **how, draw=(jnp.int64(1), jnp.int64(2)))

        with compiler_context(), sharded.tracing(facts), sharded.unused_axes() as notes:
            if callable(bias):
                jax.make_jaxpr(lambda q: forward(q, bias))(q)
            else:
                jax.make_jaxpr(forward)(q, bias)
        return [sentence for kind, sentence in notes if kind == "kernel"]

    def test_kernel(self) -> None:
        at = jnp.arange
        assert self.found() == self.found(is_causal=True) == []
        assert self.found(lambda: at(1024)[:, None] - at(1024) < 100, is_causal=True) == []

    @pytest.mark.parametrize(
        ("num_sequences", "length", "words", "shares"),
        [
            (1, 0, "a sequence", {"0.7500"}),
            (3, 0, "a sequence", {"0.7500"}),
            (3, 512, "each 512 tokens", {"0.5000"}),
        ],
    )
    def test_ids_that_are_data(
        self, num_sequences: int, length: int, words: str, shares: set[str]
    ) -> None:
        """The kernel, which a plan counts as that of one document, or of a stated length."""
        ids = jnp.arange(1024)[None].repeat(num_sequences, 0) // 200
        q, notes_of = jnp.ones((num_sequences, 2, 1024, 64), jnp.bfloat16), sharded.unused_axes

        def forward(q: jax.Array, ids: jax.Array) -> Any:
            at = jnp.arange(1024)
            mask = (ids[:, None, :, None] == ids[:, None, None]) & (at[:, None] >= at)
            return rule(OP.default)(q, q, q, mask, draw=(jnp.int64(1), jnp.int64(2)))[0]

        facts = sharded.Facts(platform="tpu", document_length=length)
        with compiler_context(), sharded.tracing(facts), notes_of() as notes:
            lowered = jax.jit(forward).trace(q, ids).lower(lowering_platforms=("tpu",))
            program, scopes = lowered.as_text(), lowered.as_text(debug_info=True)
        assert list(notes) == [("kernel", attention.BY_IDS.format(words))]
        assert {*re.findall(r"share=([\d.]+)", scopes)} == shares
        assert "tpu_custom_call" in program and "while" not in program.split("tpu_custom_call")[-1]

    @pytest.mark.parametrize("is_inside", [False, True])
    def test_in_a_loop(self, is_inside: bool) -> None:
        """Documents of positions that a loop of layers closes over: the kernel, wherever their mask
        is computed."""
        q, facts = jnp.ones((2, 2, 1024, 64), jnp.bfloat16), sharded.Facts(platform="tpu")
        positions = jnp.arange(1024)[None].repeat(2, 0) % 200

        def mask_of(positions: jax.Array) -> jax.Array:
            before = jnp.concatenate([positions[:, :1] - 1, positions], -1)
            ids = jnp.cumsum(before[:, 1:] - before[:, :-1] != 1, -1)
            later = positions[:, None, :, None] >= positions[:, None, None]
            return (ids[:, None, :, None] == ids[:, None, None]) & later

        def layers(q: jax.Array, positions: jax.Array) -> Any:
            outside = mask_of(positions)

            def layer(_: int, q: jax.Array) -> jax.Array:
                mask = mask_of(positions) if is_inside else outside
                output: jax.Array = rule(OP.default)(q, q, q, mask, draw=(1, 2))[0]
                return output

            return jax.lax.fori_loop(0, 3, layer, q)

        with compiler_context(), sharded.tracing(facts), sharded.unused_axes() as notes:
            jax.make_jaxpr(layers)(q, positions)
        assert {*notes} == {("kernel", attention.BY_IDS.format("a sequence"))}

    def test_blocks(self) -> None:
        at, ones = jnp.arange, jnp.ones((1024, 1024))
        assert self.found(ones > 0) == ["attention in blocks: a mask of data"]
        assert self.found(ones) == ["attention in blocks: a bias"]
        assert self.found(dropout_p=0.1) == ["attention in blocks: dropout"]
        assert self.found(width=512) == ["attention in blocks: heads of width 512"]
        slopes = lambda: (at(1024)[:, None] - at(1024)).astype(jnp.float32)  # noqa: E731
        assert self.found(slopes) == ["attention in blocks: a bias of positions"]

    def test_a_bias_with_a_gradient(self) -> None:
        q, bias = jnp.ones((1, 2, 1024, 64), jnp.bfloat16), jnp.ones((1024, 1024), jnp.bfloat16)
        lse, seed = jnp.ones((1, 2, 1024)), np.array([1, 2])
        needed, facts = [True] * 4, sharded.Facts(platform="tpu")

        def backward(q: Any, bias: Any, lse: Any, seed: Any) -> Any:
            saved = q, lse, None, None, 1024, 1024, 0.0, False, seed, seed
            operands = q, q, q, q, bias, needed, *saved
            return rule(BACKWARD.default)(*operands, returns=(q, q, q, bias))

        with compiler_context(), sharded.tracing(facts), sharded.unused_axes() as notes:
            jax.make_jaxpr(backward)(q, bias, lse, seed)
        assert list(notes) == [("kernel", "attention in blocks: a bias with a gradient")]
