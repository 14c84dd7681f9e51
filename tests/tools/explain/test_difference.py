"""Why a program was compiled: each cause that users meet, as the ledger tells it from the nearest
earlier program."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import spmd
from spmd.core.programs import cache
from spmd.core.programs.program import Requested
from spmd.core.run.executables import graph_of
from spmd.core.run.execute import roots_of
from spmd.core.run.pjrt.devices import default_sharding
from spmd.tools.explain import status
from spmd.tools.explain.difference import difference


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nothing of another test is pending."""
    spmd.sync()
    yield
    spmd.sync()


def cause(make: Callable[[Any], Any], *values: Any, forgets: bool = True) -> str:
    """The ledger's line of the last of these steps; all have one barrier, which no other call has.

    forgets: without the programs of before.
    """
    if forgets:
        cache.clear_cache()
    space: dict[str, Any] = {"sync": spmd.sync}
    exec(compile("def barrier():\n    sync()", f"barrier {id(space)}", "exec"), space)
    for value in values:
        before = len(spmd.metrics.compiles())
        kept = make(value)
        space["barrier"]()
        del kept
    assert len(spmd.metrics.compiles()) > before, "the last step compiled nothing"
    return spmd.metrics.compiles()[-1].cause


def here(text: str) -> bool:
    """True for a cause that names a line of this file."""
    return "test_difference.py:" in text


@pytest.fixture
def x() -> torch.Tensor:
    return torch.full((8, 8), 0.5).to("xla")


class TestConstants:
    """A number or flag of Python's that is part of the program: old and new, at the user's line."""

    @pytest.mark.parametrize(
        ("make", "values", "told"),
        [
            (lambda x, v: x**v, (2, 3), "aten.pow.Tensor_Scalar: exponent=3, before exponent=2 at"),
            (lambda x, v: x.softmax(v), (0, 1), "aten._softmax: dim=1, before dim=0 at"),
            (
                lambda x, v: x.sum(0, keepdim=v),
                (False, True),
                "keepdim=True, before keepdim=(none) at",
            ),
            (
                lambda x, v: x * v,
                (2, 2.5),
                "aten.mul.Tensor: a number that was an integer is a float now at",
            ),
            (
                lambda x, v: torch.nn.functional.gelu(x, approximate=v),
                ("none", "tanh"),
                "approximate=tanh, before",
            ),
        ],
        ids=["exponent", "dim", "flag", "int to float", "string"],
    )
    def test_a_number(
        self, make: Callable[..., Any], values: tuple[Any, ...], told: str, x: torch.Tensor
    ) -> None:
        found = cause(lambda value: make(x, value), *values)
        assert told in found and here(found)

    def test_a_flag_of_ours(self, x: torch.Tensor) -> None:
        before = spmd.config.max_logits_bytes

        def step(size: int) -> torch.Tensor:
            spmd.config.max_logits_bytes = size
            return x.sin()

        try:
            found = cause(step, 1 << 30, 1 << 31)
        finally:
            spmd.config.max_logits_bytes = before
        assert found == f"spmd.config.max_logits_bytes is now {1 << 31}, before {1 << 30}"


class TestInputs:
    """Shapes, dtypes and layouts of inputs, and a tensor that is new among them."""

    def test_the_last_batch(self, x: torch.Tensor) -> None:
        found = cause(lambda rows: torch.relu(torch.ones(rows, 8).to("xla") @ x), 8, 5)
        assert found.startswith(
            "an input is now float32[5,8], before float32[8,8]; aten.mm reads it at"
        ) and here(found)

    def test_a_batch_and_more(self, x: torch.Tensor) -> None:
        """The input that ops begin with is named where these differ, too."""

        def step(rows: int) -> torch.Tensor:
            y = torch.ones(rows, 8).to("xla") @ x
            return y if rows == 8 else y.sin()

        found = cause(step, 8, 5)
        assert found.startswith(
            "an input is now float32[5,8], before float32[8,8]; aten.mm reads it at"
        )
        assert found.endswith("the graph has 2 ops, before 1")

    def test_another_model(self) -> None:
        """A parameter of another shape is the reason, not the input behind it: padding would not
        help."""
        models = {size: torch.nn.Linear(size, 2, bias=False).to("xla") for size in (8, 5)}
        spmd.sync()
        found = cause(lambda size: models[size](torch.ones(64, size).to("xla")), 8, 5)
        assert found.startswith(
            "a parameter or buffer is now float32[2,5], before float32[2,8]; aten.linear reads it"
        )

    def test_shapes(self) -> None:
        """The advice to pad is for a cause that is the shape of an input alone."""
        changed = (
            "an input is now float32[5], before float32[8]; aten.mm reads it at a.py:3 in step: x "
            "@ w"
        )
        assert status._advice(10, changed) == " (a program per shape: pad)"
        for other in (
            (
                "first program of this sync; compared with the nearest program, of a.py:3 in "
                f"step: x: {changed}"
            ),
            f"{changed}; the graph has 30 ops, before 20",
            changed.replace("an input", "a parameter or buffer"),
            changed.replace("now float32", "now bfloat16"),
        ):
            assert not status._advice(10, other), other

    def test_a_dtype(self, x: torch.Tensor) -> None:
        found = cause(
            lambda dtype: torch.ones(8, 8, dtype=dtype).to("xla").tanh(),
            torch.float32,
            torch.bfloat16,
        )
        assert found.startswith(
            "an input is now bfloat16[8,8], before float32[8,8]; aten.tanh reads it at"
        )

    def test_a_captured_tensor(self, x: torch.Tensor) -> None:
        other = torch.ones(8, 8).to("xla")
        found = cause(lambda is_new: (x * 2).add(other if is_new else 1.0), False, True)
        assert (
            "aten.add.Tensor now reads float32[8,8], float32[8,8], before float32[8,8] at" in found
            and here(found)
        )

    def test_another_operand(self, x: torch.Tensor) -> None:
        def step(is_turned: bool) -> torch.Tensor:
            y = x.sin()
            return y * x if is_turned else x * y

        found = cause(step, False, True)
        assert "aten.mul.Tensor at" in found and "reads the result of aten.sin at" in found
        assert "y = x.sin(), before input 0 (float32[8,8])" in found

    def test_a_layout(self, mesh8: spmd.Mesh) -> None:
        def step(spec: tuple[Any, ...]) -> torch.Tensor:
            return spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh8, spec).sin()

        found = cause(step, ("fsdp", None), (None, "fsdp"))
        assert (
            "the input float32[8,8] is now sharded as Sharding((fsdp=8), (None, 'fsdp')), before as"
            in found
        )
        assert "aten.sin reads it at" in found and here(found)


class TestAnnotations:
    """A mark that is missing at some steps, or says something else."""

    def test_missing(self, x: torch.Tensor, mesh8: spmd.Mesh) -> None:
        def step(is_marked: bool) -> torch.Tensor:
            y = x * 2
            if is_marked:
                spmd.mark_sharding(y, mesh8, ("fsdp", None))
            return y + 1

        found = cause(step, True, False)
        assert found.startswith(
            "the annotation of float32[8,8] as P('fsdp', None) is gone; it was at"
        ) and here(found)
        found = cause(step, False, True)
        assert (
            found.startswith("the annotation of float32[8,8] as P('fsdp', None) is new at")
            and "y = x * 2" in found
        )

    def test_another(self, x: torch.Tensor, mesh8: spmd.Mesh) -> None:
        def step(spec: tuple[Any, ...]) -> torch.Tensor:
            return spmd.mark_sharding(x * 2, mesh8, spec) + 1

        found = cause(step, ("fsdp", None), (None, "fsdp"))
        assert found.startswith(
            "the annotation of float32[8,8] is now P(None, 'fsdp'), before P('fsdp', None) at"
        )

    def test_of_a_result(self, mesh8: spmd.Mesh) -> None:
        """Marked after it ran: the next run must leave it so."""
        state = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh8, ("fsdp", None))
        spmd.local_shards(state)

        def step(spec: tuple[Any, ...]) -> None:
            spmd.mark_sharding(state, mesh8, spec)
            state.mul_(2)

        found = cause(step, ("fsdp", None), (None, "fsdp"))
        assert (
            "is now sharded as Sharding((fsdp=8), (None, 'fsdp')), before as "
            "Sharding((fsdp=8), ('fsdp',))"
        ) in found


class TestOps:
    """Ops that are new, gone or others: what train(), eval(), autocast and optimizers change."""

    def test_eval(self, x: torch.Tensor) -> None:
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8)
        ).to("xla")
        found = cause(lambda is_training: model.train(is_training)(x), True, False)
        assert (
            found.startswith("op aten.native_dropout")
            and "is gone; it was at" in found
            and here(found)
        )
        assert "the graph has 2 ops, before 3" in found
        found = cause(lambda is_training: model.train(is_training)(x), False, True)
        assert found.startswith("op aten.native_dropout") and "is new at" in found

    def test_autocast(self, x: torch.Tensor) -> None:
        def step(is_on: bool) -> torch.Tensor:
            with torch.autocast("xla", dtype=torch.bfloat16, enabled=is_on):
                return (x * 1.5) @ x

        found = cause(step, False, True)
        assert (
            found.startswith("op aten._to_copy(dtype=torch.bfloat16")
            and " is new with 1 behind it at" in found
        )
        assert "the graph has 4 ops, before 2" in found

    def test_momentum(self) -> None:
        """SGD's first step has nothing to add to."""
        weight = torch.nn.Parameter(torch.ones(4, 3).to("xla"))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)

        def step(_: int) -> None:
            (weight * weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        found = cause(step, 1, 2)
        assert (
            "op aten._foreach_mul_.Scalar instead of aten.clone at" in found
            and "optimizer.step()" in found
        )

    def test_a_longer_loop(self, x: torch.Tensor) -> None:
        def step(iterations: int) -> torch.Tensor:
            y = x
            for _ in range(iterations):
                y = y.sin().cos()
            return y

        found = cause(step, 2, 4)
        assert found.startswith("op aten.sin is new with 3 behind it at") and found.endswith(
            "8 ops, before 4"
        )

    def test_a_scalar_of_the_cpu(self, x: torch.Tensor) -> None:
        """Its op has no line of its own, as it is made where another op takes it."""
        told = cause(lambda v: x * torch.tensor(2.5) if v else x * 1.0, False, True)
        assert "unknown line" not in told and here(told), told

    def test_a_function(self, x: torch.Tensor) -> None:
        functions = [lambda a: a * 2, lambda a: a * 3]
        found = cause(lambda i: spmd.call_jax(functions[i], x), 0, 1)
        assert found.startswith("spmd.call_jax") and ", before " in found and here(found)


class TestResults:
    """Which tensors are alive, and who holds what may be written over."""

    def test_kept(self, x: torch.Tensor) -> None:
        kept = []

        def step(is_kept: bool) -> torch.Tensor:
            y = x.sin()
            if is_kept:
                kept.append(y)
            return y.cos()

        found = cause(step, False, True)
        assert (
            found.startswith("the result of aten.sin at")
            and "y = x.sin() is kept, before it was not" in found
        )
        assert found.endswith("a tensor more is alive at the sync (2, before 1)")
        kept.clear()

    def test_not_kept(self, x: torch.Tensor) -> None:
        def step(is_kept: bool) -> list[torch.Tensor]:
            y = x.sin()
            return [y, y.cos()] if is_kept else [y.cos()]

        found = cause(step, True, False)
        assert (
            found.startswith("the result of aten.sin at")
            and "y = x.sin() is not kept any more" in found
        )
        assert found.endswith("a tensor less is alive at the sync (1, before 2)")

    def test_written_over(self, x: torch.Tensor) -> None:
        """Whose memory a result may take is part of the program."""
        y = x + 1
        graph = graph_of(roots_of([y._storage]), default_sharding())
        for was, is_now, told in (
            (False, True, "may be written over, before it had to stay"),
            (True, False, "must stay"),
        ):
            before, now = (dataclasses.replace(graph, donated=(flag,)) for flag in (was, is_now))
            found = difference(Requested(before, 0), now)
            assert (
                found.startswith(f"the input float32[8,8] {told}")
                and "aten.add.Tensor reads it at" in found
            )


class TestElsewhere:
    """A barrier that has run nothing yet is told so, with the nearest program of another one."""

    def test_nearest(self, x: torch.Tensor) -> None:
        def step(power: int) -> torch.Tensor:
            return (x.sin().cos().tan() ** power).exp()

        cause(step, 5)
        found = cause(step, 6, forgets=False)
        assert found.startswith(
            "first program of this sync; compared with the nearest program, of barrier "
        )
        assert ": aten.pow.Tensor_Scalar: exponent=6, before exponent=5 at" in found

    def test_nothing_alike(self, x: torch.Tensor) -> None:
        found = cause(lambda _: torch.linalg.det(x.erfinv().i0().sinc()), None)
        assert found == "first program of this sync"

    def test_initial_values_are_no_steps(self) -> None:
        """A first step is not compared with the program that made its parameters."""
        with torch.device("xla"):
            weight = torch.nn.Parameter(torch.rand(5, 7))
        found = cause(lambda _: weight * 2, None)
        assert found.startswith("first program of this sync")
        assert [record.name for record in spmd.metrics.compiles()[-2:]] == ["init", "step"]
