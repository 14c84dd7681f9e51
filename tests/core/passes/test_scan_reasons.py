"""The reason why equal layers are no loop of a program, in words that hold for the program."""

import torch

import spmd
from spmd.core.passes import scan_layers


def test_two_equal_layers() -> None:
    """Two layers are equal, and are too few: the words do not deny that they are equal."""
    x = torch.randn(4, 8).to("xla")
    for _ in range(2):
        weight = torch.randn(8, 8).to("xla")
        x = ((x @ weight).tanh() * 2 + 1).sin().exp().neg().abs().sqrt().cos()
    spmd.metrics.clear()
    x.sum().item()
    (reason,) = (
        what for name, what in spmd.metrics.compiles()[-1].passes if name.startswith("scan")
    )
    assert reason.startswith(
        f"no {scan_layers.FEWEST_ITERATIONS} layers of the same ops, shapes, shardings and scalar"
    )
    assert reason.endswith("follow each other, and fewer are not a loop")
