"""What to write for a name of JAX, DTensor, FSDP or PyTorch/XLA that this library does not have."""

import dis
import importlib
import importlib.util
import sys
from pathlib import Path
from types import FrameType

_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


def missing(module: str, name: str, frame: FrameType) -> Exception:
    """Returns the error of a name that a module lacks, with what to write where another library has
    it.

    module: "spmd" or "fsdp". frame: of the line that reads the name. An ImportError for
    `from module import name`, which would hide the text of an AttributeError.
    """
    text, owner = f"module {module!r} has no attribute {name!r}", sys.modules[module]
    if not name.startswith("_"):
        text = "; ".join([text, *_answers(module, name)])
    if frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM:
        return ImportError(text, name=module)
    return AttributeError(text, name=name, obj=owner)


def _answers(module: str, name: str) -> list[str]:
    other = {"spmd": "fsdp", "fsdp": "spmd"}[module]
    if importlib.util.find_spec(other) and name in dir(importlib.import_module(other)):
        return [f"it is {other}.{name}"]
    rows = (Path(__file__).parent / "names.tsv").read_text().splitlines()
    return [answer for word, answer in (row.split("\t") for row in rows) if word == name][:2]
