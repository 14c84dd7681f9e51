"""State of a thread that holds for a block, as the op whose body is recorded or the shard that is traced."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def held(state: Any, **values: Any) -> Iterator[None]:
    """Gives attributes of an object, of a `threading.local` say, these values inside, and after it those of before."""
    before = {name: getattr(state, name) for name in values}
    for name, value in values.items():
        setattr(state, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(state, name, value)
