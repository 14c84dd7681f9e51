"""The pictures of the README's recipes, each drawn by its own recipe:
`python docs/site/gallery.py [NAME ...]`.

All of them take about half an hour on two cores. A picture is scaled to the width at which the
README shows it, twice.
"""

import subprocess
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures" / "recipes"
WIDTH = 560  # pixels

# Recipe, its arguments, the picture that it leaves; {out} is its folder.
RECIPES = {
    "train_gpt": ("--out {out}", "loss.png"),
    "train_llama": ("--out {out}", "loss.png"),
    "train_mixtral": ("--out {out}", "experts.png"),
    "train_long": ("--exchange ring --picture {out}/lengths.png", "lengths.png"),
    "train_diffusion": ("--out {out}", "digits.png"),
    "wrap_hugging_face": ("--out {out}", "loss.png"),
    "train_resnet": ("--chart 4 16 64 --out {out}", "bytes.png"),
    "generate": ("--out {out}", "tokens.png"),
    "slow_to_fast": ("--picture {out}/steps.png", "steps.png"),
}


def draw(name: str) -> Path:
    """Runs a recipe, and returns the path of its picture, scaled."""
    arguments, picture = RECIPES[name]
    out = ROOT / "out" / "gallery" / name
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, f"recipes/{name}.py", *arguments.format(out=out).split()]
    subprocess.run(command, cwd=ROOT, check=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.png"
    with Image.open(out / picture) as drawn:
        height = round(drawn.height * WIDTH / drawn.width)
        drawn.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS).save(
            path, optimize=True
        )
    return path


if __name__ == "__main__":
    for each in sys.argv[1:] or RECIPES:
        print(draw(each).relative_to(ROOT))
