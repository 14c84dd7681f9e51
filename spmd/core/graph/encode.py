"""Values as text that is the same in every process: the key of an op, and of a program on disk."""

# Why a text of our own and no pickle or hash of Python: it must be the same in every process and at every start, or the
# processes would differ and no program would ever be found on disk.

import dataclasses
import hashlib
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch._ops import OpOverload

from ..sharding.value import Sharding

_NAMED = (torch.dtype, torch.layout, torch.memory_format, torch.device, OpOverload)
_shardings: "WeakKeyDictionary[Sharding, str]" = WeakKeyDictionary()


def encode(value: Any) -> str:
    """Returns the text of a value. Different values have different texts: 1, 1.0 and True differ, as 0.0 and -0.0 do.

    Takes Python's plain values, torch's names of things, numpy dtypes, tuples and lists, shardings, frozen dataclasses
    (by the fields that they compare by), and values with an `encoded` text of their own. Raises TypeError for others.
    """
    kind = type(value)
    if value is None or kind is int or kind is bool:
        return str(value)
    if isinstance(value, (tuple, list)):
        return f"{'(' if isinstance(value, tuple) else '['}{','.join([encode(item) for item in value])})"
    if kind is str:
        return repr(value)
    if isinstance(value, float):
        return f"f{value.hex()}"
    if kind is complex:
        return f"c{value.real.hex()}:{value.imag.hex()}"
    if kind is Sharding:
        return _shardings.get(value) or _shardings.setdefault(value, f"S{encode(value.__reduce__()[1])}")
    if hasattr(kind, "encoded"):
        return str(value.encoded)
    if isinstance(value, _NAMED):
        return f"<{value}>"
    if isinstance(value, np.dtype):
        return f"<numpy {value.name}>"
    if isinstance(value, int):  # a kind of place: of an operand, of a scalar argument
        return f"{kind.__qualname__}{int(value)}"
    if isinstance(value, type):
        return f"<{value.__module__}.{value.__qualname__}>"
    if dataclasses.is_dataclass(value):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value) if field.compare]
        return f"{kind.__module__}.{kind.__qualname__}{encode(tuple(fields))}"
    raise TypeError(f"no text that is the same in every process: {value!r} ({kind.__name__})")


def digest(value: Any) -> str:
    """Returns the sha256 of a value's text."""
    return hashlib.sha256(encode(value).encode()).hexdigest()
