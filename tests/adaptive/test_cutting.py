"""A barrier whose graph keeps changing with the data runs new graphs as stretches that recur, equal
bit for bit."""

import copy
import random
from collections.abc import Iterator

import pytest
import torch
from support import check, run_script
from torch import Tensor, nn

import spmd
from spmd.adaptive import changing
from spmd.core.passes import cuts
from spmd.core.programs import cache
from spmd.core.record import recorders


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of another test is pending, none of its graphs, programs and threads known; few ops
    are a graph."""
    monkeypatch.setattr(changing, "LEAST_OPS", 8)
    monkeypatch.setattr(recorders, "are_several", False)
    # A replayed layer marks gradients before the loop's own sum: a step of some is another graph.
    monkeypatch.setattr(spmd.config, "replay_steps", False)
    spmd.sync()
    cache.clear_cache()
    changing.forget()
    cuts._recent_kinds.clear()
    cuts.forget()
    yield
    spmd.sync()


class Layers:
    """Residual layers on the CPU and on the device, trained alike; each step leaves some out."""

    def __init__(self, mesh: spmd.Mesh | None = None, count: int = 6, width: int = 8):
        torch.manual_seed(0)
        model = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(count)
        )
        self.models = model, copy.deepcopy(model).to("xla")
        for parameter in self.models[1].parameters() if mesh is not None else ():
            spmd.mark_sharding(parameter, mesh, ("fsdp", None)[: parameter.dim()])
        self.optimizers = [
            torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in self.models
        ]

    def step(self, layers: list[int]) -> int:
        """One step through these layers; the number of programs compiled for it."""
        before, losses = spmd.metrics.num_compiles(), []
        x = torch.linspace(-1, 1, 8 * self.models[0][0][0].in_features).view(8, -1)
        for model, optimizer, device in zip(
            self.models, self.optimizers, ("cpu", "xla"), strict=True
        ):
            y = x.to(device)
            for i in layers:
                y = y + model[i](y).tanh()
            loss = y.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[1] == pytest.approx(losses[0], rel=1e-5)
        return spmd.metrics.num_compiles() - before

    def check(self) -> None:
        for wanted, made in zip(*(model.parameters() for model in self.models), strict=True):
            torch.testing.assert_close(made.detach().cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)


# Which layers each step has: all of them first, as a weight's first step makes its momentum.
CHOSEN = [
    [0, 1, 2, 3, 4, 5],
    [0, 1, 2],
    [0, 1, 2, 3, 4],
    [1, 2],
    [5, 3, 4, 1],
    [4, 0],
    [0, 1, 2, 4, 5, 3, 3],
]


class TestRandomDepth:
    """Layers that are left out at random."""

    @pytest.mark.parametrize("is_split", [False, True], ids=["one", "mesh"])
    def test_new_combinations_find_programs(self, is_split: bool, mesh8: spmd.Mesh, capfd) -> None:
        layers = Layers(mesh8 if is_split else None)
        capfd.readouterr()
        before = spmd.metrics.counter("changing_graphs")
        counts = [layers.step(chosen) for chosen in CHOSEN]
        assert spmd.metrics.counter("changing_graphs") >= before + 3, counts
        assert counts[4] > 1 and sum(counts[5:]) <= 7, (counts, spmd.metrics.report())
        # the first graph, whose weights have momentum now
        assert sum(layers.step(chosen) for chosen in CHOSEN) <= 4
        layers.check()
        told = [line for line in capfd.readouterr().err.splitlines() if "keeps changing" in line]
        assert len(told) == 1 and "test_cutting.py" in told[0], told
        assert "0 or 1 instead of leaving the layer out" in spmd.metrics.report()

    def test_a_graph_that_runs_often_becomes_one_program(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(changing, "_OFTEN", 2)
        layers = Layers()
        for chosen in CHOSEN[:5]:
            layers.step(chosen)
        runs, programs = [], []
        for _ in range(5):
            before = spmd.metrics.counter("runs")
            programs.append(layers.step(CHOSEN[4]))
            runs.append(spmd.metrics.counter("runs") - before)
        assert runs[0] > 2 and runs[-1] == 1 and sum(programs) == 1, (runs, programs)
        layers.check()

    def test_two_processes_cut_alike(self) -> None:
        script = """
            import random, torch, spmd
            from torch import nn
            from spmd.core.run import executables
            from spmd.adaptive import changing

            changing.LEAST_OPS = 8
            seen, run = [], executables.run
            executables.run = lambda program, graph: (
                seen.append(len(graph.nodes)),
                run(program, graph),
            )[1]
            torch.manual_seed(0)
            model = nn.ModuleList(nn.Linear(4, 4) for _ in range(6)).to("xla")
            optimizer, order = torch.optim.AdamW(model.parameters()), random.Random(3)
            for _ in range(8):
                x = torch.linspace(-1, 1, 8).view(2, 4).to("xla")
                for layer in model:
                    if order.random() < 0.7:
                        x = x + layer(x).tanh()
                x.square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                spmd.sync()
            print([p.detach().cpu().numpy().tobytes().hex() for p in model.parameters()], seen)
            assert spmd.metrics.counter("changing_graphs")
            """
        assert run_script(script, PYTHONHASHSEED="1") == run_script(script, PYTHONHASHSEED="2")


class TestOthers:
    """Graphs that only look like it."""

    def test_a_few_programs_that_take_turns(self) -> None:
        """An accumulating step is two graphs, its first run a third, and all are met again."""
        layers = Layers()
        before = spmd.metrics.counter("changing_graphs")
        for _ in range(4):
            for chosen in CHOSEN[:2]:
                layers.step(chosen)
        assert spmd.metrics.counter("changing_graphs") == before

    def test_trainings_one_after_another(self) -> None:
        """Models of other depths, each trained at the same line, are as many programs as each has
        alone."""
        before = spmd.metrics.counter("changing_graphs")
        found = []
        for count in range(2, 8):
            layers = Layers(count=count)
            found.append([layers.step([*range(count)]) for _ in range(3)])
        assert spmd.metrics.counter("changing_graphs") == before
        assert all(sum(each[1:]) <= 1 for each in found), found

    def test_short_graphs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(changing, "LEAST_OPS", 64)
        layers, before = Layers(), spmd.metrics.counter("changing_graphs")
        for chosen in CHOSEN:
            layers.step(chosen)
        assert spmd.metrics.counter("changing_graphs") == before

    def test_programs_that_share_little(self) -> None:
        before = spmd.metrics.counter("changing_graphs")
        for count in range(8):
            x = torch.ones(2, count + 1, device="xla")
            for _ in range(4):
                x = x.sin() * 2
            spmd.sync()
        assert spmd.metrics.counter("changing_graphs") == before


class TestValues:
    def test_branches_by_value(self) -> None:
        """Each layer's weights are chosen by what came before."""

        def train(device: str) -> list[Tensor]:
            torch.manual_seed(1)
            model = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
            seen = []
            for step in range(7):
                x = torch.arange(8.0).view(2, 4).sin() + step
                choices, y = random.Random(step), x.to(device)
                for _ in range(6):
                    y = model[choices.randrange(3)](y).tanh()
                y.sum().backward()
                seen += [
                    torch.zeros(4, 4) if m.weight.grad is None else m.weight.grad.cpu()
                    for m in model
                ]
                model.zero_grad()
            return seen

        before = spmd.metrics.num_compiles()
        made = train("xla")
        assert spmd.metrics.num_compiles() - before <= 14, spmd.metrics.report()
        for one, wanted in zip(made, train("cpu"), strict=True):
            check(one, wanted)
