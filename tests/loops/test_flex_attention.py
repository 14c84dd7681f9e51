"""torch's `flex_attention` on the device against torch's own math on the CPU, values and
gradients."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support import check
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._higher_order_ops.flex_attention import flex_attention_backward, math_attention
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import flex_attention as module
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
    noop_mask,
    or_masks,
)
from torch.nn.functional import scaled_dot_product_attention

import spmd
from spmd.core.programs import cache
from spmd.loops import flex_attention as ours
from spmd.loops import score_attention
from spmd.ops import attention as core_attention
from spmd.ops.kernels import flash

Tensors = list[torch.Tensor]


@pytest.fixture(params=["at once", "in blocks"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Blocks of five queries, which divide no length below."""
    if request.param == "in blocks":
        use_blocks(monkeypatch, 5)
    return request.param


def use_blocks(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(ours, "LONG", 0)
    monkeypatch.setattr(ours, "ROWS", rows)


@pytest.fixture(autouse=True)
def generator() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def attention_on_cpu(
    q: Any, k: Any, v: Any, score_mod: Any = None, mask_mod: Any = None, scale: float | None = None
) -> Tensors:
    """torch's reference, which autograd goes through: (output, logsumexp, largest score), without
    the base 2.

    The public function refuses gradients on the CPU, and the largest scores.
    """
    mods = score_mod or (lambda score, *_: score), mask_mod or noop_mask
    buffers: Any = ({}, (), ())
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    with TransformGetItemToIndex():
        out, logsumexp, largest = math_attention(q, k, v, mods[0], (mods[1],), factor, *buffers)
    return [out, logsumexp * math.log(2), largest * math.log(2)]


def attention_on_xla(
    q: Any, k: Any, v: Any, score_mod: Any = None, mask_mod: Any = None, scale: float | None = None
) -> Tensors:
    block_mask = None
    if mask_mod is not None:
        block_mask = create_block_mask(
            mask_mod, q.shape[0], q.shape[1], q.shape[2], k.shape[2], device="xla"
        )
    out, aux = flex_attention(
        q,
        k,
        v,
        score_mod,
        block_mask,
        scale,
        q.shape[1] != k.shape[1],
        return_aux=AuxRequest(True, True),
    )
    return [out, aux.lse, aux.max_scores]


def compare(function: Callable[..., Tensors], *cpu: torch.Tensor) -> None:
    """Compares `function(attention, *tensors)` and the gradients of its floating-point tensors on
    both devices."""
    results = []
    for device, attention in (("cpu", attention_on_cpu), ("xla", attention_on_xla)):
        tensors = [tensor.to(device) for tensor in cpu]
        leaves = [tensor.requires_grad_() for tensor in tensors if tensor.is_floating_point()]
        out, logsumexp, largest = function(attention, *tensors)
        total = out.square().sum() + logsumexp.masked_fill(logsumexp == -math.inf, 0).sin().sum()
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
        results.append([out, logsumexp, largest, *(grad for grad in grads if grad is not None)])
    assert len(results[0]) == len(results[1])
    for expected, made in zip(*results, strict=True):
        check(made, expected)


def heads(
    *counts: int, length: int = 12, kv_length: int = 14, dtype: torch.dtype = torch.float32
) -> Tensors:
    """Query, key and value of two sequences; the value is narrower."""
    number, kv_number = counts
    shapes = (2, number, length, 8), (2, kv_number, kv_length, 8), (2, kv_number, kv_length, 6)
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


class TestAgainstMath:
    """Score functions, masks and what they capture."""

    def test_plain(self, form: str) -> None:
        compare(lambda attention, q, k, v: attention(q, k, v), *heads(4, 4))

    def test_scale_and_double(self, form: str) -> None:
        """A position behind the last query, by which a block might be filled up, would have no
        logarithm."""

        def score_mod(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
            return score * (12 - m).double().log()

        qkv = heads(2, 2, dtype=torch.float64)
        compare(lambda attention, q, k, v: attention(q, k, v, score_mod, causal, 0.3), *qkv)

    def test_alibi_with_grouped_heads(self, form: str) -> None:
        def attend(attention: Any, q: Any, k: Any, v: Any, weight: Any) -> Tensors:
            slopes = weight.exp() * 0.1  # not a leaf tensor
            return attention(q, k, v, lambda score, b, h, m, n: score + slopes[h] * (n - m), causal)

        compare(attend, *heads(4, 2), torch.randn(4))

    def test_relative_bias_and_tanh(self, form: str) -> None:
        def attend(attention: Any, q: Any, k: Any, v: Any, bias: Any) -> Tensors:
            def score_mod(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
                return 2 * torch.tanh(score / 2) + bias[h, m - n + 13] + bias[0, 1]

            return attention(q, k, v, score_mod)

        compare(attend, *heads(2, 2), torch.randn(2, 30))

    def test_documents_and_rows_that_are_fully_masked(self, form: str) -> None:
        def attend(attention: Any, q: Any, k: Any, v: Any, ids: Any) -> Tensors:
            def mask_mod(b: Any, h: Any, m: Any, n: Any) -> Any:
                return (ids[b, m] == ids[b, n]) & (ids[b, m] != 1) & (h < 3)

            return attention(q, k, v, None, mask_mod)

        compare(
            attend,
            *heads(4, 4, length=14, kv_length=12),
            torch.arange(14).div(4, rounding_mode="floor").repeat(2, 1),
        )

    def test_masks_of_masks(self, form: str) -> None:
        window = and_masks(causal, lambda b, h, m, n: m - n < 3)
        mask = or_masks(window, lambda b, h, m, n: n < 2)
        compare(lambda attention, q, k, v: attention(q, k, v, None, mask), *heads(2, 1))

    def test_half_precision(self, form: str) -> None:
        q, k, v = (x.to(torch.bfloat16) for x in heads(4, 2))
        made = flex_attention(*(x.to("xla") for x in (q, k, v)), enable_gqa=True)
        check(made, attention_on_cpu(q, k, v)[0])

    def test_a_batch_of_one_key(self, form: str) -> None:
        q, k, v = heads(2, 2)
        k, v = k[:1].clone(), v[:1].clone()
        compare(lambda attention, q, k, v: attention(q, k, v, None, causal), q, k, v)

    def test_captured_vectors(self, form: str) -> None:
        """A function of single positions, which need not be elementwise in what it captures."""

        def attend(attention: Any, q: Any, k: Any, v: Any, table: Any) -> Tensors:
            def row(i: Any) -> Any:  # torch's own `table[i]` has no gradient of a row
                return table[i] if table.is_xla else torch.ops.aten.index(table, [i])

            return attention(q, k, v, lambda score, b, h, m, n: score + torch.dot(row(m), row(n)))

        compare(attend, *heads(2, 2), torch.randn(14, 3))


class TestCalls:
    """The public function with its other arguments, in other modes."""

    def qkv(self) -> Tensors:
        return [x.to("xla") for x in heads(2, 2, kv_length=12)]

    def test_masks_without_attention(self) -> None:
        for device in ("cpu", "xla"):
            made = create_block_mask(causal, 2, None, 300, 260, device=device)
            assert isinstance(made, BlockMask)
            lists = [x.cpu() for x in made.as_tuple() if isinstance(x, torch.Tensor)]
            if device == "cpu":
                expected = (
                    lists,
                    str(made),
                    made.to_dense(),
                    create_mask(causal, 1, 1, 5, 7, device=device),
                )
        for one, other in zip(lists, expected[0], strict=True):
            check(one, other)
        assert str(made) == expected[1]
        check(made.to_dense(), expected[2])
        check(create_mask(causal, 1, 1, 5, 7, device="xla"), expected[3])

    def test_no_grad_and_inference_mode(self) -> None:
        q, k, v = heads(2, 2, kv_length=12)
        expected = attention_on_cpu(q, k, v, None, causal)[0]
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                made = attention_on_xla(*(x.to("xla") for x in (q, k, v)), None, causal)[0]
            check(made, expected)
            assert not made.requires_grad

    def test_kernel_options_change_nothing(self) -> None:
        q, k, v = self.qkv()
        made = flex_attention(q, k, v, kernel_options={"BLOCK_M": 32, "PRESCALE_QK": True})
        check(made, flex_attention(q, k, v).cpu())

    def test_return_lse(self) -> None:
        q, k, v = self.qkv()
        with pytest.warns(FutureWarning, match="return_lse is deprecated"):
            module._WARNINGS_SHOWN.discard("deprecated_return_lse")
            _, logsumexp = flex_attention(q, k, v, return_lse=True)
        check(logsumexp, attention_on_cpu(*(x.cpu() for x in (q, k, v)))[1])

    def test_autocast(self) -> None:
        q, k, v = self.qkv()
        with torch.autocast("xla"):
            made = flex_attention(q, k, v)
        half = [x.cpu().to(torch.bfloat16) for x in (q, k, v)]
        assert made.dtype is torch.bfloat16
        check(made, attention_on_cpu(*half)[0])

    def test_checks_are_those_of_torch(self) -> None:
        q, k, v = self.qkv()
        with pytest.raises(ValueError, match="enable_gqa=True"):
            flex_attention(q, k[:, :1], v[:, :1])
        with pytest.raises((ValueError, RuntimeError), match="block_mask was created for"):
            flex_attention(
                q, k, v, block_mask=create_block_mask(causal, None, None, 5, 12, device="xla")
            )
        with pytest.raises(RuntimeError, match="on the same device"):
            flex_attention(
                q, k, v, block_mask=create_block_mask(causal, None, None, 12, 12, device="cpu")
            )

    def test_the_flag_for_debugging_may_be_set_and_taken_back(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        q, k, v = self.qkv()
        for flag in (True, False):
            monkeypatch.setattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", flag)
            check(flex_attention(q, k, v), attention_on_cpu(*(x.cpu() for x in (q, k, v)))[0])

    def test_in_a_branch_and_in_a_loop(self) -> None:
        def both(
            attention: Any, scan: Any, cond: Any, q: Any, k: Any, v: Any, slopes: Any
        ) -> Tensors:
            def attend(x: Any) -> Any:
                return attention(x, k, v, lambda score, b, h, m, n: score + slopes[h] * n, causal)[
                    0
                ]

            x, _ = scan(lambda x, _: (attend(x), x), q, torch.zeros(3, device=q.device))
            x = cond((x.sum() > 1e9), lambda x: x, attend, (x,))
            return [x, *torch.autograd.grad(x.square().sum(), [q, k, v, slopes])]

        q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))
        results = []
        for device, how in (
            ("cpu", (attention_on_cpu, spmd.scan)),
            ("xla", (attention_on_xla, spmd.scan)),
        ):
            tensors = [x.to(device).requires_grad_() for x in (q, k, v, torch.ones(2))]
            results.append(both(*how, spmd.cond, *tensors))
        for expected, made in zip(*results, strict=True):
            check(made, expected)

    def test_calls_on_the_cpu_are_checked_and_compiled_by_torch(self) -> None:
        q, k, v = self.qkv()
        flex_attention(q, k, v)
        with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
            flex_attention(*(x.cpu().requires_grad_() for x in (q, k, v)))
        assert not module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG


class TestGraphs:
    """The ops as a compiled graph calls them: functions are GraphModules, what they captured are
    operands."""

    def test_forward_and_backward(self, form: str) -> None:
        q, k, v = heads(2, 2, kv_length=12, dtype=torch.float64)
        slopes, ids = (
            torch.randn(2, dtype=torch.float64),
            torch.arange(12).div(5, rounding_mode="floor").repeat(2, 1),
        )
        number, places = (
            torch.zeros((), dtype=torch.float64),
            torch.zeros(4, dtype=torch.int32).unbind(),
        )

        def score_mod(score: Any, b: Any, h: Any, m: Any, n: Any, slopes: Any) -> Any:
            return score * 2 + torch.ops.aten.index(slopes, [h]) * (m - n)

        def mask_mod(b: Any, h: Any, m: Any, n: Any, ids: Any) -> Any:
            return torch.ops.aten.index(ids, [b, m]) == torch.ops.aten.index(ids, [b, n])

        graphs = make_fx(score_mod)(number, *places, slopes), make_fx(mask_mod)(*places, ids)
        leaves = [x.requires_grad_() for x in (q, k, v, slopes)]
        of_slopes, of_ids = (
            (lambda *given: score_mod(*given, slopes)),
            (lambda *given: mask_mod(*given, ids)),
        )
        expected = attention_on_cpu(*leaves[:3], of_slopes, of_ids, 0.5)
        arriving = [torch.randn_like(x) for x in expected[:2]]
        expected += torch.autograd.grad(expected[:2], leaves, arriving)

        *operands, slopes, ids = (x.detach().to("xla") for x in (*leaves, ids))
        block_mask: Any = *[None] * 16, graphs[1]
        rest = block_mask, 0.5, {}, (slopes,), (ids,)
        out, logsumexp, largest = torch.ops.higher_order.flex_attention(*operands, graphs[0], *rest)
        # of a logsumexp to the base 2
        grads = arriving[0].to("xla"), arriving[1].to("xla") * math.log(2)
        *found, of_buffers = flex_attention_backward(
            *operands, out, logsumexp, *grads, graphs[0], None, *rest
        )
        made = out, logsumexp * math.log(2), largest * math.log(2), *found, *of_buffers
        for one, other in zip(made, expected, strict=True):
            check(one, other)


class TestPackedDocuments:
    """Documents packed into a row, kept apart by their sequence ids, equal the same documents one
    by one."""

    def test_equals_unpacked(self, form: str) -> None:
        sizes, width = (3, 7, 2, 6), 4
        # q, k, v; two heads
        documents = [torch.randn(size, 3, 2, width, dtype=torch.float64) for size in sizes]
        packed = spmd.data.PackedDocuments([list(range(size)) for size in sizes], length=10)
        rows, queue, made, expected = list(packed), list(documents), [], []
        for row in rows:
            ids = row["sequence_ids"].to("xla")
            here = [queue.pop(0) for _ in range(int(row["sequence_ids"].max()))]
            tokens = torch.cat([*here, torch.zeros(10 - sum(map(len, here)), 3, 2, width)]).double()
            leaf = tokens.to("xla").requires_grad_()
            mask = and_masks(causal, lambda b, h, m, n, ids=ids: ids[m] == ids[n])
            q, k, v = leaf.permute(1, 2, 0, 3)[:, None].unbind()
            out = flex_attention(
                q, k, v, block_mask=create_block_mask(mask, None, None, 10, 10, device="xla")
            )
            of_documents = ids != 0
            (out.square().sum((0, 1, 3)) * of_documents).sum().backward()
            count = int((row["sequence_ids"] != 0).sum())
            made += [out[0, :, :count].transpose(0, 1).cpu().detach(), leaf.grad[:count].cpu()]  # type: ignore[index]
            alone = []
            for document in here:
                leaf = document.clone().requires_grad_()
                q, k, v = leaf.permute(1, 2, 0, 3)[:, None].unbind()
                out = scaled_dot_product_attention(q, k, v, is_causal=True)
                out.square().sum().backward()
                alone.append((out[0].transpose(0, 1).detach(), leaf.grad))
            expected += [torch.cat(parts) for parts in zip(*alone, strict=True)]  # type: ignore[arg-type]
        assert len(rows) == 2 and not queue
        for one, other in zip(made, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


class TestSharded:
    """Batch and heads over a mesh: each device attends alone."""

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_no_collective(
        self, form: str, partitioner: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)
        mesh = spmd.Mesh(range(8), (2, 4), ("data", "tensor"))
        q, k, v = torch.randn(4, 8, 12, 4), torch.randn(4, 4, 12, 4), torch.randn(4, 4, 12, 4)
        slopes, ids = torch.rand(8), torch.arange(12).div(5, rounding_mode="floor").repeat(4, 1)
        results = []
        for device in ("cpu", "xla"):
            tensors = [x.to(device, copy=True) for x in (q, k, v)]
            if device == "xla":
                for tensor in tensors:
                    spmd.mark_sharding(tensor, mesh, ("data", "tensor", None, None))
            where, by_head = ids.to(device), slopes.to(device)
            leaves = [tensor.requires_grad_() for tensor in tensors]
            spmd.sync()

            def mask_mod(b: Any, h: Any, m: Any, n: Any, where: Any = where) -> Any:
                return where[b, m] == where[b, n]

            def score_mod(
                score: Any, b: Any, h: Any, m: Any, n: Any, by_head: Any = by_head
            ) -> Any:
                return score + by_head[h] * (n - m)

            attention = attention_on_cpu if device == "cpu" else attention_on_xla
            out = attention(*leaves, score_mod, mask_mod)[0]
            results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
            del out
        spmd.sync()
        assert not spmd.metrics.compiles()[-1].collectives
        for expected, made in zip(*results, strict=True):
            check(made, expected)


SCORES: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "soft cap": lambda score, b, h, m, n: 3 * torch.tanh(score / 3),
    "slopes of heads": lambda score, b, h, m, n: score - 0.1 * (h + 1) * (m - n),
    "by position": lambda score, b, h, m, n: torch.where((m + n) % 3 == b, score * 0.5, score + 1),
}


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All attention in a loop over blocks of scores."""
    cache.clear_cache()
    use_blocks(monkeypatch, 5)
    monkeypatch.setattr(core_attention, "LONG", 1)
    monkeypatch.setattr(flash, "BLOCK", (8, 7))
    yield
    cache.clear_cache()


@pytest.mark.usefixtures("long")
@pytest.mark.parametrize("name", SCORES)
class TestFunctionsOfScores:
    """Functions that read no tensor, in the loop over blocks of scores, and the logsumexp."""

    def test_against_math(self, name: str) -> None:
        """With the gradient of the logsumexp; a row sees nothing."""
        mask = and_masks(causal, lambda b, h, m, n: (m - n < 9) & (m != 5))
        operands = heads(4, 2, length=24, kv_length=24)
        compare(lambda attention, q, k, v: attention(q, k, v, SCORES[name], mask), *operands)

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    @pytest.mark.parametrize("spec", [("a", "b", None, None), ("a", None, "b", None)])
    def test_sharded(
        self, name: str, spec: Any, partitioner: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Batch, heads and rows count from the first of all devices."""
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)
        mesh, tensors = (
            spmd.Mesh(range(8), (2, 4), ("a", "b")),
            heads(4, 4, length=24, kv_length=24),
        )
        leaves = [x.clone().requires_grad_() for x in tensors]
        expected, total, _ = attention_on_cpu(*leaves, SCORES[name], causal)
        grads = torch.autograd.grad(expected.sin().sum() + total.cos().sum(), leaves)
        on_xla = [x.to("xla") for x in tensors]
        for tensor in on_xla:
            spmd.mark_sharding(tensor.requires_grad_(), mesh, spec)
        made, logsumexp, _ = attention_on_xla(*on_xla, SCORES[name], causal)
        of_xla = torch.autograd.grad(made.sin().sum() + logsumexp.cos().sum(), on_xla)
        for one, other in zip((made, *of_xla), (expected, *grads), strict=True):
            check(one, other)


def _of_tensors(name: str) -> tuple[list[torch.Tensor], Callable[..., Any]]:
    """Tensors, and a function of them that is a function of scores."""
    ids = torch.tensor([[0] * 9 + [1] * 15, [0] * 20 + [1] * 4])
    bias: Callable[..., Any] = lambda bias: lambda score, b, h, m, n: score + bias[h, m, n]  # noqa: E731
    functions: dict[str, tuple[list[torch.Tensor], Callable[..., Any]]] = {
        "slopes": (
            [torch.randn(4)],
            lambda slopes: lambda score, b, h, m, n: score + slopes[h] * (n - m),
        ),
        "relative bias": (
            [torch.randn(4, 47)],
            lambda table: lambda score, b, h, m, n: score + table[h, m - n + 23],
        ),
        "scales of documents": (
            [torch.randn(2), ids],
            lambda scales, ids: lambda score, b, h, m, n: score * scales[ids[b, n]],
        ),
        "a full bias": ([torch.randn(4, 24, 24)], bias),
    }
    return functions[name]


@pytest.mark.usefixtures("long")
class TestFunctionsOfTensors:
    """Functions that read tensors, in the loop over blocks: also the gradients of the tensors."""

    NAMES = "slopes", "relative bias", "scales of documents", "a full bias"

    @pytest.fixture(autouse=True)
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[flash.Score]:
        """The functions that are called for a block."""
        made: list[flash.Score] = []
        of = flash.Score.of

        def seen(score: flash.Score, *operands: Any) -> Any:
            made.append(score)
            return of(score, *operands)

        monkeypatch.setattr(flash.Score, "of", seen)
        return made

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("most", [1 << 16, 100])
    def test_against_math(
        self, name: str, most: int, calls: list[flash.Score], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A loop carries the gradients of small tensors; of others all scores are computed."""
        monkeypatch.setattr(score_attention, "_MOST", most)
        mask = and_masks(causal, lambda b, h, m, n: (m - n < 9) & (m != 5))
        tensors, function = _of_tensors(name)
        compare(
            lambda attention, q, k, v, *tensors: attention(q, k, v, function(*tensors), mask),
            *heads(4, 2, length=24, kv_length=24),
            *tensors,
        )
        has_room = max(x.numel() for x in tensors if x.is_floating_point()) <= most
        assert any(score.wanted for score in calls) == has_room

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    @pytest.mark.parametrize("spec", [("a", "b", None, None), ("a", None, "b", None)])
    @pytest.mark.parametrize("name", NAMES[1:3])
    def test_sharded(
        self, name: str, spec: Any, partitioner: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The gradients of tensors are summed over all devices."""
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)
        mesh = spmd.Mesh(range(8), (2, 4), ("a", "b"))
        tensors, function = _of_tensors(name)
        operands = [*heads(4, 4, length=24, kv_length=24), tensors[0]]
        leaves = [x.clone().requires_grad_() for x in operands]
        score = function(leaves[3], *tensors[1:])
        expected, total, _ = attention_on_cpu(*leaves[:3], score, causal)
        grads = torch.autograd.grad(expected.sin().sum() + total.cos().sum(), leaves)
        on_xla = [x.to("xla").requires_grad_() for x in operands]
        for tensor in on_xla[:3]:
            spmd.mark_sharding(tensor, mesh, spec)
        score = function(on_xla[3], *(x.to("xla") for x in tensors[1:]))
        made, logsumexp, _ = attention_on_xla(*on_xla[:3], score, causal)
        of_xla = torch.autograd.grad(made.sin().sum() + logsumexp.cos().sum(), on_xla)
        for one, other in zip((made, *of_xla), (expected, *grads), strict=True):
            check(one, other)


@pytest.mark.parametrize("is_long", [True, False])
def test_sinks(is_long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learned score of each head that no key has: output * sigmoid(logsumexp - sink)."""
    cache.clear_cache()
    if is_long:
        use_blocks(monkeypatch, 5)
        monkeypatch.setattr(core_attention, "LONG", 1)
        monkeypatch.setattr(flash, "BLOCK", (8, 7))
    tensors = [*heads(4, 2, length=24, kv_length=24), torch.randn(4)]
    leaves = [x.clone().requires_grad_() for x in tensors]
    q, k, v, sinks = leaves
    scores = q @ k.repeat_interleave(2, 1).mT / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~torch.ones(24, 24, dtype=torch.bool).tril(), -math.inf)
    columns = torch.cat([scores, sinks[:, None, None].expand(2, 4, 24, 1)], -1)
    expected = columns.softmax(-1)[..., :-1] @ v.repeat_interleave(2, 1)
    grads = torch.autograd.grad(expected.sin().sum(), leaves)
    on_xla = [x.to("xla").requires_grad_() for x in tensors]
    out, logsumexp, _ = attention_on_xla(*on_xla[:3], None, causal)
    made = out * torch.sigmoid(logsumexp - on_xla[3][:, None])[..., None]
    of_xla = torch.autograd.grad(made.sin().sum(), on_xla)
    for one, other in zip((made, *of_xla), (expected, *grads), strict=True):
        check(one, other)
    cache.clear_cache()


class TestMemory:
    """Beside arguments and results a program holds a block of queries' scores, not the square of
    the length."""

    HEADS, WIDTH = 2, 16

    def temporaries(self, length: int) -> int:
        """Of a program of forward and backward, block mask included, which is compiled and does not
        run."""

        def step(q: Any, k: Any, v: Any, slopes: Any, ids: Any) -> None:
            mask = and_masks(causal, lambda b, h, m, n: ids[m] == ids[n])
            block_mask = create_block_mask(mask, None, None, length, length, device="xla")
            out = flex_attention(
                q, k, v, lambda score, b, h, m, n: score + slopes[h] * (m - n), block_mask
            )
            out.square().sum().backward()

        shape = 1, self.HEADS, length, self.WIDTH
        operands = [
            torch.empty(size, device="meta", requires_grad=True)
            for size in (*[shape] * 3, (self.HEADS,))
        ]
        return spmd.plan(
            step, *operands, torch.empty(length, device="meta", dtype=torch.int64)
        ).temporaries

    def test_grows_with_the_length(self) -> None:
        length = 4096
        made, scores = self.temporaries(length), 4 * self.HEADS * length**2
        block = 4 * self.HEADS * length * ours.ROWS
        assert made < 8 * block + 16 * 4 * self.HEADS * length * self.WIDTH < scores / 2
        assert self.temporaries(2 * length) < 2.2 * made
