"""Train on sequences of 65,536 bytes, sharded over eight simulated devices: the model copies across
30,000 of them.

    python recipes/train_long.py                             # context=8: learns on short rows, then
                                                             # on 65,536 bytes
    python recipes/train_long.py --context 1                 # the same losses on one device
    python recipes/train_long.py --exchange ring             # how keys meet queries; else the
                                                             # library chooses
    python recipes/train_long.py --lengths 2048 --steps 100  # short rows alone, in half a minute
    python recipes/train_long.py --exchange ring --picture long_sequences.png
                                                             # memory against length; runs nothing

A row is packed from five documents, of which the longest takes half. A document begins with random
bytes, goes on with Python's documentation, and ends with the same random bytes; attention stays
inside a document. The loss is of this copy alone, from its fourth byte on: three show what is
copied, and text is not learned. The model is plain PyTorch with one layer of attention and no
positions. The mark of tokens, `P(None, "context")`, is all that shards it.

It prints loss, accuracy and speed, and before and after each length the share of bytes that are
copied right in a row of the last length, of held-out text and new random bytes: of 65,536, 0.01
before, 0.92 after rows of 2,048, 0.96 after 8,192 and 0.99 at the end, there across 30,255 bytes as
well (nine minutes of processor time). The picture's table has MiB per device: over 65,536 bytes 389
at context 1, 200 at 2, 160 at 4 and 84 at 8.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import spmd
from recipes import text, training
from spmd import P

CONTEXTS = (1, 2, 4, 8)
RECENT = 3  # bytes that a query knows, and that begin a copy
SHARES = (2, 4, 8, 16)  # a row's length by those of its documents; the fifth takes the rest
MIB = 2**20


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--context", type=int, default=8, metavar="N", help="devices of a sequence (default 8)"
    )
    parser.add_argument(
        "--exchange",
        choices=("auto", "ring", "gathered", "all-to-all"),
        default="auto",
        help="of keys (default auto)",
    )
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        metavar="N",
        help="bytes of a row, one after the other (default 2048 8192 65536)",
    )
    parser.add_argument(
        "--steps", type=int, nargs="+", metavar="N", help="of each length (default 60 20 6)"
    )
    parser.add_argument(
        "--width", type=int, default=64, metavar="N", help="features per byte (default 64)"
    )
    parser.add_argument("--lr", type=float, default=1e-2, help="learning rate (default 0.01)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and rows (default 0)")
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="draw memory per device against --lengths, for context 1, 2, 4, 8",
    )
    args = parser.parse_args(arguments)
    args.lengths = args.lengths or (
        [2**power for power in range(12, 19)] if args.picture else [2_048, 8_192, 65_536]
    )
    args.steps = args.steps or [60, 20, 6]
    if len(args.steps) != len(args.lengths) and not args.picture:
        parser.error(
            f"--steps needs a number for each of --lengths, got {args.steps} for {args.lengths}"
        )
    devices = max(CONTEXTS) if args.picture else args.context
    if wrong := [length for length in args.lengths if length < 512 or length % devices]:
        parser.error(
            f"--lengths {wrong[0]} must be a multiple of the {devices} devices, at least 512"
        )
    return args


def document(size: int, filler: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Returns a document whose last sixteenth repeats the first, and the bytes to predict: -100
    where none are."""
    key = torch.randint(256, (max(8, size // 16),), generator=generator)
    start = torch.randint(len(filler), (), generator=generator)
    between = filler[(start + torch.arange(size - 2 * len(key))) % len(filler)].long()
    labels = torch.full((size,), -100)
    labels[size - len(key) + RECENT - 1 : -1] = key[RECENT:]
    return {"input_ids": torch.cat([key, between, key]), "labels": labels}


def rows(length: int, filler: Tensor, *, seed: int) -> Iterator[dict[str, Tensor]]:
    """Yields packed rows for ever, [1, length] each: `input_ids`, `sequence_ids` and `labels`."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        shorter = 1 - 0.02 * torch.rand(len(SHARES), generator=generator)
        sizes = [
            int(length // share * factor)
            for share, factor in zip(SHARES, shorter.tolist(), strict=True)
        ]
        sizes.append(length - sum(sizes))
        order = torch.randperm(len(sizes), generator=generator).tolist()
        documents = [document(sizes[index], filler, generator) for index in order]
        for row in spmd.data.PackedDocuments(documents, length):
            yield {name: row[name][None] for name in ("input_ids", "sequence_ids", "labels")}


class Copier(nn.Module):
    """Logits of the next bytes, [1, length, 256], by one layer of attention.

    A query is of a byte and the two before it, a key of the three bytes before its own. Both have
    the same weights, as in Reformer (arXiv:2001.04451): where three bytes are repeated, the key of
    the byte that followed them matches. A document's first queries and keys are of bytes of the
    document before as well; no query meets another's keys.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.recent = nn.Linear(RECENT * width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.sharpness = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor, ids: Tensor) -> Tensor:
        x = self.embed(tokens)
        recent = self.recent(torch.cat([later(x, by) for by in range(RECENT)], dim=-1))
        query = F.rms_norm(recent, recent.shape[-1:])
        at = torch.arange(tokens.shape[1], device=tokens.device)
        # Computed from ids and positions, so that no device ever has length x length of it.
        inside = (ids[:, None, :, None] == ids[:, None, None, :]) & (at[:, None] >= at)
        heads = (self.sharpness * query, later(query, 1), self.value(x))
        query, key, value = (part[:, None] for part in heads)
        copied: Tensor = self.head(
            F.scaled_dot_product_attention(query, key, value, attn_mask=inside)[:, 0]
        )
        return copied


def later(x: Tensor, by: int) -> Tensor:
    """Returns x [1, length, width] with each row moved `by` rows on; zeros come first."""
    # In one op: between a pad and a slice would be length + by rows, which devices do not divide,
    # and are gathered.
    return F.pad(x, (0, 0, by, -by))


class Run:
    """A model and its optimizer on a mesh of one axis."""

    def __init__(self, context: int, args: argparse.Namespace) -> None:
        self.mesh = spmd.Mesh(range(context), (context,), ("context",))
        torch.manual_seed(args.seed)
        with torch.device("xla"):
            self.model = Copier(args.width)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0
        )

    def put(self, row: dict[str, Tensor]) -> list[Tensor]:
        """Shards a row over the devices."""
        return [
            spmd.mark_sharding(tensor.to("xla"), self.mesh, P(None, "context"))
            for tensor in row.values()
        ]

    def step(self, tokens: Tensor, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Runs one step, written as for one device; returns the loss and the share of copied bytes
        that are right."""
        logits = self.model(tokens, ids)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach(), (logits.argmax(-1) == labels).sum() / (labels >= 0).sum()

    @torch.no_grad()
    def accuracy(self, row: dict[str, Tensor]) -> tuple[float, float]:
        """Returns the share of copied bytes that are right: of all documents, and of the
        longest."""
        tokens, ids, _ = self.put(row)
        right, labels = self.model(tokens, ids).argmax(-1).cpu() == row["labels"], row["labels"]
        is_longest = row["sequence_ids"] == row["sequence_ids"].flatten().bincount().argmax()
        return right[labels >= 0].float().mean().item(), right[
            (labels >= 0) & is_longest
        ].float().mean().item()


def train(run: Run, args: argparse.Namespace, console: Console) -> list[float]:
    """Runs the steps of each length; returns all losses."""
    spmd.config.replay_steps = True
    corpus, losses = text.load(), []
    heldout = next(rows(args.lengths[-1], corpus.heldout, seed=args.seed + 1))
    longest = int(heldout["sequence_ids"].flatten().bincount().max())

    def look() -> None:
        everywhere, far = run.accuracy(heldout)
        console.print(
            f"held-out row of {args.lengths[-1]:,}: [bold]{everywhere:.3f}[/bold] of all copied "
            f"bytes right, [bold]{far:.3f}[/bold] across {longest - longest // 16:,} bytes",
            highlight=False,
        )

    look()
    for length, steps in zip(args.lengths, args.steps, strict=True):
        source, counted, clock = rows(length, corpus.train, seed=args.seed), 0, time.perf_counter()
        for step in range(1, steps + 1):
            loss, right = run.step(*run.put(next(source)))
            spmd.sync()
            losses.append(loss)
            if step % max(1, steps // 5) == 0 or step == steps:
                line = f"loss {loss.item():.4f}   copied {right.item():.3f}"
                rate = (step - counted) * length / (time.perf_counter() - clock)
                counted, clock = step, time.perf_counter()
                compiles = f"{spmd.metrics.num_compiles()} compiles"
                console.print(
                    f"length {length:6d}   step {step:3d}   {line}   {rate:,.0f} tokens/s   "
                    f"{compiles}"
                )
        look()
    return [loss.item() for loss in losses]


def peaks(args: argparse.Namespace) -> dict[int, list[int]]:
    """Returns by context the bytes of a device in a step of each length, as the compiler plans
    them."""
    planned = {}
    for context in CONTEXTS:
        run = Run(context, args)
        blank = (torch.zeros(1, length, dtype=torch.long) for length in args.lengths)
        batches = (
            run.put(dict.fromkeys(("input_ids", "sequence_ids", "labels"), tokens))
            for tokens in blank
        )
        planned[context] = [spmd.plan(run.step, *batch).peak for batch in batches]
    return planned


def draw(planned: dict[int, list[int]], args: argparse.Namespace) -> None:
    """Draws the bytes of a device against the length, a line for each context."""
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for context, sizes in planned.items():
        axes.loglog(args.lengths, [size / MIB for size in sizes], "o-", label=f"context {context}")
    axes.set_xticks(args.lengths, [f"{length:,}" for length in args.lengths])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
    axes.set(xlabel="bytes in a row", ylabel="memory per device (MiB)")
    axes.set_title(
        f"Memory of a training step, by the devices that share a row (exchange: {args.exchange})"
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(args.picture, dpi=150)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    started, console = time.perf_counter(), training.make_console()
    spmd.simulate(max(CONTEXTS) if args.picture else args.context)
    spmd.config.parallel = args.exchange
    if not args.picture:
        train(Run(args.context, args), args, console)
        programs = f"{spmd.metrics.num_compiles()} compiles, {spmd.metrics.num_loaded()} from disk"
        console.print(f"{programs}, {time.perf_counter() - started:.0f} s", highlight=False)
        return
    planned = peaks(args)
    table = Table(title="MiB per device in a training step")
    for heading in ("length", *(f"context {context}" for context in planned)):
        table.add_column(heading, justify="right")
    for length, *sizes in zip(args.lengths, *planned.values(), strict=True):
        table.add_row(f"{length:,}", *(f"{size / MIB:.1f}" for size in sizes))
    console.print(table)
    draw(planned, args)
    console.print(args.picture, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
