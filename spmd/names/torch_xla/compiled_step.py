"""`torch_xla.compile` and `torch_xla.step`: a block or a function whose ops run as one program,
with a sync around."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...core import compiled_with, config, syncs
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
        full_graph: a sync or a read of a value inside is an error.
        max_different_graphs: the number of programs that may be compiled for it; the next one is an
            error.
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
    # One for all uses: it counts.
    guard = None if max_different_graphs is None else Guard(max_different_graphs, allow_first=False)

    @contextlib.contextmanager
    def block() -> Iterator[None]:
        sync()
        with (
            eager_mode_context(False),
            compiled_with(custom_compile_options),
            guard or contextlib.nullcontext(),
        ):
            with on_sync(_refuse) if full_graph else contextlib.nullcontext():
                yield
            sync()

    return block() if f is None else block()(f)


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
        raise RuntimeError(
            f"torch_xla.compile: a sync, or a read of a value, at {synced.line} inside the "
            "compiled function, with full_graph=True; read it after the function"
        )
