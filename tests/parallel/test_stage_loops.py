"""A Python loop over the rows of a stack of one's own, split by rows: stages of a pipeline."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import spmd
from spmd import P

WIDTH, ROWS = 16, 16
CLOSE = 1e-12  # of the largest gradient, in float64


@pytest.fixture(autouse=True)
def micro_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    spmd.sync()
    monkeypatch.setattr(spmd.config, "micro_batches", 4)
    spmd.metrics.clear()
    yield
    spmd.sync()


class Stacks(nn.Module):
    """Layers whose weights are rows of three stacks. kind: of a layer."""

    def __init__(self, layers: int, kind: str):
        super().__init__()
        self.kind, self.layers = kind, layers
        self.embed, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 4)
        self.up = nn.Parameter(torch.randn(layers, WIDTH, 2 * WIDTH) / 4)
        self.down = nn.Parameter(torch.randn(layers, 2 * WIDTH, WIDTH) / 4)
        self.scale = nn.Parameter(torch.ones(layers, WIDTH))

    def layer(self, h: Tensor, i: int) -> Tensor:
        hidden = nn.functional.layer_norm(h, (WIDTH,)) * self.scale[i]
        h = h + torch.tanh(hidden @ self.up[i]) @ self.down[i]
        return h + torch.sin(hidden @ self.up[i]) @ self.up[i].t() if self.kind == "twice" else h

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        if self.kind == "rows":
            for up, down, scale in zip(self.up, self.down.unbind(), self.scale, strict=True):
                h = h + torch.tanh((h * scale) @ up) @ down
        for i in range(self.layers if self.kind != "rows" else 0):
            if self.kind == "checkpoint":
                h = torch.utils.checkpoint.checkpoint(self.layer, h, i, use_reentrant=False)
            else:
                h = self.layer(h, i)
        return self.head(h).square().mean()


def staged(model: Stacks, sizes: tuple[int, ...]) -> tuple[Stacks, spmd.Mesh]:
    mesh = spmd.Mesh(range(8), sizes, ("stage", "fsdp", "tensor"))
    model = copy.deepcopy(model).to("xla")
    spmd.mark_sharding(model.up, mesh, P("stage", "fsdp", "tensor"))
    spmd.mark_sharding(model.down, mesh, P("stage", "tensor", "fsdp"))
    spmd.mark_sharding(model.scale, mesh, P("stage", None))
    return model, mesh


def check(model: Stacks, expected: Stacks) -> None:
    for actual, parameter in zip(model.parameters(), expected.parameters(), strict=True):
        assert actual.grad is not None and parameter.grad is not None
        difference = (actual.grad.cpu() - parameter.grad).abs().max()
        assert difference <= CLOSE * parameter.grad.abs().max()


def notes() -> list[dict[str, str]]:
    return [dict(r.passes) for r in spmd.metrics.compiles() if "rows of stacks" in dict(r.passes)]


# Pairwise: sizes of stage, fsdp and tensor, layers, kind, micro-batches, partitioner.
CASES = [
    ((4, 2, 1), 8, "index", 4, "gspmd"),
    ((2, 2, 2), 8, "twice", 1, "shardy"),
    ((8, 1, 1), 8, "rows", 16, "gspmd"),
    ((4, 1, 2), 7, "checkpoint", 2, "gspmd"),
    ((2, 4, 1), 5, "rows", 4, "shardy"),
    ((4, 2, 1), 3, "twice", 2, "gspmd"),
]


@pytest.mark.parametrize(("sizes", "layers", "kind", "count", "partitioner"), CASES)
def test_steps(
    sizes: tuple[int, ...],
    layers: int,
    kind: str,
    count: int,
    partitioner: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Losses and gradients are those of the loop as written; the stacks stay on their stages; the
    optimizer's step is in the program of the next loss, which is a pipeline, too."""
    monkeypatch.setattr(spmd.config, "micro_batches", count)
    monkeypatch.setattr(spmd.config, "partitioner", partitioner)
    expected = Stacks(layers, kind).double()
    model, mesh = staged(expected, sizes)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, expected)]
    for _ in range(3):
        x = torch.randn(ROWS, 8, dtype=torch.float64)
        batch = spmd.mark_sharding(x.to("xla"), mesh, P(("stage", "fsdp"), None))
        losses = model(batch), expected(x)
        for loss in losses:
            loss.backward()
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=CLOSE)
        check(model, expected)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for tensor in (model.up, optimizers[0].state[model.up]["exp_avg"]):
        sharding = spmd.get_sharding(tensor)
        assert sharding is not None and sharding.spec.dims[0].axes == ("stage",)
    found = notes()
    assert found and all(note.get("stages") == "2 loops in stages" for note in found)
    with torch.no_grad():
        assert model(batch).item() == pytest.approx(expected(x).item(), rel=CLOSE)
    assert notes()[-1]["stages"] == "1 loop in stages"


def test_accumulation() -> None:
    """Gradients are added to those of the batch before."""
    expected = Stacks(8, "index").double()
    model, _ = staged(expected, (4, 2, 1))
    for _ in range(2):
        x = torch.randn(ROWS, 8, dtype=torch.float64)
        model(x.to("xla")).backward()
        expected(x).backward()
        spmd.sync()
    check(model, expected)


def test_layers_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    """No loop: all devices compute all layers, right, and a line says so."""
    weights, x = torch.randn(4, WIDTH, WIDTH).double() / 4, torch.randn(ROWS, WIDTH).double()
    functions = torch.tanh, torch.sin, torch.relu, torch.sigmoid
    expected, result = weights.clone().requires_grad_(), x
    for i, function in enumerate(functions):
        result = function(result @ expected[i])
    result.square().sum().backward()
    stack, h = nn.Parameter(weights.to("xla")), x.to("xla")
    spmd.mark_sharding(
        stack, spmd.Mesh(range(8), (4, 2), ("stage", "fsdp")), P("stage", None, None)
    )
    for i, function in enumerate(functions):
        h = function(h @ stack[i])
    h.square().sum().backward()
    torch.testing.assert_close(h.cpu(), result.detach(), rtol=CLOSE, atol=CLOSE)
    torch.testing.assert_close(stack.grad.cpu(), expected.grad, rtol=CLOSE, atol=CLOSE)
    assert "each device computes with all 4" in capsys.readouterr().err


def test_rows_read_in_another_program(capsys: pytest.CaptureFixture[str]) -> None:
    """Reads of single rows at one line teach no start that the loop would take as an operand."""
    expected = Stacks(4, "index").double()
    model, _ = staged(expected, (4, 2, 1))
    x = torch.randn(ROWS, 8, dtype=torch.float64)
    for _ in range(2):
        model(x.to("xla")).backward()
        for i in range(4):
            torch.testing.assert_close(model.up[i].cpu(), expected.up[i], rtol=0, atol=0)
        model.zero_grad()
    assert all(note.get("stages") == "2 loops in stages" for note in notes())
