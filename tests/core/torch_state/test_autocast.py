"""torch.autocast: torch's documented cast lists; GradScaler; narrow storage; matmul precision."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spmd

# Ops that torch's documentation of autocast names for an accelerator. The operands are made on the
# device.
LOWER: dict[str, Callable[..., torch.Tensor]] = {
    "matmul @": lambda x, y: x @ y,
    "mm": torch.mm,
    "mv": lambda x, y: torch.mv(x, y[0]),
    "linear": lambda x, y: F.linear(x, y),
    "addmm": lambda x, y: torch.addmm(x, x, y),
    "addmv": lambda x, y: torch.addmv(x[0], x, y[0]),
    "addr": lambda x, y: torch.addr(x, x[0], y[0]),
    "bmm": lambda x, y: torch.bmm(x[None], y[None]),
    "baddbmm": lambda x, y: torch.baddbmm(x[None], x[None], y[None]),
    "addbmm": lambda x, y: torch.addbmm(x, x[None], y[None]),
    "matmul": torch.matmul,
    "chain_matmul": lambda x, y: torch.linalg.multi_dot([x, y, x]),
    "conv1d": lambda x, y: F.conv1d(x[None], y[:, :, None]),
    "conv2d": lambda x, y: F.conv2d(x[None, :, :, None], y[:, :, None, None]),
    "conv_transpose1d": lambda x, y: F.conv_transpose1d(x[None], y[:, :, None]),
    "prelu": lambda x, y: F.prelu(x, y[0, :1]),
    "einsum": lambda x, y: torch.einsum("ij,jk->ik", x, y),
    "attention": lambda x, y: F.scaled_dot_product_attention(
        x[None, None], y[None, None], y[None, None]
    ),
}
FLOAT32: dict[str, Callable[..., torch.Tensor]] = {
    "__pow__": lambda x: x**1.5, "__rpow__": lambda x: 2.0**x, "acos": lambda x: (x * 0).acos(),
    "asin": lambda x: (x * 0).asin(), "cosh": torch.cosh, "sinh": torch.sinh, "tan": torch.tan,
    "erfinv": lambda x: (x * 0).erfinv(), "cumprod": lambda x: x.cumprod(0),
    "cumsum": lambda x: x.cumsum(0), "dist": lambda x: torch.dist(x, x + 1), "exp": torch.exp,
    "expm1": torch.expm1, "log": torch.log, "log10": torch.log10, "log1p": torch.log1p,
    "log2": torch.log2, "logsumexp": lambda x: x.logsumexp(0), "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "norm": torch.norm, "prod": torch.prod,
    "renorm": lambda x: x.renorm(2, 0, 1), "sum": torch.sum, "softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(0), "softmin": lambda x: F.softmin(x, 0),
    "softplus": F.softplus, "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "group_norm": lambda x: F.group_norm(x, 2), "normalize": F.normalize,
    "mse_loss": lambda x: F.mse_loss(x, x * 2), "l1_loss": lambda x: F.l1_loss(x, x * 2),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x * 2),
    "huber_loss": lambda x: F.huber_loss(x, x * 2),
    "kl_div": lambda x: F.kl_div(x, x.abs(), reduction="batchmean"),
    "nll_loss": lambda x: F.nll_loss(x, torch.zeros(4, dtype=torch.int64, device=x.device)),
    "cross_entropy": lambda x: F.cross_entropy(
        x, torch.zeros(4, dtype=torch.int64, device=x.device),
    ),
    "bce with logits": lambda x: F.binary_cross_entropy_with_logits(x, x.abs()),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x),
    "cosine_embedding_loss": lambda x: F.cosine_embedding_loss(
        x, x, torch.ones(4, device=x.device),
    ),
    "cdist": lambda x: torch.cdist(x, x),
    "hinge_embedding_loss": lambda x: F.hinge_embedding_loss(x, torch.ones(4, 4, device=x.device)),
    "poisson_nll_loss": lambda x: F.poisson_nll_loss(x, x.abs()),
    "margin_ranking_loss": lambda x: F.margin_ranking_loss(x, x, x),
    "triplet_margin_loss": lambda x: F.triplet_margin_loss(x, x, x),
    "soft_margin_loss": lambda x: F.soft_margin_loss(x, x), "pdist": lambda x: F.pdist(x),
}  # fmt: skip
WIDEST: dict[str, Callable[..., torch.Tensor]] = {
    "addcdiv": lambda x, y: torch.addcdiv(x, y, y),
    "addcmul": lambda x, y: torch.addcmul(x, y, y),
    "atan2": torch.atan2,
    "bilinear": lambda x, y: F.bilinear(x, y, y[None]),
    "cross": lambda x, y: torch.linalg.cross(x[:, :3], y[:, :3]),
    "dot": lambda x, y: torch.dot(x[0], y[0]),
    "index_put": lambda x, y: x.index_put((torch.tensor([0], device=x.device),), y[:1]),
    "tensordot": lambda x, y: torch.tensordot(x, y, 1),
    "scatter_add": lambda x, y: x.scatter_add(
        0, torch.zeros(1, 4, dtype=torch.int64, device=x.device), y
    ),
    "stack": lambda x, y: torch.stack([x, y]),
    "cat": lambda x, y: torch.cat([x, y]),
    "add": torch.add,
}


class TestLists:
    """Each op gives the dtype that the documentation names."""

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_lower(self, dtype: torch.dtype) -> None:
        x = torch.ones(4, 4, device="xla")
        with torch.autocast("xla", dtype):
            wrong = {
                name: made
                for name, function in LOWER.items()
                if (made := function(x, x).dtype) != dtype
            }
        assert not wrong

    def test_float32(self) -> None:
        x = torch.full((4, 4), 0.5, device="xla", dtype=torch.bfloat16)
        wrong = {}
        with torch.autocast("xla", torch.bfloat16):
            for name, function in FLOAT32.items():
                if (made := function(x).dtype) != torch.float32:
                    wrong[name] = made
        assert not wrong

    def test_widest(self) -> None:
        x, y = torch.ones(4, 4, device="xla", dtype=torch.bfloat16), torch.ones(4, 4, device="xla")
        wrong = {}
        with torch.autocast("xla", torch.bfloat16):
            for name, function in WIDEST.items():
                try:
                    made = function(x, y).dtype
                except RuntimeError as error:
                    made = str(error)[:80]
                # those are matrix products below
                if made != torch.float32 and name not in ("tensordot", "bilinear"):
                    wrong[name] = made
        assert not wrong

    def test_state(self) -> None:
        assert torch.amp.is_autocast_available("xla") and not torch.is_autocast_enabled("xla")
        with torch.autocast("xla"):
            assert torch.is_autocast_enabled("xla")
            assert (
                torch.ones(2, 2, device="xla", dtype=torch.float64)
                @ torch.ones(2, 2, device="xla", dtype=torch.float64)
            ).dtype == torch.float64


class TestDefault:
    """The dtype is bfloat16 where none is named, in every thread; a named one is taken; other
    devices keep theirs."""

    def test_default(self) -> None:
        x = torch.full((1, 1), 300.0, device="xla")
        with torch.autocast("xla"):
            assert (x @ x).dtype == torch.bfloat16 and (x @ x).item() == 90112.0
            with torch.autocast("xla", enabled=False):
                assert (x @ x).dtype == torch.float32
            with torch.autocast("xla", torch.float16, cache_enabled=False):
                assert (x @ x).dtype == torch.float16
            assert (x @ x).dtype == torch.bfloat16
        assert torch.amp.autocast("xla")(lambda: x @ x)().dtype == torch.bfloat16
        assert torch.get_autocast_dtype("xla") == torch.bfloat16
        assert (
            torch.get_autocast_dtype("cuda") == torch.float16
            and torch.get_autocast_dtype("cpu") == torch.bfloat16
        )

    @pytest.mark.parametrize("chosen", [None, torch.float16], ids=str)
    def test_threads(self, chosen: torch.dtype | None) -> None:
        seen = []

        def run() -> None:
            if chosen is not None:
                torch.set_autocast_dtype("xla", chosen)
            with torch.autocast("xla"):
                seen.append(torch.get_autocast_dtype("xla"))
            seen.append(torch.get_autocast_dtype("xla"))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert seen == [chosen or torch.bfloat16] * 2
        assert torch.get_autocast_dtype("xla") == torch.bfloat16

    def test_custom_function(self) -> None:
        seen = {}

        class Square(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type="xla")
            def forward(ctx, x):  # noqa: ANN
                ctx.save_for_backward(x)
                seen["forward"] = (x @ x).dtype
                return x @ x

            @staticmethod
            @torch.amp.custom_bwd(device_type="xla")
            def backward(ctx, gradient):  # noqa: ANN
                (x,) = ctx.saved_tensors
                seen["backward"] = (x @ x).dtype
                return gradient.float()

        class Exact(Square):
            @staticmethod
            @torch.amp.custom_fwd(device_type="xla", cast_inputs=torch.float32)
            def forward(ctx, x):  # noqa: ANN
                ctx.save_for_backward(x)
                seen["cast"] = (x.dtype, (x @ x).dtype)
                return x @ x

        x = torch.ones(2, 2, device="xla", requires_grad=True)
        with torch.autocast("xla"):
            Exact.apply(x.bfloat16())
            made = Square.apply(x)
        made.sum().backward()
        assert seen == {
            "cast": (torch.float32, torch.float32),
            "forward": torch.bfloat16,
            "backward": torch.bfloat16,
        }


class TestScaler:
    """GradScaler scales, unscales, skips steps with infinite gradients and adapts."""

    def test_float16(self) -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 2).to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("xla", init_scale=2.0**8, growth_interval=2)
        before = model.weight.detach().cpu()
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast("xla", torch.float16):
                loss = model(torch.ones(3, 4, device="xla")).float().square().mean()
            if step == 2:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            kept = model.weight.detach().cpu()
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(kept, model.weight.detach().cpu()) == (step == 2)
        assert scaler.get_scale() == 2.0**8 and not torch.equal(before, model.weight.detach().cpu())
        other = torch.amp.GradScaler("xla")
        other.load_state_dict(scaler.state_dict())
        assert other.get_scale() == scaler.get_scale()


class TestStorage:
    """Narrow dtypes keep their bits to the device and back."""

    @pytest.mark.parametrize(
        "dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
    )
    def test_round_trip(self, dtype: torch.dtype) -> None:
        source = torch.tensor([0.0, -0.0, 1.0, -1.5, 240.0, 1e-2, 0.33]).to(dtype)
        moved = source.to("xla")
        size = torch.uint8 if dtype.itemsize == 1 else torch.int16
        assert moved.dtype == dtype and torch.equal(moved.cpu().view(size), source.view(size))
        assert torch.equal(moved.float().cpu(), source.float())
        assert torch.equal(source.float().to("xla").to(dtype).cpu().view(size), source.view(size))
        assert torch.equal(
            (moved.clone() if dtype.itemsize == 1 else moved * 2).float().cpu(),
            source.float() if dtype.itemsize == 1 else (source * 2).float(),
        )


class TestPrecision:
    """float32 products on CPU are full float32 whatever the flag says."""

    def test_flag(self) -> None:
        before = torch.get_float32_matmul_precision()
        x = torch.linspace(-1, 1, 64 * 64).view(64, 64).sin()
        try:
            for precision in ("highest", "high"):
                torch.set_float32_matmul_precision(precision)
                made = (x.to("xla") @ x.to("xla")).cpu()
                spmd.sync()
                torch.testing.assert_close(made, x @ x, rtol=2e-5, atol=2e-5)
        finally:
            torch.set_float32_matmul_precision(before)
