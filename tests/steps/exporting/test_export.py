"""spmd.export and spmd.load_exported: what is in the files, what a call takes, and what is
refused."""

import contextlib
import hashlib
import json
import sys
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support import check, run_script
from torch import nn

import spmd
from spmd import Mesh, P
from spmd.core.programs import program
from spmd.tensors import sealed_json

MESH = Mesh(range(8), (4, 2), ("data", "model"))
OTHER = Mesh([7, 6, 5, 4, 3, 2, 1, 0], (2, 4), ("a", "b"))


@contextlib.contextmanager
def partitioned_by(name: str) -> Iterator[None]:
    """Context in which programs are lowered for this partitioner."""
    before, spmd.config.partitioner = spmd.config.partitioner, name
    try:
        yield
    finally:
        spmd.config.partitioner = before


def on(tensor: torch.Tensor, *spec: Any) -> torch.Tensor:
    return spmd.mark_sharding(tensor.to("xla"), MESH, P(*spec))


def round_trip(function: Any, *args: Any, mesh: Mesh | None = None, **kwargs: Any) -> Any:
    return spmd.load_exported(spmd.export(function, args, kwargs), mesh)


class TestFiles:
    """The program is jax.export's, the weights are safetensors, and the manifest is JSON with names
    and shardings."""

    def test_manifest(self, tmp_path: Path) -> None:
        model = nn.Linear(4, 8).to("xla")
        spmd.mark_sharding(model.weight, MESH, P("model", None))
        spmd.export(model, (on(torch.ones(8, 4), "data", None),)).save(tmp_path)
        manifest = json.loads((tmp_path / "manifest.json").read_text())
        named = {one["name"]: one for one in manifest["arguments"]}
        assert list(named) == ["input", "weight", "bias"]
        assert named["weight"]["role"] == "parameter" and named["weight"]["shape"] == [8, 4]
        assert named["input"]["sharding"] == {"mesh": 0, "spec": [["data"]], "memory": "device"}
        assert manifest["meshes"][0] == {
            "axes": {"data": 4, "model": 2},
            "device_order": list(range(8)),
        }
        assert manifest["program"]["partitioner"] == spmd.config.partitioner
        weights = load_file(tmp_path / "weights.safetensors")
        check(model.weight, weights["weight"])
        check(model.bias, weights["bias"])

    def test_without_weights(self, tmp_path: Path) -> None:
        """Tensors of the CPU and of xla, sharded or not, take the places of the state."""
        model, x = nn.Linear(4, 8), torch.randn(8, 4)
        there = nn.Linear(4, 8).to("xla")
        spmd.mark_sharding(there.weight, MESH, P("model", None))
        spmd.export(there, (x,)).save(tmp_path)
        spmd.export(there, (x,)).save(tmp_path, weights=False)
        assert {file.name for file in tmp_path.iterdir()} == {"manifest.json", "program.jax_export"}
        with pytest.raises(ValueError, match=r"was saved without weights; pass state={'weight'"):
            spmd.load_exported(tmp_path)
        weights = {"weight": on(model.weight, None, "data"), "bias": model.bias}
        program = spmd.load_exported(tmp_path, state=weights)
        check(program(x.to("xla")), model(x))
        program.save(tmp_path)
        check(spmd.load_exported(tmp_path)(x.to("xla")), model(x))
        zeros = {name: torch.zeros_like(one) for name, one in weights.items()}
        check(spmd.load_exported(tmp_path, state=zeros)(x.to("xla")), torch.zeros(8, 8))
        with pytest.raises(ValueError, match=r"expected 'bias' of torch.float32 and shape \[8\]"):
            spmd.load_exported(tmp_path, state={**weights, "bias": torch.ones(7)})

    def test_read_by_jax(self, tmp_path: Path) -> None:
        model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), torch.randn(3, 4)
        exported = spmd.export(model, (x,))
        exported.save(tmp_path)
        program = jax.export.deserialize(bytearray((tmp_path / "program.jax_export").read_bytes()))
        weights = load_file(tmp_path / "weights.safetensors")
        names = [one["name"] for one in exported.manifest["arguments"]]
        arrays = [x.numpy() if name == "input" else weights[name].numpy() for name in names]
        check(torch.from_numpy(np.array(program.call(*arrays)[0])), model(x))

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_sharded_read_by_jax(self, partitioner: str) -> None:
        with partitioned_by(partitioner):
            exported = spmd.export(
                lambda x: (x @ x.T).cos(), (on(torch.ones(8, 8) / 8, "data", "model"),)
            )
        program = jax.export.deserialize(bytearray(exported.serialized))
        assert program.nr_devices == 8
        mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
        there = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data", "model"))
        made = jax.jit(program.call)(jax.device_put(np.full((8, 8), 0.125, np.float32), there))
        check(torch.from_numpy(np.array(made[0])), torch.full((8, 8), 0.125).cos())

    def test_without_the_python_that_made_it(self, tmp_path: Path) -> None:
        (tmp_path / "hidden_model.py").write_text(
            "import torch\nclass Net(torch.nn.Module):\n"
            "    def __init__(self):\n        super().__init__()\n        self.layer = "
            "torch.nn.Linear(4, 2)\n"
            "    def forward(self, x):\n        return {'y': self.layer(x), 'shift': (x + 1,)}\n"
        )
        sys.path.insert(0, str(tmp_path))
        try:
            model = __import__("hidden_model").Net()
        finally:
            sys.path.remove(str(tmp_path))
            sys.modules.pop("hidden_model", None)
        model.to("xla")
        x = on(torch.ones(8, 4), "data", None)
        spmd.export(model, (x,)).save(tmp_path / "program")
        torch.save(model(x)["y"].cpu(), tmp_path / "y.pt")
        out = run_script(
            f"""
            import importlib.util, torch, spmd

            spmd.simulate(8)
            assert importlib.util.find_spec("hidden_model") is None
            program = spmd.load_exported(
                {str(tmp_path / "program")!r}, spmd.Mesh(range(8), (2, 4), ("a", "b"))
            )
            made = program(torch.ones(8, 4, device="xla"))
            torch.testing.assert_close(made["y"].cpu(), torch.load({str(tmp_path / "y.pt")!r}))
            print(made["y"].shape, made["shift"][0].sum().item())
            """
        )
        assert "torch.Size([8, 2]) 64.0" in out

    def test_changed_files(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"a folder that spmd\.export wrote"):
            spmd.load_exported(tmp_path)
        spmd.export(torch.cos, (torch.ones(2),)).save(tmp_path)
        manifest = (tmp_path / "manifest.json").read_text()
        body = sealed_json.parsed(manifest.encode(), "manifest")
        (tmp_path / "manifest.json").write_text(sealed_json.text({**body, "version": 99}))
        with pytest.raises(ValueError, match=r"up to version 1, got spmd\.export 99"):
            spmd.load_exported(tmp_path)
        (tmp_path / "manifest.json").write_text(manifest)
        with (tmp_path / "program.jax_export").open("ab") as file:
            file.write(b"!")
        with pytest.raises(ValueError, match=r"is not the program of manifest\.json"):
            spmd.load_exported(tmp_path)


def resealed(folder: Path, change: Any) -> None:
    """Changes the manifest of an export as a stranger can: with its checksum."""
    body = sealed_json.parsed((folder / "manifest.json").read_bytes(), "manifest")
    change(body)
    (folder / "manifest.json").write_text(sealed_json.text(body))


class TestStrangers:
    """An export of a stranger runs its program and nothing else: no option, no native code, no
    other file."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        x = on(torch.ones(8, 2), "data", None)
        spmd.export(torch.nn.Linear(2, 2).to("xla"), (x,)).save(tmp_path / "export")
        return tmp_path / "export"

    @pytest.mark.parametrize(
        "option",
        [
            ("xla_dump_to", ""),
            ("xla_gpu_cuda_data_dir", "/tmp"),
            ("xla_cpu_scheduler_type", "other"),
        ],
    )
    def test_options(self, option: tuple[str, str], folder: Path) -> None:
        name, value = option[0], option[1] or str(folder / "dump")
        resealed(
            folder, lambda body: body["program"].update(compiler_options={"cpu": {name: value}})
        )
        with pytest.raises(ValueError, match=rf"to be compiled with {name}=.* write and run files"):
            spmd.load_exported(folder)
        assert not (folder / "dump").exists()

    def test_own_options(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the library sets itself is taken, and what the process is told to."""
        options = {**program.FREEING, "xla_cpu_enable_fast_math": "False"}
        resealed(folder, lambda body: body["program"].update(compiler_options={"cpu": options}))
        with pytest.raises(
            ValueError, match="to be compiled with xla_cpu_enable_fast_math=False, which"
        ):
            spmd.load_exported(folder)
        monkeypatch.setattr(spmd.config, "compiler_options", "auto xla_cpu_enable_fast_math=False")
        assert spmd.load_exported(folder)(torch.ones(8, 2, device="xla")).shape == (8, 2)

    @pytest.mark.parametrize("target", ["xla_ffi_python_cpu_callback", "no_such_target"])
    def test_custom_calls(self, target: str, folder: Path) -> None:
        """A program that calls Python by the number of a function: of whatever the process has
        there."""

        def called(x: jax.Array, *state: jax.Array) -> tuple[jax.Array]:
            return (
                jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype))(
                    x, index=np.uint64(7)
                ),
            )

        checks = [jax.export.DisabledSafetyCheck.custom_call(target)]
        structs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((8, 2), (2, 2), (2,))]
        serialized = jax.export.export(jax.jit(called), platforms=["cpu"], disabled_checks=checks)(
            *structs
        ).serialize()
        (folder / "program.jax_export").write_bytes(serialized)
        digest = hashlib.sha256(serialized).hexdigest()
        resealed(folder, lambda body: body["program"].update(sha256=digest))
        with pytest.raises(
            ValueError, match=f"the program calls {target}: native code of this process"
        ):
            spmd.load_exported(folder)
        if target == "no_such_target":
            with pytest.raises(Exception, match=r"no_such_target"):
                spmd.load_exported(folder, custom_calls=[target])

    @pytest.mark.parametrize(
        "change",
        [
            lambda body: body["meshes"][0].update(device_order=[99]),
            lambda body: body["meshes"][0].update(device_order=[-1, 0, 1, 2, 3, 4, 5, 6]),
            lambda body: body["meshes"][0].update(device_order=[0] * 8),
            lambda body: body["meshes"][0].update(axes={"a": 4}),
            lambda body: body["meshes"].clear(),
            lambda body: body["arguments"][0].update(shape=[-8, 2]),
            lambda body: body["arguments"][0].update(shape=[1 << 40, 2]),
            lambda body: body["arguments"][0].update(dtype="load"),
            lambda body: body["arguments"][0].update(
                sharding={"mesh": 7, "spec": [[], []], "memory": "device"}
            ),
            lambda body: body["arguments"].pop(),
            lambda body: body["results"][0].update(shape=[1 << 40]),
            lambda body: body["results"][0].update(dtype="int64"),
            lambda body: body["results"][0].update(overwrites=1),
            lambda body: body.update(returned=[3]),
            lambda body: body.update(inputs={"args": {"tuple": []}, "kwargs": {"dict": []}}),
            lambda body: body.update(outputs={"text": "torch.load"}),
            lambda body: body.pop("program"),
            lambda body: body.update(device_ids=["x"] * 8),
            lambda body: body.update(version="name"),
        ],
    )
    def test_a_manifest_of_another_program(self, change: Any, folder: Path) -> None:
        resealed(folder, change)
        with pytest.raises(ValueError, match=r"load_exported: .*manifest\.json"):
            spmd.load_exported(folder)

    @pytest.mark.parametrize("place", [20, 100, -1])
    def test_changed_weights(self, place: int, folder: Path) -> None:
        content = bytearray((folder / "weights.safetensors").read_bytes())
        content[place] ^= 1
        (folder / "weights.safetensors").write_bytes(content)
        with pytest.raises(
            ValueError, match=r"weights\.safetensors is damaged: manifest\.json has another sha256"
        ):
            spmd.load_exported(folder)

    def test_older(self, folder: Path) -> None:
        """An export without a checksum of its weights is read."""
        resealed(folder, lambda body: body.pop("weights"))
        assert spmd.load_exported(folder)(torch.ones(8, 2, device="xla")).shape == (8, 2)

    @pytest.mark.parametrize("name", ["manifest.json", "program.jax_export", "weights.safetensors"])
    def test_links(self, name: str, folder: Path) -> None:
        """Nothing outside of the folder is read."""
        (folder / name).rename(folder.parent / name)
        (folder / name).symlink_to(folder.parent / name)
        with pytest.raises(ValueError, match=rf"{name}: expected a file of at most .* got lrwx"):
            spmd.load_exported(folder)

    def test_a_deep_manifest(self, folder: Path) -> None:
        (folder / "manifest.json").write_text(
            '{"sha256": 1, "x": ' + "[" * 200_000 + "]" * 200_000 + "}"
        )
        with pytest.raises(ValueError, match="is damaged: it is no manifest"):
            spmd.load_exported(folder)


Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Output:
    """A result with fields."""

    value: torch.Tensor
    label: str


class TestCalls:
    """Structures come back as they were; arguments are tensors of the exported shapes, anything
    else is constant."""

    def test_structures(self) -> None:
        def function(pair: Pair, *, scale: float, more: list[torch.Tensor]) -> Any:
            return (
                Pair(pair.left * scale, None),
                {"more": [one + 1 for one in more]},
                Output(pair.right.t(), "right"),
            )

        left, right = torch.randn(2, 3).to("xla"), torch.randn(2, 3).to("xla")
        loaded = round_trip(function, Pair(left, right), scale=2.0, more=[left])
        pair, more, output = loaded(Pair(left, right), scale=2.0, more=[right])
        check(pair.left, left.cpu() * 2)
        assert type(pair).__name__ == "Pair" and pair.right is None
        check(more["more"][0], right.cpu() + 1)
        check(output["value"], right.cpu().t())
        assert output["label"] == "right"
        with pytest.raises(
            ValueError, match=r"kwargs\['scale'\]: the program was exported with 2\.0, .* got 3\.0"
        ):
            loaded(Pair(left, right), scale=3.0, more=[right])
        with pytest.raises(
            ValueError, match=r"kwargs\['more'\]: .* a list or tuple of 1, got a list of 2"
        ):
            loaded(Pair(left, right), scale=2.0, more=[right, left])

    def test_wrong_arguments(self) -> None:
        loaded = round_trip(torch.cos, torch.ones(2, 3))
        with pytest.raises(
            ValueError, match=r"exported as torch\.float32 of shape \[2, 3\], got .* \[4, 3\]"
        ):
            loaded(torch.ones(4, 3, device="xla"))
        with pytest.raises(TypeError, match=r'move it with \.to\("xla"\)'):
            loaded(torch.ones(2, 3))

    def test_unread_and_unchanged(self) -> None:
        loaded = round_trip(lambda x, unread: (x, x * 2), torch.ones(2), torch.ones(3))
        x = torch.ones(2, device="xla")
        same, made = loaded(x, torch.ones(3, device="xla"))
        assert same is x
        check(made, torch.full((2,), 2.0))

    def test_an_argument_that_is_overwritten(self) -> None:
        cache = torch.zeros(4, 2, device="xla")

        def append(cache: torch.Tensor, place: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
            return cache.index_copy_(0, place, row).sum()

        args = cache, torch.tensor([2], device="xla"), torch.ones(1, 2, device="xla")
        loaded = round_trip(append, *args)
        assert cache.sum().item() == 0
        assert loaded(*args).item() == 2
        check(cache, torch.tensor([[0.0, 0], [0, 0], [1, 1], [0, 0]]))

    def test_integers_beside_draws(self) -> None:
        """A large number of the user's is no key of a draw, whatever its value."""
        first = 1_764_000_000_000

        def step(times: torch.Tensor) -> torch.Tensor:
            return (times - first) * (torch.rand(4, device="xla") < 2)

        times = torch.arange(4, device="xla") + first
        loaded = round_trip(step, times)
        spmd.manual_seed(5)
        assert loaded(times).tolist() == [0, 1, 2, 3]

    def test_draws_go_on_in_the_stream(self) -> None:
        model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.1))
        x = torch.ones(64, device="xla")
        loaded = round_trip(model, x)
        spmd.manual_seed(3)
        expected = [model(x).cpu() for _ in range(2)]
        spmd.manual_seed(3)
        found = [loaded(x) for _ in range(2)]
        check(found[0], expected[0])
        check(found[1], expected[1])
        assert not torch.equal(expected[0], expected[1])

    def test_views_and_uneven_dims(self) -> None:
        loaded = round_trip(
            lambda x: x * 2, on(torch.arange(21.0).reshape(7, 3), "data", "model"), mesh=OTHER
        )
        base = torch.arange(21.0).reshape(3, 7)
        check(loaded(base.to("xla").t()), base.t() * 2)


class TestMeshes:
    """The exported layout is taken up on any mesh of as many devices."""

    @pytest.mark.parametrize("mesh", [None, OTHER, Mesh(range(8), (8,), ("x",))])
    def test_others(self, mesh: Mesh | None) -> None:
        weight = on(torch.randn(4, 6), "model", None)
        loaded = round_trip(lambda x: x @ weight, on(torch.randn(8, 4), "data", None), mesh=mesh)
        x = torch.randn(8, 4)
        expected = x @ weight.cpu()
        check(loaded(x.to("xla")), expected)
        check(loaded(spmd.mark_sharding(x.to("xla"), OTHER, P("b", "a"))), expected)

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_under_the_other_partitioner(self, partitioner: str) -> None:
        with partitioned_by(partitioner):
            exported = spmd.export(
                lambda x: (x @ x.T).sin(), (on(torch.ones(8, 8), "data", "model"),)
            )
        x = torch.randn(8, 8)
        with partitioned_by("shardy" if partitioner == "gspmd" else "gspmd"):
            check(spmd.load_exported(exported, OTHER)(x.to("xla")), (x @ x.T).sin())

    def test_two_meshes_in_one_program(self) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            return spmd.reshard(x * 2, P("b", "a"), OTHER) @ x.T

        x = torch.randn(8, 8)
        loaded = round_trip(
            function, on(x, "data", "model"), mesh=Mesh([1, 0, 3, 2, 5, 4, 7, 6], (8,), ("x",))
        )
        check(loaded(x.to("xla")), x * 2 @ x.T)

    def test_rows_of_no_multiple(self) -> None:
        """Rows that one axis of two does not divide are written once each."""

        def write(index: torch.Tensor) -> torch.Tensor:
            return torch.zeros(16, device=index.device).index_add(0, index, index * 0.0 + 1)

        index = torch.arange(2, 15)
        check(round_trip(write, on(index, "data"))(on(index, "data")), write(index))

    def test_another_number(self) -> None:
        exported = spmd.export(torch.cos, (on(torch.ones(8, 4), "data", None),))
        with pytest.raises(
            ValueError,
            match=r"exported for 8 devices, and the mesh has 4; export it again on a mesh",
        ):
            spmd.load_exported(exported, Mesh(range(4), (4,), ("x",)))

    def test_the_mesh_in_force(self) -> None:
        exported = spmd.export(torch.cos, (on(torch.ones(8, 4), "data", None),))
        with OTHER:
            made = spmd.load_exported(exported)(torch.ones(8, 4, device="xla"))
        assert spmd.get_sharding(made).device_ids == OTHER.device_ids


class TestRefused:
    """Functions that are not one program are refused, with what to do."""

    def test_numbers_that_change(self) -> None:
        count = [0.0]

        def step(x: torch.Tensor) -> torch.Tensor:
            count[0] += 0.5
            return x * count[0]

        with pytest.raises(
            ValueError,
            match=r"a number of aten\.mul.*test_export\.py.*in the next; a program has one",
        ):
            spmd.export(step, (torch.ones(2),))

    def test_ops_that_change(self) -> None:
        calls: list[int] = []

        def step(x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return sum(((x + i).cos() for i in range(len(calls))), x)

        with pytest.raises(ValueError, match=r"recorded another program at each of 4 calls"):
            spmd.export(step, (torch.ones(2),))

    def test_a_sync_inside(self) -> None:
        def step(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            spmd.sync()
            return y + 1

        with pytest.raises(ValueError, match=r"the step syncs before it ends"):
            spmd.export(step, (torch.ones(2),))

    def test_state_that_is_not_there_yet(self) -> None:
        model = nn.Linear(2, 1).to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

        x = torch.ones(1, 2, device="xla")
        with pytest.raises(ValueError, match=r"call the step once before the export"):
            spmd.export(step, (x,))
        step(x)
        loaded = round_trip(step, x)
        step(x)
        loaded(x)
        check(loaded.state["weight"], model.weight.detach().cpu())

    def test_values_that_are_missing(self) -> None:
        with pytest.raises(ValueError, match=r"weight is on meta"):
            spmd.export(nn.Linear(2, 2, device="meta"), (torch.ones(1, 2),))

    def test_without_flatbuffers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "flatbuffers", None)
        with pytest.raises(
            ModuleNotFoundError, match=r"^export needs flatbuffers: pip install 'flatbuffers"
        ):
            spmd.export(torch.cos, (torch.ones(2),))

    def test_without_ops(self) -> None:
        """A function that returns its input, or its state, is a program that copies it."""
        weight = torch.arange(2.0, device="xla")
        program = spmd.load_exported(spmd.export(lambda x: (x, weight, x), (torch.ones(2, 3),)))
        x = torch.randn(2, 3)
        for result, expected in zip(program(x.to("xla")), (x, torch.arange(2.0), x), strict=True):
            check(result, expected)

    def test_results(self) -> None:
        with pytest.raises(TypeError, match=r"the result is a set"):
            spmd.export(lambda x: {x * 2}, (torch.ones(2),))
        with pytest.raises(ValueError, match=r"computes nothing on the device"):
            spmd.export(lambda x: 3, (torch.ones(2),))
        with pytest.raises(TypeError, match=r"args as a tuple"):
            spmd.export(torch.cos, torch.ones(2))  # type: ignore[arg-type]
