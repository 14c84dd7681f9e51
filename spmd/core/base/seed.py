"""The device's random state: a seed and a count of draws. Each draw's key is (seed, count),
whatever the mesh.

All threads draw from one stream. A thread inside `fork` that seeds has a stream of its own until it
leaves.
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator

import torch

from . import forking
from .state import active_observation, held

Draw = tuple[int, int]

_lock = forking.survives_fork(threading.Lock())
_shared: Draw = (0, 0)  # the seed, and the draws so far


class _ThreadDraws(threading.local):
    """The draws of a thread: its own stream, its number of open forks and of draws from the shared
    stream, the draws to repeat, and the lists and loop bodies that note each draw."""

    stream: Draw | None = None
    num_forks = 0
    num_shared = 0
    repeated: Iterator[Draw] | None = None
    notes: tuple[list[Draw], ...] = ()
    bodies: tuple["IterationDraws", ...] = ()


_thread = _ThreadDraws()


def manual_seed(seed: int) -> None:
    """Starts the stream of `seed` from its first draw; `torch.manual_seed` calls it."""
    set_state((_signed(int(seed)), 0))


def next_draw(generator: torch.Generator | None = None) -> Draw:
    """Returns the (seed, count) of the next draw.

    A generator gives a seed of its own and advances by one number.
    """
    # A repeated draw, if one is left; else a new one.
    repeated_draws = _thread.repeated
    draw = None if repeated_draws is None else next(repeated_draws, None)
    if draw is None:
        num_before = _thread.num_shared
        draw = _new_draw(generator)
        observing = active_observation.value
        # A replay repeats draws from the shared stream alone, which has advanced for such a draw.
        if observing is not None and _thread.num_shared > num_before and not _thread.num_forks:
            draw = observing.draw(draw)
        elif observing is not None:
            observing.other_draws = True
    for body in _thread.bodies:
        # Bodies note the draws made in them: neither repeated ones, nor those of a fork inside.
        if body.source is repeated_draws and body.num_forks == _thread.num_forks:
            body.draws.append(draw)
            body.generators.append(generator)
    for note in _thread.notes:
        note.append(draw)
    return draw


def _new_draw(generator: torch.Generator | None) -> Draw:
    """The next draw: of the generator, else of the thread's own stream, else of the shared one."""
    if generator is not None:
        if generator.device.type not in ("cpu", "xla"):
            raise TypeError(f"generator: expected one on xla or cpu, got one on {generator.device}")
        return int(
            torch.randint(0, torch.iinfo(torch.int64).max, (), generator=generator, device="cpu")
        ), 0
    if _thread.stream is not None:
        draw = _thread.stream
        _thread.stream = draw[0], draw[1] + 1
        return draw
    return _advance(1)


def _advance(count: int) -> Draw:
    """Returns the next draw of the shared stream, and advances the stream by a number of draws."""
    global _shared
    with _lock:
        draw = _shared
        _shared = draw[0], draw[1] + count
    _thread.num_shared += count
    return draw


def take(count: int) -> Draw | None:
    """Returns the first of a number of consecutive draws from the shared stream, and advances the
    stream past all of them. None inside fork() or a seeded scope."""
    is_apart = _thread.stream is not None or _thread.repeated is not None or _thread.num_forks
    return None if is_apart else _advance(count)


def get_state() -> Draw:
    """The state as (seed, number of draws so far); reading it runs nothing."""
    return _shared if _thread.stream is None else _thread.stream


def set_state(state: tuple[int, ...]) -> None:
    """Restores the state that `get_state` returned."""
    global _shared
    if len(state) != 2:
        raise ValueError(
            "set_rng_state: expected the 2 numbers of torch.xla.get_rng_state() (seed, draws so "
            f"far), got {len(state)}"
        )
    if _thread.num_forks:
        _thread.stream = state
        return
    with _lock:
        _shared = state


@contextlib.contextmanager
def fork() -> Iterator[None]:
    """Restores the state at the end of the block; seeding inside is for the calling thread alone.

    Draws of an unseeded fork come from the shared stream, so that no other thread gets their
    numbers. The end of the block restores that stream, unless other threads have drawn from it or
    seeded it.
    """
    global _shared
    start, num_shared = _shared, _thread.num_shared
    try:
        with held(_thread, num_forks=_thread.num_forks + 1, stream=_thread.stream):
            yield
    finally:
        with _lock:
            # No other thread has drawn or seeded since: the shared stream goes back.
            if _shared == (start[0], start[1] + _thread.num_shared - num_shared):
                _shared = start
                _thread.num_shared = num_shared


@contextlib.contextmanager
def noted() -> Iterator[list[Draw]]:
    """Collects this thread's draws, for `repeated`."""
    draws: list[Draw] = []
    with held(_thread, notes=(*_thread.notes, draws)):
        yield draws


def loop_seed(draw: Draw) -> int:
    """Returns the seed of a loop of unknown trip count: iteration t has the key (seed, t)."""
    observing = active_observation.value
    if observing is not None:  # a replay changes the draw, but not this seed
        observing.other_draws = True
    # The mixing function of SplitMix64.
    mask, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15
    word = (draw[0] * golden + draw[1] + 1) * golden & mask
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & mask
    return _signed((word ^ (word >> 27)) * 0x94D049BB133111EB)


class IterationDraws:
    """The draws of one iteration of a loop, while its body is recorded."""

    def __init__(self) -> None:
        self.source, self.num_forks = _thread.repeated, _thread.num_forks
        self.draws: list[Draw] = []
        self.generators: list[torch.Generator | None] = []

    def further(self, iterations: int) -> list[list[Draw]]:
        """The draws of all iterations, the recorded one's first; draws those of the others now, in
        the order of a Python loop."""
        return [self.draws] + [
            [next_draw(generator) for generator in self.generators] for _ in range(iterations - 1)
        ]


@contextlib.contextmanager
def iteration() -> Iterator[IterationDraws]:
    """Notes this thread's draws inside, for the iterations of a loop that are not recorded."""
    body = IterationDraws()
    with held(_thread, bodies=(*_thread.bodies, body)):
        yield body


def repeated(draws: Iterable[Draw]) -> contextlib.AbstractContextManager[None]:
    """A context in which this thread draws these numbers again, whatever other threads draw."""
    return held(_thread, repeated=iter(draws))


def _signed(seed: int) -> int:
    """The low 64 bits of a seed as an int64."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >= 1 << 63 else seed
