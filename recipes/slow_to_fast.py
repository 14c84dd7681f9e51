"""A slow attention model, taken from slow to fast with `spmd.profiler` alone (docs/profiling.md):

python recipes/slow_to_fast.py                         # every version: step, tokens/s, what took
                                                       # the rest
python recipes/slow_to_fast.py --version slow --hints  # the lines that cost
python recipes/slow_to_fast.py --version fast --trace folder
python recipes/slow_to_fast.py --picture slow_to_fast.png
"""

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import spmd

VOCABULARY, CLASSES = 1_000, 8
BUCKET = 32


@dataclass(frozen=True)
class Version:
    """One version of the script. falls_back: the distances come from an op without a rule. reads: a
    layer looks at its scores, and each step at its loss, on the host. pads: sentences are padded to
    a few lengths."""

    name: str
    falls_back: bool = False
    reads: bool = False
    pads: bool = True


VERSIONS = {
    version.name: version
    for version in (
        Version("slow", falls_back=True, reads=True, pads=False),
        Version("no fallback", reads=True, pads=False),
        Version("no reads", pads=False),
        Version("fast"),
    )
}

_library = torch.library.Library("recipe", "DEF")
_library.define("distances(Tensor positions, int most) -> Tensor")


def distances(positions: Tensor, most: int) -> Tensor:
    """Returns the distance of each pair of positions, cut at `most`: [length] -> [length,
    length]."""
    return (positions[:, None] - positions[None, :]).clamp(-most, most) + most


# An op as a package of C++ kernels brings it: the device has no rule for it.
_library.impl("distances", distances, "CPU")


class Attention(nn.Module):
    """Self-attention with a bias for each distance."""

    def __init__(self, width: int, heads: int, version: Version, most: int = 16) -> None:
        super().__init__()
        self.heads, self.most, self.version = heads, most, version
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Embedding(2 * most + 1, heads)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Returns the attended values: [batch, length, width] and the mask [batch, length] of real
        tokens."""
        batch, length, width = x.shape
        query, key, value = (
            self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        positions = torch.arange(length, device=x.device)
        op = torch.ops.recipe.distances if self.version.falls_back else distances
        bias = self.bias(op(positions, self.most)).permute(2, 0, 1)
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 + bias
        if self.version.reads:
            if scores.abs().max().item() > 30:  # a guard against overflow, as scripts have them
                scores = scores.clamp(-30, 30)
        else:
            scores = scores.clamp(-30, 30)
        scores = scores.masked_fill(~mask[:, None, None], -1e9)
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm."""

    def __init__(self, width: int, heads: int, version: Version) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, heads, version)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Returns the block's output."""
        x = x + self.attention(self.norm(x), mask)
        return x + self.mlp(x)


class Classifier(nn.Module):
    """The class of a sentence."""

    def __init__(self, width: int, layers: int, version: Version) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, width // 32, version) for _ in range(layers))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the scores of the classes: [batch, length] -> [batch, classes]; token 0 is
        padding."""
        mask = tokens != 0
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, mask)
        weights = mask[..., None].to(x.dtype)
        return self.head((x * weights).sum(1) / weights.sum(1))


def batches(version: Version, number: int, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields batches of sentences as long as the longest of them, or padded to a multiple of
    `BUCKET`."""
    lengths, draws = random.Random(0), torch.Generator().manual_seed(0)
    for _ in range(number):
        longest = lengths.randint(33, 96)
        tokens = torch.randint(1, VOCABULARY, (rows, longest), generator=draws)
        room = -longest % BUCKET if version.pads else 0
        yield functional.pad(tokens, (0, room)), tokens[:, 0] % CLASSES


def step_of(version: Version, width: int, layers: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns a version's training step, from a new model."""
    torch.manual_seed(0)
    model = Classifier(width, layers, version).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = functional.cross_entropy(model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def train(version: Version, given: argparse.Namespace) -> dict[str, float]:
    """Trains a version for some steps; returns the milliseconds of a step by what took them."""
    step = step_of(version, given.width, given.layers)
    meter = spmd.profiler.StepMeter(items_per_step=given.rows * 64.5, unit="tokens")
    loss, losses = torch.zeros(()), []
    for number, (tokens, targets) in enumerate(
        meter.batches(batches(version, given.steps, given.rows))
    ):
        with meter.step(), spmd.profiler.StepTrace("train", step_num=number):
            loss = step(tokens.to("xla"), targets.to("xla"))
            if version.reads:
                losses.append(loss.item())
            spmd.sync()
    with meter.spent("devices"):  # that are not done yet
        spmd.sync(wait=True)
    print(f"{version.name}: loss {loss.item():.4f} | {meter}")
    return {kind: 1e3 * seconds / meter.num_steps for kind, seconds in meter.seconds.items()}


def draw(measured: dict[str, dict[str, float]], path: Path) -> None:
    """Draws the time of a step of each version, by what took it."""
    figure, axes = plt.subplots(figsize=(8, 2.8), layout="constrained")
    before = [0.0] * len(measured)
    for kind in ("step", "devices", "compile"):
        times = [one.get(kind, 0.0) for one in measured.values()]
        axes.barh([*measured], times, left=before, label=kind)
        before = [start + time for start, time in zip(before, times, strict=True)]
    for place, total in enumerate(before):
        axes.text(total, place, f" {total:,.1f} ms", va="center")
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(before))
    axes.set_xlabel("milliseconds a step")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def in_a_process(name: str, arguments: list[str]) -> dict[str, float]:
    """Trains a version in a process of its own, which has the programs of no other; returns what
    `train` does."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "times.json"
        command = [sys.executable, __file__, *arguments, "--version", name, "--into", str(into)]
        subprocess.run(command, check=True)
        return dict(json.loads(into.read_text()))


def main() -> None:
    """Trains each version in a process of its own, or one of them here."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", choices=VERSIONS, help="one version alone")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument(
        "--hints", action="store_true", help="print the lines that cost time again and again"
    )
    parser.add_argument(
        "--trace", type=Path, help="trace a version's steps into a folder, and print the table"
    )
    parser.add_argument("--picture", type=Path, help="draw the time of a step of each version")
    # a version's figures, for the picture
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    spmd.config.fallback = "cpu"
    # so that the second run of this script measures what the first did
    spmd.config.program_cache = False
    if given.version is None:
        if given.trace is not None or given.hints:
            parser.error("--trace and --hints: choose a --version")
        measured = {name: in_a_process(name, sys.argv[1:]) for name in VERSIONS}
        if given.picture is not None:
            draw(measured, given.picture)
        return
    with contextlib.nullcontext() if given.trace is None else spmd.profiler.trace(given.trace):
        times = train(VERSIONS[given.version], given)
    if given.trace is not None:
        print(spmd.profiler.summary(given.trace))
    if given.hints:
        print(*spmd.profiler.hints(), sep="\n")
    if given.into is not None:
        given.into.write_text(json.dumps(times))


if __name__ == "__main__":
    main()
