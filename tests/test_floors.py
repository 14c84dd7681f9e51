"""What import-linter's contracts in pyproject.toml cannot say: imports by a call, doors, and what
one file owns."""

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted([*ROOT.glob("spmd/**/*.py"), *ROOT.glob("fsdp/**/*.py")])


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


MODULES = {module_name(path): path for path in FILES}


def statements(path: Path) -> Iterator[tuple[ast.stmt, bool]]:
    """Every import statement of a file, and whether it stands inside a function."""

    def walk(node: ast.AST, inside: bool) -> Iterator[tuple[ast.stmt, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                yield child, inside
            yield from walk(
                child,
                inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)),
            )

    yield from walk(tree(path), False)


def called(path: Path) -> Iterator[str]:
    """The modules that a file imports by a call of importlib; a name that is computed counts by its
    constant start."""
    for node in ast.walk(tree(path)):
        function = node.func if isinstance(node, ast.Call) else None
        if getattr(function, "attr", getattr(function, "id", None)) in (
            "import_module",
            "__import__",
            "imported",
        ):
            name = (
                node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            )
            yield (
                name.value.rstrip("._")
                if isinstance(name, ast.Constant)
                else f"? {ast.unparse(name)}"
            )


# What the table of packages imports by a call is above it.
UPWARD_BY_CALL = {("spmd.packages", "spmd"), ("spmd.packages", "spmd.jobs.frameworks.choice")}
CORE = ROOT / "spmd" / "core"


def docstring_ranges(tree: ast.AST) -> set[int]:
    """The lines of a file that docstrings take."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and ast.get_docstring(node) is not None
        ):
            lines |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


@functools.cache
def code_lines(path: Path) -> list[str]:
    """A file's lines without docstrings and comment lines."""
    text = path.read_text()
    hidden = docstring_ranges(tree(path))
    return [
        line
        for number, line in enumerate(text.splitlines(), 1)
        if number not in hidden and not line.strip().startswith("#")
    ]


class TestLayers:
    """The contract of layers names every package."""

    def test_each_package_has_a_layer(self) -> None:
        contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
            "contracts"
        ]
        layers = {name for layer in contracts[0]["layers"] for name in layer.split(" : ")}
        doors = {"", "spmd", "spmd.core"}  # the packages whose own files are doors
        outside = [
            name
            for name in MODULES
            if not any(f"{name}.".startswith(f"{layer}.") for layer in layers)
        ]
        assert [name for name in outside if name.rpartition(".")[0] not in doors] == []
        assert {path.name for path in (ROOT / "spmd").glob("*.py")} == {
            "__init__.py",
            "__main__.py",
            "command_line.py",
            "missing.py",
            "packages.py",
        }


class TestShape:
    """No import inside a function, doors that only open."""

    def test_no_import_inside_a_function(self) -> None:
        inside = [
            f"{path.relative_to(ROOT)}:{s.lineno}"
            for path in FILES
            for s, hidden in statements(path)
            if hidden
        ]
        assert not inside

    def test_doors_only_open(self) -> None:
        for path in FILES:
            if path.name == "__init__.py":
                body = [
                    node
                    for node in tree(path).body
                    if not isinstance(node, (ast.Import, ast.ImportFrom))
                ]
                # names of packages, imported at their first use
                if path.parent in (ROOT / "spmd", ROOT / "fsdp"):
                    assert ast.unparse(body.pop().test) == "typing.TYPE_CHECKING"
                if path.parent == CORE / "passes":  # its lists of passes are what its door is for
                    lists = [body.pop() for _ in range(2)]
                    assert [ast.unparse(one.targets[0]) for one in lists] == [
                        "COMPILE_PASSES",
                        "PASSES",
                    ]
                assert len(body) == 1 and isinstance(body[0], ast.Expr), (
                    f"{path.relative_to(ROOT)} holds more than imports"
                )


def recursive_closures(module: ast.AST) -> Iterator[str]:
    """The names of the functions inside of functions that call themselves."""
    for outer in ast.walk(module):
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for inner in ast.walk(outer):
                if isinstance(inner, ast.FunctionDef) and inner is not outer:
                    names = {node.id for node in ast.walk(inner) if isinstance(node, ast.Name)}
                    yield from {inner.name} & names


class TestClosures:
    """A function inside of another that calls itself is a reference cycle. Tensors that it holds
    stay alive until the garbage collector runs, as results of programs that nobody reads."""

    def test_is_seen(self) -> None:
        text = "def walk(tree):\n    def visit(node):\n        return [*map(visit, node)]\n"
        assert [*recursive_closures(ast.parse(text))] == ["visit"]

    def test_none_calls_itself(self) -> None:
        found = [
            (module_name(path), name) for path in FILES for name in recursive_closures(tree(path))
        ]
        assert found == []


class TestByCall:
    """An import by a call of importlib obeys the same rules: it is for what takes long to import,
    or is optional."""

    def test_is_seen(self, tmp_path: Path) -> None:
        file = tmp_path / "file.py"
        file.write_text(
            "importlib.import_module('fsdp.units')\nimport_module(f'spmd.tools.planning.{name}')\n"
            "import_module(name)\n"
            "extras.imported('orbax.checkpoint', extra, caller)\n"
        )
        assert [*called(file)] == [
            "fsdp.units",
            "spmd.tools.planning",
            "? name",
            "orbax.checkpoint",
        ]

    def test_names_are_written_out(self) -> None:
        computed = {
            (module_name(path), name)
            for path in FILES
            for name in called(path)
            if name.startswith("?")
        }
        # `import torch_xla` imports what its table names, as text, when a script asks for it; and
        # no file by that way comes to know fsdp.
        of_table = {
            ("spmd.names.compat.finder", "? module"),
            ("spmd.names.compat.finder", "? path"),
        }
        computed.remove(("spmd.packages", "? path"))  # a package under another name, by a table
        # `imported`, whose calls are seen themselves
        computed.remove(("spmd.core.base.extras", "? module"))
        assert computed == {("spmd.core.torch_state.imported", "? _name"), *of_table}, computed

    def test_of_ours_only_what_imports_much(self) -> None:
        ours_by_call = {
            (module_name(path), name)
            for path in FILES
            for name in called(path)
            if name.split(".")[0] in ("spmd", "fsdp")
        }
        assert ours_by_call - UPWARD_BY_CALL == {
            # `warm` alone needs a plan
            ("spmd.steps.replay.compiled_function", "spmd.tools.planning.planner"),
            # with Dynamo, which it imports
            ("spmd.steps.dynamo.tensors", "spmd.steps.dynamo.variables"),
            # a CPU's plan needs no clock
            ("spmd.tools.planning.figures", "spmd.tools.planning.step_time"),
            # for `save_program` alone
            ("spmd.tools.planning.report", "spmd.tools.planning.program_files"),
            # for `check_marks=True` alone
            ("spmd.tools.planning.figures", "spmd.tools.planning.checked_marks"),
        }


class TestOneOwner:
    """One file reads the environment, one file uploads, jax spells shardings."""

    def test_only_config_reads_the_environment(self) -> None:
        readers = {
            module_name(path)
            for path in FILES
            for line in code_lines(path)
            if "environ" in line or "getenv" in line
        }
        # PyTorch/XLA's helpers read what a script names and what TPU hosts set: no flag of ours.
        assert readers == {
            "spmd.core.base.config",
            "spmd.names.torch_xla.script_tools",
            "spmd.names.torch_xla.tpu_host",
        }

    def test_only_a_leaf_and_its_store_touch_a_buffer(self) -> None:
        touching = {
            module_name(path)
            for path in FILES
            for line in code_lines(path)
            if re.search(r"\.buffer\b", line)
        }
        assert touching == {"spmd.core.graph.store"}

    def test_only_recording_and_passes_make_nodes(self) -> None:
        makers = {
            module_name(path)
            for path in FILES
            for line in code_lines(path)
            if re.search(r"(?<![\w.])Node\(", line)
        }
        assert {
            maker
            for maker in makers
            if not maker.startswith(("spmd.core.passes.", "spmd.adaptive."))
        } == {
            "spmd.core.graph.graph",
            "spmd.core.graph.rewrite",
            "spmd.core.record.record",
            "spmd.core.loop.found_loop",
            "spmd.tools.debug.nans",  # a root that flags the others
        }

    def test_only_one_file_makes_plans(self) -> None:
        own = [path for path in FILES if CORE in path.parents]  # `spmd.Plan` is another one
        makers = {
            module_name(path)
            for path in own
            for line in code_lines(path)
            if re.search(r"(?<![\w.])Plan\(", line)
        }
        # what `spmd.plan` answers has the same name
        assert makers - {"spmd.tools.planning.report"} == {
            "spmd.core.record.resolve",
            # of the op of a list's elements, which is not dispatched
            "spmd.core.record.calls.lists",
        }

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
            r"jax\._src|jaxlib\._[a-z]|jax\.(lib|extend|experimental)[\w.]*\._|\._(device_"
            r"assignment|to_xla_hlo_sharding|logical_device_ids|executable|unloaded_executable|no_"
            r"kwargs)\b"
        )
        files = [*FILES, *ROOT.glob("recipes/**/*.py")]
        knowing = {path for path in files for line in code_lines(path) if private.search(line)}
        assert knowing == {
            CORE / "base" / "jax_private.py",
            ROOT / "spmd" / "ops" / "jax_internals.py",
        }


class TestScripts:
    """A script reads the clone that it stands in, whichever is installed."""

    def test_their_clone_is_first(self) -> None:
        installed = []
        for path in [
            *ROOT.glob("recipes/**/*.py"),
            *ROOT.glob("tests/**/*.py"),
            *ROOT.glob("docs/**/*.py"),
        ]:
            text, name = path.read_text(), path.relative_to(ROOT).as_posix()
            is_command = re.search(rf"python3?\b[\w. -]* {re.escape(name)}", text) is not None
            # written by the versions before, from their own clones
            is_older = "saved_before" in name
            imported = [
                ast.unparse(statement) for statement, is_inside in statements(path) if not is_inside
            ]
            if (
                is_command
                and not is_older
                and any(re.match(r"(import|from) (spmd|fsdp)\b", line) for line in imported)
            ):
                installed += [name] if "sys.path" not in text else []
        assert installed == []
