"""Products of rows in groups: each device multiplies its own rows."""

import re

import pytest
import torch

import spmd
from spmd.core.programs import cache
from spmd.ops.kernels import grouped


@pytest.fixture
def mesh8() -> spmd.Mesh:
    return spmd.Mesh(range(8), (8,), ("fsdp",))


class TestRows:
    @pytest.mark.parametrize("is_kernel", [False, True])
    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_each_device_its_own_rows(
        self, partitioner: str, is_kernel: bool, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No device has the rows of others, forward and backward; by XLA's product and by the TPU's
        kernels."""
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)
        monkeypatch.setattr(grouped, "INTERPRET", is_kernel)
        ends = torch.tensor([7, 7, 30, 60], dtype=torch.int32)  # four rows are in no group
        rows, weights = torch.randn(64, 24), torch.randn(4, 24, 40)
        made = []
        for place in ("cpu", "xla"):
            a, b = (tensor.clone().to(place).requires_grad_() for tensor in (rows, weights))
            if place == "xla":
                spmd.mark_sharding(a, mesh8, ("fsdp", None))
            out = torch.nn.functional.grouped_mm(a, b, offs=ends.to(place))
            is_grouped = (torch.arange(64) < 60).to(place)[:, None]
            out = torch.where(is_grouped, out, 0)
            out.sin().sum().backward()
            assert a.grad is not None and b.grad is not None
            made.append((out, torch.where(is_grouped, a.grad, 0), b.grad))
        spmd.sync()
        program = cache.last_program()
        for ours, theirs in zip(made[1], made[0], strict=True):
            torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), atol=1e-5, rtol=1e-5)
        assert program is not None
        assert not re.search(
            r"f32\[64,(24|40)\]|all-gather|all-to-all", program.executable.as_text()
        )
