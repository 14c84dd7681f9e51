"""FSDP's gather and free over one step: `python tests/docs/draw_fsdp.py` writes
docs/drawings/fsdp.svg. The schedule is that of docs/fsdp.md: the compiler may start a gather
earlier or later, and the order of the events stays."""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DRAWING = ROOT / "docs/drawings/fsdp.svg"
LEFT, TOP, SLOT, ROW, BAR = 110, 66, 68, 46, 30
STYLE = """
  <style>
    rect { fill: #eef3fa; stroke: #4a78b5; stroke-width: 1.2; rx: 4; }
    .shard { fill: #9aa5b4; stroke: none; rx: 0; }
    .kept { fill: #c9daf0; stroke: none; }
    .forward, .backward { fill: #4a78b5; }
    .reduce { fill: #fbf3e6; stroke: #b5803a; }
    .update { fill: #f2f7ee; stroke: #5c8f45; }
    text { fill: #1c2430; text-anchor: middle; }
    .start { text-anchor: start; }
    .small { font-size: 12px; fill: #4c5766; }
    .on { fill: #ffffff; }
    line { stroke: #c3cad4; stroke-width: 1; }
    @media (prefers-color-scheme: dark) {
      rect { fill: #1f2a3a; stroke: #7fa6dc; } .kept { fill: #2f4463; stroke: none; }
      .shard { fill: #6b7686; stroke: none; } .forward, .backward { fill: #7fa6dc; }
      .reduce { fill: #33291a; stroke: #dcae6c; } .update { fill: #222e1e; stroke: #93c47d; }
      text { fill: #e8edf4; } .small { fill: #aab4c2; } line { stroke: #3a4554; } .on { fill: #10161f; }
    }
  </style>"""
WORDS = {
    "gather": "gather",
    "forward": "forward",
    "backward": "backward",
    "reduce": "reduce",
    "update": "optimizer",
}


class Event(NamedTuple):
    """One thing that a unit does in one slot of time."""

    unit: int
    slot: int
    kind: str


def schedule(num_units: int) -> list[Event]:
    """The events of units below a root, which is the last one: it keeps from forward to backward
    what it gathered."""
    root = num_units
    last = 2 * num_units + 2
    events = [Event(unit, unit, "gather") for unit in range(num_units + 1)]
    events += [Event(unit, unit + 1, "forward") for unit in range(num_units + 1)]
    for unit in reversed(range(num_units + 1)):
        slot = last - unit
        events += [Event(unit, slot, "backward"), Event(unit, slot + 1, "reduce")]
        events += [Event(unit, slot - 1, "gather")] if unit != root else []
    return events + [Event(unit, last + 2, "update") for unit in range(num_units + 1)]


def unsharded(events: list[Event], unit: int, root: int) -> list[tuple[int, int]]:
    """The stretches of slots in which a device has all of a unit: from a gather to the end of what
    computes with it."""
    starts = sorted(event.slot for event in events if event.unit == unit and event.kind == "gather")
    ends = sorted(
        event.slot + 1
        for event in events
        if event.unit == unit and event.kind in ("forward", "backward")
    )
    return list(zip(starts, ends[-1:] if unit == root else ends, strict=True))


def num_unsharded(events: list[Event], slot: int, root: int) -> int:
    spans = [span for unit in range(root + 1) for span in unsharded(events, unit, root)]
    return sum(start <= slot < end for start, end in spans)


def box(slot: float, y: int, width: float, kind: str, word: str = "", height: int = BAR) -> str:
    x = LEFT + SLOT * slot
    rect = (
        f'  <rect class="{kind}" x="{x + 2:.0f}" y="{y}" width="{SLOT * width - 4:.0f}" '
        f'height="{height}"/>'
    )
    text_kind = "small on" if kind in ("forward", "backward") else "small"
    text = f'  <text class="{text_kind}" x="{x + SLOT * width / 2:.0f}" y="{y + 19}">{word}</text>'
    return rect + ("\n" + text if word else "")


def label(x: int, y: int, text: str, kind: str = "small start") -> str:
    return f'  <text class="{kind}" x="{x}" y="{y}">{text}</text>'


def fsdp(num_units: int = 3) -> str:
    """A row for each unit, a column for each slot of time, and the number of units that a device
    has unsharded."""
    events, root = schedule(num_units), num_units
    num_slots = 1 + max(event.slot for event in events)
    width, bottom = LEFT + SLOT * num_slots + 10, TOP + ROW * (root + 1)
    parts = [label(LEFT, 24, "time: one training step", "start")]
    parts += [
        (
            f'  <line x1="{LEFT + SLOT * (root + 2)}" y1="36" x2="{LEFT + SLOT * (root + 2)}" '
            f'y2="{bottom}"/>'
        )
    ]
    parts += [label(LEFT + 4, 50, "forward"), label(LEFT + SLOT * (root + 2) + 6, 50, "backward")]
    for unit in range(root + 1):
        y = TOP + ROW * unit
        parts.append(label(10, y + 20, "root" if unit == root else f"block {unit}", "start"))
        parts.append(
            f'  <rect class="shard" x="{LEFT}" y="{y + BAR + 4}" width="{SLOT * num_slots}" '
            'height="5"/>'
        )
        spans = unsharded(events, unit, root)
        parts += [box(start, y - 5, end - start, "kept", height=BAR + 9) for start, end in spans]
        if len(spans) == 2:
            parts.append(label(round(LEFT + SLOT * (spans[0][1] + 0.5)), y + 19, "freed", "small"))
        parts += [box(e.slot, y, 1, e.kind, WORDS[e.kind]) for e in events if e.unit == unit]
    y = bottom + 14
    parts.append(label(10, y + 44, "units held", "start"))
    for slot in range(num_slots):
        count = num_unsharded(events, slot, root)
        if count:
            parts.append(box(slot, y + 66 - 20 * count, 1, "kept", height=20 * count))
        parts.append(label(LEFT + SLOT * slot + SLOT // 2, y + 82, str(count), "small"))
    parts.append(f'  <rect class="shard" x="10" y="{y + 100}" width="30" height="5"/>')
    parts.append(label(48, y + 107, "the shard, kept always"))
    parts.append(box((230 - LEFT) / SLOT, y + 93, 0.5, "kept", height=18))
    parts.append(label(272, y + 107, "unsharded: each device has all of the unit"))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 122}" '
        'font-family="system-ui, sans-serif" font-size="14" role="img" aria-label="gather and '
        'free of three units and their root over one step">'
    )
    return "\n".join([head + STYLE, *parts, "</svg>", ""])


if __name__ == "__main__":
    DRAWING.write_text(fsdp())
    print(DRAWING.relative_to(ROOT))
