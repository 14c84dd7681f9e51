"""PyTorch/XLA's experimental loops and eager mode, by the functions of this library that do the
same."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ...loops import layers as control_layers
from ...loops import scan as control_scan
from ...loops import while_loop as control_while_loop
from ...tools.debug.check import eager


def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    partition_fn: Any = None,
    is_fn_pure: bool = False,
) -> tuple[Any, Any]:
    """`spmd.scan` by PyTorch/XLA's arguments.

    partition_fn: `functorch.compile.min_cut_rematerialization_partition` is the policy "dots",
    which saves products and recomputes the rest; any other but `default_partition` warns and is
    "nothing", which recomputes all. is_fn_pure: has no meaning here.

    >>> import torch, spmd
    >>> rows = torch.arange(4.0).to("xla")
    >>> spmd.torch_xla.xla_loops.scan(lambda total, x: (total + x, total), rows[0], rows)[0].item()
    6.0
    """
    return control_scan.scan(fn, init, xs, policy=_policy(partition_fn))


def scan_layers(
    layers: Iterable[torch.nn.Module],
    input_data: Any,
    partition_fn: Any = None,
    is_layer_pure: bool = False,
) -> Any:
    """`spmd.scan_layers` by PyTorch/XLA's arguments, as `scan` of this module. A tuple is a layer's
    arguments.

    >>> import torch, spmd
    >>> layers = [torch.nn.Linear(4, 4, device="xla") for _ in range(3)]
    >>> spmd.torch_xla.xla_loops.scan_layers(layers, torch.ones(2, 4, device="xla")).shape
    torch.Size([2, 4])
    """
    of_tuples = isinstance(input_data, tuple)
    called = [_Splatted(layer) for layer in layers] if of_tuples else layers
    return control_layers.scan_layers(called, input_data, policy=_policy(partition_fn))


class _Splatted(torch.nn.Module):
    """A layer whose arguments are one tuple."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, arguments: tuple[Any, ...]) -> Any:
        return self.layer(*arguments)


def default_partition(*graphs: Any, **how: Any) -> Any:
    """The name that scripts give as `partition_fn` for autograd's own choice. Raises RuntimeError
    when it is called.

    >>> import spmd
    >>> spmd.torch_xla.xla_loops.default_partition()
    Traceback (most recent call last):
    RuntimeError: default_partition: autograd chooses what is saved; it is not called here
    """
    raise RuntimeError("default_partition: autograd chooses what is saved; it is not called here")


def _policy(partition_fn: Any) -> str | None:
    """The policy of `spmd.scan` for PyTorch/XLA's partition_fn."""
    if partition_fn is None or partition_fn is default_partition:
        return None
    function = partition_fn.func if isinstance(partition_fn, functools.partial) else partition_fn
    name = getattr(function, "__name__", repr(function))
    if name == "min_cut_rematerialization_partition":
        return "dots"
    warnings.warn(
        f"scan: partition_fn {name} is not called, backward recomputes all but the carry; policy= "
        "of spmd.scan and spmd.scan_layers names what is saved or offloaded",
        stacklevel=3,
    )
    return "nothing"


def while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Sequence[Any],
    additional_inputs: Any = (),
) -> tuple[Any, ...]:
    """`spmd.while_loop`; additional_inputs: further arguments of both functions, which stay the
    same.

    >>> import torch, spmd
    >>> start = (torch.ones((), device="xla"),)
    >>> spmd.torch_xla.xla_loops.while_loop(lambda x: x < 10, lambda x: (x * 2,), start)[0].item()
    16.0
    """
    more = tuple(additional_inputs or ())
    return control_while_loop.while_loop(
        lambda *carried: cond_fn(*carried, *more),
        lambda *carried: body_fn(*carried, *more),
        carried_inputs,
    )


_modes: list[contextlib.ExitStack] = []  # `spmd.eager` while the mode is on


def eager_mode(enable: bool) -> None:
    """Switches the mode in which each op runs as it is called (`spmd.eager`), for the calling
    thread.

    >>> import spmd
    >>> spmd.torch_xla.xla_loops.eager_mode(True)
    >>> spmd.torch_xla.xla_loops.is_eager_mode()
    True
    >>> spmd.torch_xla.xla_loops.eager_mode(False)
    """
    if enable and not _modes:
        _modes.append(contextlib.ExitStack())
        _modes[0].enter_context(eager())
    elif not enable and _modes:
        _modes.pop().close()


def is_eager_mode() -> bool:
    """True where `eager_mode(True)` has been called.

    >>> import spmd
    >>> spmd.torch_xla.xla_loops.is_eager_mode()
    False
    """
    return bool(_modes)


@contextlib.contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """A block in which the eager mode is on, or off.

    >>> import spmd
    >>> with spmd.torch_xla.xla_loops.eager_mode_context(True):
    ...     spmd.torch_xla.xla_loops.is_eager_mode()
    True
    """
    with contextlib.ExitStack() as stack:
        stack.callback(eager_mode, is_eager_mode())
        eager_mode(enable)
        yield
