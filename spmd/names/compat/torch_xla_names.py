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
# By name, "*" for all names of a module: what serves instead.
HINTS: dict[str, str] = {}


def _read(text: str) -> None:
    """Fills the tables from the lines of the file, whose first ones say how they read."""
    module = ""
    for line in text.splitlines():
        if line.startswith("["):
            module = line[1:-1]
            NAMES[module] = {}
        elif line.startswith("="):
            NAMES[module].update(NAMES[line[2:]])
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
    path = f"spmd.torch_xla{path}" if path.startswith(".") else path
    ours = dict(pair.split("=") for pair in pairs if "==" not in pair)
    defaults = {
        key: ast.literal_eval(value)
        for key, _, value in (pair.partition("==") for pair in pairs)
        if value
    }
    return Row(path if ":" in path else f"{path}:{name}", None, ours, defaults, parameters)


_read(Path(__file__).with_name("torch_xla.txt").read_text())
