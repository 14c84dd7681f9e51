"""`python -m spmd run` and `spmd-run`: a script as `python script.py` runs it."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, own_environment

from spmd import __main__ as shell
from spmd.command_line import split

# what pip makes `spmd-run` of
CONSOLE = "import sys; from spmd.__main__ import run; sys.exit(run())"


# libtpu, if installed, says on stderr that it finds no TPU.
PLACE = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


def shown(*arguments: str, cwd: Path, code: int = 0) -> tuple[str, str]:
    # in a folder of its own: Python puts it in front of all others
    console = cwd.parent / "spmd-run"
    console.write_text(CONSOLE)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(console), *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=own_environment() | PLACE,
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


SCRIPT = """
import sys
import helper
import spmd, torch_xla.runtime as xr
from torch_xla.distributed.fsdp import checkpoint_module
assert sys.modules["__main__"].helper is helper and __name__ == "__main__" and __spec__ is None
print(sys.argv, __file__, xr.global_runtime_device_count())
if "fail" in sys.argv:
    raise ValueError("of the script")
sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a script, beside folders that are called as the library's are."""
    made = tmp_path / "work"
    for name in ("spmd", "fsdp"):
        (made / name).mkdir(parents=True)
        (made / name / "__init__.py").write_text("raise SystemExit('a folder of the user')\n")
    (made / "helper.py").write_text("")
    (made / "script.py").write_text(SCRIPT)
    (made / "module.py").write_text(
        SCRIPT.replace(" and __spec__ is None", " and __spec__.name == 'module'")
    )
    return made


class TestRun:
    """Arguments, __main__, devices and the exit status; folders beside the script do not hide the
    library."""

    def test_script(self, folder: Path) -> None:
        out, _ = shown(
            "--devices", "3", "script.py", "--devices", "9", "--", "-m", cwd=folder, code=3
        )
        given = ["script.py", "--devices", "9", "--", "-m"]
        assert out == f"{given!r} {folder / 'script.py'} 3\n"

    def test_folder_called_fsdp(self, folder: Path) -> None:
        """By `python -m spmd`, which has the current folder first; and one line without it."""
        shutil.rmtree(folder / "spmd")
        call = [sys.executable, "-W", "error"]
        how: dict[str, Any] = {
            "capture_output": True,
            "text": True,
            "cwd": folder,
            "env": own_environment() | PLACE,
        }
        done = subprocess.run([*call, "-m", "spmd", "run", "--devices", "3", "script.py"], **how)
        assert done.returncode == 3, done.stderr
        (folder / "fsdp" / "__init__.py").write_text("")
        alone = (
            "import spmd; spmd.compat.install(); from torch_xla.distributed.fsdp import "
            "checkpoint_module"
        )
        done = subprocess.run([*call, "-c", alone], **how)
        assert (
            f"ImportError: torch_xla: {folder / 'fsdp' / '__init__.py'} hides this library's"
            in done.stderr
        ), done.stderr

    def test_module_that_fails(self, folder: Path) -> None:
        out, error = shown("-m", "module", "fail", cwd=folder, code=1)
        assert out == f"{[str(folder / 'module.py'), 'fail']!r} {folder / 'module.py'} 1\n"
        first, frame, _, last = error.splitlines()
        assert first.startswith("Traceback") and frame.startswith(
            f'  File "{folder / "module.py"}", line 9'
        )
        assert last == "ValueError: of the script"


class TestArguments:
    """Arguments after the script are its own; a mistake before it is an error of the launcher."""

    @pytest.mark.parametrize(
        ("given", "ours"),
        [
            (["a.py", "-m", "x"], 1),
            (["--devices", "8", "a.py", "--devices"], 3),
            (["--devices=8", "a.py"], 2),
            (["-m", "a", "-h"], 2),
            (["--devices", "2", "-m", "a.b", "c"], 4),
            (["-h"], 1),
            ([], 0),
        ],
    )
    def test_split(self, given: list[str], ours: int) -> None:
        assert split(given) == (given[:ours], given[ours:])

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (["missing.py"], "there is no script 'missing.py' in "),
            (["--devices", "0", __file__], "expected 1 or more"),
            ([], "required: script"),
            (["--device", "8", __file__], "unrecognized arguments: --device"),
        ],
    )
    def test_mistakes(
        self, given: list[str], said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            shell.main(["run", *given])
        assert ended.value.code == 2 and said in capsys.readouterr().err

    def test_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            shell.main(["run", "--help"])
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert (
            "usage: python -m spmd run [--devices N] [--initialize] (script | -m module) [args...]"
            in text
        )
        assert "python -m spmd run --devices 8 train.py" in text

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (["-m", "spmd", "--bad-flag"], "unrecognized arguments: --bad-flag"),
            (["-m", "spmd", "plan", "--nonsense"], "unrecognized arguments: --nonsense"),
            (["-mspmd", "suggest"], "spmd.suggest is a function: call it in Python"),
            (["spmd-run", "--device", "8", "train.py"], "spmd-run: error: unrecognized"),
        ],
    )
    def test_answered_before_torch_is_imported(
        self, given: list[str], said: str, tmp_path: Path
    ) -> None:
        (tmp_path / "spmd-run").write_text(CONSOLE)
        done = subprocess.run(
            [sys.executable, "-X", "importtime", *given],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=own_environment() | PLACE,
        )
        assert done.returncode == 2 and said in done.stderr
        assert not {"torch", "jax", "numpy"} & {*done.stderr.split()}
