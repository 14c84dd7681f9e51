"""A decoder under FSDP v2 as PyTorch/XLA's users write it: a wrap policy, checkpointed layers,
accumulated gradients.

python decoder_fsdp_v2.py --steps 3 --accumulate 2
"""

import argparse
import functools

import numpy as np
import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import nn
from torch_xla.distributed.fsdp import checkpoint_module
from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch_xla.experimental.gradient_accumulation import gradient_accumulation
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)

VOCABULARY, LENGTH, WIDTH, HEADS = 32, 8, 16, 2


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def batches(steps, accumulate, batch_size):
    generator = torch.Generator().manual_seed(1)
    shape = (accumulate, batch_size, LENGTH) if accumulate > 1 else (batch_size, LENGTH)
    return [
        {"input_ids": torch.randint(0, VOCABULARY, shape, generator=generator)}
        for _ in range(steps)
    ]


def loss_of(model, tokens):
    logits = model(tokens)
    return F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--save", default=None)
    args = parser.parse_args()

    xr.use_spmd()
    torch.manual_seed(42)
    num_devices = xr.global_runtime_device_count()
    mesh = xs.Mesh(
        np.array(range(num_devices)), (num_devices // 2, 2), axis_names=("fsdp", "tensor")
    )
    xs.set_global_mesh(mesh)
    device = xm.xla_device()

    model = Decoder().to(device)
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={DecoderLayer})

    def wrap(module, *args, **kwargs):
        return FSDPv2(checkpoint_module(module), *args, **kwargs)

    def shard_output(output, mesh):
        xs.mark_sharding(output, mesh, ("fsdp", None, None))

    model = FSDPv2(
        model,
        mesh=mesh,
        shard_output=shard_output,
        auto_wrap_policy=policy,
        auto_wrapper_callable=wrap,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    entries = (None, "fsdp", None) if args.accumulate > 1 else ("fsdp", None)
    specs = {"input_ids": xs.ShardingSpec(mesh, entries)}
    loader = pl.MpDeviceLoader(
        batches(args.steps, args.accumulate, args.batch_size), device, input_sharding=specs
    )

    losses = []
    for batch in loader:
        tokens = batch["input_ids"]
        if args.accumulate > 1:
            seen = torch.zeros((), dtype=torch.int64, device=device)

            def train_step(tokens, seen):
                return loss_of(model, tokens), seen + tokens.shape[0]

            loss, seen = gradient_accumulation(train_step, [tokens], model, seen)
            assert seen.item() == args.accumulate * args.batch_size
        else:
            loss = loss_of(model, tokens)
            loss.backward()
        xm.optimizer_step(optimizer)
        optimizer.zero_grad()
        xm.mark_step()
        losses.append(loss.item())
        xm.master_print(f"loss {losses[-1]:.7f}")
    specs = torch_xla._XLAC._get_xla_sharding_specs([model.layers[0].up.weight])
    xm.master_print("weight", *specs)
    assert "devices=" in specs[0]
    if args.save:
        xm.save({"losses": losses, "model": model.state_dict()}, args.save)


if __name__ == "__main__":
    main()
