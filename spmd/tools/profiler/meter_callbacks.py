"""A step meter as a callback of transformers' Trainer and of Lightning's, with their classes."""

import importlib
import sys
from typing import Any

from .step_meter import OTHER, STEP, StepMeter

DATA, CHECKPOINT, EVALUATION = "data", "checkpoint", "evaluation"


def trainer_callback(meter: StepMeter) -> Any:
    """Returns a `transformers.TrainerCallback` that measures a Trainer's loop with a meter.

    A step's log has the meter's figures, and the end of training prints its line. The wait before a step is "data",
    saving "checkpoint", evaluating "evaluation".

    >>> import spmd
    >>> meter = spmd.profiler.StepMeter(items_per_step=8, unit="rows")
    >>> type(spmd.profiler.trainer_callback(meter)).__mro__[1].__name__
    'TrainerCallback'
    """
    base: Any = importlib.import_module("transformers").TrainerCallback

    class MeterCallback(base):
        """The meter's laps at the Trainer's events."""

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            """A batch is there."""
            meter.lap(DATA)

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            """A step ends."""
            meter.lap(STEP)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            """Adds the figures to the log."""
            meter.lap(OTHER)
            if logs is not None:
                logs.update(meter.figures())  # for the callbacks behind this one
                state.log_history[-1].update(meter.figures())

        def on_evaluate(self, *args: Any, **kwargs: Any) -> None:
            """An evaluation ends."""
            meter.lap(EVALUATION)

        def on_save(self, *args: Any, **kwargs: Any) -> None:
            """A checkpoint is written."""
            meter.lap(CHECKPOINT)

        def on_train_end(self, *args: Any, **kwargs: Any) -> None:
            """Prints the line."""
            meter.lap(OTHER)
            print(meter)

    return MeterCallback()


def lightning_callback(meter: StepMeter) -> Any:
    """Returns a callback of Lightning that measures a Trainer's loop with a meter, and prints its line at the end.

    The time between two steps is "data", where a checkpoint was written in it "checkpoint"; validating is "evaluation".

    >>> import spmd
    >>> meter = spmd.profiler.StepMeter(items_per_step=8, unit="rows")
    >>> type(spmd.profiler.lightning_callback(meter)).__mro__[1].__name__
    'Callback'
    """
    # One code under two names; a script that has imported one of them uses it.
    other = sys.modules.get("pytorch_lightning")
    base: Any = (importlib.import_module("lightning.pytorch") if other is None else other).Callback

    class MeterCallback(base):
        """The meter's laps at Lightning's events."""

        is_saved = False

        def on_train_batch_start(self, *args: Any) -> None:
            """A batch is there."""
            meter.lap(CHECKPOINT if self.is_saved else DATA)
            self.is_saved = False

        def on_train_batch_end(self, *args: Any) -> None:
            """A step ends."""
            meter.lap(STEP)

        def on_save_checkpoint(self, *args: Any) -> None:
            """A checkpoint is about to be written."""
            self.is_saved = True

        def on_validation_start(self, *args: Any) -> None:
            """The time before belongs to no step."""
            meter.lap(OTHER)

        def on_validation_end(self, *args: Any) -> None:
            """An evaluation ends."""
            meter.lap(EVALUATION)

        def on_train_end(self, *args: Any) -> None:
            """Prints the line."""
            meter.lap(CHECKPOINT if self.is_saved else OTHER)
            print(meter)

    return MeterCallback()
