"""The table of collectives: groups in every spelling, axes, bytes, turns, lines."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec

import spmd
from spmd import Mesh
from spmd.core.programs.hlo import Module
from spmd.tools.hlo.hlo_collectives import collectives, groups, node_index

GRID = Mesh(range(8), (2, 4), ("data", "model"))


def graph(*meshes: Mesh) -> Any:
    """The parts of a graph that the table asks for: its meshes and its ops."""
    return types.SimpleNamespace(
        meshes=lambda: [mesh.sharding((), 0).replicated() for mesh in meshes], nodes=[None] * 9
    )


def found(text: str, *meshes: Mesh) -> list[tuple[Any, ...]]:
    table = collectives(Module(text), graph(*(meshes or (GRID,))))
    return [
        (one.row.kind, one.row.axes, one.row.devices, one.row.bytes, one.row.count, one.node)
        for one in table
    ]


def program(line: str) -> str:
    return (
        "HloModule one\n\n%sum (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  %b = "
        "f32[] parameter(1)\n"
        "  ROOT %c = f32[] add(%a, %b)\n}\n\nENTRY %main (x: f32[16]) -> f32[16] {\n"
        f"  %x = f32[16]{{0}} parameter(0)\n  {line}\n  ROOT %r = f32[16]{{0}} copy(%x)\n}}\n"
    )


class TestGroups:
    """The groups that exchange data, in each of the forms that XLA prints."""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("replica_groups={{0,1},{2,3}}", [(0, 1), (2, 3)]),
            ("replica_groups=[2,2]<=[4]", [(0, 1), (2, 3)]),
            ("replica_groups=[2,2]<=[2,2]T(1,0)", [(0, 2), (1, 3)]),
            ("replica_groups={}", [(0, 1, 2, 3)]),
            ("replica_groups=mesh['a'=2,'b'=2] {'b'}", [(0, 1), (2, 3)]),
            ("replica_groups=mesh['a'=2,'b'=2] {'a'}", [(0, 2), (1, 3)]),
            ("replica_groups=mesh['a'=4,'b'=1] {'a','b'}", [(0, 1, 2, 3)]),
            ("replica_groups=mesh['a'=4] {'a':(1)2}", [(0, 2), (1, 3)]),
            ("replica_groups=mesh['a'=4] {'a':(2)2}", [(0, 1), (2, 3)]),
            ("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}", [(0, 2), (1, 3)]),
            ("replica_groups=mesh['a'=2,'b'=2], device_ids=(3,2,1,0) {'b'}", [(3, 2), (1, 0)]),
            ("source_target_pairs={{0,1},{1,0}}", [(0, 1), (1, 0)]),
        ],
    )
    def test_forms(self, text: str, expected: list[tuple[int, ...]]) -> None:
        assert groups(text, 4) == expected

    @pytest.mark.parametrize(
        ("written", "axes", "size"),
        [
            ("replica_groups={{0,1,2,3},{4,5,6,7}}", ("model",), 4),
            ("replica_groups=[4,2]<=[2,4]T(1,0)", ("data",), 2),
            ("replica_groups=[1,8]<=[8]", ("data", "model"), 8),
            ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", ("4 groups of 2",), 2),
        ],
    )
    def test_axes(self, written: str, axes: tuple[str, ...], size: int) -> None:
        line = (
            f"%g = f32[16]{{0}} all-reduce(%x), channel_id=1, {written}, "
            "use_global_device_ids=true, to_apply=%sum"
        )
        assert found(program(line)) == [("all-reduce", axes, size, 64, 1, None)]

    def test_part_of_an_axis_is_named_by_another_mesh(self) -> None:
        line = (
            "%g = f32[16]{0} all-reduce(%x), channel_id=1, replica_groups=[4,2]<=[8], to_apply=%sum"
        )
        finer = Mesh(range(8), (4, 2), ("rest", "pair"))
        assert found(program(line), GRID, finer)[0][1] == ("pair",)

    def test_order_of_the_devices(self) -> None:
        line = (
            "%g = f32[16]{0} all-reduce(%x), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%sum"
        )
        shuffled = Mesh([0, 4, 1, 5, 2, 6, 3, 7], (4, 2), ("model", "data"))
        assert found(program(line), shuffled)[0][1] == ("4 groups of 2",) or found(
            program(line), GRID, shuffled
        )
        assert found(program(line), GRID, shuffled)[0][1] == ("model",)


class TestKinds:
    """Bytes as one device has them whole; asynchronous halves and chains count once."""

    def test_bytes(self) -> None:
        gather = (
            "%g = f32[64]{0} all-gather(%x), channel_id=1, replica_groups=[2,4]<=[8], "
            "dimensions={0}"
        )
        assert found(program(gather)) == [("all-gather", ("model",), 4, 256, 1, None)]
        started = (
            "%s = (f32[16]{0}, f32[64]{0}) all-gather-start(%x), channel_id=1, "
            "replica_groups=[2,4]<=[8], dimensions={0}\n  %d = f32[64]{0} all-gather-done(%s)"
        )
        assert found(program(started)) == [("all-gather", ("model",), 4, 256, 1, None)]
        scattered = (
            "%g = f32[4]{0} reduce-scatter(%x), channel_id=1, replica_groups=[2,4]<=[8], "
            "dimensions={0}, "
            'to_apply=%sum, metadata={op_name="jit(spmd)/mark_sharding#3/sharding_constraint"}'
        )
        assert found(program(scattered)) == [("reduce-scatter", ("model",), 4, 64, 1, 3)]

    def test_permutation(self) -> None:
        line = (
            "%g = f32[16]{0} collective-permute(%x), channel_id=1, "
            "source_target_pairs={{0,4},{1,5},{4,0}}"
        )
        assert found(program(line)) == [("collective-permute", ("data",), 2, 64, 1, None)]

    def test_chain_over_fusions(self) -> None:
        gather = (
            "all-gather(%x), channel_id=5, replica_groups=[2,4]<=[8], dimensions={0}, "
            'frontend_attributes={chain_id="0"}'
        )
        assert len(found(program(f"%g = f32[64]{{0}} {gather}\n  %h = f32[64]{{0}} {gather}"))) == 1

    def test_beside_other_work(self) -> None:
        """A pair with an op between, and a chain of more than a start and an end, hide behind what
        is computed."""

        def is_async(text: str) -> list[bool]:
            return [one.row.is_async for one in collectives(Module(program(text)), graph(GRID))]

        how = "channel_id=5, replica_groups=[2,4]<=[8], dimensions={0}"
        start = f"%s = (f32[16]{{0}}, f32[64]{{0}}) all-gather-start(%x), {how}\n  "
        done, work = (
            "%d = f32[64]{0} all-gather-done(%s)\n  ",
            "%w = f32[] dot(%x, %x), lhs_contracting_dims={0}\n  ",
        )
        view = "%v = f32[4,4]{1,0} bitcast(%x)\n  "
        orders = (start + work + done, start + done + work, work + start + view + done)
        assert list(map(is_async, orders)) == [[True], [False], [False]]
        link = f'%g = f32[64]{{0}} all-gather(%x), {how}, frontend_attributes={{chain_id="0"}}\n  '
        assert (
            is_async(2 * link) == [False]
            and is_async(3 * link) == [True]
            and is_async(link) == [False]
        )
        row = spmd.metrics.Collective("all-gather", ("a",), 4, 64, 3, is_async=True)
        assert "moves 144 B overlapped with other work" in str(row)

    def test_group_of_one(self) -> None:
        assert not found(
            program("%g = f32[16]{0} all-reduce(%x), replica_groups={{0},{1}}, to_apply=%sum")
        )

    def test_moved_bytes(self) -> None:
        def row(kind: str) -> int:
            return spmd.metrics.Collective(kind, ("a",), 4, 64, 3).moved_bytes

        assert [row(kind) for kind in ("all-gather", "reduce-scatter", "all-to-all")] == [144] * 3
        assert row("all-reduce") == 288 and row("collective-permute") == 192

    def test_node_index(self) -> None:
        assert node_index("jit(spmd)/aten.mm.default#12/while/body/aten.add#3/add", 20) == 12
        assert (
            node_index("jit(spmd)/reduce#x", 20) is None
            and node_index("jit(spmd)/aten.mm#99/dot", 20) is None
        )


class TestIterations:
    """A collective in a loop counts for every turn, in nested ones for the product."""

    def test_nested_scan(self) -> None:
        mesh = GRID.sharding((None, "model"), 2).jax.mesh

        def layer(carry: Any, _: Any) -> Any:
            return jax.lax.with_sharding_constraint(
                jnp.tanh(carry @ carry), NamedSharding(mesh, Spec(None, "model"))
            ), None

        def outer(carry: Any, _: Any) -> Any:
            return jax.lax.scan(layer, carry, None, length=3)[0], None

        split = jax.ShapeDtypeStruct(
            (64, 64), jnp.float32, sharding=NamedSharding(mesh, Spec(None, "model"))
        )
        text = (
            jax.jit(lambda a: jax.lax.scan(outer, a, None, length=5)[0])
            .lower(split)
            .compile()
            .as_text()
        )
        table = found(text)
        assert {count for *_, count, _ in table} == {15} and {axes for _, axes, *_ in table} == {
            ("model",)
        }


class TestWhatRan:
    """`counters.compiles()` and `explain()` tell it of every program that was compiled here."""

    def test_line_and_axes(self, mesh2x4: Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(16, 8, device="xla"), mesh2x4, (("data", "fsdp"), None))
        spmd.sync()
        spmd.metrics.clear()
        total = (x * 2).sum(0)
        spmd.mark_sharding(total, mesh2x4, (None,))
        spmd.sync()
        (row,) = spmd.metrics.compiles()[-1].traffic
        assert (row.kind, row.axes, row.devices, row.bytes, row.count) == (
            "all-reduce",
            ("data", "fsdp"),
            8,
            32,
            1,
        )
        assert (
            "test_collectives.py" in row.line
            and "(x * 2).sum(0)" in row.line
            and row.op.startswith("aten.sum")
        )
        words = "1 x all-reduce of 32 B in f32 over data x fsdp (8), moves 56 B"
        assert words in spmd.metrics.explain()

    def test_nothing_compiled(self) -> None:
        spmd.metrics.clear()
        assert spmd.metrics.explain() == "nothing was compiled"

    def test_sum_that_is_cut(self, mesh8: Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(16, 64, device="xla"), mesh8, ("fsdp", None))
        spmd.sync()
        total = spmd.mark_sharding((x * 2).sum(0), mesh8, ("fsdp",))
        spmd.sync()
        rows = spmd.metrics.compiles()[-1].traffic
        assert total.sum().item() == 2048
        assert [(row.kind, row.is_sliced) for row in rows] in (
            [("all-reduce", True)],
            [("reduce-scatter", False)],
        )
