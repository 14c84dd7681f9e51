"""The user's lines: which frame recorded an op, and the forward op behind a backward one."""

import os
import sys
from types import CodeType, FrameType

import torch

from .ir import Line, Node

_LIBRARY_ROOTS = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep + "spmd" + os.sep,
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep + "fsdp" + os.sep,
    "<frozen ",
)
_is_library: dict[CodeType, bool] = {}

# Autograd numbers its nodes; a ring of the latest forward lines maps a backward op's number to the line it came from.
RING = 1 << 16
# Three lists instead of one of tuples: nothing is allocated per recorded op.
FORWARD_NUMBER: list[int] = [-1] * RING
FORWARD_CODE: list[CodeType | None] = [None] * RING
FORWARD_INSTRUCTION: list[int] = [0] * RING


def is_library(code: CodeType) -> bool:
    """Whether code belongs to torch or this library, noted for the next time."""
    inside = _is_library[code] = code.co_filename.startswith(_LIBRARY_ROOTS)
    return inside


def user_frame(depth: int = 1) -> tuple[CodeType | None, int]:
    """(code, last instruction) of the nearest frame outside torch and this library."""
    return place_of(sys._getframe(depth))


def place_of(frame: FrameType | None) -> tuple[CodeType | None, int]:
    """(code, last instruction) of the nearest frame, from this one outwards, outside torch and this library."""
    known = _is_library
    while frame is not None:
        code = frame.f_code
        inside = known.get(code)
        if inside is None:
            inside = is_library(code)
        if not inside:
            return code, frame.f_lasti
        frame = frame.f_back
    return None, 0


def user_line() -> Line:
    """The nearest line outside torch and this library."""
    return Line(*user_frame(2))


def remember_forward(sequence: int, code: CodeType | None, instruction: int) -> None:
    """Notes where the forward op with this autograd number stands (`dispatch` does the same in line)."""
    slot = sequence & (RING - 1)
    FORWARD_NUMBER[slot], FORWARD_CODE[slot], FORWARD_INSTRUCTION[slot] = sequence, code, instruction


def node_line(node: Node) -> Line:
    """The user's line of a node; for a backward op the line of its forward op."""
    return forward_line(node.sequence) or Line(node.code, node.instruction)


def forward_line(sequence: int) -> Line | None:
    """The line of the forward op with this autograd number, where it is still known."""
    slot = sequence & (RING - 1)
    known = sequence >= 0 and FORWARD_NUMBER[slot] == sequence
    return Line(FORWARD_CODE[slot], FORWARD_INSTRUCTION[slot]) if known else None


def describe(node: Node) -> str:
    """An op and where the user wrote it, for messages."""
    backward = "the backward of " if node.sequence >= 0 else ""
    operands = ", ".join(repr(operand.meta) for operand in node.operands)
    return f"{node.entry.name}({operands}), {backward}{node_line(node)}"
