"""`torch.Generator("xla")`: a seed of its own for draws on the device; `torch.random.fork_rng` for
one thread alone.

torch's C++ makes generators of the devices that it knows itself. Ours is a CPU generator whose
device is xla: its next number is the seed of a draw on the device that takes it (see
`base.seed.next_draw`).
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..base import seed
from ..record.calls.naming import only_device, substitute_class


class XlaGenerator(torch.Generator):
    """The class of `torch.Generator(device="xla")`.

    The same seed gives the same numbers, on any mesh.
    """

    def __new__(cls, device: torch.device | str | int = "xla") -> "XlaGenerator":
        only_device(torch.device(device))
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("xla", 0)

    def clone_state(self) -> "XlaGenerator":
        result = XlaGenerator()
        result.set_state(self.get_state())
        return result

    def __reduce__(self) -> Any:
        _, _, *state = super().__reduce__()
        return torch.Generator, (self.device,), *state


def _is_ours(*args: object, **kwargs: object) -> bool:
    """True for the arguments of `torch.Generator("xla")`."""
    device = args[0] if args else kwargs.get("device")
    is_alone = len(args) + len(kwargs) == 1
    return (
        is_alone and isinstance(device, (str, torch.device)) and torch.device(device).type == "xla"
    )


def _make(cls: type, *args: object, **kwargs: object) -> object:
    """The call of a class of generators: `torch.Generator("xla")` makes an `XlaGenerator`."""
    kind = XlaGenerator if cls is torch.Generator and _is_ours(*args, **kwargs) else cls
    return type.__call__(kind, *args, **kwargs)


def join_generators() -> None:
    """Has `torch.Generator` make generators of xla."""
    metaclass: Any = type(torch.Generator)
    if metaclass is type:
        torch.Generator = substitute_class(torch.Generator, XlaGenerator, _is_ours)  # type: ignore[misc]
    else:  # written in Python: the class itself can stay
        metaclass.__call__ = _make


_signature = functools.cache(inspect.signature)


@contextlib.contextmanager
def fork_rng(
    original: Callable[..., AbstractContextManager[None]], *args: object, **kwargs: object
) -> Iterator[None]:
    """`torch.random.fork_rng`, which forks the device's stream, too."""
    bound = _signature(original).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = bound.arguments
    forks_device = arguments["device_type"] in (None, "xla") and arguments["enabled"]
    if forks_device and arguments["devices"] is not None:
        forks_device = bool(list(arguments["devices"]))
    if forks_device:
        arguments["devices"] = []  # torch must not save and restore: it would do so for all threads
    with (
        original(*bound.args, **bound.kwargs),
        seed.fork() if forks_device else contextlib.nullcontext(),
    ):
        yield
