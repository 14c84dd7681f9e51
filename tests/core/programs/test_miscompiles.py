"""The table of known miscompiles: each detector finds a program made for it, and the option that
avoids it is used."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from support import check
from torch import nn

import fsdp
import spmd
from spmd import Mesh, P
from spmd.core.programs import miscompiles
from spmd.core.programs.miscompiles import (
    MISCOMPILES,
    Miscompile,
    has_moved_scatter,
    scatters_in_loop,
)

ROWS = {row.name: row for row in MISCOMPILES}
MOTION = ROWS["while-loop-all-reduce-code-motion"]
KERNELS = ROWS["async collectives beside kernels"]
OVERLAPPED = {
    "xla_tpu_enable_async_collective_fusion": "True",
    "xla_tpu_overlap_compute_collective_tc": "True",
}

# The shape of the wrong program: one partition keeps what the loop has added, the others add to
# zeros, and the sum over partitions comes behind the loop.
MOVED = """HloModule moved, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%kept_by_one (p: f32[8,4], q: pred[]) -> f32[8,4] {
  %p = f32[8,4] parameter(0)
  %q = pred[] parameter(1)
  %zero = f32[] constant(0)
  %zeros = f32[8,4] broadcast(%zero), dimensions={}
  %all = pred[8,4] broadcast(%q), dimensions={}
  ROOT %carry = f32[8,4] select(%all, %p, %zeros)
}

%body (c: (s32[], f32[8,4], s32[2], f32[2,4])) -> (s32[], f32[8,4], s32[2], f32[2,4]) {
  %c = (s32[], f32[8,4], s32[2], f32[2,4]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %table = f32[8,4] get-tuple-element(%c), index=1
  %ids = s32[2] get-tuple-element(%c), index=2
  %rows = f32[2,4] get-tuple-element(%c), index=3
  %id = u32[] partition-id()
  %first = u32[] constant(0)
  %is_first = pred[] compare(%id, %first), direction=EQ
  %own = f32[8,4] fusion(%table, %is_first), kind=kLoop, calls=%kept_by_one
  %added = f32[8,4] scatter(%own, %ids, %rows), update_window_dims={1}, inserted_window_dims={0}, to_apply=%add
  MOVED
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  ROOT %t = (s32[], f32[8,4], s32[2], f32[2,4]) tuple(%next, %result, %ids, %rows)
}

%more (d: (s32[], f32[8,4], s32[2], f32[2,4])) -> pred[] {
  %d = (s32[], f32[8,4], s32[2], f32[2,4]) parameter(0)
  %j = s32[] get-tuple-element(%d), index=0
  %two = s32[] constant(2)
  ROOT %is_less = pred[] compare(%j, %two), direction=LT
}

ENTRY %main (x: (s32[], f32[8,4], s32[2], f32[2,4])) -> (s32[], f32[8,4], s32[2], f32[2,4]) {
  %x = (s32[], f32[8,4], s32[2], f32[2,4]) parameter(0)
  ROOT %w = (s32[], f32[8,4], s32[2], f32[2,4]) while(%x), condition=%more, body=%body
}
"""


class Executable:
    """A compiled program, as far as a detector reads it."""

    def __init__(self, text: str):
        self.as_text = lambda: text


def program(text: str) -> Any:
    return Executable(text)


def lowered(function: Any, *args: Any) -> Any:
    return jax.jit(function).lower(*args)


class TestDetectors:
    def test_all_reduce_behind_the_loop(self) -> None:
        assert has_moved_scatter(program(MOVED.replace("MOVED", "%result = f32[8,4] copy(%added)")))

    def test_all_reduce_in_the_loop(self) -> None:
        inside = "%result = f32[8,4] all-reduce(%added), replica_groups={{0,1,2,3}}, to_apply=%add"
        assert not has_moved_scatter(program(MOVED.replace("MOVED", inside)))

    def test_scatter_in_a_loop(self) -> None:
        x, ids = jnp.zeros((8, 4)), jnp.zeros(2, int)
        # a function of its own in the lowered program
        add = jax.jit(lambda y, ids: y.at[ids].add(1.0))
        assert scatters_in_loop(
            lowered(lambda y: jax.lax.fori_loop(0, 3, lambda i, y: add(y, ids), y), x), ""
        )
        outside = lowered(lambda y: jax.lax.fori_loop(0, 3, lambda i, y: y * 2, add(y, ids)), x)
        assert not scatters_in_loop(outside, "")

    @pytest.mark.parametrize(
        "text", ["stablehlo.custom_call @tpu_custom_call(%0)", '"stablehlo.all_to_all"(%0)']
    )
    def test_kernels(self, text: str) -> None:
        assert KERNELS.in_lowered(None, text) and not KERNELS.in_lowered(
            None, "stablehlo.all_gather"
        )

    def test_exchanges_of_the_partitioner(self) -> None:
        assert KERNELS.in_optimized(program("%a = (f32[8]) all-to-all(%x, %y)"))
        assert not KERNELS.in_optimized(
            program('%a = f32[8] add(%x, %y), metadata={op_name="all-to-all"}')
        )

    def test_unreduced_axes(self) -> None:
        mixed = 'sdy.sharding_constraint %0 <@mesh, [{"a"}, {}], unreduced={"b"}>'
        scatter = mixed + '\n"stablehlo.scatter"(%1)'
        row, other = ROWS["scatter-add over reduced axes"], ROWS["unreduced axes to mixed ones"]
        assert (
            row.in_lowered(None, scatter)
            and other.in_lowered(None, mixed)
            and not row.in_lowered(None, mixed)
        )
        assert not other.in_lowered(None, 'sdy.sharding_constraint %0 <@mesh, [{"a"}, {}]>')


class TestCompiled:
    """The options of a program are those that its patterns need, and none that the user has named
    changes."""

    @staticmethod
    def options(
        text: str, given: dict[str, str | float], monkeypatch: pytest.MonkeyPatch, after: str = ""
    ) -> list[Any]:
        compiled: list[Any] = []

        def compile_lowered(lowered: Any, options: Any) -> Any:
            compiled.append(options)
            return program(after if len(compiled) == 1 else "")

        monkeypatch.setattr(miscompiles, "compile_lowered", compile_lowered)
        monkeypatch.setattr(miscompiles, "MISCOMPILES", (KERNELS,))
        miscompiles.compile_right(program(text), given, "tpu")
        return compiled

    def test_by_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        without = OVERLAPPED | {"xla_tpu_overlap_compute_collective_tc": "False"}
        assert self.options("@tpu_custom_call", {**OVERLAPPED}, monkeypatch) == [without]
        assert self.options("stablehlo.add", {**OVERLAPPED}, monkeypatch) == [OVERLAPPED]
        assert self.options("", {**OVERLAPPED}, monkeypatch, " all-to-all(") == [
            OVERLAPPED,
            without,
        ]

    def test_one_group_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        alone: dict[str, str | float] = {"xla_tpu_overlap_compute_collective_tc": "True"}
        assert self.options("@tpu_custom_call", alone, monkeypatch) == [alone]

    def test_named_by_the_user(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            spmd.config, "compiler_options", "auto xla_tpu_overlap_compute_collective_tc=true"
        )
        assert self.options("@tpu_custom_call", {**OVERLAPPED}, monkeypatch) == [OVERLAPPED]

    def test_versions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        row = Miscompile("name", "issue", "jaxlib", ("cpu",), fixed="0.11")
        for version, is_here in (("0.10.2", True), ("0.11.0", False)):
            monkeypatch.setattr(
                miscompiles.importlib.metadata, "version", lambda name, version=version: version
            )
            miscompiles._is_older.cache_clear()
            assert row.applies("cpu", {}) is is_here and not row.applies("tpu", {})
        miscompiles._is_older.cache_clear()


class TestCompileLog:
    def test_names_the_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        row = MOTION._replace(platforms=("cpu",))
        monkeypatch.setattr(miscompiles, "MISCOMPILES", (row,))
        ids, table = torch.tensor([1, 1, 3]), torch.zeros(4, 2)
        carry = spmd.while_loop(
            lambda i, y: i < 3,
            lambda i, y: (i + 1, y.index_add(0, ids.to("xla"), torch.ones(3, 2, device="xla"))),
            (torch.zeros((), dtype=torch.int64, device="xla"), table.to("xla")),
        )
        check(carry[1], torch.tensor([[0.0, 0.0], [6.0, 6.0], [0.0, 0.0], [3.0, 3.0]]))
        assert (row.name, str(row)) in spmd.metrics.compiles()[-1].passes


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 8)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x) + self.embedding.weight[ids]  # every layer adds to the gradient
        return x @ self.embedding.weight.T


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("layout", ["rows", "fsdp"])
def test_accumulated_embedding(
    layout: str, partitioner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of an embedding over micro-batches and scanned layers, as torch has them on the
    CPU."""
    monkeypatch.setattr(spmd.config, "partitioner", partitioner)
    model, ids = Embedded(), torch.randint(32, (4, 16, 4))
    parts = [
        nn.functional.cross_entropy(model(part).flatten(0, 1), part.flatten()) / 4 for part in ids
    ]
    loss = torch.stack([part.detach() for part in parts]).sum()
    torch.stack(parts).sum().backward()
    expected = {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    model.zero_grad()
    mesh = Mesh(range(8), (8,), ("fsdp",))
    sharded: Any = model.to("xla")
    if layout == "rows":
        spmd.mark_sharding(model.embedding.weight, mesh, P("fsdp", None))
    else:
        sharded = fsdp.FullyShardedDataParallel(model, mesh)
    batch = spmd.mark_sharding(ids.flatten(0, 1).to("xla"), mesh, P("fsdp", None))

    def part_loss(part: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(sharded(part).flatten(0, 1), part.flatten())

    check(fsdp.accumulate_gradients(sharded, part_loss, batch, 4), loss)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            check(parameter.grad, expected[name])
