"""recipes/benchmarks/experts_of_capacity.py: experts that drop what they have no slot for."""

import copy
import math
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
from recipes.benchmarks import experts_of_capacity
from recipes.benchmarks.experts_of_capacity import use_experts_of_capacity
from spmd import config


def tiny() -> MixtralConfig:
    return MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=32,
        use_cache=False,
    )


def by_loop(
    hidden: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    capacity: float,
) -> torch.Tensor:
    """`experts_of_capacity`, a choice at a time."""
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
            lambda hidden, weights, gate_up, down: experts_of_capacity.experts_of_capacity(
                hidden, jnp.asarray(index.int().numpy()), weights, gate_up, down, capacity=capacity
            ),
            *arrays,
        )
        check(torch.tensor(np.asarray(ours)), expected)
        for actual, operand in zip(backward(jnp.asarray(grad.numpy())), operands, strict=True):
            check(torch.tensor(np.asarray(actual)), operand.grad)

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_nothing_dropped(
        self, partitioner: str, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With room for all choices of a device the step is that of a model that drops none."""
        monkeypatch.setattr(config, "partitioner", partitioner)
        plain = MixtralForCausalLM(tiny())
        sharded = copy.deepcopy(plain)
        # of 4 experts, a token chooses 2
        use_experts_of_capacity(sharded.config, mesh8, "fsdp", 2.0)
        policy = partial(
            fsdp.transformer_auto_wrap_policy, transformer_layer_cls={MixtralDecoderLayer}
        )
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
                [
                    by_loop(*shard, module.gate_up_proj, module.down_proj, capacity=0.5)
                    for shard in shards
                ]
            )
            inputs = [
                spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp", None))
                for x in (hidden, index, weights)
            ]
            check(module.to("xla")(*inputs), expected)

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_axis_of_experts(self, partitioner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rows go to their experts' devices, and back: the gradients are those with all experts on
        each device."""
        monkeypatch.setattr(config, "partitioner", partitioner)
        mesh, one = (
            spmd.Mesh(range(8), (2, 4), ("fsdp", "expert")),
            spmd.Mesh(range(8), (8,), ("fsdp",)),
        )
        torch.manual_seed(0)
        experts = MixtralForCausalLM(tiny()).model.layers[0].mlp.experts
        hidden, index, weights = (
            torch.randn(64, 32),
            torch.randn(64, 4).topk(2).indices,
            torch.rand(64, 2),
        )
        results = []
        for where, expert in ((one, None), (mesh, "expert")):
            module = copy.deepcopy(experts).to("xla")
            use_experts_of_capacity(module.config, where, "fsdp", 0.5, expert=expert)
            for parameter in module.parameters():
                spmd.mark_sharding(parameter, where, (expert, None, None))
            batch = ("fsdp", expert) if expert else "fsdp"
            inputs = [
                spmd.mark_sharding(x.to("xla"), where, (batch, None))
                for x in (hidden, index, weights)
            ]
            inputs[0].requires_grad_()
            output = module(*inputs)
            output.square().sum().backward()
            grads = [inputs[0].grad, *(parameter.grad for parameter in module.parameters())]
            results.append([x.detach().cpu() for x in (output, *grads)])
        for ours, theirs in zip(*results, strict=True):
            assert theirs.abs().max() > 0
            check(ours, theirs)

    def test_refused(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(ValueError, match="expected a positive capacity, got 0"):
            use_experts_of_capacity(tiny(), mesh8, "fsdp", 0)
        with pytest.raises(ValueError, match=r"the mesh has no axis 'data' \(axes: fsdp\)"):
            use_experts_of_capacity(tiny(), mesh8, "data", 1.0)
        with pytest.raises(ValueError, match="expected hidden_act 'silu', got 'gelu'"):
            use_experts_of_capacity(MixtralConfig(hidden_act="gelu"), mesh8, "fsdp", 1.0)
