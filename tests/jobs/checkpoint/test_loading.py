"""`fill_shards` and `load_checkpoint`: data from files, each device's own bytes and no others."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import spmd
from spmd.jobs.checkpoint.files import SAFETENSORS, Stored, open_checkpoint

MESHES = {
    "8": ((8,), ("a",), ("a", None)),
    "8 columns": ((8,), ("a",), (None, "a")),
    "2x4": ((2, 4), ("a", "b"), ("a", "b")),
    "2x4 whole": ((2, 4), ("a", "b"), (None, None)),
    "2x4 joined": ((2, 4), ("a", "b"), (("b", "a"), None)),
    "1": ((1,), ("a",), ("a", None)),
}


def marked(tensor: torch.Tensor, name: str) -> torch.Tensor:
    shape, axes, spec = MESHES[name]
    size = torch.Size(shape).numel()
    return spmd.mark_sharding(tensor, spmd.Mesh(range(size), shape, axes), spec)


@pytest.mark.parametrize("name", MESHES)
class TestFillShards:
    """Every layout gets the values that the whole has, each element of a piece once, and no program
    is compiled."""

    @pytest.mark.parametrize("shape", [(16, 8), (10, 12), (3, 5)], ids=str)
    def test_values(self, name: str, shape: tuple[int, int]) -> None:
        whole = torch.randn(shape)
        asked: list[tuple[slice, ...]] = []

        def read(indices: tuple[slice, ...]) -> torch.Tensor:
            asked.append(indices)
            return whole[indices]

        before = spmd.metrics.num_compiles()
        x = marked(torch.rand(shape, device="xla"), name)
        assert spmd.checkpoint.fill_shards(x, read) is x
        assert torch.equal(x.cpu(), whole) and spmd.metrics.num_compiles() == before
        assert sum(whole[indices].numel() for indices in asked) == whole.numel()
        shards = spmd.local_shards(x)
        assert all(torch.equal(shard.unpadded_data, whole[shard.indices]) for shard in shards)
        assert torch.equal(((x + 1) * 2).cpu(), (whole + 1) * 2)

    def test_dtype(self, name: str) -> None:
        whole = torch.randn(16, 8)
        x = spmd.checkpoint.fill_shards(
            marked(torch.empty(16, 8, dtype=torch.bfloat16, device="xla"), name),
            lambda index: whole[index],
        )
        assert torch.equal(x.cpu(), whole.bfloat16())


class TestFilling:
    """The state that a filled tensor keeps, and the values that it refuses."""

    def test_in_place(self, mesh8: spmd.Mesh) -> None:
        """The parameter, its views and its layout stay; a step of training goes on from the new
        values."""
        layer = nn.Linear(8, 8, device="xla")
        spmd.mark_sharding(layer.weight, mesh8, ("fsdp", None))
        row, version = layer.weight.detach()[1], layer.weight._version
        spmd.checkpoint.fill_shards(layer.weight, lambda index: torch.eye(8)[index])
        assert row.tolist() == torch.eye(8)[1].tolist() and layer.weight._version > version
        layer(torch.ones(2, 8, device="xla")).sum().backward()
        torch.optim.SGD(layer.parameters(), lr=0.5).step()
        assert torch.equal(layer.weight.cpu().detach(), torch.eye(8) - 1)
        assert spmd.get_sharding(layer.weight).text(2).startswith("{devices=[8,1]")

    def test_what_was_recorded_before_reads_the_old_value(self, mesh8: spmd.Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8, device="xla"), mesh8, ("fsdp",))
        y = x * 2
        spmd.checkpoint.fill_shards(x, lambda index: torch.zeros(8)[index])
        assert y.tolist() == [2.0] * 8 and x.tolist() == [0.0] * 8

    def test_host_memory(self, mesh8: spmd.Mesh) -> None:
        x = spmd.mark_sharding(
            torch.ones(8, device="xla"), mesh8, ("fsdp",), memory_kind="pinned_host"
        )
        spmd.checkpoint.fill_shards(x, lambda index: torch.arange(8.0)[index])
        assert x.tolist() == [*range(8)] and spmd.get_sharding(x).memory == "pinned_host"

    def test_nothing_and_one(self) -> None:
        assert spmd.checkpoint.fill_shards(
            torch.empty(0, 3, device="xla"), lambda _: torch.empty(9)
        ).shape == (0, 3)
        assert (
            spmd.checkpoint.fill_shards(
                torch.zeros((), device="xla"), lambda index: torch.tensor(3.0)[index]
            ).item()
            == 3
        )

    def test_refused(self) -> None:
        x = torch.ones(4, 2, device="xla")
        with pytest.raises(TypeError, match="expected a tensor on xla"):
            spmd.checkpoint.fill_shards(torch.ones(2), lambda index: torch.ones(2)[index])
        with pytest.raises(ValueError, match="got a view; pass its base"):
            spmd.checkpoint.fill_shards(x[1:], lambda index: torch.ones(3, 2)[index])
        with pytest.raises(
            ValueError, match=r"expected a shard of shape \[4, 2\].*got one of shape \[3\]"
        ):
            spmd.checkpoint.fill_shards(x, lambda index: torch.ones(3))
        assert x.tolist() == [[1.0, 1.0]] * 4


class Net(nn.Module):
    """With what a checkpoint may hold: tied weights, buffers, numbers, another state of the
    user's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 16)
        self.norm = nn.BatchNorm1d(16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.head = nn.Linear(16, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(x))
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


def on_device(mesh: spmd.Mesh, *, dtype: torch.dtype = torch.float32) -> Net:
    """A model that was made on meta, laid out, and has no values yet."""
    with torch.device("meta"):
        model = Net().to(dtype)
    model.to_empty(device="xla")
    for parameter in model.parameters():
        axis = "fsdp" if parameter.shape[0] >= 8 else None
        spmd.mark_sharding(parameter, mesh, (axis, *[None] * (parameter.dim() - 1)))
    return model


def untied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: value.contiguous()
        for name, value in model.state_dict().items()
        if name != "head.weight"
    }


def as_safetensors(model: nn.Module, folder: Path) -> Path:
    save_file(untied(model), folder / "model.safetensors", metadata={"format": "pt"})
    return folder / "model.safetensors"


def as_folder(model: nn.Module, folder: Path) -> Path:
    return as_safetensors(model, folder).parent


def as_several(model: nn.Module, folder: Path) -> Path:
    state = untied(model)
    places = {
        name: f"model-{index % 3 + 1:05}-of-00003.safetensors" for index, name in enumerate(state)
    }
    for place in {*places.values()}:
        save_file(
            {name: value for name, value in state.items() if places[name] == place}, folder / place
        )
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": places})
    )
    return folder


def as_pieces_without_index(model: nn.Module, folder: Path) -> Path:
    as_several(model, folder)
    (folder / "model.safetensors.index.json").unlink()
    return folder


def as_torch(model: nn.Module, folder: Path) -> Path:
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder


def as_torch_model(model: nn.Module, folder: Path) -> Path:
    """Views of one storage and a transposed tensor, as a state dict may have them."""
    state = model.state_dict()
    both = torch.stack([state["layers.0.weight"], state["layers.1.weight"]])
    state |= {"layers.0.weight": both[0], "layers.1.weight": both[1].t().contiguous().t()}
    torch.save(state, folder / "some.pt")
    return folder / "some.pt"


FORMATS = (as_safetensors, as_folder, as_several, as_pieces_without_index, as_torch, as_torch_model)


class TestLoadCheckpoint:
    """Every format gives the model what `load_state_dict` would, without a compile and without an
    initialisation."""

    @pytest.mark.parametrize("write", FORMATS, ids=lambda write: write.__name__)
    def test_formats(
        self, write: Callable[[nn.Module, Path], Path], tmp_path: Path, mesh8: spmd.Mesh
    ) -> None:
        source = Net().eval()
        source.norm.running_mean.normal_()
        path = write(source, tmp_path)
        before = spmd.metrics.num_compiles()
        model = on_device(mesh8).eval()
        assert spmd.load_checkpoint(model, path) == ([], [])
        assert all(
            torch.equal(value.cpu(), source.state_dict()[name])
            for name, value in model.state_dict().items()
        )
        assert spmd.metrics.num_compiles() == before
        assert model.head.weight is model.embed.weight
        tokens = torch.arange(10)
        torch.testing.assert_close(model(tokens.to("xla")).cpu(), source(tokens))

    def test_reads_only_what_a_device_holds(
        self, tmp_path: Path, mesh8: spmd.Mesh, monkeypatch
    ) -> None:
        source, asked = nn.Linear(16, 64, bias=False), []
        save_file(source.state_dict(), tmp_path / "one.safetensors")
        monkeypatch.setattr(
            Stored,
            "read",
            lambda self, indices, read=Stored.read: (asked.append(indices), read(self, indices))[1],
        )
        with torch.device("xla"):
            model = nn.Linear(16, 64, bias=False)
        spmd.mark_sharding(model.weight, mesh8, ("fsdp", None))
        spmd.load_checkpoint(model, tmp_path)
        assert sorted((rows.start, rows.stop, columns.stop) for rows, columns in asked) == [
            (start, start + 8, 16) for start in range(0, 64, 8)
        ]

    def test_dtype(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        """A tensor is cast to the model's dtype, or to the one asked for; integers stay what they
        are."""
        source = Net()
        path = as_safetensors(source, tmp_path)
        for model in (on_device(mesh8, dtype=torch.bfloat16), on_device(mesh8)):
            spmd.load_checkpoint(model, path, dtype=torch.bfloat16)
            for name, value in model.state_dict().items():
                expected = source.state_dict()[name]
                expected = expected.bfloat16() if expected.is_floating_point() else expected
                assert value.dtype == expected.dtype and torch.equal(value.cpu(), expected), name
            assert spmd.get_sharding(model.layers[0].weight).text(2).startswith("{devices=[8,1]")

    @pytest.mark.parametrize("dtype", sorted(SAFETENSORS.values(), key=str), ids=str)
    def test_every_dtype_of_the_format(self, dtype: torch.dtype, tmp_path: Path) -> None:
        value = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
        save_file({"value": value, "other": torch.ones(3)}, tmp_path / "x.safetensors")
        stored = open_checkpoint(tmp_path / "x.safetensors")["value"]
        assert stored.dtype == dtype and torch.equal(stored.read(), value)
        assert torch.equal(stored.read((slice(1, 2), slice(0, 2))), value[1:2, :2])

    def test_key(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        source = Net()
        torch.save({"model": source.state_dict(), "epoch": 3}, tmp_path / "run.pt")
        model = on_device(mesh8)
        with pytest.raises(
            ValueError,
            match="got a dict of 'model', 'epoch'; choose one of them, as by key='model'",
        ):
            spmd.load_checkpoint(model, tmp_path / "run.pt")
        with pytest.raises(ValueError, match="has no 'state'; it has a dict of 'model', 'epoch'"):
            spmd.load_checkpoint(model, tmp_path / "run.pt", key="state")
        spmd.load_checkpoint(model, tmp_path / "run.pt", key="model")
        assert torch.equal(model.embed.weight.detach().cpu(), source.embed.weight)

    def test_rename(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        source = Net()
        save_file(
            {f"model.{name}": value for name, value in untied(source).items()},
            tmp_path / "x.safetensors",
        )
        model = on_device(mesh8)
        left = spmd.load_checkpoint(
            model,
            tmp_path,
            strict=False,
            rename=lambda name: None if "norm" in name else name.removeprefix("model."),
        )
        # Batch norm loads itself, and takes files without metadata for older than its counter, as
        # in `load_state_dict`.
        norms = [
            name
            for name in untied(source)
            if "norm" in name and not name.endswith("num_batches_tracked")
        ]
        assert left.missing_keys == norms and not left.unexpected_keys
        assert torch.equal(model.layers[1].weight.detach().cpu(), source.layers[1].weight)
        with pytest.raises(ValueError, match="rename gives 'x'"):
            spmd.load_checkpoint(model, tmp_path, rename=lambda name: "x")

    def test_names_of_wrappers(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        """Names of PyTorch/XLA's FSDPv2 and of torch.compile load without what these put in."""
        source = Net()
        state = {f"_orig_module.{name}": value for name, value in source.state_dict().items()}
        state = {
            name.replace("layers.1.", "layers.1._orig_mod."): value for name, value in state.items()
        }
        torch.save(state, tmp_path / "x.pt")
        model = on_device(mesh8)
        assert spmd.load_checkpoint(model, tmp_path / "x.pt") == ([], [])
        assert torch.equal(model.layers[1].weight.detach().cpu(), source.layers[1].weight)
        assert torch.equal(model.norm.running_var.cpu(), source.norm.running_var)

    def test_extra_state(self, tmp_path: Path) -> None:
        class Counting(nn.Linear):
            count = 0

            def get_extra_state(self) -> int:
                return self.count

            def set_extra_state(self, state: int) -> None:
                self.count = state

        source, model = Counting(2, 2), Counting(2, 2, device="xla")
        source.count = 7
        torch.save(source.state_dict(), tmp_path / "x.pt")
        spmd.load_checkpoint(model, tmp_path / "x.pt")
        assert model.count == 7 and torch.equal(model.weight.detach().cpu(), source.weight)

    def test_model_on_the_cpu(self, tmp_path: Path) -> None:
        source, model = Net(), Net()
        spmd.load_checkpoint(model, as_safetensors(source, tmp_path))
        assert all(
            torch.equal(value, source.state_dict()[name])
            for name, value in model.state_dict().items()
        )

    def test_saved_from_the_device(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        source = nn.Linear(4, 8).to("xla")
        torch.save(source.state_dict(), tmp_path / "x.pt")
        with torch.device("xla"):
            model = nn.Linear(4, 8)
        spmd.load_checkpoint(model, tmp_path / "x.pt")
        assert torch.equal(model.weight.detach().cpu(), source.weight.detach().cpu())


class TestRefused:
    """An error names what does not fit, and nothing of the model has changed."""

    def test_names(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        state = untied(Net())
        state["layers.0.wieght"] = state.pop("layers.0.weight")
        save_file(state, tmp_path / "x.safetensors")
        model = on_device(mesh8)
        with torch.no_grad():
            model.embed.weight.fill_(3)
        with pytest.raises(ValueError) as raised:
            spmd.load_checkpoint(model, tmp_path)
        said = str(raised.value)
        assert "missing in the files: 'layers.0.weight'  did you mean 'layers.0.wieght'?" in said
        assert "not in the model: 'layers.0.wieght'  did you mean 'layers.0.weight'?" in said
        assert model.embed.weight.sum().item() == 480
        assert spmd.load_checkpoint(model, tmp_path, strict=False) == (
            ["layers.0.weight"],
            ["layers.0.wieght"],
        )

    def test_shape(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        state = untied(Net()) | {"layers.0.weight": torch.ones(16, 8)}
        save_file(state, tmp_path / "x.safetensors")
        with pytest.raises(
            ValueError,
            match=r"'layers.0.weight' has the shape \[16, 8\] in .*x\.safetensors and \[16, 16\]",
        ):
            spmd.load_checkpoint(on_device(mesh8), tmp_path)

    def test_another_model(self, tmp_path: Path) -> None:
        """Ten differences, some of each kind, and the numbers of the others."""
        source = nn.ModuleDict(
            {f"old{i}": nn.Linear(4, 4) for i in range(3)}
            | {f"x{i}": nn.Linear(4, 4) for i in "abc"}
        )
        save_file(source.state_dict(), tmp_path / "x.safetensors")
        model = nn.ModuleDict(
            {f"new{i}": nn.Linear(4, 4) for i in range(2)}
            | {f"x{i}": nn.Linear(5, 5) for i in "abc"}
        )
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(ValueError) as raised:
            spmd.load_checkpoint(model, tmp_path)
        first, *lines, last = str(raised.value).splitlines()
        assert first == f"load_checkpoint: the model and {tmp_path} differ" and last.startswith(
            "rename= maps the files'"
        )
        titles = [line.split(":")[0].strip() for line in lines]
        assert (
            titles
            == ["missing in the files"] * 4 + ["not in the model"] * 4 + ["other tensors"] * 4
        )
        assert [line for line in lines if line.endswith(" more")] == [
            "    missing in the files: 1 more",
            "    not in the model: 3 more",
            "    other tensors: 3 more",
        ]
        assert (
            "    other tensors: 'xa.weight' has the shape [4, 4] in x.safetensors and [5, 5] "
            "in the model"
        ) in lines
        with pytest.raises(ValueError) as raised:
            spmd.load_checkpoint(model, tmp_path, strict=False)
        assert str(raised.value).count("    other tensors: 'x") == 6 and "missing" not in str(
            raised.value
        )
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    @pytest.mark.parametrize("root", ["", "memory://"], ids=["disk", "url"])
    def test_steps_of_a_manager(self, root: str, tmp_path: Path) -> None:
        """The error says the call that restores them."""
        model, folder = nn.Linear(4, 4), f"{root}{tmp_path}/job"
        spmd.CheckpointManager(tmp_path / "job").save(8, {"model": model})
        if root:
            fsspec.filesystem("memory").put(f"{tmp_path}/job", folder, recursive=True)
        call = f'CheckpointManager("{folder}").restore({{"model": model}}'
        for path, says in (
            (folder, f"the folder of the steps of a CheckpointManager: {call})"),
            (f"{folder}/8", f"a step of a CheckpointManager: {call}, step=8)"),
            (f"{folder}/8/manifest.json", f"a step of a CheckpointManager: {call}, step=8)"),
        ):
            with pytest.raises(
                (FileNotFoundError, ValueError), match=f"; it is {re.escape(says)}$"
            ):
                spmd.load_checkpoint(model, path)
        (tmp_path / "7").mkdir()
        with pytest.raises(FileNotFoundError, match=r"found nothing$"):
            spmd.load_checkpoint(model, tmp_path / "7")

    def test_meta(self, tmp_path: Path) -> None:
        with torch.device("meta"):
            model = Net()
        with pytest.raises(ValueError, match=r"is on meta.*to_empty"):
            spmd.load_checkpoint(model, as_safetensors(Net(), tmp_path))

    def test_files(self, tmp_path: Path) -> None:
        model = nn.Linear(4, 4)
        for path, error, words in (
            (tmp_path / "none", FileNotFoundError, "there is none at"),
            (tmp_path, FileNotFoundError, "expected model.safetensors, .*found nothing"),
        ):
            with pytest.raises(error, match=words):
                spmd.load_checkpoint(model, path)
        save_file(model.state_dict(), tmp_path / "cut.safetensors")
        data = (tmp_path / "cut.safetensors").read_bytes()
        (tmp_path / "cut.safetensors").write_bytes(data[:-8])
        with pytest.raises(ValueError, match="is cut short or damaged: its header describes"):
            spmd.load_checkpoint(model, tmp_path / "cut.safetensors")
        torch.save(model.state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
        with pytest.raises(
            ValueError, match=r"neither a safetensors file nor a zip file of torch.save"
        ):
            spmd.load_checkpoint(model, tmp_path / "old.pt")
        torch.save(model.state_dict(), tmp_path / "whole.pt")
        data = (tmp_path / "whole.pt").read_bytes()
        for length in (len(data) - 100, len(data) // 2, 40):
            (tmp_path / "cut.pt").write_bytes(data[:length])
            with pytest.raises(
                ValueError, match=r"cut.pt, of [\d,]+ bytes, is cut short or damaged: torch cannot"
            ):
                spmd.load_checkpoint(model, tmp_path / "cut.pt")
        (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {')
        with pytest.raises(
            ValueError, match=r"index.json, of 16 bytes, is cut short or damaged: it has no table"
        ):
            spmd.load_checkpoint(model, tmp_path / "model.safetensors.index.json")
        (tmp_path / "header.safetensors").write_bytes((500).to_bytes(8, "little") + b'{"weight": {')
        with pytest.raises(
            ValueError, match=r"is cut short or damaged: its header would have 500 bytes"
        ):
            spmd.load_checkpoint(model, tmp_path / "header.safetensors")
        torch.save([1, 2], tmp_path / "list.pt")
        with pytest.raises(ValueError, match=r"expected a state dict.*got a list"):
            spmd.load_checkpoint(model, tmp_path / "list.pt")
        with pytest.raises(TypeError, match=r"expected a torch.nn.Module, got dict"):
            spmd.load_checkpoint({}, tmp_path / "list.pt")  # type: ignore[arg-type]

    def test_the_file_that_transformers_takes(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        """Safetensors before pickles, whether there is an index or not."""
        model = Net()
        as_folder(model, tmp_path)
        others = {name: value + 1 for name, value in model.state_dict().items()}
        torch.save(others, tmp_path / "pytorch_model.bin")
        places = {"weight_map": dict.fromkeys(others, "pytorch_model.bin")}
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(places))
        found = on_device(mesh8)
        spmd.load_checkpoint(found, tmp_path)
        assert torch.equal(
            found.state_dict()["embed.weight"].cpu(), model.state_dict()["embed.weight"]
        )

    def test_index(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        folder = as_several(Net(), tmp_path)
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        index["weight_map"]["more.weight"] = "model-00001-of-00003.safetensors"
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(
            ValueError,
            match=r"has 'more.weight' in model-00001-of-00003.safetensors, which does not",
        ):
            spmd.load_checkpoint(on_device(mesh8), folder)

    def test_twice(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        folder = as_pieces_without_index(Net(), tmp_path)
        save_file({"embed.weight": torch.ones(10, 16)}, folder / "more.safetensors")
        with pytest.raises(ValueError, match=r"has 'embed.weight' in several files"):
            spmd.load_checkpoint(on_device(mesh8), folder)

    def test_plan(self, mesh8: spmd.Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8, device="xla"), mesh8, ("fsdp",))
        with pytest.raises(spmd.AbstractError, match="records the step and runs nothing"):
            spmd.plan(lambda: spmd.checkpoint.fill_shards(x, lambda index: torch.ones(8)[index]))
