"""Tokens a second of Hugging Face's `generate`, next to plain torch and to a loop by hand in JAX.

    python -m recipes.benchmarks.generate                     one prompt and eight
    python -m recipes.benchmarks.generate --rounds 5 --prompts 1
    python -m recipes.benchmarks.generate --apart             XLA on one core, Python on another

A Llama in float32 with 12 layers of width 256 writes 64 tokens behind 16, greedily, on one device:
by `generate` with a static cache, in torch on the CPU and in torch-spmd; in torch with its usual
cache, which grows; and by `jax_decode.py`, one jitted call a token that the host reads. The sides
alternate; figures are medians of the rounds, and their ratios of these. Tokens of all sides are
compared. XLA's threads are on all cores of a CPU, where they and Python slow each other; --apart
gives XLA one core and Python another, as an accelerator would.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table

# isort: off
import spmd  # before jax: it sets environment variables that XLA reads when jax is imported
import jax

# isort: on
from recipes.benchmarks.jax_decode import Decoder, Shapes

LAYERS, WIDTH, HEADS, VOCABULARY, PROMPT, TOKENS = 12, 256, 8, 2048, 16, 64
NEVER = 0  # the end of a sequence: no row of the head is its
Side = Callable[[torch.Tensor], torch.Tensor]


def model() -> transformers.LlamaForCausalLM:
    """A Llama with weights by a seed."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=256,
    )
    made = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        made.lm_head.weight[NEVER] = 0
    return made


def by_generate(network: transformers.LlamaForCausalLM, device: str, cache: str = "static") -> Side:
    """`generate` of a model on a device, with a cache of transformers'."""
    network = network.to(device)

    def run(prompt: torch.Tensor) -> torch.Tensor:
        prompt = prompt.to(device)
        result: torch.Tensor = network.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=TOKENS,
            do_sample=False,
            cache_implementation=cache,
            eos_token_id=NEVER,
            pad_token_id=NEVER,
        )
        return result.cpu()

    return run


def by_hand(network: transformers.LlamaForCausalLM) -> Side:
    """JAX's loop with the weights of a model."""
    config = network.config
    shapes = Shapes(
        LAYERS, WIDTH, HEADS, HEADS, config.rope_parameters["rope_theta"], config.rms_norm_eps
    )
    decoder = Decoder(
        shapes, {name: x.numpy() for name, x in network.state_dict().items()}, PROMPT + TOKENS
    )
    return lambda prompt: torch.from_numpy(
        np.array(decoder.generate(prompt.numpy(), TOKENS, NEVER))
    )


def separate_cores() -> None:
    """Has XLA compute on one core and this thread run on another, torch's threads with it."""
    torch.set_num_threads(1)
    host, device = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, {device})
    jax.devices()  # starts the client's threads, on the cores of this one
    os.sched_setaffinity(0, {host})


def seconds(side: Side, prompt: torch.Tensor) -> tuple[float, torch.Tensor]:
    """The seconds of a call, and its tokens."""
    started = time.perf_counter()
    tokens = side(prompt)
    return time.perf_counter() - started, tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--prompts", type=int, nargs="+", default=[1, 8], metavar="N", help="at once (default 1 8)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="timed calls of each side (default 5)"
    )
    parser.add_argument("--apart", action="store_true", help="XLA on one core, Python on another")
    options = parser.parse_args()
    if options.apart:
        separate_cores()
    transformers.utils.logging.set_verbosity_error()
    sides = {
        "torch": by_generate(model(), "cpu"),
        "torch, its usual cache": by_generate(model(), "cpu", "dynamic"),
        "JAX by hand": by_hand(model()),
        "torch-spmd": by_generate(model(), "xla"),
    }
    table = Table(
        "prompts",
        "side",
        "tokens a second",
        "of JAX's",
        "of torch's",
        "ms a token",
        "tokens equal torch's",
    )
    for count in options.prompts:
        prompt = torch.randint(
            1, VOCABULARY, (count, PROMPT), generator=torch.Generator().manual_seed(1)
        )
        taken: dict[str, list[float]] = {name: [] for name in sides}
        # compiled, recorded
        tokens = {name: [side(prompt) for _ in range(2)][-1] for name, side in sides.items()}
        for _ in range(options.rounds):
            for name, side in sides.items():
                taken[name].append(seconds(side, prompt)[0])
        speed = {name: count * TOKENS / statistics.median(each) for name, each in taken.items()}
        for name, each in speed.items():
            ratios = [f"{each / speed[other]:.2f}" for other in ("JAX by hand", "torch")]
            is_equal = "yes" if torch.equal(tokens[name], tokens["torch"]) else "no"
            table.add_row(
                str(count), name, f"{each:,.0f}", *ratios, f"{1e3 * count / each:.2f}", is_equal
            )
    console = Console(width=120)
    console.print(table)
    console.print(
        f"torch {torch.__version__}, spmd on jax, {os.cpu_count()} cores", highlight=False
    )
    spmd.sync()


if __name__ == "__main__":
    main()
