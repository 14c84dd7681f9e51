"""Images classified by a transformer over patches, as pytorch/examples' vision_transformer."""

import torch
from common import flags, placed
from torch import Tensor, nn, optim


class PatchExtractor(nn.Module):
    """Patches of an image as rows, by views."""

    def __init__(self, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size

    def forward(self, input_data: Tensor) -> Tensor:
        batch_size, channels, _, _ = input_data.size()
        unfolded = input_data.unfold(2, self.patch_size, self.patch_size).unfold(
            3, self.patch_size, self.patch_size
        )
        unfolded = unfolded.contiguous().view(
            batch_size, channels, -1, self.patch_size, self.patch_size
        )
        return (
            unfolded.permute(0, 2, 1, 3, 4)
            .contiguous()
            .view(batch_size, -1, channels * self.patch_size**2)
        )


class Encoder(nn.Module):
    """Attention and a feed-forward layer, normalised before each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.fc = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.GELU()
        )

    def forward(self, data: Tensor) -> Tensor:
        x = self.norm1(data)
        x = data + self.attention(query=x, key=x, value=x)[0]
        return x + self.fc(self.norm2(x))


class ViT(nn.Module):
    """Patches, a class token, positions, encoder layers, a head."""

    def __init__(self, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.patch_embedding = nn.Sequential(PatchExtractor(4), nn.Linear(4 * 4 * 3, width))
        self.class_token = nn.Parameter(torch.rand(1, 1, width))
        self.positions = nn.Parameter(torch.rand(1, 17, width))
        self.encoders = nn.ModuleList([Encoder(width, 4) for _ in range(layers)])
        self.norm, self.mlp_head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, data: Tensor) -> Tensor:
        patches = self.patch_embedding(data)
        encoded = (
            torch.cat([self.class_token.expand(len(data), -1, -1), patches], dim=1) + self.positions
        )
        for encoder in self.encoders:
            encoded = encoder(encoded)
        return self.mlp_head(self.norm(encoded[:, 0]))


def main(arguments: list[str] | None = None) -> list[float]:
    """Trains and returns the losses."""
    args = flags(__doc__, 6).parse_args(arguments)
    torch.manual_seed(1)
    images, labels = torch.rand(args.steps, 16, 3, 16, 16), torch.randint(10, (args.steps, 16))
    model = placed(ViT(), args)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for x, y in zip(images, labels, strict=True):
        optimizer.zero_grad()
        loss = criterion(model(x.to(args.device)), y.to(args.device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(losses)
    return losses


if __name__ == "__main__":
    main()
