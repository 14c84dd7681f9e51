"""The ViT recipe: its steps on meshes against plain PyTorch's, by torch.compile and by
spmd.compile."""

import copy
import re
from pathlib import Path

import pytest
import torch

from recipes import images, train_vit
from recipes.placement import MeshPlacement, Placement
from recipes.vit import ViT, ViTConfig

TINY = [
    "--layers=1",
    "--width=16",
    "--heads=4",
    "--size=8",
    "--batch=16",
    "--warmup=1",
    "--steps=4",
    "--eval-every=4",
]


def losses_of(model: torch.nn.Module, place: Placement) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)
    losses = []
    for batch in list(images.batches(*images.digits(size=8).train, batch=16, seed=0))[:3]:
        loss = train_vit.train_step(
            model, optimizer, *map(place.put, batch), clip=1.0, smoothing=0.1
        )
        place.sync()
        losses.append(loss.item())
    return losses


# Dynamo itself hides it, but where warnings are errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("mesh", ["fsdp=8", "data=2,fsdp=2,tensor=2"])
def test_losses_of_plain_pytorch(mesh: str) -> None:
    """As graphs of torch.compile on the device, which the recipe takes by default."""
    place = MeshPlacement(train_vit.parse([*TINY, "--mesh", mesh]), train_vit.shard)
    torch.manual_seed(0)
    plain = ViT(ViTConfig(size=8, patch=4, layers=2, width=16, heads=4, dropout=0.0))
    model = place.wrap(copy.deepcopy(plain).to("xla"))
    assert losses_of(torch.compile(model, backend="openxla"), place) == pytest.approx(
        losses_of(plain, Placement()), rel=1e-4
    )
    for (name, value), wanted in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            value.cpu(), wanted, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: name + text
        )


@pytest.mark.parametrize("where", ["--compile", "--device=cpu", "--target=cpu:8"])
def test_report(where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_vit.main([*TINY, where, "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    if where.startswith("--target"):
        assert "cpu:8 (fsdp=8)" in printed and (tmp_path / "plan.html").exists()
        return
    assert re.search(
        r"[\d.]+% of the held-out digits are recognised, held-out loss [\d.]+", printed
    )
    assert ("calls recorded" in printed) == (where == "--compile")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
