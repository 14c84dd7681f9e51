"""torch_xla.stablehlo by its names: programs of torch.export as StableHLO."""

import importlib
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
import torch
from support import check
from torch import nn

import spmd


@pytest.fixture(autouse=True)
def served() -> Iterator[None]:
    spmd.compat.install()
    yield
    spmd.compat.uninstall()


class TestStablehlo:
    """The functions and classes that PyTorch/XLA's users call."""

    def test_of_a_program(self, tmp_path: Path) -> None:
        stablehlo = importlib.import_module("torch_xla.stablehlo")
        model, x = nn.Linear(4, 2), torch.randn(3, 4)
        module = stablehlo.exported_program_to_stablehlo(torch.export.export(model, (x,)))
        check(module(x), model(x))
        assert "stablehlo.dot_general" in module.get_stablehlo_text("forward")
        assert module.get_stablehlo_bytecode().startswith(b"ML\xefR")
        module.save(tmp_path)
        again = stablehlo.StableHLOGraphModule.load(tmp_path)
        check(again(x, method_name="forward"), model(x))
        again.save(tmp_path / "again")
        check(stablehlo.StableHLOGraphModule.load(tmp_path / "again")(x), model(x))
        with pytest.raises(ValueError, match=r"has the method 'forward', got 'backward'"):
            module(x, method_name="backward")

    def test_of_a_module(self, tmp_path: Path) -> None:
        stablehlo = importlib.import_module("torch_xla.stablehlo")
        model, x = nn.Linear(4, 2), torch.randn(3, 4)
        how = stablehlo.StableHLOExportOptions(override_tracing_arguments=(torch.ones(5, 4),))
        stablehlo.save_torch_model_as_stablehlo(model, (x,), tmp_path, how)
        loaded = spmd.load_exported(tmp_path)
        check(loaded(torch.ones(5, 4, device="xla")), model(torch.ones(5, 4)))
        with pytest.raises(NotImplementedError, match=r"save_weights=False"):
            stablehlo.StableHLOExportOptions(save_weights=False)

    def test_composites(self) -> None:
        """Marks on tensors are refused with what makes a composite."""
        attend = jax.lax.composite(lambda q, k, *, scale: jax.nn.softmax(scale * q @ k.T), "my.op")

        def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            return spmd.call_jax(attend, q, k, scale=0.25)

        q, k = torch.randn(4, 8), torch.randn(6, 8)
        x, y = q.to("xla"), k.to("xla")
        for text in (spmd.export(scores, (x, y)).stablehlo(), spmd.get_stablehlo([scores(x, y)])):
            assert text.count('stablehlo.composite "my.op"') == 1
            assert "composite_attributes = {scale = 2.500000e-01" in text
        check(scores(x, y), (0.25 * q @ k.T).softmax(-1))
        from_theirs = importlib.import_module("torch_xla.experimental.mark_pattern_utils")
        with pytest.raises(AttributeError, match=r"spmd\.call_jax\(jax\.lax\.composite"):
            from_theirs.StableHLOCompositeBuilder("my.op")
