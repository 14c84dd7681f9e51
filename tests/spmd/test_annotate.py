"""Annotations beyond mark_sharding's own page: taken back, out of place, by the next program,
alike; and the errors."""

import copy
import pickle

import jax
import pytest
import torch
from support import check, run_script
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor import Shard as Split

import spmd
from spmd import Mesh, P, Sharding


def spec(tensor: torch.Tensor) -> tuple[object, ...] | None:
    found = spmd.get_sharding(tensor)
    return None if found is None else found.partition_spec(tensor.dim())


class TestTakenBack:
    """mark_sharding(t, sharding): what get_sharding returned, pickled in between, or what has a
    mesh and a spec."""

    @pytest.mark.parametrize(
        ("ids", "shape", "names", "entries"),
        [
            ([0], (1,), ("a",), ("a", None)),
            ([6, 1], (2,), None, (None, 0)),
            ([3, 2, 1, 0], (2, 2), ("a", "b"), (("b", "a"), None)),
            (range(8), (2, 2, 2), ("a", "b", "c"), ("c", ("a", "b"))),
        ],
        ids=str,
    )
    def test_round_trip(self, ids, shape, names, entries) -> None:
        source = torch.randn(8, 6)
        x = spmd.mark_sharding(source.to("xla"), Mesh(ids, shape, names), entries)
        found = pickle.loads(pickle.dumps(spmd.get_sharding(x)))
        for y in (
            source.to("xla"),
            source.to("xla") * 2,
            spmd.mark_sharding(source.to("xla"), Mesh([0], (1,)), P(None, 0)),
        ):
            assert spmd.mark_sharding(y, found) is y and spmd.get_sharding(y) is found
        spmd.sync()
        assert torch.equal(y.cpu(), source)

    def test_an_object_with_both(self, mesh8: Mesh) -> None:
        class Said:
            mesh, partition_spec = mesh8, ("fsdp", None)

        assert spec(spmd.mark_sharding(torch.ones(8, 8, device="xla"), Said())) == ("fsdp", None)

    def test_the_mesh_around(self, mesh8: Mesh) -> None:
        with mesh8:
            x = spmd.mark_sharding(torch.ones(8, 8, device="xla"), partition_spec=("fsdp", None))
            y = spmd.torch_xla.mark_sharding_with_gradients(x, None, (None, "fsdp"))
            z = spmd.reshard(torch.ones(8, device="xla"), ("fsdp",))
            w = spmd.from_local_shards([torch.ones(1)] * 8, None, ("fsdp",))
        assert (
            spec(x) == ("fsdp", None)
            and spec(y) == (None, "fsdp")
            and spec(z) == spec(w) == ("fsdp",)
        )
        with pytest.raises(
            ValueError,
            match="mark_sharding: expected a mesh, got none; pass one, or use `with mesh:`",
        ):
            spmd.mark_sharding(torch.ones(8, device="xla"), None, ("fsdp",))

    def test_text_and_placements(self, mesh2x4: Mesh) -> None:
        x = torch.ones(8, 8).to("xla")
        for said in (
            "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
            [Replicate(), Split(0)],
            P("fsdp", None),
        ):
            for made in (spmd.mark_sharding(x, mesh2x4, said), spmd.reshard(x, said, mesh2x4)):
                assert spec(made) == ("fsdp", None)

    def test_memory(self, mesh8: Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8).to("xla"), mesh8, ("fsdp",), memory_kind="pinned_host")
        kept, near = torch.ones(8).to("xla"), torch.ones(8).to("xla")
        spmd.mark_sharding(kept, spmd.get_sharding(x))
        spmd.mark_sharding(near, spmd.get_sharding(x), memory_kind="device")
        assert [spmd.get_sharding(y).memory for y in (kept, near)] == ["pinned_host", "device"]

    def test_of_another_rank(self, mesh8: Mesh) -> None:
        sharding = mesh8.sharding((None, "fsdp"), 2)
        with pytest.raises(
            ValueError, match=r"mark_sharding: Sharding\(.*\) is for 2 dims, but the tensor has 1"
        ):
            spmd.mark_sharding(torch.ones(8, device="xla"), sharding)
        assert spec(spmd.mark_sharding(torch.ones(8, 8, 8, device="xla"), sharding)) == (
            None,
            "fsdp",
            None,
        )

    def test_from_a_larger_machine(self) -> None:
        sharding = Sharding.of(tuple(range(16)), (16,), ("a",))
        with pytest.raises(
            ValueError, match=r"is over devices up to 15, and this process sees 8: ids 0 to 7"
        ):
            spmd.mark_sharding(torch.ones(8, device="xla"), sharding)

    def test_kind(self, mesh8: Mesh) -> None:
        x = torch.ones(8, device="xla")
        with pytest.raises(
            TypeError, match=r"expected a spmd\.Mesh, got NoneType; a result of spmd\.get_sharding"
        ):
            spmd.mark_sharding(x, spmd.get_sharding(x))
        with pytest.raises(
            TypeError, match=r"needs a partition_spec, one entry per dim: P\(None\)"
        ):
            spmd.mark_sharding(x, mesh8)
        with pytest.raises(TypeError, match="a Sharding holds both the mesh and the spec"):
            spmd.mark_sharding(x, mesh8.sharding(("fsdp",), 1), ("fsdp",))
        with pytest.raises(
            ValueError, match="expected memory_kind to be 'device' or 'pinned_host', got 'hbm'"
        ):
            spmd.mark_sharding(x, mesh8, ("fsdp",), memory_kind="hbm")


class TestGradient:
    """gradient=: it follows its tensor, unless told otherwise; marking again says anew."""

    def test_of_a_leaf(self, mesh8: Mesh) -> None:
        w = torch.ones(8, 8).to("xla").requires_grad_()
        found = []
        for follows in (True, False, True):
            spmd.mark_sharding(w, mesh8, ("fsdp", None), gradient=follows)
            w.grad = None
            (w * w).sum().backward()
            found.append(w.grad._storage.sharding is spmd.get_sharding(w))
        assert found == [True, False, True] and (w.grad == 2).all()

    def test_of_a_computed_value(self, mesh8: Mesh) -> None:
        found = []
        for follows in (True, False):
            leaf = torch.ones(8, 8, device="xla").requires_grad_()
            y = spmd.mark_sharding(leaf * 2, mesh8, ("fsdp", None), gradient=follows)
            y.retain_grad()
            (y * y).sum().backward()
            found.append(spec(y.grad))
        assert found == [("fsdp", None), None]

    def test_is_kept_off(self, mesh8: Mesh) -> None:
        """By deep copies, and by contexts that look for gradients to lay."""
        layer = nn.Linear(8, 8, bias=False).to("xla")
        spmd.mark_sharding(layer.weight, mesh8, ("fsdp", None), gradient=False)

        other = copy.deepcopy(layer)
        with spmd.use_sharding([other.weight], mesh8):
            other(torch.ones(2, 8, device="xla")).sum().backward()
        assert other.weight.grad._storage.sharding is None and spec(other.weight) == ("fsdp", None)

    def test_of_what_becomes_a_parameter(self, mesh8: Mesh) -> None:
        weight = nn.Parameter(spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh8, (None, "fsdp")))
        (torch.ones(8, 8, device="xla") @ weight).sum().backward()
        assert spec(weight.grad) == (None, "fsdp")


class TestWithGradients:
    """mark_sharding_with_gradients: out of place, the gradient lies alike; the input stays as it
    is."""

    @pytest.mark.parametrize(
        "call",
        [spmd.torch_xla.mark_sharding_with_gradients, spmd.torch_xla.MarkShardingFunction.apply],
        ids=["mark_sharding_with_gradients", "apply"],
    )
    def test_both_ways(self, call, mesh2x4: Mesh) -> None:
        source = torch.randn(8, 12)
        x = source.to("xla").requires_grad_()
        arrived = []
        h = x.sin()
        h.register_hook(lambda grad: arrived.append(spec(grad)))
        y = call(h, mesh2x4, ("data", "fsdp"))
        (y.t() @ y).exp().mean().backward()
        assert (
            y is not h
            and spec(h) is None
            and spec(y) == ("data", "fsdp")
            and arrived == [("data", "fsdp")]
        )
        twin = source.clone().requires_grad_()
        (twin.sin().t() @ twin.sin()).exp().mean().backward()
        torch.testing.assert_close(x.grad.cpu(), twin.grad, rtol=1e-4, atol=1e-4)

    def test_a_marked_input_keeps_its_own(self, mesh8: Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh8, ("fsdp", None))
        for view in (x, x.t()):
            y = spmd.torch_xla.mark_sharding_with_gradients(view, mesh8, (None, "fsdp"))
            assert spec(y) == (None, "fsdp") and spec(x) == ("fsdp", None)
            spmd.sync()
            assert spec(y) == (None, "fsdp") and spec(x) == ("fsdp", None) and (y == 1).all()

    def test_nothing_and_integers(self, mesh8: Mesh) -> None:
        empty = spmd.torch_xla.mark_sharding_with_gradients(
            torch.ones(0, 4, device="xla"), mesh8, ("fsdp", None)
        )
        whole = spmd.torch_xla.mark_sharding_with_gradients(
            torch.arange(3).to("xla"), mesh8, ("fsdp",)
        )
        assert empty.shape == (0, 4) and whole.tolist() == [0, 1, 2]

    def test_without_gradients(self, mesh8: Mesh) -> None:
        with torch.no_grad():
            y = spmd.torch_xla.mark_sharding_with_gradients(
                torch.ones(8, device="xla", requires_grad=True), mesh8, ("fsdp",)
            )
        assert not y.requires_grad and spec(y) == ("fsdp",)


class TestCustom:
    """annotate_custom_sharding: data moves in the next program."""

    def test_data(self, mesh8: Mesh) -> None:
        x = spmd.mark_sharding(torch.arange(64.0).view(8, 8).to("xla"), mesh8, ("fsdp", None))
        spmd.local_shards(x)
        assert spmd.torch_xla.annotate_custom_sharding(x, mesh8, (None, "fsdp")) is x
        assert spmd.residence(x) == "pending" and spec(x) == (None, "fsdp")
        x.add_(1)
        assert {tuple(shard.data.shape) for shard in spmd.local_shards(x)} == {(8, 1)}
        check(x, torch.arange(64.0).view(8, 8) + 1)

    def test_what_is_no_data(self, mesh8: Mesh) -> None:
        host, pending = torch.ones(8).to("xla"), torch.ones(8).to("xla") * 2
        for x in (host, pending, pending[:4]):
            spmd.torch_xla.annotate_custom_sharding(x, mesh8, ("fsdp",))
            assert spec(x) == ("fsdp",)
        assert (host + pending).tolist() == [3.0] * 8


class TestAlike:
    """shard_as: partners lie alike, chosen by the partitioner; gradients too."""

    @pytest.mark.parametrize("size", [1, 2, 8])
    def test_the_other_follows(self, size: int) -> None:
        mesh = Mesh(range(size), (size,), ("a",))
        source, other = torch.randn(8, 8), torch.randn(8, 8)
        a = spmd.mark_sharding(source.to("xla"), mesh, ("a", None)).requires_grad_()
        b = other.to("xla").requires_grad_()
        tree, alike = spmd.shard_as({"x": [a * 1, 5]}, {"x": [b.exp(), 5]})
        (one, number), (two, _) = tree["x"], alike["x"]
        (one * two).sum().backward()
        spmd.sync()
        assert number == 5 and spmd.get_sharding(one).text(2) == spmd.get_sharding(two).text(2)
        assert spmd.get_sharding(two).tiles(2) == (size, 1)
        check(two, other.exp())
        check(a.grad, other.exp())
        check(b.grad, source * other.exp())

    def test_equal_pairs_of_other_layouts(self, mesh8: Mesh) -> None:
        """Each pair is a group of its own, also where pairs have the same shape and dtype."""
        sources = torch.randn(4, 8, 8)
        specs = [("fsdp", None), (None, "fsdp")]
        marked = [
            spmd.mark_sharding(sources[i].to("xla"), mesh8, spec) for i, spec in enumerate(specs)
        ]
        pairs = [
            spmd.shard_as(one * 1, sources[2 + i].to("xla").exp()) for i, one in enumerate(marked)
        ]
        flat = [value for pair in pairs for value in pair]
        assert spmd.get_stablehlo(flat) == spmd.get_stablehlo(flat)  # groups are counted by program
        spmd.sync()
        tiles = [[spmd.get_sharding(value).tiles(2) for value in pair] for pair in pairs]
        assert tiles == [[(8, 1)] * 2, [(1, 8)] * 2]
        for i, (one, other) in enumerate(pairs):
            check(one, sources[i])
            check(other, sources[2 + i].exp())

    def test_other_dtypes_and_one_gradient(self, mesh8: Mesh) -> None:
        a = spmd.mark_sharding(torch.arange(8).to("xla"), mesh8, ("fsdp",))
        b = torch.ones(8, device="xla").requires_grad_()
        one, two = spmd.shard_as(a, b)
        two.sum().backward()
        assert (
            one.tolist() == [*range(8)] and b.grad.tolist() == [1.0] * 8 and not one.requires_grad
        )

    def test_errors(self) -> None:
        x = torch.ones(2, device="xla")
        with pytest.raises(
            ValueError, match="shard_as: expected two pytrees of one structure, got"
        ):
            spmd.shard_as([x], (x,))
        with pytest.raises(
            ValueError, match=r"shard_as: expected partners of the same shape, got \[2\] and \[3\]"
        ):
            spmd.shard_as(x, torch.ones(3, device="xla"))
        with pytest.raises(TypeError, match="shard_as: expected a tensor on xla, got one on cpu"):
            spmd.shard_as(x, torch.ones(2))
        with pytest.raises(TypeError, match="shard_as: expected a tensor on xla, got 'int'"):
            spmd.shard_as([1], [x])


MARKS = {
    "mark_sharding": spmd.mark_sharding,
    "mark_sharding_with_gradients": spmd.torch_xla.mark_sharding_with_gradients,
    "annotate_custom_sharding": spmd.torch_xla.annotate_custom_sharding,
    "reshard": lambda tensor, mesh, spec: spmd.reshard(tensor, spec, mesh),
}


@pytest.mark.parametrize("name", MARKS)
class TestErrors:
    """Each of the functions that take a mesh and a spec says in its own name what is wrong with
    them."""

    @pytest.mark.parametrize(
        ("entries", "text"),
        [
            (P("data"), r"P\('data'\) has 1 entries, but the tensor has 2 dims"),
            (
                P("dta", None),
                r"axis 'dta' of P\('dta', None\) is not in the mesh.*\n.*\n.*did you mean 'data'\?",
            ),
            (
                P("data", "data"),
                r"axis 'data' is used twice in P\('data', 'data'\); a mesh axis can split one dim",
            ),
            (P(2, None), r"axis 2 of P\(2, None\) is not in the mesh, which has axes 0 to 1"),
        ],
        ids=["rank", "axis", "twice", "index"],
    )
    def test_spec(self, name: str, entries: P, text: str, mesh2x4: Mesh) -> None:
        with pytest.raises(ValueError, match=f"(?s){name}: {text}"):
            MARKS[name](torch.ones(8, 8, device="xla"), mesh2x4, entries)

    def test_mesh(self, name: str) -> None:
        with pytest.raises(TypeError, match=rf"{name}: expected a spmd\.Mesh, got list"):
            MARKS[name](torch.ones(8, device="xla"), [8], ("a",))

    def test_device(self, name: str, mesh8: Mesh) -> None:
        with pytest.raises(
            TypeError,
            match=rf'{name}: expected a tensor on xla, got one on cpu; move it with .to\("xla"\)',
        ):
            MARKS[name](torch.ones(8), mesh8, ("fsdp",))


class TestMeshes:
    """A mesh larger than the machine, and values on two of them."""

    def test_larger_than_the_machine(self) -> None:
        with pytest.raises(
            ValueError, match=r"there is no device 8; this process sees 8 device\(s\), ids 0, 1"
        ):
            Mesh(range(9), (9,))

    def test_two_meshes_in_one_op(self) -> None:
        x = spmd.mark_sharding(torch.ones(8).to("xla"), Mesh(range(4), (4,), ("a",)), ("a",))
        y = spmd.mark_sharding(torch.ones(8).to("xla"), Mesh(range(4, 8), (4,), ("a",)), ("a",))
        z = x + y
        with pytest.raises(
            ValueError, match=r"mixes values on devices \[0, 1, 2, 3\] and \[4, 5, 6, 7\]"
        ):
            spmd.sync()
        del z
        assert (x + spmd.reshard(y, spmd.get_sharding(x))).tolist() == [2.0] * 8

    def test_of_a_target_that_is_not_here(self) -> None:
        far = Mesh(range(8), (8,), ("a",), target="cpu:8")
        with pytest.raises(spmd.AbstractError, match="its devices are not here"):
            spmd.from_local_shards([torch.ones(1)] * 8, far, ("a",))


class TestOtherMachines:
    """A file from eight devices on a machine with one: data comes, the annotation does not, and
    that is said."""

    def test_files(self, tmp_path, mesh2x4: Mesh) -> None:
        path = tmp_path / "saved.pt"
        layer = nn.Linear(8, 8, bias=False).to("xla")
        spmd.mark_sharding(layer.weight, mesh2x4, (("fsdp", "data"), None))
        torch.save(layer.state_dict(), path)
        printed = run_script(
            f"""
            import warnings, torch
            plain = torch.load({str(path)!r})
            print(plain["weight"].device)
            import spmd
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                there = torch.load({str(path)!r}, map_location="cpu")
                print(there["weight"].device, len(seen), [*there["weight"].__dict__])
                here = torch.load({str(path)!r})["weight"]
            print(here.device, spmd.get_sharding(here), torch.equal(here.cpu(), plain["weight"]))
            print(seen[0].message)
            """
        )
        assert printed.splitlines() == [
            "cpu",
            "cpu 0 []",
            "xla:0 None True",
            "a tensor was saved as Sharding((data=2, fsdp=4), (('fsdp', 'data'),)), over devices "
            "up to 7, and this process sees 1: it is loaded without an annotation; mark it for "
            "the devices that are here",
        ]


class TestOrder:
    """A spec and a mesh in either order, by position and by name."""

    @pytest.mark.parametrize("function", [spmd.mark_sharding, spmd.reshard])
    def test_either(self, function, mesh8):
        spec, theirs = (None, "fsdp"), jax.sharding.Mesh(jax.devices(), ("fsdp",))
        for result in (
            function(torch.ones(8, 8, device="xla"), mesh8, spec),
            function(torch.ones(8, 8, device="xla"), spec, mesh8),
            function(torch.ones(8, 8, device="xla"), spmd.P(*spec), theirs),
            function(torch.ones(8, 8, device="xla"), theirs, spmd.P(*spec)),
            function(torch.ones(8, 8, device="xla"), partition_spec=spec, mesh=mesh8),
        ):
            assert spmd.get_sharding(result).partition_spec(2) == spec

    def test_two_meshes(self, mesh8):
        with pytest.raises(TypeError, match="expected a spec with one entry per dim, got Mesh"):
            spmd.mark_sharding(torch.ones(8, device="xla"), mesh8, mesh8)
