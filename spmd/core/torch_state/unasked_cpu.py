"""One warning where a framework that does not see the device moves a model from it to the CPU, to train it there."""

import sys
import warnings

from ..graph.source import outside

# The modules of frameworks that place a model where they train it; a script's own `model.cpu()` has no frame of these.
_PLACING = ("accelerate.accelerator", "transformers.trainer")
_ABOVE = ("accelerate", "transformers", "trl", "peft", "diffusers")  # whose frames stand before the user's line
_warned: list[bool] = []


def tell() -> None:
    """Warns, once in a process, where the call of `model.to`, outside torch and this library, is one that places it."""
    frame = outside(sys._getframe(1))
    while frame is not None and frame.f_code.co_name == "to":  # a model's class has its own, as transformers' have
        frame = outside(frame.f_back)
    name = "" if frame is None else str(frame.f_globals.get("__name__"))
    if _warned or name not in _PLACING:
        return
    _warned.append(True)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _ABOVE:
        frame = outside(frame.f_back)
    text = (
        f"{name.partition('.')[0]} moves the model from xla to the CPU and trains it there: call spmd.use() before the "
        "first Accelerator() or TrainingArguments(), or set ACCELERATE_TORCH_DEVICE=xla"
    )
    if frame is None:
        warnings.warn(text, stacklevel=2)
    else:
        warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)


def forget() -> None:
    """Has the next such move warn again; for tests."""
    _warned.clear()
