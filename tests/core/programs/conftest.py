"""Helpers of the tests of stores: programs that stack what is alike, layers that are rows, a count
of copies."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest
from alike import WHERE, alike
from stacking import Layers

import spmd
from spmd.core.graph import store


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every program of a test takes its families as stacks."""
    monkeypatch.setattr(*WHERE, alike)
    yield
    spmd.sync()


class Calls:
    """The number of rows stacked, copied out of a store, set into one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: Counter[str] = Counter()
        for name in ("stacked", "row", "with_row"):
            monkeypatch.setattr(store, name, self._counted(name, getattr(store, name)))

    def _counted(self, name: str, function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def call(*args: Any) -> jax.Array:
            self.made[name] += 1
            return function(*args)

        return call

    def since(self) -> dict[str, int]:
        made, self.made = dict(self.made), Counter()
        return made


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.fixture
def layers(stores: None, mesh8: spmd.Mesh) -> Layers:
    """Rows of one store."""
    made = Layers(mesh8, 16, 4)
    made.step()
    assert len(made.stores()) == 1 and None not in made.stores()
    return made
