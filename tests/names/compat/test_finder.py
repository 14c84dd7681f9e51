"""`spmd.compat.install`: `import torch_xla` resolves to names of ours, which libraries find as an
installed package."""

import ast
import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, new_class
from typing import Any

import pytest
import torch
from packaging.version import parse

import fsdp
import spmd
from spmd.names.compat.torch_xla_names import HINTS, NAMES


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    spmd.compat.install()
    yield
    spmd.compat.uninstall()


class TestInstall:
    """Off unless called, idempotent, ended by uninstall, refused beside another torch_xla."""

    def test_off_unless_called(self) -> None:
        spmd.compat.uninstall()
        spmd.compat.uninstall()
        assert importlib.util.find_spec("torch_xla") is None
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("torch_xla.core.xla_model")

    def test_a_second_call_is_none(self) -> None:
        before = list(sys.meta_path)
        spmd.compat.install()
        assert sys.meta_path == before

    def test_another_one_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        spmd.compat.uninstall()
        (tmp_path / "torch_xla").mkdir()
        (tmp_path / "torch_xla" / "__init__.py").write_text("__version__ = '2.9.0'\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(
            RuntimeError, match=f"found the one of {tmp_path}.*pip uninstall torch_xla"
        ):
            spmd.compat.install()

    def test_metadata(self) -> None:
        assert importlib.util.find_spec("torch_xla") is not None
        assert importlib.util.find_spec("torch_xla.unknown") is None
        version = importlib.metadata.version("torch_xla")
        assert (
            version
            == importlib.metadata.version("torch-xla")
            == importlib.import_module("torch_xla").__version__
        )
        assert parse("2.9") <= parse(version) < parse("2.10")
        assert importlib.metadata.metadata("torch_xla")["Name"] == "torch_xla"
        assert importlib.metadata.packages_distributions()["torch_xla"] == ["torch_xla"]


class TestStateOfScripts:
    """What scripts read or clear of their modules."""

    def test_use_spmd_sets_its_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XLA_USE_SPMD", "0")
        importlib.import_module("torch_xla.runtime").use_spmd()
        assert os.environ["XLA_USE_SPMD"] == "1"

    def test_caches_and_precision(self) -> None:
        for module, name in (
            ("experimental.scan", "_SCAN_COMPUTATION_CACHE"),
            ("experimental.scan_layers", "_ONE_LAYER_CACHE"),
            ("core.xla_builder", "_JAX_TO_XLA_COMPUTATION_CACHE"),
        ):
            getattr(importlib.import_module(f"torch_xla.{module}"), name).clear()
        xlac = importlib.import_module("torch_xla")._XLAC
        xlac._xla_set_mat_mul_precision("highest")
        assert xlac._xla_get_mat_mul_precision() == "highest"

    def test_a_missing_function_of_the_cpp_module(self) -> None:
        xlac = importlib.import_module("torch_xla")._XLAC
        function = xlac._xla_set_enable_alias_with_buffer_donor_config
        with pytest.raises(NotImplementedError, match="memory of inputs that no tensor needs"):
            function(True)
        assert not hasattr(xlac, "_xla_unheard_of")
        assert xlac._init_computation_client()[0] == 0 and xlac._xla_runtime_is_initialized()

    def test_tensor_of_shards(self, mesh8: spmd.Mesh) -> None:
        make = importlib.import_module("torch_xla")._XLAC._global_tensor_from_cpu_shards
        shards, sharding = [torch.tensor([i]) for i in range(8)], mesh8.get_op_sharding(("fsdp",))
        assert make(shards, sharding).tolist() == [*range(8)]
        assert make(shards, sharding, global_shape=(7,)).tolist() == [*range(7)]

    def test_a_missing_name_that_is_imported_and_called(self) -> None:
        scope: dict[str, Any] = {}
        exec("from torch_xla.distributed.spmd import auto_policy", scope)
        with pytest.raises(NotImplementedError, match=r"spmd\.suggest compares the layouts"):
            scope["auto_policy"]("name", torch.nn.Linear(2, 2), None)
        with pytest.raises(TypeError, match="is not callable"):
            importlib.import_module("torch_xla.runtime")()


class TestNames:
    """Each name of the table is there; what is not there says what serves."""

    @pytest.mark.parametrize("module", NAMES)
    def test_all_are_there(self, module: str) -> None:
        made = importlib.import_module(module)
        for name in NAMES[module]:
            assert getattr(made, name) is getattr(importlib.import_module(module), name)
            assert name in dir(made)

    def test_are_ours(self) -> None:
        xs = importlib.import_module("torch_xla.distributed.spmd")
        assert xs.Mesh is spmd.Mesh and xs.mark_sharding.__wrapped__ is spmd.mark_sharding
        assert (
            importlib.import_module("torch_xla.distributed.fsdp").checkpoint_module
            is fsdp.checkpoint_module
        )
        torch_xla = importlib.import_module("torch_xla")
        assert (
            torch_xla.runtime.is_spmd()
            and torch_xla.core.xla_model.xla_device() == torch.device("xla:0")
        )

    def test_all_of_a_module(self) -> None:
        names: dict[str, object] = {}
        exec("from torch_xla.distributed.spmd import *", names)
        assert names["Mesh"] is spmd.Mesh and "MarkShardingFunction" in names

    def test_a_name_that_a_script_sets_stays(self) -> None:
        xm = importlib.import_module("torch_xla.core.xla_model")
        xm.optimizer_step = len  # Hugging Face's Trainer does so
        assert importlib.import_module("torch_xla").core.xla_model.optimizer_step is len

    def test_parameters_of_theirs(self) -> None:
        """Those without a meaning here are taken, others are not; what they have as defaults
        holds."""
        xm, met = (
            importlib.import_module(f"torch_xla.{name}")
            for name in ("core.xla_model", "debug.metrics")
        )
        x = torch.ones(2, device="xla")
        assert xm.all_gather(x, 0, None, None, True, 3) is xm.all_gather(value=x, channel_id=3) is x
        assert xm.all_gather_bucketized([x], bucket_cap_mb=4)[0] is x
        assert xm.reduce_scatter_bucketized("sum", [x], 0.5, 0, 1, bucket_cap_mb=4)[0].tolist() == [
            0.5,
            0.5,
        ]
        xm.all_reduce_bucketized_gradients([x], 0.5, None, False, bucket_cap_mb=4)
        assert x.tolist() == [0.5, 0.5]
        with pytest.raises(TypeError, match="unexpected keyword argument 'pin_layot'"):
            xm.all_gather(x, pin_layot=True)
        with pytest.raises(TypeError, match="missing a required argument: 'devices'"):
            xm.set_replication("xla:0")
        assert xm.set_replication("xla:0", devices=["xla:0"]) is None
        y = x + 1
        syncs = met.counter_value("MarkStep") or 0
        xm.unlazy(tensors=[y])
        assert spmd.residence(y) == "devices" and met.counter_value("MarkStep") == syncs + 1

    def test_no_name_of_both_kinds(self) -> None:
        known = {f"{module}.{name}" for module, names in NAMES.items() for name in names} | set(
            NAMES
        )
        assert known.isdisjoint(HINTS)
        assert all(
            path.rpartition(".")[0] in NAMES for path in [*HINTS, *NAMES] if path != "torch_xla"
        )

    def test_hints(self) -> None:
        fori = importlib.import_module("torch_xla.experimental.fori_loop")
        with pytest.raises(
            AttributeError, match=r"fori_loop\.fori_loop of .* is not in .*: spmd\.scan"
        ):
            _ = fori.fori_loop
        with pytest.raises(
            ModuleNotFoundError, match=r"core\.xla_modell of .*did you mean 'xla_model'\?"
        ):
            exec("import torch_xla.core.xla_modell")
        assert importlib.util.find_spec("torch_xla.distributed.xla_dist") is None
        with pytest.raises(ImportError, match=r"did you mean 'mark_step'\?"):
            exec("from torch_xla.core.xla_model import mark_stepp")
        assert not hasattr(importlib.import_module("torch_xla.core.xla_model"), "unheard_of")

    @pytest.mark.parametrize(
        "line",
        [
            "from torch_xla.experimental.fori_loop import fori_loop as it",
            "from torch_xla.experimental.scan import value_and_grad_partitioned as it",
            "from torch_xla.distributed import xla_dist as it",
            "import torch_xla.distributed.xla_dist as it",
            "from torch_xla.distributed.xla_dist import ClusterResolver as it",
            "from torch_xla.experimental.pallas_kernels.quantized import kernel as it",
        ],
    )
    def test_a_missing_name_is_imported(self, line: str) -> None:
        """The sentence comes with its use, at any line; `hasattr` sees that it is not there."""
        names: dict[str, Any] = {}
        exec(line, names)
        it = names["it"]
        assert not hasattr(it, "attribute")
        words = "of PyTorch/XLA is not in spmd.compat: "
        with pytest.raises(AttributeError, match=words):
            it.attribute  # noqa: B018
        if not isinstance(it, ModuleType):
            for use in (it, bool, list, len, lambda it: it[0], lambda it: new_class("A", (it,))):
                with pytest.raises(NotImplementedError, match=words):
                    use(it)
            with pytest.raises(NotImplementedError, match=words):
                isinstance(3, it)
            assert words in repr(it)


def _of_libraries() -> set[str]:
    """The imports of torch_xla in installed libraries: "module" or "module.name"."""
    files: list[Path] = []
    for name, patterns in {
        "accelerate": ("**/*.py",),
        "peft": ("*.py", "utils/*.py"),
        "trl": ("trainer/*.py",),
        "transformers": ("*.py", "integrations/*.py", "utils/*.py"),
        "diffusers": ("models/*.py", "utils/*.py"),
    }.items():
        found = importlib.util.find_spec(name)
        assert found is not None and found.submodule_search_locations, (
            f"{name} is missing: run make install"
        )
        files += [
            file
            for pattern in patterns
            for file in Path(found.submodule_search_locations[0]).glob(pattern)
        ]
    wanted: set[str] = set()
    for text in filter(
        lambda text: "import torch_xla" in text or "from torch_xla" in text, map(_text, files)
    ):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names if alias.name.startswith("torch_xla")}
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch_xla"):
                wanted |= {f"{node.module}.{alias.name}" for alias in node.names}
    return wanted


def _text(file: Path) -> str:
    return file.read_text(errors="ignore")


# Process groups and pods, by names that say what serves.
_REFUSED = {"torch_xla.distributed.xla_backend", "torch_xla.distributed.xla_dist"}


def test_what_libraries_import_is_there() -> None:
    wanted = _of_libraries()
    assert len(wanted) > 15, wanted
    for path in sorted(wanted - _REFUSED - {"torch_xla.__version__"}):
        assert pkgutil.resolve_name(path) is not None, path
