"""Fake quantization and its observers, values and gradients, and a model that trains with both."""

import copy

import pytest
import torch
from support import check
from torch import nn
from torch.ao import quantization

import spmd

X = torch.tensor([-30.0, -3.0, -1.25, -0.5, 0.0, 0.5, 0.75, 1.5, 2.5, 100.0])
SCALES, POINTS = torch.tensor([0.5, 0.25]), torch.tensor([3, 1], dtype=torch.int32)
FORMS = {
    "per tensor": lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, 0.5, 3, 0, 7),
    "per tensor, tensors": lambda x, s, z: torch.fake_quantize_per_tensor_affine(
        x, s[:1], z[:1], 0, 7
    ),
    "per channel": lambda x, s, z: torch.fake_quantize_per_channel_affine(
        x.reshape(2, 5), s, z, 0, 0, 7
    ),
    "per channel, last axis": lambda x, s, z: torch.fake_quantize_per_channel_affine(
        x.reshape(5, 2), s, z.float() + 0.3, 1, 0, 7
    ),
    "learned, per tensor": lambda x, s, z: torch._fake_quantize_learnable_per_tensor_affine(
        x, s[:1], z[:1], 0, 7, 0.5
    ),
    "learned, per channel": lambda x, s, z: torch._fake_quantize_learnable_per_channel_affine(
        x.reshape(5, 2), s, z, 1, 0, 7, 0.5
    ),
}


def outcome(name, device, mesh=None):
    """The result of a form and its gradients."""
    is_learned = "learned" in name
    x, scales = X.to(device), SCALES.to(device)
    points = (POINTS - 0.4).to(device) if is_learned else POINTS.to(device)
    if mesh is not None:
        spmd.mark_sharding(x, mesh, (mesh.axis_names[0],))
    inputs = [
        x.requires_grad_(),
        *([scales.requires_grad_(), points.requires_grad_()] if is_learned else []),
    ]
    result = FORMS[name](x, scales, points)
    weights = torch.arange(1.0, 11, device=device).reshape(result.shape)
    return [result, *torch.autograd.grad((result * weights).sum(), inputs)]


class TestForms:
    """The five forms, as on the CPU."""

    @pytest.mark.parametrize("is_sharded", [False, True])
    @pytest.mark.parametrize("name", FORMS)
    def test_values_and_gradients(self, name, is_sharded):
        mesh = spmd.Mesh(range(2), (2,), ("data",)) if is_sharded else None
        for result, expected in zip(outcome(name, "xla", mesh), outcome(name, "cpu"), strict=True):
            check(result, expected)

    def test_no_number(self):
        x = torch.tensor([1.0, float("nan"), float("inf")])
        for result, expected in zip(
            torch.ops.aten.fake_quantize_per_tensor_affine_cachemask(x.to("xla"), 0.5, 3, 0, 7),
            torch.ops.aten.fake_quantize_per_tensor_affine_cachemask(x, 0.5, 3, 0, 7),
            strict=True,
        ):
            assert result.tolist() == expected.tolist()

    def test_a_new_scale_is_no_new_program(self):
        for scale in (0.5, 0.25):
            torch.fake_quantize_per_tensor_affine(X.to("xla"), scale, 3, 0, 7).tolist()
        count = spmd.metrics.counter("compiles")
        torch.fake_quantize_per_tensor_affine(X.to("xla"), 0.125, 2, 0, 7).tolist()
        assert spmd.metrics.counter("compiles") == count


class TestObservers:
    """`fused_moving_avg_obs_fake_quant`: what it returns and what it writes."""

    @pytest.mark.parametrize("per_row", [False, True])
    @pytest.mark.parametrize("levels", [(0, 255, False), (-128, 127, True), (0, 127, False)])
    def test_a_series(self, per_row, levels):
        least, most, symmetric = levels
        torch.manual_seed(0)
        batches = [
            torch.randn(3, 8) * scale + shift
            for scale, shift in ((1, 0), (3, 2), (1e-6, 0), (0, 0), (2, -9))
        ]
        results = {}
        for device in ("cpu", "xla"):
            count = 0 if per_row else 1
            low, high = (
                torch.full((count,), float("inf"), device=device),
                torch.full((count,), -float("inf"), device=device),
            )
            scale, point = (
                torch.ones(1, device=device),
                torch.zeros(1, dtype=torch.int32, device=device),
            )
            on = torch.ones(1, dtype=torch.uint8, device=device)
            results[device] = []
            for i, batch in enumerate(batches):
                x = batch.to(device).requires_grad_()
                y = torch.fused_moving_avg_obs_fake_quant(
                    x,
                    on * (i != 3),
                    on * (i != 4),
                    low,
                    high,
                    scale,
                    point,
                    0.1,
                    least,
                    most,
                    0,
                    per_row,
                    symmetric,
                )
                (grad,) = torch.autograd.grad(y.square().sum(), x)
                results[device] += [
                    value.detach().clone() for value in (y, grad, low, high, scale, point)
                ]
        for result, expected in zip(results["xla"], results["cpu"], strict=True):
            check(result, expected)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        return self.dequant(self.layers(self.quant(x)))


@pytest.mark.filterwarnings("ignore")  # torch.ao.quantization is deprecated
class TestTraining:
    """A model of `prepare_qat`, with each kind of fake quantization, trains with the CPU's
    numbers."""

    @pytest.mark.parametrize("kind", ["fused", "plain"])
    def test_prepare_qat(self, kind):
        torch.manual_seed(2)
        model = Small().train()
        model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
        if kind == "plain":
            # Affine: of symmetric levels the extreme lies in the middle between two, which the last
            # bit of a scale decides. XLA divides by one number as it multiplies by its inverse.
            model.qconfig = quantization.QConfig(
                activation=quantization.FakeQuantize.with_args(
                    observer=quantization.MovingAverageMinMaxObserver
                ),
                weight=quantization.FakeQuantize.with_args(
                    observer=quantization.MovingAveragePerChannelMinMaxObserver,
                    quant_min=-128,
                    quant_max=127,
                    dtype=torch.qint8,
                    qscheme=torch.per_channel_affine,
                    ch_axis=0,
                ),
            )
        quantization.prepare_qat(model, inplace=True)
        # Of these no value lies within the rounding of a product from the middle between two
        # levels.
        batches, weights = [torch.randn(4, 8) for _ in range(3)], {}
        for device in ("cpu", "xla"):
            copied = copy.deepcopy(model).to(device)
            optimizer = torch.optim.SGD(copied.parameters(), lr=0.1)
            for i in range(3):
                optimizer.zero_grad()
                copied(batches[i].to(device)).square().mean().backward()
                optimizer.step()
            weights[device] = {name: value.cpu() for name, value in copied.state_dict().items()}
        torch.testing.assert_close(weights["xla"], weights["cpu"])
