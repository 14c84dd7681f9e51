"""Syncs of known programs against torch on the CPU: random steps that recur, and what a script does
in between: reads, new tensors, aliases, marks, in-place writes."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support import check
from torch import Tensor

import spmd
from spmd import P
from spmd.core.run import known_graphs
from spmd.steps.decoding.host_lists import set_decoding

NUM_TENSORS, NUM_LAYERS, ROUNDS = 4, 3, 7
SHAPE, CONSTANT = (8, 8), torch.linspace(-1, 1, 64).reshape(8, 8)
SPECS = (P("fsdp", None), P(None, "fsdp"), P(None, None), P(P.UNCONSTRAINED, None))


class Pool:
    """The tensors of a script on one device: those that its actions read and write, layers, and
    copies that it keeps."""

    def __init__(self, device: str):
        self.device = device
        self.tensors = [(CONSTANT * (i + 1)).to(device) for i in range(NUM_TENSORS)]
        self.layers = [(CONSTANT * 0.1 * (i + 1)).to(device) for i in range(NUM_LAYERS)]
        self.copies: list[Tensor] = []

    def all(self) -> list[Tensor]:
        return [*self.tensors, *self.layers, *self.copies]


Action = Callable[[Pool, int, int], None]


def in_place(pool: Pool, i: int, j: int) -> None:
    pool.tensors[i].mul_(0.5).add_(pool.tensors[j], alpha=0.25)


def new(pool: Pool, i: int, j: int) -> None:
    pool.tensors[i] = pool.tensors[j].sin() * 0.5 + 1


def rows(pool: Pool, i: int, j: int) -> None:
    pool.tensors[i][1:3] += pool.tensors[j][2:4].clone()


def fill(pool: Pool, i: int, j: int) -> None:
    pool.tensors[i].fill_(2).sub_(pool.tensors[j])


def over(pool: Pool, i: int, j: int) -> None:
    pool.tensors[i].zero_()


def copy(pool: Pool, i: int, j: int) -> None:
    pool.tensors[i].copy_(pool.tensors[j])


def swap(pool: Pool, i: int, j: int) -> None:
    pool.tensors[i], pool.tensors[j] = pool.tensors[j], pool.tensors[i]


def swap_data(pool: Pool, i: int, j: int) -> None:
    pool.tensors[i].data, pool.tensors[j].data = pool.tensors[j].data, pool.tensors[i].data


def alias(pool: Pool, i: int, j: int) -> None:
    pool.tensors[i] = pool.tensors[j].detach()


def upload(pool: Pool, i: int, j: int) -> None:
    pool.tensors[i] = (CONSTANT * (j + 1)).to(pool.device)


def lists(pool: Pool, i: int, j: int) -> None:
    torch._foreach_mul_(pool.layers, 0.9)
    torch._foreach_add_(pool.layers, [pool.tensors[i] * 0.1] * NUM_LAYERS)


def deep(pool: Pool, i: int, j: int) -> None:
    x = pool.tensors[i]
    for layer in pool.layers:
        x = torch.tanh(x @ layer)
    pool.tensors[j] = x


def keep(pool: Pool, i: int, j: int) -> None:
    pool.copies.append(pool.tensors[i].clone())


def one_layer(pool: Pool, i: int, j: int) -> None:
    pool.layers[j % NUM_LAYERS].add_(pool.tensors[i], alpha=0.1)


IN_STEP: list[Action] = [in_place, new, rows, fill, copy, lists, deep, one_layer, upload]
BETWEEN: list[Action] = [*IN_STEP, over, swap, swap_data, alias, keep]


@pytest.fixture(autouse=True)
def always() -> Iterator[None]:
    before = spmd.config.scan_layers
    spmd.config.scan_layers = "always"
    yield
    spmd.config.scan_layers = before


@pytest.fixture
def matches(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each sync has met a known graph."""
    result: list[bool] = []
    ready = known_graphs.ready

    def noted(storages: Any) -> Any:
        result.append((match := ready(storages)) is not None)
        return match

    monkeypatch.setattr(known_graphs, "ready", noted)
    return result


@pytest.mark.parametrize("is_sharded", [False, True], ids=["one device", "eight devices"])
@pytest.mark.parametrize("seed", range(6))
def test_steps_that_recur(
    seed: int, is_sharded: bool, mesh8: spmd.Mesh, matches: list[bool]
) -> None:
    draw = random.Random(seed)

    def drawn(actions: list[Action], count: int) -> list[tuple[Action, int, int]]:
        pairs = [draw.sample(range(NUM_TENSORS), 2) for _ in range(count)]
        return [(draw.choice(actions), i, j) for i, j in pairs]

    ours, theirs = Pool("xla"), Pool("cpu")
    if is_sharded:
        for tensor in ours.all():
            spmd.mark_sharding(tensor, mesh8, draw.choice(SPECS[:3]))
    step = drawn(IN_STEP, 5)
    for number in range(ROUNDS):
        is_disturbed = number in (3, 5)
        for action, i, j in [*step, *drawn(BETWEEN, 2 if is_disturbed else 0)]:
            for pool in (ours, theirs):
                action(pool, i, j)
        if is_disturbed and is_sharded:
            spmd.mark_sharding(ours.tensors[draw.randrange(NUM_TENSORS)], mesh8, draw.choice(SPECS))
        if is_disturbed:
            place = draw.randrange(NUM_TENSORS)
            check(ours.tensors[place], theirs.tensors[place])
        spmd.sync()
    for mine, expected in zip(ours.all(), theirs.all(), strict=True):
        check(mine, expected)
    # A constant is an initial value, and new data at each step.
    assert any(matches) is all(action is not fill for action, *_ in step)


class Text:
    """The integers of a loop that decodes: positions, born on the host, tokens of the device, and
    lists of both."""

    def __init__(self, device: str):
        self.device = device
        self.scores = CONSTANT.to(device)
        self.positions = [torch.tensor([[i], [3 * i]], device=device) for i in range(NUM_TENSORS)]
        self.tokens = [place + 1 for place in self.positions]
        self.lists = [torch.tensor([[i], [9]], device=device) for i in range(NUM_TENSORS)]
        self.kept: list[Tensor] = []

    def all(self) -> list[Tensor]:
        return [*self.positions, *self.tokens, *self.lists, *self.kept]


def advance(text: Text, i: int, j: int) -> None:
    text.positions[i] += 1 + j


def born(text: Text, i: int, j: int) -> None:
    text.positions[i] = torch.tensor([[i], [j]], device=text.device)


def choose(text: Text, i: int, j: int) -> None:
    place = text.positions[i][:, 0] % 8
    text.tokens[j] = (text.scores[place] * 1.5).argmax(-1, keepdim=True)


def write(text: Text, i: int, j: int) -> None:
    text.tokens[i].add_(text.positions[j])


def join(text: Text, i: int, j: int) -> None:
    text.lists[i] = torch.cat([text.lists[i], text.tokens[j]], 1)


def last(text: Text, i: int, j: int) -> None:
    text.tokens[i] = text.lists[j][:, -1:]


def score(text: Text, i: int, j: int) -> None:
    text.scores = text.scores.index_add(0, text.positions[i][:, 0] % 8, text.scores[:2] * 0.5)


def keep_token(text: Text, i: int, j: int) -> None:
    text.kept.append(text.tokens[i].clone())


WORDS = [advance, born, choose, write, join, last, score, keep_token]


@pytest.mark.parametrize("seed", range(6))
def test_integers_that_are_decoded(seed: int, matches: list[bool]) -> None:
    draw = random.Random(seed)

    def drawn(count: int) -> list[tuple[Callable[[Text, int, int], None], int, int]]:
        pairs = [draw.sample(range(NUM_TENSORS), 2) for _ in range(count)]
        return [(draw.choice(WORDS), i, j) for i, j in pairs]

    ours, theirs = Text("xla"), Text("cpu")
    step = [*drawn(3), (advance, 0, 1), (choose, 0, 1)]
    for number in range(2 * ROUNDS):
        for action, i, j in [*step, *drawn(number in (5, 9))]:
            for text in (ours, theirs):
                action(text, i, j)
        set_decoding(True)  # as a replayed call of a module does
        spmd.sync()
        if number % 5 == 4:
            place = draw.randrange(NUM_TENSORS)
            check(ours.lists[place], theirs.lists[place])
            check(ours.positions[place], theirs.positions[place])
    set_decoding(False)
    for mine, expected in zip(ours.all(), theirs.all(), strict=True):
        check(mine, expected)
    assert any(matches)
