"""What happens between played steps: a transform of torch's sees a module's ops, or a module reads
or writes Python state that no attribute holds."""

from typing import Any

import pytest
import training_loops

EVENTS = (
    "argument_of_no_tensor",
    "argument_written",
    "batched_gradients",
    "bytes_set",
    "clipped_to_others",
    "context_set",
    "forward_mode",
    "functional_gradient",
    "logits_read",
    "parts_of_the_result",
    "summed",
)


@pytest.mark.parametrize("num_devices", [1, 8])
@pytest.mark.parametrize("event", EVENTS)
def test_between_played_steps(event: str, num_devices: int) -> None:
    happens = ["plain"] * 5 + [event, "plain", event, "plain", "plain", event] + [event] * 10
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
