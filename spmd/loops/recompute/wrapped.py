"""Functions around a user's function: `torch.compile` traces the calls here and finds the user's
behind them."""

import functools
from collections.abc import Callable
from typing import Any


def wrapped(
    call: Callable[..., Any], function: Callable[..., Any], *how: Any
) -> Callable[..., Any]:
    """Returns a function with the names of `function`, which calls `call(*how, function, ...)` with
    its arguments."""

    @functools.wraps(function, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return call(*how, function, *args, **kwargs)

    return wrapper
