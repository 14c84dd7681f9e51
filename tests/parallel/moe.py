"""Small layers of experts of transformers, with a router that chooses as told; over a mesh, on one
device, on CPU."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from support import TOLERANCE
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

import fsdp  # noqa: F401  carries out the units of the rules
import spmd
from spmd import P

WIDTH, INNER = 16, 32
FIRST, EMPTY = 2, 5  # the expert that all tokens choose first, and the one that none chooses
ROUTINGS = ("balanced", "skewed", "one", "empty")
EXCHANGES = {
    "gathered": "weights are gathered",
    "all-to-all": "rows travel in rounds",
    "ring": "tokens travel",
}
# Relative to the largest value of a tensor.
CLOSE = {torch.float64: 1e-12, torch.float32: 1e-6}
Tensors = dict[str, Tensor]


def _deepseek(experts: int, **how: Any) -> nn.Module:
    config = transformers.DeepseekV3Config(
        moe_intermediate_size=INNER,
        n_routed_experts=experts,
        n_shared_experts=1,
        num_experts_per_tok=3,
        n_group=experts // 2,
        topk_group=2,
        **how,
    )
    return _of(DeepseekV3MoE, config)


def _of(block: type[nn.Module], config: Any) -> nn.Module:
    config._experts_implementation = "grouped_mm"
    return block(config)


def _mixtral(experts: int, **how: Any) -> nn.Module:
    config = transformers.MixtralConfig(num_local_experts=experts, num_experts_per_tok=2, **how)
    return _of(MixtralSparseMoeBlock, config)


def _qwen(experts: int, **how: Any) -> nn.Module:
    sizes = {"moe_intermediate_size": INNER, "num_experts": experts, "num_experts_per_tok": 4}
    return _of(
        Qwen3MoeSparseMoeBlock, transformers.Qwen3MoeConfig(norm_topk_prob=True, **sizes, **how)
    )


def _olmoe(experts: int, **how: Any) -> nn.Module:
    config = transformers.OlmoeConfig(num_experts=experts, num_experts_per_tok=4, **how)
    return _of(OlmoeSparseMoeBlock, config)


def _gpt_oss(experts: int, **how: Any) -> nn.Module:
    config = transformers.GptOssConfig(num_local_experts=experts, num_experts_per_tok=2, **how)
    return _of(GptOssMLP, config)


BLOCKS: Mapping[str, Callable[..., nn.Module]] = {
    "mixtral": _mixtral,
    "qwen3": _qwen,
    "olmoe": _olmoe,
    "deepseek": _deepseek,
    "gpt-oss": _gpt_oss,
}


class Doubles(TorchFunctionMode):
    """Casts of float64 to float32 leave it as it is, so that results of routers can be compared to
    float64's digits."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            if function is Tensor.float:
                return args[0]
            args = [torch.float64 if x is torch.float32 else x for x in args]
            kwargs = {
                name: torch.float64 if x is torch.float32 else x for name, x in kwargs.items()
            }
        return function(*args, **kwargs)


@contextlib.contextmanager
def doubled(dtype: torch.dtype) -> Iterator[None]:
    """Has float64 stay float64."""
    with Doubles() if dtype == torch.float64 else contextlib.nullcontext():
        yield


@dataclass(frozen=True)
class Layout:
    """A mesh, the axes of the dims of tokens, and specs of parameters. sizes: (axis, size) in
    order."""

    sizes: tuple[tuple[str, int], ...]
    tokens: tuple[Any, ...]
    specs: tuple[tuple[str, P], ...]
    units: str | None = None  # "fsdp": parameters are sharded over it, too, and gathered

    @property
    def mesh(self) -> spmd.Mesh:
        names, sizes = zip(*self.sizes, strict=True)
        count = torch.Size(sizes).numel()
        return spmd.Mesh(range(count), sizes, names)

    def place(self, module: nn.Module, x: Tensor) -> Tensor:
        """The inputs, marked; parameters are sharded in place."""
        batch = self.tokens[0] if isinstance(self.tokens[0], tuple) else (self.tokens[0],)
        extra = next((axis for axis in batch if axis not in ("fsdp", None)), None)
        how = {} if self.units is None else {"units": (), "extra_data_axis": extra}
        spmd.ShardingRules(self.specs, **how).apply(module, self.mesh, strict=False)
        return spmd.mark_sharding(
            x, self.mesh, P(*self.tokens, *[None] * (x.ndim - len(self.tokens)))
        )


def layout(*tokens: Any, **sizes: int) -> Layout:
    """Experts over "expert" where the mesh has it, and by columns over "tensor"; parameters over
    "fsdp" as units."""
    expert = "expert" if "expert" in sizes else None
    specs = (
        {"**experts.*_bias": P(expert, None), "**experts.*_proj": P(expert, None, None)}
        if expert
        else {}
    )
    if "tensor" in sizes:
        specs = {
            "**experts.gate_up_proj": P(expert, "tensor", None),
            "**experts.down_proj": P(expert, None, "tensor"),
        }
    return Layout(
        tuple(sizes.items()), tokens, tuple(specs.items()), "fsdp" if "fsdp" in sizes else None
    )


def preferred(routing: str, tokens: int, chosen: int, experts: int) -> Tensor:
    """The experts that each token wants [tokens, chosen], the first one most."""
    turns = torch.arange(tokens)[:, None] * chosen + torch.arange(chosen)
    if routing == "balanced":
        return turns % experts
    if routing == "skewed":
        first = experts * torch.rand(tokens, generator=torch.Generator().manual_seed(1)) ** 3
        return (first.long()[:, None] + torch.arange(chosen)) % experts
    if routing == "one":
        others = torch.arange(tokens)[:, None] * (chosen - 1) + torch.arange(chosen) - 1
        wanted = (FIRST + 1 + others % (experts - 1)) % experts
        wanted[:, 0] = FIRST
        return wanted
    assert routing == "empty"
    wanted = turns % (experts - 1)
    return wanted + (wanted >= EMPTY)


@dataclass(frozen=True)
class Case:
    """A block with weights and inputs, the same each time.

    The router reads the first dims of a token.
    """

    name: str = "mixtral"
    routing: str = "balanced"
    dtype: torch.dtype = torch.float64
    experts: int = 8
    batch: int = 8
    length: int = 16
    form: str = "grouped_mm"

    def block(self) -> nn.Module:
        torch.manual_seed(2)
        how = {"hidden_size": WIDTH, "intermediate_size": INNER, "hidden_act": "silu"}
        block = BLOCKS[self.name](self.experts, **how).to(self.dtype)
        for parameter in block.parameters():
            nn.init.normal_(parameter, std=0.3)
        router = self.router(block)
        nn.init.normal_(router.weight, std=0.02)
        router.weight.data[:, : self.experts] += torch.eye(self.experts, dtype=self.dtype)
        if self.name == "gpt-oss":
            nn.init.normal_(router.bias, std=0.02)
        block.experts.config._experts_implementation = self.form
        return block

    @staticmethod
    def router(block: nn.Module) -> Any:
        return block.router if hasattr(block, "router") else block.gate

    def inputs(self) -> Tensor:
        generator, tokens = torch.Generator().manual_seed(3), self.batch * self.length
        x = torch.randn(tokens, WIDTH, generator=generator, dtype=torch.float64)
        chosen = self.router(self.block()).top_k
        x[:, : self.experts] *= 0.2
        wanted = preferred(self.routing, tokens, chosen, self.experts)
        x.scatter_add_(1, wanted, 5 - torch.arange(chosen, dtype=x.dtype).expand(tokens, -1))
        if self.routing == "empty":
            x[:, EMPTY] -= 5
        return x.to(self.dtype).reshape(self.batch, self.length, WIDTH)

    def counts(self) -> Tensor:
        """The number of tokens that choose each expert."""
        with torch.no_grad():
            _, _, choices = self.router(self.block())(self.inputs().reshape(-1, WIDTH))
        return torch.bincount(choices.flatten(), minlength=self.experts)

    def results(self, device: str = "xla", over: Layout | None = None) -> Tensors:
        """The output and the gradients of the input and of all parameters, by name."""
        with doubled(self.dtype):
            return results(self.block().to(device), self.inputs().to(device), over)


@functools.cache
def on_one_device(case: Case) -> Tensors:
    return case.results()


@functools.cache
def on_cpu(case: Case) -> Tensors:
    return replace(case, form="eager").results("cpu")


def results(module: nn.Module, x: Tensor, over: Layout | None = None) -> Tensors:
    """The output of a module and the gradients of the input and of all parameters, by name."""
    x = x if over is None else over.place(module, x)
    x.requires_grad_()
    output = module(x)
    output = output[0] if isinstance(output, tuple) else output
    weight = (
        torch.arange(output.numel(), dtype=output.dtype).reshape(output.shape).sin().to(x.device)
    )
    (output * (output / 8 + weight)).sum().backward()
    grads = {name: parameter.grad for name, parameter in module.named_parameters()}
    spmd.sync()
    assert None not in grads.values() and x.grad is not None
    return {
        name: tensor.detach().cpu()
        for name, tensor in {"output": output, "input": x.grad, **grads}.items()
    }


def close(ours: Tensors, theirs: Tensors, tolerance: float) -> None:
    """Asserts that tensors agree, relative to the largest value of each."""
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        largest = expected.abs().max().item()
        assert largest > 0, name
        error = (ours[name] - expected).abs().max().item() / largest
        assert error <= tolerance, f"{name}: {error:.2e} of the largest value, at most {tolerance}"


def as_on_one_device(case: Case, over: Layout) -> None:
    """Asserts that results over a mesh are one device's and the CPU's."""
    one, cpu = on_one_device(case), on_cpu(case)
    spmd.metrics.clear()
    found = case.results(over=over)
    close(found, one, CLOSE[case.dtype])
    close(found, cpu, TOLERANCE[case.dtype][0])


def of_pass(name: str) -> list[str]:
    """The words of a pass over the last program."""
    return [words for each, words in spmd.metrics.compiles()[-1].passes if each == name]


def check_fused(exchange: str | None, layers: int = 2) -> None:
    """Asserts that the last program has so many ops of experts, and how their rows meet weights.

    exchange: "auto": any; None: each device has all experts.
    """
    fused = of_pass("fuse experts")
    assert fused == [f"{layers} layer{'s' * (layers > 1)} of experts"], fused
    sentences = [words for words in of_pass("exchange") if words.startswith("experts over ")]
    assert bool(sentences) is (exchange is not None), sentences
    expected = (
        tuple(EXCHANGES.values())
        if exchange == "auto"
        else (EXCHANGES.get(exchange or "", exchange),)
    )
    assert all(any(f": {words}" in sentence for words in expected) for sentence in sentences), (
        sentences
    )


def moved_stacks(case: Case) -> list[str]:
    """The collectives over "expert" of the last program that gather or reduce as many bytes as a
    stack of weights."""
    least = case.experts * WIDTH * INNER * case.dtype.itemsize
    traffic = spmd.metrics.compiles()[-1].traffic
    return [str(row) for row in traffic if "expert" in row.axes and row.bytes >= least]
