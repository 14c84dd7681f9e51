"""LoRA as a user trains it: a few tiny steps; only adapters change, and sharded losses are plain
PyTorch's."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import spmd
from recipes import finetune_lora, packed, text

SIZES = ["--layers=1", "--width=16", "--heads=2", "--sequence=64", "--batch=64", "--rank=2"]
TINY = [*SIZES, "--steps=2", "--base-steps=2", "--warmup=1", "--eval-every=2", "--sample=3"]


class TestReport:
    """It prints the bytes of base and adapters and the losses of the saved files, and leaves
    loss.png."""

    def test_plain_pytorch(self, tmp_path: Path) -> None:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            finetune_lora.main([*TINY, "--device=cpu", "--out", str(tmp_path)])
        found = printed.getvalue()
        assert re.search(r"frozen base +[\d,]+ +[\d.]+ KiB +0 B +0 B", found)
        assert re.search(r"adapters +[\d,]+( +[\d.]+ KiB){3}", found)
        assert "the base's weights are those of its files" in found
        read, merged = re.findall(r"^OUT/.* CPU +([\d.]+) +([\d.]+) *$", found, re.MULTILINE)
        after = re.findall(r"nats per byte before, ([\d.]+) after", found)[0]
        assert [float(loss) for loss in read] == pytest.approx(
            [float(loss) for loss in merged], abs=2e-4
        )
        assert float(read[0]) == pytest.approx(float(after), abs=2e-4)
        assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


# in peft
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
class TestSharded:
    """The base is read from several files into shards; the losses of a step, and all that is saved,
    are the CPU's."""

    def test_a_base_in_four_bits(self, tmp_path: Path) -> None:
        """Packed layers are read from the files of weights, sharded, and widened for a merge."""
        args, plain_args = (
            finetune_lora.parse([*TINY, f"--device={device}", "--base=int4"])
            for device in ("xla", "cpu")
        )
        AutoModelForCausalLM.from_config(finetune_lora.configure(args)).save_pretrained(tmp_path)
        model, plain = (
            finetune_lora.adapt(tmp_path, args),
            finetune_lora.adapt(tmp_path, plain_args),
        )
        model.load_state_dict(plain.state_dict())
        assert finetune_lora.unchanged(model, tmp_path)
        ours, theirs = map(packed.buffers_of, (model, plain))
        assert len(ours) == 2 * len(finetune_lora.TARGETS)
        for buffer, reference in zip(ours, theirs, strict=True):
            assert torch.equal(buffer.cpu(), reference)
        assert "fsdp" in spmd.get_sharding(ours[0]).partition_spec(2)
        tokens = next(text.batches(text.load_code().train, batch=8, sequence=16, seed=0))[0]
        expected = plain(input_ids=tokens, labels=tokens).loss.item()
        put = finetune_lora.to_devices(tokens)
        assert model(input_ids=put, labels=put).loss.item() == pytest.approx(expected, abs=1e-4)
        merged = packed.widen_layers(plain).merge_and_unload()
        assert merged(input_ids=tokens, labels=tokens).loss.item() == pytest.approx(
            expected, abs=1e-4
        )

    def test_losses_and_memory(self, tmp_path: Path) -> None:
        args, plain_args = (
            finetune_lora.parse([*TINY, f"--device={device}"]) for device in ("xla", "cpu")
        )
        AutoModelForCausalLM.from_config(finetune_lora.configure(args)).save_pretrained(
            tmp_path, max_shard_size="20KB"
        )
        assert len([*tmp_path.glob("*.safetensors")]) > 1
        compiled = spmd.metrics.num_compiles()
        model, plain = (
            finetune_lora.adapt(tmp_path, args),
            finetune_lora.adapt(tmp_path, plain_args),
        )
        assert spmd.metrics.num_compiles() == compiled, (
            "the initial values of the base are never computed"
        )
        model.load_state_dict(plain.state_dict())
        batches = text.batches(text.load_code().train, batch=8, sequence=16, seed=0)
        tokens = [next(batches)[0] for _ in range(2)]
        losses = []
        for each, put in ((model, finetune_lora.to_devices), (plain, torch.Tensor.cpu)):
            optimizer = torch.optim.AdamW(each.parameters(), lr=1e-2, eps=1e-4)
            losses.append([self.step(each, optimizer, put(one)) for one in tokens])
            sizes = finetune_lora.memory(each, optimizer).columns
            assert next(iter(sizes[3].cells)) == next(iter(sizes[4].cells)) == "0 B", (
                "the base has neither"
            )
        assert losses[0] == pytest.approx(losses[1], abs=1e-4)
        assert finetune_lora.unchanged(model, tmp_path)
        assert all(not spmd.get_sharding(weight).is_replicated() for weight in model.parameters())

        model.module.save_pretrained(tmp_path / "adapters")
        plain.save_pretrained(tmp_path / "plain")
        ours, theirs = (
            load_file(tmp_path / name / "adapter_model.safetensors")
            for name in ("adapters", "plain")
        )
        assert ours.keys() == theirs.keys() and all("lora_" in name for name in ours)
        for name, weight in theirs.items():
            assert (ours[name] - weight).abs().max() < 1e-4, name

    def step(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor
    ) -> float:
        optimizer.zero_grad()
        loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss.item()


# in peft
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
class TestTarget:
    """--target plans the step for other devices; nothing is trained."""

    def test_planned(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        finetune_lora.main([*TINY, "--target=cpu:8", "--out", str(tmp_path)])
        printed = capsys.readouterr().out
        assert (
            "cpu:8 (fsdp=8)" in printed
            and "optimizer state" in printed
            and "held-out" not in printed
        )
        assert [path.name for path in tmp_path.iterdir()] == ["plan.html"]


class TestArguments:
    """A wrong command line is an error that says what to do, before anything runs."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--mesh tensor=8", "the axes are fsdp and, if wanted, data, each once"),
            ("--batch 12", "--batch 12 must be a multiple of the 8 devices that share it"),
            ("--base nowhere", "--base nowhere has no config.json"),
            ("--base-steps 0", "--base-steps must be at least 1"),
        ],
    )
    def test_refused(
        self, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            finetune_lora.parse(arguments.split())
        assert message in capsys.readouterr().err
