"""What programs of two processes that train, and of which one is killed, share.

They are run as `python PROGRAM INDEX PORT FOLDER NAME KIND`. A training is made by its kind, and
has `losses(start, stop)`, the losses of these steps, and the `state` that is saved.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import spmd
from spmd.jobs.checkpoint import step_folder

STEPS = 6


def die(index: int, folder: Path, training: Any) -> None:
    """Steps 0 to 3; the second process is killed while it writes what follows step 3."""
    manager = spmd.CheckpointManager(folder)
    losses = training.losses(0, 2)
    manager.save(2, training.state)
    losses += training.losses(2, 4)
    print(json.dumps(losses), flush=True)
    if index == 1:
        step_folder.SyncedFile.append = lambda *args: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    manager.save(4, training.state)


def resume(folder: Path, training: Any) -> dict[str, Any]:
    """The step that is restored, and the losses from there on."""
    step = spmd.CheckpointManager(folder).restore(training.state)
    return {"step": step, "losses": training.losses(step, STEPS)}


def run(training_of: Callable[[str], Any], train: Callable[[Any], Any]) -> None:
    """The program of one process. train: what its program of this name prints."""
    index, port, folder, name, kind = int(sys.argv[1]), *sys.argv[2:]
    spmd.initialize(
        f"127.0.0.1:{port}", 2, index, local_device_count=4, heartbeat_timeout_seconds=10
    )
    training = training_of(kind)
    programs: dict[str, Callable[[], Any]] = {
        "train": lambda: train(training),
        "die": lambda: die(index, Path(folder), training),
        "resume": lambda: resume(Path(folder), training),
    }
    print(json.dumps(programs[name]()))
