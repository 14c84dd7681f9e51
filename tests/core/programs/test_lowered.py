"""What jax is asked to compile."""

from typing import Any

import torch

import spmd
from spmd.core import storage_of
from spmd.core.programs import compiler
from spmd.core.run import executables


def test_a_program_that_names_no_devices(mesh8: spmd.Mesh) -> None:
    """A part of a cut graph with no input, and with results of any sharding, is over its mesh: jax
    would compile it for the first device."""
    marked: Any = spmd.mark_sharding(torch.ones(8).to("xla"), mesh8, (None,))
    made: Any = torch.full((8,), 3.0, device="xla")
    storage = storage_of(made)
    graph = executables.graph_of([(storage.value, storage)], storage_of(marked).sharding)
    (sharding,) = compiler.lower_graph(graph).compile().output_shardings
    assert len(sharding.device_set) == 8
