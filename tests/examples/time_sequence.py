"""Sine waves continued by two LSTM cells, trained by LBFGS, as pytorch/examples'
time_sequence_prediction."""

import argparse

import torch
from torch import Tensor, nn


class Sequence(nn.Module):
    """Predicts each next value of a signal, then goes on from its own predictions."""

    def __init__(self, width: int = 51) -> None:
        super().__init__()
        self.width = width
        self.lstm1 = nn.LSTMCell(1, width)
        self.lstm2 = nn.LSTMCell(width, width)
        self.linear = nn.Linear(width, 1)

    def forward(self, signal: Tensor, future: int = 0) -> Tensor:
        outputs = []
        h_t = torch.zeros(signal.size(0), self.width, dtype=torch.double, device=signal.device)
        c_t = torch.zeros(signal.size(0), self.width, dtype=torch.double, device=signal.device)
        h_t2 = torch.zeros(signal.size(0), self.width, dtype=torch.double, device=signal.device)
        c_t2 = torch.zeros(signal.size(0), self.width, dtype=torch.double, device=signal.device)
        for input_t in signal.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        for _ in range(future):
            h_t, c_t = self.lstm1(output, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        return torch.cat(outputs, dim=1)


def main(arguments: list[str] | None = None) -> list[float]:
    """Trains and returns the losses of training and of the tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--length", type=int, default=1000, help="values of a signal")
    parser.add_argument("--waves", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=20, help="of LBFGS, in a step")
    parser.add_argument("--future", type=int, default=1000)
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    starts = torch.randint(-80, 80, (args.waves, 1))
    data = torch.sin((torch.arange(args.length) + starts) / 20.0).double()
    signal = data[3:, :-1].to(args.device)
    target = data[3:, 1:].to(args.device)
    test_signal = data[:3, :-1].to(args.device)
    test_target = data[:3, 1:].to(args.device)
    seq = Sequence().double().to(args.device)
    criterion = nn.MSELoss()
    optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.8, max_iter=args.iterations)
    losses = []
    for step in range(args.steps):
        print("STEP:", step)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = criterion(seq(signal), target)
            print("loss:", loss.item())
            losses.append(loss.item())
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            pred = seq(test_signal, future=args.future)
            loss = criterion(pred[:, : -args.future], test_target)
            print("test loss:", loss.item())
            losses.append(loss.item())
            pred.detach().cpu().numpy()
    return losses


if __name__ == "__main__":
    main()
