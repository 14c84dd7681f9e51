"""ZeroRedundancyOptimizer: the state sharded, parameters and numbers those of the optimizer without
it."""

import copy
from typing import Any

import pytest
import torch
from support import check
from torch import nn

import fsdp
import spmd
import spmd.torch_xla  # tensors get its attributes, such as partition_spec
from fsdp.zero import XlaZeroRedundancyOptimizer

AdamW = torch.optim.AdamW


def models() -> tuple[nn.Module, nn.Module]:
    plain = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))
    return plain, copy.deepcopy(plain).to("xla")


def train(model: nn.Module, optimizer: Any, x: torch.Tensor, max_norm: float | None = None) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


def compare(model: nn.Module, plain: nn.Module) -> None:
    for one, two in zip(model.parameters(), plain.parameters(), strict=True):
        check(one, two)


def _rows(value: torch.Tensor, rank: int) -> torch.Tensor:
    """A rank's rows of 2, of which the last has a row of padding where there is an odd number."""
    padding = [0] * (2 * value.dim() - 1) + [len(value) % 2]
    return nn.functional.pad(value, padding).chunk(2)[rank]


class TestStep:
    """Steps, clipping, schedules and state dicts are those of the optimizer that is wrapped."""

    def test_as_without(self, mesh8: spmd.Mesh) -> None:
        plain, model = models()
        zero = fsdp.ZeroRedundancyOptimizer(
            model.parameters(), AdamW, mesh=mesh8, lr=0.01, max_norm=0.1
        )
        expected = AdamW(plain.parameters(), lr=0.01)
        schedules = [torch.optim.lr_scheduler.StepLR(one, 1, 0.5) for one in (zero, expected)]
        compiled = []
        for _ in range(4):
            x = torch.randn(16, 16)
            train(model, zero, spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp", None)))
            spmd.sync()
            train(plain, expected, x, max_norm=0.1)
            for schedule in schedules:
                schedule.step()
            compiled.append(spmd.metrics.num_compiles())
        compare(model, plain)
        assert compiled[1] == compiled[-1]
        weight, bias = (zero.state[parameter] for parameter in list(model.parameters())[:2])
        assert weight["exp_avg"].partition_spec == ("fsdp", None) and bias[
            "exp_avg_sq"
        ].partition_spec == ("fsdp",)
        assert weight["exp_avg"].local_shards[0].data.shape == (4, 16)
        assert model[0].weight.sharding_spec in ("", "{replicated}")
        collectives = {row.kind for row in spmd.metrics.compiles()[-1].traffic}
        assert "all-gather" in collectives

    def test_state_dict(self, mesh2x4: spmd.Mesh) -> None:
        plain, model = models()
        expected = AdamW(plain.parameters(), lr=0.01)
        x = torch.randn(8, 16)
        train(plain, expected, x)
        model.load_state_dict(plain.state_dict())
        with mesh2x4:
            zero = fsdp.ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=0.5)
        zero.load_state_dict(copy.deepcopy(expected.state_dict()))
        assert zero.param_groups[0]["lr"] == 0.01
        assert zero.state[model[0].weight]["exp_avg"].partition_spec == ("fsdp", None)
        train(model, zero, x.to("xla"))
        train(plain, expected, x)
        compare(model, plain)
        check(
            zero.state_dict()["state"][0]["exp_avg"], expected.state_dict()["state"][0]["exp_avg"]
        )

    def test_state_dicts_of_ranks(self, mesh8: spmd.Mesh) -> None:
        """PyTorch/XLA's: each rank has rows of the state, padded to the same number."""
        plain, model = models()
        expected = AdamW(plain.parameters())
        train(plain, expected, torch.randn(16, 16))
        whole = expected.state_dict()
        ranks = [
            {
                "state": {},
                "param_groups": whole["param_groups"],
                "shape_info": {i: p.shape for i, p in enumerate(plain.parameters())},
                "base_state": {
                    index: {
                        name: _rows(value, rank) if value.dim() else value
                        for name, value in values.items()
                    }
                    for index, values in whole["state"].items()
                },
            }
            for rank in range(2)
        ]
        zero = fsdp.ZeroRedundancyOptimizer(model.parameters(), AdamW, mesh=mesh8)
        with pytest.raises(ValueError, match=r"has 16 of 32 rows; pass a list of the state dicts"):
            zero.load_state_dict(ranks[0])
        zero.load_state_dict(ranks)
        for index, values in zero.state_dict()["state"].items():
            for name, value in values.items():
                check(value, whole["state"][index][name])
        weight = next(model.parameters())
        assert zero.state[weight]["exp_avg"].partition_spec == ("fsdp", None)

    def test_keys_of_pytorch_xla(self, mesh8: spmd.Mesh) -> None:
        """In the drop-in base_state and shape_info stand beside the state, which is loaded."""
        _, model = models()
        zero = XlaZeroRedundancyOptimizer(model.parameters(), AdamW, mesh=mesh8)
        model(torch.randn(16, 16).to("xla")).sum().backward()
        zero.step()
        state = zero.state_dict()
        assert state["base_state"] is state["state"] and len(state["base_state"]) == len(
            state["shape_info"]
        )
        assert state["shape_info"][0] == next(model.parameters()).shape
        _, new = models()
        other = XlaZeroRedundancyOptimizer(new.parameters(), AdamW, mesh=mesh8)
        other.load_state_dict(state)
        for index, values in other.state_dict()["base_state"].items():
            check(values["exp_avg"], state["state"][index]["exp_avg"].cpu())

    def test_closure(self, mesh8: spmd.Mesh) -> None:
        weight = torch.ones(8, device="xla", requires_grad=True)
        zero = fsdp.ZeroRedundancyOptimizer(
            [weight], torch.optim.SGD, mesh=mesh8, lr=0.5, momentum=0.9
        )

        def closure() -> torch.Tensor:
            zero.zero_grad()
            loss = weight.square().sum()
            loss.backward()
            return loss

        assert zero.step(closure).item() == 8
        check(weight, torch.zeros(8))
        assert zero.state[weight]["momentum_buffer"].partition_spec == ("fsdp",)


class Transposed(nn.Module):
    """A product with a transposed parameter, as a user writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(x @ self.weight.t())


class TestGathers:
    """A step gathers each parameter once, after its update, and no activation."""

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    @pytest.mark.parametrize(
        "block",
        [
            lambda: nn.Linear(16, 16, bias=False),
            lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)),
            Transposed,
            lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        ],
        ids=["linear", "mlp", "transposed", "transformer"],
    )
    def test_once(
        self, mesh8: spmd.Mesh, block: Any, partitioner: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)
        model = nn.Sequential(*(block() for _ in range(2))).to("xla")
        zero = fsdp.ZeroRedundancyOptimizer(model.parameters(), AdamW, mesh=mesh8, lr=0.01)
        for _ in range(3):
            x = torch.randn(64, 8, 16).to("xla")
            train(model, zero, spmd.mark_sharding(x, mesh8, ("fsdp", None, None)))
            spmd.sync()
        rows = [row for row in spmd.metrics.compiles()[-1].traffic if row.kind != "all-reduce"]
        sharded = [
            parameter.numel() * 4
            for parameter in model.parameters()
            if zero.state[parameter]["exp_avg"].partition_spec.count("fsdp")
        ]
        assert {row.kind for row in rows} == {"all-gather"}
        assert sum(row.bytes * row.count for row in rows) == sum(sharded)


class TestArguments:
    """An unknown axis is refused, keywords without a meaning are named."""

    def test_axis(self, mesh2x4: spmd.Mesh) -> None:
        weight = torch.ones(8, device="xla")
        assert fsdp.ZeroRedundancyOptimizer([weight], AdamW, mesh=mesh2x4).axis == "fsdp"
        assert (
            fsdp.ZeroRedundancyOptimizer([weight], AdamW, mesh=mesh2x4, axis="data").axis == "data"
        )
        with pytest.raises(
            ValueError, match=r"expected an axis of the mesh \(data, fsdp\), got 'model'"
        ):
            fsdp.ZeroRedundancyOptimizer([weight], AdamW, mesh=mesh2x4, axis="model")

    def test_without_a_meaning(self, mesh8: spmd.Mesh) -> None:
        weight = torch.ones(8, device="xla")
        with pytest.warns(UserWarning, match=r"optimizer_dtype \(.*; sharding_groups \("):
            fsdp.ZeroRedundancyOptimizer(
                [weight],
                AdamW,
                mesh=mesh8,
                optimizer_dtype=torch.float32,
                sharding_groups=[[0]],
                pin_layout=False,
            )
