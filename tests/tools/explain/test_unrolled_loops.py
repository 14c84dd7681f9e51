"""Python loops whose number of iterations differs: a program for each, as on the CPU, and the mark
to write instead."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spmd


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nothing of another test is pending."""
    spmd.sync()
    yield
    spmd.sync()


class Tagger(nn.Module):
    """A tag for each word of a sentence."""

    def __init__(
        self, cell: Callable[..., nn.Module], join: Callable[[list[Tensor]], Tensor], width: int
    ):
        super().__init__()
        self.embedding, self.cell, self.out = (
            nn.Embedding(20, width),
            cell(width, width),
            nn.Linear(width, 5),
        )
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

    def step(self, length: int) -> int:
        """Trains both on a sentence of so many words; compares losses; returns the number of
        programs."""
        words, tags = torch.randint(20, (length,)), torch.randint(5, (length,))
        before, losses = spmd.metrics.num_compiles(), []
        for model, optimizer, device in zip(
            self.models, self.optimizers, ("cpu", "xla"), strict=True
        ):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(words.to(device)), tags.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().cpu())
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
        return spmd.metrics.num_compiles() - before

    def check(self) -> None:
        for expected, trained in zip(*(model.parameters() for model in self.models), strict=True):
            torch.testing.assert_close(
                trained.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5
            )


class TestTaggers:
    """Sentences of several lengths: a program for each, forward, backward and optimizer."""

    @pytest.mark.parametrize(
        ("cell", "join"),
        [(nn.LSTMCell, torch.cat), (nn.GRUCell, torch.stack), (nn.RNNCell, torch.cat)],
    )
    def test_values(
        self, cell: Callable[..., nn.Module], join: Callable[[list[Tensor]], Tensor]
    ) -> None:
        pair = Pair(Tagger(cell, join, 8))
        assert [pair.step(length) for length in (9, 4, 9, 4)] == [1, 1, 0, 0]
        pair.check()

    def test_sharded(self, mesh8: spmd.Mesh) -> None:
        pair = Pair(Tagger(nn.LSTMCell, torch.cat, 16), mesh8)
        assert [pair.step(length) for length in (5, 7, 5)] == [1, 1, 0]
        pair.check()


class TestSentence:
    """The compile log says that only the number of iterations differs, and names the mark."""

    def test_of_a_loop(self) -> None:
        x = torch.full((3,), 0.5).to("xla")
        weight = torch.full((3,), 2.0).to("xla")
        for count in (5, 8):
            y = x.cos()
            for _ in range(count):
                y = torch.tanh(y * weight)
            y.exp().cpu()
        cause = spmd.metrics.compiles()[-1].cause
        assert (
            cause.startswith("2 ops repeat 8 times, before 5, from ")
            and "test_unrolled_loops.py:" in cause
        )
        assert "spmd.scan compiles" in cause and "spmd.while_loop is one program" in cause

    def test_of_a_training_step(self) -> None:
        pair = Pair(Tagger(nn.RNNCell, torch.cat, 8))
        for length in (9, 6):
            pair.step(length)
        cause = spmd.metrics.compiles()[-1].cause
        assert " repeat 6 times, before 9, from " in cause, cause

    def test_not_of_other_ops(self) -> None:
        x = torch.full((3,), 0.5).to("xla")
        for count in (5, 8):
            y = x.tan()
            for _ in range(count):
                y = torch.tanh(y * 3)
            (y.exp() if count == 5 else y.sin()).cpu()
        assert "repeat" not in spmd.metrics.compiles()[-1].cause
