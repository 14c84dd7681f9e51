"""The table of PyTorch/XLA's modules, read from `torch_xla.txt`: which name of ours, or of torch's, each name of theirs
is; and hints for others.

A place is "module:attribute". `fsdp` is named as text, as this package never imports it.
"""

import re
from pathlib import Path

# What libraries compare: the last release of PyTorch/XLA whose names these are.
VERSION = "2.9.0+spmd"

# By module, name -> place.
NAMES: dict[str, dict[str, str]] = {}
# By name, "*" for all names of a module: what serves instead.
HINTS: dict[str, str] = {}


def _read(text: str) -> None:
    """Fills the tables from the lines of the file, whose first ones say how they read."""
    shared: dict[str, str] = {}
    module = ""
    for line in text.splitlines():
        if line.startswith("["):
            module = line[1:-1]
            NAMES[module] = {}
        elif line.startswith("="):
            shared[module] = line[2:]
        elif line and line[0] != "#":
            names_text, sign, right = re.split(" (:|==?) ", line, maxsplit=1)
            names, bracket, parameters = names_text.partition("(")
            for name in names.split():
                if sign == ":":
                    HINTS[f"{module}.{name}"] = right
                else:
                    NAMES[module][name] = _place(name, sign, right) + (f" ({parameters}" if bracket else "")
    for module, other in shared.items():
        NAMES[module] = {**NAMES[other], **NAMES[module]}


def _place(name: str, sign: str, text: str) -> str:
    """The place of a name, in full."""
    if sign == "==":
        return f"= {repr(name) if text == 'name' else text}"
    path, *pairs = text.split()
    path = f"spmd.torch_xla{path}" if path.startswith(".") else path
    return " ".join([path if ":" in path else f"{path}:{name}", *pairs])


_read(Path(__file__).with_name("torch_xla.txt").read_text())
