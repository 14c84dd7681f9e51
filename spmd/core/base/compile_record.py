"""`CompileRecord`: a line of the compile log, with its program's collectives and the moves that
nothing requests."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Move:
    """A value of a program that the partitioner moved between devices, and no annotation requests
    it.

    Attributes:
        kind: "move"; "given up" where devices gather the value and keep a slice of it: XLA found no
            way from one layout to the other ("involuntary full rematerialization"), or the value
            comes back to its layout.
        op: the recorded op that reads or makes the value; line: the user's line of that op; path:
            the module it belongs to ("" except in `spmd.plan`).
        value: "operand 0" or "the result" of the op, or "" where the program's text does not say;
            shape: of the value, unsharded.
        before, after: the two layouts, as specs; "" where they are not known.
        collectives: the kinds that move it, in order. axes: the mesh axes over which. largest: the
            bytes of the largest one (`Collective.bytes`). bytes: sent by each device for this move
            in one run.
        mark: the annotation to try. is_checked: the program was compiled with it, and has this move
            no more.
        count: of equal moves of a line and a module; `bytes` are those of all, `largest` of the
            largest.

    >>> import torch, spmd
    >>> y = torch.ones(4, device="xla") + 1
    >>> spmd.sync()
    >>> [move.bytes for move in spmd.metrics.compiles()[-1].moves]  # one device has nothing to move
    []
    """

    kind: str
    op: str
    value: str = ""
    shape: tuple[int, ...] = ()
    before: str = ""
    after: str = ""
    collectives: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    largest: int = 0
    bytes: int = 0
    mark: str = ""
    is_checked: bool = False
    line: str = ""
    path: str = ""
    count: int = 1

    @property
    def text(self) -> str:
        """The move in words, without its line."""
        value_text = f"{self.value} {list(self.shape)}" if self.value else "a value"
        one_layout = (
            f", from {self.before}" if self.before else f", to {self.after}" if self.after else ""
        )
        layouts = f", {self.before} -> {self.after}" if self.before and self.after else one_layout
        traffic = (
            f"{' + '.join(self.collectives)} over {' x '.join(self.axes)}, moves {self.bytes:,} B"
        )
        traffic += f" in {self.count:,} moves" if self.count > 1 else ""
        regathered = "gathered and cut again, " if self.kind == "given up" else ""
        return (
            f"{value_text}{layouts}: {regathered}{traffic}{f'; {self.advice}' if self.mark else ''}"
        )

    @property
    def advice(self) -> str:
        """The annotation to try, and how far it is known to help."""
        return (
            f"{self.mark} removes it (compiled)"
            if self.is_checked
            else f"{self.mark} may remove it"
        )

    def __str__(self) -> str:
        where = f" | {self.path}" if self.path else ""
        return f"{self.kind}: {self.op}, {self.text}{where} | {self.line}"


@dataclass(frozen=True, slots=True)
class Collective:
    """One row of a program's table of collectives.

    Attributes:
        kind: XLA's name of it: "all-gather", "all-reduce", "reduce-scatter", "all-to-all",
            "collective-permute", ...
        axes: the mesh axes of its devices. devices: the number that exchange data with each other.
        bytes: of the arrays that they gather, reduce or exchange, on one device: the gathered, the
            unreduced array.
        count: its number in one run; in a loop it counts once for each iteration.
        op: the recorded op that it came from; of collectives that XLA has combined the number of
            arrays and the op of the first, whose line it has; line: the user's line of that op;
            path: the module or parameter it belongs to, as `named_modules` names it ("" except in
            `spmd.plan`, which reads the modules).
        is_sliced: each device keeps only a slice of this all-reduce. The CPU implements every
            reduce-scatter this way.
        link: its network, where the devices are several slices: "ici" inside of a slice, "dcn"
            between slices.
        is_async: it overlaps with computation, as the program is scheduled. core: "sparsecore"
            where these cores of a TPU run it, next to the others.
        seconds: of all counts together, by the clock of a plan (0 elsewhere); waiting: of these,
            the seconds without computation.
        dtype: of the arrays, as XLA names it ("bf16", "u8"; "f32, u8" of combined collectives);
            floats of eight bits travel as "u8".

    >>> import torch, spmd
    >>> mesh = spmd.Mesh(range(8), (8,), ("data",))
    >>> spmd.mark_sharding(torch.ones(24, device="xla"), mesh, ("data",)).sum().item()
    24.0
    >>> [(row.kind, row.axes) for row in spmd.metrics.compiles()[-1].traffic]
    [('all-reduce', ('data',))]
    """

    kind: str
    axes: tuple[str, ...]
    devices: int
    bytes: int
    count: int
    op: str = ""
    line: str = ""
    path: str = ""
    is_sliced: bool = False
    link: str = ""
    is_async: bool = False
    core: str = ""
    seconds: float = 0.0
    waiting: float = 0.0
    dtype: str = ""

    @property
    def moved_bytes(self) -> int:
        """The bytes that each device sends in one run, all counts together, by a ring: (n - 1) / n
        of the bytes, of an all-reduce twice that, of a permutation all."""
        share = {"all-reduce": 2 * (self.devices - 1), "collective-permute": self.devices}
        return self.count * self.bytes * share.get(self.kind, self.devices - 1) // self.devices

    def __str__(self) -> str:
        kind = f"{self.kind} and slice" if self.is_sliced else self.kind
        overlap = " overlapped with other work" if self.is_async else ""
        where = f" | {self.path}" if self.path else ""
        link = f", {self.link}" if self.link else ""
        in_dtype = f" in {self.dtype}" if self.dtype else ""
        return (
            f"{self.count:,} x {kind} of {self.bytes:,} B{in_dtype} over {' x '.join(self.axes)} "
            f"({self.devices}{link}), moves {self.moved_bytes:,} B{overlap}{where} | {self.op}, "
            f"{self.line}"
        )


@dataclass(frozen=True, slots=True)
class TextFacts:
    """The fields of a CompileRecord that are read in the text of the optimised program."""

    flops: float = 0.0
    collectives: dict[str, int] = field(default_factory=dict)
    traffic: tuple[Collective, ...] = ()
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True)
class CompileRecord:
    """One compiled program: a line of the compile log. Bytes are per device.

    Attributes:
        name: "step", "init" or another name of the program. cause: the reason to compile it, or to
            load it from disk.
        line: the user's line whose sync needed it. seconds: tracing, lowering and XLA together, or
            loading.
        nodes: recorded ops in it. loops: (trip count, ops of an iteration) where isomorphic layers
            became a loop of the program, which were lowered once instead of once an iteration
            (`config.scan_layers`). flops: XLA's own count, per device, products in loops times
            their trip counts (0 where the backend gives none).
        collectives: kind -> number in the text of the optimized program. traffic: the same as a
            table, with mesh axes, bytes, counts and lines (see `Collective`); the most bytes come
            first. functions: the user's functions that recorded its ops or needed it, each as
            "file:first line". passes: (pass, its change or its reason for none) of each pass with a
            note. moves: the values that the partitioner moved and no annotation requests, those of
            more than `config.moves_above` bytes (see `Move`). read: returns what is read in the
            program's text; a compilation does not wait for it.

    >>> import torch, spmd
    >>> spmd.metrics.clear()
    >>> (torch.ones(31, device="xla") + 1).sum().item()
    62.0
    >>> record = spmd.metrics.compiles()[-1]
    >>> record.output_bytes, len(record.traffic)
    (4, 0)
    """

    name: str
    cause: str
    line: str
    seconds: float
    nodes: int
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    loops: tuple[tuple[int, int], ...] = ()
    functions: tuple[str, ...] = ()
    passes: tuple[tuple[str, str], ...] = ()
    read: Callable[[], TextFacts] = field(default=TextFacts, repr=False, compare=False)

    @property
    def flops(self) -> float:
        return self.read().flops

    @property
    def collectives(self) -> dict[str, int]:
        return self.read().collectives

    @property
    def traffic(self) -> tuple[Collective, ...]:
        return self.read().traffic

    @property
    def moves(self) -> tuple[Move, ...]:
        return self.read().moves

    @property
    def unused_axes(self) -> tuple[str, ...]:
        """Sentences on the mesh axes of a mark that an op cannot use."""
        return tuple(words for name, words in self.passes if name == "unused axis")

    def __str__(self) -> str:
        moved = (
            ", ".join(f"{count} {kind}" for kind, count in sorted(self.collectives.items()))
            or "no collectives"
        )
        if self.moves:
            sent = sum(move.bytes for move in self.moves)
            moved += (
                f" ({sum(move.count for move in self.moves):,} moves of {sent:,} B that no "
                "annotation requests)"
            )
        moved += "".join(f"; {words}" for words in self.unused_axes)
        iterations = ", ".join(f"{iterations} times {ops}" for iterations, ops in self.loops)
        spared = sum((iterations - 1) * ops for iterations, ops in self.loops)
        scanned = f" ({self.nodes - spared} lowered: {iterations} in loops)" if self.loops else ""
        return (
            f"{self.name}: {self.cause} | {self.line} | {self.seconds:.2f} s, {self.nodes} "
            f"ops{scanned}, {moved} | per device: arguments {self.argument_bytes:,} B, results "
            f"{self.output_bytes:,} B ({self.alias_bytes:,} B in place), temporary "
            f"{self.temp_bytes:,} B"
        )
