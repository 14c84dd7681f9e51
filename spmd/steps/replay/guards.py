"""The guards of a recorded call: Python state that must be what it was, and the numbers that may be
others.

Dicts are compared by their versions: numbers that change at each write, which CPython counts and
Dynamo reads.
"""

import operator
import sys
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from types import CellType
from typing import Any

import numpy as np
import torch
from torch._C._dynamo.guards import dict_version
from torch.utils._python_dispatch import _len_torch_dispatch_stack

from ...core import config, observation, seed
from ...core.extend import Change, Kind, Objects, contents, execute, walks
from ...mesh.global_mesh import get_global_mesh
from .host_tensors import Counter
from .observed_call import GroupNumber, ObservedCall, ReplayError, state_of

_is = operator.is_
_OF_FUNCTION = operator.attrgetter("__code__", "__defaults__")


class _Dicts:
    """The contents of dicts as they were, compared by identity; of dicts with versions only where
    one has changed."""

    def __init__(self, dicts: Sequence[dict[Any, Any]], *, have_versions: bool):
        self._dicts, self._have_versions = dicts, have_versions

    def keep(self) -> None:
        """Takes the contents as they are now."""
        self._versions = versions(self._dicts) if self._have_versions else None
        self._lengths = [*map(dict.__len__, self._dicts)]
        self._keys = [*chain.from_iterable(map(dict.keys, self._dicts))]
        self._values = [*chain.from_iterable(map(dict.values, self._dicts))]

    def is_same(self) -> bool:
        new_versions = versions(self._dicts) if self._have_versions else None
        if new_versions is not None and new_versions == self._versions:
            return True
        is_same = (
            [*map(dict.__len__, self._dicts)] == self._lengths
            and all(map(_is, chain.from_iterable(map(dict.values, self._dicts)), self._values))
            and all(map(_is, chain.from_iterable(map(dict.keys, self._dicts)), self._keys))
        )
        if is_same:
            self._versions = new_versions
        return is_same


class Guards:
    """The contents of containers as they must be at the next call, and torch's and this library's
    own modes.

    volatile: the places, as (id of the container, key), that the call itself writes. `check`
    compares identities in a few calls of C functions; only where these differ are values compared,
    one by one.
    """

    def __init__(self, objects: Objects, volatile: Collection[tuple[int, Any]]):
        self._held = objects.snapshots
        self._volatile = volatile
        written = {box for box, _ in volatile}
        counted: list[dict[Any, Any]] = []
        uncounted_dicts: list[dict[Any, Any]] = []
        self._lists: list[list[Any]] = []
        self._captured: list[CellType] = []
        self._sized: list[Collection[Any]] = []
        self._getters: list[tuple[Callable[[Any], tuple[Any, ...]], Any]] = []
        self._slow: list[contents.Held] = []
        for snapshot in self._held:
            box, kind, is_kept = (
                snapshot.container,
                snapshot.kind,
                id(snapshot.container) not in written,
            )
            if kind is Kind.FUNCTION:
                self._captured += box.__closure__ or ()
                self._getters.append((_OF_FUNCTION, box))
            elif is_kept and kind in (Kind.DICT, Kind.ATTRIBUTES):
                (counted if OF_ATTRIBUTES or kind is Kind.DICT else uncounted_dicts).append(box)
            elif is_kept and kind is Kind.LIST:
                self._lists.append(box)
            elif is_kept and (
                kind in (Kind.SCOPE, Kind.CLASS) or (kind is Kind.OTHER and not snapshot.keys)
            ):
                self._sized.append(snapshot.scope())
                if snapshot.keys:
                    # Twice where there is one name: the getter of one name returns no tuple.
                    self._getters.append(
                        (operator.itemgetter(*snapshot.keys, *snapshot.keys[:1]), snapshot.scope())
                    )
            else:
                self._slow.append(snapshot)
        self._dicts = (
            _Dicts(counted, have_versions=True),
            _Dicts(uncounted_dicts, have_versions=False),
        )
        self._generators = [
            (path, generator, state_of(generator)) for path, generator in objects.generators
        ]
        self._modes = modes()
        self._keep()

    def _keep(self) -> None:
        for dicts in self._dicts:
            dicts.keep()
        self._lengths = [*map(list.__len__, self._lists)]
        self._items = [*chain.from_iterable(map(list.__iter__, self._lists))]
        self._contents = [variable.cell_contents for variable in self._captured]
        self._named = [value for getter, box in self._getters for value in getter(box)]
        self._sizes = [*map(len, self._sized)]

    def check(self) -> Change | str | None:
        """The first difference of the state, a change or the text of a mode; None where it is the
        same."""
        if self._modes != (new_modes := modes()):
            return next(
                f"{name}: {old_value!r}, now {new_modes[name]!r}"
                for name, old_value in self._modes.items()
                if old_value != new_modes[name]
            )
        for path, generator, state in self._generators:
            if state_of(generator) != state:
                return f"{path}, a generator on the host, is at another draw"
        if self._is_same() and not any(self._changes(self._slow)):
            return None
        for change in self._changes(self._held):
            return change
        self._keep()  # other objects with equal values, or attributes that the call does not read
        return None

    def _is_same(self) -> bool:
        try:
            return (
                all([dicts.is_same() for dicts in self._dicts])  # noqa: C419  # a list is faster than a generator
                and [*map(list.__len__, self._lists)] == self._lengths
                and all(map(_is, chain.from_iterable(map(list.__iter__, self._lists)), self._items))
                and all(
                    map(
                        _is, [variable.cell_contents for variable in self._captured], self._contents
                    )
                )
                and all(
                    map(
                        _is,
                        chain.from_iterable([getter(box) for getter, box in self._getters]),
                        self._named,
                    )
                )
                and [*map(len, self._sized)] == self._sizes  # a name may have come
            )
        except (KeyError, ValueError):  # a name or a captured variable that was deleted
            return False

    def _changes(self, snapshots: Collection[contents.Held]) -> Any:
        for box in snapshots:
            for change in box.changes(contents.is_same):
                if (id(change.container), change.key) not in self._volatile:
                    yield change


def modes() -> dict[str, Any]:
    """The modes that decide what a call records."""
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("xla"),
        "autocast dtype": torch.get_autocast_dtype("xla"),
        "default dtype": torch.get_default_dtype(),
        "default device": torch._C._get_default_device(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "dispatch modes": _len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "saved tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "NaN guard": execute.guard.value,
        "mesh": get_global_mesh(),
        "config": tuple(vars(config).values()),
    }


class ReplayedNumbers:
    """The scalar arguments of the programs: those that stay, and those that formulas and random
    draws give."""

    def __init__(self, call: ObservedCall):
        # By program: its numbers, the places of formulas and of draws' seeds and counts among them.
        self._runs: list[
            tuple[np.ndarray, np.ndarray, list[tuple[int, int]], list[int], list[tuple[int, int]]]
        ] = []
        position_of = self._wanted = dict[int, int]()
        for ran in call.observation.ran:
            floats, integers = walks.pack_numbers(ran.graph.nodes)
            if ran.program.numbers is not None:
                by_float, by_integer = ran.program.numbers
                floats, integers = [floats[i] for i in by_float], [integers[i] for i in by_integer]
            formulas = [
                (i, position_of.setdefault(n.index, len(position_of)))
                for i, n in enumerate(floats)
                if type(n) is observation.Scalar
            ]
            draws = [
                (i, n.index) for i, n in enumerate(integers) if type(n) is observation.DrawNumber
            ]
            seeds, counts = (
                [i for i, draw_index in draws if draw_index < 0],
                [draw for draw in draws if draw[1] >= 0],
            )
            self._runs.append(
                (
                    np.array(floats, np.float64),
                    np.array(integers, np.int64),
                    formulas,
                    seeds,
                    counts,
                )
            )
        # A draw whose result nothing needed is in no program: the stream goes on past it, as
        # without a replay.
        self._num_draws = len(call.observation.draws)
        nodes = (node for ran in call.observation.ran for node in ran.graph.nodes)
        drawn = (node.numbers[count] for node in nodes for _, count in node.op.draws)
        if any(type(count) is not observation.DrawNumber for count in drawn):
            raise ReplayError("it draws random numbers that its programs do not take as they are")
        self._evaluate, used = call.formulas.compiled(list(position_of))
        self._sources = [
            source if i in used else None for i, source in enumerate(call.formulas.sources)
        ]
        if any(isinstance(source, GroupNumber) and source.version for source in self._sources):
            raise ReplayError(
                "an optimizer reads its numbers after a scheduler's step; step the scheduler last"
            )
        self.counters = Counters(call)

    def now(self, flat: Sequence[Any]) -> Sequence[float] | str:
        """The results of the formulas, or the reason why they do not hold."""
        values: list[float] = []
        for source in self._sources:
            match source:
                case Counter(began):
                    value = self.counters.value(began)
                case None:  # nothing uses it
                    value = 0.0
                case _:
                    value = source.now(flat)
            if isinstance(value, str):
                return value
            values.append(value)
        try:
            computed = self._evaluate(values)
        except (ArithmeticError, ValueError) as error:
            return f"a number: {error}"
        return (
            f"the result of a comparison of numbers{' at ' if computed else ''}{computed}"
            if isinstance(computed, str)
            else computed
        )

    def passed(self, number: Any, values: Sequence[float]) -> Any:
        """The number that takes the place of a recorded one; None where no program takes it."""
        index = self._wanted.get(number.index) if type(number) is observation.Scalar else None
        return (
            values[index]
            if index is not None
            else None
            if type(number) is observation.Scalar
            else number
        )

    def vectors(self, values: Sequence[float]) -> list[tuple[np.ndarray, np.ndarray]] | None:
        """The scalar arguments of each program; random draws are taken. None where this thread
        draws from a stream of its own."""
        draw = seed.take(self._num_draws) if self._num_draws else (0, 0)
        if draw is None:
            return None
        result = []
        for floats, integers, formulas, seeds, counts in self._runs:
            if formulas:
                floats = floats.copy()
                for i, index in formulas:
                    floats[i] = values[index]
            if counts:
                integers = integers.copy()
                integers[seeds] = draw[0]
                for i, index in counts:
                    integers[i] = draw[1] + index
            result.append((floats, integers))
        return result


class Counters:
    """The step counters of optimizers, which are 0-dim CPU tensors; those that begin and move
    together are one vector in memory, so that one addition advances them."""

    def __init__(self, call: ObservedCall):
        groups: dict[tuple[float, float, torch.dtype], list[torch.Tensor]] = {}
        for tensor in call.counters:
            key = (
                call.uses.values[id(tensor)],
                call.uses.counters.get(id(tensor), 0.0),
                tensor.dtype,
            )
            groups.setdefault(key, []).append(tensor)
        self._groups: list[tuple[float, float, list[torch.Tensor], torch.Tensor, list[int]]] = []
        for (value, amount, _), tensors in groups.items():
            vector = torch.stack(tensors)
            for index, tensor in enumerate(tensors):
                tensor.data = vector[index]
            self._groups.append((value, amount, tensors, vector, [t.data_ptr() for t in tensors]))

    def value(self, began: float) -> float | str:
        """The value of the counters that had the value `began` when the call was recorded; a text
        if they differ."""
        numbers: set[float] = set()
        for value, _, tensors, vector, places in self._groups:
            for tensor in _now(tensors, vector, places) if value == began else ():
                numbers.update(tensor.view(-1).tolist())
        return numbers.pop() if len(numbers) == 1 else "the step counters of an optimizer"

    def advance(self) -> None:
        """Adds what the call adds."""
        for _, amount, tensors, vector, places in self._groups:
            for tensor in _now(tensors, vector, places) if amount else ():
                tensor.add_(amount)


def _now(
    tensors: list[torch.Tensor], vector: torch.Tensor, places: list[int]
) -> list[torch.Tensor]:
    """The vector of these counters; the counters where one has other memory by now."""
    return [vector] if [tensor.data_ptr() for tensor in tensors] == places else tensors


def versions(dicts: Sequence[dict[Any, Any]]) -> list[int]:
    """Returns a list that differs once one of the dicts was written to. Of an object's `__dict__`
    see `OF_ATTRIBUTES`.

    From Python 3.12 on Dynamo does not count an empty dict that becomes a copy of another one; its
    length changes.
    """
    counts = [*map(dict_version, dicts)]
    return counts if _COUNTS_ALL else [*counts, *map(dict.__len__, dicts)]


_COUNTS_ALL = sys.version_info < (3, 12)


# True where an assignment to an attribute changes the version of the object's `__dict__`. Python
# 3.13 keeps attributes outside of the dict, and assignments do not reach it.
OF_ATTRIBUTES = sys.version_info < (3, 13)
