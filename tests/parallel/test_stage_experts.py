"""Layers of experts over the stages of a pipeline: transformers' Qwen3-MoE unmodified, with the
router's loss, and experts behind a router of one's own in float64."""

import copy
from collections.abc import Iterator

import pytest
import torch
import transformers
from torch import nn
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

import spmd
from spmd import P, ShardingRules

from .moe import CLOSE

ROWS, LENGTH = 16, 8


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    spmd.sync()
    monkeypatch.setattr(spmd.config, "micro_batches", 0)
    yield
    spmd.sync()


def config(layers: int) -> transformers.Qwen3MoeConfig:
    return transformers.Qwen3MoeConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64, num_experts=4, num_experts_per_tok=2, head_dim=8,
        moe_intermediate_size=16, output_router_logits=True, router_aux_loss_coef=0.1,
    )  # fmt: skip


def distance(model: nn.Module, other: nn.Module) -> float:
    """The difference of two models' gradients, relative to the gradients of the second."""
    of_model, of_other = (
        torch.cat([p.grad.cpu().flatten() for p in m.parameters()]) for m in (model, other)
    )
    return float((of_model - of_other).norm() / of_other.norm())


# Pairwise: axes and their sizes, layers, micro-batches, partitioner, exchange of experts.
CASES = [
    ({"stage": 4, "fsdp": 2}, 4, 2, "gspmd", "auto"),
    ({"stage": 2, "fsdp": 2, "expert": 2}, 4, None, "shardy", "ring"),
    ({"stage": 2, "expert": 4}, 3, 4, "gspmd", "all-to-all"),
    ({"stage": 2, "fsdp": 2, "tensor": 2}, 5, 4, "shardy", "auto"),
    ({"stage": 8}, 8, 8, "gspmd", "auto"),
]


# All layers have experts: the plan's entries for dense ones match nothing.
@pytest.mark.filterwarnings("ignore:ShardingRules.of")
@pytest.mark.parametrize(("sizes", "layers", "count", "partitioner", "exchange"), CASES)
def test_qwen3(
    sizes: dict[str, int],
    layers: int,
    count: int | None,
    partitioner: str,
    exchange: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loss, the router's loss and gradients are those of one device."""
    monkeypatch.setattr(spmd.config, "partitioner", partitioner)
    monkeypatch.setattr(spmd.config, "parallel", exchange)
    on_cpu = transformers.Qwen3MoeForCausalLM(config(layers))
    expected, model = copy.deepcopy(on_cpu).to("xla"), copy.deepcopy(on_cpu).to("xla")
    mesh = spmd.Mesh(range(8), tuple(sizes.values()), tuple(sizes))
    axes = {axis: axis if axis in sizes else None for axis in ("fsdp", "tensor", "expert")}
    table = ShardingRules.of(on_cpu, stages="stage", micro_batches=count, **axes)
    table.apply(model, mesh)
    ids = torch.randint(0, 64, (ROWS, LENGTH)).to("xla")
    spmd.metrics.clear()
    outputs = []
    for m in (model, expected):
        outputs.append(m(input_ids=ids, labels=ids))
        outputs[-1].loss.backward()
        spmd.sync()
    for name in ("loss", "aux_loss"):
        values = [getattr(output, name).item() for output in outputs]
        assert values[0] == pytest.approx(values[1], rel=CLOSE[torch.float32])
    assert distance(model, expected) < CLOSE[torch.float32]
    notes = {note for record in spmd.metrics.compiles() for note in record.passes}
    assert ("fuse experts", f"{2 * layers} layers of experts") in notes
    assert ("stages", "2 loops in stages") in notes


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(32), nn.Linear(32, 4, bias=False)
        settings = config(1)
        settings._experts_implementation = "batched_mm"
        self.experts = Qwen3MoeExperts(settings)
        for weight in self.experts.parameters():
            nn.init.normal_(weight, std=0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(x).flatten(0, 1)
        weights, choices = self.router(hidden).softmax(-1).topk(2)
        return x + self.experts(hidden, choices, weights).view_as(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.layers = nn.ModuleList([Layer() for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


@pytest.mark.parametrize("sizes", [(4, 2, 1), (2, 2, 2)])
def test_float64(sizes: tuple[int, ...]) -> None:
    on_cpu = Model().double()
    model = copy.deepcopy(on_cpu).to("xla")
    rules = {"layers.*.experts.*": P("expert", None, None)} if sizes[2] > 1 else {}
    table = ShardingRules(rules, units=["layers.*"], stages="stage", micro_batches=4)
    table.apply(model, spmd.Mesh(range(8), sizes, ("stage", "fsdp", "expert")))
    x = torch.randn(ROWS, LENGTH, 8, dtype=torch.float64)
    losses = model(x.to("xla")), on_cpu(x)
    for loss in losses:
        loss.backward()
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=CLOSE[torch.float64])
    assert distance(model, on_cpu) < CLOSE[torch.float64]
