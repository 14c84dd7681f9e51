"""spmd.verify: correct layouts pass in every dtype, silently wrong steps fail and are named,
nothing changes."""

import importlib.metadata
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import spmd
from spmd import Mesh, P
from spmd.tools.verification import rounding
from spmd.tools.verification.rounding import num_roundings, tolerance

ROWS, WIDTH = 24, 16


def model_of(dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(0.25), nn.Linear(32, 4)).to(
        dtype
    )


def training(
    dtype: torch.dtype = torch.float32,
) -> tuple[nn.Module, torch.optim.Optimizer, Callable[..., Any]]:
    model = model_of(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return model, optimizer, step


class TestEqual:
    """Layouts of a correct step are equal to one device, in every precision, dropout included."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
    def test_data_parallel(self, mesh8: Mesh, dtype: torch.dtype) -> None:
        _, _, step = training(dtype)
        found = spmd.verify(step, torch.randn(ROWS, WIDTH, dtype=dtype), meshes=[mesh8])
        assert found, str(found)
        found.raise_on_difference()
        names = {(row.kind, row.path) for row in found.rows}
        assert (
            ("result", "") in names
            and ("gradient", "0.weight") in names
            and ("parameter", "3.bias") in names
        )
        assert {(row.dtype, row.partitioner) for row in found.rows} == {
            (dtype, partitioner)
            for dtype in ("float64", "own")
            for partitioner in ("gspmd", "shardy")
        }
        # Tolerances that would accept anything prove nothing: in float64 they are a small part of
        # each value.
        assert all(
            row.tolerance < 1e-11 * row.magnitude for row in found.rows if row.dtype == "float64"
        )

    def test_equal_rows_are_one(self, mesh8: Mesh) -> None:
        _, _, step = training()
        text = str(spmd.verify(step, torch.randn(ROWS, WIDTH), meshes=[mesh8]))
        lines = [line.split() for line in text.splitlines() if "float64" in line]
        first = {" ".join(line[:3]) for line in lines}
        assert len(lines) == 3 and {"4 gradients, worst:", "4 parameters, worst:"} <= first

    def test_rules(self, mesh2x4: Mesh) -> None:
        rules = spmd.ShardingRules({"0.weight": P("fsdp", None), "3.weight": P(None, "fsdp")})
        _, _, step = training()
        found = spmd.verify(step, torch.randn(ROWS - 1, WIDTH), meshes=[mesh2x4], rules=[rules])
        assert found and {row.layout for row in found.rows} == {"data=2, fsdp=4, rules"}

    def test_cancelling_terms(self, mesh8: Mesh) -> None:
        """A sum that is almost 0 has the error of its terms: the measured part of the tolerance
        covers it."""
        x = torch.randn(4096)
        found = spmd.verify(lambda x: torch.cat([x, -x + 1e-6]).sum(), x, meshes=[mesh8])
        own = [row for row in found.rows if row.dtype == "own"]
        assert found, str(found)
        assert all(row.tolerance > 1e-7 for row in own) and max(row.magnitude for row in own) < 0.1

    def test_a_long_loop(self, mesh8: Mesh) -> None:
        """Iterations of a loop do not run before the step ends: their roundings, here of float32,
        count."""
        assert spmd.config.loop_search_ops <= 1_024
        x = torch.randn(ROWS, WIDTH)

        def step(x: torch.Tensor) -> torch.Tensor:
            state = torch.zeros_like(x, dtype=torch.float32)
            for _ in range(300):
                state = torch.tanh(state * 0.9 + x.float()) / 1.1
            return state.to(x.dtype).square().mean()

        found = spmd.verify(step, x, meshes=[mesh8])
        wide = [row for row in found.rows if row.dtype == "float64"]
        assert found, str(found)
        assert all(row.roundings > 900 and row.tolerance > 1e-8 * row.magnitude for row in wide)


class TestDifferent:
    """Steps that are silently wrong on a mesh differ, and the first op and its line are named."""

    def test_missing_all_reduce(self, mesh8: Mesh) -> None:
        weight = nn.Parameter(torch.randn(WIDTH, 4))

        def body(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return x @ weight

        def step(x: torch.Tensor) -> torch.Tensor:
            product = spmd.shard_map(
                body, None, (P(None, "fsdp"), P("fsdp", None)), P(), check_vma=False
            )(x.exp(), weight)
            loss = product.square().mean()
            loss.backward()
            return loss

        found = spmd.verify(step, torch.randn(8, WIDTH), meshes=[mesh8])
        assert not found
        wrong = {(row.kind, row.path, row.dtype) for row in found.differences}
        assert ("result", "", "float64") in wrong and ("result", "", "own") in wrong
        assert (
            "test_verify.py" in found.first and "in step: product = spmd.shard_map(" in found.first
        )
        with pytest.raises(AssertionError, match=r"the first op that differs: .*shard_map"):
            found.raise_on_difference()

    def test_mean_of_means(self, mesh8: Mesh) -> None:
        """Rows that count differ in number from shard to shard: the mean of the shards' means is
        another number."""

        def body(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
            mean = (x * kept).sum() / kept.sum()
            return spmd.manual.all_reduce(mean, "mean", "fsdp")

        def step(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
            return spmd.shard_map(body, None, (P("fsdp"), P("fsdp")), P())(x, kept)

        kept = torch.ones(16)
        x = torch.randn(16)
        assert spmd.verify(step, x, kept, meshes=[mesh8])
        kept[3] = 0
        found = spmd.verify(step, x, kept, meshes=[mesh8])
        assert not found and "shard_map" in found.first

    def test_only_on_the_mesh(self, mesh8: Mesh) -> None:
        """A gradient scaled by the mesh's size, far behind an exact forward pass, is found in
        parameters alone."""
        model = nn.Linear(WIDTH, 4)

        def step(x: torch.Tensor) -> torch.Tensor:
            size = spmd.torch_xla.get_global_mesh().size()
            loss = model(x).square().mean()
            (loss * size).backward()
            return loss

        found = spmd.verify(step, torch.randn(ROWS, WIDTH), meshes=[mesh8])
        assert {row.kind for row in found.differences} == {"gradient"}
        assert "loss * size" in found.first


class TestUnchanged:
    """Parameters, optimizer, gradients and random streams are as before, also where the step
    raises."""

    @pytest.mark.parametrize("device", ["cpu", "xla"])
    def test_state(self, mesh8: Mesh, device: str) -> None:
        model, optimizer, step = training()
        model.to(device)
        model[0].weight.grad = torch.ones(32, WIDTH, device=device)
        before = [parameter.detach().cpu().clone() for parameter in model.parameters()]
        x = torch.randn(ROWS, WIDTH, device=device)
        given, stream = x.cpu().clone(), torch.get_rng_state()
        next_number = torch.rand((), device="xla").item()
        torch.manual_seed(5)
        stream = torch.get_rng_state()
        assert spmd.verify(step, x, meshes=[mesh8])
        assert torch.equal(torch.get_rng_state(), stream)
        drawn = torch.rand((), device="xla").item()
        torch.manual_seed(5)
        assert torch.rand((), device="xla").item() == drawn != next_number
        assert not optimizer.state and x.device.type == device and torch.equal(x.cpu(), given)
        assert (
            torch.equal(model[0].weight.grad.cpu(), torch.ones(32, WIDTH))
            and model[3].bias.grad is None
        )
        for parameter, was in zip(model.parameters(), before, strict=True):
            assert parameter.device.type == device and torch.equal(parameter.detach().cpu(), was)
            assert spmd.get_sharding(parameter) is None if device == "xla" else True

    def test_hooks_run(self, mesh8: Mesh) -> None:
        """A gradient hook of the user's runs in each run, and stays: without it a step would be
        another one."""
        model, seen = nn.Linear(WIDTH, 2), []
        model.bias.register_hook(lambda gradient: seen.append(gradient.device.type))
        assert spmd.verify(
            lambda x: model(x).sum().backward(), torch.randn(8, WIDTH), meshes=[mesh8]
        )
        assert len(seen) == 12 and set(seen) == {"xla"}
        model(torch.randn(8, WIDTH)).sum().backward()
        assert len(seen) == 13 and seen[-1] == "cpu"

    def test_where_the_step_raises(self, mesh8: Mesh) -> None:
        model = model_of()

        def step(x: torch.Tensor) -> None:
            model(x)
            raise RuntimeError("the user's")

        with pytest.raises(RuntimeError, match="the user's"):
            spmd.verify(step, torch.randn(ROWS, WIDTH), meshes=[mesh8])
        assert model[0].weight.device.type == "cpu" and torch.get_default_dtype() == torch.float32
        assert spmd.torch_xla.get_global_mesh() is None and spmd.config.compiler_options == "auto"


class TestEvidence:
    """The file has all that a reader needs to repeat the comparison."""

    def test_file(self, mesh1: Mesh, tmp_path: Path) -> None:
        x = torch.randn(8)
        found = spmd.verify(
            lambda x: x.sum(), x, meshes=[mesh1], evidence=tmp_path / "evidence.json"
        )
        kept = json.loads((tmp_path / "evidence.json").read_text())
        assert (
            kept["equal"] is True
            and kept["first_difference"] == ""
            and len(kept["rows"]) == len(found.rows) == 4
        )
        assert {
            "digest",
            "seeds",
            "versions",
            "tolerance",
            "meshes",
            "partitioners",
            "flags",
        } <= kept.keys()
        assert kept["versions"]["torch"] == importlib.metadata.version("torch")
        assert kept["meshes"][0]["axes"] == {"fsdp": 1}
        again = spmd.verify(lambda x: x.sum(), x, meshes=[mesh1]).evidence["digest"]
        other = spmd.verify(lambda x: x.sum(), x + 1, meshes=[mesh1]).evidence["digest"]
        assert kept["digest"] == again != other
        assert "4 comparisons, all equal" in str(found)


class TestTolerance:
    """The tolerance follows from lengths and unit roundoffs."""

    def test_lengths(self) -> None:
        def last(made: torch.Tensor) -> int:
            return num_roundings(made._storage.value.op)

        x, y = torch.ones(8, 32, device="xla"), torch.ones(32, 4, device="xla")
        spmd.sync()
        assert last(x @ y) == 32 and last(x.sum()) == 256 and last(x.sum(0)) == 8
        assert last(x * x) == last(x.exp()) == 1 and last(x.softmax(-1)) == 32

    def test_bound_holds_for_sums(self) -> None:
        """The error of long float32 sums, in the worst of orders, is within the first term."""
        for length in (100, 1_000, 10_000):
            terms = torch.rand(length, 32)
            exact = terms.double().sum(0)
            error = (terms.cumsum(0)[-1].double() - exact).abs().max().item()
            path = rounding.Path(length, rounding.unit_of(torch.float32))
            assert error <= tolerance(path, exact.max().item(), 0.0, path)
            assert tolerance(path, 1.0, 0.0, path) == pytest.approx(2 * math.sqrt(length) * 2**-24)


class TestRefused:
    """Calls that would compare nothing say what to do."""

    def test_arguments(self, mesh8: Mesh) -> None:
        with pytest.raises(TypeError, match="expected a function that does a step, got int"):
            spmd.verify(3, meshes=[mesh8])
        with pytest.raises(
            ValueError, match="expected meshes to compare with one device, got none"
        ):
            spmd.verify(lambda: None)
        with pytest.raises(TypeError, match=r"expected meshes as a list of spmd\.Mesh"):
            spmd.verify(lambda: None, meshes=mesh8)
        with pytest.raises(ValueError, match="devices that are here, got a mesh of 'cpu:16'"):
            spmd.verify(lambda: None, meshes=[Mesh(range(16), (16,), ("a",), target="cpu:16")])

    def test_no_values(self, mesh8: Mesh) -> None:
        with pytest.raises(
            ValueError, match=r"expected tensors with values, got one of shape \(2, 3\) on the meta"
        ):
            spmd.verify(nn.Linear(3, 2, device="meta"), torch.ones(1, 3), meshes=[mesh8])

    def test_nothing_sharded(self, mesh8: Mesh) -> None:
        x = torch.ones(8)
        with pytest.raises(ValueError, match="shards nothing over the mesh"):
            spmd.verify(lambda: x.to("xla").sum(), meshes=[mesh8])

    def test_a_dtype_of_its_own(self, mesh8: Mesh) -> None:
        with pytest.raises(RuntimeError) as raised:
            spmd.verify(
                lambda x: x @ torch.ones(4, 2, dtype=torch.float32).to("xla"),
                torch.ones(8, 4),
                meshes=[mesh8],
            )
        assert "the step's tensors are torch.float64 in this run" in raised.value.__notes__[0]

    def test_nothing_returned(self, mesh8: Mesh) -> None:
        with pytest.raises(ValueError, match="nothing to compare"):
            spmd.verify(lambda x: None, torch.ones(8), meshes=[mesh8])

    def test_sharded(self, mesh8: Mesh) -> None:
        model = nn.Linear(8, 8).to("xla")
        spmd.mark_sharding(model.weight, mesh8, ("fsdp", None))
        with pytest.raises(
            ValueError, match="expected a model without shardings, but weight of the Linear"
        ):
            spmd.verify(model, torch.ones(8, 8), meshes=[mesh8])
