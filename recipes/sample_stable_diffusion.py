"""Sample images by a Stable Diffusion pipeline of diffusers, of tiny random weights: 50 steps, one
program run again.

    python recipes/sample_stable_diffusion.py                   # DPM-Solver++, four images
    python recipes/sample_stable_diffusion.py --scheduler ddim  # DDIM
    python recipes/sample_stable_diffusion.py --device cpu      # the same file in plain PyTorch,
                                                                # for comparison
    python recipes/sample_stable_diffusion.py --target v5e:1x1  # plan a step for a TPU; nothing is
                                                                # sampled

The pipeline, its UNet, VAE, text encoder and schedulers are diffusers' and transformers' as they
are (needs `pip install diffusers`). The first steps differ, as a solver of a higher order has no
steps before them; all that follow are one program. It prints the programs that the steps compiled,
and leaves OUT/samples.png.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib import pyplot
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import spmd
from recipes import training

# before diffusers, whose pipelines call mark_step after each step where they find torch_xla
spmd.compat.install()

from diffusers import (  # noqa: E402
    AutoencoderKL,
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextConfig, CLIPTextModel  # noqa: E402

NOISE = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "steps_offset": 1,
}
SCHEDULERS: dict[str, Callable[[], object]] = {
    "dpm": lambda: DPMSolverMultistepScheduler(**NOISE),
    "ddim": lambda: DDIMScheduler(**NOISE, clip_sample=False),
}
LENGTH = 16  # of a prompt, in bytes


def build(scheduler: str, seed: int) -> StableDiffusionPipeline:
    """Returns a pipeline of random weights; its tokens are bytes, so that it needs no tokenizer."""
    torch.manual_seed(seed)
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=16,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )
    vae = AutoencoderKL(
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
    )
    text = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=256,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=LENGTH,
            eos_token_id=0,
        )
    )
    pipe = StableDiffusionPipeline(
        vae=vae,
        text_encoder=text,
        tokenizer=None,
        unet=unet,
        scheduler=SCHEDULERS[scheduler](),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


@torch.no_grad()
def embeddings(pipe: StableDiffusionPipeline, prompt: str, device: str) -> Tensor:
    tokens = list(prompt.encode()[:LENGTH].ljust(LENGTH, b"\0"))
    return pipe.text_encoder(torch.tensor([tokens], device=device))[0]


def latents(number: int, seed: int) -> Tensor:
    return torch.randn(number, 4, 8, 8, generator=torch.Generator().manual_seed(seed))


def sample(
    pipe: StableDiffusionPipeline, noise: Tensor, prompt: str, device: str, steps: int
) -> tuple[Tensor, list[int]]:
    """Returns images (n, 3, height, width) on the CPU, and the number of programs compiled up to
    each step's end."""
    compiled: list[int] = []

    def after(
        pipe: object, step: int, level: Tensor, tensors: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        compiled.append(spmd.metrics.num_compiles())
        return tensors

    number = len(noise)
    images = pipe(
        prompt_embeds=embeddings(pipe, prompt, device).repeat(number, 1, 1),
        negative_prompt_embeds=embeddings(pipe, "", device).repeat(number, 1, 1),
        latents=noise.to(device),
        num_inference_steps=steps,
        output_type="pt",
        callback_on_step_end=after,
    ).images
    return images.cpu(), compiled


@torch.no_grad()
def predict(unet: UNet2DConditionModel, noise: Tensor, level: Tensor, text: Tensor) -> Tensor:
    """Returns the noise that a step predicts."""
    return unet(noise, level, encoder_hidden_states=text).sample


def plan(pipe: StableDiffusionPipeline, number: int, target: str) -> spmd.Plan:
    """Returns the plan of a step's UNet, with and without the prompt, on the devices of a
    target."""
    noise, level = latents(2 * number, 0).to("xla"), torch.tensor(500).to("xla")
    text = torch.zeros(2 * number, LENGTH, 16).to("xla")
    return training.plan_step(predict, pipe.unet, noise, level, text, target=target)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    training.add_device_flag(parser)
    parser.add_argument(
        "--target",
        metavar="SLICE",
        help='plan a step for these devices ("v5e:1x1") into OUT/plan.html',
    )
    parser.add_argument(
        "--scheduler", choices=[*SCHEDULERS], default="dpm", help="(default %(default)s)"
    )
    parser.add_argument(
        "--sampling-steps", type=int, default=50, metavar="N", help="(default %(default)s)"
    )
    parser.add_argument("--images", type=int, default=4, metavar="N", help="(default %(default)s)")
    parser.add_argument("--prompt", default="a red square", help="(default %(default)r)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("out/stable_diffusion"), help="(default %(default)s)"
    )
    args = parser.parse_args(arguments)
    if args.target and args.device != "xla":
        parser.error("--target plans for devices of xla; leave --device out")
    return args


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    pipe = build(args.scheduler, args.seed).to(args.device)
    if args.target:
        planned = plan(pipe, args.images, args.target)
        print(planned)
        planned.save(args.out / "plan.html")
        return
    started = time.perf_counter()
    noise = latents(args.images, args.seed)
    images, compiled = sample(pipe, noise, args.prompt, args.device, args.sampling_steps)
    figure, axes = pyplot.subplots(1, args.images, squeeze=False, figsize=(2 * args.images, 2))
    for axis, image in zip(axes[0], images, strict=True):
        axis.imshow(image.permute(1, 2, 0).numpy())
        axis.axis("off")
    figure.savefig(args.out / "samples.png")
    pyplot.close(figure)
    late = compiled[-1] - compiled[min(2, len(compiled) - 1)]
    print(
        f"{args.images} images in {args.sampling_steps} steps, "
        f"{time.perf_counter() - started:.1f} s"
    )
    print(f"{late} programs compiled after the third step; {args.out / 'samples.png'}")


if __name__ == "__main__":
    main()
