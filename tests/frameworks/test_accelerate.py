"""An accelerate script on the device: the CPU's losses, its checkpoints, sharded models as they
were sharded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fsdp
import spmd

pytestmark = pytest.mark.usefixtures("use")


def train(
    folder: Path, shard: Any = None, **how: Any
) -> tuple[list[float], list[float], nn.Module]:
    """Two epochs, the second once more from a saved state; returns all losses, the correct answers,
    the model."""
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(gradient_accumulation_steps=2, **how)
    set_seed(0)
    data = TensorDataset(torch.randn(44, 16), torch.randint(0, 4, (44,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    if shard is not None:
        model = shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses: list[float] = []

    def epoch() -> None:
        of_epoch = []
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            of_epoch.append(loss.detach())
        # Read here, so that an epoch is a program: in one program of two XLA may round the second
        # in another order.
        losses.extend(loss.item() for loss in of_epoch)

    epoch()
    accelerator.save_state(str(folder))
    epoch()
    accelerator.load_state(str(folder))
    epoch()
    correct = []
    with torch.no_grad():
        for x, y in loader:  # the last batch has 4 rows
            guess, answer = accelerator.gather_for_metrics((model(x).argmax(-1), y))
            correct.append((guess == answer).float().sum().item())
    accelerator.save_model(model, str(folder / "model"))
    return losses, correct, accelerator.unwrap_model(model)


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], list[float], nn.Module]:
    return train(tmp_path_factory.mktemp("cpu"), cpu=True)


class TestScript:
    """prepare, accumulate, backward, clip_grad_norm_, save_state, load_state,
    gather_for_metrics."""

    def test_agrees(self, tmp_path: Path, on_cpu: Any) -> None:
        before = spmd.metrics.num_compiles()
        losses, correct, model = train(tmp_path)
        assert spmd.metrics.num_compiles() - before <= 6
        torch.testing.assert_close(losses, on_cpu[0], rtol=2e-5, atol=2e-5)
        assert losses[6:12] == losses[12:] and correct == on_cpu[1]
        assert {parameter.device.type for parameter in model.parameters()} == {"xla"}

    @pytest.mark.parametrize("wrap", [fsdp.fully_shard, fsdp.FullyShardedDataParallel])
    def test_a_sharded_model_stays_sharded(
        self, wrap: Any, tmp_path: Path, on_cpu: Any, mesh8: spmd.Mesh
    ) -> None:
        before = spmd.metrics.num_compiles()
        losses, correct, model = train(tmp_path, lambda model: wrap(model, mesh=mesh8))
        assert spmd.metrics.num_compiles() - before <= 6
        torch.testing.assert_close(losses, on_cpu[0], rtol=2e-5, atol=2e-5)
        assert losses[6:12] == losses[12:] and correct == on_cpu[1]
        assert spmd.get_sharding(model[0].weight).partition_spec(2) == spmd.P("fsdp", None)
        saved = torch.load(tmp_path / "optimizer.bin", weights_only=True)
        assert saved["state"][0]["exp_avg"].shape == (32, 16)

    @pytest.mark.long
    def test_bfloat16(self, tmp_path: Path) -> None:
        losses, _, _ = train(tmp_path, mixed_precision="bf16")
        expected, _, _ = train(tmp_path, mixed_precision="bf16", cpu=True)
        torch.testing.assert_close(losses, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
class TestManagedLoader:
    """A prepared loader in a state of `spmd.CheckpointManager`: the rest of an epoch is the same
    after a resume."""

    @pytest.mark.parametrize("epoch", [0, 1])
    def test_amid_an_epoch(self, epoch: int, tmp_path: Path) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        how = DataLoaderConfiguration(
            use_stateful_dataloader=True, use_seedable_sampler=True, data_seed=5
        )
        accelerator = Accelerator(dataloader_config=how)

        def made() -> Any:
            return accelerator.prepare(
                DataLoader(TensorDataset(torch.arange(44.0)), batch_size=4, shuffle=True)
            )

        def values(batches: Any) -> list[list[float]]:
            return [batch.tolist() for (batch,) in batches]

        loader, manager = made(), spmd.CheckpointManager(tmp_path)
        before = [values(loader) for _ in range(epoch)]
        batches = iter(loader)
        first = values(next(batches) for _ in range(3))
        manager.save(3, {"loader": loader, "progress": {"epoch": epoch}})
        rest = values(batches)
        assert (
            sorted(x for batch in first + rest for x in batch) == [*range(44)]
            and (first + rest) not in before
        )

        other: dict[str, Any] = {"loader": made(), "progress": {"epoch": 0}}
        manager.restore(other)
        other["loader"].set_epoch(other["progress"]["epoch"])
        assert values(other["loader"]) == rest
        assert len(values(other["loader"])) == 11


class Gated(nn.Module):
    """A layer of which a half gates the other."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 128), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, gate = self.up(self.norm(x)).chunk(2, dim=-1)
        return x + self.down(hidden * nn.functional.gelu(gate))


def test_a_loss_that_is_read_before_its_backward() -> None:
    """Replayed parts are a fourth graph at the read, and none that keeps changing."""
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator, before = Accelerator(), spmd.metrics.counter("changing_graphs")
    model: nn.Module = nn.Sequential(*[Gated() for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = DataLoader(TensorDataset(torch.randn(8 * 12, 16)), batch_size=8)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for (x,) in data:
        loss = (model(x) - 1).square().mean()
        accelerator.gather(loss.repeat(8)).mean().item()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert spmd.metrics.counter("changing_graphs") == before
