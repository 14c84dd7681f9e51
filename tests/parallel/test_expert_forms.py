"""The forms in which models write layers of experts, and what is computed as recorded instead."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spmd
from spmd import P
from spmd.core.programs import cache

from . import moe
from .moe import EXCHANGES, INNER, WIDTH, Case, Layout, Tensors, check_fused, layout

pytestmark = pytest.mark.partitioned("forms of layers of experts")

EXPERTS, CHOSEN = 8, 2
BOTH = layout(("fsdp", "expert"), fsdp=2, expert=4)
OWN = Layout(
    BOTH.sizes, BOTH.tokens, tuple((name, P("expert", None, None)) for name in ("w1", "w2", "w3"))
)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    spmd.metrics.clear()
    yield
    cache.clear_cache()


def grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """The product of each group of rows; torch's on the CPU takes no float64."""
    if rows.device.type == "xla":
        return torch._grouped_mm(rows, weights.transpose(-2, -1), offs=ends)
    places = [0, *ends.tolist()]
    groups = [rows[start:end] for start, end in itertools.pairwise(places)]
    return torch.cat([group @ weight.T for group, weight in zip(groups, weights, strict=True)])


class Layer(nn.Module):
    """torchtitan's layer: sorted by argsort, taken by gather, added by scatter_add to what shared
    experts compute.

    scores: "before" or "after" the experts. adds: "scatter_add" or "index_add".
    """

    def __init__(self, scores: str = "before", adds: str = "scatter_add") -> None:
        super().__init__()
        self.scores, self.adds = scores, adds
        self.gate, self.shared = nn.Linear(WIDTH, EXPERTS, bias=False), nn.Linear(WIDTH, WIDTH)
        for name, shape in {
            "w1": (INNER, WIDTH),
            "w2": (WIDTH, INNER),
            "w3": (INNER, WIDTH),
        }.items():
            setattr(self, name, nn.Parameter(torch.randn(EXPERTS, *shape) * 0.3))
        self.register_buffer("bias", torch.linspace(0, 0.1, EXPERTS))
        self.register_buffer("counts", torch.zeros(EXPERTS))

    def forward(self, x: Tensor) -> Any:
        tokens = x.view(-1, WIDTH)
        scores = torch.sigmoid(self.gate(tokens).float())
        _, choices = torch.topk(scores + self.bias, CHOSEN, dim=1)
        scores = scores.gather(1, choices)
        scores = scores / (scores.sum(-1, keepdim=True) + 1e-20)
        countable = choices.view(-1) if x.device.type == "xla" else choices.view(-1).float()
        counts = torch.histc(countable, bins=EXPERTS, min=0, max=EXPERTS)
        with torch.no_grad():
            self.counts.add_(counts)
        order = torch.argsort(choices.view(-1), stable=True)
        weights, index = scores.view(-1)[order].reshape(-1, 1), order // CHOSEN
        rows = torch.gather(tokens, 0, index.reshape(-1, 1).expand(-1, WIDTH))
        if self.scores == "before":
            rows = (rows.float() * weights).to(x.dtype)
        rows = self.experts(rows, torch.cumsum(counts, 0, dtype=torch.int32)).type_as(rows)
        if self.scores == "after":
            rows = (rows.float() * weights).to(x.dtype)
        return self.combined(self.shared(tokens), index, rows).view(x.shape)

    def experts(self, rows: Tensor, ends: Tensor) -> Tensor:
        return grouped(
            self.inner(grouped(rows, self.w1, ends), grouped(rows, self.w3, ends)), self.w2, ends
        )

    def inner(self, left: Tensor, right: Tensor) -> Tensor:
        return F.silu(left) * right

    def combined(self, base: Tensor, index: Tensor, rows: Tensor) -> Tensor:
        if self.adds == "index_add":
            return base.index_add(0, index, rows)
        return base.scatter_add(0, index.reshape(-1, 1).expand(-1, WIDTH), rows)


class WithMean(Layer):
    """Adds the mean of the experts' sorted results, too."""

    def combined(self, base: Tensor, index: Tensor, rows: Tensor) -> Tensor:
        return super().combined(base, index, rows) + rows.mean()


class WithNorm(Layer):
    """Divides by a sum over the sorted rows of all experts."""

    def inner(self, left: Tensor, right: Tensor) -> Tensor:
        values = super().inner(left, right)
        return values / (1 + values.square().sum(0, keepdim=True))


class WithDropout(Layer):
    """Drops values inside of the experts."""

    def inner(self, left: Tensor, right: Tensor) -> Tensor:
        return F.dropout(super().inner(left, right), 0.3)


def layer(make: Callable[[], nn.Module] = Layer) -> nn.Module:
    torch.manual_seed(4)
    return make().double()


def inputs() -> Tensor:
    return torch.randn(
        8, 16, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )


def outcome(
    make: Callable[[], nn.Module] = Layer, device: str = "xla", over: Layout | None = None
) -> Tensors:
    """Results of a layer, with its counts of choices after two steps."""
    module = layer(make).to(device)
    with moe.Doubles():
        torch.manual_seed(6)  # of dropout
        found = moe.results(module, inputs().to(device), over)
        module.zero_grad()
        torch.manual_seed(6)
        found |= moe.results(module, inputs().to(device), over)
    return found | {"counts": module.counts.cpu()}


def check_recorded(reason: str) -> None:
    """Asserts that the last program has no op of experts, and why."""
    words = moe.of_pass("fuse experts")
    assert len(words) == 1 and words[0].startswith("as recorded: ") and reason in words[0], words
    assert not any(words.startswith("experts over ") for words in moe.of_pass("exchange"))


class TestTransformers:
    """transformers' forms of the same experts."""

    @pytest.mark.parametrize("form", ["batched_mm", "eager"])
    @pytest.mark.parametrize("name", moe.BLOCKS)
    def test_forms(self, name: str, form: str) -> None:
        case = Case(name, "skewed", form=form)
        moe.as_on_one_device(case, BOTH)
        check_fused("auto")

    @pytest.mark.parametrize("form", ["grouped_mm", "eager"])
    def test_graph_of_dynamo(self, form: str) -> None:
        """The block is one graph: a function of this library in it would be a break, and an
        error."""
        case = Case("mixtral", "skewed", torch.float32, form=form)
        with torch.no_grad():
            output = torch.compile(case.block().to("xla"), backend="xla", fullgraph=True)(
                case.inputs().to("xla")
            )
        moe.close(
            {"output": output.cpu()},
            {"output": moe.on_cpu(case)["output"]},
            moe.CLOSE[torch.float32],
        )

    def test_bfloat16(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Routers compute in float32, experts and what travels in bfloat16."""
        monkeypatch.setattr(spmd.config, "parallel", "all-to-all")
        case = Case("mixtral", "skewed", torch.bfloat16)
        one = moe.on_one_device(case)
        moe.close(case.results(over=BOTH), one, moe.TOLERANCE[torch.bfloat16][0])
        check_fused("all-to-all")


class TestTorchtitan:
    """torchtitan's form."""

    @pytest.mark.parametrize("scores", ["before", "after"])
    @pytest.mark.parametrize("exchange", EXCHANGES)
    def test_scores(self, exchange: str, scores: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "parallel", exchange)
        self.check(lambda: Layer(scores), exchange)

    def test_index_add(self) -> None:
        self.check(lambda: Layer("after", "index_add"), "auto")

    @staticmethod
    def check(make: Callable[[], nn.Module], exchange: str) -> None:
        found = outcome(make, over=OWN)
        check_fused(exchange)
        moe.close(found, outcome(make), 1e-12)
        moe.close(found, outcome(make, "cpu"), 1e-12)


class TestPrograms:
    """The ops of experts of programs that are not a whole step."""

    def test_linear_loss(self) -> None:
        """Gradients that need no result of forward: both are one op."""
        found = []
        for over in (BOTH, None):
            case = Case()
            block, x = case.block().to("xla"), case.inputs().to("xla")
            x = x if over is None else over.place(block, x)
            with moe.Doubles():
                output = block(x)
                output.sum().backward()
            grads = {name: parameter.grad for name, parameter in block.named_parameters()}
            spmd.sync()
            if over is not None:
                check_fused("auto", layers=1)
            found.append(
                {
                    name: tensor.detach().cpu()
                    for name, tensor in {"output": output, **grads}.items()
                }
            )
        moe.close(*found, 1e-12)

    def test_without_gradients(self) -> None:
        case = Case("gpt-oss", "one")
        block = case.block().to("xla")
        with torch.no_grad(), moe.Doubles():
            output = block(BOTH.place(block, case.inputs().to("xla")))[0].cpu()
        check_fused("auto", layers=1)
        moe.close({"output": output.cpu()}, {"output": moe.on_cpu(case)["output"]}, 1e-12)


class TestAsRecorded:
    """Layers that no op replaces: the numbers are right, and the pass says why."""

    @pytest.mark.parametrize("make", [WithMean, WithNorm])
    def test_other_readers(self, make: type[Layer]) -> None:
        """A value of all sorted rows."""
        found = outcome(make, over=OWN)
        check_recorded("and is not row by row")
        moe.close(found, outcome(make), 1e-12)
        moe.close(found, outcome(make, "cpu"), 1e-12)

    def test_dropout(self) -> None:
        """Drawn numbers are those of the recorded order of rows."""
        found = outcome(WithDropout, over=OWN)
        check_recorded("and is not row by row")
        moe.close(found, outcome(WithDropout), 1e-12)

    def test_loss_read_before_backward(self) -> None:
        """Rows that backward needs are results of the program of forward."""
        case = Case("mixtral", "skewed")
        block = case.block().to("xla")
        x = BOTH.place(block, case.inputs().to("xla")).requires_grad_()
        with moe.Doubles():
            output = block(x)
            weight = (
                torch.arange(output.numel(), dtype=output.dtype)
                .reshape(output.shape)
                .sin()
                .to("xla")
            )
            loss = (output * (output / 8 + weight)).sum()
            loss.item()
            check_recorded("and is not row by row")
            loss.backward()
        found = {"output": output.detach().cpu(), "input": x.grad.cpu()}
        found |= {name: parameter.grad.cpu() for name, parameter in block.named_parameters()}
        moe.close(found, moe.on_cpu(case), 1e-12)

    def test_gradient_of_gradients(self) -> None:
        found = []
        for device, over in (("xla", BOTH), ("cpu", None)):
            case = Case("mixtral", "skewed", form="grouped_mm" if over else "eager")
            block, x = case.block().to(device), case.inputs().to(device)
            x = (x if over is None else over.place(block, x)).requires_grad_()
            with moe.Doubles():
                (grad,) = torch.autograd.grad(block(x).sin().sum(), x, create_graph=True)
                grads = torch.autograd.grad(grad.square().sum(), [x, *block.parameters()])
            spmd.sync()
            found.append(
                {str(place): tensor.detach().cpu() for place, tensor in enumerate((grad, *grads))}
            )
            if over is not None:
                assert "as recorded: a gradient of gradients" in moe.of_pass("fuse experts")
        moe.close(*found, 1e-12)

    def test_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`config.parallel = "off"` leaves the graph."""
        monkeypatch.setattr(spmd.config, "parallel", "off")
        case = Case("olmoe", "skewed")
        moe.as_on_one_device(case, BOTH)
        assert not moe.of_pass("fuse experts")

    def test_one_device(self) -> None:
        """One device leaves it, on a mesh of one, too."""
        case = Case("qwen3", "skewed")
        found = case.results()
        assert not moe.of_pass("fuse experts")
        alone = case.results(over=layout(("fsdp", "expert"), fsdp=1, expert=1))
        assert not moe.of_pass("fuse experts")
        moe.close(alone, found, 1e-12)
        moe.close(found, moe.on_cpu(case), 1e-12)
