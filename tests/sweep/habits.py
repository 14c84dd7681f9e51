"""The uses of a module besides a call: `modules.py` tries it on `xla` and compares with CPU."""

import copy
import inspect
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from sweep.cases import Outcome
from torch import nn

import spmd

Make = Callable[[str], nn.Module]
Forward = Callable[[nn.Module, str], Any]


def check(outcome: Outcome, info: Any, given: Any, make: Make, forward: Forward) -> None:
    """State, copies, dtypes and construction of one module of the database."""
    reference, module = make("cpu"), make("xla")
    outcome.same("repr", repr(module), repr(reference))
    expected = reference.state_dict()
    outcome.attempt("state_dict", lambda: equal(module.state_dict(), expected, "xla"))
    for name, (copied, where) in COPIES.items():
        outcome.attempt(
            name,
            lambda copied=copied, where=where: equal(copied(module).state_dict(), expected, where),
        )
    outcome.attempt("cpu", lambda: equal(copy.deepcopy(module).cpu().state_dict(), expected, "cpu"))
    outcome.attempt(
        "cpu and back",
        lambda: equal(copy.deepcopy(module).cpu().to("xla").state_dict(), expected, "xla"),
    )
    outcome.attempt("load_state_dict", lambda: _load(make, expected))
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        outcome.attempt(f"to {dtype}", lambda dtype=dtype: _to_dtype(make, dtype))
    outcome.attempt("to_empty", lambda: _to_empty(module, expected))
    outcome.attempt("a copy computes the same", lambda: _computes(module, forward))
    outcome.attempt(
        "on the device from the start", lambda: _constructed(info, given, reference, forward)
    )
    if hasattr(module, "reset_parameters") and not info.is_lazy:
        outcome.attempt("reset_parameters", lambda: _reset(module))


def equal(state: dict[str, Any], expected: dict[str, Any], device: str) -> None:
    """Raises where names, devices, dtypes or values differ."""
    assert list(state) == list(expected), f"{list(state)}, expected {list(expected)}"
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert state[name].device.type == device, f"{name} is on {state[name].device}"
            torch.testing.assert_close(state[name].cpu(), value, rtol=0, atol=0, equal_nan=True)


def _loaded(module: nn.Module, device: str | None) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, map_location=device, weights_only=False)


# What is pickled comes back onto the device; torch.load brings it where it is told to.
COPIES: dict[str, tuple[Callable[[nn.Module], nn.Module], str]] = {
    "deepcopy": (copy.deepcopy, "xla"),
    "pickle": (lambda module: pickle.loads(pickle.dumps(module)), "xla"),
    "torch.load": (lambda module: _loaded(module, None), "xla"),
    "torch.load on xla": (lambda module: _loaded(module, "xla"), "xla"),
    "torch.load on cpu": (lambda module: _loaded(module, "cpu"), "cpu"),
}


def _load(make: Make, expected: dict[str, Any]) -> None:
    for assign in (False, True):
        module = make("xla")
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(0.5)
        moved = {name: value.to("xla") if assign else value for name, value in expected.items()}
        module.load_state_dict(moved, assign=assign)
        equal(module.state_dict(), expected, "xla")


def _to_dtype(make: Make, dtype: torch.dtype) -> None:
    equal(make("xla").to(dtype).state_dict(), make("cpu").to(dtype).state_dict(), "xla")


def _to_empty(module: nn.Module, expected: dict[str, Any]) -> None:
    empty = copy.deepcopy(module).to("meta").to_empty(device="xla")
    empty.load_state_dict(expected)
    equal(empty.state_dict(), expected, "xla")


def _computes(module: nn.Module, forward: Forward) -> None:
    torch.manual_seed(0)
    expected = forward(copy.deepcopy(module), "xla")
    torch.manual_seed(0)
    actual = forward(pickle.loads(pickle.dumps(module)).to("xla"), "xla")
    spmd.sync()  # fused with the comparison, the two may be rounded differently
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def _constructed(info: Any, given: Any, reference: nn.Module, forward: Forward) -> None:
    """The constructor's `device=`, and `with torch.device`, which every constructor heeds."""
    constructor = given.constructor_input
    makers = [lambda: _under_default(info.module_cls, constructor)]
    if "device" in inspect.signature(info.module_cls.__init__).parameters:
        kwargs = {**constructor.kwargs, "device": "xla"}
        makers.append(lambda: info.module_cls(*constructor.args, **kwargs))
    for maker in makers:
        made = maker()
        if info.is_lazy:
            forward(made.train(reference.training), "xla")
        # A tensor that the constructor was given stays as it was.
        _alike(made.to("xla", torch.float32), reference)


def _under_default(kind: Any, constructor: Any) -> nn.Module:
    with torch.device("xla"):
        return kind(*constructor.args, **constructor.kwargs)


def _alike(made: nn.Module, reference: nn.Module) -> None:
    shapes = {name: (value.shape, value.dtype) for name, value in reference.state_dict().items()}
    found = {name: (value.shape, value.dtype) for name, value in made.state_dict().items()}
    assert found == shapes, f"{found}, expected {shapes}"
    for name, parameter in made.named_parameters():
        assert parameter.device.type == "xla", f"{name} is on {parameter.device}"
        assert parameter.isfinite().all(), f"{name} is not finite"
    made.load_state_dict(reference.state_dict())
    equal(made.state_dict(), reference.state_dict(), "xla")


def _reset(module: nn.Module) -> None:
    made = copy.deepcopy(module)
    made.reset_parameters()  # type: ignore[operator]
    for name, parameter in made.named_parameters():
        assert parameter.device.type == "xla", f"{name} is on {parameter.device}"
        assert parameter.isfinite().all(), f"{name} is not finite"
