"""One run of a step: the values that it starts from, and those of its results, state, gradients and
ops."""

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import torch
from torch import nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves

from ...core import (
    DeviceData,
    Storage,
    XlaTensor,
    config,
    hardware,
    held,
    options,
    storage_of,
    swap,
    syncs,
    wrap,
)
from ...core.extend import Node, Objects, abstract_calls, reached, user_lines, walks
from ...loops.body_calls import BodyCalls, noting
from ...mesh.mesh import Mesh
from ...mesh.partition_spec import PartitionSpec
from ...rules.applied import moved
from ...rules.rules import ShardingRules
from ...tensors.annotate import mark_sharding
from ..planning.layout import refuse_sharded, roots_of, tensors_of
from ..planning.planner import ApplyRules
from .rounding import Path, paths_of, unit_of

ULPS = 16  # roundings of a neighbour's values, enough that those of its ops are others


class Inputs:
    """The tensors that a step reaches (parameters, buffers, optimizer state, arguments, others),
    and their values.

    arguments: (args, kwargs) of the step. Raises ValueError for tensors without data, and for
    models that are sharded.
    """

    def __init__(self, step: Any, arguments: Any):
        self.reachable = Objects.of_step(step, arguments)
        reached_tensors = [tensor for _, tensor in self.reachable.tensors.values()]
        for root in reached.outermost(self.reachable.of(nn.Module)):
            refuse_sharded(root, "verify", "pass the rules and meshes to it")
        self.arguments = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
        owned = [
            tensor
            for module in self.reachable.of(nn.Module)
            for tensor in (*module._parameters.values(), *module._buffers.values())
            if tensor is not None
        ]
        state = [
            leaf
            for optimizer in self.reachable.of(torch.optim.Optimizer)
            for leaf in tree_leaves(optimizer.state)
        ]
        # Numbers on the host, such as an optimizer's count of steps, are no values of the device in
        # a run either.
        extra_tensors = [
            tensor
            for tensor in (
                *(leaf for leaf in state if isinstance(leaf, torch.Tensor)),
                *reached_tensors,
            )
            if tensor.is_leaf and (tensor.dim() or isinstance(tensor, XlaTensor))
        ]
        by_id = {id(tensor): tensor for tensor in (*owned, *self.arguments, *extra_tensors)}
        self.tensors = [
            tensor for tensor in by_id.values() if tensor.layout is torch.strided and tensor.is_leaf
        ]
        varied = {id(tensor) for tensor in (*owned, *self.arguments)}
        self._varied = [
            number for number, tensor in enumerate(self.tensors) if id(tensor) in varied
        ]
        for tensor in self.tensors:
            if tensor.is_meta:
                raise ValueError(
                    "verify: expected tensors with values, got one of shape "
                    f"{tuple(tensor.shape)} on the meta device; initialise the model "
                    "(model.to_empty(device='cpu'), then its parameters) or pass data"
                )
        self.values = [tensor.detach().cpu().clone() for tensor in self.tensors]
        self.gradients = [
            None if tensor.grad is None else tensor.grad.detach().cpu().clone()
            for tensor in self.tensors
        ]

    def digest(self) -> str:
        """The SHA-256 of dtypes, shapes and bytes of all values, in the order in which they are
        reached."""
        digest = hashlib.sha256()
        for value in self.values:
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def near(self, number: int) -> list[torch.Tensor]:
        """The values themselves, for 0, or neighbours: parameters, buffers and arguments moved
        towards zero by up to `ULPS` unit roundoffs, at random, so near that the step has the same
        condition.

        They are rounded to float32, so that every run in float32 or wider starts from exactly the
        same numbers.
        """
        generator = torch.Generator().manual_seed(number)
        result = [*self.values]
        for index in self._varied:
            value = result[index]
            if value.is_floating_point() or value.is_complex():
                unit = max(unit_of(value.dtype), unit_of(torch.float32))
                part = (
                    torch.rand(value.shape, generator=generator, dtype=torch.float64) * ULPS * unit
                )
                moved_value = cast(value, torch.float64) * (1 - part if number else 1)
                result[index] = cast(moved_value, torch.float32).to(value.dtype)
        return result

    @contextlib.contextmanager
    def on_device(
        self, values: Sequence[torch.Tensor], dtype: torch.dtype | None
    ) -> Iterator[None]:
        """Gives the user's objects these values on the device for the context. dtype: of floats;
        None: their own."""
        roots = reached.outermost(self.reachable.of(nn.Module))
        with contextlib.ExitStack() as after:  # which calls the last one first
            for root in reversed(roots):
                after.callback(abstract_calls.restore_module, root)
            for tensor, value, gradient in zip(self.tensors, values, self.gradients, strict=True):
                result = cast(value, dtype).to("xla").requires_grad_(tensor.requires_grad)
                if isinstance(tensor, nn.Parameter):
                    result._is_param = True
                after.callback(swap.exchange, tensor, result)
                swap.exchange(tensor, result)
                swap.renew_hooks(tensor)
                if gradient is not None:
                    tensor.grad = cast(gradient, dtype).to("xla")
            for root in roots:
                moved(root)
            yield

    def shard_arguments(self, mesh: Mesh) -> None:
        """Shards dim 0 of the step's arguments, which are on the device by now, over the first axis
        of a mesh."""
        for tensor in self.arguments:
            if tensor.dim() and tensor.is_leaf:
                axis = next(iter(mesh.shape()))
                mark_sharding(tensor, mesh, PartitionSpec(axis, *[None] * (tensor.dim() - 1)))


def cast(value: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """A value with floats and complex numbers in another precision; other dtypes, and None, leave
    it as it is."""
    if dtype is None or not (value.is_floating_point() or value.is_complex()):
        return value
    return value.to(dtype.to_complex() if value.is_complex() else dtype)


class Name(NamedTuple):
    """A value of a step. kind: "result", "parameter" (after the step), "gradient" (as accumulated)
    or "buffer"."""

    kind: str
    path: str

    def __str__(self) -> str:
        return f"{self.kind} {self.path}".strip()


@dataclass(frozen=True)
class Layout:
    """A mesh, and the rules that shard the step's models over it (None: the step's own
    annotations)."""

    mesh: Mesh
    rules: ShardingRules | None = None
    label: str = ""

    def __str__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh.shape().items())
        return f"{axes}{self.label}"


@dataclass(frozen=True)
class RecordedValue:
    """One recorded op: its name and shapes, without those of annotations; its text with the user's
    line."""

    key: tuple[Any, ...]
    text: str
    value: torch.Tensor
    path: Path


@dataclass(frozen=True)
class Outcome:
    """The values of a run on the CPU, the path of each (see `rounding`), and its ops where these
    are requested."""

    values: dict[Name, torch.Tensor]
    paths: dict[Name, Path]
    ops: tuple[RecordedValue, ...] = ()


class Runner:
    """Runs of one step on copies of the user's objects, each from the same state and random
    streams."""

    def __init__(self, step: Callable[..., Any], args: Any, kwargs: Any, inputs: Inputs):
        self.step, self.args, self.kwargs, self.inputs = step, args, kwargs, inputs

    def run(
        self,
        layout: Layout,
        dtype: torch.dtype | None,
        *,
        partitioner: str | None = None,
        values: Sequence[torch.Tensor] | None = None,
        with_ops: bool = False,
        calls: BodyCalls | None = None,
    ) -> Outcome:
        """Runs the step once. dtype: of all floats; None: their own. values: what it starts from.
        calls: notes the calls in the bodies of manual computations."""
        with (
            abstract_calls.restored_after(self.inputs.reachable),
            # Roundings are counted along paths of ops: none may have run before the end of the
            # step.
            held(
                config,
                partitioner=partitioner or config.partitioner,
                loop_search_ops=0,
                max_pending_ops=sys.maxsize,
            ),
            options.compiled_with(_QUICK if hardware.devices()[0].platform == "cpu" else {}),
            noting(calls or BodyCalls(checks=layout.mesh.size() > 1)),
            contextlib.ExitStack() as after,
            self.inputs.on_device(self.inputs.values if values is None else values, dtype),
            layout.mesh,
        ):
            after.callback(torch.set_default_dtype, torch.get_default_dtype())
            # Floats that the step creates without a dtype are of this one.
            torch.set_default_dtype(torch.get_default_dtype() if dtype is None else dtype)
            if layout.rules is None:
                self.inputs.shard_arguments(layout.mesh)
            else:
                ApplyRules(layout.rules, layout.mesh).apply(
                    roots_of(self.inputs.reachable.of(nn.Module))
                )
            with self._gradients() as gradients:
                result = self._called(dtype if layout.mesh.size() == 1 else None)
            tensors = {**_results(result), **gradients, **self._state()}
            recorded = {
                name: storage_of(value).value
                for name, value in tensors.items()
                if isinstance(value, XlaTensor)
            }
            if layout.mesh.size() > 1:
                _refuse_unsharded(recorded.values(), layout)
            paths = {name: Path(0, unit_of(value.dtype)) for name, value in tensors.items()}
            if layout.mesh.size() == 1:  # tolerances are those of one device
                paths.update(zip(recorded, paths_of([*recorded.values()]), strict=True))
            ops = _ops(recorded.values()) if with_ops else []
            syncs.sync()
            return Outcome(
                {name: value.detach().cpu() for name, value in tensors.items()},
                paths,
                tuple(replace(op, value=op.value.detach().cpu()) for op in ops),
            )

    def _called(self, dtype: torch.dtype | None) -> Any:
        try:
            return self.step(*self.args, **self.kwargs)
        except Exception as error:
            if dtype is not None:
                error.add_note(
                    f"verify: the step's tensors are {dtype} in this run; where it mixes them "
                    "with a dtype that it names itself, take that of a tensor instead: "
                    "torch.zeros(n, dtype=x.dtype)"
                )
            raise

    def _named(self) -> Iterator[tuple[str, torch.Tensor, bool]]:
        """Yields (path, tensor, is_buffer) of the models' tensors, then of other tensors with a
        gradient."""
        roots = roots_of(self.inputs.reachable.of(nn.Module))
        visited = set()
        for number, root in enumerate(roots):
            prefix = "" if len(roots) == 1 else f"{number}.{type(root).__name__}."
            for path, tensor, is_buffer in tensors_of(root):
                visited.add(id(tensor))
                yield prefix + path, tensor, is_buffer
        unnamed_tensors = [
            tensor
            for tensor in self.inputs.tensors
            if tensor.requires_grad and id(tensor) not in visited
        ]
        for number, tensor in enumerate(unnamed_tensors):
            yield f"tensor[{number}]", tensor, False

    @contextlib.contextmanager
    def _gradients(self) -> Iterator[dict[Name, torch.Tensor]]:
        """Collects the gradients as they are accumulated: the step may clip or drop them
        afterwards."""
        gradients: dict[Name, torch.Tensor] = {}

        def note(path: str) -> Callable[[torch.Tensor], None]:
            def hook(tensor: torch.Tensor) -> None:
                if tensor.grad is not None:  # else the step's result does not depend on it
                    gradients[Name("gradient", path)] = tensor.grad.detach().clone()

            return hook

        with contextlib.ExitStack() as hooks:
            for path, tensor, _ in self._named():
                if tensor.requires_grad:
                    hooks.enter_context(tensor.register_post_accumulate_grad_hook(note(path)))
            yield gradients

    def _state(self) -> dict[Name, torch.Tensor]:
        return {
            Name("buffer" if is_buffer else "parameter", path): tensor
            for path, tensor, is_buffer in self._named()
        }


# Options with which the compiler spends less on machine code; what the partitioner does is before
# that.
_QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    # which has dropped it
    **({"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}),
}


def _results(result: Any) -> dict[Name, torch.Tensor]:
    results = {}
    for path, value in tree_flatten_with_path(result)[0]:
        if isinstance(value, (bool, int, float, complex)):
            value = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
        if isinstance(value, torch.Tensor):
            results[Name("result", keystr(path))] = value
    return results


def _refuse_unsharded(values: Any, layout: Layout) -> None:
    """Raises ValueError for a run that uses one device: comparing it would say nothing of the
    mesh."""
    nodes, inputs = walks.topological(list(values))
    shardings = [node.op.sharding for node in nodes] + [_sharding_of(data) for data in inputs]
    has_body = any(node.op.lowering.regions for node in nodes)
    if not has_body and not any(
        sharding is not None and len(sharding.device_ids) > 1 for sharding in shardings
    ):
        raise ValueError(
            f"verify: the step shards nothing over the mesh ({layout}), so that there is nothing "
            "to compare; pass rules, pass its batch as an argument, or annotate with the mesh of "
            "spmd.torch_xla.get_global_mesh()"
        )


def _sharding_of(data: DeviceData) -> Any:
    holder = data.holder() if data.holder is not None else None
    return data.sharding or (None if holder is None else holder.sharding)


# Ops that only some layouts record.
_OF_LAYOUTS = ("mark_sharding", "spmd.renew", "spmd.gather", "spmd.reshard")


def _ops(values: Any) -> list[RecordedValue]:
    """Each op that these values need, in order, with its result on the device."""
    nodes, _ = walks.topological(list(values))
    result = [
        (node, index, value)
        for node in nodes
        if node.op.name not in _OF_LAYOUTS
        and (node.op.sharding is None or node.op.lowering.regions)
        for index, value in enumerate(walks.results(node))
        if unit_of(node.op.metas[index].dtype)
    ]
    paths = paths_of([value for _, _, value in result])
    return [
        RecordedValue(
            (node.op.name, tuple(value.meta.shape), index),
            _text(node, index),
            wrap(value.meta, Storage(value, value.meta)),
            path,
        )
        for (node, index, value), path in zip(result, paths, strict=True)
    ]


def _text(node: Node, index: int) -> str:
    backward = "the backward of " if node.sequence >= 0 else ""
    return f"{node.op.name} -> {node.op.metas[index]!r}, {backward}{user_lines.node_line(node)}"
