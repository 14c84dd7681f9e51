"""The program of one of `test_managed.py`'s processes:
`python managed.py INDEX COUNT PORT FOLDER NAME`."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import fsdp
import spmd
from spmd.core.base import counters
from spmd.jobs.checkpoint import staged_state, step_folder, step_reader
from tests.jobs.checkpoint.object_store import ObjectStore  # noqa: F401  # store://
from tests.processes.checkpoints import made, train


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "model": model,
        "optimizer": optimizer,
        "random": spmd.checkpoint.RandomState(),
        "progress": {"step": 0},
    }


def count_reads() -> dict[tuple[str, int], int]:
    """The distinct ranges that this process reads from now on, with their bytes."""
    found: dict[tuple[str, int], int] = {}
    original = step_reader.bytes_at

    def counted(place: Any, begin: int, size: int) -> Any:
        found[str(place), begin] = size
        return original(place, begin, size)

    step_reader.bytes_at = counted
    return found


def uploaded() -> int:
    """The bytes that this process's devices have received so far."""
    metric = counters.metric("OutboundData")
    return 0 if metric is None else int(metric.total)


def unwritable(manager: spmd.CheckpointManager, state: dict[str, Any]) -> str:
    """The error of a save that fails in the second process alone, as both see it."""
    opened = os.open

    def full(path: Any, flags: int, *args: Any, **given: Any) -> int:
        if str(path).endswith("shards-1.bin") and flags & os.O_CREAT:
            path, flags = "/dev/full", os.O_WRONLY
        return opened(path, flags, *args, **given)

    os.open = full  # type: ignore[assignment]
    try:
        manager.save(9, state)
    except spmd.checkpoint.SaveError as error:
        return str(error)
    finally:
        os.open = opened
    return "no error"


def run(index: int, folder: Path) -> Any:
    # of one process with eight devices
    model, optimizer = made()
    state = state_of(model, optimizer)
    assert (
        spmd.CheckpointManager(folder / "one").restore(state) == 4
        and state["progress"]["step"] == 4
    )
    found: dict[str, Any] = {"after one": train(model, optimizer)}

    manager = spmd.CheckpointManager(folder / "two", keep=3)
    own = {**state, "own": {"number": index, "tensor": torch.full((3,), float(index))}}
    assert manager.save(5, own) and manager.all_steps() == [5]
    spared, cut = spmd.metrics.counter("buffers_spared"), staged_state._cut

    def slow(*args: Any) -> Any:
        time.sleep(0.05)
        return cut(*args)

    staged_state._cut = slow
    manager.save_async(6, state)
    found["expected"] = train(model, optimizer)
    assert spmd.metrics.counter("buffers_spared") > spared
    manager.wait()
    staged_state._cut = cut
    assert manager.all_steps() == [5, 6]
    second = made()
    state = state_of(*second)
    other = {**state, "own": {"number": 7, "tensor": torch.zeros(3)}}
    plan, counted = manager.plan_restore(other, 5), count_reads()
    before = uploaded()
    assert manager.restore(other, 5) == 5
    mine = plan.processes[index]
    assert (mine.bytes_read, mine.bytes_uploaded) == (sum(counted.values()), uploaded() - before)
    found["plan"] = str(plan)
    assert other["own"]["number"] == index and other["own"]["tensor"].tolist() == [index] * 3
    assert train(*second) == found["expected"]
    assert manager.restore(state) == 6 and train(*second) == found["expected"]

    # as Hugging Face's files: in a folder that both see, and in a store of objects
    compiled = spmd.metrics.num_compiles()
    uneven = spmd.mark_sharding(
        torch.arange(30.0).view(10, 3).to("xla"), spmd.Mesh(range(8), (8,), ("x",)), ("x", None)
    )
    tensors = {**model.state_dict(), "uneven": uneven, "host": torch.full((3,), 7.0)}
    for where in (folder / "model", f"store://{folder}/objects"):
        fsdp.save_checkpoint(tensors, where, max_shard_size=700)
    assert spmd.metrics.num_compiles() == compiled
    third = made()[0]
    assert fsdp.load_checkpoint(third, f"store://{folder}/objects", strict=False).missing_keys == []
    spmd.save_checkpoint(third, folder / "third.safetensors")
    store = spmd.CheckpointManager(f"store://{folder}/job")
    store.save(1, {"model": model})
    assert store.restore({"model": third}) == 1

    found["unwritable"] = unwritable(manager, state)
    found["steps"] = manager.all_steps()
    found["left"] = sorted(path.name for path in (folder / "two").iterdir())

    manager.save_interval = 1000
    for step in range(10, 10_000):
        if step == 12 and index == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        manager.save(step, state)
        if manager.reached_preemption(step):
            break
        time.sleep(0.01)
    found["preempted"] = step
    assert manager.latest_step() == step
    return found


def dying(index: int, folder: Path) -> Any:
    """The second process is killed while it writes step 6."""
    torch.manual_seed(0)
    model, optimizer = made()
    state = state_of(model, optimizer)
    manager = spmd.CheckpointManager(folder / "two")
    manager.save(5, state)
    if index == 1:
        step_folder.SyncedFile.append = lambda *args: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    manager.save(6, state)


if __name__ == "__main__":
    place, num_processes, port, where, name = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    spmd.initialize(
        f"127.0.0.1:{port}",
        num_processes,
        place,
        local_device_count=8 // num_processes,
        heartbeat_timeout_seconds=10,
    )
    print(json.dumps(globals()[name](place, Path(where))))
