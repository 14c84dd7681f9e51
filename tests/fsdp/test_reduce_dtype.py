"""reduce_dtype: gradients are summed over devices in a dtype other than the one that they are
computed in."""

import copy
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support import check
from torch import Tensor, nn
from wrapped import FSDP

import fsdp
import spmd
from spmd import config

BF16, F32 = torch.bfloat16, torch.float32


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(config, "partitioner", request.param)
    return request.param


class Every(nn.Module):
    """Each kind of parameter whose gradient is a sum over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 128)
        self.norm = nn.LayerNorm(128)
        self.up = nn.Linear(128, 256)
        self.down = nn.Linear(256, 128, bias=False)
        self.rms = nn.RMSNorm(128)
        self.conv = nn.Conv1d(4, 16, 3, padding=1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.table(tokens))
        return self.conv(self.rms(self.down(self.up(x).relu()) + self.down(self.up(-x).relu())))


def collectives(tmp_path: Path) -> list[str]:
    """The dtypes of gradient reductions in the partitioner's output: XLA's CPU compiler widens
    collectives later."""
    (text,) = [path.read_text() for path in tmp_path.glob("*after_spmd-partitioning*")]
    return re.findall(r"= (\w+)\[[\d,]+\]\S* (?:all-reduce|reduce-scatter)\(", text)


def train_once(
    policy: fsdp.MixedPrecisionPolicy, mesh: spmd.Mesh, autocast: bool = False
) -> tuple[Any, nn.Module]:
    """The gradients of a wrapped model, and those of the same model in torch in float32."""
    plain = Every()
    model = FSDP(copy.deepcopy(plain), mesh=mesh, mp_policy=policy)
    tokens, weight = torch.randint(0, 64, (16, 4)), torch.randn(16, 16, 128)
    with torch.autocast("xla", dtype=BF16, enabled=autocast):
        y = model(tokens.to("xla"))
    (y.float() * weight.to("xla")).mean().backward()
    spmd.sync()
    (plain(tokens) * weight).mean().backward()
    return model, plain


def gap(model: nn.Module, plain: nn.Module) -> dict[str, float]:
    pairs = zip(model.named_parameters(), plain.parameters(), strict=True)
    return {
        name: float((one.grad.cpu() - two.grad).norm() / two.grad.norm())
        for (name, one), two in pairs
    }


def rounded(grad: Tensor) -> bool:
    return bool((grad.cpu().to(BF16).float() == grad.cpu()).all())


class TestReduceDtype:
    """`MixedPrecisionPolicy(reduce_dtype=)`: the dtype of the collective, and that of the
    gradient."""

    @pytest.mark.filterwarnings(
        "ignore:Mismatch dtype between input and weight"
    )  # torch's warning about its norm in autocast
    @pytest.mark.parametrize("autocast", [False, True])
    def test_bfloat16_reduced_in_float32(
        self,
        autocast: bool,
        partitioner: str,
        mesh8: spmd.Mesh,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(
            config,
            "compiler_options",
            f"xla_dump_to={tmp_path} xla_dump_hlo_pass_re=spmd-part|shardy",
        )
        policy = fsdp.MixedPrecisionPolicy(param_dtype=None if autocast else BF16, reduce_dtype=F32)
        model, plain = train_once(policy, mesh8, autocast)
        reduced = collectives(tmp_path)
        assert len(reduced) >= 7
        assert set(reduced) == {"f32"}
        assert max(gap(model, plain).values()) < 0.06  # the error of computing in bfloat16
        # Not rounded on the way: a product's gradient has digits that bfloat16 has not.
        assert [name for name, one in model.named_parameters() if rounded(one.grad)] == []

    def test_float32_reduced_in_bfloat16(
        self, partitioner: str, mesh8: spmd.Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            config,
            "compiler_options",
            f"xla_dump_to={tmp_path} xla_dump_hlo_pass_re=spmd-part|shardy",
        )
        model, plain = train_once(fsdp.MixedPrecisionPolicy(reduce_dtype=BF16), mesh8)
        reduced = collectives(tmp_path)
        assert len(reduced) >= 7
        assert set(reduced) == {"bf16"}
        assert all(one.grad.dtype == F32 for one in model.parameters())
        assert 1e-5 < max(gap(model, plain).values()) < 0.01

    def test_it_is_nearer_than_bfloat16(self, mesh8: spmd.Mesh) -> None:
        """Sixteen partial sums that cancel: float32 keeps digits that bfloat16 loses."""
        x = torch.randn(16, 32).to(BF16)
        upstream = torch.randn(16, 32).to(BF16)
        exact = upstream.float().T @ x.float()
        gaps = []
        for dtype in (None, F32):
            policy = fsdp.MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=dtype)
            model = FSDP(nn.Linear(32, 32, bias=False), mesh=mesh8, mp_policy=policy)
            model(x.to("xla")).backward(upstream.to("xla"))
            gaps.append(float((model.weight.grad.cpu() - exact).abs().max()))
        assert gaps[1] < 1e-5 < gaps[0]

    def test_accumulation_checkpointing_and_parameters_in_bfloat16(self, mesh8: spmd.Mesh) -> None:
        x = torch.randn(16, 32).to(BF16)
        layer = nn.Linear(32, 32).to(BF16)
        policy = fsdp.MixedPrecisionPolicy(reduce_dtype=F32)
        model = fsdp.checkpoint_module(copy.deepcopy(layer))
        model = FSDP(model, mesh=mesh8, mp_policy=policy, auto_wrap_policy=None)
        for part in x.chunk(2):
            model(part.to("xla")).float().square().sum().backward()
            layer(part).float().square().sum().backward()
        for one, two in zip(model.parameters(), layer.parameters(), strict=True):
            assert one.grad.dtype == BF16
            check(one.grad, two.grad)

    def test_an_op_that_cannot_be_asked_is_named(self, mesh8: spmd.Mesh) -> None:
        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.randn(8, 16))

            def forward(self, x: Tensor) -> Tensor:
                return x * self.weight.cos()

        policy = fsdp.MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=F32)
        model = FSDP(Scaled(), mesh=mesh8, mp_policy=policy)
        y = model(torch.randn(8, 16, device="xla"))
        with pytest.warns(
            UserWarning, match="in torch.float32, but aten.mul.Tensor computes it in torch.bfloat16"
        ):
            y.sum().backward()
        assert model.weight.grad.dtype == F32

    def test_create_graph(self, mesh8: spmd.Mesh) -> None:
        """The gradient can still be differentiated."""
        model = FSDP(
            nn.Linear(16, 16, bias=False),
            mesh=mesh8,
            mp_policy=fsdp.MixedPrecisionPolicy(reduce_dtype=BF16),
        )
        x = torch.randn(8, 16)
        with warnings.catch_warnings():
            # torch's warning about the cycle that create_graph makes
            warnings.simplefilter("ignore", UserWarning)
            model(x.to("xla")).square().sum().backward(create_graph=True)
        (second,) = torch.autograd.grad(model.weight.grad.sum(), model.weight)
        # The Hessian of |x w^T|^2 along ones.
        expected = 2 * torch.ones(16, 16) @ (x.T @ x)
        assert float((second.cpu() - expected).norm() / expected.norm()) < 0.01

    def test_fp32_reduce_scatter(self, mesh8: spmd.Mesh) -> None:
        """PyTorch/XLA's keyword for it."""
        model = fsdp.XlaFullyShardedDataParallel(
            nn.Linear(16, 16), mesh=mesh8, compute_dtype=BF16, fp32_reduce_scatter=True
        )
        model(torch.randn(16, 16, device="xla")).float().square().sum().backward()
        assert not rounded(model.weight.grad)


# A module, its input, the specs of weight and input, and the collectives of the weight's gradient.
PARTS = {
    "rows": (
        partial(nn.Conv2d, 4, 8, 3, padding=1),
        (16, 4, 6, 6),
        (("data", "fsdp"),),
        (("data", "fsdp"),),
        {"bf16"},
    ),
    "strides": (
        partial(nn.Conv2d, 4, 8, 3, stride=2, dilation=2),
        (16, 4, 9, 8),
        (),
        (("data", "fsdp"),),
        {"bf16"},
    ),
    "transposed": (
        partial(nn.ConvTranspose2d, 4, 8, 3, stride=2),
        (16, 4, 5, 5),
        (),
        (("data", "fsdp"),),
        {"bf16"},
    ),
    "groups": (
        partial(nn.Conv1d, 8, 8, 3, groups=8),
        (16, 8, 6),
        (),
        (("data", "fsdp"),),
        {"bf16"},
    ),
    "features": (partial(nn.Conv2d, 4, 8, 3), (16, 4, 6, 6), ("data",), ("fsdp",), {"bf16"}),
    "inner features": (
        partial(nn.Conv2d, 4, 8, 3),
        (16, 4, 6, 6),
        (None, "data"),
        ("fsdp", "data"),
        {"bf16"},
    ),
    "space": (
        partial(nn.Conv2d, 4, 8, 3, padding=1),
        (16, 4, 8, 8),
        (),
        ("fsdp", None, "data"),
        {"f32"},
    ),
    "tokens": (partial(nn.Embedding, 64, 16), (16, 4), ("fsdp",), (("data", "fsdp"),), {"bf16"}),
    "sequence": (
        partial(nn.Embedding, 64, 16, padding_idx=3),
        (16, 4),
        (),
        ("fsdp", "data"),
        {"bf16"},
    ),
    "vocabulary": (partial(nn.Embedding, 64, 16), (16, 4), ("data", "fsdp"), ("fsdp",), {"bf16"}),
    "counts": (
        partial(nn.Embedding, 64, 16, scale_grad_by_freq=True),
        (16, 4),
        (),
        ("fsdp",),
        {"bf16", "f32"},
    ),
    "width": (partial(nn.Embedding, 64, 16), (16, 4), ("fsdp", "data"), ("fsdp",), {"bf16"}),
}


def resharded(tensor: Tensor, mesh: spmd.Mesh, spec: tuple[Any, ...]) -> Tensor:
    return spmd.mark_sharding(tensor, mesh, [*spec, *[None] * (tensor.dim() - len(spec))])


class TestPartsOfOneDevice:
    """Gradients that no product makes, a convolution's kernel and a table: each device's part is
    rounded, then exchanged."""

    @pytest.mark.parametrize("case", PARTS)
    def test_exchanged_in_bfloat16(
        self,
        case: str,
        partitioner: str,
        mesh2x4: spmd.Mesh,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        make, shape, weight_spec, input_spec, exchanged = PARTS[case]
        plain = make()
        of_table = isinstance(plain, nn.Embedding)
        x = torch.randint(0, 64, shape) if of_table else torch.randn(shape)
        upstream = torch.randn_like(plain(x))
        (expected,) = torch.autograd.grad(plain(x), plain.weight, upstream)
        module = copy.deepcopy(plain).to("xla")
        resharded(module.weight, mesh2x4, weight_spec)
        spmd.reduce_gradient_in(module.weight, BF16)
        y = module(resharded(x.to("xla"), mesh2x4, input_spec))
        monkeypatch.setattr(
            config,
            "compiler_options",
            f"xla_dump_to={tmp_path} xla_dump_hlo_pass_re=spmd-part|shardy",
        )
        rows, *others = input_spec
        # the features of the output are others
        given = input_spec if of_table else (rows, None, *others[1:])
        (grad,) = torch.autograd.grad(
            y, module.weight, resharded(upstream.to("xla"), mesh2x4, given)
        )
        del y
        spmd.sync()
        assert set(collectives(tmp_path)) == exchanged
        gap = float((grad.cpu() - expected).norm() / expected.norm())
        assert 1e-5 < gap < 0.01

    @pytest.mark.parametrize("case", ["rows", "tokens"])
    def test_computed_in_bfloat16(
        self, case: str, mesh2x4: spmd.Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They travel in the dtype that they are computed in, as products do, with no dtype
        chosen."""
        make, shape, weight_spec, input_spec, _ = PARTS[case]
        plain = make()
        module = copy.deepcopy(plain).to("xla", BF16)
        resharded(module.weight, mesh2x4, weight_spec)
        x = torch.randint(0, 64, shape) if case == "tokens" else torch.randn(shape, dtype=BF16)
        y = module(resharded(x.to("xla"), mesh2x4, input_spec))
        upstream = torch.randn(y.shape, dtype=BF16).to("xla")
        monkeypatch.setattr(
            config, "compiler_options", f"xla_dump_to={tmp_path} xla_dump_hlo_pass_re=spmd-part"
        )
        (grad,) = torch.autograd.grad(y, module.weight, upstream)
        spmd.sync()
        assert set(collectives(tmp_path)) == {"bf16"}
        (expected,) = torch.autograd.grad(
            plain(x if case == "tokens" else x.float()), plain.weight, upstream.cpu().float()
        )
        assert float((grad.float().cpu() - expected).norm() / expected.norm()) < 0.01


class TestReduceGradientIn:
    """`spmd.reduce_gradient_in`, of any leaf."""

    def test_refused(self) -> None:
        weight = torch.ones(4, 4, device="xla", requires_grad=True)
        for dtype in (torch.int8, torch.float8_e5m2):
            with pytest.raises(
                TypeError,
                match=f"expected a floating-point torch.dtype of 16 bits or more, got {dtype}",
            ):
                spmd.reduce_gradient_in(weight, dtype)
        with pytest.raises(ValueError, match="expected a leaf tensor that requires a gradient"):
            spmd.reduce_gradient_in(weight.detach(), torch.float32)
        with pytest.raises(TypeError, match="reduce_gradient_in"):
            spmd.reduce_gradient_in(torch.ones(2, requires_grad=True), torch.float32)

    def test_removed(self) -> None:
        weight = torch.ones(4, 4, device="xla", requires_grad=True, dtype=BF16)
        spmd.reduce_gradient_in(weight, F32).remove()
        assert not weight._backward_hooks
