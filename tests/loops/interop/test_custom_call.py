"""spmd.torch_xla.stablehlo_custom_call: a target by its name, its attributes, its errors."""

from typing import Any

import jaxlib.lapack
import numpy as np
import pytest
import torch
from support import check

import spmd

PLACED = ("annotate_device_placement", [(4,)], [torch.float32], True, "", 1)


class TestCalls:
    """Targets that the CPU has, and text in the StableHLO."""

    def test_a_registered_function(self) -> None:
        """The typed interface, with an attribute and two results: LAPACK's Cholesky, which jaxlib
        registers."""
        target = jaxlib.lapack.prepare_lapack_call("potrf_ffi", np.dtype(np.float32))
        square = torch.randn(4, 4)
        matrix = square @ square.T + 4 * torch.eye(4)
        # of a matrix by columns: ours by rows is its transpose
        upper = {"uplo": np.uint8(ord("U"))}
        made, info = spmd.torch_xla.stablehlo_custom_call(
            [matrix.to("xla")],
            target,
            [(4, 4), ()],
            [torch.float32, torch.int32],
            backend_config=upper,
        )
        check(made.tril(), torch.linalg.cholesky(matrix))
        assert info.item() == 0

    def test_frontend_attributes(self) -> None:
        x = torch.arange(4.0).to("xla")
        made = spmd.torch_xla.stablehlo_custom_call(
            [x], *PLACED, {"_xla_buffer_placement": "device"}
        )
        text = spmd.get_stablehlo([made])
        assert "custom_call @annotate_device_placement" in text and "has_side_effect = true" in text
        assert '_xla_buffer_placement = "device"' in text
        check(made, torch.arange(4.0))

    def test_a_sharding_mark(self) -> None:
        """Over several devices XLA asks it for a sharding, which is no frontend attribute: there is
        mark_sharding."""
        x = torch.arange(16.0).to("xla")
        made = spmd.torch_xla.stablehlo_custom_call(
            [x], "Sharding", [(16,)], [x.dtype], False, "unspecified_dims=[0]"
        )
        assert "custom_call @Sharding(" in spmd.get_stablehlo([made])
        check(made, torch.arange(16.0))

    def test_equal_calls_are_one_program(self) -> None:
        x = torch.ones(4, device="xla") * 3
        spmd.sync()
        compiles = []
        for _ in range(3):
            spmd.torch_xla.stablehlo_custom_call(
                [x], *PLACED, {"_xla_buffer_placement": "device"}
            ).cpu()
            compiles.append(spmd.metrics.num_compiles())
        assert compiles[0] == compiles[2]


class TestErrors:
    def test_no_gradient(self) -> None:
        x = torch.ones(4, device="xla", requires_grad=True)
        made = spmd.torch_xla.stablehlo_custom_call(
            [x], *PLACED, {"_xla_buffer_placement": "device"}
        )
        with pytest.raises(
            NotImplementedError,
            match=r"'annotate_device_placement', called at .*test_custom_call\.py",
        ):
            made.sum().backward()
        assert not spmd.torch_xla.stablehlo_custom_call([x.detach()], *PLACED).requires_grad

    def test_unknown_target(self) -> None:
        made = spmd.torch_xla.stablehlo_custom_call(
            [torch.ones(4, device="xla")], "nobody_knows", [(4,)], [torch.float32]
        )
        with pytest.raises(RuntimeError, match="nobody_knows"):
            made.cpu()

    @pytest.mark.parametrize(
        ("arguments", "error", "says"),
        [
            (([torch.ones(1)], "t", [(1,)], [torch.float32]), TypeError, "got one on cpu"),
            (([3], "t", [(1,)], [torch.float32]), TypeError, "got 'int'"),
            (([], "t", [(1,)], []), ValueError, "got 1 shapes and 0 dtypes"),
            (([], "t", [], []), ValueError, "at least one"),
            (
                ([], "t", [(1,)], [torch.float32], False, {"n": 3}),
                TypeError,
                "n of backend_config is 3",
            ),
            (
                ([], "t", [(1,)], [torch.float32], False, {"n": np.int32(3)}, 1),
                ValueError,
                "needs api_version 4",
            ),
        ],
    )
    def test_arguments(self, arguments: Any, error: Any, says: str) -> None:
        with pytest.raises(error, match=says):
            spmd.torch_xla.stablehlo_custom_call(*arguments)
