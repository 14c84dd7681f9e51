"""No reference cycle of the library holds a tensor: what a step drops is free at once, and is no
result of its program, whenever the garbage collector runs."""

import functools
import gc
from collections.abc import Callable, Iterator

import compiled_steps as steps
import pytest
import torch
from compiled_steps import Training, training
from torch import nn
from torch.utils.checkpoint import checkpoint

import fsdp
import spmd
from spmd.core import XlaTensor


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def tensors_in_cycles() -> list[torch.Tensor]:
    """The tensors on xla that the garbage collector alone frees."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = [item for item in gc.garbage if type(item) is XlaTensor]
    gc.garbage.clear()
    return found


def plain(own: Training) -> steps.Step:
    return own.step


def scaled(own: Training) -> steps.Step:
    return steps.scaled_step(own, torch.amp.GradScaler("xla", init_scale=8.0))


def recomputed(own: Training) -> steps.Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(checkpoint(own.model, x, use_reentrant=False), y)
        loss.backward()
        own.optimizer.step()
        own.optimizer.zero_grad()
        return loss.detach()

    return step


def wrapped(own: Training) -> steps.Step:
    own.model = fsdp.FullyShardedDataParallel(
        own.model,
        mesh=spmd.Mesh(range(8), (8,), ("fsdp",)),
        auto_wrap_policy=functools.partial(fsdp.size_based_auto_wrap_policy, min_num_params=1),
    )
    own.optimizer = torch.optim.AdamW(own.model.parameters(), fused=True)
    return own.step


KINDS = {"plain": plain, "scaled": scaled, "recomputed": recomputed, "wrapped": wrapped}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_compiled", [False, True], ids=["recorded", "compiled"])
def test_of_a_step(
    kind: str, is_compiled: bool, no_collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spmd.config, "check_replays", 1)
    make: Callable[[], Training] = functools.partial(training, torch.optim.AdamW, fused=True)
    step = KINDS[kind](make())
    compiled = spmd.compile(step) if is_compiled else step
    steps.run(compiled, 4)
    assert tensors_in_cycles() == []
    steps.run(compiled, 3)
    assert tensors_in_cycles() == []
