"""What PyTorch/XLA 2.6 brought: 64 layers made under a device and scanned, and values placed on the
host.

python layers_and_places.py --save saved.pt
"""

import sys

import torch
import torch_xla
from torch import nn
from torch_xla.experimental.scan_layers import scan_layers
from torch_xla.experimental.stablehlo_custom_call import place_to_device, place_to_host


class DecoderLayer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, input):
        return self.linear(input)


torch_xla.manual_seed(9)
with torch_xla.device():
    layers = [DecoderLayer(1024) for _ in range(64)]
    x = torch.randn(1, 1024)
out = scan_layers(layers, x)
torch_xla.sync()
first = {name: value.cpu() for name, value in layers[0].state_dict().items()}
loop = x
for layer in layers:
    loop = layer(loop)


def place(device):
    a = torch.arange(6.0, device=device).view(2, 3).requires_grad_()
    on_host = place_to_host(a * 2)
    b = place_to_device(on_host)
    (b * b).sum().backward()
    torch_xla.sync()
    return {"value": b.detach().cpu(), "grad": a.grad.cpu()}


saved = {
    "x": x.cpu(),
    "out": out.cpu(),
    "loop": loop.cpu(),
    "first": first,
    "placed": place(torch_xla.device()),
}
torch.save(saved, sys.argv[-1])
