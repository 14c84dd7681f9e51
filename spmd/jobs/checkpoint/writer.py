"""The thread that writes a step while the program goes on."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...core import messages
from .all_or_none import Channel
from .places import Place
from .staged_state import StagedState
from .step_saving import Description, ShardBytes, Steps, save_step


@dataclass
class SaveReport:
    """The figures of a save; complete once it has ended.

    Attributes:
        step: the step. path: its folder, None until it is committed.
        seconds_blocked: for which `save_async` kept its caller. seconds_copying: for which later steps copied what they
            overwrite. seconds_waited: for which they waited for room for copies. seconds: until it was committed.
        processor_seconds: of the thread that writes.
        num_bytes: written by this process.
    """

    step: int
    path: Place | None = None
    seconds_blocked: float = 0.0
    seconds_waited: float = 0.0
    seconds_copying: float = 0.0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    num_bytes: int = 0


@dataclass
class Writer:
    """A save under way. Its thread is no daemon: the end of the program waits for it."""

    storage: Steps
    staged: StagedState
    description: Description
    exchange: Channel
    keep: int | None
    report: SaveReport
    began: float
    failure: BaseException | None = None
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="spmd-checkpoint")
        self._thread.start()

    def _run(self) -> None:
        used = time.thread_time()
        try:
            self.report.path = save_step(
                self.storage, self.report.step, self._counted(), self.description, self.exchange, self.keep
            )
        except BaseException as error:
            self.failure = error
            messages.say(f"{str(error).rstrip('.')}. {_advice()}", "failed save", is_error=True)
        finally:
            self.staged.close()
            self.report.seconds_waited = self.staged.lender.waited
            self.report.seconds_copying = self.staged.lender.copying
            self.report.processor_seconds = time.thread_time() - used
            self.report.seconds = time.perf_counter() - self.began

    def _counted(self) -> Iterator[ShardBytes]:
        for shard in self.staged.shards():
            self.report.num_bytes += shard.data.nbytes
            yield shard

    def wait(self) -> None:
        """Waits for the end; raises what made it fail, once."""
        self._thread.join()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure


def _advice() -> str:
    """The end of a failed save's message. Python has set the exit status when it waits for threads."""
    if threading.main_thread().is_alive():
        return (
            "The next save, restore or wait() raises this; without one the exit status of the program does not show it"
        )
    return "The program has ended without wait(), which raises this: its exit status does not show it"
