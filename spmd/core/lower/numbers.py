"""The scalar arguments of a loop's body, from those of the loop."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

# The increment of a scalar argument of the body per iteration (0: none); EACH: the op has one for each iteration. Or,
# as no scalar argument of the op: the integers of all iterations, by row.
EACH = None
Step = int | tuple[int, ...] | None


def by_iteration(vector: jax.Array, steps: Sequence[Step], iterations: int) -> jax.Array:
    """Returns the scalar arguments of the body, [iterations, number of them] by row, from those of the op."""
    places = np.zeros((iterations, len(steps)), np.int64)
    known = np.zeros((iterations, len(steps)), np.int64)
    start = 0
    for column, step in enumerate(steps):
        if isinstance(step, tuple):
            known[:, column] = step
            continue
        places[:, column] = start + (np.arange(iterations) if step is EACH else 0)
        start += iterations if step is EACH else 1
    is_known = [isinstance(step, tuple) for step in steps]
    if not steps or (all(is_known) and not vector.shape[0]):
        return jnp.asarray(known.astype(vector.dtype)) if steps else jnp.zeros((iterations, 0), vector.dtype)
    result = vector[places]
    if any(is_known):
        result = jnp.where(np.array(is_known), known.astype(vector.dtype), result)
    increments = [step if isinstance(step, int) else 0 for step in steps]
    if not any(increments):
        return result
    return result + np.array(increments, vector.dtype) * np.arange(iterations).astype(vector.dtype)[:, None]
