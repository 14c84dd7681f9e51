"""Big models start small: sharded loading of FSDP models, Hugging Face's by name, initialisation
from meta."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support import ROOT
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    LlamaConfig,
    T5Config,
)
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.t5.modeling_t5 import T5Block

import fsdp
import spmd

from .big_model import net

LAYERS, WIDTH = 25, 2048
MESHES = {"8": ((8,), ("fsdp",)), "2x4": ((2, 4), ("data", "fsdp")), "1": ((1,), ("fsdp",))}


def mesh_of(name: str) -> spmd.Mesh:
    shape, axes = MESHES[name]
    return spmd.Mesh(range(torch.Size(shape).numel()), shape, axes)


class TestPeak:
    """A model of 400 MB, in tensors of 16, needs less than one of them in addition to its devices'
    arrays."""

    @pytest.mark.parametrize("file", ["model.safetensors", "model.pt"])
    def test_peak(self, file: str, tmp_path: Path) -> None:
        source = net(LAYERS, WIDTH)
        (save_file if "safe" in file else torch.save)(source.state_dict(), tmp_path / file)
        command = [
            sys.executable,
            str(ROOT / "tests/fsdp/big_model.py"),
            str(tmp_path / file),
            str(LAYERS),
            str(WIDTH),
        ]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=env
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        arrays, largest = LAYERS * WIDTH * WIDTH * 4, WIDTH * WIDTH * 4
        assert arrays * 0.95 < found["now"] <= found["peak"] < arrays + largest, found
        expected = sum(value.sum().item() for value in source.parameters())
        assert found["sum"] == pytest.approx(expected, abs=1.0)


class Config:
    """A Hugging Face model: its configuration, the class of its layers, its inputs."""

    def __init__(self, auto: Any, config: Any, layer: type[nn.Module], inputs: tuple[str, ...]):
        self.auto, self.config, self.layer = auto, config, layer
        self.inputs = {name: torch.arange(64).view(8, 8) % 61 for name in inputs}

    def make(self, device: str = "cpu") -> Any:
        with torch.device(device):
            return self.auto.from_config(self.config).eval()

    def wrapped(self, model: Any, mesh: spmd.Mesh) -> Any:
        policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={self.layer})
        return fsdp.FullyShardedDataParallel(model, mesh, auto_wrap_policy=policy)

    def run(self, model: Any, device: str) -> torch.Tensor:
        return (
            model(**{name: value.to(device) for name, value in self.inputs.items()})
            .logits.detach()
            .cpu()
        )


LLAMA = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
)
T5 = T5Config(
    vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0
)
MODELS = {
    "llama": Config(AutoModelForCausalLM, LLAMA, LlamaDecoderLayer, ("input_ids",)),
    "t5, tied": Config(AutoModelForSeq2SeqLM, T5, T5Block, ("input_ids", "decoder_input_ids")),
}


def on_xla(model: Config) -> Any:
    return model.make("xla")


def on_meta(model: Config) -> Any:
    """The model's own function makes buffers that no file has, such as the frequencies of
    positions."""
    made = model.make("meta").to_empty(device="xla")
    made.apply(made._init_weights)
    made.tie_weights()
    return made


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mesh", MESHES)
class TestHuggingFace:
    """A sharded model loads `save_pretrained`'s files by name, and saves files that
    `from_pretrained` reads."""

    @pytest.mark.parametrize("make", [on_xla, on_meta], ids=["xla", "meta"])
    def test_there_and_back(
        self, make: Callable[[Config], Any], mesh: str, name: str, tmp_path: Path
    ) -> None:
        model = MODELS[name]
        source = model.make()
        source.save_pretrained(tmp_path / "source", max_shard_size="20KB")
        assert (tmp_path / "source/model.safetensors.index.json").is_file()

        before = spmd.metrics.num_compiles()
        sharded = model.wrapped(make(model), mesh_of(mesh))
        assert fsdp.load_checkpoint(sharded, tmp_path / "source") == ([], [])
        assert spmd.metrics.num_compiles() == before
        assert all(
            torch.equal(value.cpu(), source.state_dict()[key])
            for key, value in sharded.state_dict().items()
        )
        torch.testing.assert_close(
            model.run(sharded, "xla"), model.run(source, "cpu"), rtol=2e-5, atol=2e-5
        )

        sharded.save_pretrained(tmp_path / "back", max_shard_size="20KB")
        back = model.auto.from_pretrained(tmp_path / "back").eval()
        assert {type(value) for value in back.parameters()} == {nn.Parameter}
        assert all(
            torch.equal(value, source.state_dict()[key]) for key, value in back.state_dict().items()
        )
        assert torch.equal(model.run(back, "cpu"), model.run(source, "cpu"))


class TestSavedWithoutAGather:
    """`save_checkpoint` writes what `save_pretrained` writes: names of tied weights, files and
    index."""

    @pytest.mark.parametrize("most", ["20KB", "5GB"])
    @pytest.mark.parametrize("name", MODELS)
    def test_hugging_face(self, name: str, most: str, tmp_path: Path) -> None:
        model = MODELS[name]
        source = model.make()
        source.save_pretrained(tmp_path / "source", max_shard_size=most)
        sharded = model.wrapped(model.make("xla"), mesh_of("2x4"))
        fsdp.load_checkpoint(sharded, tmp_path / "source")

        spmd.sync()  # buffers that no file has
        compiled = spmd.metrics.num_compiles()
        sharded.save_pretrained(tmp_path / "ours", state_dict={})  # the configuration alone
        fsdp.save_checkpoint(sharded, tmp_path / "ours", max_shard_size=most)
        assert spmd.metrics.num_compiles() == compiled
        names = sorted(os.listdir(tmp_path / "source"))
        assert sorted(os.listdir(tmp_path / "ours")) == names and (len(names) > 5) == (
            most == "20KB"
        )
        for file in names:
            content, expected = (
                (tmp_path / folder / file).read_bytes() for folder in ("ours", "source")
            )
            if file.endswith(".index.json"):  # transformers adds the number of parameters
                assert json.loads(content)["weight_map"] == json.loads(expected)["weight_map"]
            else:
                assert content == expected, file
        back = model.auto.from_pretrained(tmp_path / "ours").eval()
        assert torch.equal(model.run(back, "cpu"), model.run(source, "cpu"))


class TestBase:
    """Files with another model's names: a body without the head that it was saved with."""

    def test_rename(self, tmp_path: Path) -> None:
        model = MODELS["llama"]
        source = model.make()
        source.save_pretrained(tmp_path)
        with torch.device("xla"):
            body = AutoModel.from_config(LLAMA)
        sharded = fsdp.FullyShardedDataParallel(body, mesh_of("8"))
        with pytest.raises(ValueError, match=r"did you mean 'model.embed_tokens.weight'"):
            fsdp.load_checkpoint(sharded, tmp_path)
        fsdp.load_checkpoint(
            sharded,
            tmp_path,
            rename=lambda name: None if "head" in name else name.removeprefix("model."),
        )
        expected = source.model.state_dict()
        assert all(
            torch.equal(value.cpu(), expected[key]) for key, value in sharded.state_dict().items()
        )

    def test_dtype(self, tmp_path: Path) -> None:
        model = MODELS["llama"]
        source = model.make()
        source.save_pretrained(tmp_path)
        sharded = model.wrapped(model.make("xla"), mesh_of("8"))
        fsdp.load_checkpoint(sharded, tmp_path, dtype=torch.bfloat16)
        for key, value in sharded.state_dict().items():
            assert value.dtype == torch.bfloat16 and torch.equal(
                value.cpu(), source.state_dict()[key].bfloat16()
            ), key
        assert spmd.get_sharding(sharded.lm_head.weight).text(2).startswith("{devices=[8,1]")


class TestModulesThatLoadThemselves:
    """`load_checkpoint` calls a module's own `_load_from_state_dict` for that module's entries."""

    def test_an_older_name_and_batch_norm(self, mesh8: spmd.Mesh, tmp_path: Path) -> None:
        class Renamed(nn.Linear):
            def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
                state_dict[prefix + "weight"] = state_dict.pop(prefix + "kernel").T
                super()._load_from_state_dict(state_dict, prefix, *rest)

        model = nn.Sequential(Renamed(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
        state = {
            name: torch.randn_like(value.float()) for name, value in model.state_dict().items()
        }
        expected = {name: value.clone() for name, value in state.items()}
        state["0.kernel"] = state.pop("0.weight").T.contiguous()
        del state["1.num_batches_tracked"]  # older than the counter
        torch.save(state, tmp_path / "model.pt")
        wrapped = fsdp.FullyShardedDataParallel(model, mesh=mesh8, auto_wrap_policy={nn.Linear})
        names = fsdp.load_checkpoint(wrapped, tmp_path / "model.pt")
        assert not any(names)
        for name, value in wrapped.state_dict().items():
            if name != "1.num_batches_tracked":
                assert torch.equal(value.detach().cpu(), expected[name]), name
        assert spmd.get_sharding(wrapped[0].weight).partition_spec(2) == (None, "fsdp")

    def test_what_it_misses_is_told(self, mesh8: spmd.Mesh, tmp_path: Path) -> None:
        model = fsdp.fully_shard(nn.BatchNorm1d(8), mesh=mesh8)
        torch.save({"weight": torch.ones(8), "other": torch.ones(8)}, tmp_path / "model.pt")
        with pytest.raises(ValueError, match="missing in the files: 'bias'"):
            fsdp.load_checkpoint(model, tmp_path / "model.pt")
