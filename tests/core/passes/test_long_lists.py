"""List ops over thousands of tensors are cut into programs of some hundred elements; equal ones are
one program, and rows of a loop's stacks stay in the loop's."""

import pytest
import torch
from support import check
from torch import nn

import fsdp
import spmd
from spmd.core.passes import long_lists
from spmd.core.programs import cache

ELEMENTS, LIMIT = 4, 16


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs here have few elements."""
    monkeypatch.setattr(long_lists, "_ELEMENTS", ELEMENTS)
    monkeypatch.setattr(spmd.config, "max_program_ops", LIMIT)
    monkeypatch.setattr(spmd.config, "check_graphs", True)


class Optimizers:
    """An optimizer of parameters with these shapes on the device, and one on the CPU."""

    def __init__(
        self, shapes: list[tuple[int, ...]], kind: type[torch.optim.Optimizer], **kwargs: object
    ):
        torch.manual_seed(0)
        self.values = [torch.randn(shape) for shape in shapes]
        self.parameters = [nn.Parameter(value.to("xla")) for value in self.values]
        self.twins = [nn.Parameter(value.clone()) for value in self.values]
        self.optimizer = kind(self.parameters, **kwargs)  # type: ignore[arg-type]
        self.twin = kind(self.twins, **kwargs)  # type: ignore[arg-type]

    def step(self, *, norm: float | None = None) -> tuple[int, int]:
        """Takes a step of both; returns how many programs ran and were compiled on the device."""
        grads = [torch.randn_like(value) for value in self.values]
        for parameter, twin, grad in zip(self.parameters, self.twins, grads, strict=True):
            parameter.grad, twin.grad = grad.to("xla"), grad
        spmd.sync()
        runs, compiles = spmd.metrics.counter("runs"), spmd.metrics.num_compiles()
        if norm is not None:
            check(
                nn.utils.clip_grad_norm_(self.parameters, norm),
                nn.utils.clip_grad_norm_(self.twins, norm),
            )
        self.optimizer.step()
        self.twin.step()
        spmd.sync()
        for parameter, twin in zip(self.parameters, self.twins, strict=True):
            check(parameter, twin.detach())
        return spmd.metrics.counter("runs") - runs, spmd.metrics.num_compiles() - compiles


class TestPrograms:
    """A program for some elements of all list ops of a run; equal programs are compiled once."""

    @pytest.mark.parametrize("num", [20, 40])
    @pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
    def test_equal_shapes(self, num: int, fused: bool) -> None:
        both = Optimizers(num * [(3, 2)], torch.optim.AdamW, lr=0.1, foreach=not fused, fused=fused)
        both.step()  # which also makes the moments
        runs, compiles = both.step()
        # What is compiled does not grow with the number of parameters.
        assert runs == num // ELEMENTS and compiles <= 1, (runs, compiles)
        assert both.step() == (runs, 0)

    def test_short_lists(self) -> None:
        both = Optimizers(LIMIT * [(3, 2)], torch.optim.AdamW, lr=0.1, foreach=True)
        both.step()
        assert both.step()[0] == 1

    def test_several_shapes(self) -> None:
        shapes = [(3 + i % 7, 2) if i % 2 else (2,) for i in range(23)]
        both = Optimizers(shapes, torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True)
        both.step()
        runs, _ = both.step()
        # 12 of one shape are programs of their own, and 11 of seven shapes some more.
        assert runs == 3 + 3
        assert both.step() == (runs, 0)

    def test_norm(self) -> None:
        """The norm reads all gradients, and each program of the step reads it."""
        both = Optimizers(20 * [(3, 2)], torch.optim.AdamW, lr=0.1, foreach=True)
        for _ in range(3):
            both.step(norm=0.5)

    def test_results(self) -> None:
        """Results that Python holds, and elements that read one another's."""
        x = [torch.randn(2, 2 + i % 3) for i in range(20)]
        on_device = [each.to("xla") for each in x]
        spmd.sync()
        sums = torch._foreach_add(on_device, 1.0)
        products = torch._foreach_mul(sums, sums)
        total = torch.stack([product.sum() for product in products]).sum()
        spmd.sync()
        for value, on_cpu in zip(x, products, strict=True):
            check(on_cpu, (value + 1) * (value + 1))
        for value, on_cpu in zip(x, sums, strict=True):
            check(on_cpu, value + 1)
        check(total, torch.stack([((value + 1) ** 2).sum() for value in x]).sum())


def tower(layers: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(layers)))


class TestModels:
    """Steps of models under FSDP, their forward and backward in front."""

    @pytest.mark.parametrize("scan_layers", ["auto", "never"])
    def test_fsdp(
        self, scan_layers: str, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spmd.config, "scan_layers", scan_layers)
        monkeypatch.setattr(spmd.config, "max_program_ops", 40)
        cpu, model = tower(24), tower(24).to("xla")
        model = fsdp.FullyShardedDataParallel(
            model, mesh=mesh8, auto_wrap_policy=fsdp.always_wrap_policy
        )
        optimizers = [
            torch.optim.AdamW(each.parameters(), lr=0.01, foreach=True) for each in (model, cpu)
        ]
        for _ in range(3):
            x = torch.randn(8, 8)
            runs = spmd.metrics.counter("runs")
            for each, data, optimizer in zip(
                (model, cpu), (x.to("xla"), x), optimizers, strict=True
            ):
                each(data).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            spmd.sync()
            runs = spmd.metrics.counter("runs") - runs
            for one, other in zip(model.parameters(), cpu.parameters(), strict=True):
                check(one, other.detach())
        # Rows of a loop's stacks stay in its program.
        assert (runs == 1) is (scan_layers == "auto"), runs

    def test_loops_of_long_graphs_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A program without its loops would be a long one, whatever these copy."""
        monkeypatch.setattr(cache, "refuse_loops", [lambda _, graph: True])
        model = tower(24).to("xla")
        x = torch.randn(2, 8).to("xla")
        spmd.sync()
        before = spmd.metrics.counter("loops_given_up")
        model(x).sum().backward()
        spmd.sync()
        assert spmd.metrics.counter("loops_given_up") == before
