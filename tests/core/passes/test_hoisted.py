"""Values that are read only after a loop are made before it, where more would have to be kept
otherwise."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support import check
from torch import Tensor, nn
from torch.nn import functional as F

import spmd
from spmd.core.graph.graph import Graph, Node
from spmd.core.loop.loop_op import Loop
from spmd.core.passes import found_loops

WIDTH, CLASSES, LAYERS = 16, 48, 8


@pytest.fixture(autouse=True)
def rolled() -> Iterator[None]:
    """Nothing of another test is pending, and layers are scanned wherever possible."""
    spmd.sync()
    before = spmd.config.scan_layers
    spmd.config.scan_layers = "always"
    yield
    spmd.config.scan_layers = before


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def step(model: nn.Module, x: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), torch.arange(len(x), device=x.device) % CLASSES)
    loss.backward()
    return loss


def found(monkeypatch: Any, rows: int) -> list[tuple[int, ...]]:
    """Runs a step of so many rows like torch does; the shapes of what its backward loop waits
    for."""
    seen: list[tuple[Graph, dict[Node, found_loops._Hoisted]]] = []
    late_values = found_loops.late_values

    def noting(graph: Graph) -> dict[Node, found_loops._Hoisted]:
        seen.append((graph, late_values(graph)))
        return seen[-1][1]

    monkeypatch.setattr(found_loops, "late_values", noting)
    torch.manual_seed(0)
    x, model, on_xla = torch.randn(rows, WIDTH), Classifier(), Classifier()
    on_xla.load_state_dict(model.state_dict())
    on_xla = on_xla.to("xla")
    spmd.sync()
    loss = step(on_xla, x.to("xla"))
    spmd.sync()
    check(loss, step(model, x))
    for got, wanted in zip(on_xla.parameters(), model.parameters(), strict=True):
        check(got.grad, wanted.grad)
    graph, wanted = max(seen, key=lambda one: len((one[0].recorded or one[0]).nodes))
    loops = [node for node in graph.nodes if isinstance(node.op.lowering, Loop)]
    assert loops[1].op.lowering.reverse and wanted.keys() <= {loops[1]}
    return [value.meta.shape for one in wanted.values() for value in one.values]


def test_the_gradients_of_a_head_are_there_before_the_layers_run_backward(monkeypatch):
    shapes = found(monkeypatch, 4 * CLASSES)
    assert set(shapes) == {(CLASSES, WIDTH), (CLASSES,), ()}  # of weight and bias, and the loss


def test_what_is_larger_than_all_that_it_is_made_of_is_put_off(monkeypatch):
    shapes = found(monkeypatch, 2)
    assert (CLASSES, WIDTH) not in shapes


def test_a_head_whose_logits_are_never_whole_has_its_gradients_there_too(monkeypatch):
    monkeypatch.setattr(spmd.config, "max_logits_bytes", 1 << 10)
    shapes = found(monkeypatch, 4 * CLASSES)
    assert () in shapes  # the loss


def test_without_a_loop_nothing_is_looked_for(monkeypatch):
    spmd.config.scan_layers = "never"
    seen = []
    late_values = found_loops.late_values
    monkeypatch.setattr(
        found_loops, "late_values", lambda graph: seen.append(late_values(graph)) or seen[-1]
    )
    model = Classifier().to("xla")
    step(model, torch.randn(3, WIDTH).to("xla")).item()
    assert not seen
