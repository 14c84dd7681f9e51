"""Lightning's Trainer on the device: the CPU's metrics, its checkpoints, loggers and progress bar,
sharded too."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from lightning.pytorch.callbacks import DeviceStatsMonitor, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spmd

pytestmark = [
    pytest.mark.usefixtures("use"),
    pytest.mark.filterwarnings("ignore:The '\\w+' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists"),
]
Outcome = tuple[pl.Trainer, "Classifier", dict[str, float]]


class Classifier(pl.LightningModule):
    """Two layers; loss and accuracy are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8), nn.Linear(8, 2))
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        logits = self(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(logits, batch[1]))
        self.accuracy(logits, batch[1])
        self.log("accuracy", self.accuracy)

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def loader() -> DataLoader:
    draws = torch.Generator().manual_seed(0)
    return DataLoader(
        TensorDataset(
            torch.randn(40, 8, generator=draws), torch.randint(2, (40,), generator=draws)
        ),
        batch_size=16,
    )


def fit(
    folder: Path,
    accelerator: str = "xla",
    *,
    resume: Path | None = None,
    epochs: int = 2,
    **how: Any,
) -> Outcome:
    torch.manual_seed(0)
    model = Classifier()
    how = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False} | how
    trainer = pl.Trainer(
        accelerator=accelerator,
        max_epochs=epochs,
        default_root_dir=folder,
        enable_model_summary=False,
        **how,
    )
    trainer.fit(model, loader(), loader(), ckpt_path=resume)
    return trainer, model, {name: value.item() for name, value in trainer.callback_metrics.items()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    return fit(tmp_path_factory.mktemp("cpu"), "cpu")[2]


class TestFit:
    """Two epochs give the CPU's metrics, on the device and on the mesh that was asked for."""

    @pytest.mark.parametrize("accelerator", ["auto", "tpu"])
    def test_over_all_devices(
        self, tmp_path: Path, accelerator: str, expected: dict[str, float]
    ) -> None:
        trainer, _, found = fit(tmp_path, accelerator)
        assert trainer.strategy.root_device.type == "xla" and trainer.strategy.mesh.size() == 8
        assert found == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize("accelerator", ["gpu", "cuda"])
    def test_a_script_of_one_gpu(
        self, tmp_path: Path, accelerator: str, expected: dict[str, float]
    ) -> None:
        trainer, _, found = fit(tmp_path, accelerator, devices=1)
        assert trainer.strategy.mesh.size() == 8 and trainer.accelerator.name() == "xla"
        assert found == pytest.approx(expected, rel=1e-5)

    def test_on_one_device(self, tmp_path: Path, expected: dict[str, float]) -> None:
        trainer, _, found = fit(tmp_path, devices=1)
        assert trainer.strategy.mesh.size() == 1
        assert found == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize("strategy", ["xla_fsdp", "fsdp"])
    def test_sharded_by_name(
        self, strategy: str, tmp_path: Path, expected: dict[str, float]
    ) -> None:
        trainer, model, found = fit(tmp_path, strategy=strategy)
        assert found == pytest.approx(expected, rel=1e-5)
        assert model.net[0].weight.local_shards[0].data.shape == (4, 8)
        assert {
            len(state["exp_avg"].local_shards) for state in trainer.optimizers[0].state.values()
        } == {8}

    def test_a_strategy_of_several_processes(self, tmp_path: Path) -> None:
        with pytest.raises(NotImplementedError, match=r"write strategy='fsdp', or XLAFSDPStrategy"):
            fit(tmp_path, strategy=sys.modules["lightning.pytorch.strategies"].FSDPStrategy())

    def test_sharded_with_a_policy(self, tmp_path: Path, expected: dict[str, float]) -> None:
        strategies = sys.modules["lightning.pytorch.strategies"]
        mesh = spmd.Mesh(range(8), (2, 4), ("data", "fsdp"))
        strategy = strategies.XLAFSDPStrategy({nn.Linear}, mesh, activation_checkpointing=True)
        _, model, found = fit(tmp_path, strategy=strategy)
        assert found == pytest.approx(expected, rel=1e-5)
        assert model.net[0].weight.local_shards[0].data.shape == (8, 8)

    def test_clips_and_accumulates(self, tmp_path: Path) -> None:
        how = {"gradient_clip_val": 0.1, "accumulate_grad_batches": 2, "strategy": "auto"}
        expected = fit(tmp_path, "cpu", **how)[2]
        assert fit(tmp_path, **how)[2] == pytest.approx(expected, rel=1e-5)
        assert fit(tmp_path, **how | {"strategy": "xla_fsdp"})[2] == pytest.approx(
            expected, rel=1e-5
        )

    @pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
    def test_precision(self, tmp_path: Path, precision: str) -> None:
        expected = fit(tmp_path, "cpu", precision=precision)[2]
        _, _, found = fit(tmp_path, precision=precision)
        assert found == pytest.approx(expected, rel=1e-6 if precision == "64-true" else 2e-2)


class TestAround:
    """Checkpoints, loggers, the progress bar, tests and predictions."""

    @pytest.mark.parametrize("strategy", ["xla", "xla_fsdp"])
    def test_resumes_as_if_it_had_gone_on(self, tmp_path: Path, strategy: str) -> None:
        _, model, _ = fit(tmp_path / "whole", strategy=strategy)
        expected = {name: value.cpu() for name, value in model.state_dict().items()}
        saved = ModelCheckpoint(tmp_path / "files", filename="{epoch}", save_top_k=-1)
        fit(
            tmp_path / "first",
            strategy=strategy,
            epochs=1,
            enable_checkpointing=True,
            callbacks=[saved],
        )
        _, model, _ = fit(
            tmp_path / "second", strategy=strategy, resume=tmp_path / "files" / "epoch=0.ckpt"
        )
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value.cpu(), expected[name], rtol=0, atol=0)

    def test_a_checkpoint_loads_without_the_library(self, tmp_path: Path) -> None:
        trainer, model, _ = fit(tmp_path, strategy="xla_fsdp", epochs=1)
        trainer.save_checkpoint(tmp_path / "model.ckpt")
        script = (
            "import sys, torch; loaded = torch.load(sys.argv[1], weights_only=True); assert "
            "'spmd' not in sys.modules;print(loaded['state_dict']['net.0.weight'].device, "
            "loaded['state_dict']['net.0.weight'].sum().item())"
        )
        run = [sys.executable, "-c", script, str(tmp_path / "model.ckpt")]
        device, total = subprocess.run(
            run, capture_output=True, text=True, check=True
        ).stdout.split()
        assert device == "cpu" and float(total) == pytest.approx(
            model.net[0].weight.sum().item(), rel=1e-5
        )

    def test_logs_and_shows_its_progress(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
        callbacks = [TQDMProgressBar(), DeviceStatsMonitor()]
        fit(
            tmp_path,
            logger=logger,
            callbacks=callbacks,
            enable_progress_bar=True,
            log_every_n_steps=1,
        )
        rows = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
        assert "loss" in rows[0] and "programs_compiled" in rows[0] and len(rows) > 4
        assert "Epoch 1: 100%" in capsys.readouterr().out

    def test_tests_and_predicts(self, tmp_path: Path) -> None:
        on_cpu, cpu_model, _ = fit(tmp_path, "cpu")
        trainer, model, _ = fit(tmp_path, strategy="xla_fsdp")
        expected, found = (
            on_cpu.test(cpu_model, loader(), verbose=False),
            trainer.test(model, loader(), verbose=False),
        )
        assert found[0] == pytest.approx(expected[0], rel=1e-5)
        predicted = torch.cat(trainer.predict(model, loader()))
        torch.testing.assert_close(
            predicted.cpu(), torch.cat(on_cpu.predict(cpu_model, loader())), rtol=1e-5, atol=1e-5
        )

    def test_a_step_is_one_program(self, tmp_path: Path) -> None:
        fit(tmp_path, epochs=1)
        with spmd.no_recompile():
            fit(tmp_path, epochs=2)


class TestStepMeter:
    """`spmd.profiler.lightning_callback` measures a Trainer's loop."""

    def test_callback(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        meter = spmd.profiler.StepMeter(items_per_step=32, unit="rows")
        saving = ModelCheckpoint(tmp_path, every_n_train_steps=1)
        callbacks = [spmd.profiler.lightning_callback(meter), saving]
        trainer, *_ = fit(tmp_path, epochs=1, callbacks=callbacks, enable_checkpointing=True)
        assert meter.num_steps == trainer.global_step > 1
        assert {"data", "checkpoint", "evaluation", "compile", "step"} <= set(meter.seconds)
        assert f"{meter.num_steps:,} steps" in capsys.readouterr().out


class TestRefused:
    """Training elsewhere, or on fewer devices than requested, is an error that says what to
    pass."""

    def test_a_number_of_devices(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="expected devices='auto', 1 or 8, got 3"):
            fit(tmp_path, devices=3)

    def test_a_strategy_of_the_cpu(self, tmp_path: Path) -> None:
        with pytest.raises(
            ValueError, match=r"can only be used with a .*, found SingleDeviceStrategy"
        ):
            fit(tmp_path, strategy=SingleDeviceStrategy("cpu"))
