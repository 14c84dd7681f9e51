"""torch.optim on the device: every optimizer and scheduler against CPU, without recompiling from
the third step on."""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support import check
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.optim import lr_scheduler, swa_utils

import spmd

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-4),
    "Adam amsgrad": lambda p: torch.optim.Adam(
        p, lr=0.01, eps=1e-4, amsgrad=True, weight_decay=0.1
    ),
    "Adam maximize": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-4, maximize=True),
    "Adam for loop": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-4, foreach=False),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-4, foreach=True),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01, eps=1e-4),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-4),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01, eps=1e-4),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01, eps=1e-4),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, eps=1e-4, momentum=0.9, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD nesterov": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1
    ),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


DATA = torch.linspace(-1, 1, 50).view(10, 5), torch.linspace(1, -2, 30).view(10, 3).sin()


def train(
    made: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: str,
    *,
    steps: int = 5,
    scheduler: Any = None,
    after: Any = None,
) -> tuple[list[torch.Tensor], list[int]]:
    """The parameters after some steps, and the number of compilations after each."""
    x, y = (tensor.to(device) for tensor in DATA)
    compiles = []
    for _ in range(steps):

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(made(x), y)
            loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if after is not None:
            after()
        spmd.sync()
        compiles.append(spmd.metrics.num_compiles())
    return [parameter.detach().cpu() for parameter in made.parameters()], compiles


class TestOptimizers:
    """Five steps agree with CPU, and from the third step on nothing is compiled."""

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_like_cpu(self, name: str) -> None:
        reference = model()
        mine = copy.deepcopy(reference).to("xla")
        expected, _ = train(reference, OPTIMIZERS[name](reference.parameters()), "cpu")
        actual, compiles = train(mine, OPTIMIZERS[name](mine.parameters()), "xla", steps=5)
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert compiles[2] == compiles[-1], [
            record.cause for record in spmd.metrics.compiles()[-3:]
        ]

    def test_lbfgs(self) -> None:
        reference = model()
        mine = copy.deepcopy(reference).to("xla")
        expected, _ = train(
            reference, torch.optim.LBFGS(reference.parameters(), lr=0.1, max_iter=3), "cpu", steps=3
        )
        actual, _ = train(
            mine, torch.optim.LBFGS(mine.parameters(), lr=0.1, max_iter=3), "xla", steps=3
        )
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)

    def test_muon(self) -> None:
        reference = nn.Linear(5, 3, bias=False)
        mine = copy.deepcopy(reference).to("xla")
        expected, _ = train(reference, torch.optim.Muon(reference.parameters(), lr=0.1), "cpu")
        actual, compiles = train(mine, torch.optim.Muon(mine.parameters(), lr=0.1), "xla")
        # its iteration is in bfloat16
        torch.testing.assert_close(actual[0], expected[0], rtol=2e-2, atol=2e-2)
        assert compiles[2] == compiles[-1]

    def test_sparse_adam_is_refused(self) -> None:
        weight = nn.Parameter(torch.ones(3, device="xla"))
        weight.grad = torch.ones(3, device="xla")
        with pytest.raises(RuntimeError, match="dense gradients"):
            torch.optim.SparseAdam([weight]).step()

    def test_capturable_and_tensor_lr(self) -> None:
        reference = model()
        mine = copy.deepcopy(reference).to("xla")
        expected, _ = train(
            reference, torch.optim.AdamW(reference.parameters(), lr=0.01, eps=1e-4), "cpu"
        )
        rate = torch.tensor(0.01, device="xla")
        actual, compiles = train(
            mine, torch.optim.AdamW(mine.parameters(), lr=rate, eps=1e-4, capturable=True), "xla"
        )
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert compiles[2] == compiles[-1]


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=2),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=3),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 4),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=6),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: swa_utils.SWALR(o, 0.05, anneal_epochs=3),
}


class TestSchedulers:
    """A learning rate that changes each step is a number of the program, not a new program."""

    @pytest.mark.parametrize("name", SCHEDULERS)
    def test_like_cpu(self, name: str) -> None:
        results = []
        for device in ("cpu", "xla"):
            made = model().to(device)
            optimizer = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9)
            results.append(
                train(made, optimizer, device, scheduler=SCHEDULERS[name](optimizer), steps=6)
            )
        for one, other in zip(results[1][0], results[0][0], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert results[1][1][2] == results[1][1][-1], [
            record.cause for record in spmd.metrics.compiles()[-3:]
        ]

    def test_averaged_buffers(self) -> None:
        """torch's list form of the average raises for the count of batches, an integer; the CPU has
        it one by one."""
        buffers = {}
        for device in ("cpu", "xla"):
            torch.manual_seed(0)
            normed = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(device)
            average = swa_utils.AveragedModel(normed, use_buffers=True)
            for i in range(3):
                normed(torch.arange(8.0, device=device).reshape(2, 4) + i)
                average.update_parameters(normed)
            buffers[device] = [
                value.detach().cpu() for value in (*average.buffers(), *average.parameters())
            ]
        torch.testing.assert_close(buffers["xla"], buffers["cpu"])

    @pytest.mark.parametrize(
        "options", [{"fused": True}, {"capturable": True}], ids=lambda options: next(iter(options))
    )
    def test_a_beta_that_cycles(self, options: dict[str, bool]) -> None:
        made = model().to("xla")
        optimizer = torch.optim.AdamW(made.parameters(), lr=0.1, **options)
        _, compiles = train(
            made, optimizer, "xla", scheduler=SCHEDULERS["OneCycleLR"](optimizer), steps=6
        )
        assert compiles[2] == compiles[-1], [
            record.cause for record in spmd.metrics.compiles()[-3:]
        ]

    def test_on_plateau(self) -> None:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2, device="xla"))], lr=1.0)
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        for loss in (1.0, 1.0, 1.0):
            scheduler.step(torch.tensor(loss, device="xla"))
        assert math.isclose(optimizer.param_groups[0]["lr"], 0.01)


class TestAround:
    """Averages of weights, clipping, parametrizations."""

    @pytest.mark.parametrize("kind", ["ema", "swa"])
    def test_averaged_model(self, kind: str) -> None:
        results = []
        for device in ("cpu", "xla"):
            made = model().to(device)
            average = (
                swa_utils.AveragedModel(made, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
                if kind == "ema"
                else swa_utils.AveragedModel(made)
            )
            optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
            _, compiles = train(
                made, optimizer, device, after=partial(average.update_parameters, made), steps=6
            )
            results.append(([p.detach().cpu() for p in average.parameters()], compiles))
        for one, other in zip(results[1][0], results[0][0], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert results[1][1][2] == results[1][1][-1], [
            record.cause for record in spmd.metrics.compiles()[-3:]
        ]

    def test_clipping(self) -> None:
        results = []
        for device in ("cpu", "xla"):
            made = model().to(device)
            x, y = (tensor.to(device) for tensor in DATA)
            (nn.functional.mse_loss(made(x), y) * 100).backward()
            total = nn.utils.clip_grad_norm_(made.parameters(), 0.5)
            norms = [p.grad.clone() for p in made.parameters()]
            nn.utils.clip_grad_value_(made.parameters(), 0.05)
            largest = nn.utils.clip_grad_norm_(
                made.parameters(), 0.01, norm_type=math.inf, error_if_nonfinite=True
            )
            vector = nn.utils.parameters_to_vector(made.parameters()).detach()
            results.append([total, *norms, *(p.grad for p in made.parameters()), largest, vector])
        for one, other in zip(results[1], results[0], strict=True):
            check(one, other)

    @pytest.mark.parametrize(
        "wrap",
        [
            parametrizations.weight_norm,
            parametrizations.orthogonal,
            nn.utils.weight_norm,
            nn.utils.spectral_norm,
        ],
        ids=["weight_norm", "orthogonal", "old weight_norm", "old spectral_norm"],
    )
    @pytest.mark.filterwarnings("ignore:.*deprecated.*:FutureWarning")
    def test_parametrizations(self, wrap: Any) -> None:
        torch.manual_seed(0)
        reference = wrap(nn.Linear(5, 3))
        mine = wrap(nn.Linear(5, 3).to("xla"))
        mine.load_state_dict(reference.state_dict())
        expected, _ = train(
            reference, torch.optim.SGD(reference.parameters(), lr=0.1), "cpu", steps=3
        )
        actual, _ = train(mine, torch.optim.SGD(mine.parameters(), lr=0.1), "xla", steps=3)
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)

    def test_own_parametrization(self) -> None:
        class Symmetric(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x.triu() + x.triu(1).transpose(-1, -2)

        made = nn.Linear(3, 3).to("xla")
        parametrize.register_parametrization(made, "weight", Symmetric())
        assert torch.equal(made.weight, made.weight.t())
        parametrize.remove_parametrizations(made, "weight")
        assert isinstance(made.weight, nn.Parameter)

    @pytest.mark.parametrize("causal", [False, True])
    def test_multihead_attention(self, causal: bool) -> None:
        torch.manual_seed(0)
        reference = nn.MultiheadAttention(8, 2, batch_first=True)
        mine = copy.deepcopy(reference).to("xla")
        x = torch.randn(2, 5, 8)
        mask = nn.Transformer.generate_square_subsequent_mask(5) if causal else None
        results = []
        for module, device in ((reference, "cpu"), (mine, "xla")):
            given = x.clone().to(device).requires_grad_()
            out, weights = module(
                given, given, given, attn_mask=None if mask is None else mask.to(device)
            )
            fast, _ = module(given, given, given, need_weights=False)
            (out.square().sum() + weights.sum() + fast.sum()).backward()
            padded, _ = module.eval()(
                given,
                given,
                given,
                key_padding_mask=torch.tensor([[False] * 4 + [True]] * 2).to(device),
            )
            results.append(
                [out, weights, fast, padded, given.grad, *(p.grad for p in module.parameters())]
            )
        for one, other in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=1e-4, atol=1e-5)


# torch writes its rules for forward mode with torch.jit.script, which it has deprecated; 2.15 says
# FutureWarning.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
class TestFunc:
    """torch.func: forward-mode, Jacobians, per-sample gradients, ensembles."""

    def test_jvp(self) -> None:
        x, t = torch.linspace(-1, 1, 4), torch.linspace(1, 2, 4)
        for function in (
            torch.sin,
            lambda x: (x * x).sum(),
            lambda x: torch.softmax(x, 0),
            lambda x: x[1:] @ x[:-1],
        ):
            for one, other in zip(
                torch.func.jvp(function, (x.to("xla"),), (t.to("xla"),)),
                torch.func.jvp(function, (x,), (t,)),
                strict=True,
            ):
                check(one, other)

    def test_jacobians(self) -> None:
        x = torch.linspace(-1, 1, 4)
        function = lambda x: (x * x.flip(0)).sin()  # noqa: E731
        for transform in (torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
            check(transform(function)(x.to("xla")), transform(function)(x))

    def test_per_sample_gradients(self) -> None:
        reference = model()
        results = []
        for device in ("cpu", "xla"):
            made = copy.deepcopy(reference).to(device)
            state = {name: p.detach() for name, p in made.named_parameters()}
            x, y = (tensor.to(device) for tensor in DATA)

            def loss(state: Any, x: Any, y: Any, model: Any = made) -> Any:
                return nn.functional.mse_loss(torch.func.functional_call(model, state, (x,)), y)

            results.append(torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(state, x, y))
        for name in results[0]:
            check(results[1][name], results[0][name])

    def test_ensemble(self) -> None:
        models = [nn.Linear(3, 2).to("xla") for _ in range(4)]
        parameters, buffers = torch.func.stack_module_state(models)
        x = torch.ones(5, 3, device="xla")
        out = torch.func.vmap(lambda p, b: torch.func.functional_call(models[0], (p, b), (x,)))(
            parameters, buffers
        )
        check(out, torch.stack([made(x) for made in models]).cpu())
