"""cat and stack of many tensors: the values, and concatenations of few operands, whose compilation
is fast."""

import re

import pytest
import torch

import spmd


@pytest.mark.parametrize("join", [torch.cat, torch.stack], ids=["cat", "stack"])
@pytest.mark.parametrize("dim", [0, 1])
def test_many(join, dim: int) -> None:
    """XLA's time for one concatenation grows with the square of the number of its operands."""
    rows = torch.arange(700.0).view(350, 2)
    x = rows.to("xla")
    made = join([row[None] for row in x.unbind(0)], dim)
    text = spmd.get_stablehlo([made])
    (barrier,) = re.findall(r"stablehlo.optimization_barrier (.*) :", text)
    assert barrier.count("%") == 3  # of 128, 128 and 94 rows
    assert torch.equal(made.cpu(), join([row[None] for row in rows.unbind(0)], dim))


def test_few() -> None:
    """Is one concatenation for XLA."""
    x = torch.arange(256.0).to("xla")
    made = torch.stack(x.unbind(0))
    assert "optimization_barrier" not in spmd.get_stablehlo([made])
    assert torch.equal(made.cpu(), torch.arange(256.0))


def test_dtypes_and_gradients(mesh8: spmd.Mesh) -> None:
    """Operands of other dtypes are promoted, empty ones left out; the gradient of each is its
    part."""
    found = []
    for device in ("cpu", "xla"):
        source = torch.linspace(0, 1, 8 * 300).view(300, 8).to(device).requires_grad_()
        given = source if device == "cpu" else spmd.mark_sharding(source, mesh8, (None, "fsdp"))
        parts = [
            *(given[i] * (i % 7) for i in range(300)),
            torch.ones(3, device=device).long(),
            torch.ones(0, device=device),
        ]
        made = torch.cat(parts)
        (made * torch.arange(made.numel(), device=device)).sum().backward()
        found.append((made.detach().cpu(), source.grad.cpu()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one)
