"""The picture of a plan in docs/planning.md: Llama-1B under FSDP on eight v5e chips.

    python tests/docs/draw_plan.py         draws docs/drawings/plan.svg from the figures in
                                           docs/drawings/plan.json
    python tests/docs/draw_plan.py --plan  plans the step first: needs libtpu (extra `tpu`), a
                                           minute

It has the bars of the plan's own page (`Plan.page`). `test_draw_plan.py` proves that it is current.
"""

import dataclasses
import re
import sys
from pathlib import Path

import spmd

ROOT = Path(__file__).resolve().parents[2]
FIGURES, PICTURE = ROOT / "docs/drawings/plan.json", ROOT / "docs/drawings/plan.svg"
BARS = {"memory of one device": "Memory of one chip", "time of a step": "Time of a step"}
# One grey can be read on a light page and on a dark one; the page's own colours are for a light
# one.
STYLE = """\
text, [fill="#1f2933"] { fill: #808080; } .head { font-size: 15px; font-weight: 600; }
[stroke="#1f2933"] { stroke: #808080; } [stroke="#e8ecf0"], [fill="#e8ecf0"] { stroke: #808080; stroke-opacity: .35; }
[fill="#e8ecf0"] { fill: #808080; fill-opacity: .2; }"""


def drawn(plan: spmd.Plan) -> str:
    """An SVG with the bars of memory and time, one below the other."""
    page, parts, top = plan.page(), [], 0.0
    for label, head in BARS.items():
        match = re.search(
            rf'<svg role="img" aria-label="{label}" viewBox="0 0 1000 (\d+)">.*?</svg>',
            page,
            re.DOTALL,
        )
        assert match is not None, f"the plan's page has no picture of the {label}"
        height = int(match[1])
        parts.append(f'<text class="head" x="10" y="{top + 18:g}">{head}</text>')
        parts.append(
            match[0].replace("<svg ", f'<svg y="{top + 28:g}" width="1000" height="{height}" ', 1)
        )
        top += height + 34
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 {top:g}" '
        'font-family="system-ui, sans-serif"'
    )
    title = f"{plan.chip}, {plan.target}: {' and '.join(BARS)}"
    return "\n".join(
        [
            f'{head} font-size="13">',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style>",
            *parts,
            "</svg>\n",
        ]
    )


def main() -> None:
    if sys.argv[1:] == ["--plan"]:
        sys.path.insert(0, str(ROOT))
        from recipes.benchmarks import large_plans

        spmd.simulate(8)
        plan = large_plans.plan_of("llama", None, 8, "v5e:2x4")
        plan = dataclasses.replace(plan, line="", collectives=(), layout=(), findings=(), notes=())
        of_bars = dataclasses.replace(
            plan, compile_seconds=0.0, planning_seconds=0.0, planning_bytes=0
        )
        FIGURES.write_text(of_bars.to_json() + "\n")
    PICTURE.write_text(drawn(spmd.Plan.from_json(FIGURES.read_text())))


if __name__ == "__main__":
    main()
