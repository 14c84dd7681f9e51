"""Steps for which the device waits, as recording them takes longer than running them: one hint,
with what to do."""

from ...core import counters, in_flight, messages
from ...core.extend import Bounded, Program

STEPS = 50  # in a row
LEAST_OPS = 100  # of a program that is a step
LEAST_SECONDS = 0.005

_ended = _read = 0.0  # the ends of the last launch, and of the last read of a result since
# by a program's id: the device's waits in a row, in seconds
_waits: Bounded[int, list[float]] = Bounded(64)
_is_said = False


def note_read(*_: object) -> None:
    """Notes that a result has come to the host: the device is done with what made it."""
    global _read
    _read = counters.now()


def note_launched(*_: object) -> None:
    """Notes the end of a launch, from which on the host is free to record."""
    global _ended
    _ended = counters.now()


def note_run(program: Program, *_: object) -> None:
    """Notes that a program is about to be launched, and says the hint after `STEPS` that the device
    waited for."""
    global _is_said
    num_ops, name = len(program.entries), id(program)
    if _is_said or num_ops < LEAST_OPS:
        return
    free = max(_ended, _read)
    recorded = counters.now() - free
    # A loop that reads a result in each step has waited for the device as long as the device has
    # for it, or longer.
    if not in_flight.is_idle() or recorded < max(LEAST_SECONDS, free - _ended):
        _waits.keep(name, [])
        return
    waits = _waits.get(name)
    if waits is None:  # its first launch, behind its compilation
        _waits.keep(name, [])
        return
    waits.append(recorded)
    if len(waits) == STEPS:
        _is_said = True
        text = (
            f"the device waits {1e3 * sum(waits) / STEPS:.0f} ms a step for Python: spmd.compile "
            "records a step once"
        )
        why = (
            f"{text}. Each of {STEPS} launches of a program ({num_ops:,} ops, {program.line}) "
            "found the device idle: recording its ops, or the loop around, takes longer than "
            "running it. Wrap the step in spmd.compile, the model in torch.compile, and let "
            "spmd.DataLoader load ahead."
        )
        messages.say(text, "waiting device", why)


def forget() -> None:
    """Forgets what was noted and said."""
    global _is_said
    _is_said = False
    _waits.clear()
