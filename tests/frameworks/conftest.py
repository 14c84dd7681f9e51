"""`use`: a test in which `spmd.use()` is in force; what it changes is put back after the class."""

import sys
from collections.abc import Iterator

import pytest
from accelerate.state import AcceleratorState, PartialState
from huggingface_hub.serialization import _torch as hub_files

import spmd
from spmd.core import points
from spmd.core.torch_state import modules
from spmd.jobs.frameworks.batches import SHARED, shard_copy

# this is imported when tests are collected, before any has run
UNUSED = PartialState.default_device


@pytest.fixture(scope="class")
def use() -> Iterator[None]:
    device, replays = PartialState.default_device, spmd.config.replay_steps
    AcceleratorState._reset_state(reset_partial_state=True)
    spmd.use()
    yield
    spmd.config.replay_steps = replays
    points.after_upload.remove(shard_copy)
    SHARED.clear()
    spmd.compat.uninstall()
    spmd.torch_xla.set_global_mesh(None)
    PartialState.default_device = device
    AcceleratorState._reset_state(reset_partial_state=True)
    if "transformers.utils.import_utils" in sys.modules:
        import_utils = sys.modules["transformers.utils.import_utils"]
        import_utils.is_torch_xla_available.cache_clear()
        if hasattr(import_utils, "_torch_xla_available"):  # transformers 4
            import_utils._torch_xla_available = False
    hub_files.is_torch_tpu_available.cache_clear()  # a model that was saved meanwhile has asked


@pytest.fixture
def unused() -> Iterator[None]:
    """A test in which nothing has been chosen, and which may choose the CPU without asking for it;
    also where an earlier test, an example of a docstring, has called `use`."""
    device, PartialState.default_device = PartialState.default_device, UNUSED
    spmd.compat.uninstall()
    AcceleratorState._reset_state(reset_partial_state=True)
    modules.warned_of_cpu.clear()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState.default_device = device
