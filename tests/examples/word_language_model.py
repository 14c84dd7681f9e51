"""Words predicted by an LSTM with truncated backpropagation, or by a transformer, as
pytorch/examples' model."""

import math

import torch
import torch.nn.functional as F
from common import flags, placed
from torch import Tensor, nn


class RNNModel(nn.Module):
    """Embedding, recurrent layers, decoder."""

    def __init__(self, kind: str, words: int, width: int, layers: int, *, tied: bool) -> None:
        super().__init__()
        self.kind, self.words, self.width, self.layers = kind, words, width, layers
        self.encoder = nn.Embedding(words, width)
        self.rnn = getattr(nn, kind)(width, width, layers)
        self.decoder = nn.Linear(width, words)
        if tied:
            self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(
        self, inputs: Tensor, hidden: Tensor | tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor | tuple[Tensor, ...]]:
        output, hidden = self.rnn(self.encoder(inputs), hidden)
        decoded = self.decoder(output).view(-1, self.words)
        return F.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, batch: int) -> Tensor | tuple[Tensor, ...]:
        weight = next(self.parameters())
        zeros = weight.new_zeros(self.layers, batch, self.width)
        return (
            (zeros, weight.new_zeros(self.layers, batch, self.width))
            if self.kind == "LSTM"
            else zeros
        )


class TransformerModel(nn.Transformer):
    """Embedding with positions, encoder layers under a causal mask, decoder."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__(width, 2, layers, 0, 2 * width, dropout=0.0)
        self.src_mask: Tensor | None = None
        self.width = width
        self.input_emb = nn.Embedding(words, width)
        position = torch.arange(500, dtype=torch.float).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
        pe = torch.zeros(500, width)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div_term), torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0).transpose(0, 1))
        self.decoder = nn.Linear(width, words)

    def forward(self, src: Tensor) -> Tensor:
        if self.src_mask is None or self.src_mask.size(0) != len(src):
            self.src_mask = torch.log(torch.tril(torch.ones(len(src), len(src)))).to(src.device)
        x = self.input_emb(src) * math.sqrt(self.width)
        output = self.encoder(x + self.pe[: x.size(0)], mask=self.src_mask)
        return F.log_softmax(self.decoder(output), dim=-1)


def repackage_hidden(h: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """Hidden states without their history."""
    return h.detach() if isinstance(h, Tensor) else tuple(repackage_hidden(v) for v in h)


def main(arguments: list[str] | None = None) -> list[float]:
    """Trains, evaluates, generates; returns the losses and the words."""
    parser = flags(__doc__, 6)
    parser.add_argument("--model", default="LSTM", choices=["LSTM", "GRU", "RNN", "Transformer"])
    args = parser.parse_args(arguments)
    torch.manual_seed(1111)
    words, bptt, batch, clip, lr = 30, 7, 8, 0.25, 5.0
    data = torch.randint(words, (bptt * args.steps - 2, batch)).to(args.device)
    is_transformer = args.model == "Transformer"
    made = (
        TransformerModel(words, 16, 2)
        if is_transformer
        else RNNModel(args.model, words, 16, 2, tied=True)
    )
    model = placed(made, args)
    criterion = nn.NLLLoss()
    losses = []

    def get_batch(source: Tensor, i: int) -> tuple[Tensor, Tensor]:
        seq_len = min(bptt, len(source) - 1 - i)
        return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)

    for _ in range(2):
        model.train()
        total = 0.0
        hidden = None if is_transformer else model.init_hidden(batch)
        for i in range(0, data.size(0) - 1, bptt):
            inputs, targets = get_batch(data, i)
            model.zero_grad()
            if is_transformer:
                output = model(inputs).view(-1, words)
            else:
                hidden = repackage_hidden(hidden)
                output, hidden = model(inputs, hidden)
            loss = criterion(output, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-lr)
            total += loss.item()
        losses.append(total)
        lr /= 4.0
        print(f"loss {total:.3f} | ppl {math.exp(total / args.steps):.2f}")
    model.eval()
    inputs = torch.tensor([[3]]).to(args.device)
    hidden = None if is_transformer else model.init_hidden(1)
    with torch.no_grad():
        for _ in range(8):
            if is_transformer:
                word_idx = model(inputs)[-1].argmax(-1)
                inputs = torch.cat([inputs, word_idx.view(1, 1)], 0)
            else:
                output, hidden = model(inputs, hidden)
                word_idx = output.exp().argmax(-1)
                inputs.fill_(word_idx.item())
            losses.append(float(word_idx.item()))
    print(losses)
    return losses


if __name__ == "__main__":
    main()
