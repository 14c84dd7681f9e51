"""Thirty kinds of Python state and more, each changed at a random call of 2,000: what guards know
is never stale, what they cannot see is reported within the bound."""

import random
from collections.abc import Iterator

import pytest
import python_states as states
import torch

import spmd


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """Keeps what a state of the interpreter changes."""
    before = states.sys.getrecursionlimit()
    yield
    states.sys.setrecursionlimit(before)


def test_there_are_thirty() -> None:
    assert len(states.KNOWN) >= 30 and len(states.HIDDEN) >= 10 and len(states.MOVING) >= 20


@pytest.mark.parametrize("name", states.KNOWN)
def test_known_states_are_never_stale(name: str) -> None:
    place = random.Random(name).randrange(2, 2000)
    read, change = states.KNOWN[name]()
    assert change is not None
    compiled, x = spmd.compile(lambda x: x * read()), torch.ones(3, device="xla")
    results = [compiled(x) for _ in range(place)]
    assert {one[0].item() for one in (*results[:3], results[-1])} == {2.0}
    change()
    assert [compiled(x)[0].item() for _ in range(3)] == [3.0] * 3, compiled.explain()
    assert not any("what no guard sees" in cause for cause in compiled.causes)
    assert bool(compiled.num_replayed) is (name not in states.READ_AT_EACH_CALL), compiled.explain()


@pytest.mark.parametrize("name", states.HIDDEN)
def test_hidden_states_are_reported_within_the_bound(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = random.Random(name).randrange(2, 2000)
    read, change = states.HIDDEN[name]()
    assert change is not None
    compiled, x = spmd.compile(lambda x: x * read()), torch.ones(3, device="xla")
    for _ in range(place):
        result = compiled(x)
    assert result[0].item() == 2.0 and compiled.num_recorded == 1
    change()
    num_stale = 0
    while "what no guard sees has changed" not in (said := capsys.readouterr().err):
        assert compiled(x) is not None
        num_stale += 1
        assert num_stale <= spmd.config.check_replays
    assert (
        "aten.mul.Tensor at " in said
        and "test_states.py:" in said
        and "has 3.0, and had 2.0" in said
    )
    assert num_stale - 1 <= int(said.partition("up to ")[2].split()[0]) < spmd.config.check_replays
    assert [compiled(x)[0].item() for _ in range(3)] == [3.0] * 3
    assert "what no guard sees" in compiled.explain()


@pytest.mark.parametrize("name", states.MOVING)
def test_what_changes_at_each_call_runs_uncompiled(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    read, _ = states.MOVING[name]()
    compiled, x = spmd.compile(lambda x: x * read()), torch.ones(3, device="xla")
    results = [tuple(compiled(x).tolist()) for _ in range(6)]
    assert len(set(results)) == 6, results
    assert compiled.num_replayed == 0
    assert "runs uncompiled: it " in capsys.readouterr().err
