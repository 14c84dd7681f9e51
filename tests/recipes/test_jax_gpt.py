"""The JAX program of the benchmark does the work of our recipe: same weights, same losses, same
shardings."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from recipes.benchmarks import jax_gpt, layouts
from recipes.gpt import GPT, GPTConfig, cross_entropy

CONFIG = GPTConfig(layers=2, width=32, heads=4, sequence=16)
BATCH, STEPS = 8, 12


def schedule(step: int) -> float:
    return 1e-2 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / STEPS)))


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        windows = torch.randint(
            CONFIG.vocabulary, (BATCH, CONFIG.sequence + 1), generator=generator
        )
        yield windows[:, :-1], windows[:, 1:]


def torch_losses(model: GPT) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    losses = []
    for tokens, targets in batches():
        loss = cross_entropy(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def jax_losses(model: GPT, *, layout: str = "fsdp", **options: object) -> list[float]:
    weights = {
        name: value.numpy().copy()
        for name, value in layouts.weights_of(model.state_dict(), layout).items()
    }
    program = jax_gpt.build(
        {name: value.shape for name, value in weights.items()},
        batch=BATCH,
        sequence=CONFIG.sequence,
        heads=CONFIG.heads,
        layout=layout,
        **options,
    )
    state = program.initialise(weights)
    losses = []
    for step, (tokens, targets) in enumerate(batches()):
        batch = program.put_batch(tokens.numpy()), program.put_batch(targets.numpy())
        state, loss = program.step(state, *batch, np.float32(schedule(step)))
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("devices", [1, 8])
def test_same_weights_give_torchs_losses(devices: int, partitioner: str) -> None:
    torch.manual_seed(0)
    model = GPT(CONFIG)
    got = jax_losses(model, devices=devices, partitioner=partitioner)
    np.testing.assert_allclose(got, torch_losses(model), rtol=1e-5)


@pytest.mark.parametrize("layout", ["data", "tensor"])
def test_other_layouts(layout: str) -> None:
    torch.manual_seed(0)
    model = GPT(CONFIG)
    got = jax_losses(model, devices=4, layout=layout)
    np.testing.assert_allclose(got, torch_losses(model), rtol=1e-5)


def test_weights_by_heads() -> None:
    """The layout "tensor" shards what Megatron shards, and its model is the recipes' one."""
    model, tokens = GPT(CONFIG), torch.randint(CONFIG.vocabulary, (2, CONFIG.sequence))
    split = layouts.plain(model.state_dict(), CONFIG, "tensor")
    torch.testing.assert_close(split(tokens), model(tokens))
    specs = {name: tuple(jax_gpt.tensor_spec(name, "x")) for name in split.state_dict()}
    assert {name for name, spec in specs.items() if spec == (None, "x")} == {
        f"blocks.{i}.{part}.weight" for i in range(2) for part in ("attention.out", "mlp.down")
    }
    rows = ("attention.query", "attention.key", "attention.value", "mlp.up")
    assert {name for name, spec in specs.items() if spec == ("x",)} == {
        "tokens.weight",
        "head.weight",
        *(
            f"blocks.{i}.{part}.{kind}"
            for i in range(2)
            for part in rows
            for kind in ("weight", "bias")
        ),
    }


def test_state_is_cut_in_eight() -> None:
    """Parameters and moments take an eighth per device; those that eight does not divide stay
    replicated."""
    shapes = {name: value.shape for name, value in GPT(CONFIG).state_dict().items()}
    program = jax_gpt.build(
        shapes, batch=BATCH, sequence=CONFIG.sequence, heads=CONFIG.heads, devices=8
    )
    state = program.initialise(
        {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    )
    for values in state[:3]:
        for name, value in values.items():
            assert value.addressable_shards[0].data.size * 8 == value.size, name
    assert sum(program.collectives.values()) > 0
