"""spmd.plan: a step is recorded twice without data, and the second is compiled."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]  # its stub has not
from torch.utils._pytree import tree_leaves

from ..core.backend.swap import exchange
from ..core.engine import abstract
from ..core.engine.barrier import sync
from ..core.ir.graph import Graph, Leaf
from ..core.ir.meta import dense_meta
from ..core.ir.source import Line, user_line
from ..core.lazy import tensor as lazy
from ..core.lazy.cell import Cell
from ..core.lazy.tensor import XlaTensor
from ..core.pjrt import devices
from ..core.sharding.topology import Target, num_devices, standing_in
from .figures import Part, part_of
from .reach import Reached
from .report import Plan


def plan(step: Callable[..., Any], *args: Any, target: str | None = None, **kwargs: Any) -> Plan:
    """What a step takes on devices that need not be here, by the compiler itself."""
    line = user_line()
    recording, roles = _record(step, args, kwargs)
    return _compiled(recording, roles, target, line)


def _record(step: Callable[..., Any], args: Any, kwargs: Any) -> tuple[list[Graph], dict[Leaf, str]]:
    """The programs of the second of two steps, and what their inputs are."""
    layouts: dict[Any, Any] = {}
    while True:
        recording = abstract.Recording(layouts)
        reached = Reached(step, (args, kwargs))
        with abstract.recorded(recording), _put_back(reached), _without_data(reached, (args, kwargs)):
            result = step(*args, **kwargs)
            sync()
            first = len(recording.programs)
            result = step(*args, **kwargs)
            sync()
            programs = recording.programs[first:]
            roles = _roles(Reached(step, (args, kwargs)), programs)
            del result
        read = {leaf for graph in programs for leaf in graph.leaves}
        needed = {place for leaf, place in recording.unknown.items() if leaf in read}
        if not needed:
            return programs, roles
        raise NotImplementedError("unknown layouts")


@contextlib.contextmanager
def _put_back(reached: Reached) -> Iterator[None]:
    state = reached.state()
    try:
        yield
    finally:
        state.put_back()


@contextlib.contextmanager
def _without_data(reached: Reached, arguments: Any) -> Iterator[None]:
    """Modules that are not on the device stand there without data, and with them their arguments and optimizers."""
    exchanged: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        for module in reached.modules:
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None and _is_elsewhere(tensor) and not any(tensor is one for one, _ in exchanged):
                    exchanged.append((tensor, _abstract(tensor)))
                    exchange(*exchanged[-1])
        for tensor in tree_leaves(arguments):
            if isinstance(tensor, torch.Tensor) and (tensor.is_meta or (exchanged and _is_elsewhere(tensor))):
                exchanged.append((tensor, _abstract(tensor) if tensor.is_meta else tensor.detach().to("xla")))
                exchange(*exchanged[-1])
        yield
    finally:
        for tensor, made in reversed(exchanged):
            exchange(tensor, made)


def _is_elsewhere(tensor: torch.Tensor) -> bool:
    return tensor.device.type in ("meta", "cpu") and not isinstance(tensor, UninitializedTensorMixin)


def _abstract(tensor: torch.Tensor) -> XlaTensor:
    made = lazy.abstract(dense_meta(tuple(tensor.shape), tensor.dtype), devices.default_sharding())
    made.requires_grad_(tensor.requires_grad)
    if isinstance(tensor, nn.Parameter):
        made._is_param = True
    return made


def _roles(reached: Reached, programs: list[Graph]) -> dict[Any, str]:
    """What cells are: "parameters", "gradients", "optimizer state"; of others nothing is said."""
    roles: dict[Cell, str] = {}
    for optimizer in reached.optimizers:
        for state in optimizer.state.values():
            for tensor in tree_leaves(state):
                if isinstance(tensor, XlaTensor):
                    roles[tensor._cell] = "optimizer state"
    parameters = [t for m in reached.modules for t in m._parameters.values()]
    parameters += [t for optimizer in reached.optimizers for group in optimizer.param_groups for t in group["params"]]
    for tensor in parameters:
        if isinstance(tensor, XlaTensor):
            roles[tensor._cell] = "parameters"
            if isinstance(tensor.grad, XlaTensor):
                roles[tensor.grad._cell] = "gradients"
    leaves = {}
    for graph in programs:
        for leaf in graph.leaves:
            cell = leaf.holder() if leaf.holder is not None else None
            leaves[leaf] = roles.get(cell, "inputs") if cell is not None else "inputs"
    return leaves


def _compiled(programs: list[Graph], roles: dict[Any, str], target: Target, line: Line) -> Plan:
    own = {graph.mesh.target for graph in programs if graph.mesh.target is not None}
    if target is None and own:
        (target,) = own
    parts: list[Part] = []
    with standing_in(target):
        for graph in programs:
            parts.append(part_of(graph, roles, target))
    return Plan.of(parts, target=target, line=str(line))
