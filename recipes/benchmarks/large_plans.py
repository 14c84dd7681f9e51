"""Time the plan of a large encoder and decoder of Hugging Face's, in float32, for chips that are not present.

    python recipes/benchmarks/large_plans.py                         # T5-large and Whisper-large, on v5e:2x4
    python recipes/benchmarks/large_plans.py --models t5 --layers 2 --target cpu:8

Needs the extras `recipes` and `tpu`, and transformers.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import transformers as hf
from torch import nn

import fsdp
import spmd

Made = tuple[nn.Module, set[type[nn.Module]], dict[str, torch.Tensor]]


def t5(layers: int | None, batch: int) -> Made:
    config = hf.T5Config(
        d_model=1024, d_kv=64, d_ff=4096, num_heads=16, num_layers=layers or 24, decoder_start_token_id=0
    )
    ids = torch.zeros(batch, 512, dtype=torch.long, device="meta")
    model = hf.T5ForConditionalGeneration(config)
    return model, {type(model.encoder.block[0])}, {"input_ids": ids, "labels": ids}


def whisper(layers: int | None, batch: int) -> Made:
    config = hf.WhisperConfig(
        d_model=1280, encoder_layers=layers or 32, decoder_layers=layers or 32, encoder_attention_heads=20,
        decoder_attention_heads=20, encoder_ffn_dim=5120, decoder_ffn_dim=5120, num_mel_bins=128, vocab_size=51_866,
    )  # fmt: skip
    model = hf.WhisperForConditionalGeneration(config)
    inputs = {
        "input_features": torch.empty(batch, 128, 3000, device="meta"),
        "labels": torch.zeros(batch, 448, dtype=torch.long, device="meta"),
    }
    return model, {type(model.model.encoder.layers[0]), type(model.model.decoder.layers[0])}, inputs


MODELS: dict[str, Callable[[int | None, int], Made]] = {"t5": t5, "whisper": whisper}


def plan_of(name: str, layers: int | None, batch: int, target: str) -> spmd.Plan:
    mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
    with torch.device("xla"):
        model, kinds, inputs = MODELS[name](layers, batch)
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls=kinds)
    wrapped = fsdp.FullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=policy)
    optimizer = torch.optim.AdamW(wrapped.parameters())

    def step(**inputs: Any) -> None:
        wrapped(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return spmd.plan(step, target=target, **inputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--layers", type=int, help="layers of encoder and decoder, instead of the model's own")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--target", default="v5e:2x4", help="eight chips (default v5e:2x4)")
    given = parser.parse_args()
    spmd.simulate(8)
    for name in given.models:
        started = time.perf_counter()
        plan = plan_of(name, given.layers, given.batch, given.target)
        loops = [note for note in plan.notes if "equal layers" in note]
        seconds, number = time.perf_counter() - started, f"{plan.num_ops:,} ops in {plan.num_programs}"
        print(
            f"{name}: {seconds:.0f} s, {plan.compile_seconds:.0f} of them to compile {number} program(s); {len(loops)} "
            f"loops; peak {plan.peak / 2**30:.2f} GiB a device"
        )


if __name__ == "__main__":
    main()
