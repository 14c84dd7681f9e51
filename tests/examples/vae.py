"""A variational autoencoder of images, as pytorch/examples' vae."""

import torch
import torch.nn.functional as F
from common import flags, placed
from torch import Tensor, nn, optim


class VAE(nn.Module):
    """An encoder into means and log variances, a decoder of a sample."""

    def __init__(self, pixels: int = 64) -> None:
        super().__init__()
        self.fc1 = nn.Linear(pixels, 40)
        self.fc21 = nn.Linear(40, 8)
        self.fc22 = nn.Linear(40, 8)
        self.fc3 = nn.Linear(8, 40)
        self.fc4 = nn.Linear(40, pixels)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h1 = F.relu(self.fc1(x.flatten(1)))
        mu, logvar = self.fc21(h1), self.fc22(h1)
        z = mu + noise * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def loss_function(recon_x: Tensor, x: Tensor, mu: Tensor, logvar: Tensor) -> Tensor:
    """Reconstruction and KL divergence, summed over elements and batch."""
    bce = F.binary_cross_entropy(recon_x, x.flatten(1), reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


def main(arguments: list[str] | None = None) -> list[float]:
    """Trains and returns the losses."""
    args = flags(__doc__, 8).parse_args(arguments)
    torch.manual_seed(1)
    images = torch.rand(args.steps, 16, 1, 8, 8)
    noise = torch.randn(args.steps, 16, 8)
    model = placed(VAE(), args)
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    train_loss, losses = 0.0, []
    for batch_idx, (data, eps) in enumerate(zip(images, noise, strict=True)):
        data = data.to(args.device)
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data, eps.to(args.device))
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
        losses.append(loss.item() / len(data))
        print(f"Train [{batch_idx}] Loss: {losses[-1]:.6f}")
    print(f"====> Average loss: {train_loss / args.steps:.4f}")
    return losses


if __name__ == "__main__":
    main()
