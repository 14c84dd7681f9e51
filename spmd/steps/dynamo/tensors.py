"""Dynamo and tensors of the device: it traces functions and modules over them as over plain
tensors.

Dynamo knows plain tensors and subclasses that fall apart into plain ones. `XlaTensor` does neither:
it is one tensor with true sizes, strides, device and flags, so a plain fake tensor of the device
stands for it in the trace, and the guards are those of a plain tensor.
"""

import importlib
from types import ModuleType
from typing import Any

import torch
from torch.torch_version import TorchVersion

from ...core import XlaTensor, patch_when_imported, replaces

# Packages of which no frame is traced: a call of one is between two graphs.
_NOT_TRACED = ("fsdp", "jax", "spmd")

_PURPOSE = "torch.compile on xla"


def _wrap_ours(builder: ModuleType) -> None:
    builder.VariableBuilder._type_dispatch()[XlaTensor] = builder.VariableBuilder.wrap_tensor
    replaces(builder, "infer_subclass_type")(
        lambda infer, value: None if type(value) is XlaTensor else infer(value)
    )


def _fake_ours(fake_tensor: ModuleType) -> None:
    # `torch.tensor(..., device="xla")` makes its tensor below the fake mode, which then meets it.
    mode, lifts = fake_tensor.FakeTensorMode, fake_tensor.FakeTensorMode.lift_fns
    original = mode.dispatch

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in lifts and type(args[0]) is XlaTensor:
            return self.fake_tensor_converter.from_real_tensor(self, args[0])
        return original(self, func, types, args, kwargs)

    mode.dispatch = dispatch


def _skip_ours(trace_rules: ModuleType) -> None:
    for name in _NOT_TRACED:
        trace_rules.add(name)


def _take_functions(trace_rules: ModuleType) -> None:
    importlib.import_module("spmd.steps.dynamo.variables").register()


def _track_ours(proxy_tensor: Any) -> None:
    # what a traced function closes over, such as a model's weights, becomes a constant of the graph
    proxy_tensor.HANDLED_TYPES += (XlaTensor,)


def join_tracing() -> None:
    """Patches torch's modules, now or when they are imported."""
    wraps = (
        "VariableBuilder._type_dispatch()",
        "VariableBuilder.wrap_tensor",
        "infer_subclass_type(value)",
    )
    patch_when_imported("torch._dynamo.variables.builder", _wrap_ours, _PURPOSE, *wraps)
    patch_when_imported("torch._dynamo.trace_rules", _skip_ours, _PURPOSE, "add(import_name)")
    # before it Dynamo has no constants of other libraries' classes
    if TorchVersion(torch.__version__) >= "2.12":
        patch_when_imported("torch._dynamo.convert_frame", _take_functions, _PURPOSE)
    handled = "torch.fx.experimental.proxy_tensor", _track_ours, "make_fx on xla", "HANDLED_TYPES"
    patch_when_imported(*handled)
    fakes = "FakeTensorMode.dispatch(self, func, types, args, kwargs)", "FakeTensorMode.lift_fns"
    patch_when_imported("torch._subclasses.fake_tensor", _fake_ours, _PURPOSE, *fakes)
