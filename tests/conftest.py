"""What every test shares: eight simulated devices, meshes over them, a fixed seed. Helpers live in `support.py`."""

import os

import pytest
import selection
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="what `make test` runs: see tests/selection.py")
    parser.addoption("--share", type=int, choices=range(selection.SHARES), help="of the sweeps, instead of the commit's")


def pytest_report_header(config: pytest.Config) -> str:
    config.share = selection.share() if config.option.share is None else config.option.share
    return f"sweeps: share {config.share} of 0..{selection.SHARES - 1}" if config.option.quick else "sweeps: all shares"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if selection.is_partitioned(item):
            item.add_marker("partitioned")
    if config.option.quick:
        items[:], dropped = selection.quick(items, config.share, spmd.config.partitioner)
        config.hook.pytest_deselected(items=dropped)
