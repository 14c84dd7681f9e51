"""Unmodified scripts of accelerate and transformers use all devices: the batch is sharded, or the
model by a plugin."""

import copy
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, utils
from accelerate.state import AcceleratorState
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from transformers import BatchEncoding, Trainer, TrainingArguments

import fsdp
import spmd
from spmd import P

pytestmark = [
    pytest.mark.usefixtures("use", "plain_environment"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]


@pytest.fixture
def plain_environment() -> Iterator[None]:
    """No model or line of another test, and no variable that accelerate sets for a plugin."""
    gc.collect()
    for note in (spmd.mesh.notes.say_once, spmd.mesh.notes.note_whole):
        note.cache_clear()
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


class Net(nn.Module):
    """A model as Trainer takes it, of two layers."""

    _no_split_modules = ("Linear",)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.down(self.up(x).relu())
        return (
            logits
            if labels is None
            else {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
        )


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(44, 16, generator=generator), torch.randint(0, 4, (44,), generator=generator)
    )


def train(**how: Any) -> tuple[list[float], list[Any], nn.Module]:
    """Two epochs of a script; returns losses, the shardings of batches, and the model."""
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(**how)
    model: Any = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(data(), batch_size=8)
    )
    losses, shardings = [], []
    for _ in range(2):
        for x, y in loader:
            shardings.append(None if accelerator.device.type == "cpu" else spmd.get_sharding(x))
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return [loss.item() for loss in losses], shardings, model


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(32.0).split(1))


class TestBatches:
    """A prepared loader's batches are sharded over all devices, weights are replicated there."""

    def test_losses_and_shardings(self, capsys: pytest.CaptureFixture[str]) -> None:
        losses, shardings, model = train()
        torch.testing.assert_close(losses, train(cpu=True)[0], rtol=2e-5, atol=2e-5)
        assert [sharding.partition_spec(2) for sharding in shardings[:5]] == [P("fsdp", None)] * 5
        assert len(shardings[0].devices) == 8
        weight = spmd.get_sharding(model.up.weight)
        assert weight is not None and weight.is_replicated() and len(weight.devices) == 8
        # The last batch of an epoch has 4 rows.
        assert (
            shardings[5].is_replicated()
            and "each device computes all of its 4 rows" in capsys.readouterr().err
        )

    def test_other_containers(self) -> None:
        def collate(rows: Any) -> BatchEncoding:
            return BatchEncoding(
                {"x": torch.stack([x for x, _ in rows]), "table": torch.zeros(3, 2), "n": len(rows)}
            )

        AcceleratorState._reset_state(reset_partial_state=True)
        loader = Accelerator().prepare(DataLoader(data(), batch_size=8, collate_fn=collate))
        batch = next(iter(loader))
        specs = [spmd.get_sharding(batch[name]).partition_spec(2) for name in ("x", "table")]
        assert specs == [P("fsdp", None), P(None, None)] and batch["n"] == 8

    def test_a_stream(self) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        loader = Accelerator().prepare(DataLoader(Stream(), batch_size=8))
        assert [spmd.get_sharding(batch).partition_spec(2) for batch in loader] == [
            P("fsdp", None)
        ] * 4

    def test_a_sharded_model_shards_its_batches(self) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        mesh = spmd.Mesh(range(8), (2, 4), ("data", "model"))
        model = Net().to("xla")
        spmd.mark_sharding(model.up.weight, mesh, P("model", None))
        model, loader = Accelerator().prepare(model, DataLoader(data(), batch_size=8))
        assert spmd.get_sharding(next(iter(loader))[0]) is None

    def test_a_second_use_changes_nothing(self) -> None:
        prepare = Accelerator.prepare_model
        spmd.use()
        assert Accelerator.prepare_model is prepare


PLUGINS: dict[str, dict[str, Any]] = {
    "1": {"auto_wrap_policy": "size_based_wrap", "min_num_params": 100},
    "1, more": {
        "sharding_strategy": "SHARD_GRAD_OP",
        "ignored_modules": "up",
        "activation_checkpointing": True,
    },
    "2": {"fsdp_version": 2, "auto_wrap_policy": "transformer_based_wrap"},
    "2, more": {
        "fsdp_version": 2,
        "reshard_after_forward": False,
        "cpu_offload": True,
        "ignored_modules": "up",
    },
}


class TestPlugin:
    """`FullyShardedDataParallelPlugin` shards the model by `fsdp`, with the CPU's losses."""

    @pytest.mark.parametrize("options", PLUGINS.values(), ids=PLUGINS)
    def test_losses(self, options: dict[str, Any]) -> None:
        losses, _, model = train(fsdp_plugin=FullyShardedDataParallelPlugin(**options))
        expected = train(cpu=True)[0]
        torch.testing.assert_close(losses, expected, rtol=2e-5, atol=2e-5)
        units = [unit.name for unit in fsdp.show(model).units]
        assert len(units) == (1 if "ignored_modules" in options else 3)
        assert spmd.get_sharding(model.down.weight).partition_spec(2) == P(None, "fsdp")
        is_ignored = spmd.get_sharding(model.up.weight).is_replicated()
        assert is_ignored == ("ignored_modules" in options)
        assert spmd.get_sharding(model.down.weight).memory == (
            "pinned_host" if "cpu_offload" in options else "device"
        )

    def test_mixed_precision(self) -> None:
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, mixed_precision_policy="bf16")
        losses, _, model = train(fsdp_plugin=plugin)
        torch.testing.assert_close(losses, train(cpu=True)[0], rtol=2e-2, atol=2e-2)
        assert model(torch.ones(8, 16, device="xla")).dtype == torch.bfloat16

    def test_what_is_not_done_raises(self) -> None:
        how = {
            "fsdp_version": 2,
            "activation_checkpointing": True,
            "activation_checkpointing_offload": True,
        }
        with pytest.raises(NotImplementedError, match=r"fsdp\.checkpoint_module\(layer, policy="):
            train(fsdp_plugin=FullyShardedDataParallelPlugin(**how))

    @pytest.mark.skipif(not hasattr(utils, "ParallelismConfig"), reason="accelerate before 1.10")
    def test_sizes_of_processes_raise(self) -> None:
        with pytest.raises(NotImplementedError, match=r"one process has all\. For dp_shard_size"):
            train(parallelism_config=utils.ParallelismConfig(dp_shard_size=8))


def trainer(folder: Path, **given: Any) -> Trainer:
    AcceleratorState._reset_state(reset_partial_state=True)
    usual = {"max_steps": 6, "logging_steps": 1, "learning_rate": 1e-2, "save_steps": 3}
    arguments = TrainingArguments(
        str(folder), report_to=[], disable_tqdm=True, **{**usual, **copy.deepcopy(given)}
    )
    rows = [{"x": x, "labels": y} for x, y in data()]
    return Trainer(Net(), arguments, train_dataset=rows)


def losses_of(trained: Trainer) -> list[float]:
    return [log["loss"] for log in trained.state.log_history if "loss" in log]


class TestTrainer:
    """Default arguments shard the batch; `fsdp=True` shards the model, too."""

    @pytest.mark.parametrize(
        "given", [{}, {"fsdp": True}, {"fsdp": "full_shard"}], ids=["default", "True", "string"]
    )
    def test_losses(self, given: dict[str, Any], tmp_path: Path) -> None:
        trained = trainer(tmp_path / "xla", **given)
        trained.train()
        expected = trainer(tmp_path / "cpu", use_cpu=True)
        expected.train()
        assert len(losses_of(trained)) == 6
        torch.testing.assert_close(losses_of(trained), losses_of(expected), rtol=2e-5, atol=2e-5)
        sharding = spmd.get_sharding(trained.model.up.weight)
        assert len(sharding.devices) == 8 and sharding.is_replicated() == (not given)
        if given:
            assert [
                unit.name for unit in fsdp.show(trained.model).units if unit.name in ("up", "down")
            ]
            resumed = trainer(tmp_path / "xla", **given)
            resumed.train(resume_from_checkpoint=str(tmp_path / "xla" / "checkpoint-3"))
            torch.testing.assert_close(
                losses_of(resumed)[3:], losses_of(expected)[3:], rtol=2e-5, atol=2e-5
            )

    def test_options_of_its_config(self, tmp_path: Path) -> None:
        config = {
            "auto_wrap_policy": "SIZE_BASED_WRAP",
            "min_num_params": 100,
            "activation_checkpointing": True,
        }
        trained = trainer(tmp_path / "xla", fsdp=True, fsdp_config=config)
        trained.train()
        expected = trainer(tmp_path / "cpu", use_cpu=True)
        expected.train()
        torch.testing.assert_close(losses_of(trained), losses_of(expected), rtol=2e-5, atol=2e-5)
        assert len(fsdp.show(trained.model).units) == 3
