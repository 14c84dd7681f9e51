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

    def test_without_weights(self, tmp_path: Path) -> None:
        """A module or a folder without them; numpy's arrays put into `_bundle` are its weights."""
        stablehlo = importlib.import_module("torch_xla.stablehlo")
        model, x = nn.Linear(4, 2), torch.randn(3, 4)
        program = torch.export.export(model, (x,))
        module = stablehlo.exported_program_to_stablehlo(program)
        assert module._bundle.state_dict.keys() == {"weight", "bias"}
        module.save(tmp_path, stablehlo.StableHLOExportOptions(save_weights=False))
        bare = stablehlo.StableHLOExportOptions(export_weights=False)
        for module in (
            stablehlo.StableHLOGraphModule.load(tmp_path),
            stablehlo.exported_program_to_stablehlo(program, bare),
        ):
            assert module._bundle.state_dict == {}
            with pytest.raises(ValueError, match=r"expected 'weight' .* in state, got none"):
                module(x)
            weights = {"weight": torch.ones(2, 4), "bias": torch.ones(2)}
            module._bundle.state_dict = {name: one.numpy() for name, one in weights.items()}
            check(module(x), torch.func.functional_call(model, weights, x))
            module.save(tmp_path / "again")
            again = stablehlo.StableHLOGraphModule.load(tmp_path / "again")
            check(again(x), torch.func.functional_call(model, weights, x))

    def test_open_without_weights(self) -> None:
        stablehlo = importlib.import_module("torch_xla.stablehlo")
        sizes = ({0: torch.export.Dim("rows", min=2)},)
        model, x = nn.Linear(4, 2), torch.randn(3, 4)
        program = torch.export.export(model, (x,), dynamic_shapes=sizes)
        options = stablehlo.StableHLOExportOptions(export_weights=False)
        module = stablehlo.exported_program_to_stablehlo(program, options)
        with pytest.raises(ValueError, match=r"expected \['weight', 'bias'\] among its weights"):
            module(x)
        module._bundle.state_dict.update(model.state_dict())
        check(module(torch.ones(5, 4)), model(torch.ones(5, 4)))

    def test_composites(self) -> None:
        """A function of jax as one, and tensors marked as the inputs and results of one."""
        attend = jax.lax.composite(lambda q, k, *, scale: jax.nn.softmax(scale * q @ k.T), "my.op")

        def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            return spmd.call_jax(attend, q, k, scale=0.25)

        q, k = torch.randn(4, 8), torch.randn(6, 8)
        x, y = q.to("xla"), k.to("xla")
        for text in (spmd.export(scores, (x, y)).stablehlo(), spmd.get_stablehlo([scores(x, y)])):
            assert text.count('stablehlo.composite "my.op"') == 1
            assert "composite_attributes = {scale = 2.500000e-01" in text
        check(scores(x, y), (0.25 * q @ k.T).softmax(-1))
        utils = importlib.import_module("torch_xla.experimental.mark_pattern_utils")
        marker = importlib.import_module("torch_xla.experimental.xla_marker")
        theirs = importlib.import_module("torch_xla.stablehlo")

        class Marked(nn.Module):
            def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
                builder = utils.StableHLOCompositeBuilder("my.op", {"scale": 0.25})
                q, k = builder.mark_inputs(q, k)
                return builder.mark_outputs((0.25 * q @ k.T).softmax(-1))

        program = theirs._run_decompositions(torch.export.export(Marked(), (q, k)))
        module = theirs.exported_program_to_stablehlo(program)
        assert module.get_stablehlo_text().count('stablehlo.composite "my.op"') == 1
        check(module(q, k), (0.25 * q @ k.T).softmax(-1))
        assert marker.serialize_composite_attr({"scale": 0.25}) == (("scale", 0.25),)


class TestCustomCalls:
    """Ops of torch that XLA knows only by their names."""

    def test_namespaces(self) -> None:
        """custom_ops_allowed_in_graph: with several tensors, results and a number."""
        stablehlo = importlib.import_module("torch_xla.stablehlo")
        with torch.library._scoped_library("their_ops", "FRAGMENT") as library:
            library.define("both(Tensor x, float by, Tensor y) -> (Tensor, Tensor)")
            library.define("single(Tensor x) -> Tensor")
            ops = torch.ops.their_ops
            library.impl("both", lambda x, by, y: (x @ y, y.int()), "Meta")
            library.impl("single", lambda x: x.new_empty(x.shape[0]), "Meta")

            class Model(nn.Module):
                def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                    product, _ = ops.both(x.sin(), 2.0, y)
                    return ops.single(ops.both(product, 1.0, y)[0]).cos()

            program = torch.export.export(Model(), (torch.ones(3, 4), torch.ones(4, 4)))
            options = stablehlo.StableHLOExportOptions(custom_ops_allowed_in_graph={"their_ops"})
            module = stablehlo.exported_program_to_stablehlo(program, options)
            text = module.get_stablehlo_text()
            assert text.count("stablehlo.custom_call @their_ops.both.default(") == 2
            assert text.count("stablehlo.custom_call @their_ops.single.default(") == 1
            assert (
                "(tensor<3x4xf32>, tensor<4x4xf32>) -> (tensor<3x4xf32>, tensor<4x4xi32>)" in text
            )
            with pytest.raises(spmd.AbstractError, match=r"their_ops\.both"):
                stablehlo.exported_program_to_stablehlo(program)

    def test_calls_of_the_program(self) -> None:
        """What the model itself calls needs no option, inside of a composite as well; spmd.export
        names it."""
        builder = importlib.import_module("torch_xla.experimental.mark_pattern_utils")
        call = importlib.import_module("torch_xla.experimental.stablehlo_custom_call")

        mark = builder.StableHLOCompositeBuilder("my.op")

        def model(x: torch.Tensor) -> torch.Tensor:
            y = call.stablehlo_custom_call([mark.mark_inputs(x)], "their_target", [(2,)], [x.dtype])
            return mark.mark_outputs(y * 2).sin()

        x = torch.ones(3)
        text = spmd.export(model, (x,), custom_calls=None).stablehlo()
        assert text.count("stablehlo.custom_call @their_target(") == 1
        spmd.export(model, (x,), custom_calls=["their_target"])
        with pytest.raises(ValueError, match="their_target"):
            spmd.export(model, (x,))
