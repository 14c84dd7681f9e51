"""spmd.DataLoader over plain sources: values, specs, its thread, last batches, lengths.

Resuming and packed documents are in `test_data_resume.py`, the loaders of other libraries in
`tests/frameworks/test_data_sources.py`, processes in `tests/processes`.
"""

import gc
import threading
import time
import traceback
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from batches import Counting, has_no_threads, loader_threads, numbers, values
from hypothesis import given, settings
from hypothesis import strategies as st
from support import run_script
from torch.utils import data

import spmd
from spmd import Mesh, P

Pair = namedtuple("Pair", ["inputs", "label"])
ROWS = P("fsdp")


@dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    name: str


class Encoding(UserDict):
    """A mapping with attributes, as transformers' BatchEncoding is."""

    def __getattr__(self, name: str) -> Any:
        return self.data[name]


class TestBatches:
    """A batch has the source's structure and values, as tensors on the device, and nothing is
    compiled for it."""

    def test_loader(self, mesh8: Mesh) -> None:
        pairs = data.TensorDataset(numbers(32, 3), torch.arange(32))
        source = data.DataLoader(
            pairs, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(1)
        )
        expected = values(source)
        source.generator.manual_seed(1)
        with spmd.no_recompile():
            found = list(spmd.DataLoader(source, mesh8, ROWS))
        assert values(found) == expected and len(found) == 4
        for inputs, labels in found:
            assert inputs.device.type == labels.device.type == "xla" and labels.dtype == torch.int64
            assert spmd.get_sharding(inputs).partition_spec(2) == ("fsdp", None)
            assert spmd.get_sharding(labels).partition_spec(1) == ("fsdp",)
            assert [shard.data.shape for shard in spmd.local_shards(inputs)] == [(1, 3)] * 8

    @pytest.mark.parametrize(
        "make",
        [
            lambda x: {"a": x, "b": {"c": [x, "text", None]}},
            lambda x: (x, 3, [x]),
            lambda x: Pair(x, "label"),
            lambda x: Sample(x, "name"),
            lambda x: OrderedDict(a=x),
            lambda x: Encoding(a=x, b=1),
            lambda x: MappingProxyType({"a": x}),
            lambda x: x,
        ],
        ids=["dict", "tuple", "namedtuple", "dataclass", "ordered", "encoding", "proxy", "tensor"],
    )
    def test_structure(self, make: Callable[[torch.Tensor], Any], mesh8: Mesh) -> None:
        batch = make(numbers(8, 2))
        (found,) = spmd.DataLoader([batch], mesh8, ROWS)
        kept = (torch.Tensor, MappingProxyType)
        assert (
            isinstance(found, (torch.Tensor, dict))
            if isinstance(batch, kept)
            else type(found) is type(batch)
        )
        before, after = (
            torch.utils._pytree.tree_leaves(_plain(batch)),
            torch.utils._pytree.tree_leaves(_plain(found)),
        )
        assert len(before) == len(after)
        for one, other in zip(before, after, strict=True):
            if isinstance(one, torch.Tensor):
                assert (
                    one.device.type == "cpu"
                    and other.device.type == "xla"
                    and torch.equal(other.cpu(), one)
                )
            else:
                assert other is one

    def test_dtypes_and_ranks(self, mesh8: Mesh) -> None:
        batch = {
            "half": numbers(8).bfloat16(),
            "bool": numbers(8) > 3,
            "scalar": torch.tensor(2.5),
            "empty": torch.ones(0, 2),
            "strided": numbers(4, 8).t(),
            "graph": torch.ones(8, requires_grad=True) * 2,
        }
        (found,) = spmd.DataLoader([batch], mesh8, ROWS)
        for name, value in batch.items():
            assert found[name].dtype == value.dtype and torch.equal(found[name].cpu(), value), name
        assert not found["graph"].requires_grad

    def test_arrays(self, mesh8: Mesh) -> None:
        fixed = np.arange(8.0)
        fixed.flags.writeable = False
        words = np.array(["a", "b"])
        (found,) = spmd.DataLoader([{"x": fixed, "words": words, "n": np.int64(3)}], mesh8, ROWS)
        assert found["x"].dtype == torch.float64 and found["x"].tolist() == fixed.tolist()
        assert found["words"] is words and type(found["n"]) is np.int64

    @pytest.mark.parametrize("kind", ["tensor", "array"])
    def test_snapshots(self, kind: str, mesh8: Mesh) -> None:
        """A source that fills one buffer again and again; rows of 64 bytes, which the CPU's devices
        read in place."""

        def reusing() -> Iterator[Any]:
            buffer = torch.zeros(8, 16)
            for i in range(6):
                buffer.fill_(i)
                yield buffer if kind == "tensor" else buffer.numpy()

        found = list(spmd.DataLoader(reusing(), mesh8, ROWS))
        assert [batch.cpu().unique().tolist() for batch in found] == [[float(i)] for i in range(6)]

    def test_part_is_a_snapshot(self, mesh8: Mesh) -> None:
        """So is what `from_process_local` takes."""
        part = torch.zeros(8, 16)
        x = spmd.from_process_local(part, mesh8, ("fsdp", None))
        part.fill_(1)
        assert x.cpu().sum() == 0

    def test_step_compiles_once(self, mesh8: Mesh) -> None:
        weight = torch.ones(3, device="xla", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        batches = [numbers(16, 3) / 50 + i for i in range(4)]
        expected, losses = torch.ones(3), []
        for step, x in enumerate(spmd.DataLoader(batches, mesh8, ROWS)):
            before = spmd.metrics.num_compiles()
            loss = (x @ weight).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            spmd.sync()
            losses.append(loss.item())
            assert step == 0 or spmd.metrics.num_compiles() == before
            there = expected.clone().requires_grad_()
            (batches[step] @ there).square().mean().backward()
            expected = expected - 0.1 * there.grad
        torch.testing.assert_close(weight.detach().cpu(), expected)

    def test_default_mesh(self, mesh8: Mesh) -> None:
        with mesh8:
            loader = spmd.DataLoader([numbers(8)], None, ROWS)
        assert [spmd.get_sharding(batch).partition_spec(1) for batch in loader] == [("fsdp",)]

    def test_in_a_plan(self, mesh8: Mesh) -> None:
        """A step that takes its batch from the loader is planned on abstract data."""
        loader = spmd.DataLoader([numbers(8, 4)] * 3, mesh8, ROWS)
        plan = spmd.plan(lambda: (next(iter(loader)) * 2).sum())
        assert plan is not None and has_no_threads()


def _plain(batch: Any) -> Any:
    """A batch as dicts, lists and tuples, for torch's pytrees."""
    if isinstance(batch, Sample):
        return [batch.image, batch.name]
    return dict(batch) if isinstance(batch, (UserDict, MappingProxyType)) else batch


class TestSpecs:
    """One spec for all tensors, or specs by key."""

    BATCH = {"inputs": {"ids": numbers(8, 4), "mask": numbers(8, 4)}, "labels": numbers(8)}  # noqa: RUF012

    def found(
        self, mesh: Mesh, spec: Any, batch: Any = None, **how: Any
    ) -> dict[str, tuple[Any, ...]]:
        batch = self.BATCH if batch is None else batch
        (batch,) = spmd.DataLoader([batch], mesh, spec, **how)
        return {
            name: spmd.get_sharding(x).partition_spec(x.dim())
            for name, x in {**batch["inputs"], "labels": batch["labels"]}.items()
        }

    def test_one(self, mesh2x4: Mesh) -> None:
        both = P(("data", "fsdp"))
        assert self.found(mesh2x4, both) == {
            "ids": (("data", "fsdp"), None),
            "mask": (("data", "fsdp"), None),
            "labels": (("data", "fsdp"),),
        }
        # what is left out of a longer one is None
        assert self.found(mesh2x4, ("data", None))["labels"] == ("data",)

    @pytest.mark.parametrize(
        "spec",
        [
            {"inputs": {"ids": P("data", "fsdp"), "mask": P("fsdp")}, "labels": P("data")},
            {"inputs.ids": P("data", "fsdp"), "inputs.mask": P("fsdp"), "labels": P("data")},
            {"inputs": P("fsdp"), "inputs.ids": P("data", "fsdp"), "labels": P("data")},
        ],
        ids=["nested", "paths", "above"],
    )
    def test_by_key(self, spec: Any, mesh2x4: Mesh) -> None:
        expected = {"ids": ("data", "fsdp"), "mask": ("fsdp", None), "labels": ("data",)}
        assert self.found(mesh2x4, spec) == expected

    def test_by_position(self, mesh2x4: Mesh) -> None:
        ((x, y),) = spmd.DataLoader(
            [(numbers(8), numbers(8))], mesh2x4, {0: P("data"), 1: P("fsdp")}
        )
        assert [spmd.get_sharding(one).partition_spec(1) for one in (x, y)] == [
            ("data",),
            ("fsdp",),
        ]

    def test_default(self, mesh2x4: Mesh) -> None:
        found = self.found(mesh2x4, {"labels": P("data")}, default=P())
        assert found == {"ids": (None, None), "mask": (None, None), "labels": ("data",)}

    def test_missing(self, mesh2x4: Mesh) -> None:
        with pytest.raises(
            ValueError, match=r"none for 'inputs\.ids', 'inputs\.mask' \(there are: 'labels'\)"
        ):
            self.found(mesh2x4, {"labels": P("data")})

    def test_too_long(self, mesh2x4: Mesh) -> None:
        with pytest.raises(
            ValueError, match=r"P\('data', 'fsdp'\) has 2 entries, but 'labels' has 1 dim"
        ):
            self.found(mesh2x4, P("data", "fsdp"))

    def test_arguments(self, mesh8: Mesh) -> None:
        with pytest.raises(ValueError, match=r"axis 'rows' of .* is not in the mesh"):
            spmd.DataLoader([], mesh8, P("rows"))
        with pytest.raises(ValueError, match="expected a mesh, got none"):
            spmd.DataLoader([], None, ROWS)
        with pytest.raises(TypeError, match=r"expected a spmd\.Mesh, got int"):
            spmd.DataLoader([], 3, ROWS)
        with pytest.raises(TypeError, match="expected a spec for all tensors, or a dict"):
            spmd.DataLoader([], mesh8, None)
        with pytest.raises(TypeError, match="expected a spec for all tensors, or a dict"):
            spmd.DataLoader([], mesh8, ROWS, default=P())
        with pytest.raises(TypeError, match="expected an iterable of batches, got int"):
            spmd.DataLoader(3, mesh8, ROWS)
        with pytest.raises(ValueError, match="expected prefetch to be 1 or more batches, got 0"):
            spmd.DataLoader([], mesh8, ROWS, prefetch=0)
        with pytest.raises(
            ValueError, match="expected last to be one of 'keep', 'drop', 'pad', got 'wrap'"
        ):
            spmd.DataLoader([], mesh8, ROWS, last="wrap")

    def test_on_the_device_already(self, mesh8: Mesh) -> None:
        with pytest.raises(TypeError, match="expected dense tensors on the CPU, got 'x' on meta"):
            list(spmd.DataLoader([{"x": torch.ones(8, device="meta")}], mesh8, ROWS))


class TestThread:
    """The thread runs ahead by a bounded number of batches and never outlives its iterator."""

    @pytest.mark.parametrize("prefetch", [1, 3])
    def test_runs_ahead(self, prefetch: int, mesh8: Mesh) -> None:
        source = Counting()
        batches = iter(spmd.DataLoader(source, mesh8, ROWS, prefetch=prefetch))
        assert source.pulled == 0 and not loader_threads()
        next(batches)
        deadline = time.monotonic() + 10
        while source.pulled < prefetch + 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert source.pulled == prefetch + 2  # one is out, `prefetch` wait, one more is on the host
        batches.close()
        assert not loader_threads() and list(batches) == []

    def test_error_of_the_source(self, mesh8: Mesh) -> None:
        def failing() -> Iterator[torch.Tensor]:
            yield torch.ones(8)
            raise LookupError("no more files")

        batches = iter(spmd.DataLoader(failing(), mesh8, ROWS))
        next(batches)
        with pytest.raises(LookupError, match="no more files") as raised:
            next(batches)
        names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
        assert names[0] == "test_error_of_the_source" and names[-1] == "failing"
        assert next(batches, None) is None and has_no_threads()

    def test_error_at_the_start(self, mesh8: Mesh) -> None:
        class Closed:
            def __iter__(self) -> Iterator[Any]:
                raise OSError("closed")

        with pytest.raises(OSError, match="closed"):
            iter(spmd.DataLoader(Closed(), mesh8, ROWS))

    def test_break(self, mesh8: Mesh) -> None:
        ended = []

        def noting() -> Iterator[torch.Tensor]:
            try:
                yield from Counting()
            finally:
                ended.append(threading.current_thread().name)

        for _ in spmd.DataLoader(noting(), mesh8, ROWS):
            break
        assert has_no_threads()
        gc.collect()
        assert len(ended) == 1

    def test_exception_in_the_loop(self, mesh8: Mesh) -> None:
        with pytest.raises(ZeroDivisionError):
            for _ in spmd.DataLoader(Counting(), mesh8, ROWS):
                _ = 1 / 0
        gc.collect()
        assert has_no_threads()

    def test_collected_in_a_cycle(self, mesh8: Mesh) -> None:
        holder: dict[str, Any] = {"batches": iter(spmd.DataLoader(Counting(), mesh8, ROWS))}
        holder["self"] = holder
        next(holder["batches"])
        assert loader_threads()
        del holder
        gc.collect()
        assert has_no_threads()

    def test_never_started(self, mesh8: Mesh) -> None:
        source = Counting()
        iter(spmd.DataLoader(source, mesh8, ROWS))
        assert source.pulled == 0 and not loader_threads()

    def test_two_at_once(self, mesh8: Mesh) -> None:
        loader = spmd.DataLoader(Counting(4), mesh8, ROWS)
        assert [(a[0].item(), b[0].item()) for a, b in zip(loader, loader, strict=True)] == [
            (float(i), float(i)) for i in range(4)
        ]

    def test_next_epoch_waits_for_the_last(self, mesh8: Mesh) -> None:
        """A source is not begun again while a thread of an earlier pass is inside it."""
        inside = []

        class Slow:
            def __iter__(self) -> Iterator[torch.Tensor]:
                for _ in range(3):
                    inside.append(threading.get_ident())
                    time.sleep(0.05)
                    assert len(inside) == 1
                    inside.clear()
                    yield torch.ones(8)

        loader = spmd.DataLoader(Slow(), mesh8, ROWS)
        for _ in loader:
            break
        assert len(list(loader)) == 3

    def test_other_threads_record(self, mesh8: Mesh) -> None:
        """The loader's thread is no recorder: a pending op of this one stays pending, and one sync
        runs all."""
        pending = torch.ones(8, device="xla") + 1
        (batch,) = spmd.DataLoader([torch.ones(8)], mesh8, ROWS)
        assert spmd.residence(pending) == "pending" and spmd.residence(batch) == "devices"

    def test_fork_and_exit(self) -> None:
        """A forked child says that it cannot use the device, and ends; a process ends while its
        threads wait for room and sleep in their source."""
        script = """
            import os, sys, time, warnings
            import torch, spmd

            spmd.simulate(2)
            mesh = spmd.Mesh(range(2), (2,), ("data",))


            def slow():
                yield torch.ones(8)
                time.sleep(600)


            loaders = [
                spmd.DataLoader(source, mesh, spmd.P("data"))
                for source in ([torch.ones(8)] * 9, slow())
            ]
            held = [iter(loader) for loader in loaders]
            print([next(batches).sum().item() for batches in held])
            warnings.simplefilter("ignore")
            child = os.fork()
            if not child:
                try:
                    next(held[0])
                except RuntimeError as error:
                    assert "forked subprocess" in str(error)
                    sys.exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
        assert run_script(script, timeout=60).split() == ["[8.0,", "8.0]", "7"]


class TestLast:
    """A last batch of fewer rows: as it is, dropped, or padded with a mask."""

    def loader(self, mesh: Mesh, last: str, rows: int = 20, make: Any = None, **how: Any) -> Any:
        source = data.DataLoader(
            data.TensorDataset(numbers(rows, 2), torch.arange(rows)), batch_size=8
        )
        return spmd.DataLoader(
            [make(*batch) for batch in source] if make else source, mesh, ROWS, last=last, **how
        )

    def test_keep(self, mesh8: Mesh) -> None:
        loader = self.loader(mesh8, "keep")
        assert values(loader) == values(loader.loader) and len(loader) == 3

    def test_drop(self, mesh8: Mesh) -> None:
        loader = self.loader(mesh8, "drop")
        assert values(loader) == values(loader.loader)[:2] and len(loader) == 2
        assert (
            len(self.loader(mesh8, "drop", rows=16)) == 2
            and list(self.loader(mesh8, "drop", rows=5)) == []
        )

    def test_pad(self, mesh8: Mesh) -> None:
        loader = self.loader(mesh8, "pad", padding={"1": -100})
        assert len(loader) == 3
        for (x, y, valid), (rows, labels) in zip(loader, loader.loader, strict=True):
            kept = len(rows)
            assert (
                x.shape == (8, 2)
                and valid.dtype == torch.bool
                and valid.tolist() == [i < kept for i in range(8)]
            )
            assert x[:kept].tolist() == rows.tolist() and y[:kept].tolist() == labels.tolist()
            assert (x[kept:] == 0).all() and y[kept:].tolist() == [-100] * (8 - kept)
            assert spmd.get_sharding(valid).partition_spec(1) == ("fsdp",)

    def test_padded_mean(self, mesh8: Mesh) -> None:
        """Sums over the mask are those of the true rows, and all batches run by one program."""
        loader, total, programs = self.loader(mesh8, "pad"), 0.0, []
        for x, _, valid in loader:
            before = spmd.metrics.num_compiles()
            total += (x.sum(1) * valid).sum().item()
            programs.append(spmd.metrics.num_compiles() - before)
        assert total == numbers(20, 2).sum().item() and sum(programs[1:]) == 0

    def test_batch_without_rows(self, mesh8: Mesh) -> None:
        """Is no end of the data."""
        source = [numbers(8), numbers(0), numbers(8)]
        kept = [valid.sum().item() for _, valid in spmd.DataLoader(source, mesh8, ROWS, last="pad")]
        assert kept == [8, 0, 8] and len([*spmd.DataLoader(source, mesh8, ROWS, last="drop")]) == 2

    def test_forms(self, mesh8: Mesh) -> None:
        (*_, found) = self.loader(mesh8, "pad", make=lambda x, y: {"x": x})
        assert found["x"].shape == (8, 2) and found["valid"].sum() == 4
        (*_, (_, valid)) = self.loader(mesh8, "pad", make=lambda x, y: x)
        assert valid.sum() == 4
        with pytest.raises(
            TypeError, match="adds a mask to a mapping, a tuple or a list; the batch is a Pair"
        ):
            list(self.loader(mesh8, "pad", make=Pair))
        with pytest.raises(
            ValueError, match="adds a mask under 'valid', which the batch has already"
        ):
            list(self.loader(mesh8, "pad", make=lambda x, y: {"valid": x}))

    def test_rows_that_differ(self, mesh8: Mesh) -> None:
        with pytest.raises(ValueError, match=r"same number of rows .*'x' \[8, 2\], 'table' \[5\]"):
            list(self.loader(mesh8, "pad", make=lambda x, y: {"x": x, "table": numbers(5)}))
        with pytest.raises(ValueError, match=r"at most 8 rows, .* got 16"):
            list(spmd.DataLoader([numbers(8), numbers(16)], mesh8, ROWS, last="drop"))


class TestLengths:
    """Dim 1 is padded to the next of the given lengths."""

    def test_values(self, mesh8: Mesh) -> None:
        batches = [
            {"ids": torch.ones(8, n, dtype=torch.int64), "labels": torch.zeros(8, n)}
            for n in (3, 4, 7)
        ]
        padding = {"ids": 9, "labels": -100}
        found = list(spmd.DataLoader(batches, mesh8, ROWS, lengths=(8, 4), padding=padding))
        assert [batch["ids"].shape[1] for batch in found] == [4, 4, 8]
        for batch, source in zip(found, batches, strict=True):
            for key, filler in padding.items():
                n = source[key].shape[1]
                assert torch.equal(batch[key][:, :n].cpu(), source[key])
                assert (batch[key][:, n:].cpu() == filler).all()

    def test_only_those_named(self, mesh8: Mesh) -> None:
        batch = {"ids": numbers(8, 3), "image": numbers(8, 5), "label": numbers(8)}
        (found,) = spmd.DataLoader([batch], mesh8, ROWS, lengths=[8], padding={"ids": 0})
        assert {key: list(x.shape) for key, x in found.items()} == {
            "ids": [8, 8],
            "image": [8, 5],
            "label": [8],
        }

    def test_too_long(self, mesh8: Mesh) -> None:
        with pytest.raises(
            ValueError, match=r"'ids' has shape \[8, 9\], longer in dim 1 than the last of lengths"
        ):
            list(spmd.DataLoader([{"ids": numbers(8, 9)}], mesh8, ROWS, lengths=(4, 8)))

    @settings(max_examples=20, deadline=None)
    @given(
        lengths=st.sets(st.integers(1, 12), min_size=1, max_size=4),
        shapes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 12)), min_size=1, max_size=5),
    )
    def test_any(self, lengths: set[int], shapes: list[tuple[int, int]]) -> None:
        """Of any batches: as many shapes as lengths at most, the source's values, padding
        elsewhere."""
        mesh = Mesh([0], (1,), ("fsdp",))
        shapes = [(rows, min(width, max(lengths))) for rows, width in shapes]
        source = [numbers(rows, width) + 1 for rows, width in shapes]
        full = [*source, numbers(4, 1)]  # the first batch has all rows
        found = list(spmd.DataLoader(full[::-1], mesh, ROWS, last="pad", lengths=lengths))[::-1]
        assert len({x.shape for x, _ in found}) <= len(lengths)
        for (x, valid), batch in zip(found, full, strict=True):
            rows, width = batch.shape
            assert (
                x.shape == (4, min(length for length in lengths if length >= width))
                and valid.sum() == rows
            )
            there = x.cpu()
            assert torch.equal(there[:rows, :width], batch) and there.sum() == batch.sum()
