"""Writes at computed positions whose rows the devices do not divide: values and gradients as on the
CPU."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from support import check
from torch import Tensor
from torch.nn import functional as F

import spmd
from spmd import Mesh, P
from spmd.core.programs import cache, compiler
from spmd.core.sharding.partitioner import compiler_context
from spmd.core.sharding.uneven_writes import pad_scatters

ROWS = 13
# Meshes, and the axes that shard the rows; other axes hold copies of them.
LAYOUTS: dict[str, tuple[tuple[int, ...], object]] = {
    "2x4": ((2, 4), "b"),
    "4x2": ((4, 2), "a"),
    "2x2x2": ((2, 2, 2), ("a", "b")),
    "last of 2x2x2": ((2, 2, 2), "c"),
}


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros(16, device=like.device)


def _rows(like: Tensor) -> Tensor:
    return torch.arange(ROWS, device=like.device)


# From (table (13, 6), numbers above 1 (13,), an index below 6 (13,), an index from 2 to 14 (13,))
# to a result. What makes the written values makes infinity, 1 or NaN of zeros.
CASES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "index_add": lambda z, v, y, i: _zeros(v).index_add(0, i, 1 / v),
    "index_add of ones": lambda z, v, y, i: _zeros(v).index_add(0, i, torch.ones_like(v)),
    "scatter_add": lambda z, v, y, i: _zeros(v).scatter_add(0, i, v + 1),
    "scatter_reduce": lambda z, v, y, i: _zeros(v).scatter_reduce(0, i, v + 1, "amax"),
    "index_put": lambda z, v, y, i: _zeros(v).index_put((i,), v.log(), accumulate=True),
    "index_put over": lambda z, v, y, i: _zeros(v).index_put((i,), v.log()),
    "index_reduce": lambda z, v, y, i: _zeros(v).index_reduce(0, i, v.log() + 2, "prod"),
    "z[arange, y]": lambda z, v, y, i: 1 / z[_rows(z), y],
    "z[y]": lambda z, v, y, i: z[y].exp(),
    "z[y, columns]": lambda z, v, y, i: z[y[:, None], torch.arange(5, device=z.device)].exp(),
    "gather": lambda z, v, y, i: z.gather(0, y[:, None].expand(13, 6)).exp(),
    "gather of columns": lambda z, v, y, i: z.gather(1, y[:, None]).exp(),
    "index_select": lambda z, v, y, i: z.index_select(0, y).exp(),
    "take": lambda z, v, y, i: z.take(y).exp(),
    "take_along_dim": lambda z, v, y, i: z.take_along_dim(y[:, None], 0).exp(),
    "cummax": lambda z, v, y, i: z.cummax(0)[0].exp(),
    "embedding": lambda z, v, y, i: F.embedding(y, z).exp(),
    "embedding by frequency": lambda z, v, y, i: F.embedding(y, z, scale_grad_by_freq=True).exp(),
    "bags": lambda z, v, y, i: F.embedding_bag(
        y, z, torch.tensor([0, 3, 7], device=z.device)
    ).exp(),
    "greatest of bags": lambda z, v, y, i: F.embedding_bag(y, z, y[:1] * 0, mode="max").exp(),
    "bincount": lambda z, v, y, i: torch.bincount(y, minlength=7).float(),
    "nonzero_static": lambda z, v, y, i: torch.nonzero_static(y - 3, size=9).float(),
    "repeat_interleave": lambda z, v, y, i: z.repeat_interleave(y * 0 + 2, 0, output_size=26).exp(),
    "grid_sample": lambda z, v, y, i: F.grid_sample(
        z[None, None], (v.log() - 1).expand(1, 2, 2, -1).mT, align_corners=False
    ),
    "max_pool1d": lambda z, v, y, i: F.adaptive_max_pool1d(z.T[None], 5).exp(),
}


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_rows_of_no_multiple(
    layout: str, partitioner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows over one axis of several, sharded in the index, in the table, and in both."""
    monkeypatch.setattr(spmd.config, "partitioner", partitioner)
    shape, axis = LAYOUTS[layout]
    mesh = Mesh(range(8), shape, ("a", "b", "c")[: len(shape)])
    data = (
        torch.randn(ROWS, 6),
        torch.rand(ROWS) + 1.5,
        torch.randint(6, (ROWS,)),
        torch.arange(2, 15),
    )
    compared = []
    for number, (name, function) in enumerate(CASES.items()):
        for marked in ("all", ("floats", "integers")[number % 2]):
            results = []
            for device in ("cpu", "xla"):
                moved = [tensor.clone().to(device) for tensor in data]
                for tensor in moved if device == "xla" else ():
                    if marked == "all" or tensor.is_floating_point() == (marked == "floats"):
                        spmd.mark_sharding(tensor, mesh, P(axis, *[None] * (tensor.ndim - 1)))
                floats = [tensor.requires_grad_() for tensor in moved[:2]]
                result = function(*moved)
                ramp = torch.arange(1.0, result.numel() + 1, device=device).reshape(result.shape)
                is_differentiable = result.requires_grad
                grads = (
                    torch.autograd.grad((result * ramp).sum(), floats, allow_unused=True)
                    if is_differentiable
                    else ()
                )
                results.append((result, *grads))
            compared.append((f"{name}, {marked}", *results))
    spmd.sync()
    wrong = []
    for name, expected, actual in compared:
        for wanted, result in zip(expected, actual, strict=True):
            try:
                assert (wanted is None) == (result is None)
                if wanted is not None:
                    check(result, wanted)
            except AssertionError as error:
                wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)


MESH = Mesh(range(8), (2, 4), ("a", "b"))


def _as_compiled(
    function: Callable[..., jax.Array], *arrays: Any, num_devices: int = 8
) -> tuple[np.ndarray, str]:
    """The result and the text of a function whose arguments have their first dim over "b", written
    as programs are."""

    def sharded(*arrays: jax.Array) -> jax.Array:
        spec = NamedSharding(MESH.get_jax_mesh(), PartitionSpec("b"))
        return function(*(lax.with_sharding_constraint(array, spec) for array in arrays))

    with compiler_context():
        lowered = jax.jit(sharded).lower(*arrays)
        pad_scatters(lowered.compiler_ir(), num_devices)
        return np.asarray(lowered.compile()(*arrays)), lowered.as_text()


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
class TestForms:
    """Scatters as jax's own functions and users write them."""

    @pytest.fixture(autouse=True)
    def with_partitioner(self, partitioner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)

    def test_an_index_too_narrow_for_the_end(self) -> None:
        index = np.arange(2, 15, dtype=np.int8)
        result, _ = _as_compiled(lambda index: jax.ops.segment_sum(jnp.ones(13), index, 300), index)
        assert np.flatnonzero(result).tolist() == [*range(2, 15)] and result.sum() == 13

    def test_rows_of_two_dims(self) -> None:
        index = np.arange(15).reshape(5, 3)
        result, text = _as_compiled(lambda index: jnp.ones((20, 2)).at[index].multiply(3.0), index)
        assert np.array_equal(
            result, np.where(np.arange(20) < 15, 3.0, 1.0)[:, None] * np.ones((1, 2))
        )
        assert "tensor<16x1xi32>" in text, "two short dims are padded as one"

    def test_rows_apart(self) -> None:
        """The two row dims of the updates with a window dim between them."""
        numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
        index, updates = np.arange(15).reshape(5, 3, 1), np.ones((5, 2, 3))
        result, text = _as_compiled(
            lambda i, u: lax.scatter_add(jnp.zeros((20, 2)), i, u, numbers), index, updates
        )
        assert np.array_equal(result[:15], np.ones((15, 2))) and not np.any(result[15:])
        assert "tensor<8x8x1xi64>" in text

    def test_batches(self) -> None:
        index, values = np.arange(35).reshape(5, 7) % 6, np.arange(35.0).reshape(5, 7) + 1
        write = jax.vmap(lambda i, v: jnp.zeros(6).at[i].max(1 / v))
        result, _ = _as_compiled(write, index, values)
        assert np.allclose(result, write(index, values))

    def test_even_rows_and_one_device(self) -> None:
        for size, num_devices in ((16, 8), (13, 1)):
            _, text = _as_compiled(
                lambda i: jnp.zeros(99).at[i].add(1.0), np.arange(size), num_devices=num_devices
            )
            assert "stablehlo.pad" not in text

    def test_shards_of_a_manual_region(self) -> None:
        """Each device's own rows are no partitioner's; those of the axes that are left to it
        are."""
        jax_mesh, one, both = MESH.get_jax_mesh(), PartitionSpec("b"), PartitionSpec()

        def write(index: jax.Array) -> jax.Array:
            return lax.psum(jnp.zeros(30).at[index].add(1.0), "b")

        for axes, is_padded in (({"a", "b"}, False), ({"b"}, True)):
            manual = jax.shard_map(
                write, mesh=jax_mesh, in_specs=one, out_specs=both, axis_names=axes, check_vma=False
            )
            result, text = _as_compiled(manual, np.arange(28))
            assert ("stablehlo.pad" in text) == is_padded
            assert np.flatnonzero(result).tolist() == [*range(28)] and result.sum() == 28


# Axes of the dims of an operand, an index, updates and a result, of (2, 4) devices.
SPECS: list[tuple[tuple[Any, Any], ...]] = [
    (("b", "a"), ("a", "b"), (("a", "b"), None), ("a", None)),
    (("b", None), (None, "b"), ("a", "b"), ("b", None)),
    ((None, "b"), ("b", "a"), (None, None), (None, ("a", "b"))),
    ((None, "b"), ("b", "a"), ("b", "a"), (None, "a")),
    ((("b", "a"), None), (None, "b"), ("a", None), ("a", "b")),
    ((None, "b"), (None, "a"), ("b", None), (None, None)),
    ((None, ("b", "a")), ("b", "a"), (None, "a"), (None, "a")),
    (("b", "a"), ("a", None), ("a", "b"), ("b", "a")),
]
METHODS = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "multiply": lax.scatter_mul,
    "maximum": lax.scatter_max,
    "minimum": lax.scatter_min,
}


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("size", [8, 5])
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint64", "bool"])
def test_dims_that_are_batches(
    dtype: str, size: int, partitioner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that the index counts up, and columns that are batches by the attributes, in many
    layouts."""
    monkeypatch.setattr(spmd.config, "partitioner", partitioner)
    methods = {
        name: one
        for name, one in METHODS.items()
        if dtype != "bool" or name not in ("add", "multiply")
    }
    draws = np.random.default_rng(0)
    operand, updates = ((draws.standard_normal((size, size)) * 9).astype(dtype) for _ in range(2))
    index, unique = draws.integers(size, size=(size, size)), draws.random((size, size)).argsort(0)
    batches = lax.ScatterDimensionNumbers(
        (), (0,), (0,), operand_batching_dims=(1,), scatter_indices_batching_dims=(1,)
    )
    counted = lax.ScatterDimensionNumbers((), (0, 1), (0, 1))

    def constrained(x: jax.Array, spec: tuple[Any, ...]) -> jax.Array:
        return lax.with_sharding_constraint(
            x, NamedSharding(MESH.get_jax_mesh(), PartitionSpec(*spec))
        )

    def function(
        operand: jax.Array, updates: jax.Array, *indices: jax.Array
    ) -> dict[str, jax.Array]:
        results, columns = {}, jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (size, size))
        for specs, (name, method) in itertools.product(SPECS, methods.items()):
            x, i, values = map(
                constrained, (operand, indices[name == "set"].astype(jnp.int32), updates), specs
            )
            written = (
                method(x, i[..., None], values, batches),
                method(x, jnp.stack([i, columns], -1), values, counted),
            )
            for form, result in zip(("batches", "counted"), written, strict=True):
                results[f"{name} {form} {specs}"] = constrained(result, specs[-1])
        return results

    with compiler_context():
        lowered = jax.jit(function).lower(operand, updates, index, unique)
        pad_scatters(lowered.compiler_ir(), 8)
        results = lowered.compile()(operand, updates, index, unique)
    expected = {name: operand.copy() for name in methods}
    for row, column in itertools.product(range(size), range(size)):
        expected["set"][unique[row, column], column] = updates[row, column]
        for name in methods.keys() - {"set"}:
            place, combine = (index[row, column], column), getattr(np, name)
            expected[name][place] = combine(expected[name][place], updates[row, column])
    wrong = [
        name
        for name, x in results.items()
        if not np.allclose(x, expected[name.partition(" ")[0]], rtol=1e-5)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_a_read_that_xla_refuses(partitioner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index and the columns over one axis, the rows of the result over another one; the compile
    log says it."""
    monkeypatch.setattr(spmd.config, "partitioner", partitioner)
    table, index = torch.randn(8, 8), torch.randint(8, (8,))
    sharded = spmd.mark_sharding(table.to("xla"), MESH, P(None, "a"))
    result = sharded.index_select(0, spmd.mark_sharding(index.to("xla"), MESH, P("a")))
    check(spmd.mark_sharding(result, MESH, P("b", "a")), table[index])
    refused = [record for record in spmd.metrics.compiles() if "read of rows" in str(record.passes)]
    assert refused, "XLA compiles it: the second compilation can go"


def test_the_fault_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the padding the first case of all is wrong; once it is right, the padding can go."""
    monkeypatch.setattr(compiler, "pad_scatters", lambda module, num_devices: None)
    cache.clear_cache()
    index = spmd.mark_sharding(torch.arange(2, 15).to("xla"), MESH, P("b"))
    result = torch.zeros(16, device="xla").index_add(0, index, torch.ones(13, device="xla"))
    assert result[0].item() == 3.0
    cache.clear_cache()


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_sums_onto_ones(partitioner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of a scatter with batching dims in two layouts: its operand counts once, over even
    and uneven dims."""
    monkeypatch.setattr(spmd.config, "partitioner", partitioner)
    specs = [(None, "a"), (None, "b"), ("a", "b"), ("b", "a")]
    compared = []
    for rows, columns in ((8, 8), (5, 7)):
        index = torch.randint(rows, (rows, columns))
        expected = torch.ones(rows, columns).scatter_add(0, index, torch.ones(rows, columns))
        for first, second in itertools.product(specs, specs):
            moved = index.to("xla")
            marked = spmd.mark_sharding(moved.clone(), MESH, P(*first))
            ones = torch.ones(rows, columns, device="xla")
            total = ones.scatter_add(0, moved, ones)
            results = ones.scatter_add(0, marked, ones), spmd.mark_sharding(total, MESH, P(*second))
            compared.append((f"{rows}, {first}, {second}", results, expected))
    spmd.sync()
    wrong = [
        name
        for name, results, expected in compared
        if any(not torch.equal(r.cpu(), expected) for r in results)
    ]
    assert not wrong, "\n".join(wrong)
