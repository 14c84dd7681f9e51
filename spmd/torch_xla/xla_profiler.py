"""`torch_xla.debug.profiler` (xp) by jax's profiler: traces of what the devices and the host do, for TensorBoard."""

from typing import Any

import jax

from ..tensors.runtime import sync


class Trace(jax.profiler.TraceAnnotation):
    """A block with a name in traces.

    >>> import spmd
    >>> with spmd.torch_xla.xla_profiler.Trace("forward"):
    ...     pass
    """

    def __init__(self, name: str, **kwargs: Any):
        super().__init__(name, **kwargs)


class StepTrace(jax.profiler.StepTraceAnnotation):
    """A step with a name and a number (`step_num=`) in traces; a sync ends it.

    >>> import spmd
    >>> with spmd.torch_xla.xla_profiler.StepTrace("train", step_num=0):
    ...     pass
    """

    def __exit__(self, *error: Any) -> Any:
        if not error or error[0] is None:
            sync()
        return super().__exit__(*error)
