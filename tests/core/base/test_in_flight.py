"""Programs in flight: fewer than XLA takes on a device, whoever launches them."""

import numpy as np
import torch

import spmd
from spmd.core.base import in_flight
from spmd.core.graph import store


def test_rows_of_stacks_are_counted(mesh8: spmd.Mesh) -> None:
    """A slow program, and behind it one for each row of its result."""
    x = spmd.mark_sharding(torch.rand(64, 512, 512).to("xla"), mesh8, (None, "fsdp", None))
    row = spmd.mark_sharding(torch.rand(512, 512).to("xla"), mesh8, ("fsdp", None))
    for _ in range(8):
        x = (x @ torch.ones(512, 512, device="xla")).softmax(-1)
    spmd.sync()
    stack, sharding = x._storage.value.placed()[0], spmd.get_sharding(row)
    made = []
    for index in range(40):
        made.append(store.row(stack, index, sharding))
        assert made[-1].is_ready() or any(one is made[-1] for one in in_flight._over_several)
        assert len(in_flight._over_several) <= 16
    np.testing.assert_array_equal(np.asarray(made[7]), x[7].cpu().numpy())


def test_single_devices_are_counted(mesh1: spmd.Mesh) -> None:
    x = spmd.mark_sharding(torch.rand(512, 512).to("xla"), mesh1, (None, None))
    expected = x.cpu()
    for _ in range(40):
        x, expected = x @ x / 256, expected @ expected / 256
        spmd.sync()
        assert len(in_flight._on_one) <= 8
    torch.testing.assert_close(x.cpu(), expected, rtol=1e-3, atol=1e-6)
