"""Mixtral under FSDP x expert against one device: loss, gradients, load of the experts; the
recipe's report."""

import copy
from pathlib import Path

import pytest
import torch
from support import check
from transformers import MixtralForCausalLM

import spmd
from recipes import train_mixtral
from recipes.placement import MeshPlacement
from recipes.train_mixtral import AXES
from spmd import config

TINY = [
    "--layers=2",
    "--width=32",
    "--heads=4",
    "--sequence=16",
    "--batch=16",
    "--warmup=1",
    "--steps=4",
    "--eval-every=4",
    "--sample=0",
    "--experts=8",
]


class TestExperts:
    """The experts of other devices compute a token's choices: results and gradients are those of
    one device."""

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    @pytest.mark.parametrize("mesh", ["fsdp=2,expert=4", "expert=8,fsdp=1", "fsdp=8"])
    def test_training_step(
        self, mesh: str, partitioner: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(config, "partitioner", partitioner)
        args = train_mixtral.parse([*TINY, "--mesh", mesh])
        torch.manual_seed(0)
        plain = MixtralForCausalLM(train_mixtral.configure(args))
        place = MeshPlacement(args, train_mixtral.shard, batch_axes=AXES)
        model = place.wrap(copy.deepcopy(plain).to("xla"))
        tokens = torch.randint(256, (16, 16))
        expected = plain(input_ids=tokens, labels=tokens).loss
        expected.backward()
        given = place.put(tokens)
        loss = model(input_ids=given, labels=given).loss
        loss.backward()
        check(loss, expected)
        for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert ours.grad is not None and theirs.grad is not None, name
            check(ours.grad, theirs.grad)
        weight = model.model.layers[0].mlp.experts.down_proj
        assert spmd.local_shards(weight)[0].data.shape[0] == 8 // args.mesh.get("expert", 1), (
            "each device has its own"
        )


@pytest.mark.parametrize("where", ["--compile", "--device=cpu"])
def test_report(where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_mixtral.main([*TINY, where, "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert (
        "Tokens per expert, of 512 choices" in printed
        and "fullest / even" in printed
        and "held-out loss" in printed
    )
    assert ("calls recorded" in printed) == (where == "--compile")
    for name in ("loss.png", "experts.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


class TestTarget:
    """--target plans the step for other devices; nothing is trained."""

    def test_planned(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        train_mixtral.main([*TINY, "--target=cpu:8", "--out", str(tmp_path)])
        printed = capsys.readouterr().out
        assert (
            "cpu:8 (fsdp=2, expert=4)" in printed
            and "optimizer state" in printed
            and "held-out" not in printed
        )
        assert [path.name for path in tmp_path.iterdir()] == ["plan.html"]
