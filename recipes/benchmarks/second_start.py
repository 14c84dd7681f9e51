"""Compare a second start of small programs with torch's CPU: seconds of the whole process, and what
is compiled.

    python recipes/benchmarks/second_start.py  # every case
    python recipes/benchmarks/second_start.py --cases generate lbfgs
    python recipes/benchmarks/second_start.py --cases evaluate --child xla
                                               # one of them in this process

Each case is a short script of plain PyTorch, run in processes of its own: on the CPU, on the device
with an empty cache of programs, and again with the cache that the first start has filled (`--warm`:
the fastest of so many is shown). "s" is the wall time from the start of the process to its end,
imports included, with processor seconds behind it; "compiles" the number of compilations of XLA's
backend, jax's own small ones included; "loaded" the number of programs from the disk. The last
column says if the second start ends in three times the CPU's time plus 5 s, nothing compiled. The
numbers that a case gives are compared.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

FACTOR, SECONDS = 3.0, 5.0  # the bound: so many times the CPU's own time, and so many seconds more


# --- the cases: each runs on a device, and returns numbers that are the same on every device ------


def generate(device: str) -> list[float]:
    """A tiny Llama of transformers writes 48 tokens by its own `generate`, from two prompts of
    different lengths."""
    transformers = import_module("transformers")  # no other case waits for it
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval().to(device)
    found = []
    for length in (5, 8):
        prompt = torch.arange(1, 1 + length)[None].to(device)
        written = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=48, do_sample=False
        )
        found += written[0].tolist()
    return found


def sample(device: str) -> list[float]:
    """A nanoGPT-like loop draws 40 tokens, one by one, from logits cut to the ten likeliest."""
    torch.manual_seed(0)
    embedding, out = nn.Embedding(64, 32).to(device), nn.Linear(32, 64).to(device)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).eval().to(device)
    tokens = torch.zeros(1, 1, dtype=torch.long).to(device)
    for _ in range(40):
        window = tokens[:, -16:]
        mask = nn.Transformer.generate_square_subsequent_mask(window.shape[1]).to(device)
        with torch.no_grad():
            logits = out(layer(embedding(window), src_mask=mask, is_causal=True))[:, -1] / 0.8
        values, _ = torch.topk(logits, 10)
        logits[logits < values[:, [-1]]] = -float("inf")
        tokens = torch.cat([tokens, torch.multinomial(F.softmax(logits, -1), 1)], 1)
    return [float(len(tokens[0].tolist()))]


class Denoiser(nn.Module):
    """Predicts the noise in points of a plane, from the points and the time."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.time, self.point = nn.Embedding(50, width), nn.Linear(2, width)
        self.body = nn.Sequential(
            nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2)
        )

    def forward(self, points: Tensor, times: Tensor) -> Tensor:
        return self.body(self.point(points) + self.time(times))


def diffusion(device: str) -> list[float]:
    """A denoiser samples 256 points in 50 steps of DDPM, whose coefficients it reads from
    tensors."""
    torch.manual_seed(0)
    model, betas = Denoiser().to(device), torch.linspace(1e-4, 0.02, 50)
    alphas = 1 - betas
    kept = alphas.cumprod(0)
    points = torch.randn(256, 2).to(device)
    with torch.no_grad():
        for step in reversed(range(50)):
            noise = model(points, torch.full((256,), step, device=device))
            points = (points - betas[step] / (1 - kept[step]).sqrt() * noise) / alphas[step].sqrt()
            if step:
                points = points + betas[step].sqrt() * torch.randn(256, 2).to(device)
    return [points.mean().item(), points.std().item()]


def lbfgs(device: str) -> list[float]:
    """LBFGS with a line search fits a small network in 10 steps, as time_sequence_prediction
    does."""
    torch.manual_seed(0)
    inputs = torch.linspace(-1, 1, 64)[:, None].to(device)
    targets = (3 * inputs).sin()
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(10)]
    return losses[:2]  # later ones depend on the last bits


def sequence(device: str) -> list[float]:
    """Two LSTM cells read 40 numbers of 20 waves and LBFGS fits them in 2 steps: PyTorch's
    time_sequence_prediction."""
    torch.manual_seed(0)
    places = torch.arange(40)[None] + torch.randint(-80, 80, (20, 1))
    waves = (places / 6.0).sin().double().to(device)
    first, second = nn.LSTMCell(1, 16).double().to(device), nn.LSTMCell(16, 16).double().to(device)
    out = nn.Linear(16, 1).double().to(device)

    def predict(inputs: Tensor) -> Tensor:
        h1, c1, h2, c2 = (
            torch.zeros(len(inputs), 16, dtype=torch.double, device=device) for _ in range(4)
        )
        found = []
        for column in inputs.split(1, dim=1):
            h1, c1 = first(column, (h1, c1))
            h2, c2 = second(h1, (h2, c2))
            found.append(out(h2))
        return torch.cat(found, dim=1)

    parameters = [*first.parameters(), *second.parameters(), *out.parameters()]
    optimizer = torch.optim.LBFGS(parameters, lr=0.8, max_iter=8)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(predict(waves[:, :-1]), waves[:, 1:])
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(2)]


def evaluate(device: str) -> list[float]:
    """A classifier is evaluated on 300 examples in batches of odd sizes, with a loss, top-k and a
    confusion matrix."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 7)).eval().to(device)
    inputs, labels = torch.randn(300, 20), torch.randint(7, (300,))
    confusion, losses, right, seen = torch.zeros(7, 7, dtype=torch.long), [], 0, 0
    for size in (64, 64, 37, 64, 50, 21):
        batch, wanted = inputs[seen : seen + size].to(device), labels[seen : seen + size].to(device)
        with torch.no_grad():
            logits = model(batch)
        losses.append(F.cross_entropy(logits, wanted, reduction="sum").item())
        right += (logits.topk(3).indices == wanted[:, None]).any(1).sum().item()
        pairs = wanted * 7 + logits.argmax(-1)
        confusion += torch.bincount(pairs.cpu(), minlength=49).view(7, 7)
        seen += size
    recall = confusion.diag() / confusion.sum(1)
    return [sum(losses) / seen, right / seen, recall.mean().item()]


def train(device: str) -> list[float]:
    """A newcomer's script: a loader, dropout, Adam, a schedule, a loss printed now and then, a
    state saved and read."""
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(200, 10), torch.randn(200, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=32)
    model = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Dropout(0.0), nn.Linear(32, 1)).to(
        device
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    losses = []
    for _ in range(3):
        for inputs, wanted in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs.to(device)), wanted.to(device))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        schedule.step()
        losses.append(loss.item())
    model.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
    model.eval()
    with torch.no_grad():
        losses.append(
            F.mse_loss(model(data.tensors[0].to(device)), data.tensors[1].to(device)).item()
        )
    return losses


CASES: dict[str, Callable[[str], list[float]]] = {
    case.__name__: case for case in (generate, sample, diffusion, lbfgs, sequence, evaluate, train)
}


# --- the processes --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """One start of a case: wall and processor seconds, programs compiled and loaded, the case's
    numbers."""

    seconds: float
    processor: float
    compiled: int
    loaded: int
    numbers: list[float]

    @property
    def times(self) -> str:
        return f"{self.seconds:.1f} ({self.processor:.1f})"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--warm", type=int, default=1, help="second starts (default 1)")
    parser.add_argument(
        "--child",
        choices=("cpu", "xla"),
        help="run the first case in this process and print its facts",
    )
    return parser.parse_args(arguments)


def child(name: str, device: str) -> dict[str, object]:
    """Runs a case in this process; returns its facts."""
    # the CPU's process imports torch alone
    spmd = import_module("spmd") if device == "xla" else None
    numbers = CASES[name](device)
    counts = (0, 0) if spmd is None else (spmd.metrics.num_compiles(), spmd.metrics.num_loaded())
    return {"compiled": counts[0], "loaded": counts[1], "numbers": numbers}


def start(name: str, device: str, folder: str) -> Start:
    """Runs a case in a process of its own."""
    command = [sys.executable, __file__, "--cases", name, "--child", device]
    setting = {**os.environ, "SPMD_PROGRAM_CACHE": "1", "SPMD_PROGRAM_CACHE_DIR": folder}
    began, spent = perf_counter(), processor_seconds()
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=setting)
    return Start(
        perf_counter() - began,
        processor_seconds() - spent,
        **json.loads(done.stdout.splitlines()[-1]),
    )


def processor_seconds() -> float:
    """Returns the processor seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def is_within(cpu: Start, second: Start) -> bool:
    """True if a second start compiles nothing and ends in time."""
    return not second.compiled and second.seconds <= FACTOR * cpu.seconds + SECONDS


def is_same(numbers: list[float], expected: list[float]) -> bool:
    """True if a case gave the CPU's numbers, but for the order of sums."""
    return all(
        math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-4)
        for a, b in zip(numbers, expected, strict=True)
    )


def main() -> None:
    args = parse()
    if args.child:
        print(json.dumps(child(args.cases[0], args.child)))
        return
    console = Console(width=140)
    columns = (
        "case",
        "CPU s",
        "first s",
        "compiles",
        "second s",
        "compiles",
        "loaded",
        "bound s",
        "",
    )
    table = Table(*columns, title="A second start", title_justify="left")
    for name in args.cases:
        with tempfile.TemporaryDirectory() as parent, console.status(name):
            folder = str(Path(parent) / "programs")
            cpu = start(name, "cpu", folder)
            first = start(name, "xla", folder)
            second = min(
                (start(name, "xla", folder) for _ in range(args.warm)), key=lambda one: one.seconds
            )
        table.add_row(
            name,
            cpu.times,
            first.times,
            str(first.compiled),
            second.times,
            str(second.compiled),
            str(second.loaded),
            f"{FACTOR * cpu.seconds + SECONDS:.1f}",
            ("ok" if is_within(cpu, second) else "too slow" if not second.compiled else "compiles")
            + ("" if is_same(second.numbers, cpu.numbers) else ", other numbers"),
        )
    console.print(table)


if __name__ == "__main__":
    main()
