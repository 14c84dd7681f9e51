"""The lazy graph: Meta (shape, dtype, layout), Entry (an op with all that is the same at each call), Node, Leaf."""

import functools
import itertools
import linecache
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import jax
import numpy as np
import torch

from .dtypes import to_numpy_dtype
from .sharding import Sharding


class Meta:
    """Shape, dtype, strides and storage offset of a tensor, interned: equal metas are the same object.

    layout: what an op sees of it: the same at offset 0, and without gaps where only gaps set it apart from contiguous
    memory. Where a view begins and how far apart its rows are in its base's memory is nothing to an op that makes new
    data.
    """

    __slots__ = ("dtype", "layout", "numel", "offset", "shape", "strides", "struct")

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...], offset: int):
        self.shape = shape
        self.dtype = dtype
        self.strides = strides
        self.offset = offset
        self.numel = 1
        for dim in shape:
            self.numel *= dim
        self.struct = jax.ShapeDtypeStruct(shape, to_numpy_dtype(dtype))
        self.layout = self
        if offset or (strides and self.numel):
            dense = _contiguous(shape) if _has_only_gaps(shape, strides) else strides
            self.layout = intern_meta(shape, dtype, dense) if offset or dense != strides else self

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    def make(self) -> torch.Tensor:
        """A tensor on torch's meta device with this layout."""
        span = sum((dim - 1) * stride for dim, stride in zip(self.shape, self.strides, strict=True)) + 1
        size = self.offset + (span if self.numel else 0)
        storage = torch.empty(size, dtype=self.dtype, device="meta")
        return storage.as_strided(self.shape, self.strides, self.offset)

    def __repr__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}[{','.join(map(str, self.shape))}]"


_METAS: dict[tuple, Meta] = {}


def intern_meta(shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...], offset: int = 0) -> Meta:
    """The one Meta of these parts."""
    key = (shape, dtype, strides, offset)
    found = _METAS.get(key)
    return found if found is not None else _METAS.setdefault(key, Meta(*key))


def dense_meta(shape: Sequence[int], dtype: torch.dtype) -> Meta:
    """A contiguous Meta."""
    return intern_meta(tuple(shape), dtype, _contiguous(shape))


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for dim in reversed(shape):
        strides.append(step)
        step *= max(dim, 1)
    return tuple(reversed(strides))


def _has_only_gaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements lie in the order of contiguous memory, without overlaps, gaps between them or not."""
    reach = 1
    for dim, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride < reach:
            return False
        reach = stride * dim
    return True


def meta_of(tensor: torch.Tensor) -> Meta:
    """The Meta of any strided torch tensor."""
    offset: int = tensor.storage_offset()  # type: ignore[assignment]  # symbolic only in a trace of torch.compile
    return intern_meta(tuple(tensor.shape), tensor.dtype, tuple(tensor.stride()), offset)


class Slot:
    """Stands for a tensor result in `Entry.layout`."""


class Entry:
    """One op together with everything that is the same each time it is recorded: a row of the shape-and-dtype table.

    Two calls share an Entry when op, operand metas and static arguments are equal, so an Entry's identity stands for
    them in graph keys.

    Attributes:
        name: the op, as aten spells it. lower: (operand arrays, lifted numbers) -> tuple of arrays.
        metas: what each result looks like. numbers: "f" or "i" for each lifted number. statics: the static arguments as
        text, for people. sharding: what a sharding annotation asks for. constant: set where the op fills its result
        with one number: that number, or "lifted" for its first lifted number. layout: for ops that return more than
        tensors, what they return, in order: a `Slot` for the next result, anything else as it is. by_layout: another
        `lower`, for ops that do better when they know how their operands lie: it takes the operands' shardings as well
        (None: unknown). moving: for an op that takes elements from a static position on, the Entry that has the
        position lifted, and the position. on_host: the op on CPU tensors (operands, lifted numbers), where torch could
        run it with the same result.
    """

    __slots__ = (
        "by_layout",
        "constant",
        "layout",
        "lower",
        "metas",
        "moving",
        "name",
        "numbers",
        "on_host",
        "sharding",
        "statics",
    )

    def __init__(
        self,
        name: str,
        lower: Callable[[list[jax.Array], list[jax.Array]], tuple[jax.Array, ...]],
        metas: tuple[Meta, ...],
        *,
        numbers: str = "",
        statics: str = "",
        sharding: Sharding | None = None,
        constant: Any = None,
        layout: tuple[Any, ...] | None = None,
    ):
        self.name = name
        self.lower = lower
        self.metas = metas
        self.numbers = numbers
        self.statics = statics
        self.sharding = sharding
        self.constant = constant
        self.layout = layout
        self.by_layout: Callable[..., tuple[jax.Array, ...]] | None = None
        self.moving: tuple[Entry, int] | None = None
        self.on_host: Callable[[list[torch.Tensor], Sequence[float | int]], list[torch.Tensor]] | None = None

    def __repr__(self) -> str:
        return f"{self.name}({self.statics}) -> {', '.join(map(repr, self.metas))}"


@functools.cache
def line_number(code: CodeType | None, instruction: int) -> int:
    """The line of an instruction. Python moves the instruction by a little when it specialises code that has run often,
    so places are compared by line."""
    for start, end, line in code.co_lines() if code else ():
        if start <= instruction < end and line is not None:
            return line
    return 0


class Line:
    """A user's line, kept as (code, last instruction) and turned into text only when someone reads it."""

    __slots__ = ("code", "instruction")

    def __init__(self, code: CodeType | None, instruction: int):
        self.code = code
        self.instruction = instruction

    @property
    def number(self) -> int:
        return line_number(self.code, self.instruction)

    def __str__(self) -> str:
        if self.code is None:
            return "unknown line"
        source = linecache.getline(self.code.co_filename, self.number).strip()
        return f"{self.code.co_filename}:{self.number} in {self.code.co_name}" + (f": {source}" if source else "")


_serials = itertools.count()


class Leaf:
    """A value that exists: a device buffer, or host data that has not been uploaded yet.

    `sharding` says how the buffer lies (or will lie); `gone` says why a buffer is no longer there; `shared` is set when
    someone outside the graph holds the buffer, which then is never donated.
    """

    __slots__ = ("buffer", "gone", "holder", "host", "meta", "serial", "sharding", "shared")

    def __init__(
        self,
        meta: Meta,
        *,
        buffer: jax.Array | None = None,
        host: np.ndarray | None = None,
        sharding: Sharding | None = None,
    ):
        self.meta = meta
        self.buffer = buffer
        self.host = host
        self.sharding = sharding
        self.shared = 0
        self.gone: str | None = None
        self.serial = next(_serials)  # counts on with the nodes'
        self.holder: Any = None  # weak reference to the cell whose value this is

    def placed(self) -> tuple[jax.Array, Sharding]:
        """The buffer of a value that is on devices, and how it lies."""
        assert self.buffer is not None and self.sharding is not None
        return self.buffer, self.sharding

    def check(self) -> None:
        """Raises RuntimeError when the data was given up in a run that then failed."""
        if self.gone is None and self.buffer is not None and self.buffer.is_deleted():
            self.gone = "its buffer was donated to a run that was interrupted"
        if self.gone is not None:
            raise RuntimeError(f"this tensor's data ({self.meta!r}) is lost: {self.gone}. Load or initialise it again.")


class Node:
    """One recorded op: its Entry, its operands, its lifted numbers, and where the user wrote it.

    A Node stands for its result; an op with several results has one Node and a `Pick` per result. `serial` counts
    recorded ops: sorting by it is a topological order. `sequence` is autograd's number of the forward op (see
    `core.source`).
    """

    __slots__ = ("code", "entry", "instruction", "numbers", "operands", "sequence", "serial")

    def __init__(
        self,
        entry: Entry,
        operands: "Sequence[Value]",
        numbers: tuple[float | int, ...] | list[float | int] = (),
        code: CodeType | None = None,
        instruction: int = 0,
        sequence: int = -1,
    ):
        self.entry = entry
        self.operands = operands
        self.numbers = numbers
        self.code = code
        self.instruction = instruction
        self.sequence = sequence
        self.serial = next(_serials)

    @property
    def meta(self) -> Meta:
        return self.entry.metas[0]


class Pick:
    """One result of an op that has several."""

    __slots__ = ("index", "node")

    def __init__(self, node: Node, index: int):
        self.node = node
        self.index = index

    @property
    def meta(self) -> Meta:
        return self.node.entry.metas[self.index]


Value = Node | Pick | Leaf


def results(node: Node) -> Sequence[Value]:
    """A value for each result of a recorded op."""
    count = len(node.entry.metas)
    return [node] if count == 1 else [Pick(node, index) for index in range(count)]


def origin(value: Value) -> Node | None:
    """The recorded op that makes a value, or None for a leaf."""
    kind = type(value)
    return value if kind is Node else value.node if kind is Pick else None  # type: ignore[return-value,union-attr]


def topological(roots: Sequence[Value]) -> tuple[list[Node], list[Leaf]]:
    """Every node that the roots need, in the order of recording, and the leaves in the order of first use."""
    seen: set[Value] = set()
    nodes: list[Node] = []
    stack = list(roots)
    while stack:
        value = stack.pop()
        if type(value) is Pick:
            value = value.node
        if value in seen:
            continue
        seen.add(value)
        if type(value) is Node:
            nodes.append(value)
            stack.extend(value.operands)
    nodes.sort(key=_serial)
    leaves: dict[Leaf, None] = {}
    for node in nodes:
        for operand in node.operands:
            if type(operand) is Leaf:
                leaves[operand] = None
    return nodes, list(leaves)


def _serial(node: Node) -> int:
    return node.serial


def to_text(roots: Sequence[Value]) -> str:
    """The graph as text: one line per op, with its result and the user's line."""
    nodes, leaves = topological(roots)
    name: dict[Value, str] = {leaf: f"%in{i}" for i, leaf in enumerate(leaves)}
    lines = [f"{name[leaf]}: {leaf.meta!r} = input" for leaf in leaves]
    for i, node in enumerate(nodes):
        name[node] = f"%{i}"
        operands = ", ".join(
            f"{name[operand.node]}.{operand.index}" if type(operand) is Pick else name[operand]
            for operand in node.operands
        )
        shapes = ", ".join(map(repr, node.entry.metas))
        lines.append(f"%{i}: {shapes} = {node.entry.name}({operands})  # {Line(node.code, node.instruction)}")
    return "\n".join(lines)
