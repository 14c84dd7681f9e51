"""The user's lines: the frame that recorded an op, and the forward op of a backward one."""

# Why lines are kept as (code, instruction) and made words only when they are read: a step records
# thousands of ops, and walking the frames for each would cost more than the op.

import contextlib
import functools
import itertools
import linecache
import os
import pathlib
import sys
import threading
import warnings
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, TypeVar

import torch
from torch import nn

from ..base import arguments
from ..base.config import config
from ..base.tables import Bounded
from .graph import Node, Value, origin, result_index


@functools.lru_cache(4096)
def line_number(code: CodeType | None, instruction: int) -> int:
    """Returns the line of an instruction. Places are compared by line, as Python moves the
    instruction by a little when it specialises code that has run often."""
    # `co_lines`, as the frame with its `f_lineno` is gone when the line is read.
    lines = code.co_lines() if code else ()
    return next(
        (line for start, end, line in lines if start <= instruction < end and line is not None), 0
    )


def file_of(code: CodeType) -> str:
    """Returns the file of code; for a cell of a notebook its number, as IPython's tracebacks have
    it: `In[3]`."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    label_of = getattr(getattr(shell, "compile", None), "format_code_name", lambda name: None)
    return (label_of(code.co_filename) or ("", code.co_filename))[1]


@dataclass(slots=True, eq=False, repr=False)
class Line:
    """A user's line, kept as (code, last instruction) and turned into text only when it is read."""

    code: CodeType | None
    instruction: int

    @property
    def number(self) -> int:
        return line_number(self.code, self.instruction)

    def short(self) -> str:
        """The file without its folders, and the number; `str` has all of the line."""
        return (
            "no line of yours"
            if self.code is None
            else f"{pathlib.Path(file_of(self.code)).name}:{self.number}"
        )

    def __str__(self) -> str:
        if self.code is None:
            return "unknown line"
        source = linecache.getline(self.code.co_filename, self.number).strip()
        return f"{file_of(self.code)}:{self.number} in {self.code.co_name}" + (
            f": {source}" if source else ""
        )


F = TypeVar("F", bound=Callable[..., Any])
_ROOT = pathlib.Path(os.path.abspath(__file__)).parents[3]
_LIBRARY_ROOTS = (
    os.path.dirname(torch.__file__) + os.sep,
    # shows results in a notebook
    os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "IPython") + os.sep,
    str(_ROOT / "spmd") + os.sep,
    str(_ROOT / "fsdp") + os.sep,
    contextlib.__file__,  # its frames stand for those of their caller
    "<frozen ",
    "<eval_with_key>",  # code that torch.fx writes
)
# Packages that this library calls, and that run no code of the user's.
_PACKAGES = ("/numpy/", "/jax/", "/jaxlib/", "/etils/", "/orbax/", "/fsspec/", "/rich/")
_PYTHON, _INSTALLED = os.path.dirname(os.__file__) + os.sep, "site-packages"
# By id, as a code object's own hash and comparison read its constants: the object, which the row
# keeps, whether it is of torch or of this library, and what takes its place in a `Line`.
_is_library: Bounded[int, tuple[CodeType, bool, CodeType]] = Bounded(16_384)


class Ring:
    """The latest forward lines of one thread, by the numbers that autograd gives its nodes: in each
    thread from 0 on.

    Three sequences instead of a list of tuples, two of them arrays of C's integers: nothing that is
    allocated for a recorded op stays. base: added to a number, it identifies the ring; so a
    recorded op needs no other reference to it.
    """

    __slots__ = ("__weakref__", "base", "codes", "instructions", "mask", "numbers")

    def __init__(self, size: int):
        self.base = next(_tags) << _TAG
        self.mask = size - 1
        self.numbers = array("q", [-1]) * size
        self.codes: list[CodeType | None] = [None] * size
        self.instructions = array("i", [0]) * size

    def line(self, number: int) -> Line | None:
        """Returns the line of the forward op with this number, or None if the ring no longer has
        it."""
        slot = number & self.mask
        return (
            Line(self.codes[slot], self.instructions[slot])
            if self.numbers[slot] == number
            else None
        )


RING = 1 << 16
SMALL_RING = 1 << 14  # of all threads but the first
_TAG = 48  # the bit at which a ring's number begins
_tags = itertools.count()
_rings: "weakref.WeakValueDictionary[int, Ring]" = weakref.WeakValueDictionary()
# kept after the end of their threads: another thread may run the backward
_latest: deque[Ring] = deque(maxlen=8)

# Per thread: .ring, its own; .backward, the ring of the thread that recorded the forward of its
# backward pass.
THREADS = threading.local()


def new_ring() -> Ring:
    """Returns a ring for the calling thread; see `threads.enter_thread`."""
    ring = Ring(SMALL_RING if _rings else RING)
    _rings[ring.base] = ring
    _latest.append(ring)
    return ring


def forward_ring(number: int, line: Line | None) -> Ring:
    """Returns the ring of the thread that recorded the result from which a backward pass starts.

    number: autograd's sequence number of that result. line: the line that recorded it, where known:
    hardly two threads record the same line under the same number. The calling thread's ring is
    tried first; it is also returned where no ring has the line.
    """
    thread_ring: Ring = THREADS.ring
    if line is not None and len(_rings) > 1:
        # copied first, as other threads add rings
        rings = [ring for ref in reversed(_rings.valuerefs()) if (ring := ref()) is not None]
        for ring in (thread_ring, *rings):
            recorded = ring.line(number)
            if recorded and recorded.code is line.code and recorded.number == line.number:
                return ring
    return thread_ring


def is_library(code: CodeType) -> bool:
    """True if code belongs to torch or to this library; cached."""
    return _known(code)[1]


def _known(code: CodeType) -> tuple[CodeType, bool, CodeType]:
    """Returns the row of a code object."""
    row = _is_library.get(id(code))
    if row is None:
        # A generated `__init__`: its frame stands for its caller's.
        is_dataclass_init = code.co_qualname.startswith("__create_fn__")
        inside = is_dataclass_init or code.co_filename.startswith(_LIBRARY_ROOTS)
        row = _is_library.keep(id(code), (code, inside, _hashable(code)))
    return row


def _hashable(code: CodeType) -> CodeType:
    """Returns a code object as a dict key: Dynamo's may have dicts, which have no hash, among its
    constants."""
    try:
        hash(code)
    except TypeError:
        return code.replace(co_consts=())
    return code


def user_frame(depth: int = 1) -> tuple[CodeType | None, int]:
    """Returns (code, last instruction) of the nearest frame outside torch and this library."""
    return place_of(sys._getframe(depth))


def place_of(frame: FrameType | None) -> tuple[CodeType | None, int]:
    """Returns (code, last instruction) of the nearest frame, from this one outwards, outside torch
    and this library."""
    rows = _is_library.rows
    while frame is not None:
        code = frame.f_code
        known = rows.get(id(code)) or _known(code)
        if not known[1]:
            return known[2], frame.f_lasti
        frame = frame.f_back
    return None, 0


def user_line() -> Line:
    """Returns the nearest line outside torch and this library."""
    return Line(*user_frame(2))


_warned: dict[Any, Any] = {}  # Python's register of what was said where


def warn(text: str) -> None:
    """Warns at the user's line, whatever the depth of modules above."""
    line = Line(*user_frame(2))
    file = "?" if line.code is None else line.code.co_filename
    warnings.warn_explicit(text, UserWarning, file, line.number, registry=_warned)


def nearest_user_frame(frame: FrameType | None) -> FrameType | None:
    """Returns the nearest frame, from this one outwards, outside torch and this library."""
    while frame is not None and is_library(frame.f_code):
        frame = frame.f_back
    return frame


def at_user_line(error: Exception) -> Exception:
    """Leaves only the user's frames in an error's traceback, and ends it at the user's line: the
    last line printed is the one to change.

    The caller raises it again by a bare `raise`, which adds no line of its own. `config.
    traceback_filtering` (JAX's word) leaves out the frames of this library and of torch.
    """
    raising, entry = sys._getframe(1), error.__traceback__
    frame = nearest_user_frame(raising)
    # Python's own frames may be between: `copy.deepcopy(tensor)`
    while frame is not None and not _is_of_user(frame.f_code):
        frame = frame.f_back
    if config.traceback_filtering and frame is not None:
        of_user = dict[FrameType, TracebackType]()
        while entry is not None:
            # an error that came through here before has a frame twice
            if _is_of_user(entry.tb_frame.f_code) and entry.tb_frame is not raising.f_back:
                of_user[entry.tb_frame] = entry
            entry = entry.tb_next
        # The frame that called is added as the error leaves it; where torch's are between, here.
        if not of_user and frame is not raising.f_back:
            of_user[frame] = TracebackType(None, frame, frame.f_lasti, frame.f_lineno)
        # Links the user's entries anew, from the last on; `entry`, now None, becomes the first.
        for last in reversed(of_user.values()):
            last.tb_next, entry = entry, last
        error.__traceback__ = entry
    return error


def ends_at_user_line(of: F) -> F:
    """Decorates a function that users call, or a class with its public methods: its errors end at
    their line (see `at_user_line`), and name an argument that is no instance of its annotation."""
    if isinstance(of, type):
        for name, value in [*vars(of).items()]:
            is_public = name == "__init__" or (name[0] != "_" and name != "forward")
            if is_public and isinstance(value, FunctionType):
                setattr(of, name, ends_at_user_line(value))
            elif is_public and isinstance(value, classmethod):
                setattr(of, name, classmethod(ends_at_user_line(value.__func__)))
        return of

    @functools.wraps(of)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return of(*args, **kwargs)
        except Exception as error:
            if type(error) is AssertionError:  # a fault of this library: all of its frames
                raise
            try:
                if not _has_user_code(error):
                    arguments.check(of, args, kwargs, error)
            except TypeError as named:
                at_user_line(named)
                raise
            at_user_line(error)
            raise

    return call  # type: ignore[return-value]


def _is_of_user(code: CodeType) -> bool:
    """True for code that an error names: not Python's own, nor that of `_PACKAGES`."""
    file = code.co_filename
    if _INSTALLED in file:
        return not (is_library(code) or any(name in file for name in _PACKAGES))
    return not (is_library(code) or file.startswith(_PYTHON))


def _has_user_code(error: Exception) -> bool:
    """True if code of the user's, such as the body of a loop, ran where an error was raised."""
    entry = error.__traceback__
    while entry is not None and not _is_of_user(entry.tb_frame.f_code):
        entry = entry.tb_next
    return entry is not None


type(config).__setattr__ = ends_at_user_line(type(config).__setattr__)  # type: ignore[method-assign]


def node_line(node: Node) -> Line:
    """Returns the user's line of a node; for a backward op the line of its forward op."""
    return forward_line(node.sequence) or Line(node.code, node.instruction)


def source_of(node: Node) -> Node:
    """Returns the op whose value an annotation annotates; the annotation itself if that value is
    data."""
    value: Value = node
    while (maker := origin(value)) is not None and maker.op.name in ("mark_sharding", "spmd.renew"):
        value = maker.operands[result_index(value)]
    return node if maker is None else maker


def line_of(node: Node, nodes: Sequence[Node]) -> Line:
    """Returns the user's line of an op; for an annotation, that of the op it annotates (see
    `lines_of`)."""
    line = node_line(source_of(node))
    return line if line.code is not None else lines_of(nodes)[nodes.index(node)]


def lines_of(nodes: Sequence[Node]) -> list[Line]:
    """Returns the user's line of each op; for an op that FSDP records by itself, that of its
    result's first reader."""
    lines = dict(zip(nodes, map(node_line, nodes), strict=True))
    # Ops without a line of their own get one from their readers, which come later.
    line_of_reader: dict[Node | None, Line] = {}
    has_all_lines = None not in map(attrgetter("code"), lines.values())
    for node in () if has_all_lines else reversed(nodes):
        line = lines[node] if lines[node].code is not None else node_line(source_of(node))
        if line.code is None:
            line = line_of_reader.get(node, line)
        lines[node] = line
        if line.code is not None:
            # The walk is backwards, so that the first reader is written last.
            line_of_reader |= dict.fromkeys(map(origin, node.operands), line)
    return list(lines.values())


def forward_line(sequence: int) -> Line | None:
    """Returns the line of the forward op with this number (autograd's, plus its ring's base), if
    still kept."""
    ring = _rings.get(sequence >> _TAG << _TAG) if sequence >= 0 else None
    return None if ring is None else ring.line(sequence & (1 << _TAG) - 1)


def describe(node: Node) -> str:
    """Returns an op and its user's line, for messages."""
    backward = "the backward of " if node.sequence >= 0 else ""
    operands = ", ".join(repr(operand.meta) for operand in node.operands)
    return f"{node.op.name}({operands}), {backward}{node_line(node)}"


def plain_name(root: nn.Module, name: str) -> str:
    """Returns a module's name inside `root`, without the prefix of a root that only wraps one
    `module`."""
    modules = root._modules
    return (
        name.removeprefix("module").removeprefix(".")
        if [*modules] == ["module"] and not root._parameters
        else name
    )
