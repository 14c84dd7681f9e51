"""Modules whose ops a transform sees: forward-mode AD, torch.func, batched gradients. Steps between
are played."""

from typing import Any

import pytest
import training_loops


@pytest.mark.parametrize("num_devices", [1, 8])
@pytest.mark.parametrize(
    "event", ["forward_mode", "functional_gradient", "batched_gradients", "summed"]
)
def test_between_played_steps(event: str, num_devices: int) -> None:
    happens = ["plain"] * 5 + [event, "plain", event, "plain", "plain", event]
    read: list[Any] = []
    for is_played in (False, True):
        values, loop = training_loops.run(
            3, num_devices=num_devices, played=is_played, happens=happens
        )
        read.append(values)
    assert any(segment.num_replayed for segment in training_loops.played_calls(loop))
    assert len(read[0]) == len(read[1])
    for old, new in zip(*read, strict=True):
        assert old.equal(new), (old, new)
