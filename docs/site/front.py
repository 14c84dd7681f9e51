"""The picture at the top of the README: `python docs/site/front.py` runs its step and draws it,
light and dark."""

import sys
from pathlib import Path

import matplotlib
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import spmd
from spmd import P

FOLDER = Path(__file__).resolve().parents[1] / "pictures"
STEPS = 40
CODE = """\
mesh = spmd.Mesh(range(8), (2, 4),
                 ("data", "model"))

layer = nn.Linear(256, 512, device="xla")
spmd.mark_sharding(layer.weight, mesh,
                   P("model", None))
x = spmd.mark_sharding(x, mesh, P("data", None))

loss = F.mse_loss(layer(x), y)
loss.backward()
optimizer.step()"""
SHADES = ("#4c78a8", "#f58518", "#54a24b", "#b279a2")  # one for each quarter of the weight
# text, ground, line
SCHEMES = {"light": ("#1f2328", "#f6f8fa", "#0969da"), "dark": ("#e6edf3", "#161b22", "#58a6ff")}
Parts = dict[int, tuple[slice, ...]]


def run() -> tuple[Parts, Parts, list[float]]:
    """Runs the step: the rows of the weight and of x on each device, and the losses."""
    torch.manual_seed(0)
    mesh = spmd.Mesh(range(8), (2, 4), ("data", "model"))
    layer = torch.nn.Linear(256, 512, device="xla")
    spmd.mark_sharding(layer.weight, mesh, P("model", None))
    x = spmd.mark_sharding(torch.randn(64, 256).to("xla"), mesh, P("data", None))
    y = spmd.mark_sharding(torch.randn(64, 512).to("xla"), mesh, P("data", None))
    optimizer = torch.optim.AdamW(layer.parameters(), lr=3e-3)
    losses = []
    for _ in range(STEPS):
        loss = torch.nn.functional.mse_loss(layer(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    weight, rows = (
        {shard.device: shard.indices for shard in spmd.local_shards(of)} for of in (layer.weight, x)
    )
    return weight, rows, losses


def rows_of(indices: tuple[slice, ...]) -> str:
    return f"[{indices[0].start}:{indices[0].stop}]"


def draw(weight: Parts, rows: Parts, losses: list[float], scheme: str) -> Figure:
    """Three panels: the code, the mesh with each device's rows, the loss."""
    text, ground, line = SCHEMES[scheme]
    matplotlib.rcParams.update(
        dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), text)
    )
    figure, (code, grid, curve) = pyplot.subplots(
        1, 3, figsize=(13, 3.6), layout="constrained", width_ratios=(4.6, 4.6, 2.8)
    )
    code.add_patch(Rectangle((0, 0), 1, 1, transform=code.transAxes, color=ground))
    code.text(
        0.03,
        0.95,
        CODE,
        family="monospace",
        size=10,
        va="top",
        transform=code.transAxes,
        linespacing=1.45,
    )
    code.set_title("plain PyTorch, and two marks", size=11)
    begins = sorted({indices[0].start for indices in weight.values()})
    for device in range(8):
        left, top = device % 4, 1 - device // 4
        shade = SHADES[begins.index(weight[device][0].start)]
        alpha = 1.0 if device < 4 else 0.85
        grid.add_patch(
            Rectangle((left + 0.04, top + 0.05), 0.92, 0.9, color=shade, alpha=alpha, linewidth=0)
        )
        label = f"device {device}\n\nweight{rows_of(weight[device])}\nx{rows_of(rows[device])}"
        grid.text(left + 0.5, top + 0.5, label, ha="center", va="center", size=9, color="white")
    grid.set(xlim=(0, 4), ylim=(0, 2), title="where the rows live: 2 x 4 devices")
    grid.text(2, -0.1, "model", ha="center", va="top")
    grid.text(-0.08, 1, "data", ha="right", va="center", rotation=90)
    for axes in (code, grid):
        axes.set_axis_off()
    curve.plot(range(1, len(losses) + 1), losses, color=line, linewidth=2)
    curve.set(xlabel="step", ylim=(0, None), title="the loss")
    for side, spine in curve.spines.items():
        spine.set(visible=side in ("left", "bottom"), color=text)
    for axes in (grid, curve):
        axes.title.set_size(11)
    return figure


def main(folder: Path = FOLDER) -> list[Path]:
    matplotlib.use("agg")  # needs no screen
    spmd.simulate(8)
    found, paths = run(), []
    for scheme in SCHEMES:
        figure = draw(*found, scheme)
        paths.append(folder / f"front-{scheme}.png")
        figure.savefig(paths[-1], dpi=130, transparent=True)
        pyplot.close(figure)
    return paths


if __name__ == "__main__":
    for path in main():
        print(path.relative_to(FOLDER.parents[1]))
