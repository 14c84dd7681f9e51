"""Calls of lowering rules by a test, with the shardings of their operands known."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from torch._ops import OpOverload

from spmd.ops import RULES, sharded
from spmd.ops.partition import partitioned


@contextlib.contextmanager
def known(arrays: Sequence[jax.Array], shardings: Sequence[jax.NamedSharding]) -> Iterator[None]:
    """A context in which these arrays are the operands of an op that is lowered; without shardings
    none is known."""
    dims = [
        sharded.dims_in(sharding, array.shape)
        for array, sharding in zip(arrays, shardings, strict=False)
    ]
    with sharded.tracing(sharded.Facts.of(shardings)), sharded.call(arrays[: len(dims)], dims):
        yield


def rule(overload: OpOverload) -> Callable[..., Any]:
    """The op's partition rule where one applies, else its lowering rule."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        results = partitioned(overload, arguments, keywords)
        return RULES[overload].function(*arguments, **keywords) if results is None else results

    return call
