"""A small GPT under Muon with AdamW, each a compiled step of its own, as karpathy/nanochat trains
it."""

import torch
import torch.nn.functional as F
from common import flags, placed
from torch import Tensor, nn

POLAR_EXPRESS = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
]


@torch.compile(dynamic=False, fullgraph=True)
def adamw_step_fused(
    p: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step_t: Tensor,
    lr_t: Tensor,
    beta1_t: Tensor,
    beta2_t: Tensor,
    eps_t: Tensor,
    wd_t: Tensor,
) -> None:
    """One parameter's AdamW step; the hyperparameters are tensors on the CPU, so that none is a new
    graph."""
    p.mul_(1 - lr_t * wd_t)
    exp_avg.lerp_(grad, 1 - beta1_t)
    exp_avg_sq.lerp_(grad.square(), 1 - beta2_t)
    bias1, bias2 = 1 - beta1_t**step_t, 1 - beta2_t**step_t
    denom = (exp_avg_sq / bias2).sqrt() + eps_t
    p.add_(exp_avg / denom * -(lr_t / bias1))


@torch.compile(dynamic=False, fullgraph=True)
def muon_step_fused(
    stacked_grads: Tensor,
    stacked_params: Tensor,
    momentum_buffer: Tensor,
    second_momentum_buffer: Tensor,
    momentum_t: Tensor,
    lr_t: Tensor,
    wd_t: Tensor,
    beta2_t: Tensor,
    ns_steps: int,
    red_dim: int,
) -> None:
    """Momentum, Newton-Schulz, variance reduction and cautious decay of the equally shaped matrices
    of a group."""
    momentum = momentum_t.to(stacked_grads.dtype)
    momentum_buffer.lerp_(stacked_grads, 1 - momentum)
    g = stacked_grads.lerp_(momentum_buffer, momentum)
    X = g / (g.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-6)
    tall = g.size(-2) > g.size(-1)
    for a, b, c in POLAR_EXPRESS[:ns_steps]:
        A = X.mT @ X if tall else X @ X.mT
        B = b * A + c * (A @ A)
        X = a * X + (X @ B if tall else B @ X)
    g = X
    beta2 = beta2_t.to(g.dtype)
    v_mean = g.float().square().mean(dim=red_dim, keepdim=True)
    red_dim_size = g.size(red_dim)
    v_norm_sq = v_mean.sum(dim=(-2, -1), keepdim=True) * red_dim_size
    v_norm = v_norm_sq.sqrt()
    second_momentum_buffer.lerp_(v_mean.to(dtype=second_momentum_buffer.dtype), 1 - beta2)
    step_size = second_momentum_buffer.clamp_min(1e-10).rsqrt()
    scaled_sq_sum = (v_mean * red_dim_size) * step_size.float().square()
    v_norm_new = scaled_sq_sum.sum(dim=(-2, -1), keepdim=True).sqrt()
    final_scale = step_size * (v_norm / v_norm_new.clamp_min(1e-10))
    g = g * final_scale.to(g.dtype)
    lr, wd = lr_t.to(g.dtype), wd_t.to(g.dtype)
    mask = (g * stacked_params) >= 0
    stacked_params.sub_(lr * g + lr * wd * stacked_params * mask)


class MuonAdamW(torch.optim.Optimizer):
    """Groups of matrices by Muon, all other parameters by AdamW; hyperparameters wait in 0-dim
    tensors on the CPU."""

    def __init__(self, param_groups: list[dict]) -> None:
        super().__init__(param_groups, defaults={})
        names = ("step", "lr", "beta1", "beta2", "eps", "wd", "momentum")
        self.numbers = {name: torch.tensor(0.0, dtype=torch.float32) for name in names}

    def fill(self, **values: float) -> list[Tensor]:
        return [self.numbers[name].fill_(value) for name, value in values.items()]

    def step_adamw(self, group: dict) -> None:
        for p in group["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            if not state:
                state["step"] = 0
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
            state["step"] += 1
            beta1, beta2 = group["betas"]
            numbers = self.fill(
                step=state["step"],
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                eps=group["eps"],
                wd=group["weight_decay"],
            )
            adamw_step_fused(p, p.grad, state["exp_avg"], state["exp_avg_sq"], *numbers)

    def step_muon(self, group: dict) -> None:
        params = group["params"]
        state, p = self.state[params[0]], params[0]
        num_params, shape, device, dtype = len(params), p.shape, p.device, p.dtype
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros(num_params, *shape, dtype=dtype, device=device)
        if "second_momentum_buffer" not in state:
            reduced = (
                (num_params, shape[-2], 1) if shape[-2] >= shape[-1] else (num_params, 1, shape[-1])
            )
            state["second_momentum_buffer"] = torch.zeros(reduced, dtype=dtype, device=device)
        red_dim = -1 if shape[-2] >= shape[-1] else -2
        stacked_grads = torch.stack([p.grad for p in params])
        stacked_params = torch.stack(params)
        lr = group["lr"] * max(1.0, shape[-2] / shape[-1]) ** 0.5
        numbers = self.fill(
            momentum=group["momentum"], lr=lr, wd=group["weight_decay"], beta2=group["beta2"]
        )
        muon_step_fused(
            stacked_grads,
            stacked_params,
            state["momentum_buffer"],
            state["second_momentum_buffer"],
            *numbers,
            group["ns_steps"],
            red_dim,
        )
        torch._foreach_copy_(params, list(stacked_params.unbind(0)))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            (self.step_adamw if group["kind"] == "adamw" else self.step_muon)(group)


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.size(-1),))


def apply_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    d = x.shape[3] // 2
    x1, x2 = x[..., :d], x[..., d:]
    return torch.cat([x1 * cos + x2 * sin, x1 * (-sin) + x2 * cos], 3)


class Block(nn.Module):
    """Attention with rotary positions and normed queries and keys, and a squared ReLU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_q, self.c_k, self.c_v, self.c_proj = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.c_fc, self.mlp_proj = (
            nn.Linear(width, 4 * width, bias=False),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, _ = x.shape
        h = norm(x)
        q, k, v = (proj(h).view(B, T, self.heads, -1) for proj in (self.c_q, self.c_k, self.c_v))
        q, k = norm(apply_rotary_emb(q, cos, sin)), norm(apply_rotary_emb(k, cos, sin))
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(B, T, -1))
        return x + self.mlp_proj(F.relu(self.c_fc(norm(x))).square())


class GPT(nn.Module):
    """Blocks whose residual stream is scaled by a number per layer and mixed with the embedding."""

    def __init__(
        self, vocab: int = 64, width: int = 32, depth: int = 4, heads: int = 2, length: int = 16
    ) -> None:
        super().__init__()
        self.wte, self.lm_head = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
        self.h = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        self.resid_lambdas, self.x0_lambdas = (
            nn.Parameter(torch.ones(depth)),
            nn.Parameter(torch.zeros(depth)),
        )
        channel = torch.arange(0, width // heads, 2, dtype=torch.float32)
        freqs = torch.outer(
            torch.arange(length, dtype=torch.float32), 1.0 / (10000 ** (channel / (width // heads)))
        )
        self.register_buffer("cos", freqs.cos()[None, :, None, :], persistent=False)
        self.register_buffer("sin", freqs.sin()[None, :, None, :], persistent=False)

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        x = norm(self.wte(idx))
        x0 = x
        for i, block in enumerate(self.h):
            x = self.resid_lambdas[i] * x + self.x0_lambdas[i] * x0
            x = block(x, self.cos, self.sin)
        logits = self.lm_head(norm(x)).float()
        logits = 15 * torch.tanh(logits / 15)
        return F.cross_entropy(
            logits.view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-1
        )

    def setup_optimizer(self) -> MuonAdamW:
        adam = {"kind": "adamw", "betas": (0.8, 0.95), "eps": 1e-8, "weight_decay": 0.0}
        muon = {
            "kind": "muon",
            "lr": 0.02,
            "momentum": 0.85,
            "ns_steps": 5,
            "beta2": 0.9,
            "weight_decay": 0.1,
        }
        matrices = list(self.h.parameters())
        groups = [
            {"params": [self.lm_head.weight], "lr": 0.004, **adam},
            {"params": [self.wte.weight], "lr": 0.02, **adam},
            {"params": [self.resid_lambdas], "lr": 0.005, **adam},
            {"params": [self.x0_lambdas], "lr": 0.05, **adam},
        ]
        for shape in sorted({p.shape for p in matrices}):
            groups.append({"params": [p for p in matrices if p.shape == shape], **muon})
        optimizer = MuonAdamW(groups)
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
        return optimizer


def main(arguments: list[str] | None = None) -> list[float]:
    """Trains; returns the loss of each step and, at the end, of a held-out batch."""
    args = flags(__doc__, 5).parse_args(arguments)
    torch.manual_seed(42)
    tokens = torch.randint(0, 64, (args.steps + 1, 8, 17))
    model = placed(GPT(), args)
    optimizer = model.setup_optimizer()
    smooth_train_loss, losses = 0.0, []
    for step in range(args.steps):
        batch = tokens[step].to(args.device)
        loss = model(batch[:, :-1], batch[:, 1:])
        train_loss = loss.detach()
        loss.backward()
        lrm = min(1.0, (step + 1) / 3)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * lrm
            if group["kind"] == "muon":
                group["momentum"] = 0.85 + 0.1 * min(step / 300, 1)
        optimizer.step()
        model.zero_grad(set_to_none=True)
        train_loss = train_loss.item()
        smooth_train_loss = 0.9 * smooth_train_loss + (1 - 0.9) * train_loss
        losses.append(train_loss)
        print(
            f"step {step:05d} | loss: {smooth_train_loss / (1 - 0.9 ** (step + 1)):.6f} | lrm: "
            f"{lrm:.2f}"
        )
    with torch.no_grad():
        held_out = tokens[-1].to(args.device)
        losses.append(model(held_out[:, :-1], held_out[:, 1:]).item())
    return losses


if __name__ == "__main__":
    main()
