"""Time a deep model's initialisation, and the part of it in which XLA compiles.

python recipes/benchmarks/initialise.py --device meta
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import torch

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="xla", choices=("xla", "meta"))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    given = parser.parse_args()
    spmd.config.program_cache = False
    spmd.simulate(8)
    compiled: list[float] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiled.append(seconds) if "backend_compile" in name else None
    )
    with torch.device(given.device):
        model = GPT(GPTConfig(layers=given.layers, width=given.width))
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
    fsdp_model = fsdp.FullyShardedDataParallel(model, auto_wrap_policy=policy)
    start = time.perf_counter()
    spmd.sync(wait=True)
    seconds = time.perf_counter() - start
    bytes_held = sum(value.nbytes for value in fsdp_model.parameters())
    print(f"{given.layers} layers, {bytes_held / 1e6:.0f} MB on {given.device}: {seconds:.2f} s")
    print(f"compiled {len(compiled)} programs in {sum(compiled):.2f} s")


if __name__ == "__main__":
    main()
