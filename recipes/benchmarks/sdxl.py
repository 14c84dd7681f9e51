"""Stable Diffusion XL of `diffusers`, unedited, with random weights: the programs of a loop of 50
steps, and the compile time of the real UNet.

    python recipes/benchmarks/sdxl.py                         # both
    python recipes/benchmarks/sdxl.py --targets cpu v5e:1x1   # the UNet's plans alone; v5e needs
                                                              # the extra tpu

images: the pipeline at a tenth of its width makes three images with guidance, in a process without
programs on disk and then in one that finds the first one's. plans: the UNet of 2.6 billion
parameters, built on `meta`, for two latents of 128 x 128, in float32 for the CPU and bfloat16 for a
TPU, without the cache on disk. Benchmarks report; nothing here asserts a figure.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

# isort: off
import spmd  # before torch's users, so that its log settings hold
import torch
from diffusers import AutoencoderKL, EulerDiscreteScheduler, StableDiffusionXLPipeline
from diffusers import UNet2DConditionModel

# isort: on
from rich.console import Console
from rich.table import Table

TEXT_LENGTH, IMAGES = 77, 3
# XLA also compiles the copy of equal layers' weights into a stack, one for each shape.
COUNTERS = {
    "programs_compiled": "programs compiled",
    "backend_compiles": "with copies",
    "runs": "runs",
}
Figures = dict[str, float]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50, help="of an image (default 50)")
    parser.add_argument(
        "--targets", nargs="+", help="plan the real UNet for these, and nothing else"
    )
    parser.add_argument("--blocks", type=int, default=10, help="of the deepest level (default 10)")
    parser.add_argument("--child", choices=["images", "plan"], help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def unet(*, is_whole: bool, blocks: int = 10) -> UNet2DConditionModel:
    """SDXL's UNet; not whole: a tenth as wide."""
    widths = (320, 640, 1280) if is_whole else (32, 64, 128)
    return UNet2DConditionModel(
        sample_size=128 if is_whole else 16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=widths,
        transformer_layers_per_block=(1, 2, blocks),
        attention_head_dim=(5, 10, 20) if is_whole else (1, 2, 4),
        cross_attention_dim=2048 if is_whole else 204,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256 if is_whole else 32,
        projection_class_embeddings_input_dim=2816 if is_whole else 6 * 32 + 128,
        norm_num_groups=32 if is_whole else 16,
    )


def pipeline(blocks: int) -> StableDiffusionXLPipeline:
    """The pipeline with a narrow UNet on xla; it gets its prompt as embeddings."""
    torch.manual_seed(0)
    vae = AutoencoderKL(
        block_out_channels=(16, 16, 32, 32),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        norm_num_groups=16,
        sample_size=128,
    )
    made = StableDiffusionXLPipeline(
        vae=vae,
        text_encoder=None,
        text_encoder_2=None,
        tokenizer=None,
        tokenizer_2=None,
        unet=unet(is_whole=False, blocks=blocks).eval(),
        scheduler=EulerDiscreteScheduler(
            beta_schedule="scaled_linear",
            beta_start=0.00085,
            beta_end=0.012,
            timestep_spacing="leading",
            steps_offset=1,
        ),
        add_watermarker=False,
    ).to("xla")
    made.set_progress_bar_config(disable=True)
    return made


def images(steps: int, blocks: int) -> list[Figures]:
    """The figures of each image; the first one's includes compiling."""
    made = pipeline(blocks)
    draws = torch.Generator().manual_seed(1)
    prompt = torch.randn(1, TEXT_LENGTH, 204, generator=draws).to("xla")
    pooled = torch.randn(1, 128, generator=draws).to("xla")
    spmd.sync(wait=True)
    figures: list[Figures] = []
    for _ in range(IMAGES):
        before = [spmd.metrics.counter(name) for name in COUNTERS]
        wall, processor = time.perf_counter(), time.process_time()
        latents: Any = made(
            prompt_embeds=prompt,
            negative_prompt_embeds=-prompt,
            pooled_prompt_embeds=pooled,
            negative_pooled_prompt_embeds=-pooled,
            num_inference_steps=steps,
            generator=torch.Generator().manual_seed(2),
            output_type="latent",
        ).images
        latents.cpu()
        figures.append(
            {
                "seconds": time.perf_counter() - wall,
                "processor seconds": time.process_time() - processor,
                **{
                    words: spmd.metrics.counter(name) - count
                    for (name, words), count in zip(COUNTERS.items(), before, strict=True)
                },
            }
        )
    return figures


def plan(target: str, blocks: int) -> Figures:
    """The processor seconds of a plan of the real UNet, and what it says."""
    dtype = torch.float32 if target.startswith("cpu") else torch.bfloat16
    with torch.device("meta"):
        network: Any = unet(is_whole=True, blocks=blocks).eval().to(dtype)
        latents, prompt, pooled, ids = (
            torch.empty(2, *shape, dtype=dtype)
            for shape in ((4, 128, 128), (TEXT_LENGTH, 2048), (1280,), (6,))
        )
        at = torch.empty((), dtype=torch.float32)

    @torch.no_grad()
    def step(latents: torch.Tensor, at: torch.Tensor, prompt: torch.Tensor, **added: Any) -> Any:
        return network(latents, at, prompt, added_cond_kwargs=added).sample

    started = time.process_time()
    planned = spmd.plan(
        step,
        latents,
        at,
        prompt,
        text_embeds=pooled,
        time_ids=ids,
        target=None if target == "cpu" else target,
    )
    return {
        "processor seconds": time.process_time() - started,
        "ops": planned.num_ops,
        "of which compiled": planned.num_lowered,
        "parameters GiB": planned.parameters / 2**30,
        "peak GiB": planned.peak / 2**30,
    }


def child(*arguments: str, folder: str = "") -> Any:
    """The figures that this script prints in a process of its own, with this folder of programs."""
    environment = os.environ | (
        {"SPMD_PROGRAM_CACHE_DIR": folder} if folder else {"SPMD_PROGRAM_CACHE": "0"}
    )
    command = [sys.executable, __file__, *arguments]
    lines = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return json.loads(lines.splitlines()[-1])


def show(title: str, rows: Sequence[tuple[str, Figures]]) -> None:
    table = Table("", *rows[0][1], title=title, title_justify="left")
    for name, figures in rows:
        table.add_row(
            name,
            *(
                f"{value:,.1f}" if type(value) is float else f"{value:,}"
                for value in figures.values()
            ),
        )
    Console(width=120).print(table)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    sizes = ["--steps", str(args.steps), "--blocks", str(args.blocks)]
    if args.child:
        is_plan = args.child == "plan"
        print(
            json.dumps(
                plan(args.targets[0], args.blocks) if is_plan else images(args.steps, args.blocks)
            )
        )
        return
    if not args.targets:
        rows = []
        with tempfile.TemporaryDirectory() as folder:
            for start in ("first start", "second start"):
                made = child("--child", "images", *sizes, folder=folder)
                rows += [(f"{start}, image {i + 1}", one) for i, one in enumerate(made)]
        show(f"SDXL at a tenth of its width, {args.steps} steps", rows)
    targets = args.targets or ["cpu"]
    rows = [(target, child("--child", "plan", "--targets", target, *sizes)) for target in targets]
    show("Plans of SDXL's UNet", rows)


if __name__ == "__main__":
    main()
