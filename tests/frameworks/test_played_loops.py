"""Loops of transformers and accelerate, played beside recorded: equal bits, and the model's calls
are replayed."""

import contextlib
from pathlib import Path
from typing import Any

import played_loops
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from played_loops import Net, Trace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import fsdp
import spmd

pytestmark = [
    pytest.mark.usefixtures("use"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]


def llama() -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, max_position_embeddings=64,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    ))  # fmt: skip


def gpt2() -> nn.Module:
    """It has dropout."""
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=4)
    )


def bert() -> nn.Module:
    """It has dropout."""
    return BertForSequenceClassification(BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=16, id2label=dict(enumerate("abcd")),
    ))  # fmt: skip


def token_rows(number: int, *, has_classes: bool) -> list[dict[str, Any]]:
    draws = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 64, (number, 16), generator=draws)
    mask = torch.ones(16, dtype=torch.long)
    mask[-2:] = 0
    return [
        {
            "input_ids": row,
            "attention_mask": mask,
            "labels": int(row.sum()) % 4 if has_classes else row,
        }
        for row in ids
    ]


TRAINER: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "accumulated": {"gradient_accumulation_steps": 2, "max_steps": 8},
    "bfloat16": {"bf16": True},
    "checkpointed": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    },
    "evaluated": {"eval_strategy": "steps", "eval_steps": 2},
    "cosine": {"lr_scheduler_type": "cosine", "warmup_steps": 2, "weight_decay": 0.1},
    "SGD": {"optim": "sgd"},
    "smoothed": {"label_smoothing_factor": 0.1},
    "FSDP": {
        "fsdp": "full_shard",
        "fsdp_config": {
            "xla": True,
            "xla_fsdp_v2": True,
            "fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
        },
    },
}


class TestTrainer:
    """transformers' Trainer."""

    @pytest.mark.parametrize("name", TRAINER)
    def test_llama(self, name: str, tmp_path: Path) -> None:
        self.check(llama, tmp_path, **TRAINER[name])

    def test_gpt2(self, tmp_path: Path) -> None:
        self.check(gpt2, tmp_path)

    def test_bert(self, tmp_path: Path) -> None:
        self.check(bert, tmp_path)

    def check(self, make: Any, folder: Path, **given: Any) -> None:
        def loop(trace: Trace) -> None:
            AcceleratorState._reset_state(reset_partial_state=True)
            usual: dict[str, Any] = {"per_device_train_batch_size": 8, "max_steps": 10}
            usual |= {"logging_steps": 1, "learning_rate": 1e-2}
            arguments = TrainingArguments(
                str(folder), report_to=[], disable_tqdm=True, save_strategy="no",
                **{**usual, **given},
            )  # fmt: skip
            rows = token_rows(64, has_classes=make is bert)
            trainer = Trainer(make(), arguments, train_dataset=rows, eval_dataset=rows[:16])
            trainer.train()
            optimizer: Any = trainer.optimizer
            trace.watch(trainer.model_wrapped, optimizer.optimizer)
            for log in trainer.state.log_history:
                for key, value in log.items():
                    if key in ("loss", "grad_norm", "eval_loss"):
                        trace.read(key, value)

        with contextlib.redirect_stdout(None):
            trace = played_loops.compare(loop)
        assert trace.segment(trace.parts[0]).num_replayed >= 6, trace.explain()


class TestAccelerate:
    """accelerate's script."""

    @pytest.mark.parametrize("wrap", [None, fsdp.fully_shard, fsdp.FullyShardedDataParallel])
    @pytest.mark.parametrize("accumulated", [1, 2])
    def test_script(self, wrap: Any, accumulated: int, mesh8: spmd.Mesh) -> None:
        def loop(trace: Trace) -> None:
            AcceleratorState._reset_state(reset_partial_state=True)
            accelerator = Accelerator(gradient_accumulation_steps=accumulated)
            data = TensorDataset(torch.randn(96, 8), torch.randint(0, 4, (96,)))
            loader = DataLoader(data, batch_size=8, shuffle=True)
            model: nn.Module = Net()
            if wrap is not None:
                model = wrap(model, mesh=mesh8)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
            model, wrapped, loader, schedule = accelerator.prepare(
                model, optimizer, loader, schedule
            )
            trace.watch(model, optimizer)
            for x, y in loader:
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(x), y)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        trace.read("norm", accelerator.clip_grad_norm_(model.parameters(), 0.5))
                    wrapped.step()
                    schedule.step()
                    trace.step(loss)
                    wrapped.zero_grad()

        trace = played_loops.compare(loop)
        assert trace.segment(trace.parts[0]).num_replayed >= 6, trace.explain()
