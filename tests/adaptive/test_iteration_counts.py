"""Iterations that differ in number are a loop with a dynamic trip count: values, gradients and steps are CPU's."""

import copy
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spmd
from spmd.adaptive.padding.case import NoRule
from spmd.adaptive.stacked_data import columns_of
from spmd.core.graph.graph import DeviceData
from spmd.core.graph.meta import dense_meta
from spmd.core.graph.op import OpSpec
from spmd.core.programs import cache


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nothing of another test is pending."""
    spmd.sync()
    yield
    spmd.sync()


class Tagger(nn.Module):
    """A tag for each word of a sentence."""

    def __init__(self, cell: Callable[..., nn.Module], join: Callable[[list[Tensor]], Tensor], width: int = 8):
        super().__init__()
        self.embedding, self.cell, self.out = nn.Embedding(20, width), cell(width, width), nn.Linear(width, 5)
        self.join = join

    def forward(self, words: Tensor) -> Tensor:
        embedded = self.embedding(words)
        state: Tensor | tuple[Tensor, Tensor] = embedded.new_zeros(1, self.cell.hidden_size)
        state = (state, state) if isinstance(self.cell, nn.LSTMCell) else state
        outputs = []
        for i in range(len(words)):
            state = self.cell(embedded[i : i + 1], state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return self.out(self.join(outputs).reshape(-1, self.cell.hidden_size))


class Pair:
    """A tagger on the CPU and one on the device, trained alike."""

    def __init__(self, model: nn.Module, mesh: spmd.Mesh | None = None):
        self.models = model, copy.deepcopy(model).to("xla")
        for parameter in self.models[1].parameters() if mesh is not None else ():
            spmd.mark_sharding(parameter, mesh, ("fsdp", *[None] * (parameter.dim() - 1)))
        self.optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in self.models]

    def step(self, length: int, **how: object) -> int:
        """Trains both on a sentence of so many words; compares losses; returns the number of programs."""
        words, tags = torch.randint(20, (length,)), torch.randint(5, (length,))
        before, losses = spmd.metrics.num_compiles(), []
        for model, optimizer, device in zip(self.models, self.optimizers, ("cpu", "xla"), strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(words.to(device)), tags.to(device), **how)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().cpu())
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
        return spmd.metrics.num_compiles() - before

    def check(self) -> None:
        for expected, made in zip(*(model.parameters() for model in self.models), strict=True):
            torch.testing.assert_close(made.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)


def stacked(outputs: list[Tensor]) -> Tensor:
    return torch.stack(outputs)


class TestOrders:
    """Two loops that read one list in orders that no stack has both of: the program stays as recorded."""

    def test_two_orders(self) -> None:
        def program(values: list[Tensor], order: Sequence[int]) -> Tensor:
            one, two = values[0] * 0, values[0] * 0 + 1
            for value in values:
                one = torch.tanh(one + value) * 2
            for place in order:
                two = torch.sin(two * values[place]) + 1
            return one + two

        for count in (5, 7, 6, 9):
            values, order = [torch.randn(3) for _ in range(count)], [1, 0, *range(count - 1, 1, -1)]
            made = program([value.to("xla") for value in values], order)
            torch.testing.assert_close(made.cpu(), program(values, order), rtol=1e-5, atol=1e-6)


class TestTaggers:
    """One program for each doubling, forward, backward and optimizer."""

    @pytest.mark.parametrize(
        ("cell", "join"), [(nn.LSTMCell, torch.cat), (nn.GRUCell, stacked), (nn.RNNCell, torch.cat)]
    )
    def test_few_programs(self, cell: Callable[..., nn.Module], join: Callable[[list[Tensor]], Tensor]) -> None:
        pair = Pair(Tagger(cell, join))
        counts = [pair.step(length) for length in (9, 11, 14, 10, 16, 13, 20, 27, 31, 15)]
        assert counts[0] == 1 and sum(counts) <= 3, (counts, spmd.metrics.report())
        assert not any(pair.step(length) for length in (12, 29, 18, 16))
        pair.check()

    def test_three_programs(self) -> None:
        """One as it was recorded, one for up to 32 words, one for up to 64."""
        pair = Pair(Tagger(nn.LSTMCell, torch.cat, width=5))
        assert [pair.step(length) for length in (5, 7, 9, 11, 6, 20, 13, 40)] == [1, 1, 0, 0, 0, 0, 0, 1]
        pair.check()

    def test_sentences_of_3_to_60_words(self) -> None:
        pair = Pair(Tagger(nn.LSTMCell, torch.cat, width=4))
        lengths = [(7 * i) % 58 + 3 for i in range(58)]
        assert sum(pair.step(length) for length in lengths) <= 7, spmd.metrics.report()
        pair.check()

    def test_sharded(self, mesh8: spmd.Mesh) -> None:
        pair = Pair(Tagger(nn.LSTMCell, torch.cat, width=16), mesh8)
        counts = [pair.step(length) for length in (9, 11, 14, 10, 13)]
        assert not any(counts[3:]), (counts, spmd.metrics.report())
        pair.check()

    def test_summed_losses_and_ignored_words(self) -> None:
        pair = Pair(Tagger(nn.GRUCell, torch.cat, width=6))
        counts = [pair.step(length, reduction="sum", ignore_index=2) for length in (9, 11, 14, 10)]
        assert not any(counts[3:]), counts
        pair.check()

    def test_the_same_number_is_no_loop(self) -> None:
        pair = Pair(Tagger(functools.partial(nn.RNNCell, nonlinearity="relu"), torch.cat))
        assert [pair.step(9) for _ in range(3)] == [1, 0, 0]
        assert "spmd.loop" not in {op.name for op in last_entries()}

    def test_turned_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "scan_iterations", False)
        pair = Pair(Tagger(nn.LSTMCell, torch.cat, width=12))
        assert [pair.step(length) for length in (9, 11, 10)] == [1, 1, 1]

    def test_the_ledger_names_what_has_no_rule(self) -> None:
        model = Tagger(nn.RNNCell, lambda outputs: torch.cat(outputs).sort(0)[0], width=7)
        pair = Pair(model)
        assert [pair.step(length) for length in (9, 11, 10)] == [1, 1, 1]
        cause = spmd.metrics.compiles()[-1].cause
        assert "the length is no operand because aten.sort has no rule for a padded dim" in cause, cause
        pair.check()


def last_entries() -> Sequence[OpSpec]:
    """The ops of the program that ran last."""
    program = cache.last_program()
    assert program is not None
    return program.entries


class TestEpisodes:
    """A policy gradient whose episodes have many lengths; the policy acts step by step, a read each."""

    def episode(self, policy: nn.Module, optimizer: torch.optim.Optimizer, device: str, length: int) -> Tensor:
        drawn = torch.Generator().manual_seed(length)
        scores, rewards = [], []
        for _ in range(length):
            logits = policy(torch.randn(1, 4, generator=drawn).to(device))
            action = torch.randint(2, (1,), generator=drawn)
            scores.append(torch.distributions.Categorical(logits=logits).log_prob(action.to(device)))
            rewards.append(torch.rand((), generator=drawn).item())
        returns, total = [], 0.0
        for reward in reversed(rewards):
            total = reward + 0.9 * total
            returns.insert(0, total)
        loss = torch.cat([-score * r for score, r in zip(scores, torch.tensor(returns).to(device), strict=True)]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach().cpu()

    def test_few_programs(self) -> None:
        policy = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        both = policy, copy.deepcopy(policy).to("xla")
        optimizers = [torch.optim.Adam(model.parameters(), lr=1e-2) for model in both]
        counts = []
        for length in (9, 10, 12, 15, 11, 14, 30, 21, 26):
            before, losses = spmd.metrics.num_compiles(), []
            for model, optimizer, device in zip(both, optimizers, ("cpu", "xla"), strict=True):
                losses.append(self.episode(model, optimizer, device, length))
            torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
            counts.append(spmd.metrics.num_compiles() - before)
        assert sum(counts[1:]) <= 2 and not any(counts[2:6]), (counts, spmd.metrics.report())
        for expected, made in zip(both[0].parameters(), both[1].parameters(), strict=True):
            torch.testing.assert_close(made.detach().cpu(), expected.detach(), rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("scored", ["gather", "index", "number", "unchecked", "joined", "rows", "counted"])
    def test_scores(self, scored: str) -> None:
        """However the actions are scored; forward and backward both read the states and actions of all turns."""
        policy = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        both = policy, copy.deepcopy(policy).to("xla")
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in both]
        counts = []
        for length in (9, 10, 12, 15, 11, 14):
            states, actions, rewards = torch.randn(length, 1, 4), torch.randint(3, (length,)), torch.rand(length)
            returns = torch.flip(torch.cumsum(torch.flip(rewards, [0]), 0), [0])  # the host's, as data
            before, losses = spmd.metrics.num_compiles(), []
            for model, optimizer, device in zip(both, optimizers, ("cpu", "xla"), strict=True):
                optimizer.zero_grad()
                loss = -torch.dot(  # no name holds the scores, which would be a result of each length
                    SCORES[scored]([model(state.to(device)) for state in states], actions, device),
                    ((returns - returns.mean()) / returns.std()).to(device),
                )
                loss.backward()
                optimizer.step()
                losses.append(loss.detach().cpu())
            torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
            counts.append(spmd.metrics.num_compiles() - before)
        assert counts == [1, 1, 0, 0, 0, 0], (counts, spmd.metrics.report())
        for expected, made in zip(*(model.parameters() for model in both), strict=True):
            torch.testing.assert_close(made.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)

    def test_data_in_another_order_is_no_column(self) -> None:
        leaves = [DeviceData(dense_meta((2,), torch.float32), host=np.zeros(2, np.float32)) for _ in range(5)]
        a, b, c, d, e = leaves
        assert columns_of([(b, c, d), (c, b, a), (d, e)]) == [(a, b, c, d, e)]
        assert columns_of([(a, b), (c, d, e)]) == [(a, b), (c, d, e)]
        assert columns_of([(a, b), (c, d), (b, c)]) == [(a, b, c, d)]
        with pytest.raises(NoRule, match="in another order"):
            columns_of([(a, b, c), (b, a, c)])


def by_iteration(score: Callable[[Tensor, Tensor, str], Tensor]) -> Callable[[list[Tensor], Tensor, str], Tensor]:
    """Scores turn by turn."""

    def scores(logits: list[Tensor], actions: Tensor, device: str) -> Tensor:
        iterations = zip(logits, actions.unbind(), strict=True)
        return torch.stack([score(x.log_softmax(-1), action[None], device).squeeze() for x, action in iterations])

    return scores


def at_once(score: Callable[[Tensor, Tensor, str], Tensor]) -> Callable[[list[Tensor], Tensor, str], Tensor]:
    """Scores all turns at the end."""
    return lambda logits, actions, device: score(torch.cat(logits).log_softmax(-1), actions, device)


SCORES = {
    "gather": by_iteration(lambda x, action, device: x.gather(1, action[None].to(device))),
    "index": by_iteration(lambda x, action, device: x[0, action.to(device)]),
    "number": by_iteration(lambda x, action, device: x[0, int(action)]),
    "unchecked": by_iteration(
        lambda x, action, device: torch.distributions.Categorical(logits=x, validate_args=False).log_prob(
            action.to(device)
        )
    ),
    "joined": at_once(lambda x, actions, device: x.gather(-1, actions[:, None].to(device)).squeeze(-1)),
    "rows": at_once(lambda x, actions, device: x[range(len(actions)), actions.to(device)]),
    "counted": at_once(lambda x, actions, device: x[torch.arange(len(actions), device=device), actions.to(device)]),
}
