"""The diffusion recipe against plain PyTorch: losses, averaged weights, images; the programs that
it compiles."""

import copy
from pathlib import Path

import pytest
import torch

import spmd
from recipes import images, train_diffusion
from recipes.placement import MeshPlacement, Placement
from recipes.unet import UNet, UNetConfig

TINY = [
    "--width=8",
    "--batch=16",
    "--warmup=1",
    "--steps=4",
    "--eval-every=4",
    "--rows=8",
    "--sampling-steps=6",
]


def steps(model: UNet, place: Placement, args: object) -> tuple[list[float], UNet]:
    """The losses of three steps, and the average of the weights."""
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)
    data, losses = images.digits(size=8), []
    pairs = list(images.batches(*data.train, batch=16, seed=0))[:3]
    for batch in train_diffusion.batches(pairs, seed=0):
        loss = train_diffusion.train_step(
            model, average, optimizer, tuple(map(place.put, batch)), clip=1.0, decay=0.9
        )
        place.sync()
        losses.append(loss.item())
    return losses, average


class TestPlain:
    """The same steps sharded: plain PyTorch's losses, averaged weights and images."""

    @pytest.mark.parametrize(
        "mesh", ["data=2,fsdp=4", pytest.param("fsdp=8", marks=pytest.mark.long)]
    )
    def test_steps_and_images(self, mesh: str) -> None:
        args = train_diffusion.parse([*TINY, "--mesh", mesh])
        torch.manual_seed(0)
        plain = UNet(UNetConfig(width=args.width))
        place = MeshPlacement(args, train_diffusion.shard)
        model = place.wrap(copy.deepcopy(plain).to("xla"))
        losses, average = steps(model, place, args)
        expected, expected_average = steps(plain, Placement(), args)
        assert losses == pytest.approx(expected, rel=1e-4)
        for value, wanted in zip(average.parameters(), expected_average.parameters(), strict=True):
            torch.testing.assert_close(value.cpu(), wanted, rtol=1e-4, atol=1e-4)

        noise, labels = torch.randn(16, 1, 8, 8), torch.arange(16) % 10
        compiled = spmd.metrics.num_compiles()
        made, wanted = (
            train_diffusion.draw_images(module, where, noise, labels, steps=50, limits=(-1.0, 1.0))
            for module, where in ((average, place), (expected_average, Placement()))
        )
        assert spmd.metrics.num_compiles() - compiled <= 2, (
            "one program for all steps, and one where the first differs"
        )
        torch.testing.assert_close(made, wanted, rtol=1e-3, atol=1e-3)


class TestReport:
    """It trains, says its losses and draws, on the CPU and compiled."""

    @pytest.mark.parametrize("where", ["--compile", "--device=cpu"])
    def test_run(self, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        train_diffusion.main([*TINY, where, "--out", str(tmp_path)])
        printed = capsys.readouterr().out
        assert (
            "80 digits in 6 steps" in printed
            and "are nearest to an image of their class" in printed
        )
        assert ("calls recorded" in printed) == (where == "--compile")
        for name in ("loss.png", "digits.png"):
            assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
