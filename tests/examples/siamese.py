"""Pairs of images compared by one network, as pytorch/examples' siamese_network."""

import torch
from common import flags, placed
from torch import Tensor, nn, optim


class SiameseNetwork(nn.Module):
    """Features of each image by shared weights, then the probability that both show one class."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2, padding=2, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.fc = nn.Sequential(nn.Linear(128, 32), nn.ReLU(inplace=True), nn.Linear(32, 1))
        self.fc.apply(self.init_weights)

    def init_weights(self, m: nn.Module) -> None:
        if isinstance(m, nn.Linear):
            torch.nn.init.xavier_uniform_(m.weight)
            m.bias.data.fill_(0.01)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        output1 = self.cnn(input1).view(input1.size()[0], -1)
        output2 = self.cnn(input2).view(input2.size()[0], -1)
        return torch.sigmoid(self.fc(torch.cat((output1, output2), 1)))


def main(arguments: list[str] | None = None) -> list[float]:
    """Trains and returns the losses and the pairs that were right."""
    args = flags(__doc__, 6).parse_args(arguments)
    torch.manual_seed(1)
    pairs = torch.rand(args.steps, 2, 16, 1, 20, 20)
    targets = torch.randint(2, (args.steps, 16)).float()
    model = placed(SiameseNetwork(), args)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    criterion = nn.BCELoss()
    figures = []
    model.train()
    for (one, other), target in zip(pairs, targets, strict=True):
        images_1, images_2, target = (
            one.to(args.device),
            other.to(args.device),
            target.to(args.device),
        )
        optimizer.zero_grad()
        loss = criterion(model(images_1, images_2).squeeze(), target)
        loss.backward()
        optimizer.step()
        figures.append(loss.item())
    model.eval()
    with torch.no_grad():
        outputs = model(pairs[0, 0].to(args.device), pairs[0, 1].to(args.device)).squeeze()
        pred = torch.where(outputs > 0.5, 1, 0)
        figures.append(pred.eq(targets[0].to(args.device).view_as(pred)).sum().item())
    print(figures)
    return figures


if __name__ == "__main__":
    main()
