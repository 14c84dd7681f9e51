"""transformers' masks in a recorded call: left out where nothing need be read, as in a call that is
not recorded."""

import pytest
import torch
from transformers import masking_utils

import spmd


@pytest.fixture
def looks() -> list[bool]:
    """What transformers is told in a recorded call: of no mask, of a constant, of data; True: it
    may not look."""
    told: list[bool] = []

    def step(data: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(8, device="xla")
        told.extend(masking_utils.is_tracing(tensor) for tensor in (None, positions, data))
        return data + positions

    spmd.compile(step)(torch.ones(8).to("xla"))
    return told


def test_masks_in_a_recorded_call(looks: list[bool]) -> None:
    assert looks[:3] == [False, False, True]


def test_outside_of_a_recorded_call(looks: list[bool]) -> None:
    assert not masking_utils.is_tracing(torch.ones(8, device="xla"))
