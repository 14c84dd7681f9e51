"""The attention that each device computes of a sharded sequence: of one document, and of packed
ones of skewed lengths.

    python -m recipes.benchmarks.sequence_work
    python -m recipes.benchmarks.sequence_work --picture docs/pictures/sequences.png

A pair of chunks counts as its scores, half of them on the diagonal, and as none where no document
has rows in both. The lengths of documents are drawn from a log-normal distribution (mean of the
logarithm 7.5, deviation 1.5), which fills 65,536 tokens with 10 to 20 of them. Columns, each with
an equal part of one document's attention as 1: the mean of the devices, the most of one, and the
sum over the steps of a ring of the most in each, which is what all wait for. The picture shows
which device computes which pair of chunks in which step.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console
from rich.table import Table

from spmd.ops.kernels.flash import Masking
from spmd.ops.kernels.mask_blocks import causal
from spmd.parallel.exchanges import Visible
from spmd.parallel.orders import HalfOfHeads, Order, ZigzagRows


class Step(NamedTuple):
    """The pairs of chunks of a step, [devices, pairs]: their first rows and columns, and whether a
    position of them is visible."""

    rows: np.ndarray
    columns: np.ndarray
    is_visible: np.ndarray


def pairs(order: Order) -> list[Step]:
    """The pairs of each step of a ring under causality."""
    total = order.length * order.num_groups * len(order.numbers(0))
    visible = Visible.of(Masking(causal(total, total)), order)
    groups = jax.vmap(lambda _: order.group, axis_name=order.axes[0])(jnp.arange(order.num_devices))
    numbers = np.array([order.numbers(group) for group in range(order.num_groups)])
    steps = []
    for step, places in enumerate(visible.pairs):
        row, column, is_visible = np.moveaxis(places[:, np.asarray(groups)], (0, 1, 2), (2, 1, 0))
        sources = (np.asarray(groups) - step) % order.num_groups
        rows, columns = (
            np.take_along_axis(numbers[of], chunk, 1) * order.length
            for of, chunk in ((np.asarray(groups), row), (sources, column))
        )
        steps.append(Step(rows, columns, is_visible == 1))
    return steps


def work(order: Order, documents: np.ndarray) -> tuple[float, float, float]:
    """The mean, the most, and the sum of the most of each step; documents: the number of that of
    each token."""
    size = order.length
    scores = []
    for rows, columns, is_visible in pairs(order):
        is_met = is_visible & (documents[columns + size - 1] >= documents[rows])
        scores.append((np.where(rows == columns, 0.5, 1.0) * is_met).sum(1))
    num_chunks = len(documents) // size
    equal = num_chunks**2 / 2 / order.num_groups
    of_devices = np.sum(scores, 0) / equal
    return of_devices.mean(), of_devices.max(), sum(step.max() for step in scores) / equal


def packed(length: int, seed: int) -> np.ndarray:
    """The numbers of the documents of a packed sequence."""
    generator, lengths = np.random.default_rng(seed), [0]
    while sum(lengths) < length:
        lengths.append(int(generator.lognormal(7.5, 1.5)) + 16)
    return np.repeat(np.arange(len(lengths)), lengths)[:length]


def draw(path: Path, count: int = 8, length: int = 65_536) -> None:
    """Draws the pairs of eight devices: of one document in both orders, and of a packed
    sequence."""
    by_heads = HalfOfHeads(("context",), count, length // count)
    zigzag = ZigzagRows(("context",), count, length // (2 * count))
    one, several = np.zeros(length, int), packed(length, 0)
    panels = [
        ("half of the heads: devices i and 7-i together", by_heads, one),
        ("zigzag rows: odd numbers of heads", zigzag, one),
        ("zigzag rows, packed documents: others are left out", zigzag, several),
    ]
    figure, all_axes = plt.subplots(1, 3, figsize=(15, 5.6), constrained_layout=True)
    for axes, (title, order, documents) in zip(all_axes, panels, strict=True):
        _draw_pairs(axes, order, documents)
        axes.set(title=title, xlabel="keys, by chunk", ylabel="queries, by chunk")
    figure.suptitle(
        "Causal attention over a sequence on eight devices: colour = device, number = step of the "
        "ring"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_pairs(axes: plt.Axes, order: Order, documents: np.ndarray) -> None:
    size, colours = order.length, plt.get_cmap("tab10")
    for step, (rows, columns, is_visible) in enumerate(pairs(order)):
        for device in range(order.num_devices):
            seen = is_visible[device]
            for row, column in zip(
                rows[device][seen] // size, columns[device][seen] // size, strict=True
            ):
                if documents[(column + 1) * size - 1] < documents[row * size]:
                    continue
                # Two devices that share a pair have a half of its heads each: a half of the square.
                is_shared = order.num_groups < order.num_devices
                left = column + 0.5 * (is_shared and device >= order.num_groups)
                width = 0.5 if is_shared else 1.0
                axes.add_patch(
                    plt.Rectangle((left, row), width, 1, fc=colours(device), ec="white", lw=0.6)
                )
                axes.text(
                    left + width / 2,
                    row + 0.5,
                    str(step),
                    ha="center",
                    va="center",
                    color="white",
                    fontsize=7,
                )
    count = len(documents) // size
    axes.set(
        xlim=(0, count),
        ylim=(count, 0),
        aspect="equal",
        xticks=range(count + 1),
        yticks=range(count + 1),
    )
    axes.tick_params(labelsize=6)
    for start in np.flatnonzero(np.diff(documents)) + 1:
        axes.axhline(start / size, color="black", lw=0.5)
        axes.axvline(start / size, color="black", lw=0.5)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--picture", type=Path, help="draw into this file, and print nothing")
    given = parser.parse_args()
    if given.picture:
        return draw(given.picture)
    length = 65_536
    table = Table("devices", "order", "documents", "mean", "most", "most of each step")
    for count in (4, 8, 16):
        orders = {
            "half of the heads": HalfOfHeads(("context",), count, length // count),
            "zigzag rows": ZigzagRows(("context",), count, length // (2 * count)),
        }
        for name, order in orders.items():
            for of_documents, documents in [
                ("one", np.zeros(length, int)),
                *((f"seed {s}", packed(length, s)) for s in range(4)),
            ]:
                table.add_row(
                    str(count),
                    name,
                    of_documents,
                    *(f"{value:.2f}" for value in work(order, documents)),
                )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
