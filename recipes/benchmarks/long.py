"""Temporary memory per chip of long sequences and large vocabularies, by the TPU's compiler; no TPU
is needed.

    TPU_SKIP_MDS_QUERY=1 python recipes/benchmarks/long.py  # v5e:2x4; needs libtpu, minutes
    python recipes/benchmarks/long.py --target cpu:8 --lengths 2048 --classes 32000

Attention, forward and backward, bfloat16, 8 heads of width 128 (2 of keys and values), causal, a
sequence per device: by the library's choice, block by block, and with all scores as one array. Then
the loss of an LM head, forward and backward, of 4,096 tokens per device and width 4,096: with and
without all logits, FSDP over all devices, and classes sharded over two.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import spmd
from spmd.core.graph.graph import topological
from spmd.core.graph.meta import dense_meta
from spmd.core.graph.source import user_line
from spmd.core.programs import cache
from spmd.core.record.storage import LIVE, pending
from spmd.core.record.tensor import abstract
from spmd.core.run import executables
from spmd.core.run.executables import graph_of
from spmd.core.run.execute import roots_of
from spmd.core.run.schedule import meshes_met
from spmd.ops import attention
from spmd.ops.kernels import splash


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--target", default="v5e:2x4", help="a slice of eight chips (default v5e:2x4)"
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--classes", type=int, default=128_256)
    return parser.parse_args()


def tensor(mesh: spmd.Mesh, spec: tuple, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return abstract(dense_meta(shape, dtype), mesh.sharding(spec, len(shape)))


def temporaries() -> str:
    """Returns the temporary MiB per device of the recorded graph's program, and drops the graph."""
    roots = roots_of(pending())
    (mesh,) = meshes_met(pending(), *topological([value for value, _ in roots])).values()
    try:
        compiled = executables.planned_for(graph_of(roots, mesh), user_line()).executable
    except torch.OutOfMemoryError:
        return "does not fit"
    finally:
        LIVE.clear()
        cache.clear_cache()  # the next one is of the same ops, lowered in another way
    return f"{compiled.memory_analysis().temp_size_in_bytes / 2**20:,.0f}"


def attend(target: str, length: int) -> str:
    mesh = spmd.Mesh(range(8), (8,), ("data",), target=target)
    shapes = ((8, heads, length, 128) for heads in (8, 2, 2))
    inputs = [
        tensor(mesh, ("data", None, None, None), shape, torch.bfloat16).requires_grad_()
        for shape in shapes
    ]
    made = F.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=True)
    grads = torch.autograd.grad(made.sum(), inputs)
    return temporaries() if grads else ""


def attentions(args: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """Yields one row per length: by the library, in blocks, with all scores."""
    takes, long = splash.takes, attention.LONG
    for length in args.lengths:
        figures = [attend(args.target, length)]
        splash.takes = lambda *case: False
        figures.append(attend(args.target, length))
        attention.LONG = length**2 + 1
        figures.append(attend(args.target, length))
        splash.takes, attention.LONG = takes, long
        yield f"{length:,}", *figures


def head(target: str, shape: tuple[int, int], classes: int, max_logits_bytes: int) -> str:
    spmd.config.max_logits_bytes = max_logits_bytes
    mesh = spmd.Mesh(range(8), shape, ("fsdp", "tensor"), target=target)
    by_class = "tensor" if shape[1] > 1 else None
    x = tensor(mesh, ("fsdp", None, None), (8, 4096, 4096), torch.bfloat16).requires_grad_()
    weight = tensor(
        mesh, (("tensor", "fsdp"), None), (classes, 4096), torch.float32
    ).requires_grad_()
    labels = tensor(mesh, ("fsdp", None), (8, 4096), torch.int64)
    gathered = spmd.mark_sharding(weight.bfloat16(), mesh, (by_class, None))  # as FSDP gathers it
    loss = F.cross_entropy(F.linear(x, gathered).float().view(-1, classes), labels.view(-1))
    grads = torch.autograd.grad(loss, (x, weight))
    del gathered
    return temporaries() if grads else ""


def heads(args: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """Yields one row per mesh: in chunks, and with all logits."""
    for name, shape in (("8-way FSDP", (8, 1)), ("4-way FSDP, classes over 2", (4, 2))):
        yield name, *(head(args.target, shape, args.classes, most) for most in (1 << 30, 0))


def main() -> None:
    args = parse()
    console = Console(width=140)
    spmd.simulate(1)
    for title, headings, rows in (
        (
            f"Attention on {args.target}: temporary MiB per device",
            ("length", "the kernel (default)", "in blocks", "all scores"),
            attentions,
        ),
        (
            f"Loss over {args.classes:,} classes: temporary MiB per device",
            ("", "in chunks", "all logits"),
            heads,
        ),
    ):
        table = Table(*headings, title=title, title_justify="left", min_width=len(title))
        with console.status(title):
            for row in rows(args):
                table.add_row(*row)
        console.print(table)


if __name__ == "__main__":
    main()
