"""Hidden states that rules shard along the sequence (arXiv:2205.05198), between FSDP's units."""

import copy

import pytest
import torch
from support import check
from torch import Tensor, nn

import fsdp  # noqa: F401  # of the rules' units
import spmd
from spmd import P, config

WIDTH, LAYERS = 16, 8
RULES = {
    "layers.*.up.weight": P("tensor", None),
    "layers.*.down.weight": P(None, "tensor"),
    "layers.*:input": P("fsdp", "tensor", None),
    "layers.*.up:input": P("fsdp", None, None),
    "{layers.*,layers.*.down}:output": P("fsdp", "tensor", None),
}


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(config, "partitioner", request.param)
    return request.param


class Layer(nn.Module):
    """A residual block with its norm behind it, as OLMo 2 has it (arXiv:2501.00656)."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return x + self.norm(self.down(torch.tanh(self.up(x * scale))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.linspace(0.5, 1.5, x.shape[1], device=x.device)[None, :, None]
        for layer in self.layers:
            x = layer(x, scale)
        return x


def sharded(model: nn.Module, *, checkpointed: bool) -> spmd.Mesh:
    mesh = spmd.Mesh(range(8), (2, 4), ("fsdp", "tensor"))
    checkpoint = ["layers.*"] if checkpointed else ()
    spmd.ShardingRules(RULES, units=["layers.*"], checkpoint=checkpoint).apply(model, mesh)
    return mesh


@pytest.mark.parametrize("checkpointed", [False, True])
def test_gathers(partitioner: str, checkpointed: bool) -> None:
    """A layer gathers its input forward, again where it is recomputed, and its output's gradient;
    a table without a batch is not exchanged."""
    model = Model().to("xla")
    mesh = sharded(model, checkpointed=checkpointed)

    def step(x: Tensor) -> None:
        model(
            spmd.mark_sharding(x.to("xla"), mesh, P("fsdp", None, None))
        ).square().mean().backward()

    collectives = spmd.plan(step, torch.ones(8, 32, WIDTH)).collectives
    hidden = 4 * 32 * WIDTH * 4  # bytes of a device's sequences
    gathers = [row for row in collectives if row.kind == "all-gather" and row.bytes >= hidden]
    assert {row.axes for row in gathers} == {("tensor",)}
    assert sum(row.count for row in gathers) == LAYERS * (3 if checkpointed else 2)
    assert not [row for row in collectives if row.op == "aten.mul.Tensor" and row not in gathers]


@pytest.mark.parametrize("checkpointed", [False, True])
def test_values(partitioner: str, checkpointed: bool) -> None:
    plain = Model()
    model = copy.deepcopy(plain).to("xla")
    sharded(model, checkpointed=checkpointed)
    x = torch.randn(8, 32, WIDTH)
    for network, rows in ((plain, x), (model, x.to("xla"))):
        network(rows).square().mean().backward()
    for actual, expected in zip(model.parameters(), plain.parameters(), strict=True):
        check(actual.grad, expected.grad)
