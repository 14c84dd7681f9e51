"""The module in whose call each op was recorded, noted while `config.module_paths` is on; no key
knows of it.

The stack of the call is read, as a hook of all modules would have Dynamo compile again.
"""

import sys
import weakref
from collections.abc import Sequence
from types import FrameType

from torch import nn
from torch.optim import Optimizer

from ...core import trace_rows
from ...core.extend import Bounded, Graph, Node, Program, user_lines, walks

BACKWARD = " (backward)"
_CALL = nn.Module._call_impl.__code__
_KEPT = 1 << 18
_of_ops: Bounded[float, str] = Bounded(_KEPT)  # by serial
# of forward ops, by autograd's number (see `source`)
_of_numbers: Bounded[int, str] = Bounded(_KEPT)
_names: "weakref.WeakKeyDictionary[nn.Module, dict[int, str]]" = weakref.WeakKeyDictionary()


def note(node: Node, number: int) -> None:
    """Notes the module that recorded an op. number: of a forward op autograd's, plus its ring's
    base."""
    # No module is on the stack of a backward op: autograd's number leads to the note of its forward
    # op.
    trace_rows.note_op()
    if node.sequence >= 0 and (forward := _of_numbers.get(node.sequence)) is not None:
        _of_ops.keep(node.serial, forward and f"{forward}{BACKWARD}")
        return
    path = _path(sys._getframe(2))
    _of_ops.keep(node.serial, path)
    if node.sequence < 0:
        _of_numbers.keep(user_lines.THREADS.ring.base + number, path)


def _path(frame: FrameType | None) -> str:
    """The path of the innermost module that is called, from the outermost one; or the optimizer
    that makes a step."""
    inner = outer = None
    while frame is not None:
        if frame.f_code is _CALL:
            outer = frame.f_locals["self"]
            inner = outer if inner is None else inner
        elif inner is None and frame.f_code.co_name == "step":
            stepping = frame.f_locals.get("self")
            if isinstance(stepping, Optimizer):
                return f"{type(stepping).__name__}.step"
        frame = frame.f_back
    if inner is None or outer is None:
        return ""
    # Read again where the module has no name, as modules may be added between two calls.
    names = _names.get(outer)
    if names is None or id(inner) not in names:
        paths = (
            (id(module), user_lines.plain_name(outer, name))
            for name, module in outer.named_modules()
        )
        names = _names[outer] = dict(paths)
    return names.get(id(inner), "") or type(inner).__name__


def note_run(program: Program, graph: Graph) -> None:
    """Notes the modules of a program's ops, before the first run whose ops were recorded with
    them."""
    if not any(program.paths):
        program.paths = _paths_of((graph.recorded or graph).nodes)


def _paths_of(nodes: Sequence[Node]) -> tuple[str, ...]:
    """The module of each op; of an op without a note, as a view, the module of the first op that
    reads it."""
    path_of = {node: _of_ops.get(node.serial) for node in nodes}
    for node in reversed(nodes):
        path = path_of[node]
        for operand in node.operands if path else ():
            maker = walks.origin(operand)
            if maker is not None and not path_of.get(maker, ""):
                path_of[maker] = path
    return tuple(path or "" for path in path_of.values())
