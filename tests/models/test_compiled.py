"""Hugging Face models under `torch.compile(fullgraph=True)`: losses and gradients agree with CPU eager."""

import copy
from collections.abc import Iterator

import pytest
import torch
from models.zoo import ZOO
from torch import nn

import fsdp
import spmd

NEAR = 1e-4  # as in test_models
# A graph of these, too; each unit's hooks stand between two.
WRAPPED = ("llama", "bert", "resnet18")

# torch's own line, in its trace of a tensor with a history
pytestmark = pytest.mark.filterwarnings("ignore:.*grad attribute of a Tensor that is not a leaf:UserWarning")


@pytest.fixture(autouse=True)
def _new_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def built(name: str) -> nn.Module:
    model = ZOO[name].build().train()
    if name == "gpt2":
        model.loss_type = "ForCausalLM"  # else transformers logs a line, which ends a graph
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad():  # at a model's first call transformers adds hooks to it under a lock, which ends a graph
        ZOO[name].loss(model, ZOO[name].inputs())
    return model


def compare(name: str, plain: nn.Module, ours: nn.Module, function: nn.Module) -> None:
    inputs = ZOO[name].inputs()
    expected, _ = ZOO[name].loss(plain, inputs)
    expected.backward()
    for _ in range(2):
        ours.zero_grad()
        actual, _ = ZOO[name].loss(function, {key: value.to("xla") for key, value in inputs.items()})
        actual.backward()
        assert abs(actual.item() - expected.item()) < NEAR
        given = dict(ours.named_parameters())
        for key, parameter in plain.named_parameters():
            assert (parameter.grad is None) == (given[key].grad is None), key
            if parameter.grad is not None and not key.endswith(("k_proj.bias", "key.bias")):  # rounding noise alone
                difference = (given[key].grad.cpu() - parameter.grad).norm() / (parameter.grad.norm() + 1e-6)
                assert difference < NEAR, (key, difference)


@pytest.mark.long
@pytest.mark.parametrize("name", ZOO)
def test_one_graph(name: str) -> None:
    plain = built(name)
    ours = copy.deepcopy(plain).to("xla")
    compare(name, plain, ours, torch.compile(ours, backend="xla", fullgraph=True))


@pytest.mark.long
@pytest.mark.parametrize("name", WRAPPED)
def test_sharded(name: str, mesh8: spmd.Mesh) -> None:
    plain = built(name)
    ours = copy.deepcopy(plain).to("xla")
    for module in list(ours.modules()):
        if isinstance(module, nn.ModuleList):
            for layer in module:
                fsdp.fully_shard(layer, mesh=mesh8)
    fsdp.fully_shard(ours, mesh=mesh8)
    compare(name, plain, ours, torch.compile(ours, backend="xla"))
    assert any("fsdp" in str(spmd.get_sharding(parameter)) for parameter in ours.parameters())
