"""fsdp.show: the units of a model, with the bytes that each gathers and that a device keeps."""

import copy

import pytest
import torch
from torch import nn
from wrapped import FSDP, Layer, Net

import fsdp
import spmd
from spmd import P


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.body = Layer(16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight
        self.body.requires_grad_(False)


class TestShow:
    """show(model): one row per unit and one per parameter."""

    def test_bytes(self, mesh8: spmd.Mesh) -> None:
        shown = fsdp.show(FSDP(Net(), mesh8, auto_wrap_policy={Layer}))
        root, first, second = shown.units
        assert (root.name, first.name, second.name) == ("", "blocks.0", "blocks.1")
        assert (
            root.gathered_bytes == 4 * (8 * 16 + 8) and root.kept_bytes == root.gathered_bytes // 8
        )
        assert first.gathered_bytes == 4 * sum(
            parameter.numel() for parameter in Layer(16).parameters()
        )
        assert first.kept_bytes == first.gathered_bytes // 8
        (weight, bias) = root.parameters
        assert (weight.names, weight.shape, weight.spec) == (
            ("head.weight",),
            (8, 16),
            P(None, "fsdp"),
        )
        assert (weight.num_bytes, weight.kept_bytes, bias.spec) == (512, 64, P("fsdp"))

    def test_what_is_gathered_in_another_dtype(self, mesh8: spmd.Mesh) -> None:
        policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        (unit,) = fsdp.show(FSDP(nn.Linear(8, 8, bias=False), mesh8, mp_policy=policy)).units
        assert (unit.gathered_bytes, unit.kept_bytes) == (8 * 8 * 2, 8 * 4)

    def test_padded(self, mesh8: spmd.Mesh) -> None:
        (unit,) = fsdp.show(FSDP(nn.Linear(10, 7, bias=False), mesh8)).units
        assert unit.kept_bytes == 7 * 2 * 4  # ten columns over eight devices: two each

    def test_notes(self, mesh8: spmd.Mesh) -> None:
        model = Tied()
        fsdp.fully_shard(model.body, mesh=mesh8, ignored_params={model.body.norm.weight})
        fsdp.fully_shard(model, mesh=mesh8, offload_policy=fsdp.CPUOffloadPolicy())
        root, body = fsdp.show(model).units
        assert [(row.names, row.notes) for row in root.parameters] == [
            (("embed.weight", "head.weight"), ("tied", "on the host"))
        ]
        assert body.parameters[-1].names == ("body.norm.weight",)
        assert body.parameters[-1].notes == ("ignored", "frozen")

    def test_text(self, mesh8: spmd.Mesh) -> None:
        text = str(fsdp.show(FSDP(Net(), mesh8, auto_wrap_policy={Layer})))
        lines = text.splitlines()
        assert lines[1].startswith("(root): Net") and lines[1].endswith("kept after forward")
        # Equal blocks share a row, those that differ have their own; the total counts each.
        row = ["blocks.0", "to", "blocks.1:", "Layer,", "2", "equal", "4.31", "KiB", "552", "B"]
        assert any(line.split() == row for line in lines)
        assert any(
            line.split()[:1] == ["blocks.0.up.weight"] and "P('fsdp', None)" in line
            for line in lines
        )
        assert not any("blocks.1.up" in line for line in lines) and " 9.16 KiB" in lines[-1]
        other = Net()
        other.blocks[1].requires_grad_(False)
        assert "blocks.1.up.weight" in str(fsdp.show(FSDP(other, mesh8, auto_wrap_policy={Layer})))
        assert lines[-1].split() == ["total", "9.16", "KiB", "1.14", "KiB"]

    def test_a_plain_model(self) -> None:
        with pytest.raises(ValueError, match="Net has no units; wrap it with fsdp first"):
            fsdp.show(Net())

    def test_a_meta_model(self, mesh8: spmd.Mesh) -> None:
        with torch.device("meta"):
            model = fsdp.fully_shard(copy.deepcopy(nn.Linear(8, 8)), mesh=mesh8)
        assert "not on the device" in str(fsdp.show(model))
