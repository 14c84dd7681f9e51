"""Classes of immutable values that a graph of Dynamo takes as constants; the guard on one is equality."""

from typing import Any

import torch
from torch._library.opaque_object import MemberType, register_opaque_type
from torch.torch_version import TorchVersion


def constant_of_graphs(cls: Any, *members: str) -> None:
    """Has Dynamo take objects of a class as constants. members: the methods and attributes that traced code may use.

    torch 2.11 takes only classes of a metaclass of its own; there no graph has this library's functions.
    """
    if TorchVersion(torch.__version__) < "2.12":
        return
    cls.__fx_repr__ = _as_text
    register_opaque_type(cls, typ="value", members=dict.fromkeys(members, MemberType.USE_REAL))


def _as_text(value: Any) -> tuple[str, dict[str, Any]]:
    """Returns a name for the value in the text of a graph, and the value under that name."""
    name = f"spmd_{type(value).__name__}_{id(value)}"
    return name, {name: value}
