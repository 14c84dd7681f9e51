"""Any layers in stages against the same on one device: random bodies over random meshes are equal
to torch on the CPU in float64, or are refused by name and line."""

import copy
import random
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fsdp  # noqa: F401  carries out the units of the rules
import spmd
from spmd import P, ShardingRules
from spmd.core.lower.lower import LoweringError

WIDTH, HEADS, LENGTH, ROWS = 8, 2, 4, 16
CLOSE = 1e-12  # of the largest value of a tensor
# Meshes of eight devices.
MESHES = [
    {"stage": 8}, {"stage": 4, "fsdp": 2}, {"stage": 2, "fsdp": 4}, {"stage": 2, "tensor": 4},
    {"stage": 2, "fsdp": 2, "tensor": 2}, {"stage": 4, "tensor": 2},
]  # fmt: skip


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    spmd.sync()
    monkeypatch.setattr(spmd.config, "micro_batches", 0)
    yield
    spmd.sync()


Step = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]


def _heads(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], HEADS, WIDTH // HEADS).transpose(1, 2)


def _attended(layer: nn.Module, h: Tensor, mask: Tensor, scale: Tensor, causal: bool) -> Tensor:
    query, key, value = (_heads(x) for x in layer.qkv(h).chunk(3, -1))
    if causal:
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    else:
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
    return layer.out(mixed.transpose(1, 2).reshape(h.shape))


def _scored(layer: nn.Module, h: Tensor, mask: Tensor, scale: Tensor) -> Tensor:
    scores = torch.einsum("bsd,btd->bst", layer.out(h), h)
    return (scores.masked_fill(~mask[:, None, :], -1e9).softmax(-1)) @ h


STEPS: dict[str, Step] = {
    "tanh": lambda layer, h, mask, scale: torch.tanh(h),
    "gelu": lambda layer, h, mask, scale: F.gelu(h),
    "scale": lambda layer, h, mask, scale: h * scale,
    "norm": lambda layer, h, mask, scale: layer.norm(h),
    "rms": lambda layer, h, mask, scale: layer.rms(h),
    "linear": lambda layer, h, mask, scale: layer.out(h),
    "gate": lambda layer, h, mask, scale: F.silu(layer.up(h)) @ layer.down.weight.t(),
    "mlp": lambda layer, h, mask, scale: layer.down(torch.relu(layer.up(h))),
    "flat": lambda layer, h, mask, scale: layer.out(h.flatten(0, 1)).view_as(h),
    "conv": lambda layer, h, mask, scale: layer.conv(h.transpose(1, 2)).transpose(1, 2),
    "causal": lambda layer, h, mask, scale: _attended(layer, h, mask, scale, True),
    "masked": lambda layer, h, mask, scale: _attended(layer, h, mask, scale, False),
    "scores": lambda layer, h, mask, scale: _scored(layer, h, mask, scale),
    "where": lambda layer, h, mask, scale: torch.where(mask[..., None], h, h.mean(-1, True)),
    "sums": lambda layer, h, mask, scale: h - h.mean(1, keepdim=True),
    "cumsum": lambda layer, h, mask, scale: h.cumsum(1) / LENGTH,
    "roll": lambda layer, h, mask, scale: h.roll(1, 1),
    "top": lambda layer, h, mask, scale: h + h.topk(2, -1).values.sum(-1, keepdim=True),
    "sort": lambda layer, h, mask, scale: h + 0.1 * h.sort(-1).values,
    "max": lambda layer, h, mask, scale: h - h.amax(-1, keepdim=True),
    "cat": lambda layer, h, mask, scale: layer.down(torch.cat([h, torch.sin(h)], -1)),
    "gather": lambda layer, h, mask, scale: h.gather(-1, h.argsort(-1)) + h,
    "einsum": lambda layer, h, mask, scale: torch.einsum("bsd,ed->bse", h, layer.out.weight),
    "pad": lambda layer, h, mask, scale: F.pad(h, (0, 0, 1, 0))[:, :-1],
    "index": lambda layer, h, mask, scale: h[:, torch.tensor([1, 0, 3, 2], device=h.device)],
    "std": lambda layer, h, mask, scale: h / (1 + h.var(-1, keepdim=True)),
    "clamp": lambda layer, h, mask, scale: h.clamp(-1, 1) * torch.sigmoid(layer.gain * h),
    # These read other rows of the batch: refused.
    "batch mean": lambda layer, h, mask, scale: h - h.mean(0, keepdim=True),
    "batch roll": lambda layer, h, mask, scale: h.roll(1, 0),
    "batch sum": lambda layer, h, mask, scale: h * torch.sigmoid(h.sum()),
    "batch max": lambda layer, h, mask, scale: h / h.abs().amax(),
    "batch norm": lambda layer, h, mask, scale: h / torch.linalg.vector_norm(h),
    "batch variance": lambda layer, h, mask, scale: h / h.var(),
    "batch place": lambda layer, h, mask, scale: h * h.argmax(),
    "batch order": lambda layer, h, mask, scale: h.roll(1),
    "batch pad": lambda layer, h, mask, scale: F.pad(h, (0, 0, 0, 0, 1, -1)),
    "batch flip": lambda layer, h, mask, scale: h.flip(0),
}
MIXING = {name for name in STEPS if name.startswith("batch")}


class Layer(nn.Module):
    def __init__(self, steps: list[tuple[str, bool]]):
        super().__init__()
        self.steps = steps
        self.norm, self.rms = nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.last = nn.LayerNorm(WIDTH)
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, h: Tensor, mask: Tensor, scale: Tensor) -> Tensor:
        for name, is_residual in self.steps:
            new = STEPS[name](self, h, mask, scale)
            h = h + new if is_residual else new
        return self.last(h)  # values stay bounded, and so does what rounding becomes


class Model(nn.Module):
    def __init__(self, steps: list[tuple[str, bool]], layers: int, frozen: int):
        super().__init__()
        self.embed, self.head = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 2)
        self.layers = nn.ModuleList([Layer(steps) for _ in range(layers)])
        for layer in self.layers[:frozen]:
            layer.requires_grad_(False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h, scale = self.embed(x), x.mean(-1, keepdim=True)
        for layer in self.layers:
            h = layer(h, mask, scale)
        return (self.head(h) * mask[..., None]).square().sum() / mask.sum()


TENSOR = {
    "layers.*.up.weight": P("tensor", None),
    "layers.*.up.bias": P("tensor"),
    "layers.*.down.weight": P(None, "tensor"),
}


def is_close(actual: Tensor, expected: Tensor) -> bool:
    largest = expected.abs().max().clamp(min=1e-6)
    return bool((actual.cpu() - expected).abs().max() <= CLOSE * largest)


def check(seed: int) -> str:
    """Draws a model and a mesh, and compares a step; returns what was drawn, in words."""
    draw = random.Random(seed)
    names = [name for name in STEPS if name not in MIXING]
    steps = [(draw.choice(names), draw.random() < 0.6) for _ in range(draw.randint(2, 5))]
    if draw.random() < 0.15:
        steps.append((draw.choice(sorted(MIXING)), True))
    sizes, layers = draw.choice(MESHES), draw.randint(3, 9)
    count = draw.choice([None, 1, 2, 4, 16])
    frozen = draw.choice([0, 0, 0, layers // 3])
    checkpoint = ["layers.*"] if draw.random() < 0.3 else None
    partitioner = draw.choice(["gspmd", "shardy"])
    words = f"{seed}: {steps}, {sizes}, {layers} layers, {count}, {frozen}, {checkpoint}"
    torch.manual_seed(seed)
    expected = Model(steps, layers, frozen).double()
    model = copy.deepcopy(expected).to("xla")
    mesh = spmd.Mesh(range(8), tuple(sizes.values()), tuple(sizes))
    table = ShardingRules(
        TENSOR if "tensor" in sizes else {}, units=["layers.*"], stages="stage",
        micro_batches=count, checkpoint=checkpoint or (),
    )  # fmt: skip
    spmd.config.partitioner = partitioner
    table.apply(model, mesh)
    x = torch.randn(ROWS, LENGTH, 3, dtype=torch.float64)
    mask = torch.rand(ROWS, LENGTH) < 0.7
    mask[:, 0] = True
    axes = draw.choice([("stage",), (), tuple(axis for axis in sizes if axis != "tensor")])
    spec = P(axes or None)
    on_device = [
        spmd.mark_sharding(value.to("xla"), mesh, P(*spec, *[None] * (value.dim() - 1)))
        for value in (x, mask)
    ]
    is_mixing = any(name in MIXING for name, _ in steps)
    try:
        loss = model(*on_device)
        loss.backward()
        spmd.sync()
    except LoweringError as error:
        message = str(error)
        assert "cannot run on a part of the batch" in message and "test_stages.py" in message, words
        assert is_mixing, f"{words}: {message}"
        return f"{words}: refused"
    expected_loss = expected(x, mask)
    expected_loss.backward()
    assert is_close(loss.detach(), expected_loss.detach()), words
    for (name, actual), parameter in zip(
        model.named_parameters(), expected.parameters(), strict=True
    ):
        assert (actual.grad is None) == (parameter.grad is None), f"{words}: {name}"
        if parameter.grad is not None:
            assert actual.grad is not None and is_close(actual.grad, parameter.grad), (
                f"{words}: {name}"
            )
    return words


@pytest.mark.parametrize("seed", range(6))
def test_layers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spmd.config, "partitioner", spmd.config.partitioner)
    print(check(seed))


@pytest.mark.parametrize("name", sorted(MIXING))
def test_layers_that_mix_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way in which a layer reads other rows of the batch is refused."""
    model = Model([("tanh", True), (name, True)], 4, 0).double().to("xla")
    mesh = spmd.Mesh(range(8), (4, 2), ("stage", "fsdp"))
    ShardingRules((), units=["layers.*"], stages="stage").apply(model, mesh)
    x, mask = torch.randn(ROWS, LENGTH, 3).double().to("xla"), torch.ones(ROWS, LENGTH).bool()
    with pytest.raises(LoweringError, match=r"test_stages.py:\d+ in .*cannot|cannot run on a part"):
        model(x, mask.to("xla")).item()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 140))
def test_more_layers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spmd.config, "partitioner", spmd.config.partitioner)
    print(check(seed))
