"""Attention over pages by PyTorch/XLA's names, against torch on the CPU over keys in order."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import spmd
from spmd.names.torch_xla import paged_attention as paged

KV_HEADS, HEADS, DIM, PAGE = 4, 8, 16, 8
LENGTHS, QUERIES = [13, 24, 5], [4, 2, 3]


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    spmd.compat.install()
    importlib.import_module("torch_xla")
    yield
    spmd.compat.uninstall()


@pytest.fixture
def pages() -> tuple[Tensor, Tensor, Tensor]:
    """Pages of keys and of values, and those of three sequences, in no order."""
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(KV_HEADS, 12, PAGE, DIM, generator=generator) for _ in range(2))
    return k, v, torch.randperm(12, generator=generator)[:9].view(3, 3)


def attended(
    q: Tensor, pages: tuple[Tensor, Tensor, Tensor], sequence: int, cap: float | None, **how: Any
) -> Tensor:
    """Attention of the last queries of a sequence, (queries, heads, head_dim)."""
    length, (scale, window) = LENGTHS[sequence], (how.get("scale", 1.0), how.get("window"))
    k, v = (
        part[:, pages[2][sequence]].flatten(1, 2)[:, :length].repeat_interleave(2, 0)
        for part in pages[:2]
    )
    scores = torch.einsum("qhd,hld->hql", q, k) * scale
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    places = length - len(q) + torch.arange(len(q))[:, None]
    columns = torch.arange(length)
    is_seen = columns <= places
    if window is not None:
        is_seen &= columns > places - window
    weights = scores.masked_fill(~is_seen, float("-inf")).softmax(-1)
    return torch.einsum("hql,hld->qhd", weights, v)


def on_xla(*values: Any) -> list[Tensor]:
    return [torch.as_tensor(value).to("xla") for value in values]


class TestQueries:
    """multi_queries_paged_attention and paged_attention: padded queries, soft caps."""

    @pytest.mark.parametrize("cap", [None, 2.0])
    @pytest.mark.parametrize("is_sharded", [False, True])
    def test_of_several(
        self, pages: Any, cap: float | None, is_sharded: bool, mesh2x4: spmd.Mesh
    ) -> None:
        q = torch.randn(3, 4, HEADS, DIM)
        arguments = on_xla(q, *pages[:2], LENGTHS, pages[2], QUERIES)
        if is_sharded:
            spmd.mark_sharding(arguments[0], mesh2x4, (None, None, "fsdp", None))
            for part in arguments[1:3]:
                spmd.mark_sharding(part, mesh2x4, ("fsdp", None, None, None))
        xla = torch.ops.xla
        heads = xla.multi_queries_paged_attention(*arguments, 2, 4, True, cap).cpu()
        for i, count in enumerate(QUERIES):
            expected = attended(q[i, :count], pages, i, cap)
            torch.testing.assert_close(heads[i, :count], expected, rtol=1e-5, atol=1e-5)

    def test_of_one_with_gradients(self, pages: Any) -> None:
        q = torch.randn(3, HEADS, DIM, requires_grad=True)
        expected = torch.cat([attended(q[i : i + 1], pages, i, None) for i in range(3)])
        expected.sin().sum().backward()
        x, *arguments = on_xla(q.detach(), *pages[:2], LENGTHS, pages[2])
        x.requires_grad_()
        heads = torch.ops.xla.paged_attention(x, *arguments, 2)
        heads.sin().sum().backward()
        torch.testing.assert_close(heads.cpu(), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(x.grad.cpu(), q.grad, rtol=1e-5, atol=1e-5)


class TestRagged:
    """ragged_paged_attention: tokens of sequences one after the other, then padding."""

    @pytest.mark.parametrize("how", [{}, {"scale": 0.25, "window": 3}, {"cap": 2.0}])
    def test_values(self, pages: Any, how: dict[str, Any]) -> None:
        q = torch.randn(11, HEADS, DIM)
        fused = torch.stack([pages[0], pages[1]], 1).flatten(0, 1).permute(1, 2, 0, 3).contiguous()
        fused[pages[2][2, 1:]] = float("nan")  # of no sequence: five keys are of one page
        starts = [0, *torch.tensor(QUERIES).cumsum(0).tolist(), 0]
        arguments = on_xla(q, fused, [*LENGTHS, 0], [*pages[2].tolist(), [0] * 3], starts, [3])
        settings = how.get("scale", 1.0), how.get("window"), how.get("cap")
        heads = torch.ops.xla.ragged_paged_attention(*arguments, *settings).cpu()
        for i, count in enumerate(QUERIES):
            rows = slice(starts[i], starts[i] + count)
            rest = {name: value for name, value in how.items() if name != "cap"}
            expected = attended(q[rows], pages, i, how.get("cap"), **rest)
            torch.testing.assert_close(heads[rows], expected, rtol=1e-5, atol=1e-5)
        assert (heads[sum(QUERIES) :] == 0).all()

    def test_quantized(self, pages: Any) -> None:
        q, fused = torch.randn(3, HEADS, DIM), torch.randint(-8, 8, (12, PAGE, 2 * KV_HEADS, DIM))
        arguments = on_xla([20], [[0, 1, 2]], [0, 3], [1])
        scaled = fused * torch.tensor([0.5, 0.25] * KV_HEADS)[:, None]
        plain = paged.ragged_paged_attention(*on_xla(q, scaled), *arguments)
        heads = paged.ragged_paged_attention(
            *on_xla(q, fused.to(torch.int8)), *arguments, k_scale=0.5, v_scale=0.25
        )
        torch.testing.assert_close(heads.cpu(), plain.cpu(), rtol=1e-5, atol=1e-5)
