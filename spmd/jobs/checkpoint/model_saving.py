"""Saving of a model as Hugging Face's files, each shard straight from its devices."""

import math
import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from ...core import ends_at_user_line, syncs
from ...tensors.bare_names import bare_name
from . import common_calls as calls
from .all_or_none import after_all, by_first
from .model_folder import ModelFolder
from .places import UrlPath, place_of
from .safetensors_layout import checked_dtype, file_of, files_of, index_of, size_of
from .staged_state import StagedState, identity
from .stored_objects import ModelObjects


@ends_at_user_line
def save_checkpoint(
    state: nn.Module | Mapping[str, torch.Tensor],
    path: str | os.PathLike[str],
    *,
    max_shard_size: int | str = "5GB",
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Saves a model as safetensors files, which `load_checkpoint`, transformers and the safetensors
    library read.

    No tensor is gathered, on a device or on the host: each process writes the bytes of the shards
    that it has, of copies the first, at their places in the files, one shard after the other. With
    several processes all call it, with a folder that all see. An earlier model in the folder is
    replaced when all of the new one is on the disk.

    Args:
        state: a module, or its tensors by name. Names of wrappers are removed (`bare_name`); tied
            weights are kept once, by the name that transformers expects. CPU tensors are those of
            the first process.
        path: a folder, which gets `model.safetensors`, or several files and
            `model.safetensors.index.json`; or one file, whose name ends in `.safetensors`. A path,
            or a URL that fsspec knows.
        max_shard_size: the size of a file of a folder, in bytes or such as "5GB". A larger tensor
            has its own file.
        metadata: texts by name, for the file, or for the index of several.

    Raises `SaveError` in all processes where one could not write, TypeError for what such a file
    cannot hold. Source: `huggingface_hub.save_torch_model`, `safetensors.torch.save_file`.

    >>> import tempfile, torch, spmd
    >>> model = torch.nn.Linear(4, 2, device="xla")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     spmd.save_checkpoint(model, folder)
    ...     other = torch.nn.Linear(4, 2)
    ...     left_out = spmd.load_checkpoint(other, folder)
    >>> torch.equal(model.weight.cpu(), other.weight)
    True
    """
    if isinstance(path, (nn.Module, Mapping)):
        raise TypeError(
            f"save_checkpoint: expected (state, path), got {type(path).__name__} as the path: "
            "swap them"
        )
    most = size_of(max_shard_size)
    texts = {"format": "pt", **(metadata or {})}
    if not all(isinstance(text, str) for pair in texts.items() for text in pair):
        raise TypeError(f"save_checkpoint: expected metadata of texts by name, got {metadata!r}")
    target = place_of(path)
    tensors = _named(state)
    calls.agree(f"save_checkpoint in {target}")
    syncs.sync()
    staged = StagedState(lambda: math.inf, is_copied=False)
    try:
        for name, tensor in tensors.items():
            staged.put(tensor, name)
        is_one = target.suffix == ".safetensors"
        files = (
            [file_of(target.name, staged.tensors, texts)]
            if is_one
            else files_of(staged.tensors, most, texts)
        )
        index = index_of(files, staged.tensors, texts) if len(files) > 1 else None
        folder = target.parent if is_one else target
        storage = ModelObjects if isinstance(folder, UrlPath) else ModelFolder
        _save(storage(folder, files, index), staged, str(target))
    finally:
        staged.close()


def _save(storage: ModelFolder | ModelObjects, staged: StagedState, location: str) -> None:
    exchange, unsaved = calls.exchange(), f"save_checkpoint: {location} was not saved: {{}}"
    by_first(exchange, "begin", storage.begin, unsaved)
    # The first process writes those of the CPU, too.
    shards = (
        shard
        for shard in staged.shards()
        if exchange.index == 0 or not staged.tensors[shard.name]["on_host"]
    )
    write = partial(storage.write_part, exchange.index, shards)
    after_all(exchange, "written", write, storage.make_room, unsaved, storage.discard)
    join = partial(storage.join, exchange.index, exchange.count)
    after_all(exchange, "joined", join, storage.commit, unsaved, storage.discard)
    unremoved = f"save_checkpoint: {location} is saved, and what it replaces is not removed: {{}}"
    by_first(exchange, "clean", storage.clean, unremoved)


def _named(state: nn.Module | Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors by their bare names, those that are tied by one name."""
    if not isinstance(state, (nn.Module, Mapping)):
        raise TypeError(
            "save_checkpoint: expected a torch.nn.Module or a dict of tensors, got "
            f"{type(state).__name__}"
        )
    values = state.state_dict(keep_vars=True) if isinstance(state, nn.Module) else state
    tensors: dict[str, torch.Tensor] = {}
    for full_name, value in values.items():
        name = bare_name(full_name)
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"save_checkpoint: {name!r} is a {type(value).__name__}, and safetensors files "
                "hold tensors alone; leave it out of the dict, or use CheckpointManager"
            )
        if name == "__metadata__":
            raise ValueError(
                "save_checkpoint: safetensors files keep texts under '__metadata__': rename the "
                "tensor"
            )
        if name in tensors:
            raise ValueError(
                f"save_checkpoint: two tensors have the name {name!r} without their wrappers' names"
            )
        if value.is_meta or value.layout is not torch.strided:
            raise TypeError(
                f"save_checkpoint: {name!r} is a {value.layout} tensor on {value.device}, without "
                "data"
            )
        checked_dtype(name, value.dtype)
        tensors[name] = value
    by_tensor: dict[Any, list[str]] = {}
    for name, value in tensors.items():
        by_tensor.setdefault(identity(value), []).append(name)
    saved_names = {_kept(names, state) for names in by_tensor.values()}
    return {name: value for name, value in tensors.items() if name in saved_names}


def _kept(names: list[str], state: Any) -> str:
    """The name of tied weights that a file has: none of those that a model of transformers makes
    itself from another, and the first in the order of names, as the safetensors library does."""
    if len(names) == 1:
        return names[0]
    result: set[str] = set()
    for module in state.modules() if isinstance(state, nn.Module) else ():
        result.update(getattr(module, "_tied_weights_keys", None) or ())
    untied_names = [
        name
        for name in names
        if not any(re.search(rf"(^|\.){pattern}$", name) for pattern in result)
    ]
    return min(untied_names) if untied_names else max(names)
