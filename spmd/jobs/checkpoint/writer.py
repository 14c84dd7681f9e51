"""The thread that writes a step while the program goes on."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...core import messages
from .places import Place
from .staged_state import StagedState
from .step_saving import ShardBytes

Save = Callable[[Iterator[ShardBytes]], Place]


@dataclass
class SaveReport:
    """The figures of a save; complete once it has ended.

    Attributes:
        step: the step. path: its folder, None until it is committed.
        seconds_blocked: for which `save_async` kept its caller. seconds_copying: for which later
            steps copied what they overwrite. seconds_waited: for which they waited for room for
            copies. seconds: until it was committed.
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


def start_writing(
    save: Save, staged: StagedState, report: SaveReport, began: float
) -> Callable[[], None]:
    """Starts the thread that writes a step; returns what waits for its end, and raises what made it
    fail.

    The thread is no daemon: the end of the program waits for it. save: `save_step`, of the shards.
    """
    failures: list[BaseException] = []

    def counted() -> Iterator[ShardBytes]:
        for shard in staged.shards():
            report.num_bytes += shard.data.nbytes
            yield shard

    def write() -> None:
        used = time.thread_time()
        try:
            report.path = save(counted())
        except BaseException as error:
            failures.append(error)
            messages.say(f"{str(error).rstrip('.')}. {_advice()}", "failed save", is_error=True)
        finally:
            staged.close()
            report.seconds_waited, report.seconds_copying = (
                staged.lender.waited,
                staged.lender.copying,
            )
            report.processor_seconds = time.thread_time() - used
            report.seconds = time.perf_counter() - began

    def wait() -> None:
        thread.join()
        if failures:
            raise failures.pop()

    thread = threading.Thread(target=write, name="spmd-checkpoint")
    thread.start()
    return wait


def _advice() -> str:
    """The end of a failed save's message.

    Python has set the exit status when it waits for threads.
    """
    if threading.main_thread().is_alive():
        return (
            "The next save, restore or wait() raises this; without one the exit status of the "
            "program does not show it"
        )
    return (
        "The program has ended without wait(), which raises this: its exit status does not show it"
    )
