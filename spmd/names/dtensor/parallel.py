"""Tensor and sequence parallelism by torch's plans, whose styles become annotations."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor import parallel as styles

from ...core import Sharding, ends_at_user_line, warn
from ...mesh.device_mesh import DeviceMesh
from ...mesh.hints import did_you_mean
from ...tensors.annotate import on_device, resharded
from .distribute import distribute_tensor, mesh_or_default


@ends_at_user_line
def parallelize_module(
    module: nn.Module,
    device_mesh: Any = None,
    parallelize_plan: styles.ParallelStyle | Mapping[str, styles.ParallelStyle] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> nn.Module:
    """Shards the parameters and activations of a module by a plan, in place; returns the module.

    The module still computes with global tensors: `use_local_output` is ignored, and heads need not
    be divided by the number of devices. Over axes of the mesh's root that are not in `device_mesh`
    (data parallel) the partitioner chooses the sharding of dim 0 of activations. A submodule in the
    plan is moved to xla.

    Args:
        device_mesh: of one dim, as `mesh["tp"]`; None: the mesh of `with mesh:`. parallelize_plan:
            a style of torch's, or a dict from paths of submodules (with `*`) to styles:
            `ColwiseParallel`, `RowwiseParallel`, `SequenceParallel`, `PrepareModuleInput`,
            `PrepareModuleOutput`, `PrepareModuleInputOutput`.
        src_data_rank: accepted and ignored: one program has the full tensors.

    Warns about a path that matches no submodule. Raises ValueError for a mesh of several dims,
    NotImplementedError for a style that the module's class does not support or an unknown style,
    TypeError for another type of plan. Source:
    `torch.distributed.tensor.parallel.parallelize_module`.

    >>> import torch
    >>> from spmd.dtensor import (
    ...     ColwiseParallel,
    ...     RowwiseParallel,
    ...     init_device_mesh,
    ...     parallelize_module,
    ... )
    >>> mesh = init_device_mesh("xla", (2, 4), mesh_dim_names=("dp", "tp"))
    >>> mlp = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    >>> mlp = parallelize_module(mlp, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    >>> mlp[0].weight.placements, mlp[2].weight.placements
    ((Replicate(), Shard(dim=0)), (Replicate(), Shard(dim=1)))
    >>> mlp(torch.ones(4, 8, device="xla")).shape
    torch.Size([4, 8])
    """
    mesh = mesh_or_default(device_mesh, "parallelize_module")
    if mesh.ndim != 1:
        raise ValueError(
            f"parallelize_module: expected a mesh of one dim, got {mesh!r}; name it, as in "
            'mesh["tp"]'
        )
    match parallelize_plan:
        case None:
            warn("parallelize_module: no parallelize_plan was passed, so nothing is done")
        case styles.ParallelStyle():
            _apply(parallelize_plan, module, mesh)
        case Mapping():
            for path, style in parallelize_plan.items():
                submodules = list(_matched(module, path))
                if not submodules:
                    warn(_nowhere(module, path))
                for submodule in submodules:
                    _apply(style, submodule, mesh)
        case _:
            kind = type(parallelize_plan).__name__
            raise TypeError(
                f"parallelize_module: expected a style or a dict from paths to styles, got {kind}"
            )
    return module


def _matched(module: nn.Module, path: str) -> Iterator[nn.Module]:
    """Yields the submodules that match a path, token by token."""
    if not path:
        yield module
        return
    token, _, inner_path = path.partition(".")
    for name, child in module.named_children():
        if fnmatch(name, token):
            yield from _matched(child, inner_path)


def _nowhere(module: nn.Module, path: str) -> str:
    hint = did_you_mean(path, [name for name, _ in module.named_modules()], cutoff=0.5)
    return f"parallelize_module: {path!r} matches no submodule of {type(module).__name__}{hint}"


# --- styles ---------------------------------------------------------------------------------------

# By class of module: the placements of its parameters, column-wise or row-wise.
_ByKind = Mapping[type[nn.Module], Mapping[str, Any]]
_COLUMNS: _ByKind = {
    nn.Linear: {"weight": Shard(0), "bias": Shard(0)},
    nn.Embedding: {"weight": Shard(1)},
}
_ROWS: _ByKind = {
    nn.Linear: {"weight": Shard(1), "bias": Replicate()},
    nn.Embedding: {"weight": Shard(0)},
}


def _apply(style: Any, module: nn.Module, mesh: DeviceMesh) -> None:
    match style:
        case styles.ColwiseParallel() | styles.RowwiseParallel():
            is_rows = isinstance(style, styles.RowwiseParallel)
            _split(module, mesh, _placed(module, _ROWS if is_rows else _COLUMNS, style))
            # A row-wise weight needs a column-wise input; the ids of an embedding are replicated.
            input_placement = (
                Shard(-1) if is_rows and isinstance(module, nn.Linear) else Replicate()
            )
            _shard_input(module, mesh, (input_placement,), {})
            _shard_output(module, mesh, style.output_layouts[:1])
        case styles.SequenceParallel():
            _split(module, mesh, {})
            _shard_input(module, mesh, style.sequence_sharding, {})
            _shard_output(module, mesh, style.sequence_sharding)
        case styles.PrepareModuleInput():
            _shard_input(
                module, mesh, style.desired_input_layouts or (), style.desired_input_kwarg_layouts
            )
        case styles.PrepareModuleOutput():
            _shard_output(module, mesh, style.desired_output_layouts)
        case styles.PrepareModuleInputOutput():
            _apply(style.prepare_module_input, module, mesh)
            _apply(style.prepare_module_output, module, mesh)
        case _:
            raise NotImplementedError(
                f"parallelize_module: {type(style).__name__} is an unknown style, which works on "
                "local tensors; use distribute_module or spmd.mark_sharding instead"
            )


def _placed(module: nn.Module, by_kind: _ByKind, style: Any) -> Mapping[str, Any]:
    for kind, placements in by_kind.items():
        if isinstance(module, kind):
            return placements
    raise NotImplementedError(
        f"parallelize_module: {type(style).__name__} splits nn.Linear and nn.Embedding, got "
        f"{type(module).__name__}"
    )


def _split(module: nn.Module, mesh: DeviceMesh, placements: Mapping[str, Any]) -> None:
    """Places the parameters of a module; those without a placement are replicated."""
    module.to("xla")
    for name, parameter in module.named_parameters():
        distribute_tensor(parameter, mesh, [placements.get(name, Replicate())])


def _shard_input(
    module: nn.Module, mesh: DeviceMesh, placements: Sequence[Any], by_name: Mapping[str, Any]
) -> None:
    def before(
        owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        _same_number(owner, "inputs", args, placements)
        inputs = (*map(lay, args, placements), *args[len(placements) :])
        return inputs, {name: lay(value, by_name.get(name)) for name, value in kwargs.items()}

    lay = _layer(mesh)
    module.register_forward_pre_hook(before, with_kwargs=True)


def _shard_output(module: nn.Module, mesh: DeviceMesh, placements: Sequence[Any]) -> None:
    def after(owner: nn.Module, inputs: Any, outputs: Any) -> Any:
        if isinstance(outputs, torch.Tensor):
            return lay(outputs, placements[0])
        if type(outputs) not in (tuple, list):
            raise TypeError(
                f"{type(owner).__name__}: its output is a {type(outputs).__name__}; a plan places "
                "a tensor, or a tuple of them"
            )
        _same_number(owner, "outputs", outputs, placements)
        return type(outputs)([*map(lay, outputs, placements), *outputs[len(placements) :]])

    lay = _layer(mesh)
    module.register_forward_hook(after)


def _same_number(
    owner: nn.Module, kind: str, values: Sequence[Any], placements: Sequence[Any]
) -> None:
    if len(values) < len(placements):
        raise ValueError(
            f"{type(owner).__name__}: the plan places {len(placements)} {kind}, but there are "
            f"{len(values)}"
        )


def _layer(mesh: DeviceMesh) -> Callable[[Any, Any], Any]:
    @functools.cache  # called at each call of a module, with a few placements and ranks
    def layout(placement: Any, rank: int) -> Sharding:
        return mesh.sharding([placement], rank, None, "parallelize_module", open_batch=True)

    def lay(value: Any, placement: Any) -> Any:
        if placement is None or not isinstance(value, torch.Tensor):
            return value
        tensor = on_device(value, "parallelize_module")
        return resharded(tensor, layout(placement, tensor.dim()))

    return lay


@ends_at_user_line
@contextlib.contextmanager
def loss_parallel() -> Iterator[None]:
    """Does nothing: the partitioner by itself shards a loss over logits whose classes are sharded.

    Source: `torch.distributed.tensor.parallel.loss_parallel`.

    >>> import torch, spmd
    >>> logits = torch.zeros(4, 8).to("xla")
    >>> with spmd.dtensor.loss_parallel():
    ...     torch.nn.functional.cross_entropy(
    ...         logits, torch.zeros(4, dtype=torch.long).to("xla")
    ...     ).item()
    2.079...
    """
    yield
