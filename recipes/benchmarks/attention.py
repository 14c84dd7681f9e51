"""Attention over a long sequence: temporary memory and time of three ways to compute it, forward, and with backward.

    python recipes/benchmarks/attention.py                    # 2 heads of width 64 over 8,192 tokens, a few minutes
    python recipes/benchmarks/attention.py --sequence 2048 --heads 8
    python recipes/benchmarks/attention.py --threshold        # where block by block begins to pay

"ours" is `torch.nn.functional.scaled_dot_product_attention` on the `xla` device; "S x S" the same written with matmul,
softmax and dropout on that device, which keeps every score; "jax.nn" is `jax.nn.dot_product_attention`, which has no
dropout. The three take turns in one process. Memory is XLA's own count of a program's temporary buffers: what it holds
beside arguments and results.
"""

import argparse
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

import spmd
from spmd.core.ops import attention as rules
from spmd.core.sharding.partitioner import compiler_context

import jax  # isort: skip  # after spmd, so that its log settings hold
import jax.numpy as jnp  # isort: skip

INFINITY = float("inf")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequence", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds (default 3)")
    parser.add_argument("--threshold", action="store_true", help="compare whole and block by block over short lengths")
    return parser.parse_args()


@dataclass(frozen=True)
class Case:
    """What is asked of attention: heads of keys and values per query head, a mask or causality, dropout."""

    name: str
    is_causal: bool = False
    masked: bool = False
    grouped: bool = False
    dropout: float = 0.0


CASES = (
    Case("plain"),
    Case("causal", is_causal=True),
    Case("masked", masked=True),
    Case("grouped, causal", is_causal=True, grouped=True),
    Case("dropout 0.1, causal", is_causal=True, dropout=0.1),
)
SHORT_CASES = CASES[0], CASES[1], CASES[4]


@dataclass
class Side:
    """One contestant: `run()` computes once, to its end; `temp_bytes` is known after the first run."""

    run: Callable[[], Any]
    temp_bytes: Callable[[], int]
    seconds: list[float] = field(default_factory=list)


def sliding_mask(length: int) -> Tensor:
    """An additive mask: each token sees a quarter of the sequence before it, less with distance."""
    distance = torch.arange(length)[:, None] - torch.arange(length)[None]
    mask = -distance.float() / length
    return mask.masked_fill_((distance < 0) | (distance > length // 4), -INFINITY)[None, None]


def ours(case: Case, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(
        query, key, value, mask, dropout_p=case.dropout, is_causal=case.is_causal, enable_gqa=case.grouped
    )


def all_scores(case: Case, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """The definition, with every score in one tensor."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (key, value))
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if case.is_causal:
        length = scores.shape[-1]
        future = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -INFINITY)
    if mask is not None:
        scores = scores + mask
    return F.dropout(scores.softmax(-1), case.dropout) @ value


def torch_side(attend: Callable[..., Tensor], case: Case, tensors: list[Tensor], mask: Any, backward: bool) -> Side:
    *operands, cotangent = (tensor.to("xla").requires_grad_(backward) for tensor in tensors)
    mask = mask if mask is None else mask.to("xla")
    spmd.sync(wait=True)
    temp_bytes: list[int] = []

    def run() -> None:
        before = spmd.metrics.num_compiles()
        output = attend(case, *operands, mask)
        results = [output, *(torch.autograd.grad(output, operands, cotangent.detach()) if backward else ())]
        spmd.sync(wait=True)
        if spmd.metrics.num_compiles() > before:
            temp_bytes.append(spmd.metrics.compiles()[-1].temp_bytes)
        del results

    return Side(run, lambda: max(temp_bytes))


def jax_side(case: Case, tensors: list[Tensor], mask: Any, backward: bool) -> Side:
    *operands, cotangent = (jnp.asarray(tensor.transpose(1, 2).numpy()) for tensor in tensors)
    bias = None if mask is None else jnp.asarray(mask.numpy())
    attend = partial(jax.nn.dot_product_attention, is_causal=case.is_causal, implementation="xla")

    def compute(operands: list[jax.Array], bias: jax.Array | None, cotangent: jax.Array) -> Any:
        if not backward:
            return attend(*operands, bias)
        output, pull = jax.vjp(lambda *x: attend(*x, bias), *operands)
        return output, pull(cotangent)

    program = jax.jit(compute).lower(operands, bias, cotangent).compile()
    memory = program.memory_analysis()
    return Side(lambda: jax.block_until_ready(program(operands, bias, cotangent)), lambda: memory.temp_size_in_bytes)


def take_turns(sides: dict[str, Side], rounds: int) -> None:
    """Run every side once to compile, then `rounds` times in turn."""
    for side in sides.values():
        side.run()
    for _ in range(rounds):
        for side in sides.values():
            start = perf_counter()
            side.run()
            side.seconds.append(perf_counter() - start)


def operands(args: argparse.Namespace, case: Case) -> list[Tensor]:
    """Query, key, value and the output's gradient."""
    heads = args.heads, *[args.heads // 2 if case.grouped else args.heads] * 2, args.heads
    return [torch.randn(1, number, args.sequence, args.width) for number in heads]


def compare(args: argparse.Namespace, status: Callable[[str], None]) -> Iterator[tuple[str, ...]]:
    """One table row a case and direction."""
    for case in CASES:
        tensors = operands(args, case)
        mask = sliding_mask(args.sequence) if case.masked else None
        for backward in (False, True):
            what = "forward + backward" if backward else "forward"
            status(f"{case.name}: {what}")
            sides = {
                "ours": torch_side(ours, case, tensors, mask, backward),
                "S x S": torch_side(all_scores, case, tensors, mask, backward),
            }
            if not case.dropout:
                sides["jax.nn"] = jax_side(case, tensors, mask, backward)
            take_turns(sides, args.rounds)
            others = [sides.get(name) for name in ("S x S", "jax.nn")]
            yield (
                case.name,
                what,
                *("" if side is None else f"{side.temp_bytes() / 1e6:,.1f}" for side in (sides["ours"], *others)),
                f"{statistics.median(sides['ours'].seconds):.2f}",
                *("" if side is None else f"{ratio(sides['ours'], side):.2f}" for side in others),
            )


def ratio(side: Side, other: Side) -> float:
    """The median over the rounds of one side's seconds over the other's."""
    return statistics.median(a / b for a, b in zip(side.seconds, other.seconds, strict=True))


def rule_side(case: Case, tensors: list[Tensor], threshold: int) -> Side:
    """The library's own rules, forward + backward, with another threshold between whole and block by block."""
    arrays = [jnp.asarray(tensor.numpy()) for tensor in tensors]
    rules.LONG, chosen = threshold, rules.LONG

    def compute(query: jax.Array, key: jax.Array, value: jax.Array, cotangent: jax.Array) -> Any:
        how, length = (case.dropout, case.is_causal), query.shape[2]
        output, logsumexp, seed = rules.aten_attention(query, key, value, None, *how, draw=(jnp.int64(0), jnp.int64(0)))
        wanted, returns = (True, True, True, False), (query, key, value, None)
        return output, rules.aten_attention_backward(
            cotangent, query, key, value, None, wanted, output, logsumexp, None, None, length, length, *how, seed, seed,
            returns=returns,
        )  # fmt: skip

    with compiler_context():
        program = jax.jit(compute).lower(*arrays).compile()
    rules.LONG = chosen
    memory = program.memory_analysis()
    return Side(lambda: jax.block_until_ready(program(*arrays)), lambda: memory.temp_size_in_bytes)


def thresholds(args: argparse.Namespace, status: Callable[[str], None]) -> Iterator[tuple[str, ...]]:
    """One table row a length: block by block over whole, of as many heads as make 8,192 rows."""
    for length in (128, 256, 512, 1024, 2048):
        tensors = [torch.randn(1, 8192 // length, length, args.width) for _ in range(4)]
        cells = []
        for case in SHORT_CASES:
            status(f"{length}: {case.name}")
            sides = {"blocks": rule_side(case, tensors, 0), "whole": rule_side(case, tensors, length**2 + 1)}
            take_turns(sides, 5 * args.rounds)
            cells.append(f"{ratio(*sides.values()):.2f}")
        yield f"{length:,}", *cells


def table_of(title: str, headings: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, left: int) -> Table:
    """A table whose first `left` columns are words."""
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < left else "right")
    for row in rows:
        table.add_row(*row)
    return table


def main() -> None:
    args = parse()
    console = Console(width=140)
    spmd.simulate(1)
    torch.manual_seed(0)
    with console.status("running") as status:
        if args.threshold:
            title = f"Block by block / whole, float32, forward + backward, 8,192 rows of width {args.width} in all"
            headings = "length", *(case.name for case in SHORT_CASES)
            table = table_of(title, headings, thresholds(args, status.update), left=0)
        else:
            title = f"Float32, batch 1, {args.heads} heads of width {args.width}, {args.sequence:,} tokens"
            numbers = "MB: ours", "MB: S x S", "MB: jax.nn", "seconds: ours", "ours / S x S", "ours / jax.nn"
            table = table_of(title, ("", "", *numbers), compare(args, status.update), left=2)
    console.print(table)


if __name__ == "__main__":
    main()
