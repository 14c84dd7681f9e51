"""Programs of the shape of public scripts, by one command: all devices compute, and the losses are
the CPU's."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, own_environment

START = """
import sys
import torch
from torch import nn
device, folder = sys.argv[1:]

def ids(row, length=16):
    return [3 + (row * 7 + word * word) % 60 for word in range(length)]

def printed(trainer):
    trainer.train()
    for entry in trainer.state.log_history:
        if "loss" in entry:
            print("loss", entry["loss"])

trained = {
    "output_dir": folder, "report_to": [], "disable_tqdm": True, "logging_steps": 1, "max_steps": 4,
    "learning_rate": 1e-2, "save_strategy": "no", "use_cpu": device == "cpu",
    "per_device_train_batch_size": 16,
}
sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
undropped = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
"""
GLUE = """
import json
from datasets import load_dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from transformers import default_data_collator, set_seed

set_seed(0)
with open(folder + "/train.json", "w") as file:
    for row in range(64):
        file.write(json.dumps({"input_ids": ids(row), "label": row % 3}) + "\\n")
data = load_dataset("json", data_files={"train": folder + "/train.json"}, cache_dir=folder)["train"]
config = BertConfig(
    vocab_size=64, intermediate_size=128, num_labels=3, max_position_embeddings=16,
    **sizes, **undropped,
)
model = BertForSequenceClassification(config)
trainer = Trainer(
    model, TrainingArguments(**trained), default_data_collator, train_dataset=data,
    eval_dataset=data,
    compute_metrics=lambda p: {"right": (p.predictions.argmax(1) == p.label_ids).mean()},
)
print("loss", trainer.evaluate()["eval_loss"])
printed(trainer)
"""
CLM = """
from itertools import chain
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers import default_data_collator, set_seed

set_seed(0)
texts = Dataset.from_dict({"input_ids": [ids(row, 11) for row in range(128)]})

def blocks(rows):
    flat = list(chain(*rows["input_ids"]))
    cut = [flat[start : start + 16] for start in range(0, len(flat) // 16 * 16, 16)]
    return {"input_ids": cut, "labels": cut}

data = texts.map(blocks, batched=True)
config = GPT2Config(
    vocab_size=64, n_positions=16, n_embd=64, n_layer=2, n_head=4,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
)
printed(Trainer(
    GPT2LMHeadModel(config), TrainingArguments(**trained), default_data_collator, train_dataset=data
))
"""
IMAGES = """
from datasets import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

set_seed(0)
pixels = torch.rand(64, 3, 16, 16)
data = Dataset.from_dict({"row": list(range(64))}).with_transform(
    lambda rows: {"pixel_values": [pixels[row] for row in rows["row"]], "row": rows["row"]}
)

def collated(rows):
    return {
        "pixel_values": torch.stack([row["pixel_values"] for row in rows]),
        "labels": torch.tensor([row["row"] % 4 for row in rows]),
    }

config = ViTConfig(
    image_size=16, patch_size=4, num_labels=4, intermediate_size=128, **sizes, **undropped
)
arguments = TrainingArguments(**trained, remove_unused_columns=False)
printed(Trainer(ViTForImageClassification(config), arguments, collated, train_dataset=data))
"""
NLP = """
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification
from transformers import get_linear_schedule_with_warmup, set_seed

set_seed(0)
accelerator = Accelerator(cpu=device == "cpu")
config = BertConfig(
    vocab_size=64, intermediate_size=128, num_labels=2, max_position_embeddings=16,
    **sizes, **undropped,
)
model = BertForSequenceClassification(config)

def collated(rows):  # to the longest text
    texts = [torch.tensor(ids(row, 5 + row % 12)) for row in rows]
    padded = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    labels = torch.tensor(rows) % 2
    return {"input_ids": padded, "attention_mask": (padded > 0).long(), "labels": labels}

loader = DataLoader(list(range(64)), batch_size=16, collate_fn=collated)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = get_linear_schedule_with_warmup(optimizer, 1, 8)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for epoch in range(2):
    for batch in loader:
        outputs = model(**batch)
        accelerator.backward(outputs.loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        right = accelerator.gather_for_metrics(outputs.logits.argmax(-1) == batch["labels"])
        assert len(right) == 16
        print("loss", outputs.loss.item())
"""
TUNED = """
import copy
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

set_seed(0)
names = {"<pad>": 0, "</s>": 1, "<unk>": 2, **{f"w{place}": place for place in range(3, 64)}}
words = Tokenizer(models.WordLevel(names, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
)
config = LlamaConfig(
    vocab_size=64, intermediate_size=128, pad_token_id=0, eos_token_id=1,
    max_position_embeddings=64, **sizes,
)
model = LlamaForCausalLM(config)
texts = [" ".join(f"w{word}" for word in ids(row, 9)) for row in range(64)]
trained |= {"max_length": 16, "pad_to_multiple_of": 16, "bf16": False}
"""
SFT = (
    TUNED
    + """
data = Dataset.from_dict({"text": texts})
arguments = SFTConfig(**trained)
printed(SFTTrainer(model, args=arguments, train_dataset=data, processing_class=tokenizer))
"""
)
DPO = (
    TUNED
    + """
rejected = texts[1:] + texts[:1]
data = Dataset.from_dict({"prompt": texts, "chosen": texts[::-1], "rejected": rejected})
arguments = DPOConfig(**trained)
reference = copy.deepcopy(model)
printed(DPOTrainer(
    model, reference, args=arguments, train_dataset=data, processing_class=tokenizer
))
"""
)
# The device, and the operations of each program on one device and before it was partitioned.
RUN = """
import atexit, runpy, sys, spmd
from spmd.core.programs import miscompiles

compile_right, rows = miscompiles.compile_right, []

def noted(lowered, *args):
    result = compile_right(lowered, *args)
    rows.append([x.cost_analysis().get("flops", 0) for x in (lowered, result[0])])
    return result

miscompiles.compile_right = noted
atexit.register(lambda: [print("operations", *row) for row in rows])
runpy.run_module("spmd", run_name="__main__")
"""


def ran(folder: Path, script: str, device: str) -> tuple[list[float], list[list[float]]]:
    """The losses of a script, and the operations of its programs."""
    path, out = folder / "train.py", folder / device
    out.mkdir()
    path.write_text(START + script)
    command = ["-c", RUN, "run", "--devices", "8"] if device == "xla" else []
    done = subprocess.run(
        [sys.executable, *command, str(path), device, str(out)],
        capture_output=True,
        text=True,
        timeout=400,
        env=own_environment(),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    words = [line.split() for line in done.stdout.splitlines()]
    return [float(word[1]) for word in words if word[0] == "loss"], [
        [*map(float, word[1:])] for word in words if word[0] == "operations"
    ]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, id=name)
        for name, script in {
            "run_glue": GLUE,
            "run_clm": CLM,
            "run_image_classification": IMAGES,
            "nlp_example": NLP,
            "sft": SFT,
            "dpo": DPO,
        }.items()
    ],
)
def test_all_devices_compute(script: str, tmp_path: Path) -> None:
    expected, _ = ran(tmp_path, script, "cpu")
    losses, operations = ran(tmp_path, script, "xla")
    assert len(losses) >= 4
    assert losses == pytest.approx(expected, rel=2e-3, abs=1e-4)  # printed to four digits
    of_whole, of_device = max(operations)
    print("of an eighth", 8 * of_device / of_whole)
    assert of_device <= 1.2 * of_whole / 8
