"""State dicts of model and optimizer: torch's functions for them by the same names, also for
several processes.

`torch.distributed.checkpoint.state_dict` works with sharded models in one process. The functions
here gather a full state dict over all processes, and load an optimizer's state without the step
that torch takes to allocate it. `fsdp` does not import this module, as torch's takes two seconds to
import: `from fsdp.state_dict import get_model_state_dict`.
"""

# Why not torch's functions alone: they gather a full tensor within a process group, and have an
# optimizer take a step of zeros to allocate the state that they load into; that step would be a
# program of its own.

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as theirs
from torch.distributed.checkpoint.state_dict import StateDictOptions as StateDictOptions
from torch.nn.modules.module import _IncompatibleKeys
from torch.utils._pytree import tree_map_only

import spmd
from spmd.mesh.notes import ends_at_user_line

from .units import names_by_id

StateDict = dict[str, Any]
State = Mapping[str, Any]
Keys = _IncompatibleKeys  # (missing_keys, unexpected_keys)
Options = StateDictOptions | None
Modules = set[nn.Module] | None
Optimizers = torch.optim.Optimizer | Iterable[torch.optim.Optimizer]


@ends_at_user_line
def get_model_state_dict(
    model: nn.Module, *, submodules: Modules = None, options: Options = None
) -> StateDict:
    """The model's state dict, under the names that it had before it was wrapped.

    Without options it is sharded: the tensors with their shardings, of which
    `torch.distributed.checkpoint.save` writes the shards of each process. `full_state_dict=True`:
    plain CPU tensors, in every process; with `cpu_offload=True` in addition in the first process
    alone, and an empty state dict in the others. All processes must call it. `ignore_frozen_params`
    and the other options are as in torch.

    >>> import torch, spmd, fsdp
    >>> from fsdp.state_dict import StateDictOptions, get_model_state_dict
    >>> model = fsdp.FullyShardedDataParallel(
    ...     torch.nn.Linear(4, 1), spmd.Mesh([0], (1,), ("fsdp",))
    ... )
    >>> get_model_state_dict(model)["weight"].device.type
    'xla'
    >>> get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))[
    ...     "weight"
    ... ].device.type
    'cpu'
    """
    return _gathered(options, theirs.get_model_state_dict, model, submodules=submodules)


@ends_at_user_line
def get_optimizer_state_dict(
    model: nn.Module, optimizers: Optimizers, *, submodules: Modules = None, options: Options = None
) -> StateDict:
    """The optimizers' state by the names of parameters, sharded or full as in
    `get_model_state_dict`.

    As in torch, a new optimizer first takes a step that changes nothing, which creates its state.

    >>> import torch, spmd, fsdp
    >>> model = fsdp.fully_shard(torch.nn.Linear(8, 8), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> sorted(fsdp.state_dict.get_optimizer_state_dict(model, optimizer))
    ['param_groups', 'state']
    """
    return _gathered(
        options, theirs.get_optimizer_state_dict, model, optimizers, submodules=submodules
    )


@ends_at_user_line
def get_state_dict(
    model: nn.Module, optimizers: Optimizers, *, submodules: Modules = None, options: Options = None
) -> tuple[StateDict, StateDict]:
    """The state dicts of a model and of its optimizers: (`get_model_state_dict`,
    `get_optimizer_state_dict`).

    >>> import torch, spmd, fsdp
    >>> model = fsdp.fully_shard(torch.nn.Linear(8, 8), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> of_model, of_optimizer = fsdp.state_dict.get_state_dict(
    ...     model, torch.optim.Adam(model.parameters())
    ... )
    >>> list(of_model)
    ['weight', 'bias']
    """
    return (
        get_model_state_dict(model, submodules=submodules, options=options),
        get_optimizer_state_dict(model, optimizers, submodules=submodules, options=options),
    )


@ends_at_user_line
def set_model_state_dict(
    model: nn.Module, model_state_dict: StateDict, *, options: Options = None
) -> Keys:
    """Loads a model's state, full or sharded; each tensor of the model keeps its sharding.

    Returns (missing_keys, unexpected_keys). Every process passes the same full state dict: a state
    dict of the first process alone (`broadcast_from_rank0`) is better read by
    `spmd.load_checkpoint`, which reads in each process its own shards.

    >>> import torch, spmd, fsdp
    >>> model = fsdp.fully_shard(torch.nn.Linear(8, 8), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> fsdp.state_dict.set_model_state_dict(model, fsdp.state_dict.get_model_state_dict(model))
    <All keys matched successfully>
    """
    return model.load_state_dict(model_state_dict, strict=_of_all_processes(options).strict)


@ends_at_user_line
def set_optimizer_state_dict(
    model: nn.Module, optimizers: Optimizers, optim_state_dict: State, *, options: Options = None
) -> None:
    """Loads the optimizers' state from the result of `get_optimizer_state_dict`, here or in plain
    torch.

    State takes the sharding of its parameter, whatever mesh it was saved on. Raises ValueError
    where the groups of an optimizer and those of the state differ.

    >>> import torch, spmd, fsdp
    >>> model = fsdp.fully_shard(torch.nn.Linear(8, 8), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> state = fsdp.state_dict.get_optimizer_state_dict(model, optimizer)
    >>> fsdp.state_dict.set_optimizer_state_dict(model, optimizer, state)
    """
    options = _of_all_processes(options)
    optimizers = (
        (optimizers,) if isinstance(optimizers, torch.optim.Optimizer) else tuple(optimizers)
    )
    if "state" not in optim_state_dict or "param_groups" not in optim_state_dict:
        # Flattened (`flatten_optimizer_state_dict`): torch itself cannot load that with
        # `full_state_dict=True`.
        theirs.set_optimizer_state_dict(
            model, optimizers, dict(optim_state_dict), options=_sharded(options)
        )
        return
    names = names_by_id(model)
    for optimizer in optimizers:
        optimizer.load_state_dict(_of_optimizer(optimizer, names, optim_state_dict))


@ends_at_user_line
def set_state_dict(
    model: nn.Module,
    optimizers: Optimizers,
    *,
    model_state_dict: StateDict,
    optim_state_dict: State,
    options: Options = None,
) -> Keys:
    """Loads the state of a model and of its optimizers; returns (missing_keys, unexpected_keys) of
    the model.

    >>> import torch, spmd, fsdp
    >>> model = fsdp.fully_shard(torch.nn.Linear(8, 8), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> of_model, of_optimizer = fsdp.state_dict.get_state_dict(model, optimizer)
    >>> fsdp.state_dict.set_state_dict(
    ...     model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer
    ... )
    <All keys matched successfully>
    """
    keys = set_model_state_dict(model, model_state_dict, options=options)
    set_optimizer_state_dict(model, optimizers, optim_state_dict, options=options)
    return keys


def _sharded(options: StateDictOptions) -> StateDictOptions:
    """Clears the options of a full state dict: torch neither gathers nor moves tensors."""
    return dataclasses.replace(
        options,
        full_state_dict=False,
        cpu_offload=options.cpu_offload and not options.full_state_dict,
    )


def _gathered(
    options: Options, get: Callable[..., StateDict], *args: object, **kwargs: object
) -> StateDict:
    """The result of a function of torch's, gathered over all processes if the options ask for a
    full state dict."""
    options = options or StateDictOptions()
    state = get(*args, options=_sharded(options), **kwargs)
    if not options.full_state_dict:
        return state
    keeps_tensors = not options.cpu_offload or spmd.process_index() == 0

    def full(tensor: torch.Tensor) -> torch.Tensor | None:
        # An optimizer increments its step counts on the CPU in place: the state is a copy of their
        # present values.
        copy = spmd.full_tensor(tensor) if tensor.device.type == "xla" else tensor.detach().clone()
        # The other processes free each full tensor before the next is gathered.
        return copy if keeps_tensors else None

    state = tree_map_only(torch.Tensor, full, state)  # a collective: every process takes part
    return state if keeps_tensors else {}


def _of_all_processes(options: Options) -> StateDictOptions:
    """The options; raises NotImplementedError for a state dict of the first process alone."""
    options = options or StateDictOptions()
    if options.broadcast_from_rank0:
        raise NotImplementedError(
            "broadcast_from_rank0: give every process the state dict, or the file to "
            "spmd.load_checkpoint, which reads in each process only its own shards"
        )
    return options


def _of_optimizer(
    optimizer: torch.optim.Optimizer, names: Mapping[int, list[str]], state: State
) -> StateDict:
    """One optimizer's part of a state by names, in the form of its `load_state_dict`: by the
    indices of parameters."""
    values: dict[int, object] = {}
    groups = []
    for group, numbered in zip(
        optimizer.param_groups, optimizer.state_dict()["param_groups"], strict=True
    ):
        group_names = [names.get(id(parameter), []) for parameter in group["params"]]
        groups.append(
            {**_group_of(group_names, state["param_groups"]), "params": numbered["params"]}
        )
        for number, parameter_names in zip(numbered["params"], group_names, strict=True):
            values.update(
                (number, state["state"][name]) for name in parameter_names if name in state["state"]
            )
    return {"state": values, "param_groups": groups}


def _group_of(group_names: list[list[str]], groups: list[State]) -> StateDict:
    """The group of a saved state with the parameters of these names, without its "params".
    group_names: all names of each parameter; a tied one has several."""
    for group in groups:
        saved_names = {*group["params"]}
        if group_names and all(saved_names & {*names} for names in group_names):
            return {name: value for name, value in group.items() if name != "params"}
    raise ValueError(
        "set_optimizer_state_dict: expected a group with the parameters "
        f"{[names[:1] for names in group_names[:4]]} of the optimizer, got groups of "
        f"{[list(group['params'])[:4] for group in groups]}; make the optimizer with the groups "
        "that were saved, of the model's own parameters"
    )
