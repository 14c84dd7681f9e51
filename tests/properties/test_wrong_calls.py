"""Every public callable with arguments of a wrong kind: an error ends at the line of the call."""

import inspect
import random
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_public_api
import torch
from torch import nn

import fsdp
import spmd

# What a call would change for other tests, or start.
EFFECTS = {"simulate", "initialize", "use", "install", "set_global_mesh", "start_server", "capture",
           "start_trace", "trivial_dispatch_seconds", "stop_trace", "trace", "manual_seed", "sync",
           "mark_step", "on_sync", "add_step_closure", "apply_xla_patch_to_nn_linear",
           "register_lowering", "register_units", "load_programs", "describe_gpu", "counter",
           "timer"}  # fmt: skip
# The constructor is torch's, jax's or Python's own, or the class is no user's to construct.
OTHERS = {
    "EinsumLinear",
    "StepTrace",
    "ShardingType",
    "FSDPModule",
    "Sharding",
    "MarkShardingFunction",
}
FEW, MORE = 40, 400


def callables() -> Iterator[Callable[..., Any]]:
    for door in test_public_api.DOORS:
        for name in sorted(test_public_api.public(door) - EFFECTS - OTHERS):
            value = getattr(door, name)
            is_ours = str(getattr(value, "__module__", "")).startswith(("spmd", "fsdp"))
            is_error = inspect.isclass(value) and issubclass(value, BaseException)
            if callable(value) and is_ours and not is_error:
                yield value


def wrong(draw: random.Random) -> Any:
    return draw.choice([
        3, -1, "x", None, object(), {"a": 1}, [torch.relu], torch.ones(3), nn.Linear(2, 2),
        lambda: 0, ("a",), 2.5, torch.ones(8, device="xla"),
    ])  # fmt: skip


def check(function: Callable[..., Any], draw: random.Random) -> None:
    by_kind = {False: list[str](), True: list[str]()}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            by_kind[parameter.default is not parameter.empty].append(parameter.name)
    names = [*by_kind[False], *(name for name in by_kind[True] if draw.random() < 0.3)]
    given = {name: wrong(draw) for name in names}
    try:
        function(**given)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        assert last.filename == __file__, f"{function.__qualname__}({given}): {error!r}, {last}"
        assert "object has no attribute" not in str(error).partition("(")[0], (
            f"{function.__qualname__}({given}): {error!r}"
        )


def test_every_callable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of each: a callable is public without `ends_at_user_line` in no commit."""
    monkeypatch.chdir(tmp_path)
    for seed, function in enumerate(callables()):
        check(function, random.Random(seed))


@pytest.mark.parametrize(
    "seed", [*range(FEW), *(pytest.param(n, marks=pytest.mark.long) for n in range(FEW, MORE))]
)
def test_an_error_ends_at_the_call(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = random.Random(seed)
    for function in draw.sample([*callables()], 10):
        check(function, draw)


class TestWords:
    """Which argument is named, and what is left as it is."""

    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (lambda: spmd.use_sharding(3, None, spmd.P()), "use_sharding: expected tensors as "),
            (lambda: spmd.CheckpointManager("x", max_to_keep=2), "it takes folder, "),
            (lambda: spmd.suggest(nn.Linear(8, 8), target=8), "suggest: expected target as str"),
            (
                lambda: fsdp.plan_units(nn.Linear(8, 8), 3, "head"),  # type: ignore[arg-type]
                "plan_units: expected ignored_modules as Collection[Module], got str",
            ),
        ],
    )
    def test_names_the_argument(self, call: Callable[[], Any], words: str) -> None:
        with pytest.raises(TypeError) as raised:
            call()
        assert words in str(raised.value)

    def test_an_error_of_the_user_stays(self) -> None:
        def body(x: torch.Tensor) -> Any:
            return {}["missing"]

        with pytest.raises(KeyError, match="missing"):
            spmd.scan(
                lambda carry, row: body(carry), torch.ones(8).to("xla"), torch.ones(2, 8).to("xla")
            )
