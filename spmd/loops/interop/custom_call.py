"""Calls of functions that XLA knows only by name: `stablehlo_custom_call`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from jax.experimental.xla_metadata import set_xla_metadata

from ...core import Meta, XlaTensor, dense_meta, ends_at_user_line, tensor_meta, user_line
from ...core.extend import Arrays, Layouts, Lowering, OpSpec, reads
from ...tensors.annotate import on_device

TYPED_FFI = 4


@ends_at_user_line
def stablehlo_custom_call(
    args: Sequence[torch.Tensor],
    call_target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool = False,
    backend_config: str | Mapping[str, Any] = "",
    api_version: int = 0,
    frontend_attributes: Mapping[str, str] | None = None,
) -> Any:
    """Records `stablehlo.custom_call @call_target`: a function that XLA or a library registered
    under this name.

    Register one with `jax.ffi.register_ffi_target`. The function of the target is opaque: it has no
    gradient (a backward pass that reaches it raises NotImplementedError; define one by
    `torch.autograd.Function`), and the partitioner chooses the sharding of its operands, mostly
    replicated. It runs when one of its results is needed.

    Args:
        args: tensors on xla. output_shapes, output_dtypes: of the results, one each.
        has_side_effect: keeps XLA from merging equal calls or leaving one out.
        backend_config: text, or for the typed interface a dict of its attributes (numbers by
            numpy's types, as `jax.ffi.ffi_call` takes them). api_version: of XLA's
            `CustomCallApiVersion`; 0: the typed interface (4), or 1 where `backend_config` is a
            text.
        frontend_attributes: attributes for XLA's passes, such as {"_xla_buffer_placement":
            "pinned_host"}.

    Returns a tensor, or a tuple of them for several results. Raises TypeError for arguments that
    are not on xla, ValueError where shapes and dtypes differ in number; a target that the platform
    does not know is an error of the compilation. Source:
    `torch_xla.experimental.stablehlo_custom_call`; StableHLO's `custom_call`.

    >>> import torch, spmd
    >>> x = torch.ones(2, device="xla")
    >>> where = {"_xla_buffer_placement": "device"}
    >>> name = "annotate_device_placement"
    >>> spmd.torch_xla.stablehlo_custom_call(
    ...     [x], name, [(2,)], [x.dtype], True, "", 1, where
    ... ).tolist()
    [1.0, 1.0]
    """
    for tensor in args:
        on_device(tensor, "stablehlo_custom_call")
    if len(output_shapes) != len(output_dtypes) or not output_shapes:
        raise ValueError(
            "stablehlo_custom_call: expected a dtype for each result, at least one; got "
            f"{len(output_shapes)} shapes and {len(output_dtypes)} dtypes"
        )
    config: str | tuple[tuple[str, str, Any], ...]
    if isinstance(backend_config, str):
        config, version = backend_config, api_version or (1 if backend_config else TYPED_FFI)
    else:
        config, version = (
            tuple(sorted(map(_attribute, backend_config.items()))),
            api_version or TYPED_FFI,
        )
        if version != TYPED_FFI:
            raise ValueError(
                "stablehlo_custom_call: a dict as backend_config needs api_version 4, got "
                f"{api_version}"
            )
    frontend = tuple(sorted((frontend_attributes or {}).items()))
    call = CustomCall(call_target, has_side_effect, config, version, frontend)
    results = tuple(map(dense_meta, map(torch.Size, output_shapes), output_dtypes))
    result = _ApplyCustomCall.apply(call, results, *args)
    return result[0] if len(result) == 1 else result


def _attribute(item: tuple[str, Any]) -> tuple[str, str, Any]:
    """Returns an attribute of the typed interface as plain data: its name, its numpy type ("":
    none), its value."""
    name, value = item
    if isinstance(value, np.generic):
        return name, value.dtype.name, value.item()
    if isinstance(value, str | bool):
        return name, "", value
    raise TypeError(
        f"stablehlo_custom_call: {name} of backend_config is {value!r}; give text, a bool or a "
        "numpy number"
    )


@dataclass(frozen=True, slots=True)
class CustomCall(Lowering):
    """A target and all attributes of its call."""

    target: str
    has_side_effect: bool
    config: str | tuple[tuple[str, str, Any], ...]
    version: int
    frontend: tuple[tuple[str, str], ...]

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        config: Any = self.config
        call = jax.ffi.ffi_call(
            self.target,
            [meta.struct for meta in op.metas],
            has_side_effect=self.has_side_effect,
            custom_call_api_version=self.version,
            legacy_backend_config=None if self.version == TYPED_FFI else config,
        )
        rows = () if isinstance(config, str) else config
        attributes = {
            name: np.dtype(kind).type(value) if kind else value for name, kind, value in rows
        }
        with set_xla_metadata(**dict(self.frontend)):
            return tuple(call(*operands, **attributes))


class _ApplyCustomCall(torch.autograd.Function):
    """Records a call, which has no gradient."""

    @staticmethod
    def forward(
        ctx: Any, call: CustomCall, results: tuple[Meta, ...], *tensors: XlaTensor
    ) -> tuple[XlaTensor, ...]:
        ctx.target, ctx.line = call.target, user_line()
        metas = tuple(tensor_meta(tensor).layout for tensor in tensors)
        op = OpSpec.of(
            f"stablehlo.custom_call.{call.target}", call, results, metas, statics=repr(call)
        )
        return tuple(reads.record_op(op, tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError(
            f"stablehlo_custom_call: {ctx.target!r}, called at {ctx.line}, has no gradient; call "
            "it inside a torch.autograd.Function that has one, or on tensors that need none "
            "(.detach())"
        )
