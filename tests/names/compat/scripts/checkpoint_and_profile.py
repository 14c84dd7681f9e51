"""Checkpoints, traces and metrics as PyTorch/XLA's users write them: planners, a manager, another
mesh, preemption.

python checkpoint_and_profile.py --save saved.pt
"""

import argparse
import os
import signal
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dist_cp
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.debug.profiler as xp
import torch_xla.distributed.spmd as xs
import torch_xla.experimental.distributed_checkpoint as xc
import torch_xla.runtime as xr
from torch import nn, optim
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan

parser = argparse.ArgumentParser()
parser.add_argument("--save", default=None)
FLAGS, _ = parser.parse_known_args()

xr.use_spmd()
warnings.filterwarnings("ignore", "torch.distributed is disabled")
NUM = xr.global_runtime_device_count()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(128, 64)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(64, 128)

    def forward(self, x):
        return self.fc2(self.relu(self.fc1(x)))


def mesh_of(shape):
    return xs.Mesh(np.arange(NUM), shape, ("data", "model"))


def sharded(shape, seed=0):
    torch.manual_seed(seed)
    model = Net().to(torch_xla.device())
    mesh = mesh_of(shape)
    xs.mark_sharding(model.fc1.weight, mesh, ("model", None))
    xs.mark_sharding(model.fc2.weight, mesh, (None, "model"))
    return model


def train_step(model, optimizer, data):
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    xm.mark_step()
    return loss.item()


def same(one, two):
    assert list(one) == list(two)
    for name in one:
        a, b = one[name], two[name]
        same(a, b) if isinstance(a, dict) else torch.testing.assert_close(
            a.cpu(), b.cpu(), rtol=0, atol=0
        )


results = {}
data = torch.randn(16, 128).to(torch_xla.device())
xs.mark_sharding(data, mesh_of((NUM, 1)), ("data", None))

# Planners: sharded to unsharded, unsharded to sharded, another mesh.
for saved, into in (((1, NUM), None), (None, (1, NUM)), ((1, NUM), (2, NUM // 2))):
    with tempfile.TemporaryDirectory() as folder:
        model = Net().to(torch_xla.device()) if saved is None else sharded(saved)
        state = {"model": model.state_dict()}
        dist_cp.save(
            state, storage_writer=dist_cp.FileSystemWriter(folder), planner=xc.SPMDSavePlanner()
        )
        other = Net().to(torch_xla.device()) if into is None else sharded(into, seed=1)
        loaded = {"model": other.state_dict()}
        dist_cp.load(
            loaded, storage_reader=dist_cp.FileSystemReader(folder), planner=xc.SPMDLoadPlanner()
        )
        other.load_state_dict(loaded["model"])
        same(model.state_dict(), other.state_dict())

# An optimizer that has made no step gets its state, to load into.
model = sharded((1, NUM))
optimizer = optim.Adam(model.parameters(), lr=0.01)
assert not optimizer.state
xc.prime_optimizer(optimizer)
assert set(optimizer.state_dict()["state"][0]) >= {"step", "exp_avg", "exp_avg_sq"}
untouched = sharded((1, NUM))
same(model.state_dict(), untouched.state_dict())

# The manager: interval, eviction, async, restore into another mesh with an optimizer.
with tempfile.TemporaryDirectory() as folder:
    manager = xc.CheckpointManager(
        folder, save_interval=10, max_to_keep=2, chkpt_on_preemption=False
    )
    state_dict = {"model": model.state_dict(), "optim": optimizer.state_dict()}
    assert manager.all_steps() == []
    for step in range(31):
        assert manager.should_save(step) == (step % 10 == 0)
        assert manager.save(step, state_dict) == (step % 10 == 0)
    assert sorted(manager.all_steps()) == [20, 30]
    assert manager.save(31, state_dict, force=True)
    assert sorted(manager.all_steps()) == [30, 31]
    assert manager.save_async(40, state_dict)
    manager.join()
    assert sorted(manager.all_steps()) == [31, 40]
    assert sorted(xc.CheckpointManager(folder, 10, chkpt_on_preemption=False).all_steps()) == [
        31,
        40,
    ]
    losses = [train_step(model, optimizer, data) for _ in range(3)]

    resumed = sharded((2, NUM // 2), seed=5)
    resumed_optimizer = optim.Adam(resumed.parameters(), lr=0.01)
    xc.prime_optimizer(resumed_optimizer)
    state_dict = {"model": resumed.state_dict(), "optim": resumed_optimizer.state_dict()}
    manager.restore(40, state_dict)
    resumed.load_state_dict(state_dict["model"])
    resumed_optimizer.load_state_dict(state_dict["optim"])
    again = [train_step(resumed, resumed_optimizer, data) for _ in range(3)]
    torch.testing.assert_close(torch.tensor(again), torch.tensor(losses), rtol=1e-6, atol=1e-6)
    results |= {"losses": losses, "again": again}

# A notice of the end saves the step at which it is seen, once.
with tempfile.TemporaryDirectory() as folder:
    manager = xc.CheckpointManager(folder, save_interval=1000, max_to_keep=2)
    state_dict = {"model": model.state_dict()}
    assert not manager.reached_preemption(1)
    os.kill(os.getpid(), signal.SIGTERM)
    reached = [
        step
        for step in range(2, 6)
        if manager.save(step, state_dict) and manager.reached_preemption(step)
    ]
    assert len(reached) == 1 and manager.all_steps() == reached, reached

# A trace of steps through a server, from a thread.
with tempfile.TemporaryDirectory() as folder:
    port = xp.start_server(0)
    thread = xp.trace_detached(f"localhost:{port}", folder, duration_ms=1500)
    number = 0
    while thread.is_alive():
        with xp.StepTrace("train", step_num=number), xp.Trace("step"):
            train_step(model, optimizer, data)
        number += 1
    thread.join()
    results["traces"] = [path.name for path in Path(folder).rglob("*.trace.json.gz")]
    assert results["traces"], "the trace was written"

# Metrics: counters and samples, cleared apart.
met.clear_all()
train_step(model, optimizer, data)
assert met.counter_value("MarkStep") >= 1 and met.metric_data("ExecuteTime")[0] >= 1
assert "ExecuteTime" in met.metrics_report() and "MarkStep" in met.short_metrics_report()
met.clear_counters()
assert met.counter_value("MarkStep") is None and met.metric_data("ExecuteTime")[0] >= 1
train_step(model, optimizer, data)
assert met.counter_value("CachedCompile") >= 1 and met.counter_value("UncachedCompile") is None
met.clear_metrics()
assert met.metric_names() == [] and met.counter_value("MarkStep") >= 1
assert met.executed_fallback_ops() == []

# The plan of a save has a chunk for each shard.
plan = create_default_local_save_plan(sharded((1, NUM)).state_dict(), is_coordinator=True)
assert {item.index.fqn for item in plan.items} == set(Net().state_dict())
if FLAGS.save:
    torch.save(results, FLAGS.save)
