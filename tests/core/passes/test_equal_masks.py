"""Layers that share a mask of attention: one mask for the loops that they become, in forward and
backward."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import spmd
from spmd.core import storage_of
from spmd.core.passes import repeats, scan_layers
from tests.support import check

LENGTH, WIDTH, LAYERS = 512, 16, 6


class Attention(nn.Module):
    """A residual layer of attention under a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        heads = (y.unflatten(-1, (2, -1)).transpose(1, 2) for y in self.project(x).chunk(3, -1))
        attended = scaled_dot_product_attention(*heads, attn_mask=mask)
        return x + attended.transpose(1, 2).flatten(2)


def window(positions: Tensor) -> Tensor:
    at = torch.arange(LENGTH, device=positions.device)
    return (at[:, None] >= at) & (at[:, None] - at < 100)


def documents(positions: Tensor) -> Tensor:
    started = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1
    ids = started.cumsum(-1)
    return (ids[:, None, :, None] == ids[:, None, None]) & window(positions)


def in_turn(layers: nn.ModuleList, x: Tensor, positions: Tensor) -> list[Tensor]:
    """Five layers under one mask and with one shift, then one with another, and again."""
    kinds = [(window(positions), x.sin()), (documents(positions), x.cos())]
    for index, layer in enumerate(layers):
        mask, shift = kinds[index % 6 == 5]
        x = layer(x + shift, mask)
    loss = x.square().mean()
    return [loss, *torch.autograd.grad(loss, list(layers.parameters()))]


def trained(layers: nn.ModuleList, mask_of: object, x: Tensor, positions: Tensor) -> list[Tensor]:
    mask = mask_of(positions)  # type: ignore[operator]
    for layer in layers:
        x = layer(x, mask)
    loss = x.square().mean()
    return [loss, *torch.autograd.grad(loss, list(layers.parameters()))]


@pytest.mark.parametrize("mask_of", [window, documents])
class TestSharded:
    def test_a_mask_of_all_layers(
        self, mask_of: object, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        torch.manual_seed(0)
        layers = nn.ModuleList(Attention() for _ in range(LAYERS))
        x, positions = torch.randn(8, LENGTH, WIDTH), torch.arange(LENGTH).repeat(8, 1) % 200
        expected = trained(layers, mask_of, x, positions)
        layers.to("xla")
        batch = [
            spmd.mark_sharding(y.to("xla"), mesh8, ("fsdp", *(None,) * (y.dim() - 1)))
            for y in (x, positions)
        ]
        monkeypatch.setattr(spmd.config, "scan_layers", "always")
        found = trained(layers, mask_of, *batch)
        program = spmd.get_stablehlo(found)
        for new, old in zip(found, expected, strict=True):
            check(new.cpu(), old)
        assert "stablehlo.while" in program
        masks = set(re.findall(rf"tensor<((?:\d+x)*{LENGTH}x{LENGTH})xi1>", program))
        assert masks, "the mask is in the program"
        assert not [shape for shape in masks if shape.startswith(("5x", "6x"))]


def test_layers_of_two_kinds(mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers of a kind are a loop, whose mask and shift are consts: a copy of them for each
    layer would be more than the weights."""
    torch.manual_seed(0)
    layers = nn.ModuleList(Attention() for _ in range(12)).double()  # float32's rounding grows
    x = torch.randn(8, LENGTH, WIDTH, dtype=torch.float64)
    positions = torch.arange(LENGTH).repeat(8, 1) % 200
    expected = in_turn(layers, x, positions)
    layers.to("xla")
    batch = [
        spmd.mark_sharding(y.to("xla"), mesh8, ("fsdp", *(None,) * (y.dim() - 1)))
        for y in (x, positions)
    ]
    monkeypatch.setattr(scan_layers, "_ENOUGH_ELSEWHERE", 4)
    found = in_turn(layers, *batch)
    program = spmd.get_stablehlo(found)
    for new, old in zip(found, expected, strict=True):
        torch.testing.assert_close(new.cpu(), old, rtol=1e-6, atol=1e-5)
    # loops over layers forward and backward, and over blocks of attention
    assert program.count("stablehlo.while") == 12
    assert not re.findall(rf"tensor<[3-6]x(?:\d+x)*{LENGTH}x{LENGTH}xi1>", program)


@pytest.mark.parametrize(
    ("shared", "run"), [("aaaab", (0, 4)), ("abbbb", (1, 4)), ("ababa", (0, 5)), ("aaaaa", (0, 5))]
)
def test_runs_of_layers(shared: str, run: tuple[int, int]) -> None:
    """A loop ends where a value changes that neighbours share; the weights of each layer are its
    own, and so are values that no two neighbours share."""
    made = {name: torch.ones(2, device="xla") for name in "vwxyzab"}
    rows = [tuple(storage_of(made[name]).value for name in names) for names in ("vwxyz", shared)]
    loop: Any = SimpleNamespace(xs=rows, iterations=5)
    assert repeats._shared_run(loop) == run
