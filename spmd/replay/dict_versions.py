"""Versions of dicts: numbers that change at each write, which CPython counts and Dynamo reads."""

from collections.abc import Iterable
from typing import Any

from torch._C._dynamo.guards import dict_version


def versions(dicts: Iterable[dict[Any, Any]]) -> list[int]:
    """Returns the version of each dict. Of an object's `__dict__` see `OF_ATTRIBUTES`."""
    return [*map(dict_version, dicts)]


class _Probe:
    pass


def _count_attributes() -> bool:
    probe = _Probe()
    probe.value = 0  # type: ignore[attr-defined]
    attributes = vars(probe)
    before = dict_version(attributes)
    probe.value = 1  # type: ignore[attr-defined]
    return dict_version(attributes) != before


# True where an assignment to an attribute changes the version of the object's `__dict__`. Python 3.13 keeps attributes
# beside the dict, and its assignments pass the dict by.
OF_ATTRIBUTES = _count_attributes()
