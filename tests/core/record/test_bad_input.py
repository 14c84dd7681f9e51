"""Bad input: a Python error at the user's line that says what was expected, what came, what to do;
nothing is lost."""

import traceback
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import spmd
from spmd.ops.registry import RULES, Rule

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def usable() -> Iterator[None]:
    """After each test the process still computes, with a value from before and a new one, of both
    partitioners."""
    spmd.sync()
    before = torch.arange(3.0, device="xla")
    spmd.sync()
    pending = before + 1
    yield
    assert pending.tolist() == [1.0, 2.0, 3.0]
    assert (before * 2 + torch.ones(3).to("xla")).tolist() == [1.0, 3.0, 5.0]


def raised(error: type[BaseException], function: Callable[[], object]) -> tuple[str, list[str]]:
    """The error's text, and the lines of this file that its traceback goes through."""
    with pytest.raises(error) as caught:
        function()
    frames = traceback.extract_tb(caught.tb)
    return str(caught.value), [frame.line or "" for frame in frames if frame.filename == __file__]


class TestDevicesMixed:
    """A CPU tensor with `xla` tensors in one op is an error; 0-dim CPU tensors and CPU index
    tensors are taken."""

    @pytest.mark.parametrize(
        "function",
        [
            lambda x, c: x + c,
            lambda x, c: c + x,
            lambda x, c: x @ c,
            lambda x, c: torch.cat([x, c]),
            lambda x, c: torch.where(c > 0, x, x),
            lambda x, c: x.add_(c),
            lambda x, c: torch._foreach_add([x, x], [x, c]),
            lambda x, c: nn.functional.linear(x, c),
            lambda x, c: torch.add(x, x, out=c),
        ],
        ids=["add", "radd", "matmul", "cat", "where", "add_", "foreach", "linear", "out"],
    )
    def test_refused(self, function) -> None:
        x, c = torch.ones(3, 3, device="xla"), torch.ones(3, 3)
        message, lines = raised(RuntimeError, lambda: function(x, c))
        assert "xla" in message and "cpu" in message
        assert any("lambda x, c" in line for line in lines)
        assert x.sum().item() == c.sum().item() == 9

    def test_message(self) -> None:
        x, c = torch.ones(3, device="xla"), torch.ones(3)
        message, _ = raised(RuntimeError, lambda: x * c)
        assert message == (
            "aten.mul.Tensor: expected all tensors on xla:0, but one of shape [3] (c) is on cpu; "
            "move it with "
            '.to("xla") (only 0-dim CPU tensors, and indices in x[i], may be on the CPU)'
        )

    def test_names(self) -> None:
        """A parameter's or buffer's in the outermost module, that of an optimizer's state, a
        variable's, an entry's."""
        x, batch = torch.ones(3, 3, device="xla"), {"mask": torch.ones(3, 3)}
        model = nn.Sequential(nn.Linear(3, 3, device="xla"), nn.Sequential(nn.Linear(3, 3)))
        norm = nn.BatchNorm1d(3, affine=False).eval()
        weight = model[0].weight
        optimizer = torch.optim.AdamW([weight])
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        moments = optimizer.state[weight]
        moments["exp_avg"] = moments["exp_avg"].cpu()
        for function, name in (
            (lambda: model(x), "model.1.0.weight"),
            (lambda: norm(x), "norm.running_mean"),
            (optimizer.step, "optimizer.state.0.exp_avg"),
            (lambda: x @ batch["mask"].t(), "batch['mask']"),
        ):
            message, _ = raised(RuntimeError, function)
            assert f"({name}) is on cpu" in message
        gone = weakref.proxy(type("Gone", (), {})())
        message, _ = raised(RuntimeError, lambda: (x * torch.ones(3), gone))
        assert "one of shape [3] is on cpu" in message

    def test_scalars_are_taken(self) -> None:
        x = torch.arange(4.0, device="xla")
        two = torch.tensor(2.0)
        assert (x * two).tolist() == (two * x).tolist() == [0.0, 2.0, 4.0, 6.0]
        assert torch.where(x > two, x, two).tolist() == [2.0, 2.0, 2.0, 3.0]
        assert x.clone().add_(two).tolist() == [2.0, 3.0, 4.0, 5.0]
        assert (x + torch.tensor(1)).dtype == torch.float32 and (
            x + torch.tensor(1.0, dtype=torch.float64)
        ).dtype == torch.float32
        assert torch._foreach_mul([x, x], two)[1].tolist() == [0.0, 2.0, 4.0, 6.0]
        assert (x.int() + torch.tensor(True)).tolist() == [1, 2, 3, 4]
        assert (x * torch.tensor(2.0, dtype=torch.bfloat16)).tolist() == [0.0, 2.0, 4.0, 6.0]

    def test_indices_are_taken(self) -> None:
        x = torch.arange(12.0, device="xla").view(3, 4)
        assert x[torch.tensor([2, 0])].tolist() == [[8.0, 9.0, 10.0, 11.0], [0.0, 1.0, 2.0, 3.0]]
        assert x[:, torch.tensor([1, 1])].shape == (3, 2)
        x[torch.tensor([0])] = 5.0
        x[torch.tensor([1, 2]), torch.tensor([0, 3])] = torch.tensor([7.0, 8.0], device="xla")
        assert x.tolist() == [[5.0] * 4, [7.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 8.0]]
        assert x[torch.tensor([True, False, True])].shape == (2, 4)

    def test_data_of_another_device(self) -> None:
        x = torch.ones(2, device="xla")
        message, _ = raised(TypeError, lambda: setattr(x, "data", torch.ones(2)))
        assert "expected a tensor on xla, got one on cpu" in message


class TestShapes:
    """Wrong shapes, dtypes and dims raise torch's own error, where the op is written and not at the
    barrier."""

    @pytest.mark.parametrize(
        ("function", "error"),
        [
            (lambda x: x + torch.ones(4, device=x.device), RuntimeError),
            (lambda x: x @ x, RuntimeError),
            (lambda x: x.view(4), RuntimeError),
            (lambda x: x.sum(5), IndexError),
            (lambda x: x[7], IndexError),
            (lambda x: torch.cat([x, x[:, :1]]), RuntimeError),
            (lambda x: x.transpose(0, 9), IndexError),
            (lambda x: x.expand(3, 3), RuntimeError),
            (lambda x: nn.functional.linear(x, torch.ones(4, 4, device=x.device)), RuntimeError),
            (
                lambda x: nn.functional.cross_entropy(
                    x, torch.zeros(5, dtype=torch.int64, device=x.device)
                ),
                (RuntimeError, ValueError),
            ),
            (lambda x: x.reshape(5), RuntimeError),
            (lambda x: x.softmax(4), IndexError),
        ],
        ids=[
            "add",
            "matmul",
            "view",
            "sum",
            "index",
            "cat",
            "transpose",
            "expand",
            "linear",
            "cross_entropy",
            "reshape",
            "softmax",
        ],
    )
    def test_torchs_error(self, function, error) -> None:
        raised(error, lambda: function(torch.ones(2, 3)))
        message, lines = raised(error, lambda: function(torch.ones(2, 3, device="xla")))
        assert message and "lowering" not in message and "jax" not in message.lower()
        assert any("lambda x" in line for line in lines)


class TestNoRule:
    """An op without a rule says which one, and what to do."""

    def test_message(self) -> None:
        library = torch.library.Library("spmd_test", "DEF")
        library.define("nothing(Tensor x) -> Tensor")
        x = torch.ones(3, 3, device="xla")
        message, lines = raised(NotImplementedError, lambda: torch.ops.spmd_test.nothing(x))
        assert message.startswith(
            "spmd_test.nothing.default has no lowering rule on xla, and torch has no "
            "decomposition of it."
        )
        assert ".cpu()" in message and any("spmd_test.nothing(x)" in line for line in lines)
        assert x.sum().item() == 9

    def test_a_dtype_that_xla_does_not_have(self) -> None:
        message, _ = raised(
            NotImplementedError, lambda: torch.empty(2, dtype=torch.float4_e2m1fn_x2).to("xla")
        )
        assert "torch.float4_e2m1fn_x2 has no XLA counterpart (known: torch.bool" in message


@pytest.fixture
def broken_i0(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that fails when it is lowered, long after the op was recorded."""

    def rule(self):
        raise ArithmeticError("no such thing")

    monkeypatch.setitem(RULES, aten.i0.default, Rule(rule, None, False, False))


class TestLate:
    """An error at the barrier names the op and the user's line that recorded it; only what depends
    on it is lost."""

    def record(self, x: torch.Tensor) -> torch.Tensor:
        return torch.i0(x)  # the line that the error must name

    def test_names_op_and_line(self, broken_i0: None) -> None:
        x = torch.ones(3, device="xla")
        good = x + 1
        bad = self.record(x)
        worse = bad * 2
        message, _ = raised(RuntimeError, spmd.sync)
        assert "aten.i0" in message and "ArithmeticError: no such thing" in message
        assert "test_bad_input.py" in message and "return torch.i0(x)" in message
        assert good.tolist() == [2.0] * 3 and x.tolist() == [1.0] * 3
        for lost in (bad, worse):
            assert "aten.i0" in raised(RuntimeError, lost.tolist)[0]
        again = bad + 1
        fine = x * 5
        assert "aten.i0" in raised(RuntimeError, spmd.sync)[0]
        assert fine.tolist() == [5.0] * 3
        del again

    def test_in_backward_names_the_forward_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def rule(grad_output, output):
            raise ArithmeticError("no such thing")

        monkeypatch.setitem(RULES, aten.tanh_backward.default, Rule(rule, None, False, False))
        from_spmd = spmd.core.record.call.PLANS.pop(aten.tanh_backward.default, None)
        try:
            x = torch.ones(5, 7, device="xla", requires_grad=True)
            y = torch.tanh(x)  # the forward line
            y.sum().backward()
            message, _ = raised(RuntimeError, spmd.sync)
            assert (
                "aten.tanh_backward" in message
                and "y = torch.tanh(x)  # the forward line" in message
            )
            assert y.shape == (5, 7)
        finally:
            spmd.core.record.call.PLANS.pop(aten.tanh_backward.default, None)
            if from_spmd is not None:
                spmd.core.record.call.PLANS[aten.tanh_backward.default] = from_spmd

    def test_in_place_keeps_the_old_value(self, broken_i0: None) -> None:
        x = torch.full((3,), 2.0, device="xla")
        spmd.sync()
        x.add_(1)
        torch.ops.aten.i0_(x) if hasattr(aten, "i0_") else x.copy_(torch.i0(x))
        raised(RuntimeError, spmd.sync)
        raised(RuntimeError, x.tolist)
        x.fill_(4)
        assert x.tolist() == [4.0] * 3

    def test_late_error_of_xla_names_the_op(self) -> None:
        """XLA's message points at a node by its number in the program."""
        x = torch.ones(3, device="xla")
        y = x.sin() + 4
        spmd.sync()
        program = spmd.core.programs.cache.last_program()
        index = [op.name for op in program.entries].index("aten.sin")
        text = f'at "jit(spmd)/aten.sin#{index}/sin": out of memory'
        error = spmd.core.programs.failing.explain(program, RuntimeError(text))
        assert (
            "aten.sin" in str(error)
            and "y = x.sin() + 4" in str(error)
            and "out of memory" in str(error)
        )
        del y


class TestDonatedStateGone:
    """State that a failed run had taken says so at its next use."""

    def test_message(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x = torch.zeros(64, device="xla")
        other = torch.ones(64, device="xla")
        spmd.sync()
        x.add_(1)
        real = spmd.core.run.executables.run

        def run(program, graph):
            real(program, graph)
            raise KeyboardInterrupt

        monkeypatch.setattr(spmd.core.run.executables, "run", run)
        raised(KeyboardInterrupt, spmd.sync)
        monkeypatch.undo()
        message, _ = raised(RuntimeError, x.tolist)
        assert "this tensor's data (float32[64]) is lost" in message and "donated" in message
        assert "Load or initialise it again" in message and "test_bad_input.py" in message
        x.copy_(torch.ones(64))
        assert x.sum().item() == 64 and other.sum().item() == 64

    def test_interrupt_before_anything_was_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x = torch.zeros(3, device="xla")
        spmd.sync()
        x.add_(1)

        def run(program, graph):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(spmd.core.run.executables, "run", run)
            raised(KeyboardInterrupt, spmd.sync)
        assert x.tolist() == [1.0] * 3


class TestReading:
    """Reading what torch does not let an accelerator's tensor be read as."""

    def test_numpy(self) -> None:
        x = torch.ones(2, device="xla")
        message, _ = raised(TypeError, lambda: x.numpy())
        assert "can't convert an xla tensor to numpy; use .cpu() first" in message

    def test_item_of_many(self) -> None:
        for device in ("cpu", "xla"):
            x = torch.ones(2, device=device)
            raised(RuntimeError, x.item)
            raised(RuntimeError, lambda x=x: bool(x))

    def test_other_device_index(self) -> None:
        with pytest.raises(ValueError, match="there is one logical device, xla:0; got index 1"):
            spmd.device(1)

    def test_backward_of_a_non_scalar(self) -> None:
        x = torch.ones(2, device="xla", requires_grad=True)
        assert (
            "grad can be implicitly created only for scalar outputs"
            in raised(RuntimeError, lambda: (x * 2).backward())[0]
        )

    def test_storage(self) -> None:
        storage = torch.ones(2, device="xla").untyped_storage()
        for call in (
            storage.clone,
            storage.cpu,
            storage.tolist,
            lambda: storage.resize_(0),
            lambda: storage[0],
        ):
            assert (
                "an xla tensor has no storage to read or write"
                in raised(NotImplementedError, call)[0]
            )


class TestFilling:
    """A number that fills a tensor must fit its dtype; torch checks that for every device."""

    @pytest.mark.parametrize("device", ["cpu", "xla"])
    def test_refused(self, device: str) -> None:
        for dtype, values in {
            torch.float32: (5j, 1e39),
            torch.float16: (1e6, -1e9),
            torch.bfloat16: (3.4e38,),
            torch.complex64: (1e39,),
            torch.int8: (300, -129, float("nan")),
            torch.uint8: (256, -1.0, -300),
            torch.int32: (2**40, float("inf")),
        }.items():
            x = torch.zeros(3, dtype=dtype, device=device)
            for value in values:
                fills: list[Callable[[complex], object]] = [
                    x.fill_,
                    lambda v, x=x: x.masked_fill(x == 0, v),
                    lambda v, x=x: torch.full_like(x, v),
                    lambda v, x=x: torch.full((2,), v, dtype=x.dtype, device=device),
                ]
                if device == "xla":  # the CPU alone makes infinity of some that are assigned
                    fills.append(lambda v, x=x: x.__setitem__(0, v))
                for fill in fills:
                    with pytest.raises(RuntimeError, match="without overflow"):
                        fill(value)

    def test_taken(self) -> None:
        for dtype, values in {
            torch.float16: (65504.0, float("-inf"), float("nan"), 5 + 0j),
            torch.uint8: (-5, 2.7),
            torch.bool: (7, 2.5),
            torch.complex64: (5j,),
            torch.int32: (-(2**31), True),
        }.items():
            for value in values:
                expected, actual = (
                    torch.zeros(2, dtype=dtype, device=device).fill_(value)
                    for device in ("cpu", "xla")
                )
                assert torch.equal(actual.cpu().nan_to_num(), expected.nan_to_num()), (dtype, value)


class TestProducts:
    """Operands of a product have one dtype."""

    def test_refused(self) -> None:
        x = torch.ones(3, 3, device="xla")
        wide = x.double()
        for product in (
            lambda: x @ wide,
            lambda: torch.bmm(x[None], wide[None]),
            lambda: torch.mv(x, wide[0]),
            lambda: nn.functional.linear(x, wide),
            lambda: nn.functional.linear(x, x, wide[0]),
            lambda: torch.addmm(wide, x, x),
            lambda: torch.dot(x[0], wide[0]),
        ):
            raised(RuntimeError, product)


class TestBackward:
    """A Python error inside a backward pass reaches the caller as it is; torch's engine would abort
    the process."""

    def fail(self, *_: object) -> None:
        raise ValueError("from the hook")

    @pytest.mark.parametrize(
        "place", ["tensor", "node", "accumulated", "module", "function", "dispatch"]
    )
    def test_error_in_backward(self, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        class Failing(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, grad):
                raise ValueError("from the hook")

        x = torch.ones(3, device="xla", requires_grad=True)
        y = x * 2
        if place == "tensor":
            x.register_hook(self.fail)
        elif place == "node":
            y.grad_fn.register_hook(self.fail)
        elif place == "accumulated":
            x.register_post_accumulate_grad_hook(self.fail)
        elif place == "module":
            linear = nn.Linear(3, 3).to("xla")
            linear.register_full_backward_hook(self.fail)
            y = linear(x)
        elif place == "function":
            y = Failing.apply(x)
        else:
            x.register_hook(lambda grad: grad + torch.ones(4, device="xla"))
        error = RuntimeError if place == "dispatch" else ValueError
        message, lines = raised(error, lambda: y.sum().backward())
        assert ("must match the size" if place == "dispatch" else "from the hook") in message
        assert any("y.sum().backward()" in line for line in lines)
        z = torch.ones(3, device="xla", requires_grad=True)
        (z * z).sum().backward()
        assert z.grad.tolist() == [2.0] * 3

    def test_grad(self) -> None:
        x = torch.ones(3, device="xla", requires_grad=True)
        x.register_hook(self.fail)
        message, lines = raised(ValueError, lambda: torch.autograd.grad((x * 2).sum(), x))
        assert message == "from the hook" and any("raise ValueError" in line for line in lines)
