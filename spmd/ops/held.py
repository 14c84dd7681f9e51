"""Attributes that have other values for a block."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def held(owner: object, **values: object) -> Iterator[None]:
    """Context: sets attributes of an object to these values, and restores the former ones at the
    end."""
    former = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in former.items():
            setattr(owner, name, value)
