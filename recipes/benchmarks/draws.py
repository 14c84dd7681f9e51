"""Compare random generators for initialising parameters: compile time, run time, memory of one
program of many draws.

    python recipes/benchmarks/draws.py  # 96 draws of 1,024 x 1,024, split over 8 simulated devices
    python recipes/benchmarks/draws.py --draws 24

"squares" is this library's generator (`spmd/ops/random.py`), "threefry" is JAX's default. Both make
standard normal float32 numbers, sharded along dim 0.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import spmd  # before jax, so that its log settings hold

import jax  # isort: skip
import jax.numpy as jnp  # isort: skip
import numpy as np  # isort: skip
from rich.console import Console  # isort: skip
from rich.table import Table  # isort: skip

from spmd.ops.random import normal  # isort: skip
from spmd.core.sharding.partitioner import compiler_context  # isort: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=96)
    parser.add_argument(
        "--size", type=int, default=1024, help="each draw is size x size (default 1024)"
    )
    parser.add_argument("--devices", type=int, default=8)
    return parser.parse_args()


def squares(seed: jax.Array, index: int, shape: tuple[int, int]) -> jax.Array:
    return normal((seed, jnp.asarray(index, jnp.int64)), shape, np.dtype(np.float32))


def threefry(seed: jax.Array, index: int, shape: tuple[int, int]) -> jax.Array:
    return jax.random.normal(jax.random.fold_in(jax.random.key(seed), index), shape, jnp.float32)


def measure(
    draw: Callable[..., jax.Array], args: argparse.Namespace
) -> tuple[float, float, float, float]:
    """Returns (seconds to compile, seconds to run, temporary bytes and result bytes per device)."""
    mesh = spmd.Mesh(range(args.devices), (args.devices,), ("fsdp",))
    sharding = mesh.sharding(("fsdp", None), 2).jax
    shape = (args.size, args.size)
    program = jax.jit(
        lambda seed: [draw(seed, i, shape) for i in range(args.draws)], out_shardings=sharding
    )
    with compiler_context():
        seed = np.int64(7)
        lowered = program.lower(seed)
        start = perf_counter()
        compiled = lowered.compile()
        compile_seconds = perf_counter() - start
        jax.block_until_ready(compiled(seed))
        start = perf_counter()
        jax.block_until_ready(compiled(seed))
        run_seconds = perf_counter() - start
    memory = compiled.memory_analysis()
    return compile_seconds, run_seconds, memory.temp_size_in_bytes, memory.output_size_in_bytes


def main() -> None:
    args = parse()
    spmd.simulate(args.devices)
    table = Table(
        title=f"{args.draws} draws of {args.size} x {args.size}, {args.devices} devices",
        title_justify="left",
    )
    for heading in (
        "generator",
        "compile s",
        "run s",
        "temporary MB per device",
        "results MB per device",
    ):
        table.add_column(heading, justify="left" if heading == "generator" else "right")
    for draw in (squares, threefry):
        compile_seconds, run_seconds, temporary, results = measure(draw, args)
        figures = (
            f"{compile_seconds:.2f}",
            f"{run_seconds:.2f}",
            f"{temporary / 1e6:.1f}",
            f"{results / 1e6:.1f}",
        )
        table.add_row(draw.__name__, *figures)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
