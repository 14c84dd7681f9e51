"""Compare loops in which the user never syncs with the same loops and one sync per iteration:
programs and time.

    python recipes/benchmarks/sampling.py  # 50 steps of two diffusion samplers, 5 pairs of warm
                                           # runs
    python recipes/benchmarks/sampling.py --steps 20 --width 64

An unmodified Stable Diffusion pipeline of `diffusers` (random weights, progress bar on) samples
with DDIM, which reads a number in each step, and with DPMSolverMultistep, which never does; a small
network trains with AdamW and prints its loss once; Llama of `transformers` generates with a static
cache. "first" is the first run, compiles included, in a process of its own; "warm" is the median
ratio of runs that alternate.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import spmd  # before torch's users, so that its log settings hold

import torch  # isort: skip
from diffusers import DDIMScheduler, DPMSolverMultistepScheduler  # isort: skip
from diffusers import StableDiffusionPipeline, UNet2DConditionModel  # isort: skip
from rich.console import Console  # isort: skip
from rich.table import Table  # isort: skip
from torch import nn  # isort: skip
from transformers import LlamaConfig, LlamaForCausalLM  # isort: skip

SCHEDULERS: dict[str, Callable[[], Any]] = {
    "DDIM": lambda: DDIMScheduler(steps_offset=1, clip_sample=False),
    "DPMSolverMultistep": lambda: DPMSolverMultistepScheduler(steps_offset=1),
}
LOOPS = (*SCHEDULERS, "training")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument(
        "--width", type=int, default=32, help="channels of the UNet's first level (default 32)"
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--first", choices=LOOPS, help="print only (seconds, programs) of one loop's first run"
    )
    parser.add_argument(
        "--barrier", dest="synced", action="store_true", help="with --first: one sync per iteration"
    )
    return parser.parse_args()


def unet(width: int) -> nn.Module:
    return UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(width, 2 * width),
        layers_per_block=1,
        cross_attention_dim=32,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        norm_num_groups=8,
    )


def sampler(name: str, args: argparse.Namespace) -> Callable[[bool], None]:
    """Returns a function that runs the pipeline, with or without a sync per step."""
    torch.manual_seed(0)
    pipeline = StableDiffusionPipeline(
        vae=None,
        text_encoder=None,
        tokenizer=None,
        unet=unet(args.width).eval(),
        scheduler=SCHEDULERS[name](),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).to("xla")

    def sync(*_: Any) -> dict[str, Any]:
        spmd.sync()
        return {}

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to("xla")

    def run(synced: bool) -> None:
        pipeline(
            prompt_embeds=draw(2, 8, 32),
            negative_prompt_embeds=draw(2, 8, 32),
            latents=draw(2, 4, 16, 16),
            num_inference_steps=args.steps,
            output_type="latent",
            callback_on_step_end=sync if synced else None,
        ).images.cpu()

    return run


def trainer(args: argparse.Namespace) -> Callable[[bool], None]:
    """Returns a function that runs a training loop, which reads its loss at the end."""
    torch.manual_seed(0)
    blocks = [
        m
        for _ in range(6)
        for m in (nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64))
    ]
    model = nn.Sequential(*blocks).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run(synced: bool) -> None:
        for _ in range(args.steps):
            x = torch.randn(64, 64)
            loss = nn.functional.mse_loss(model(x.to("xla")), x.flip(1).to("xla"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if synced:
                spmd.sync()
        loss.item()

    return run


def loop(name: str, args: argparse.Namespace) -> Callable[[bool], None]:
    return trainer(args) if name == "training" else sampler(name, args)


def first(name: str, args: argparse.Namespace) -> tuple[float, int]:
    """Returns (seconds, programs compiled) of a first run in this process."""
    run = loop(name, args)
    start, before = perf_counter(), spmd.metrics.num_compiles()
    run(args.synced)
    return perf_counter() - start, spmd.metrics.num_compiles() - before


def first_elsewhere(name: str, args: argparse.Namespace, *, synced: bool) -> tuple[float, int]:
    """Runs `first` in a process of its own."""
    command = [
        sys.executable,
        __file__,
        "--first",
        name,
        "--steps",
        str(args.steps),
        "--width",
        str(args.width),
    ]
    printed = subprocess.run(
        [*command, *(["--barrier"] if synced else [])],
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ).stdout.split()
    return float(printed[0]), int(printed[1])


def warm(name: str, args: argparse.Namespace) -> float:
    """Returns the median of time without syncs / time with one per iteration."""
    run = loop(name, args)
    ratios = []
    for pair in range(args.pairs + 1):
        seconds = {}
        for synced in (False, True) if pair % 2 else (True, False):
            start = perf_counter()
            run(synced)
            seconds[synced] = perf_counter() - start
        if pair:  # the first pair compiles
            ratios.append(seconds[False] / seconds[True])
    return median(ratios)


def generated(tokens: int) -> list[int]:
    """Returns the number of programs that each of three prompts of one length compiles to generate
    so many tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    model = LlamaForCausalLM(config).eval().to("xla")
    counts = []
    for _ in range(3):
        prompt = torch.randint(3, 64, (2, 8))
        mask = torch.ones_like(prompt)
        mask[0, :3] = 0
        before = spmd.metrics.num_compiles()
        model.generate(
            prompt.to("xla"),
            attention_mask=mask.to("xla"),
            max_new_tokens=tokens,
            do_sample=False,
            cache_implementation="static",
            pad_token_id=0,
            eos_token_id=2,
        )
        counts.append(spmd.metrics.num_compiles() - before)
    return counts


def main() -> None:
    args = parse()
    spmd.config.program_cache = False  # compiles are counted and timed
    if args.first:
        print(*first(args.first, args))
        return
    table = Table(
        "loop", "programs, no sync", "one per iteration", "first run, ratio", "warm, ratio"
    )
    for name in LOOPS:
        alone, synced = (
            first_elsewhere(name, args, synced=is_synced) for is_synced in (False, True)
        )
        table.add_row(
            f"{name}, {args.steps} steps",
            str(alone[1]),
            str(synced[1]),
            f"{alone[0] / synced[0]:.2f}",
            f"{warm(name, args):.2f}",
        )
    Console(width=110).print(table)
    for tokens in (10, 40):
        programs = generated(tokens)
        print(
            f"generate(), {tokens} tokens, left-padded: programs of the first, second and third "
            f"prompt: {programs}"
        )


if __name__ == "__main__":
    main()
