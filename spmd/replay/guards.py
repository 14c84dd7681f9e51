"""The guards of a recorded call: Python state that must be what it was for the call to be replayed."""

import operator
from collections.abc import Collection
from itertools import chain
from typing import Any

import torch
from torch.utils._python_dispatch import _len_torch_dispatch_stack

from ..core.base.config import config
from ..core.passes import nans
from ..mesh.global_mesh import get_global_mesh
from .snapshot import Change, Held, Kind, Snapshot, is_same

_CAN_BE_WHOLE = (Kind.DICT, Kind.ATTRIBUTES)
_is = operator.is_


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
        self._dicts = [held.container for held in whole]
        self._lists = [
            held.container for held in self._held if held.kind is Kind.LIST and id(held.container) not in own
        ]
        taken = {id(box) for box in (*self._dicts, *self._lists)}
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
        self._lengths = [*map(dict.__len__, self._dicts), *map(list.__len__, self._lists)]
        self._keys = [*chain.from_iterable(map(dict.keys, self._dicts))]
        self._values = [
            *chain.from_iterable(map(dict.values, self._dicts)),
            *chain.from_iterable(map(list.__iter__, self._lists)),
        ]
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
                [*map(dict.__len__, self._dicts), *map(list.__len__, self._lists)] == self._lengths
                and all(
                    map(
                        _is,
                        chain(
                            chain.from_iterable(map(dict.values, self._dicts)),
                            chain.from_iterable(map(list.__iter__, self._lists)),
                        ),
                        self._values,
                    )
                )
                and all(map(_is, chain.from_iterable(map(dict.keys, self._dicts)), self._keys))
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
