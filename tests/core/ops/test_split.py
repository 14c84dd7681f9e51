"""The search for the axes of a dim: through the ops that made an array, each dim once where there is none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from spmd.core.ops import split


def traced(function: object, sharding: NamedSharding, *shapes: tuple[int, ...]) -> None:
    def inside(*arrays: jax.Array) -> jax.Array:
        with split.inside(arrays, [sharding] * len(arrays)):
            return function(*arrays)  # type: ignore[operator, no-any-return]

    jax.jit(inside).trace(*(jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes))


@pytest.fixture
def rows() -> NamedSharding:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(8), ("data",))
    return NamedSharding(mesh, PartitionSpec("data", None))


def test_found_again(rows: NamedSharding) -> None:
    """The same answers in any order of questions, and an annotation made later is seen."""
    found = []

    def function(x: jax.Array) -> jax.Array:
        y = jnp.sin(x).T + 1
        found.extend(split.axes_of(array)[1] for array in (y, x, y * 2, y))  # type: ignore[index]
        placed = split.placed(y, rows.mesh, ("data",), ())
        found.append(split.axes_of(placed + 1)[1])  # type: ignore[index]
        return y

    traced(function, rows, (8, 16))
    assert found == [[(), ("data",)], [("data",), ()], [(), ("data",)], [(), ("data",)], [("data",), ()]]


def test_noted_later(rows: NamedSharding) -> None:
    """A sharding that is noted after a search that found none is found."""
    found = []

    def function(x: jax.Array) -> jax.Array:
        twice = x * 2
        found.append(split.axes_of(twice))
        split.note(x, NamedSharding(rows.mesh, PartitionSpec(None, "data")))
        found.append(split.axes_of(twice))
        return twice

    traced(function, NamedSharding(rows.mesh, PartitionSpec()), (8, 16))
    assert found[0] is None and found[1] is not None and found[1][1] == [(), ("data",)]


def test_each_dim_once(rows: NamedSharding, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions along a chain of ops cost as many steps as it has ops, not their square."""
    count = 0
    sources = split._sources

    def counted(array: object, dim: int) -> object:
        nonlocal count
        count += 1
        return sources(array, dim)

    monkeypatch.setattr(split, "_sources", counted)

    def function(x: jax.Array) -> jax.Array:
        for _ in range(50):
            x = jnp.sin(x)
            assert split.axes_of(x) is None
        return x

    traced(function, NamedSharding(rows.mesh, PartitionSpec()), (8, 16))
    assert count == 100  # two dims of each
