"""Loading of a model from a checkpoint's files, each shard straight to its devices."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ...core import XlaTensor, ends_at_user_line, storage_of, view_of
from ...mesh.hints import did_you_mean
from ...tensors.bare_names import bare_name
from .files import Contents, Stored, open_checkpoint
from .streaming import load_into

Rename = Callable[[str], str | None]
_MOST = 10  # differences that an error lists


class LoadedNames(NamedTuple):
    """The names that a load with `strict=False` left out, as `nn.Module.load_state_dict` returns
    them."""

    missing_keys: list[str]
    unexpected_keys: list[str]


@ends_at_user_line
def load_checkpoint(
    module: nn.Module,
    path: str | Path,
    *,
    strict: bool = True,
    dtype: torch.dtype | None = None,
    key: str | None = None,
    rename: Rename | None = None,
) -> LoadedNames:
    """Loads a model's parameters and buffers from files, reading of each tensor only the bytes that
    a device holds.

    Shard the model first (`mark_sharding`, FSDP), on the device, where its initial values are then
    never computed (`with torch.device("xla")`, or `to_empty(device="xla")` of a model on meta). One
    shard after another is mapped, cast and uploaded, so that the host never holds more than one;
    with several processes each reads its own. Tied weights need one of their names. A module with a
    `_load_from_state_dict` of its own gets its full tensors.

    Args:
        module: tensors on xla are filled in place; tensors on the CPU are copied into.
        path: a folder as Hugging Face writes it (`model.safetensors`, or several files and an
            index), a safetensors file, or a file of `torch.save`; or the URL of one
            (`gs://bucket/model`) that fsspec knows, of which each process fetches the bytes that it
            needs.
        strict: raise where names are missing or unexpected.
        dtype: casts floating-point parameters and buffers first; None: keeps their dtypes, as
            `load_state_dict` does.
        key: of the state dict in a file of `torch.save`, such as "model".
        rename: called with each name in the files; returns the model's name, or None to skip it.
            The prefixes of wrappers are removed anyway: `_orig_module.` of PyTorch/XLA's FSDPv2,
            `_orig_mod.` of torch.compile.

    Returns (missing_keys, unexpected_keys). Raises ValueError for names or shapes that do not fit
    and for a model on meta (nothing is loaded then, unless a module that loads itself raises),
    FileNotFoundError.

    >>> import os, tempfile, torch, spmd
    >>> with tempfile.TemporaryDirectory() as folder, torch.device("xla"):
    ...     torch.save(
    ...         {"weight": torch.ones(1, 4), "bias": torch.zeros(1)},
    ...         os.path.join(folder, "model.pt"),
    ...     )
    ...     model = torch.nn.Linear(4, 1)
    ...     left_out = spmd.load_checkpoint(model, os.path.join(folder, "model.pt"))
    >>> model.weight.sum().item()
    4.0
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"load_checkpoint: expected a torch.nn.Module, got {type(module).__name__}; write "
            "load_checkpoint(module, path)"
        )
    if isinstance(path, Mapping):
        raise TypeError(
            f"load_checkpoint: expected a path, got {type(path).__name__}; a state dict is loaded "
            "by module.load_state_dict(state_dict)"
        )
    contents = renamed(open_checkpoint(path, key).items(), rename)
    if dtype is not None:
        module.to(dtype)
    state = module.state_dict(keep_vars=True)  # tied weights are one object
    model_names = matched_names(contents, state)
    contents = {model_names[name]: value for name, value in contents.items()}
    selves = _loading_themselves(module, state, contents)
    for owner in selves:
        for name in owner.names:
            contents.pop(name, None)
            state.pop(name, None)
    names = compared(state, contents)
    common_names = [name for name in contents if name in state]
    wrong = [
        line for name in common_names for line in _differences(name, state[name], contents[name])
    ]
    if wrong or (strict and any(names)):
        raise ValueError(differ(names if strict else LoadedNames([], []), path, wrong))
    extra = {
        name: contents[name] for name in common_names if not isinstance(contents[name], Stored)
    }
    with torch.no_grad():
        for name in common_names:
            if name not in extra:
                load_into(state[name], contents[name].read)
    if extra:
        module.load_state_dict(extra, strict=False)
    for owner in selves:
        owner.load(names)
    if strict and any(names):
        raise ValueError(differ(names, path))
    return names


class _Owner(NamedTuple):
    """A module with a `_load_from_state_dict` of its own. names: its names in the files and in the
    model."""

    module: nn.Module
    prefix: str
    stored: Contents
    names: set[str]

    def load(self, left_out: LoadedNames) -> None:
        """Makes the module load its full tensors, and adds the names that it leaves out."""
        state = {
            name: value.read() if isinstance(value, Stored) else value
            for name, value in self.stored.items()
        }
        errors: list[str] = []
        self.module._load_from_state_dict(
            state, self.prefix, {}, True, left_out.missing_keys, left_out.unexpected_keys, errors
        )
        if errors:
            raise ValueError(
                f"load_checkpoint: {type(self.module).__name__} reports: {'; '.join(errors)}"
            )


def _loading_themselves(
    module: nn.Module, state: dict[str, Any], contents: Contents
) -> list[_Owner]:
    """The modules with a `_load_from_state_dict` of their own, for names of an older version or
    other data."""
    names = {_identity(value): name for name, value in state.items()}
    owners = []
    for child in module.modules():
        if type(child)._load_from_state_dict is nn.Module._load_from_state_dict:
            continue
        direct = {**child._parameters, **child._buffers}
        full_names = {
            name: names[_identity(value)]
            for name, value in direct.items()
            if _identity(value) in names
        }
        if not full_names:
            continue
        name, full = next(iter(full_names.items()))
        prefix = full.removesuffix(name)
        stored = {
            key: value
            for key, value in contents.items()
            if key in full_names.values() or (key.startswith(prefix) and key not in state)
        }
        owners.append(_Owner(child, prefix, stored, {*stored, *full_names.values()}))
    return owners


def renamed(
    contents: Iterable[tuple[str, Any]], rename: Rename | None, caller: str = "load_checkpoint"
) -> Contents:
    """The contents of files under new names; raises ValueError for a name that two have."""
    result: Contents = {}
    for name, value in contents:
        new = name if rename is None else rename(name)
        if new in result:
            raise ValueError(
                f"{caller}: rename gives {new!r} to {name!r} and to another name of the files"
            )
        if new is not None:
            result[new] = value
    return result


def matched_names(stored: Iterable[str], state: Iterable[str]) -> dict[str, str]:
    """For each name of files the name of a state: the same, or the one that differs by wrappers
    alone; else itself."""
    names, state_names = {*stored}, {*state}
    by_bare_name = {bare_name(name): name for name in state_names - names}
    return {
        name: name if name in state_names else by_bare_name.get(bare_name(name), name)
        for name in names
    }


def _identity(value: Any) -> int:
    """The same number for all names of one tensor (tied weights)."""
    return (
        id(storage_of(value))
        if isinstance(value, XlaTensor) and view_of(value) is None
        else id(value)
    )


def compared(state: dict[str, Any], contents: Contents) -> LoadedNames:
    """The names that only one side has; tied weights need one of theirs."""
    loaded = {_identity(state[name]) for name in contents if name in state}
    missing = [
        name
        for name, value in state.items()
        if name not in contents and _identity(value) not in loaded
    ]
    return LoadedNames(missing, [name for name in contents if name not in state])


def differ(
    names: LoadedNames,
    path: str | os.PathLike[str],
    wrong: Sequence[str] = (),
    caller: str = "load_checkpoint",
) -> str:
    """The text of an error that lists names of a model or state and of files that differ, and what
    is wrong with the tensors that both have: ten lines, and the numbers of the others."""
    differences = {
        "missing in the files": [
            _meant(name, names.unexpected_keys) for name in names.missing_keys
        ],
        "not in the model": [_meant(name, names.missing_keys) for name in names.unexpected_keys],
        "other tensors": wrong,
    }
    differences = {title: entries for title, entries in differences.items() if entries}
    lines = [f"{caller}: the model and {path} differ"]
    for title, entries in differences.items():
        most = _MOST // len(differences)
        lines += [f"    {title}: {line}" for line in entries[:most]]
        if len(entries) > most:
            lines.append(f"    {title}: {len(entries) - most:,} more")
    if any("_fsdp_shard." in name for name in names.unexpected_keys):
        lines.append(
            "the files are of one rank of PyTorch/XLA's FSDP: python -m "
            "fsdp.consolidate_sharded_ckpts joins all"
        )
    if any(names):
        lines.append(
            "rename= maps the files' names to the model's, strict=False loads the names that fit"
        )
    return "\n".join(lines)


def _meant(name: str, candidates: list[str]) -> str:
    return f"{name!r}{did_you_mean(name, candidates, '  {}')}"


def _differences(name: str, target: Any, source: Any) -> Iterator[str]:
    """Yields the reason why a tensor of the files cannot be loaded into the model's, if there is
    one."""
    if isinstance(target, torch.Tensor) != isinstance(source, Stored):
        yield f"{name!r} is a tensor in either the model or the files, and not in the other"
        return
    if not isinstance(target, torch.Tensor):
        return
    if target.is_meta:
        raise ValueError(
            f"load_checkpoint: {name!r} is on meta, where it has no devices; call "
            'model.to_empty(device="xla") first, '
            "and shard it, so that each device reads its own part"
        )
    if tuple(target.shape) != source.shape:
        yield (
            f"{name!r} has the shape {list(source.shape)} in {source.path.name} and "
            f"{list(target.shape)} in the model"
        )
    if (source.dtype.is_floating_point, source.dtype.is_complex) != (
        target.is_floating_point(),
        target.is_complex(),
    ):
        yield (
            f"{name!r} is {source.dtype} in {source.path.name} and {target.dtype} in the model: "
            "numbers of another kind. If they are meant, fill the tensor by "
            "spmd.checkpoint.fill_shards"
        )
