"""Steps of a job and files of models that strangers may have changed: the right values, or a
sentence."""

import json
import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn

import fsdp
import spmd
from spmd.jobs.checkpoint import manifest
from spmd.torch_xla.distributed_checkpoint import FolderReader, SPMDLoadPlanner

sys.path.insert(0, str(Path(__file__).parent))
from changes import Kind, Result, Values, loaded

SAVED = Path(__file__).parents[1] / "saved_before/doors"


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8, bias=False))


def zeros() -> nn.Module:
    model = net()
    with torch.no_grad():
        for value in model.state_dict().values():
            value.zero_()
    return model


def copied(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder, dirs_exist_ok=True)


# --- steps ----------------------------------------------------------------------------------------


def state(model: nn.Module) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    plain = {
        "step": 3,
        "name": "a name",
        "rates": (0.1, 0.2),
        "count": torch.tensor([1.5, 2.5]).numpy()[0],
    }
    return {"model": model, "optimizer": optimizer, "plain": plain}


def write_steps(folder: Path) -> None:
    model = net()
    manager = spmd.CheckpointManager(folder, on_preemption=False)
    for step in (1, 2):
        values = state(model)
        model(torch.ones(2, 8)).sum().backward()
        values["optimizer"].step()
        manager.save(step, values)
    (folder / ".lock").unlink(missing_ok=True)


def load_steps(folder: Path) -> Values:
    values = state(zeros())
    values["plain"] = {"step": 0, "name": "", "rates": (), "count": 0}
    step = spmd.CheckpointManager(folder).restore(values, 2)
    moments = values["optimizer"].state_dict()["state"]
    # A plain container is a value as a whole: what a sealed step has of it is the writer's choice.
    return {
        **values["model"].state_dict(),
        "plain": str(values["plain"]),
        "moments": str(moments),
        "number": step,
    }


def seal_steps(folder: Path) -> None:
    """Renews the sha256 of each manifest."""
    for file in folder.glob("*/manifest.json"):
        body = json.loads(file.read_bytes())
        del body["sha256"]
        kind = body.pop("format")
        text = manifest.text(body)
        file.write_text(text.replace(json.dumps(manifest.FORMAT), json.dumps(kind), 1))


def load_older_steps(folder: Path) -> Values:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    progress = {"step": 0}
    step = spmd.CheckpointManager(folder).restore({"model": model, "progress": progress})
    return {**model.state_dict(), **progress, "number": step}


def load_or_older(folder: Path) -> Values:
    """Restores the newest undamaged step: the second, or the first, which says so by its number."""
    values = {"plain": {"step": 0, "name": "", "rates": (), "count": 0}}
    spmd.CheckpointManager(folder).restore(values, skip_damaged=True)
    return {"plain": str(values["plain"])}


# --- models ---------------------------------------------------------------------------------------


def load_model(path: Path, key: str | None = None) -> Values:
    model = zeros()
    fsdp.load_checkpoint(model, path, key=key)
    return dict(model.state_dict())


def write_indexed(folder: Path) -> None:
    tensors = net().state_dict()
    places = {name: f"model-{place % 2}.safetensors" for place, name in enumerate(tensors)}
    for file in {*places.values()}:
        save_file({name: tensors[name] for name in tensors if places[name] == file}, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def load_older_model(folder: Path) -> Values:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    fsdp.load_checkpoint(model, folder)
    return dict(model.state_dict())


def write_distributed(folder: Path) -> None:
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    dcp.save({"model": net().state_dict(), "step": 7}, checkpoint_id=folder)


def load_distributed(folder: Path) -> Values:
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    values: Values = {"model": zeros().state_dict(), "step": 0}
    dcp.load(values, storage_reader=FolderReader(folder), planner=SPMDLoadPlanner())
    return {**values["model"], "step": values["step"]}


def write_ranks(folder: Path) -> None:
    """The files of two ranks of PyTorch/XLA's FSDP, with shards of flattened parameters, padded."""
    model, infos = net(), {}
    shards: list[Values] = [{}, {}]
    for name, value in model.named_parameters():
        size = -(-value.numel() // 256) * 128
        flat = torch.cat([value.detach().reshape(-1), torch.zeros(2 * size - value.numel())])
        key = f"_fsdp_shard.{name.replace('.', '_fsdp_sep_')}"
        infos[key] = {"_orig_name": name, "_orig_size": value.shape}
        for rank in range(2):
            shards[rank][key] = flat[rank * size : (rank + 1) * size].clone()
    for rank in range(2):
        metadata = {
            "shard_info": {"": infos},
            "flatten_info": {},
            "buffer_info": {},
            "world_size": 2,
            "rank": rank,
        }
        torch.save(
            {"model": shards[rank], "shard_metadata": metadata}, folder / f"x_rank-{rank}-of-2.pth"
        )


_MODEL: dict[str, Any] = {"is_checked": False, "follows_links": True}
# the last of a dtype that torch lacks
_ERRORS = (ValueError, FileNotFoundError, NotImplementedError)
KINDS = {
    "steps": Kind(write_steps, load_steps, seal_steps),
    "steps, skip_damaged": Kind(write_steps, load_or_older, seal_steps),
    "steps of an older version": Kind(
        lambda folder: copied(SAVED / "job", folder), load_older_steps, seal_steps
    ),
    "safetensors": Kind(
        lambda folder: save_file(net().state_dict(), folder / "x.safetensors"),
        lambda folder: load_model(folder / "x.safetensors"),
        errors=_ERRORS,
        **_MODEL,
    ),
    "folder with an index": Kind(write_indexed, load_model, errors=_ERRORS, **_MODEL),
    "model of an older version": Kind(
        lambda folder: copied(SAVED / "shards", folder), load_older_model, errors=_ERRORS, **_MODEL
    ),
    "torch.save": Kind(
        lambda folder: torch.save({"model": net().state_dict()}, folder / "x.pt"),
        lambda folder: load_model(folder / "x.pt", "model"),
        **_MODEL,
    ),
    "torch.distributed.checkpoint": Kind(
        write_distributed,
        load_distributed,
        follows_links=True,
        errors=(ValueError, FileNotFoundError, dcp.api.CheckpointException),
    ),
    "files of ranks": Kind(
        write_ranks,
        lambda folder: fsdp.consolidate_sharded_model_checkpoints(
            str(folder / "x"), save_model=False
        )[0],
        **_MODEL,
    ),
}


class TestStrangers:
    """Changed copies end in the right values or in a sentence, under the limits of `changes.py`."""

    @pytest.mark.parametrize("name", ["steps", "folder with an index"])
    def test_few(self, name: str) -> None:
        self.check(loaded(__file__, name, 5, seed=int(time.time()) // 86400), 5)

    @pytest.mark.parametrize("name", KINDS)
    def test_twenty(self, name: str) -> None:
        self.check(loaded(__file__, name, 20), 20)

    def check(self, results: list[Result], count: int) -> None:
        faults = [result for result in results if result.outcome == "fault"]
        assert len(results) == count and not faults, "\n\n".join(map(str, faults))


class TestLimits:
    """What a load must not do is found."""

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("memory", "MB above the unchanged"),
            ("time", "s, "),
            ("crash", "signal SIGSEGV"),
            ("other", "other values"),
            ("error", "KeyError"),
            ("write", "files outside changed"),
            ("read", "outside of the folder"),
            ("process", "outside of the folder"),
        ],
    )
    def test_found(self, name: str, says: str) -> None:
        results = loaded(Path(__file__).with_name("bad_loads.py"), name, 3)
        # some changes change nothing
        faults = [result for result in results if result.outcome != "same"]
        assert faults and all(
            fault.outcome == "fault" and says in fault.detail for fault in faults
        ), results
