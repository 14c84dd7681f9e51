"""Hugging Face models under `torch.compile(fullgraph=True)`: losses and gradients agree with CPU
eager."""

import copy
import gc
from collections.abc import Callable, Iterator

import pytest
import torch
import transformers.integrations.moe  # noqa: F401  # its ops
from models.families import FAMILIES, wav2vec2
from models.zoo import sentences
from support import Batch
from torch import Tensor, nn

import fsdp
import spmd

NEAR = 1e-4  # as in test_models
# masks that are looked at; a module with a buffer made inside of it; experts
QUICK = ("bert", "electra", "mixtral")

pytestmark = [
    # torch's own lines, in its traces: of a tensor with a history, of a function of transformers
    # that has a cache, of an autograd.Function of transformers
    pytest.mark.filterwarnings(
        "ignore:.*grad attribute of a Tensor that is not a leaf:UserWarning"
    ),
    pytest.mark.filterwarnings(
        "ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning"
    ),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _new_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    spmd.compile(torch.neg)  # from here transformers makes its masks for recorded calls, too
    yield
    torch._dynamo.reset()


def built(name: str) -> nn.Module:
    model = FAMILIES[name].build().train()
    if name == "gpt2":
        model.loss_type = "ForCausalLM"  # else transformers logs a line, which ends a graph
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    # at a model's first call transformers adds hooks to it under a lock, which ends a graph
    with torch.no_grad():
        FAMILIES[name].loss(model, FAMILIES[name].inputs())
    return model


def compare(name: str, plain: nn.Module, ours: nn.Module, function: nn.Module) -> None:
    inputs = FAMILIES[name].inputs()
    expected, _ = FAMILIES[name].loss(plain, inputs)
    expected.backward()
    for _ in range(2):
        ours.zero_grad()
        actual, _ = FAMILIES[name].loss(
            function, {key: value.to("xla") for key, value in inputs.items()}
        )
        actual.backward()
        assert abs(actual.item() - expected.item()) < NEAR
        given = dict(ours.named_parameters())
        for key, parameter in plain.named_parameters():
            assert (parameter.grad is None) == (given[key].grad is None), key
            # rounding noise alone
            if parameter.grad is not None and not key.endswith(("k_proj.bias", "key.bias")):
                difference = (given[key].grad.cpu() - parameter.grad).norm() / (
                    parameter.grad.norm() + 1e-6
                )
                assert difference < NEAR, (key, difference)


def shard(model: nn.Module, mesh: spmd.Mesh) -> None:
    """FSDP's units: the layers of each list, and the model."""
    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList):
            for layer in module:
                fsdp.fully_shard(layer, mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_one_graph(name: str) -> None:
    plain = built(name)
    ours = copy.deepcopy(plain).to("xla")
    compare(name, plain, ours, torch.compile(ours, backend="xla", fullgraph=True))


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_sharded(name: str, mesh8: spmd.Mesh) -> None:
    """Each unit's hooks stand between two graphs."""
    plain = built(name)
    ours = copy.deepcopy(plain).to("xla")
    shard(ours, mesh8)
    compare(name, plain, ours, torch.compile(ours, backend="xla"))
    assert any("fsdp" in str(spmd.get_sharding(parameter)) for parameter in ours.parameters())


def num_programs(call: Callable[[], Tensor]) -> tuple[float, int, int]:
    """A result, the programs that were compiled for it, and those that ran."""
    before = spmd.metrics.num_compiles(), spmd.metrics.counter("runs")
    result = call()
    gc.collect()  # a cache of keys and values is in a cycle: it is a result of the program, or not
    spmd.sync()
    compiled, ran = (
        spmd.metrics.num_compiles() - before[0],
        spmd.metrics.counter("runs") - before[1],
    )
    return result.item(), compiled, ran


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in FAMILIES],
)
@pytest.mark.parametrize("is_sharded", [False, pytest.param(True, marks=pytest.mark.long)])
def test_inference_is_one_program(name: str, is_sharded: bool, mesh8: spmd.Mesh) -> None:
    """A graph is one program, sharded by annotations or not, and another call of it compiles
    nothing."""
    plain, inputs = built(name).eval(), FAMILIES[name].inputs()
    with torch.no_grad():  # in eval mode RWKV's first call rescales its weights
        expected = FAMILIES[name].loss(plain, inputs)[0].item()
    ours = copy.deepcopy(plain).to("xla")
    for parameter in ours.parameters() if is_sharded else ():
        spmd.mark_sharding(
            parameter, mesh8, ("fsdp", *[None] * (parameter.dim() - 1))[: parameter.dim()]
        )
    function = torch.compile(ours, backend="xla", fullgraph=True)
    on_device = {key: value.to("xla") for key, value in inputs.items()}
    spmd.sync()
    with torch.no_grad():
        first = num_programs(lambda: FAMILIES[name].loss(function, on_device)[0])
        second = num_programs(lambda: FAMILIES[name].loss(function, on_device)[0])
    assert first == (pytest.approx(expected, abs=NEAR), 1, 1), spmd.metrics.report()
    assert second == (first[0], 0, 1), spmd.metrics.report()


def test_products_of_experts() -> None:
    """The op that transformers has for experts in a graph reads no value here: groups without rows,
    rows after all."""
    batch = Batch()
    runs = spmd.metrics.counter("runs")
    for size in (7, 9):

        def product(rows: Tensor, weight: Tensor) -> Tensor:
            ends = torch.tensor([3, 0, 4]).to(rows.device).cumsum(0)
            return torch.ops.transformers.grouped_mm_fallback(rows, weight, ends)

        batch.case(f"{size} rows", product, torch.randn(size, 4), torch.randn(3, 4, 5))
    assert spmd.metrics.counter("runs") == runs
    batch.check()


class TestBreaksOfTorch:
    """Code that ends a graph on the CPU, too: for it wav2vec2's feature encoder is frozen here, and
    its loss apart."""

    def broken(self, model: nn.Module, **inputs: Tensor) -> str:
        model.train()
        with pytest.raises(torch._dynamo.exc.Unsupported) as raised:
            torch.compile(model, backend="eager", fullgraph=True)(**inputs)
        return str(raised.value)

    @pytest.mark.long
    def test_a_loss_that_reads_its_labels(self) -> None:
        told = self.broken(wav2vec2(), input_values=torch.randn(2, 200), labels=sentences(4)[:2])
        assert (
            "Data-dependent branching" in told and "labels.max() >= self.config.vocab_size" in told
        )

    @pytest.mark.long
    def test_a_flag_set_on_an_activation(self) -> None:
        model = wav2vec2()
        model.wav2vec2.feature_extractor._requires_grad = True
        assert "requires_grad" in self.broken(model, input_values=torch.randn(2, 200))
