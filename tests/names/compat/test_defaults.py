"""The defaults of PyTorch/XLA that hold under the drop-in alone: the CPU fallback, `einsum` of
several dtypes, classes of floating-point type."""

from collections.abc import Iterator

import pytest
import torch
from support import check, run_script

import spmd
from spmd.torch_xla import xla_metrics

_library = torch.library.Library("spmddefaults", "DEF")
_library.define("twice(Tensor x) -> Tensor")
_library.impl("twice", lambda x: x * 2, "CPU")


@pytest.fixture
def installed() -> Iterator[None]:
    spmd.compat.install()
    yield
    spmd.compat.uninstall()


class TestFallback:
    """An op without a rule runs on the CPU and is counted; without the drop-in it is an error."""

    def test_counted(self, installed: None) -> None:
        xla_metrics.clear_all()
        assert torch.ops.spmddefaults.twice(torch.ones(2, device="xla")).tolist() == [2, 2]
        (name,) = xla_metrics.executed_fallback_ops()
        assert name.endswith("::twice") and xla_metrics.counter_value(name) == 1

    def test_without_it(self) -> None:
        spmd.compat.install()
        spmd.compat.uninstall()
        with pytest.raises(NotImplementedError, match="no lowering rule"):
            torch.ops.spmddefaults.twice(torch.ones(2, device="xla"))

    def test_chosen_by_the_user(self) -> None:
        script = "import spmd; spmd.compat.install(); print(spmd.config.fallback)"
        assert run_script(script, SPMD_FALLBACK="error").strip() == "error"
        assert run_script(script).strip() == "cpu"


class TestClasses:
    """Losses take classes as floating-point numbers on xla; not on the CPU, nor without the
    drop-in."""

    def test_losses(self, installed: None) -> None:
        x, classes = torch.randn(6, 3), torch.tensor([0.0, 2, 1, 1, 0, 2])
        expected = torch.nn.functional.cross_entropy(x, classes.long())
        moved = x.to("xla").requires_grad_()
        loss = torch.nn.CrossEntropyLoss()(moved, classes.to("xla"))
        loss.backward()
        check(loss, expected)
        assert moved.grad is not None
        check(torch.nn.functional.nll_loss(x.to("xla").log_softmax(1), classes.to("xla")), expected)
        probabilities = torch.rand(6, 3)
        check(
            torch.nn.functional.cross_entropy(x.to("xla"), probabilities.to("xla")),
            torch.nn.functional.cross_entropy(x, probabilities),
        )
        with pytest.raises(RuntimeError, match="Long"):
            torch.nn.functional.cross_entropy(x, classes)

    def test_without_it(self) -> None:
        spmd.compat.install()
        spmd.compat.uninstall()
        with pytest.raises(RuntimeError, match=r"write target\.long\(\) for indices"):
            torch.nn.functional.cross_entropy(
                torch.ones(6, 3, device="xla"), torch.ones(6, device="xla")
            )


class TestEinsum:
    """Operands of several dtypes are promoted on xla, as a mixture of experts gives them; not on
    the CPU."""

    def test_promoted(self, installed: None) -> None:
        x, mask = torch.randn(2, 3, 4).bfloat16(), torch.rand(2, 3, 5, 6) > 0.5
        expected = torch.einsum("bsm,bsec->ebcm", x, mask.bfloat16())
        moved = x.to("xla").requires_grad_()
        result = torch.einsum("bsm,bsec->ebcm", moved, mask.to("xla"))
        check(result, expected)
        result.sum().backward()
        assert moved.grad is not None and moved.grad.dtype is torch.bfloat16
        with torch.inference_mode():
            check(torch.einsum("bsm,bsec->ebcm", (moved, mask.to("xla"))), expected)
            assert (
                torch.functional.einsum(moved, [0, 1, 2], mask.to("xla"), [0, 1, 3, 4], [2]).dtype
                is torch.bfloat16
            )
        with pytest.raises(RuntimeError):
            torch.einsum("bsm,bsec->ebcm", x, mask)

    def test_without_it(self) -> None:
        x = torch.ones(2, 2, device="xla")
        with pytest.raises(RuntimeError):
            torch.einsum("ij,jk->ik", x, x > 0)
