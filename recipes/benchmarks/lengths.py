"""Compare programs whose lengths are operands with a program for each length: programs, seconds,
warm ratios.

    python recipes/benchmarks/lengths.py  # all three, 20 lengths each, 9 pairs of warm rounds
    python recipes/benchmarks/lengths.py --only generate --pairs 3

A transformer's block of nanoGPT's form fills a cache that it slices, Llama of `transformers`
generates with its default cache, which `torch.cat` extends, and a transformer trains on batches of
many lengths, the dim named by `spmd.mark_dynamic`. Each runs in two processes, one with
`config.pad_lengths` and one without, which run alternately. "first" is a round over all lengths in
a new process, compiles included; warm rounds compile nothing, and their ratio is the median of
pairs. Benchmarks report; nothing here asserts a time.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import spmd  # before torch's users, so that its log settings hold

import torch  # isort: skip
import torch.nn.functional as F  # isort: skip
from rich.console import Console  # isort: skip
from rich.table import Table  # isort: skip
from torch import Tensor, nn  # isort: skip
from transformers import LlamaConfig, LlamaForCausalLM  # isort: skip

WIDTH = 64

# A round: one run at each of the lengths.
Round = Callable[[], None]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, default=20, help="lengths of a round (default 20)")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--only", choices=ROUNDS)
    # run a round for each line of stdin
    parser.add_argument("--serve", choices=ROUNDS, help=argparse.SUPPRESS)
    # a program for each length
    parser.add_argument("--exact", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


class Block(nn.Module):
    """Attention of a new token over a cache of all tokens before it, as nanoGPT's with a cache."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("keys", torch.zeros(2, size, WIDTH))
        self.register_buffer("values", torch.zeros(2, size, WIDTH))

    def forward(self, x: Tensor, start: int) -> Tensor:
        end = start + x.shape[1]
        query, self.keys[:, start:end], self.values[:, start:end] = self.qkv(x).chunk(3, dim=-1)
        scores = query @ self.keys[:, :end].transpose(-2, -1) * WIDTH**-0.5
        return x + self.out(scores.softmax(-1) @ self.values[:, :end])


def sliced(lengths: int) -> Round:
    """Fills the cache token by token and reads each."""
    blocks = nn.Sequential(*(Block(lengths + 8) for _ in range(4))).to("xla")
    tokens = torch.randn(lengths, 2, 1, WIDTH)

    def run() -> None:
        with torch.no_grad():
            for start, token in enumerate(tokens):
                x = token.to("xla")
                for block in blocks:
                    x = block(x, start)
                x.cpu()

    return run


def generate(lengths: int) -> Round:
    """Generates so many tokens after a prompt."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    model = LlamaForCausalLM(config).eval().to("xla")
    prompt = torch.randint(3, 256, (2, 8)).to("xla")
    mask = torch.ones_like(prompt)

    def run() -> None:
        model.generate(
            prompt,
            attention_mask=mask,
            max_new_tokens=lengths,
            min_new_tokens=lengths,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=2,
        ).cpu()

    return run


class Encoder(nn.Module):
    """A causal transformer that predicts the next word."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.embedding, self.out = nn.Embedding(100, WIDTH), nn.Linear(WIDTH, 100)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], device=words.device)
        return self.out(self.layers(self.embedding(words), mask=mask, is_causal=True))


def marked(lengths: int) -> Round:
    """Trains on a batch of each length; the dim is marked where lengths are operands."""
    model = Encoder().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.randint(100, (4, n)) for n in range(20, 20 + lengths)]

    def run() -> None:
        for batch in batches:
            words = batch.to("xla")
            if spmd.config.pad_lengths:
                spmd.mark_dynamic(words, 1)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(words)[:, :-1].flatten(0, 1), words[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            loss.item()

    return run


ROUNDS: dict[str, Callable[[int], Round]] = {
    "sliced": sliced,
    "generate": generate,
    "marked": marked,
}


def serve(name: str, lengths: int, *, exact: bool) -> None:
    """Runs a round for each line of stdin; prints its seconds and the number of programs that it
    compiled."""
    spmd.config.program_cache = False  # compiles are counted and timed
    spmd.config.pad_lengths = not exact
    torch.manual_seed(0)
    run = ROUNDS[name](lengths)
    for _ in sys.stdin:
        start, before = perf_counter(), spmd.metrics.num_compiles()
        run()
        print(perf_counter() - start, spmd.metrics.num_compiles() - before, flush=True)


class Child:
    """A process that runs rounds."""

    def __init__(self, name: str, lengths: int, *, exact: bool) -> None:
        command = [sys.executable, __file__, "--serve", name, "--lengths", str(lengths)]
        self.process = subprocess.Popen(
            [*command, *(["--exact"] if exact else [])],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def round(self) -> tuple[float, int]:
        """Runs one round; returns its seconds and the number of programs that it compiled."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"{' '.join(map(str, self.process.args))} ended with {self.process.wait()}"
            )
        seconds, programs = line.split()
        return float(seconds), int(programs)

    def end(self) -> None:
        self.process.communicate()


def row(name: str, lengths: int, pairs: int) -> list[str]:
    """Returns the figures of one kind: padded lengths and exact ones."""
    children = [Child(name, lengths, exact=exact) for exact in (False, True)]
    firsts = [child.round() for child in children]
    more = [child.round() for child in children]  # the second round may still compile
    seconds = [
        [child.round()[0] for child in (children if pair % 2 else children[::-1])]
        for pair in range(pairs)
    ]
    seconds = [both if pair % 2 else both[::-1] for pair, both in enumerate(seconds)]
    for child in children:
        child.end()
    padded, exact = (median(column) / lengths * 1e3 for column in zip(*seconds, strict=True))
    return [
        name,
        *(f"{first[1]} + {second[1]}" for first, second in zip(firsts, more, strict=True)),
        f"{firsts[0][0] / firsts[1][0]:.2f}",
        f"{padded:.1f}",
        f"{exact:.1f}",
        f"{median(one / other for one, other in seconds):.2f}",
    ]


def main() -> None:
    args = parse()
    if args.serve:
        serve(args.serve, args.lengths, exact=args.exact)
        return
    table = Table(
        f"{args.lengths} lengths",
        "programs",
        "one a length",
        "first, ratio",
        "warm, ms each",
        "one a length",
        "warm, ratio",
    )
    for name in [args.only] if args.only else ROUNDS:
        table.add_row(*row(name, args.lengths, args.pairs))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
