"""Time XLA's own options for the CPU next to its defaults and torch: single ops, and the GPT step
written in JAX.

    OMP_NUM_THREADS=1 python recipes/benchmarks/cpu_options.py  # ops, and a step of 4 layers on one
                                                                # device
    python recipes/benchmarks/cpu_options.py --only step --layers 12 --rounds 9

All sides alternate in one process; printed are the fastest wall time over torch's fastest, and the
median of processor time over torch's in brackets. Benchmarks report; nothing here asserts a time.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

# isort: off
import spmd  # noqa: F401  # before jax: it sets environment variables that XLA reads when jax is imported
import jax

# isort: on
import jax.numpy as jnp

from recipes.benchmarks import jax_gpt
from recipes.benchmarks.step import JaxStep, torch_side
from recipes.gpt import GPT, GPTConfig

# By name: the options of one program. An empty fusion type leaves the library out.
OPTIONS: dict[str, dict[str, str]] = {
    "defaults": {},
    "no YNNPACK": {"xla_cpu_experimental_ynn_fusion_type": ""},
    "XNNPACK": {"xla_cpu_experimental_xnn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"},
    "oneDNN": {"xla_cpu_experimental_onednn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"},
    "oneDNN calls": {
        "xla_cpu_use_onednn": "True",
        "xla_cpu_experimental_onednn_custom_call": "True",
    },
    "one thread": {"xla_cpu_multi_thread_eigen": "False"},
    "fast runtime": {"xla_cpu_opt_preset": "CPU_OPT_PRESET_FAST_RUNTIME"},
    "concurrency": {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_CONCURRENCY_OPTIMIZED"},
    "memory": {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"},
    "old emitters": {"xla_cpu_use_fusion_emitters": "False"},
    "vectors of 512": {"xla_cpu_prefer_vector_width": "512"},
}


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5) @ v


def layer_norm(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


# By name: the op in torch, the same in JAX, and the shapes of its operands (those of the GPT step).
Op = tuple[Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...]]
OPS: dict[str, Op] = {
    "x @ w, 2,048 x 256 x 1,024": (torch.matmul, jnp.matmul, ((2048, 256), (256, 1024))),
    "x @ w.T, 2,048 x 1,024 x 256": (
        lambda x, w: x @ w.T,
        lambda x, w: x @ w.T,
        ((2048, 1024), (256, 1024)),
    ),
    "x.T @ y, 256 x 2,048 x 1,024": (
        lambda x, y: x.T @ y,
        lambda x, y: x.T @ y,
        ((2048, 256), (2048, 1024)),
    ),
    "layer norm, 2,048 x 256": (
        lambda x: F.layer_norm(x, x.shape[-1:]),
        layer_norm,
        ((2048, 256),),
    ),
    "softmax, 16,384 x 128": (lambda x: x.softmax(-1), jax.nn.softmax, ((16384, 128),)),
    "attention, 16 x 8 x 128 x 32": (
        F.scaled_dot_product_attention,
        attention,
        ((16, 8, 128, 32),) * 3,
    ),
    "gelu, 2,048 x 1,024": (F.gelu, partial(jax.nn.gelu, approximate=False), ((2048, 1024),)),
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("ops", "step"))
    parser.add_argument("--options", nargs="+", choices=tuple(OPTIONS), default=list(OPTIONS))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    return parser.parse_args()


def times(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, float]]:
    """Returns the fastest wall seconds and the median processor seconds of each side; they
    alternate, after two rounds that are not counted."""
    wall: dict[str, list[float]] = {name: [] for name in sides}
    processor: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + 2):
        for name, run in sides.items():
            start, used = perf_counter(), process_time()
            run()
            wall[name].append(perf_counter() - start)
            processor[name].append(process_time() - used)
    return {name: (min(wall[name][2:]), statistics.median(processor[name][2:])) for name in sides}


def row(name: str, sides: Mapping[str, Callable[[], Any]], rounds: int) -> list[str]:
    """Returns a row of the table; the first side is torch's."""
    measured = times(sides, rounds)
    (wall, processor), *others = measured.values()
    return [
        name,
        f"{wall * 1e3:.2f} ({processor * 1e3:.2f})",
        *(f"{w / wall:.2f} ({p / processor:.2f})" for w, p in others),
    ]


def op_row(name: str, options: list[str], rounds: int) -> list[str]:
    theirs, ours, shapes = OPS[name]
    torch.manual_seed(0)
    tensors = [torch.randn(shape) for shape in shapes]
    arrays = [jnp.asarray(tensor.numpy()) for tensor in tensors]
    sides: dict[str, Callable[[], Any]] = {"torch": lambda: theirs(*tensors)}
    for option in options:
        program = jax.jit(ours).lower(*arrays).compile(compiler_options=dict(OPTIONS[option]))
        sides[option] = lambda program=program: jax.block_until_ready(program(*arrays))
    return row(name, sides, rounds)


def step_row(layers: int, options: list[str], rounds: int) -> list[str]:
    config, batch = GPTConfig(layers=layers, width=256, heads=8, sequence=128), 16
    torch.manual_seed(0)
    weights = GPT(config).state_dict()
    arrays = {name: value.numpy() for name, value in weights.items()}
    shapes = {name: value.shape for name, value in arrays.items()}
    tokens = torch.randint(config.vocabulary, (batch, config.sequence))
    sides: dict[str, Callable[[], Any]] = {
        "torch": partial(torch_side(weights, config)[1], tokens, tokens)
    }
    for option in options:
        how = {
            "batch": batch,
            "sequence": 128,
            "heads": 8,
            "devices": 1,
            "compiler_options": OPTIONS[option],
        }
        sides[option] = partial(JaxStep(jax_gpt.build(shapes, **how), arrays), tokens, tokens)  # type: ignore[arg-type]
    return row(f"GPT step, {layers} layers", sides, rounds)


def main() -> None:
    args = parse()
    table = Table(
        title=(
            "over torch's time; in brackets: processor time; torch's threads: "
            f"{torch.get_num_threads()}"
        )
    )
    for column in ("", "torch ms", *args.options):
        table.add_column(column, justify="right" if column else "left")
    if args.only != "step":
        for name in OPS:
            table.add_row(*op_row(name, args.options, 3 * args.rounds))
    if args.only != "ops":
        table.add_row(*step_row(args.layers, args.options, args.rounds))
    Console(width=230).print(table)


if __name__ == "__main__":
    main()
