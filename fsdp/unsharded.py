"""`summon_full_params`: a context with unsharded parameters, for programs that edit or save them."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from .units import units_in


@contextmanager
def summon_full_params(
    module: nn.Module, *, recurse: bool = True, writeback: bool = True, with_grads: bool = False
) -> Iterator[None]:
    """A context in which the parameters of a module's units are stored unsharded.

    Values can be read and written without it, too: a tensor is always the global one, however it is sharded.

    Args:
        module: a model that is wrapped. recurse: also the units below the outermost.
        writeback: True keeps values written to parameters; False restores their former values at the end.
        with_grads: gradients, too, are unsharded in the context.

    Raises ValueError for a module without units. Source:
    `torch.distributed.fsdp.FullyShardedDataParallel.summon_full_params`.

    >>> import torch, spmd, fsdp
    >>> model = fsdp.fully_shard(torch.nn.Linear(4, 2), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> with fsdp.summon_full_params(model), torch.no_grad():
    ...     spmd.get_sharding(model.weight.zero_()).is_replicated()
    True
    """
    found = list(units_in(module))
    if not found:
        raise ValueError(f"summon_full_params: {type(module).__name__} has no units; wrap it with fsdp first")
    units = found if recurse else found[:1]
    parameters = [parameter for unit in units for parameter in unit.parameters]
    kept = [] if writeback else [parameter.detach().clone() for parameter in parameters]
    for unit in units:
        unit.unshard(with_gradients=with_grads)
    try:
        yield
    finally:
        for unit in units:
            unit.reshard(with_gradients=with_grads)
        for parameter, value in zip(parameters if kept else (), kept, strict=True):
            parameter.data = value
