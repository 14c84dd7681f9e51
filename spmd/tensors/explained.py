"""`explain`: a program of the compile log in words."""

import functools
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any

from ..core import CompileRecord, compile_log, ends_at_user_line


@ends_at_user_line
def explain(step: Callable[..., Any] | str | None = None, *, passes: bool = False) -> str:
    """Describes a program: its line of the compile log, then its collectives and the moves that no
    annotation requests (`Move`), a line each.

    Args:
        step: None: the program that was compiled last. A function (or method, module, partial): the
            last one that has ops recorded in it, or whose sync is called in it. A text: the last
            one whose name, cause or sync's line contains it.
        passes: a line more for each pass over its graph that changed it, or says why it did not.

    Raises TypeError for another step.

    >>> import torch, spmd
    >>> y = torch.ones(2, device="xla") + 1
    >>> spmd.sync()
    >>> "per device" in spmd.metrics.explain()
    True
    """
    records = compile_log.compiles()
    if not records:
        return "nothing was compiled"
    if step is None:
        record: CompileRecord | None = records[-1]
    elif isinstance(step, str):
        texts = [(record, f"{record.name}: {record.cause} | {record.line}") for record in records]
        record = next((record for record, text in reversed(texts) if step in text), None)
    else:
        functions = _functions_of(step)
        record = next(
            (record for record in reversed(records) if not functions.isdisjoint(record.functions)),
            None,
        )
    if record is None:
        sought = repr(step) if isinstance(step, str) else " or ".join(sorted(functions))
        return f"none of the {len(records):,} programs in the compile log is of {sought}"
    changes = [f"    pass {name}: {words}" for name, words in record.passes] if passes else []
    return "\n".join(
        [str(record), *(f"    {row}" for row in (*record.traffic, *record.moves)), *changes]
    )


def _functions_of(step: object) -> set[str]:
    """A function and those defined inside it, as `CompileRecord.functions` names them."""
    while isinstance(step, functools.partial):
        step = step.func
    function = step
    if not inspect.isroutine(step):  # a module, or another object that is called
        function = getattr(step, "forward", None) or inspect.getattr_static(
            type(step), "__call__", None
        )
    code = (
        getattr(inspect.unwrap(function), "__code__", None)
        if callable(step) and callable(function)
        else None
    )
    if code is None:
        raise TypeError(
            f"explain: expected a function written in Python, a text or None, got {step!r}"
        )
    names, waiting = set(), [code]
    while waiting:
        code = waiting.pop()
        names.add(compile_log.place_of_code(code))
        waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return names
