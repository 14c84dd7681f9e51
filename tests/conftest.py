"""What every test shares: eight simulated devices, meshes over them, a fixed seed. Helpers live in `support.py`."""

import os

import pytest
import torch

import spmd

# A test compiles what it is about, and no test writes into the user's folders; nor do the processes that it starts.
spmd.config.program_cache = False
os.environ["SPMD_PROGRAM_CACHE"] = "0"

# The number of devices is fixed when jax's backend starts, so this stands before any test module is imported.
spmd.simulate(8)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Every test draws the same numbers whichever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def mesh8() -> spmd.Mesh:
    """All eight devices on one axis, as plain FSDP uses them."""
    return spmd.Mesh(range(8), (8,), ("fsdp",))


@pytest.fixture(scope="session")
def mesh2x4() -> spmd.Mesh:
    """Two replicas of a four-way FSDP."""
    return spmd.Mesh(range(8), (2, 4), ("data", "fsdp"))


@pytest.fixture(scope="session")
def mesh1() -> spmd.Mesh:
    """One device: the same program without any partitioning."""
    return spmd.Mesh(range(1), (1,), ("fsdp",))
