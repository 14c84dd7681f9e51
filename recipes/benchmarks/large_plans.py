"""Time the plan of a large model of Hugging Face's for chips that are not present.

    python recipes/benchmarks/large_plans.py  # T5-large and Whisper-large, on v5e:2x4
    python recipes/benchmarks/large_plans.py --models llama --target h100:8 --show
    python recipes/benchmarks/large_plans.py --models vit --batch 64 --target v5p:2x2x2
    python recipes/benchmarks/large_plans.py --models t5 --layers 2 --target cpu:8
    python recipes/benchmarks/large_plans.py --models llama-70b-int4 --target v5e:4x4 --devices 16 \
        --batch 16

T5, Whisper and ViT-B are in float32, Llama-1B and eight layers of a Mixtral of width 2,048 in
bfloat16 with 4,096 and 1,024 tokens a sequence. Of Llama-70B adapters of rank 16 are trained over
linear layers in four bits, of 4,096 tokens, each layer recomputed. Needs the extras `recipes` and
`tpu` or `gpu-plan`.
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
from peft import LoraConfig, get_peft_model
from torch import nn

import fsdp
import spmd
from recipes import packed
from recipes.finetune_lora import TARGETS

Made = tuple[nn.Module, set[type[nn.Module]], dict[str, torch.Tensor]]


def t5(layers: int | None, batch: int) -> Made:
    config = hf.T5Config(
        d_model=1024,
        d_kv=64,
        d_ff=4096,
        num_heads=16,
        num_layers=layers or 24,
        decoder_start_token_id=0,
    )
    ids = torch.zeros(batch, 512, dtype=torch.long, device="meta")
    model = hf.T5ForConditionalGeneration(config)
    return model, {type(model.encoder.block[0])}, {"input_ids": ids, "labels": ids}


def whisper(
    layers: int | None,
    batch: int,
    *,
    width: int = 1280,
    depth: int = 32,
    mel_bins: int = 128,
    vocabulary: int = 51_866,
) -> Made:
    config = hf.WhisperConfig(
        d_model=width,
        encoder_layers=layers or depth,
        decoder_layers=layers or depth,
        encoder_attention_heads=width // 64,
        decoder_attention_heads=width // 64,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        num_mel_bins=mel_bins,
        vocab_size=vocabulary,
    )
    model = hf.WhisperForConditionalGeneration(config)
    inputs = {
        "input_features": torch.empty(batch, mel_bins, 3000, device="meta"),
        "labels": torch.zeros(batch, 448, dtype=torch.long, device="meta"),
    }
    return model, {type(model.model.encoder.layers[0]), type(model.model.decoder.layers[0])}, inputs


def vit(layers: int | None, batch: int) -> Made:
    model = hf.ViTForImageClassification(
        hf.ViTConfig(num_hidden_layers=layers or 12, num_labels=1000)
    )
    inputs = {
        "pixel_values": torch.empty(batch, 3, 224, 224, device="meta"),
        "labels": torch.zeros(batch, dtype=torch.long, device="meta"),
    }
    return model, {hf.models.vit.modeling_vit.ViTLayer}, inputs


def mixtral(layers: int | None, batch: int) -> Made:
    config = hf.MixtralConfig(
        hidden_size=2048,
        intermediate_size=3584,
        num_hidden_layers=layers or 8,
        vocab_size=32_000,
        experts_implementation="grouped_mm",
    )
    model = hf.MixtralForCausalLM(config).bfloat16()
    ids = torch.zeros(batch, 1024, dtype=torch.long, device="meta")
    return model, {type(model.model.layers[0])}, {"input_ids": ids, "labels": ids}


def llama(layers: int | None, batch: int) -> Made:
    config = hf.LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers or 16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128_256,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    model = hf.LlamaForCausalLM(config).bfloat16()
    ids = torch.zeros(batch, 4096, dtype=torch.long, device="meta")
    return model, {type(model.model.layers[0])}, {"input_ids": ids, "labels": ids}


def llama_70b_int4(layers: int | None, batch: int) -> Made:
    """Frozen packed layers and adapters, in bfloat16: QLoRA's (arXiv:2305.14314) with integers."""
    config = hf.LlamaConfig(
        hidden_size=8192,
        intermediate_size=28_672,
        num_hidden_layers=layers or 80,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128_256,
        max_position_embeddings=8192,
    )
    model = packed.pack_layers(hf.LlamaForCausalLM(config).bfloat16(), TARGETS)
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=TARGETS))
    decoder = model.base_model.model.model
    for layer in decoder.layers:
        fsdp.checkpoint_module(layer)
    ids = torch.zeros(batch, 4096, dtype=torch.long, device="meta")
    return model, {type(decoder.layers[0])}, {"input_ids": ids, "labels": ids}


MODELS: dict[str, Callable[[int | None, int], Made]] = {
    "t5": t5,
    "whisper": whisper,
    "whisper-base": partial(whisper, width=512, depth=6, mel_bins=80, vocabulary=51_865),
    "llama": llama,
    "llama-70b-int4": llama_70b_int4,
    "vit": vit,
    "mixtral": mixtral,
}


def plan_of(name: str, layers: int | None, batch: int, target: str, devices: int = 8) -> spmd.Plan:
    # On meta where packing a device's initial values would run.
    is_meta = name.endswith("int4")
    mesh = spmd.Mesh(range(devices), (devices,), ("fsdp",), target=target if is_meta else None)
    with torch.device("meta" if is_meta else "xla"):
        model, kinds, inputs = MODELS[name](layers, batch)
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls=kinds)
    wrapped = fsdp.FullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=policy)
    packed.shard(wrapped, mesh)
    optimizer = torch.optim.AdamW(wrapped.parameters())

    def step(**inputs: Any) -> None:
        wrapped(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return spmd.plan(step, target=target, **inputs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=["t5", "whisper"])
    parser.add_argument(
        "--layers", type=int, help="layers of encoder and decoder, instead of the model's own"
    )
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--target", default="v5e:2x4", help="chips (default v5e:2x4)")
    parser.add_argument("--devices", type=int, default=8, help="of the target (default 8)")
    parser.add_argument("--show", action="store_true", help="print the plan, too")
    given = parser.parse_args()
    spmd.simulate(given.devices)
    for name in given.models:
        started = time.perf_counter()
        plan = plan_of(name, given.layers, given.batch, given.target, given.devices)
        loops = [note for note in plan.notes if "equal layers" in note]
        seconds, number = (
            time.perf_counter() - started,
            f"{plan.num_ops:,} ops in {plan.num_programs}",
        )
        print(
            f"{name}: {seconds:.0f} s, {plan.compile_seconds:.0f} of them to compile {number} "
            f"program(s); {len(loops)} loops; peak {plan.peak / 2**30:.2f} GiB a device"
        )
        if given.show:
            print(plan)


if __name__ == "__main__":
    main()
