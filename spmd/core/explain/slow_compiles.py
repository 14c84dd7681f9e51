"""Lines on stderr about slow compilations, and about actions that the user did not request."""

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence

from ..base.config import config
from ..ir.graph import Node
from ..ir.source import Line, node_line

# The number of ops from which a program counts as long.
_LONG = 2_000


def say(text: str) -> None:
    """Prints one line for the user."""
    print(f"spmd: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def while_compiling(nodes: Sequence[Node], line: Line, cause: str) -> Iterator[None]:
    """Prints, after `config.slow_compile_seconds`, the size and the cause of the compilation inside, with advice."""
    if not config.slow_compile_seconds:
        yield
        return

    def report() -> None:
        first = next((line for line in map(node_line, nodes) if line.code is not None), None)
        since = f", recorded since {first}" if first is not None else ""
        say(
            f"compiling {len(nodes):,} ops{since}, for more than {config.slow_compile_seconds} s now. "
            f"They run at {line}. Why: {cause}. {_advice(len(nodes), cause)} "
            "(config.slow_compile_seconds = 0 disables this message.)"
        )

    timer = threading.Timer(config.slow_compile_seconds, report)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _advice(num_ops: int, cause: str) -> str:
    if "input is now" in cause:
        return "XLA compiles a program per shape: pad inputs to a few sizes, or write into a tensor of the full size."
    if num_ops > _LONG:
        return (
            "XLA's time rises faster than the number of ops: spmd.sync() once a step, or in the middle of a long one, "
            "makes shorter programs, and equal ones are compiled once."
        )
    return "The next run of the same ops finds the program compiled."
