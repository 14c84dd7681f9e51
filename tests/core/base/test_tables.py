"""Tables stay bounded and are freed with their users, and steady programs stay hits."""

import gc
import weakref

import pytest
import torch

import spmd
from spmd.core.base.tables import Bounded, Interned
from spmd.core.graph import meta, op, source
from spmd.core.passes import dynamic
from spmd.core.record import annotations, call, reads, views
from spmd.core.sharding import value
from spmd.loops.interop import call_jax

aten = torch.ops.aten
MANY = 20_000


class Held:
    """Something that only a table may be holding."""


class TestTables:
    """A full table drops its older half; what someone still holds is found again as the same
    object."""

    def test_bounded(self) -> None:
        table: Bounded[int, int] = Bounded(10)
        for number in range(25):
            table.keep(number, -number)
        assert len(table) <= 10 and table.get(24) == -24 and table.get(3) is None
        table.limit = 4
        table.keep(25, 0)
        assert list(table.rows) == [23, 24, 25]

    def test_interned(self) -> None:
        table: Interned[int, Held] = Interned(10)
        kept, gone = table.of(0, Held), weakref.ref(table.of(1, Held))
        for number in range(2, 30):
            table.of(number, Held)
        assert table.get(0) is None and table.of(0, Held) is kept
        assert gone() is None and len(table._alive) <= 10

    def test_what_fails_to_be_made_is_not_kept(self) -> None:
        table: Interned[int, Held] = Interned(10)

        def fails() -> Held:
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            table.of(0, fails)
        assert isinstance(table.of(0, Held), Held)

    def test_parts_of_a_layout_name_one_object(self) -> None:
        """Graph keys compare by identity."""
        kept = meta.intern_meta((3, 5), torch.float32, (5, 1), 12345)
        for offset in range(MANY):
            meta.intern_meta((3, 5), torch.float32, (5, 1), 20_000 + offset)
        assert len(meta._METAS) <= meta._METAS.limit
        assert meta.intern_meta((3, 5), torch.float32, (5, 1), 12345) is kept


class TestLongProcesses:
    """Twenty thousand of a kind leave tables of bounded size, and no more memory than these
    take."""

    @pytest.fixture(autouse=True)
    def small_tables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "op_table_size", 256)

    def test_slices(self) -> None:
        x = torch.arange(float(MANY + 3), device="xla")
        spmd.sync()
        assert (x[:3] * 2).tolist() == [0.0, 2.0, 4.0]
        compiled = spmd.metrics.counter("programs_compiled")
        gc.collect()
        entries = call.PLANS[aten.slice.Tensor].table
        before, others = len(meta._METAS._alive), len(entries._alive)
        for start in range(MANY):
            x[start : start + 3]
        gc.collect()
        assert len(entries) <= 256 and len(entries._alive) <= others + 256
        assert len(meta._METAS._alive) <= before + meta._METAS.limit
        # long gone from the table, not from the program
        assert (x[:3] * 2).tolist() == [0.0, 2.0, 4.0]
        assert spmd.metrics.counter("programs_compiled") == compiled

    def test_shapes_of_new_tensors(self) -> None:
        y = torch.ones(7, device="xla")
        spmd.sync()
        (y + 1).tolist()
        compiled = spmd.metrics.counter("programs_compiled")
        for size in range(1, 2000):
            torch.empty_like(y.expand(size, 7))
        made = call.PLANS[aten.empty_like.default], call.PLANS[aten.expand.default]
        assert all(len(plan.entries) <= 256 for plan in made)
        assert (y + 1).tolist() == [2.0] * 7 and spmd.metrics.counter(
            "programs_compiled"
        ) == compiled

    def test_marks_and_shardings(self, mesh8: spmd.Mesh) -> None:
        shardings = value._INTERNED
        num_ops, num_shardings = len(op._alive) + 1, len(shardings._alive) + 1
        target = mesh8.sharding(("fsdp",), 1, "test")
        kept = annotations.mark_op(meta.dense_meta((8,), torch.float32), target)
        for size in range(1, MANY // 2):
            annotations.mark_op(meta.dense_meta((size,), torch.float32), target)
            value.Sharding.of((size,), (1,), (f"axis{size}",))
        gc.collect()
        marks = annotations.mark_op.cache_info()
        assert marks.currsize <= marks.maxsize and len(op._alive) <= marks.maxsize + num_ops
        assert (
            len(shardings) <= shardings.limit
            and len(shardings._alive) <= shardings.limit + num_shardings
        )
        assert annotations.mark_op(meta.dense_meta((8,), torch.float32), target) is kept
        assert mesh8.sharding(("fsdp",), 1, "test") is target

    def test_strided_views_and_writes(self) -> None:
        base, before = meta.dense_meta((MANY,), torch.float32), len(op._alive)
        for offset in range(MANY // 2 - 4):
            layout = meta.intern_meta((4,), torch.float32, (1,), offset)
            views.strided_rule(base, layout, ())
            views._strided_write(base, layout, ())
        gc.collect()
        kept = [function.cache_info() for function in (views.strided_rule, views._strided_write)]
        assert all(each.currsize <= each.maxsize for each in kept)
        assert len(op._alive) <= before + sum(each.maxsize for each in kept)

    def test_places_in_the_code(self) -> None:
        codes = [compile(f"x{number} = 1", f"file{number}.py", "exec") for number in range(MANY)]
        for code in codes:
            source.is_library(code)
            dynamic._table.keep((code, 1, "aten.select.int", dynamic.START), ())
        del codes, code
        gc.collect()
        assert len(source._is_library) <= source._is_library.limit
        assert len(dynamic._table) <= dynamic._table.limit

    def test_functions_of_jax(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The captured variables of a user's function are freed when table and programs have
        dropped it."""
        monkeypatch.setattr(spmd.config, "program_cache_size", 4)
        x, captured = torch.ones(2, device="xla", requires_grad=True), []
        for _ in range(40):
            held = Held()
            captured.append(weakref.ref(held))
            y = spmd.call_jax(lambda a, held=held: a * 2 + (held is None), x)
            (grad,) = torch.autograd.grad(y.sum(), x)
            assert grad.tolist() == [2.0, 2.0]
        del y, grad, held
        gc.collect()
        assert len(call_jax._CALLS) <= call_jax._CALLS.limit
        assert sum(ref() is not None for ref in captured) <= call_jax._CALLS.limit + 4

    def test_a_steady_function_of_jax_is_a_hit(self) -> None:
        def steady(a):
            return a * 3

        x = torch.ones(2, device="xla")
        spmd.sync()
        assert spmd.call_jax(steady, x).tolist() == [3.0, 3.0]
        for number in range(100):
            spmd.call_jax(lambda a, number=number: a + number, x)
        compiled = spmd.metrics.counter("programs_compiled")
        assert spmd.call_jax(steady, x).tolist() == [3.0, 3.0]
        assert spmd.metrics.counter("programs_compiled") == compiled


class TestSteadyStep:
    """A training step whose rows were dropped from every table is still the program that it was."""

    def test_no_compile(self, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
        ).to("xla")
        for parameter in model.parameters():
            spmd.mark_sharding(parameter, mesh8, (None,) * parameter.dim())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def step() -> None:
            x = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh8, ("fsdp", None))
            y = model(x)
            y[:, 1] = y[:, 2] * 2
            (
                y[1:3].t().reshape(-1).square().sum() + torch.as_strided(y, (3,), (4,), 1).sum()
            ).backward()
            optimizer.step()
            optimizer.zero_grad()
            spmd.sync()

        for _ in range(3):
            step()
        compiled = spmd.metrics.counter("programs_compiled")
        for table in [*(plan.table for plan in call.PLANS.values()), meta._METAS, value._INTERNED]:
            table.clear()
        for function in (
            views.strided_rule,
            views._strided_write,
            reads._gather_op,
            reads._barrier_op,
        ):
            function.cache_clear()
        annotations.mark_op.cache_clear()
        gc.collect()
        step()
        assert spmd.metrics.counter("programs_compiled") == compiled
