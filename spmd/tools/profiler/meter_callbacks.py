"""A step meter as a callback of transformers' Trainer and of Lightning's, with their classes."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

from ...core import ends_at_user_line
from .step_meter import OTHER, STEP, StepMeter

DATA, CHECKPOINT, EVALUATION = "data", "checkpoint", "evaluation"


def _callback(
    base: type, meter: StepMeter, kinds: dict[str, str], **methods: Callable[..., None]
) -> Any:
    """An object of a class of callbacks. kinds: of the time before each event; methods: its other
    methods."""

    def lap(kind: str) -> Callable[..., None]:
        def method(*args: Any, **kwargs: Any) -> None:
            meter.lap(kind)

        return method

    return type(
        "MeterCallback", (base,), {event: lap(kind) for event, kind in kinds.items()} | methods
    )()


@ends_at_user_line
def trainer_callback(meter: StepMeter) -> Any:
    """Returns a `transformers.TrainerCallback` that measures a Trainer's loop with a meter.

    A step's log has the meter's figures, and the end of training prints its line. The wait before a
    step is "data", saving "checkpoint", evaluating "evaluation".

    >>> import spmd
    >>> meter = spmd.profiler.StepMeter(items_per_step=8, unit="rows")
    >>> type(spmd.profiler.trainer_callback(meter)).__mro__[1].__name__
    'TrainerCallback'
    """

    def on_log(
        self: Any, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any
    ) -> None:
        meter.lap(OTHER)
        if logs is not None:
            logs.update(meter.figures())  # for the callbacks behind this one
            state.log_history[-1].update(meter.figures())

    def on_train_end(*args: Any, **kwargs: Any) -> None:
        meter.lap(OTHER)
        print(meter)

    kinds = {
        "on_step_begin": DATA,
        "on_step_end": STEP,
        "on_evaluate": EVALUATION,
        "on_save": CHECKPOINT,
    }
    base = importlib.import_module("transformers").TrainerCallback
    return _callback(base, meter, kinds, on_log=on_log, on_train_end=on_train_end)


@ends_at_user_line
def lightning_callback(meter: StepMeter) -> Any:
    """Returns a callback of Lightning that measures a Trainer's loop with a meter, and prints its
    line at the end.

    The time between two steps is "data", where a checkpoint was written in it "checkpoint";
    validating is "evaluation".

    >>> import spmd
    >>> meter = spmd.profiler.StepMeter(items_per_step=8, unit="rows")
    >>> type(spmd.profiler.lightning_callback(meter)).__mro__[1].__name__
    'Callback'
    """
    saved: list[Any] = []  # the checkpoints that are about to be written since the last batch

    def on_train_batch_start(*args: Any) -> None:
        meter.lap(CHECKPOINT if saved else DATA)
        saved.clear()

    def on_save_checkpoint(*args: Any) -> None:
        saved.append(None)

    def on_train_end(*args: Any) -> None:
        meter.lap(CHECKPOINT if saved else OTHER)
        print(meter)

    kinds = {
        "on_train_batch_end": STEP,
        "on_validation_start": OTHER,
        "on_validation_end": EVALUATION,
    }
    # One code under two names; a script that has imported one of them uses it.
    module = sys.modules.get("pytorch_lightning") or importlib.import_module("lightning.pytorch")
    methods = (on_train_batch_start, on_save_checkpoint, on_train_end)
    return _callback(
        module.Callback, meter, kinds, **{method.__name__: method for method in methods}
    )
