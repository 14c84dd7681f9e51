"""A file imports only what stands below it: read from the source, so that a new import cannot slip past."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted([*ROOT.glob("spmd/**/*.py"), *ROOT.glob("fsdp/**/*.py")])

# The folders from the lowest to the highest: a file imports its own folder and those before it.
CORE_FOLDERS = (
    "base", "ops", "sharding", "graph", "run.pjrt", "lower", "loop", "programs", "files", "checks",
    "passes", "record", "propagation", "run", "aten", "torch_state", "step",
)  # fmt: skip
FOLDERS = (
    *(f"spmd.core.{folder}" for folder in CORE_FOLDERS),
    "spmd.mesh", "spmd.tensors", "spmd.adaptive.padding", "spmd.adaptive",
    "spmd.loops.recompute", "spmd.loops.interop", "spmd.loops", "spmd.rules", "spmd.manual", "spmd.parallel",
    "spmd.jobs", "spmd.tools", "spmd.names", "spmd.jobs.data", "spmd.jobs.checkpoint", "spmd.jobs.launching",
    "spmd.steps", "spmd.steps.dynamo",
    "spmd.tools.processes", "spmd.tools.hlo", "spmd.tools.explain", "spmd.tools.debug", "spmd.tools.show",
    "spmd.tools.planning",
    "spmd.steps.exporting", "spmd.steps.replay", "spmd.steps.decoding",
    "spmd.tools.profiler", "spmd.tools.suggestions", "spmd.tools.verification", "spmd.tools.reports",
    "spmd.names.compat", "spmd.names.torch_xla", "spmd.names.dtensor",
    "spmd.jobs.frameworks",
)  # fmt: skip
# Folders that know values and no tensors.
BELOW_TENSORS = CORE_FOLDERS[: CORE_FOLDERS.index("record")]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def statements(path: Path) -> Iterator[tuple[ast.stmt, bool]]:
    """Every import statement of a file, and whether it stands inside a function."""

    def walk(node: ast.AST, inside: bool) -> Iterator[tuple[ast.stmt, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                yield child, inside
            yield from walk(child, inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))

    yield from walk(ast.parse(path.read_text()), False)


def called(path: Path) -> Iterator[str]:
    """The modules that a file imports by a call of importlib; a name that is computed counts by its constant start."""
    for node in ast.walk(ast.parse(path.read_text())):
        function = node.func if isinstance(node, ast.Call) else None
        if getattr(function, "attr", getattr(function, "id", None)) in ("import_module", "__import__", "imported"):
            name = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            yield name.value.rstrip("._") if isinstance(name, ast.Constant) else f"? {ast.unparse(name)}"


def imports(path: Path) -> set[str]:
    """The modules that a file imports, in full; a name imported from a package counts as its module where it is one."""
    name = module_name(path)
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set(called(path))
    for statement, _ in statements(path):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
            continue
        up = package[: len(package) - statement.level + 1] if statement.level else []
        base = ".".join([*up, *([statement.module] if statement.module else [])])
        for alias in statement.names:
            longer = f"{base}.{alias.name}"
            found.add(longer if longer in MODULES else base)
    return found


# What the table of packages imports by a call is above it.
UPWARD_BY_CALL = {("spmd.packages", "spmd"), ("spmd.packages", "spmd.jobs.frameworks.choice")}


def ours(path: Path) -> set[str]:
    """The modules of this library that a file imports."""
    found = {name for name in imports(path) if name.split(".")[0] in ("spmd", "fsdp")}
    return {name for name in found if (module_name(path), name) not in UPWARD_BY_CALL}


CORE = ROOT / "spmd" / "core"


def folder_of(name: str) -> str:
    """The folder of a module in the list of floors; a folder inside one that is not in it belongs to it."""
    parts = name.split(".") if MODULES[name].name == "__init__.py" else name.split(".")[:-1]
    folders = [".".join(parts[:size]) for size in range(len(parts), 0, -1)]
    return next((folder for folder in folders if folder in FOLDERS), folders[0])


def docstring_ranges(tree: ast.AST) -> set[int]:
    """The lines of a file that docstrings take."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            lines |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def code_lines(path: Path) -> list[str]:
    """A file's lines without docstrings and comment lines."""
    text = path.read_text()
    hidden = docstring_ranges(ast.parse(text))
    return [
        line
        for number, line in enumerate(text.splitlines(), 1)
        if number not in hidden and not line.strip().startswith("#")
    ]


class TestCore:
    """The core imports nothing from above itself, and its files import only files below them."""

    def test_imports_nothing_from_above(self) -> None:
        for path in (path for path in FILES if ROOT / "spmd" / "core" in path.parents):
            above = {name for name in ours(path) if name != "spmd.core" and not name.startswith("spmd.core.")}
            assert not above, f"{path.relative_to(ROOT)} imports {above}"

    @pytest.mark.parametrize("floor", BELOW_TENSORS)
    def test_what_takes_values_never_sees_a_tensor_class(self, floor: str) -> None:
        for name, path in MODULES.items():
            if folder_of(name) == f"spmd.core.{floor}":
                assert "XlaTensor" not in "\n".join(code_lines(path)), path

    def test_a_file_stays_short(self) -> None:
        long = {name for name, path in MODULES.items() if len(path.read_text().splitlines()) > 500}
        assert long == set()

    def test_rules_know_neither_graph_nor_tensor(self) -> None:
        for path in FILES:
            if ROOT / "spmd" / "core" / "ops" in path.parents:
                known = ("spmd.core.ops", "spmd.core.base.jax_private")
                foreign = {name for name in ours(path) if not name.startswith(known)}
                assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


class TestFolders:
    """A file imports its own folder and lower ones, by a statement or by a call; the package's door imports all."""

    def test_each_is_in_the_list(self) -> None:
        found = {folder_of(name) for name, path in MODULES.items() if path.parent != ROOT / "spmd"}
        assert {name for name in found if name not in ("fsdp", "spmd.core") and not name.startswith("fsdp.")} == set(
            FOLDERS
        )

    def test_no_file_beside_the_folders(self) -> None:
        assert {path.name for path in (ROOT / "spmd").glob("*.py")} == {"__init__.py", "__main__.py", "packages.py"}
        assert {path.name for path in CORE.glob("*.py")} == {
            "__init__.py",
            "extend.py",
            "partition_rules.py",
            "registration.py",
        }

    @pytest.mark.parametrize("folder", FOLDERS)
    def test_imports_only_lower_folders(self, folder: str) -> None:
        may = {*FOLDERS[: FOLDERS.index(folder) + 1], "spmd.core"}
        for name, path in MODULES.items():
            if folder_of(name) == folder:
                above = {found for found in ours(path) if folder_of(found) not in may}
                assert not above, f"{path.relative_to(ROOT)} imports {above} from above"


class TestUpperFloors:
    """Only meshes need folders next to the core, only FSDP those in fsdp; plans and policies touch no device."""

    def test_spmd_knows_no_fsdp(self) -> None:
        for path in FILES:
            if path.is_relative_to(ROOT / "spmd"):
                assert not {name for name in imports(path) if name.split(".")[0] == "fsdp"}, path

    def test_fsdp_reaches_spmd_through_its_door(self) -> None:
        for path in FILES:
            if path.is_relative_to(ROOT / "fsdp"):
                found = {name for name in imports(path) if name.split(".")[0] == "spmd"}
                # The class of `spmd.dtensor`, whose import of torch's DTensor would delay every `import fsdp`; notes;
                # and what scripts know by the names of another library.
                may = ("mesh.device_mesh", "mesh.notes", "mesh.global_mesh", "mesh.mesh", "tensors.bare_names")
                assert found <= {"spmd", *(f"spmd.{name}" for name in may)}, path

    @pytest.mark.parametrize(("name", "may"), [("policies", set()), ("plan", {"fsdp.library", "fsdp.policies"})])
    def test_policies_and_plans_touch_no_device(self, name: str, may: set[str]) -> None:
        path = MODULES[f"fsdp.{name}"]
        found = {module for module in imports(path) if module.split(".")[0] not in sys.stdlib_module_names}
        assert found <= may | {"torch"}, found
        taken = {
            (statement.module, alias.name)
            for statement, _ in statements(path)
            if isinstance(statement, ast.ImportFrom) and statement.module in ("torch", "spmd")
            for alias in statement.names
        }
        assert taken <= {("torch", "nn")}, taken


class TestShape:
    """No import cycle, no import inside a function, doors that only open."""

    def test_no_cycle(self) -> None:
        # A package stands for its door: whoever imports from inside a package does not import the door.
        edges = {name: ours(path) & set(MODULES) for name, path in MODULES.items()}
        done: set[str] = set()

        def visit(name: str, chain: tuple[str, ...]) -> None:
            assert name not in chain, f"import cycle: {' -> '.join([*chain, name])}"
            if name not in done:
                for below in sorted(edges[name]):
                    visit(below, (*chain, name))
                done.add(name)

        for name in sorted(edges):
            visit(name, ())

    def test_no_import_inside_a_function(self) -> None:
        inside = [f"{path.relative_to(ROOT)}:{s.lineno}" for path in FILES for s, hidden in statements(path) if hidden]
        assert not inside

    def test_doors_only_open(self) -> None:
        for path in FILES:
            if path.name == "__init__.py":
                body = [
                    node
                    for node in ast.parse(path.read_text()).body
                    if not isinstance(node, (ast.Import, ast.ImportFrom))
                ]
                if path.parent in (ROOT / "spmd", ROOT / "fsdp"):  # names of packages, imported at their first use
                    assert ast.unparse(body.pop().test) == "typing.TYPE_CHECKING"
                if path.parent == CORE / "passes":  # its lists of passes are what its door is for
                    lists = [body.pop() for _ in range(2)]
                    assert [ast.unparse(one.targets[0]) for one in lists] == ["COMPILE_PASSES", "PASSES"]
                assert len(body) == 1 and isinstance(body[0], ast.Expr), (
                    f"{path.relative_to(ROOT)} holds more than imports"
                )


class TestByCall:
    """An import by a call of importlib obeys the same rules: it is for what takes long to import, or is optional."""

    def test_is_seen(self, tmp_path: Path) -> None:
        file = tmp_path / "file.py"
        file.write_text(
            "importlib.import_module('fsdp.units')\nimport_module(f'spmd.tools.planning.{name}')\nimport_module(name)\n"
            "extras.imported('orbax.checkpoint', extra, caller)\n"
        )
        assert [*called(file)] == ["fsdp.units", "spmd.tools.planning", "? name", "orbax.checkpoint"]

    def test_names_are_written_out(self) -> None:
        computed = {(module_name(path), name) for path in FILES for name in called(path) if name.startswith("?")}
        # `import torch_xla` imports what its table names, as text, when a script asks for it; and no file by that way
        # comes to know fsdp.
        of_table = {("spmd.names.compat.finder", "? module"), ("spmd.names.compat.finder", "? path")}
        computed.remove(("spmd.packages", "? path"))  # a package under another name, by a table
        computed.remove(("spmd.core.base.extras", "? module"))  # `imported`, whose calls are seen themselves
        assert computed == {("spmd.core.torch_state.imported", "? _name"), *of_table}, computed

    def test_of_ours_only_what_imports_much(self) -> None:
        ours_by_call = {
            (module_name(path), name)
            for path in FILES
            for name in called(path)
            if name.split(".")[0] in ("spmd", "fsdp")
        }
        assert ours_by_call - UPWARD_BY_CALL == {
            ("spmd.steps.replay.compiled_function", "spmd.tools.planning.planner"),  # `warm` alone needs a plan
            ("spmd.steps.dynamo.tensors", "spmd.steps.dynamo.variables"),  # with Dynamo, which it imports
            ("spmd.tools.planning.figures", "spmd.tools.planning.step_time"),  # a CPU's plan needs no clock
            ("spmd.tools.planning.report", "spmd.tools.planning.program_files"),  # for `save_program` alone
            ("spmd.tools.planning.figures", "spmd.tools.planning.checked_marks"),  # for `check_marks=True` alone
        }  # fmt: skip


class TestOneOwner:
    """One file reads the environment, one file uploads, jax spells shardings."""

    def test_only_config_reads_the_environment(self) -> None:
        readers = {
            module_name(path) for path in FILES for line in code_lines(path) if "environ" in line or "getenv" in line
        }
        # PyTorch/XLA's helpers read what a script names, no flag of ours.
        assert readers == {"spmd.core.base.config", "spmd.names.torch_xla.script_tools"}

    def test_only_a_leaf_and_its_store_touch_a_buffer(self) -> None:
        touching = {module_name(path) for path in FILES for line in code_lines(path) if re.search(r"\.buffer\b", line)}
        assert touching == {"spmd.core.graph.store"}

    def test_only_recording_and_passes_make_nodes(self) -> None:
        makers = {
            module_name(path) for path in FILES for line in code_lines(path) if re.search(r"(?<![\w.])Node\(", line)
        }
        assert {maker for maker in makers if not maker.startswith(("spmd.core.passes.", "spmd.adaptive."))} == {
            "spmd.core.graph.graph", "spmd.core.graph.rewrite", "spmd.core.record.record",
            "spmd.core.loop.found_loop", "spmd.core.loop.updates",
            "spmd.tools.debug.nans",  # a root that flags the others
        }  # fmt: skip

    def test_only_one_file_makes_plans(self) -> None:
        own = [path for path in FILES if CORE in path.parents]  # `spmd.Plan` is another one
        makers = {
            module_name(path) for path in own for line in code_lines(path) if re.search(r"(?<![\w.])Plan\(", line)
        }
        # what `spmd.plan` answers has the same name
        assert makers - {"spmd.tools.planning.report"} == {"spmd.core.record.resolve"}

    def test_only_one_file_spells_shardings(self) -> None:
        spellers = {
            module_name(path)
            for path in FILES
            for line in code_lines(path)
            if "mhlo.sharding" in line or "sdy." in line
        }
        # groups of one layout; all else jax writes, of the layouts that `sharding` names
        assert spellers == {"spmd.core.sharding.partitioner"}

    def test_only_one_file_knows_private_names_of_jax(self) -> None:
        private = re.compile(
            r"jax\._src|jaxlib\._[a-z]|jax\.(lib|extend|experimental)[\w.]*\._|"
            r"\._(device_assignment|to_xla_hlo_sharding|logical_device_ids|executable|unloaded_executable|no_kwargs)\b"
        )
        files = [*FILES, *ROOT.glob("recipes/**/*.py")]
        knowing = {path for path in files for line in code_lines(path) if private.search(line)}
        assert knowing == {ROOT / "spmd" / "core" / "base" / "jax_private.py"}
