"""Random training loops with state, played beside recorded: equal bits of all that they read, or a
report."""

import pytest
import torch
import training_loops

import spmd

FEW = (2, 4, 15)  # in `make test`
MORE = (0, 3, 5, 12, 13, 14, *range(16, 27))
SEEDS = [*FEW, *(pytest.param(seed, marks=pytest.mark.long) for seed in MORE)]


@pytest.mark.parametrize("num_devices", [1, 8])
@pytest.mark.parametrize("seed", SEEDS)
def test_played_loops_read_the_same_bits(seed: int, num_devices: int) -> None:
    # In a new process the first call is not looked at.
    training_loops.run(FEW[0], num_devices=num_devices, played=True)
    recorded, _ = training_loops.run(seed, num_devices=num_devices)
    replayed, loop = training_loops.run(seed, num_devices=num_devices, played=True)
    _compare(recorded, replayed, seed, loop)


MODEL = 60000
# Of two calls before a backward the first is replayed: it sums its own gradients first.
REPORTED = "sums would round otherwise"


HAPPENS = {
    # data that is replaced: another program ran
    60012: [
        *["zeroed_before"] * 13, "weight_replaced", "gradient_marked", "zeroed_before",
        "weight_replaced", "zeroed_before", "gradient_marked", "weight_replaced",
    ],
    # a bias that is written before backward
    60052: [
        *["zeroed_before"] * 9, "written_before_backward", *["zeroed_before"] * 2,
        "without_gradients", *["zeroed_before"] * 3, "written_before_backward", "zeroed_before",
        "without_gradients", "zeroed_before",
    ],
    # state of the host in front of a step that is launched at once: it was made twice
    60100: ["plain"] * 8 + ["state_loaded_from_the_host", "plain", "plain"] * 2,
    60101: ["plain"] * 8 + ["optimizer_loaded_from_the_host", "plain", "plain"] * 2,
    60102: ["plain"] * 8 + ["weight_copied_from_the_host", "plain", "plain"] * 2,
}  # fmt: skip


@pytest.mark.parametrize("seed", HAPPENS)
def test_loops_of_a_wrapped_model(seed: int) -> None:
    happens = HAPPENS[seed]
    training_loops.run(FEW[0], num_devices=8, played=True)
    recorded, _ = training_loops.run(seed, num_devices=8, model=MODEL, happens=happens)
    before = spmd.metrics.num_compiles()
    replayed, loop = training_loops.run(
        seed, num_devices=8, played=True, model=MODEL, happens=happens
    )
    assert spmd.metrics.num_compiles() == before
    _compare(recorded, replayed, seed, loop)


def _compare(
    recorded: list[torch.Tensor], replayed: list[torch.Tensor], seed: int, loop: training_loops.Loop
) -> None:
    segments = training_loops.played_calls(loop)
    told = "\n".join(segment.explain() for segment in segments)
    assert any(segment.num_replayed for segment in segments), told
    assert len(recorded) == len(replayed)
    if any(REPORTED in segment.explain() for segment in segments):
        torch.testing.assert_close(recorded, replayed)
        return
    for place, (old, new) in enumerate(zip(recorded, replayed, strict=True)):
        bits = [one.contiguous().reshape(-1).view(torch.uint8) for one in (old, new)]
        assert torch.equal(*bits), (
            f"value {place} of {training_loops.events(seed)}: {old}, played {new}\n{told}"
        )
