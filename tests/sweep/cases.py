"""Helpers of the sweeps over torch's other databases: how the results of one case on two devices
are compared.

A case is one entry of a database in one group (a dtype, a mode), tried in many ways that run as few
programs. The comparison and its tolerances are those of `sweep.py`.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from sweep import sweep
from sweep.command import ERROR, HOST, LOWERED, UNTRIED, WRONG, Result, head

import spmd

_NO_OP = SimpleNamespace(name="")

WIDER = sweep.WIDER
cotangent = sweep.cotangent


@dataclass(frozen=True, slots=True)
class Pair:
    """Results on both devices.

    exact: gives the results in float64; the device may be as far from them as CPU is. draws: gives
    more of CPU's, where two with other seeds differ; then the means are compared.
    """

    what: str
    actual: list[Any]
    expected: list[Any]
    exact: Callable[[], list[Any]] | None = None
    draws: Callable[[], Sequence[list[Any]]] | None = None


@dataclass(slots=True)
class Outcome:
    """The outcome of a case: how much was compared, and what is not right."""

    tried: int = 0
    visits: int = 0
    errors: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def same(self, what: str, actual: Any, expected: Any) -> None:
        """Notes plain values that differ."""
        self.tried += 1
        if actual != expected:
            self.differences.append(f"{what}: {actual!r:.300}, expected {expected!r:.300}")

    def attempt(self, what: str, function: Callable[[], Any]) -> None:
        """Calls what raises an error where something is not right."""
        self.tried += 1
        try:
            function()
        except AssertionError as error:
            self.differences.append(f"{what}: {head(error)}")
        except Exception as error:
            self.errors.append(f"{what}: {head(error)}")

    def both(self, what: str, on: Callable[[str], Any]) -> tuple[Any, Any] | None:
        """The results of a function on ("xla", "cpu"); None where CPU refuses, as the device must
        with the same class.

        A kernel that CPU has not for a dtype is no refusal.
        """
        expected = _result(lambda: on("cpu"))
        before = host_visits()
        actual = _result(lambda: on("xla"))
        self.visits += host_visits() - before
        if not isinstance(expected, Exception) and not isinstance(actual, Exception):
            return actual, expected
        if isinstance(expected, NotImplementedError) and "not implemented for '" in str(expected):
            return None
        self.tried += 1
        if type(actual) is not type(expected):
            told = [
                head(each) if isinstance(each, Exception) else "no error"
                for each in (actual, expected)
            ]
            self.errors.append(f"{what}: {told[0]}, expected {told[1]}")
        return None

    def check(self, pairs: Sequence[Pair]) -> None:
        """Runs what is recorded as one program and compares every pair."""
        before = host_visits()
        barrier = _result(spmd.sync)
        self.visits += host_visits() - before
        if isinstance(barrier, Exception) and not pairs:
            self.errors.append(f"barrier: {head(barrier)}")
        for pair in pairs:  # where the barrier failed, reading says which pair it was
            self.attempt(pair.what, lambda pair=pair: compare(pair))


def _result(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        return error


def host_visits() -> int:
    """The number of values and ops computed on the host so far."""
    return sweep.host_visits()


def compare(pair: Pair) -> None:
    """Raises AssertionError where the device differs by more than the table allows and than CPU's
    own error."""
    try:
        sweep._compare(_NO_OP, pair.actual, pair.expected, False)
    except AssertionError:
        if pair.draws is not None:
            draws = pair.draws()
            if not all(sweep._agree(pair.expected, draw) for draw in draws):
                return sweep._compare(_NO_OP, pair.actual, pair.expected, True, draws)
        if pair.exact is None or not _is_rounding(pair, pair.exact()):
            raise


def _is_rounding(pair: Pair, exact: list[Any]) -> bool:
    if not len(pair.actual) == len(pair.expected) == len(exact):
        return False
    three = zip(pair.actual, pair.expected, exact, strict=True)
    return all(sweep._is_as_exact(one, other, true) for one, other, true in three)


def run(name: str, group: str, case: Callable[[Outcome], None]) -> tuple[Result, Outcome]:
    """One case, timed; an error of the case itself is one of its own."""
    outcome = Outcome()
    began = time.perf_counter()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of deprecated things
        try:
            case(outcome)
        except Exception as error:
            outcome.errors.append(f"outside: {head(error)}")
    kind = (
        ERROR
        if outcome.errors
        else WRONG
        if outcome.differences
        else HOST
        if outcome.visits
        else LOWERED
    )
    if not outcome.tried and kind == LOWERED:
        kind = UNTRIED
    told = [*outcome.errors, *outcome.differences]
    message = f"{len(told)} of {outcome.tried}: {told[0]}" if told else ""
    return Result(name, group, kind, message, outcome.tried, time.perf_counter() - began), outcome
