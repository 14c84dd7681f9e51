"""The programs that people start from run with only the device string changed: losses are the
CPU's, sharded too."""

import importlib
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import spmd
from spmd.core.programs import cache

FOLDER = Path(__file__).resolve().parent
# The command lines, by example. Dropout draws other numbers on another device, so it is off where
# numbers are compared.
COMMANDS = {
    "mnist": ["mnist", "--dropout", "0"],
    "vae": ["vae"],
    "dcgan": ["dcgan"],
    "super_resolution": ["super_resolution"],
    "siamese": ["siamese"],
    "gat": ["gat"],
    "lstm": ["word_language_model", "--model", "LSTM"],
    "gru": ["word_language_model", "--model", "GRU"],
    "transformer": ["word_language_model", "--model", "Transformer"],
    "reinforce": ["reinforcement_learning"],
    "actor_critic": ["reinforcement_learning", "--critic", "--steps", "2"],
    "vision_transformer": ["vision_transformer"],
    "nanogpt": ["nanogpt"],
    "gaussian_process": ["gaussian_process"],
    "tabnet": ["tabnet"],
    "ppo": ["ppo"],
    "neural_ode": ["neural_ode"],
    "nanochat": ["nanochat"],
    "gpt_fast": ["gpt_fast"],
    "time_sequence": [
        "time_sequence",
        "--steps=1",
        "--length=24",
        "--waves=8",
        "--iterations=3",
        "--future=9",
    ],
}
# One device plays these, a state or a batch of one a step, or a matrix with the optimizer's stacks.
ALONE = {
    "reinforce",
    "actor_critic",
    "time_sequence",
    "gaussian_process",
    "ppo",
    "neural_ode",
    "nanochat",
}
# The most programs of short jobs, which take most of their time to compile.
PROGRAMS = {
    "gaussian_process": 8,
    "tabnet": 4,
    "ppo": 8,
    "neural_ode": 12,
    "nanochat": 2,
    "gpt_fast": 12,
}
# Of each kind one runs in `make test`.
SHORT = {
    "mnist",
    "dcgan",
    "gat",
    "transformer",
    "actor_critic",
    "vision_transformer",
    "time_sequence",
    *PROGRAMS,
}
SHORT_SHARDED = {"vae", "gat", "vision_transformer", "gru"}
# A transformer whose batch is its second dim has no fast path in torch, which says so.
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")


def chosen(names: Iterable[str], short: set[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in short else pytest.mark.long) for name in names]


def run(name: str, *more: str) -> torch.Tensor:
    """Runs an example; returns the figures that it printed."""
    module, *arguments = COMMANDS[name]
    sys.path.insert(0, str(FOLDER))
    try:
        return torch.tensor(importlib.import_module(module).main([*arguments, *more]))
    finally:
        sys.path.remove(str(FOLDER))


@pytest.mark.parametrize("name", chosen(COMMANDS, SHORT))
def test_on_the_device(name: str) -> None:
    cache.clear_cache()
    spmd.metrics.clear()
    figures = run(name, "--device", "xla")
    assert len(spmd.metrics.compiles()) <= PROGRAMS.get(name, math.inf)
    with torch.compiler.set_stance("force_eager"):
        expected = run(name)
    torch.testing.assert_close(figures, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    "name", chosen((name for name in COMMANDS if name not in ALONE), SHORT_SHARDED)
)
def test_sharded(name: str) -> None:
    torch.testing.assert_close(
        run(name, "--device", "xla", "--fsdp"), run(name), rtol=2e-4, atol=2e-4
    )
