"""Mesh and PartitionSpec: what they accept, what they refuse, and what the refusal says."""

import pickle
import re
from collections import OrderedDict

import jax
import numpy as np
import pytest
import torch

import spmd
from spmd import Mesh, P
from spmd.dtensor import Shard


class TestDeviceIds:
    """device_ids: any of the machine's devices, each at most once, as a range, list or array."""

    def test_forms(self) -> None:
        meshes = [
            Mesh(range(8), (2, 4), ("a", "b")),
            Mesh(list(range(8)), [2, 4], ["a", "b"]),
            Mesh(np.arange(8), (2, 4), ("a", "b")),
            Mesh(np.arange(8).reshape(2, 4), (2, 4), ("a", "b")),
            Mesh(tuple(range(8)), np.array([2, 4]), ("a", "b")),
            Mesh((i for i in range(8)), (2, 4), ("a", "b")),
        ]
        assert len(set(meshes)) == 1
        assert meshes[0].device_ids == tuple(range(8)) and all(
            type(i) is int for i in meshes[1].device_ids
        )
        assert meshes[0].device_ids.tolist() == list(range(8))
        assert pickle.loads(pickle.dumps(meshes[0])) == meshes[0]

    def test_smaller_than_the_machine(self) -> None:
        x = spmd.mark_sharding(
            torch.arange(6.0, device="xla"), Mesh([5, 2, 7], (3,), ("a",)), ("a",)
        )
        shards = {shard.device: shard.data.tolist() for shard in spmd.local_shards(x)}
        assert shards == {5: [0.0, 1.0], 2: [2.0, 3.0], 7: [4.0, 5.0]}
        assert (x * 2).tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]

    def test_permuted(self) -> None:
        ids = [3, 1, 0, 2, 7, 5, 4, 6]
        x = spmd.mark_sharding(torch.arange(8.0, device="xla"), Mesh(ids, (8,), ("a",)), ("a",))
        assert {shard.device: shard.data.item() for shard in spmd.local_shards(x)} == {
            i: float(n) for n, i in enumerate(ids)
        }
        assert (x + x.flip(0)).tolist() == [7.0] * 8

    def test_unknown(self) -> None:
        with pytest.raises(
            ValueError,
            match=r"there is no device 8, 11; this process sees 8 device\(s\).*simulate\(12\)",
        ):
            Mesh([0, 8, 11, 1], (4,))
        with pytest.raises(ValueError, match="there is no device -1"):
            Mesh([-1], (1,))

    def test_repeated(self) -> None:
        with pytest.raises(
            ValueError, match=r"each device may appear once, but 1, 3 appear\(s\) more often"
        ):
            Mesh([1, 3, 1, 3], (4,))

    def test_many(self) -> None:
        """A pod's worth of ids is checked at once, and told in one line."""
        few = r"0, 1, 2, 3, 4, 5, 6, \.\.\. 199999 \(200,000 of them\)"
        with pytest.raises(ValueError, match=f"each device may appear once, but {few} appear"):
            Mesh([*range(200_000)] * 2, (400_000,))
        with pytest.raises(
            ValueError, match=r"no device 8, 9, 10, .*\.\.\. 2047 \(2,040 of them\); this"
        ) as caught:
            Mesh(range(2048), (2048,))
        assert len(str(caught.value)) < 300

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (
                (8, (8,)),
                r"expected the ids of the devices, got 8; the first 8 devices are range\(8\)",
            ),
            (("01", (2,)), "expected the ids of the devices, got '01'"),
            (([0.5], (1,)), "expected device ids, which are integers, got"),
            (
                (range(8), 8),
                r"expected the sizes of the axes as a tuple, got 8; one axis is \(8,\)",
            ),
            (
                (range(8), (2, 4), "ab"),
                r"expected a tuple of axis names, got 'ab'; one name is \('ab',\)",
            ),
        ],
        ids=str,
    )
    def test_what_is_no_list(self, given, message) -> None:
        with pytest.raises(TypeError, match=message):
            Mesh(*given)

    def test_jax_devices(self) -> None:
        with pytest.raises(TypeError, match=r"of a jax\.Device it is \.id"):
            Mesh(jax.devices(), (8,))


class TestMeshShape:
    """mesh_shape: the size of each axis; the product is the number of ids."""

    def test_readers(self) -> None:
        mesh = Mesh(range(8), (2, 4), ("data", "model"))
        assert mesh.size() == 8
        assert mesh.shape() == OrderedDict(data=2, model=4)
        assert mesh.get_logical_mesh().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]

    @pytest.mark.parametrize("shape", [(4,), (3, 3), (0,), (-2, -4), ()])
    def test_wrong_size(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(
            ValueError, match=r"but 8 device ids were given|sizes of axes are at least 1"
        ):
            Mesh(range(8), shape)

    def test_axes_of_size_one(self, mesh1: Mesh) -> None:
        mesh = Mesh(range(8), (1, 8, 1), ("a", "b", "c"))
        sharding = mesh.sharding((("a", "b"), "c"), 2)
        assert sharding.text(2) == "{devices=[8,1]0,1,2,3,4,5,6,7}"
        assert mesh1.sharding(("fsdp",), 1).text(1) == "{replicated}"


class TestAxisNames:
    """axis_names: one per axis, all different; without them axes are called by index."""

    def test_named_axes_have_an_index(self) -> None:
        mesh = Mesh(range(8), (2, 4), ("data", "model"))
        assert mesh.get_axis_name_idx("model") == 1 and mesh.get_axis_name_idx("other") is None

    def test_without_names(self) -> None:
        mesh = Mesh(range(8), (2, 4))
        assert mesh.axis_names is None and mesh.axes == ("0", "1")
        assert mesh == Mesh(range(8), (2, 4), mesh.axes) and eval(repr(mesh)).axis_names is None
        assert pickle.loads(pickle.dumps(mesh)).axis_names is None
        assert mesh.shape() == OrderedDict([(0, 2), (1, 4)])
        assert mesh.sharding((1, 0), 2) is mesh.sharding(P(1, 0), 2)
        assert mesh.sharding(((0, 1), None), 2).text(2) == "{devices=[8,1]0,1,2,3,4,5,6,7}"

    def test_index_and_name_are_the_same(self) -> None:
        mesh = Mesh(range(8), (2, 4), ("data", "model"))
        assert mesh.sharding(("data", "model"), 2) is mesh.sharding((0, 1), 2)

    def test_wrong_count(self) -> None:
        with pytest.raises(
            ValueError, match=r"expected 2 axis names for mesh_shape \(2, 4\), got 1"
        ):
            Mesh(range(8), (2, 4), ("data",))

    def test_repeated(self) -> None:
        with pytest.raises(ValueError, match=r"axis names must differ, got \('a', 'a'\)"):
            Mesh(range(8), (2, 4), ("a", "a"))


class TestValue:
    """A mesh is a value: immutable, equal and hashed by its parts, pickled, printed."""

    def test_value(self) -> None:
        mesh = Mesh(range(8), (2, 4), ("a", "b"))
        assert mesh == Mesh(range(8), (2, 4), ("a", "b")) and hash(mesh) == hash(
            Mesh(range(8), (2, 4), ("a", "b"))
        )
        assert (
            mesh != Mesh(range(8), (4, 2), ("a", "b"))
            and mesh != Mesh(range(8), (2, 4), ("a", "c"))
            and mesh != 3
        )
        for one in (mesh, Mesh([2, 0], (2,))):
            assert pickle.loads(pickle.dumps(one)) == one
        assert (
            repr(mesh) == "Mesh([0, 1, 2, 3, 4, 5, 6, 7], (2, 4), ('a', 'b'))"
            and repr(Mesh([0], (1,))) == "Mesh([0], (1,))"
        )
        with pytest.raises(AttributeError, match="a Mesh is immutable"):
            mesh.mesh_shape = (8,)

    def test_sharding_is_a_value(self) -> None:
        mesh = Mesh(range(8), (2, 4), ("a", "b"))
        sharding = mesh.sharding(("b", None), 2)
        assert pickle.loads(pickle.dumps(sharding)) is sharding
        # trailing dims that are not split make no difference
        assert sharding is mesh.sharding(("b",), 1)
        assert sharding.mesh_axes() == OrderedDict(a=2, b=4)
        assert sharding.partition_spec(3) == ("b", None, None)


class TestPartitionSpec:
    """P: axis names, indices, tuples of them, None; plain tuples mean the same."""

    def test_value(self) -> None:
        spec = P(("data", "fsdp"), None, 0)
        assert spec == (("data", "fsdp"), None, 0) and hash(spec) == hash(
            (("data", "fsdp"), None, 0)
        )
        assert (
            repr(spec) == "P(('data', 'fsdp'), None, 0)"
            and pickle.loads(pickle.dumps(spec)) == spec
        )
        assert type(pickle.loads(pickle.dumps(spec))) is spmd.PartitionSpec and P() == ()

    @pytest.mark.parametrize(
        "entry", [1.5, True, [None], ["a"], (None,), ("a", 2.0), b"a"], ids=repr
    )
    def test_wrong_entry(self, entry: object) -> None:
        with pytest.raises(TypeError, match="a tuple of them, None or UNCONSTRAINED, got"):
            P("a", entry)


class TestSpecErrors:
    """A spec that does not fit says what was expected, what came, what to do, and points at the
    spot."""

    def error(self, spec: tuple[object, ...], rank: int) -> str:
        mesh = Mesh(range(8), (2, 4), ("data", "model"))
        x = torch.zeros((8,) * rank, device="xla")
        with pytest.raises(ValueError) as caught:
            spmd.mark_sharding(x, mesh, spec)
        assert spmd.get_sharding(x) is None and (x + 1).sum().item() == 8**rank  # nothing happened
        return str(caught.value)

    def test_unknown_axis(self) -> None:
        assert self.error(("data", "modle"), 2) == (
            "mark_sharding: axis 'modle' of P('data', 'modle') is not in the mesh (axes: 'data', "
            "'model').\n"
            "    P('data', 'modle')\n"
            "              ^^^^^^^  did you mean 'model'?"
        )
        assert "did you mean" not in self.error(("zzz",), 1)

    def test_the_caret_stands_under_a_whole_axis(self) -> None:
        _, text, carets = self.error((("data", "dat"),), 1).split("\n")
        assert text[carets.index("^") : carets.rindex("^") + 1] == "'dat'"

    @pytest.mark.parametrize("index", [2, -1])
    def test_unknown_index(self, index: int) -> None:
        first, text, carets = self.error((0, index), 2).split("\n")
        assert f"axis {index} of P(0, {index}) is not in the mesh, which has axes 0 to 1" in first
        assert text[carets.index("^") : carets.rindex("^") + 1] == str(index)

    def test_a_bare_axis(self) -> None:
        """A text is not read letter by letter, even where its letters are axes."""
        mesh, x = Mesh(range(8), (2, 4), ("a", "b")), torch.ones(2, 4, device="xla")
        for spec, wanted in (
            ("ab", "P(None, None)"),
            ("a", "P('a', None)"),
            (1, "P(1, None)"),
        ):
            with pytest.raises(
                TypeError, match=re.escape(f"one entry per dim, got {spec!r}; write {wanted}")
            ):
                spmd.mark_sharding(x, mesh, spec)
        with pytest.raises(
            TypeError, match=r"needs a partition_spec, one entry per dim: P\(None, None\)"
        ):
            spmd.mark_sharding(x, mesh, None)
        with pytest.raises(
            TypeError, match=r"use_sharding: expected a spec .* write P\('a', None\)"
        ):
            spmd.use_sharding([x], mesh, "a")
        with pytest.raises(TypeError, match=r"write P\('a'\)"):
            spmd.mark_sharding(x[0].clone(), mesh, "a")

    def test_wrong_rank(self) -> None:
        assert self.error(("data",), 2) == (
            "mark_sharding: P('data') has 1 entries, but the tensor has 2 dims; give one entry "
            "per dim, None where it is not split: P('data', None)"
        )
        assert "has 2 entries, but the tensor has 1 dims" in self.error(("data", None), 1)

    def test_an_axis_twice(self) -> None:
        first, text, carets = self.error(("data", "data"), 2).split("\n")
        assert first == (
            "mark_sharding: axis 'data' is used twice in P('data', 'data'); a mesh axis can split "
            "one dim only"
        )
        assert carets.index("^") == text.rindex("'data'")
        assert "is used twice" in self.error((("data", "data"),), 1)

    def test_an_axis_twice_by_name_and_index(self) -> None:
        first, text, carets = self.error(("model", 1), 2).split("\n")
        assert "is used twice" in first
        assert text[carets.index("^") : carets.rindex("^") + 1] in ("1", "'model'")


def test_a_grid_of_ids_has_its_shape() -> None:
    """As `jax.sharding.Mesh(devices, axis_names)`."""
    mesh = Mesh(np.arange(8).reshape(2, 4), axis_names=("data", "model"))
    assert mesh == Mesh(range(8), (2, 4), ("data", "model"))


def test_one_placement() -> None:
    """A placement alone is that of a mesh with one axis; of two it is one too few."""
    x = torch.ones(8, 8, device="xla")
    spmd.mark_sharding(x, Mesh(range(8), (8,), ("data",)), Shard(1))
    assert spmd.get_sharding(x).partition_spec(2) == (None, "data")
    with pytest.raises(ValueError, match="placement"):
        spmd.mark_sharding(x, Mesh(range(8), (2, 4), ("data", "model")), Shard(0))
