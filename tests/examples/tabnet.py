"""Attentive steps over a table's columns: ghost batch norm, sparsemax, GLU blocks, as
pytorch-tabnet trains them."""

import math

import numpy as np
import torch
from common import flags, placed
from torch import Tensor, nn, optim


class SparsemaxFunction(torch.autograd.Function):
    """The Euclidean projection onto the simplex (Martins, Astudillo 2016), with its gradient."""

    @staticmethod
    def forward(ctx, input: Tensor, dim: int) -> Tensor:
        ctx.dim = dim
        max_val, _ = input.max(dim=dim, keepdim=True)
        input = input - max_val
        tau, supp_size = SparsemaxFunction.threshold_and_support(input, dim)
        output = torch.clamp(input - tau, min=0)
        ctx.save_for_backward(supp_size, output)
        return output

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> tuple[Tensor, None]:
        supp_size, output = ctx.saved_tensors
        dim = ctx.dim
        grad_input = grad_output.clone()
        grad_input[output == 0] = 0
        v_hat = grad_input.sum(dim=dim) / supp_size.to(output.dtype).squeeze(dim)
        grad_input = torch.where(output != 0, grad_input - v_hat.unsqueeze(dim), grad_input)
        return grad_input, None

    @staticmethod
    def threshold_and_support(input: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        input_srt, _ = torch.sort(input, descending=True, dim=dim)
        input_cumsum = input_srt.cumsum(dim) - 1
        rhos = torch.arange(1, input.size(dim) + 1, device=input.device, dtype=input.dtype)
        support = rhos * input_srt > input_cumsum
        support_size = support.sum(dim=dim).unsqueeze(dim)
        tau = input_cumsum.gather(dim, support_size - 1)
        return tau / support_size.to(input.dtype), support_size


class GBN(nn.Module):
    """Ghost batch normalization: each virtual batch by its own statistics."""

    def __init__(self, input_dim: int, virtual_batch_size: int = 16) -> None:
        super().__init__()
        self.virtual_batch_size = virtual_batch_size
        self.bn = nn.BatchNorm1d(input_dim, momentum=0.02)

    def forward(self, x: Tensor) -> Tensor:
        chunks = x.chunk(int(np.ceil(x.shape[0] / self.virtual_batch_size)), 0)
        return torch.cat([self.bn(x_) for x_ in chunks], dim=0)


class GLULayer(nn.Module):
    """A linear layer, shared or its own, a ghost norm and a gate."""

    def __init__(self, input_dim: int, output_dim: int, fc: nn.Module | None = None) -> None:
        super().__init__()
        self.output_dim = output_dim
        self.fc = nn.Linear(input_dim, 2 * output_dim, bias=False) if fc is None else fc
        self.bn = GBN(2 * output_dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.fc(x))
        return torch.mul(x[:, : self.output_dim], torch.sigmoid(x[:, self.output_dim :]))


class FeatTransformer(nn.Module):
    """Two blocks of shared layers and two of its own, joined by scaled residuals."""

    def __init__(self, input_dim: int, output_dim: int, shared: nn.ModuleList) -> None:
        super().__init__()
        self.shared = nn.ModuleList([GLULayer(0, output_dim, fc) for fc in shared])
        self.specifics = nn.ModuleList([GLULayer(output_dim, output_dim) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.sqrt(torch.FloatTensor([0.5]).to(x.device))
        x = self.shared[0](x)
        for layer in [*self.shared[1:], *self.specifics]:
            x = torch.add(x, layer(x))
            x = x * scale
        return x


class AttentiveTransformer(nn.Module):
    """The mask of a step: the columns that it reads."""

    def __init__(self, input_dim: int, group_dim: int) -> None:
        super().__init__()
        self.fc = nn.Linear(input_dim, group_dim, bias=False)
        self.bn = GBN(group_dim)

    def forward(self, priors: Tensor, processed_feat: Tensor) -> Tensor:
        x = self.bn(self.fc(processed_feat))
        return SparsemaxFunction.apply(torch.mul(x, priors), -1)


class TabNet(nn.Module):
    """The encoder's steps and the decision."""

    def __init__(
        self, input_dim: int, output_dim: int, n_d: int = 8, n_a: int = 8, n_steps: int = 3
    ) -> None:
        super().__init__()
        self.n_d, self.gamma, self.epsilon = n_d, 1.3, 1e-15
        self.initial_bn = nn.BatchNorm1d(input_dim, momentum=0.01)
        self.register_buffer("group_attention_matrix", torch.eye(input_dim))
        both = n_d + n_a
        shared = nn.ModuleList(
            [nn.Linear(input_dim, 2 * both, bias=False), nn.Linear(both, 2 * both, bias=False)]
        )
        self.initial_splitter = FeatTransformer(input_dim, both, shared)
        self.feat_transformers = nn.ModuleList(
            [FeatTransformer(input_dim, both, shared) for _ in range(n_steps)]
        )
        self.att_transformers = nn.ModuleList(
            [AttentiveTransformer(n_a, input_dim) for _ in range(n_steps)]
        )
        self.final_mapping = nn.Linear(n_d, output_dim, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        res, M_loss, *_ = self.forward_masks(x)
        return self.final_mapping(res), M_loss

    def forward_masks(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[int, Tensor]]:
        """The decision's input, the loss of the masks, the importance of each column, and the mask
        of each step."""
        x = self.initial_bn(x)
        bs = x.shape[0]
        prior = torch.ones((bs, self.group_attention_matrix.shape[0])).to(x.device)
        M_loss, M_explain, masks = 0, torch.zeros(x.shape).to(x.device), {}
        att = self.initial_splitter(x)[:, self.n_d :]
        res = 0
        steps = zip(self.feat_transformers, self.att_transformers, strict=True)
        for step, (feat_transformer, att_transformer) in enumerate(steps):
            M = att_transformer(prior, att)
            masks[step] = M
            M_loss += torch.mean(torch.sum(torch.mul(M, torch.log(M + self.epsilon)), dim=1))
            prior = torch.mul(self.gamma - M, prior)
            M_feature_level = torch.matmul(M, self.group_attention_matrix)
            out = feat_transformer(torch.mul(M_feature_level, x))
            d = nn.ReLU()(out[:, : self.n_d])
            res = torch.add(res, d)
            M_explain += torch.mul(M_feature_level, torch.sum(d, dim=1).unsqueeze(dim=1))
            att = out[:, self.n_d :]
        return res, M_loss / len(self.feat_transformers), M_explain, masks


def main(arguments: list[str] | None = None) -> list[float]:
    """Trains for epochs with a validation after each; returns losses, the masks' maxima, the
    columns' importance."""
    args = flags(__doc__, 2).parse_args(arguments)
    torch.manual_seed(0)
    columns, classes, batch_size, rows, valid_rows = 12, 3, 64, 64 * 3, 80
    X = torch.randn(rows + valid_rows, columns)
    y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).long() + (X[:, 3] > 0.5).long()
    network = placed(TabNet(columns, classes), args)
    optimizer = optim.Adam(network.parameters(), lr=2e-3, eps=1e-5)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    order = torch.Generator().manual_seed(1)
    figures: list[float] = []
    for epoch in range(args.steps):
        network.train()
        total = 0.0
        for indices in torch.randperm(rows, generator=order).split(batch_size):
            data, target = X[indices].to(args.device).float(), y[indices].to(args.device)
            for param in network.parameters():
                param.grad = None
            output, M_loss = network(data)
            loss = nn.functional.cross_entropy(output, target)
            loss = loss - 1e-3 * M_loss
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            loss = loss.cpu().detach().numpy().item()
            figures.append(loss)
            total += loss
        network.eval()
        results = []
        for start in range(rows, rows + valid_rows, batch_size):
            data = X[start : start + batch_size].to(args.device).float()
            scores, _ = network(data)
            results.append(torch.nn.Softmax(dim=1)(scores).cpu().detach().numpy())
        scores = np.vstack(results)
        log_loss = -np.log(scores[np.arange(valid_rows), y[rows:].numpy()] + 1e-9).mean()
        figures.append(float(log_loss))
        scheduler.step()
        print(
            f"epoch {epoch} | loss: {total / math.ceil(rows / batch_size):.5f} | valid_logloss: "
            f"{log_loss:.5f}"
        )
    network.eval()
    importances = np.zeros(columns)
    for start in range(0, rows, batch_size):
        _, _, M_explain, masks = network.forward_masks(
            X[start : start + batch_size].to(args.device).float()
        )
        masks = {step: mask.cpu().detach().numpy() for step, mask in masks.items()}
        importances += M_explain.cpu().detach().numpy().sum(axis=0)
        figures += [float(mask.max()) for mask in masks.values()]
    return [*figures, *(importances / importances.sum()).tolist()]


if __name__ == "__main__":
    main()
