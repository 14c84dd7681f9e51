"""`torch.xla.Stream` and `torch.xla.Event`: the device has one stream, in which programs run in the
order recorded."""

import contextlib
import time
from typing import Any

import torch

from ..record.calls.naming import check_index, substitute_class
from ..run import syncs


class Stream(torch.Stream):
    """The device's only stream, of which all objects are equal: ops are recorded, run at a sync,
    and done in order."""

    def __new__(
        cls, device: torch.types.Device = None, priority: int = 0, **kwargs: object
    ) -> "Stream":
        check_index(device, "Stream")
        return super().__new__(cls, device=torch.device("xla", 0))

    def synchronize(self) -> None:
        """Runs the pending ops and returns when the devices are done, as `torch.xla.synchronize`
        does."""
        syncs.sync(wait=True)

    def query(self) -> bool:
        """True, always: the call waits until all work is done."""
        syncs.sync(wait=True)
        return True

    def wait_stream(self, stream: torch.Stream) -> None:
        """Does nothing: there is no other stream to wait for."""

    def wait_event(self, event: torch.Event) -> None:
        """Does nothing: work recorded before an event is done before work recorded after it."""

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records `event`, or a new one, and returns it."""
        result = Event() if event is None else event
        result.record(self)
        return result

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *error: object) -> None:
        pass


class Event(torch.Event):
    """A position in the stream.

    An event that measures time waits for the devices where it is recorded; others do not.
    """

    def __new__(
        cls, device: torch.types.Device = None, *, enable_timing: bool = False, **kwargs: object
    ) -> "Event":
        """An event of the one device; `moment` is the time of its last record."""
        check_index(device, "Event")
        result = super().__new__(cls, device=torch.device("xla", 0), enable_timing=enable_timing)
        result.enable_timing = enable_timing
        result.moment = None
        return result

    enable_timing: bool
    moment: float | None

    def record(self, stream: torch.Stream | None = None) -> None:
        """Marks this position; with `enable_timing` runs the pending ops, waits for them and notes
        the time."""
        if self.enable_timing:
            syncs.sync(wait=True)
        self.moment = time.perf_counter()

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Does nothing: work recorded after it runs after it."""

    def query(self) -> bool:
        """True, always: the call waits until all work before the event is done."""
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Returns when all work before it is done."""
        if self.moment is not None:
            syncs.sync(wait=True)

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Milliseconds from this event to `end_event`; both must have been made with
        `enable_timing=True`."""
        return (_moment(end_event) - _moment(self)) * 1e3


def _moment(event: torch.Event) -> float:
    """The time of an event; ValueError if it has none."""
    if not isinstance(event, Event) or not event.enable_timing:
        raise ValueError(
            "elapsed_time: both events must be xla events made with enable_timing=True"
        )
    if event.moment is None:
        raise ValueError("elapsed_time: both events must be recorded first")
    return event.moment


class StreamContext(contextlib.nullcontext[None]):
    """`torch.xla.stream(stream)`: work goes to the one stream in any case."""

    def __init__(self, stream: torch.Stream | None):
        super().__init__()
        if stream is not None and stream.device.type != "xla":
            raise ValueError(f"stream: expected a stream of xla, got one of {stream.device}")
        self.stream = stream


def _is_ours(*args: Any, **kwargs: Any) -> bool:
    """True if torch would make a stream or an event of our device; without a name it takes the
    accelerator's."""
    if len(args) > 2 or "stream_id" in kwargs:  # a stream that torch has made, by its own numbers
        return False
    device = args[0] if args else kwargs.get("device")
    return device is None or isinstance(device, int) or torch.device(device).type == "xla"


def join_streams() -> None:
    """Lets `torch.Stream` and `torch.Event` of the device wait and measure, which torch leaves to a
    C++ backend."""
    torch.Stream = substitute_class(torch.Stream, Stream, _is_ours)  # type: ignore[misc]
    torch.Event = substitute_class(torch.Event, Event, _is_ours)  # type: ignore[misc]
