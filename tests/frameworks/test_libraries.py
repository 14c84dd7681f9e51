"""Libraries around a loop of one's own: metrics, data sets and weight files with tensors of the
device."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.regression import MeanSquaredError, PearsonCorrCoef

import spmd


class TestTorchmetrics:
    """Metrics of tensors on the device are those on the CPU, over several batches, the last one
    smaller."""

    def test_agree(self, mesh8: spmd.Mesh) -> None:
        def metrics() -> MetricCollection:
            return MetricCollection(
                {
                    "accuracy": MulticlassAccuracy(4),
                    "f1": MulticlassF1Score(4),
                    "roc": MulticlassAUROC(4, thresholds=8),
                    "confusion": MulticlassConfusionMatrix(4),
                }
            )

        ours, theirs = metrics().to("xla"), metrics()
        for rows in (16, 16, 8):
            scores, answers = torch.randn(rows, 4).softmax(-1), torch.randint(0, 4, (rows,))
            ours.update(
                spmd.mark_sharding(scores.to("xla"), mesh8, ("fsdp", None)), answers.to("xla")
            )
            theirs.update(scores, answers)
        found, expected = ours.compute(), theirs.compute()
        assert {value.device.type for value in found.values()} == {"xla"}
        torch.testing.assert_close({name: value.cpu() for name, value in found.items()}, expected)

    @pytest.mark.long
    def test_of_values(self) -> None:
        for made in (MeanMetric, MeanSquaredError, PearsonCorrCoef):
            ours, theirs = made().to("xla"), made()
            for _ in range(2):
                given = [torch.randn(8) for _ in range(1 if made is MeanMetric else 2)]
                ours.update(*(value.to("xla") for value in given))
                theirs.update(*given)
            torch.testing.assert_close(ours.compute().cpu(), theirs.compute())


class TestDatasets:
    """`Dataset.with_format("torch")` through a loader into a step, and straight onto the device."""

    def losses(self, device: str) -> list[float]:
        torch.manual_seed(0)
        numbers = torch.randn(24, 8)
        data = Dataset.from_dict({"x": numbers.tolist(), "y": (numbers.sum(1) > 0).long().tolist()})
        loader = torch.utils.data.DataLoader(data.with_format("torch"), batch_size=8)
        model = nn.Linear(8, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["x"].to(device)), batch["y"].to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.detach())
        return [loss.item() for loss in found]

    def test_agrees(self) -> None:
        torch.testing.assert_close(self.losses("xla"), self.losses("cpu"), rtol=2e-5, atol=2e-5)

    def test_onto_the_device(self) -> None:
        data = Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0]]}).with_format("torch", device="xla")
        rows = data[:]["x"]
        assert rows.device == torch.device("xla", 0) and rows.tolist() == [[1.0, 2.0], [3.0, 4.0]]


class TestSafetensors:
    """Weights are written from the device, sharded and tied ones too, and read onto it."""

    def test_a_model(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)).to("xla")
        model[1].weight = model[0].weight
        spmd.mark_sharding(model[0].weight, mesh8, ("fsdp", None))
        save_model(model, str(tmp_path / "model.safetensors"))
        assert {
            name: value.shape for name, value in load_file(tmp_path / "model.safetensors").items()
        } == {"0.weight": (16, 8)}
        other = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)).to("xla")
        other[1].weight = other[0].weight
        spmd.mark_sharding(other[0].weight, mesh8, (None, "fsdp"))
        assert load_model(other, str(tmp_path / "model.safetensors")) == (set(), [])
        assert spmd.get_sharding(other[0].weight).partition_spec(2) == spmd.P(None, "fsdp")
        torch.testing.assert_close(other[1].weight.cpu(), model[1].weight.cpu())

    def test_tensors(self, tmp_path: Path) -> None:
        values = {
            "a": torch.randn(4, device="xla"),
            "b": torch.ones(2, 2, dtype=torch.bfloat16, device="xla"),
        }
        save_file(values, tmp_path / "values.safetensors")
        read = load_file(tmp_path / "values.safetensors", device="xla")
        assert {value.device.type for value in read.values()} == {"xla"}
        for name, value in values.items():
            torch.testing.assert_close(read[name].cpu(), value.cpu())
