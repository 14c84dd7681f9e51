"""The diagrams of the docs, boxes and arrows: `python tests/docs/diagrams.py` after a change of the
folders or of the stages of a step. `test_drawn.py` proves that they are current."""

import re
import tomllib
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DRAWINGS = ROOT / "docs/drawings"
STYLE = """
  <style>
    rect { fill: #eef3fa; stroke: #4a78b5; stroke-width: 1.2; rx: 7; }
    .group { fill: none; stroke: #9aa5b4; stroke-dasharray: 5 4; }
    .second { fill: #f2f7ee; stroke: #5c8f45; }
    .third { fill: #fbf3e6; stroke: #b5803a; }
    text { fill: #1c2430; text-anchor: middle; }
    .start { text-anchor: start; }
    .small { font-size: 12px; fill: #4c5766; }
    path { fill: none; stroke: #6b7686; stroke-width: 1.4; marker-end: url(#arrow); }
    @media (prefers-color-scheme: dark) {
      rect { fill: #1f2a3a; stroke: #7fa6dc; } .second { fill: #222e1e; stroke: #93c47d; }
      .third { fill: #33291a; stroke: #dcae6c; } .group { fill: none; stroke: #6b7686; }
      text { fill: #e8edf4; } .small { fill: #aab4c2; } path { stroke: #9aa5b4; }
    }
  </style>
  <defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" \
orient="auto-start-reverse"><polygon points="0,0 10,5 0,10" fill="#6b7686"/></marker></defs>"""
NUCLEUS = ("base", "sharding", "graph", "record", "lower", "programs", "run", "run.pjrt")
LIBRARY = ("mesh", "tensors", "loops", "rules", "manual", "parallel")
PACKAGES = ("adaptive", "jobs", "names", "steps", "tools")
# The stages of a step, each with its caption; the last four follow a miss of the key.
CAPTIONS = {
    "Record": "an aten call: a node",
    "Annotate": "a mark: a node",
    "Sync": "what is pending",
    "Initialize": "first values, sharded",
    "Schedule": "subgraphs, by mesh",
    "Key": "a program, or none",
    "Compile": "passes, lowering, XLA",
    "Run": "PJRT, new device data",
}


def box(
    x: int, y: int, width: int, title: str, caption: str = "", kind: str = "", height: int = 56
) -> str:
    """A rectangle with a title and a caption below it."""
    of_kind, middle = f' class="{kind}"' if kind else "", x + width // 2
    lines = [f'  <rect{of_kind} x="{x}" y="{y}" width="{width}" height="{height}"/>']
    baseline = y + height // 2 + (-3 if caption else 5)
    lines.append(f'  <text x="{middle}" y="{baseline}">{escape(title)}</text>')
    if caption:
        lines.append(
            f'  <text x="{middle}" y="{baseline + 19}" class="small">{escape(caption)}</text>'
        )
    return "\n".join(lines)


def arrow(*points: tuple[int, int]) -> str:
    return '  <path d="M' + " L".join(f"{x} {y}" for x, y in points) + '"/>'


def label(x: int, y: int, text: str) -> str:
    return f'  <text x="{x}" y="{y}" class="small start">{escape(text)}</text>'


def svg(width: int, height: int, name: str, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="14" role="img" aria-label="{name}">'
    )
    return "\n".join([head + STYLE, *parts, "</svg>", ""])


def folders() -> tuple[str, ...]:
    """The packages from the lowest to the highest, as the contract of layers has them, each after
    those inside it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    names = []
    for layer in reversed(contracts[0]["layers"]):
        path = ROOT / layer.split(" : ")[0].replace(".", "/")
        folder = path if path.is_dir() else path.parent
        inside = (
            [inner.parent for inner in sorted(folder.glob("*/__init__.py"))]
            if folder == path and {"core", "ops"}.isdisjoint(path.parts)
            else []
        )
        names += [".".join(one.relative_to(ROOT).parts) for one in (*inside, folder)]
    return tuple(dict.fromkeys(name for name in names if name != "fsdp"))


def group(y: int, height: int, text: str) -> list[str]:
    frame = f'  <rect class="group" x="10" y="{y}" width="860" height="{height}"/>'
    return [frame, label(22, y + 20, text)]


def floors() -> str:
    """The packages one above the other: each imports what is below it."""
    names = [name.removeprefix("spmd.") for name in folders()]
    core = [
        name.removeprefix("core.") for name in names if name == "ops" or name.startswith("core.")
    ]
    upper = [
        name
        for name in dict.fromkeys(name.split(".")[0] for name in names)
        if name not in ("core", "ops")
    ]
    assert sorted(upper) == sorted((*LIBRARY, *PACKAGES))
    parts = [
        *group(10, 70, "FSDP: imports spmd by its public names"),
        box(330, 18, 220, "fsdp", height=52),
    ]
    parts += group(100, 110, "packages: each may be left out, and nothing below imports them")
    for index, name in enumerate(PACKAGES):
        inner = [part.split(".")[1] for part in names if part.startswith(f"{name}.")]
        caption = ", ".join(inner[:2]) + (", ..." if len(inner) > 2 else "")
        parts.append(box(22 + 170 * index, 134, 156, name, caption, "third", 62))
    parts += group(230, 100, "library, spmd/: meshes, tensors, control flow")
    parts += [
        box(22 + 142 * i, 264, 126, name, kind="second", height=50)
        for i, name in enumerate(LIBRARY)
    ]
    parts += group(
        350, 190, "core, spmd/core/ on spmd/ops/: the lowest folder first; blue is the nucleus"
    )
    per_row = -(-len(core) // 3)
    for index, name in enumerate(core):
        x, y = 22 + 142 * (index % per_row), 382 + 51 * (index // per_row)
        parts.append(
            box(
                x,
                y,
                126,
                name.replace(".", "/"),
                kind="" if name in NUCLEUS else "second",
                height=42,
            )
        )
    parts += [arrow((440, top), (440, top + 18)) for top in (80, 210, 330)]
    return svg(880, 550, "the packages, one above the other", parts)


def stages() -> list[str]:
    """The stages of a step, as the list in docs/architecture.md has them."""
    page = (ROOT / "docs/architecture.md").read_text()
    section = re.search(r"^## The life of one step$(.*?)^## ", page, re.M | re.S)
    assert section is not None
    return re.findall(r"^\d\. \*\*(\w+)\*\*", section[1], re.M)


def step() -> str:
    """The life of a step: recorded line by line, run at a sync."""
    names = stages()
    parts = [
        box(
            10 + 175 * (i % 5),
            20 + 130 * (i // 5),
            150,
            f"{i + 1}. {n}",
            CAPTIONS[n],
            "second" if i < 2 else "",
        )
        for i, n in enumerate(names)
    ]
    parts += [arrow((160 + 175 * i, 48), (181 + 175 * i, 48)) for i in range(4)]
    parts += [arrow((785, 76), (785, 112), (85, 112), (85, 147))]
    parts += [arrow((160, 178), (181, 178)), arrow((335, 178), (356, 178))]
    parts += [arrow((85, 206), (85, 236), (435, 236), (435, 209)), label(95, 228, "a hit")]
    parts += [
        label(160, 142, "a miss"),
        box(535, 150, 150, "storages", "for the next step", "third"),
    ]
    parts += [
        arrow((510, 178), (531, 178)),
        label(12, 95, "recorded, line by line"),
        label(362, 95, "run, at a sync"),
    ]
    return svg(880, 246, "the life of one step", parts)


def recorded_step() -> str:
    """A function that a tool takes apart: its objects, its calls without data, and the readers of
    its programs."""
    parts = [
        box(10, 20, 180, "step, arguments", "Python objects with state"),
        box(240, 20, 180, "Objects", "containers, contents"),
        box(470, 20, 180, "state without data", "shape, dtype, sharding"),
        box(690, 20, 180, "the call, twice", "a sync keeps its program"),
        *(arrow((190 + 230 * i, 48), (236 + 230 * i - 10 * (i == 2), 48)) for i in range(3)),
        box(690, 120, 180, "Recording", "programs, results"),
        box(470, 120, 180, "StateNames", "name and role of inputs"),
        box(240, 120, 180, "undo", "all is as it was"),
        arrow((780, 76), (780, 116)),
        arrow((690, 148), (654, 148)),
        arrow((470, 148), (424, 148)),
        arrow((330, 120), (330, 80)),
        *(
            box(340 + 150 * i, 220, 130, name, kind="second", height=44)
            for i, name in enumerate(("plan, warm", "export"))
        ),
        box(640, 220, 100, "suggest", kind="second", height=44),
        box(760, 220, 110, "inspect", kind="second", height=44),
        arrow((560, 176), (560, 198), (405, 198), (405, 216)),
        arrow((560, 198), (690, 198), (690, 216)),
        arrow((555, 198), (555, 216)),
        arrow((815, 176), (815, 216)),
    ]
    return svg(880, 276, "the life of a recorded step", parts)


DIAGRAMS: dict[str, Callable[[], str]] = {
    "floors.svg": floors,
    "step.svg": step,
    "recorded_step.svg": recorded_step,
}


def drawn() -> Iterator[tuple[Path, str]]:
    for name, draw in DIAGRAMS.items():
        yield DRAWINGS / name, draw()


if __name__ == "__main__":
    for path, text in drawn():
        path.write_text(text)
        print(path.relative_to(ROOT))
