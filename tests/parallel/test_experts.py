"""Layers of experts over a mesh: outputs and all gradients as on one device, whatever the router
chooses."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import spmd
from spmd.core.programs import cache

from . import moe
from .moe import BLOCKS, EXCHANGES, ROUTINGS, Case, Layout, as_on_one_device, check_fused, layout

pytestmark = pytest.mark.partitioned("layers of experts")

BOTH = layout(("fsdp", "expert"), fsdp=2, expert=4)
MESHES = {
    "expert": layout("expert", expert=8),
    "both": BOTH,
    "few": layout(("fsdp", "expert"), fsdp=4, expert=2),
    "tensor": layout("fsdp", fsdp=2, expert=2, tensor=2),
    "context": layout(("fsdp", "expert"), "context", fsdp=2, expert=2, context=2),
}
ALL = ("auto", *EXCHANGES)
# Each block with each routing and with each exchange, each routing with each exchange.
CASES = [
    (name, routing, ALL[(i + j) % len(ALL)])
    for i, name in enumerate(BLOCKS)
    for j, routing in enumerate(ROUTINGS)
]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    spmd.metrics.clear()
    yield
    cache.clear_cache()


@pytest.fixture(params=["all-to-all", "ring"])
def travel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An exchange in which weights stay."""
    monkeypatch.setattr(spmd.config, "parallel", request.param)
    return request.param


def check(case: Case, over: Layout, exchange: str | None) -> None:
    as_on_one_device(case, over)
    check_fused(exchange)
    assert exchange not in ("all-to-all", "ring") or not moe.moved_stacks(case)


class TestRouting:
    """The routers of these tests choose as they are told."""

    @pytest.mark.parametrize("routing", ROUTINGS)
    @pytest.mark.parametrize("name", BLOCKS)
    def test_counts(self, name: str, routing: str) -> None:
        case = Case(name, routing)
        counts = case.counts()
        num_tokens = case.batch * case.length
        expected = {
            "balanced": counts.min() == counts.max(),
            "skewed": counts.max() > 4 * counts.min() > 0,
            "one": counts[moe.FIRST] == num_tokens == counts.max() and counts.min() > 0,
            "empty": counts[moe.EMPTY] == 0 and counts.count_nonzero() == len(counts) - 1,
        }
        assert expected[routing], counts


class TestGradients:
    """Of the input, the router, the experts, their biases and shared experts: 1e-12 in float64,
    1e-6 in float32."""

    @pytest.mark.parametrize(("name", "routing", "exchange"), CASES)
    def test_blocks(
        self, name: str, routing: str, exchange: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spmd.config, "parallel", exchange)
        check(Case(name, routing), BOTH, exchange)

    @pytest.mark.parametrize(
        ("name", "exchange"), list(zip(BLOCKS, (*ALL, "all-to-all"), strict=True))
    )
    def test_float32(self, name: str, exchange: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "parallel", exchange)
        check(Case(name, "skewed", torch.float32), BOTH, exchange)

    @pytest.mark.parametrize("name", MESHES)
    def test_meshes(self, name: str, travel: str) -> None:
        check(Case("deepseek", "skewed"), MESHES[name], travel)

    def test_fsdp_alone(self) -> None:
        """Each device has all experts for its own tokens; nothing else is moved for them."""
        check(Case("gpt-oss", "skewed"), layout("fsdp", fsdp=8), None)
        kinds = {row.kind for row in spmd.metrics.compiles()[-1].traffic}
        assert kinds <= {"all-gather", "all-reduce", "reduce-scatter"}


class TestSizes:
    """Sizes that the devices do not divide."""

    @pytest.mark.parametrize("exchange", EXCHANGES)
    def test_experts(self, exchange: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Six on four devices."""
        monkeypatch.setattr(spmd.config, "parallel", exchange)
        check(Case("gpt-oss", "skewed", experts=6), BOTH, exchange)

    def test_replicated_tokens(self, travel: str) -> None:
        """The devices of the axis of experts have the same tokens: each takes a part of them."""
        check(Case("mixtral", "one"), layout("fsdp", fsdp=2, expert=4), travel)

    def test_batch(self, travel: str) -> None:
        """Nine sequences on eight devices, which divide the tokens."""
        check(Case("mixtral", "skewed", batch=9, length=8), BOTH, travel)

    @pytest.mark.parametrize(
        ("batch", "length", "tokens"), [(9, 7, ("fsdp", "expert")), (2, 33, "fsdp"), (1, 5, None)]
    )
    def test_tokens(self, batch: int, length: int, tokens: Any, travel: str) -> None:
        """Each device computes its own experts' rows of all of them."""
        case = Case("gpt-oss", "empty", batch=batch, length=length)
        check(
            case,
            layout(tokens, fsdp=2, expert=4),
            "each device computes its own experts' rows of the same tokens",
        )
        assert not moe.moved_stacks(case)

    @pytest.mark.parametrize("exchange", ALL)
    def test_lengths_that_change(self, exchange: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Batches of one length after the other, in the same lines."""
        monkeypatch.setattr(spmd.config, "parallel", exchange)
        cases = [Case(length=length) for length in (16, 24, 32)]
        for case, ours in zip(cases, [case.results(over=BOTH) for case in cases], strict=True):
            moe.close(ours, moe.on_cpu(case), moe.CLOSE[case.dtype])
