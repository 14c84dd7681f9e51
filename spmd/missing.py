"""The errors of names that this library lacks, with what to write where another one has them: JAX,
DTensor, FSDP or PyTorch/XLA, by a table of the pages for their users."""

import dis
import sys
from pathlib import Path
from types import FrameType

_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


def missing(module: str, name: str, frame: FrameType) -> Exception:
    """Returns the error of a name that a module lacks.

    frame: of the line that reads the name. An ImportError for `from module import name`, which
    would hide the text of an AttributeError.
    """
    rows = Path(__file__).with_suffix(".tsv").read_text().splitlines()
    answers = [answer for word, answer in (row.split("\t") for row in rows) if word == name]
    text = "; ".join([f"module {module!r} has no attribute {name!r}", *answers[:2]])
    if frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM:
        return ImportError(text, name=module)
    return AttributeError(text, name=name, obj=sys.modules[module])
