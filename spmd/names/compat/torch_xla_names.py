"""The table of PyTorch/XLA's modules, read from `torch_xla.txt`: the target here of each name, and
hints for others.

A target is "module:attribute". `fsdp` is named as text, as this package never imports it.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Libraries compare this version: the last release of PyTorch/XLA with these names.
VERSION = "2.9.0+spmd"


@dataclass(frozen=True)
class Row:
    """The object here for a name of torch_xla: that of a target, or a value, if the target is
    empty.

    ours: their argument -> ours. defaults: of our arguments. parameters: theirs, as text; None:
    those of our function.
    """

    target: str
    value: Any
    ours: dict[str, str]
    defaults: dict[str, Any]
    parameters: str | None


# By module, name -> row.
NAMES: dict[str, dict[str, Row]] = {}
# By module, the module here that it is itself, so that what a script replaces in it acts.
MODULES: dict[str, str] = {}
# By module, what its import brings along: modules, and functions that are called.
IMPORTS: dict[str, list[str]] = {}
# By name, "*" for all names of a module: what serves instead.
HINTS: dict[str, str] = {}


def _read(text: str) -> None:
    """Fills the tables from the lines of the file, whose first ones say how they read."""
    module = ""
    for line in text.splitlines():
        if line.startswith("["):
            module, _, place = line[1:].partition("]")
            NAMES[module] = {}
            if place:
                MODULES[module] = _path(place.strip())
        elif line.startswith("="):
            NAMES[module].update(NAMES[line[2:]])
        elif line.startswith("+"):
            IMPORTS[module] = [_path(path) for path in line[2:].split()]
        elif line and line[0] != "#":
            names, sign, right = re.split(" (:|==?) ", line, maxsplit=1)
            names, bracket, parameters = names.removesuffix(")").partition("(")
            for name in names.split():
                if sign == ":":
                    HINTS[f"{module}.{name}"] = right
                else:
                    NAMES[module][name] = _row(name, sign, right, parameters if bracket else None)


def _row(name: str, sign: str, right: str, parameters: str | None) -> Row:
    if sign == "==":
        return Row("", name if right == "name" else ast.literal_eval(right), {}, {}, parameters)
    path, *pairs = right.split()
    path = _path(path)
    ours = dict(pair.split("=") for pair in pairs if "==" not in pair)
    defaults = {
        key: ast.literal_eval(value)
        for key, _, value in (pair.partition("==") for pair in pairs)
        if value
    }
    return Row(path if ":" in path else f"{path}:{name}", None, ours, defaults, parameters)


def _path(path: str) -> str:
    return f"spmd.torch_xla{path}" if path.startswith(".") else path


_read(Path(__file__).with_name("torch_xla.txt").read_text())
