"""The CPU fallback of ops without a rule, where `config.fallback` allows it."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from ..base import counters
from ..base.config import config
from ..graph.source import Line, user_line
from ..record.overloads import VIEW, Args, Kwargs, as_list, kind_of
from ..record.resolve import WITHOUT_RULE
from ..record.tensor import XlaTensor
from ..run.pjrt.host import leaving

# Called after each op that ran on the CPU, with the op, the user's line, and the seconds.
after_fallback: list[Callable[[str, Line, float], None]] = []


def _on_cpu(func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Copies operands to the host, and results (and what the op wrote) back to the device."""
    if config.fallback != "cpu" or kind_of(func) is VIEW:
        return NotImplemented
    leaving(str(func), "its operands, as it has no lowering rule and config.fallback is 'cpu',")
    counters.add_fallback(str(func))
    written: dict[int, tuple[XlaTensor, torch.Tensor]] = {}

    def to_cpu(value: torch.Tensor) -> Any:
        if type(value) is XlaTensor:
            # One copy per tensor: it finds what the op wrote.
            return written.setdefault(id(value), (value, value.cpu()))[1]
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == "xla" else value

    started = counters.now()
    copies, keywords = tree_map(to_cpu, (args, kwargs))
    result = func(*copies, **keywords)
    for note in after_fallback:
        note(str(func), user_line(), counters.now() - started)
    by_copy = {id(copy): tensor for tensor, copy in written.values()}
    for argument, given, copy in _arguments(func, args, kwargs, copies, keywords):
        if argument.alias_info is not None and argument.alias_info.is_write:
            for target, source in zip(as_list(given), as_list(copy), strict=True):
                target.copy_(source)

    def to_device(value: torch.Tensor) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return by_copy[id(value)] if id(value) in by_copy else value.to("xla")

    return tree_map(to_device, result)


def _arguments(func: OpOverload, args: Any, kwargs: Any, copies: Any, keywords: Any) -> Iterator[tuple[Any, Any, Any]]:
    """(schema argument, the value passed for it, its copy) for each argument of a call."""
    for argument, given, copy in zip(func._schema.arguments, args, copies, strict=False):
        yield argument, given, copy
    named = {argument.name: argument for argument in func._schema.arguments}
    for name, given in kwargs.items():
        yield named[name], given, keywords[name]


WITHOUT_RULE.append(_on_cpu)
