"""Versions of dicts: numbers that change at each write, which CPython counts and Dynamo reads."""

import sys
from collections.abc import Sequence
from typing import Any

from torch._C._dynamo.guards import dict_version


def versions(dicts: Sequence[dict[Any, Any]]) -> list[int]:
    """Returns a list that differs once one of the dicts was written to. Of an object's `__dict__` see `OF_ATTRIBUTES`.

    From Python 3.12 on Dynamo does not count an empty dict that becomes a copy of another one; its length changes.
    """
    counts = [*map(dict_version, dicts)]
    return counts if _COUNTS_ALL else [*counts, *map(dict.__len__, dicts)]


_COUNTS_ALL = sys.version_info < (3, 12)


class _Probe:
    pass


def _count_attributes() -> bool:
    probe = _Probe()
    probe.value = 0  # type: ignore[attr-defined]
    attributes = vars(probe)
    version = dict_version(attributes)
    probe.value = 1  # type: ignore[attr-defined]
    return dict_version(attributes) != version


# True where an assignment to an attribute changes the version of the object's `__dict__`. Python 3.13 keeps attributes
# outside of the dict, and assignments do not reach it.
OF_ATTRIBUTES = _count_attributes()
