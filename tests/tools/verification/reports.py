"""Public reports of parallel training that was silently wrong elsewhere, each as a plain PyTorch
step with a layout.

A step is written for one device. `test_reports.py` runs it over `MESHES` in float64;
docs/wrong-numbers.md says what went wrong and where that is told.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

from spmd import P, ShardingRules

AXES = ("data", "fsdp", "tensor")
# Data parallel, FSDP and tensor parallel over eight devices, then two of them, and all three.
SHAPES = ((8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 1, 4), (4, 2, 1), (2, 2, 2))
ROWS, LENGTH, WIDTH, NUM_HEADS, NUM_EXPERTS, NUM_CLASSES, IGNORED = 16, 6, 12, 6, 4, 10, -100
TOKENS = (ROWS, LENGTH)
BATCH = ("data", "fsdp")


class Report(NamedTuple):
    """A step for one device, its model and batch, and the rules that shard what the model has and
    is given.

    draws: whether it draws random numbers, which are others on the CPU.
    """

    step: Callable[..., Any]
    model: nn.Module
    batch: tuple[Tensor, ...]
    rules: ShardingRules
    draws: bool = False


def report(
    model: nn.Module,
    batch: Sequence[Tensor],
    specs: dict[str, P],
    *,
    step: Callable[..., Any] | None = None,
    draws: bool = False,
    **units: Any,
) -> Report:
    """A report of a model that returns its loss; inputs are sharded by their rows, parameters as
    the specs say.

    step: instead of forward, backward and SGD, called with the model, the optimizer and the batch.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs = {
        f":input[{number}]": P(BATCH, *[None] * (tensor.dim() - 1))
        for number, tensor in enumerate(batch)
    }
    doing = step or trained
    return Report(
        lambda *batch: doing(model, optimizer, *batch),
        model.double(),
        tuple(batch),
        ShardingRules(specs | inputs, **units),
        draws,
    )


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, *batch: Tensor) -> Tensor:
    loss = model(*batch)
    loss.backward()
    optimizer.step()
    return loss


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def words() -> Tensor:
    return torch.randint(NUM_CLASSES, TOKENS)


# -- Mixtures of experts.


class Experts(nn.Module):
    """Two of four experts for each token, weighted by a router; all experts are computed, the
    weights are mostly 0."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, NUM_EXPERTS, bias=False)
        self.up = nn.Parameter(randn(NUM_EXPERTS, WIDTH, 8))
        self.down = nn.Parameter(randn(NUM_EXPERTS, 8, WIDTH))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        gates = torch.zeros_like(self.router(x)).scatter(-1, chosen, weights)
        hidden = F.gelu(torch.einsum("bsw,ewh->bseh", x, self.up))
        return F.mse_loss(torch.einsum("bseh,ehw,bse->bsw", hidden, self.down, gates), target)


def router_under_tensor_parallel() -> Report:
    specs = {"up": P("tensor", "fsdp", None), "down": P("tensor", None, "fsdp")}
    return report(Experts(), (randn(*TOKENS, WIDTH), randn(*TOKENS, WIDTH)), specs)


class Switch(nn.Module):
    """One expert for each token, which runs on the tokens that chose it, as many as it has places
    for."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.router = nn.Linear(WIDTH, NUM_EXPERTS)
        self.weight = nn.Parameter(randn(NUM_EXPERTS, WIDTH, WIDTH))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        gate, expert = self.router(tokens).softmax(-1).max(-1)
        chosen = F.one_hot(expert, NUM_EXPERTS)
        place = (chosen.cumsum(0) * chosen).sum(-1) - 1
        kept = place < self.capacity
        slot = (expert * self.capacity + place).where(kept, NUM_EXPERTS * self.capacity)
        rows = tokens.new_zeros(NUM_EXPERTS * self.capacity + 1, WIDTH).index_copy(
            0, slot, tokens * kept[:, None]
        )
        made = torch.bmm(rows[:-1].view(NUM_EXPERTS, self.capacity, WIDTH), self.weight).flatten(
            0, 1
        )
        result = F.pad(made, (0, 0, 0, 1))[slot] * gate[:, None]
        return F.mse_loss(result.view_as(x), target)


def experts_beside_data_parallel() -> Report:
    specs = {"weight": P(("data", "tensor"), "fsdp", None)}
    return report(Switch(capacity=20), (randn(*TOKENS, WIDTH), randn(*TOKENS, WIDTH)), specs)


class Balanced(nn.Module):
    """A router with the loss that balances experts: products of the fractions and of the mean
    probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, NUM_EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        probabilities = self.router(x).softmax(-1).flatten(0, 1)
        fractions = F.one_hot(probabilities.argmax(-1), NUM_EXPERTS).double().mean(0)
        return NUM_EXPERTS * (fractions * probabilities.mean(0)).sum()


def balance_of_the_batch() -> Report:
    return report(Balanced(), (randn(*TOKENS, WIDTH),), {"router.weight": P("tensor", "fsdp")})


# -- Norms of gradients.


class Block(nn.Module):
    """A norm and two layers, of which tensor parallelism splits the first by columns, the second by
    rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 32),
            nn.Linear(32, WIDTH),
        )

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(x + self.down(F.gelu(self.up(self.norm(x)))), target)


SPLIT = {
    "up.weight": P("tensor", "fsdp"),
    "up.bias": P("tensor"),
    "down.weight": P("fsdp", "tensor"),
}


def norm_of_shards() -> Report:
    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, *batch: Tensor
    ) -> tuple[Tensor, Tensor]:
        loss = model(*batch)
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss, norm

    batch = randn(*TOKENS, WIDTH), randn(*TOKENS, WIDTH)
    return report(
        Block(),
        batch,
        {"down.weight": P("fsdp", "tensor")},
        step=step,
        units=[],
        extra_data_axis="data",
    )


def norm_of_copies() -> Report:
    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, *batch: Tensor
    ) -> tuple[Tensor, ...]:
        loss = model(*batch)
        loss.backward()
        gradients = [
            parameter.grad for parameter in model.parameters() if parameter.grad is not None
        ]
        norms = [get_total_norm(gradients, norm_type=kind) for kind in (1.0, 2.0, float("inf"))]
        clip_grads_with_norm_(model.parameters(), 0.1, norms[0])
        optimizer.step()
        return loss, *norms

    return report(Block(), (randn(*TOKENS, WIDTH), randn(*TOKENS, WIDTH)), SPLIT, step=step)


# -- Losses.


class Classifier(nn.Module):
    """Logits over classes that are split, whatever their number."""

    def __init__(self, **loss: Any) -> None:
        super().__init__()
        self.head, self.loss = nn.Linear(WIDTH, NUM_CLASSES), loss

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(x).movedim(-1, 1), labels, **self.loss)


HEAD = {"head.weight": P("tensor", "fsdp"), "head.bias": P("tensor")}


def labels_of_unequal_rows() -> Tensor:
    """Labels of which each row ignores another number, the first rows nearly all."""
    return words().where(torch.arange(LENGTH) < torch.arange(ROWS)[:, None] // 3 + 1, IGNORED)


def split_classes() -> Report:
    return report(Classifier(label_smoothing=0.1), (randn(*TOKENS, WIDTH), words()), HEAD)


def mean_of_means() -> Report:
    return report(
        Classifier(ignore_index=IGNORED), (randn(*TOKENS, WIDTH), labels_of_unequal_rows()), HEAD
    )


def summed_loss() -> Report:
    return report(
        Classifier(reduction="sum"),
        (randn(*TOKENS, WIDTH), words()),
        HEAD,
        units=[],
        extra_data_axis="data",
    )


def accumulated_means() -> Report:
    """Micro-batches of unequal numbers of labels: their sum, over the number of all; and what they
    hand on."""

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, labels: Tensor
    ) -> tuple[Tensor, ...]:
        number = (labels != IGNORED).sum()
        total, seen, largest = x.new_zeros(()), labels.new_zeros(()), x.new_zeros(())
        for part in range(4):
            rows = slice(part, None, 4)
            loss = model(x[rows], labels[rows]) / number
            loss.backward()
            total, seen = total + loss.detach(), seen + (labels[rows] != IGNORED).sum()
            largest = torch.maximum(largest, loss.detach())
        optimizer.step()
        return total, seen, largest

    model = Classifier(ignore_index=IGNORED, reduction="sum")
    return report(model, (randn(*TOKENS, WIDTH), labels_of_unequal_rows()), HEAD, step=step)


def uneven_rows() -> Report:
    """The last batch of an epoch: 13 rows for eight devices, none of them twice."""
    rows = 13
    return report(
        Classifier(), (randn(rows, LENGTH, WIDTH), torch.randint(NUM_CLASSES, (rows, LENGTH))), HEAD
    )


# -- Shapes.


class Attention(nn.Module):
    """Six heads over up to eight devices, with a norm of each head's queries and keys, and rotated
    positions."""

    def __init__(self, *, causal: bool = False) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.query_norm, self.key_norm = (
            nn.RMSNorm(WIDTH // NUM_HEADS),
            nn.RMSNorm(WIDTH // NUM_HEADS),
        )
        self.causal = causal

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        query, key, value = (
            one(x).unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        query, key = self.query_norm(query), self.key_norm(key)
        if self.causal:
            angles = torch.arange(x.shape[1], dtype=x.dtype, device=x.device)[:, None]
            query, key = (rotated(one, angles) for one in (query, key))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return F.mse_loss(self.out(mixed.transpose(1, 2).flatten(2)), target)


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    one, two = x.chunk(2, -1)
    return torch.cat(
        [one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()], -1
    )


HEADS = {"{query,key,value}.weight": P("tensor", "fsdp"), "out.weight": P("fsdp", "tensor")}


def views_of_split_dims() -> Report:
    """Dims of 6 heads times 2 that are split are taken apart and put together again."""
    return report(Attention(), (randn(*TOKENS, WIDTH), randn(*TOKENS, WIDTH)), HEADS)


def norms_of_heads() -> Report:
    specs = {**HEADS, "{query,key}_norm.weight": P()}
    return report(
        Attention(),
        (randn(*TOKENS, WIDTH), randn(*TOKENS, WIDTH)),
        specs,
        units=[],
        extra_data_axis="data",
    )


def positions_of_a_split_sequence() -> Report:
    made = report(Attention(causal=True), (randn(*TOKENS, WIDTH), randn(*TOKENS, WIDTH)), HEADS)
    return made._replace(rules=made.rules.put(":input[0]", P("data", ("fsdp", "tensor"), None)))


class Squeezed(nn.Module):
    """A dim of eight rows over eight devices, one each, beside dims of size 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(randn(8, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        product = torch.einsum("nbw,bow->nbo", x.squeeze().view(2, 8, WIDTH), self.weight)
        return (product.squeeze() * self.weight.squeeze().sum(-1)).square().mean()


def squeezed_shards() -> Report:
    return report(
        Squeezed(), (randn(ROWS, 1, WIDTH),), {"weight": P(("data", "fsdp", "tensor"), None, None)}
    )


class Ordered(nn.Module):
    """Rows of a weight by number, and all of it: the order of its shards shows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(randn(16, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.arange(16, dtype=x.dtype, device=x.device)
        return ((x @ self.weight.T) * scale).square().mean() + self.weight[3:6].sum() * self.weight[
            11, 2
        ]


def order_of_shards() -> Report:
    return report(
        Ordered(), (randn(ROWS, WIDTH),), {"weight": P(("tensor", "fsdp"), None)}, units=[]
    )


# -- Random numbers and statistics.


class Dropped(nn.Module):
    """Dropout before and inside of what is split; the result of each element shows which are
    kept."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.dropout(self.up(F.dropout(x, 0.25)).exp(), 0.5)
        return self.down(hidden).square().mean(), hidden != 0


def dropout_on_shards() -> Report:
    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        loss, kept = model(x)
        loss.backward()
        optimizer.step()
        return loss, kept

    return report(Dropped(), (randn(*TOKENS, WIDTH),), SPLIT, step=step, draws=True)


class Normalised(nn.Module):
    """Batch norm in training, of a number of rows that the devices do not divide; then in
    evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        loss = F.mse_loss(self.head(self.norm(self.convolution(x)).relu().mean((2, 3))), target)
        self.eval()
        return loss + F.mse_loss(
            self.head(self.norm(self.convolution(x)).relu().mean((2, 3))), target
        )


def statistics_of_the_batch() -> Report:
    specs = {"convolution.weight": P("tensor", None, None, None)}
    return report(Normalised(), (randn(13, 3, 8, 8), randn(13, 4)), specs)


class Counted(nn.Module):
    """A histogram over the range of the values, and quantiles of them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        values = x * self.scale
        counts = torch.histc(values.detach(), bins=7)
        return (counts * torch.arange(7, dtype=x.dtype, device=x.device)).sum() * values.quantile(
            0.3
        ) + values.median()


def histogram_of_shards() -> Report:
    return report(Counted(), (randn(ROWS, WIDTH),), {"scale": P("tensor")})


# -- Partial sums, copies, and layers.


class Partial(nn.Module):
    """What is not linear in a sum over devices: relu, constants of its shape, a bias, a
    residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        summed = self.down(self.up(x))
        return (
            x
            + summed.relu()
            + torch.full_like(summed, 0.5)
            + torch.ones_like(summed) / (1 + summed.exp())
        ).mean()


def partial_sums() -> Report:
    return report(Partial(), (randn(*TOKENS, WIDTH),), SPLIT)


class Tied(nn.Module):
    """Embeddings split over words, with one for padding, which are the last layer's weight as
    well."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = (
            nn.Embedding(NUM_CLASSES, WIDTH, padding_idx=0),
            nn.Linear(WIDTH, NUM_CLASSES),
        )
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(
            self.head(self.embed(tokens).cumsum(1)).flatten(0, 1), labels.flatten()
        )


def tied_words() -> Report:
    return report(
        Tied(), (words(), words()), {"embed.weight": P("tensor", "fsdp"), "head.bias": P("tensor")}
    )


class Sloped(nn.Module):
    """Equal layers but for a number of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(n / 8)) for n in range(6)
        )

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return F.mse_loss(x, target)


def layers_that_differ_in_a_number() -> Report:
    batch = randn(*TOKENS, WIDTH), randn(*TOKENS, WIDTH)
    return report(Sloped(), batch, {"layers.*.0.weight": P("tensor", "fsdp")})


class InPlace(nn.Module):
    """A unit of FSDP that returns a view, to which what follows adds in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        hidden = self.first(x)[..., ::2]
        hidden += x
        return F.mse_loss(self.second(hidden), target)


def written_in_place() -> Report:
    batch = randn(*TOKENS, WIDTH), randn(*TOKENS, WIDTH)
    return report(InPlace(), batch, {}, units=["first", "second"], extra_data_axis="data")


def backward_twice() -> Report:
    """Two backward passes before the optimizer's step add up, also to a gradient that is there."""

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, target: Tensor
    ) -> Tensor:
        model(x, target).backward()
        loss = model(x.flip(0), target)
        loss.backward()
        optimizer.step()
        return loss

    batch = randn(*TOKENS, WIDTH), randn(*TOKENS, WIDTH)
    return report(Block(), batch, {}, step=step, units=["up", "down"], extra_data_axis="data")


REPORTS: tuple[Callable[[], Report], ...] = (
    router_under_tensor_parallel,
    experts_beside_data_parallel,
    balance_of_the_batch,
    norm_of_shards,
    norm_of_copies,
    split_classes,
    mean_of_means,
    summed_loss,
    accumulated_means,
    uneven_rows,
    views_of_split_dims,
    norms_of_heads,
    positions_of_a_split_sequence,
    squeezed_shards,
    order_of_shards,
    dropout_on_shards,
    statistics_of_the_batch,
    histogram_of_shards,
    partial_sums,
    tied_words,
    layers_that_differ_in_a_number,
    written_in_place,
    backward_twice,
)
