"""The zoo with more Hugging Face families, each of an architecture that the zoo does not have;
their tests are long."""

from functools import partial

import pytest
import torch
import transformers as hf
from models.zoo import (
    BATCH,
    ENCODER,
    LLAMA,
    SEQUENCE,
    VOCABULARY,
    ZOO,
    Case,
    Inputs,
    causal,
    classes,
    labelled,
    padded,
    sentences,
)
from torch import Tensor, nn

SAMPLES = 200  # of a sound


def _marked() -> Inputs:
    """Sentences of which each token is marked as replaced or original."""
    return {"input_ids": sentences(), "labels": torch.randint(0, 2, (BATCH, SEQUENCE))}


def _sound() -> Inputs:
    return {"input_values": torch.randn(BATCH, SAMPLES), "labels": sentences(4)}


def _transcribed(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The loss of `Wav2Vec2ForCTC`, which reads a value of the labels where it is given them."""
    logits = model(inputs["input_values"]).logits
    lengths = tuple(
        torch.full((BATCH,), size) for size in (logits.shape[1], inputs["labels"].shape[1])
    )
    log_probs = logits.log_softmax(-1).transpose(0, 1)
    return nn.functional.ctc_loss(log_probs, inputs["labels"], *lengths, zero_infinity=True), logits


def qwen3() -> nn.Module:
    """Norms of queries and keys; word embeddings are the last layer's weight."""
    return hf.Qwen3ForCausalLM(hf.Qwen3Config(**LLAMA, head_dim=8, tie_word_embeddings=True))


def gemma2() -> nn.Module:
    """Soft caps of scores and logits; every second layer looks at a window."""
    config = hf.Gemma2Config(**LLAMA, head_dim=8, sliding_window=8, query_pre_attn_scalar=8)
    return hf.Gemma2ForCausalLM(config)


def gpt_neox() -> nn.Module:
    """Attention and MLP beside each other; rotations of a quarter of each head."""
    config = hf.GPTNeoXConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
    )
    return hf.GPTNeoXForCausalLM(config)


def gpt_oss() -> nn.Module:
    """Experts with biases, clamped gates, and a sink in each softmax."""
    config = hf.GptOssConfig(
        **LLAMA,
        head_dim=8,
        sliding_window=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        attention_bias=False,
    )
    return hf.GptOssForCausalLM(config)


def deepseek_v3() -> nn.Module:
    config = hf.DeepseekV3Config(
        **LLAMA | {"num_key_value_heads": 4},
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        first_k_dense_replace=1,
    )
    return hf.DeepseekV3ForCausalLM(config)


def opt() -> nn.Module:
    """Positions counted from the mask."""
    config = hf.OPTConfig(
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
        dropout=0.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return hf.OPTForCausalLM(config)


def bloom() -> nn.Module:
    """Biases by distance (ALiBi) in place of positions."""
    config = hf.BloomConfig(
        hidden_size=32,
        n_layer=2,
        n_head=4,
        vocab_size=VOCABULARY,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    return hf.BloomForCausalLM(config)


def electra() -> nn.Module:
    return hf.ElectraForPreTraining(
        hf.ElectraConfig(
            **ENCODER,
            vocab_size=VOCABULARY,
            embedding_size=16,
            max_position_embeddings=64,
            initializer_range=0.2,
        )
    )


def deberta_v2() -> nn.Module:
    """Attention to contents and to relative positions apart."""
    config = hf.DebertaV2Config(
        **ENCODER,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        type_vocab_size=0,
    )
    return hf.DebertaV2ForMaskedLM(config)


def bart() -> nn.Module:
    config = hf.BartConfig(
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        dropout=0.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=2,
    )
    return hf.BartForConditionalGeneration(config)


def swin() -> nn.Module:
    """Windows that are shifted from layer to layer; patches are merged."""
    config = hf.SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 1],
        num_heads=[2, 4],
        window_size=4,
        drop_path_rate=0.0,
        num_labels=4,
        initializer_range=0.2,
    )
    return hf.SwinForImageClassification(config)


def convnext() -> nn.Module:
    """Convolutions of each channel by itself, norms over channels."""
    config = hf.ConvNextConfig(
        hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=2, num_labels=4
    )
    return hf.ConvNextForImageClassification(config)


def wav2vec2() -> nn.Module:
    """Sound by convolutions that are frozen, as for fine-tuning, with CTC as its loss."""
    config = hf.Wav2Vec2Config(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        conv_dim=[16, 16],
        conv_stride=[5, 2],
        conv_kernel=[10, 3],
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
        vocab_size=VOCABULARY,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        feat_proj_dropout=0.0,
        activation_dropout=0.0,
        final_dropout=0.0,
        layerdrop=0.0,
        apply_spec_augment=False,
    )
    model = hf.Wav2Vec2ForCTC(config)
    model.freeze_feature_encoder()
    return model


def mamba() -> nn.Module:
    """A state space in place of attention."""
    config = hf.MambaConfig(
        hidden_size=16, state_size=4, num_hidden_layers=1, vocab_size=VOCABULARY
    )
    return hf.MambaForCausalLM(config)


def rwkv() -> nn.Module:
    """A recurrence over the tokens, in Python."""
    config = hf.RwkvConfig(
        hidden_size=16,
        attention_hidden_size=16,
        num_hidden_layers=2,
        vocab_size=VOCABULARY,
        context_length=32,
    )
    return hf.RwkvForCausalLM(config)


FAMILIES: dict[str, Case] = {
    **ZOO,
    "qwen3": Case(qwen3, causal, labelled),
    "gemma2": Case(gemma2, padded, labelled),
    "gpt_neox": Case(gpt_neox, causal, labelled),
    "gpt_oss": Case(gpt_oss, causal, labelled),
    "deepseek_v3": Case(deepseek_v3, causal, labelled),
    "opt": Case(opt, padded, labelled),
    "bloom": Case(bloom, padded, labelled),
    "electra": Case(electra, _marked, labelled),
    "deberta_v2": Case(deberta_v2, padded, labelled),
    "bart": Case(bart, padded, labelled),
    "swin": Case(swin, partial(classes, 32), labelled),
    "convnext": Case(convnext, partial(classes, 32), labelled),
    "wav2vec2": Case(wav2vec2, _sound, _transcribed),
    "mamba": Case(mamba, causal, labelled),
    "rwkv": Case(rwkv, causal, labelled),
}

# For `parametrize`: the zoo's tests run in `make test`.
NAMES = [
    *ZOO,
    *(pytest.param(name, marks=pytest.mark.long) for name in FAMILIES if name not in ZOO),
]
