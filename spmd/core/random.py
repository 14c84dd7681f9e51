"""The device's random state: a seed and a count of draws. Each draw's key is (seed, count), whatever the mesh."""

import contextlib
import threading
from collections.abc import Iterator

import torch

_lock = threading.Lock()
_seed = 0
_count = 0


def manual_seed(seed: int) -> None:
    """Starts the stream of `seed` from its first draw; `torch.manual_seed` calls it."""
    global _seed, _count
    with _lock:
        _seed, _count = _signed(int(seed)), 0


def next_draw(generator: torch.Generator | None = None) -> tuple[int, int]:
    """The (seed, count) of the next draw. A CPU generator gives a seed of its own and moves on by one number."""
    global _count
    if generator is not None:
        if generator.device.type != "cpu":
            raise TypeError(f"generator: expected a CPU generator, got one on {generator.device}")
        return int(torch.randint(0, torch.iinfo(torch.int64).max, (), generator=generator, device="cpu")), 0
    with _lock:
        _count += 1
        return _seed, _count - 1


def get_state() -> tuple[int, int]:
    """The state as (seed, number of draws so far); reading it runs nothing."""
    return _seed, _count


def set_state(state: tuple[int, ...]) -> None:
    """Restores what `get_state` returned."""
    global _seed, _count
    if len(state) != 2:
        raise ValueError(
            f"set_rng_state: expected the 2 numbers of torch.xla.get_rng_state() (seed, draws so far), got {len(state)}"
        )
    with _lock:
        _seed, _count = state


@contextlib.contextmanager
def fork() -> Iterator[None]:
    """Draws inside leave the state outside as it was."""
    state = get_state()
    try:
        yield
    finally:
        set_state(state)


def _signed(seed: int) -> int:
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >= 1 << 63 else seed
