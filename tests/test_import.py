"""Importing the library changes nothing for a program that uses no xla tensor."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import run_script

from spmd.packages import PATHS

SCRIPT = Path(__file__).with_name("cpu_programs.py")


def printed(*arguments: str) -> dict[str, str]:
    """The output of each row of the table in a process of its own."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}  # libtpu, if installed, says on stderr that it finds no TPU
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True, text=True, timeout=300, cwd=SCRIPT.parents[1], env=environment,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    text = re.sub(r"0x[0-9a-f]+", "0x", done.stdout)
    return {row.partition("\n")[0]: row for row in text.split("\n== ")}


class TestImport:
    """torch's own behaviour, to the letter of what programs print: those that meet each patch that we make of torch."""

    def test_rows(self) -> None:
        without, with_us = printed(), printed("with")
        assert [*with_us] == [*without] and len(without) > 15
        differing = {name: (with_us[name], text) for name, text in without.items() if with_us[name] != text}
        assert differing == {}


class TestOtherOwners:
    """Another library with an XLA device: installed, it is left alone; imported, or the name taken, is one error."""

    @pytest.mark.parametrize("name", ["torch_xla", "torch_tpu"])
    def test_installed_or_imported(self, name: str, tmp_path: Path) -> None:
        (tmp_path / f"{name}.py").write_text("print('imported')")
        path = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        assert run_script(f"{path}import importlib.util, spmd; print(importlib.util.find_spec({name!r}).name)") == (
            f"{name}\n"
        )
        printed = run_script(
            f"{path}import {name}, torch\n"
            "try:\n    import spmd\n"
            "except ImportError as error:\n    print(error, torch._C._get_privateuse1_backend_name())"
        )
        assert printed == (
            f"imported\n{name} is already imported, and torch has one XLA device per process. Import spmd in a process "
            f"that does not import {name}; where torch imports it by itself, set TORCH_DEVICE_BACKEND_AUTOLOAD=0. "
            "privateuseone\n"
        )

    @pytest.mark.parametrize(
        ("taken", "message"),
        [
            ("torch.utils.rename_privateuse1_backend('npu')", "torch's one custom device of this process is already"),
            ("torch.xla = object()", "the device name 'xla' already has an owner in this process"),
        ],
    )
    def test_name_is_taken(self, taken: str, message: str) -> None:
        printed = run_script(
            f"import torch; {taken}\ntry:\n    import spmd\nexcept ImportError as error:\n    print(error)"
        )
        assert printed.startswith(message)


class TestWeight:
    """What takes long to import is imported at its first use: the table of plans, checkpoints, layouts by scipy."""

    LATER = (
        "scipy", "rich", "jinja2", "orbax", "tensorstore", "sympy", "networkx", "pandas", "matplotlib", "safetensors",
        "transformers", "accelerate", "lightning", "packaging", "torch._dynamo", "torch.distributed.tensor",
        "torch.distributed.checkpoint",
    )  # fmt: skip

    def test_modules(self) -> None:
        loaded = run_script("import spmd, fsdp, sys; print(*sys.modules)").split()
        assert "spmd.tools.suggestions.estimates" in loaded
        assert {name for name in self.LATER if name in loaded} == set()


class TestPackages:
    """A package under the name that documents show is the one in the folder of its kind."""

    @pytest.mark.parametrize("name", PATHS)
    def test_is_the_same(self, name: str) -> None:
        assert importlib.import_module(name) is importlib.import_module(PATHS[name])

    def test_what_is_in_it(self) -> None:
        code = """
            import spmd.planning.report
            from spmd.checkpoint import manager
            from spmd.tools.planning.report import Plan
            print(spmd.planning.report.Plan is Plan, manager.__name__, manager.__spec__.name, spmd.checkpoint.manager)
        """
        text = run_script(code)
        assert text.startswith("True spmd.jobs.checkpoint.manager spmd.jobs.checkpoint.manager <module"), text

    def test_what_is_not_in_it(self) -> None:
        with pytest.raises(ModuleNotFoundError, match=r"spmd\.checkpoint\.nothing"):
            importlib.import_module("spmd.checkpoint.nothing")
