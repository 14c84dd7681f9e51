"""recipes/mixtral.py: Hugging Face's Mixtral with experts on each device's own tokens has the same results."""

import copy
import re
from functools import partial

import jax
import numpy as np
import pytest
import torch
from support import check
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer

import fsdp
import spmd
from recipes import mixtral
from recipes.mixtral import use_experts_per_shard
from spmd import config
from spmd.core.programs import cache


def tiny() -> MixtralConfig:
    return MixtralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=32, use_cache=False,
    )  # fmt: skip


class TestExperts:
    """use_experts_per_shard: the results of one device, without the whole batch on every device."""

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_training_step(self, partitioner: str, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(config, "partitioner", partitioner)
        plain = MixtralForCausalLM(tiny())
        sharded = copy.deepcopy(plain)
        use_experts_per_shard(sharded.config, mesh8, "fsdp")
        policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={MixtralDecoderLayer})
        model = fsdp.FullyShardedDataParallel(sharded, mesh8, auto_wrap_policy=policy)
        tokens = torch.randint(64, (16, 8))
        expected = plain(input_ids=tokens, labels=tokens).loss
        expected.backward()
        loss = model(input_ids=tokens.to("xla"), labels=tokens.to("xla")).loss
        loss.backward()
        check(loss, expected)
        for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert ours.grad is not None, name
            check(ours.grad, theirs.grad)
        program = cache.last_program()
        assert program is not None
        # 256 choices of tokens of width 32: no device has those of all devices.
        assert not re.search(r"f32\[256,(32|48|96)\]", program.executable.as_text())

    def test_refused(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(ValueError, match=r"the mesh has no axis 'data' \(axes: fsdp\)"):
            use_experts_per_shard(tiny(), mesh8, "data")
        with pytest.raises(ValueError, match="expected hidden_act 'silu', got 'gelu'"):
            use_experts_per_shard(MixtralConfig(hidden_act="gelu"), mesh8, "fsdp")


@pytest.mark.parametrize("rows", [512, 40])
def test_kernels(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The TPU's kernels, interpreted, and XLA's products; of rows that fill a block, or do not."""
    generator = np.random.default_rng(0)
    x, grad = (generator.standard_normal((rows, width), np.float32) for width in (24, 16))
    weights = generator.standard_normal((3, 16, 24), np.float32)
    sizes = np.array([7, 0, rows - 7], np.int32)
    made = []
    for is_kernel in (False, True):
        if is_kernel:
            monkeypatch.setattr(mixtral, "_kernel", partial(mixtral._kernel, interpret=True))
            monkeypatch.setattr(
                mixtral, "_by_platform", lambda by_xla, by_kernel, *operands: jax.jit(by_kernel)(*operands)
            )
        product, backward = jax.vjp(lambda x, w: mixtral.grouped_product(x, w, sizes), x, weights)
        made.append((product, *backward(grad)))
    for ours, theirs in zip(*made, strict=True):
        check(torch.tensor(np.asarray(ours)), torch.tensor(np.asarray(theirs)))
