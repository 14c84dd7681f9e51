"""The program of one of `test_orbax_saves.py`'s processes:
`python orbax_saves.py INDEX COUNT PORT FOLDER run`."""

import json
import sys
from pathlib import Path
from typing import Any

import torch

import spmd
from spmd.checkpoint import load_orbax, save_orbax
from tests.processes.checkpoints import made, train


def state_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, values: tuple[int, int] = (0, 0)
) -> Any:
    """The state with an uneven tensor, a replicated one and one on the CPU."""
    mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
    uneven = spmd.mark_sharding(torch.arange(10, device="xla") * values[0], mesh, ("fsdp",))
    rows = spmd.mark_sharding(
        torch.arange(10.0, device="xla").view(5, 2) * values[0], mesh, (None, None)
    )
    return {
        "model": model,
        "optimizer": optimizer,
        "uneven": uneven,
        "rows": rows,
        "step": values[1],
        "cpu": torch.ones(3) * values[0],
    }


def compared(state: Any) -> None:
    assert spmd.full_tensor(state["uneven"]).tolist() == list(range(10)) and state["step"] == 7
    assert (
        spmd.full_tensor(state["rows"]).view(-1).tolist() == list(range(10))
        and state["cpu"].tolist() == [1.0] * 3
    )


def run(index: int, folder: Path) -> Any:
    state = state_of(*made())
    load_orbax(state, folder / "one")  # of one process with eight devices
    compared(state)
    found = {"after one": train(state["model"], state["optimizer"])}
    save_orbax({**state_of(state["model"], state["optimizer"], (1, 7))}, folder / "two")
    found["expected"] = train(state["model"], state["optimizer"])
    again = state_of(*made())
    load_orbax(again, folder / "two")
    compared(again)
    assert train(again["model"], again["optimizer"]) == found["expected"]
    return found


if __name__ == "__main__":
    place, num_processes, port, where, name = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    spmd.initialize(
        f"127.0.0.1:{port}", num_processes, place, local_device_count=8 // num_processes
    )
    print(json.dumps(globals()[name](place, Path(where))))
