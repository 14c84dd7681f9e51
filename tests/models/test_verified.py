"""No false alarm: `spmd.verify` says of each model that a training step on eight devices is one
device's."""

import pytest
import torch
from models.families import FAMILIES
from torch import Tensor

import fsdp  # noqa: F401  (rules with units)
import spmd
from spmd import Mesh, ShardingRules
from spmd.tools.verification.evidence import Verification


def verified(name: str, meshes: list[Mesh], rules: list[ShardingRules]) -> Verification:
    case = FAMILIES[name]
    torch.manual_seed(0)
    model, inputs = case.build().train(), case.inputs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)

    def step(inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss, logits = case.loss(model, inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss, logits

    found = spmd.verify(step, inputs, meshes=meshes, rules=rules)
    worst = max(row.difference / row.tolerance for row in found.rows if row.tolerance)
    # Shown by `pytest -s`.
    print(
        f"{name}: {len(found.rows)} comparisons, the worst difference is {worst:.3f} of its "
        "tolerance"
    )
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
class TestNoFalseAlarm:
    """Results, gradients, parameters and buffers are equal, in float64 and float32, under both
    partitioners."""

    def test_data_parallel(self, name: str) -> None:
        """The batch over eight devices, by its marks."""
        verified(name, [Mesh(range(8), (8,), ("data",))], []).raise_on_difference()

    def test_fsdp(self, name: str) -> None:
        """FSDP over four devices beside two replicas, by rules."""
        rules = ShardingRules({}, units=[], extra_data_axis="data")
        verified(name, [Mesh(range(8), (2, 4), ("data", "fsdp"))], [rules]).raise_on_difference()
