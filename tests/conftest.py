"""The setting of every test: eight simulated devices, meshes over them, a fixed seed.

Helpers live in `support.py`.
"""

import gc
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import selection
import torch

import spmd
from spmd.core.base import messages
from spmd.core.base.pace import pace
from spmd.core.record import recorders, storage

# A test compiles what it is about, and no test writes into the user's folders; nor do the processes
# that it starts. A folder of programs for one run would save nothing: of the 351 programs of 325
# tests none was loaded from it, as equal graphs share a program in memory already.
spmd.config.program_cache = False
os.environ["SPMD_PROGRAM_CACHE"] = "0"
# After each pass its graph is checked, in these processes, too.
spmd.config.check_graphs = True
os.environ["SPMD_CHECK_GRAPHS"] = "1"

# The number of devices is fixed when jax's backend starts, so this stands before any test module is
# imported.
spmd.simulate(8)


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """Every test draws the same numbers whichever ran before it; barriers, messages and loops have
    no past, and flags their values of before."""
    torch.manual_seed(0)
    # torch.compile turns it off in the process
    torch.distributions.Distribution.set_default_validate_args(True)
    # torch's own test suite, of which tests/sweep takes its databases, forbids setting flags where
    # it is imported.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    messages.forget()
    if storage.pending_except(()) or any(ref() is not None for ref in storage.ASIDE):
        # what an error that a test before caught still holds: the next sync would run it
        gc.collect()
    pace.longest = pace.early = recorders.longest_step.value = 0
    pace.restart(pace.recorded_ops, had_loop=True)
    forgetful = ("explain.idle_devices", "explain.waiting_device", "explain.status")
    for name in ("spmd.adaptive.changing", *(f"spmd.tools.{each}" for each in forgetful)):
        if name in sys.modules:
            sys.modules[name].forget()
    flags = dict(vars(spmd.config))
    yield
    for flag, value in flags.items():
        if getattr(spmd.config, flag) != value:
            setattr(spmd.config, flag, value)


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
    parser.addoption(
        "--quick", action="store_true", help="what `make test` runs: see tests/selection.py"
    )
    parser.addoption("--sample", action="store_true", help="a tenth of the others, by the commit")
    parser.addoption(
        "--commit",
        type=lambda text: int(text, 16),
        help="the id that draws shares, not the commit's",
    )
    parser.addoption(
        "--record", type=Path, help="adds to a file each test's id and seconds of the CPU"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    option = config.option
    if option.quick or option.sample:
        commit = selection.commit() if option.commit is None else option.commit
        select = selection.quick if option.quick else selection.sample
        items[:], dropped = select(items, commit, spmd.config.partitioner)
        config.hook.pytest_deselected(items=dropped)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if item.config.option.record is None:
        return (yield)
    before = _seconds()
    result = yield
    with item.config.option.record.open("a") as file:
        file.write(f"{item.nodeid}\t{_seconds() - before:.2f}\n")
    return result


def _seconds() -> float:
    """The processor's seconds for this process and those that it waited for; alike on a busy
    machine."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
