"""Batches of the tests of loaders: their numbers, a source that counts, the loaders' threads."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import torch


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(int(torch.tensor(shape).prod()), dtype=torch.float32).reshape(shape)


def values(batches: Any) -> list[Any]:
    """Batches as nested lists of numbers, whichever device they are on."""

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.tolist()
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    return [plain(batch) for batch in batches]


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "spmd-data"]


def has_no_threads() -> bool:
    """True once the loaders' threads have ended; they are given ten seconds."""
    deadline = time.monotonic() + 10
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not loader_threads()


class Counting:
    """A source that notes what was pulled from it."""

    def __init__(self, length: int = 100) -> None:
        self.length, self.pulled = length, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for i in range(self.length):
            self.pulled += 1
            yield torch.full((8,), float(i))
