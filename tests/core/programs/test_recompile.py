"""Causes of a new program, and calls that must not make one; the ledger says why; the cache has a
bound."""

import sys
from collections.abc import Iterator

import pytest
import torch
from support import check, run_script

import spmd


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nothing of another test is pending."""
    spmd.sync()
    yield
    spmd.sync()


def compiles() -> int:
    return spmd.metrics.num_compiles()


def cause() -> str:
    return spmd.metrics.compiles()[-1].cause


class TestLiftedNumbers:
    """A number that changes from step to step is an argument of the program, not a part of it."""

    def count(self, step, values) -> list[int]:
        x = torch.ones(3, 5).to("xla")
        counts = []
        for value in values:
            before = compiles()
            kept = step(x, value)
            spmd.sync()
            counts.append(compiles() - before)
            del kept
        return counts

    @pytest.mark.parametrize(
        "step",
        [
            lambda x, v: x + v,
            lambda x, v: x * v - v,
            lambda x, v: x.add(x, alpha=v),
            lambda x, v: x.clone().div_(v),
            lambda x, v: x.clone().fill_(v),
            lambda x, v: torch.full_like(x, v) * x,
            lambda x, v: x.masked_fill(x > 0, v),
            lambda x, v: torch.where(x > v, x, v),
            lambda x, v: x.lerp(x * 2, v),
            lambda x, v: x.addcmul(x, x, value=v),
            lambda x, v: x.clamp(min=v, max=v + 1),
            lambda x, v: torch._foreach_mul([x, x], v),
            lambda x, v: torch._foreach_add([x, x], [v, v + 1]),
            lambda x, v: x * torch.tensor(v),
        ],
        ids=[
            "add",
            "mul",
            "alpha",
            "div_",
            "fill_",
            "full_like",
            "masked_fill",
            "where",
            "lerp",
            "value",
            "clamp",
            "foreach",
            "foreach_list",
            "cpu_scalar",
        ],
    )
    def test_is_lifted(self, step) -> None:
        assert self.count(step, [0.5, 0.25, 1.0, 0.0, -3.0]) == [1, 0, 0, 0, 0]

    def test_integers_travel_as_integers(self) -> None:
        x = torch.ones(2, dtype=torch.int64, device="xla")
        for number in (1, 2**53 + 1, -(2**62)):
            assert (x * number).tolist() == [number] * 2

    @pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "single"])
    @pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
    def test_a_schedule(self, kind: str, foreach: bool) -> None:
        """Learning rate, bias corrections and schedule change every step: one program, the first
        step included."""
        w = torch.nn.Parameter(torch.ones(4, 3).to("xla"))
        options = {"momentum": 0.9} if kind == "SGD" else {}
        optimizer = getattr(torch.optim, kind)([w], lr=0.1, foreach=foreach, **options)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        reference = torch.nn.Parameter(torch.ones(4, 3))
        expected = getattr(torch.optim, kind)([reference], lr=0.1, foreach=foreach, **options)
        plan = torch.optim.lr_scheduler.CosineAnnealingLR(expected, 20)
        counts = []
        for _ in range(6):
            before = compiles()
            (w * w).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            spmd.sync()
            counts.append(compiles() - before)
            (reference * reference).sum().backward()
            expected.step()
            expected.zero_grad()
            plan.step()
        # The first SGD step has no momentum to add to: torch itself runs another step then.
        assert counts == [1, 1, 0, 0, 0, 0] if kind == "SGD" else [1, 0, 0, 0, 0, 0], (
            spmd.metrics.report()
        )
        torch.testing.assert_close(w.detach().cpu(), reference.detach(), rtol=2e-5, atol=2e-5)

    def test_lists_of_equal_numbers(self) -> None:
        """One number many times is lifted once; where the numbers part, it is another program, and
        each stays one."""
        tensors = [torch.ones(2, 3).to("xla") for _ in range(4)]
        counts = []
        for numbers in (
            [2.0] * 4,
            [3.0] * 4,
            [1.0, 2.0, 3.0, 4.0],
            [5.0, 6.0, 7.0, 7.0],
            [9.0] * 4,
            [*[8.0] * 3, 8],
        ):
            before = compiles()
            made = torch._foreach_mul(tensors, numbers)
            spmd.sync()
            counts.append(compiles() - before)
            assert [one[0, 0].item() for one in made] == numbers
            assert made[0].dtype == made[3].dtype == torch.float32
        assert counts == [1, 0, 1, 0, 0, 1]


class TestCauses:
    """The ledger names what is new: the op and its static argument, a shape, a sharding, and the
    user's line."""

    def run(self, barrier, make, *values) -> None:
        """Each test has a barrier of its own: the ledger compares with what the same line ran
        before."""
        for value in values:
            kept = make(value)
            barrier()
            del kept

    def test_first(self) -> None:
        # no other test's
        self.run(lambda: spmd.sync(), lambda _: torch.ones(3, 1931).to("xla") * 2, None)
        assert cause() == "first program of this sync" or "test_recompile.py" in cause()
        assert spmd.metrics.compiles()[-1].line.split(" in ")[0].endswith(tuple("0123456789"))

    def test_a_static_argument(self) -> None:
        x = torch.ones(3).to("xla")
        before = compiles()
        self.run(lambda: spmd.sync(), lambda power: x**power, 2, 3)
        assert compiles() - before == 2
        assert "pow" in cause() and "exponent=3" in cause() and "exponent=2" in cause()
        assert "test_recompile.py:" in cause() and "x**power" in cause()

    def test_a_shape(self) -> None:
        self.run(lambda: spmd.sync(), lambda size: torch.ones(size).to("xla") * 2, 43, 44)
        assert "float32[44]" in cause() and "float32[43]" in cause()

    def test_a_shape_behind_other_ops(self) -> None:
        """The named cause is the input that grew, not the first op that saw it."""

        def grown(size: int) -> torch.Tensor:
            kept = torch.ones(2, size).to("xla")
            return (
                torch.cat([kept * 2, torch.ones(2, 1, device="xla")], 1)
                @ torch.ones(size + 1, 3).to("xla")
            )[:, :2]

        self.run(lambda: spmd.sync(), grown, 43, 44)
        assert (
            "an input is now float32[45,3], before float32[44,3]" in cause()
            and "aten.mm reads it" in cause()
        )

    def test_many_shapes(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.run(lambda: spmd.sync(), lambda size: torch.ones(size).to("xla").cos(), *range(51, 62))
        assert (
            "an input is now float32[61], before float32[60]" in cause()
            and "10 programs here" in cause()
        )
        hint = capsys.readouterr().err
        assert (
            hint.count("spmd: 4 programs at test_recompile.py:") == 1
            and "differ by shapes alone" in hint
        )
        noted = spmd.metrics.report().rpartition("note: 4 programs were compiled at ")[2]
        assert "float32[55], before float32[54]; aten.cos" in noted and "test_recompile.py" in noted

    def test_a_dtype(self) -> None:
        self.run(
            lambda: spmd.sync(),
            lambda dtype: torch.ones(3, dtype=dtype).to("xla").neg(),
            torch.float32,
            torch.float64,
        )
        assert "float64[3]" in cause() and "float32[3]" in cause()

    def test_a_sharding(self, mesh8: spmd.Mesh) -> None:
        self.run(
            lambda: spmd.sync(),
            lambda spec: spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh8, spec) * 2,
            ("fsdp", None),
            (None, "fsdp"),
        )
        assert "(None, 'fsdp')" in cause() and "is now sharded as" in cause()

    def test_a_longer_graph(self) -> None:
        def chain(length: int) -> torch.Tensor:
            x = torch.ones(3).to("xla")
            for _ in range(length):
                x = x.sin()
            return x

        self.run(lambda: spmd.sync(), chain, 2, 3)
        assert "3 ops, before 2" in cause()

    def test_record(self) -> None:
        self.run(
            lambda: spmd.sync(),
            lambda _: torch.ones(3, 3).to("xla") @ torch.ones(3, 3).to("xla"),
            None,
        )
        record = spmd.metrics.compiles()[-1]
        assert (record.name, record.nodes, record.collectives) == ("step", 1, {})
        assert record.argument_bytes >= 72 and record.output_bytes >= 36 and record.seconds > 0
        assert "test_recompile.py" in record.line and str(record) in spmd.metrics.report()


class TestSharing:
    """Shardings that mean the same are the same program."""

    def test_replicated_spec_of_none_and_no_annotation(self, mesh8: spmd.Mesh) -> None:
        def step(annotate) -> torch.Tensor:
            w = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh8, ("fsdp", None))
            x = torch.ones(8, 8).to("xla")
            annotate(x)
            y = w @ x
            spmd.sync()
            return y

        cases = [
            lambda x: None,
            lambda x: spmd.mark_sharding(x, mesh8, (None, None)),
            lambda x: spmd.clear_sharding(spmd.mark_sharding(x, mesh8, ("fsdp", None))),
        ]
        before = compiles()
        for annotate in cases:
            assert step(annotate).sum().item() == 512
        assert compiles() - before == 2  # the product, and the sum that reads it

    def test_a_result_carried_into_the_next_step(self, mesh2x4: spmd.Mesh) -> None:
        """`h = tanh(w @ h)` compiles at most twice: the compiler's choice for h may differ from how
        h started."""
        w = spmd.mark_sharding(torch.eye(8).to("xla"), mesh2x4, ("fsdp", "data"))
        h = torch.ones(8, 4).to("xla")
        before = compiles()
        for _ in range(5):
            h = torch.tanh(w @ h)
            spmd.sync()
        assert compiles() - before <= 2
        expected = torch.ones(8, 4)
        for _ in range(5):
            expected = torch.tanh(expected)
        torch.testing.assert_close(h.cpu(), expected)

    def test_losing_and_getting_references(self) -> None:
        """The same step from two places shares its program."""
        x = torch.ones(17).to("xla")
        before = compiles()
        first = x.cos() * 2
        spmd.sync()
        del first
        second = x.cos() * 3
        spmd.sync()
        assert compiles() - before == 1 and second.shape == (17,)


class Turning(torch.nn.Module):
    """Frequencies in a buffer, whichever way it is one, that are computed, and not drawn or
    filled."""

    def __init__(self, way: str, width: int) -> None:
        super().__init__()
        frequencies = 1.0 / 10 ** (torch.arange(width) / width)
        if way == "nn.Buffer":
            self.frequencies = torch.nn.Buffer(frequencies, persistent=False)
        else:
            self.register_buffer("frequencies", frequencies)
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight * self.frequencies).cos()


class TestBuffers:
    """A buffer's initial value is born before the first step, which is then the same program as all
    others."""

    @pytest.mark.parametrize(
        ("way", "width"), [("nn.Buffer", 8), ("register_buffer", 9), ("moved", 10)]
    )
    def test_computed(self, way: str, width: int) -> None:
        plain = Turning(way, width)
        with torch.device("xla"):
            model = Turning(way, width)
        if way == "moved":
            plain, model = plain.to(torch.bfloat16), model.to(torch.bfloat16)
        optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (plain, model)]
        names = []
        for _ in range(3):
            for module, optimizer, device in zip(
                (plain, model), optimizers, ("cpu", "xla"), strict=True
            ):
                module(torch.ones(width, dtype=plain.weight.dtype).to(device)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            before = len(spmd.metrics.compiles())
            spmd.sync()
            names.append([record.name for record in spmd.metrics.compiles()[before:]])
        assert names == [["init", "step"], [], []]
        check(model.frequencies, plain.frequencies)
        check(model.weight, plain.weight)


class TestBound:
    """The cache holds `config.program_cache_size` programs and drops the least recently used."""

    def test_eviction(self) -> None:
        size = spmd.config.program_cache_size
        evicted = spmd.metrics.counter("programs_evicted")
        spmd.config.program_cache_size = 2
        x = torch.ones(19).to("xla")

        def run(power: int) -> int:
            before = compiles()
            kept = x**power
            spmd.sync()
            del kept
            return compiles() - before

        try:
            assert [run(power) for power in (2, 3, 2, 4, 2, 3)] == [1, 1, 0, 1, 0, 1]
            assert spmd.metrics.counter("programs_evicted") > evicted
        finally:
            spmd.config.program_cache_size = size
        with pytest.raises(TypeError, match=r"config.program_cache_size: expected int, got '2'"):
            spmd.config.program_cache_size = "2"
        with pytest.raises(AttributeError, match="config has no flag 'cache_size'"):
            spmd.config.cache_size = 2

    @pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory maps is Linux's")
    def test_memory_maps(self) -> None:
        """Programs have maps, of which a process may have 65,530; the compiler crashes without, so
        some are dropped."""
        script = """
            import tempfile
            from pathlib import Path
            import torch, spmd
            from spmd.core.programs import cache
            cache._LIMIT = Path(tempfile.mkdtemp(), "limit")
            maps = lambda: Path("/proc/self/maps").read_bytes().count(b"\\n")
            x = torch.ones(3).to("xla")
            x.exp().sum().item()
            cache._LIMIT.write_text(str((maps() + 150) * 4 // 3))
            for n in range(2, 60):
                y = (x * x.expand(n, 3)).cumsum(0).tanh()
                spmd.sync()
            assert spmd.metrics.counter("programs_evicted") > 0
            print(maps() < int(cache._LIMIT.read_text()))
            """
        assert run_script(script) == "True\n"

    def test_a_graph_that_nobody_syncs_is_cut(self, capfd) -> None:
        limit = spmd.config.max_pending_ops
        spmd.config.max_pending_ops = 20
        spmd.sync()  # it counts from the next barrier on
        try:
            kept = [torch.ones(2, device="xla") * i for i in range(60)]
        finally:
            spmd.config.max_pending_ops = limit
        assert [t[0].item() for t in kept] == list(range(60))
        assert capfd.readouterr().out.count("ops recorded without a sync") <= 1
