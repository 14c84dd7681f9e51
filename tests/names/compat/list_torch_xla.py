"""Writes `torch_xla_2_9.tsv.gz`, the public names of a wheel of PyTorch/XLA, by reading its syntax
trees:

    pip download torch_xla==2.9.0 --no-deps
    python tests/names/compat/list_torch_xla.py torch_xla-2.9.0-*.whl

A row is module, name (`Class.method` of a class), kind and signature. Nothing else of the wheel is
read or kept.
"""

import ast
import gzip
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

LIST = Path(__file__).with_name("torch_xla_2_9.tsv.gz")
Row = tuple[str, str, str, str]


def rows(wheel: Path) -> Iterator[Row]:
    """The rows of all modules of the package."""
    with zipfile.ZipFile(wheel) as archive:
        for path in sorted(
            name
            for name in archive.namelist()
            if name.startswith("torch_xla/") and name[-3:] == ".py"
        ):
            parts = path[: -len(".py")].split("/")
            is_package = parts[-1] == "__init__"
            module = ".".join(parts[:-1] if is_package else parts)
            yield module, "", "module", ""
            tree = ast.parse(archive.read(path))
            yield from sorted(set(_of_module(module, tree, is_package=is_package)))


def _of_module(module: str, tree: ast.Module, *, is_package: bool) -> Iterator[Row]:
    for node in _top(tree.body):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield module, node.name, "function", _signature(node)
            case ast.ClassDef():
                yield from _of_class(module, node)
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (
                    (module, one.id, "constant", "") for one in targets if isinstance(one, ast.Name)
                )
            case ast.ImportFrom() if is_package and (
                node.level or (node.module or "").startswith("torch_xla")
            ):
                for alias in node.names:
                    yield (
                        module,
                        alias.asname or alias.name,
                        "import",
                        (node.module or "") if alias.name == "*" else "",
                    )
            case ast.Import() if is_package:
                yield from (
                    (module, alias.asname, "import", "") for alias in node.names if alias.asname
                )


def _top(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, those of `if` and `try` included, of
    public names."""
    for node in body:
        for nested in (
            ("body", "orelse", "handlers", "finalbody")
            if isinstance(node, ast.If | ast.Try)
            else ()
        ):
            yield from _top(getattr(node, nested, ()))
        yield node


def _of_class(module: str, node: ast.ClassDef) -> Iterator[Row]:
    yield module, node.name, "class", ""
    if any("dataclass" in ast.unparse(mark) for mark in node.decorator_list):
        fields = [
            one
            for one in node.body
            if isinstance(one, ast.AnnAssign) and "init=False" not in ast.unparse(one)
        ]
        texts = [
            ast.unparse(one.target) + (f"={_default(one.value)}" if one.value else "")
            for one in fields
        ]
        yield module, f"{node.name}.__init__", "method", ", ".join(["self", *texts])
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and (
            method.name == "__init__" or not method.name.startswith("_")
        ):
            marks = {ast.unparse(one) for one in method.decorator_list}
            kind = (
                "property"
                if any("property" in one or one.endswith(".setter") for one in marks)
                else "method"
            )
            kind = "static" if "staticmethod" in marks else kind
            yield module, f"{node.name}.{method.name}", kind, _signature(method)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The parameters without annotations, as Python writes them, `...` for a default that is no
    literal."""
    for argument in ast.walk(node.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    node.args.defaults = [
        ast.parse(_default(value), mode="eval").body for value in node.args.defaults
    ]
    node.args.kw_defaults = [
        value and ast.parse(_default(value), mode="eval").body for value in node.args.kw_defaults
    ]
    return ast.unparse(node.args)


def _default(value: ast.expr) -> str:
    try:
        return repr(ast.literal_eval(value))
    except ValueError:
        return "..."


def _is_public(row: Row) -> bool:
    name = row[1].partition(".")[0]
    return not name.startswith("_") and name != "*"


def _without_stars(found: list[Row]) -> Iterator[Row]:
    """The rows, with the public names of the module itself in the place of
    `from module import *`."""
    for module, name, kind, text in found:
        if name == "*":
            yield from (
                (module, *row[1:])
                for row in found
                if row[0] == f"{module}.{text}" and "." not in row[1]
            )
        else:
            yield module, name, kind, text


if __name__ == "__main__":
    found = [row for row in _without_stars(list(rows(Path(sys.argv[1])))) if _is_public(row)]
    lines = ["\t".join(row) for row in dict.fromkeys(found) if row[1] or row[2] == "module"]
    LIST.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    print(f"{len(lines)} rows, {LIST.stat().st_size} bytes")
