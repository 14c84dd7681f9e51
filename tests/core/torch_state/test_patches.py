"""Changes in other packages: a name that is missing there, or takes other parameters, breaks no
import."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest
import torch
from support import run_script

from spmd.core.torch_state import install, when_imported
from spmd.jobs import checkpoint_hooks
from spmd.jobs.frameworks.choice import PATCHES
from spmd.loops import higher_order
from spmd.loops.recompute import recompute
from spmd.mesh import device_mesh
from spmd.names import torch_words
from spmd.steps.dynamo import join_compiler

ROWS = [
    *install.AT_IMPORT,
    *install.AT_THE_FIRST_USE,
    *install.IN_A_NEW_THREAD,
    *join_compiler.PATCHES,
    checkpoint_hooks.PATCH,
    recompute.PATCH,
    *higher_order.PATCHES,
    device_mesh.PATCH,
    *torch_words.PATCHES.values(),
]


NEEDS = [
    pytest.param(row, need, id=need)
    for row in ROWS
    for need in re.findall(r"`(torch\.[^`]*)`", row.target)
]


class TestTorch:
    """Each name of torch that a patch needs."""

    @pytest.mark.parametrize(("row", "need"), NEEDS)
    def test_is_missing(
        self, row: install.Patch, need: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        owner, _, name = need.partition("(")[0].rpartition(".")
        monkeypatch.delattr(pkgutil.resolve_name(owner), name)
        with pytest.warns(UserWarning, match=re.escape(f"torch {torch.__version__}: ")) as seen:
            row._replace(put=lambda: pytest.fail("the patch is applied")).apply()
        assert len(seen) == 1 and str(seen[0].message).endswith(
            f"spmd leaves it as it is, without {row.why}"
        )

    def test_takes_other_parameters(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.nn.Module, "_apply", lambda self, fn, recurse, more: None)
        row = next(row for row in ROWS if "Module._apply" in row.target)
        before = torch.nn.Module._apply
        text = (
            r"torch.nn.Module._apply has the parameters \(self, fn, recurse, more\), expected "
            r"\(self, fn, recurse\)"
        )
        with pytest.warns(UserWarning, match=text):
            row.apply()
        assert torch.nn.Module._apply is before

    def test_a_need_that_is_not_declared(self) -> None:
        with pytest.warns(
            UserWarning,
            match=r"torch .*has no attribute 'nowhere'. spmd leaves it as it is, without x",
        ):
            when_imported.guarded(["torch.nn"], "x", lambda: torch.nowhere)


class TestFrameworks:
    """Packages of another version, without any of the names that a patch needs, imported before or
    after this one."""

    need_names = sorted(name for name, (_, *needs) in PATCHES.items() if needs)

    def warnings_of(self, lines: tuple[str, ...], folder: Path) -> list[str]:
        """The warnings of lines of a script, for which all of the packages' modules are empty."""
        for name in PATCHES:
            (folder / name.replace(".", "/")).mkdir(parents=True, exist_ok=True)
        for package in (path for path in folder.glob("**/") if path != folder):
            (package / "__init__.py").write_text('__version__ = "0.0.7"\n')
        script = [
            "import importlib, warnings",
            "with warnings.catch_warnings(record=True) as seen:",
        ]
        script += ["    " + line for line in ("warnings.simplefilter('always')", *lines)]
        script += ["for warning in seen: print(warning.message)"]
        return run_script("\n".join(script), PYTHONPATH=str(folder)).splitlines()

    @pytest.mark.parametrize("first", ["spmd", "theirs"])
    def test_use(self, first: str, tmp_path: Path) -> None:
        theirs = f"for name in {[*PATCHES]}: importlib.import_module(name)"
        ours = "import spmd; spmd.use()"
        seen = self.warnings_of((ours, theirs) if first == "spmd" else (theirs, ours), tmp_path)
        assert len(seen) == len(self.need_names), seen
        for name in self.need_names:
            start = f"{name.partition('.')[0]} 0.0.7: it has no {name}."
            assert any(
                text.startswith(start) and text.endswith("without xla as its device")
                for text in seen
            ), start

    @pytest.mark.parametrize("first", ["spmd", "theirs"])
    def test_a_script_without_the_device(self, first: str, tmp_path: Path) -> None:
        both = "import spmd", "import transformers.utils.import_utils"
        assert self.warnings_of(both if first == "spmd" else both[::-1], tmp_path) == []

    def test_recorded_calls(self, tmp_path: Path) -> None:
        lines = "import spmd, transformers.utils.import_utils", "spmd.compile(int)"
        (seen,) = self.warnings_of(lines, tmp_path)
        assert seen.startswith(
            "transformers 0.0.7: it has no transformers.utils.import_utils.is_cuda_stream_capturing"
        )


class TestModules:
    """Modules of torch that are patched when they are imported."""

    @pytest.mark.parametrize(
        ("name", "need"),
        [
            ("torch.nn.attention.flex_attention", "_validate_device"),
            ("torch.distributed.checkpoint._state_dict_stager", "StateDictStager._offload_tensor"),
            ("torch._dynamo.decorators", "mark_dynamic"),
            ("torch._dynamo.variables.builder", "infer_subclass_type"),
            ("torch._dynamo.trace_rules", "add"),
            ("torch._dynamo.backends.registry", "register_backend"),
            ("torch._subclasses.fake_tensor", "FakeTensorMode.lift_fns"),
        ],
    )
    def test_is_missing(self, name: str, need: str, monkeypatch: pytest.MonkeyPatch) -> None:
        torch.ones(1).to("xla")  # all are patched
        owner, _, attribute = f"{name}.{need}".rpartition(".")
        module = importlib.import_module(name)
        monkeypatch.delattr(pkgutil.resolve_name(owner), attribute)
        with pytest.warns(
            UserWarning, match=f"torch .*: it has no {re.escape(name)}.* without"
        ) as seen:
            for patch in when_imported._patches[name].values():
                patch(module)
        assert len(seen) == 1
