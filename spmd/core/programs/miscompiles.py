"""Known miscompiles of XLA, as a table: the pattern of each in a program, the versions, and the
option that avoids it.

A program that has a pattern is compiled with that option, and its line of the compile log names the
row (docs/debugging.md has the table in words).
"""

import functools
import importlib.metadata
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
from jax.stages import Lowered

from ..base.config import config
from ..base.jax_private import compile_lowered, ir
from ..base.versions import release
from ..sharding.partitioner import callee_of, function_of, ops_of
from ..sharding.uneven_writes import replicate_indices
from .hlo import Executable, Instruction, Module

Options = dict[str, str | float]


class Miscompile(NamedTuple):
    """One row of the table.

    Attributes:
        in_lowered: True if a program has the pattern before XLA's passes; takes its text, too.
        in_optimized: True if a program has the pattern after XLA's passes.
        fixed: the first version of the package without the miscompile; "" if none is known.
        needs: the options that must all be on for the miscompile to occur.
        avoided_by: the options that avoid it; empty if no option does, or none is needed.
        instead: the text of messages where `avoided_by` is empty.
    """

    name: str
    issue: str
    package: str
    platforms: tuple[str, ...]
    in_lowered: Callable[[Lowered, str], bool] = lambda lowered, text: False
    in_optimized: Callable[[Executable], bool] = lambda executable: False
    fixed: str = ""
    needs: tuple[str, ...] = ()
    avoided_by: Mapping[str, str] = {}
    instead: str = "may be wrong under GSPMD; Shardy is right"

    def is_here(self) -> bool:
        """True if the installed version of the package has this miscompile."""
        return not self.fixed or _is_older(self.package, self.fixed)

    def applies(self, platform: str, options: Options) -> bool:
        return (
            platform in self.platforms
            and all(options.get(name) == "True" for name in self.needs)
            and self.is_here()
        )

    def __str__(self) -> str:
        options = " ".join(f"{name}={value}" for name, value in self.avoided_by.items())
        return f"{self.issue}: {f'compiled with {options}' if options else self.instead}"


@functools.cache
def _is_older(package: str, version: str) -> bool:
    """True if a package is installed in a version before this one."""
    try:
        return release(importlib.metadata.version(package)) < release(version)
    except importlib.metadata.PackageNotFoundError:
        return False


def scatters_in_loop(lowered: Lowered, text: str) -> bool:
    """True if a loop of the program has a scatter, whose all-reduce XLA may move behind the
    loop."""
    module = lowered.compiler_ir()
    assert module is not None, "jax lowers to MLIR"
    calls, scatters = ops_of(module, "func.call"), ops_of(module, "stablehlo.scatter")
    # The functions that have a scatter, themselves or through a call.
    functions = {function_of(op) for op in scatters}
    while (
        callers := {function_of(call) for call in calls if callee_of(call) in functions} - functions
    ):
        functions |= callers
    return any(
        map(_is_in_loop, (*scatters, *(call for call in calls if callee_of(call) in functions)))
    )


def _is_in_loop(op: ir.Operation) -> bool:
    while op.name not in ("func.func", "stablehlo.while") and op.parent is not None:
        op = op.parent.operation
    return op.name == "stablehlo.while"


def has_moved_scatter(executable: Executable) -> bool:
    """True if the body of a loop scatter-adds to the part of the carry that one partition keeps (a
    `select` between it and zero by `partition-id`), and does not reduce the sum over the
    devices."""
    text = executable.as_text() or ""
    if not all(f" {opcode}(" in text for opcode in ("while", "scatter", "partition-id")):
        return False
    module = Module.of(executable)
    bodies = [
        dict(line.called)["body"]
        for computation in module.computations.values()
        for line in computation.lines
        if line.opcode == "while"
    ]
    for name in bodies:
        opcodes = [line.opcode for line in _with_called(module, name)]
        reduces = any(opcode.startswith(("all-reduce", "reduce-scatter")) for opcode in opcodes)
        if not reduces and {"partition-id", "select", "scatter"} <= {*opcodes}:
            return True
    return False


def _with_called(module: Module, name: str) -> Iterator[Instruction]:
    """Yields the lines of a computation, those of fusions and calls included."""
    for line in module.computations[name].lines:
        yield line
        for kind, called in line.called:
            if kind in ("calls", "to_apply") and line.opcode in ("fusion", "call"):
                yield from _with_called(module, called)


def _matches(*patterns: str, word: str = "") -> Callable[[Lowered, str], bool]:
    """Returns a condition: True for a text that matches all patterns. word: a literal of every such
    text, searched first as that is fast."""
    return lambda _, text: word in text and all(re.search(pattern, text) for pattern in patterns)


def has_all_to_all(executable: Executable) -> bool:
    """True if the partitioner has written an all-to-all."""
    return (
        re.search(r" (?:ragged-)?all-to-all(?:-start)?\(", executable.as_text() or "") is not None
    )


def has_filled_product(executable: Executable) -> bool:
    """True for an executable in which a YNNPACK fusion has a product with an operand filled with
    one constant.

    YNNPACK's packing reads beyond that constant: the results of `jnp.matmul(x, jnp.full((64, 64),
    0.5)).max(-1)` are arbitrary, or the process ends (jaxlib 0.10.2). Without these fusions the
    results are right.
    """
    text = executable.as_text() or ""
    # Most programs have no computation with both, which is seen in their text alone.
    if _YNN_FUSION not in text or not any(
        " dot(" in part and _FILL.search(part) for part in text.split("\n}")
    ):
        return False
    module = Module.of(executable)
    lines = [line for computation in module.computations.values() for line in computation.lines]
    fused = {name for line in lines if _YNN_FUSION in line.tail for _, name in line.called}
    for name in fused:
        filled: set[str] = set()
        for line in module.computations[name].lines:
            is_broadcast = line.opcode == "broadcast" and "dimensions={}" in line.tail
            if is_broadcast or (line.opcode in _SAME_VALUES and line.operands[0] in filled):
                filled.add(line.name)
            elif line.opcode == "dot" and not filled.isdisjoint(line.operands):
                return True
    return False


# every XLA that makes them knows the option
_WITHOUT_YNN_FUSIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}
_YNN_FUSION = "__ynn_fusion"
_FILL = re.compile(r" broadcast\(.*dimensions=\{\}")
_SAME_VALUES = ("bitcast", "convert", "copy", "reshape", "transpose")
_MOTION = "while-loop-all-reduce-code-motion"
_FUSION, _OVERLAP = (
    "xla_tpu_enable_async_collective_fusion",
    "xla_tpu_overlap_compute_collective_tc",
)
_COPIES = "docs/decisions/copies-in-sums.md"
_REFUSED_READ, _SPLIT_READ = "read of rows that XLA refuses", "greater than dynamic slice dimension"
_REDUCED = r"(?:sharding[^\n]*\bunreduced|unreduced\s*=\s*\{)"

MISCOMPILES = (
    Miscompile(_MOTION, "openxla/xla#49143", "libtpu", ("tpu", "gpu"), scatters_in_loop,
        has_moved_scatter, avoided_by={"xla_disable_hlo_passes": _MOTION}),
    Miscompile("async collectives beside kernels", "jax-ml/jax#38741", "libtpu", ("tpu",),
        _matches(r"tpu_custom_call|stablehlo\.all_to_all"), has_all_to_all,
        needs=(_FUSION, _OVERLAP), avoided_by={_OVERLAP: "False"}),
    Miscompile("scatter-add over reduced axes", "openxla/xla#42481", "jaxlib",
        ("cpu", "gpu", "tpu"), _matches(_REDUCED, r"stablehlo\.scatter", word="unreduced"),
        fixed="0.11"),
    Miscompile("unreduced axes to mixed ones", "openxla/xla#40034", "jaxlib", ("cpu", "gpu", "tpu"),
        _matches(_REDUCED, word="unreduced")),
    Miscompile("product with a filled matrix", "docs/decisions/filled-products.md", "jaxlib",
        ("cpu",), in_optimized=has_filled_product, avoided_by=_WITHOUT_YNN_FUSIONS),
    Miscompile("scatter of uneven rows", _COPIES, "jaxlib", ("cpu", "gpu", "tpu"),
        instead="the program pads the rows of scatters itself"),
    Miscompile("operand of a scatter over copies", _COPIES, "jaxlib", ("cpu", "gpu", "tpu"),
        instead="the operand is combined after the scatter; one that overwrites hides its index"),
    Miscompile("convolution of pixels over some axes", _COPIES, "jaxlib", ("cpu", "gpu", "tpu"),
        instead="pixels, kernels and results are gathered on a mesh of several axes"),
    Miscompile(_REFUSED_READ, _COPIES, "jaxlib", ("cpu", "gpu", "tpu"),
        instead="compiled with the indices of reads replicated"),
    Miscompile("products of uneven rows on three axes", _COPIES, "jaxlib", ("cpu", "gpu", "tpu"),
        instead="may be wrong: make the rows a multiple of their shards"),
    Miscompile("batched product over two axes", _COPIES, "jaxlib", ("cpu", "gpu", "tpu"),
        instead="its result keeps the batch's axes where the summed dim is known to be sharded"),
)  # fmt: skip


def compile_right(
    lowered: Lowered, options: Options, platform: str
) -> tuple[Any, tuple[tuple[str, str], ...]]:
    """Returns the executable, compiled with the options that avoid each miscompile whose pattern
    the program has, and (name, words) of these rows for the compile log. Options named in
    `config.compiler_options` keep their value."""
    rows = [row for row in MISCOMPILES if row.applies(platform, options)]
    text = lowered.as_text()
    # Patterns seen before XLA's passes need one compilation; those seen after them need a second.
    rows_in_lowered = [row for row in rows if row.in_lowered(lowered, text)]
    options = _avoiding(rows_in_lowered, options)
    try:
        executable = compile_lowered(lowered, options)
    except jax.errors.JaxRuntimeError as error:
        if _SPLIT_READ not in str(error):
            raise
        module = lowered.compiler_ir()
        assert module is not None, "jax lowers to MLIR"
        replicate_indices(module)
        executable = compile_lowered(lowered, options)
        rows_in_lowered.append(next(row for row in rows if row.name == _REFUSED_READ))
    rows_in_optimized = [
        row for row in rows if row not in rows_in_lowered and row.in_optimized(executable)
    ]
    if rows_in_optimized:
        executable = compile_lowered(lowered, _avoiding(rows_in_optimized, options))
    return executable, tuple((row.name, str(row)) for row in (*rows_in_lowered, *rows_in_optimized))


def _avoiding(rows: list[Miscompile], options: Options) -> Options:
    """Returns the options with those that avoid these miscompiles, except options of the user."""
    user_options = {word.partition("=")[0] for word in config.compiler_options.split()}
    return options | {
        name: value
        for row in rows
        for name, value in row.avoided_by.items()
        if name not in user_options
    }
