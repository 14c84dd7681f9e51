"""Digits classified by two convolutions with dropout, Adadelta and StepLR, as pytorch/examples'
mnist."""

import torch
import torch.nn.functional as F
from common import flags, placed
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Two convolutions, two linear layers, log-probabilities of ten digits."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.conv2 = nn.Conv2d(8, 16, 3, 1)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.fc1 = nn.Linear(16 * 6 * 6, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = self.dropout2(F.relu(self.fc1(torch.flatten(x, 1))))
        return F.log_softmax(self.fc2(x), dim=1)


def test(model: nn.Module, device: str, loader: DataLoader) -> tuple[float, int]:
    """Returns the mean loss and the number of digits that were right."""
    model.eval()
    test_loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    return test_loss / len(loader.dataset), correct


def main(arguments: list[str] | None = None) -> list[float]:
    """Trains and returns the losses of training and of the tests."""
    parser = flags(__doc__, 6)
    parser.add_argument("--dropout", type=float, default=0.25)
    args = parser.parse_args(arguments)
    torch.manual_seed(1)
    images = torch.rand(16 * args.steps + 20, 1, 16, 16)
    digits = torch.randint(10, (len(images),))
    train_loader = DataLoader(
        TensorDataset(images[:-20], digits[:-20]), batch_size=16, shuffle=True
    )
    # the last batch is smaller
    test_loader = DataLoader(TensorDataset(images[-20:], digits[-20:]), batch_size=16)
    model = placed(Net(args.dropout), args)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    losses = []
    for epoch in range(1, 3):
        model.train()
        for batch_idx, (data, target) in enumerate(train_loader):
            data, target = data.to(args.device), target.to(args.device)
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
            if batch_idx % 2 == 0:
                losses.append(loss.item())
                print(f"Train Epoch: {epoch} [{batch_idx * len(data)}] Loss: {losses[-1]:.6f}")
        average, correct = test(model, args.device, test_loader)
        print(
            f"Test set: Average loss: {average:.4f}, Accuracy: {correct}/{len(test_loader.dataset)}"
        )
        losses += [average, correct]
        scheduler.step()
    return losses


if __name__ == "__main__":
    main()
