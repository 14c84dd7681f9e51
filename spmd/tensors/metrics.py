"""Counters, timers and the compile log of the library."""

import jax
import numpy as np

from ..core import Collective as Collective
from ..core import CompileRecord as CompileRecord
from ..core import Move as Move
from ..core import cache
from ..core import compile_log as _compile_log
from ..core import compiler_context as _compiler_context
from ..core import counters as _counters
from .explained import explain as explain

clear = _compile_log.clear
compiles = _compile_log.compiles
counter = _counters.counter
counter_names = _counters.counter_names
fallback_ops = _counters.fallback_ops
num_compiles = _counters.num_compiles
num_loaded = _counters.num_loaded
report = _compile_log.report
timer = _counters.timer


def trivial_dispatch_seconds(repeats: int = 21) -> float:
    """Median seconds of the dispatch of a trivial program with the last step's signature (arguments
    and donation).

    On CPU the dispatch of a real step contains device work: the host's own cost is timed on a
    program that only adds one. Raises RuntimeError before the first program.

    >>> import torch, spmd
    >>> y = torch.ones(4, device="xla") + 1
    >>> spmd.sync()
    >>> spmd.metrics.trivial_dispatch_seconds() > 0
    True
    """
    program = cache.last_program()
    if program is None:
        raise RuntimeError("trivial_dispatch_seconds: no program has run yet")
    with _compiler_context():
        arguments = [
            jax.ShapeDtypeStruct(
                s.padded_shape(port.meta.shape), port.meta.struct.dtype, sharding=s.jax
            )
            for port in program.inputs
            if (s := port.sharding) is not None
        ]
        donated = tuple(range(len(arguments)))
        bump = jax.jit(
            lambda *arrays: tuple(
                array ^ True if array.dtype == bool else array + 1 for array in arrays[:-1]
            ),
            donate_argnums=donated,
            keep_unused=True,
        )
        size = sum(len(op.numbers) for op in program.entries)
        executable = bump.lower(*arguments, jax.ShapeDtypeStruct((size,), np.float64)).compile()
        state = tuple(jax.device_put(np.zeros(a.shape, a.dtype), a.sharding) for a in arguments)
        seconds = []
        for _ in range(repeats):
            jax.block_until_ready(state)
            started = _counters.now()
            state = executable(*state, np.ones(size))
            seconds.append(_counters.now() - started)
        jax.block_until_ready(state)
    return sorted(seconds)[repeats // 2]
