"""HybridMesh: slices, simulated and a TPU's; and what links the devices of an axis and of a
collective."""

import copy
import importlib.util
import pickle
from types import SimpleNamespace
from unittest import mock

import pytest
from support import run_script

import spmd
from spmd.core.sharding import topology


class TestSimulated:
    def test_axes(self) -> None:
        mesh = spmd.HybridMesh(
            ici_mesh_shape=(2, 2),
            dcn_mesh_shape=(2, 1),
            axis_names=("data", "model"),
            target="2xcpu:4",
        )
        assert mesh.get_logical_mesh().tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert (mesh.link("data"), mesh.link("model"), mesh.link(1)) == ("dcn", "ici", "ici")
        assert mesh == spmd.Mesh(range(8), (4, 2), ("data", "model"), target="2xcpu:4")

    def test_slow_part_of_the_second_axis(self) -> None:
        mesh = spmd.HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(1, 2), target="2xcpu:4")
        assert mesh.get_logical_mesh().tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
        assert (mesh.link(0), mesh.link(1)) == ("ici", "dcn")

    def test_one_slice(self) -> None:
        mesh = spmd.HybridMesh(ici_mesh_shape=(2, 4), axis_names=("a", "b"))
        assert mesh == spmd.Mesh(range(8), (2, 4), ("a", "b")) and mesh.link("a") == "ici"

    def test_copies(self) -> None:
        mesh = spmd.HybridMesh(ici_mesh_shape=(4,), dcn_mesh_shape=(2,), target="2xcpu:4")
        for other in (pickle.loads(pickle.dumps(mesh)), copy.deepcopy(mesh)):
            assert other == mesh and type(other) is spmd.HybridMesh and other.dcn_mesh_shape == (2,)

    def test_refused(self) -> None:
        with pytest.raises(
            ValueError,
            match=r"dcn_mesh_shape \(2,\) holds 2 slice\(s\), and there are 1; .*slices=2",
        ):
            spmd.HybridMesh(ici_mesh_shape=(4,), dcn_mesh_shape=(2,))
        with pytest.raises(ValueError, match=r"holds 1 slice\(s\), and there are 2$"):
            spmd.HybridMesh(ici_mesh_shape=(8,), target="2xcpu:4")
        with pytest.raises(
            ValueError, match=r"ici_mesh_shape holds 2 device\(s\), and a slice has 4"
        ):
            spmd.HybridMesh(ici_mesh_shape=(2,), dcn_mesh_shape=(2,), target="2xcpu:4")
        with pytest.raises(ValueError, match="must have as many axes"):
            spmd.HybridMesh(ici_mesh_shape=(4,), dcn_mesh_shape=(2, 1), target="2xcpu:4")
        with pytest.raises(
            ValueError, match=r"axis 'dta' of .* is not in the mesh(.|\n)*did you mean 'data'"
        ):
            spmd.HybridMesh(
                ici_mesh_shape=(4,), dcn_mesh_shape=(2,), axis_names=("data",), target="2xcpu:4"
            ).link("dta")

    def test_slices_that_do_not_divide(self) -> None:
        with pytest.raises(ValueError, match="8 devices make no 3 slices of equal size"):
            spmd.simulate(8, slices=3)

    def test_what_runs(self) -> None:
        """Hybrid FSDP over two simulated slices: parameters are gathered inside a slice, gradients
        cross both."""
        printed = run_script(
            """
            import torch, spmd, fsdp

            spmd.simulate(8, slices=2)
            mesh = spmd.HybridMesh(
                ici_mesh_shape=(1, 4), dcn_mesh_shape=(2, 1), axis_names=("data", "fsdp")
            )
            layer = fsdp.fully_shard(
                torch.nn.Linear(16, 16, device="xla"), mesh=mesh, extra_data_axis="data"
            )
            layer(torch.ones(8, 16).to("xla")).square().mean().backward()
            spmd.sync()
            links = {(row.kind, row.axes, row.link) for row in spmd.metrics.compiles()[-1].traffic}
            assert ("all-gather", ("fsdp",), "ici") in links, links
            assert any(
                row[0] == "all-reduce" and "data" in row[1] and row[2] == "dcn" for row in links
            ), links
            assert "(4, ici)" in spmd.metrics.explain()
            """
        )
        assert not printed


class TestHosts:
    """Hosts are no slices: only a TPU says which devices are of which slice, and one slice says
    nothing."""

    def test_one_slice_of_two_hosts(self) -> None:
        def slices(**told: list[int]) -> tuple[int, ...]:
            named = [{name: values[i] for name, values in told.items()} for i in range(4)]
            devices = tuple(
                SimpleNamespace(platform=platform, process_index=i // 2, **named[i])
                for i in range(4)
            )
            with mock.patch.object(topology, "all_devices", lambda target=None: devices):
                return topology.slices("v5e:2x2" if platform == "tpu" else None)

        platform = "tpu"
        assert slices() == (0, 0, 0, 0)
        assert (
            slices(slice_index=[0, 0, 1, 1]) == (0, 0, 1, 1)
            and slices(slice_index=[0] * 4) == (0,) * 4
        )
        platform = "cpu"
        assert slices() == (0, 0, 1, 1)


class TestTpu:
    @pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu; without: see above"
    )
    def test_one_slice(self) -> None:
        """Chips of two and of sixteen hosts in one slice: nothing goes over a network, and no mesh
        has a slow part."""
        printed = run_script(
            """
            import warnings

            warnings.simplefilter("ignore")
            import torch, spmd, fsdp
            from spmd.core.sharding.topology import all_devices

            for target, hosts in (("v5e:2x4", 2), ("v5p:2x2x2", 2), ("v5p:4x4x4", 16)):
                assert len({device.process_index for device in all_devices(target)}) == hosts
                size = len(all_devices(target))
                mesh = spmd.HybridMesh(
                    ici_mesh_shape=(1, size), axis_names=("data", "fsdp"), target=target
                )
                assert mesh.link("fsdp") == "ici"
                try:
                    spmd.HybridMesh(
                        ici_mesh_shape=(1, size // hosts), dcn_mesh_shape=(hosts, 1), target=target
                    )
                except ValueError as error:
                    print(error)
            mesh = spmd.HybridMesh(ici_mesh_shape=(8,), axis_names=("fsdp",), target="v5e:2x4")
            layer = fsdp.FullyShardedDataParallel(
                torch.nn.Linear(1024, 1024, device="meta"), mesh=mesh
            )
            plan = spmd.plan(
                lambda x: layer(x).square().mean().backward(), torch.empty(256, 1024, device="meta")
            )
            assert plan.collectives and {row.link for row in plan.collectives} == {""}, plan
            """
        )
        assert printed.count("and there are 1") == 3

    @pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu; without: see above"
    )
    def test_two_slices(self) -> None:
        """Planned for two slices: what crosses the network is named as such, with its axis, by the
        TPU's compiler."""
        printed = run_script(
            """
            import warnings

            warnings.simplefilter("ignore")
            import torch, spmd, fsdp

            mesh = spmd.HybridMesh(
                ici_mesh_shape=(1, 8),
                dcn_mesh_shape=(2, 1),
                axis_names=("data", "fsdp"),
                target="2xv5e:2x4",
            )
            with torch.device("meta"):
                layer = torch.nn.Linear(1024, 1024)
            layer = fsdp.FullyShardedDataParallel(layer, mesh=mesh, extra_data_axis="data")
            plan = spmd.plan(
                lambda x: layer(x).square().mean().backward(), torch.empty(256, 1024, device="meta")
            )
            found = {(row.kind, row.axes, row.devices, row.link) for row in plan.collectives}
            assert ("all-gather", ("fsdp",), 8, "ici") in found, plan
            assert ("all-reduce", ("data",), 2, "dcn") in found, plan
            print(plan)
            """
        )
        assert "data (2, dcn)" in printed and "over dcn" in printed
