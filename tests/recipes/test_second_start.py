"""A second start of an unchanged script compiles nothing: recipes, and the small programs of the
benchmark."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.benchmarks import second_start

RECIPES = Path(second_start.__file__).parents[1]
MODEL = "--layers=1 --width=16 --heads=4 --sequence=16 --batch=16 --warmup=1 --out=made"
COMMANDS = {
    "gpt": f"train_gpt.py {MODEL} --steps=4 --eval-every=2 --sample=6",
    "llama": (
        f"train_llama.py {MODEL} --kv-heads=2 --steps=6 --eval-every=3 --sample=5 --save-every=3"
    ),
    "hugging_face": f"wrap_hugging_face.py {MODEL} --steps=4 --eval-every=2 --sample=3",
    "resnet": (
        "train_resnet.py --width=4 --batch=360 --epochs=1 --layout=spatial --chart 8 --out=made"
    ),
}
LONG = pytest.mark.long


def printed(folder: Path, *command: str) -> str:
    """The output of a script in a process and a folder of its own."""
    kept = {
        "SPMD_PROGRAM_CACHE": "1",
        "SPMD_PROGRAM_CACHE_DIR": str(folder / "programs"),
        "PYTHONHASHSEED": "random",
    }
    setting = {**os.environ, **kept, "SPMD_SLOW_COMPILE_SECONDS": "0"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, env=setting
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Prints, at the end of a script, the programs that it compiled and loaded.
COUNTED = """
import atexit, runpy, sys, spmd
metrics = spmd.metrics
counts = metrics.num_compiles, metrics.num_loaded, lambda: len(metrics.compiles())
atexit.register(lambda: print("\\ncounted", *(count() for count in counts)))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class TestRecipes:
    """Each is started twice, with a cache of programs that is empty at first."""

    @pytest.mark.parametrize(
        "name", ["gpt", *(pytest.param(name, marks=LONG) for name in COMMANDS if name != "gpt")]
    )
    def test_second_start(self, name: str, tmp_path: Path) -> None:
        script, *arguments = COMMANDS[name].split()
        command = (
            "-c",
            f"import sys; sys.path.insert(0, {str(RECIPES.parent)!r})\n{COUNTED}",
            str(RECIPES / script),
        )
        counts = []
        for _ in range(2):
            match = re.search(r"counted (\d+) (\d+) (\d+)", printed(tmp_path, *command, *arguments))
            assert match is not None
            counts.append(tuple(map(int, match.groups())))
        (compiled, loaded, logged), second = counts  # logged: those that a plan has compiled, too
        assert compiled > 1 and loaded == 0 and second == (0, logged, logged), counts


class TestBenchmark:
    """The cases of `second_start.py`."""

    @pytest.mark.parametrize(
        "name",
        [
            "train",
            *(pytest.param(name, marks=LONG) for name in second_start.CASES if name != "train"),
        ],
    )
    def test_case(self, name: str, tmp_path: Path) -> None:
        flags = "--cases", name, "--child"
        starts = [
            json.loads(printed(tmp_path, second_start.__file__, *flags, "xla")) for _ in range(2)
        ]
        assert [starts[0]["loaded"], starts[1]["compiled"]] == [0, 0] and starts[0][
            "compiled"
        ] > 1, starts
        assert (
            starts[1]["loaded"] == starts[0]["compiled"]
            and starts[1]["numbers"] == starts[0]["numbers"]
        )
        expected = second_start.CASES[name]("cpu")
        assert second_start.is_same(starts[0]["numbers"], expected), (
            starts[0]["numbers"],
            expected,
        )
