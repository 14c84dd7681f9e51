"""CheckpointManager: the steps of a job in a folder, saved at intervals or before a preemption, and
restored."""

import contextlib
import json
import os
import platform
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import torch

from ...core import device_memory, ends_at_user_line, hardware, messages, processes, syncs
from . import common_calls as calls
from . import preemption, state_entries
from .all_or_none import Channel
from .manifest import DamagedError
from .places import UrlPath, place_of
from .restore_plan import RestorePlan, planned
from .restoring import Restoring
from .staged_state import StagedState
from .step_folder import StepFolder
from .step_reader import StepReader
from .step_saving import Description, Steps, now, save_step
from .stored_objects import StepObjects
from .writer import SaveReport, start_writing


@ends_at_user_line
class CheckpointManager:
    """The checkpoints of a job: a folder with one folder a step, which is there as a whole or not
    at all.

    A state is a dict, nested as you like, of tensors, numbers, strings, and objects with
    `state_dict` and `load_state_dict`: modules, optimizers, schedulers, loaders,
    `spmd.checkpoint.RandomState()`. Each process writes the first copy of each shard on its
    devices; a step is read into any mesh and any number of processes. With several processes all
    call each method, with the same step.

    Args:
        folder: made at the first save, a path or a URL (`gs://bucket/job`) that fsspec knows. One
            job at a time may save in it.
        save_interval: `save` writes the steps that it divides. A line at the end says where it was
            none; `force=True` saves the last one.
        keep: the number of steps that stay, those that were saved last; None: all.
        async_: `save` returns as soon as a thread has taken over, as `save_async` does.
        on_preemption: after SIGTERM, or the cluster's notice, the next step is saved, too, and
            waited for.
        device_bytes: the device memory of this process that one step may take for copies of what is
            being saved and the step overwrites; it waits where they would take more. None: half of
            what is free.

    Raises ValueError for an interval, a number of steps or bytes that is no positive number.
    Source: `torch_xla.experimental.distributed_checkpoint.CheckpointManager`,
    `orbax.checkpoint.CheckpointManager`.

    >>> import tempfile, torch, spmd
    >>> model = torch.nn.Linear(4, 2, device="xla")
    >>> state = {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "epoch": 3}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manager = spmd.CheckpointManager(folder, save_interval=10, keep=2)
    ...     saved = [step for step in range(31) if manager.save(step, state)]
    ...     state["epoch"] = 0
    ...     print(saved, manager.all_steps(), manager.restore(state), state["epoch"])
    [0, 10, 20, 30] [20, 30] 30 3
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        save_interval: int = 1,
        keep: int | None = None,
        *,
        async_: bool = False,
        on_preemption: bool = True,
        device_bytes: int | None = None,
    ) -> None:
        numbers = {
            "save_interval": (save_interval, 1),
            "keep": (keep, 1),
            "device_bytes": (device_bytes, 0),
        }
        for name, (value, least) in numbers.items():
            if value is not None and (type(value) is not int or value < least):
                raise ValueError(
                    f"CheckpointManager: expected {name} to be {least} or more, got {value!r}"
                )
        self.folder = place_of(folder)
        self._kept: Steps = (
            StepObjects(self.folder)
            if isinstance(self.folder, UrlPath)
            else StepFolder(self.folder)
        )
        self.save_interval, self.keep = save_interval, keep
        self.async_, self.on_preemption = async_, on_preemption
        self._room: Callable[[], float] = (
            (lambda: device_memory.free_bytes() / 2)
            if device_bytes is None
            else (lambda: device_bytes)
        )
        self._wait: Callable[[], None] | None = None
        # the last step that was saved, and the last one that was passed over
        self._last: dict[str, int] = {}
        weakref.finalize(self, _say_unsaved, self._last, save_interval)
        self.last_save: SaveReport | None = None

    # --- saving -----------------------------------------------------------------------------------

    def should_save(self, step: int) -> bool:
        """True for a step that `save` writes: one that the interval divides, or the next after a
        preemption notice."""
        return self._is_preempted(step) or step % self.save_interval == 0

    def reached_preemption(self, step: int) -> bool:
        """True at the step that is saved as the job is to end soon, the same in all processes:
        leave the loop after it.

        Call it, `should_save` or `save` with each step. The first of these calls takes SIGTERM
        over; a second signal does what a first one did before.
        """
        return preemption.reached(step)

    def _is_preempted(self, step: int) -> bool:
        return self.on_preemption and preemption.reached(step)

    def save(self, step: int, state: dict[str, Any], *, force: bool = False) -> bool:
        """Saves a state where `should_save(step)`, or with `force`; returns True if it does.

        Returns once the step is committed, or with `async_` as `save_async` does. Raises
        `SaveError` where it could not be written, TypeError for a value that a checkpoint cannot
        hold.
        """
        if not self.save_async(step, state, force=force):
            return False
        if not self.async_ or self._is_preempted(step):
            self.wait()
        return True

    def save_async(self, step: int, state: dict[str, Any], *, force: bool = False) -> bool:
        """As `save`, and returns while a thread writes the values that the state has now; steps may
        go on.

        It waits for an earlier save to end, whose error it raises. The end of the program waits for
        the last one.
        """
        if type(step) is not int or step < 0:
            raise ValueError(f"CheckpointManager.save: expected a step of 0 or more, got {step!r}")
        is_saved = force or self.should_save(step)
        self._last["saved" if is_saved else "passed"] = step
        if not is_saved:
            return False
        began = time.perf_counter()
        self.wait()
        calls.agree(f"CheckpointManager.save of step {step}")
        entries = state_entries.checked(state, "CheckpointManager.save")
        syncs.sync()
        staged = StagedState(self._room)
        try:
            values = {
                path: state_entries.described(path, value, staged.put)
                for path, value in entries.items()
            }
            staged.seal()
            description = Description(staged.tensors, values, _facts())
            self.last_save = SaveReport(step)
            save = partial(
                save_step,
                self._kept,
                step,
                description=description,
                exchange=calls.exchange(),
                keep=self.keep,
            )
            self._wait = start_writing(save, staged, self.last_save, began)
        except BaseException:
            staged.close()
            raise
        self.last_save.seconds_blocked = time.perf_counter() - began
        return True

    def wait(self) -> None:
        """Waits until the last save is committed; raises `SaveError` if it was not.

        A job that saves in a thread ends with it: the end of the program waits, too, and can only
        print the error.
        """
        if self._wait is not None:
            self._wait()  # interrupted, it can be waited for once more
            self._wait = None

    # --- restoring --------------------------------------------------------------------------------

    def all_steps(self) -> list[int]:
        """The committed steps, in order."""
        return list(self._kept.steps())

    def latest_step(self) -> int | None:
        """The committed step with the highest number; None if there is none."""
        return max(self.all_steps(), default=None)

    def restore(
        self, state: dict[str, Any], step: int | None = None, *, skip_damaged: bool = False
    ) -> int:
        """Loads a step into a state, in place, and returns the step.

        Tensors keep their shardings, and each device's part is read from the files by itself;
        numbers and strings are replaced in the state's dicts and lists; objects load by their
        `load_state_dict`. Names and shapes are compared before anything is loaded. Entries of the
        step that the state lacks are left out.

        Args:
            step: None: the latest. skip_damaged: the latest whose files are as they were written,
                all of which are read for it.

        Raises FileNotFoundError where there is no such step, ValueError that lists what does not
        fit, and its subclass `DamagedError` for files that are cut short or changed: the state is
        not to be used then.
        """
        if not isinstance(state, dict) or isinstance(step, dict):
            got = f"({type(state).__name__}, {type(step).__name__})"
            raise TypeError(
                f"CheckpointManager.restore: expected (state, step), a dict and a number, got {got}"
            )
        self.wait()
        calls.agree(f"CheckpointManager.restore of step {step}")
        exchange = calls.exchange()
        number, step_name = _shared(exchange, "step", lambda: self._chosen(step, skip_damaged))
        try:
            with self._explained(number):
                reader = StepReader(self._kept.folder / step_name)
                Restoring(reader, state, (exchange.index, exchange.count)).run()
        except Exception as error:
            exchange.publish(f"loaded/{exchange.index}", str(error))
            raise
        exchange.publish(f"loaded/{exchange.index}", "")
        for process in range(exchange.count):
            words = exchange.read(f"loaded/{process}")
            if words:
                raise ValueError(f"CheckpointManager.restore: process {process} failed: {words}")
        return number

    def plan_restore(self, state: dict[str, Any], step: int | None = None) -> RestorePlan:
        """Says what `restore(state, step)` would read from files, upload and hold on the host in
        each process, and which tensors are joined from several saved shards. It reads the manifest
        alone, and is a call of one process.

        Raises FileNotFoundError, ValueError and `DamagedError` where `restore` would before it
        reads.
        """
        self.wait()
        number, step_name = self._chosen(step)
        return planned(StepReader(self._kept.folder / step_name), state, number, processes.count())

    def _chosen(self, step: int | None, skip_damaged: bool = False) -> tuple[int, str]:
        """The step, None for the latest, and the name of its folder."""
        steps = self._kept.steps()
        if not steps or (step is not None and step not in steps):
            missing = "no committed step" if step is None else f"no committed step {step}"
            have = (
                f"it has {', '.join(map(str, steps))}"
                if steps
                else "save one first; of a new folder latest_step() is None"
            )
            raise FileNotFoundError(
                f"CheckpointManager.restore: {missing} in {self.folder}; {have}"
            )
        for number in [step] if step is not None else sorted(steps, reverse=True):
            try:
                if skip_damaged:
                    StepReader(steps[number]).verify()
            except (DamagedError, OSError) as error:
                messages.say(f"step {number} is left out: {error}", "damaged checkpoint")
                continue
            return number, steps[number].name
        raise DamagedError(f"CheckpointManager.restore: every step in {self.folder} is damaged")

    @contextlib.contextmanager
    def _explained(self, step: int) -> Iterator[None]:
        """Raises DamagedError of a step that says which older one is there."""
        try:
            yield
        except DamagedError as error:
            older = [number for number in self.all_steps() if number < step]
            advice = (
                (
                    f"an older step is there: restore(state, step={older[-1]}), or restore(state, "
                    "skip_damaged=True)"
                )
                if older
                else "there is no older step"
            )
            raise DamagedError(
                f"CheckpointManager.restore: step {step}: {error}; {advice}. The state may be "
                "part loaded"
            ) from error

    def verify(self, step: int | None = None) -> int:
        """Reads all files of a step (None: the latest) and compares their checksums; returns the
        step.

        Raises as `restore` does.
        """
        self.wait()
        number, step_name = self._chosen(step)
        with self._explained(number):
            StepReader(self._kept.folder / step_name).verify()
        return number


def _say_unsaved(last: dict[str, int], interval: int) -> None:
    """Says, at the end of a manager or of the process, that its steps were fewer than its
    interval."""
    if "passed" in last and "saved" not in last:
        text = (
            f"CheckpointManager: nothing was saved up to step {last['passed']}, as save_interval "
            f"is {interval}"
        )
        messages.say(f"{text}; end the loop with save(step, state, force=True)", "unsaved")


_ERRORS = {kind.__name__: kind for kind in (FileNotFoundError, DamagedError)}


def _shared(exchange: Channel, name: str, action: Callable[[], tuple[int, str]]) -> tuple[int, str]:
    """Returns what the first process has found, in all; raises its error in all."""
    if exchange.index == 0:
        try:
            result = action()
        except Exception as error:
            exchange.publish(name, json.dumps({"error": str(error), "class": type(error).__name__}))
            raise
        exchange.publish(name, json.dumps(result))
        return result
    words = json.loads(exchange.read(name))
    if isinstance(words, dict):
        raise _ERRORS.get(words["class"], ValueError)(f"process 0: {words['error']}")
    return words[0], words[1]


def _facts() -> dict[str, Any]:
    """The time and place of a save, for the manifest."""
    versions = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "jax": jax.__version__,
    }
    return {
        "time": now(),
        "versions": versions,
        "processes": processes.count(),
        "devices": len(hardware.devices()),
    }
