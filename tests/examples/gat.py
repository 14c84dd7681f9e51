"""Nodes of a graph classified by attention over neighbours, as pytorch/examples' gat."""

import torch
import torch.nn.functional as F
from common import flags
from torch import Tensor, nn, optim


class GraphAttentionLayer(nn.Module):
    """Attention of each node over its neighbours, by a dense adjacency matrix."""

    def __init__(self, in_features: int, out_features: int, n_heads: int, *, concat: bool) -> None:
        super().__init__()
        self.n_heads, self.concat = n_heads, concat
        self.n_hidden = out_features // n_heads if concat else out_features
        self.W = nn.Parameter(torch.empty(in_features, self.n_hidden * n_heads))
        self.a = nn.Parameter(torch.empty(n_heads, 2 * self.n_hidden, 1))
        nn.init.xavier_normal_(self.W)
        nn.init.xavier_normal_(self.a)

    def forward(self, h: Tensor, adj_mat: Tensor) -> Tensor:
        n_nodes = h.shape[0]
        h_transformed = (
            torch.mm(h, self.W).view(n_nodes, self.n_heads, self.n_hidden).permute(1, 0, 2)
        )
        source = torch.matmul(h_transformed, self.a[:, : self.n_hidden, :])
        target = torch.matmul(h_transformed, self.a[:, self.n_hidden :, :])
        e = F.leaky_relu(source + target.mT, 0.2)
        attention = torch.where(adj_mat > 0, e, -9e16 * torch.ones_like(e))
        h_prime = torch.matmul(F.softmax(attention, dim=-1), h_transformed)
        if self.concat:
            return h_prime.permute(1, 0, 2).contiguous().view(n_nodes, -1)
        return h_prime.mean(dim=0)


class GAT(nn.Module):
    """Two such layers."""

    def __init__(self, in_features: int, n_hidden: int, n_heads: int, num_classes: int) -> None:
        super().__init__()
        self.gat1 = GraphAttentionLayer(in_features, n_hidden, n_heads, concat=True)
        self.gat2 = GraphAttentionLayer(n_hidden, num_classes, 1, concat=False)

    def forward(self, features: Tensor, adj_mat: Tensor) -> Tensor:
        return F.log_softmax(self.gat2(F.elu(self.gat1(features, adj_mat)), adj_mat), dim=1)


def main(arguments: list[str] | None = None) -> list[float]:
    """Trains on part of the nodes and returns losses and accuracies."""
    args = flags(__doc__, 6).parse_args(arguments)
    torch.manual_seed(13)
    nodes = 40
    edges = torch.randint(nodes, (2, 120))
    adj = torch.eye(nodes)
    adj[edges[0], edges[1]] = 1.0
    features, labels = torch.rand(nodes, 12), torch.randint(3, (nodes,))
    order = torch.randperm(nodes)
    idx_train, idx_val = order[:24].to(args.device), order[24:].to(args.device)
    features, labels, adj = features.to(args.device), labels.to(args.device), adj.to(args.device)
    if args.fsdp:
        import spmd

        mesh = spmd.Mesh(spmd.device_ids(), (len(spmd.device_ids()),), ("nodes",))
        for tensor in (features, labels, adj):
            spmd.mark_sharding(tensor, mesh, ("nodes", *[None] * (tensor.dim() - 1)))
    model = GAT(12, 16, 4, 3).to(args.device)
    optimizer = optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    criterion = nn.NLLLoss()
    figures = []
    for epoch in range(args.steps):
        model.train()
        optimizer.zero_grad()
        output = model(features, adj)
        loss = criterion(output[idx_train], labels[idx_train])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            output = model(features, adj)
            accuracy = output[idx_val].argmax(dim=1).eq(labels[idx_val]).float().mean().item()
        figures += [loss.item(), accuracy]
        print(f"Epoch {epoch + 1}: Loss: {figures[-2]:.4f} Accuracy: {accuracy:.4f}")
    return figures


if __name__ == "__main__":
    main()
