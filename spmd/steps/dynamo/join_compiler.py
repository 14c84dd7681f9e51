"""The patches of torch.compile, applied when torch imports Dynamo: the traces (`tensors`), and the
backend for graphs with tensors of the device, under its names and in place of inductor.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import torch

from ...core import Patch, patch_when_imported
from .graph_calls import GraphCall
from .tensors import join_tracing

# The last two are those of PyTorch/XLA before 2.1.
NAMES = ("xla", "openxla", "torchxla_trace_once", "aot_torchxla_trace_once")


def xla(graph_module: Any, inputs: Sequence[Any], **settings: Any) -> Callable[..., Any]:
    """Returns the function that records a graph of Dynamo; a warning names settings (mode,
    options), which are inductor's."""
    if named := ", ".join(f"{name}={value!r}" for name, value in settings.items() if value):
        warnings.warn(
            f"torch.compile: {named}: inductor's, and without effect on xla; leave it out. "
            "Options of XLA's: spmd.config.compiler_options",
            UserWarning,
            stacklevel=2,
        )
    return GraphCall(graph_module)


def _is_on_device(graph_module: Any, inputs: Iterable[Any]) -> bool:
    """True if a graph has a tensor of the device among its inputs or its values."""
    values = [*inputs, *(node.meta.get("example_value") for node in graph_module.graph.nodes)]
    return any(isinstance(value, torch.Tensor) and value.device.type == "xla" for value in values)


def _compiled(
    original: Callable[..., Any], self: Any, model_: Any, inputs_: Any, **settings: Any
) -> Any:
    """A call of the default backend, which has no code for the device and leaves its graphs to
    ours."""
    if _is_on_device(model_, inputs_):
        return xla(model_, inputs_, options=self.config, **settings)
    return original(self, model_, inputs_, **settings)


def _register(registry: ModuleType) -> None:
    for name in NAMES:
        if name != "openxla":
            registry.register_backend(xla, name=name)


def _take_openxla(torchxla: ModuleType) -> None:
    """Replaces torch's backend of this name, which needs PyTorch/XLA."""
    torchxla.register_backend.__globals__["_COMPILER_FNS"]["openxla"] = xla


def join_backends() -> None:
    """Patches torch's modules, now or when they are imported."""
    purpose, needs = "torch.compile on xla", "register_backend(compiler_fn, name, ...)"
    patch_when_imported("torch._dynamo.backends.registry", _register, purpose, needs)
    patch_when_imported(
        "torch._dynamo.backends.torchxla", _take_openxla, purpose, "register_backend.__globals__"
    )


PATCHES = (
    Patch("Dynamo's table of types", "traces see plain tensors", join_tracing),
    Patch(
        "`torch._TorchCompileInductorWrapper.__call__(self, model_, inputs_, ...)`",
        "its backend",
        join_backends,
        (_compiled,),
    ),
)

for _patch in PATCHES:
    _patch.apply()
