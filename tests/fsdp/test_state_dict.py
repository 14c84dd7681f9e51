"""State dicts of model and optimizer: full, sharded, of the first process; over meshes, into plain
torch, resumed."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from support import run_script
from torch import nn
from torch.distributed.checkpoint import state_dict as torchs

import fsdp
import spmd
from fsdp import state_dict as ours
from fsdp.state_dict import StateDictOptions

# torch warns in a single process
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

FULL = StateDictOptions(full_state_dict=True)
MESHES = {
    "8": ((8,), ("fsdp",)),
    "2x4": ((2, 4), ("data", "fsdp")),
    "4": ((4,), ("fsdp",)),
    "1": ((1,), ("fsdp",)),
}
functions = pytest.mark.parametrize("functions", [torchs, ours], ids=["torch", "fsdp"])
mesh_names = pytest.mark.parametrize("name", MESHES)


class Net(nn.Module):
    """Tied weights, buffers, uneven dims, random numbers, and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 24)
        self.norm = nn.BatchNorm1d(24)
        self.inner = nn.Linear(24, 24)
        self.inner.bias.requires_grad_(False)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(24, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.inner(self.norm(self.embed(x)))))


class Run:
    """A model, its optimizer with two groups, its schedule."""

    def __init__(self, name: str | None, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model: Any = Net()
        self.device = "cpu" if name is None else "xla"
        if name is not None:
            shape, axes = MESHES[name]
            mesh = spmd.Mesh(range(torch.Size(shape).numel()), shape, axes)
            self.model = fsdp.FullyShardedDataParallel(
                self.model, mesh, auto_wrap_policy=fsdp.always_wrap_policy
            )
        plain = [
            value for value in self.model.parameters() if value.dim() < 2 and value.requires_grad
        ]
        groups = [
            {"params": [value for value in self.model.parameters() if value.dim() == 2]},
            {"params": plain, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=0.02, weight_decay=0.1)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 8)

    def train(self, steps: int = 3) -> list[float]:
        tokens = torch.arange(16).to(self.device)
        losses = []
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(tokens), tokens.flip(0))
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            losses.append(loss.item())
        return losses

    def rest(self) -> dict[str, Any]:
        return {"schedule": self.schedule.state_dict(), "random": torch.xla.get_rng_state()}

    def take_rest(self, rest: dict[str, Any]) -> None:
        self.schedule.load_state_dict(rest["schedule"])
        torch.xla.set_rng_state(rest["random"])

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().cpu() for name, value in self.model.state_dict().items()}


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def names_of(state: dict[str, Any]) -> list[str]:
    return [name for group in state["param_groups"] for name in group["params"]]


@functions
@mesh_names
class TestForms:
    """Names are the bare model's; a full one has plain CPU tensors with the values of the
    shards."""

    def test_sharded(self, functions: Any, name: str) -> None:
        run = Run(name)
        run.train(1)
        model, optimizer = functions.get_state_dict(run.model, run.optimizer)
        assert list(model) == list(Net().state_dict())
        assert all(value.device.type == "xla" for value in model.values())
        assert spmd.get_sharding(model["inner.weight"]) == spmd.get_sharding(run.model.inner.weight)
        moment = optimizer["state"]["inner.weight"]["exp_avg"]
        assert spmd.get_sharding(moment).shard_shape((24, 24)) == spmd.get_sharding(
            model["inner.weight"]
        ).shard_shape((24, 24))
        assert sorted(names_of(optimizer)) == [
            "embed.weight",
            "inner.weight",
            "norm.bias",
            "norm.weight",
        ]

    def test_full(self, functions: Any, name: str) -> None:
        run = Run(name)
        run.train(1)
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model, optimizer = functions.get_state_dict(run.model, run.optimizer, options=options)
        tensors = [
            *model.values(),
            *(value for state in optimizer["state"].values() for value in state.values()),
        ]
        assert all(type(value) is torch.Tensor and value.device.type == "cpu" for value in tensors)
        assert equal(model, run.weights())
        moment = run.optimizer.state[run.model.inner.weight]["exp_avg"]
        assert torch.equal(optimizer["state"]["inner.weight"]["exp_avg"], moment.cpu())
        assert optimizer["param_groups"][0]["lr"] == run.optimizer.param_groups[0]["lr"]


class TestOptions:
    """Each option has its meaning in torch."""

    def test_a_full_state_is_of_now(self) -> None:
        run = Run("8")
        run.train(1)
        before = ours.get_state_dict(run.model, run.optimizer, options=FULL)
        kept = run.weights()
        run.train(1)
        assert equal(before[0], kept) and before[1]["state"]["inner.weight"]["step"].item() == 1

    @functions
    def test_ignore_frozen_params(self, functions: Any) -> None:
        found = functions.get_model_state_dict(
            Run("8").model, options=StateDictOptions(ignore_frozen_params=True)
        )
        assert {*Net().state_dict()} - {*found} == {"inner.bias"}

    @functions
    def test_strict(self, functions: Any) -> None:
        run = Run("8")
        state = functions.get_model_state_dict(
            run.model, options=StateDictOptions(full_state_dict=True)
        )
        state["inner.weight"] = torch.full((24, 24), 2.0)
        del state["norm.weight"]
        with pytest.raises(RuntimeError, match="Missing key"):
            functions.set_model_state_dict(run.model, dict(state), options=StateDictOptions())
        left = functions.set_model_state_dict(
            run.model, dict(state), options=StateDictOptions(strict=False)
        )
        assert left.missing_keys == ["norm.weight"]
        assert run.model.inner.weight.mean().item() == 2

    @functions
    def test_flatten_optimizer_state_dict(self, functions: Any) -> None:
        first, second = Run("8"), Run("2x4", seed=1)
        first.train(1)
        options = StateDictOptions(full_state_dict=True, flatten_optimizer_state_dict=True)
        flat = functions.get_optimizer_state_dict(first.model, first.optimizer, options=options)
        assert "state.inner.weight.exp_avg" in flat
        if (
            functions is torchs
        ):  # torch cannot load a flattened state with full_state_dict=True, of a plain model either
            options = StateDictOptions(flatten_optimizer_state_dict=True)
        functions.set_optimizer_state_dict(
            second.model, second.optimizer, dict(flat), options=options
        )
        moment = second.optimizer.state[second.model.inner.weight]["exp_avg"]
        assert torch.equal(moment.cpu(), flat["state.inner.weight.exp_avg"].cpu())

    def test_broadcast_from_rank0(self) -> None:
        run = Run("8")
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        with pytest.raises(NotImplementedError, match=r"the file to spmd.load_checkpoint"):
            ours.set_model_state_dict(run.model, {}, options=options)

    def test_groups_that_differ(self) -> None:
        run = Run("8")
        state = ours.get_optimizer_state_dict(run.model, run.optimizer)
        other = torch.optim.AdamW(run.model.parameters())
        with pytest.raises(ValueError, match="expected a group with the parameters"):
            ours.set_optimizer_state_dict(run.model, other, state)


@pytest.mark.parametrize("name", ["8", "2x4", "1"])
class TestResume:
    """A saved run continues bit for bit: losses, weights, moments, schedule, random numbers."""

    @functions
    def test_sharded(self, functions: Any, name: str, tmp_path: Path) -> None:
        """Through the shards in files; the second run compiles nothing."""
        first = Run(name)
        first.train()
        model, optimizer = functions.get_state_dict(first.model, first.optimizer)
        saved = {"model": model, "optimizer": optimizer, "rest": first.rest()}
        dcp.save(saved, checkpoint_id=tmp_path, no_dist=True)
        second = Run(name, seed=1)
        model, optimizer = functions.get_state_dict(second.model, second.optimizer)
        state = {"model": model, "optimizer": optimizer, "rest": second.rest()}
        before = spmd.metrics.num_compiles()
        dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
        functions.set_state_dict(
            second.model,
            second.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        second.take_rest(state["rest"])
        spmd.sync()
        assert spmd.metrics.num_compiles() == before
        random = torch.xla.get_rng_state()
        expected = first.train(1)
        torch.xla.set_rng_state(random)
        assert second.train(1) == expected and spmd.metrics.num_compiles() == before
        assert equal(second.weights(), first.weights())

    @functions
    def test_full(self, functions: Any, name: str, tmp_path: Path) -> None:
        first = Run(name)
        first.train()
        model, optimizer = functions.get_state_dict(first.model, first.optimizer, options=FULL)
        torch.save(
            {"model": model, "optimizer": optimizer, "rest": first.rest()}, tmp_path / "full.pt"
        )
        expected, weights = first.train(), first.weights()
        second, state = Run(name, seed=1), torch.load(tmp_path / "full.pt", map_location="cpu")
        functions.set_state_dict(
            second.model,
            second.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=FULL,
        )
        second.take_rest(state["rest"])
        if functions is torchs:
            # torch made the optimizer take an empty step, else in one program with the next
            spmd.sync()
        assert second.train() == expected and equal(second.weights(), weights)


@mesh_names
class TestOtherMeshes:
    """Saved on eight devices, loaded on any mesh: the same values bit for bit, and training that
    continues equally."""

    def test_sharded(self, name: str, tmp_path: Path) -> None:
        first = Run("8")
        first.train()
        model, optimizer = ours.get_state_dict(first.model, first.optimizer)
        dcp.save(
            {"model": model, "optimizer": optimizer, **first.rest()},
            checkpoint_id=tmp_path,
            no_dist=True,
        )
        full = ours.get_state_dict(first.model, first.optimizer, options=FULL)
        second = Run(name, seed=1)
        model, optimizer = ours.get_state_dict(second.model, second.optimizer)
        state = {"model": model, "optimizer": optimizer, **second.rest()}
        dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
        ours.set_state_dict(
            second.model, second.optimizer, model_state_dict=model, optim_state_dict=optimizer
        )
        second.take_rest(state)
        assert equal(ours.get_state_dict(second.model, second.optimizer, options=FULL), full)
        random = torch.xla.get_rng_state()
        expected = first.train()
        torch.xla.set_rng_state(random)
        assert second.train() == pytest.approx(expected, rel=1e-5)


class TestPlainTorch:
    """A full state goes into plain torch, by torch's own functions and in a process without this
    library; and back."""

    def test_there_and_back(self) -> None:
        first, plain, back = Run("8"), Run(None, seed=1), Run("2x4", seed=2)
        for run in (first, plain, back):
            run.model.drop.p = 0.0
        first.train()
        model, optimizer = ours.get_state_dict(first.model, first.optimizer, options=FULL)
        torchs.set_state_dict(
            plain.model, plain.optimizer, model_state_dict=model, optim_state_dict=optimizer
        )
        plain.schedule.load_state_dict(first.schedule.state_dict())
        assert equal(plain.weights(), first.weights())
        assert plain.train() == pytest.approx(first.train(), rel=1e-4)
        # it continues training
        model, optimizer = copy.deepcopy(torchs.get_state_dict(plain.model, plain.optimizer))
        ours.set_state_dict(
            back.model, back.optimizer, model_state_dict=model, optim_state_dict=optimizer
        )
        back.schedule.load_state_dict(plain.schedule.state_dict())
        assert equal(back.weights(), plain.weights())
        assert back.train() == pytest.approx(plain.train(), rel=1e-4)

    def test_without_this_library(self, tmp_path: Path) -> None:
        run = Run("8")
        run.train(1)
        model, optimizer = ours.get_state_dict(run.model, run.optimizer, options=FULL)
        torch.save({"model": model, "optimizer": optimizer}, tmp_path / "full.pt")
        torch.save(run.model.state_dict(), tmp_path / "sharded.pt")
        dcp.save(run.model.state_dict(), checkpoint_id=tmp_path / "dcp", no_dist=True)
        run_script(f"""
            import sys, torch, warnings
            import torch.distributed.checkpoint as dcp
            state = torch.load({str(tmp_path / "full.pt")!r}, weights_only=True)
            other = torch.load({str(tmp_path / "sharded.pt")!r}, weights_only=True)
            third = {{name: torch.zeros_like(value) for name, value in other.items()}}
            warnings.simplefilter("ignore")
            dcp.load(third, checkpoint_id={str(tmp_path / "dcp")!r}, no_dist=True)
            for name, value in state["model"].items():
                assert type(value) is torch.Tensor and value.device.type == "cpu"
                assert torch.equal(value, other[name]) and torch.equal(value, third[name]), name
            assert state["optimizer"]["state"]["inner.weight"]["exp_avg"].shape == (24, 24)
            assert "spmd" not in sys.modules and "jax" not in sys.modules
        """)
