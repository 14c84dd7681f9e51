"""`save_checkpoint`: a model's safetensors files, byte for byte those of the libraries, and no
tensor gathered."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file, save, save_file
from support import ROOT
from torch import nn

import fsdp
import spmd
from spmd.checkpoint import SaveError
from spmd.jobs.checkpoint.files import SAFETENSORS, open_checkpoint
from spmd.jobs.checkpoint.model_folder import runs
from spmd.jobs.checkpoint.safetensors_layout import FileTensor, size_of
from spmd.jobs.checkpoint.step_saving import ShardBytes

from .states import MESHES, Tied
from .test_damage import OTHER

LAYOUTS: list[tuple[tuple[int, ...], Any]] = [
    ((16, 8), ("data", "fsdp")),
    ((10, 12), ("fsdp", None)),
    ((3, 5), (None, ("data", "fsdp"))),
    ((), ()),
    ((4, 6, 10), (None, "fsdp", "data")),
    ((7,), (("fsdp", "data"),)),
    ((24, 3), None),
    ((0, 3), (None, None)),
]


def tensors() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The same tensors whole, and on devices in many layouts, uneven dims among them."""
    whole, there = {}, {}
    for kind, dtype in SAFETENSORS.items():
        for shape, spec in LAYOUTS:
            name = f"{kind}.of {'x'.join(map(str, shape))}"
            bits = torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8)
            value = (
                (torch.randn(shape) * 5).to(dtype)
                if dtype.is_floating_point
                else bits.view(dtype).squeeze(-1)
            )
            whole[name], there[name] = value.contiguous(), value.contiguous().to("xla")
            if spec is not None:
                there[name] = spmd.mark_sharding(there[name], MESHES["2x4"], spec)
    return whole, there


class TestBytes:
    """The files are those that the libraries write of the whole tensors."""

    def test_one_file(self, tmp_path: Path) -> None:
        whole, there = tensors()
        compiled = spmd.metrics.num_compiles()
        spmd.save_checkpoint(there, tmp_path / "new/x.safetensors")
        assert spmd.metrics.num_compiles() == compiled
        save_file(whole, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
        assert (tmp_path / "new/x.safetensors").read_bytes() == (
            tmp_path / "theirs.safetensors"
        ).read_bytes()
        assert os.listdir(tmp_path / "new") == ["x.safetensors"]

    @pytest.mark.parametrize("most", [2000, 100, "3KB", "5GB"])
    def test_folder(self, most: int | str, tmp_path: Path) -> None:
        """Hugging Face's split, names and index; it puts all empty tensors into one file, ours stay
        in order."""
        whole, there = (
            {name: value for name, value in each.items() if value.numel()} for each in tensors()
        )
        (tmp_path / "theirs").mkdir()
        # one file has its texts in no order
        metadata = {"made by": "a test"} if most != "5GB" else None
        save_torch_state_dict(whole, tmp_path / "theirs", max_shard_size=most, metadata=metadata)
        spmd.save_checkpoint(there, tmp_path / "ours", max_shard_size=most, metadata=metadata)
        names = sorted(os.listdir(tmp_path / "theirs"))
        assert sorted(os.listdir(tmp_path / "ours")) == names
        assert (len(names) == 1) == (most == "5GB")
        for name in names:
            assert (tmp_path / "ours" / name).read_bytes() == (
                tmp_path / "theirs" / name
            ).read_bytes(), name

    def test_runs(self) -> None:
        """A shard's bytes, by their places in the file: those that lie together at once."""
        tensor = FileTensor("x", (2, 3, 4), 2, 100)
        data = memoryview(bytes(range(12)))
        shard = ShardBytes("x", (0, 1, 2), (2, 2, 1), data[:8])
        assert [(at, bytes(part)) for at, part in runs(tensor, shard)] == [
            (100 + 2 * place, bytes([2 * i, 2 * i + 1])) for i, place in enumerate((6, 10, 18, 22))
        ]
        assert [
            (at, len(part))
            for at, part in runs(tensor, ShardBytes("x", (1, 1, 0), (1, 1, 4), data[:8]))
        ] == [(132, 8)]
        assert [
            at
            for at, _ in runs(tensor, ShardBytes("x", (0, 1, 0), (2, 1, 4), memoryview(bytes(16))))
        ] == [
            108,
            132,
        ]

    def test_rows_of_a_store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Scanned layers, whose weights are rows of one array."""
        monkeypatch.setattr(spmd.config, "scan_layers", "always")
        layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).to("xla")
        for layer in layers:
            spmd.mark_sharding(layer.weight, MESHES["8"], ("fsdp", None))
        for _ in range(2):
            layers(torch.ones(4, 8, device="xla")).sum().backward()
            with torch.no_grad():
                for parameter in layers.parameters():
                    parameter.sub_(0.1 * parameter.grad)
                    parameter.grad = None
            spmd.sync()
        assert layers[1].weight._storage.value.store is not None
        spmd.save_checkpoint(layers, tmp_path)
        found = load_file(tmp_path / "model.safetensors")
        assert all(
            torch.equal(found[name], value.cpu()) for name, value in layers.state_dict().items()
        )


class TestNames:
    """Names without wrappers, tied weights once."""

    def test_wrapped(self, tmp_path: Path) -> None:
        model = fsdp.FullyShardedDataParallel(
            Tied().to("xla"), MESHES["8"], auto_wrap_policy=fsdp.always_wrap_policy
        )
        wrapper = nn.Module()
        wrapper._orig_mod = model  # as torch.compile does
        fsdp.save_checkpoint(wrapper, tmp_path)
        assert set(load_file(tmp_path / "model.safetensors")) == {*Tied().state_dict()} - {
            "head.weight"
        }
        other = Tied()
        assert fsdp.load_checkpoint(other, tmp_path) == ([], [])
        assert all(
            torch.equal(value, model.state_dict()[name].cpu())
            for name, value in other.state_dict().items()
        )

    def test_on_the_host(self, tmp_path: Path) -> None:
        """A model of plain torch, with a transposed tensor."""
        values = {"x": torch.randn(4, 6).t(), "flags": torch.tensor([True, False])}
        values["tied"] = values["x"]
        spmd.save_checkpoint(values, tmp_path)
        expected = save(
            {"tied": values["x"].contiguous(), "flags": values["flags"]}, {"format": "pt"}
        )
        assert (tmp_path / "model.safetensors").read_bytes() == expected


class TestReplaced:
    """At every moment a folder has the old model or the new one."""

    OLD, NEW = ({name: torch.full((8,), value) for name in "abcd"} for value in (1.0, 2.0))

    @staticmethod
    def by_index_first(folder: Path) -> dict[str, torch.Tensor]:
        return {name: stored.read() for name, stored in open_checkpoint(folder).items()}

    @staticmethod
    def by_file_first(folder: Path) -> dict[str, torch.Tensor]:
        """As transformers reads it: the one file, and the index where there is none."""
        if (folder / "model.safetensors").is_file():
            return load_file(folder / "model.safetensors")
        places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        return {name: load_file(folder / file)[name] for name, file in places.items()}

    @pytest.mark.parametrize("before", ["5GB", 64, 32], ids=["one", "two files", "four files"])
    @pytest.mark.parametrize("after", ["5GB", 64], ids=["one", "two files"])
    def test_stopped_at_each_operation(
        self, before: Any, after: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After the moment of the death nothing reaches the disk, as if the process were killed."""
        seen, times = {1.0: 0, 2.0: 0}, 0
        while True:
            folder = tmp_path / str(times)
            spmd.save_checkpoint(self.OLD, folder, max_shard_size=before)
            with monkeypatch.context() as patch, pytest.raises((SaveError, _Dead)):
                life = _Life(patch, times)
                spmd.save_checkpoint(self.NEW, folder, max_shard_size=after)
                raise _Dead
            for read in (self.by_index_first, self.by_file_first):
                found = read(folder)
                kinds = {value.unique().item() for value in found.values()}
                assert set(found) == set("abcd") and len(kinds) == 1, (life.last, read, found)
                seen[kinds.pop()] += 1
            spmd.save_checkpoint(self.NEW, folder, max_shard_size=after)
            assert len(os.listdir(folder)) == (1 if after == "5GB" else 3), (
                life.last,
                os.listdir(folder),
            )
            assert self.by_index_first(folder)["a"].tolist() == [2.0] * 8
            times += 1
            if not life.is_over:
                break
        assert seen[1.0] > 10 and seen[2.0] > 4

    def test_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        spmd.save_checkpoint(self.OLD, tmp_path)

        opened = os.open

        def full(path: Any, *args: Any, **given: Any) -> int:
            if str(path).endswith(".safetensors"):
                return opened("/dev/full", os.O_WRONLY)
            return opened(path, *args, **given)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", full)
            with pytest.raises(
                SaveError,
                match=r"save_checkpoint: .* was not saved: No space left on device at byte 0 of "
                r".*model\.safetensors, [\d,]+ bytes are free",
            ):
                spmd.save_checkpoint(self.NEW, tmp_path)
        assert os.listdir(tmp_path) == ["model.safetensors"]
        assert self.by_index_first(tmp_path)["a"].tolist() == [1.0] * 8

    def test_two_at_once(self, tmp_path: Path) -> None:
        """A second process that saves in the folder gets an error, and the first one's files
        stay."""
        saving = tmp_path / ".saving-model"
        saving.mkdir()
        (saving / "model.safetensors").write_bytes(b"half")
        job = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(ROOT), str(saving)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with job:
            assert job.stdout is not None and job.stdout.readline() == "locked\n"
            with pytest.raises(
                SaveError, match=f'belongs to another job, which runs: .*"process": {job.pid}'
            ):
                spmd.save_checkpoint(self.NEW, tmp_path)
            assert (saving / "model.safetensors").read_bytes() == b"half"
            job.kill()
        descriptors = len(os.listdir("/proc/self/fd"))
        spmd.save_checkpoint(self.NEW, tmp_path)
        assert (
            os.listdir(tmp_path) == ["model.safetensors"]
            and len(os.listdir("/proc/self/fd")) == descriptors
        )

    def test_link_in_the_place_of_its_files(self, tmp_path: Path) -> None:
        """What a link names stays as it is, and so does what links in a folder that a dead save
        left name."""
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere/file").write_text("is not ours")
        for name in ("link", "file", "left"):
            saving = tmp_path / name / ".saving-model"
            saving.parent.mkdir()
            if name == "link":
                saving.symlink_to(tmp_path / "elsewhere")
            elif name == "file":
                saving.write_text("")
            else:
                (saving / "folder").mkdir(parents=True)
                (saving / "model.safetensors").symlink_to(tmp_path / "elsewhere/file")
            spmd.save_checkpoint(self.NEW, tmp_path / name)
            assert os.listdir(tmp_path / name) == ["model.safetensors"]
            assert [file.read_text() for file in (tmp_path / "elsewhere").iterdir()] == [
                "is not ours"
            ]

    @pytest.mark.parametrize(
        "text", ["[" * 100_000, '{"weight_map": {"x": []}}', '{"weight_map": 3}', "[]"]
    )
    def test_over_an_index_that_is_none(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(text)
        spmd.save_checkpoint(self.NEW, tmp_path, max_shard_size=16)
        assert json.loads((tmp_path / "model.safetensors.index.json").read_bytes())["weight_map"]

    def test_folder_that_cannot_be_written(self) -> None:
        with pytest.raises(
            SaveError, match=r"/proc/self/model was not saved: \w+Error: .*'/proc/self/model"
        ):
            spmd.save_checkpoint(self.NEW, "/proc/self/model")


class _Dead(BaseException):
    """The death of a process."""


class _Life:
    """Counts what changes a disk, and lets nothing more through from the operation of the death
    on."""

    def __init__(self, patch: pytest.MonkeyPatch, left: int) -> None:
        self.left, self.is_over, self.last = left, False, ""
        for name in (
            "open",
            "pwrite",
            "write",
            "fsync",
            "rename",
            "replace",
            "link",
            "unlink",
            "rmdir",
            "mkdir",
            "ftruncate",
        ):
            patch.setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, original: Any) -> Any:
        def call(*args: Any, **given: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return original(*args, **given)
            if self.left <= 0 or self.is_over:
                self.is_over = True
                raise _Dead
            self.left -= 1
            self.last = f"{name} {args}"
            return original(*args, **given)

        return call


class TestRefused:
    """Values that such files cannot hold."""

    def test_states(self, tmp_path: Path) -> None:
        for state, words in (
            (
                {"x": torch.ones(2, dtype=torch.complex128)},
                "'x' has the dtype torch.complex128, which safetensors",
            ),
            ({"x": 3}, "'x' is a int, and safetensors files hold tensors alone"),
            ({"x": torch.empty(2, device="meta")}, "on meta, without data"),
            ([torch.ones(2)], "expected a torch.nn.Module or a dict of tensors, got list"),
        ):
            with pytest.raises(TypeError, match=words):
                spmd.save_checkpoint(state, tmp_path)
        for path in (tmp_path, tmp_path / "x.safetensors"):
            with pytest.raises(
                ValueError,
                match="safetensors files keep texts under '__metadata__': rename the tensor",
            ):
                spmd.save_checkpoint({"__metadata__": torch.ones(2)}, path)
        with pytest.raises(ValueError, match="two tensors have the name 'x'"):
            spmd.save_checkpoint({"x": torch.ones(2), "_orig_mod.x": torch.zeros(2)}, tmp_path)
        with pytest.raises(TypeError, match="expected metadata of texts"):
            spmd.save_checkpoint({"x": torch.ones(2)}, tmp_path, metadata={"step": 3})
        assert os.listdir(tmp_path) == []

    def test_sizes(self) -> None:
        assert [size_of(text) for text in (7, "5GB", "1.5 mb", "20KB")] == [
            7,
            5 * 10**9,
            1_500_000,
            20_000,
        ]
        for text in ("5", "5GiB", 0, -1, 2.0, "0GB", "1.2.3MB"):
            with pytest.raises(
                ValueError, match="expected max_shard_size as a number of bytes or such as"
            ):
                size_of(text)


@pytest.fixture(scope="module")
def figures() -> Iterator[dict[str, int]]:
    """Of a save of a model of 34 MB, in tensors of 4, by a process of its own."""
    command = [sys.executable, str(ROOT / "tests/jobs/checkpoint/big_save.py"), "8", "1024"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    yield json.loads(done.stdout.splitlines()[-1])


class TestPeak:
    """The host has a shard or two at a time."""

    def test_peak(self, figures: dict[str, int]) -> None:
        assert figures["compiled"] == 0
        assert figures["peak"] < 1024 * 1024 * 4, figures
