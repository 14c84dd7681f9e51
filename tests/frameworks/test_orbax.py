"""Folders of orbax: what JAX's programs read and write, sharded as it is, without a gather."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest
import torch
from support import ROOT, check, own_environment
from torch import nn

import fsdp
import spmd
from spmd.checkpoint import load_orbax, save_orbax
from tests.jobs.checkpoint.states import MESHES, Run

# Shape, spec over (data=2, fsdp=4) and dtype; the values of wide types need all of their bits.
CASES = {
    "even": ((8, 4), ("fsdp", None), torch.float32),
    "bfloat16": ((8, 12), ("fsdp", "data"), torch.bfloat16),
    "another dim": ((10, 8), ("fsdp", None), torch.bfloat16),
    "one axis": ((10,), (("data", "fsdp"),), torch.int64),
    "no dim": ((7, 3), ("fsdp", "data"), torch.float64),
    "padding alone": ((2, 3), (("fsdp", "data"), None), torch.float16),
    "two axes": ((8, 8), (None, ("fsdp", "data")), torch.bool),
    "float8": ((3, 5, 6), ("data", None, "fsdp"), torch.float8_e4m3fn),
    "complex": ((4, 8), (None, "data"), torch.complex64),
    "replicated": ((16,), (None,), torch.int64),
    "empty": ((0, 4), (None, None), torch.float32),
    "scalar": ((), (), torch.float64),
}


def value(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    x = torch.arange(int(np.prod(shape))).reshape(shape)
    if dtype is torch.int64:
        return x + (1 << 40)
    if dtype is torch.float64:
        return x.to(dtype) + 1e-12
    return (x % 17).to(dtype)


def tensors(mesh: spmd.Mesh | None = None) -> dict[str, torch.Tensor]:
    """One tensor of each case, with a view and one on the CPU; of zeros where no mesh is given."""
    made = {}
    for name, (shape, spec, dtype) in CASES.items():
        x = value(shape, dtype) if mesh is not None else torch.zeros(shape, dtype=dtype)
        made[name] = (
            spmd.mark_sharding(x.to("xla"), mesh, spec) if mesh is not None else x.to("xla")
        )
    whole = torch.arange(6.0) if mesh is not None else torch.zeros(6)
    return {
        **made,
        "view": whole.to("xla").reshape(2, 3).t(),
        "cpu": whole.to(torch.bfloat16).clone(),
    }


def bits(x: torch.Tensor) -> bytes:
    return x.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class TestOrbax:
    """Values come back bit for bit, in the shardings of the tensors that they are read into."""

    def test_round_trip(self, mesh2x4: spmd.Mesh, tmp_path: Path) -> None:
        saved = tensors(mesh2x4)
        plain = {
            "step": 3,
            "rate": 0.5,
            "name": "text",
            "none": None,
            "flag": True,
            "list": [1, (2, 3.0)],
        }
        save_orbax({"params": saved, **plain}, tmp_path / "all")
        for mesh in (MESHES["3"], MESHES["8"], None):
            loaded = tensors()
            for x in loaded.values():
                if mesh is not None and x.device.type == "xla" and x.dim() and x._view is None:
                    spmd.mark_sharding(x, mesh, ("fsdp",) + (None,) * (x.dim() - 1))
            marked = [
                name
                for name, x in loaded.items()
                if x.device.type == "xla" and spmd.get_sharding(x) is not None
            ]
            before = [spmd.get_sharding(loaded[name]) for name in marked]
            into: dict[str, Any] = {
                "params": loaded,
                "step": 0,
                "rate": 0.0,
                "name": "",
                "none": None,
                "flag": False,
                "list": [0, (0, 0.0)],
            }
            reads = spmd.metrics.counter("host_reads")
            assert load_orbax(into, tmp_path / "all") == ([], [])
            assert spmd.metrics.counter("host_reads") == reads
            assert {key: each for key, each in into.items() if key != "params"} == plain
            for name, x in loaded.items():
                assert x is into["params"][name] and x.dtype is saved[name].dtype, name
                assert bits(x) == bits(saved[name]), name
            assert before == [spmd.get_sharding(loaded[name]) for name in marked]

    def test_run_goes_on(self, tmp_path: Path) -> None:
        """Model, tied weights, optimizer without a step, and schedule; on another mesh, too."""
        first = Run("2x4", dropout=False)
        first.train(2)
        state = {name: first.state[name] for name in ("model", "optimizer", "schedule")}
        save_orbax(state, tmp_path / "run")
        second, third = Run("2x4", dropout=False), Run("3", dropout=False)
        for other in (second, third):
            load_orbax({name: other.state[name] for name in state}, tmp_path / "run")
            other.loader.load_state_dict(first.loader.state_dict())
        expected = first.train(2)
        assert second.train(2) == expected
        assert third.train(2) == pytest.approx(expected, rel=1e-5)

    def test_written_shard_by_shard(self, mesh8: spmd.Mesh, tmp_path: Path) -> None:
        x = spmd.mark_sharding(torch.arange(64.0).reshape(16, 4).to("xla"), mesh8, ("fsdp", None))
        save_orbax({"x": x}, tmp_path / "x")
        y = spmd.mark_sharding(torch.zeros(16, 4, device="xla"), mesh8, (None, None))
        load_orbax({"x": y}, tmp_path / "x")
        chunk = (
            ocp.PyTreeCheckpointer()
            .metadata(tmp_path / "x")
            .item_metadata.tree["x"]
            .storage.chunk_shape
        )
        assert chunk == (2, 4)
        check(y, torch.arange(64.0).reshape(16, 4))

    def test_programs_of_jax(self, tmp_path: Path) -> None:
        """The files that a process without torch reads and writes."""
        with torch.device("xla"):
            model = nn.ModuleDict({"first": nn.Linear(12, 8)}).to(torch.bfloat16)
        model.register_buffer("uneven", torch.arange(10, device="xla"))
        weight = torch.arange(96.0).reshape(8, 12)
        model["first"].load_state_dict({"weight": weight.to(torch.bfloat16), "bias": torch.ones(8)})
        model = fsdp.FullyShardedDataParallel(model, MESHES["8"])
        spmd.mark_sharding(model.uneven, MESHES["8"], ("fsdp",))
        optimizer = spmd.checkpoint.prime_optimizer(torch.optim.AdamW(model.parameters()))
        save_orbax({"params": model, "opt": optimizer}, tmp_path / "ours")
        save_orbax(model, tmp_path / "even", nested=False)
        environment = {**own_environment(), "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests/frameworks/orbax_program.py"), str(tmp_path)],
            capture_output=True,
            text=True,
            env={**environment, "JAX_PLATFORMS": "cpu"},
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr

        state = {"first": {"weight": model["first"].weight, "uneven": model.uneven}, "step": 0}
        names = {"params.first.kernel": "first.weight", "params.uneven": "first.uneven"}
        load_orbax(state, tmp_path / "theirs/5", rename=lambda name: names.get(name, name))
        check(model["first"].weight, (weight * 2).to(torch.bfloat16))
        assert model.uneven.tolist() == list(range(10)) and state["step"] == 7

    def test_memory_of_the_host(self, mesh8: spmd.Mesh, tmp_path: Path) -> None:
        x = spmd.mark_sharding(
            torch.arange(20.0).to("xla"), mesh8, ("fsdp",), memory_kind="pinned_host"
        )
        save_orbax({"x": x}, tmp_path / "x")
        y = spmd.mark_sharding(
            torch.zeros(20, device="xla"), mesh8, ("fsdp",), memory_kind="pinned_host"
        )
        load_orbax({"x": y}, tmp_path / "x")
        assert y.tolist() == list(range(20)) and spmd.get_sharding(y) == spmd.get_sharding(x)


class TestErrors:
    """An error lists what differs, and nothing is loaded then."""

    def test_names_and_shapes(self, tmp_path: Path) -> None:
        x = torch.ones(4, device="xla")
        save_orbax({"layer.weight": x, "layer.bias": x}, tmp_path / "x")
        zeros, other = torch.zeros(4, device="xla"), torch.zeros(4, device="xla")
        with pytest.raises(
            ValueError,
            match=r"(?s)missing in the files: 'layer\.weigth'.*not in the model: 'layer\.w",
        ):
            load_orbax({"layer": {"weigth": zeros, "bias": other}}, tmp_path / "x")
        with pytest.raises(
            ValueError,
            match=r"'layer\.bias' has the shape \[4\] in the folder, and the shape \[5\]",
        ):
            load_orbax(
                {"layer.weight": zeros, "layer.bias": torch.zeros(5, device="xla")}, tmp_path / "x"
            )
        with pytest.raises(
            ValueError, match=r"'layer\.bias' is an array of shape \[4\] in the folder, and 3 here"
        ):
            load_orbax({"layer.weight": zeros, "layer.bias": 3}, tmp_path / "x")
        assert not zeros.any()
        names = load_orbax({"layer.weight": zeros, "more": x}, tmp_path / "x", strict=False)
        assert names == (["more"], ["layer.bias"]) and zeros.all()
        optimizer = torch.optim.AdamW([zeros.requires_grad_()])
        with pytest.raises(ValueError, match="the names"):
            load_orbax(
                optimizer, tmp_path / "x", rename=lambda name: name.replace("layer", "state")
            )
        assert not optimizer.state

    def test_folders(self, tmp_path: Path) -> None:
        x = torch.ones(4, device="xla")
        save_orbax({"x": x}, tmp_path / "x")
        with pytest.raises(FileExistsError, match="force=True"):
            save_orbax({"x": x}, tmp_path / "x")
        save_orbax({"x": x * 2}, tmp_path / "x", force=True)
        load_orbax({"x": x}, tmp_path / "x")
        assert x.tolist() == [2.0] * 4
        with pytest.raises(FileNotFoundError, match="not there"):
            load_orbax({"x": x}, tmp_path / "y")
        with pytest.raises(FileNotFoundError, match=r"which has [0-9a-f]{32}"):
            load_orbax({"x": x}, tmp_path / "x/d")

    def test_values(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match=r"a\.b is a set"):
            save_orbax({"a": {"b": {1}}}, tmp_path / "x")
        with pytest.raises(
            ValueError, match=r"'a\.b' is a value and a folder of others at once; pass nested=False"
        ):
            save_orbax({"a": 1, "a.b": 2}, tmp_path / "x")
        save_orbax({"a": 1, "a.b": 2}, tmp_path / "x", nested=False)
        state = {"a": 0, "a.b": 0}
        load_orbax(state, tmp_path / "x")
        assert state == {"a": 1, "a.b": 2} and not (tmp_path / "y").exists()

    def test_without_the_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
        with pytest.raises(
            ModuleNotFoundError, match=r"save_orbax needs orbax.checkpoint: pip install 'orbax"
        ):
            save_orbax({}, tmp_path / "x")
