"""Frozen linear layers in four bits: blocks of a column share a scale, two rows share a byte.

Buffers hold them, so that no optimizer sees them. FSDP gathers a buffer that is sharded over its
axis as it is stored; forward widens it.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

import fsdp
import spmd

# Elements of a column that share a scale. Along rows a TPU, whose registers are 128 elements of a
# row wide, would pad each block.
BLOCK = 32


def pack(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix [out, in] as bytes [out / 2, in] and scales [out / 32, in], columns padded to whole
    blocks: integers from -7 to 7, stored plus 8."""
    padded = nn.functional.pad(weight, (0, 0, 0, -weight.shape[0] % BLOCK))
    blocks = padded.unflatten(0, (-1, BLOCK))
    scale = blocks.abs().amax(1) / 7
    integers = blocks / torch.where(scale == 0, 1, scale)[:, None]
    codes = (integers.round() + 8).to(torch.uint8).flatten(0, 1)
    return codes[::2] | codes[1::2] << 4, scale


class Int4Linear(nn.Linear):
    """A linear layer of which `weight` is widened at each use; it loads weights, and packs them."""

    def __init__(self, linear: nn.Linear):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        packed, scale = pack(linear.weight.detach())
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)

    @property
    def weight(self) -> Tensor:
        codes = torch.stack([self.packed & 15, self.packed >> 4], 1).flatten(0, 1)
        blocks = codes.to(self.scale.dtype).unflatten(0, (-1, BLOCK)) - 8
        return (blocks * self.scale[:, None]).flatten(0, 1)[: self.out_features]

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        weight = state.pop(f"{prefix}weight", None)
        if weight is not None:
            packed, scale = pack(weight)
            state |= {f"{prefix}packed": packed, f"{prefix}scale": scale.to(self.scale.dtype)}
        super()._load_from_state_dict(state, prefix, *args)

    def widened(self) -> nn.Linear:
        """The layer as an ordinary one, without the bits that packing took."""
        linear = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None)
        linear.weight = nn.Parameter(self.weight, requires_grad=False)
        linear.bias = self.bias
        return linear


def pack_layers(model: nn.Module, names: Collection[str]) -> nn.Module:
    """Replaces the linear layers of these names, in place."""
    return _replace(
        model, lambda name, layer: Int4Linear(layer) if name in names else None, nn.Linear
    )


def widen_layers(model: nn.Module) -> nn.Module:
    """Replaces packed layers by ordinary ones, in place."""
    return _replace(model, lambda _, layer: layer.widened(), Int4Linear)


def _replace(model: nn.Module, replacement: Any, kind: type[nn.Module]) -> nn.Module:
    for parent in [*model.modules()]:
        for name, child in [*parent.named_children()]:
            new = replacement(name, child) if isinstance(child, kind) else None
            if new is not None:
                setattr(parent, name, new)
    return model


def buffers_of(model: nn.Module) -> list[Tensor]:
    """The packed weights of a model, and their scales."""
    layers = [layer for layer in model.modules() if isinstance(layer, Int4Linear)]
    return [buffer for layer in layers for buffer in (layer.packed, layer.scale)]


def shard(model: nn.Module, mesh: spmd.Mesh) -> nn.Module:
    """Shards packed layers over the axis of FSDP, before the model is wrapped."""
    size = mesh.shape()["fsdp"]
    for buffer in buffers_of(model):
        spmd.mark_sharding(buffer, mesh, fsdp.parameter_spec(buffer.shape, "fsdp", size))
    return model
