"""The ops `torch.ops.xla.*` that scripts call, and PyTorch/XLA's layers and its ways to JAX."""

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from ...core import ends_at_user_line
from ...loops.interop import call_jax as core_call_jax
from ...mesh.device_mesh import DeviceMesh
from ...mesh.mesh import Mesh
from ...tensors.annotate import mark_sharding, mark_sharding_with_gradients, on_device
from ...tensors.memory import place_to_device, place_to_host
from .custom_kernel import flash_attention, gmm, tgmm
from .paged_attention import multi_queries_paged_attention, paged_attention, ragged_paged_attention

XLA_LIB = torch.library.Library("xla", "FRAGMENT")


def _dynamo_mark_sharding(
    input: torch.Tensor,
    device_ids: Sequence[int],
    mesh_shape: Sequence[int],
    axis_names: str,
    partition_spec: str,
) -> torch.Tensor:
    if isinstance(input, FakeTensor):  # under torch.compile: the call is an op of its graph
        return input
    mesh = Mesh(device_ids, tuple(mesh_shape), ast.literal_eval(axis_names))
    return mark_sharding(input, mesh, ast.literal_eval(partition_spec))


def _aot_mark_sharding(t: torch.Tensor, mesh: str, partition_spec: str) -> torch.Tensor:
    if isinstance(t, FakeTensor):
        return t.view_as(t)
    return mark_sharding_with_gradients(t, Mesh.from_str(mesh), ast.literal_eval(partition_spec))


# Each is made of ops that have rules and gradients. A buffer that no tensor needs any more is
# donated as it is.
for _schema, _function in {
    "dynamo_mark_sharding(Tensor input, int[] device_ids, int[] mesh_shape, str axis_names, str "
    "partition_spec) -> Tensor": _dynamo_mark_sharding,
    "aot_mark_sharding(Tensor t, str mesh, str partition_spec) -> Tensor": _aot_mark_sharding,
    (
        "dynamo_set_buffer_donor_(Tensor(a!) t, bool should_donoate) -> Tensor(a!)"
    ): lambda t, should_donoate: t,
    "flash_attention(Tensor q, Tensor k, Tensor v, bool casual=False) -> Tensor": flash_attention,
    "gmm(Tensor lhs, Tensor rhs, Tensor group_sizes, int[]? tiling=None) -> Tensor": lambda *args: (
        gmm(*args[:3])
    ),
    (
        "tgmm(Tensor lhs, Tensor rhs, Tensor group_sizes, int[]? tiling=None) -> Tensor"
    ): lambda *args: tgmm(*args[:3]),
    # block sizes have no meaning here
    "paged_attention(Tensor q, Tensor k_pages, Tensor v_pages, Tensor lengths, Tensor "
    "page_indices, int pages_per_compute_block, str? megacore_mode=None, float? "
    "attn_logits_soft_cap=None) -> Tensor": lambda *args: paged_attention(*args[:5], *args[7:]),
    "multi_queries_paged_attention(Tensor q, Tensor k_pages, Tensor v_pages, Tensor lengths, "
    "Tensor page_indices, Tensor effective_q_lens, int num_kv_pages_per_compute_block, int "
    "num_queries_per_compute_block, bool use_kernel=True, float? attn_logits_soft_cap=None) -> "
    "Tensor": lambda *args: multi_queries_paged_attention(*args[:6], *args[9:]),
    "ragged_paged_attention(Tensor q, Tensor kv_pages, Tensor kv_lens, Tensor page_indices, Tensor "
    "cu_q_lens, Tensor num_seqs, float sm_scale=1, int? sliding_window=None, float? soft_cap=None, "
    "float? mask_value=None, float? k_scale=None, float? v_scale=None, bool use_kernel=True, int? "
    "num_kv_pages_per_block=None, int? num_queries_per_block=None, int? vmem_limit_bytes=None) -> "
    "Tensor": lambda *args: ragged_paged_attention(*args[:12]),
    "place_to_host(Tensor t) -> Tensor": place_to_host,
    "place_to_device(Tensor t) -> Tensor": place_to_device,
    (
        "einsum_linear_forward(Tensor input, Tensor weight, Tensor? bias) -> Tensor"
    ): nn.functional.linear,
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
    """Batch normalization by the statistics of the whole batch, as PyTorch/XLA counts them (a
    biased running variance).

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
        self.weight, self.bias = (
            nn.Parameter(torch.ones(num_features)),
            nn.Parameter(torch.zeros(num_features)),
        )
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


class EinsumLinear(nn.Linear):
    """`nn.Linear` under PyTorch/XLA's name for the form that does not flatten the dims of its
    input.

    Here `nn.Linear` itself does not: it is one product over the last dim, in which every other dim
    may be sharded, forward and backward. Source: `torch_xla.distributed.spmd.EinsumLinear`.

    >>> import torch, spmd
    >>> spmd.torch_xla.EinsumLinear(4, 2, device="xla")(torch.ones(3, 5, 4, device="xla")).shape
    torch.Size([3, 5, 2])
    """


@ends_at_user_line
def apply_xla_patch_to_nn_linear(
    module: nn.Module,
    patched_function: Callable[[nn.Linear, torch.Tensor], torch.Tensor] | None = None,
) -> nn.Module:
    """Makes each `nn.Linear` below a module an `EinsumLinear`, which computes the same; returns the
    module.

    Modules stay the same objects, with their parameters and hooks; subclasses of `nn.Linear` stay
    what they are. patched_function: the forward of each `nn.Linear` instead, called with the layer
    and its input.
    Source: `torch_xla.distributed.spmd.apply_xla_patch_to_nn_linear`.

    >>> import torch, spmd
    >>> type(
    ...     spmd.torch_xla.apply_xla_patch_to_nn_linear(torch.nn.Sequential(torch.nn.Linear(2, 2)))[
    ...         0
    ...     ]
    ... ).__name__
    'EinsumLinear'
    """
    for child in module.modules():
        if type(child) is nn.Linear and patched_function is None:
            child.__class__ = EinsumLinear
        elif isinstance(child, nn.Linear) and patched_function is not None:
            child.forward = functools.partial(patched_function, child)  # type: ignore[method-assign]
    return module


class XLAPatchedLinear:
    """`apply` is `nn.functional.linear`, which keeps the dims of its input here. Source:
    `xs.XLAPatchedLinear`.

    >>> import torch, spmd
    >>> spmd.torch_xla.xla_ops.XLAPatchedLinear.apply(torch.ones(3, 5, 4), torch.ones(2, 4)).shape
    torch.Size([3, 5, 2])
    """

    apply = staticmethod(nn.functional.linear)


@ends_at_user_line
def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Puts an optimization barrier around these values, in place: later reads of one wait until all
    are computed.

    XLA moves no op across it. Raises TypeError for a tensor that is not on xla. Source:
    `torch_xla.core.xla_model.optimization_barrier_`, StableHLO's `optimization_barrier`.

    >>> import torch, spmd
    >>> x, y = torch.ones(2, device="xla"), torch.zeros(2, device="xla")
    >>> spmd.torch_xla.optimization_barrier_([x, y])
    >>> "optimization_barrier" in spmd.get_stablehlo([x])
    True
    """
    with torch.no_grad():
        for tensor, value in zip(tensors, _behind(tensors), strict=True):
            tensor.copy_(value)


def _behind(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The values after an optimization barrier over all of them."""
    values = [on_device(tensor, "optimization_barrier_") for tensor in tensors]
    return core_call_jax.call_jax(jax.lax.optimization_barrier, values) if values else []


@ends_at_user_line
def apply_backward_optimization_barrier(module: nn.Module) -> None:
    """Makes the backward of the layers before a module wait until the module's gradients are
    computed.

    The module's input needs a gradient, or torch warns.

    XLA then does not delay the gradients of many modules, to hold and reduce them together. FSDP's
    units wait so already. Source: `torch_xla.distributed.spmd.apply_backward_optimization_barrier`.

    >>> import torch, spmd
    >>> layer = torch.nn.Linear(2, 2, device="xla")
    >>> spmd.torch_xla.apply_backward_optimization_barrier(layer)
    >>> layer(torch.ones(2, 2, device="xla", requires_grad=True)).sum().backward()
    >>> "optimization_barrier" in spmd.get_stablehlo([layer.weight.grad])
    True
    """
    module.register_full_backward_hook(_wait)


def _wait(module: nn.Module, arriving: Any, _: Any) -> Any:
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    places = [i for i, gradient in enumerate(arriving) if gradient is not None]
    values = _behind([*(arriving[i] for i in places), *gradients])
    with torch.no_grad():
        for gradient, value in zip(gradients, values[len(places) :], strict=True):
            gradient.copy_(value)
    result = dict(zip(places, values, strict=False))
    return tuple(result.get(i) for i in range(len(arriving)))
