"""The race on this machine's GPU: right values, a GPT, Hugging Face's Llama-1B and decoding, by one
side after another.

    python -m recipes.benchmarks.race                       # make gpu: at most eight minutes on one
                                                            # H100 or H200
    python -m recipes.benchmarks.race --parts llama decode  # these alone
    python -m recipes.benchmarks.race --dry-run             # all of it on the CPU, in small
    python -m recipes.benchmarks.race --plan h100:1 h200:1  # without a GPU: the plans, to be
                                                            # committed before a run
    python -m recipes.benchmarks.race --keep out/race/race.json

Parts run in the order of their worth, each side in a process of its own: this library by
`spmd.compile` and lazily, `torch.compile` with its best attention, hand-written JAX. A step is the
median of ten, after three. What is known is written after each side to OUT/race.json: a run that is
cut off keeps its figures. The next side loads its weights while one compiles. Peak memory is that
of each framework's allocator. MFU counts the model's operations, without recomputation, of NVIDIA's
dense bfloat16 peak. The plans of `docs/results/race-plans.json` stand next to the run, with the
hash of that file. Times are printed, never judged; the status is 1 where a check or a side fails,
or where losses of two sides differ.
"""

import argparse
import datetime
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from recipes.benchmarks import noted, results
from recipes.benchmarks.race_sides import FULL, SIDES, Figures
from recipes.benchmarks.sections import SECTIONS

PLANS = results.FOLDER / "race-plans.json"
PARTS = ("checks", *SIDES)
TITLES = {
    "gpt": f"GPT of 12 layers of {FULL.gpt.width}, {FULL.gpt_batch} x {FULL.gpt.sequence:,} tokens",
    "llama": (
        f"transformers' Llama of 1.5 billion weights, {FULL.batch} x {FULL.sequence:,} tokens, "
        "layers recomputed"
    ),
    "decode": (
        f"Greedy decoding of that Llama in bfloat16, {FULL.tokens} tokens behind {FULL.prompt}"
    ),
}
PLANNED = ("gpt", "compiled"), ("llama", "compiled"), ("llama", "FSDP, compiled")
LONGEST = 150.0  # seconds of one side
# Losses are compared over the first steps: bfloat16's roundings add up from step to step.
COMPARED, LOSS_TOLERANCE = 10, 5e-3


class Child:
    """A process whose output is read at its end."""

    def __init__(self, command: list[str], settings: Mapping[str, str]):
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed in `end`
        self._process = subprocess.Popen(
            command, stdout=self._output, stderr=subprocess.STDOUT, env=settings
        )

    def end(self, seconds: float) -> tuple[int | None, str]:
        """Returns the status, None if it was ended after so many seconds, and the output."""
        try:
            code: int | None = self._process.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            code = None
        with self._output:
            self._output.seek(0)
            return code, self._output.read()


class Race:
    """A run: its console, what each side found, and the seconds that are left."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.console = options, Console(width=140)
        self.out = Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.ends = time.monotonic() + 60 * options.minutes
        self.found: dict[str, dict[str, Figures]] = {part: {} for part in SIDES}
        self.checks: list[str] = []
        self.seconds: dict[str, float] = {}

    def run(self) -> int:
        with tempfile.TemporaryDirectory(dir=_in_memory()) as folder:
            sides = [
                (part, side) for part in self.options.parts if part in SIDES for side in SIDES[part]
            ]
            weights = (
                Child(self.command("weights", "", folder), self.settings(is_host=True))
                if sides
                else None
            )
            if "checks" in self.options.parts:
                self.check()
            if weights is not None and weights.end(LONGEST)[0]:
                self.console.print("no weights could be written: no side runs")
                return 1
            # The next side loads its weights into the host's memory while one computes, and then
            # waits for its signal.
            following = self.start(*sides[0], folder) if sides else None
            for place, (part, side) in enumerate(sides):
                child, following = following, None
                (Path(folder) / f"turn-{part}-{side}").touch()
                if place + 1 < len(sides) and self.left() > 10:
                    following = self.start(*sides[place + 1], folder)
                self.race(part, side, child, folder)
                self.keep()
        for table in self.tables():
            self.console.print(table)
        wrong = self.wrong()
        for line in wrong:
            self.console.print(f"FAILED {line}", markup=False, highlight=False)
        return int(bool(wrong))

    # --- processes --------------------------------------------------------------------------------

    def command(self, part: str, side: str, folder: str, *arguments: str) -> list[str]:
        module = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "recipes.benchmarks.race_sides",
            part,
            *([side] if side else []),
        ]
        return [*module, "--folder", folder, *["--dry-run"] * self.options.dry_run, *arguments]

    def settings(self, *, is_host: bool = False) -> dict[str, str]:
        """The environment of a side; a process that runs on the host alone is given no GPU."""
        hidden = (
            {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
            if is_host or self.options.dry_run
            else {}
        )
        # Compiling is timed: no cache of an earlier run is read.
        return {
            **os.environ,
            **hidden,
            "SPMD_PROGRAM_CACHE": "0",
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        }

    def left(self) -> float:
        return self.ends - time.monotonic()

    def start(self, part: str, side: str, folder: str) -> "Child":
        return Child(self.command(part, side, folder, "--wait"), self.settings())

    def end(self, name: str, child: "Child") -> tuple[int | None, str]:
        """Waits for a process within the time that is left; returns its status (None: it was ended)
        and its output."""
        started = time.monotonic()
        code, text = child.end(min(LONGEST, self.left()))
        self.seconds[name] = time.monotonic() - started
        with (self.out / "log.txt").open("a") as file:
            file.write(f"== {name}: {code}, {self.seconds[name]:.0f} s\n{text[-6000:]}\n")
        ended = "ended" if code is None else "ok" if code == 0 else "FAILED"
        self.console.print(f"{name}: {ended}, {self.seconds[name]:.0f} s", highlight=False)
        return code, text

    def check(self) -> None:
        """Right values: the checks of `recipes/accelerator_smoke.py`, of a model that the host
        computes in seconds."""
        script = results.ROOT / "recipes" / "accelerator_smoke.py"
        sizes = ["--dry-run"] if self.options.dry_run else ["--layers", "4", "--width", "256"]
        code, text = self.end(
            "checks", Child([sys.executable, "-W", "ignore", str(script), *sizes], self.settings())
        )
        rows = [line.strip() for line in text.splitlines() if "│" in line]
        self.checks = [" ".join(" ".join(row.strip("│┃ ").split("│")).split()) for row in rows]
        if code != 0:
            self.checks.append(
                f"FAILED: {'ended' if code is None else f'status {code}'}; {text.strip()[-300:]}"
            )
        self.keep()

    def race(self, part: str, side: str, child: "Child | None", folder: str) -> None:
        """Waits for a side and reads the figures that it wrote, also where it was ended."""
        if child is None:
            self.found[part][side] = {"error": "no time was left"}
            return
        code, text = self.end(f"{part}, {side}", child)
        path = Path(folder) / f"{part}-{side.replace(' ', '-')}.json"
        figures: Figures = json.loads(path.read_text()) if path.exists() else {}
        if code != 0:
            last = text.strip().splitlines()[-1:] or ["nothing printed"]
            figures["error"] = (
                f"ended after {self.seconds[f'{part}, {side}']:.0f} s"
                if code is None
                else last[0][-200:]
            )
        self.found[part][side] = figures

    # --- what was found ---------------------------------------------------------------------------

    def wrong(self) -> list[str]:
        """Sides and checks that failed, and first losses that differ."""
        lines = [line for line in self.checks if "FAILED" in line]
        for part, sides in self.found.items():
            lines += [
                f"{part}, {side}: {figures['error']}"
                for side, figures in sides.items()
                if "error" in figures
            ]
            losses = {
                side: figures["losses"][:COMPARED]
                for side, figures in sides.items()
                if "losses" in figures
            }
            for number, step in enumerate(zip(*losses.values(), strict=True), 1):
                if max(step) - min(step) > LOSS_TOLERANCE * max(step):
                    differing = dict(zip(losses, step, strict=True))
                    lines.append(f"{part}: losses of step {number} differ: {differing}")
        return lines

    def tables(self) -> list[Table]:
        tables = []
        if self.checks:
            tables.append(Table("check", title="Right values", title_justify="left"))
            for line in self.checks:
                tables[-1].add_row(line)
        tables += [_steps(part, self.found[part]) for part in ("gpt", "llama") if self.found[part]]
        if self.found["decode"]:
            tables.append(_decoding(self.found["decode"]))
        planned = beside(self.found)
        return [*tables, *([] if planned is None else [planned])]

    def keep(self) -> None:
        """Writes what is known in the form of docs/results."""
        import torch

        kinds = {
            figures["device"]
            for sides in self.found.values()
            for figures in sides.values()
            if "device" in figures
        }
        machine = results.machine()
        run = {
            "command": "python -m recipes.benchmarks.race" + " --dry-run" * self.options.dry_run,
            "commit": self.options.commit or results.commit(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "seconds": round(sum(self.seconds.values())),
            "load": None,
            "machine": {**machine, "processor": ", ".join(sorted(kinds)) or machine["processor"]},
            "versions": {**results.versions(), "torch": torch.__version__},
            "code": results.hashes(SECTIONS["gpu"]),
            "tables": [noted.note_of(table) for table in self.tables()],
            "lines": self.wrong(),
            "found": self.found,
        }
        (self.out / "race.json").write_text(json.dumps(run, indent=1, ensure_ascii=False) + "\n")


def _in_memory() -> str | None:
    """A folder in memory, if one holds the weights of both models."""
    path = "/dev/shm"
    return path if os.path.isdir(path) and shutil.disk_usage(path).free > 10 * 2**30 else None


def _steps(part: str, sides: Mapping[str, Figures]) -> Table:
    """The table of a training step."""
    table = Table(
        "side",
        "step ms",
        "of torch.compile",
        "of JAX",
        "fastest to slowest",
        "tokens/s",
        "MFU",
        "peak GiB",
        "first step s",
        "loss, first",
        "tenth",
        title=TITLES[part],
        title_justify="left",
    )
    for side, figures in sides.items():
        if "step" not in figures:
            table.add_row(side, figures.get("error", "-"), *[""] * 9)
            continue
        ratios = [
            f"{figures['step'] / sides[other]['step']:.2f}"
            if "step" in sides.get(other, {})
            else "-"
            for other in ("torch.compile", "JAX by hand")
        ]
        table.add_row(
            side,
            f"{1e3 * figures['step']:.1f}",
            *ratios,
            f"{1e3 * figures['fastest']:.1f} to {1e3 * figures['slowest']:.1f}",
            f"{figures['tokens']:,.0f}",
            "-" if figures["mfu"] is None else f"{100 * figures['mfu']:.1f} %",
            _gib(figures["peak"]),
            f"{figures['first']:.1f}",
            f"{figures['losses'][0]:.4f}",
            f"{figures['losses'][COMPARED - 1]:.4f}",
        )
    return table


def _gib(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**30:.2f}"


def _decoding(sides: Mapping[str, Figures]) -> Table:
    table = Table(
        "prompts",
        "side",
        "tokens/s",
        "of torch",
        "of JAX",
        "ms a token",
        "first call s",
        "tokens equal torch's",
        title=TITLES["decode"],
        title_justify="left",
    )
    for count in (1, 8):
        for side, figures in sides.items():
            if f"speed {count}" not in figures:
                table.add_row(str(count), side, figures.get("error", "-"), *[""] * 5)
                continue
            speed, tokens = figures[f"speed {count}"], figures[f"tokens {count}"]
            ratios = [
                f"{speed / sides[other][f'speed {count}']:.2f}"
                if f"speed {count}" in sides.get(other, {})
                else "-"
                for other in ("torch", "JAX by hand")
            ]
            table.add_row(
                str(count),
                side,
                f"{speed:,.0f}",
                *ratios,
                f"{1e3 * count / speed:.2f}",
                f"{figures[f'first {count}']:.1f}",
                _equal(tokens, sides.get("torch", {}).get(f"tokens {count}")),
            )
    return table


def _equal(rows: list[list[int]], others: list[list[int]] | None) -> str:
    """The tokens before the first difference, of all of a row; the mean over rows."""
    if others is None:
        return "-"
    before = [
        next(
            (
                place
                for place, (one, other) in enumerate(zip(row, theirs, strict=True))
                if one != other
            ),
            len(row),
        )
        for row, theirs in zip(rows, others, strict=True)
    ]
    return f"{sum(before) / len(before):.0f} of {len(rows[0])}"


# --- plans ----------------------------------------------------------------------------------------


def beside(found: Mapping[str, Mapping[str, Figures]]) -> Table | None:
    """Planned steps next to those that ran on a device with a plan; None without one."""
    if not PLANS.exists():
        return None
    content = PLANS.read_bytes()
    plans, digest = json.loads(content)["plans"], hashlib.sha256(content).hexdigest()[:12]
    table = Table(
        "step",
        "planned for",
        "planned ms",
        "run ms",
        "run / planned",
        "planned peak GiB",
        "run peak GiB",
        title=f"Planned before the run (race-plans.json {digest}), and run",
        title_justify="left",
    )
    for plan in plans:
        run = found[plan["part"]].get(plan["side"], {})
        name = plan["target"].partition(":")[0].upper()
        if "step" not in run or name not in run["device"]:
            continue
        table.add_row(
            f"{plan['part']}, {plan['side']}",
            plan["target"],
            f"{1e3 * plan['step']:.1f}",
            f"{1e3 * run['step']:.1f}",
            f"{run['step'] / plan['step']:.2f}",
            _gib(plan["peak"]),
            _gib(run["peak"]),
        )
    return table if table.rows else None


def plan(targets: Iterable[str], *, is_dry: bool, path: Path = PLANS) -> None:
    """Plans the steps of `PLANNED` for each target and writes them."""
    plans = []
    for target in targets:
        for part, side in PLANNED:
            with tempfile.TemporaryDirectory() as folder:
                module = [
                    sys.executable,
                    "-W",
                    "ignore",
                    "-m",
                    "recipes.benchmarks.race_sides",
                    part,
                    side,
                ]
                arguments = ["--folder", folder, "--target", target, *["--dry-run"] * is_dry]
                subprocess.run(
                    [*module, *arguments], check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}
                )
                plans.append(
                    json.loads((Path(folder) / f"{part}-{side.replace(' ', '-')}.json").read_text())
                )
    made = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": results.commit(),
    }
    path.write_text(
        json.dumps({**made, "versions": results.versions(), "plans": plans}, indent=1) + "\n"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        default=list(PARTS),
        metavar="PART",
        help=", ".join(PARTS),
    )
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="after which nothing runs (default 8)"
    )
    parser.add_argument(
        "--out", default="out/race", help="folder of race.json and log.txt (default %(default)s)"
    )
    parser.add_argument("--commit", help="of the code, where there is no git")
    parser.add_argument("--dry-run", action="store_true", help="in small, on the CPU")
    parser.add_argument(
        "--plan", nargs="+", metavar="TARGET", help="plan the steps for these devices; nothing runs"
    )
    parser.add_argument(
        "--keep", metavar="FILE", help="take this run into docs/results; nothing runs"
    )
    options = parser.parse_args(arguments)
    if options.plan:
        plan(options.plan, is_dry=options.dry_run)
        return 0
    if options.keep:
        results.keep("gpu", [json.loads(Path(options.keep).read_text())])
        return 0
    return Race(options).run()


if __name__ == "__main__":
    sys.exit(main())
