"""`torch_xla.compile` and `torch_xla.step`: a block or a function whose ops run as one program,
with a sync around."""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...core import DeviceData, Storage, compiled_with, config, host_reads, syncs
from ...core import options as core_options
from ...tensors.closures import on_sync
from ...tensors.runtime import sync
from ...tools.explain.forbidden import Guard
from .xla_loops import eager_mode_context


def compile(
    f: Callable[..., Any] | None = None,
    full_graph: bool = False,
    max_different_graphs: int | None = None,
    custom_compile_options: Mapping[str, Any] | None = None,
) -> Any:
    """A block (`with`) or a function whose ops run as one program: a sync before it, and one at its
    end.

    In the eager mode (`xla_loops.eager_mode`) its ops are recorded as elsewhere.

    Args:
        f: a function to decorate; None: returns a context, which is a decorator as well.
        full_graph: a sync inside is an error, and a read of a value that an op inside makes.
        max_different_graphs: the number of programs that may be compiled for the function, however
            often it is wrapped; the next one is an error.
        custom_compile_options: XLA's options, name -> value, for programs compiled for it
            (`spmd.config.compiler_options`).

    Raises RuntimeError for a sync inside with `full_graph`, `spmd.RecompileError` (a RuntimeError)
    that says what differed past `max_different_graphs`, and TypeError for an `f` that is not
    callable. Source: `torch_xla.compile`.

    >>> import torch, spmd
    >>> @spmd.torch_xla.compiled_step.compile(full_graph=True)
    ... def step(x):
    ...     return (x + 1).sum()
    >>> step(torch.ones(2, device="xla")).item()
    4.0
    """
    if f is not None and not callable(f):
        raise TypeError(f"torch_xla.compile: expected a function, got {f!r}")
    guard = None if max_different_graphs is None else _guard(f, max_different_graphs)

    @contextlib.contextmanager
    def block() -> Iterator[None]:
        sync()
        with (
            eager_mode_context(False),
            compiled_with(custom_compile_options),
            guard or contextlib.nullcontext(),
        ):
            with contextlib.ExitStack() as stack:
                if full_graph:
                    stack.enter_context(on_sync(_refuse))
                    stack.enter_context(host_reads.on_read.held(_refuse_read))
                yield
            sync()

    return block() if f is None else block()(f)


_guards: "weakref.WeakKeyDictionary[Any, Guard]" = weakref.WeakKeyDictionary()  # by function


def _guard(f: Any, max_different_graphs: int) -> Guard:
    """The guard of a function, which counts over all of its wrappers; of a block, a new one."""
    guard = Guard(max_different_graphs, allow_first=False)
    if f is not None:
        guard = _guards.setdefault(f, guard)
        guard.max_programs = max_different_graphs
    return guard


def step() -> Any:
    """A block whose ops run as one program: `compile` without arguments. Source: `torch_xla.step`.

    >>> import torch, spmd
    >>> with spmd.torch_xla.compiled_step.step():
    ...     y = torch.ones(2, device="xla") + 1
    >>> spmd.residence(y)
    'devices'
    """
    return compile()


def set_custom_compile_options(options: Mapping[str, Any]) -> None:
    """Sets XLA's options, name -> value, for all programs (`spmd.config.compiler_options`); {} for
    the usual ones.

    Source: `torch_xla.set_custom_compile_options`.

    >>> import spmd
    >>> spmd.torch_xla.compiled_step.set_custom_compile_options({})
    """
    config.compiler_options = core_options.text_of(options)


def _refuse(synced: syncs.Synced) -> None:
    if synced.num_programs:
        _raise(f"a sync, or a read of a value, at {synced.line}")


def _refuse_read(storage: Storage, text: str) -> None:
    if type(storage.value) is not DeviceData:
        _raise(f"a read of a value, {text},")


def _raise(cause: str) -> None:
    raise RuntimeError(
        f"torch_xla.compile: {cause} inside the compiled function, with full_graph=True; read it "
        "after the function"
    )
