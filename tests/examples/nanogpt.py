"""A GPT trained and sampled with nanoGPT's habits: mapped data, autocast, a scaler, accumulation, a
checkpoint."""

import math
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from common import flags, placed
from torch import Tensor, nn


class Block(nn.Module):
    """Causal attention and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.c_attn, self.c_proj = (
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.fc, self.proj = (
            nn.Linear(width, 4 * width, bias=False),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.proj(F.gelu(self.fc(self.ln_2(x))))


class GPT(nn.Module):
    """Tokens, positions, blocks, a head that shares the embedding's weight."""

    def __init__(
        self, vocabulary: int, block_size: int, width: int, heads: int, layers: int
    ) -> None:
        super().__init__()
        self.block_size = block_size
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(block_size, width)
        self.h = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width, bias=False)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.wte.weight = self.lm_head.weight
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, mean=0.0, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(
            logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
        )

    @torch.no_grad()
    def generate(
        self, idx: Tensor, new_tokens: int, temperature: float = 1.0, top_k: int | None = None
    ) -> Tensor:
        for _ in range(new_tokens):
            idx_cond = idx if idx.size(1) <= self.block_size else idx[:, -self.block_size :]
            logits = self(idx_cond)[0][:, -1, :] / temperature
            if top_k is not None:
                v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                logits[logits < v[:, [-1]]] = -float("Inf")
            idx = torch.cat((idx, logits.softmax(-1).argmax(-1, keepdim=True)), dim=1)
        return idx


def get_lr(it: int, steps: int) -> float:
    """Warm-up, then a cosine."""
    if it < 2:
        return 1e-2 * (it + 1) / 3
    return 1e-3 + 0.5 * (1.0 + math.cos(math.pi * (it - 2) / (steps - 2))) * 9e-3


def main(arguments: list[str] | None = None) -> list[float]:
    """Trains, saves, loads, samples; returns the losses and the tokens."""
    parser = flags(__doc__, 6)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    args = parser.parse_args(arguments)
    torch.manual_seed(1337)
    block_size, batch_size, vocabulary, accumulation = 16, 8, 24, 2
    ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[args.dtype]
    ctx = (
        nullcontext()
        if args.dtype == "float32"
        else torch.amp.autocast(device_type=args.device, dtype=ptdtype)
    )
    folder = Path(tempfile.mkdtemp())
    np.random.RandomState(0).randint(0, vocabulary, 4000).astype(np.uint16).tofile(
        folder / "train.bin"
    )

    def get_batch() -> tuple[Tensor, Tensor]:
        data = np.memmap(folder / "train.bin", dtype=np.uint16, mode="r")
        ix = torch.randint(len(data) - block_size, (batch_size,))
        x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
        y = torch.stack(
            [torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix]
        )
        return x.to(args.device, non_blocking=True), y.to(args.device, non_blocking=True)

    made = GPT(vocabulary, block_size, 32, 4, 3)
    model = placed(made, args)
    scaler = torch.amp.GradScaler(args.device, enabled=False)
    decay = [p for p in model.parameters() if p.dim() >= 2]
    other = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    losses, best = [], float("inf")
    x, y = get_batch()
    for it in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(it, args.steps)
        for _ in range(accumulation):
            with ctx:
                _, loss = model(x, y)
                loss = loss / accumulation
            x, y = get_batch()
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item() * accumulation)
        print(f"iter {it}: loss {losses[-1]:.4f}")
        if it == args.steps - 1:
            model.eval()
            with torch.no_grad():
                best = min(
                    best, torch.stack([model(*get_batch())[1] for _ in range(2)]).mean().item()
                )
            losses.append(best)
            if not args.fsdp:
                checkpoint = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iter_num": it,
                }
                torch.save(checkpoint, folder / "ckpt.pt")
    if not args.fsdp:
        checkpoint = torch.load(folder / "ckpt.pt", map_location=args.device)
        model = GPT(vocabulary, block_size, 32, 4, 3)
        model.load_state_dict(checkpoint["model"])
        model.eval()
        model.to(args.device)
    start = torch.tensor([[1, 2, 3]], dtype=torch.long, device=args.device).repeat(8, 1)
    tokens = model.generate(start, 20, temperature=0.8, top_k=5)[0].tolist()
    print(tokens)
    return [*losses, *map(float, tokens)]


if __name__ == "__main__":
    main()
