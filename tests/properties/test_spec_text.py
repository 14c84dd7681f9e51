"""GSPMD text of any sharding, written and read: the same tiling, the same placement on each
device."""

import itertools
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spmd import Mesh, P
from spmd.core.sharding.text import Tiling, spell
from spmd.mesh.sharding_text import open_dims, read

AXES = ("a", "b", "c")
SHAPES = [(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (2, 1, 4), (4,), (2, 3), (6,), (1,)]


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    """Any order of the devices that it takes, of the eight that there are."""
    shape = draw(st.sampled_from(SHAPES))
    devices = draw(st.permutations(range(8)))[: math.prod(shape)]
    in_order = draw(st.booleans())
    return Mesh(sorted(devices) if in_order else devices, shape, AXES[: len(shape)])


@st.composite
def specs(draw: st.DrawFn, mesh: Mesh, rank: int) -> P:
    """Each axis once at most, several on one dim in any order, some dims left to the
    partitioner."""
    entries: list[object] = [() for _ in range(rank)]
    for axis in draw(st.permutations(mesh.axis_names)):
        dim = draw(st.integers(-1, rank - 1))
        if dim >= 0:
            entries[dim] = (*entries[dim], axis)
    is_open = (
        draw(st.lists(st.booleans(), min_size=rank, max_size=rank))
        if draw(st.booleans())
        else [False] * rank
    )
    pairs = zip(entries, is_open, strict=True)
    return P(*(P.UNCONSTRAINED if left and not entry else entry or None for entry, left in pairs))


@st.composite
def tilings(draw: st.DrawFn) -> Tiling:
    """Any tiles, sums and copies over any order of devices; also over one that is an iota."""
    rank = draw(st.integers(1, 3))
    tiles = tuple(draw(st.sampled_from([1, 2, 3, 4])) for _ in range(rank))
    sums, copies = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 3]))
    count = math.prod(tiles) * sums * copies
    order = draw(st.permutations(range(rank + 2)))
    iota = np.arange(count).reshape((*tiles, sums, copies)).transpose(order).reshape(-1).tolist()
    return Tiling(
        tiles,
        sums,
        copies,
        tuple(iota if draw(st.booleans()) else draw(st.permutations(range(count)))),
    )


def as_read(tiling: Tiling) -> Tiling:
    """A value that is replicated, or to be summed, on all devices names neither tiles nor an
    order."""
    count = len(tiling.devices)
    everywhere = count in (tiling.copies, tiling.sums)
    return tiling._replace(devices=tuple(sorted(tiling.devices))) if everywhere else tiling


class TestText:
    """The text that is read is the one that was written, in both forms of the list of devices."""

    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    @given(tilings(), st.booleans())
    def test_there_and_back(self, tiling: Tiling, iota: bool) -> None:
        devices = tuple(sorted(tiling.devices))
        assert read(spell(tiling, iota=iota), len(tiling.tiles), devices) == as_read(tiling)

    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    @given(st.data())
    def test_of_a_mesh_and_a_spec(self, data: st.DataObject) -> None:
        """The placement that the text names is the one that the axes say; a mesh takes the text for
        the spec."""
        mesh = data.draw(meshes())
        rank = data.draw(st.integers(1, 3))
        spec = data.draw(specs(mesh, rank))
        sharding = mesh.sharding(spec, rank)
        text, opened = open_dims(sharding.text(rank))
        tiling = read(text, rank, tuple(mesh.device_ids))
        left = [
            dim for dim, entry in enumerate(spec) if entry is P.UNCONSTRAINED and mesh.size() > 1
        ]
        assert list(opened) == left
        sizes = dict(zip(mesh.axis_names, mesh.mesh_shape, strict=True))
        split = [entry if isinstance(entry, tuple) else () for entry in spec]
        assert tiling.tiles == tuple(math.prod(sizes[axis] for axis in axes) for axes in split)
        assert tiling.sums == 1 and math.prod(tiling.tiles) * tiling.copies == mesh.size()
        table = np.array(tiling.devices).reshape((*tiling.tiles, tiling.copies))
        for place in itertools.product(*map(range, mesh.mesh_shape)):
            at = dict(zip(mesh.axis_names, place, strict=True))
            index = [0] * rank
            for dim, axes in enumerate(split):
                for axis in axes:
                    index[dim] = index[dim] * sizes[axis] + at[axis]
            assert mesh.get_logical_mesh()[place] in table[tuple(index)]
        if not left:
            again = mesh.sharding(text, rank)
            assert again.text(rank) == sharding.text(rank)
