"""The mesh that is meant where none is given; and what else PyTorch/XLA's users know of meshes."""

import copy
import pickle
import threading
from typing import Any

import jax
import pytest
import torch

import fsdp
import spmd
from spmd import Mesh


@pytest.fixture(autouse=True)
def none_left() -> Any:
    yield
    spmd.torch_xla.set_global_mesh(None)


class TestGlobalMesh:
    def test_set(self, mesh8: Mesh, mesh2x4: Mesh) -> None:
        assert spmd.torch_xla.get_global_mesh() is None
        spmd.torch_xla.set_global_mesh(mesh8)
        assert spmd.torch_xla.get_global_mesh() is mesh8
        with mesh2x4 as entered:
            assert entered is mesh2x4 and spmd.torch_xla.get_global_mesh() is mesh2x4
            with mesh8:
                assert spmd.torch_xla.get_global_mesh() is mesh8
            assert spmd.torch_xla.get_global_mesh() is mesh2x4
        assert spmd.torch_xla.get_global_mesh() is mesh8
        with pytest.raises(
            TypeError, match=r"set_global_mesh: expected a spmd.Mesh or None, got str"
        ):
            spmd.torch_xla.set_global_mesh("mesh")  # type: ignore[arg-type]

    def test_threads(self, mesh8: Mesh, mesh2x4: Mesh) -> None:
        """A thread sees the process's mesh, not the one that another thread has entered."""
        spmd.torch_xla.set_global_mesh(mesh8)
        seen: list[Mesh | None] = []
        with mesh2x4:
            thread = threading.Thread(target=lambda: seen.append(spmd.torch_xla.get_global_mesh()))
            thread.start()
            thread.join()
        assert seen == [mesh8]

    def test_fsdp(self, mesh2x4: Mesh) -> None:
        with mesh2x4:
            model = fsdp.FullyShardedDataParallel(torch.nn.Linear(8, 8, device="xla"))
        assert model.mesh is mesh2x4

    def test_marks(self, mesh2x4: Mesh) -> None:
        with mesh2x4:
            x = spmd.mark_sharding(torch.ones(8, 8, device="xla"), spmd.P("data", None))
            assert spmd.get_sharding(x) is mesh2x4.sharding(("data", None), 2)
            assert spmd.get_sharding(spmd.reshard(x, (None, "fsdp"))) is mesh2x4.sharding(
                (None, "fsdp"), 2
            )
        with pytest.raises(
            ValueError,
            match="mark_sharding: expected a mesh, got none; pass one, or use `with mesh:`",
        ):
            spmd.mark_sharding(x, ("data", None))

    def test_an_error_leaves_none(self, mesh8: Mesh) -> None:
        with pytest.raises(KeyError), mesh8:
            raise KeyError
        assert spmd.torch_xla.get_global_mesh() is None


class TestMeshWords:
    def test_1d(self) -> None:
        assert spmd.torch_xla.get_1d_mesh("data") == Mesh(range(8), (8,), ("data",))
        assert spmd.torch_xla.get_1d_mesh().shape() == {0: 8}

    def test_from_str(self, mesh2x4: Mesh) -> None:
        for mesh in (mesh2x4, Mesh(range(4), (2, 2)), Mesh(range(4), (4,), ("a",), target="cpu:8")):
            assert Mesh.from_str(str(mesh)) == mesh
        theirs = "{'device_ids': [0, 1, 2, 3], 'mesh_shape': (2, 2), 'axis_names': ('x', 'y')}"
        assert Mesh.from_str(theirs) == Mesh(range(4), (2, 2), ("x", "y"))
        for text in ("", "mesh", "[1]", "Mesh(", "Mesh([0], (1,), open('x'))", "{'device': 1}"):
            with pytest.raises(ValueError, match=r"Mesh\.from_str: expected the text of a mesh"):
                Mesh.from_str(text)

    def test_op_sharding(self, mesh2x4: Mesh) -> None:
        assert mesh2x4.get_op_sharding(("data", None)) is mesh2x4.sharding(("data", None), 2)

    def test_jax_mesh(self, mesh2x4: Mesh) -> None:
        theirs = mesh2x4.get_jax_mesh()
        assert isinstance(theirs, jax.sharding.Mesh) and dict(theirs.shape) == {
            "data": 2,
            "fsdp": 4,
        }


class Grid(Mesh):
    """A subclass with arguments of its own."""

    def __init__(self, side: int):
        super().__init__(range(side * side), (side, side), ("rows", "columns"))
        self.side = side


class TestSubclass:
    def test_it_is_a_mesh(self) -> None:
        grid = Grid(2)
        assert grid == Mesh(range(4), (2, 2), ("rows", "columns")) and hash(grid) == hash(
            Mesh(**vars_of(grid))
        )
        assert repr(grid).startswith("Grid(") and Mesh.from_str(str(grid)) == grid
        x = spmd.mark_sharding(torch.ones(4, 4, device="xla"), grid, ("rows", "columns"))
        assert (x * 2).sum().item() == 32
        grid.side = 3  # its own attributes are its own
        with pytest.raises(AttributeError, match="a Mesh is immutable"):
            grid.mesh_shape = (4,)

    def test_copies(self) -> None:
        for other in (pickle.loads(pickle.dumps(Grid(2))), copy.deepcopy(Grid(2))):
            assert type(other) is Grid and other == Grid(2) and other.side == 2


def vars_of(mesh: Mesh) -> dict[str, Any]:
    return {name: getattr(mesh, name) for name in ("device_ids", "mesh_shape", "axis_names")}
