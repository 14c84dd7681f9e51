"""Converts the checkpoints of PyTorch/XLA's FSDP, one file per rank, into one state dict that any
torch reads.

A file holds `{"model": state dict, "shard_metadata": {...}, ...}`. The state dict has a rank's
shards: each parameter was flattened, padded and cut evenly (or cut along dim 0, with
`shard_param_on_dim_0`), and has another name. The metadata describe the original:

    shard_info    {name of the wrapper: {name of the shard: {"_orig_name": ..., "_orig_size": ...}}}
    flatten_info  {name of a flat parameter: (names, shapes, sizes) of the parameters that were
                  joined in it}
    buffer_info   {name of a buffer: {"_orig_dtype": ...}}, where it was cast
    world_size, rank
"""

# Why damaged files are looked for: a checkpoint of many files is copied between machines, and torch
# reads a wrong byte of a tensor without an error. Why `weights_only`: a pickle runs code, and these
# files come from elsewhere.

import glob
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spmd.mesh.notes import ends_at_user_line
from spmd.tensors.bare_names import bare_name

RankState = Mapping[str, torch.Tensor]
# names, shapes and sizes in a flat parameter
_Flat = tuple[Sequence[str], Sequence[Sequence[int]], Sequence[int]]


@ends_at_user_line
def consolidate_sharded_state_dicts(
    state_dict_list: Sequence[RankState], shard_metadata: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Joins the state dicts that the ranks of PyTorch/XLA's FSDP saved into the state dict of the
    bare model.

    Args:
        state_dict_list: all ranks' state dicts, in order of rank. shard_metadata: any rank's.

    Returns CPU tensors under the model's own names; buffers are the first rank's. Raises ValueError
    where ranks or shards are missing. Source: the function of this name in
    `torch_xla.distributed.fsdp`.

    >>> import torch, fsdp
    >>> info = {"": {"_fsdp_shard.weight": {"_orig_name": "weight", "_orig_size": torch.Size([3])}}}
    >>> ranks = [{"_fsdp_shard.weight": torch.tensor(shard)} for shard in ([1.0, 2.0], [3.0, 0.0])]
    >>> metadata = {
    ...     "shard_info": info,
    ...     "flatten_info": {},
    ...     "buffer_info": {},
    ...     "world_size": 2,
    ...     "rank": 0,
    ... }
    >>> fsdp.consolidate_sharded_state_dicts(ranks, metadata)
    {'weight': tensor([1., 2., 3.])}
    """
    world_size = shard_metadata["world_size"]
    if len(state_dict_list) != world_size:
        raise _refused(
            f"expected the state dicts of all {world_size} ranks, got {len(state_dict_list)}"
        )
    shards = {
        _full_name(module, shard): (module, info)
        for module, infos in shard_metadata["shard_info"].items()
        for shard, info in infos.items()
    }
    buffers = shard_metadata.get("buffer_info", {}).items()
    dtypes = {bare_name(name): info["_orig_dtype"] for name, info in buffers}
    full: dict[str, torch.Tensor] = {}
    for key, value in state_dict_list[0].items():
        name = bare_name(key)
        if name in shards:
            module, info = shards.pop(name)
            full[_full_name(module, info["_orig_name"])] = _joined_shards(
                state_dict_list, key, info["_orig_size"]
            )
        else:  # a buffer, which PyTorch/XLA replicates and may have cast
            full[name] = value.to(dtypes.get(name, value.dtype)).clone()
    if shards:
        raise _refused(
            f"the metadata name {next(iter(shards))!r} (and {len(shards) - 1} more), which the "
            f"state dicts lack; they have {', '.join([*state_dict_list[0]][:5])}"
        )
    return _unflattened(full, shard_metadata.get("flatten_info", {}))


@ends_at_user_line
def consolidate_sharded_model_checkpoints(
    ckpt_prefix: str,
    ckpt_suffix: str = "_rank-*-of-*.pth",
    save_path: str = "",
    save_model: bool = True,
) -> tuple[dict[str, torch.Tensor], str | None]:
    """Joins the files that the ranks of PyTorch/XLA's FSDP saved into one, which
    `spmd.load_checkpoint` and torch read.

    Args:
        ckpt_prefix, ckpt_suffix: together the pattern of the files' names.
        save_path: the file for `{"model": state dict}`; default: the prefix and
            "_consolidated.pth".
        save_model: False saves nothing.

    Returns the state dict and the path of its file (None where it was not saved). Raises
    FileNotFoundError where no file has such a name, ValueError where the files are not those of all
    ranks. Source: the function of this name in `torch_xla.distributed.fsdp`.

    >>> import tempfile, torch, fsdp
    >>> info = {"": {"_fsdp_shard.weight": {"_orig_name": "weight", "_orig_size": torch.Size([3])}}}
    >>> prefix = f"{tempfile.mkdtemp()}/step-7"
    >>> for rank, shard in enumerate(([1.0, 2.0], [3.0, 0.0])):
    ...     metadata = {
    ...         "shard_info": info,
    ...         "flatten_info": {},
    ...         "buffer_info": {},
    ...         "world_size": 2,
    ...         "rank": rank,
    ...     }
    ...     saved = {
    ...         "model": {"_fsdp_shard.weight": torch.tensor(shard)},
    ...         "shard_metadata": metadata,
    ...     }
    ...     torch.save(saved, f"{prefix}_rank-{rank}-of-2.pth")
    >>> fsdp.consolidate_sharded_model_checkpoints(prefix, save_model=False)
    ({'weight': tensor([1., 2., 3.])}, None)
    """
    # no pipes
    paths = sorted(filter(os.path.isfile, glob.glob(glob.escape(ckpt_prefix) + ckpt_suffix)))
    if not paths:
        raise FileNotFoundError(
            f"consolidate_sharded_model_checkpoints: expected files {ckpt_prefix}{ckpt_suffix}, "
            "found none; each rank saves one"
        )
    by_rank: dict[int, tuple[str, Mapping[str, Any]]] = {}
    for path in paths:
        try:
            _check_archive(path)
            loaded = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except Exception as error:  # torch's reader has no class of errors of its own
            why = next(iter(str(error).splitlines()), type(error).__name__)[:200]
            raise ValueError(
                f"consolidate_sharded_model_checkpoints: {path} is damaged, or has objects other "
                f"than tensors, whose code would run: {why}; copy it again"
            ) from error
        rank = _rank(path, loaded)
        if rank in by_rank:
            raise ValueError(
                f"{path} and {by_rank[rank][0]} are both of rank {rank}; give a suffix that fits "
                "one set"
            )
        by_rank[rank] = path, loaded
    metadata = next(iter(by_rank.values()))[1]["shard_metadata"]
    world_size = metadata.get("world_size")
    if world_size != len(by_rank) or {*by_rank} != {*range(len(by_rank))}:
        raise ValueError(
            f"consolidate_sharded_model_checkpoints: expected a file of each of {world_size} "
            f"ranks, got those of {sorted(by_rank)}: {paths[0]}, ..."
        )
    try:
        state = consolidate_sharded_state_dicts(
            [by_rank[rank][1]["model"] for rank in sorted(by_rank)], metadata
        )
    except Exception as error:  # metadata may have any values
        raise ValueError(
            f"consolidate_sharded_model_checkpoints: the files {paths[0]}, ... do not belong "
            f"together, or one is damaged: {type(error).__name__}: {error}"
        ) from error
    if not save_model:
        return state, None
    save_path = save_path or f"{ckpt_prefix}_consolidated.pth"
    torch.save({"model": state}, save_path)
    return state, save_path


def _check_archive(path: str) -> None:
    """Compares the checksums of a file of torch.save, which torch itself does not."""
    with zipfile.ZipFile(path) as archive:
        wrong = archive.testzip()
    if wrong is not None:
        raise zipfile.BadZipFile(f"{wrong} does not have its checksum")


def _rank(path: str, loaded: object) -> int:
    """The rank's number in a loaded file; raises ValueError for a file of another kind."""
    if not isinstance(loaded, Mapping) or not {"model", "shard_metadata"} <= {*loaded}:
        entries = (
            ", ".join(map(repr, loaded))
            if isinstance(loaded, Mapping)
            else f"a {type(loaded).__name__}"
        )
        raise ValueError(
            f"{path}: expected 'model' and 'shard_metadata', which a rank saves as "
            f"model.state_dict() and model.get_shard_metadata(), got {entries}"
        )
    metadata = loaded["shard_metadata"]
    if not isinstance(metadata, Mapping) or type(metadata.get("rank")) is not int:
        raise ValueError(
            f"{path}: expected a rank's number in 'shard_metadata', got {str(metadata)[:80]}"
        )
    return metadata["rank"]


def _refused(text: str) -> ValueError:
    return ValueError(f"consolidate_sharded_state_dicts: {text}")


def _full_name(module: str, name: str) -> str:
    """The name of a module's tensor in the bare model."""
    return bare_name(f"{module}.{name}" if module else name)


def _joined_shards(
    state_dict_list: Sequence[RankState], key: str, size: Sequence[int]
) -> torch.Tensor:
    """Joins the shards of a parameter; the padding is at the end, whether it was cut flat or along
    dim 0."""
    ranks_without = [rank for rank, state in enumerate(state_dict_list) if key not in state]
    if ranks_without:
        raise _refused(f"rank {ranks_without[0]} has no {key!r}, which the first rank has")
    kinds = {(value.dtype, value.shape) for value in (state[key] for state in state_dict_list)}
    if len(kinds) > 1:
        raise _refused(f"the shards of {key!r} differ: {sorted(map(str, kinds))}")
    joined = torch.cat([state[key].reshape(-1) for state in state_dict_list])
    size = torch.Size(size)
    if joined.numel() < size.numel():
        count = f"{joined.numel()} elements together, and shape {list(size)} takes {size.numel()}"
        raise _refused(f"the shards of {key!r} have {count}")
    if joined[size.numel() :].any():
        raise _refused(f"the shards of {key!r} have values where shape {list(size)} has padding")
    # A copy where there was padding: torch.save would write all of the longer tensor for a view of
    # it.
    return (
        joined.view(size)
        if joined.numel() == size.numel()
        else joined[: size.numel()].view(size).clone()
    )


def _unflattened(
    full: Mapping[str, torch.Tensor], flatten_info: Mapping[str, _Flat]
) -> dict[str, torch.Tensor]:
    """Splits flat parameters into the parameters that were joined in them."""
    flat = {bare_name(name): info for name, info in flatten_info.items()}
    result: dict[str, torch.Tensor] = {}
    for name, value in full.items():
        if name not in flat:
            result[name] = value
            continue
        module = name.rpartition(".")[0]
        names, shapes, sizes = flat[name]
        for part_name, shape, part in zip(names, shapes, value.split([*sizes]), strict=True):
            result[_full_name(module, part_name)] = part.view(torch.Size(shape)).clone()
    return result
