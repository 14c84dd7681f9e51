"""`spmd run`: a script that was written for PyTorch/XLA, or for any device xla, run as
`python script.py` runs it."""

import builtins
import io
import os
import runpy
import sys
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import Any

from .finder import install, preload


def run(name: str, arguments: Sequence[str], *, is_module: bool = False) -> int:
    """Runs a script, or a module, as `__main__` and returns the exit status; `import torch_xla` is
    served.

    The library is loaded first, so that a folder next to the script that is called `spmd` or `fsdp`
    does not hide it. An error is printed as Python does, from the script's own frames on.
    SystemExit and KeyboardInterrupt come out.
    """
    preload()
    install()
    folder = os.getcwd() if is_module else os.path.dirname(os.path.realpath(name))
    if not sys.flags.safe_path:
        sys.path[0] = folder  # in place of this program's own
    sys.argv[:] = [name, *arguments]
    try:
        if is_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            _as_main(name)
    except Exception as error:
        error.__traceback__ = _own_frames(error.__traceback__)
        sys.last_value = error  # as Python does for a script
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _as_main(path: str) -> None:
    """Runs a file as the module `__main__`, until the process ends."""
    main: Any = ModuleType("__main__")
    main.__file__, main.__builtins__ = os.path.abspath(path), builtins
    sys.modules["__main__"] = main
    with io.open_code(main.__file__) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _own_frames(frames: TracebackType | None) -> TracebackType | None:
    """A traceback without the leading frames of this file and of runpy."""
    while frames is not None and frames.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
        frames = frames.tb_next
    return frames
