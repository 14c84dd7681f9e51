"""The gradients that a recorded call gives to its leaf tensors, as objects that it gives again in
the next step, where nothing else has kept them."""

# Why reference counts: a gradient that is given again is another value of the same object, which
# only its leaf tensor may see. A tensor, a view of it, or a closure that has it counts.

import itertools
import operator
import sys
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..core import DeviceData, XlaTensor, gradients_of, storage_of
from ..core.extend import deferred, storages

_is, _STORAGE, _SHARDING = operator.is_, *map(operator.attrgetter, ("_storage", "sharding"))


def _num_references(objects: list[Any]) -> list[int]:
    return [*map(sys.getrefcount, objects)]


(_ALONE,) = _num_references([object()])  # of an object that a list alone has


class GradientPool:
    """The gradients of these leaf tensors, in order. places: of the gradients, by their ids."""

    def __init__(self, leaves: Sequence[torch.Tensor], tensors: list[XlaTensor]):
        self._leaves, self.tensors = leaves, tensors
        self.storages = [*map(storage_of, tensors)]
        deferred.watch(self.storages)
        self.places = {id(tensor): place for place, tensor in enumerate(tensors)}
        self._shardings, self._annotated = [*map(_SHARDING, self.storages)], -1
        self._sizes = [*map(len, map(vars, tensors))]
        self._counts = [_ALONE] * len(tensors), [_ALONE + 1] * len(tensors)
        self.hold()

    def is_free(self) -> bool:
        """True if nothing else has one of them, or a view of one."""
        counts = _num_references(self.tensors), _num_references(self.storages)
        return bool(self.tensors) and counts == self._counts

    def is_as_made(self) -> bool:
        """True if no attribute of theirs, no sharding and no flag is another one."""
        if self._annotated != deferred.num_annotated:
            if not all(map(_is, map(_SHARDING, self.storages), self._shardings)):
                return False
            self._annotated = deferred.num_annotated
        return (
            all(map(_is, map(_STORAGE, self.tensors), self.storages))
            and [*map(len, map(vars, self.tensors))] == self._sizes
            and not torch._C._any_requires_grad(*self.tensors)
        )

    def are_gradients(self, leaves: Sequence[torch.Tensor] | None = None) -> bool:
        """True if all are the gradients of their leaf tensors, which are these."""
        now = gradients_of(self._leaves if leaves is None else leaves)
        return bool(now) and len(now) == len(self.tensors) and all(map(_is, now, self.tensors))

    def hold(self) -> None:
        """Notes that they have values."""
        _used.add(self)
        self._is_empty = False

    def give(self, values: Sequence[Any]) -> None:
        """Has them take values."""
        self.hold()
        for storage, value in zip(self.storages, values, strict=True):
            deferred.renew(storage, value)

    def let_go(self) -> None:
        """Has them be no results, if nothing else has one; where others have some, they are given
        to no later step."""
        if self.is_free():
            gone = {id(storage.ref) for storage in self.storages}
            storages.LIVE[:] = [ref for ref in storages.LIVE if id(ref) not in gone]
            self.empty()
        elif not self.are_gradients():
            self.tensors, self.storages = [], []
            _used.discard(self)

    def empty(self) -> None:
        """Drops the values of free gradients."""
        if not self._is_empty:
            for value in deferred.values(self.storages):
                if type(value) is DeviceData:  # a program may take its memory
                    value.holder = _GONE
            deferred.forget(self.storages)
            for storage in self.storages:
                storage.past = storage.data = None
                storage.listed = False
            self._is_empty = True
        _used.discard(self)


class Late(NamedTuple):
    """Which of some tensors are gradients that deferred calls give. givers: the keys of these
    calls. places: of each tensor, its number among the gradients; None for another tensor.
    num_calls: of all deferred calls when it was found."""

    givers: tuple[Any, ...]
    gradients: Sequence[list[XlaTensor]]
    places: tuple[int | None, ...]
    num_calls: int

    def tensors(self) -> list[Any]:
        """The gradients at their places; None at the others."""
        each = [*itertools.chain.from_iterable(self.gradients)]
        return [None if place is None else each[place] for place in self.places]

    def others(self, tensors: Sequence[Any]) -> list[Any]:
        """These tensors, None for such gradients."""
        return [
            tensor if place is None else None
            for place, tensor in zip(self.places, tensors, strict=True)
        ]


def late(tensors: Sequence[Any]) -> Late:
    """Finds the gradients of deferred calls among these tensors."""
    giving = [call for call in deferred.calls if call.pool is not None]
    places: dict[int, int] = {}
    for call in giving:
        start, own = len(places), call.pool.places
        places = {**places, **{x: start + i for x, i in own.items()}} if start else own
    return Late(
        tuple(call.key for call in giving),
        [call.pool.tensors for call in giving],
        tuple(map(places.get, map(id, tensors))),
        len(deferred.calls),
    )


_GONE = weakref.ref(set[object]())  # to a holder that has gone
# Those with values, or values to come.
_used: "weakref.WeakSet[GradientPool]" = weakref.WeakSet()


def _let_go() -> None:
    for pool in [*_used]:
        pool.let_go()


storages.BEFORE_PENDING.insert(1, _let_go)  # behind `deferred.finish`
