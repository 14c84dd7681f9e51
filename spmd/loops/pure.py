"""`spmd.assume_pure` and `spmd.PureModule`: a function or a module that is recorded once, by the
user's promise."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..core import XlaTensor, ends_at_user_line, seed
from ..core.extend import Bounded, body
from .interop.call_jax import static_key
from .recompute.wrapped import wrapped
from .recorded_call import RecordedFunction
from .recorded_ops import of_tensors, settings, signature

_Function = TypeVar("_Function", bound=Callable[..., Any])


@ends_at_user_line
def assume_pure(fn: _Function, *, add_rng_seed_argument: bool = False) -> _Function:
    """Returns a function that runs `fn` in Python once and afterwards records it as one op, with
    its gradient.

    The call of a recorded function costs the host about as much as one op, whatever the number of
    ops in it; the program is the one that a plain call would give. It is recorded again for
    arguments of other shapes, dtypes, shardings or `requires_grad`, for another value of any
    argument that is no tensor, and under another grad mode, autocast or default dtype. `fn` must be
    pure: for equal arguments of these kinds it does the same. A number that it reads from elsewhere
    stays as it was at the recording. Tensors that it closes over are found, read again at each
    call, and get their gradients. In-place writes of arguments happen at each call; random draws
    are new ones.

    Args:
        fn: takes and returns pytrees. add_rng_seed_argument: the returned function takes
            `rng_seed`, an int, and draws from the stream of that seed alone, so that equal seeds
            give equal values.

    Raises TypeError for a static argument that cannot be hashed, or a `rng_seed` that is no int;
    NotImplementedError for a function that cannot be one op (it writes in place into a tensor that
    it closes over, returns a view of an argument), and for a gradient of the gradient; `BodyError`
    for a read of a value.
    Source: `torch_xla.experimental.assume_pure`.

    >>> import torch, spmd
    >>> @spmd.assume_pure
    ... def layer(x, w):
    ...     print("recorded")
    ...     return torch.tanh(x @ w)
    >>> x, w = torch.ones(2, 3).to("xla"), torch.zeros(3, 3).to("xla").requires_grad_()
    >>> for _ in range(2):
    ...     layer(x, w).sum().backward()
    recorded
    >>> w.grad[0].tolist()
    [4.0, 4.0, 4.0]
    """
    if not callable(fn):
        raise TypeError(f"spmd.assume_pure: expected a function, got {fn!r}")
    calls: Bounded[Any, RecordedFunction] = Bounded(64)
    if not add_rng_seed_argument:
        return wrapped(call_recorded, fn, calls)  # type: ignore[return-value]

    def seeded(*args: Any, rng_seed: int, **kwargs: Any) -> Any:
        if type(rng_seed) is not int:
            raise TypeError(f"spmd.assume_pure: expected rng_seed to be an int, got {rng_seed!r}")
        with seed.fork():
            seed.manual_seed(rng_seed)
            return call_recorded(calls, fn, *args, **kwargs)

    return functools.wraps(fn)(seeded)  # type: ignore[return-value]


def call_recorded(
    calls: Bounded[Any, RecordedFunction], fn: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Calls a function, recorded before in `calls` or now."""
    flat, tree = tree_flatten((args, kwargs))
    tensors = [value for value in flat if isinstance(value, XlaTensor)]
    if not tensors or body.names.value:
        return fn(*args, **kwargs)
    key = (tree, settings(), *map(_key, flat))
    call = calls.get(key)
    if call is None:

        def function(values: list[Any]) -> Any:
            args, kwargs = tree_unflatten(values, tree)
            return fn(*args, **kwargs)

        call = calls.keep(
            key, RecordedFunction("spmd.assume_pure", of_tensors(function, flat), tensors)
        )
    return call(tensors)


def call_plainly(calls: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls a function: in a graph of torch.compile, which records it as a part of itself."""
    return fn(*args, **kwargs)


def _key(value: Any) -> Any:
    if isinstance(value, XlaTensor):
        return signature(value)
    if isinstance(value, torch.Tensor):
        raise TypeError(
            f"spmd.assume_pure: expected tensors on xla, got one on {value.device}; move it with "
            '.to("xla") first'
        )
    return static_key("spmd.assume_pure", "an argument", value)


class PureModule(nn.Module):
    """A module that is recorded once, as by `assume_pure`: its parameters and buffers are arguments
    of the function.

    Replaced, moved or newly sharded parameters, and `train()` and `eval()`, are seen. Its state
    dict has the names of the module, behind `_module.`.

    Args:
        module: any module with tensors on xla; its forward must be pure but for writes of its
            buffers.

    Raises what `assume_pure` raises. Source: `torch_xla.experimental.assume_pure.PureModule`.

    >>> import torch, spmd
    >>> model = spmd.PureModule(torch.nn.Linear(3, 2).to("xla"))
    >>> model(torch.ones(4, 3).to("xla")).shape
    torch.Size([4, 2])
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module
        self._call = assume_pure(self._functional)

    def _functional(self, flags: Any, state: Any, args: Any, kwargs: Any) -> Any:
        return torch.func.functional_call(self._module, state, args, kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the module's results."""
        state = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        flags = tuple(module.training for module in self._module.modules())
        return self._call(flags, state, args, kwargs)
