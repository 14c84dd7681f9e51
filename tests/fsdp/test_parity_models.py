"""Models of five kinds under FSDP, over meshes of each size: losses, weights and statistics of
plain torch.

Each model meets each mesh once, and both optimizers; `tests/run.sh` runs them under both
partitioners.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
from models.zoo import ZOO
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer
from transformers.models.t5.modeling_t5 import T5Block

import fsdp
import spmd
from recipes import gpt, resnet

STEPS, BATCH = 3, 8
RATE = 1e-2
# Adam's: with torch's own, a gradient that is rounding noise alone would move a weight by the whole
# rate
EPS = 1e-4


@dataclass(frozen=True)
class Model:
    """A model: its constructor, the class of its units, a batch, and its loss."""

    build: Callable[[], nn.Module]
    unit: type[nn.Module]
    inputs: Callable[[], dict[str, Tensor]]
    loss: Callable[[nn.Module, dict[str, Tensor]], Tensor]


def from_zoo(name: str, unit: type[nn.Module]) -> Model:
    case = ZOO[name]
    return Model(case.build, unit, case.inputs, lambda model, inputs: case.loss(model, inputs)[0])


def text() -> dict[str, Tensor]:
    tokens = torch.randint(64, (BATCH, 17))
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


def pictures() -> dict[str, Tensor]:
    return {"images": torch.randn(BATCH, 3, 32, 32), "labels": torch.randint(4, (BATCH,))}


MODELS = {
    "gpt": Model(
        partial(gpt.GPT, gpt.GPTConfig(layers=2, width=32, heads=4, sequence=16, vocabulary=64)),
        gpt.Block,
        text,
        lambda model, inputs: gpt.cross_entropy(model(inputs["tokens"]), inputs["targets"]),
    ),
    "llama": from_zoo("llama", LlamaDecoderLayer),
    "mixtral": from_zoo("mixtral", MixtralDecoderLayer),
    "resnet": Model(
        partial(resnet.ResNet, resnet.ResNetConfig(classes=4, width=8, stages=(1, 1))),
        resnet.Block,
        pictures,
        lambda model, inputs: F.cross_entropy(model(inputs["images"]), inputs["labels"]),
    ),
    "t5": from_zoo("t5", T5Block),
}
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=RATE),
    "adamw": partial(torch.optim.AdamW, lr=RATE, eps=EPS, weight_decay=0.1),
}
MESHES = {"1": (1,), "2": (2,), "4": (4,), "8": (8,), "2x4": (2, 4)}


def train(
    model: nn.Module,
    case: Model,
    optimizer: torch.optim.Optimizer,
    *,
    put: Callable[[Tensor], Tensor],
) -> list[float]:
    """The loss of each step."""
    model.train()
    losses = []
    for step in range(STEPS):
        torch.manual_seed(step)
        loss = case.loss(model, {name: put(tensor) for name, tensor in case.inputs().items()})
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        spmd.sync()
        losses.append(loss.item())
    return losses


@cache
def expected(name: str, kind: str) -> tuple[dict[str, Tensor], list[float], dict[str, Tensor]]:
    """Initial weights, and plain torch's losses and last weights."""
    case = MODELS[name]
    torch.manual_seed(0)
    model = case.build()
    first = {key: value.clone() for key, value in model.state_dict().items()}
    losses = train(model, case, OPTIMIZERS[kind](model.parameters()), put=lambda tensor: tensor)
    assert losses[-1] != losses[0]
    return first, losses, model.state_dict()


def wrapped(
    name: str, first: dict[str, Tensor], sizes: tuple[int, ...]
) -> fsdp.FullyShardedDataParallel:
    axes = ("data", "fsdp")[-len(sizes) :]
    mesh = spmd.Mesh(range(torch.Size(sizes).numel()), sizes, axes)
    model = MODELS[name].build()
    model.load_state_dict(first)
    extra: dict[str, Any] = {"extra_data_axis": "data"} if len(sizes) > 1 else {}
    return fsdp.FullyShardedDataParallel(model, mesh, auto_wrap_policy={MODELS[name].unit}, **extra)


def is_statistic(name: str) -> bool:
    return "running_" in name or "num_batches" in name


# The optimizer of each model and mesh: over the models both on meshes of one and of several
# devices.
CASES = [
    (name, mesh, ("sgd", "adamw")[(row + column) % 2])
    for row, name in enumerate(MODELS)
    for column, mesh in enumerate(MESHES)
]


class TestSameAsPlainTorch:
    """From the same weights in fp32: the losses, the weights after the last step, and batch norm's
    statistics."""

    @pytest.mark.parametrize(("name", "mesh", "kind"), CASES)
    def test_training(self, name: str, mesh: str, kind: str) -> None:
        first, losses, last = expected(name, kind)
        model = wrapped(name, first, MESHES[mesh])
        found = train(
            model,
            MODELS[name],
            OPTIMIZERS[kind](model.parameters()),
            put=lambda tensor: tensor.to("xla"),
        )
        assert found == pytest.approx(losses, rel=1e-5, abs=0)
        state = {key: value.cpu() for key, value in model.state_dict().items()}
        assert state.keys() == last.keys()
        if name == "t5":
            assert model.lm_head.weight is model.shared.weight, "tied as before"
        for key, wanted in last.items():
            away = (state[key].double() - wanted.double()).abs().max().item()
            if kind == "adamw" and not is_statistic(key):
                assert away < 0.01 * RATE, f"{key}: {away / RATE} learning rates away"
            else:
                assert away <= 1e-5 * (wanted.double().abs().max().item() + 1e-2), f"{key}: {away}"
        if name == "resnet":
            assert state["stem.1.num_batches_tracked"] == STEPS
