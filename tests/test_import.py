"""Importing the library changes nothing for a program that uses no xla tensor."""

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import run_both, run_script

import spmd
from spmd import packages
from spmd.packages import PATHS

SCRIPT = Path(__file__).with_name("cpu_programs.py")


def printed(*arguments: str) -> dict[str, str]:
    """The output of each row of the table in a process of its own."""
    # libtpu, if installed, says on stderr that it finds no TPU
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=SCRIPT.parents[1],
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    text = re.sub(r"0x[0-9a-f]+", "0x", done.stdout)
    return {row.partition("\n")[0]: row for row in text.split("\n== ")}


class TestImport:
    """torch's own behaviour, to the letter of what programs print: those that meet each patch that
    we make of torch."""

    def test_rows(self) -> None:
        without, with_us = printed(), printed("with")
        assert [*with_us] == [*without] and len(without) > 15
        differing = {
            name: (with_us[name], text) for name, text in without.items() if with_us[name] != text
        }
        assert differing == {}


class TestOtherOwners:
    """Another library with an XLA device: installed, it is left alone; imported, or the name taken,
    is one error."""

    @pytest.mark.parametrize("name", ["torch_xla", "torch_tpu"])
    def test_installed_or_imported(self, name: str, tmp_path: Path) -> None:
        (tmp_path / f"{name}.py").write_text("print('imported')")
        path = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        assert run_script(
            f"{path}import importlib.util, spmd; print(importlib.util.find_spec({name!r}).name)"
        ) == (f"{name}\n")
        printed = run_script(
            f"{path}import {name}, torch\n"
            "try:\n    import spmd\n"
            "except ImportError as error:\n    print(error, "
            "torch._C._get_privateuse1_backend_name())"
        )
        assert printed == (
            f"imported\n{name} is already imported, and torch has one XLA device per process. "
            f"Import spmd in a process that does not import {name}; where torch imports it by "
            "itself, set TORCH_DEVICE_BACKEND_AUTOLOAD=0. privateuseone\n"
        )

    @pytest.mark.parametrize(
        ("taken", "message"),
        [
            (
                "torch.utils.rename_privateuse1_backend('npu')",
                "torch's one custom device of this process is already",
            ),
            ("torch.xla = object()", "the device name 'xla' already has an owner in this process"),
        ],
    )
    def test_name_is_taken(self, taken: str, message: str) -> None:
        printed = run_script(
            f"import torch; {taken}\ntry:\n    import spmd\nexcept ImportError as error:\n    "
            "print(error)"
        )
        assert printed.startswith(message)


class TestWeight:
    """What takes long to import is imported at its first use: the table of plans, checkpoints,
    layouts by scipy."""

    LATER = (
        "scipy", "rich", "jinja2", "orbax", "tensorstore", "sympy", "networkx", "pandas",
        "matplotlib", "safetensors", "transformers", "accelerate", "lightning", "packaging",
        "torch._dynamo", "torch.distributed.tensor",
        "torch.distributed.checkpoint",
    )  # fmt: skip

    def test_modules(self) -> None:
        code = """
            import sys, spmd, fsdp

            print(*sys.modules)
            # of which all of torch's DTensor comes
            [getattr(spmd, name) for name in dir(spmd) if name != "dtensor"]
            print(*sys.modules)
        """
        first, all_names = map(str.split, run_script(code).splitlines())
        assert not [name for name in first if name.startswith(("spmd.tools.", "spmd.names."))]
        assert "spmd.tools.suggestions.search" in all_names
        assert {name for name in self.LATER if name in all_names} == set()


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

            print(
                spmd.planning.report.Plan is Plan,
                manager.__name__,
                manager.__spec__.name,
                spmd.checkpoint.manager,
            )
        """
        text = run_script(code)
        assert text.startswith(
            "True spmd.jobs.checkpoint.manager spmd.jobs.checkpoint.manager <module"
        ), text

    def test_what_is_not_in_it(self) -> None:
        with pytest.raises(ModuleNotFoundError, match=r"spmd\.checkpoint\.nothing"):
            importlib.import_module("spmd.checkpoint.nothing")

    def test_names_are_those_that_a_type_checker_sees(self) -> None:
        block = ast.parse(Path(spmd.__file__).read_text()).body[-1]
        assert isinstance(block, ast.If)
        seen = {alias.name for statement in block.body for alias in statement.names}
        assert seen == {*packages._modules}

    @pytest.mark.parametrize(
        ("wrong", "right"), [("spmd.complie", "compile"), ("fsdp.fully_shrad", "fully_shard")]
    )
    def test_a_wrong_name(self, wrong: str, right: str) -> None:
        error = run_both(f"import spmd, fsdp\n{wrong}", code=1)[1]
        assert f"Did you mean: '{right}'?" in error

    def test_all(self) -> None:
        names: dict[str, object] = {}
        exec("from spmd import *", names)
        assert (
            names["plan"] is spmd.plan
            and names["mark_sharding"] is spmd.mark_sharding
            and "_modules" not in names
        )


# What a program does that takes no name of a package, and what it prints.
TRIGGERS = {
    "torch.compile": (
        "print(torch.compile(lambda x: x * 2)(torch.ones(2, device='xla')).tolist())",
        "[2.0, 2.0]",
    ),
    "its backend": (
        (
            "print(torch.compile(lambda x: x * 2, backend='openxla')(torch.ones(2, "
            "device='xla')).tolist())"
        ),
        "[2.0, 2.0]",
    ),
    "torch.export": (
        "model = torch.nn.Linear(2, 1).to('xla')\n"
        "print(torch.export.export(model, (torch.ones(1, 2, "
        "device='xla'),)).module()(torch.ones(1, 2).to('xla')).device)",
        "xla:0",
    ),
    "torch.distributed": (
        "import torch.distributed as dist\ndist.init_process_group('xla', init_method='xla://')\n"
        "print(dist.get_backend(), dist.get_world_size())\ndist.destroy_process_group()",
        "xla 1",
    ),
    "torch.distributed.checkpoint": (
        "import tempfile, torch.distributed.checkpoint as dcp\nfolder = tempfile.mkdtemp()\n"
        "dcp.save({'x': torch.arange(3.0, device='xla')}, checkpoint_id=folder)\nx = "
        "torch.zeros(3, device='xla')\n"
        "dcp.load({'x': x}, checkpoint_id=folder)\nprint(x.tolist())",
        "[0.0, 1.0, 2.0]",
    ),
    "the compile log": (
        "x = torch.ones(8, device='xla')\nx = spmd.mark_sharding(x, spmd.Mesh(range(8), (8,), "
        "('x',)), ('x',))\n"
        "x.sum().item()\nprint(spmd.metrics.compiles()[-1].collectives)",
        "{'all-reduce': 1}",
    ),
    "a cause": (
        "for n in (2, 3):\n    print((torch.ones(n).to('xla') * 2).sum().item())\n"
        "print(spmd.metrics.compiles()[-1].cause.partition(';')[0])",
        "4.0\n6.0\nan input is now float32[3], before float32[2]",
    ),
}


class TestTriggers:
    """What an import of the library has always brought happens when it is needed, whatever is
    imported by then."""

    @pytest.mark.parametrize("name", TRIGGERS)
    def test_without_a_name_of_ours(self, name: str) -> None:
        code, printed = TRIGGERS[name]
        lines = [
            "import warnings",
            "warnings.simplefilter('ignore')",
            "import torch, spmd",
            "spmd.simulate(8)",
            code,
        ]
        assert run_script("\n".join(lines)) == f"{printed}\n"
