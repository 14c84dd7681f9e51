"""Decoders of torchprime's shape train through the drop-in with the CPU's losses: scanned,
offloaded, pure, experts."""

from collections.abc import Iterator

import pytest
import torch
from scripted import loaded

import spmd


@pytest.fixture
def installed() -> Iterator[None]:
    before = spmd.config.partitioner
    spmd.compat.install()
    yield
    spmd.compat.uninstall()
    spmd.config.partitioner = before


CASES = [
    *((kind, "gspmd") for kind in ("scanned", "checkpointed", "offloaded", "pure", "experts")),
    ("scanned", "shardy"),
    ("experts", "shardy"),
]


@pytest.mark.parametrize(("kind", "partitioner"), CASES)
def test_losses(kind: str, partitioner: str, installed: None) -> None:
    spmd.config.partitioner = partitioner
    script = loaded("decoder_scanned.py")
    flags = script.parse(["--kind", kind])
    losses = script.main(flags)["losses"]
    model = script.build_model(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    expected = []
    for tokens in script.batches(flags.steps):
        loss = script.loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        model.zero_grad()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=2e-5) and len(losses) == flags.steps
