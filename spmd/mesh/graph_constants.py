"""Classes of immutable values that a graph of Dynamo takes as constants; the guard on one is
equality."""

from typing import Any

import torch
from torch._library import opaque_object
from torch.torch_version import TorchVersion


def constant_of_graphs(cls: Any, *members: str) -> None:
    """Has Dynamo take objects of a class as constants. members: the methods and attributes that
    traced code may use.

    torch 2.11 takes only classes of a metaclass of its own; there no graph has this library's
    functions.
    """
    if TorchVersion(torch.__version__) < "2.12":
        return
    cls.__fx_repr__ = _as_text
    real = dict.fromkeys(members, opaque_object.MemberType.USE_REAL)
    # torch 2.15, which warns of the names before
    if hasattr(opaque_object, "register_custom_class"):
        opaque_object.register_custom_class(cls, typ="constant", members=real)
    else:
        opaque_object.register_opaque_type(cls, typ="value", members=real)


def _as_text(value: Any) -> tuple[str, dict[str, Any]]:
    """Returns a name for the value in the text of a graph, and the value under that name."""
    name = f"spmd_{type(value).__name__}_{id(value)}"
    return name, {name: value}
