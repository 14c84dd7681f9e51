"""`python -m spmd plan`: a script runs unmodified and without data up to its steady training step,
which is planned."""

# Why the script is recorded by the same code as a step that a function does: evaluation, logging
# and accumulation are syncs of the recording as they are programs of a run, so that its last
# programs are those of a run's steady step.

import contextlib
import inspect
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.modules import module as module_hooks
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...core import AbstractError, DeviceData, held, syncs, threads, topology, user_line
from ...core.extend import (
    Graph,
    Line,
    Objects,
    Recording,
    Target,
    Value,
    recordings,
    state_names,
    user_lines,
    walks,
)
from .layout import ROLES, Calls, PlannedStep, recorded_step, roots_of, rows_of, stage
from .planner import checked, chosen, compiled
from .report import Plan, timed

# Ops whose result says that numbers are not finite.
_NOT_FINITE = frozenset(
    {"aten.isnan", "aten.isinf", "aten._amp_foreach_non_finite_check_and_unscale_"}
)


class _StepEnd(BaseException):
    """Ends a script whose steady step is recorded."""


class _SyncEnd(NamedTuple):
    """The lengths of what a recording keeps, after a sync; line: of the sync."""

    programs: int
    calls: int
    line: Line


class ScriptRecording(Recording):
    """A script up to its steady step: from the sync after each optimizer's first step to the sync
    after its next.

    Reads get ones: a script logs, and goes on. steps: of each optimizer so far. begun: those at the
    sync at which the steady step begins. last: the last sync. window: the ends of the sync to be
    planned if the script has no more: with the first steps, or the longest. is_unsynced: a step
    ends without a sync, and a sync of ours comes before the next call of a module. step: once it is
    complete.
    """

    has_values = True

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target
        self.calls = Calls(())
        self.steps: Counter[torch.optim.Optimizer] = Counter()
        self.begun: dict[torch.optim.Optimizer, int] = {}
        self.last = _SyncEnd(0, 0, user_line())
        self.window, self.num_ops = (self.last, self.last), 0
        self.is_unsynced = False
        self.step: PlannedStep | None = None
        self._not_finite: set[DeviceData] = set()

    def run(self, graph: Graph) -> list[DeviceData]:
        """Keeps a program, and which of its results say that numbers are not finite."""
        outputs = super().run(graph)
        self._not_finite |= {
            data for data, root in zip(outputs, graph.roots, strict=True) if _is_not_finite(root)
        }
        return outputs

    def read(self, value: Value, error: AbstractError) -> np.ndarray:
        """Returns ones, or zeros where they would say that numbers are not finite.

        Saving a checkpoint is an error.
        """
        if str(error).startswith("saving"):
            raise error
        return np.full(value.meta.shape, value not in self._not_finite, value.meta.struct.dtype)

    def synced(self) -> None:
        """Notes the beginning of a step; ends the script at the end of one."""
        start, self.last = (
            self.last,
            _SyncEnd(len(self.programs), len(self.calls.spans), user_line()),
        )
        if self.step is not None:
            return
        is_new, fewest = self.steps.keys() != self.begun.keys(), self._fewest()
        num_ops = sum(len(graph.nodes) for graph in self.programs[start.programs :])
        if fewest == 1 and not is_new:
            self.window = self.window[1], self.last
            self.step = self.between(*self.window)
            raise _StepEnd
        if fewest or is_new or (not self.steps and num_ops >= self.num_ops):
            self.window, self.num_ops, self.begun = (start, self.last), num_ops, dict(self.steps)
            self._place_state()

    def _fewest(self) -> int:
        """The steps of the optimizer with the fewest since the beginning of the steady step."""
        return min(
            (count - self.begun.get(optimizer, 0) for optimizer, count in self.steps.items()),
            default=0,
        )

    def _place_state(self) -> None:
        """Gives state without an annotation the layout that the compiler chooses for it, as in a
        run."""
        names = state_names.StateNames(Objects.of_step(None, [*self.steps])).named
        storages = (storage for storage, named in names.items() if named.role in ROLES)
        state = {storage.value: storage for storage in storages if storage.value in self.unknown}
        if state:
            with topology.standing_in(checked(self.target, self.programs)):
                layouts = chosen(state.keys(), self, self.last.line)
            for data, storage in state.items():
                data.sharding = layouts.get(self.unknown[data], data.sharding)
                storage.set_home(data.sharding)

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Counts a step; three without a sync or the call of a module are a script that has nothing
        on the device."""
        self.steps[optimizer] += 1
        self.is_unsynced |= self._fewest() > 1
        if self._fewest() > 2:
            syncs.sync()
            raise _StepEnd

    def before_call(self, module: torch.nn.Module, args: Any) -> None:
        """Ends a step that has no sync where the next one calls a module: its gradients are dropped
        by then."""
        if self.is_unsynced and self._fewest():
            syncs.sync()

    def between(self, start: _SyncEnd, end: _SyncEnd) -> PlannedStep:
        """The programs between two syncs, initial values aside, with the user's objects at this
        moment."""
        programs = [graph for graph in self.programs[start.programs : end.programs] if graph.inputs]
        self.calls.spans[:] = self.calls.spans[start.calls : end.calls]
        frames = [
            frame_info.frame
            for frame_info in inspect.stack(0)
            if not user_lines.is_library(frame_info.frame.f_code)
        ]
        scopes = [
            vars(sys.modules["__main__"]),
            *(dict(frame.f_locals) for frame in frames),
            *self.steps,
        ]
        reachable = Objects.of_step(None, [*scopes, *(span.module for span in self.calls.spans)])
        modules = reachable.of(torch.nn.Module)
        self.calls.paths = Calls(modules).paths
        results = {
            *self.results[sum(len(graph.roots) for graph in self.programs[: start.programs]) :]
        }
        return recorded_step(
            self, programs, results, reachable, self.calls, rows_of(roots_of(modules), {})
        )

    def note(self) -> str:
        """A sentence on what is planned, where that is not a step between two syncs of the
        script."""
        if self.step is not None:
            ends = (
                "a step of the script ends without a sync (a read, spmd.sync()): here it ends "
                "where the next begins."
            )
            return ends if self.is_unsynced else ""
        if not self.steps:
            return (
                "no optimizer has made a step: the figures are of the longest sync, at "
                f"{self.window[1].line}."
            )
        steps = (
            "first step"
            if max(self.steps.values()) == 1
            else f"first {max(self.steps.values())} steps"
        )
        return (
            f"the figures are of the {steps}, in which the optimizer's state is made: the script "
            "has no more."
        )


def _is_not_finite(value: Value) -> bool:
    """True for the result of one of these ops, and for a bool that other ops make of it."""
    node = walks.origin(value)
    return node is not None and (
        node.op.name in _NOT_FINITE
        or (value.meta.dtype is torch.bool and any(map(_is_not_finite, node.operands)))
    )


def plan_script(run: Callable[[], int], name: str, target: Target) -> Plan:
    """Returns the plan of the steady step of a script, which `run` runs; it returns the exit
    status.

    Raises SystemExit where that is not 0, ValueError where nothing is recorded on the device, and
    the errors of `plan`.
    """
    started, recording = time.monotonic(), ScriptRecording(target)
    threads.enter_thread()
    with (
        recordings.recorded(recording),
        recording.calls.noted(),
        register_optimizer_step_post_hook(recording.after_step),
        module_hooks.register_module_forward_pre_hook(recording.before_call),
        held(torch, save=lambda *args, **kwargs: None),
    ):
        with contextlib.suppress(_StepEnd):
            try:
                sys.exit(run())
            except SystemExit as end:
                if end.code:
                    raise
            syncs.sync()
        if not recording.programs:
            raise ValueError(
                f"plan: {name} recorded nothing on the device: move its model and its batches to "
                '"xla" (.to("xla"); --device=xla of nanoGPT) in place of "cuda" or "cpu"'
            )
        step, line = (
            recording.step or recording.between(*recording.window),
            recording.window[1].line,
        )
    target = checked(target, step.programs)
    with stage("plan"), topology.standing_in(target):
        result = compiled(step, target, line)
    return timed(replace(result, notes=(*result.notes, *filter(None, [recording.note()]))), started)
