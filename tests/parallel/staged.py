"""A small model of equal layers, for the stages of a pipeline."""

import torch
from torch import nn

WIDTH = 16


class Layer(nn.Module):
    def __init__(self, p: float = 0.0):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(p)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.up(self.norm(x))) * scale
        return x + self.down(self.drop(hidden))


class Model(nn.Module):
    """Layers that read a value of each row, between an embedding and a head."""

    def __init__(self, num: int, p: float = 0.0, layer: type[nn.Module] = Layer):
        super().__init__()
        self.embed, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 4)
        self.layers = nn.ModuleList([layer(p) for _ in range(num)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, x = x.mean(-1, keepdim=True), self.embed(x)
        for layer in self.layers:
            x = layer(x, scale)
        return self.head(x)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()
