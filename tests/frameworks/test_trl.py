"""trl's SFTTrainer on the device, of all weights and of peft's adapters: the CPU's losses and
files."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from datasets import Dataset
from peft import LoraConfig, PeftModel
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import spmd

pytestmark = [
    pytest.mark.usefixtures("use"),
    # names that transformers 6 will not have
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]

TEXTS = [
    " ".join(f"w{3 + (place * 7 + word * word) % 60}" for word in range(5 + place % 9))
    for place in range(32)
]
LORA = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
    }
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(pad_token_id=0, eos_token_id=1, **sizes, **heads))


def tuned(folder: Path, lora: LoraConfig | None = None, **given: Any) -> SFTTrainer:
    AcceleratorState._reset_state(reset_partial_state=True)
    names = {"<pad>": 0, "</s>": 1, "<unk>": 2, **{f"w{place}": place for place in range(3, 64)}}
    words = Tokenizer(models.WordLevel(names, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    # A batch is padded to its longest text: to few lengths, so that there are few programs.
    arguments = SFTConfig(
        str(folder),
        report_to=[],
        disable_tqdm=True,
        max_steps=3,
        logging_steps=1,
        learning_rate=1e-2,
        max_length=16,
        pad_to_multiple_of=16,
        per_device_train_batch_size=8,
        save_strategy="no",
        **given,
    )
    texts = Dataset.from_dict({"text": TEXTS})
    made = SFTTrainer(
        llama(), arguments, train_dataset=texts, processing_class=tokenizer, peft_config=lora
    )
    made.train()
    made.save_model(str(folder / "saved"))
    return made


def check(made: SFTTrainer, expected: SFTTrainer, tolerance: float = 2e-5) -> None:
    assert (made.args.device.type, expected.args.device.type) == ("xla", "cpu")
    # trl 0.20 logs no entropy of a model with adapters, on the CPU either.
    names = [
        name
        for name in ("loss", "grad_norm", "mean_token_accuracy", "entropy")
        if name in expected.state.log_history[0]
    ]
    assert names[:3] == ["loss", "grad_norm", "mean_token_accuracy"]
    found = [
        [[log[name] for name in names] for log in one.state.log_history[:-1]]
        for one in (made, expected)
    ]
    assert len(found[0]) == 3
    torch.testing.assert_close(*found, rtol=tolerance, atol=tolerance)


class TestSft:
    """Fine-tuning on texts, in the configuration's own bfloat16 or without."""

    def test_adapters(self, tmp_path: Path) -> None:
        before = spmd.metrics.num_compiles()
        made = tuned(tmp_path / "xla", LORA, bf16=False)
        assert spmd.metrics.num_compiles() - before <= 7
        check(made, tuned(tmp_path / "cpu", LORA, bf16=False, use_cpu=True))
        read = [
            PeftModel.from_pretrained(llama(), tmp_path / where / "saved")
            for where in ("xla", "cpu")
        ]
        found = [dict(one.named_parameters()) for one in read]
        changed = [name for name in found[1] if "lora_B" in name]
        assert len(changed) == 2 and all(found[1][name].abs().sum() > 0 for name in changed)
        torch.testing.assert_close(*found, rtol=2e-5, atol=2e-5)

    @pytest.mark.long
    def test_all_weights(self, tmp_path: Path) -> None:
        check(tuned(tmp_path / "xla"), tuned(tmp_path / "cpu", use_cpu=True), 2e-2)

    @pytest.mark.long
    def test_packed(self, tmp_path: Path) -> None:
        given = {"packing": True, "bf16": False}
        check(tuned(tmp_path / "xla", **given), tuned(tmp_path / "cpu", use_cpu=True, **given))

    @pytest.mark.long
    def test_sharded_adapters(self, tmp_path: Path) -> None:
        config = {
            "xla": True,
            "xla_fsdp_v2": True,
            "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
        }
        made = tuned(tmp_path / "xla", LORA, bf16=False, fsdp="full_shard", fsdp_config=config)
        weight = made.model.base_model.model.model.layers[0].self_attn.q_proj.base_layer.weight
        assert spmd.get_sharding(weight).partition_spec(2) == spmd.P("fsdp", None)
        check(made, tuned(tmp_path / "cpu", LORA, bf16=False, use_cpu=True))
