"""One block under data, tensor and sequence parallelism, said in three ways: one and the same
partitioned program."""

import copy
from collections.abc import Callable

import torch
from block import SEQUENCE_PARALLEL, Block
from torch import nn

import spmd
from spmd import P
from spmd.dtensor import DeviceMesh, parallelize_module

ANY = P.UNCONSTRAINED
MESH = spmd.Mesh(range(8), (2, 4), ("dp", "tp"))
COLUMNS = ("attention.wq", "attention.wk", "attention.wv", "w1", "w3")
ROWS = ("attention.wo", "w2")
NORMS = ("attention_norm", "ffn_norm")
# Where an activation lies: the sequence split between the products, whole heads and columns within
# them.
SPLIT, UNSHARDED, INNER = P(ANY, "tp", None), P(ANY, None, None), P(ANY, None, "tp")


def by_plan(block: nn.Module) -> None:
    parallelize_module(block, DeviceMesh("xla", MESH)["tp"], SEQUENCE_PARALLEL)


def by_rules(block: nn.Module) -> None:
    spmd.ShardingRules(
        {
            "{attention.w[qkv],w[13]}.weight": P("tp", None),
            "{attention.wo,w2}.weight": P(None, "tp"),
            "*norm.weight": P(),
            "*norm:input": SPLIT,
            "*norm:output": SPLIT,
            "{attention.w[qkv],w[13]}:input": UNSHARDED,
            "{attention.w[qkv],w[13]}:output": INNER,
            "{attention.wo,w2}:input": INNER,
            "{attention.wo,w2}:output": SPLIT,
        }
    ).apply(block, MESH)


def by_hand(block: nn.Module) -> None:
    def mark(name: str, weight: P, before: P, after: P) -> None:
        module = block.get_submodule(name)
        spmd.mark_sharding(module.get_parameter("weight"), MESH, weight)
        module.register_forward_pre_hook(lambda _, inputs: resharded(inputs[0], before))
        module.register_forward_hook(lambda _, inputs, output: resharded(output, after))

    def resharded(x: torch.Tensor, spec: P) -> torch.Tensor:
        sharding = spmd.get_sharding(x)
        if sharding is None:
            return spmd.torch_xla.mark_sharding_with_gradients(x, MESH, spec)
        return x if sharding is MESH.sharding(spec, x.dim()) else spmd.reshard(x, spec, MESH)

    for name in COLUMNS:
        mark(name, P("tp", None), UNSHARDED, INNER)
    for name in ROWS:
        mark(name, P(None, "tp"), INNER, SPLIT)
    for name in NORMS:
        mark(name, P(None), SPLIT, SPLIT)


def test_one_program() -> None:
    """Values and gradients are those of torch; the second and the third way find the first one's
    program."""
    block, x = Block(16, 4), torch.randn(4, 8, 16)
    expected, wanted = copy.deepcopy(block), x.clone()
    expected(wanted).square().mean().backward()
    traffic = []
    ways: list[Callable[[nn.Module], None]] = [by_hand, by_plan, by_rules]
    for way in ways:
        made = copy.deepcopy(block).to("xla")
        way(made)
        before = spmd.metrics.num_compiles()
        batch = spmd.mark_sharding(x.to("xla"), MESH, P("dp", None, None))
        made(batch).square().mean().backward()
        spmd.sync()
        compiled = spmd.metrics.num_compiles() - before
        assert compiled == (1 if way is by_hand else 0), spmd.metrics.explain()
        traffic.append(spmd.metrics.compiles()[-1].traffic)
        for name, parameter in made.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad.cpu(), expected.get_parameter(name).grad)
    assert {axis for row in traffic[0] for axis in row.axes} == {"dp", "tp"}
