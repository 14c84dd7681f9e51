"""A training script in the shape of nanoGPT's: module level, settings by --key=value, and it knows
nothing of plans.

python tests/examples/nanogpt_script.py --data_dir=FOLDER --device=xla
"""

import math
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from nanogpt import GPT
from torch import Tensor

# The settings; --name=value on the command line overwrites one.
data_dir = "data"
device = "cuda"
dtype = "float32"
eval_interval = 2000
eval_iters = 2
log_interval = 10
max_iters = 1000
gradient_accumulation_steps = 2
batch_size = 4
block_size = 16
vocab_size = 64
n_layer, n_head, n_embd = 2, 2, 32
learning_rate = 6e-4
warmup_iters = 100
grad_clip = 1.0
out_dir = "out"
for argument in sys.argv[1:]:
    name, _, value = argument.removeprefix("--").partition("=")
    if name not in globals():
        raise ValueError(f"unknown setting {name}")
    globals()[name] = type(globals()[name])(value)

torch.manual_seed(1337)
ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
ctx = nullcontext() if dtype == "float32" else torch.amp.autocast(device_type=device, dtype=ptdtype)


def get_batch(split: str) -> tuple[Tensor, Tensor]:
    data = np.memmap(Path(data_dir) / f"{split}.bin", dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - block_size, (batch_size,))
    rows = [torch.from_numpy(data[i : i + block_size + 1].astype(np.int64)) for i in starts]
    x, y = torch.stack([row[:-1] for row in rows]), torch.stack([row[1:] for row in rows])
    return x.to(device, non_blocking=True), y.to(device, non_blocking=True)


@torch.no_grad()
def estimate_loss() -> dict[str, float]:
    means = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            with ctx:
                _, loss = model(*get_batch(split))
            losses[k] = loss.item()
        means[split] = losses.mean().item()
    model.train()
    return means


def get_lr(iteration: int) -> float:
    if iteration < warmup_iters:
        return learning_rate * (iteration + 1) / (warmup_iters + 1)
    share = min(1.0, (iteration - warmup_iters) / (max_iters - warmup_iters))
    return learning_rate * (0.55 + 0.45 * math.cos(math.pi * share))


model = GPT(vocab_size, block_size, n_embd, n_head, n_layer)
model.to(device)
scaler = torch.amp.GradScaler(device, enabled=dtype == "float16")
decayed = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))

X, Y = get_batch("train")
t0 = time.time()
iter_num, best_val_loss = 0, 1e9
while True:
    lr = get_lr(iter_num)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
            Path(out_dir).mkdir(exist_ok=True)
            torch.save(
                {"model": model.state_dict(), "iter_num": iter_num}, Path(out_dir) / "ckpt.pt"
            )
    for _ in range(gradient_accumulation_steps):
        with ctx:
            _, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    if grad_clip:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    t0, dt = time.time(), time.time() - t0
    if iter_num % log_interval == 0:
        print(
            f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}, time "
            f"{dt * 1000:.2f}ms"
        )
    iter_num += 1
    if iter_num > max_iters:
        break
