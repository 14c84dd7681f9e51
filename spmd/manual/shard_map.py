"""`spmd.shard_map`: per-shard PyTorch code over named mesh axes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import SUPPORTED_NODES, keystr, tree_flatten, tree_flatten_with_path

from ..core import Sharding, XlaTensor, ends_at_user_line
from ..loops.body_calls import body_calls
from ..loops.gradient import sharding_of
from ..loops.manual_lowering import Boundary, Cut
from ..loops.recompute.wrapped import wrapped
from ..loops.scan import refilled, tensors_of
from ..mesh.global_mesh import get_global_mesh
from ..mesh.mesh import Mesh
from ..mesh.partition_spec import UNCONSTRAINED, PartitionSpec
from ..mesh.placements import are_placements
from . import functional_collectives
from .manual_computation import ShardResult, run_manual
from .manual_steps import ManualStep, untracked


@ends_at_user_line
def shard_map(
    fn: Callable[..., Any] | None = None,
    mesh: Mesh | None = None,
    in_specs: Any = None,
    out_specs: Any = None,
    *,
    axis_names: Any = None,
    check_vma: bool = True,
) -> Callable[..., Any]:
    """Returns a function that runs `fn` on every shard of a mesh: it splits the arguments and joins
    the results.

    `fn` is plain PyTorch over one shard's tensors; it is recorded once and communicates with the
    other shards by `spmd.manual.all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`,
    `collective_permute`, `broadcast` over the mesh's axes. Tensors it closes over are replicated.
    Gradients reach the arguments and the closed-over tensors; those of tensors that several shards
    have in full are summed over these shards.

    Args:
        fn: takes and returns pytrees of tensors on xla; other values in its arguments are passed
            on. Without fn, this is a decorator.
        mesh: the mesh; None: that of `with mesh:` or `spmd.torch_xla.set_global_mesh`, else the
            mesh of the arguments.
        in_specs: for each argument a spec, or a pytree of specs that is a prefix of it; P() or
            None: replicated. A spec may be shorter than the tensor has dims. One spec is for all
            arguments.
        out_specs: the same for the result: the dim along which the shards' results are joined over
            an axis; over an axis that is not named they must be the same, and one is taken.
        axis_names: the axes that are manual; None: all. Over the others a shard's tensor is still a
            global tensor, which the partitioner goes on to split.
        check_vma: raise for a result that may differ between shards where out_specs has it the
            same.

    Random numbers are each shard's own, except for `dropout` of a value that is the same on all
    shards: there all drop the same. The first shard draws the numbers of a program without a mesh.

    Raises ValueError for specs that do not fit (the axis, the rank, the structure, a dim that the
    shards do not divide) and for results that may differ, TypeError for tensors that are not on
    xla, NotImplementedError for writes into the arguments, for `.backward()` inside, and for a
    gradient of the gradient.
    Source: `jax.shard_map`.

    >>> import torch, spmd
    >>> from spmd import P
    >>> mesh = spmd.Mesh([0], (1,), ("model",))
    >>> def row_parallel(x, w):
    ...     return spmd.manual.all_reduce(x @ w, "sum", "model")
    >>> matmul = spmd.shard_map(row_parallel, mesh, (P(None, "model"), P("model", None)), P())
    >>> matmul(torch.ones(2, 4, device="xla"), torch.ones(4, 3, device="xla")).tolist()
    [[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]]
    """
    if fn is None:
        return functools.partial(
            shard_map,
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=axis_names,
            check_vma=check_vma,
        )
    if not callable(fn):
        raise TypeError(f"spmd.shard_map: expected a function, got {fn!r}")

    return wrapped(call_on_shards, fn, mesh, in_specs, out_specs, axis_names, check_vma)


@ends_at_user_line
def enable_manual_sharding(tensor: Any, partition_spec: Any, *, mesh: Mesh | None = None) -> Any:
    """Returns one shard's part of a tensor, with its shape; each shard applies the ops on it to its
    own part.

    The manual computation ends at `disable_manual_sharding`. All axes of the mesh are manual. The
    function is PyTorch/ XLA's; `shard_map` does the same as one function, keeps the tensors that
    autograd has saved for backward (here backward computes them again) and checks more. The result
    has no value to read, and no sync runs it; the collectives such as `spmd.manual.all_reduce` take
    it.

    Raises ValueError for a spec that does not fit, or a dim that the shards do not divide.
    Source: `torch_xla.distributed.spmd.enable_manual_sharding`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> shard = spmd.torch_xla.enable_manual_sharding(
    ...     torch.ones(4, 2, device="xla"), ("data", None), mesh=mesh
    ... )
    >>> total = spmd.manual.all_reduce(shard.sum(0), "sum", "data")
    >>> spmd.torch_xla.disable_manual_sharding(total, (None,), (2,), mesh=mesh).tolist()
    [4.0, 4.0]
    """
    functional_collectives.install()
    _check_tensors([("", tensor)], {})
    mesh = mesh or get_global_mesh() or _mesh_of([tensor])
    caller, name = "spmd.torch_xla.enable_manual_sharding", "the tensor"
    cut = _cut(mesh, mesh.axes, partition_spec, tensor, name, "the spec", caller, divides=True)
    return ManualStep.apply(tensor, mesh.sharding((), 0), cut, False)


@ends_at_user_line
def disable_manual_sharding(
    tensor: Any, partition_spec: Any, full_shape: Sequence[int], *, mesh: Mesh | None = None
) -> Any:
    """Returns the tensor of shape `full_shape` of which this is one shard's part (see
    `enable_manual_sharding`).

    Raises ValueError for a spec that does not fit, for another shape than the shards have together,
    and where shards may differ over an axis that the spec does not name.
    Source: `torch_xla.distributed.spmd.disable_manual_sharding`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> shard = spmd.torch_xla.enable_manual_sharding(
    ...     torch.arange(4.0).to("xla"), ("data",), mesh=mesh
    ... )
    >>> spmd.torch_xla.disable_manual_sharding(shard * 2, ("data",), (4,)).tolist()
    [0.0, 2.0, 4.0, 6.0]
    """
    caller = "spmd.torch_xla.disable_manual_sharding"
    _check_tensors([("", tensor)], {})
    if mesh is None:
        shard = untracked(tensor)
        if shard is None:
            raise ValueError(
                f"{caller}: expected a shard that enable_manual_sharding returned, or a mesh"
            )
        mesh = _mesh_of_sharding(shard.mesh)
    cut = _cut(mesh, mesh.axes, partition_spec, tensor, "the shard", "the spec", caller)
    counts = Boundary(cut).counts(mesh.sharding((), 0).mesh_axes())
    shape = [length * count for length, count in zip(tensor.shape, counts, strict=True)]
    if list(full_shape) != shape:
        raise ValueError(
            f"{caller}: shards of shape {list(tensor.shape)} make a tensor of shape {shape}, not "
            f"{list(full_shape)}"
        )
    return ManualStep.apply(tensor, mesh.sharding((), 0), cut, True)


@ends_at_user_line
def call_on_shards(
    mesh: Mesh | None,
    in_specs: Any,
    out_specs: Any,
    axis_names: Any,
    check_vma: bool,
    fn: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Calls the function that `shard_map` returns."""
    functional_collectives.install()
    values = _by_path(args)
    _check_tensors(values, kwargs)
    mesh = mesh or get_global_mesh() or _mesh_of([value for _, value in values])
    axes = _manual_axes(mesh, axis_names)
    if isinstance(in_specs, list):
        in_specs = tuple(in_specs)
    cuts: dict[int, Cut] = {}  # by the argument's number among all values
    for i, ((path, value), spec) in enumerate(
        zip(values, _spread(in_specs, args, "in_specs", "args"), strict=True)
    ):
        if isinstance(value, XlaTensor):
            cuts[i] = _cut(mesh, axes, spec, value, f"args{path}", "in_specs", divides=True)
    result: Any = None

    def body(shards: list[XlaTensor]) -> list[ShardResult]:
        nonlocal result
        if (calls := body_calls()) is not None:
            shards = [calls.argument(fn, i, shard) for i, shard in zip(cuts, shards, strict=True)]
        result = fn(*refilled(args, shards), **kwargs)
        results = []
        specs = _spread(out_specs, result, "out_specs", "result")
        for (path, value), spec in zip(_by_path(result), specs, strict=True):
            if value is None:
                continue
            name = f"result{path}"
            if not isinstance(value, XlaTensor):
                raise TypeError(
                    f"spmd.shard_map: fn must return tensors on xla (or None), {name} is {value!r}"
                )
            results.append(
                ShardResult(value, _cut(mesh, axes, spec, value, name, "out_specs"), name)
            )
        return results

    sharding, inputs = mesh.sharding((), 0), tensors_of(args)
    joined = run_manual(
        "spmd.shard_map", body, inputs, [*cuts.values()], sharding, axes, checks=check_vma
    )
    return refilled(result, joined)


def _by_path(tree: Any) -> list[tuple[str, Any]]:
    """The values of a pytree, each with its path as text."""
    return [(keystr(path), value) for path, value in tree_flatten_with_path(tree)[0]]


def _check_tensors(values: Sequence[tuple[str, Any]], kwargs: dict[str, Any]) -> None:
    for path, value in values:
        if isinstance(value, torch.Tensor) and not isinstance(value, XlaTensor):
            raise TypeError(
                f"spmd.shard_map: expected tensors on xla, args{path} of shape "
                f"{list(value.shape)} is on "
                f'{value.device}; move it with .to("xla") first'
            )
    for name, value in kwargs.items():
        if any(isinstance(leaf, torch.Tensor) for leaf in tree_flatten(value)[0]):
            raise TypeError(
                f"spmd.shard_map: {name} holds a tensor, and in_specs are of arguments by "
                "position; pass it by position"
            )


def _mesh_of(values: Sequence[Any]) -> Mesh:
    """The mesh that these tensors share. Raises ValueError for none or several."""
    tensors = [value for value in values if isinstance(value, XlaTensor)]
    meshes = {
        _mesh_of_sharding(sharding)
        for tensor in tensors
        if (sharding := sharding_of(tensor)) is not None
    }
    if len(meshes) != 1:
        why = (
            f"the tensors are over {len(meshes)} meshes"
            if meshes
            else "no tensor is sharded over one"
        )
        raise ValueError(
            f"expected a mesh, as {why} and there is no global one; pass mesh=, or use `with mesh:`"
        )
    return meshes.pop()


def _mesh_of_sharding(sharding: Sharding) -> Mesh:
    return Mesh(
        sharding.device_ids, sharding.mesh_shape, sharding.axis_names, target=sharding.target
    )


def _manual_axes(mesh: Mesh, axis_names: Any) -> tuple[str, ...]:
    """The manual axes in the mesh's order."""
    if axis_names is None:
        return mesh.axes
    axes = (axis_names,) if isinstance(axis_names, (str, int)) else tuple(axis_names)
    if not axes:
        raise ValueError(
            "spmd.shard_map: axis_names is empty; leave it out to make all axes manual"
        )
    names = {mesh._axis(axis, PartitionSpec(axis), "spmd.shard_map: axis_names") for axis in axes}
    return tuple(axis for axis in mesh.axes if axis in names)


def _cut(
    mesh: Mesh,
    axes: tuple[str, ...],
    spec: Any,
    tensor: Any,
    name: str,
    which: str,
    function: str = "spmd.shard_map",
    *,
    divides: bool = False,
) -> Cut:
    """The manual axes that split each dim, by the spec `which` of `name`. divides: whether they
    must divide it."""
    caller, sizes = f"{function}: {which} of {name}", mesh.sharding((), 0).mesh_axes()
    if isinstance(spec, str) or are_placements(spec):  # as a spec of the mesh's axes
        sharding = mesh.sharding(spec, tensor.dim(), caller)
        if sharding.mesh_axes() != sizes:
            raise ValueError(f"{caller}: {spec!r} splits over no axes of {mesh!r}")
        spec = PartitionSpec(*sharding.partition_spec(tensor.dim()))
    entries = () if spec is None else tuple(spec)
    if len(entries) > tensor.dim():
        raise ValueError(
            f"{caller}: {PartitionSpec(*entries)!r} has {len(entries)} entries, but the tensor of "
            f"shape {list(tensor.shape)} has {tensor.dim()} dims"
        )
    if UNCONSTRAINED in entries:
        raise ValueError(
            f"{caller}: UNCONSTRAINED in {PartitionSpec(*entries)!r}; a manual axis splits a dim "
            "or not"
        )
    full = PartitionSpec(*entries, *[None] * (tensor.dim() - len(entries)))
    mesh.sharding(full, tensor.dim(), caller)
    cut = []
    for entry in full:
        names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        manual = tuple(mesh._axis(axis, full, caller) for axis in names)
        for axis in manual:
            if axis not in axes:
                raise ValueError(
                    f"{caller}: axis {axis!r} of {full!r} is not manual (axis_names: "
                    f"{', '.join(map(repr, axes))}); over the other axes the partitioner splits: "
                    "leave it out here, and use spmd.mark_sharding for it"
                )
        cut.append(manual)
    for dim, count in enumerate(Boundary(tuple(cut)).counts(sizes) if divides else ()):
        if tensor.shape[dim] % count:
            shown = " x ".join(f"{axis!r} ({sizes[axis]})" for axis in cut[dim])
            raise ValueError(
                f"{function}: dim {dim} of {name} has {tensor.shape[dim]} elements (shape "
                f"{list(tensor.shape)}), which the {count} shards along {shown} do not divide; "
                "pad it first (torch.nn.functional.pad), or do not split it"
            )
    return tuple(cut)


def _spread(specs: Any, tree: Any, which: str, path: str) -> list[Any]:
    """A spec for each value of a pytree, of which the specs are a prefix."""
    values, _ = tree_flatten(tree)
    is_text = isinstance(specs, str) and specs.lstrip().startswith("{")
    if specs is None or isinstance(specs, PartitionSpec) or is_text:
        return [specs] * len(values)
    if isinstance(specs, (str, int)):
        raise TypeError(
            f"spmd.shard_map: {which} for {path} is {specs!r}; write a spec, P({specs!r})"
        )
    if not values and not tree_flatten(specs)[0]:
        return []
    kind = type(tree)
    if (
        kind not in SUPPORTED_NODES
        or type(specs) not in (kind, tuple, list)
        or (kind is dict) != (type(specs) is dict)
    ):
        raise ValueError(
            f"spmd.shard_map: {which} must have the structure of the values they are for, or a "
            f"spec in the place of a subtree; for {path}, a {kind.__name__}, they have {specs!r}"
        )
    children, _ = SUPPORTED_NODES[kind].flatten_fn(tree)
    if kind is dict:
        if set(specs) != set(tree):
            raise ValueError(
                f"spmd.shard_map: {which} for {path} have the keys {sorted(specs, key=str)}, it "
                f"has {sorted(tree, key=str)}"
            )
        parts = [(specs[key], tree[key], f"{path}[{key!r}]") for key in tree]
    else:
        child_specs = (
            list(specs)
            if type(specs) in (tuple, list)
            else SUPPORTED_NODES[kind].flatten_fn(specs)[0]
        )
        if len(child_specs) != len(children):
            raise ValueError(
                f"spmd.shard_map: {which} for {path} are {len(child_specs)}, {specs!r}, but it has "
                f"{len(children)} parts"
            )
        parts = [
            (spec, child, f"{path}[{i}]")
            for i, (spec, child) in enumerate(zip(child_specs, children, strict=True))
        ]
    return [
        value_spec
        for spec, child, name in parts
        for value_spec in _spread(spec, child, which, name)
    ]
