"""A generator against a discriminator, transposed convolutions and batch norms, as
pytorch/examples' dcgan."""

import torch
from common import flags, placed
from torch import nn, optim


def weights_init(m: nn.Module) -> None:
    """Draws the weights by class name."""
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        torch.nn.init.normal_(m.weight, 1.0, 0.02)
        torch.nn.init.zeros_(m.bias)


def generator(nz: int, ngf: int) -> nn.Module:
    """Images of 16 x 16 of noise."""
    return nn.Sequential(
        nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
        nn.BatchNorm2d(ngf * 2),
        nn.ReLU(True),
        nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
        nn.BatchNorm2d(ngf),
        nn.ReLU(True),
        nn.ConvTranspose2d(ngf, 3, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


def discriminator(ndf: int) -> nn.Module:
    """The probability that an image is real."""
    return nn.Sequential(
        nn.Conv2d(3, ndf, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
        nn.BatchNorm2d(ndf * 2),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False),
        nn.Sigmoid(),
        nn.Flatten(0),
    )


def main(arguments: list[str] | None = None) -> list[float]:
    """Trains both and returns both losses of each step."""
    args = flags(__doc__, 5).parse_args(arguments)
    torch.manual_seed(1)
    nz, batch = 16, 16
    net_g, net_d = generator(nz, 8), discriminator(8)
    net_g.apply(weights_init)
    net_d.apply(weights_init)
    images, noises = (
        torch.rand(args.steps, batch, 3, 16, 16) * 2 - 1,
        torch.randn(args.steps, batch, nz, 1, 1),
    )
    net_g, net_d = placed(net_g, args), placed(net_d, args)
    criterion = nn.BCELoss()
    optimizer_d = optim.Adam(net_d.parameters(), lr=0.0002, betas=(0.5, 0.999))
    optimizer_g = optim.Adam(net_g.parameters(), lr=0.0002, betas=(0.5, 0.999))
    losses = []
    for i, (data, noise) in enumerate(zip(images, noises, strict=True)):
        net_d.zero_grad()
        real = data.to(args.device)
        label = torch.full((batch,), 1.0, device=args.device)
        output = net_d(real)
        err_d_real = criterion(output, label)
        err_d_real.backward()
        d_x = output.mean().item()
        fake = net_g(noise.to(args.device))
        label.fill_(0.0)
        output = net_d(fake.detach())
        err_d_fake = criterion(output, label)
        err_d_fake.backward()
        err_d = err_d_real + err_d_fake
        optimizer_d.step()
        net_g.zero_grad()
        label.fill_(1.0)
        output = net_d(fake)
        err_g = criterion(output, label)
        err_g.backward()
        optimizer_g.step()
        losses += [err_d.item(), err_g.item(), d_x]
        print(f"[{i}] Loss_D: {losses[-3]:.4f} Loss_G: {losses[-2]:.4f} D(x): {d_x:.4f}")
    return losses


if __name__ == "__main__":
    main()
