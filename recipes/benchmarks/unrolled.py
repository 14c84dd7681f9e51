"""Time the first step of long programs without a loop, and the steps of programs whose shape
changes with the data.

    python recipes/benchmarks/unrolled.py  # every case, one device, each in a process of its own
    python recipes/benchmarks/unrolled.py --case decoder --size 8 --report

`first` is the processor's time for the first step (record, compile, run), `later` that of all later
steps together, `CPU` torch's own step on the CPU; `digest` is a hash of the losses. Each case is a
training step, or an inference, of a program that PyTorch users write: the images of a batch one by
one, a selective scan op by op, layers that are dropped at random, images of many sizes.
"""

import argparse
import hashlib
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import spmd  # before torch's users, so that its log settings hold

import torch  # isort: skip
from torch import nn  # isort: skip
from torch.nn import functional as F  # isort: skip

Step = Callable[[int], torch.Tensor]
Case = Callable[[str, int], Step]


class Attention(nn.Module):
    """Attention with a projection for each of its inputs."""

    def __init__(self, width: int, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        def split(x: torch.Tensor) -> torch.Tensor:
            return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

        q, k, v = split(self.q(q)), split(self.k(k)), split(self.v(v))
        weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class TwoWay(nn.Module):
    """A block of a mask decoder: tokens attend to themselves and to the image, the image to the
    tokens."""

    def __init__(self, width: int):
        super().__init__()
        self.own, self.to_image, self.to_tokens = (Attention(width) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(
        self, tokens: torch.Tensor, image: torch.Tensor, points: torch.Tensor, place: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        q = tokens + points
        tokens = self.norms[0](tokens + self.own(q, q, tokens))
        tokens = self.norms[1](tokens + self.to_image(tokens + points, image + place, image))
        tokens = self.norms[2](tokens + self.mlp(tokens))
        image = self.norms[3](image + self.to_tokens(image + place, tokens + points, tokens))
        return tokens, image


class Decoder(nn.Module):
    """A mask decoder: from an image and points on it to several masks, each with its quality."""

    def __init__(self, width: int = 32, masks: int = 3):
        super().__init__()
        self.masks = masks
        self.tokens = nn.Embedding(masks + 1, width)
        self.blocks = nn.ModuleList(TwoWay(width) for _ in range(2))
        self.final = Attention(width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.ModuleList(
            (nn.ConvTranspose2d(width, 8, 2, 2), nn.ConvTranspose2d(8, 4, 2, 2))
        )
        self.hyper = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))
            for _ in range(masks)
        )
        self.quality = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, masks))

    def forward(
        self, image: torch.Tensor, points: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        size = image.shape[-1]
        grid = torch.arange(size, device=image.device) / size
        place = torch.stack(torch.meshgrid(grid, grid, indexing="ij")).flatten(1).T
        place = torch.cat((place.sin(), place.cos()), -1).repeat(1, image.shape[1] // 4)[None]
        flat = image.flatten(2).transpose(1, 2)
        tokens = torch.cat((self.tokens.weight[None].expand(len(points), -1, -1), points), 1)
        start = tokens
        for block in self.blocks:
            tokens, flat = block(tokens, flat, start, place)
        tokens = self.norm(tokens + self.final(tokens + start, flat + place, flat))
        flat = flat.transpose(1, 2).view(len(points), -1, size, size)
        for up in self.up:
            flat = F.gelu(up(flat))
        weights = torch.stack([hyper(tokens[:, i + 1]) for i, hyper in enumerate(self.hyper)], 1)
        return (weights @ flat.flatten(2)).unflatten(-1, flat.shape[-2:]), self.quality(
            tokens[:, 0]
        )


def decoder(device: str, size: int) -> Step:
    """A training step over the images of a batch one by one; the best mask of each is read."""
    model = Decoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(number: int) -> torch.Tensor:
        images, points = (
            draw(number, size, 32, 8, 8).to(device),
            draw(number + 1, size, 2, 32).to(device),
        )
        targets = draw(number + 2, size, 32, 32).sigmoid().to(device)
        losses = []
        for i in range(size):
            masks, quality = model(images[i : i + 1], points[i : i + 1])
            best = int(quality[0].argmax())
            losses.append(
                F.binary_cross_entropy_with_logits(masks[0, best], targets[i])
                + quality.square().mean()
            )
        loss = torch.stack(losses).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


class Mamba(nn.Module):
    """A layer with a selective scan as in its reference: token by token."""

    def __init__(self, width: int = 16, states: int = 8):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.conv = nn.Conv1d(2 * width, 2 * width, 4, groups=2 * width, padding=3)
        self.select = nn.Linear(2 * width, 1 + 2 * states)
        self.rate = nn.Linear(1, 2 * width)
        self.decay = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(2 * width, 1))
        self.skip = nn.Parameter(torch.ones(2 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, gate = self.into(self.norm(x)).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        rate, into, out = self.select(u).split((1, self.decay.shape[1], self.decay.shape[1]), -1)
        rate = F.softplus(self.rate(rate))
        state = u.new_zeros(len(x), *self.decay.shape)
        made = []
        for t in range(x.shape[1]):
            kept = torch.exp(-rate[:, t, :, None] * self.decay.exp())
            state = kept * state + (rate[:, t] * u[:, t])[..., None] * into[:, t, None]
            made.append((state * out[:, t, None]).sum(-1))
        return x + self.out((torch.stack(made, 1) + self.skip * u) * F.silu(gate))


def scan(device: str, size: int) -> Step:
    """A training step of two layers with a selective scan over so many tokens, op by op."""
    model = nn.Sequential(*(Mamba() for _ in range(2))).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(number: int) -> torch.Tensor:
        loss = model(draw(number, 2, size, 16).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def tower(device: str, size: int) -> Step:
    """A training step of about `size` ops in layers that all differ, without a loop or a read."""
    kinds: list[Callable[[torch.Tensor], torch.Tensor]] = [
        torch.tanh,
        torch.sigmoid,
        F.gelu,
        F.silu,
        F.softplus,
    ]
    order = random.Random(0)
    model = nn.ModuleList(nn.Linear(16, 16) for _ in range(size // 20)).to(device)
    functions = [order.choice(kinds) for _ in model]
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(number: int) -> torch.Tensor:
        x = draw(number, 8, 16).to(device)
        for layer, function in zip(model, functions, strict=True):
            x = x + function(layer(x))
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def plain(device: str, size: int) -> Step:
    """`size` ops without gradients, in an order that never repeats."""
    kinds: list[Callable[[torch.Tensor], torch.Tensor]] = [
        torch.tanh,
        torch.sin,
        torch.sigmoid,
        torch.abs,
        torch.neg,
    ]
    order = random.Random(0)
    functions = [order.choice(kinds) for _ in range(size)]

    def step(number: int) -> torch.Tensor:
        x = draw(number, 8, 16).to(device)
        for function in functions:
            x = function(x)
        return x.sum()

    return step


def branches(device: str, size: int) -> Step:
    """`size` layers, each chosen by the values of the ones before."""
    model = nn.ModuleList(nn.Linear(16, 16) for _ in range(4)).to(device)

    def step(number: int) -> torch.Tensor:
        x = draw(number, 4, 16).to(device)
        total = x.sum()
        for _ in range(size):
            x = model[0 if x.sum() > 0 else 1](x).tanh() + model[2 if x[0, 0] > 0 else 3](x).sin()
            total = total + x.sum()
        total.backward()
        made = model[0].weight.grad if model[0].weight.grad is not None else model[1].weight.grad
        for one in model.parameters():
            one.grad = None
        assert made is not None
        return total + made.sum()

    return step


def depth(device: str, size: int) -> Step:
    """A training step of residual layers, each of which is dropped at random."""
    model = nn.ModuleList(
        nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        for _ in range(size)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(number: int) -> torch.Tensor:
        order, x = random.Random(number), draw(number, 8, 16).to(device)
        for layer in model:
            if order.random() < 0.8:
                x = x + layer(x)
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def sizes(device: str, size: int) -> Step:
    """A training step of a small convolutional network on images of another size each time."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(number: int) -> torch.Tensor:
        order = random.Random(number)
        x = draw(number, 2, 3, order.randint(size, 2 * size), order.randint(size, 2 * size)).to(
            device
        )
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


# Each case with its size and the number of its steps.
CASES: dict[str, tuple[Case, int, int]] = {
    "decoder": (decoder, 8, 4),
    "scan": (scan, 32, 2),
    "tower": (tower, 5_000, 2),
    "plain": (plain, 20_000, 2),
    "branches": (branches, 50, 4),
    "depth": (depth, 12, 8),
    "sizes": (sizes, 12, 8),
}


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def timed(case: Case, device: str, size: int, steps: int) -> Iterator[tuple[float, float]]:
    """Yields (seconds, loss) of each step."""
    torch.manual_seed(0)
    step = case(device, size)
    for number in range(steps):
        started = process_time()
        loss = step(number).item()
        if device == "xla":
            spmd.sync(wait=True)
        yield process_time() - started, loss


def run(name: str, size: int, steps: int) -> None:
    """Prints the row of one case."""
    case = CASES[name][0]
    cpu = list(timed(case, "cpu", size, steps))
    recorded = spmd.metrics.num_compiles()
    first = next(rows := timed(case, "xla", size, steps))
    programs = spmd.metrics.num_compiles()
    made = [first, *rows]
    later = sum(each for each, _ in made[1:])
    worst = max(abs(a - b) / max(1.0, abs(b)) for (_, a), (_, b) in zip(made, cpu, strict=True))
    digest = hashlib.sha256(repr([loss for _, loss in made]).encode()).hexdigest()[:8]
    print(
        f"{name:9} {size:6}  first {first[0]:6.1f} s in {programs - recorded} programs (CPU "
        f"{cpu[0][0]:.2f}); later {later:6.1f} s in {spmd.metrics.num_compiles() - programs} "
        f"programs, {later / first[0]:.1f} times the first, the last {made[-1][0]:.2f} s (CPU "
        f"{cpu[-1][0]:.2f}); off by {worst:.0e}; digest {digest}; "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--size", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--report", action="store_true", help="print the compile log, too")
    args = parser.parse_args()
    if args.case:
        _, size, steps = CASES[args.case]
        run(args.case, args.size or size, args.steps or steps)
        if args.report:
            print(spmd.metrics.report())
        return
    for name in CASES:
        command: list[Any] = [sys.executable, __file__, "--case", name]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
