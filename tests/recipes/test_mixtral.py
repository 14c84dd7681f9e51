"""recipes/mixtral.py: Hugging Face's Mixtral with experts on each device's own tokens has the same results."""

import copy
import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support import check
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer

import fsdp
import spmd
from recipes import mixtral
from recipes.mixtral import use_experts_of_capacity, use_experts_per_shard
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


def by_loop(
    hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor,
    *, capacity: float,
) -> torch.Tensor:  # fmt: skip
    """`mixtral.experts_of_capacity`, a choice at a time."""
    num_taken = [0] * len(gate_up)
    size = math.ceil(capacity * index.numel() / len(gate_up))
    sums = [torch.zeros(hidden.shape[1]) for _ in hidden]
    for token, experts in enumerate(index.tolist()):
        for choice, expert in enumerate(experts):
            if num_taken[expert] < size:
                gate, up = (gate_up[expert] @ hidden[token]).chunk(2)
                result = down[expert] @ (torch.nn.functional.silu(gate) * up)
                sums[token] = sums[token] + result * weights[token, choice]
            num_taken[expert] += 1
    return torch.stack(sums)


class TestCapacity:
    """use_experts_of_capacity: the first choices of each expert on a device, by dense products."""

    @pytest.mark.parametrize("capacity", [0.25, 1.25, 9.0])
    def test_by_loop(self, capacity: float) -> None:
        torch.manual_seed(0)
        shapes = ((24, 8), (24, 2), (4, 12, 8), (4, 8, 6))
        operands = [torch.randn(shape, requires_grad=True) for shape in shapes]
        index = torch.randn(24, 4).topk(2).indices
        hidden, weights, gate_up, down = operands
        expected = by_loop(hidden, index, weights, gate_up, down, capacity=capacity)
        grad = torch.randn_like(expected)
        expected.backward(grad)
        arrays = [jnp.asarray(operand.detach().numpy()) for operand in operands]
        ours, backward = jax.vjp(
            lambda hidden, weights, gate_up, down: mixtral.experts_of_capacity(
                hidden, jnp.asarray(index.int().numpy()), weights, gate_up, down, capacity=capacity
            ),
            *arrays,
        )  # fmt: skip
        check(torch.tensor(np.asarray(ours)), expected)
        for actual, operand in zip(backward(jnp.asarray(grad.numpy())), operands, strict=True):
            check(torch.tensor(np.asarray(actual)), operand.grad)

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_nothing_dropped(self, partitioner: str, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        """With room for all choices of a device the step is that of a model that drops none."""
        monkeypatch.setattr(config, "partitioner", partitioner)
        plain = MixtralForCausalLM(tiny())
        sharded = copy.deepcopy(plain)
        use_experts_of_capacity(sharded.config, mesh8, "fsdp", 2.0)  # of 4 experts, a token chooses 2
        policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={MixtralDecoderLayer})
        model = fsdp.FullyShardedDataParallel(sharded, mesh8, auto_wrap_policy=policy)
        tokens = torch.randint(64, (16, 8))
        plain(input_ids=tokens, labels=tokens).loss.backward()
        model(input_ids=tokens.to("xla"), labels=tokens.to("xla")).loss.backward()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            check(ours.grad, theirs.grad)

    def test_drops_by_device(self, mesh8: spmd.Mesh) -> None:
        """Each device counts its own choices."""
        torch.manual_seed(0)
        model = MixtralForCausalLM(tiny())
        use_experts_of_capacity(model.config, mesh8, "fsdp", 0.5)
        module = model.model.layers[0].mlp.experts
        hidden, index = torch.randn(64, 32), torch.randn(64, 4).topk(2).indices
        weights = torch.rand(64, 2)
        with torch.no_grad():
            shards = zip(hidden.chunk(8), index.chunk(8), weights.chunk(8), strict=True)
            expected = torch.cat(
                [by_loop(*shard, module.gate_up_proj, module.down_proj, capacity=0.5) for shard in shards]
            )
            inputs = [spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp", None)) for x in (hidden, index, weights)]
            check(module.to("xla")(*inputs), expected)

    def test_refused(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(ValueError, match="expected a positive capacity, got 0"):
            use_experts_of_capacity(tiny(), mesh8, "fsdp", 0)


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
