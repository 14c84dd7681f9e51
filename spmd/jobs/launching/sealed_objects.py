"""Python objects as bytes between processes; the reader runs no code of theirs.

Unpickling runs what the sender wants, and a port of torch's or jax's takes any connection. So an
object is unpickled only with the proof of the job's secret; without one a reader makes plain
values, tensors, errors and torch's plans of a checkpoint alone.
"""

import dataclasses
import hmac
import importlib
import io
import pickle
from enum import Enum
from pathlib import Path
from traceback import StackSummary
from typing import Any

import torch

from ...core import ProcessError, variables

_PLANS = tuple(
    f"torch.distributed.checkpoint.{name}"
    for name in ("metadata", "planner", "storage", "filesystem")
)
_PLAIN = ("complex", "dict", "frozenset", "int", "list", "set", "str", "tuple")
_ERRORS = {
    error.__name__: error
    for error in (
        FileNotFoundError,
        KeyError,
        NotImplementedError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    )
}
_SEAL = 32  # bytes of a digest


class Reader(pickle.Unpickler):
    """Makes plain values, tensors, errors, paths, and the data classes of torch's checkpoints."""

    def find_class(self, module: str, name: str) -> Any:
        """Called for each name in the bytes."""
        if (module == "builtins" and name in _PLAIN) or (module, name) in _FUNCTIONS:
            return super().find_class(module, name)
        if module == "torch" and (
            name == "Size" or isinstance(getattr(torch, name, None), _OF_TORCH)
        ):
            return getattr(torch, name)
        # The path of a checkpoint, of any system; the second module is that of Python 3.13.
        if module in ("pathlib", "pathlib._local") and name in ("Path", "PosixPath", "WindowsPath"):
            return Path
        if module in _PLANS and name.isidentifier():
            kind = super().find_class(module, name)
            is_data = dataclasses.is_dataclass(kind) or (
                isinstance(kind, type) and issubclass(kind, Enum)
            )
            if is_data and kind.__module__ == module:
                return kind
        raise pickle.UnpicklingError(
            f"{module}.{name} is no part of a plain value or of a checkpoint's plan"
        )


class _Writer(pickle.Pickler):
    """Writes what `Reader` reads: tensors and errors by functions of this file."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            buffer = io.BytesIO()
            torch.save(value, buffer)
            return _tensor, (buffer.getvalue(),)
        if type(value).__name__ == "CheckpointException":
            return _failure, value.args
        if isinstance(value, BaseException):
            return _error, (type(value).__name__, str(value))
        if isinstance(value, StackSummary):
            return _stack, (
                [(frame.filename, frame.lineno, frame.name, frame.line or "") for frame in value],
            )
        return NotImplemented


def _tensor(content: bytes) -> torch.Tensor:
    tensor: torch.Tensor = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return tensor


def _failure(step: str, failures: dict[int, Any]) -> BaseException:
    api = importlib.import_module("torch.distributed.checkpoint")  # which takes long to import
    return api.CheckpointException(step, failures)


def _error(name: str, text: str) -> BaseException:
    return _ERRORS[name](text) if name in _ERRORS else RuntimeError(f"{name}: {text}")


def _stack(frames: list[tuple[str, int, str, str]]) -> StackSummary:
    return StackSummary.from_list(
        [(file, line, name, str(text)) for file, line, name, text in frames]
    )


_FUNCTIONS = {
    *((__name__, function.__name__) for function in (_tensor, _failure, _error, _stack)),
    ("torch.serialization", "_get_layout"),
}
_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)


def dumps(value: Any) -> bytes:
    """Returns the bytes of a value that `loads` reads."""
    content = io.BytesIO()
    _Writer(content).dump(value)
    return content.getvalue()


def loads(content: bytes) -> Any:
    """Returns the value of `dumps`. Raises UnpicklingError for any other class."""
    return Reader(io.BytesIO(content)).load()


def sealed(value: Any) -> bytes:
    """Returns the bytes of an object with the proof of the job's secret; without a secret, those of
    `dumps`."""
    content = pickle.dumps(value) if variables.job_secret() else dumps(value)
    return hmac.digest(variables.job_secret(), content, "sha256") + content


def opened(content: bytes) -> Any:
    """Returns the object of `sealed`; raises ProcessError for one without the secret, or of a class
    that needs one."""
    seal, body, secret = content[:_SEAL], content[_SEAL:], variables.job_secret()
    if not hmac.compare_digest(seal, hmac.digest(secret, body, "sha256")):
        raise ProcessError(
            "expected an object of this job's processes, got one without their secret: a stranger "
            "has sent it, or SPMD_JOB_SECRET differs between the processes; set it to the same in "
            "all"
        )
    if secret:
        return pickle.loads(body)
    try:
        return loads(body)
    except Exception as error:  # bytes of a stranger fail anywhere
        raise ProcessError(
            "between processes without a secret only plain values and tensors are exchanged: "
            f"{error!r}. Set SPMD_JOB_SECRET to the same random text in all processes (`python -m "
            "spmd launch` does)"
        ) from error
