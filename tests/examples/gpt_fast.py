"""Text by a loop of one's own as gpt-fast's: the cache is buffers that a layer writes at its
positions, and no token is read before the last; prints the tokens, and with `--seconds` the
milliseconds of each."""

import math
import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from common import flags, placed
from torch import Tensor, nn

WIDTH, HEADS, LAYERS, WORDS, LENGTH = 64, 4, 3, 96, 64


class KeyValues(nn.Module):
    """The keys and values of a layer, by position."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        for name in ("keys", "values"):
            self.register_buffer(
                name, torch.zeros(rows, HEADS, LENGTH, WIDTH // HEADS), persistent=False
            )

    def update(self, positions: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.keys[:, :, positions] = keys
        self.values[:, :, positions] = values
        return self.keys, self.values


class Layer(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = (
            nn.Linear(WIDTH, 3 * WIDTH, bias=False),
            nn.Linear(WIDTH, WIDTH, bias=False),
        )
        self.up, self.down = (
            nn.Linear(WIDTH, 4 * WIDTH, bias=False),
            nn.Linear(4 * WIDTH, WIDTH, bias=False),
        )
        self.cache = KeyValues(rows)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.before(x)).chunk(3, -1)
        )
        keys, values = self.cache.update(positions, k, v)
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.between(x))))


class Transformer(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer(rows) for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.register_buffer(
            "causal", torch.tril(torch.ones(LENGTH, LENGTH, dtype=torch.bool)), persistent=False
        )

    def forward(self, words: Tensor, positions: Tensor) -> Tensor:
        mask = self.causal[None, None, positions]
        x = self.words(words) + self.places(positions)
        for layer in self.layers:
            x = layer(x, positions, mask)
        return self.head(self.norm(x))


def chosen(logits: Tensor) -> Tensor:
    """The best word of the last position."""
    return logits[:, -1].argmax(-1, keepdim=True)


def decode(model: nn.Module, word: Tensor, position: Tensor, count: int) -> list[Tensor]:
    """So many words after one at this position."""
    found = []
    for _ in range(count):
        word = chosen(model(word, position))
        position += 1
        found.append(word.clone())
    return found


@torch.no_grad()
def generate(model: nn.Module, prompt: Tensor, count: int) -> Tensor:
    """The prompt with so many words behind it."""
    length = prompt.shape[1]
    word = chosen(model(prompt, torch.arange(length, device=prompt.device)))
    position = torch.tensor([length], device=prompt.device)
    return torch.cat([prompt, word, *decode(model, word, position, count - 1)], dim=1)


def main(arguments: Sequence[str] | None = None) -> list[float]:
    parser = flags(__doc__, steps=24)
    parser.add_argument(
        "--seconds", action="store_true", help="print the milliseconds of a word, too"
    )
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    model = placed(Transformer(rows=2).eval(), args)
    prompt = torch.randint(WORDS, (2, 8)).to(args.device)
    for _ in range(3):
        started = time.perf_counter()
        words = generate(model, prompt, args.steps).cpu()
        seconds = time.perf_counter() - started
    if args.seconds:
        print(f"{1e3 * seconds / args.steps:.2f} ms a word")
    assert math.prod(words.shape) == 2 * (8 + args.steps)
    return [float(word) for word in words.flatten()]


if __name__ == "__main__":
    print(main())
