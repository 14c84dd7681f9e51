"""`config.fallback`: an op without a rule raises by default; on request it runs on the CPU, is
counted and listed."""

import functools

import pytest
import torch

import spmd


@pytest.fixture
def fallback():
    spmd.config.fallback = "cpu"
    spmd.metrics.clear()
    yield
    spmd.config.fallback = "error"


@functools.cache
def ops():
    """Ops that nobody gives a rule."""
    library = torch.library.Library("spmdfallback", "DEF")
    for schema, function in {
        "twice(Tensor x, *, int shift=0) -> Tensor": lambda x, shift=0: x * 2 + shift,
        "pair(Tensor[] xs) -> (Tensor, Tensor)": lambda xs: (sum(xs), xs[0].clone()),
        "bump_(Tensor(a!) x, float by) -> Tensor(a!)": lambda x, by: x.add_(by),
        "fill_both(Tensor(a!) x, Tensor(b!) y) -> ()": lambda x, y: (x.fill_(3), y.fill_(4), None)[
            2
        ],
        "first(Tensor(a) x) -> Tensor(a)": lambda x: x[0],
        "parts(Tensor(a) x) -> Tensor(a)[]": lambda x: list(x),
    }.items():
        name = library.define(schema)
        library.impl(name, function, "CPU")
    ops.library = library
    return torch.ops.spmdfallback


class TestFallback:
    """Right, counted, listed, forbidden where nothing may leave the device."""

    def test_raises_by_default(self):
        with pytest.raises(NotImplementedError, match=r'spmd.config.fallback = "cpu"'):
            ops().twice(torch.ones(2, device="xla"))

    def test_results(self, fallback, mesh8):
        x = spmd.mark_sharding(torch.arange(8.0).to("xla"), mesh8, ("fsdp",))
        made = ops().twice(x, shift=1)
        assert made.device.type == "xla" and made.tolist() == (torch.arange(8.0) * 2 + 1).tolist()
        total, first = ops().pair([x, x + 1])
        assert (
            total.tolist() == (torch.arange(8.0) * 2 + 1).tolist() and first.tolist() == x.tolist()
        )
        assert spmd.metrics.counter("fallbacks") == 2
        assert spmd.metrics.fallback_ops() == {
            "spmdfallback.twice.default": 1,
            "spmdfallback.pair.default": 1,
        }

    def test_writes_come_back(self, fallback):
        x = torch.zeros(2, 3, device="xla")
        assert ops().bump_(x[1], 2.0).tolist() == [2, 2, 2]
        assert x.tolist() == [[0, 0, 0], [2, 2, 2]]
        y = torch.zeros(2, device="xla")
        assert ops().bump_(y, 1.0) is y
        ops().fill_both(x, y)
        assert x.sum().item() == 18 and y.sum().item() == 8

    def test_a_view_is_no_copy(self, fallback):
        """A view that the CPU made would be detached from its base."""
        for op in (ops().first, ops().parts):
            with pytest.raises(
                NotImplementedError, match="its result is a view, which no run on the CPU gives"
            ):
                op(torch.zeros(2, 3, device="xla"))

    def test_forbidden_inside_no_host_transfer(self, fallback):
        with (
            pytest.raises(RuntimeError, match=r"no_host_transfer: spmdfallback.twice.default"),
            spmd.no_host_transfer(),
        ):
            ops().twice(torch.ones(2, device="xla"))


class TestTheDropIn:
    """Under the drop-in, and after `spmd.use()`, which installs it, an op with a CPU kernel runs
    there."""

    def test_is_said_once(self, capfd):
        library = torch.library.Library("theirs", "FRAGMENT")
        library.define("update_(Tensor(a!) state, Tensor grad, float rate) -> ()")
        library.impl(
            "update_", lambda state, grad, rate: (state.sub_(grad, alpha=rate), None)[1], "CPU"
        )
        state, grad = torch.ones(2, device="xla"), torch.ones(2, device="xla")
        with pytest.raises(
            NotImplementedError, match=r"theirs\.update_\.default has no lowering rule on xla"
        ):
            torch.ops.theirs.update_(state, grad, 0.5)
        spmd.metrics.clear()
        spmd.compat.install()
        try:
            for _ in range(3):
                torch.ops.theirs.update_(state, grad, 0.5)
        finally:
            spmd.compat.uninstall()
        assert state.tolist() == [-0.5, -0.5] and spmd.metrics.fallback_ops() == {
            "theirs.update_.default": 3
        }
        text = (
            "theirs.update_ runs on the CPU; spmd.register_lowering gives it a rule, at "
            "test_fallback.py:"
        )
        assert capfd.readouterr().err.count(text) == 1
