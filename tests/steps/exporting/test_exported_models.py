"""Exported programs come back equal: ten kinds of model, written to files, loaded, and compared
with what made them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import check
from torch import nn
from torch.nn import functional as F

import fsdp
import spmd
from spmd import Mesh, P


class Attention(nn.Module):
    """An embedding and attention over it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embedding(ids)
        made, weights = self.attention(x, x, x)
        return {"made": made, "weights": weights}


class Block(nn.Module):
    """A block of GPT with a causal mask, its head tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        q, k, v = (
            part.unflatten(-1, (2, 4)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.head(x + self.down(F.gelu(self.up(self.norm(x)))))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
    ).eval()


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 16, shape)


INFERENCE: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)),
        lambda: torch.randn(3, 4),
    ),
    "gpt with tied weights": (Block, lambda: ids(2, 6)),
    "conv": (conv, lambda: torch.randn(2, 3, 8, 8)),
    "lstm": (lambda: nn.LSTM(4, 8, batch_first=True), lambda: torch.randn(2, 5, 4)),
    "attention": (Attention, lambda: ids(2, 6)),
}


def compare(found: Any, expected: Any) -> None:
    """Compares nested tensors, of equal structures."""
    if isinstance(expected, torch.Tensor):
        check(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            compare(found[key], expected[key])
    else:
        assert type(found) is type(expected) and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            compare(one, other)


class TestInference:
    """A module on the CPU is exported and comes back on xla with the CPU's numbers."""

    @pytest.mark.parametrize("name", INFERENCE)
    def test_equal(self, name: str, tmp_path: Path) -> None:
        make, draw = INFERENCE[name]
        model, x = make(), draw()
        spmd.export(model, (x,)).save(tmp_path)
        assert all(tensor.device.type == "cpu" for tensor in model.parameters())
        loaded = spmd.load_exported(tmp_path)
        x = draw()
        compare(loaded(x.to("xla")), model(x))

    def test_tied_weights_are_one(self) -> None:
        names = [name for name in spmd.export(Block(), (ids(2, 6),)).state() if "weight" in name]
        assert "embedding.weight" in names and "head.weight" not in names

    def test_of_torch_export_at_several_lengths(self, tmp_path: Path) -> None:
        model = Block()
        length = torch.export.Dim("length", min=2, max=32)
        program = torch.export.export(model, (ids(2, 6),), dynamic_shapes=({1: length},))
        for n in (3, 6):
            x = ids(2, n)
            spmd.export(program, (x,)).save(tmp_path / str(n))
            compare(spmd.load_exported(tmp_path / str(n))(x.to("xla")), model(x))


def trained(model: nn.Module, optimizer: Any) -> Callable[..., Any]:
    """A step of training."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


BATCH = torch.linspace(-1, 1, 64).reshape(8, 8), torch.linspace(1, 0, 64).reshape(8, 8)


class TestTraining:
    """A training step goes on from the state that it was exported with, loss by loss, as on the
    CPU."""

    def compare(
        self, step: Any, args: Any, expected: nn.Module, folder: Path, mesh: Mesh | None = None
    ) -> Any:
        spmd.export(step, args).save(folder)
        loaded = spmd.load_exported(folder, mesh)
        on_cpu = trained(expected, torch.optim.AdamW(expected.parameters(), lr=0.1))
        for _ in range(3):
            check(loaded(*args), on_cpu(*BATCH))
        for name, parameter in expected.named_parameters():
            check(loaded.state[name], parameter)
        return loaded

    def test_adamw(self, tmp_path: Path) -> None:
        model = net().to("xla")
        step = trained(model, optimizer := torch.optim.AdamW(model.parameters(), lr=0.1))
        before = model[0].weight.cpu()
        loaded = self.compare(step, tuple(one.to("xla") for one in BATCH), net(), tmp_path)
        assert loaded.state["optimizer.0.weight.step"].item() == 3
        check(model[0].weight, before)
        assert not optimizer.state and optimizer.param_groups[0]["capturable"] is False
        assert all(parameter.grad is None for parameter in model.parameters())

    def test_fsdp(self, tmp_path: Path) -> None:
        mesh = Mesh(range(8), (8,), ("fsdp",))
        model = fsdp.fully_shard(net().to("xla"), mesh=mesh)
        args = tuple(spmd.mark_sharding(one.to("xla"), mesh, P("fsdp", None)) for one in BATCH)
        step = trained(model, torch.optim.AdamW(model.parameters(), lr=0.1))
        loaded = self.compare(step, args, net(), tmp_path)
        for name in ("0.weight", "optimizer.0.weight.exp_avg"):
            assert "fsdp" in spmd.get_sharding(loaded.state[name]).partition_spec(2)

    def test_tensor_parallel_on_another_mesh(self, tmp_path: Path) -> None:
        mesh = Mesh(range(8), (4, 2), ("data", "model"))
        model = net().to("xla")
        spmd.mark_sharding(model[0].weight, mesh, P("model", None))
        spmd.mark_sharding(model[2].weight, mesh, P(None, "model"))
        args = tuple(spmd.mark_sharding(one.to("xla"), mesh, P("data", None)) for one in BATCH)
        step = trained(model, torch.optim.AdamW(model.parameters(), lr=0.1))
        other = Mesh([3, 1, 0, 2, 7, 6, 5, 4], (2, 4), ("rows", "columns"))
        loaded = self.compare(step, args, net(), tmp_path, other)
        there = spmd.get_sharding(loaded.state["0.weight"])
        assert there.device_ids == other.device_ids and there.partition_spec(2) == ("model", None)
