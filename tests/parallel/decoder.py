"""A small decoder in float64, as a user writes it: rotary positions, norms, MLP, dropout, shifted
labels."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fsdp
import spmd
from spmd import P

VOCABULARY, WIDTH, HEADS, KV_HEADS = 48, 32, 4, 2
HEAD = WIDTH // HEADS


def rotated(x: Tensor) -> Tensor:
    """x [batch, heads, rows, width] at positions that count from the sequence's start."""
    rate = 10_000 ** (-torch.arange(0, HEAD, 2, device=x.device, dtype=x.dtype) / HEAD)
    angle = torch.arange(x.shape[2], device=x.device, dtype=x.dtype)[:, None] * rate
    first, second = x.chunk(2, -1)
    return torch.cat(
        [first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1
    )


class Layer(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.query, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.key_value = nn.Linear(WIDTH, 2 * KV_HEADS * HEAD)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norms[0](x)
        query = self.query(normed).unflatten(-1, (HEADS, HEAD)).transpose(1, 2)
        key, value = (
            self.key_value(normed).unflatten(-1, (2, KV_HEADS, HEAD)).permute(2, 0, 3, 1, 4)
        )
        how = {
            "is_causal": True,
            "dropout_p": self.dropout if self.training else 0.0,
            "enable_gqa": True,
        }
        heads = F.scaled_dot_product_attention(rotated(query), rotated(key), value, **how)
        x = x + F.dropout(self.out(heads.transpose(1, 2).flatten(-2)), self.dropout, self.training)
        return x + self.mlp(self.norms[1](x))


class Decoder(nn.Module):
    """run: computes a layer; by it layers are recomputed in backward."""

    def __init__(self, dropout: float, run: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layer, self.norm = Layer(dropout), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def hidden(self, ids: Tensor) -> Tensor:
        return self.norm(self.run(self.layer, self.embedding(ids)))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.hidden(ids))


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(
        VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length)
    )


def decoder(
    dropout: float = 0.0, run: Callable[[nn.Module, Tensor], Tensor] = lambda layer, x: layer(x)
) -> Decoder:
    """The same weights each time."""
    torch.manual_seed(0)
    return Decoder(dropout, run).double()


def sharded(model: nn.Module, layer: type[nn.Module], mesh: spmd.Mesh) -> nn.Module:
    """The model under FSDP over the axis "fsdp"; as it is on a mesh without it."""
    if "fsdp" not in mesh.axis_names:
        return model.to("xla")
    wrap = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={layer})
    return fsdp.FullyShardedDataParallel(model.to("xla"), mesh, auto_wrap_policy=wrap)


def marked(ids: Tensor, mesh: spmd.Mesh) -> Tensor:
    """Tokens over "context"; over "fsdp" if that divides the batch."""
    divides = "fsdp" in mesh.axis_names and ids.shape[0] % mesh.shape()["fsdp"] == 0
    return spmd.mark_sharding(ids.to("xla"), mesh, P("fsdp" if divides else None, "context"))


def next_token_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Cross entropy of each token but the first, by those before it."""
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def results(loss: Tensor, model: nn.Module) -> list[Tensor]:
    """A loss and the gradients of the parameters that require one."""
    model.zero_grad()
    loss.backward()
    return [
        loss.detach().cpu(),
        *(parameter.grad.cpu() for parameter in model.parameters() if parameter.requires_grad),
    ]


def close(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-12) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
