"""no_recompile: what would be compiled is an error that says why, and nothing is lost;
explain(step)."""

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import spmd


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nothing of another test is pending."""
    spmd.sync()
    yield
    spmd.sync()


def compiles() -> int:
    return spmd.metrics.num_compiles()


def sines(rows: int, iterations: int = 1) -> torch.Tensor:
    x = torch.ones(rows, 3).to("xla")
    for _ in range(iterations):
        x = x.sin()
    return x


class TestRaises:
    """A program that is not known raises before XLA compiles, with the cause and the user's
    line."""

    def test_a_shape(self) -> None:
        def step(rows: int) -> torch.Tensor:
            y = sines(rows)
            spmd.sync()
            return y

        step(31)
        before = compiles()
        with spmd.no_recompile():
            step(31)
            with pytest.raises(spmd.RecompileError) as raised:
                step(30)
        assert compiles() == before
        text = str(raised.value)
        assert "no_recompile: a program of 1 ops (step) would be compiled at" in text
        assert "test_no_recompile.py" in raised.value.line and raised.value.line.endswith(
            "in step: spmd.sync()"
        )
        assert raised.value.cause.startswith(
            "an input is now float32[30,3], before float32[31,3]; aten.sin reads it"
        )
        assert (
            raised.value.cause in text and "Remove the difference" in text and "x = x.sin()" in text
        )

    def test_nothing_is_lost(self) -> None:
        """Neither what waits nor what it would have written; the same barrier outside runs it."""
        weight = torch.full((5, 2), 2.0, device="xla")
        spmd.sync()
        data = torch.ones(5, 2).to("xla")
        with spmd.no_recompile():
            weight.mul_(data + 1)
            other = weight.sum()
            for _ in range(2):
                with pytest.raises(spmd.RecompileError):
                    spmd.sync()
            with pytest.raises(spmd.RecompileError):
                other.item()
            with pytest.raises(spmd.RecompileError):
                print(weight)
        assert other.item() == 40.0 and weight.tolist() == [[4.0] * 2] * 5
        weight.mul_(data + 1)
        assert weight.sum().item() == 80.0

    def test_a_training_step_goes_on_outside(self) -> None:
        torch.manual_seed(1)
        plain = torch.nn.Linear(3, 2)
        model = torch.nn.Linear(3, 2)
        model.load_state_dict(plain.state_dict())
        model.to("xla")
        optimizers = [torch.optim.AdamW(one.parameters(), lr=0.1) for one in (plain, model)]

        def step(rows: int) -> None:
            for one, optimizer, device in zip(
                (plain, model), optimizers, ("cpu", "xla"), strict=True
            ):
                one(torch.ones(rows, 3).to(device)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

        step(17)
        spmd.sync()
        with spmd.no_recompile():
            step(17)
            spmd.sync()
            step(16)
            with pytest.raises(spmd.RecompileError, match=r"an input is now float32\[16,3\]"):
                spmd.sync()
        spmd.sync()
        step(17)
        torch.testing.assert_close(
            model.weight.detach().cpu(), plain.weight.detach(), rtol=2e-5, atol=2e-5
        )

    def test_an_initial_value(self) -> None:
        """A new parameter makes a program of its own."""
        with torch.device("xla"):
            model = torch.nn.Linear(7, 9)
        with (
            spmd.no_recompile(),
            pytest.raises(
                spmd.RecompileError, match=r"a program of \d+ ops \(init\).*first program"
            ),
        ):
            spmd.sync()
        assert model.weight.shape == model.weight.cpu().shape

    def test_a_loop_that_nobody_syncs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its finished turns run by themselves: the op at which they would says so, and nothing is
        recorded twice."""
        monkeypatch.setattr(spmd.config, "loop_search_ops", 32)
        spmd.sync()
        x, iterations = torch.full((2,), 0.5).to("xla"), 0
        with spmd.no_recompile(), pytest.raises(spmd.RecompileError, match="would be compiled"):
            while iterations < 500:
                y = x.sin().cosh()
                x = y.cos() + x.tanh()
                iterations += 1
        assert 3 < iterations < 500
        expected = torch.full((2,), 0.5)
        for _ in range(iterations):
            expected = expected.sin().cosh().cos() + expected.tanh()
        torch.testing.assert_close(x.cpu(), expected, rtol=2e-5, atol=2e-5)

    def test_several_meshes(self) -> None:
        """Two pieces of one barrier: what has a program runs, the other waits."""
        halves = [spmd.Mesh(ids, (4,), ("x",)) for ids in (range(4), range(4, 8))]

        def record(power: int) -> list[torch.Tensor]:
            xs = [
                spmd.mark_sharding(torch.full((4, 3), 2.0).to("xla"), mesh, ("x", None))
                for mesh in halves
            ]
            return [xs[0] ** 2, xs[1] ** power]

        def barrier() -> None:
            spmd.sync()

        kept = record(2)
        barrier()
        kept = record(3)
        with (
            spmd.no_recompile(),
            pytest.raises(spmd.RecompileError, match="exponent=3, before exponent=2"),
        ):
            barrier()
        assert [t.sum().item() for t in kept] == [48.0, 96.0]


class TestAllowed:
    """allow_first: what a barrier has never run; max_programs: so many more."""

    def test_first(self) -> None:
        @spmd.no_recompile(allow_first=True)
        def step(rows: int) -> torch.Tensor:
            y = sines(rows, 2)
            spmd.sync()
            return y

        step(21)
        step(21)
        with pytest.raises(spmd.RecompileError, match=r"float32\[22,3\], before float32\[21,3\]"):
            step(22)

    def test_a_first_step_of_two_programs(self) -> None:
        """Initial values and the step; and a barrier over two meshes."""
        halves = [spmd.Mesh(ids, (4,), ("x",)) for ids in (range(4), range(4, 8))]
        with spmd.no_recompile(allow_first=True):
            with torch.device("xla"):
                weight = torch.nn.Parameter(torch.rand(4, 5))
            xs = [
                spmd.mark_sharding(torch.ones(4, 5).to("xla"), mesh, ("x", None)) for mesh in halves
            ]
            kept = [xs[0] @ weight.t() if i == 0 else x.cosh() for i, x in enumerate(xs)]
            spmd.sync()
        assert len(kept) == 2

    def test_first_is_named(self) -> None:
        y = sines(23)
        with spmd.no_recompile(), pytest.raises(spmd.RecompileError) as raised:
            spmd.sync()
        assert "Why: first program of this sync" in str(raised.value) and "allow_first=True" in str(
            raised.value
        )
        assert y.shape == (23, 3)

    def test_max_programs(self) -> None:
        guard = spmd.no_recompile(max_programs=2)

        @guard
        def step(rows: int) -> torch.Tensor:
            y = sines(rows, 3)
            spmd.sync()
            return y

        for rows in (41, 42, 41, 42):
            step(rows)
        assert guard.compiled == 2
        with pytest.raises(spmd.RecompileError, match=r"\(2 were before, max_programs=2\)"):
            step(43)
        with pytest.raises(spmd.RecompileError), guard:
            step(44)

    def test_bare_decorator(self) -> None:
        @spmd.no_recompile
        def step() -> float:
            """One number."""
            return sines(26).sum().item()

        assert step.__doc__ == "One number." and step.__name__ == "step"
        with pytest.raises(spmd.RecompileError):
            step()

    def test_nested(self) -> None:
        """The strictest counts, and what it refuses counts for nobody."""
        outer, inner = spmd.no_recompile(max_programs=1), spmd.no_recompile()
        kept = sines(27)
        with outer:
            with inner, pytest.raises(spmd.RecompileError):
                spmd.sync()
            assert outer.compiled == 0
            spmd.sync()
            assert outer.compiled == 1
        assert kept.shape == (27, 3)

    def test_other_threads(self) -> None:
        """It holds for the thread that entered it."""
        found: list[float] = []
        kept = sines(28)
        with spmd.no_recompile():
            worker = threading.Thread(target=lambda: found.append(kept.sum().item()))
            worker.start()
            worker.join()
        assert found == [pytest.approx(28 * 3 * torch.ones(1).sin().item())]

    def test_plans_and_inspections(self, mesh8: spmd.Mesh) -> None:
        """A step that never runs may be asked of the compiler."""
        x = spmd.mark_sharding(torch.ones(8, 3).to("xla"), mesh8, ("fsdp", None))
        with spmd.no_recompile():
            assert spmd.inspect(x.cos()).spec == ("fsdp", None)
            assert spmd.plan(lambda: x.cos().sum()).num_ops == 2


class TestErrors:
    """The given arguments must be those that it takes."""

    @pytest.mark.parametrize(
        ("arguments", "error", "text"),
        [
            ({"max_programs": -1}, ValueError, "expected max_programs of 0 or more, got -1"),
            ({"max_programs": 1.5}, TypeError, "expected max_programs to be an int"),
            ({"allow_first": 1}, TypeError, "allow_first a bool, got 0 and 1"),
        ],
    )
    def test_arguments(self, arguments: dict[str, Any], error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=text):
            spmd.no_recompile(**arguments)

    def test_no_function(self) -> None:
        with pytest.raises(TypeError, match="expected a function to decorate, got 3"):
            spmd.no_recompile(3)


class TestExplain:
    """explain(step): the last program that has ops of a function, or that a text names."""

    def test_a_function(self, mesh8: spmd.Mesh) -> None:
        w = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh8, ("fsdp", None))

        def step(x: torch.Tensor) -> torch.Tensor:
            return x @ w

        def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def inner(*args: Any) -> Any:
                return function(*args)

            return inner

        x = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh8, ("fsdp", None))
        assert (
            "none of the" in spmd.metrics.explain(step)
            or spmd.metrics.explain(step) == "nothing was compiled"
        )
        y = step(x)
        spmd.sync()
        z = sines(29, 5)
        spmd.sync()
        for one in (step, functools.partial(step, x), wrap(step)):
            head, *rows = spmd.explain(one).split("\n")
            assert head.startswith("step: ") and "1 ops" in head and "1 all-gather" in head
            assert (
                len(rows) == 1
                and "all-gather of 256 B in f32 over fsdp (8)" in rows[0]
                and "return x @ w" in rows[0]
            )
        assert "5 ops" in spmd.metrics.explain() and "no collectives" in spmd.metrics.explain()
        assert y.shape == (8, 8) and z.shape == (29, 3)

    def test_a_module(self) -> None:
        class Square(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x.square().square()

        module = Square()
        y = module(torch.ones(2, device="xla"))
        spmd.sync()
        assert "2 ops" in spmd.explain(module) or "3 ops" in spmd.explain(module)
        assert "test_no_recompile.py" in spmd.explain("test_a_module")
        assert y.shape == (2,)

    def test_none(self) -> None:
        kept = sines(2)
        spmd.sync()
        assert "programs in the compile log is of 'no such name'" in spmd.explain("no such name")
        with pytest.raises(
            TypeError, match="expected a function written in Python, a text or None, got 3"
        ):
            spmd.explain(3)  # type: ignore[arg-type]
        assert kept.shape == (2, 3)


class TestInitialisation:
    """Draws of one shape are one program whatever their spread: layers initialised by their
    depth."""

    def test_depth_scaled(self) -> None:
        layers = [nn.Linear(6, 6, bias=False, device="xla") for _ in range(5)]
        spmd.sync()
        for depth, layer in enumerate(layers, 1):
            nn.init.normal_(layer.weight, mean=0.5 * depth, std=0.02 / depth)
            spmd.sync()
            if depth == 1:
                compiled = spmd.metrics.num_compiles()
        assert spmd.metrics.num_compiles() == compiled
        for depth, layer in enumerate(layers, 1):
            nn.init.uniform_(layer.weight, -depth, -0.5 * depth)
            spmd.sync()
            assert -depth <= layer.weight.min() and layer.weight.max() <= -0.5 * depth
            if depth == 1:
                compiled = spmd.metrics.num_compiles()
        assert spmd.metrics.num_compiles() == compiled

    def test_in_the_dtype_of_the_tensor(self) -> None:
        draws = (
            torch.empty(6, 6, device="xla").normal_(0.1, 0.02),
            torch.empty(6, 6, device="xla").uniform_(-0.3, 0.2),
        )
        assert "6x6xf32" in (text := spmd.get_stablehlo(list(draws))) and "6x6xf64" not in text
