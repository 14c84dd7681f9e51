"""Folders of orbax, the checkpoints of JAX's programs, written and read shard by shard."""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import torch

from ...core import (
    Dim,
    Sharding,
    Spec,
    XlaTensor,
    compiler_context,
    dtypes,
    ends_at_user_line,
    extras,
    host_reads,
    storage_of,
    syncs,
    tensor_meta,
    transfer,
)
from ...tensors.shards import Filling, can_fill
from . import common_calls as calls
from .loading import LoadedNames, Rename, compared, differ, renamed
from .optimizer_init import prime_optimizer
from .state_entries import entries, replaced

Path = str | os.PathLike[str]
_PLAIN = (bool, int, float, str, type(None))


@ends_at_user_line
def save_orbax(state: Any, folder: Path, *, nested: bool = True, force: bool = False) -> None:
    """Writes a state as a folder of orbax, which a JAX program restores in shardings of its choice;
    a sync.

    Each process writes the shards of its own devices, of copies the first. All processes must call
    it. A tensor whose shards are uneven, which jax has no arrays for, is resharded along its other
    dims first, and replicated along axes that divide none.

    Args:
        state: a module, an optimizer, or a dict, nested as you like, of these, of tensors, numbers
            and text.
        folder: made here; orbax renames it into place when all of it is written. A URL where orbax
            takes it.
        nested: "layers.0.weight" becomes {"layers": {"0": {"weight": ...}}}, as Flax has it; False:
            names stay whole.
        force: replaces a folder that is there.

    Raises FileExistsError, TypeError for a value that orbax has no place for, ModuleNotFoundError
    without the package (`pip install orbax-checkpoint`). Source:
    `orbax.checkpoint.PyTreeCheckpointer.save`.

    >>> import tempfile, torch, spmd
    >>> import orbax.checkpoint
    >>> x = spmd.mark_sharding(
    ...     torch.arange(8.0, device="xla"), spmd.Mesh(range(8), (8,), ("data",)), ("data",)
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     spmd.checkpoint.save_orbax({"layer.x": x}, f"{folder}/step")
    ...     tree = (
    ...         orbax.checkpoint.PyTreeCheckpointer().metadata(f"{folder}/step").item_metadata.tree
    ...     )
    >>> tree["layer"]["x"].shape
    (8,)
    """
    orbax = extras.imported("orbax.checkpoint", "orbax", "save_orbax")
    path = _place(folder)
    if path.exists() and not force:
        raise FileExistsError(
            f"save_orbax: {path} is there already; pass another folder, or force=True to replace it"
        )
    calls.agree(f"save_orbax of {path}")
    syncs.sync()
    with contextlib.ExitStack() as leases:
        tree = _tree(state, "", nested, leases)
        with compiler_context():  # 64-bit types stay
            orbax.PyTreeCheckpointer().save(path, tree, force=force)


@ends_at_user_line
def load_orbax(
    state: Any, folder: Path, *, strict: bool = True, rename: Rename | None = None
) -> LoadedNames:
    """Loads a folder that orbax wrote, in a JAX program or by `save_orbax`, into a state, in place.

    Tensors keep their shardings and dtypes, and each device's part is read from the files by
    itself; numbers and text are replaced. All processes must call it. An optimizer needs no first
    step. Names are compared with dots between the keys of the tree, however it is nested.

    Args:
        state: as of `save_orbax`; a dict is changed in place.
        folder: of one save. Of a step of `orbax.checkpoint.CheckpointManager`: the folder of its
            item, `5/default`, or the step's where it has one item.
        strict: raise where names are missing or unexpected.
        rename: called with each name of the folder ("params.layer.kernel"); returns the state's
            name, or None to skip it.

    Returns (missing_keys, unexpected_keys). Raises FileNotFoundError, ValueError for names or
    shapes that do not fit (nothing is loaded then), ModuleNotFoundError. Source:
    `orbax.checkpoint.PyTreeCheckpointer.restore`.

    >>> import tempfile, torch, spmd
    >>> x = torch.zeros(8, device="xla")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     spmd.checkpoint.save_orbax({"x": torch.ones(8)}, f"{folder}/step")
    ...     names = spmd.checkpoint.load_orbax({"x": x}, f"{folder}/step")
    >>> x.sum().item()
    8.0
    """
    orbax = extras.imported("orbax.checkpoint", "orbax", "load_orbax")
    path = _item(_place(folder))
    calls.agree(f"load_orbax of {path}")
    checkpointer = orbax.PyTreeCheckpointer()
    item = checkpointer.metadata(path).item_metadata
    if item is None:
        raise ValueError(
            f"load_orbax: orbax finds no tree of arrays in {path}; only those can be loaded"
        )
    tree = item.tree
    stored = renamed(
        ((name, (name, entry)) for name, entry in _entries(tree)), rename, "load_orbax"
    )
    with _primed(state, stored):
        targets = dict(_entries(state))
        names = _compared(targets, stored)
        matched_targets = {
            name: targets[name]
            for name in stored
            if name in targets and not _is_empty(targets[name])
        }
        wrong = [
            line
            for name, value in matched_targets.items()
            for line in _differences(name, value, stored[name][1])
        ]
        if wrong or (strict and any(names)):
            raise ValueError(
                differ(names if strict else LoadedNames([], []), path, wrong, "load_orbax")
            )
    fillings = {
        name: Filling(value)
        for name, value in matched_targets.items()
        if isinstance(value, XlaTensor) and can_fill(value)
    }
    requests = {}
    for name, value in matched_targets.items():
        name_there, entry = stored[name]
        requests[name_there] = _request(orbax, value, fillings.get(name), entry)
    how = orbax.args.PyTreeRestore(
        item=_mapped(tree, lambda name, entry: entry if name in requests else orbax.PLACEHOLDER),
        restore_args=_mapped(tree, lambda name, _: requests.get(name, orbax.RestoreArgs())),
    )
    with compiler_context():
        arrays = dict(_entries(checkpointer.restore(path, args=how)))
    plain = {}
    with torch.no_grad():
        for name, value in matched_targets.items():
            loaded = arrays[stored[name][0]]
            if name in fillings:
                fillings[name].take(loaded)
            elif isinstance(value, torch.Tensor):
                value.copy_(transfer.host_tensor(loaded))
            else:
                plain[name] = loaded
    _replaced(state, "", plain)
    return names


# --- the package and its folders ------------------------------------------------------------------


def _place(folder: Path) -> Any:
    """The folder as the path that orbax works with, absolute."""
    path = importlib.import_module("etils.epath").Path(folder)
    return path if "://" in str(folder) else path.absolute()


def _item(folder: Any) -> Any:
    """The folder with the tree: of a manager's step, that of its one item."""
    if (folder / "_METADATA").exists():
        return folder
    items = sorted(inner.name for inner in folder.iterdir()) if folder.is_dir() else []
    trees = [name for name in items if (folder / name / "_METADATA").exists()]
    if len(trees) == 1:
        return folder / trees[0]
    says = (
        "which is not there"
        if not folder.exists()
        else f"which has {', '.join(items[:8]) or 'nothing'}"
    )
    choose = f"; pass one of its items, as {folder / trees[0]}" if trees else ""
    raise FileNotFoundError(
        f"load_orbax: expected a folder that orbax wrote at {folder}, {says}{choose}"
    )


# --- writing --------------------------------------------------------------------------------------


def _tree(value: Any, path: str, nested: bool, leases: contextlib.ExitStack) -> Any:
    """The state as orbax takes it: dicts, lists, tuples, arrays, numbers, text."""

    def inner(child: Any, key: Any) -> Any:
        return _tree(child, f"{path}.{key}" if path else str(key), nested, leases)

    value = _opened(value)
    if isinstance(value, Mapping):
        result: dict[str, Any] = {}
        for key, child in value.items():
            _put(result, str(key).split(".") if nested else [str(key)], inner(child, key), path)
        return result
    if isinstance(value, (list, tuple)):
        return type(value)(inner(child, index) for index, child in enumerate(value))
    if isinstance(value, torch.Tensor) and not value.numel():
        return None  # orbax takes no empty array
    if isinstance(value, XlaTensor):
        return _array(value, leases)
    if isinstance(value, torch.Tensor):
        return transfer.host_array(value)
    if type(value) in _PLAIN:
        return value
    raise TypeError(
        f"save_orbax: {path} is a {type(value).__qualname__}, which a tree of orbax has no place "
        "for: it has tensors, numbers, text, dicts, lists and tuples"
    )


def _put(tree: dict[str, Any], keys: list[str], value: Any, path: str) -> None:
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
    last = keys[-1]
    if not isinstance(tree, dict) or (
        last in tree and not (isinstance(tree[last], dict) and isinstance(value, dict))
    ):
        raise ValueError(
            f"save_orbax: {'.'.join(keys)!r}{f' of {path}' if path else ''} is a value and a "
            "folder of others at once; pass nested=False"
        )
    tree[last] = {**tree[last], **value} if last in tree else value


def _array(tensor: XlaTensor, leases: contextlib.ExitStack) -> jax.Array:
    """The array of a tensor in its logical shape, kept from being overwritten while the leases
    last."""
    if not can_fill(tensor):  # a view, or dims in another order
        tensor = tensor.detach().clone(memory_format=torch.contiguous_format)  # type: ignore[assignment]
    shape = tensor_meta(tensor).shape
    lease = leases.enter_context(
        host_reads.leased(storage_of(tensor), "saving a checkpoint", on_device=True, together=True)
    )
    buffer, sharding = lease.placed()
    target = _even(sharding, shape)
    return buffer if target is sharding else transfer.move(buffer, shape, sharding, target)


def _even(sharding: Sharding, shape: tuple[int, ...]) -> Sharding:
    """The same sharding if it cuts an array of this shape into equal shards, else one that does:
    the axes of an uneven dim go to the first other dim that they divide."""
    if sharding.padded_shape(shape) == shape:
        return sharding
    sizes = sharding.mesh_axes()
    sizes_left = list(shape)
    axes: list[tuple[str, ...]] = [dim.axes for dim in sharding.spec.dims] + [()] * len(shape)
    moved: list[str] = []
    for index, dim in enumerate(shape):
        for axis in axes[index]:
            if sizes_left[index] % sizes[axis]:
                moved += axes[index]
                axes[index], sizes_left[index] = (), dim
                break
            sizes_left[index] //= sizes[axis]
    for axis in moved:
        to = next(
            (index for index, dim in enumerate(sizes_left) if dim and dim % sizes[axis] == 0), None
        )
        if to is not None:
            axes[to], sizes_left[to] = (*axes[to], axis), sizes_left[to] // sizes[axis]
    return sharding.with_spec(
        Spec(tuple(Dim(dim_axes) for dim_axes in axes[: len(shape)])), sharding.memory
    )


# --- reading --------------------------------------------------------------------------------------


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and not isinstance(value, type)


def _opened(value: Any) -> Any:
    """The state dict of an object that has one."""
    return value.state_dict() if _has_state(value) else value


def _entries(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields what is neither dict nor list, with its name; of objects what their state dicts
    hold."""
    for name, value in entries(_opened(tree), path, _has_state):
        yield from _entries(value, name) if _has_state(value) else [(name, value)]


def _mapped(tree: Any, function: Callable[[str, Any], Any]) -> Any:
    """The same dicts and lists with other entries."""

    def mapped(path: jax.tree_util.KeyPath, entry: Any) -> Any:
        return function(jax.tree_util.keystr(path, simple=True, separator="."), entry)

    return jax.tree_util.tree_map_with_path(mapped, tree, is_leaf=lambda entry: entry is None)


@contextlib.contextmanager
def _primed(state: Any, stored: Mapping[str, Any]) -> Iterator[None]:
    """Gives optimizers without state one to load into, as far as the folder has it; takes it back
    after an error."""
    result = []
    for name, value in entries(state):
        prefix = f"{name}.state." if name else "state."
        if (
            hasattr(value, "param_groups")
            and not value.state
            and any(key.startswith(prefix) for key in stored)
        ):
            result.append(prime_optimizer(value))
    try:
        yield
    except BaseException:
        for optimizer in result:
            optimizer.state.clear()
        raise


def _compared(targets: Mapping[str, Any], stored: Mapping[str, Any]) -> LoadedNames:
    """The names that only one side has; None and a tensor without elements need no counterpart."""
    names = compared(dict(targets), dict(stored))
    return LoadedNames(
        [
            name
            for name in names.missing_keys
            if targets[name] is not None and not _is_empty(targets[name])
        ],
        [name for name in names.unexpected_keys if stored[name][1] is not None],
    )


def _differences(name: str, target: Any, entry: Any) -> Iterator[str]:
    """Yields a line where a value of the folder does not fit the state's."""
    shape = getattr(entry, "shape", None)
    if isinstance(target, torch.Tensor):
        if target.is_meta:
            yield f'{name!r} is on meta, where it has no devices; call to_empty(device="xla") first'
        elif shape is None or tuple(shape) != tuple(target.shape):
            has = "is no array" if shape is None else f"has the shape {list(shape)}"
            yield f"{name!r} {has} in the folder, and the shape {list(target.shape)} here"
    elif shape is not None and tuple(shape):
        yield f"{name!r} is an array of shape {list(shape)} in the folder, and {target!r} here"


def _is_empty(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.numel()


def _request(orbax: Any, target: Any, filling: Filling | None, entry: Any) -> Any:
    """The form in which orbax is to read a value: of a tensor on devices, the array that it is to
    have, padded."""
    if filling is not None:
        return orbax.ArrayRestoreArgs(
            sharding=filling.sharding.jax,
            global_shape=filling.sharding.padded_shape(filling.shape),
            dtype=dtypes.to_numpy_dtype(filling.tensor.dtype),
            strict=False,  # it pads
        )
    if isinstance(target, torch.Tensor):
        return orbax.RestoreArgs(restore_type=np.ndarray, dtype=dtypes.to_numpy_dtype(target.dtype))
    return orbax.RestoreArgs(
        restore_type=None if getattr(entry, "shape", None) is None else np.ndarray
    )


def _replaced(state: Any, path: str, plain: Mapping[str, Any]) -> Any:
    """Returns a state with the plain values that were read: in the same dicts and lists, and in the
    same objects."""

    def replace(name: str, value: Any) -> Any:
        if _has_state(value):
            value.load_state_dict(_replaced(value.state_dict(), name, plain))
        elif name in plain:
            return plain[name].item() if hasattr(plain[name], "item") else plain[name]
        return value

    return replaced(state, replace, path, _has_state)
