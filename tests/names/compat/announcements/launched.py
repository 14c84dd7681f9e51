"""`torch_xla.launch`, a loader for devices and `optimizer_step(barrier=True)`; a server, trace
blocks and a capture.

python launched.py debug --save saved.pt
"""

import glob
import socket
import sys
import tempfile

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.profiler as xp
import torch_xla.distributed.parallel_loader as pl
from shapes import rows, simple_linear
from torch import nn, optim

saved = {"losses": []}


def train(index, model, batches, optimizer):
    for step, (data, target) in enumerate(batches):
        with xp.StepTrace("train", step_num=step):
            optimizer.zero_grad()
            with xp.Trace("forward"):
                loss = nn.functional.mse_loss(model(data), target)
            loss.backward()
            xm.optimizer_step(optimizer, barrier=True)
        xm.add_step_closure(
            lambda loss: saved["losses"].append(loss.item()), args=(loss.detach(),), run_async=False
        )
    xm.mark_step()


def _mp_fn(index, flag):
    assert (index, flag) == (0, 0)
    device = xm.xla_device()
    model = simple_linear().to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = pl.MpDeviceLoader(rows(16, size=4), device)
    train(index, model, loader, optimizer)
    saved["model"] = {name: value.cpu() for name, value in model.state_dict().items()}


def capture(folder):
    """A trace of training, taken through a server while it runs."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    server = xp.start_server(port)
    thread = xp.trace_detached(f"localhost:{port}", folder, duration_ms=500)
    device = xm.xla_device()
    model = simple_linear().to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    while thread.is_alive():
        train(
            0, model, [(data.to(device), target.to(device)) for data, target in rows(1)], optimizer
        )
    thread.join()
    del server
    return glob.glob(f"{folder}/**/*.trace.json.gz", recursive=True)


if __name__ == "__main__":
    if "debug" in sys.argv:
        torch_xla.launch(_mp_fn, args=(0,), debug_single_process=True)
        saved["losses"] = list(saved["losses"])
        kept = dict(saved)
        with tempfile.TemporaryDirectory() as folder:
            kept["captured"] = len(capture(folder))
        torch.save(kept | {"losses": kept["losses"][:16]}, sys.argv[-1])
    else:
        torch_xla.launch(_mp_fn, args=(0,))
        torch.save(saved, sys.argv[-1])
