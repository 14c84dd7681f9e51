"""`torch._dynamo.mark_dynamic` and `maybe_mark_dynamic` of a tensor on xla.

Of a CPU tensor torch keeps the marks as attributes, which `.to("xla")` reads (`dispatch.copies`). torch's module takes
a second to import, so it is patched when the program imports it.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from torch._guards import CompileContext, compile_context

from ..aten.dynamic_dims import mark
from ..record.tensor import XlaTensor
from .when_imported import patch_when_imported


def _mark_ours(decorators: ModuleType) -> None:
    for name in ("mark_dynamic", "maybe_mark_dynamic"):
        ours = _marking(getattr(decorators, name))
        setattr(decorators, name, ours)
        package = sys.modules[decorators.__name__.rpartition(".")[0]]
        if hasattr(package, name):  # it has them already
            setattr(package, name, ours)


def _marking(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def function(t: Any, index: int | Sequence[int], *args: Any, **kwargs: Any) -> Any:
        if type(t) is not XlaTensor:
            return original(t, index, *args, **kwargs)
        dims = [index] if isinstance(index, int) else index
        with compile_context(CompileContext(None)):  # there it is a plain tensor, of which Dynamo keeps marks
            original(t, index, *args, **kwargs)
        return mark(t, [dim % t.dim() for dim in dims], kwargs.get("min"), kwargs.get("max"))

    return function


def join_marks() -> None:
    """Patches torch's functions, now or when they are imported."""
    needs = "mark_dynamic(t, index, ...)", "maybe_mark_dynamic(t, index, ...)"
    patch_when_imported("torch._dynamo.decorators", _mark_ours, "marks of dynamic dims on xla", *needs)
