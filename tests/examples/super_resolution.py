"""Images enlarged by sub-pixel convolution, as pytorch/examples' super_resolution."""

from math import log10

import torch
from common import flags, placed
from torch import Tensor, nn, optim
from torch.nn import init


class Net(nn.Module):
    """Four convolutions, then pixels of the channels."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 16, (5, 5), (1, 1), (2, 2))
        self.conv2 = nn.Conv2d(16, 16, (3, 3), (1, 1), (1, 1))
        self.conv3 = nn.Conv2d(16, 8, (3, 3), (1, 1), (1, 1))
        self.conv4 = nn.Conv2d(8, upscale_factor**2, (3, 3), (1, 1), (1, 1))
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        for conv in (self.conv1, self.conv2, self.conv3):
            init.orthogonal_(conv.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv4.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        x = self.relu(self.conv3(x))
        return self.pixel_shuffle(self.conv4(x))


def main(arguments: list[str] | None = None) -> list[float]:
    """Trains and returns the losses and the signal-to-noise ratios."""
    args = flags(__doc__, 6).parse_args(arguments)
    torch.manual_seed(123)
    large = torch.rand(args.steps, 8, 1, 24, 24)
    small = nn.functional.interpolate(
        large.flatten(0, 1), scale_factor=1 / 3, mode="bicubic", antialias=True
    )
    small = small.unflatten(0, large.shape[:2])
    model = placed(Net(upscale_factor=3), args)
    criterion = nn.MSELoss()
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    figures = []
    for epoch in range(2):
        epoch_loss = 0.0
        for inputs, target in zip(small[:-1], large[:-1], strict=True):
            optimizer.zero_grad()
            loss = criterion(model(inputs.to(args.device)), target.to(args.device))
            epoch_loss += loss.item()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            mse = criterion(model(small[-1].to(args.device)), large[-1].to(args.device))
        figures += [epoch_loss / (args.steps - 1), 10 * log10(1 / mse.item())]
        print(f"===> Epoch {epoch}: Avg. Loss: {figures[-2]:.4f} Avg. PSNR: {figures[-1]:.4f} dB")
    return figures


if __name__ == "__main__":
    main()
