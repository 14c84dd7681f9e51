"""Float32 products: full precision unless torch's own settings allow less at the call."""

import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional as F

import spmd


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """torch's settings are the process's."""
    yield
    torch.backends.fp32_precision = "none"
    torch.backends.cuda.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    torch.set_float32_matmul_precision("highest")


def precisions(*results: torch.Tensor) -> list[str]:
    """The precision that each product of the recorded graph asks of XLA, in order."""
    text = spmd.get_stablehlo(results)
    found = re.findall(r"(?:precision = \[|precision_config = \[#stablehlo<precision )(\w+)", text)
    assert len(found) == len(re.findall(r"stablehlo\.(?:dot_general|convolution)", text))
    return found


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype).to("xla")


PRODUCTS: dict[str, Callable[[], torch.Tensor]] = {
    "mm": lambda: ones(4, 4) @ ones(4, 4),
    "bmm": lambda: torch.bmm(ones(2, 4, 4), ones(2, 4, 4)),
    "addmm": lambda: torch.addmm(ones(4), ones(4, 4), ones(4, 4)),
    "addmm_": lambda: ones(4, 4).addmm_(ones(4, 4), ones(4, 4)),
    "baddbmm, out": lambda: torch.baddbmm(
        ones(2, 4, 4), ones(2, 4, 4), ones(2, 4, 4), out=torch.empty(2, 4, 4, device="xla")
    ),
    "linear": lambda: F.linear(ones(4, 4), ones(4, 4), ones(4)),
    "complex": lambda: ones(4, 4, dtype=torch.complex64) @ ones(4, 4, dtype=torch.complex64),
    "conv": lambda: F.conv2d(ones(1, 4, 8, 8), ones(4, 4, 3, 3)),
    "transposed conv": lambda: F.conv_transpose1d(ones(1, 4, 8), ones(4, 4, 3)),
    "cdist": lambda: torch.cdist(ones(30, 4), ones(30, 4)),
    "sdpa": lambda: F.scaled_dot_product_attention(
        ones(1, 2, 4, 8), ones(1, 2, 4, 8), ones(1, 2, 4, 8)
    ),
    "einsum": lambda: torch.einsum("abc,cd->abd", ones(2, 4, 4), ones(4, 4)),
}


class TestSetting:
    """highest, high and medium are HIGHEST, HIGH and DEFAULT in StableHLO."""

    @pytest.mark.parametrize("make", PRODUCTS.values(), ids=PRODUCTS)
    def test_every_product(self, make: Callable[[], torch.Tensor]) -> None:
        for setting, expected in {
            "highest": "HIGHEST",
            "high": "HIGH",
            "medium": "DEFAULT",
        }.items():
            torch.set_float32_matmul_precision(setting)
            assert set(precisions(make())) == {expected}

    def test_gradients(self) -> None:
        """Those of products and convolutions are products, too, under the setting when backward is
        called."""
        x, w = ones(1, 4, 8, 8).requires_grad_(), ones(4, 4, 3, 3).requires_grad_()
        y = F.conv2d(x, w)
        torch.set_float32_matmul_precision("high")
        assert precisions(*torch.autograd.grad(y.sum(), (x, w))) == ["HIGH", "HIGH"]

    def test_recurrent_layers(self) -> None:
        torch.set_float32_matmul_precision("high")
        layer = torch.nn.LSTM(4, 4).to("xla")
        assert set(precisions(layer(ones(3, 2, 4))[0])) == {"HIGH"}

    def test_new_settings(self) -> None:
        cases = {
            "highest": lambda: None,
            "high": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
            "medium": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
        }
        for expected, change in zip(("HIGHEST", "HIGH", "DEFAULT"), cases.values(), strict=True):
            change()
            assert precisions(PRODUCTS["mm"]()) == [expected]

    def test_the_setting_of_all_backends(self) -> None:
        for backend in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
            backend.fp32_precision = "none"  # left to the setting above them
        torch.backends.fp32_precision = "tf32"
        assert precisions(PRODUCTS["mm"]()) == ["HIGH"]

    def test_allow_tf32(self) -> None:
        torch.backends.cuda.matmul.allow_tf32 = True
        assert precisions(PRODUCTS["mm"]()) == ["HIGH"]

    @pytest.mark.parametrize(
        ("dtype", "expected"),
        [(torch.float64, "HIGHEST"), (torch.bfloat16, "DEFAULT"), (torch.float16, "DEFAULT")],
        ids=str,
    )
    def test_other_dtypes_are_untouched(self, dtype: torch.dtype, expected: str) -> None:
        """float64 stays full; of narrow floats nothing more can be asked, since their products are
        exact in float32."""
        before = None
        for setting in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(setting)
            made = ones(4, 4, dtype=dtype) @ ones(4, 4, dtype=dtype)
            text = spmd.get_stablehlo([made])
            assert precisions(made) == [expected] and before in (None, text)
            before = text

    def test_solvers_stay_full(self) -> None:
        torch.set_float32_matmul_precision("medium")
        assert set(precisions(torch.linalg.pinv(torch.eye(4).to("xla")))) <= {"HIGHEST"}


class TestCall:
    """The setting at the call counts, as torch documents, not the one at the barrier."""

    def test_two_settings_in_one_graph(self) -> None:
        x = ones(4, 4)
        y = x @ x
        torch.set_float32_matmul_precision("high")
        z = x @ y
        torch.set_float32_matmul_precision("highest")
        assert precisions(y, z) == ["HIGHEST", "HIGH"]
        assert y.tolist() == [[4.0] * 4] * 4 and z.tolist() == [[16.0] * 4] * 4

    def test_counted_once(self) -> None:
        x = ones(4, 4)
        counts = []
        for setting in ("highest", "high"):
            torch.set_float32_matmul_precision(setting)
            before = spmd.metrics.counter("recorded_ops")
            x @ x
            counts.append(spmd.metrics.counter("recorded_ops") - before)
        assert counts[0] == counts[1]

    def test_a_change_compiles_once_and_the_ledger_names_it(self, mesh8: spmd.Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8, 6).to("xla"), mesh8, ("fsdp", None))
        w = ones(6, 6)

        def step() -> int:
            before = spmd.metrics.num_compiles()
            kept = (x @ w).sum()
            spmd.sync()
            assert kept.item() == 8 * 6 * 6
            return spmd.metrics.num_compiles() - before

        assert [step(), step()] == [1, 0]
        torch.set_float32_matmul_precision("high")
        assert [step(), step()] == [1, 0]
        cause = spmd.metrics.compiles()[-1].cause
        assert (
            "op aten.mm:precision_high instead of aten.mm at" in cause and "(x @ w).sum()" in cause
        )
        torch.set_float32_matmul_precision("highest")
        assert step() == 0
