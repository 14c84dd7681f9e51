"""Every optimizer of torch's optimizer database on `xla` against CPU: steps, state, errors, and
programs per step.

    python tests/sweep/optimizers.py --samples 0  # every input of each, as torch would choose
    python tests/sweep/optimizers.py --samples 0 --ways forloop,foreach,fused,bfloat16,complex64
    python tests/sweep/optimizers.py --ways resume,groups,scaler,errors --ops Adam

An input is a set of options. Five steps must end with the parameters and the state of CPU, and no
step after the third may compile. The inputs are those for CUDA, `capturable` among them; CPU, which
refuses that, is then asked without it.
"""

import copy
import functools
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db
from torch.utils._pytree import tree_flatten, tree_map

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sweep import cases
from sweep.cases import Outcome, Pair
from sweep.command import UNTRIED, Result, Sweep, main

import spmd

OPTIMIZERS = {info.name: info for info in optim_db if not info.only_supports_sparse_grads}
NAMES = tuple(OPTIMIZERS)

# (name, way) -> reason.
_LINE_SEARCH = "a line search takes another branch for a rounding, and every later step with it"
EXPECTED: dict[tuple[str, str], str] = {
    ("LBFGS", "bfloat16"): _LINE_SEARCH,
    ("LBFGS", "complex64"): _LINE_SEARCH,
    (
        "ASGD",
        "float64",
    ): "torch keeps its eta in float32 on any device, and the power in it rounds otherwise",
}

STEPS = 5
LAST_TO_COMPILE = 2  # the index of the last step that may: state is created in the first


@dataclass(frozen=True, slots=True)
class Way:
    """A way to try the inputs of an optimizer. flags: options besides the input's; needs: what must
    support them."""

    dtype: torch.dtype = torch.float32
    flags: tuple[tuple[str, bool], ...] = ()
    needs: str = ""
    run: str = "steps"


WAYS = {
    "steps": Way(),
    "forloop": Way(flags=(("foreach", False),), needs="foreach"),
    "foreach": Way(flags=(("foreach", True),), needs="foreach"),
    "fused": Way(flags=(("fused", True),), needs="fused"),
    "differentiable": Way(
        flags=(("differentiable", True),), needs="differentiable", run="differentiable"
    ),
    "float64": Way(torch.float64),
    "bfloat16": Way(torch.bfloat16),
    "complex64": Way(torch.complex64, needs="complex"),
    "resume": Way(run="resume"),
    "groups": Way(run="groups"),
    "scaler": Way(run="scaler"),
    "errors": Way(run="errors"),
}


def is_tried(info: Any, way: Way) -> bool:
    """True for a way that this optimizer has."""
    if way.needs == "complex":
        return info.supports_complex
    if way.run in ("groups", "scaler") and info.step_requires_closure:
        return False  # one group only, and a closure that the scaler refuses
    return not way.needs or way.needs in info.supported_impls


def inputs(info: Any, way: Way, count: int) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Options: (what, for the device, for CPU)."""
    for given in info.optim_inputs_func("cuda")[: count or None]:
        options = {**given.kwargs, **dict(way.flags)}
        if info.step_requires_closure:
            options["max_iter"] = 4  # else the state is that of a loss of nothing but rounding
        yield (
            given.desc,
            options,
            {name: value for name, value in options.items() if name != "capturable"},
        )


class Training:
    """A loss over a few tensors, each an operand of its own; everything that one device is
    asked."""

    def __init__(
        self, info: Any, way: Way, device: str, options: dict[str, Any], wide: bool = False
    ):
        self.device, self.way, self.info = device, way, info
        shapes = [(3, 4), (2, 2)] if info.name == "Muon" else [(3, 4), (5,), (), (2, 3, 2), (2, 2)]
        dtype = cases.WIDER.get(way.dtype, way.dtype) if wide else way.dtype
        # Rounded to the way's dtype first, so that the wide training begins at the same numbers.
        starts = [ramp(shape, way.dtype).to(device, dtype) for shape in shapes]
        self.targets = [(ramp(shape, way.dtype) * -0.7).to(device, dtype) for shape in shapes]
        self.leaves = [start.requires_grad_() for start in starts]
        is_tracked = options.get("differentiable", False)
        self.parameters = [leaf.clone() for leaf in self.leaves] if is_tracked else self.leaves
        self.num_compiles: list[int] = []
        self.optimizer: Any = info.optim_cls(self.given(), **copy.deepcopy(options))

    def given(self) -> Any:
        """The optimizer's argument: the parameters, or two groups of them."""
        if self.way.run != "groups":
            return self.parameters
        return [
            {"params": self.parameters[:1], "lr": 0.02, "weight_decay": 0.1},
            {"params": self.parameters[1:-1]},
        ]

    def loss(self) -> torch.Tensor:
        """The distance of the parameters from their expected values."""
        pairs = zip(self.parameters, self.targets, strict=True)
        return torch.stack(
            [((one - other).abs().square() * 0.5).sum() for one, other in pairs]
        ).sum()

    def closure(self) -> torch.Tensor:
        """As `step` takes one."""
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        return loss

    def steps(self, number: int, scaler: Any = None) -> None:
        """Steps with a barrier after each, which counts what has been compiled."""
        for _ in range(number):
            if self.info.step_requires_closure:
                self.optimizer.step(self.closure)
            elif scaler is not None:
                self.optimizer.zero_grad()
                scaler.scale(self.loss()).backward()
                scaler.step(self.optimizer)
                scaler.update()
            elif self.parameters is not self.leaves:
                for parameter, target in zip(self.parameters, self.targets, strict=True):
                    parameter.grad = (parameter - target).detach()
                self.optimizer.step()
            else:
                self.closure()
                self.optimizer.step()
            spmd.sync()
            self.num_compiles.append(spmd.metrics.num_compiles())

    def reached(self) -> list[Any]:
        """Parameters, then the optimizer's state."""
        state = self.optimizer.state_dict()["state"]
        values = [state[key][name] for key in state for name in sorted(state[key])]
        return [p.detach() for p in self.parameters] + [
            _on(value, self.device) for value in tree_flatten(values)[0]
        ]


def _on(value: Any, device: str) -> Any:
    """A step counter is a CPU tensor on every device, unless it is capturable; its value is what is
    compared."""
    return value.to(device) if isinstance(value, torch.Tensor) and value.dim() == 0 else value


def ramp(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Values away from zero, where a gradient's sign would be a matter of rounding."""
    size = int(torch.tensor(shape).prod()) if shape else 1
    values = torch.linspace(0.4, 1.6, size, dtype=torch.float64).reshape(shape)
    return (
        torch.complex(values, values.flip(-1) if shape else values).to(dtype)
        if dtype.is_complex
        else values.to(dtype)
    )


def run_steps(training: Training) -> list[Any]:
    training.steps(1 if training.info.step_requires_closure else STEPS)
    return training.reached()


def run_differentiable(training: Training) -> list[Any]:
    """Steps that autograd follows; then the gradient through them."""
    training.steps(2)
    total = sum(parameter.abs().sum() for parameter in training.parameters)
    return training.reached() + list(torch.autograd.grad(total, training.leaves, allow_unused=True))


def run_resume(training: Training) -> list[Any]:
    """State is saved on the device, read on CPU, and goes on in a new optimizer there and in one on
    the device."""
    training.steps(2)
    file = io.BytesIO()
    torch.save([training.optimizer.state_dict(), [p.detach() for p in training.parameters]], file)
    ended = []
    for device in ("cpu", training.device):
        file.seek(0)
        state, values = torch.load(file, map_location=device)
        options = {
            key: value
            for key, value in training.optimizer.defaults.items()
            if _is_option(training.info, key)
        }
        if device == "cpu":
            options.pop("capturable", None)
            for group in state["param_groups"]:
                if "capturable" in group:
                    group["capturable"] = False
        again = Training(training.info, training.way, device, options)
        with torch.no_grad():
            for parameter, value in zip(again.parameters, values, strict=True):
                parameter.copy_(value)
        again.optimizer.load_state_dict(state)
        again.steps(2)
        ended += [_moved(value, training.device) for value in again.reached()]
    return ended


def _is_option(info: Any, name: str) -> bool:
    return name in info.optim_cls.__init__.__code__.co_varnames and name not in (
        "foreach",
        "fused",
        "differentiable",
    )


def _moved(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def run_groups(training: Training) -> list[Any]:
    """Groups with options of their own, and one that joins between two steps."""
    training.steps(2)
    training.optimizer.add_param_group({"params": training.parameters[-1:], "lr": 0.005})
    training.steps(4)
    training.num_compiles = training.num_compiles[2:]
    return training.reached()


def run_scaler(training: Training) -> list[Any]:
    """A gradient scaler, whose first scale overflows float32."""
    scaler = torch.amp.GradScaler(
        training.device, init_scale=2.0**127, growth_interval=2, backoff_factor=2.0**-60
    )
    training.steps(STEPS + 1, scaler)
    return [*training.reached(), scaler.get_scale()]


RUNS: dict[str, Callable[[Training], list[Any]]] = {
    "steps": run_steps,
    "differentiable": run_differentiable,
    "resume": run_resume,
    "groups": run_groups,
    "scaler": run_scaler,
}


def case(info: Any, way: Way, count: int) -> Callable[[Outcome], None]:
    """The inputs of an optimizer, tried in one way."""

    def tried(outcome: Outcome) -> None:
        for what, options, on_cpu in inputs(info, way, count):
            counts: list[int] = []

            on = functools.partial(_run, info, way, options, on_cpu, counts)
            found = outcome.both(what, on)
            if found is None:
                continue
            if not info.step_requires_closure and way.run != "resume":
                outcome.same(
                    f"{what}: programs after the third step",
                    counts[-1],
                    counts[: LAST_TO_COMPILE + 1][-1],
                )
            outcome.check([Pair(what, *found, functools.partial(on, "cpu", wide=True))])

    return tried


def _run(
    info: Any,
    way: Way,
    options: Any,
    on_cpu: Any,
    counts: list[int],
    device: str,
    wide: bool = False,
) -> list[Any]:
    """The parameters after a training; into `counts` goes how much had been compiled after each
    step."""
    training = Training(info, way, device, on_cpu if device == "cpu" else options, wide)
    reached = RUNS[way.run](training)
    counts[:] = training.num_compiles
    return reached


def errors(info: Any, outcome: Outcome) -> None:
    """Options that CPU refuses are refused on the device, when the optimizer is made or steps."""

    def on(device: str, given: Any) -> None:
        options = given.optimizer_error_input
        params = (
            options.params
            if options.params is not None
            else [torch.nn.Parameter(torch.randn(2, 3))]
        )
        moved: dict[int, torch.Tensor] = {}

        def move(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
                return value
            if id(value) not in moved:
                moved[id(value)] = made = torch.nn.Parameter(
                    value.detach().clone().to(device), value.requires_grad
                )
                made.grad = None if value.grad is None else value.grad.to(device)
            return moved[id(value)]

        params = move(params) if isinstance(params, torch.Tensor) else tree_map(move, params)
        optimizer = info.optim_cls(params, **options.kwargs)
        if given.error_on is OptimizerErrorEnum.STEP_ERROR:
            optimizer.step()

    for given in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
        what = given.optimizer_error_input.desc
        outcome.tried += 1
        if (
            outcome.both(what, functools.partial(on, given=given)) is not None
            and given.error_type is not UserWarning
        ):
            outcome.errors.append(
                f"{what}: no error on either device, expected {given.error_type.__name__}"
            )


def run_named(name: str, way: str, count: int = 0) -> Result:
    """One optimizer of the database in one way, by their names."""
    info = OPTIMIZERS[name]
    if not is_tried(info, WAYS[way]):
        return Result(name, way, UNTRIED)
    tried = functools.partial(errors, info) if way == "errors" else case(info, WAYS[way], count)
    return cases.run(name, way, tried)[0]


def is_expected(name: str, way: str) -> bool:
    """True for an optimizer that is known to fail in a way."""
    return (name, way) in EXPECTED


if __name__ == "__main__":
    title = "optimizers of torch.testing, xla against CPU"
    main(Sweep(__file__, title, __doc__, NAMES, "ways", "steps", run_named, is_expected))
