"""`spmd.unreduced`: gradients as stacks of summands that devices have not exchanged yet."""

from collections.abc import Sequence
from typing import Any

import torch

from ..core.dispatch.unreduced import NotSeparableError, Rows
from ..core.dispatch.unreduced import unreduced as stacks_of
from ..core.lazy.threads import enter_thread
from ..mesh.mesh import Mesh
from .annotate import on_device


def unreduced(
    gradients: Sequence[torch.Tensor], mesh: Mesh, batch_axes: Sequence[str], over: Sequence[str]
) -> list[Any]:
    enter_thread()
    return stacks_of([on_device(one, "unreduced") for one in gradients], Rows(mesh.sharding((), 0), tuple(batch_axes), tuple(over)))
