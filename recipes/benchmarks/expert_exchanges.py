"""The rows that each device multiplies in each step of the exchanges of experts, of a router that
prefers some.

    python -m recipes.benchmarks.expert_exchanges  the rows, and what is moved
    python -m recipes.benchmarks.expert_exchanges --picture docs/pictures/experts.png

Four devices with two of eight experts each, and 1,024 choices a device of experts that are drawn
with the odds ODDS. Gathered weights compute a device's own rows; an all-to-all has room for an even
share of each pair of devices, and a sixteenth more, at once, and for a quarter of it in each
further round; a ring brings each device's tokens to all. With a capacity the rows beyond it go
nowhere.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console
from rich.table import Table

DEVICES, EXPERTS, CHOICES, CAPACITY = 4, 8, 1024, 1.0
ODDS = (2.2, 1.6, 1.0, 1.0, 0.8, 0.6, 0.5, 0.3)
Steps = list[np.ndarray]  # of rows [device that multiplies, device that has the token]


def routed(seed: int = 0) -> np.ndarray:
    """The choices of each device for each expert, [devices, experts]."""
    odds = np.array(ODDS) / sum(ODDS)
    return np.random.default_rng(seed).multinomial(CHOICES, odds, size=DEVICES)


def exchanges(counts: np.ndarray) -> dict[str, Steps]:
    """The steps of each exchange."""
    # of experts' devices, from tokens' devices
    queues = counts.reshape(DEVICES, DEVICES, -1).sum(2).T
    share = CHOICES // DEVICES
    first, more = share * 17 // 16, share // 4
    rounds = [np.minimum(queues, first)]
    while (left := queues - sum(rounds)).any():
        rounds.append(np.minimum(left, more))
    kept = (
        np.minimum(counts, int(CAPACITY * CHOICES / EXPERTS)).reshape(DEVICES, DEVICES, -1).sum(2).T
    )
    ring = [
        np.where(np.eye(DEVICES, k=-step) + np.eye(DEVICES, k=DEVICES - step), queues, 0)
        for step in range(DEVICES)
    ]
    return {
        "weights gathered": [np.diag(counts.sum(1))],
        "all-to-all, then rounds": rounds,
        "ring of tokens": ring,
        f"capacity {CAPACITY:g}": [kept],
    }


def draw(path: Path) -> None:
    """Writes the picture."""
    steps = exchanges(routed())
    figure, panels = plt.subplots(1, len(steps), sharey=True, figsize=(12, 4), layout="constrained")
    colors = plt.get_cmap("tab10").colors[:DEVICES]
    for axes, (name, parts) in zip(panels, steps.items(), strict=True):
        width = 0.8 / len(parts)
        for step, rows in enumerate(parts):
            bottom = np.zeros(DEVICES)
            for source in range(DEVICES):
                places = np.arange(DEVICES) - 0.4 + width * (step + 0.5)
                label = f"tokens of device {source}" if step == 0 else None
                axes.bar(
                    places,
                    rows[:, source],
                    width * 0.9,
                    bottom=bottom,
                    color=colors[source],
                    label=label,
                )
                bottom += rows[:, source]
        plural = "steps" if len(parts) > 1 else "step"
        axes.set(title=f"{name}: {len(parts)} {plural}", xlabel="device", xticks=range(DEVICES))
    panels[0].set(ylabel="rows that a device multiplies in a step")
    panels[-1].legend(fontsize="small")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--picture", type=Path, help="draw into this file, and print nothing")
    given = parser.parse_args()
    if given.picture:
        return draw(given.picture)
    table = Table(
        "exchange",
        "steps",
        "rows",
        "dropped",
        "most of a device",
        "most of each step, in all",
        box=None,
    )
    for name, steps in exchanges(routed()).items():
        total, slowest = sum(steps), sum(rows.sum(1).max() for rows in steps)
        dropped = DEVICES * CHOICES - total.sum()
        table.add_row(
            name,
            *(f"{x:,}" for x in (len(steps), total.sum(), dropped, total.sum(1).max(), slowest)),
        )
    Console(width=120).print(table)
    return None


if __name__ == "__main__":
    main()
