"""Where values are kept between uses: names for a checkpoint's policy, and the host's memory beside the device's."""

from typing import Any

import torch

from .annotate import on_device
from .core.lazy.annotate import annotate, current_sharding
from .core.lazy.tensor import XlaTensor
from .core.ops.offload import CHECKPOINT_NAME, TO_DEVICE, TO_HOST
from .core.pjrt.devices import default_sharding
from .core.sharding.value import HOST


def checkpoint_name(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """The tensor's value under a name, by which a policy of `spmd.checkpoint_policies` saves or offloads it.

    Anywhere but in a checkpointed function it changes nothing. Works on every device. Source:
    `jax.ad_checkpoint.checkpoint_name`.

    >>> import torch, spmd
    >>> only = spmd.checkpoint_policies.save_only_these_names("hidden")
    >>> block = spmd.remat(lambda x: spmd.checkpoint_name(x.exp(), "hidden").sin(), policy=only)
    >>> block(torch.zeros(1, device="xla", requires_grad=True)).sum().backward()
    """
    if not isinstance(name, str):
        raise TypeError(f"checkpoint_name: expected a name as text, got {name!r}")
    return CHECKPOINT_NAME(tensor, name)


def place_to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The same value in the host's memory ("pinned_host"), laid out over the devices' hosts as it was over the devices.

    Its gradient comes back to the device. An op that reads the result gets it on the device, each time anew: where
    several do, place it once with `place_to_device`. The transfers are part of the program; XLA's CPU compiler has one
    memory inside a program and makes no copy there, so that on simulated devices only what outlives a program, its
    arguments and results, lies in the other memory.

    Raises TypeError for a tensor that is not on xla. Source: `torch_xla._internal`'s `place_to_host`, whose gradient is
    not moved; `jax.device_put(x, jax.memory.Space.Host)`.

    >>> import torch, spmd
    >>> x = spmd.place_to_host(torch.ones(4, device="xla") * 2)
    >>> spmd.sync()
    >>> spmd.get_sharding(x).memory, x.tolist()
    ('pinned_host', [2.0, 2.0, 2.0, 2.0])
    """
    return TO_HOST(on_device(tensor, "place_to_host"))


def place_to_device(tensor: torch.Tensor) -> torch.Tensor:
    """The same value in the device's memory; its gradient goes to the host's, where the tensor came from.

    Raises TypeError for a tensor that is not on xla. Source: see `place_to_host`.

    >>> import torch, spmd
    >>> x = spmd.place_to_device(spmd.place_to_host(torch.ones(2, device="xla")))
    >>> spmd.sync()
    >>> spmd.get_sharding(x).memory
    'device'
    """
    return TO_DEVICE(on_device(tensor, "place_to_device"))


def offload_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Keeps an optimizer's state (moments, momentum) in the host's memory between its steps; returns the optimizer.

    A step's program takes the state to the device where an update reads it, and back; it is updated in place there. The
    state lies over the hosts as its parameter lies over the devices. What an optimizer holds on the CPU by itself (step
    counts) and single numbers stay where they are.

    Raises TypeError for what is no optimizer. Source: ZeRO-Offload (arXiv:2101.06840).

    >>> import torch, spmd
    >>> layer = torch.nn.Linear(4, 4).to("xla")
    >>> optimizer = spmd.offload_optimizer(torch.optim.AdamW(layer.parameters()))
    >>> layer(torch.ones(2, 4, device="xla")).sum().backward()
    >>> optimizer.step(); spmd.sync()
    >>> spmd.get_sharding(optimizer.state[layer.weight]["exp_avg"]).memory
    'pinned_host'
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"offload_optimizer: expected a torch.optim.Optimizer, got {type(optimizer).__name__}")
    _offload_state(optimizer)
    optimizer.register_step_post_hook(_offload_state)
    optimizer.register_load_state_dict_post_hook(_offload_state)
    return optimizer


def _offload_state(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for state in optimizer.state.values():
        for value in state.values():
            if type(value) is XlaTensor and value.dim():
                lies = current_sharding(value) or default_sharding()
                if lies.memory != HOST:
                    annotate(value, lies.with_spec(lies.spec, HOST))
