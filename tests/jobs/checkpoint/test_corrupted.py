"""Corrupted files in every loader: the very same values, or an error that names the file.

Cut, flipped, swapped and overwritten at places drawn by a seed. A process that crashes or hangs
fails the run. Of a format without a checksum of its data (safetensors, and files of torch.save of
which parts are read) the data alone may differ. The 1,000 of each loader last ran on 2026-11-23.
"""

import json
import os
import pickle
import random
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn

import fsdp
import spmd
from spmd.core.files import disk
from spmd.tools.explain import program_folder
from spmd.torch_xla.distributed_checkpoint import FolderReader, SPMDLoadPlanner

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
Values = dict[str, Any]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8, bias=False))


def load_model(path: Path, key: str | None = None) -> Values:
    with torch.no_grad():
        model = net()
        for value in model.state_dict().values():
            value.zero_()
    spmd.load_checkpoint(model, path, key=key)
    return dict(model.state_dict())


class Loader(NamedTuple):
    """A loader. write: files into a folder, of which those that `changed` names are corrupted.
    load: their values."""

    write: Callable[[Path], None]
    load: Callable[[Path], Values]
    changed: tuple[str, ...]
    unchecked: tuple[str, ...] = ()  # files whose data has no checksum


def write_indexed(folder: Path) -> None:
    state = net().state_dict()
    names = [*state]
    places = {name: f"model-{place % 2}.safetensors" for place, name in enumerate(names)}
    for file in {*places.values()}:
        save_file({name: state[name] for name in names if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": places})
    )


def write_dcp(folder: Path) -> None:
    mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
    model = net().to("xla")
    for value in model.parameters():
        spmd.mark_sharding(value, mesh, ("fsdp",) + (None,) * (value.dim() - 1))
    dcp.save({"model": model.state_dict(), "step": 7}, checkpoint_id=folder)


def load_dcp(folder: Path) -> Values:
    state = {
        "model": {name: torch.zeros_like(value) for name, value in net().state_dict().items()},
        "step": 0,
    }
    dcp.load(state, storage_reader=FolderReader(folder), planner=SPMDLoadPlanner())
    return {**state["model"], "step": state["step"]}


def write_ranks(folder: Path) -> None:
    """Two ranks' files with shards of flattened parameters, padded."""
    model, infos = net(), {}
    shards: list[Values] = [{}, {}]
    for name, value in model.named_parameters():
        size = -(-value.numel() // 256) * 128
        flat = torch.cat([value.detach().reshape(-1), torch.zeros(2 * size - value.numel())])
        key = f"_fsdp_shard.{name.replace('.', '_fsdp_sep_')}"
        infos[key] = {"_orig_name": name, "_orig_size": value.shape}
        for rank in range(2):
            shards[rank][key] = flat[rank * size : (rank + 1) * size].clone()
    for rank in range(2):
        metadata = {
            "shard_info": {"": infos},
            "flatten_info": {},
            "buffer_info": {},
            "world_size": 2,
            "rank": rank,
        }
        torch.save(
            {"model": shards[rank], "shard_metadata": metadata}, folder / f"x_rank-{rank}-of-2.pth"
        )


def step(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


def write_exported(folder: Path) -> None:
    model = net().to("xla").eval()
    spmd.export(model, (torch.ones(4, 8, device="xla"),)).save(folder)


def load_exported(folder: Path) -> Values:
    program = spmd.load_exported(folder)
    state = {name: value.cpu() for name, value in program.state.items()}
    return {**state, "shape": program(torch.ones(4, 8, device="xla")).shape}


def write_programs(folder: Path) -> None:
    spmd.plan(step, torch.ones(8, 8, device="xla")).save_program(folder)


def load_programs(folder: Path) -> Values:
    """The number of programs, and the one that a compilation would take."""
    file = min(folder.glob("*.program"))
    whole = file.read_bytes()
    header = json.loads(GOOD["programs"][file.name].split(b"\n", 2)[1])
    del header["sha256"]
    try:
        number = spmd.load_programs(folder)
        body = disk.read(header.pop("digest"), header)
    finally:
        program_folder.remove(folder)
    assert body is None or whole == GOOD["programs"][file.name]
    if body is None:  # it is compiled again, and a line says so
        raise ValueError(f"{file}: damaged")
    return {"number": number, "body": body}


GOOD: dict[str, dict[str, bytes]] = {}
SAFE = ("model.safetensors",)
LOADERS = {
    "safetensors": Loader(
        lambda folder: save_file(net().state_dict(), folder / SAFE[0]), load_model, SAFE, SAFE
    ),
    "indexed": Loader(
        write_indexed,
        load_model,
        ("model.safetensors.index.json", "model-0.safetensors", "model-1.safetensors"),
        ("model-0.safetensors", "model-1.safetensors"),
    ),
    "torch": Loader(
        lambda folder: torch.save({"model": net().state_dict()}, folder / "x.pt"),
        lambda folder: load_model(folder / "x.pt", "model"),
        ("x.pt",),
        ("x.pt",),
    ),
    "distributed": Loader(write_dcp, load_dcp, (".metadata", "__0_0.distcp")),
    "ranks": Loader(
        write_ranks,
        lambda folder: fsdp.consolidate_sharded_model_checkpoints(
            str(folder / "x"), save_model=False
        )[0],
        ("x_rank-0-of-2.pth", "x_rank-1-of-2.pth"),
    ),
    "exported": Loader(
        write_exported,
        load_exported,
        ("manifest.json", "program.jax_export", "weights.safetensors"),
        ("weights.safetensors",),
    ),
    "programs": Loader(write_programs, load_programs, ("programs.json", "*.program")),
}


def corrupted(data: bytes, draw: random.Random) -> bytes:
    """The bytes of a file with one fault."""
    made = bytearray(data)
    at, size = draw.randrange(len(data)), draw.choice([1, 2, 4, 8, 64])
    # Heads and tails, where the formats keep their tables, get more than their share.
    at = draw.choice(
        [at, min(at, draw.randrange(1, 400)), max(at, len(data) - draw.randrange(1, 400))]
    ) % len(data)
    match draw.randrange(8):
        case 0:
            del made[at:]
        case 1 | 2:
            made[at] ^= 1 << draw.randrange(8)
        case 3:
            for _ in range(size):
                made[draw.randrange(len(made))] ^= 1 << draw.randrange(8)
        case 4:
            other = draw.randrange(len(data))
            made[at : at + size], made[other : other + size] = (
                data[other : other + size],
                data[at : at + size],
            )
        case 5:
            made[at : at + size] = bytes([draw.choice([0, 255])]) * len(made[at : at + size])
        case 6:
            made[at:at] = draw.randbytes(size)
        case 7:
            number = draw.choice(
                [
                    b"999999999999999999",
                    b"-1",
                    b"1e400",
                    b"../../../etc/passwd",
                    b"0",
                    b"null",
                    b"[]",
                ]
            )
            made[at : at + len(number)] = number
    return bytes(made)


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """Ends the process where a loader hangs, also in C++."""
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def raw(value: torch.Tensor) -> bytes:
    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(found: Values, good: Values, *, values: bool) -> bool:
    if [*found] != [*good]:
        return False
    for name, expected in good.items():
        value = found[name]
        if not isinstance(expected, torch.Tensor):
            if value != expected:
                return False
        elif (value.shape, value.dtype) != (expected.shape, expected.dtype) or (
            values and raw(value) != raw(expected)
        ):
            return False
    return True


def with_data_of(before: bytes, after: bytes, good: Values) -> bytes:
    """A file with the tensors' bytes of a corrupted one, and nothing else of it."""
    covered = bytearray(len(before))
    for data in [raw(value) for value in good.values() if isinstance(value, torch.Tensor)]:
        # a rank has a part of a tensor
        for part in (data[at : at + 512] for at in range(0, len(data), 512)):
            at = before.find(part)
            while at >= 0:
                covered[at : at + len(part)] = b"\1" * len(part)
                at = before.find(part, at + 1)
    return bytes(
        other if inside else one for one, other, inside in zip(before, after, covered, strict=True)
    )


def tried(name: str, folder: Path, seed: int, count: int) -> dict[str, int]:
    """Loads files with a fault each; how many loaded as they were, with other data, and not."""
    loader = LOADERS[name]
    folder.mkdir()
    loader.write(folder)
    good_files = {path.name: path.read_bytes() for path in folder.iterdir()}
    GOOD[name] = good_files
    good = {
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in loader.load(folder).items()
    }
    draw = random.Random(f"{name} {seed}")
    files = [path for pattern in loader.changed for path in sorted(folder.glob(pattern))]
    counts = {"same": 0, "data": 0, "refused": 0}
    for number in range(count):
        file = draw.choice(files)
        data = corrupted(good_files[file.name], draw)
        file.write_bytes(data)
        what = f"{name}, seed {seed}, number {number}: {file.name}"
        try:
            with alarm(60):
                found = loader.load(folder)
        except (Exception, dcp.api.CheckpointException) as error:
            said = f"{error} {error.__cause__}"
            assert str(folder) in said or file.name in said, (
                f"{what}: {type(error).__name__}: {error}"
            )
            counts["refused"] += 1
        else:
            is_same = same(found, good, values=True)
            if not is_same:
                assert file.name in loader.unchecked and len(data) == len(good_files[file.name]), (
                    what
                )
                file.write_bytes(with_data_of(good_files[file.name], data, good))
                assert same(found, loader.load(folder), values=True), what
            counts["same" if is_same else "data"] += 1
        file.write_bytes(good_files[file.name])
    return counts


@pytest.mark.parametrize("name", LOADERS)
class TestCorrupted:
    def test_some(self, name: str, tmp_path: Path) -> None:
        assert tried(name, tmp_path / "files", 0, 30 if name == "exported" else 50)["refused"] > 0

    @pytest.mark.long
    def test_thousand(self, name: str, tmp_path: Path) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        counts = tried(name, tmp_path / "files", 1, 1000)
        print(name, counts)
        assert counts["refused"] > 200
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


def header(table: dict[str, Any], data: bytes = bytes(64), length: int | None = None) -> bytes:
    text = json.dumps(table).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, shape: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


class Code:
    """A pickle that would run code."""

    def __reduce__(self) -> Any:
        return print, ("this must not run",)


class TestMade:
    """Files that somebody made on purpose."""

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (
                header({"a": entry(0, 32, [8]), "b": entry(16, 64, [12])}),
                "'b' begins at byte .*, and the one before",
            ),
            (header({"a": entry(0, 32, [8]), "b": entry(40, 64, [6])}), "'b' begins at byte"),
            (header({"a": entry(0, 64, [8])}), "'a' of shape .* takes 32 bytes, and is at"),
            (header({"a": entry(-64, 0, [16])}), "'a' has no dtype, shape and offsets"),
            (header({"a": entry(0, 64, [-16])}), "'a' has no dtype, shape and offsets"),
            (header({"a": entry(0, 64, [16.0])}), "'a' has no dtype, shape and offsets"),
            (header({"a": entry(0, 64, [1 << 61, 1 << 61, 0])}), "takes 0 bytes"),
            (header({"a": [1]}), "'a' has no dtype, shape and offsets"),
            (header({"a": entry(0, 32, [8])}), "its header describes"),
            (header({"a": entry(0, 64, [16])}, bytes(1 << 27), 1 << 27), "its header would have"),
            (header({"a": entry(0, 64, [16])}, length=1 << 62), "its header would have"),
            (b"\x40" + bytes(7) + b'{"a": 1, "a": 2}'.ljust(64), "a name is there twice"),
            (b"\x00\x00\x01" + bytes(5) + b'{"a":' + b"[" * (1 << 16), "its header is not JSON"),
        ],
    )
    def test_safetensors(self, content: bytes, says: str, tmp_path: Path) -> None:
        (tmp_path / "x.safetensors").write_bytes(content)
        with pytest.raises(
            ValueError, match=rf"x\.safetensors, of .* bytes, is cut short or damaged: .*{says}"
        ):
            spmd.load_checkpoint(nn.Linear(8, 8), tmp_path / "x.safetensors")

    @pytest.mark.parametrize(
        "name", ["../x.safetensors", "/etc/passwd", "a/../../x", "model.safetensors.index.json"]
    )
    def test_index(self, name: str, tmp_path: Path) -> None:
        save_file({"weight": torch.ones(1)}, tmp_path / "x.safetensors")
        (tmp_path / "in").mkdir()
        (tmp_path / "in/model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"weight": name}})
        )
        with pytest.raises(
            ValueError,
            match=r"index\.json names the file .*: expected a file of tensors in the index's",
        ):
            spmd.load_checkpoint(nn.Linear(1, 1, bias=False), tmp_path / "in")

    def test_large_index(self, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors.index.json").write_text("{}")
        os.truncate(tmp_path / "model.safetensors.index.json", 1 << 40)
        with pytest.raises(
            ValueError, match=r"index\.json, of .* is cut short .* more than 100,000,000 bytes"
        ):
            spmd.load_checkpoint(nn.Linear(1, 1), tmp_path)

    @pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink(path, path)])
    def test_no_file(self, make: Callable[[Path], None], tmp_path: Path) -> None:
        """A pipe, which would wait for a writer for ever, a folder, and a link to itself, by a
        file's name."""
        make(tmp_path / "model.safetensors")
        with pytest.raises(
            FileNotFoundError, match=r"or \*\.safetensors in .*, found model\.safetensors"
        ):
            spmd.load_checkpoint(nn.Linear(1, 1), tmp_path)

    def test_large_metadata(self, tmp_path: Path) -> None:
        (tmp_path / ".metadata").write_text("")
        os.truncate(tmp_path / ".metadata", 1 << 40)
        with pytest.raises(
            ValueError,
            match=r"\.metadata is damaged: ValueError: expected at most 1,073,741,824 bytes",
        ):
            FolderReader(tmp_path).read_metadata()

    def test_numbers_of_another_kind(self, tmp_path: Path) -> None:
        save_file({"weight": torch.ones(1, 1, dtype=torch.int32)}, tmp_path / "x.safetensors")
        with pytest.raises(
            ValueError,
            match=r"'weight' is torch\.int32 in .*x\.safetensors and torch\.float32 in the mod",
        ):
            spmd.load_checkpoint(nn.Linear(1, 1, bias=False), tmp_path / "x.safetensors")

    def test_code(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        torch.save({"weight": Code()}, tmp_path / "x.pt")
        with pytest.raises(
            ValueError, match=r"x\.pt is damaged, or has objects other than tensors, of which code"
        ):
            spmd.load_checkpoint(nn.Linear(1, 1), tmp_path / "x.pt")
        torch.save({"model": Code(), "shard_metadata": {}}, tmp_path / "y_rank-0-of-1.pth")
        with pytest.raises(ValueError, match=r"y_rank-0-of-1\.pth is damaged"):
            fsdp.consolidate_sharded_model_checkpoints(str(tmp_path / "y"))
        dcp.save({"x": torch.ones(2)}, checkpoint_id=tmp_path / "z")
        (tmp_path / "z/.metadata").write_bytes(pickle.dumps(Code()))
        with pytest.raises(
            ValueError, match=r"z/\.metadata is damaged: .*builtins\.print is no part"
        ):
            FolderReader(tmp_path / "z").read_metadata()
        assert "must not run" not in capfd.readouterr().out

    def test_value_with_code(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        """torch's folder of a value that is no tensor, with torch's own reader, too."""
        dcp.save({"x": Code()}, checkpoint_id=tmp_path)
        for how in ({"checkpoint_id": tmp_path}, {"storage_reader": FolderReader(tmp_path)}):
            with pytest.raises(dcp.api.CheckpointException, match="Weights only load failed"):
                dcp.load({"x": 0}, planner=SPMDLoadPlanner(), **how)
        assert "must not run" not in capfd.readouterr().out

    @pytest.mark.parametrize("name", ["../y", "/etc/passwd"])
    def test_outside_of_the_folder(self, name: str, tmp_path: Path) -> None:
        dcp.save({"x": torch.ones(2)}, checkpoint_id=tmp_path)
        metadata = FolderReader(tmp_path).read_metadata()
        for place in metadata.storage_data.values():
            place.relative_path = name
        (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
        with pytest.raises(ValueError, match=r"'x' would be in '.*', outside of the folder"):
            FolderReader(tmp_path).read_metadata()


def test_record_as_a_folder(tmp_path: Path) -> None:
    """torch reads nothing of such a record, and gives memory without values."""
    path = tmp_path / "x.pt"
    torch.save({"weight": torch.ones(2, 2)}, path)
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02", content.index(b"PK\x01\x02") + 1)
    while b"data/0" not in content[entry : entry + 80]:
        entry = content.index(b"PK\x01\x02", entry + 1)
    # the external attributes of the directory's entry: MS-DOS' bit of a folder
    content[entry + 38] = 0x10
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"data/0 has attributes, as torch writes none"):
        fsdp.load_checkpoint(torch.nn.Linear(2, 2, bias=False), path)
