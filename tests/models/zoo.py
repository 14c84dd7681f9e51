"""Small Hugging Face models from configuration: how each is built, a batch for it, its loss.

Nothing is downloaded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers as hf
from diffusers import UNet2DConditionModel
from torch import Tensor, nn

BATCH, SEQUENCE, VOCABULARY, IMAGE, FRAMES = 8, 12, 64, 16, 32

Inputs = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """A model of the zoo: `build` makes it with random weights, `inputs` a batch, `loss` a number
    to differentiate."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    loss: Callable[[nn.Module, Inputs], tuple[Tensor, Tensor]]


def labelled(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
    result = model(**inputs)
    return result.loss, result.logits


def _contrastive(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
    result = model(**inputs, return_loss=True)
    return result.loss, result.logits_per_image


def _denoising(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
    noise = model(inputs["sample"], inputs["timestep"], inputs["encoder_hidden_states"]).sample
    return nn.functional.mse_loss(noise, inputs["noise"]), noise


def sentences(length: int = SEQUENCE) -> Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, length))


def causal() -> Inputs:
    tokens = sentences()
    return {"input_ids": tokens, "labels": tokens}


def padded() -> Inputs:
    """Sequences of unequal length, as a tokenizer pads them; padding has no label."""
    tokens = sentences()
    mask = (torch.arange(SEQUENCE) < torch.randint(SEQUENCE // 2, SEQUENCE + 1, (BATCH, 1))).long()
    return {
        "input_ids": tokens,
        "attention_mask": mask,
        "labels": tokens.masked_fill(mask == 0, -100),
    }


def _pixels(size: int = IMAGE) -> Tensor:
    return torch.randn(BATCH, 3, size, size)


def classes(size: int = IMAGE) -> Inputs:
    return {"pixel_values": _pixels(size), "labels": torch.randint(4, (BATCH,))}


def _diffusion() -> Inputs:
    image = (BATCH, 4, 8, 8)
    return {
        "sample": torch.randn(image),
        "timestep": torch.randint(1000, (BATCH,)),
        "encoder_hidden_states": torch.randn(BATCH, 5, 16),
        "noise": torch.randn(image),
    }


LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
}
ENCODER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def gpt2() -> nn.Module:
    config = hf.GPT2Config(
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        vocab_size=VOCABULARY,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return hf.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA))


def mistral() -> nn.Module:
    return hf.MistralForCausalLM(hf.MistralConfig(**LLAMA, sliding_window=8))


def mixtral() -> nn.Module:
    return hf.MixtralForCausalLM(
        hf.MixtralConfig(
            **LLAMA | {"num_hidden_layers": 1},
            num_local_experts=4,
            num_experts_per_tok=2,
            output_router_logits=True,
        )
    )


def bert() -> nn.Module:
    return hf.BertForMaskedLM(
        hf.BertConfig(**ENCODER, vocab_size=VOCABULARY, max_position_embeddings=64)
    )


def t5() -> nn.Module:
    config = hf.T5Config(
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_heads=4,
        vocab_size=VOCABULARY,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return hf.T5ForConditionalGeneration(config)


def vit() -> nn.Module:
    return hf.ViTForImageClassification(
        hf.ViTConfig(**ENCODER, image_size=IMAGE, patch_size=4, num_labels=4)
    )


def clip() -> nn.Module:
    tower = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    text = {
        **tower,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": SEQUENCE,
        "eos_token_id": 2,
    }
    vision = {**tower, "image_size": IMAGE, "patch_size": 4}
    return hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))


def whisper() -> nn.Module:
    config = hf.WhisperConfig(
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=FRAMES // 2,
        max_target_positions=32,
        vocab_size=VOCABULARY,
        dropout=0.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return hf.WhisperForConditionalGeneration(config)


def resnet18() -> nn.Module:
    """ResNet-18's blocks and strides, narrow; transformers' own, because torchvision has no build
    for every torch."""
    config = hf.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 24, 32],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=4,
    )
    return hf.ResNetForImageClassification(config)


def unet() -> nn.Module:
    return UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        mid_block_type=None,
        cross_attention_dim=16,
        attention_head_dim=8,
        norm_num_groups=8,
    )


def _contrastive_inputs() -> Inputs:
    tokens = sentences()
    tokens[:, -1] = 2  # CLIP pools the end of the text
    return {"input_ids": tokens, "pixel_values": _pixels()}


def _speech() -> Inputs:
    return {"input_features": torch.randn(BATCH, 8, FRAMES), "labels": sentences()}


ZOO: dict[str, Case] = {
    "gpt2": Case(gpt2, padded, labelled),
    "llama": Case(llama, causal, labelled),
    "mistral": Case(mistral, padded, labelled),
    "mixtral": Case(mixtral, causal, labelled),
    "bert": Case(bert, padded, labelled),
    "t5": Case(t5, padded, labelled),
    "vit": Case(vit, classes, labelled),
    "clip": Case(clip, _contrastive_inputs, _contrastive),
    "whisper": Case(whisper, _speech, labelled),
    "resnet18": Case(resnet18, partial(classes, 64), labelled),
    "unet": Case(unet, _diffusion, _denoising),
}
