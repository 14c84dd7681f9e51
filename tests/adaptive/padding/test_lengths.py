"""A cache that grows is one program for all its lengths; numbers stay CPU's, whatever lies behind
the length."""

import copy
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spmd
from spmd.adaptive.padding import learning, spread
from spmd.core.graph.graph import Graph
from spmd.loops.recompute import recompute

STEPS = 6


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nothing of another test is pending."""
    spmd.sync()
    yield
    spmd.sync()


def buffer(*shape: int) -> Tensor:
    """Numbers up to row 12, NaN behind: what is not counted must not be seen."""
    made = torch.randn(shape)
    made[12:] = math.nan
    return made


WEIGHT = torch.randn(8, 8)


class TestOps:
    """Each op that has a rule, of a slice from 0 whose length changes, of a buffer that holds NaN
    behind it."""

    OPS: ClassVar[dict[str, Callable[[Tensor], Tensor]]] = {
        "sum": lambda x: x.sum(0),
        "sum of all": lambda x: x.sum(),
        "mean": lambda x: x.mean(0, keepdim=True),
        "mean of all": lambda x: x.mean(),
        "mean beside": lambda x: x.mean(1).sum(),
        "max": lambda x: x.max(),
        "max, where": lambda x: x.max(0)[1].float() + x.max(0)[0],
        "min": lambda x: x.amin(0),
        "argmin": lambda x: x.argmin(0),
        "product": lambda x: x.prod(0),
        "norm": lambda x: x.norm(),
        "logsumexp": lambda x: x.logsumexp(0),
        "all": lambda x: (x > -3).all(0),
        "any": lambda x: (x > 1).any(0),
        "count": lambda x: (x > 0).sum(0),
        "softmax": lambda x: (x.softmax(0) * x).sum(0),
        "log_softmax": lambda x: x.log_softmax(0)[0] * 1,
        "softmax beside": lambda x: x.softmax(1).sum(0),
        "cumsum": lambda x: x.cumsum(0)[-1] * 1,
        "the first": lambda x: x[0] * 2,
        "the last": lambda x: x[-1] * 2,
        "the last two": lambda x: x[-2:] * 2,
        "the first two": lambda x: x[:2] * 2,
        "by an index": lambda x: x[torch.tensor([0, -1]).to(x.device)] * 2,
        "elementwise": lambda x: (torch.where(x > 0, x, x.exp()) + x[:, :1] * 2).sum(0),
        "reshaped": lambda x: x.view(-1, 2, 4).transpose(0, 1).reshape(2, -1, 2, 2).sum(1),
        "repeated": lambda x: x[:, None].expand(-1, 3, 8).sum((0, 2)),
        "joined": lambda x: torch.cat([x, x[:2]]).sum(0),
        "joined beside": lambda x: torch.cat([x, x * 2], 1).sum(0),
        "stacked": lambda x: torch.stack([x, x * 2], 1).sum(0),
        "product over it": lambda x: x.T @ x,
        "product beside it": lambda x: (x @ WEIGHT.to(x.device)).sum(0),
        "batched product": lambda x: (
            x.view(-1, 2, 4).transpose(0, 1) @ WEIGHT.to(x.device).view(2, 4, 8)
        ).sum(1),
        "gather": lambda x: x.gather(1, (x > 0).long()).sum(),
        "scatter_add": lambda x: (x * 0).scatter_add(1, (x > 0).long(), x).exp().sum(),
        "scatter_add along the length": lambda x: (
            (x * 0).scatter_add(0, (x > 0).long(), x).exp().sum()
        ),
        "scatter_add into less": lambda x: (
            torch.zeros(4, 8, device=x.device).scatter_add(0, (x > 0).long(), x).sum(0)
        ),
        "index_add": lambda x: torch.zeros(4, 8, device=x.device).index_add(
            0, (x[:, 0] > 0).long() + 1, x, alpha=2
        ),
        "index_add beside": lambda x: (x * 0).index_add(1, (x[0] > 0).long(), x).exp().sum(0),
        "index_put without adding": lambda x: torch.zeros(4, 8, device=x.device).index_put(
            ((x[:, 0] > 0).long(),), x
        ),
        "index_put": lambda x: torch.zeros(4, 8, device=x.device).index_put(
            ((x[:, 0] > 0).long() - 2,), x, True
        ),
        "index_put of both": lambda x: (
            (x * 0)
            .index_put(((x[:, 0] > 0).long() - 2, (x[:, 1] > 0).long()), x[:, 2], True)
            .exp()
            .sum(0)
        ),
        "index_put of one value": lambda x: torch.ones(4, 8, device=x.device).index_put(
            ((x[:, 0] > 0).long(),), torch.ones((), device=x.device), True
        ),
        "index_put of one row": lambda x: torch.ones(4, 8, device=x.device).index_put(
            ((x[:, 0] > 0).long() - 3,), torch.ones(8, device=x.device), True
        ),
        "index_put of one row without adding": lambda x: torch.zeros(
            4, 8, device=x.device
        ).index_put(((x[:, 0] > 0).long() + 1,), torch.ones(8, device=x.device)),
        "index_put by a mask": lambda x: (
            (x * 2).index_put((x > 0,), torch.ones((), device=x.device)).exp().sum(0)
        ),
        "layer norm": lambda x: F.layer_norm(x, (8,)).sum(0),
        "triangle": lambda x: (x @ x.T).tril(1).sum(),
        "cross entropy": lambda x: F.cross_entropy(x, (x[:, 0] > 0).long()),
        "cross entropy, summed": lambda x: F.cross_entropy(
            x, (x[:, 0] > 0).long(), reduction="sum"
        ),
        "nll": lambda x: F.nll_loss(x.log_softmax(1), x.argmax(1)),
    }

    @pytest.mark.parametrize("name", OPS)
    def test_one_program(self, name: str) -> None:
        data, op = buffer(64, 8), self.OPS[name]
        on_xla, counts = data.to("xla"), []
        for length in range(3, 3 + STEPS):
            before = spmd.metrics.num_compiles()
            made = op(on_xla[:length]).cpu()
            counts.append(spmd.metrics.num_compiles() - before)
            torch.testing.assert_close(made, op(data[:length]), rtol=1e-5, atol=1e-5)
        assert sum(counts) <= 2 and not any(counts[2:]), (counts, spmd.metrics.report())

    REFUSED: ClassVar[dict[str, Callable[[Tensor], Tensor]]] = {
        "aten.flip": lambda x: x.flip(0).sum(0),
        "aten.sort": lambda x: x.sort(0)[0][0],
        "aten.linear": lambda x: F.linear(x, WEIGHT.to(x.device)).sum(0),
        "aten.view": lambda x: x.reshape(-1).sum(),
        "kept at its own length": lambda x: x * 2,
    }

    @pytest.mark.parametrize("name", REFUSED)
    def test_all_else_is_a_program_per_length(self, name: str) -> None:
        data, op = buffer(64, 8), self.REFUSED[name]
        on_xla = data.to("xla")
        for length in range(3, 3 + STEPS):
            before = spmd.metrics.num_compiles()
            torch.testing.assert_close(
                op(on_xla[:length]).cpu(), op(data[:length]), rtol=1e-5, atol=1e-5
            )
            assert spmd.metrics.num_compiles() == before + 1
        cause = spmd.metrics.compiles()[-1].cause
        assert "the length is no operand because" in cause and name in cause, cause


class Attention(nn.Module):
    """Attention of one new token at a time over a cache, in the forms that are about."""

    def __init__(self, form: str, *, heads: int = 8, width: int = 4, size: int = 32):
        super().__init__()
        self.form, self.heads, self.width = form, heads, width
        self.groups = 1 if form == "nanogpt" else 2
        whole, kv = heads * width, heads * width // self.groups
        self.query, self.key, self.value = (
            nn.Linear(whole, whole),
            nn.Linear(whole, kv),
            nn.Linear(whole, kv),
        )
        shape = (2, size, heads // self.groups, width)
        self.register_buffer("keys", torch.full(shape, math.nan))
        self.register_buffer("values", torch.full(shape, math.nan))
        self.register_buffer("causal", torch.ones(size, size).tril().view(1, 1, size, size))
        self.register_buffer("bias", torch.randn(size, size))

    def forward(self, x: Tensor, start: int) -> Tensor:
        batch, new, _ = x.shape
        end = start + new
        query = self.query(x).view(batch, new, self.heads, self.width).transpose(1, 2)
        self.keys[:batch, start:end] = self.key(x).view(batch, new, -1, self.width)
        self.values[:batch, start:end] = self.value(x).view(batch, new, -1, self.width)
        key, value = (self.heads_of(cache[:batch, :end]) for cache in (self.keys, self.values))
        return (
            getattr(self, self.form)(query, key, value, start, end)
            .transpose(1, 2)
            .reshape(batch, new, -1)
        )

    def heads_of(self, cache: Tensor) -> Tensor:
        batch, length, heads, width = cache.shape
        if self.groups > 1 and self.form != "grouped":  # Meta's repeat_kv
            cache = (
                cache[:, :, :, None]
                .expand(batch, length, heads, 2, width)
                .reshape(batch, length, 2 * heads, width)
            )
        return cache.transpose(1, 2)

    def nanogpt(self, query: Tensor, key: Tensor, value: Tensor, start: int, end: int) -> Tensor:
        scores = (query @ key.transpose(-2, -1)) * (1.0 / math.sqrt(key.size(-1)))
        scores = scores.masked_fill(self.causal[:, :, start:end, :end] == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ value

    def meta(self, query: Tensor, key: Tensor, value: Tensor, start: int, end: int) -> Tensor:
        scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(self.width)
        return torch.matmul(F.softmax(scores.float(), dim=-1).type_as(query), value)

    def fused(self, query: Tensor, key: Tensor, value: Tensor, start: int, end: int) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value)

    def grouped(self, query: Tensor, key: Tensor, value: Tensor, start: int, end: int) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)

    def masked(self, query: Tensor, key: Tensor, value: Tensor, start: int, end: int) -> Tensor:
        mask = self.causal[0, 0, start:end, :end] > 0
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    def biased(self, query: Tensor, key: Tensor, value: Tensor, start: int, end: int) -> Tensor:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=self.bias[start:end, :end]
        )


FORMS = ["nanogpt", "meta", "fused", "grouped", "masked", "biased"]


class TestCaches:
    """A prompt and then token by token, twice: a handful of programs for the first, none for the
    second."""

    def run(self, model: Attention, on_xla: Attention, prompt: int, steps: int) -> list[int]:
        counts, start = [], 0
        with torch.no_grad():
            for new in (prompt, *[1] * steps):
                x = torch.randn(2, new, 8 * model.width)
                before = spmd.metrics.num_compiles()
                made = on_xla(x.to("xla"), start).cpu()
                counts.append(spmd.metrics.num_compiles() - before)
                torch.testing.assert_close(made, model(x, start), rtol=1e-5, atol=1e-6)
                start += new
        return counts

    def pair(self, form: str, width: int = 4) -> tuple[Attention, Attention]:
        model, on_xla = Attention(form, width=width), Attention(form, width=width)
        on_xla.load_state_dict(model.state_dict())
        return model, on_xla.to("xla")

    @pytest.mark.parametrize("form", FORMS)
    def test_one_program_for_all_lengths(self, form: str) -> None:
        model, on_xla = self.pair(form)
        first = self.run(model, on_xla, 4, 20)
        assert sum(first) <= 4 and not any(first[3:]), (first, spmd.metrics.report())
        # Up to one token less than the cache holds: torch takes all of a buffer without a slice.
        assert self.run(model, on_xla, 4, 27) == [0] * 28, spmd.metrics.report()

    @pytest.mark.parametrize("form", ["meta", "fused"])
    @pytest.mark.parametrize(
        "spec", [("fsdp", *[None] * 3), (None, None, "fsdp", None), (None, "fsdp", None, None)]
    )
    def test_sharded(self, form: str, spec: tuple[str | None, ...], mesh8: spmd.Mesh) -> None:
        """Along the batch, the heads and the length itself, on eight devices."""
        model, on_xla = self.pair(form)
        for cache in (on_xla.keys, on_xla.values):
            spmd.mark_sharding(cache, mesh8, spec)
        counts = self.run(model, on_xla, 4, 8)
        assert not any(counts[3:]), (counts, spmd.metrics.report())

    def test_bfloat16(self) -> None:
        model, on_xla = (module.bfloat16() for module in self.pair("fused"))
        start, counts = 0, []
        with torch.no_grad():
            for _ in range(6):
                x = torch.randn(2, 2, 32).bfloat16()
                before = spmd.metrics.num_compiles()
                made = on_xla(x.to("xla"), start).cpu()
                counts.append(spmd.metrics.num_compiles() - before)
                torch.testing.assert_close(made, model(x, start), rtol=2e-2, atol=2e-2)
                start += 2
        assert not any(counts[3:]), counts

    def test_the_ledger_says_so(self) -> None:
        model, on_xla = self.pair("meta", width=2)
        self.run(model, on_xla, 4, 3)
        cause = spmd.metrics.compiles()[-1].cause
        assert re.search(
            r"aten.slice.Tensor: the length .* differs from run to run and is an operand", cause
        ), cause

    def test_turned_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "pad_lengths", False)
        model, on_xla = self.pair("meta", width=6)
        assert self.run(model, on_xla, 4, 4) == [1] * 5

    def test_with_gradients_a_length_is_a_program(self) -> None:
        data = torch.randn(32, 4)
        for length in range(3, 7):
            made = []
            for device in ("cpu", "xla"):
                leaf = data.to(device).detach().requires_grad_()
                leaf[:length].square().sum().backward()
                made.append(leaf.grad.cpu())
            torch.testing.assert_close(*made)
        assert "is a gradient" in spmd.metrics.compiles()[-1].cause


class Growing:
    """Attention of one new token over keys and values that `torch.cat` grows, as `transformers`
    keeps them."""

    def __init__(
        self, length: int, mesh: spmd.Mesh | None = None, spec: tuple[str | None, ...] = ()
    ):
        self.cpu = [torch.randn(2, 8, length, 4) for _ in range(2)]
        self.xla = [cache.to("xla") for cache in self.cpu]
        if mesh is not None:
            for cache in self.xla:
                spmd.mark_sharding(cache, mesh, spec)

    def step(self) -> int:
        """Compares one step with the CPU's; returns the number of its programs."""
        new = torch.randn(3, 2, 8, 1, 4)
        before = spmd.metrics.num_compiles()
        made = self.attend(self.xla, new.to("xla")).cpu()
        count = spmd.metrics.num_compiles() - before
        torch.testing.assert_close(made, self.attend(self.cpu, new), rtol=1e-5, atol=1e-6)
        return count

    def attend(self, caches: list[Tensor], new: Tensor) -> Tensor:
        with torch.no_grad():
            caches[:] = [
                torch.cat([cache, token], dim=-2)
                for cache, token in zip(caches, new[1:], strict=True)
            ]
            return F.scaled_dot_product_attention(new[0] * 2, *caches)


class TestGrownByCat:
    """Keys and values that are new tensors at each step keep their padding between the runs; users
    see none of it."""

    def test_a_program_for_each_doubling(self) -> None:
        counts = [(grown := Growing(56)).step(), *(grown.step() for _ in range(30))]
        assert sum(counts) <= 6, counts
        again = Growing(56)
        assert not any(again.step() for _ in range(30))
        assert again.xla[0].shape == (2, 8, 86, 4)

    @pytest.mark.parametrize("spec", [("fsdp", None, None, None), (None, "fsdp", None, None)])
    def test_sharded(self, spec: tuple[str | None, ...], mesh8: spmd.Mesh) -> None:
        grown = Growing(5, mesh8, spec)
        counts = [grown.step() for _ in range(8)]
        assert not any(counts[5:]), (counts, spmd.metrics.report())

    def test_it_is_a_tensor_like_any_other(self) -> None:
        """Read, written, viewed, copied, marked and kept beside the next one."""
        grown = Growing(7)
        for _ in range(6):
            grown.step()
        kept, expected = list(grown.xla), list(grown.cpu)
        spmd.sync()
        for _ in range(2):
            grown.step()
        assert torch.equal(kept[0].cpu(), expected[0])
        assert torch.equal(kept[0][..., -1, :].cpu(), expected[0][..., -1, :])
        kept[1][:, :, 2:4] = 0.5
        expected[1][:, :, 2:4] = 0.5
        assert torch.equal(kept[1].cpu(), expected[1])
        assert torch.equal(kept[0].clone().cpu(), expected[0]) and kept[
            0
        ].sum().item() == pytest.approx(expected[0].sum().item(), rel=1e-4)
        torch.testing.assert_close(grown.xla[0].cpu(), grown.cpu[0])
        assert grown.step() <= 1

    def test_reordered(self) -> None:
        """As a beam search does with the rows of a batch."""
        grown, counts = Growing(8), []
        for _ in range(12):
            counts.append(grown.step())
            before, index = spmd.metrics.num_compiles(), torch.randint(2, (2,))
            for caches in (grown.cpu, grown.xla):
                caches[:] = [cache.index_select(0, index.to(cache.device)) for cache in caches]
            spmd.sync()
            counts[-1] += spmd.metrics.num_compiles() - before
        assert not any(counts[5:]), (counts, spmd.metrics.report())
        torch.testing.assert_close(grown.xla[1].cpu(), grown.cpu[1])

    @pytest.mark.parametrize("spec", [None, (None, "fsdp", None, None)])
    def test_it_grows_in_place(self, spec: tuple[str | None, ...] | None, mesh8: spmd.Mesh) -> None:
        """No token moves a cache: while there is room it stays in the same memory, on every
        device."""
        grown = Growing(8) if spec is None else Growing(8, mesh8, spec)

        def memory() -> list[int]:
            buffers = [cache._storage.value.operands[0].buffer for cache in grown.xla]
            return [
                shard.data.unsafe_buffer_pointer()
                for buffer in buffers
                for shard in buffer.addressable_shards
            ]

        for _ in range(3):
            grown.step()
        before = memory()
        for _ in range(8):
            assert grown.step() == 0 and memory() == before

    KEEP: ClassVar[dict[str, Callable[[Tensor], Any]]] = {
        "itself": lambda x: x,
        "a view": lambda x: x[:, 1:].transpose(1, 2),
        "detached": lambda x: x.detach(),
        "data": lambda x: x.data,
        "what reads it": lambda x: x * 2,
        "a copy": copy.deepcopy,
        "a list": lambda x: [x],
        "held by a checkpoint": lambda x: recompute.same(x),
        "an iterator": lambda x: iter([x]),
    }

    @pytest.mark.parametrize("name", KEEP)
    def test_what_is_kept_is_not_written_over(self, name: str) -> None:
        grown = Growing(8)
        for _ in range(4):
            grown.step()
        mine, expected = (
            [self.KEEP[name](cache) for cache in caches] for caches in (grown.xla, grown.cpu)
        )
        grown.step()
        for one, other in zip(mine, expected, strict=True):
            if not isinstance(one, Tensor):
                one, other = next(iter(one)), next(iter(other))
            torch.testing.assert_close(one.cpu(), other)
        grown.step()
        torch.testing.assert_close(grown.xla[0].cpu(), grown.cpu[0])

    def test_what_waits_is_not_written_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Reads of the cache as it was wait behind reads that run only what they need."""
        grown = Growing(8)
        for _ in range(4):
            grown.step()
        monkeypatch.setattr(spmd.config, "sync_on_read", "needed")
        waiting, expected = grown.xla[0] * 2, grown.cpu[0] * 2
        for _ in range(3):
            grown.step()
        torch.testing.assert_close(waiting.cpu(), expected)

    def test_marked_while_it_grows(self, mesh8: spmd.Mesh) -> None:
        grown = Growing(7)
        for _ in range(4):
            grown.step()
        for cache in grown.xla:
            spmd.mark_sharding(cache, mesh8, (None, "fsdp", None, None))
        for _ in range(4):
            grown.step()

    def test_nothing_waits(self) -> None:
        grown = Growing(9)
        for _ in range(5):
            grown.step()
        before = spmd.metrics.counter("runs")
        spmd.sync()
        assert spmd.metrics.counter("runs") == before


class TestAgain:
    """A warm step whose length has been met before is padded by a plan; no rule is asked and
    nothing spreads."""

    @pytest.fixture
    def passes(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Counts how often padding is spread, by ops."""
        counted: list[int] = []
        pad = spread.pad

        def counting(graph: Graph, sources: spread.Sources) -> object:
            counted.append(len(graph.nodes))
            return pad(graph, sources)

        monkeypatch.setattr(learning, "pad", counting)
        return counted

    def test_a_slice(self, passes: list[int]) -> None:
        data = buffer(64, 8)
        on_xla = data.to("xla")
        for iteration in range(3):
            # a number that is lifted is the step's own
            for scale in (1.0, 2.5) if iteration else (1.0,):
                for length in range(3, 3 + STEPS):
                    made = (on_xla[:length] * scale).softmax(0)[1].cpu()
                    torch.testing.assert_close(
                        made, (data[:length] * scale).softmax(0)[1], rtol=1e-5, atol=1e-5
                    )
            if not iteration:
                assert passes
                passes.clear()
        # the first two had a program of their own before a length was an operand
        assert len(passes) <= 2, passes

    def test_a_cache_that_grows(self, passes: list[int]) -> None:
        caches = [Growing(5) for _ in range(3)]
        for cache in caches:
            passes.clear()
            for _ in range(STEPS):
                cache.step()
        assert len(passes) <= 2, passes

    def test_turned_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        data = buffer(64, 8).to("xla")
        for length in range(3, 3 + STEPS):
            data[:length].exp().sum(0).cpu()
        monkeypatch.setattr(spmd.config, "pad_lengths", False)
        before = spmd.metrics.num_compiles()
        data[: 2 + STEPS].exp().sum(0).cpu()
        assert spmd.metrics.num_compiles() == before + 1


class Pair:
    """A network on the CPU and on the device, trained alike on batches of many sizes."""

    def __init__(self, model: nn.Module, mesh: spmd.Mesh | None = None):
        self.models = model, copy.deepcopy(model).to("xla")
        for parameter in self.models[1].parameters() if mesh is not None else ():
            spmd.mark_sharding(parameter, mesh, ("fsdp", *[None] * (parameter.dim() - 1)))
        self.optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in self.models]

    def step(self, *shape: int) -> int:
        """Trains both on a batch of this shape; compares losses; returns the number of programs."""
        x, before, losses = torch.randn(shape), spmd.metrics.num_compiles(), []
        for model, optimizer, device in zip(
            self.models, self.optimizers, ("cpu", "xla"), strict=True
        ):
            loss = model(x.to(device)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[1] == pytest.approx(losses[0], rel=1e-4)
        return spmd.metrics.num_compiles() - before

    def check(self) -> None:
        for wanted, made in zip(*(model.parameters() for model in self.models), strict=True):
            torch.testing.assert_close(made.detach().cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)


def small_images(width: int = 8) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
        nn.Conv2d(width, width, 3, 2, dilation=2),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 4),
    )


class TestBatchesOfManySizes:
    """The third size of a batch makes its lengths operands, in training too."""

    @pytest.mark.parametrize("is_split", [False, True], ids=["one", "mesh"])
    def test_images(self, is_split: bool, mesh8: spmd.Mesh) -> None:
        pair = Pair(small_images(), mesh8 if is_split else None)
        sizes = [(21, 22), (37, 21), (24, 35), (30, 40), (31, 23), (26, 26), (22, 29)]
        counts = [pair.step(2, 3, *size) for size in sizes]
        assert counts[0] == counts[1] == 1 and sum(counts) <= 4 and not any(counts[4:]), (
            counts,
            spmd.metrics.report(),
        )
        pair.check()

    def test_numbers_of_images(self) -> None:
        pair = Pair(small_images(4))
        counts = [pair.step(count, 3, 22, 21) for count in (4, 3, 5, 2, 7)]
        assert sum(counts) <= 4 and not counts[-1], (counts, spmd.metrics.report())
        pair.check()

    def test_the_last_batch_of_an_epoch_has_a_program_of_its_own(self) -> None:
        pair = Pair(nn.Sequential(nn.Linear(3, 5), nn.Tanh()))
        assert [pair.step(count, 3) for count in (8, 8, 5, 8, 5)] == [1, 0, 1, 0, 0]
        assert "operand" not in spmd.metrics.compiles()[-1].cause

    def test_what_has_no_rule_is_named(self) -> None:
        pair = Pair(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ConvTranspose2d(2, 1, 3)))
        assert [pair.step(1, 1, size, size) for size in (5, 6, 7)] == [1, 1, 1]
        cause = spmd.metrics.compiles()[-1].cause
        assert "the length is no operand because aten.convolution is transposed" in cause, cause
        pair.check()
