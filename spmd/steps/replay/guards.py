"""The guards of a recorded call: Python state that must be what it was for the call to be replayed."""

import operator
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

import torch
from torch.utils._python_dispatch import _len_torch_dispatch_stack

from ...core import config
from ...core.extend import nans
from ...mesh.global_mesh import get_global_mesh
from .dict_versions import OF_ATTRIBUTES, versions
from .snapshot import Change, Held, Kind, Snapshot, is_same

_CAN_BE_WHOLE = (Kind.DICT, Kind.ATTRIBUTES)
_is = operator.is_


class _Dicts:
    """The contents of dicts as they were, compared by identity; of dicts with versions only where one has changed."""

    def __init__(self, dicts: Sequence[dict[Any, Any]], *, have_versions: bool):
        self._dicts = dicts
        self._versions = versions(dicts) if have_versions else None
        self._lengths = [*map(dict.__len__, dicts)]
        self._keys = [*chain.from_iterable(map(dict.keys, dicts))]
        self._values = [*chain.from_iterable(map(dict.values, dicts))]

    def kept(self) -> "_Dicts":
        """The contents of the same dicts now."""
        return _Dicts(self._dicts, have_versions=self._versions is not None)

    def is_same(self) -> bool:
        now = None if self._versions is None else versions(self._dicts)
        if now is not None and now == self._versions:
            return True
        is_same = (
            [*map(dict.__len__, self._dicts)] == self._lengths
            and all(map(_is, chain.from_iterable(map(dict.values, self._dicts)), self._values))
            and all(map(_is, chain.from_iterable(map(dict.keys, self._dicts)), self._keys))
        )
        if is_same:
            self._versions = now
        return is_same


class Guards:
    """The contents of containers as they must be at the next call, and torch's and this library's own modes.

    volatile: the places, as (id of the container, key), that the call itself writes. `check` compares identities in a
    few calls of C functions; only where these differ are values compared, one by one.
    """

    def __init__(self, snapshot: Snapshot, volatile: Collection[tuple[int, Any]]):
        self._held = snapshot.held
        self._volatile = volatile
        own = {box for box, _ in volatile}
        whole = [held for held in self._held if held.kind in _CAN_BE_WHOLE and id(held.container) not in own]
        counted = [held.container for held in whole if OF_ATTRIBUTES or held.kind is Kind.DICT]
        others = [held.container for held in whole if not OF_ATTRIBUTES and held.kind is not Kind.DICT]
        self._dicts = _Dicts(counted, have_versions=True), _Dicts(others, have_versions=False)
        self._lists = [
            held.container for held in self._held if held.kind is Kind.LIST and id(held.container) not in own
        ]
        taken = {id(box) for box in (*counted, *others, *self._lists)}
        self._captured = [
            variable for held in self._held if held.kind is Kind.CAPTURED for variable in held.container.__closure__
        ]
        self._rest = [
            held
            for held in self._held
            if held.kind is not Kind.CAPTURED and id(held.container) not in taken and held.keys
        ]
        named = [held for held in self._rest if held.kind in (Kind.SCOPE, Kind.CLASS) and id(held.container) not in own]
        self._getters = [
            # Twice where there is one name: the getter of one name returns no tuple.
            (operator.itemgetter(*held.names, *held.names[:1]), _scope(held))
            for held in named
        ]
        self._slow = [held for held in self._rest if held not in named]
        self._modes = modes()
        self._keep()

    def _keep(self) -> None:
        counted, others = self._dicts
        self._dicts = counted.kept(), others.kept()
        self._lengths = [*map(list.__len__, self._lists)]
        self._items = [*chain.from_iterable(map(list.__iter__, self._lists))]
        self._contents = [variable.cell_contents for variable in self._captured]
        self._named = [value for getter, box in self._getters for value in getter(box)]

    def check(self) -> Change | str | None:
        """The first difference of the state, a change or the text of a mode; None where it is the same."""
        if self._modes != (now := modes()):
            return next(
                f"{name}: {before!r}, now {value!r}"
                for name, before, value in zip(_MODES, self._modes, now, strict=True)
                if before != value
            )
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
                and all(map(_is, [variable.cell_contents for variable in self._captured], self._contents))
                and all(map(_is, chain.from_iterable([getter(box) for getter, box in self._getters]), self._named))
            )
        except (KeyError, ValueError):  # a name or a captured variable that was deleted
            return False

    def _changes(self, held: Collection[Held]) -> Any:
        for one in held:
            for change in one.changes(is_same):
                if (id(change.container), change.key) not in self._volatile:
                    yield change


def _scope(held: Held) -> Any:
    return vars(held.container) if held.kind is Kind.CLASS else held.container


_MODES = (
    "grad mode", "inference mode", "autocast", "autocast dtype", "default dtype", "default device",
    "deterministic algorithms", "anomaly mode", "dispatch modes", "function modes", "saved tensor hooks", "NaN guard",
    "mesh", "config",
)  # fmt: skip


def modes() -> tuple[Any, ...]:
    """The modes that decide what a call records, in the order of `_MODES`."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("xla"),
        torch.get_autocast_dtype("xla"),
        torch.get_default_dtype(),
        torch._C._get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_anomaly_enabled(),
        _len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        nans.looked_for(),
        get_global_mesh(),
        tuple(vars(config).values()),
    )
