"""Composite ops recorded as one op with one gradient (linear, cross entropy; silu, mish and
rms_norm, whose gradients are): that they are, and that every other way of differentiating finds
torch's own ops, with torch's own results."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support import check
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.nn import functional as F
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import spmd

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]

# torch.func's forward mode compiles its decompositions with torch.jit.script, which warns: of a
# deprecation, and of a change to come in torch 2.15.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def target(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([1, 3, -100, 0]).to(x.device)


def cases() -> dict[str, Case]:
    """Scalar functions; the first argument is what is differentiated."""
    generator = torch.Generator().manual_seed(0)
    x, weight, vector, bias = (
        torch.randn(shape, generator=generator) for shape in ((4, 6), (5, 6), (6,), (5,))
    )
    classes = torch.rand(6, generator=generator) + 0.5
    return {
        "linear": (lambda x, w, b: F.linear(x, w, b).sin().sum(), (x, weight, bias)),
        "linear, 3d": (
            lambda x, w, b: F.linear(x, w, b).sin().sum(),
            (x.view(2, 2, 6), weight, bias),
        ),
        "linear, no bias": (lambda x, w: F.linear(x, w).sin().sum(), (x, weight)),
        "linear, 1d input": (lambda x, w, b: F.linear(x, w, b).sin().sum(), (vector, weight, bias)),
        "linear, 1d weight": (lambda x, w: F.linear(x, w).sin().sum(), (x, vector)),
        "cross_entropy": (lambda x: F.cross_entropy(x, target(x)).sin(), (x,)),
        "cross_entropy, smooth": (
            lambda x: F.cross_entropy(x, target(x), label_smoothing=0.1).sin(),
            (x,),
        ),
        "cross_entropy, weights": (
            lambda x: F.cross_entropy(x, target(x), classes.to(x.device)).sin(),
            (x,),
        ),
        "cross_entropy, probabilities": (
            lambda x, p: F.cross_entropy(x, p.softmax(-1)).sin(),
            (x, 2 * x),
        ),
        "rms_norm": (lambda x, w: F.rms_norm(x, (6,), w, 1e-3).sin().sum(), (x, vector)),
        "silu": (lambda x: F.silu(x).sin().sum(), (x,)),
        "mish": (lambda x: F.mish(x).sin().sum(), (x,)),
    }


CASES = cases()


def second_derivative(function: Callable[..., Any], *args: torch.Tensor) -> Any:
    args = tuple(arg.detach().clone().requires_grad_() for arg in args)
    first = torch.autograd.grad(function(*args), args, create_graph=True)
    return torch.autograd.grad(sum((part.cos() * part).sum() for part in first), args)


def dual(function: Callable[..., Any], x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(
            function(forward_ad.make_dual(x, torch.ones_like(x)), *rest)
        ).tangent


WAYS: dict[str, Callable[..., Any]] = {
    "second derivative": second_derivative,
    "forward mode": dual,
    "func.grad": lambda f, *args: grad(f, tuple(range(len(args))))(*args),
    "func.jvp": lambda f, *args: jvp(f, args, tuple(torch.ones_like(arg) for arg in args)),
    "func.hessian": lambda f, *args: hessian(f)(*args),
    "vmap of grad": lambda f, x, *rest: vmap(lambda row: grad(f)(row, *rest))(
        torch.stack([x, 2 * x])
    ),
    "grad of vmap": lambda f, x, *rest: grad(
        lambda rows: vmap(lambda row: f(row, *rest))(rows).sum()
    )(torch.stack([x, 2 * x])),
    "inference mode": lambda f, *args: torch.inference_mode()(f)(*args),
}


class TestDerivatives:
    """Second derivatives, forward mode, torch.func and inference: as torch on CPU."""

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("name", CASES)
    def test_as_torch(self, name: str, way: str) -> None:
        function, args = CASES[name]
        expected = WAYS[way](function, *args)
        actual = WAYS[way](function, *(arg.to("xla") for arg in args))
        pairs = (
            [(actual, expected)]
            if isinstance(expected, torch.Tensor)
            else zip(actual, expected, strict=True)
        )
        for one, other in pairs:
            check(one, other)

    def test_functional_call(self) -> None:
        model = torch.nn.Linear(6, 5)
        x, ys = torch.randn(4, 6), torch.tensor([1, 3, 0, 4])
        params = {name: value.detach() for name, value in model.named_parameters()}

        def loss(params: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(functional_call(model, params, (x[None],)), y[None])

        per_sample = vmap(grad(loss), (None, 0, 0))
        expected = per_sample(params, x, ys)
        actual = per_sample(
            {name: value.to("xla") for name, value in params.items()}, x.to("xla"), ys.to("xla")
        )
        for name in params:
            check(actual[name], expected[name])


def recorded(function: Callable[[], Any]) -> int:
    before = spmd.metrics.counter("recorded_ops")
    function()
    return spmd.metrics.counter("recorded_ops") - before


TARGET = torch.tensor([1, 3, 2, 0]).to("xla")
ONE_OP: dict[str, Case] = {
    "linear": (F.linear, (torch.ones(2, 3, 6), torch.ones(5, 6), torch.ones(5))),
    "linear, no bias": (F.linear, (torch.ones(4, 6), torch.ones(5, 6))),
    "cross_entropy": (
        lambda x: F.cross_entropy(x, TARGET, label_smoothing=0.1),
        (torch.ones(4, 6),),
    ),
    "silu": (F.silu, (torch.ones(4, 6),)),
    "mish": (F.mish, (torch.ones(4, 6),)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (6,), w), (torch.ones(4, 6), torch.ones(6))),
}


class TestOneOp:
    """One op is recorded for the forward pass, and one for its gradients."""

    @pytest.mark.parametrize("name", ONE_OP)
    def test_each_way(self, name: str) -> None:
        function, args = ONE_OP[name]
        inputs = [arg.to("xla").requires_grad_() for arg in args]
        made: list[torch.Tensor] = []
        assert recorded(lambda: made.append(function(*inputs))) == 1
        cotangent = torch.ones_like(made[0])
        assert recorded(lambda: torch.autograd.grad(made[0], inputs, cotangent)) == 1

    def test_only_what_is_asked_for(self) -> None:
        """A frozen weight costs no product."""
        x, weight = torch.ones(4, 6).to("xla").requires_grad_(), torch.ones(5, 6).to("xla")
        (gradient,) = torch.autograd.grad(F.linear(x, weight).sum(), x)
        assert spmd.get_stablehlo([gradient]).count("dot_general") == 1


class TestErrors:
    """A composite's own errors name its arguments, also where autograd does not run."""

    @pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
    def test_shapes(self, context: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        with context():
            x = torch.ones(2, 4, device="xla")
            with pytest.raises(
                RuntimeError,
                match=r"^group_norm: Expected number of channels .* \(input \[2, 4\]\)$",
            ):
                F.group_norm(x, 3)
            with pytest.raises(
                RuntimeError, match=r"^prelu: Mismatch .* \(self \[2, 4\], weight \[3\]\)$"
            ):
                F.prelu(x, torch.ones(3, device="xla"))


class _Seen(TorchDispatchMode):
    """The names of the ops that a dispatch mode is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


class TestDispatchModes:
    """A tool that looks at the ops of a pass, to count or to choose, is shown those that torch has
    on CPU."""

    def test_names(self) -> None:
        seen = []
        for device in ("cpu", "xla"):
            x, weight = (
                torch.ones(shape).to(device).requires_grad_() for shape in ((4, 6), (5, 6))
            )
            ys = torch.tensor([1, 3, 0, 4]).to(device)
            with _Seen() as mode:
                F.cross_entropy(F.linear(x, weight), ys).backward()
            seen.append(mode.names)
        assert seen[0] == seen[1]

    def test_flops(self) -> None:
        counts = []
        for device in ("cpu", "xla"):
            model = torch.nn.Linear(6, 5).to(device)
            with FlopCounterMode(display=False) as counter:
                model(torch.ones(3, 6).to(device).requires_grad_()).sum().backward()
            counts.append(counter.get_total_flops())
        assert counts[0] == counts[1] > 0


class TestSaved:
    """The tensors that autograd keeps between the passes."""

    @contextlib.contextmanager
    def _kept(self) -> Any:
        kept: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (kept.append(t), t)[1], lambda t: t
        ):
            yield kept

    def test_cross_entropy_keeps_its_logits_and_a_number_per_target(self) -> None:
        logits, ys = torch.ones(16, 500).to("xla").requires_grad_(), torch.arange(16).to("xla")
        with self._kept() as kept:
            F.cross_entropy(logits, ys)
        assert sum(t.numel() for t in kept if t is not logits and t is not ys) == 16 + 1

    @staticmethod
    def _loss(model: torch.nn.Module, ys: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), ys)

    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_checkpoint(self, use_reentrant: bool) -> None:
        results = []
        for device in ("cpu", "xla"):
            torch.manual_seed(0)
            model = torch.nn.Sequential(
                torch.nn.Linear(6, 8), torch.nn.SiLU(), torch.nn.RMSNorm(8)
            ).to(device)
            x, ys = (
                torch.randn(4, 6).to(device).requires_grad_(),
                torch.tensor([1, 3, -100, 0]).to(device),
            )
            loss = checkpoint.checkpoint(
                partial(self._loss, model, ys), x, use_reentrant=use_reentrant
            )
            loss.backward()
            results.append([loss, x.grad, *(parameter.grad for parameter in model.parameters())])
        for one, other in zip(*results, strict=True):
            check(other, one)

    def test_barrier_between_the_passes(self) -> None:
        logits, ys = torch.randn(4, 6), torch.tensor([1, 3, -100, 0])
        expected = logits.clone().requires_grad_()
        F.cross_entropy(expected, ys).backward()
        actual = logits.to("xla").requires_grad_()
        loss = F.cross_entropy(actual, ys.to("xla"))
        loss.item()
        loss.backward()
        check(actual.grad, expected.grad)
