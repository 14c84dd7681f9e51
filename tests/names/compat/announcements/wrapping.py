"""FSDP by PyTorch/XLA's policies: units by size, and by class.

python wrapping.py --save saved.pt
"""

import sys
from functools import partial

import torch
import torch_xla.core.xla_model as xm
from shapes import convolutions, images, labelled_rows, wide
from torch import nn, optim
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
from torch_xla.distributed.fsdp.wrap import (
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)


def train(model, auto_wrap_policy, batches):
    device = xm.xla_device()
    model = FSDP(model.to(device), auto_wrap_policy=auto_wrap_policy)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for data, target in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data.to(device)), target.to(device))
        loss.backward()
        optimizer.step()  # not xm.optimizer_step: gradients are reduced by the wrapper
        xm.mark_step()
        losses.append(loss.item())
    return {"losses": losses, "units": str(model).partition("units=")[2][:1]}


by_size = partial(size_based_auto_wrap_policy, min_num_params=1e7)
by_class = partial(transformer_auto_wrap_policy, transformer_layer_cls={torch.nn.Conv2d})
saved = {
    "size": train(wide(), by_size, labelled_rows(2, 16)),
    "class": train(convolutions(), by_class, images(2, 8, 4)),
}
torch.save(saved, sys.argv[-1])
