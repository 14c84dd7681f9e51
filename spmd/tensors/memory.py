"""The memory of values between uses: names for recompute policies, and offloading to the host's
memory."""

from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake

from ..core import HOST, XlaTensor, annotations, create, ends_at_user_line, hardware
from .annotate import on_device


@ends_at_user_line
def checkpoint_name(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Names the tensor's value; a policy of `spmd.checkpoint_policies` saves or offloads it by this
    name.

    Outside a recomputed (checkpointed) function it changes nothing. Works on every device. Source:
    `jax.ad_checkpoint.checkpoint_name`.

    >>> import torch, spmd
    >>> only = spmd.checkpoint_policies.save_only_these_names("hidden")
    >>> block = spmd.remat(lambda x: spmd.checkpoint_name(x.exp(), "hidden").sin(), policy=only)
    >>> block(torch.zeros(1, device="xla", requires_grad=True)).sum().backward()
    """
    if not isinstance(name, str):
        raise TypeError(f"checkpoint_name: expected a name as text, got {name!r}")
    return create.CHECKPOINT_NAME(tensor, name)


@ends_at_user_line
def place_to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the value in the host's memory ("pinned_host"), sharded over the devices' hosts as
    over the devices.

    Its gradient comes back to the device. Each op that reads the result transfers it to the device
    again: where several do, place it once with `place_to_device`. The transfers are part of the
    program; XLA's CPU compiler has one memory inside a program and makes no copy there, so that on
    simulated devices only the arguments and results of a program are in the other memory.

    Raises TypeError for a tensor that is not on xla. Source: `torch_xla._internal`'s
    `place_to_host`, whose gradient is not moved; `jax.device_put(x, jax.memory.Space.Host)`.

    >>> import torch, spmd
    >>> x = spmd.place_to_host(torch.ones(4, device="xla") * 2)
    >>> spmd.sync()
    >>> spmd.get_sharding(x).memory, x.tolist()
    ('pinned_host', [2.0, 2.0, 2.0, 2.0])
    """
    return create.TO_HOST(_of_xla(tensor, "place_to_host"))


@ends_at_user_line
def place_to_device(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the value in the device's memory; its gradient goes to the host's memory, as the
    tensor came from there.

    Raises TypeError for a tensor that is not on xla. Source: see `place_to_host`.

    >>> import torch, spmd
    >>> x = spmd.place_to_device(spmd.place_to_host(torch.ones(2, device="xla")))
    >>> spmd.sync()
    >>> spmd.get_sharding(x).memory
    'device'
    """
    return create.TO_DEVICE(_of_xla(tensor, "place_to_device"))


def _of_xla(tensor: torch.Tensor, caller: str) -> torch.Tensor:
    """The tensor, where its device is xla, that of a trace (`torch.export`), too."""
    is_traced = isinstance(tensor, torch.Tensor) and is_fake(tensor)
    return tensor if is_traced and tensor.device.type == "xla" else on_device(tensor, caller)


@ends_at_user_line
def offload_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Keeps an optimizer's state (moments, momentum) in the host's memory between its steps;
    returns the optimizer.

    A step's program transfers the state to the device where an update reads it, and back; it is
    updated in place there. The state is sharded over the hosts as its parameter over the devices.
    State that an optimizer holds on the CPU by itself (step counts) and scalars are not moved.

    Raises TypeError for another type. Source: ZeRO-Offload (arXiv:2101.06840).

    >>> import torch, spmd
    >>> layer = torch.nn.Linear(4, 4).to("xla")
    >>> optimizer = spmd.offload_optimizer(torch.optim.AdamW(layer.parameters()))
    >>> layer(torch.ones(2, 4, device="xla")).sum().backward()
    >>> optimizer.step()
    >>> spmd.sync()
    >>> spmd.get_sharding(optimizer.state[layer.weight]["exp_avg"]).memory
    'pinned_host'
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        hint = (
            "; of a module write fsdp.fully_shard(module, mesh=mesh, "
            "offload_policy=fsdp.CPUOffloadPolicy())"
            if isinstance(optimizer, torch.nn.Module)
            else ""
        )
        raise TypeError(
            "offload_optimizer: expected a torch.optim.Optimizer, got "
            f"{type(optimizer).__name__}{hint}"
        )
    _offload_state(optimizer)
    optimizer.register_step_post_hook(_offload_state)
    optimizer.register_load_state_dict_post_hook(_offload_state)
    return optimizer


def _offload_state(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, XlaTensor) and value.dim():
                sharding = annotations.current_sharding(value) or hardware.default_sharding()
                if sharding.memory != HOST:
                    annotations.annotate(value, sharding.with_spec(sharding.spec, HOST))
