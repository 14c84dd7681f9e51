"""verify of a step whose rows one axis of two does not divide, as it is and without the padding of
scatters."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import spmd
from spmd.core.programs import cache, compiler


@pytest.fixture(autouse=True)
def new_programs() -> Iterator[None]:
    """No program of another lowering is taken for an equal graph."""
    cache.clear_cache()
    yield
    cache.clear_cache()


@pytest.mark.parametrize("is_padded", [True, False])
def test_uneven_rows(is_padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a read by index counts rows of padding where scatters are as XLA has them."""
    if not is_padded:
        monkeypatch.setattr(compiler, "pad_scatters", lambda module, num_devices: None)
    spmd.manual_seed(1)
    head = nn.Linear(6, 5).to("xla")

    def step(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(len(targets), device=targets.device)
        loss = -head(x).log_softmax(1)[rows, targets].mean()
        loss.backward()
        return loss

    mesh = spmd.Mesh(range(8), (4, 2), ("data", "model"))
    found = spmd.verify(
        step, torch.randn(13, 6), torch.randint(5, (13,)), meshes=[mesh], progress=False
    )
    assert bool(found) == is_padded, found
    assert is_padded or any("weight" in str(row) for row in found.differences)
