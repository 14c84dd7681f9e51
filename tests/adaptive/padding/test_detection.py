"""Losses of detectors, whose numbers of boxes and of foreground rows differ in each step: few
programs, with the numbers of the CPU."""

import copy
import random
from collections.abc import Sequence

import detection_losses as detection
import pytest
import torch

import fsdp
import spmd

STEPS, PROGRAMS = 20, 4


class Trained:
    """A detector on the CPU and on the device, trained alike."""

    def __init__(self, name: str, mesh: spmd.Mesh | None = None):
        model = detection.DETECTORS[name]()
        self.mesh = mesh
        self.models = model, copy.deepcopy(model).to("xla")
        if mesh is not None:
            fsdp.fully_shard(self.models[1], mesh=mesh)
        self.optimizers = [
            torch.optim.SGD(model.parameters(), 0.05, momentum=0.9) for model in self.models
        ]
        spmd.sync()

    def step(self, counts: Sequence[int]) -> int:
        """Trains both on images with so many boxes, compares losses and gradients; returns the
        number of new programs."""
        images, targets = detection.batch(counts)
        before, losses, gradients = spmd.metrics.num_compiles(), [], []
        for model, optimizer, device in zip(
            self.models, self.optimizers, ("cpu", "xla"), strict=True
        ):
            on_device = images.to(device)
            if device == "xla" and self.mesh is not None:
                spmd.mark_sharding(
                    on_device, self.mesh, (self.mesh.axis_names[0], None, None, None)
                )
            boxes = [{name: value.to(device) for name, value in each.items()} for each in targets]
            parts = model.losses(on_device, boxes)
            sum(parts.values()).backward()
            optimizer.step()
            losses.append({name: part.detach() for name, part in parts.items()})
            gradients.append([parameter.grad for parameter in model.parameters()])
            optimizer.zero_grad()
        read = [{name: part.cpu() for name, part in parts.items()} for parts in losses]
        made = [[gradient.cpu() for gradient in each] for each in gradients]
        torch.testing.assert_close(read[1], read[0], rtol=2e-5, atol=1e-6)
        torch.testing.assert_close(made[1], made[0], rtol=1e-4, atol=1e-5)
        return spmd.metrics.num_compiles() - before


def many(seed: int, least: int = 2, most: int = 12) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randint(least, most) for _ in range(detection.IMAGES)] for _ in range(STEPS)]


class TestDetectors:
    """RetinaNet's, FCOS' and Faster R-CNN's form: at most four programs in twenty steps, none in
    the second ten."""

    @pytest.mark.parametrize("name", detection.DETECTORS)
    def test_one_device(self, name: str) -> None:
        trained = Trained(name)
        compiles = [trained.step(counts) for counts in many(1)]
        assert sum(compiles) <= PROGRAMS and not any(compiles[10:]), (
            compiles,
            spmd.metrics.report(),
        )

    @pytest.mark.parametrize("name", detection.DETECTORS)
    def test_over_a_mesh(self, name: str, mesh8: spmd.Mesh) -> None:
        trained = Trained(name, mesh8)
        compiles = [trained.step(counts) for counts in many(2)]
        assert sum(compiles) <= PROGRAMS and not any(compiles[10:]), (
            compiles,
            spmd.metrics.report(),
        )

    @pytest.mark.parametrize("name", detection.DETECTORS)
    def test_images_of_no_box_or_one(self, name: str) -> None:
        """The numbers are right; the user's own branches for such images make programs."""
        trained = Trained(name)
        for counts in ([0, 3], [1, 1], [0, 0], [5, 1], [2, 0], [1, 0]):
            trained.step(counts)
