"""`spmd.CheckpointManager`: what it takes and gives back, when it saves, and resuming on any mesh."""

import json
import os
import random
import signal
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fsdp
import spmd
from spmd.checkpoint import manifest, preemption
from spmd.checkpoint.restoring import Restoring
from spmd.checkpoint.step_reader import StepReader
from spmd.core.base import seed

from .states import MESHES, Run, Tied


def sharded(value: torch.Tensor, mesh: str, *spec: Any) -> torch.Tensor:
    return spmd.mark_sharding(value.to("xla"), MESHES[mesh], spec)


class TestState:
    """Every kind of entry comes back as it was, in place where it is a tensor or an object."""

    def test_tensors(self, tmp_path: Path) -> None:
        whole = {
            "rows": torch.randn(16, 8), "uneven": torch.randn(10, 6), "both": torch.randn(8, 8),
            "half": torch.randn(16).bfloat16(), "flags": torch.arange(16) % 3 == 0, "one": torch.tensor(3.0),
            "small": torch.randn(8).to(torch.float8_e5m2), "complex": torch.randn(4, dtype=torch.complex64),
            "empty": torch.empty(0, 3),
        }  # fmt: skip
        specs = {"rows": ("fsdp", None), "uneven": (None, "fsdp"), "both": ("data", "fsdp"), "half": ("fsdp",)}
        state: dict[str, Any] = {
            name: sharded(value, "2x4", *specs.get(name, (None,) * value.dim())) for name, value in whole.items()
        }
        state["view"] = state["rows"].t()[1]
        state["pending"] = state["rows"] * 2
        state["cpu"] = torch.arange(5)
        manager = spmd.CheckpointManager(tmp_path)
        assert manager.save(0, state)
        compiled = spmd.metrics.num_compiles()
        found: dict[str, Any] = {
            name: sharded(torch.zeros_like(value), "3", *("fsdp", None)[: value.dim()]) for name, value in whole.items()
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
                found[name].cpu().reshape(-1).view(torch.uint8).tolist() == value.reshape(-1).view(torch.uint8).tolist()
            ), name
            assert spmd.get_sharding(found[name]) is before[name]
        assert torch.equal(found["view"].cpu(), whole["rows"].t()[1]) and found["cpu"].tolist() == [*range(5)]
        assert torch.equal(found["pending"], whole["rows"] * 2)
        assert spmd.metrics.num_compiles() == compiled

    def test_plain_values(self, tmp_path: Path) -> None:
        values: dict[str, Any] = {
            "numbers": [1, -(2**70), 0.1, float("inf"), True, None, 1 + 2j], "text": "é\n", "bytes": b"\0\xff",
            "tuple": (1, (2.5,)), "keys": {1: "a", (2, "b"): [3]}, "dollar": {"$tensor": "x"}, "set": {3, 1},
            "ordered": OrderedDict([("z", 1), ("a", 2)]), "counter": Counter({3: 2}), "deque": deque([1, 2], 3),
            "size": torch.Size([2]), "dtype": torch.bfloat16, "scalar": np.float32(0.5), "frozen": frozenset([1]),
            "nested": {"lr": 0.1, "inner": [{"a": ()}]}, "python": random.getstate(), "device": torch.device("cpu"),
        }  # fmt: skip
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(1, {"all": values, "nan": float("nan"), "array": {"x": np.arange(3, dtype=np.uint32)}})
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
        other: dict[str, Any] = {"list": [y, 0], "tuple": (y.clone(), {"n": 0}), "generator": generator}
        manager.restore(other)
        assert other["list"][0] is y and y.tolist() == [0, 1, 2, 3] and other["list"][1] == 1
        assert other["tuple"][0].tolist() == [0, 2, 4, 6] and other["tuple"][1] == {"n": 5}
        assert torch.equal(torch.rand(2, generator=generator), drawn)

    @pytest.mark.parametrize("before", [1, 2, 3])
    def test_plain_values_in_place(self, before: int, tmp_path: Path) -> None:
        """Dicts, lists, deques and sets, which the program may hold elsewhere, too; tuples are new in their parents."""

        def made(number: int) -> dict[str, Any]:
            return {
                "progress": {
                    "step": number, "curve": [{"loss": float(i)} for i in range(number)], "at": ({"n": number}, number),
                    "last": deque([[number]], 4), "seen": {number}, "count": Counter({number: number}),
                    "ordered": OrderedDict([(str(number), number)]), f"only {number}": None,
                    "groups": defaultdict(list, {"x": [number]}), "longest": deque([number], number),
                },
                "losses": [number] * number, "deep": [({"model": torch.full((2,), number), "n": [number]},)],
            }  # fmt: skip

        def containers(state: dict[str, Any]) -> list[Any]:
            progress, ((deep,),) = state["progress"], state["deep"]
            names = ("curve", "last", "seen", "count", "ordered", "groups")
            inner = [progress["curve"][0], progress["at"][0], progress["last"][0], progress["groups"]["x"], deep["n"]]
            return [progress, state["losses"], state["deep"], deep, *inner, *(progress[name] for name in names)]

        manager = spmd.CheckpointManager(tmp_path)
        manager.save(0, made(2))
        state = made(before)
        found = containers(state)
        manager.restore(state)
        assert repr(state) == repr(made(2))
        assert all(one is other for one, other in zip(containers(state), found, strict=True))

    def test_what_cannot_be_held(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(tmp_path)
        with pytest.raises(TypeError, match=r"config\.key\.f is a builtins\.function, which a checkpoint cannot hold"):
            manager.save(0, {"config": {"key": {"f": lambda: 0}}})
        with pytest.raises(TypeError, match="expected a dict such as"):
            manager.save(0, [1])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"two entries of the state have the path 'a\.b'"):
            manager.save(0, {"a.b": 1, "a": {"b": torch.ones(1)}})
        assert manager.all_steps() == [] and not [*tmp_path.iterdir()]

    def test_nothing_is_pickled(self, tmp_path: Path) -> None:
        """The manifest is JSON that a person can read, and the tensors' bytes are in the file as it says."""
        x = sharded(torch.arange(8, dtype=torch.int32), "8", "fsdp")
        spmd.CheckpointManager(tmp_path).save(7, {"x": x, "note": "hello"})
        assert sorted(file.name for file in (tmp_path / "7").iterdir()) == ["manifest.json", "shards-0.bin"]
        manifest = json.loads((tmp_path / "7/manifest.json").read_text())
        assert manifest["step"] == 7 and manifest["values"]["note"] == {"kind": "value", "state": "hello"}
        tensor = manifest["tensors"]["x"]
        assert tensor["sharding"]["mesh"] == {"fsdp": 8} and tensor["dtype"] == "int32" and tensor["shape"] == [8]
        data = (tmp_path / "7/shards-0.bin").read_bytes()
        for shard in tensor["shards"]:
            (value,) = np.frombuffer(data[shard["offset"] : shard["offset"] + shard["bytes"]], np.int32)
            assert [value] == shard["at"]


class TestResume:
    """A run that was restored goes on with the losses and weights of the one that was not stopped."""

    @pytest.mark.parametrize("is_compiled", [False, True])
    def test_same_mesh(self, is_compiled: bool, tmp_path: Path) -> None:
        """Bit for bit, dropout, schedule and loader included."""
        first = Run()
        if is_compiled:
            first.update = spmd.compile(first.update)
        first.train(3)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(3, first.state)
        names = json.loads((tmp_path / "3/manifest.json").read_text())["tensors"]
        assert ("model.embed.weight" in names) != ("model.head.weight" in names)  # tied: written once
        expected = first.train(3)
        second = Run()
        if is_compiled:
            second.update = spmd.compile(second.update)
        torch.manual_seed(9)
        assert manager.restore(second.state) == 3 and second.state["progress"]["step"] == 3
        assert second.train(3) == expected
        for name, value in first.model.state_dict().items():
            assert torch.equal(second.model.state_dict()[name].cpu(), value.cpu()), name

    def test_back_in_the_same_run(self, tmp_path: Path) -> None:
        """Restoring into tensors that compiled steps use: they are replayed on."""
        run = Run()
        run.update = spmd.compile(run.update)
        run.train(3)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(3, run.state)
        expected = run.train(3)
        manager.restore(run.state)
        run.batches = None
        replayed = run.update.num_replayed
        assert run.train(3) == expected
        assert run.update.num_replayed > replayed > 0, run.update.causes

    @pytest.mark.parametrize(("source", "target"), [("8", "2x4"), ("2x4", "3"), ("3", None), (None, "8")])
    def test_other_mesh(self, source: str | None, target: str | None, tmp_path: Path) -> None:
        """To 1e-6; each tensor keeps the sharding that it has, and moments have that of their parameters."""
        first = Run(source, dropout=False)
        first.train(3)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(3, first.state)
        expected = first.train(3)
        second = Run(target, dropout=False)
        before = {name: spmd.get_sharding(value) for name, value in second.model.state_dict().items()}
        manager.restore(second.state)
        for parameter in second.model.parameters():
            moment = second.optimizer.state[parameter]["exp_avg"]
            assert spmd.get_sharding(moment) is spmd.get_sharding(parameter)
        torch.testing.assert_close(second.train(3), expected, rtol=1e-6, atol=1e-6)
        for name, value in second.model.state_dict().items():
            assert before[name] is None or spmd.get_sharding(value) is before[name]
            torch.testing.assert_close(value.cpu(), first.model.state_dict()[name].cpu(), rtol=1e-5, atol=1e-6)

    def test_state_of_another_shape(self, tmp_path: Path) -> None:
        """Adafactor's rows and columns of moments."""

        def made(mesh: str) -> Run:
            return Run(mesh, torch.optim.Adafactor, dropout=False)

        first = made("8")
        first.train(2)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(2, first.state)
        expected = first.train(2)
        for mesh in ("8", "2x4"):
            second = made(mesh)
            manager.restore(second.state)
            torch.testing.assert_close(second.train(2), expected, rtol=1e-6, atol=1e-6)

    def test_plain_torch(self, tmp_path: Path) -> None:
        """Sharded state is read into a model on the CPU, and the other way round."""
        first = Run(dropout=False)
        first.train(2)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(2, {"model": first.model, "optimizer": first.optimizer})
        model = Tied()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        manager.restore({"model": model, "optimizer": optimizer})
        for name, value in model.state_dict().items():
            assert torch.equal(value, first.model.state_dict()[name].cpu()), name
        assert model.head.weight is model.embed.weight
        moment = first.optimizer.state[next(first.model.parameters())]["exp_avg"]
        assert torch.equal(optimizer.state[model.embed.weight]["exp_avg"], moment.cpu())
        manager.save(3, {"model": model, "optimizer": optimizer})
        assert manager.restore({"model": first.model, "optimizer": first.optimizer}) == 3

    def test_never_initialised(self, tmp_path: Path) -> None:
        """A model built on the device is filled, and its initial values are never computed."""
        manager = spmd.CheckpointManager(tmp_path)
        with torch.device("xla"):
            layer, other = nn.Linear(8, 8), nn.Linear(8, 8)
        manager.save(0, {"model": layer})
        compiled = spmd.metrics.num_compiles()
        manager.restore({"model": other})
        spmd.sync()
        assert torch.equal(other.weight.detach().cpu(), layer.weight.detach().cpu())
        assert spmd.metrics.num_compiles() == compiled

    def test_loader_with_a_state_of_its_own(self, tmp_path: Path) -> None:
        torchdata = pytest.importorskip("torchdata.stateful_dataloader")

        def made() -> Any:
            data, generator = [*range(20)], torch.Generator().manual_seed(1)
            return torchdata.StatefulDataLoader(data, batch_size=4, shuffle=True, generator=generator)

        loader = made()
        batches = iter(loader)
        next(batches)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(0, {"loader": loader})
        expected = [batch.tolist() for batch in batches]
        other = made()
        manager.restore({"loader": other})
        assert [batch.tolist() for batch in other] == expected


class TestHostMemory:
    """Parameters and moments that are kept on the hosts are saved from there, restored there, and a run goes on."""

    def test_offloaded(self, tmp_path: Path) -> None:
        def made(mesh: str) -> tuple[nn.Module, torch.optim.Optimizer]:
            torch.manual_seed(0)
            layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
            model = fsdp.FullyShardedDataParallel(layers, MESHES[mesh], offload_policy=fsdp.CPUOffloadPolicy())
            return model, spmd.offload_optimizer(torch.optim.AdamW(model.parameters(), lr=0.1))

        def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> list[float]:
            losses = []
            for _ in range(steps):
                loss = model(torch.ones(8, 8, device="xla")).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                spmd.sync()
                losses.append(loss.item())
            return losses

        def memories(model: nn.Module, optimizer: torch.optim.Optimizer) -> set[str]:
            moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
            assert len(moments) == 8
            return {spmd.get_sharding(value).memory for value in (*model.parameters(), *moments)}

        first = made("8")
        train(*first)
        manager = spmd.CheckpointManager(tmp_path, async_=True)
        manager.save(2, {"model": first[0], "optimizer": first[1]})
        expected = train(*first)
        for mesh, steps in (("8", 0), ("3", 1)):
            other = made(mesh)
            train(*other, steps)
            manager.restore({"model": other[0], "optimizer": other[1]})
            assert memories(*other) == {"pinned_host"}
            assert train(*other) == (expected if mesh == "8" else pytest.approx(expected, rel=1e-6))


class TestWhatFits:
    """Names, shapes and groups are compared before anything is loaded."""

    def test_differences(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(tmp_path)
        layer = nn.Linear(4, 2).to("xla")
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        manager.save(0, {"model": layer, "optimizer": optimizer, "x": torch.ones(2, device="xla"), "n": 1})
        wide, x = nn.Linear(5, 2).to("xla"), torch.zeros(3, device="xla")
        before = wide.bias.detach().cpu()
        state = {
            "modle": nn.Linear(4, 2), "model": wide, "x": x, "n": torch.ones(1),
            "optimizer": torch.optim.SGD([wide.weight], 0.1),
        }  # fmt: skip
        with pytest.raises(ValueError, match="nothing was loaded") as raised:
            manager.restore(state)
        for words in (
            "'modle' is not in the step, which has 'model', 'optimizer', 'x', 'n'; did you mean 'model'?",
            "'model.weight' has the shape [2, 4] in the step and [2, 5] here",
            "'x' has the shape [2] in the step and [3] here",
            "'n' is a plain value in the step, and a tensor here",
            "'optimizer' has groups of [2] parameters in the step, and of [1] here",
        ):
            assert words in str(raised.value)
        assert torch.equal(wide.bias.detach().cpu(), before) and x.tolist() == [0, 0, 0]
        with pytest.raises(ValueError, match=r"'model': 'extra' is not in the step(?s:.*)'bias' is not in the model"):
            model = nn.Linear(4, 2, bias=False)
            model.extra = nn.Parameter(torch.ones(1))
            manager.restore({"model": model})

    @pytest.mark.parametrize("is_named", [True, False])
    def test_another_optimizer(self, is_named: bool, tmp_path: Path) -> None:
        """By the class's name, and by the keys of its groups where a step has none or a wrapper's."""

        def made(kind: Callable[..., torch.optim.Optimizer], **given: Any) -> torch.optim.Optimizer:
            weight = torch.ones(2, device="xla")
            weight.grad = torch.ones(2, device="xla")
            optimizer = kind([weight], lr=0.5, **given)
            optimizer.step()
            return optimizer

        kinds, manager = (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adam), spmd.CheckpointManager(tmp_path)
        manager.save(0, {kind.__name__: made(kind) for kind in kinds})
        if not is_named:
            body = manifest.read(tmp_path / "0")
            for entry in body["values"].values():
                del entry["class"]
            (tmp_path / "0/manifest.json").write_text(manifest.text(body))
        for was, now, words in (
            (
                "AdamW",
                made(torch.optim.SGD),
                r"'betas', .* in the step alone, and 'momentum', .* here alone: make the ",
            ),
            (
                "SGD",
                made(torch.optim.AdamW),
                r"'momentum', .* in the step alone, and 'betas', .* here alone: make the ",
            ),
            ("AdamW", made(fsdp.ZeroRedundancyOptimizer, optimizer_class=torch.optim.SGD), r".*'momentum', "),
        ):
            said = rf"'{was}' is {was if is_named else 'an optimizer'} in the step, and {type(now).__name__} here"
            before = repr(now.state_dict())
            with pytest.raises(ValueError, match=rf"nothing was loaded:\s*{said}; param_groups have {words}"):
                manager.restore({was: now})
            assert repr(now.state_dict()) == before
        if is_named:  # whose groups have the same keys
            with pytest.raises(ValueError, match="'Adam' is Adam in the step, and AdamW here: make the same optimizer"):
                manager.restore({"Adam": made(torch.optim.AdamW)})
        same, wrapped = made(torch.optim.AdamW), made(fsdp.ZeroRedundancyOptimizer, optimizer_class=torch.optim.AdamW)
        torch.optim.lr_scheduler.StepLR(same, 1)  # adds initial_lr
        assert manager.restore({"AdamW": same}) == manager.restore({"AdamW": wrapped}) == 0

    def test_part_of_a_step(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(0, {"model": nn.Linear(4, 2).to("xla"), "n": 1})
        state = {"n": 0}
        manager.restore(state)
        assert state == {"n": 1}

    def test_names_of_wrappers(self, tmp_path: Path) -> None:
        layer, wrapper = nn.Linear(4, 2).to("xla"), nn.Module()
        wrapper._orig_mod = layer  # as torch.compile does
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(0, {"model": wrapper})
        other = nn.Linear(4, 2).to("xla")
        manager.restore({"model": other})
        assert torch.equal(other.weight.detach().cpu(), layer.weight.detach().cpu())


class TestSteps:
    """Which steps are saved, which stay, and under which names."""

    def test_interval_and_keep(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(tmp_path, save_interval=5, keep=2)
        assert [step for step in range(16) if manager.save(step, {"n": step})] == [0, 5, 10, 15]
        assert manager.all_steps() == [10, 15] and manager.latest_step() == 15
        assert manager.save(16, {"n": 16}, force=True) and manager.all_steps() == [15, 16]
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "15", "16"]
        state = {"n": 0}
        assert manager.restore(state, 15) == 15 and state["n"] == 15

    def test_saved_again(self, tmp_path: Path) -> None:
        """After a return to an earlier step the later ones are saved again: at no time is one of them not there."""
        manager = spmd.CheckpointManager(tmp_path, keep=3)
        for step in (1, 2, 3):
            manager.save(step, {"n": step})
        for times in (1, 2):
            manager.save(2, {"n": 2 + 10 * times})
            state = {"n": 0}
            manager.restore(state, 2)
            assert state["n"] == 2 + 10 * times and manager.all_steps() == [1, 2, 3]
        manager.save(4, {"n": 4})
        assert manager.all_steps() == [2, 3, 4]  # 1 was saved longest ago

    def test_a_new_run_in_an_old_folder(self, tmp_path: Path) -> None:
        """Steps go by age, and the latest is that with the highest number: for a while one of the old run."""
        manager = spmd.CheckpointManager(tmp_path, keep=2)
        for step in (40, 50):
            manager.save(step, {"n": step})
        manager.save(0, {"n": 0})
        state = {"n": 1}
        assert manager.all_steps() == [0, 50] and manager.latest_step() == manager.restore(state) == state["n"] == 50
        manager.save(10, {"n": 10})
        assert manager.all_steps() == [0, 10] and manager.latest_step() == 10

    def test_none(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(tmp_path / "new")
        assert manager.all_steps() == [] and manager.latest_step() is None
        with pytest.raises(FileNotFoundError, match="no committed step in"):
            manager.restore({"n": 0})
        manager.save(1, {"n": 1})
        with pytest.raises(FileNotFoundError, match=r"no committed step 2 in .*; it has 1"):
            manager.restore({"n": 0}, 2)

    def test_arguments(self, tmp_path: Path) -> None:
        for given in ({"save_interval": 0}, {"keep": 0}, {"device_bytes": -1}, {"keep": 2.0}):
            with pytest.raises(ValueError, match=f"expected {next(iter(given))} to be"):
                spmd.CheckpointManager(tmp_path, **given)
        with pytest.raises(ValueError, match="expected a step of 0 or more, got -1"):
            spmd.CheckpointManager(tmp_path).save(-1, {})


class TestPreemption:
    """SIGTERM is kept for the next step, which is saved once; a second one does what one did before."""

    @pytest.fixture(autouse=True)
    def _handler(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        before = signal.getsignal(signal.SIGTERM)
        self.taken: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: self.taken.append(number))
        monkeypatch.setattr(preemption, "_signal", None)
        yield
        signal.signal(signal.SIGTERM, before)

    def test_saves_once(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(tmp_path, save_interval=100, async_=True)
        assert not manager.save(1, {"n": 1})
        os.kill(os.getpid(), signal.SIGTERM)
        spmd.sync()
        assert manager.should_save(2) and manager.reached_preemption(2)
        assert manager.save(2, {"n": 2}) and manager.all_steps() == [2]
        assert not manager.save(3, {"n": 3}) and not manager.reached_preemption(3)
        assert self.taken == []
        os.kill(os.getpid(), signal.SIGTERM)
        torch.ones(1, device="xla").add_(1)  # handlers run between two ops
        assert self.taken == [signal.SIGTERM]

    def test_not_asked_for(self, tmp_path: Path) -> None:
        spmd.CheckpointManager(tmp_path)
        os.kill(os.getpid(), signal.SIGTERM)
        assert self.taken == [signal.SIGTERM]


class TestPriming:
    """`prime_optimizer`: state to load into, and parameters as they were."""

    @pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor])
    def test_state(self, kind: Any) -> None:
        layer = nn.Linear(4, 2).to("xla")
        before = layer.weight.detach().cpu()
        given = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        optimizer = spmd.checkpoint.prime_optimizer(kind(layer.parameters(), lr=0.1, weight_decay=0.5, **given))
        assert set(optimizer.state) == {layer.weight, layer.bias} and layer.weight.grad is None
        assert torch.equal(layer.weight.detach().cpu(), before)

    def test_gradients(self) -> None:
        layer = nn.Linear(4, 2).to("xla")
        layer.weight.grad = torch.ones_like(layer.weight)
        with pytest.raises(ValueError, match="expected parameters without gradients"):
            spmd.checkpoint.prime_optimizer(torch.optim.AdamW(layer.parameters()))


def _schedules(optimizer: Any) -> dict[str, Any]:
    kinds = torch.optim.lr_scheduler
    linear = kinds.LinearLR(optimizer)
    return {
        "lambda": kinds.LambdaLR(optimizer, lambda epoch: 0.9**epoch), "step": kinds.StepLR(optimizer, 2),
        "multi": kinds.MultiStepLR(optimizer, [1, 1, 4]), "constant": kinds.ConstantLR(optimizer),
        "exponential": kinds.ExponentialLR(optimizer, 0.9), "polynomial": kinds.PolynomialLR(optimizer),
        "cosine": kinds.CosineAnnealingLR(optimizer, 5), "restarts": kinds.CosineAnnealingWarmRestarts(optimizer, 3),
        "cyclic": kinds.CyclicLR(optimizer, 0.01, 0.1), "one": kinds.OneCycleLR(optimizer, 0.1, total_steps=9),
        "plateau": kinds.ReduceLROnPlateau(optimizer), "chained": kinds.ChainedScheduler([linear]),
        "sequential": kinds.SequentialLR(optimizer, [linear, kinds.ConstantLR(optimizer)], [2]),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:Detected call of:UserWarning", "ignore:Seems like:UserWarning")
class TestObjects:
    """Torch's own schedulers, optimizers and scaler, whatever their states are made of."""

    def test_schedulers(self, tmp_path: Path) -> None:
        def made() -> dict[str, Any]:
            optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1, momentum=0.9)
            return _schedules(optimizer)

        first, second = made(), made()
        for name, schedule in first.items():
            schedule.step(1.0) if name == "plateau" else schedule.step()
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(0, first)
        manager.restore(second)
        for name, schedule in first.items():
            assert repr(second[name].state_dict()) == repr(schedule.state_dict()), name

    @pytest.mark.parametrize(
        "name", ["Adadelta", "Adagrad", "Adam", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD", "Muon"]
    )
    def test_optimizers(self, name: str, tmp_path: Path) -> None:
        def made(mesh: str) -> tuple[Any, Any]:
            weight = sharded(torch.arange(32.0).view(8, 4) / 8, mesh, "fsdp", None).requires_grad_()
            return weight, getattr(torch.optim, name)([weight], lr=0.1)

        def stepped(weight: Any, optimizer: Any) -> torch.Tensor:
            weight.grad = (weight.detach() * 0.5).sin()
            optimizer.step()
            return weight.detach().cpu()

        one = made("8")
        stepped(*one)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(0, {"weight": one[0], "optimizer": one[1]})
        expected = stepped(*one)
        for mesh in ("8", "2x4"):
            other = made(mesh)
            manager.restore({"weight": other[0], "optimizer": other[1]})
            torch.testing.assert_close(stepped(*other), expected, rtol=0 if mesh == "8" else 1e-6, atol=0)

    def test_scaler(self, tmp_path: Path) -> None:
        def made() -> Any:
            scaler = torch.amp.GradScaler("xla", init_scale=64.0)
            scaler.scale(torch.ones((), device="xla", requires_grad=True))
            return scaler

        first, second = made(), made()
        first.update(128.0)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(0, {"scaler": first})
        manager.restore({"scaler": second})
        assert second.get_scale() == 128.0

    def test_inside_a_compiled_step(self, tmp_path: Path) -> None:
        """A call of the manager is made each time."""
        x = torch.ones(4, device="xla")
        manager = spmd.CheckpointManager(tmp_path)
        found = {"x": torch.zeros(4)}

        @spmd.compile
        def step() -> None:
            x.add_(1)
            manager.save(0, {"x": x})

        for number in range(4):
            step()
            manager.restore(found)
            assert found["x"].tolist() == [number + 2] * 4


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
            (tmp_path / str(process) / "shards-0.bin").rename(tmp_path / "both" / f"of-{process}.bin")
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
