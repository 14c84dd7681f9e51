"""`torch.utils.checkpoint`, unmodified, saves memory on this device: XLA would merge a naive
recomputation."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import check
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import spmd
from spmd.core.base.compile_record import CompileRecord
from spmd.core.programs import cache


class Block(nn.Module):
    """A transformer block with dropout."""

    def __init__(self, dim: int = 32, heads: int = 4, p: float = 0.1):
        super().__init__()
        self.heads, self.p = heads, p
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + nn.functional.dropout(self.out(mixed.reshape(batch, length, dim)), self.p)
        return x + nn.functional.dropout(
            self.down(nn.functional.gelu(self.up(self.norm2(x)))), self.p
        )


class Perceptron(nn.Module):
    """A block without attention."""

    def __init__(self, dim: int = 32):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 8 * dim), nn.Linear(8 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)).tanh())


Call = Callable[[nn.Module, torch.Tensor], torch.Tensor]

CALLS: dict[str, Call] = {
    "reentrant": lambda block, x: checkpoint(block, x, use_reentrant=True),
    "not reentrant": lambda block, x: checkpoint(block, x, use_reentrant=False),
    "keyword": lambda block, x: checkpoint(block, x=x, use_reentrant=False),
    "captured": lambda block, x: checkpoint(lambda: block(x), use_reentrant=False),
    "wrapped": lambda block, x: checkpoint(
        functools.partial(lambda pair: block(pair[0])), (x, 3), use_reentrant=False
    ),
}


def ran() -> CompileRecord:
    """The ledger's line of the program that ran last, which another test may have compiled."""
    program = cache.last_program()
    assert program is not None and program.record is not None
    return program.record


def train(
    kind: type, call: Call, mesh: spmd.Mesh | None = None, *, layers: int = 8
) -> tuple[int, list[torch.Tensor]]:
    """Temporary bytes of one forward and backward pass through some blocks; the gradients and the
    output."""
    torch.manual_seed(0)
    blocks = nn.ModuleList(kind() for _ in range(layers)).to("xla")
    x = torch.randn(16, 64, 32).to("xla").requires_grad_()
    if mesh is not None:
        spmd.mark_sharding(x, mesh, (mesh.axis_names[0], None, None))
    spmd.sync()
    h = x
    for block in blocks:
        h = call(block, h)
    (h.square().sum() / 64).backward()  # gradients of order one, as the tolerances are meant for
    out = h.detach()
    del h
    spmd.sync()
    temporary = ran().temp_bytes
    return temporary, [
        out.cpu(),
        x.grad.cpu(),
        *(parameter.grad.cpu() for parameter in blocks.parameters()),
    ]


@functools.cache
def plain(kind: type, mesh: spmd.Mesh | None = None) -> tuple[int, list[torch.Tensor]]:
    """Without checkpoint, one layer after the other: rolled, layers need less memory as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spmd.config, "scan_layers", "never")
        return train(kind, lambda block, x: block(x), mesh)


class TestMemory:
    """The compiled program, its layers rolled or not, needs a fraction of the memory; values and
    gradients stay."""

    @pytest.mark.parametrize("mode", ["auto", "never"])
    @pytest.mark.parametrize("name", CALLS)
    def test_attention_and_dropout(
        self, name: str, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spmd.config, "scan_layers", mode)
        before, expected = plain(Block)
        after, actual = train(Block, CALLS[name])
        assert after < 0.25 * before, f"{after:,} B with checkpoint, {before:,} B without"
        assert bool(ran().loops) is (mode == "auto")
        for one, other in zip(actual, expected, strict=True):
            check(one, other)

    @pytest.mark.parametrize("name", ["reentrant", "not reentrant"])
    def test_perceptron(self, name: str) -> None:
        before, expected = plain(Perceptron)
        after, actual = train(Perceptron, CALLS[name])
        assert after < 0.35 * before, f"{after:,} B with checkpoint, {before:,} B without"
        for one, other in zip(actual, expected, strict=True):
            check(one, other)

    def test_sharded(self, mesh8: spmd.Mesh) -> None:
        before, _ = plain(Block, mesh8)
        after, actual = train(Block, CALLS["not reentrant"], mesh8)
        assert after < 0.35 * before, f"{after:,} B with checkpoint, {before:,} B without"
        assert set(ran().collectives) == {"all-reduce"}
        for one, other in zip(actual, plain(Block)[1], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)

    def test_other_shapes(self) -> None:
        """A block whose result has another shape than its argument is held back by a reduced
        gradient."""

        def run(call: Any) -> tuple[int, torch.Tensor]:
            torch.manual_seed(0)
            layers = [
                nn.Sequential(nn.Linear(d, 256), nn.Tanh(), nn.Linear(256, 40 - d)).to("xla")
                for d in (16, 24) * 4
            ]
            x = torch.randn(1024, 16).to("xla").requires_grad_()
            h = x
            for layer in layers:
                h = call(lambda x, layer=layer: layer(x).sin(), h)
            h.square().sum().backward()
            del h
            spmd.sync()
            return ran().temp_bytes, x.grad.cpu()

        before, expected = run(lambda function, x: function(x))
        after, actual = run(lambda function, x: checkpoint(function, x, use_reentrant=False))
        assert after < 0.5 * before, f"{after:,} B with checkpoint, {before:,} B without"
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def both(program: Callable[[str], list[torch.Tensor]]) -> None:
    for actual, expected in zip(program("xla"), program("cpu"), strict=True):
        check(actual, expected)


class TestRolled:
    """Layers in a loop of the program keep their inputs and nothing else."""

    def test_a_layer_more_is_an_input_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "scan_layers", "always")
        before, _ = train(Block, lambda block, x: block(x), layers=12)
        fewer, _ = train(Block, CALLS["not reentrant"], layers=8)
        more, _ = train(Block, CALLS["not reentrant"], layers=12)
        assert [iterations for iterations, _ in ran().loops] == [12, 12]
        inputs = 4 * 16 * 64 * 32 * 4  # bytes, of four layers
        assert more - fewer < 1.25 * inputs, f"{fewer:,} B with 8 layers, {more:,} B with 12"
        assert more < 0.25 * before, f"{more:,} B with checkpoint, {before:,} B without"


class TestForms:
    """Nesting, several results, arguments without gradients, in-place writes, sequences, second
    derivatives."""

    def test_nested(self) -> None:
        def program(device: str) -> list[torch.Tensor]:
            x = torch.linspace(-1, 1, 12).view(3, 4).to(device).requires_grad_()
            inner = lambda x: checkpoint(lambda y: (y * 2).sin().exp(), x, use_reentrant=False) * x  # noqa: E731
            checkpoint(inner, x, use_reentrant=False).square().sum().backward()
            return [x.grad]

        both(program)

    @pytest.mark.parametrize("use_reentrant", [True, False])
    def test_arguments_and_results(self, use_reentrant: bool) -> None:
        def function(x: Any, index: Any, scale: float, mask: Any) -> Any:
            return x[index].sin() * scale, torch.where(mask, x, x * 2).exp()

        def program(device: str) -> list[torch.Tensor]:
            x = torch.linspace(-1, 1, 12).view(3, 4).to(device).requires_grad_()
            index, mask = (
                torch.tensor([2, 0]).to(device),
                torch.tensor([True, False, True, False]).to(device),
            )
            one, two = checkpoint(function, x * 1, index, 3.0, mask, use_reentrant=use_reentrant)
            (one.sum() + two.square().sum()).backward()
            only, _ = checkpoint(function, x * 1, index, 3.0, mask, use_reentrant=use_reentrant)
            only.sum().backward()
            return [x.grad]

        both(program)

    @pytest.mark.parametrize("use_reentrant", [True, False])
    def test_views_and_writes(self, use_reentrant: bool) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            y = x.t() * 1
            y[0] = 5
            return y.exp().sin().reshape(-1)

        def program(device: str) -> list[torch.Tensor]:
            x = torch.linspace(-1, 1, 12).view(3, 4).to(device).requires_grad_()
            checkpoint(function, (x * 2)[:, 1:], use_reentrant=use_reentrant).sum().backward()
            return [x.grad]

        both(program)

    def test_running_statistics(self) -> None:
        def program(device: str) -> list[torch.Tensor]:
            norm = nn.BatchNorm1d(4).to(device)
            x = torch.linspace(-1, 1, 12).view(3, 4).to(device).requires_grad_()
            checkpoint(norm, x, use_reentrant=False).sin().sum().backward()
            return [x.grad, norm.running_mean, norm.running_var]

        both(program)

    def test_selective(self) -> None:
        """Products are saved and the rest is recomputed, as the policy says; gradients are
        CPU's."""
        products = {
            torch.ops.aten.mm.default,
            torch.ops.aten.addmm.default,
            torch.ops.aten.linear.default,
        }

        def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            return (
                CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE
            )

        torch.manual_seed(0)
        block, x = Perceptron(), torch.randn(4, 32)
        gradients = []
        for device in ("cpu", "xla"):
            leaf = x.clone().to(device).requires_grad_()
            contexts = functools.partial(create_selective_checkpoint_contexts, policy)
            made = checkpoint(
                copy.deepcopy(block).to(device), leaf, use_reentrant=False, context_fn=contexts
            )
            made.square().sum().backward()
            gradients.append(leaf.grad)
        check(gradients[1], gradients[0])

    def test_sequential(self) -> None:
        def program(device: str) -> list[torch.Tensor]:
            torch.manual_seed(0)
            model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))).to(device)
            x = torch.linspace(-1, 1, 12).view(3, 4).to(device).requires_grad_()
            checkpoint_sequential(model, 2, x, use_reentrant=False).square().sum().backward()
            return [x.grad, *(parameter.grad for parameter in model.parameters())]

        both(program)

    def test_second_derivative_and_retained_graph(self) -> None:
        def program(device: str) -> list[torch.Tensor]:
            x = torch.linspace(-1, 1, 4).to(device).requires_grad_()
            y = checkpoint(lambda x: x.sin() * x, x, use_reentrant=False)
            (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
            (again,) = torch.autograd.grad(y.sum(), x)
            return [first, second, again]

        both(program)

    def test_barrier_between_the_passes(self) -> None:
        x = torch.ones(4, device="xla", requires_grad=True)
        y = checkpoint(lambda x: nn.functional.dropout(x * 1, 0.5), x, use_reentrant=False)
        spmd.sync()
        y.sum().backward()
        assert torch.equal(y.detach(), x.grad)

    def test_no_recompilation(self) -> None:
        model, optimizer = nn.ModuleList(Perceptron(4) for _ in range(3)).to("xla"), None
        optimizer = torch.optim.AdamW(model.parameters())
        compiles = []
        for _ in range(5):
            h = torch.ones(2, 4, device="xla")
            for block in model:
                h = checkpoint(block, h, use_reentrant=False)
            h.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            del h
            spmd.sync()
            compiles.append(spmd.metrics.num_compiles())
        assert compiles[2] == compiles[-1], [str(record) for record in spmd.metrics.compiles()[-3:]]

    def test_on_cpu(self) -> None:
        x = torch.ones(4, requires_grad=True)
        checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False).sum().backward()
        assert x.grad is not None
