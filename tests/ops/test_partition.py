"""Partition rules: the order in which they are tried, what is said where none applies, and the
specs of `per_shard`."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import PartitionSpec

import spmd
from spmd import P
from spmd.core.programs import stored
from spmd.ops import partition as table
from spmd.ops import sharded

OP = torch.ops.aten.cummax.default


@pytest.fixture
def rules() -> Iterator[list[Any]]:
    """The rules of an op that has none, which are gone afterwards."""
    names, foreign = [*table.NAMES], {*table.FOREIGN}
    yield table.PARTITION_RULES.setdefault(OP, [])
    del table.PARTITION_RULES[OP]
    table.NAMES[:] = names
    table.FOREIGN.clear()
    table.FOREIGN.update(foreign)


def marked(rows: int = 16) -> torch.Tensor:
    mesh = spmd.Mesh(range(8), (8,), ("data",))
    return spmd.mark_sharding(torch.randn(rows, 4).to("xla"), mesh, P("data", None))


def run(x: torch.Tensor) -> torch.Tensor:
    return torch.cummax(x * 2, 1).values


class TestTable:
    def test_latest_first(self, rules: list[Any]) -> None:
        tried = []
        for name in ("first", "second"):
            table.partition(OP)(lambda *arguments, name=name: tried.append(name))
        x = marked()
        assert run(x).cpu().equal(torch.cummax(x.cpu() * 2, 1).values)
        assert tried == ["second", "first"]

    def test_results_of_a_rule(self, rules: list[Any]) -> None:
        x = marked()

        @table.partition(OP)
        def zeros(self: jax.Array, dim: int) -> Any:
            return jnp.zeros_like(self), jnp.zeros(self.shape, jnp.int64)

        assert run(x).cpu().equal(torch.zeros(16, 4))

    def test_axes_are_known(self, rules: list[Any]) -> None:
        known: list[Any] = []
        table.partition(OP)(lambda self, dim: known.append(sharded.axes_of(self)[1]))
        run(marked()).cpu()
        assert known == [[("data",), ()]]

    def test_a_sentence_is_a_finding(self, rules: list[Any]) -> None:
        table.partition(OP)(
            lambda *arguments: "a running maximum over 'data' is computed by the partitioner"
        )
        run(marked()).cpu()
        (words,) = [
            words for name, words in spmd.metrics.compiles()[-1].passes if name == "unused axis"
        ]
        assert words.startswith("a running maximum over 'data' is computed by the partitioner at ")
        assert "test_partition.py" in words

    def test_a_program_is_compiled_once_more(self, rules: list[Any]) -> None:
        x = marked()
        run(x).cpu()
        before = spmd.metrics.num_compiles()
        run(x).cpu()
        assert spmd.metrics.num_compiles() == before
        table.partition(OP)(lambda *arguments: None)
        run(x).cpu()
        assert spmd.metrics.num_compiles() == before + 1

    def test_foreign_rules_are_not_kept_on_disk(
        self, rules: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept: list[bool] = []
        keep = stored.keep
        monkeypatch.setattr(
            stored,
            "keep",
            lambda program, graph: kept.append(_is_opaque(graph)) or keep(program, graph),
        )
        x = marked(rows=24)
        run(x).cpu()
        table.partition(OP)(lambda *arguments: None)
        run(x).cpu()
        assert kept == [False, True]

    def test_a_packet_is_no_overload(self) -> None:
        with pytest.raises(
            TypeError, match=r"partition: expected an overload such as aten.add.Tensor, got "
        ):
            table.partition(torch.ops.aten.cummax)  # type: ignore[arg-type]


def _is_opaque(graph: Any) -> bool:
    return any(node.op.is_opaque for node in graph.nodes)


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("rows", "columns"))


def lowered(function: Callable[..., Any], *arrays: jax.Array) -> str:
    return jax.jit(function).lower(*arrays).compile().as_text()  # type: ignore[no-any-return]


class TestPerShard:
    LEFT, RIGHT = jnp.arange(64.0).reshape(8, 8) / 64, jnp.arange(32.0).reshape(8, 4)

    def product(
        self, mesh: jax.sharding.Mesh, over: dict[str, Any], **how: Any
    ) -> Callable[..., Any]:
        def body(left: jax.Array, right: jax.Array) -> tuple[jax.Array]:
            return (left @ right,)

        return table.per_shard(body, "m k, k n -> m n", mesh, over, [(8, 4)], **how)

    def test_a_word_of_the_result(self, mesh: jax.sharding.Mesh) -> None:
        run = self.product(mesh, {"m": ("rows",), "n": ("columns",)})
        (result,) = run(self.LEFT, self.RIGHT)
        np.testing.assert_allclose(result, self.LEFT @ self.RIGHT, rtol=1e-6)
        assert result.sharding.spec == PartitionSpec("rows", "columns")

    def test_a_word_that_is_lacking_is_summed(self, mesh: jax.sharding.Mesh) -> None:
        run = self.product(mesh, {"k": ("rows", "columns")})
        (result,) = run(self.LEFT, self.RIGHT)
        np.testing.assert_allclose(result, self.LEFT @ self.RIGHT, rtol=1e-6)
        assert "all-reduce" in lowered(run, self.LEFT, self.RIGHT)

    def test_scattered(self, mesh: jax.sharding.Mesh) -> None:
        run = self.product(mesh, {"k": ("rows",)}, scattered={"m": "k"})
        (result,) = run(self.LEFT, self.RIGHT)
        np.testing.assert_allclose(result, self.LEFT @ self.RIGHT, rtol=1e-6)
        assert result.sharding.spec[0] == "rows"
        assert "reduce-scatter" in lowered(run, self.LEFT, self.RIGHT)

    def test_scattered_where_it_divides(self, mesh: jax.sharding.Mesh) -> None:
        run = table.per_shard(
            lambda x: (x.sum(0),), "k m -> m", mesh, {"k": ("rows",)}, [(6,)], scattered={"m": "k"}
        )
        x = jnp.arange(48.0).reshape(8, 6)
        np.testing.assert_allclose(run(x)[0], x.sum(0))

    def test_dims_of_size_one_and_absent_arguments(self, mesh: jax.sharding.Mesh) -> None:
        """A bias that broadcasts is on every device, and its gradient is the sum over all."""

        def body(x: jax.Array, bias: jax.Array, nothing: None) -> tuple[jax.Array, jax.Array]:
            assert nothing is None
            return x + bias, jnp.ones_like(x).sum(0, keepdims=True)

        words = "m n, m n, m -> m n, m n"
        run = table.per_shard(
            body, words, mesh, {"m": ("rows",), "n": ("columns",)}, [(8, 4), (1, 4)]
        )
        bias = jnp.arange(4.0)[None]
        total, grad = run(self.RIGHT, bias, None)
        np.testing.assert_allclose(total, self.RIGHT + bias)
        np.testing.assert_allclose(grad, np.full((1, 4), 8.0))
