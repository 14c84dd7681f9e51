"""Programs of torch.export with open sizes: one program of StableHLO for tensors of many sizes."""

import re

import jax
import pytest
import torch
from support import check
from torch import nn
from torch.export import Dim, export

from spmd.steps.exporting import OpenProgram, has_open_dims
from spmd.torch_xla import StableHLOGraphModule, exported_program_to_stablehlo

ROWS, LENGTH = Dim("rows", min=1), Dim("length", min=4, max=64)


class Layers(nn.Module):
    """Sizes in shapes, in numbers and in slices; two dims that become one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 8), nn.LayerNorm(8)
        self.embedding = nn.Embedding(10, 16)
        self.register_buffer("scale", torch.rand(8))

    def forward(self, ids: torch.Tensor, factor: float) -> dict[str, torch.Tensor]:
        rows, length = ids.shape
        y = self.norm(self.linear(self.embedding(ids)).relu() * factor) * self.scale
        first, last = y[:, 1:], y[:, :-1]
        a, b = y.split([3, 5], -1)
        return {
            "flat": y.view(rows * length, 8).softmax(-1),
            "mean": y.mean(1) + rows,
            "both": torch.cat([first * last, y], 1),
            "halves": a.sum() + b.cumsum(1),
            "ones": torch.ones(rows, length // 2, dtype=torch.int64),
        }


def opened(model: nn.Module, *args: object, shapes: tuple) -> StableHLOGraphModule:
    return exported_program_to_stablehlo(export(model, args, dynamic_shapes=shapes))


class TestOpenDims:
    """Text and values."""

    def test_many_sizes(self) -> None:
        model = Layers()
        ids = torch.randint(10, (3, 6))
        module = opened(model, ids, 2.5, shapes=({0: ROWS, 1: LENGTH}, None))
        text = module.get_stablehlo_text()
        assert re.search(r"tensor<\?x\?xi64>.*->.*tensor<\?x8xf32>", text)
        assert module.get_stablehlo_bytecode().startswith(b"ML\xefR")
        for shape in ((3, 6), (5, 9), (1, 4)):
            ids = torch.randint(10, shape)
            result, expected = module(ids, 2.5), model(ids, 2.5)
            assert list(result) == list(expected)
            for name, value in expected.items():
                check(result[name], value)

    def test_attention(self) -> None:
        class Attention(nn.Module):
            def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
                return nn.functional.scaled_dot_product_attention(q, k, k, scale=0.5)

        shapes = ({0: ROWS, 2: LENGTH}, {0: ROWS, 2: LENGTH})
        q, k = torch.randn(3, 2, 6, 4), torch.randn(3, 2, 6, 4)
        module = opened(Attention(), q, k, shapes=shapes)
        q, k = torch.randn(2, 2, 9, 4), torch.randn(2, 2, 9, 4)
        check(module(q, k), Attention()(q, k))

    def test_convolution(self) -> None:
        model = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.GroupNorm(5, 5), nn.GELU()).eval()
        module = opened(model, torch.randn(2, 3, 16, 16), shapes=({0: ROWS},))
        x = torch.randn(4, 3, 16, 16)
        check(module(x), model(x))

    def test_example_inputs_that_are_views(self) -> None:
        """torch adds the sizes of their bases when it traces a program again."""

        class Product(nn.Module):
            def forward(self, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
                return (x @ w).view(x.shape[0] * 2, 4)

        base = torch.randn(3, 6, 4)
        module = opened(Product(), base[0], base.mT[:, :2], shapes=(None, {0: ROWS}))
        x = torch.randn(5, 2, 6)
        check(module(base[0], x), Product()(base[0], x))

    def test_a_size_out_of_bounds(self) -> None:
        module = opened(
            Layers(), torch.randint(10, (3, 6)), 2.5, shapes=({0: ROWS, 1: LENGTH}, None)
        )
        with pytest.raises(ValueError, match=r"symbolic shape constraint .* <= 64"):
            module(torch.randint(10, (3, 65)), 2.5)

    def test_refusals(self) -> None:
        class Writes(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("total", torch.zeros(4))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.total.add_(x.sum(0))

        class Sorted(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.nonzero(x)

        x = torch.randn(3, 4)
        with pytest.raises(NotImplementedError, match="open dims that writes total"):
            opened(Writes(), x, shapes=({0: ROWS},))
        with pytest.raises(NotImplementedError, match=r"aten\.nonzero .*rule for open dims"):
            opened(Sorted(), x, shapes=({0: ROWS},))
        with pytest.raises(NotImplementedError, match="is not saved with its weights"):
            opened(nn.ReLU(), x, shapes=({0: ROWS},)).save("nowhere")

    def test_fixed_sizes(self) -> None:
        program = export(nn.ReLU(), (torch.randn(3, 4),))
        assert not has_open_dims(program)
        assert "?" not in exported_program_to_stablehlo(program).get_stablehlo_text()

    def test_of_jax(self) -> None:
        """The bytes are a program of jax.export, for its users."""
        program = OpenProgram(export(nn.ReLU(), (torch.randn(3, 4),), dynamic_shapes=({0: ROWS},)))
        called = jax.export.deserialize(bytearray(program.serialized)).call
        assert called(jax.numpy.ones((7, 4), "float32"))[0].shape == (7, 4)
