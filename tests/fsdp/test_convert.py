"""Consolidation of PyTorch/XLA's FSDP checkpoints, with files of an independent writer after its
description."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT
from torch import nn

import fsdp
import spmd

MULTIPLE = 128  # PyTorch/XLA pads a shard to a multiple of it


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.block = nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Linear(7, 300))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.embed(x)) * self.scale


def cut(value: torch.Tensor, world: int, *, dim_0: bool) -> list[torch.Tensor]:
    """Each rank's shard of a parameter: of its rows, or of it flattened; padded with zeros to equal
    shards."""
    if dim_0 and value.dim():
        rows = -(-value.shape[0] // world)
        padded = torch.cat(
            [value, value.new_zeros(rows * world - value.shape[0], *value.shape[1:])]
        )
        return [padded[rank * rows : (rank + 1) * rows].clone() for rank in range(world)]
    flat = value.reshape(-1)
    size = -(-flat.numel() // (world * MULTIPLE)) * MULTIPLE
    padded = torch.cat([flat, flat.new_zeros(size * world - flat.numel())])
    return [padded[rank * size : (rank + 1) * size].clone() for rank in range(world)]


def ranks(
    model: nn.Module, wrapped: tuple[str, ...], world: int, *, dim_0: bool, flatten: bool
) -> list[Any]:
    """The files of all ranks for a model of which the root and some submodules are wrapped."""
    saved: list[dict[str, torch.Tensor]] = [{} for _ in range(world)]
    shard_info: dict[str, dict[str, Any]] = {}
    flatten_info: dict[str, Any] = {}
    buffer_info: dict[str, Any] = {}
    own: dict[str, dict[str, torch.Tensor]] = {module: {} for module in (*wrapped, "")}
    for name, value in model.named_parameters():
        module = next(one for one in own if name.startswith(f"{one}.") or not one)
        own[module][name.removeprefix(f"{module}.")] = value.detach()
    for module, parameters in own.items():
        shard_info[module] = {}
        dot = f"{module}." if module else ""
        if flatten and parameters:
            names, shapes = [*parameters], [value.shape for value in parameters.values()]
            flatten_info[f"{dot}flat_param_0"] = (
                names,
                shapes,
                [value.numel() for value in parameters.values()],
            )
            parameters = {
                "_fpw_module.flat_param_0": torch.cat(
                    [value.reshape(-1) for value in parameters.values()]
                )
            }
        for name, value in parameters.items():
            key = f"_fsdp_shard.{name.replace('.', '_fsdp_sep_')}"
            shard_info[module][key] = {"_orig_name": name, "_orig_size": value.shape}
            for rank, part in enumerate(cut(value, world, dim_0=dim_0)):
                saved[rank][f"{dot}{key}"] = part
    for name, value in model.named_buffers():
        for state in saved:
            state[name] = value.half() if value.is_floating_point() else value
        if value.is_floating_point():
            buffer_info[name] = {"_orig_dtype": value.dtype}
    common = {
        "shard_info": shard_info,
        "flatten_info": flatten_info,
        "buffer_info": buffer_info,
        "world_size": world,
    }
    return [
        {"model": state, "shard_metadata": {**common, "rank": rank}}
        for rank, state in enumerate(saved)
    ]


def same(found: dict[str, torch.Tensor], model: nn.Module) -> None:
    expected = model.state_dict()
    assert {*found} == {*expected}
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value), name


WRAPPED = (("block.0", "block"), ())


@pytest.mark.parametrize("wrapped", WRAPPED, ids=("nested", "root"))
@pytest.mark.parametrize("dim_0", (False, True), ids=("flat", "dim_0"))
@pytest.mark.parametrize("flatten", (False, True), ids=("each", "flatten_parameters"))
class TestStateDicts:
    """The ranks' state dicts give the bare model's, whatever arguments it was wrapped with."""

    @pytest.mark.parametrize("world", (1, 4, 11))
    def test_same(self, wrapped: tuple[str, ...], dim_0: bool, flatten: bool, world: int) -> None:
        model = Net()
        made = ranks(model, wrapped, world, dim_0=dim_0, flatten=flatten)
        found = fsdp.consolidate_sharded_state_dicts(
            [one["model"] for one in made], made[-1]["shard_metadata"]
        )
        same(found, model)
        assert all(value.untyped_storage().nbytes() == value.nbytes for value in found.values())


class TestNames:
    """Names have no trace of the wrappers' own modules."""

    def test_wrapped_modules(self) -> None:
        model = Net()
        made = ranks(model, ("block",), 2, dim_0=False, flatten=True)
        long = "_fsdp_wrapped_module._fpw_module."
        metadata = made[0]["shard_metadata"]
        infos = {
            f"{long}{name}" if name else "": info for name, info in metadata["shard_info"].items()
        }
        states = [{f"{long}{name}": value for name, value in one["model"].items()} for one in made]
        same(fsdp.consolidate_sharded_state_dicts(states, {**metadata, "shard_info": infos}), model)


def write(folder: Path, model: nn.Module, world: int = 4) -> str:
    prefix = str(folder / "final")
    for rank, one in enumerate(ranks(model, ("block",), world, dim_0=False, flatten=False)):
        torch.save({**one, "epoch": 3}, f"{prefix}_rank-{rank}-of-{world}.pth")
    return prefix


class TestFiles:
    """The files of all ranks become one, which torch and a sharded model read."""

    def test_function(self, tmp_path: Path) -> None:
        model = Net()
        found, path = fsdp.consolidate_sharded_model_checkpoints(write(tmp_path, model, 12))
        same(found, model)
        assert path == str(tmp_path / "final_consolidated.pth")
        same(torch.load(path)["model"], model)

    def test_not_saved(self, tmp_path: Path) -> None:
        prefix = write(tmp_path, Net())
        assert fsdp.consolidate_sharded_model_checkpoints(prefix, save_model=False)[1] is None
        assert len([*tmp_path.iterdir()]) == 4

    def test_into_a_sharded_model(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        model = Net()
        _, path = fsdp.consolidate_sharded_model_checkpoints(
            write(tmp_path, model), save_path=str(tmp_path / "all.pt")
        )
        with torch.device("xla"):
            sharded = fsdp.FullyShardedDataParallel(Net(), mesh8)
        fsdp.load_checkpoint(sharded, path, key="model")
        same({name: value.cpu() for name, value in sharded.state_dict().items()}, model)

    def test_command(self, tmp_path: Path) -> None:
        model = Net()
        command = [
            sys.executable,
            "-m",
            "fsdp.consolidate_sharded_ckpts",
            "--ckpt_prefix",
            write(tmp_path, model),
        ]
        done = subprocess.run(
            [*command, "--save_path", str(tmp_path / "one.pth")],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{len(model.state_dict())} tensors saved to {tmp_path / 'one.pth'}\n"
        same(torch.load(tmp_path / "one.pth")["model"], model)

    def test_errors(self, tmp_path: Path) -> None:
        prefix = write(tmp_path, Net())
        with pytest.raises(FileNotFoundError, match="each rank saves one"):
            fsdp.consolidate_sharded_model_checkpoints(str(tmp_path / "other"))
        (tmp_path / "final_rank-2-of-4.pth").unlink()
        with pytest.raises(ValueError, match=r"each of 4 ranks, got those of \[0, 1, 3\]"):
            fsdp.consolidate_sharded_model_checkpoints(prefix)
        torch.save({"model": {}}, tmp_path / "bare_rank-0-of-1.pth")
        with pytest.raises(ValueError, match="expected 'model' and 'shard_metadata'"):
            fsdp.consolidate_sharded_model_checkpoints(str(tmp_path / "bare"))

    def test_pipe(self, tmp_path: Path) -> None:
        """Opened as a file, it would wait for a writer for ever."""
        os.mkfifo(tmp_path / "x_rank-0-of-1.pth")
        with pytest.raises(
            FileNotFoundError, match=r"expected files .*x_rank-\*-of-\*\.pth, found none"
        ):
            fsdp.consolidate_sharded_model_checkpoints(str(tmp_path / "x"))

    def test_pieces_that_do_not_fit(self) -> None:
        made = ranks(Net(), (), 2, dim_0=False, flatten=False)
        states, metadata = [one["model"] for one in made], made[0]["shard_metadata"]
        with pytest.raises(ValueError, match="of all 2 ranks, got 1"):
            fsdp.consolidate_sharded_state_dicts(states[:1], metadata)
        lost = max(states[0], key=lambda name: states[0][name].numel())
        with pytest.raises(ValueError, match="rank 1 has no"):
            fsdp.consolidate_sharded_state_dicts(
                [states[0], {k: v for k, v in states[1].items() if k != lost}], metadata
            )
        with pytest.raises(ValueError, match="which the state dicts lack"):
            fsdp.consolidate_sharded_state_dicts(
                [{k: v for k, v in s.items() if k != lost} for s in states], metadata
            )
        with pytest.raises(ValueError, match="elements together"):
            fsdp.consolidate_sharded_state_dicts(
                [{**s, lost: s[lost][:3]} for s in states], metadata
            )
