"""The ops `torch.ops.xla.*` that scripts call, and PyTorch/XLA's ways to JAX, Dynamo and meshes in few lines."""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ...loops.interop import call_jax as core_call_jax
from ...mesh.device_mesh import DeviceMesh
from ...mesh.mesh import Mesh
from ...tensors.annotate import mark_sharding, mark_sharding_with_gradients
from ...tensors.memory import place_to_device, place_to_host
from .custom_kernel import flash_attention, gmm, tgmm

XLA_LIB = torch.library.Library("xla", "FRAGMENT")


def _dynamo_mark_sharding(
    input: torch.Tensor, device_ids: Sequence[int], mesh_shape: Sequence[int], axis_names: str, partition_spec: str
) -> torch.Tensor:
    mesh = Mesh(device_ids, tuple(mesh_shape), ast.literal_eval(axis_names))
    return mark_sharding(input, mesh, ast.literal_eval(partition_spec))


def _aot_mark_sharding(t: torch.Tensor, mesh: str, partition_spec: str) -> torch.Tensor:
    return mark_sharding_with_gradients(t, Mesh.from_str(mesh), ast.literal_eval(partition_spec))


# Each is made of ops that have rules and gradients. A buffer that no tensor needs any more is donated as it is.
for _schema, _function in {
    "dynamo_mark_sharding(Tensor input, int[] device_ids, int[] mesh_shape, str axis_names, str partition_spec) -> "
    "Tensor": _dynamo_mark_sharding,
    "aot_mark_sharding(Tensor t, str mesh, str partition_spec) -> Tensor": _aot_mark_sharding,
    "dynamo_set_buffer_donor_(Tensor(a!) t, bool should_donoate) -> Tensor(a!)": lambda t, should_donoate: t,
    "flash_attention(Tensor q, Tensor k, Tensor v, bool casual=False) -> Tensor": flash_attention,
    "gmm(Tensor lhs, Tensor rhs, Tensor group_sizes, int[]? tiling=None) -> Tensor": lambda *args: gmm(*args[:3]),
    "tgmm(Tensor lhs, Tensor rhs, Tensor group_sizes, int[]? tiling=None) -> Tensor": lambda *args: tgmm(*args[:3]),
    "place_to_host(Tensor t) -> Tensor": place_to_host,
    "place_to_device(Tensor t) -> Tensor": place_to_device,
    "einsum_linear_forward(Tensor input, Tensor weight, Tensor? bias) -> Tensor": nn.functional.linear,
}.items():
    XLA_LIB.define(_schema)
    XLA_LIB.impl(_schema.partition("(")[0], _function, "CompositeImplicitAutograd")


def call_jax(jax_func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Any:
    """`spmd.call_jax` by PyTorch/XLA's arguments.

    Source: `torch_xla.core.xla_builder.call_jax`.

    >>> import jax, torch, spmd
    >>> spmd.torch_xla.xla_ops.call_jax(jax.numpy.add, (torch.ones(2, device="xla"), 1)).tolist()
    [2.0, 2.0]
    """
    return core_call_jax.call_jax(jax_func, *args, **(kwargs or {}))


def convert_to_xla_mesh(dt_mesh: Any) -> Mesh:
    """The mesh of a DeviceMesh. Source: `torch_xla.distributed.spmd.api.convert_to_xla_mesh`.

    >>> import spmd, spmd.dtensor
    >>> view = spmd.dtensor.init_device_mesh("xla", (1,), mesh_dim_names=("data",))
    >>> spmd.torch_xla.xla_ops.convert_to_xla_mesh(view).axis_names
    ('data',)
    """
    return DeviceMesh.of(dt_mesh, "convert_to_xla_mesh").root


class SyncBatchNorm(nn.Module):
    """Batch normalization by the statistics of the whole batch, as PyTorch/XLA counts them (a biased running variance).

    Source: `torch_xla.core.functions.SyncBatchNorm`.

    >>> import torch, spmd
    >>> spmd.torch_xla.xla_ops.SyncBatchNorm(3)(torch.ones(2, 3, 4, 4)).shape
    torch.Size([2, 3, 4, 4])
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(num_features)), nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The normalized batch; in training its statistics go into the running ones."""
        mean, var = self.running_mean, self.running_var
        if self.training:
            dims = [dim for dim in range(batch.dim()) if dim != 1]
            var, mean = torch.var_mean(batch, dims, correction=0)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(var, self.momentum)
        shape = [1, -1, *[1] * (batch.dim() - 2)]
        scaled = (batch - mean.view(shape)) * torch.rsqrt(var.view(shape) + self.eps)
        return scaled * self.weight.view(shape) + self.bias.view(shape)

    def extra_repr(self) -> str:
        """The settings, for a model's text."""
        return f"{self.num_features}, eps={self.eps}"
