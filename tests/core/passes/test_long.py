"""A graph of very many ops is cut into programs; where its layers are alike, they count once and it
stays whole."""

import random
from collections.abc import Callable

import jax
import pytest
import torch
from support import check, run_script
from torch import nn

import spmd
from spmd.core.run import executables

WIDTH, LAYERS = 8, 16


def tower() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS))
    )


def num_programs() -> int:
    before = spmd.metrics.counter("runs")
    spmd.sync()
    return spmd.metrics.counter("runs") - before


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long graph here has more ops than half of the layers."""
    monkeypatch.setattr(spmd.config, "max_program_ops", LAYERS)


@pytest.mark.parametrize(("scan_layers", "is_one"), [("always", True), ("never", False)])
class TestLong:
    def test_forward(self, scan_layers: str, is_one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "scan_layers", scan_layers)
        cpu, model = tower(), tower().to("xla")
        x = torch.randn(4, WIDTH)
        spmd.sync()
        with torch.no_grad():
            output = model(x.to("xla"))
        assert (num_programs() == 1) is is_one
        check(output, cpu(x).detach())

    def test_step(self, scan_layers: str, is_one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "scan_layers", scan_layers)
        cpu, model = tower(), tower().to("xla")
        x = torch.randn(4, WIDTH)
        spmd.sync()
        model(x.to("xla")).sum().backward()
        assert (num_programs() == 1) is is_one
        cpu(x).sum().backward()
        for one, other in zip(model.parameters(), cpu.parameters(), strict=True):
            check(one.grad, other.grad)


def test_few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five layers are no loop of a short graph on the CPU; of one that would be cut they are."""
    monkeypatch.setattr(spmd.config, "scan_layers", "auto")
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.GELU()) for _ in range(5)]
    model = nn.Sequential(*layers).to("xla")
    x = torch.randn(4, WIDTH)
    spmd.sync()
    monkeypatch.setattr(spmd.config, "max_program_ops", 14)
    with torch.no_grad():
        one = model(x.to("xla"))
    assert num_programs() == 1
    check(one, model.to("cpu")(x))


def test_mostly_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that loops make half as long stays one program, which one with more ops outside of
    them does not."""
    monkeypatch.setattr(spmd.config, "scan_layers", "always")
    kinds = "Sigmoid ReLU GELU SiLU ELU Softplus Hardswish Mish SELU LogSigmoid Softsign Hardtanh "
    kinds += "Hardsigmoid ReLU6 Tanhshrink Softshrink Hardshrink LeakyReLU CELU Tanh"
    head = nn.Sequential(*(getattr(nn, kind)() for kind in kinds.split() * 2))
    model = tower().to("xla")
    x = torch.randn(4, WIDTH).to("xla")
    spmd.sync()
    monkeypatch.setattr(spmd.config, "max_program_ops", 4)
    with torch.no_grad():
        one = model(x)
    assert num_programs() == 1
    with torch.no_grad():
        one = head(model(x))
    assert num_programs() > 1
    check(one, head(model.to("cpu")(x.cpu())))


KINDS: list[Callable[[torch.Tensor], torch.Tensor]] = [torch.tanh, torch.sin]


def chain(x: torch.Tensor, seed: int, length: int) -> torch.Tensor:
    """Ops in an order that does not repeat."""
    order = random.Random(seed)
    for _ in range(length):
        x = order.choice(KINDS)(x)
    return x


def counted(function: Callable[[], object]) -> tuple[int, int]:
    """The number of programs that a call compiles and runs."""
    before = spmd.metrics.num_compiles(), spmd.metrics.counter("runs")
    function()
    return spmd.metrics.num_compiles() - before[0], spmd.metrics.counter("runs") - before[1]


class TestWithoutLoop:
    """A long graph without a loop is cut where what recurs is cut at equal places, so that it is
    compiled once."""

    @pytest.fixture(autouse=True)
    def longer(self, short: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "max_program_ops", 64)
        spmd.sync()

    def test_ops_in_any_order(self) -> None:
        x = torch.linspace(-1, 1, 8)
        y = chain(x.to("xla"), 0, 400)
        compiles, runs = counted(spmd.sync)
        assert 3 * compiles < 2 * runs
        check(y, chain(x, 0, 400))
        y = chain(x.to("xla"), 0, 400)
        assert counted(spmd.sync) == (0, runs)

    @pytest.mark.parametrize("is_split", [False, True], ids=["one", "mesh"])
    def test_images_one_by_one(self, is_split: bool, mesh8: spmd.Mesh) -> None:
        """A training step over the images of a batch one by one, with a read and a branch by value
        at each."""

        def train(device: str, images: int, steps: int) -> list[torch.Tensor]:
            torch.manual_seed(0)
            model = nn.Sequential(
                nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 8)
            ).to(device)
            if is_split and device == "xla":
                for weight in model.parameters():
                    spmd.mark_sharding(weight, mesh8, ("fsdp", None)[: weight.dim()])
            optimizer, seen = torch.optim.AdamW(model.parameters(), 0.01), []
            for step in range(steps):
                batch = (torch.arange(images * 16.0).view(images, 2, 8).sin() + step).to(device)
                losses = []
                for image in batch:
                    scores = model(image)
                    best = scores.sum(0)[int(scores.detach().sum(0).argmax())]
                    losses.append(
                        best + scores.square().mean() if best > 0 else scores.exp().mean()
                    )
                loss = torch.stack(losses).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                seen.append(loss.detach().cpu())
            return [*seen, *(weight.detach().cpu() for weight in model.parameters())]

        few, _ = counted(lambda: train("xla", 4, 1))
        made: list[torch.Tensor] = []
        many, runs = counted(lambda: made.extend(train("xla", 12, 2)))
        assert runs > 3 * many, (few, many, runs)
        for one, wanted in zip(made, train("cpu", 12, 2), strict=True):
            check(one, wanted)

    def test_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A value that only later stretches read is freed as soon as they have."""
        x = torch.ones(4096, device="xla") * 0.5
        spmd.sync()
        y = chain(x, 1, 300)
        sizes: list[int] = []
        run = executables.run

        def watched(*args: object) -> object:
            sizes.append(sum(array.nbytes for array in jax.live_arrays() if array.shape == (4096,)))
            return run(*args)

        monkeypatch.setattr(executables, "run", watched)
        spmd.sync()
        assert len(sizes) > 3 and max(sizes) - sizes[0] <= 4 * 4096 * 4
        check(y, chain(torch.full((4096,), 0.5), 1, 300))

    def test_two_processes_cut_alike(self) -> None:
        script = """
            import random, sys, torch, spmd
            from spmd.core.run import executables

            spmd.config.max_program_ops = 64
            order, seen, run = random.Random(2), [], executables.run
            executables.run = lambda program, graph: (
                seen.append(len(graph.nodes)),
                run(program, graph),
            )[1]
            x = torch.linspace(-1, 1, 8).to("xla")
            for _ in range(200):
                x = order.choice([torch.tanh, torch.sin])(x)
            print(x.cpu().numpy().tobytes().hex(), seen)
            """
        assert run_script(script, PYTHONHASHSEED="1") == run_script(script, PYTHONHASHSEED="2")
