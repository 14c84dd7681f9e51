"""Requests of autograd and its tools beyond derivatives: versions, inference mode, anomalies,
tangents."""

import pytest
import torch
from support import check
from torch.autograd import functional, gradcheck, gradgradcheck

import spmd

# torch's own, at its first forward-mode derivative: a DeprecationWarning, in torch 2.15 a
# FutureWarning.
JIT = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


class TestVersions:
    """`.data` counts its writes apart, `detach()` with the tensor, as on the CPU."""

    @pytest.mark.parametrize("device", ["cpu", "xla"])
    def test_data(self, device: str) -> None:
        x = torch.ones(3, device=device, requires_grad=True)
        y = x.exp()
        y.data.zero_()
        assert y._version == 0
        y.sum().backward()  # reads what stands there now
        assert x.grad is not None and x.grad.tolist() == [0.0] * 3
        y = x.exp()
        y.detach().zero_()
        assert y._version == 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()

    @JIT
    def test_gradcheck(self) -> None:
        torch.manual_seed(0)
        x = torch.randn(2, 3, dtype=torch.float64).to("xla").requires_grad_()
        assert gradcheck(lambda t: (t.sin() * t).sum(0), x, check_forward_ad=True)
        assert gradgradcheck(lambda t: (t.sin() * t).sum(0), x)


class TestInferenceMode:
    """Views of a tensor from outside are tensors of the outside: a cache that `generate()`
    writes."""

    def test_views(self) -> None:
        results = []
        for device in ("cpu", "xla"):
            cache = torch.zeros(4, 3, device=device)
            with torch.inference_mode():
                cache[1] = 2.0
                cache.view(-1)[-2:].add_(1)
                cache.t()[0].mul_(3)
                row, inside = cache[1], (cache + 1)[0]
                kinds = row.is_inference(), cache.detach().is_inference(), inside.is_inference()
            row.add_(1)
            results.append((kinds, cache.tolist()))
        assert results[0] == results[1]


class TestAnomaly:
    """`torch.autograd.detect_anomaly` names the op whose gradient is NaN."""

    @pytest.mark.filterwarnings("ignore::UserWarning")
    def test_nan(self) -> None:
        x = torch.tensor([1.0, 0.0]).to("xla").requires_grad_()
        with torch.autograd.detect_anomaly():
            (x * 2).sum().backward()
            with pytest.raises(RuntimeError, match=r"Function 'SqrtBackward0' returned nan values"):
                (x.sqrt() * 0).sum().backward()


class TestTangents:
    """Second derivatives forward over reverse, all rows at once."""

    @JIT
    def test_hessian(self) -> None:
        x = torch.arange(1.0, 4.0)
        options = {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}
        expected = functional.hessian(lambda t: (t**3).sum(), x, **options)
        check(functional.hessian(lambda t: (t**3).sum(), x.to("xla"), **options), expected)


class TestAssertions:
    """Assertions on the device are read."""

    def test_assert_async(self) -> None:
        x = torch.ones(3, device="xla")
        torch._assert_async((x > 0).all())
        torch._check_tensor_all(x > 0)
        with pytest.raises(RuntimeError, match="too small"):
            torch._assert_async((x > 1).all(), "too small")
        with spmd.no_host_transfer(), pytest.raises(RuntimeError, match="no_host_transfer"):
            torch._assert_async((x > 0).all())
