"""Random programs over dims that a mesh does not divide: one to four ops, half with a mark inside,
against the CPU.

    python tests/uneven.py --count 10000 --partitioner shardy --seed 0

A seed and a partitioner name a program. Those of a batch share a sync, so that one compilation
serves them all. Data is computed from shards, so that what XLA pads with is NaN, 1 or 0 behind the
last element.
"""

import argparse
import math
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import torch
from torch import Tensor
from torch.nn import functional as F

import spmd

BATCH = 24  # programs that share a sync
SIZES = (3, 5, 6, 7, 10, 13)
MESHES = (
    ((2, 4), ("a", "b")),
    ((2, 4), ("a", "b")),
    ((4, 2), ("a", "b")),
    ((2, 2, 2), ("a", "b", "c")),
    ((2, 2, 2), ("a", "b", "c")),
    ((8,), ("a",)),
)


class Draw:
    """The draws of a program, the same on both devices. places: the lines that make its data, for a
    report."""

    def __init__(self, seed: int, device: str):
        self.random = random.Random(seed)
        self.numbers = torch.Generator().manual_seed(seed)
        self.device = device
        self.shape, self.axes = self.random.choice(MESHES)

    def spec(self, rank: int) -> tuple[object, ...]:
        """Each axis on some dim or none, rather one that stays alone."""
        entries: list[tuple[str, ...]] = [()] * rank
        for axis in self.random.sample(self.axes, len(self.axes)):
            dim = self.random.randrange(-2, rank)
            if dim >= 0:
                entries[dim] = (*entries[dim], axis)
        return tuple(entry or None for entry in entries)

    def marked(self, tensor: Tensor) -> Tensor:
        spec = self.spec(tensor.ndim)
        if self.device == "cpu":
            return tensor
        return spmd.mark_sharding(
            tensor, spmd.Mesh(range(math.prod(self.shape)), self.shape, self.axes), spec
        )

    def maybe_marked(self, tensor: Tensor) -> Tensor:
        return self.marked(tensor) if self.random.random() < 0.6 else tensor

    def floats(self, *shape: int) -> Tensor:
        """Normal numbers; their padding is NaN, 1 or 0."""
        kind, state = self.random.randrange(3), self.random.getstate()
        ones = self.marked(torch.ones(shape, dtype=torch.float64).to(self.device))
        self.random.setstate(state)
        data = torch.randn(shape, dtype=torch.float64, generator=self.numbers).to(self.device)
        data = self.marked(data).requires_grad_()
        return data / ones if kind == 0 else data + (1 - ones) if kind == 1 else data

    def index(self, high: int, *shape: int) -> Tensor:
        """Whole numbers from 0 to high - 1, sharded or not; their padding is 0, 1 or the
        largest."""
        kind, state = self.random.randrange(3), self.random.getstate()
        ones = self.marked(torch.ones(shape, dtype=torch.int64).to(self.device))
        self.random.setstate(state)
        data = torch.randint(high, shape, generator=self.numbers).to(self.device)
        return self.marked(data) + (1 - ones) * (0, 1, torch.iinfo(torch.int64).max)[kind]

    def arange(self, size: int) -> Tensor:
        return torch.arange(size, device=self.device)

    def size(self) -> int:
        return self.random.choice(SIZES)

    def weight(self, *shape: int) -> Tensor:
        return self.floats(*shape) / 4

    def stack(self, x: Tensor) -> Tensor:
        """Multiples of a matrix, (rows, n, m), marked or not."""
        return self.maybe_marked(x * self.weight(self.size(), 1, 1))

    def heads(self, x: Tensor) -> Tensor:
        """As `stack`, with a dim of heads, (rows, 2, n, m)."""
        return self.maybe_marked(self.stack(x)[:, None] * self.weight(1, 2, 1, 1))


Op = Callable[[Draw, Tensor], Tensor]  # from (n, m) to another matrix


def _bags(d: Draw, x: Tensor) -> Tensor:
    ids, starts = d.index(len(x), 7), torch.tensor([0, 2, 5], device=d.device)
    weights = d.floats(7) if (mode := d.random.choice(("sum", "mean", "max"))) == "sum" else None
    return F.embedding_bag(ids, x, starts, mode=mode, per_sample_weights=weights)


def _reduced(d: Draw, x: Tensor) -> Tensor:
    kind = d.random.choice(("amax", "amin", "sum", "mean", "prod"))
    return torch.ones_like(x[:5]).scatter_reduce(0, d.index(min(5, len(x)), *x.shape), x, kind)


def _attention(d: Draw, x: Tensor) -> Tensor:
    key, value = d.weight(d.size(), x.shape[1]), d.weight(1, x.shape[1])
    return F.scaled_dot_product_attention(
        x[None, None], key[None, None], (key + value)[None, None]
    )[0, 0]


def _recurrent(d: Draw, x: Tensor) -> Tensor:
    size = d.size()
    parts = d.weight(3 * size, x.shape[1]), d.weight(3 * size, size)
    return torch.gru(
        x[:, None],
        torch.zeros(1, 1, size, dtype=x.dtype, device=x.device),
        parts,
        False,
        1,
        0.0,
        False,
        False,
        False,
    )[0][:, 0]


def _picked(d: Draw, x: Tensor) -> Tensor:
    return x[d.arange(len(x)), d.index(x.shape[1], len(x))][:, None] * x


def _positive(x: Tensor) -> Tensor:
    return x @ x.T + torch.eye(len(x), dtype=x.dtype, device=x.device) * 9


def _conv2d(d: Draw, x: Tensor) -> Tensor:
    return F.conv2d(x[None, None], d.floats(3, 1, 3, 3) / 4, padding=1)[0].sum(0)


def _in_stack(call: Op) -> Op:
    """An op of a stack, whose result is marked or not before it becomes a matrix again."""

    def op(d: Draw, x: Tensor) -> Tensor:
        return d.maybe_marked(call(d, x)).flatten(0, -2)

    return op


def _losses(d: Draw, x: Tensor) -> Tensor:
    kind = d.random.choice(
        (
            F.cross_entropy,
            lambda a, b, **k: F.nll_loss(a.log_softmax(1), b, **k),
            F.multi_margin_loss,
        )
    )
    return kind(x, d.index(x.shape[1], len(x)), reduction="none")[:, None] + x


FAMILIES: dict[str, Sequence[Op]] = {
    "pointwise": [
        lambda d, x: x.exp(),
        lambda d, x: 1 / (x + 3),
        lambda d, x: (x + 9).log(),
        lambda d, x: x.sigmoid() * x,
        lambda d, x: torch.where(x > 0, x, x.exp()),
        lambda d, x: x.masked_fill(x > 1, 0.5),
        lambda d, x: F.gelu(x),
        lambda d, x: x + d.weight(1, x.shape[1]),
        lambda d, x: x * d.weight(len(x), 1),
    ],
    "reductions": [
        lambda d, x: x - x.mean(0, True),
        lambda d, x: x / (1 + x.abs().amax(1, True)),
        lambda d, x: x * x.prod(0, True),
        lambda d, x: x + x.std(0, keepdim=True),
        lambda d, x: x.logsumexp(1, True) * x,
        lambda d, x: x / x.norm(),
        lambda d, x: x.softmax(0),
        lambda d, x: x.log_softmax(1),
        lambda d, x: x - x.amin() + x.argmax(0),
        lambda d, x: x * (x > 0).sum(),
        lambda d, x: x.var(1, keepdim=True) + x,
        lambda d, x: x + x.median(0)[0],
    ],
    "products": [
        lambda d, x: x @ d.weight(x.shape[1], d.size()),
        lambda d, x: x.T @ x,
        lambda d, x: x @ x.T,
        lambda d, x: F.linear(x, d.weight(d.size(), x.shape[1]), d.weight(1, 1)[0]),
        _attention,
        lambda d, x: torch.einsum("nm,nk->mk", x, d.weight(len(x), d.size())),
        _recurrent,
        lambda d, x: torch.baddbmm(
            x[None], d.weight(len(x), 5)[None], d.weight(5, x.shape[1])[None]
        )[0],
        lambda d, x: torch.cdist(x, d.weight(d.size(), x.shape[1])),
        lambda d, x: torch.outer(x[0], x[:, 0]),
    ],
    "shapes": [
        lambda d, x: x.T,
        lambda d, x: torch.cat([x, x[:2]]),
        lambda d, x: torch.cat([x[:, 1:], x[:, :1]], 1),
        lambda d, x: x[1:],
        lambda d, x: x[:, :-1] if x.shape[1] > 2 else x,
        lambda d, x: F.pad(x, (1, 2, 0, 1)),
        lambda d, x: x.roll(2, 0),
        lambda d, x: x.flip(1),
        lambda d, x: x.tril(),
        lambda d, x: x[::2],
        lambda d, x: x.repeat(2, 1),
        lambda d, x: x.repeat_interleave(2, 1),
        lambda d, x: x.reshape(x.shape[1], -1),
        lambda d, x: torch.stack([x, x * 2], 1).flatten(0, 1),
        lambda d, x: x.diagonal()[:, None] * x[:1],
        lambda d, x: x.unfold(0, 2, 1).flatten(1),
        lambda d, x: x.reshape(-1)[None],
        lambda d, x: x.expand(2, -1, -1)[1],
        lambda d, x: torch.block_diag(x, x[:2, :2]),
        lambda d, x: F.pad(x[None], (1, 1), "reflect")[0],
    ],
    "reads": [
        _picked,
        lambda d, x: x.gather(0, d.index(len(x), *x.shape)),
        lambda d, x: x.gather(1, d.index(x.shape[1], *x.shape)),
        lambda d, x: x.index_select(0, d.index(len(x), d.size())),
        lambda d, x: x[:, d.index(x.shape[1], d.size())],
        lambda d, x: x.take(d.index(x.numel(), 5, d.size())),
        lambda d, x: F.embedding(d.index(len(x), d.size()), x),
        lambda d, x: x.take_along_dim(d.index(len(x), 1, x.shape[1]), 0) + x,
        _bags,
        lambda d, x: F.embedding(d.index(len(x), d.size()), x, scale_grad_by_freq=True),
        lambda d, x: x[d.index(len(x), 5, 1), d.index(x.shape[1], 1, d.size())],
        lambda d, x: F.grid_sample(
            x[None, None], d.floats(1, 5, d.size(), 2).tanh(), align_corners=False
        )[0, 0],
    ],
    "writes": [
        lambda d, x: torch.zeros_like(x[:1]).expand(9, -1).index_add(0, d.index(9, len(x)), x),
        _reduced,
        lambda d, x: torch.zeros_like(x).scatter_add(0, d.index(len(x), *x.shape), x),
        lambda d, x: torch.zeros_like(x).scatter_add(1, d.index(x.shape[1], *x.shape), x),
        lambda d, x: x.index_put(
            (d.index(len(x), 5), d.index(x.shape[1], 5)), d.floats(5), accumulate=True
        ),
        lambda d, x: torch.ones_like(x).index_put((d.arange(len(x)),), 1 / (x.cosh())),
        lambda d, x: x.clone().fill_(2) * x,
        lambda d, x: x.index_copy(0, d.arange(3), d.floats(3, x.shape[1])),
        lambda d, x: x.slice_scatter(x[:2] * 2, 0, 0, 2),
        lambda d, x: x.masked_scatter(x > 0, d.floats(*x.shape)),
        lambda d, x: x.select_scatter(x[0] + 1, 0, 2),
        lambda d, x: torch.bincount(d.index(6, len(x)), minlength=6)[None] * x[:, :1],
        lambda d, x: x.index_reduce(0, d.index(len(x), 5), d.floats(5, x.shape[1]), "amax"),
    ],
    "orders": [
        lambda d, x: x.sort(0)[0],
        lambda d, x: x.sort(1, descending=True)[0],
        lambda d, x: x.topk(2, 0)[0],
        lambda d, x: x.kthvalue(2, 1, keepdim=True)[0] * x,
        lambda d, x: x.argsort(0) * x,
        lambda d, x: x.cummax(0)[0],
        lambda d, x: x.cummin(1)[0],
        lambda d, x: x.cumsum(0),
        lambda d, x: x.cumsum(1),
        lambda d, x: x.cumprod(0),
        lambda d, x: x.logcumsumexp(0),
        lambda d, x: x.quantile(0.3, 0)[None] + x,
        lambda d, x: x.diff(dim=0) * 2,
        lambda d, x: torch.searchsorted(x.detach().sort(1)[0], d.floats(len(x), 5)) + x[:, :1],
    ],
    "windows": [
        lambda d, x: F.conv1d(x[None], d.floats(5, len(x), 3) / 4, padding=1)[0],
        _conv2d,
        lambda d, x: F.conv_transpose1d(x[None], d.floats(len(x), 5, 2) / 4)[0],
        lambda d, x: F.max_pool1d(x[None], 2)[0],
        lambda d, x: F.avg_pool1d(x[None], 2, 1)[0],
        lambda d, x: F.adaptive_avg_pool1d(x[None], 3)[0],
        lambda d, x: F.adaptive_max_pool1d(x[None], 2)[0],
        lambda d, x: F.max_pool2d(x[None, None], 2, 1)[0, 0],
        lambda d, x: F.interpolate(x[None], scale_factor=2, mode="linear")[0],
        lambda d, x: F.unfold(x[None, None], (2, 2))[0],
        lambda d, x: F.interpolate(x[None], scale_factor=2)[0],
        lambda d, x: F.avg_pool2d(x[None, None], 2)[0, 0],
    ],
    "norms": [
        lambda d, x: F.layer_norm(x, x.shape[1:]),
        lambda d, x: F.batch_norm(x, None, None, training=True),
        lambda d, x: F.rms_norm(x, x.shape[1:]),
        lambda d, x: F.group_norm(x[None], 1)[0],
        _losses,
        lambda d, x: torch.fft.rfft(x, dim=0).abs() + 0.1,
        lambda d, x: torch.linalg.qr(_positive(x))[1],
        lambda d, x: F.mse_loss(x, d.floats(*x.shape), reduction="none"),
        lambda d, x: F.normalize(x, dim=0),
        lambda d, x: torch.linalg.inv(_positive(x)),
    ],
}
# Of stacks of matrices.
_STACKED: dict[str, Sequence[Op]] = {
    "batched products": [
        lambda d, x: (s := d.stack(x)) @ s.mT,
        lambda d, x: (s := d.stack(x)).mT @ s,
        lambda d, x: (s := d.stack(x)) @ d.weight(len(s), s.shape[2], d.size()),
        lambda d, x: d.stack(x) @ d.weight(x.shape[1], d.size()),
        lambda d, x: torch.einsum(
            "bnm,bkm->bkn", s := d.stack(x), d.weight(len(s), d.size(), s.shape[2])
        ),
        lambda d, x: torch.einsum(
            "bnm,bnk->mbk", s := d.stack(x), d.weight(*s.shape[:2], d.size())
        ),
        lambda d, x: torch.einsum(
            "bnm,ckm->bcnk", d.stack(x), d.weight(2, d.size(), x.shape[1])
        ).flatten(1, 2),
        lambda d, x: torch.baddbmm(
            s := d.stack(x), d.weight(*s.shape[:2], 5), d.weight(len(s), 5, s.shape[2])
        ),
        lambda d, x: F.linear(d.stack(x), d.weight(d.size(), x.shape[1]), d.weight(1, 1)[0]),
        lambda d, x: F.scaled_dot_product_attention(
            h := d.heads(x), h * 2, d.maybe_marked(h + 1)
        ).flatten(1, 2),
        lambda d, x: (
            F.scaled_dot_product_attention(h := d.heads(x), h, h, is_causal=True)
            .transpose(1, 2)
            .flatten(2)
        ),
        lambda d, x: ((h := d.heads(x)) @ h.mT).softmax(-1).flatten(1, 2),
        lambda d, x: F.bilinear(s := d.stack(x), s * 2, d.weight(5, s.shape[2], s.shape[2])),
    ],
    "batched windows": [
        lambda d, x: F.conv1d(d.stack(x), d.floats(5, len(x), 3) / 4, padding=1),
        lambda d, x: F.conv1d(d.stack(x), d.floats(len(x), 1, 3) / 4, padding=1, groups=len(x)),
        lambda d, x: F.conv_transpose1d(d.stack(x), d.floats(len(x), 5, 2) / 4),
        lambda d, x: F.conv2d(d.heads(x), d.floats(3, 2, 3, 3) / 4, padding=1).flatten(1, 2),
        lambda d, x: F.conv2d(d.heads(x), d.floats(4, 1, 3, 3) / 4, padding=1, groups=2).flatten(
            1, 2
        ),
        lambda d, x: F.conv_transpose2d(d.heads(x), d.floats(2, 3, 2, 2) / 4, stride=2).flatten(
            1, 2
        ),
        lambda d, x: F.max_pool2d(d.heads(x), 2, 1).flatten(1, 2),
        lambda d, x: F.avg_pool1d(d.stack(x), 2),
        lambda d, x: F.unfold(d.heads(x), (2, 2)),
        lambda d, x: F.batch_norm(d.stack(x), None, None, training=True),
        lambda d, x: F.group_norm(d.heads(x), 2).flatten(1, 2),
        lambda d, x: F.instance_norm(d.stack(x), None),
        lambda d, x: F.interpolate(d.heads(x), scale_factor=2, mode="bilinear").flatten(1, 2),
    ],
    "stacks": [
        lambda d, x: d.stack(x).transpose(0, 1) * 2,
        lambda d, x: d.stack(x).permute(2, 0, 1).flip(1),
        lambda d, x: d.stack(x).cumsum(1),
        lambda d, x: d.stack(x).softmax(1),
        lambda d, x: d.stack(x).sort(1)[0],
        lambda d, x: d.heads(x).transpose(1, 2).flatten(2),
        lambda d, x: d.stack(x).amax(1, True) - x,
        lambda d, x: (s := d.stack(x)).gather(1, d.index(s.shape[1], *s.shape)),
        lambda d, x: torch.ones_like(s := d.stack(x)).scatter_add(
            1, d.index(s.shape[1], *s.shape), s
        ),
        lambda d, x: torch.ones_like(s := d.stack(x)).index_add(
            1, d.index(s.shape[1], 5), s[:, :1].expand(-1, 5, -1)
        ),
        lambda d, x: (
            (s := d.stack(x))[d.index(len(s), 5), d.index(s.shape[1], 5)][None] + s[:1, :1]
        ),
        lambda d, x: F.embedding(d.index(len(x), d.size(), 4), x),
        lambda d, x: torch.cat([d.stack(x), d.stack(x)]),
        lambda d, x: d.stack(x)[1:],
        lambda d, x: d.stack(x)[:, ::2],
        lambda d, x: F.pad(d.stack(x), (0, 0, 1, 1, 1, 0)),
        lambda d, x: d.stack(x).reshape(len(x), -1, x.shape[1]),
        lambda d, x: d.stack(x).roll(1, 1),
        lambda d, x: F.layer_norm(d.stack(x), x.shape[1:]),
        lambda d, x: d.stack(x).std(1, keepdim=True) + x,
    ],
}
FAMILIES |= {family: [*map(_in_stack, calls)] for family, calls in _STACKED.items()}


class Outcome(NamedTuple):
    """A program's results: its value and the gradient of the data it begins with. words: its ops,
    for a report."""

    words: str
    results: list[Tensor]


def run(seed: int, device: str) -> Outcome:
    """Records a program."""
    d = Draw(seed, device)
    x = leaf = d.floats(d.size(), d.size())
    words = [f"{d.shape}"]
    is_marked = d.random.random() < 0.5
    for _ in range(d.random.randint(1, 4)):
        family = d.random.choice(list(FAMILIES))
        place = d.random.randrange(len(FAMILIES[family]))
        words.append(f"{family}[{place}] of {tuple(x.shape)}")
        x = FAMILIES[family][place](d, x)
        x = x.repeat(*(1 if size > 2 else 3 for size in x.shape))  # windows need three
        if x.numel() > 400:
            x = x[:13, :13]
        # Bounded, and without ties, of which any might be meant.
        x = x.tanh() + torch.arange(x.numel(), device=device, dtype=x.dtype).reshape(x.shape) / (
            97 * x.numel()
        )
        if is_marked and d.random.random() < 0.6:
            x = d.marked(x)
    (grad,) = torch.autograd.grad((x * x.detach().cos()).sum(), leaf)
    return Outcome(", ".join(words), [x.detach(), grad])


def failures(seeds: Sequence[int]) -> list[str]:
    """The differences of programs, and those that do not compile; where one does not, parts run
    apart."""
    try:
        return differences(seeds)
    except Exception as error:  # of a sync that all share
        if len(seeds) == 1:
            return [
                (
                    f"program {seeds[0]}: {type(error).__name__}: {str(error)[:600]}: "
                    f"{run(seeds[0], 'cpu').words}"
                )
            ]
        middle = len(seeds) // 2
        return failures(seeds[:middle]) + failures(seeds[middle:])


def differences(seeds: Sequence[int]) -> list[str]:
    """Runs programs as one, and names each that differs from the CPU."""
    pairs, wrong = [], []
    for seed in seeds:
        expected = run(seed, "cpu")
        try:
            pairs.append((seed, expected, run(seed, "xla").results))
        except Exception as error:
            wrong.append(
                f"program {seed}: {type(error).__name__}: {str(error)[:300]}: {expected.words}"
            )
    spmd.sync()
    for seed, expected, results in pairs:
        for part, actual, wanted in zip(
            ("value", "gradient"), results, expected.results, strict=True
        ):
            if not torch.allclose(actual.cpu(), wanted, rtol=1e-6, atol=1e-8, equal_nan=True):
                far = ~torch.isclose(actual.cpu(), wanted, rtol=1e-6, atol=1e-8, equal_nan=True)
                shown = (
                    f"{actual.cpu()[far][:3].tolist()} for {wanted[far][:3].tolist()} at "
                    f"{far.nonzero()[:3].tolist()}"
                )
                wrong.append(
                    f"program {seed}: the {part} differs: {expected.words}: {far.sum()} elements, "
                    f"{shown}"
                )
                break
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=240, help="programs")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first program; the others follow"
    )
    parser.add_argument("--partitioner", choices=("gspmd", "shardy"), default="shardy")
    options = parser.parse_args()
    spmd.config.partitioner, spmd.config.program_cache = options.partitioner, False
    spmd.simulate(8)
    started, num_wrong = time.time(), 0
    for first in range(options.seed, options.seed + options.count, BATCH):
        seeds = range(first, min(first + BATCH, options.seed + options.count))
        wrong = failures(seeds)
        num_wrong += len(wrong)
        for line in wrong:
            print(line, flush=True)
        if (first // BATCH) % 20 == 0:
            print(
                f"{seeds.stop - options.seed:,} programs, {num_wrong} wrong, "
                f"{time.time() - started:.0f} s",
                flush=True,
            )
    print(
        f"{options.partitioner}: {options.count:,} programs, {num_wrong} wrong, "
        f"{time.time() - started:.0f} s"
    )
    sys.exit(bool(num_wrong))


if __name__ == "__main__":
    os.environ.setdefault("XLA_FLAGS", "")
    main()
