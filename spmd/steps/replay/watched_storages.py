"""Storages of recorded calls' state: each assignment of a value, a sharding or reads counts.

A replay compares these three of each storage only where the count has changed.
"""

from collections.abc import Sequence
from typing import Any

from ...core import Storage

num_assigned = 0  # assignments to watched storages


def watch(storages: Sequence[Storage]) -> None:
    """Counts assignments to these storages from now on."""
    for storage in storages:
        storage.__class__ = _Watched


def _counted(slot: Any) -> property:
    """A slot whose assignments count."""

    def assign(storage: Storage, value: Any) -> None:
        global num_assigned
        slot.__set__(storage, value)
        num_assigned += 1  # last: who has seen the count sees the value

    return property(slot.__get__, assign)


class _Watched(Storage):
    __slots__ = ()


for _name in ("value", "sharding", "reads"):
    setattr(_Watched, _name, _counted(vars(Storage)[_name]))
