"""Two processes of four devices load, save and resume a sharded model; one of eight goes on with
what they saved."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from support import ROOT

from fsdp.state_dict import get_state_dict, set_state_dict

from .checkpoints import SIZES, compared, made, net, train, values
from .test_processes import environment, outputs

PROGRAM = ROOT / "tests/processes/checkpoints.py"


def free_ports() -> list[str]:
    with socket.socket() as one, socket.socket() as other:
        for free in (one, other):
            free.bind(("127.0.0.1", 0))
        return [str(free.getsockname()[1]) for free in (one, other)]


# torch says so wherever there is one process
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
class TestCheckpoints:
    """A file of two processes equals the file of one."""

    def test_saved_by_two_loaded_by_one(self, tmp_path: Path) -> None:
        source = net().state_dict()
        save_file(source, tmp_path / "model.safetensors")
        ports = free_ports()
        started = [
            subprocess.Popen(
                [sys.executable, "-W", "error", str(PROGRAM), str(index), *ports, str(tmp_path)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(),
                cwd=ROOT,
            )
            for index in range(2)
        ]
        printed = outputs(started)
        assert [process.returncode for process in started] == [0, 0], printed
        first, second = (json.loads(out.splitlines()[-1]) for out, _ in printed)
        assert first["losses"] == second["losses"] and first["expected"] == second["expected"]

        loaded = values(0)
        dcp.load(loaded, checkpoint_id=tmp_path / "planned", no_dist=True)  # torch's own planner
        compared(loaded)
        assert sorted(path.name for path in (tmp_path / "planned").glob("*.distcp")) == [
            "__0_0.distcp",
            "__1_0.distcp",
        ]

        # Each has read its half of what is split; (10, 24) is split along dim 1 and 10 rows
        # unevenly: 8 and 2.
        split = SIZES[0] * SIZES[1] + SIZES[1] + SIZES[1] * SIZES[2]
        assert (first["elements"], second["elements"]) == (split // 2 + 8, split // 2 + 2)

        model, optimizer = made()
        model.load_state_dict(source)
        assert train(model, optimizer) == pytest.approx(first["losses"], rel=1e-6)
        states = get_state_dict(model, optimizer)
        dcp.load(
            {"model": states[0], "optimizer": states[1]},
            checkpoint_id=tmp_path / "dcp",
            no_dist=True,
        )
        set_state_dict(model, optimizer, model_state_dict=states[0], optim_state_dict=states[1])
        full = torch.load(tmp_path / "full.pt")
        assert all(
            torch.equal(value.cpu(), full[0][name]) for name, value in model.state_dict().items()
        )
        moments = full[1]["state"]["0.weight"]["exp_avg"]
        assert torch.equal(optimizer.state[model[0].weight]["exp_avg"].cpu(), moments)
        assert train(model, optimizer) == pytest.approx(first["expected"], rel=1e-6)
