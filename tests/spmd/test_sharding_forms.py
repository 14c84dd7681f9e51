"""Every spelling of a sharding: specs, GSPMD text in both forms, DTensor's placements; against a
model of its own.

The model knows a mesh as an array of ids and a spec as a list of axes for each dim, and nothing of
the library.
"""

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import spmd
from spmd import Mesh, P
from spmd.core.base.jax_private import xla_client
from spmd.core.sharding.text import Tiling, spell
from spmd.mesh.placements import splits_of
from spmd.mesh.sharding_text import read

SHAPES = [(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (1,), (2,), (2, 2), (6,), (3, 2), (1, 2, 1)]


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[Mesh, tuple[Any, ...], tuple[int, ...]]:
    """A mesh over some of the devices in some order, a spec over it, and a shape that it need not
    divide."""
    sizes = draw(st.sampled_from(SHAPES))
    ids = draw(st.permutations(range(8)))[: math.prod(sizes)]
    is_named = draw(st.booleans())
    mesh = Mesh(ids, sizes, tuple("abc"[: len(sizes)]) if is_named else None)
    rank = draw(st.integers(0, 4))
    axes = draw(st.permutations(range(len(sizes))))
    split: list[list[int]] = [[] for _ in range(rank)]
    for axis in axes:
        dim = draw(st.integers(-1, rank - 1))
        if dim >= 0:
            split[dim].append(axis)
    spelled = [[("abc"[axis] if is_named else axis) for axis in entry] for entry in split]
    spec = tuple(
        None if not entry else entry[0] if len(entry) == 1 else tuple(entry) for entry in spelled
    )
    return mesh, spec, tuple(draw(st.lists(st.integers(1, 11), min_size=rank, max_size=rank)))


def axes_of(mesh: Mesh, entry: Any) -> list[int]:
    axes = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
    return [axis if isinstance(axis, int) else "abc".index(axis) for axis in axes]


def pieces_of(mesh: Mesh, spec: tuple[Any, ...]) -> dict[int, tuple[tuple[int, int], ...]]:
    """Which piece of how many each device has of each dim: mixed-radix counting over the axes of
    the dim."""
    grid, found = np.array(mesh.device_ids).reshape(mesh.mesh_shape), {}
    for place in itertools.product(*map(range, mesh.mesh_shape)):
        dims = []
        for entry in spec:
            number, count = 0, 1
            for axis in axes_of(mesh, entry):
                number, count = (
                    number * mesh.mesh_shape[axis] + place[axis],
                    count * mesh.mesh_shape[axis],
                )
            dims.append((number, count))
        found[int(grid[place])] = tuple(dims)
    return found


def pieces_of_text(text: str, ids: list[int], rank: int) -> dict[int, tuple[tuple[int, int], ...]]:
    """The same of GSPMD text, as XLA's own reader understands it."""
    sharding = xla_client.HloSharding.from_string(text)
    if sharding.is_replicated():
        return dict.fromkeys(ids, ((0, 1),) * rank)
    tiles = list(sharding.tile_assignment_dimensions())
    table = np.array(sharding.tile_assignment_devices()).reshape(tiles)
    return {
        int(device): tuple((int(at), tiles[dim]) for dim, at in enumerate(place[:rank]))
        for place, device in np.ndenumerate(table)
    }


class TestAgainstAModel:
    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    @given(laid_out())
    def test_spec_and_text(self, case: tuple[Mesh, tuple[Any, ...], tuple[int, ...]]) -> None:
        """Both spellings say for each device the piece that the spec does, and each is taken back
        as the same value."""
        mesh, spec, shape = case
        rank, sharding = len(spec), mesh.sharding(spec, len(spec))
        wanted = pieces_of(mesh, spec)
        for iota in (False, True):
            text = sharding.text(rank, iota=iota)
            assert pieces_of_text(text, list(mesh.device_ids), rank) == wanted, text
            assert mesh.sharding(text, rank).is_as(sharding, rank), text
        assert mesh.sharding(sharding.partition_spec(rank), rank) is sharding
        assert sharding.shard_shape(shape) == tuple(
            math.ceil(size / count)
            for size, (_, count) in zip(shape, wanted[mesh.device_ids[0]], strict=True)
        )

    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    @given(laid_out())
    def test_placements(self, case: tuple[Mesh, tuple[Any, ...], tuple[int, ...]]) -> None:
        """DTensor's placements of a spec are taken back as the same value, in whatever order axes
        split a dim."""
        mesh, spec, _ = case
        sharding = mesh.sharding(spec, len(spec))
        splits = splits_of(sharding.spec.entries(len(spec)), mesh.axes, mesh.mesh_shape)
        placements = [
            Replicate()
            if one is None
            else Shard(one[0])
            if one[1] == 1
            else _StridedShard(one[0], split_factor=one[1])
            for one in splits
        ]
        assert mesh.sharding(placements, len(spec)) is sharding

    @settings(max_examples=25, deadline=None, database=None, derandomize=True)
    @given(laid_out())
    def test_data(self, case: tuple[Mesh, tuple[Any, ...], tuple[int, ...]]) -> None:
        """A device holds the piece that the model names, padded; copies of one piece are
        numbered."""
        mesh, spec, shape = case
        # whole numbers: sums are exact
        whole = torch.arange(1, 1 + math.prod(shape)).reshape(shape)
        x = spmd.mark_sharding(whole.clone().to("xla"), mesh, spec)
        wanted, numbers = pieces_of(mesh, spec), dict[Any, set[int]]()
        shards = spmd.local_shards(x)
        assert sorted(shard.device for shard in shards) == sorted(mesh.device_ids)
        for shard in shards:
            piece = wanted[shard.device]
            sizes = [math.ceil(size / count) for size, (_, count) in zip(shape, piece, strict=True)]
            bounds = [
                (min(number * step, size), min((number + 1) * step, size))
                for size, step, (number, _) in zip(shape, sizes, piece, strict=True)
            ]
            assert list(shard.data.shape) == sizes
            assert [(index.start, index.stop) for index in shard.indices] == bounds
            assert torch.equal(shard.unpadded_data, whole[tuple(slice(*bound) for bound in bounds)])
            numbers.setdefault(piece, set()).add(shard.replica_id)
        copies = mesh.size() // len(numbers)
        assert all(ids == set(range(copies)) for ids in numbers.values())
        assert torch.equal(x.cpu(), whole) and x.sum().item() == whole.sum().item()

    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    @given(
        st.lists(st.integers(1, 4), min_size=1, max_size=4).flatmap(
            lambda sizes: st.tuples(st.just(sizes), st.permutations(range(len(sizes))))
        )
    )
    def test_iota(self, case: tuple[list[int], list[int]]) -> None:
        """The iota form is XLA's own, letter for letter, of every transposed count."""
        sizes, order = case
        count = math.prod(sizes)
        devices = tuple(np.arange(count).reshape(sizes).transpose(order).reshape(-1).tolist())
        ours = spell(Tiling((count,), 1, 1, devices), iota=True)
        theirs = str(xla_client.HloSharding.iota_tile([count], sizes, list(order)))
        assert ours == (theirs if count > 1 else "{replicated}")
        if count > 1:
            assert read(ours, 1, tuple(range(count))).devices == devices


class TestText:
    """GSPMD text wherever a spec is taken; what is none is refused."""

    mesh = Mesh(range(8), (2, 4), ("a", "b"))

    def test_marks(self) -> None:
        x = spmd.mark_sharding(
            torch.ones(8, 4, device="xla"), self.mesh, "{devices=[4,2]<=[2,4]T(1,0)}"
        )
        assert spmd.get_sharding(x) is self.mesh.sharding(("b", "a"), 2)

    def test_unnamed(self) -> None:
        """A tiling that no axes of the mesh can say is a layout of axes of its own."""
        text = "{devices=[8]0,2,1,3,4,6,5,7}"
        sharding = self.mesh.sharding(text, 1)
        assert sharding.text(1) == text and sharding.axis_names != self.mesh.axes

    def test_open_dims(self) -> None:
        sharding = self.mesh.sharding(P(P.UNCONSTRAINED, "a"), 2)
        assert self.mesh.sharding(sharding.text(2), 2) is sharding

    def test_unreduced(self) -> None:
        assert self.mesh.sharding("{unreduced}", 2).text(2) == "{unreduced}"
        tail = "last_tile_dims={replicated, unreduced}"
        assert self.mesh.sharding(f"{{devices=[1,2,4]<=[8] {tail}}}", 1).text(1) == (
            "{devices=[1,4,2]0,4,1,5,2,6,3,7 last_tile_dims={unreduced, replicated}}"
        )

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("{devices=[2,4]<=[8]", "expected GSPMD text such as"),
            ("{manual}", "expected GSPMD text such as"),
            ("{devices=[2,4]0,1}", "are 8, but it names 2 devices"),
            ("{devices=[2,2,2]<=[8]}", "cuts arrays of 3 dims, but the tensor has 2 dims"),
            ("{devices=[4,2]<=[2,4]T(1,1)}", r"T\(1,1\) of .* is no order of its 2 dims"),
            (
                "{devices=[4,2]8,9,10,11,12,13,14,15}",
                "names devices 8 to 15 .*, but the mesh has devices 0 to 7",
            ),
            ("{devices=[2,4]0,0,1,2,3,4,5,6}", "names a device twice"),
            (
                "{devices=[2,2,2]<=[8] last_tile_dims={manual}}",
                "must be 'unreduced' and 'replicated', each once",
            ),
            ("{replicated} unspecified_dims=[2]", "leaves dim 2 open, but the tensor has 2 dims"),
        ],
    )
    def test_refused(self, text: str, said: str) -> None:
        with pytest.raises(ValueError, match=f"mark_sharding: .*{said}"):
            spmd.mark_sharding(torch.ones(8, 4, device="xla"), self.mesh, text)


class TestPlacements:
    mesh = Mesh(range(8), (2, 4), ("a", "b"))

    def test_marks(self) -> None:
        x = spmd.mark_sharding(torch.ones(8, 4, device="xla"), self.mesh, [Shard(0), Shard(-1)])
        assert spmd.get_sharding(x) is self.mesh.sharding(("a", "b"), 2)
        assert self.mesh.sharding((Shard(0), Shard(0)), 1) is self.mesh.sharding((("a", "b"),), 1)

    def test_refused(self) -> None:
        with pytest.raises(ValueError, match="are 1 placements, but the mesh has 2 axes"):
            self.mesh.sharding([Shard(0)], 2)
        with pytest.raises(
            ValueError, match=re.escape("Shard(dim=2) splits dim 2, but the tensor has 2 dims")
        ):
            self.mesh.sharding([Shard(2), Replicate()], 2)
        with pytest.raises(NotImplementedError, match="is a pending sum over axis 'a'"):
            self.mesh.sharding([Partial(), Replicate()], 2)
        with pytest.raises(ValueError, match="expects 3 shards of dim 0 from the later axes"):
            self.mesh.sharding([_StridedShard(0, split_factor=3), Shard(0)], 2)
        with pytest.raises(ValueError, match="dim 0 is left to the partitioner"):
            splits_of((P.UNCONSTRAINED,), ("a",), (2,))


class TestNameless:
    """A mesh without names: axes are numbers, given and read."""

    def test_numbers_come_back(self) -> None:
        mesh = Mesh(range(8), (2, 4))
        x = spmd.mark_sharding(torch.ones(8, 4, device="xla"), mesh, (1, None))
        sharding = spmd.get_sharding(x)
        assert sharding is not None and sharding.partition_spec(2) == (1, None)
        assert mesh.sharding(((1, 0), None), 2).partition_spec(2) == ((1, 0), None)
