"""The helpers of the tests name what differs."""

import pytest
import torch
from support import Batch
from torch import Tensor


class TestBatch:
    """A failing case says whether a result or which argument's gradient differs."""

    @staticmethod
    def failure(on_device: float, gradient_on_device: float) -> str:
        def function(x: Tensor, y: Tensor) -> Tensor:
            is_device = x.device.type == "xla"
            slope = gradient_on_device if is_device else 1.0
            return x + slope * y + ((on_device if is_device else 0.0) - slope * y + y).detach()

        batch = Batch()
        batch.case("scaled", function, torch.ones(3), torch.ones(3))
        batch.case("plain", torch.add, torch.ones(3), torch.ones(3))
        with pytest.raises(AssertionError, match="1 of 2 cases differ from CPU") as caught:
            batch.check()
        return str(caught.value)

    def test_a_result(self) -> None:
        words = self.failure(1.0, 1.0)
        assert "scaled, result 0: " in words and "gradient" not in words

    def test_a_gradient(self) -> None:
        words = self.failure(0.0, 2.0)
        assert (
            "scaled, gradient of argument 1: " in words
            and "result" not in words
            and "argument 0" not in words
        )
