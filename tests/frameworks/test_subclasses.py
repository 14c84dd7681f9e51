"""Libraries with subclasses of torch.Tensor or ops of their own: the environment `subclasses` has
them.

`tests/core/torch_state/test_subclasses.py` has such classes written out, where the libraries are
not installed.
"""

from typing import Any

import pytest
import torch
from torch import nn

import spmd

REASON = "the environment `subclasses` of tests/versions.txt has it"


def imported(name: str) -> Any:
    return pytest.importorskip(name, reason=REASON, exc_type=(ImportError, RuntimeError))


class TestTorchvision:
    """`tv_tensors` through a pipeline of transforms."""

    def test_transforms(self) -> None:
        imported("torchvision")
        tv_tensors, v2 = imported("torchvision.tv_tensors"), imported("torchvision.transforms.v2")
        image = tv_tensors.Image(torch.arange(192, dtype=torch.uint8).reshape(3, 8, 8))
        boxes = tv_tensors.BoundingBoxes([[0, 0, 4, 4]], format="XYXY", canvas_size=(8, 8))
        steps = v2.Compose(
            [v2.RandomHorizontalFlip(1.0), v2.Resize(4), v2.ToDtype(torch.float32, scale=True)]
        )
        expected, result = steps(image, boxes), steps(image.to("xla"), boxes.to("xla"))
        assert isinstance(result[0], tv_tensors.Image) and isinstance(
            result[1], tv_tensors.BoundingBoxes
        )
        assert result[1].tolist() == expected[1].tolist() and result[1].canvas_size == (4, 4)
        torch.testing.assert_close(
            result[0].cpu().as_subclass(torch.Tensor), expected[0], atol=1 / 255, rtol=0
        )
        assert type(result[0] + 1) is not tv_tensors.Image and not isinstance(
            result[0] + 1, tv_tensors.Image
        )


class TestFastai:
    """`TensorBase`, which copies attributes to each result."""

    def test_images(self) -> None:
        core = imported("fastai.torch_core")
        for image in (
            core.TensorImage(torch.ones(3, 4, 4)).to("xla"),
            core.TensorImage(torch.ones(3, 4, 4).to("xla")),
        ):
            image.source = "file"
            for result in (image, image + 1, image[0], image.mean(), image.cpu()):
                assert isinstance(result, core.TensorImage) and result.source == "file"
            assert (image + 1).device.type == "xla" and (image + 1).mean().item() == 2


class TestBitsandbytes:
    """Its optimizer of eight bits, whose op has a kernel on the CPU and none here."""

    def test_steps(self) -> None:
        optim = imported("bitsandbytes.optim")
        weights = {}
        spmd.compat.install()
        try:
            for device in ("cpu", "xla"):
                torch.manual_seed(0)
                model = nn.Linear(128, 64).to(device)
                optimizer = optim.AdamW8bit(model.parameters(), lr=0.01)
                for _ in range(3):
                    optimizer.zero_grad()
                    model(torch.ones(4, 128, device=device)).square().mean().backward()
                    optimizer.step()
                weights[device] = model.weight.detach().cpu()
        finally:
            spmd.compat.uninstall()
        torch.testing.assert_close(weights["xla"], weights["cpu"])
        assert "bitsandbytes.optimizer_update_8bit_blockwise.default" in spmd.metrics.fallback_ops()


class TestOpacus:
    """Per-sample gradients in each of its modes, and steps of its engine."""

    @pytest.mark.filterwarnings("ignore")  # opacus'
    @pytest.mark.parametrize("mode", ["hooks", "functorch", "ew", "ghost"])
    def test_steps(self, mode: str) -> None:
        opacus = imported("opacus")
        weights = {}
        for device in ("cpu", "xla"):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).to(device)
            rows = torch.utils.data.TensorDataset(
                torch.arange(32.0).reshape(8, 4), torch.arange(8) % 2
            )
            loss = {"criterion": nn.CrossEntropyLoss()} if mode == "ghost" else {}
            private, optimizer, *criterion, loader = opacus.PrivacyEngine().make_private(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                data_loader=torch.utils.data.DataLoader(rows, batch_size=4),
                noise_multiplier=0.0,
                max_grad_norm=1.0,
                poisson_sampling=False,
                grad_sample_mode=mode,
                **loss,
            )
            for x, y in loader:
                optimizer.zero_grad()
                (*criterion, nn.CrossEntropyLoss())[0](
                    private(x.to(device)), y.to(device)
                ).backward()
                optimizer.step()
            weights[device] = [parameter.detach().cpu() for parameter in model.parameters()]
        torch.testing.assert_close(weights["xla"], weights["cpu"])
