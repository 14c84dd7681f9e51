"""`torch.Generator("xla")`, and random numbers where several threads draw."""

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, random_split

import spmd
from spmd.core.base import seed

DRAWS: dict[str, Callable[[torch.Generator], torch.Tensor]] = {
    "rand": lambda g: torch.rand(16, device="xla", generator=g),
    "randn": lambda g: torch.randn(16, 4, device="xla", generator=g),
    "rand_like": lambda g: torch.rand_like(torch.zeros(16, device="xla"), generator=g),
    "randint_like": lambda g: torch.randint_like(
        torch.zeros(16, device="xla"), 3, 1000, generator=g
    ),
    "randint": lambda g: torch.randint(0, 1000, (16,), device="xla", generator=g),
    "randperm": lambda g: torch.randperm(16, device="xla", generator=g),
    "normal": lambda g: torch.normal(torch.zeros(16, device="xla"), 1.0, generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((16,), 0.5, device="xla"), generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(16, device="xla"), 8, generator=g),
    "poisson": lambda g: torch.poisson(torch.full((16,), 9.0, device="xla"), generator=g),
    "normal_": lambda g: torch.empty(16, device="xla").normal_(generator=g),
    "uniform_": lambda g: torch.empty(16, device="xla").uniform_(generator=g),
    "random_": lambda g: torch.empty(16, device="xla").random_(1000, generator=g),
    "bernoulli_": lambda g: torch.empty(16, device="xla").bernoulli_(0.5, generator=g),
    "binomial": lambda g: torch.binomial(
        torch.full((16,), 90.0, device="xla"), torch.full((16,), 0.5).xla(), generator=g
    ),
    "exponential_": lambda g: torch.empty(16, device="xla").exponential_(generator=g),
    "cauchy_": lambda g: torch.empty(16, device="xla").cauchy_(generator=g),
    "geometric_": lambda g: torch.empty(16, device="xla").geometric_(0.1, generator=g),
    "log_normal_": lambda g: torch.empty(16, device="xla").log_normal_(generator=g),
    "xavier_uniform_": lambda g: nn.init.xavier_uniform_(
        torch.empty(4, 4, device="xla"), generator=g
    ),
    "trunc_normal_": lambda g: nn.init.trunc_normal_(torch.empty(16, device="xla"), generator=g),
}


def made(seed: int) -> torch.Generator:
    return torch.Generator(device="xla").manual_seed(seed)


class TestGenerator:
    """It is accepted wherever a CPU generator is; same seed, same numbers; the device's own stream
    is left alone."""

    @pytest.mark.parametrize("name", DRAWS)
    def test_draws(self, name: str) -> None:
        state = torch.xla.get_rng_state()
        generator = made(3)
        first, second = DRAWS[name](generator).cpu(), DRAWS[name](generator).cpu()
        assert torch.equal(DRAWS[name](made(3)).cpu(), first) and not torch.equal(first, second)
        assert not torch.equal(DRAWS[name](made(4)).cpu(), first)
        assert torch.equal(torch.xla.get_rng_state(), state)

    def test_does_not_depend_on_the_mesh(self, mesh8: spmd.Mesh) -> None:
        whole = torch.rand(16, 4, device="xla", generator=made(5))
        cut = spmd.mark_sharding(
            torch.rand(16, 4, device="xla", generator=made(5)), mesh8, ("fsdp", None)
        )
        assert torch.equal(whole.cpu(), cut.cpu())

    def test_what_it_is(self) -> None:
        for generator in (
            torch.Generator("xla"),
            torch.Generator(device="xla:0"),
            torch.Generator(torch.device("xla")),
        ):
            assert isinstance(generator, torch.Generator) and generator.device == torch.device(
                "xla", 0
            )
            assert generator.manual_seed(7) is generator and generator.initial_seed() == 7
            assert generator.seed() == generator.initial_seed() != 7

    def test_state(self) -> None:
        generator = made(3)
        state = generator.get_state()
        first = torch.rand(4, device="xla", generator=generator).tolist()
        generator.set_state(state)
        copies: list[Any] = [
            generator.clone_state(),
            copy.copy(generator),
            copy.deepcopy(generator),
        ]
        copies.append(pickle.loads(pickle.dumps(generator)))
        file = io.BytesIO()
        torch.save({"state": generator.get_state()}, file)
        file.seek(0)
        restored = torch.Generator("xla")
        restored.set_state(torch.load(file)["state"])
        for other in (*copies, restored):
            assert other.device.type == "xla" and other.initial_seed() == 3
            assert torch.rand(4, device="xla", generator=other).tolist() == first
        assert torch.rand(4, device="xla", generator=generator).tolist() == first

    def test_loaders_take_both_kinds(self) -> None:
        data = TensorDataset(torch.arange(8))
        for device in ("cpu", "xla"):
            order = [
                [
                    int(row)
                    for (row,) in DataLoader(
                        data, shuffle=True, generator=torch.Generator(device).manual_seed(2)
                    )
                ]
                for _ in "ab"
            ]
            assert order[0] == order[1] != sorted(order[0]) and sorted(order[0]) == list(range(8))
            split = random_split(data, [3, 5], generator=torch.Generator(device).manual_seed(2))
            assert [len(part) for part in split] == [3, 5]
            with torch.device("xla"):
                assert sorted(RandomSampler(data, generator=torch.Generator(device))) == list(
                    range(8)
                )

    def test_other_generators_are_torchs(self) -> None:
        for generator in (torch.Generator(), torch.Generator("cpu"), torch.Generator(device="cpu")):
            assert type(generator) is torch.Generator and generator.device.type == "cpu"
            assert (
                type(copy.deepcopy(generator)) is type(generator.clone_state()) is torch.Generator
            )
        with pytest.raises(RuntimeError):
            torch.Generator("meta")
        with pytest.raises(TypeError):
            torch.Generator("cpu", "xla")


def together(*iterations: tuple[int, Callable[[], Any]]) -> None:
    """Runs functions in two threads, in the order given: each pair says which thread it is for."""
    done = [threading.Event() for _ in iterations]
    errors: list[BaseException] = []

    def run(mine: int) -> None:
        try:
            for place, (thread, function) in enumerate(iterations):
                if place:
                    assert done[place - 1].wait(30)
                if thread == mine:
                    function()
                    done[place].set()
        except BaseException as error:
            errors.append(error)
            for event in done:
                event.set()

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


class TestThreads:
    """No number is drawn twice because another thread is inside a fork."""

    def test_draws_beside_a_fork(self) -> None:
        """The one outside goes on; the one inside gets numbers of its own; what comes after is new
        to both."""
        inside, outside, after = list[Any](), list[Any](), list[Any]()
        forked = seed.fork()
        together(
            (1, lambda: outside.append(seed.next_draw())),
            (0, forked.__enter__),
            (0, lambda: inside.append(seed.next_draw())),
            (1, lambda: outside.append(seed.next_draw())),
            (0, lambda: inside.append(seed.next_draw())),
            (1, lambda: outside.append(seed.next_draw())),
            (0, lambda: forked.__exit__(None, None, None)),
            (0, lambda: after.append(seed.next_draw())),
            (1, lambda: after.append(seed.next_draw())),
        )
        drawn = inside + outside + after
        assert len(drawn) == 7 and len(set(drawn)) == 7

    def test_a_fork_that_seeds(self) -> None:
        """It seeds its own thread alone, with the numbers of that seed, and takes none of the
        others'."""
        torch.manual_seed(1)
        expected = [seed.next_draw() for _ in "abc"]
        torch.manual_seed(9)
        seeded = [seed.next_draw() for _ in "ab"]
        torch.manual_seed(1)
        inside, outside = list[Any](), list[Any]()
        forked = torch.random.fork_rng(device_type="xla")
        together(
            (0, forked.__enter__),
            (0, lambda: torch.manual_seed(9)),
            (1, lambda: outside.append(seed.next_draw())),
            (0, lambda: inside.append(seed.next_draw())),
            (1, lambda: outside.append(seed.next_draw())),
            (0, lambda: inside.append(seed.next_draw())),
            (0, lambda: forked.__exit__(None, None, None)),
            (0, lambda: outside.append(seed.next_draw())),
        )
        assert inside == seeded and outside == expected

    def test_forks_nest(self) -> None:
        torch.manual_seed(1)
        first, second = seed.next_draw(), seed.next_draw()
        torch.manual_seed(1)
        with seed.fork():
            assert seed.next_draw() == first
            with seed.fork():
                assert seed.next_draw() == second
                torch.xla.manual_seed(4)
                assert seed.next_draw() == (4, 0)
            assert seed.next_draw() == second
        assert seed.next_draw() == first

    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_a_recomputation_draws_what_its_forward_drew(self, use_reentrant: bool) -> None:
        """Also where another thread drew between two of its draws, and while it draws them
        again."""

        def elsewhere() -> None:
            thread = threading.Thread(target=seed.next_draw)
            thread.start()
            thread.join()

        def function(x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.dropout(x * 1, 0.5)
            elsewhere()
            x = nn.functional.dropout(x * 1, 0.5) * 8
            return x * torch.rand(64, device="xla", generator=generator)

        generator = torch.Generator("xla").manual_seed(2)
        x = torch.ones(64, device="xla", requires_grad=True)
        y = torch.utils.checkpoint.checkpoint(function, x, use_reentrant=use_reentrant)
        y.sum().backward()
        assert torch.equal(y.detach(), x.grad)

    def test_nested_recomputations(self) -> None:
        def inner(x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(x * 1, 0.5)

        def outer(x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.dropout(x * 1, 0.2)
            x = torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)
            return nn.functional.dropout(x * 1, 0.2)

        x = torch.ones(256, device="xla", requires_grad=True)
        torch.manual_seed(5)
        y = torch.utils.checkpoint.checkpoint(outer, x, use_reentrant=False)
        y.sum().backward()
        torch.manual_seed(5)
        assert torch.equal(y.detach(), x.grad)
        plain = nn.functional.dropout(
            nn.functional.dropout(nn.functional.dropout(torch.ones(256).xla(), 0.2), 0.5), 0.2
        )
        assert torch.equal(y.detach(), plain)

    def test_a_recomputation_that_need_not_repeat(self) -> None:
        """`preserve_rng_state=False`: it draws new numbers, which nobody else gets."""
        drawn: list[Any] = []

        def function(x: torch.Tensor) -> torch.Tensor:
            drawn.append(seed.next_draw())
            return x.sin()

        x = torch.ones(3, device="xla", requires_grad=True)
        torch.utils.checkpoint.checkpoint(
            function, x.sin(), use_reentrant=False, preserve_rng_state=False
        ).sin().sum().backward()
        drawn.append(seed.next_draw())
        assert len(set(drawn)) == len(drawn) == 3
