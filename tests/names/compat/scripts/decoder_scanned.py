"""A decoder as torchprime trains it: scanned layers, offloaded activations, pure modules, a mixture
of experts.

python -m spmd run --devices 8 decoder_scanned.py --kind scanned --save out.pt
"""

import argparse
from typing import Any

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import nn
from torch_xla.distributed.fsdp import checkpoint_module
from torch_xla.experimental.assume_pure import PureModule
from torch_xla.experimental.scan_layers import scan_layers

HIDDEN, HEADS, VOCABULARY = 16, 2, 32


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4)
        )

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (
            projection(x).view(rows, length, HEADS, -1).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (
            part * cos + torch.cat([-part[..., 4:], part[..., :4]], -1) * sin for part in (q, k)
        )
        scores = q @ k.transpose(2, 3) / (HIDDEN // HEADS) ** 0.5
        mask = torch.full((length, length), float("-inf"), device=x.device).triu(1)
        weights = nn.functional.softmax(scores + mask, dim=-1, dtype=torch.float32).to(q.dtype)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(rows, length, HIDDEN))


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(HIDDEN, 24, bias=False), nn.Linear(HIDDEN, 24, bias=False)
        self.down = nn.Linear(24, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Tokens go to two of four experts by a mask of bools, whose products with activations are
    `einsum`s."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(HIDDEN, 4, bias=False)
        self.w1 = nn.Parameter(torch.randn(4, HIDDEN, 24) * 0.1)
        self.w2 = nn.Parameter(torch.randn(4, 24, HIDDEN) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        chosen_mask = nn.functional.one_hot(chosen, 4)  # rows, length, 2, experts
        places = chosen_mask.sum(2).cumsum(1)  # of each token in its expert's capacity
        capacity = x.shape[1]
        slots = nn.functional.one_hot(places * chosen_mask.sum(2), capacity + 1)[..., 1:]
        dispatch_mask = slots.bool()  # rows, length, experts, capacity
        if x.device.type == "cpu":  # whose products have one dtype
            dispatch_mask, chosen_mask = dispatch_mask.to(x.dtype), chosen_mask.to(x.dtype)
        self.load = chosen_mask.sum((0, 1, 2))
        combine = torch.einsum("bske,bsk->bse", chosen_mask, weights)[..., None] * slots
        inputs = torch.einsum("bsm,bsec->ebcm", x, dispatch_mask)
        hidden = nn.functional.silu(torch.einsum("ebcm,emh->ebch", inputs, self.w1))
        return torch.einsum(
            "ebcm,bsec->bsm", torch.einsum("ebch,ehm->ebcm", hidden, self.w2), combine
        )


class Layer(nn.Module):
    def __init__(self, kind: str, index: int) -> None:
        super().__init__()
        self.index = index
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.attention = Attention()
        self.mlp = Experts() if kind == "experts" else Dense()
        self.offloads = kind == "offloaded"

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        if self.offloads:
            x = offloaded(x)
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x)), cos, sin


def offloaded(x: torch.Tensor) -> torch.Tensor:
    """The carry between layers, kept in the host's memory until backward reads it."""
    if x.device.type != "xla":
        return x
    from torch_xla.experimental.stablehlo_custom_call import place_to_device, place_to_host

    return place_to_device(place_to_host(x))


class Decoder(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer(kind, index) for index in range(3))
        self.norm, self.head = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * 0.1 ** torch.arange(
            4, device=tokens.device
        )
        angles = torch.cat([angles, angles], -1)
        state = (self.embedding(tokens), angles.cos(), angles.sin())
        if tokens.device.type == "xla" and self.kind != "pure":
            state = scan_layers(self.layers, state)
        else:
            for layer in self.layers:
                state = layer(*state)
        return self.head(self.norm(state[0]))


def build_model(kind: str) -> Decoder:
    torch.manual_seed(42)
    return Decoder(kind)


def batches(steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(VOCABULARY, (8, 9), generator=generator) for _ in range(steps)]


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def main(flags: argparse.Namespace) -> dict[str, Any]:
    xr.use_spmd()
    mesh = xs.Mesh(range(xr.global_runtime_device_count()), (4, 2), ("fsdp", "tensor"))
    xs.set_global_mesh(mesh)
    model = build_model(flags.kind).to(torch_xla.device())
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            spec = (
                ("fsdp", "tensor")
                if name.endswith(("o_proj.weight", "down.weight"))
                else ("tensor", "fsdp")
            )
            xs.mark_sharding(parameter, mesh, spec)
    if flags.kind == "checkpointed":
        model.layers = nn.ModuleList(checkpoint_module(layer) for layer in model.layers)
    if flags.kind == "pure":
        model.layers = nn.ModuleList(PureModule(layer) for layer in model.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = pl.MpDeviceLoader(
        batches(flags.steps),
        torch_xla.device(),
        input_sharding=xs.ShardingSpec(mesh, ("fsdp", None)),
    )
    losses: list[float] = []

    @torch_xla.compile(full_graph=True)
    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        model.zero_grad()
        return loss

    for tokens in loader:
        loss = step(tokens)
        xm.add_step_closure(lambda loss: losses.append(loss.item()), args=(loss,))
    xm.mark_step()
    xs.set_global_mesh(None)
    return {"losses": losses}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--kind", choices=["scanned", "checkpointed", "offloaded", "pure", "experts"]
    )
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--save")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    flags = parse()
    torch.save(main(flags), flags.save)
