"""The state that `spmd.CheckpointManager` saves and restores: each kind of entry, and entries of
several processes."""

import json
import random
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import spmd
from spmd.core.base import seed
from spmd.jobs.checkpoint import manifest
from spmd.jobs.checkpoint.restoring import Restoring
from spmd.jobs.checkpoint.step_reader import StepReader

from .states import MESHES


def sharded(value: torch.Tensor, mesh: str, *spec: Any) -> torch.Tensor:
    return spmd.mark_sharding(value.to("xla"), MESHES[mesh], spec)


class TestState:
    """Every kind of entry comes back as it was, in place where it is a tensor or an object."""

    def test_tensors(self, tmp_path: Path) -> None:
        whole = {
            "rows": torch.randn(16, 8),
            "uneven": torch.randn(10, 6),
            "both": torch.randn(8, 8),
            "half": torch.randn(16).bfloat16(),
            "flags": torch.arange(16) % 3 == 0,
            "one": torch.tensor(3.0),
            "small": torch.randn(8).to(torch.float8_e5m2),
            "complex": torch.randn(4, dtype=torch.complex64),
            "empty": torch.empty(0, 3),
        }
        specs = {
            "rows": ("fsdp", None),
            "uneven": (None, "fsdp"),
            "both": ("data", "fsdp"),
            "half": ("fsdp",),
        }
        state: dict[str, Any] = {
            name: sharded(value, "2x4", *specs.get(name, (None,) * value.dim()))
            for name, value in whole.items()
        }
        state["view"] = state["rows"].t()[1]
        state["pending"] = state["rows"] * 2
        state["cpu"] = torch.arange(5)
        manager = spmd.CheckpointManager(tmp_path)
        assert manager.save(0, state)
        compiled = spmd.metrics.num_compiles()
        found: dict[str, Any] = {
            name: sharded(torch.zeros_like(value), "3", *("fsdp", None)[: value.dim()])
            for name, value in whole.items()
        }
        found |= {
            "view": torch.zeros(16, device="xla"),
            "pending": torch.zeros(16, 8),
            "cpu": torch.zeros(5, dtype=torch.long),
        }
        before = {name: spmd.get_sharding(found[name]) for name in whole}
        assert manager.restore(found) == 0
        for name, value in whole.items():
            assert (
                found[name].cpu().reshape(-1).view(torch.uint8).tolist()
                == value.reshape(-1).view(torch.uint8).tolist()
            ), name
            assert spmd.get_sharding(found[name]) is before[name]
        assert torch.equal(found["view"].cpu(), whole["rows"].t()[1]) and found["cpu"].tolist() == [
            *range(5)
        ]
        assert torch.equal(found["pending"], whole["rows"] * 2)
        assert spmd.metrics.num_compiles() == compiled

    def test_plain_values(self, tmp_path: Path) -> None:
        values: dict[str, Any] = {
            "numbers": [1, -(2**70), 0.1, float("inf"), True, None, 1 + 2j], "text": "é\n",
            "bytes": b"\0\xff", "tuple": (1, (2.5,)), "keys": {1: "a", (2, "b"): [3]},
            "dollar": {"$tensor": "x"}, "set": {3, 1}, "ordered": OrderedDict([("z", 1), ("a", 2)]),
            "counter": Counter({3: 2}), "deque": deque([1, 2], 3), "size": torch.Size([2]),
            "dtype": torch.bfloat16, "scalar": np.float32(0.5), "frozen": frozenset([1]),
            "nested": {"lr": 0.1, "inner": [{"a": ()}]}, "python": random.getstate(),
            "device": torch.device("cpu"),
        }  # fmt: skip
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(
            1, {"all": values, "nan": float("nan"), "array": {"x": np.arange(3, dtype=np.uint32)}}
        )
        state: dict[str, Any] = {"all": {}, "nan": 0.0, "array": {}}
        manager.restore(state)
        assert state["all"] == values and state["nan"] != state["nan"]
        for name, value in values.items():
            assert type(state["all"][name]) is type(value)
        assert state["all"]["deque"].maxlen == 3 and [*state["all"]["ordered"]] == ["z", "a"]
        assert state["array"]["x"].dtype == np.uint32 and state["array"]["x"].tolist() == [0, 1, 2]

    def test_in_containers(self, tmp_path: Path) -> None:
        x, generator = torch.arange(4.0, device="xla"), torch.Generator().manual_seed(3)
        state: dict[str, Any] = {"list": [x, 1], "tuple": (x * 2, {"n": 5}), "generator": generator}
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(0, state)
        drawn = torch.rand(2, generator=generator)
        y = torch.zeros(4, device="xla")
        other: dict[str, Any] = {
            "list": [y, 0],
            "tuple": (y.clone(), {"n": 0}),
            "generator": generator,
        }
        manager.restore(other)
        assert other["list"][0] is y and y.tolist() == [0, 1, 2, 3] and other["list"][1] == 1
        assert other["tuple"][0].tolist() == [0, 2, 4, 6] and other["tuple"][1] == {"n": 5}
        assert torch.equal(torch.rand(2, generator=generator), drawn)

    @pytest.mark.parametrize("before", [1, 2, 3])
    def test_plain_values_in_place(self, before: int, tmp_path: Path) -> None:
        """Dicts, lists, deques and sets, which the program may hold elsewhere, too; tuples are new
        in their parents."""

        def made(number: int) -> dict[str, Any]:
            return {
                "progress": {
                    "step": number,
                    "curve": [{"loss": float(i)} for i in range(number)],
                    "at": ({"n": number}, number),
                    "last": deque([[number]], 4),
                    "seen": {number},
                    "count": Counter({number: number}),
                    "ordered": OrderedDict([(str(number), number)]),
                    f"only {number}": None,
                    "groups": defaultdict(list, {"x": [number]}),
                    "longest": deque([number], number),
                },
                "losses": [number] * number,
                "deep": [({"model": torch.full((2,), number), "n": [number]},)],
            }

        def containers(state: dict[str, Any]) -> list[Any]:
            progress, ((deep,),) = state["progress"], state["deep"]
            names = ("curve", "last", "seen", "count", "ordered", "groups")
            inner = [
                progress["curve"][0],
                progress["at"][0],
                progress["last"][0],
                progress["groups"]["x"],
                deep["n"],
            ]
            return [
                progress,
                state["losses"],
                state["deep"],
                deep,
                *inner,
                *(progress[name] for name in names),
            ]

        manager = spmd.CheckpointManager(tmp_path)
        manager.save(0, made(2))
        state = made(before)
        found = containers(state)
        manager.restore(state)
        assert repr(state) == repr(made(2))
        assert all(one is other for one, other in zip(containers(state), found, strict=True))

    def test_what_cannot_be_held(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(tmp_path)
        with pytest.raises(
            TypeError,
            match=r"config\.key\.f is a builtins\.function, which a checkpoint cannot hold",
        ):
            manager.save(0, {"config": {"key": {"f": lambda: 0}}})
        with pytest.raises(TypeError, match="expected a dict such as"):
            manager.save(0, [1])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"two entries of the state have the path 'a\.b'"):
            manager.save(0, {"a.b": 1, "a": {"b": torch.ones(1)}})
        assert manager.all_steps() == [] and not [*tmp_path.iterdir()]

    def test_nothing_is_pickled(self, tmp_path: Path) -> None:
        """The manifest is JSON that a person can read, and the tensors' bytes are in the file as it
        says."""
        x = sharded(torch.arange(8, dtype=torch.int32), "8", "fsdp")
        spmd.CheckpointManager(tmp_path).save(7, {"x": x, "note": "hello"})
        assert sorted(file.name for file in (tmp_path / "7").iterdir()) == [
            "manifest.json",
            "shards-0.bin",
        ]
        manifest = json.loads((tmp_path / "7/manifest.json").read_text())
        assert manifest["step"] == 7 and manifest["values"]["note"] == {
            "kind": "value",
            "state": "hello",
        }
        tensor = manifest["tensors"]["x"]
        assert (
            tensor["sharding"]["mesh"] == {"fsdp": 8}
            and tensor["dtype"] == "int32"
            and tensor["shape"] == [8]
        )
        data = (tmp_path / "7/shards-0.bin").read_bytes()
        for shard in tensor["shards"]:
            (value,) = np.frombuffer(
                data[shard["offset"] : shard["offset"] + shard["bytes"]], np.int32
            )
            assert [value] == shard["at"]


class TestProcesses:
    """Entries that differed between the processes of a save, restored by other numbers of them."""

    @pytest.mark.parametrize("index", [0, 1, 2])
    def test_streams(self, index: int, tmp_path: Path) -> None:
        manager, streams = spmd.CheckpointManager(tmp_path), spmd.checkpoint.RandomState()
        (tmp_path / "both").mkdir()
        expected, parts = [], []
        for process in range(2):
            random.seed(process)
            np.random.seed(process)
            manager.save(process, {"random": streams})
            expected.append((random.random(), np.random.rand()))
            body = manifest.read(tmp_path / str(process))
            part = json.dumps({name: body[name] for name in ("tensors", "values", "files")})
            parts.append(json.loads(part.replace("shards-0.bin", f"of-{process}.bin")))
            (tmp_path / str(process) / "shards-0.bin").rename(
                tmp_path / "both" / f"of-{process}.bin"
            )
        torch.manual_seed(5)
        random.seed(9)
        own = random.random()
        random.seed(9)
        merged = manifest.merged(parts)
        (tmp_path / "both/manifest.json").write_text(manifest.text({**body, **merged}))
        Restoring(StepReader(tmp_path / "both"), {"random": streams}, (index, 3)).run()
        assert seed.get_state()[0] == 0  # the device's
        if index < 2:
            assert (random.random(), np.random.rand()) == expected[index]
        else:
            assert random.random() == own
