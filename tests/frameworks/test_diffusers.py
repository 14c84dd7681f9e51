"""A diffusers training script and its sampling pipelines on the device: the CPU's losses and
pictures."""

from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from diffusers import DDIMPipeline, DDIMScheduler, DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup

import spmd

pytestmark = pytest.mark.usefixtures("use")


def unet() -> UNet2DModel:
    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=4,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(4,),
        norm_num_groups=2,
        down_block_types=("DownBlock2D",),
        up_block_types=("UpBlock2D",),
        attention_head_dim=4,
    )


def train(**how: Any) -> tuple[list[float], UNet2DModel]:
    """Three steps as diffusers' own example of unconditional images makes them."""
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(**how)
    model, noises, generator = (
        unet(),
        DDPMScheduler(num_train_timesteps=20),
        torch.Generator().manual_seed(2),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    pictures = torch.randn(12, 1, 4, 4, generator=generator)
    loader = torch.utils.data.DataLoader(pictures, batch_size=4)
    schedule = get_cosine_schedule_with_warmup(optimizer, 1, 3)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses = []
    for clean in loader:
        noise = torch.randn(clean.shape, generator=generator).to(clean.device)
        steps = torch.randint(0, 20, (len(clean),), generator=generator).to(clean.device)
        noisy = noises.add_noise(clean, noise, steps)
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(noisy, steps, return_dict=False)[0], noise)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.detach().item())
    return losses, accelerator.unwrap_model(model)


def sampled(pipeline: Any, model: UNet2DModel, scheduler: Any, steps: int) -> np.ndarray:
    made = pipeline(unet=model.eval(), scheduler=scheduler(num_train_timesteps=20))
    made.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(3)
    return made(
        batch_size=2, generator=generator, num_inference_steps=steps, output_type="np"
    ).images  # type: ignore[no-any-return]


class TestScript:
    """Training by accelerate, then pictures of the trained model."""

    def test_agrees(self) -> None:
        before = spmd.metrics.num_compiles()
        losses, model = train()
        assert next(model.parameters()).device.type == "xla"
        pictures = sampled(DDPMPipeline, model, DDPMScheduler, 4)
        assert spmd.metrics.num_compiles() - before <= 8
        expected, on_cpu = train(cpu=True)
        torch.testing.assert_close(losses, expected, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(
            pictures, sampled(DDPMPipeline, on_cpu, DDPMScheduler, 4), rtol=2e-5, atol=2e-5
        )

    @pytest.mark.long
    def test_fewer_steps(self) -> None:
        before = spmd.metrics.num_compiles()
        pictures = sampled(DDIMPipeline, unet().to("xla"), DDIMScheduler, 6)
        assert spmd.metrics.num_compiles() - before <= 6
        np.testing.assert_allclose(
            pictures, sampled(DDIMPipeline, unet(), DDIMScheduler, 6), rtol=2e-5, atol=2e-5
        )
