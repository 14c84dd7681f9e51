"""A loop that nobody syncs runs turn by turn, as the loop that syncs does; layers are no loop."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import fsdp
import spmd
from spmd.adaptive import unsynced
from spmd.core.graph.graph import topological
from spmd.core.passes.repeats import symbol
from spmd.core.record.storage import pending

ITERATIONS = 24


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nothing of another test is pending, and a loop is looked for after few ops, so that small
    models will do."""
    spmd.sync()
    before = spmd.config.loop_search_ops
    spmd.config.loop_search_ops = 256
    spmd.sync()
    yield
    spmd.config.loop_search_ops = before
    spmd.sync()


class Counts:
    """Programs compiled and runs since it was made."""

    def __init__(self) -> None:
        self.programs, self.runs = spmd.metrics.num_compiles(), spmd.metrics.counter("runs")

    def since(self) -> tuple[int, int]:
        return spmd.metrics.num_compiles() - self.programs, spmd.metrics.counter("runs") - self.runs


def train(
    *, every: int, mesh: spmd.Mesh | None = None, dropout: float = 0.0
) -> tuple[list[float], list[Tensor]]:
    """Trains a small network; reads its loss each `every` steps: (losses read, weights in the
    end)."""
    torch.manual_seed(0)
    blocks = [
        m
        for _ in range(3)
        for m in (nn.Linear(16, 16), nn.GELU(), nn.Dropout(dropout), nn.LayerNorm(16))
    ]
    model = nn.Sequential(*blocks, nn.Linear(16, 8)).to("xla")
    if mesh is not None:
        for parameter in model.parameters():
            spmd.mark_sharding(parameter, mesh, ("fsdp", *[None] * (parameter.dim() - 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ITERATIONS)
    draws = torch.Generator().manual_seed(1)
    losses = []
    for step in range(1, ITERATIONS + 1):
        x, y = (
            torch.randn(8, 16, generator=draws).to("xla"),
            torch.randn(8, 8, generator=draws).to("xla"),
        )
        if mesh is not None:
            spmd.mark_sharding(x, mesh, ("fsdp", None))
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % every == 0:
            losses.append(loss.item())
    return losses, [parameter.detach().cpu() for parameter in model.parameters()]


class TestTraining:
    """A loss that is read once in a while changes no number, and costs no program the length of the
    loop."""

    @pytest.mark.parametrize("dropout", [0.0, 0.5])
    def test_one_device(self, dropout: float) -> None:
        losses, weights = train(every=1, dropout=dropout)
        counts = Counts()
        few, same = train(every=12, dropout=dropout)
        programs, runs = counts.since()
        assert few == pytest.approx([losses[11], losses[23]], rel=1e-5)
        for one, other in zip(weights, same, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        assert programs <= 4 and runs >= ITERATIONS, spmd.metrics.report()

    def test_sharded(self, mesh8: spmd.Mesh) -> None:
        losses, weights = train(every=1)
        counts = Counts()
        few, same = train(every=12, mesh=mesh8)
        programs, runs = counts.since()
        assert few == pytest.approx([losses[11], losses[23]], rel=1e-5)
        for one, other in zip(weights, same, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
        assert programs <= 5 and runs >= ITERATIONS, spmd.metrics.report()

    def test_tensors_with_open_dims_that_outlive_it(self, mesh8: spmd.Mesh) -> None:
        """Their annotations are recorded as the loop is cut: none reads an op that has run."""
        weight = nn.Parameter(torch.ones(8, 16, device="xla"))
        spmd.mark_sharding(weight, mesh8, ("fsdp", None))
        spmd.sync()
        kept = []
        counts = Counts()
        with torch.no_grad():
            for turn in range(40):
                for _ in range(8):
                    weight.mul_(1.01)
                scaled = weight * (turn + 1)
                spmd.mark_sharding(scaled, mesh8, ("fsdp", spmd.PartitionSpec.UNCONSTRAINED))
                kept.append(scaled.add_(1.0))
        assert counts.since()[1] > 1, "the loop was cut"
        for turn, scaled in enumerate(kept):
            expected = torch.full((8, 16), 1.01 ** (8 * (turn + 1)) * (turn + 1) + 1)
            torch.testing.assert_close(scaled.cpu(), expected, rtol=1e-4, atol=1e-6)

    def test_a_loss_read_every_few_steps(self) -> None:
        """The graph between two reads is short: steps are told by the state that they write."""
        spmd.config.loop_search_ops = 100_000
        spmd.sync()
        losses, _ = train(every=1)
        counts = Counts()
        few, _ = train(every=4)
        programs, runs = counts.since()
        assert few == pytest.approx(losses[3::4], rel=1e-5)
        assert programs <= 3 and runs >= ITERATIONS, spmd.metrics.report()

    def test_the_second_loop_compiles_nothing(self) -> None:
        train(every=12)
        counts = Counts()
        train(every=12)
        assert counts.since()[0] == 0, spmd.metrics.report()

    def test_more_turns_compile_nothing_more(self) -> None:
        self.sample(12).cpu()
        counts = Counts()
        self.sample(40).cpu()
        programs, runs = counts.since()
        assert programs <= 2, spmd.metrics.report()  # the last turns may differ by what is alive
        assert runs >= 20

    def sample(self, iterations: int, keep: Callable[[Tensor], None] = lambda x: None) -> Tensor:
        torch.manual_seed(0)
        weights = nn.ParameterList([nn.Parameter(torch.randn(8, 8) / 3) for _ in range(16)]).to(
            "xla"
        )
        x = torch.ones(4, 8).to("xla")
        times = torch.linspace(0, 1, iterations).to("xla")
        with torch.no_grad():
            for time in times:  # the position in `times` differs from turn to turn
                for weight in weights:
                    x = torch.tanh(x @ weight) + x * time
                keep(x)
        return x

    def test_values_that_stay_in_hand(self) -> None:
        kept: list[Tensor] = []
        made = self.sample(12, keep=kept.append).cpu()
        shown = [x.cpu() for x in kept]
        synced: list[Tensor] = []
        assert torch.equal(
            made, self.sample(12, keep=lambda x: (synced.append(x), spmd.sync())[0]).cpu()
        )
        for one, other in zip(shown, synced, strict=True):
            torch.testing.assert_close(one, other.cpu(), rtol=1e-6, atol=1e-6)


class Denoiser(nn.Module):
    """More ops than a graph behind iterations may have in one program, and few equal layers."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(8 + i % 13, 8 + i % 11) for i in range(60)]
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(16), nn.Linear(16, a), nn.GELU(), nn.Linear(a, b), nn.Linear(b, 16)
            )
            for a, b in widths
        )

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x) * time.cos()
        return x


class TestSampling:
    """The last iteration, which a read runs, is the program of those before it."""

    @pytest.mark.parametrize("tail", [False, True])
    @torch.no_grad()
    def test_long_iterations(self, tail: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "max_program_ops", 512)
        torch.manual_seed(0)
        model = Denoiser()
        start = torch.randn(2, 16)

        def sample(device: str) -> Tensor:
            network, x = model.to(device), start.to(device) * 3.0
            for time in torch.linspace(1, 0, 8):
                x = x - 0.1 * network(x, time.to(device))
            return ((x / 2).clamp(-1, 1) if tail else x).cpu()

        expected = sample("cpu")
        counts = Counts()
        torch.testing.assert_close(sample("xla"), expected, rtol=1e-4, atol=1e-5)
        programs, runs = counts.since()
        assert programs <= 3 and runs <= 10, spmd.metrics.report()
        counts = Counts()
        torch.testing.assert_close(sample("xla"), expected, rtol=1e-4, atol=1e-5)
        programs, runs = counts.since()
        assert programs == 0 and runs <= 10, spmd.metrics.report()


class TestNoLoop:
    """A graph that only looks like one stays a single program."""

    def test_layers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # stacks of weights would be programs of their own
        monkeypatch.setattr(spmd.config, "scan_layers", "never")
        torch.manual_seed(0)
        model = nn.Sequential(
            *[m for _ in range(30) for m in (nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())]
        ).to("xla")
        spmd.sync()
        counts = Counts()
        model(torch.ones(2, 8).to("xla")).sum().backward()
        spmd.sync()
        assert counts.since() == (1, 1), spmd.metrics.report()

    def test_a_loop_inside_a_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A recurrent network, by hand: its turns write no state, and the step is one program."""
        monkeypatch.setattr(spmd.config, "scan_layers", "never")
        spmd.config.loop_search_ops = 100_000
        spmd.sync()
        weights = nn.ParameterList([nn.Parameter(torch.randn(8, 8) / 3) for _ in range(16)]).to(
            "xla"
        )
        optimizer = torch.optim.SGD(weights.parameters(), lr=0.01)
        spmd.sync()
        counts = Counts()
        for _ in range(3):
            x = torch.ones(4, 8).to("xla")
            for _ in range(4):
                for weight in weights:
                    x = torch.tanh(x @ weight)
            optimizer.zero_grad()
            x.sum().backward()
            optimizer.step()
            spmd.sync()
        assert counts.since() == (1, 3), spmd.metrics.report()

    def test_a_short_loop_of_a_long_step(self) -> None:
        """Products that repeat in an optimizer, as Newton-Schulz iterations do: each step is one
        program."""
        weights = nn.ParameterList([nn.Parameter(torch.randn(8, 8) / 3) for _ in range(16)]).to(
            "xla"
        )
        spmd.sync()
        counts = Counts()
        for _ in range(3):
            x = torch.ones(4, 8).to("xla")
            for i, weight in enumerate(weights):  # no two layers are alike
                x = torch.tanh(x @ weight) * (1 + i)
                for _ in range(1 + i):
                    x = x.exp().log()
            x.sum().backward()
            with torch.no_grad():
                for weight in weights:
                    weight -= 0.01 * weight.grad
                    weight.grad = None
                update = weights[0].clone()
                for _ in range(5):
                    product = update @ update.mT
                    update = (
                        2 * update - 1.5 * (product @ update) + 0.5 * (product @ (product @ update))
                    )
                    update = (update.tanh() + update.sin().cos()) / (update.abs() + 2)
                weights[0].lerp_(update, 0.1)
            spmd.sync()
        assert counts.since() == (1, 3), spmd.metrics.report()

    def test_initial_values(self) -> None:
        """Layers that are alike are initialised by one program, which runs for each."""
        counts = Counts()
        with torch.device("xla"):
            kept = [
                m for _ in range(60) for m in (nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4))
            ]
        spmd.sync()
        assert counts.since() == (1, 60), spmd.metrics.report()
        assert len(kept) == 180

    def test_initial_values_alone_that_look_like_a_known_loop(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are made, and nothing is left to be cut."""
        kept = [nn.Linear(8, 8, device="xla")]
        symbols = tuple(symbol(node) for node in topological([cell.value for cell in pending()])[0])
        spmd.sync()
        monkeypatch.setattr(unsynced, "_repeated_loops", [unsynced.RepeatedOps(symbols)])
        spmd.config.loop_search_ops = 8
        kept += [nn.Linear(8, 8, device="xla") for _ in range(400)]
        assert all(layer.weight.abs().max().item() <= 8**-0.5 for layer in kept)

    def test_it_can_be_turned_off(self) -> None:
        """Also for a loop that was found before."""

        def loop() -> tuple[int, int]:
            spmd.sync()
            counts = Counts()
            x = torch.ones(4, 8).to("xla")
            for _ in range(400):
                x = torch.tanh(x) + x * 0.5
            x.cpu()
            return counts.since()

        assert loop()[1] > 1
        spmd.config.loop_search_ops = 0
        assert loop() == (1, 1)


class TestRelations:
    """The operands of an op, next to those of the op a period earlier: the same, a value of that
    iteration, a row."""

    def test_of_operands(self) -> None:
        weights = [torch.ones(3).to("xla") + 0 for _ in range(2)]
        state = nn.Parameter(torch.ones(3).to("xla"))
        spmd.sync()
        first, second = (weight._storage.value for weight in weights)
        x = torch.ones(3, device="xla")
        made = [x * weights[0]]
        made.append(made[0] * weights[1])
        one, other = (tensor._storage.value for tensor in made)
        batch = torch.ones(3).to("xla")._storage.value
        for some, others, expected in (
            (first, second, None),  # rows, as the weights of layers are
            (one, first, None),
            (state._storage.value, state._storage.value, True),
            (first, first, False),
            (first, one, True),  # a carry and its initial value
            (one, other, False),  # computed a period later
            (first, batch, False),
        ):
            assert unsynced._shares(some, others, (one, other), {one: 0, other: 1}, 1) is expected


class Recurrent(nn.Module):
    """A layer that goes through a sequence in Python, and writes each state into its output."""

    def __init__(self) -> None:
        super().__init__()
        self.decay, self.first, self.last = (
            nn.Parameter(torch.rand(8)),
            nn.Linear(8, 8),
            nn.Linear(8, 8),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        out, state = torch.zeros_like(x), torch.zeros_like(x[:, 0])
        for i in range(x.shape[1]):
            state = (state * self.decay + x[:, i]).tanh()
            out[:, i] = state
        return self.last(out)


def test_parameters_gathered_for_a_backward_whose_start_has_run(
    mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under FSDP a unit's second gather waits for a gradient: the ops behind that are not run once
    more, for a read of the gathered value after a cut; their data may be overwritten."""
    # cut at short loops, too
    monkeypatch.setattr(unsynced, "_covers", lambda found, length: bool(found))
    plain = nn.Sequential(Recurrent(), Recurrent())
    ours = copy.deepcopy(plain).to("xla")
    for layer in ours:
        fsdp.fully_shard(layer, mesh=mesh8)
    fsdp.fully_shard(ours, mesh=mesh8)
    turns = spmd.metrics.counter("loop_iterations")
    for _ in range(2):
        x = torch.randn(8, 12, 8)
        for model, device in ((plain, "cpu"), (ours, "xla")):
            model.zero_grad()
            model(x.to(device)).square().mean().backward()
        spmd.sync()
        for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-6)
    assert spmd.metrics.counter("loop_iterations") > turns
