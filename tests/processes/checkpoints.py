"""One of the two processes of `test_checkpoints.py`:
`python checkpoints.py INDEX PORT OTHER_PORT FOLDER`."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import fsdp
import spmd
from fsdp.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from spmd.jobs.checkpoint.files import Stored
from spmd.torch_xla.distributed_checkpoint import FolderReader, SPMDLoadPlanner, SPMDSavePlanner

SIZES = 16, 24, 10


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(*SIZES[:2]), nn.Tanh(), nn.Linear(*SIZES[1:]))


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A sharded model of which nothing is initialised yet, and its optimizer."""
    with torch.device("xla"):
        model = fsdp.FullyShardedDataParallel(net())
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> list[float]:
    x = torch.linspace(-1, 1, 16 * SIZES[0]).view(16, SIZES[0]).to("xla")
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        spmd.sync()
        losses.append(loss.item())
    return losses


def count_reads() -> list[int]:
    """The number of elements of each read of a file from now on."""
    found: list[int] = []
    read = Stored.read

    def counted(self: Stored, indices: Any = None) -> torch.Tensor:
        piece = read(self, indices)
        found.append(piece.numel())
        return piece

    Stored.read = counted  # type: ignore[method-assign]
    return found


def run(index: int, folder: Path) -> Any:
    model, optimizer = made()
    elements = count_reads()
    fsdp.load_checkpoint(model, folder / "model.safetensors")
    losses = train(model, optimizer)

    whole = StateDictOptions(full_state_dict=True)
    full = get_state_dict(model, optimizer, options=whole)
    first = StateDictOptions(full_state_dict=True, cpu_offload=True)
    only = (
        get_model_state_dict(model, options=first),
        get_optimizer_state_dict(model, optimizer, options=first),
    )
    if index == 0:
        torch.save(full, folder / "full.pt")
        assert (
            all(torch.equal(value, full[0][name]) for name, value in only[0].items())
            and len(only[0]) == 4
        )
        assert len(only[1]["state"]) == 4
    else:
        assert only == ({}, {})
    state = get_state_dict(model, optimizer)
    dcp.save({"model": state[0], "optimizer": state[1]}, checkpoint_id=folder / "dcp")
    expected = train(model, optimizer)

    second = made()
    state = get_state_dict(*second)
    dcp.load({"model": state[0], "optimizer": state[1]}, checkpoint_id=folder / "dcp")
    set_state_dict(*second, model_state_dict=state[0], optim_state_dict=state[1])
    assert train(*second) == expected

    third = made()
    third[0].load_state_dict(full[0])
    set_optimizer_state_dict(*third, full[1], options=whole)
    assert train(*third) == expected
    return {"losses": losses, "expected": expected, "elements": sum(elements)}


def values(factor: float) -> dict[str, Any]:
    """Tensors of several shardings, one on the CPU, and a number, of which the first process's is
    kept."""
    mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
    rows = torch.arange(80.0).view(10, 8) * factor
    return {
        "uneven": spmd.mark_sharding(rows.to("xla"), mesh, ("fsdp", None)),
        "columns": spmd.mark_sharding(rows.to("xla"), mesh, (None, "fsdp")),
        "replicated": spmd.mark_sharding(rows.to("xla"), mesh, (None, None)),
        "cpu": rows,
        # a plan of several words
        "wide": {f"value {number}": number * int(factor) for number in range(3000)},
    }


def without_group(index: int, folder: Path) -> None:
    """torch's checkpoints by planners of ours, before there is a process group."""
    dcp.save(
        {**values(1), "rank": index}, checkpoint_id=folder / "planned", planner=SPMDSavePlanner()
    )
    loaded = {**values(0), "rank": 9}
    dcp.load(loaded, storage_reader=FolderReader(folder / "planned"), planner=SPMDLoadPlanner())
    compared(loaded)
    assert loaded["rank"] == 0
    wrong = {"uneven": torch.zeros(3)} if index == 1 else {"uneven": loaded["uneven"]}
    try:
        dcp.load(wrong, checkpoint_id=folder / "planned", planner=SPMDLoadPlanner())
    except dcp.api.CheckpointException as error:  # all processes get it
        assert [*error.failures] == [1] and "Size mismatch" in str(error)
    else:
        raise AssertionError("loaded a shape that does not fit")


def compared(loaded: dict[str, Any]) -> None:
    for name, value in values(1).items():
        found = (
            spmd.full_tensor(loaded[name])
            if getattr(value, "device", None) == torch.device("xla:0")
            else loaded[name]
        )
        expected = (
            spmd.full_tensor(value)
            if getattr(value, "device", None) == torch.device("xla:0")
            else value
        )
        assert (
            torch.equal(found, expected) if isinstance(value, torch.Tensor) else found == expected
        ), name


if __name__ == "__main__":
    place, port, other_port, where = int(sys.argv[1]), *sys.argv[2:]
    spmd.initialize(f"127.0.0.1:{port}", 2, place, local_device_count=4)
    without_group(place, Path(where))
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{other_port}", rank=place, world_size=2
    )
    result = run(place, Path(where))
    dist.destroy_process_group()
    print(json.dumps(result))
