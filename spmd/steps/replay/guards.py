"""The guards of a recorded call: Python state that must be what it was, and the numbers that may be
others.

Dicts are compared by their versions: numbers that grow at each write, which CPython counts and
Dynamo reads. An empty dict is still empty, or has changed.
"""

import gc
import operator
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, compress
from types import CellType
from typing import Any, TypeVar

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
_Object = TypeVar("_Object")
_RunNumbers = tuple[np.ndarray, np.ndarray, list[tuple[int, int]], list[int], list[tuple[int, int]]]


class DictVersions:
    """The writes to dicts, as a value that changes with each of them.

    CPython numbers all writes in one sequence, so that the highest number stands for all dicts.
    """

    def __init__(self, dicts: list[dict[Any, Any]]):
        self.dicts = dicts
        # `move_to_end` counts as no write.
        self._ordered = [d for d in dicts if isinstance(d, OrderedDict) and len(d) > 1]

    def now(self) -> tuple[int, list[int], list[int]]:
        """The value, with the highest number first. Of an object's `__dict__` see `OF_ATTRIBUTES`.

        From Python 3.12 on Dynamo does not count an empty dict that becomes a copy of another one;
        its length changes.
        """
        return (
            max(map(dict_version, in_cache(self.dicts)), default=0),
            [] if _COUNTS_ALL else [*map(dict.__len__, self.dicts)],
            [*map(id, chain.from_iterable(self._ordered))],
        )

    def written_since(self, then: tuple[int, list[int], list[int]]) -> list[bool]:
        """For each dict, True if it was written to since, or may have another order."""
        number, lengths, _ = then
        return [
            dict_version(box) > number
            or isinstance(box, OrderedDict)
            or (not _COUNTS_ALL and len(box) != lengths[index])
            for index, box in enumerate(self.dicts)
        ]


def in_cache(objects: list[_Object]) -> list[_Object]:
    """A copy of a list, which loads its objects into the processor's cache, all at the same time.

    After a step the cache holds none of them, and a call for each waits for memory each time.
    """
    return objects.copy()


class Guards:
    """The contents of containers as they must be at the next call, and torch's and this library's
    own modes.

    volatile: the places, as (id of the container, key), that the call itself writes. `check`
    compares versions and identities in a few calls of C functions; only where these differ are
    values compared, one by one.
    """

    def __init__(self, objects: Objects, volatile: Collection[tuple[int, Any]]):
        self._snapshots = objects.snapshots
        self._volatile = volatile
        written = {box for box, _ in volatile}
        self._counted: list[contents.Snapshot] = []
        self._empty: list[Any] = []
        self._lists: list[list[Any]] = []
        self._captured: list[CellType] = []
        self._sized: list[Collection[Any]] = []
        self._in_order: list[dict[Any, Any]] = []
        self._getters: list[tuple[Callable[[Any], tuple[Any, ...]], Any]] = []
        self._instances: list[object] = []  # without slots
        self._slow: list[contents.Snapshot] = []
        for snapshot in self._snapshots:
            box, kind = snapshot.container, snapshot.kind
            is_written, is_dict = id(box) in written, kind in _OF_DICTS
            if kind is Kind.CLASS:
                self._getters.append((_BASES, box))
            if kind is Kind.FUNCTION:
                self._captured += box.__closure__ or ()
                self._getters.append((contents.parts_of_function, box))
            elif kind is Kind.SLOTS and [*snapshot.keys] == ["__class__", "__dict__"]:
                self._instances.append(box)
            elif kind is Kind.SLOTS and not (is_written or snapshot.has_missing()):
                self._getters.append((operator.attrgetter(*map(str, snapshot.keys)), box))
            elif type(box) in _BUILTIN and not box:
                self._empty.append(box)
            elif is_dict and not is_written and (OF_ATTRIBUTES or kind is not Kind.ATTRIBUTES):
                self._counted.append(snapshot)
            elif kind is Kind.LIST and not is_written:
                self._lists.append(box)
            elif is_dict and type(box) is dict:
                self._sized.append(box)
                self._in_order += [box] * (kind is Kind.DICT)
                keys = [key for key in snapshot.keys if (id(box), key) not in volatile]
                if keys:
                    # Twice where there is one name: the getter of one name returns no tuple.
                    self._getters.append((operator.itemgetter(*keys, *keys[:1]), box))
            else:
                self._slow.append(snapshot)
        # Of a class the dict behind the view that `vars` returns.
        self._versions = DictVersions(
            [
                gc.get_referents(vars(x.container))[0] if x.kind is Kind.CLASS else x.container
                for x in self._counted
            ]
        )
        self._version = self._versions.now()
        self._generators = [
            (path, generator, state_of(generator)) for path, generator in objects.generators
        ]
        self._modes = modes()
        self._keep()

    def _keep(self) -> None:
        self._lengths = [*map(list.__len__, self._lists)]
        self._items = [*chain.from_iterable(map(list.__iter__, self._lists))]
        self._contents = [variable.cell_contents for variable in self._captured]
        self._types = [*map(type, self._instances)]
        self._dicts = [*map(vars, self._instances)]
        self._named = [value for getter, box in self._getters for value in getter(box)]
        self._sizes = [*map(len, self._sized)]
        self._keys = [*chain.from_iterable(self._in_order)]

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
        version = self._versions.now()
        if version != self._version:
            is_written = self._versions.written_since(self._version)
            for change in self._changes([*compress(self._counted, is_written)]):
                return change
            self._version = version
        if self._is_same() and not any(self._changes(self._slow)):
            return None
        for change in self._changes(self._snapshots):
            return change
        self._keep()  # other objects with equal values, or attributes that the call does not read
        return None

    def _is_same(self) -> bool:
        """True if the same objects stand where they stood, in all but the dicts with versions."""
        try:
            return (
                not any(in_cache(self._empty))
                and [*map(list.__len__, self._lists)] == self._lengths
                and all(map(_is, chain.from_iterable(map(list.__iter__, self._lists)), self._items))
                and all(
                    map(
                        _is, [variable.cell_contents for variable in self._captured], self._contents
                    )
                )
                and all(map(_is, map(type, in_cache(self._instances)), self._types))
                and all(map(_is, map(vars, self._instances), self._dicts))
                and all(
                    map(
                        _is,
                        chain.from_iterable([getter(box) for getter, box in self._getters]),
                        self._named,
                    )
                )
                and [*map(len, self._sized)] == self._sizes  # a name may have come
                and all(map(_is, chain.from_iterable(self._in_order), self._keys))
            )
        except (AttributeError, KeyError, ValueError):  # a name or variable that was deleted
            return False

    def _changes(self, snapshots: Collection[contents.Snapshot]) -> Iterator[Change | str]:
        for box in snapshots:
            for change in box.changes(contents.is_same):
                if (id(change.container), change.key) not in self._volatile:
                    yield change
            if box.kind is Kind.DICT and not all(map(contents.is_same, box.read()[0], box.keys)):
                yield f"the order of {box.path}"


# Twice, as the getter of one name returns no tuple.
_BASES = operator.attrgetter("__mro__", "__mro__")
_OF_DICTS = (Kind.DICT, Kind.ATTRIBUTES, Kind.SCOPE, Kind.CLASS)
_BUILTIN = (dict, OrderedDict, defaultdict, list, set, deque)  # empty where they are false


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


class FormulaNumbers:
    """The numbers of a call that formulas give, from their sources as they are now.

    numbers: the scalar arguments of its ops, formulas among them.
    """

    def __init__(self, call: ObservedCall, numbers: Iterable[Any]):
        indices = [n.index for n in numbers if type(n) is observation.Scalar]
        # By formula, its place among the results.
        self._wanted = {index: place for place, index in enumerate(dict.fromkeys(indices))}
        self._evaluate, used = call.formulas.compiled([*self._wanted])
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
        self.counters.look()
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


class ReplayedNumbers(FormulaNumbers):
    """The scalar arguments of the programs: those that stay, and those that formulas and random
    draws give."""

    def __init__(self, call: ObservedCall):
        vectors = []
        for ran in call.observation.ran:
            floats, integers = walks.pack_numbers(ran.graph.nodes)
            if ran.program.numbers is not None:
                by_float, by_integer = ran.program.numbers
                floats, integers = [floats[i] for i in by_float], [integers[i] for i in by_integer]
            vectors.append((floats, integers))
        # A draw whose result nothing needed is in no program: the stream goes on past it, as
        # without a replay.
        self._num_draws = len(call.observation.draws)
        nodes = (node for ran in call.observation.ran for node in ran.graph.nodes)
        drawn = (node.numbers[count] for node in nodes for _, count in node.op.draws)
        if any(type(count) is not observation.DrawNumber for count in drawn):
            raise ReplayError("it draws random numbers that its programs do not take as they are")
        super().__init__(call, [n for floats, _ in vectors for n in floats])
        # By program: its numbers, the places of formulas and of draws' seeds and counts among them.
        self._runs = [self._run(floats, integers) for floats, integers in vectors]

    def _run(self, floats: Sequence[float], integers: Sequence[int]) -> _RunNumbers:
        formulas = [
            (i, self._wanted[n.index])
            for i, n in enumerate(floats)
            if type(n) is observation.Scalar
        ]
        draws = [(i, n.index) for i, n in enumerate(integers) if type(n) is observation.DrawNumber]
        return (
            np.array(floats, np.float64),
            np.array(integers, np.int64),
            formulas,
            [i for i, draw_index in draws if draw_index < 0],
            [draw for draw in draws if draw[1] >= 0],
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
        self._groups = [_CounterGroup(*key[:2], tensors) for key, tensors in groups.items()]

    def look(self) -> None:
        """Finds the memory of the counters, once in a call."""
        for group in self._groups:
            group.look()

    def value(self, began: float) -> float | str:
        """The value of the counters that had the value `began` when the call was recorded; a text
        if they differ."""
        numbers: set[float] = set()
        for group in self._groups:
            if group.value == began:
                numbers.update(*(array.ravel().tolist() for array in group.present))
        return numbers.pop() if len(numbers) == 1 else "the step counters of an optimizer"

    def advance(self) -> None:
        """Adds what the call adds."""
        for group in self._groups:
            for array in group.present if group.amount else ():
                array += group.amount


class _CounterGroup:
    """Counters that have one value, and to which a call adds one amount.

    present: their vector.
    """

    def __init__(self, value: float, amount: float, tensors: list[torch.Tensor]):
        self.value, self.amount, self._tensors = value, amount, tensors
        self._join()

    def _join(self) -> None:
        """Makes the counters one vector in memory."""
        vector = torch.stack(self._tensors)
        for index, tensor in enumerate(self._tensors):
            tensor.data = vector[index]
        self._vector = _array_of(vector)
        self._addresses = self._places()

    def _places(self) -> list[int]:
        return [*map(torch.Tensor.data_ptr, in_cache(self._tensors))]

    def look(self) -> None:
        """Finds what is present; joins it again where another group has joined one of these, or a
        checkpoint was loaded."""
        if self._places() != self._addresses:
            self._join()
        self.present = [self._vector]


def _array_of(tensor: torch.Tensor) -> Any:
    """A CPU tensor's memory as numpy's array, by which ops take less time; itself where numpy has
    no such dtype."""
    return tensor.numpy() if tensor.dtype in (torch.float32, torch.float64) else tensor


_COUNTS_ALL = sys.version_info < (3, 12)


# True where an assignment to an attribute changes the version of the object's `__dict__`. Python
# 3.13 keeps attributes outside of the dict, and assignments do not reach it.
OF_ATTRIBUTES = sys.version_info < (3, 13)
