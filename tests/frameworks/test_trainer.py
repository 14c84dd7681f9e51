"""transformers' Trainer on the device: the CPU's losses, evaluations, checkpoints; sharded by its
`fsdp_config`."""

import copy
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate.state import AcceleratorState
from tokenizers import Tokenizer, models
from transformers import (
    DataCollatorForSeq2Seq,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
)
from transformers.models.llama import modeling_llama
from transformers.models.t5 import modeling_t5

import fsdp
import spmd

# Names that transformers 6 will not have.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:transformers")

FSDP = {
    "xla": True,
    "xla_fsdp_v2": True,
    "fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
}


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models in float64 stay in it, where transformers converts to float32 for norms, softmax and
    losses.

    In float32, Adam makes of the rounding errors of a gradient that is almost 0 steps of the size
    of the others: with transformers 4 losses of the device and of the CPU differ by 6e-5 after four
    steps, in float64 by less than 1e-9.
    """
    doubled = types.ModuleType("torch")
    vars(doubled).update(vars(torch), float32=torch.float64)
    for module in (modeling_llama, modeling_t5):
        monkeypatch.setattr(module, "torch", doubled)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    }
    heads = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads))


def gpt2_with_dropout() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=4)
    )


def rows(number: int, seed: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randint(0, 64, (16,), generator=generator) for _ in range(number)]
    return [{"input_ids": ids, "labels": ids} for ids in made]


def trainer(folder: Path, model: Any = None, **given: Any) -> Trainer:
    AcceleratorState._reset_state(reset_partial_state=True)
    usual = {
        "per_device_train_batch_size": 8,
        "max_steps": 4,
        "logging_steps": 1,
        "learning_rate": 1e-2,
    }
    arguments = TrainingArguments(
        str(folder), report_to=[], disable_tqdm=True, **{**usual, **copy.deepcopy(given)}
    )
    return Trainer(model or llama(), arguments, train_dataset=rows(64, 1), eval_dataset=rows(16, 2))


def history(made: Trainer) -> list[tuple[int, str, float]]:
    """(step, name, value) of losses, norms of gradients and evaluations."""
    names = ("loss", "grad_norm", "eval_loss", "eval_sum", "train_loss")
    return [
        (log["step"], name, log[name])
        for log in made.state.log_history
        for name in names
        if name in log
    ]


def check(made: Trainer, expected: Trainer, tolerance: float = 2e-5) -> None:
    assert made.args.device.type == "xla"
    assert {parameter.device.type for parameter in made.model.parameters()} == {"xla"}
    assert expected.args.device.type == "cpu"
    ours, theirs = history(made), history(expected)
    assert [entry[:2] for entry in ours] == [entry[:2] for entry in theirs] and ours
    values = [[entry[2] for entry in entries] for entries in (ours, theirs)]
    torch.testing.assert_close(*values, rtol=tolerance, atol=tolerance)


CASES = {
    "evaluation, clipping": (
        {"eval_strategy": "steps", "eval_steps": 2, "max_grad_norm": 0.1},
        2e-5,
        5,
    ),
    "accumulation, smoothing": (
        {
            "gradient_accumulation_steps": 2,
            "per_device_train_batch_size": 4,
            "label_smoothing_factor": 0.1,
        },
        2e-5,
        3,
    ),
    "bf16": ({"bf16": True}, 2e-2, 3),
}
MORE = {
    "defaults, read at the end alone": ({"logging_steps": 500, "max_steps": 20}, 2e-5, 3),
    "fp16": ({"fp16": True}, 2e-2, 4),
    "checkpointed": ({"gradient_checkpointing": True}, 2e-5, 3),
    "sgd": ({"optim": "sgd"}, 2e-5, 3),
    "adafactor": ({"optim": "adafactor"}, 2e-5, 3),
    "odd evaluation": (
        {"eval_strategy": "epoch", "max_steps": 10, "per_device_eval_batch_size": 6},
        2e-5,
        5,
    ),
}


@pytest.mark.usefixtures("use")
class TestArguments:
    """Each argument of a Trainer gives the CPU's losses, in few programs."""

    @pytest.mark.parametrize(("given", "tolerance", "programs"), CASES.values(), ids=CASES)
    def test_agrees(
        self, given: dict[str, Any], tolerance: float, programs: int, tmp_path: Path
    ) -> None:
        before = spmd.metrics.num_compiles()
        made = trainer(tmp_path / "xla", **given)
        made.train()
        assert spmd.metrics.num_compiles() - before <= programs
        expected = trainer(tmp_path / "cpu", use_cpu=True, **given)
        expected.train()
        check(made, expected, tolerance)

    @pytest.mark.long
    @pytest.mark.parametrize(("given", "tolerance", "programs"), MORE.values(), ids=MORE)
    def test_agrees_too(
        self, given: dict[str, Any], tolerance: float, programs: int, tmp_path: Path
    ) -> None:
        self.test_agrees(given, tolerance, programs, tmp_path)


@pytest.mark.usefixtures("unused")
class TestUnused:
    """Without `spmd.use()` a Trainer that moves a model from the device back to the CPU is
    named."""

    def test_warns(self, tmp_path: Path) -> None:
        model = llama().to("xla")
        with pytest.warns(
            UserWarning, match="transformers moves the model from xla to the CPU"
        ) as seen:
            trainer(tmp_path, model)
        assert len(seen) == 1 and seen[0].filename == __file__


@pytest.mark.usefixtures("use")
class TestCheckpoints:
    """A run that goes on from a checkpoint is the run without a pause, its random numbers too."""

    def test_resumes(self, tmp_path: Path) -> None:
        whole = trainer(tmp_path, gpt2_with_dropout(), save_steps=2)
        whole.train()
        resumed = trainer(tmp_path, gpt2_with_dropout(), save_steps=2)
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        losses = [entry for entry in history(whole) if entry[1] != "train_loss"]
        assert [entry for entry in history(resumed) if entry[1] != "train_loss"] == losses
        assert len({value for _, name, value in losses if name == "loss"}) == 4

    def test_is_read_on_the_cpu(self, tmp_path: Path) -> None:
        made = trainer(tmp_path, max_steps=2)
        made.train()
        read = LlamaForCausalLM.from_pretrained(tmp_path / "checkpoint-2")
        torch.testing.assert_close(read.lm_head.weight, made.model.lm_head.weight.cpu())


@pytest.mark.usefixtures("use")
class TestSharded:
    """`--fsdp full_shard` with xla_fsdp_v2 shards over all devices."""

    def test_agrees_and_resumes(self, float64: None, tmp_path: Path) -> None:
        given = {"save_steps": 2, "eval_strategy": "steps", "eval_steps": 4}
        before = spmd.metrics.num_compiles()
        made = trainer(
            tmp_path / "xla", llama().double(), fsdp="full_shard", fsdp_config=FSDP, **given
        )
        made.train()
        weight = made.model.model.layers[0].self_attn.q_proj.weight
        assert spmd.get_sharding(weight).partition_spec(2) == spmd.P("fsdp", None)
        assert isinstance(made.model, LlamaForCausalLM)
        state = made.optimizer.state[weight]["exp_avg"]
        assert spmd.get_sharding(state).partition_spec(2) == spmd.P("fsdp", None)
        resumed = trainer(
            tmp_path / "xla", llama().double(), fsdp="full_shard", fsdp_config=FSDP, **given
        )
        resumed.train(resume_from_checkpoint=str(tmp_path / "xla" / "checkpoint-2"))
        # One is for transformers 4's sum of losses alone, which begins in float32.
        assert spmd.metrics.num_compiles() - before <= (7 if transformers.__version__ < "5" else 6)
        expected = trainer(tmp_path / "cpu", llama().double(), use_cpu=True, **given)
        expected.train()
        check(made, expected, 1e-9)
        for entry, other in zip(history(resumed), history(expected), strict=True):
            assert entry[:2] == other[:2]
            if entry[1] != "train_loss":
                torch.testing.assert_close(entry[2], other[2], rtol=1e-9, atol=1e-9)

    @pytest.mark.long
    def test_checkpointed_layers_in_bfloat16(self, tmp_path: Path) -> None:
        config = {**FSDP, "xla_fsdp_grad_ckpt": True}
        made = trainer(tmp_path / "xla", fsdp="full_shard", fsdp_config=config, bf16=True)
        made.train()
        made.train()  # a model that is sharded already stays as it is
        expected = trainer(tmp_path / "cpu", use_cpu=True, bf16=True)
        expected.train()
        expected.train()
        check(made, expected, 2e-2)

    @pytest.mark.long
    def test_by_hand(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        model = llama()
        for layer in model.model.layers:
            fsdp.fully_shard(layer, mesh=mesh8)
        made = trainer(tmp_path / "xla", fsdp.fully_shard(model, mesh=mesh8))
        made.train()
        expected = trainer(tmp_path / "cpu", use_cpu=True)
        expected.train()
        check(made, expected)
        weight = made.model.model.layers[0].self_attn.q_proj.weight
        assert spmd.get_sharding(weight).partition_spec(2) == spmd.P("fsdp", None)

    def test_an_unknown_class(self, tmp_path: Path) -> None:
        config = {**FSDP, "fsdp_transformer_layer_cls_to_wrap": ["LlamaDecodeLayer"]}
        made = trainer(tmp_path, fsdp="full_shard", fsdp_config=config)
        with pytest.raises(
            ValueError, match=r"'LlamaDecodeLayer'.*did you mean 'LlamaDecoderLayer'"
        ):
            made.train()

    @pytest.mark.parametrize(
        ("settings", "dtype", "tolerance"),
        [
            ({}, torch.float64, 1e-9),
            ({"xla_fsdp_settings": {"compute_dtype": "bfloat16"}}, torch.float32, 2e-2),
        ],
    )
    def test_without_v2(
        self,
        settings: dict[str, Any],
        dtype: torch.dtype,
        tolerance: float,
        float64: None,
        tmp_path: Path,
    ) -> None:
        """PyTorch/XLA's first FSDP is the same mechanism, with its settings; checkpoints are
        whole."""
        given = {"fsdp": "full_shard", "fsdp_config": {"xla": True, **settings}, "save_steps": 4}
        made = trainer(tmp_path / "xla", llama().to(dtype), **given)
        made.train()
        expected = trainer(tmp_path / "cpu", llama().to(dtype), use_cpu=True, bf16=bool(settings))
        expected.train()
        check(made, expected, tolerance)
        weight = made.model.model.layers[0].self_attn.q_proj.weight
        assert weight.dtype == dtype and spmd.get_sharding(weight).partition_spec(2) == spmd.P(
            "fsdp", None
        )
        # transformers 4: in float32
        read = LlamaForCausalLM.from_pretrained(tmp_path / "xla" / "checkpoint-4")
        torch.testing.assert_close(read.lm_head.weight.to(dtype), made.model.lm_head.weight.cpu())


def words() -> PreTrainedTokenizerFast:
    names = {"<pad>": 0, "</s>": 1, "<unk>": 2, **{f"w{place}": place for place in range(3, 64)}}
    made = Tokenizer(models.WordLevel(names, unk_token="<unk>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def t5(folder: Path, **given: Any) -> Trainer:
    AcceleratorState._reset_state(reset_partial_state=True)
    torch.manual_seed(0)
    sizes = {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 1,
        "num_heads": 4,
        "dropout_rate": 0.0,
    }
    model = T5ForConditionalGeneration(
        T5Config(vocab_size=64, decoder_start_token_id=0, **sizes)
    ).double()
    arguments = Seq2SeqTrainingArguments(
        str(folder),
        report_to=[],
        disable_tqdm=True,
        max_steps=4,
        logging_steps=1,
        learning_rate=1e-2,
        predict_with_generate=True,
        generation_max_length=4,
        eval_strategy="steps",
        eval_steps=2,
        **given,
    )
    data = [
        {"input_ids": row["input_ids"][:8].tolist(), "labels": row["labels"][:5].tolist()}
        for row in rows(32, 1)
    ]
    return Seq2SeqTrainer(
        model,
        arguments,
        train_dataset=data,
        eval_dataset=data[:8],
        processing_class=words(),
        data_collator=DataCollatorForSeq2Seq(words(), model=model),
        compute_metrics=lambda found: {"sum": float(found.predictions.sum())},
    )


@pytest.mark.usefixtures("use")
class TestGenerating:
    """Evaluation by `generate` finds the tokens that the CPU finds."""

    def test_agrees(self, float64: None, tmp_path: Path) -> None:
        made = t5(tmp_path / "xla")
        before = spmd.metrics.num_compiles()
        made.train()
        assert spmd.metrics.num_compiles() - before <= 14
        expected = t5(tmp_path / "cpu", use_cpu=True)
        expected.train()
        check(made, expected, 1e-9)


class TestStepMeter:
    """`spmd.profiler.trainer_callback` measures a Trainer's loop."""

    def test_callback(self, use: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        meter = spmd.profiler.StepMeter(items_per_step=8, unit="rows")
        made = trainer(tmp_path, save_steps=2)
        made.add_callback(spmd.profiler.trainer_callback(meter))
        made.train()
        assert meter.num_steps == 4 and {"data", "checkpoint", "compile", "step"} <= set(
            meter.seconds
        )
        assert made.state.log_history[-2]["rows_per_second"] > 0
        assert "4 steps" in capsys.readouterr().out
