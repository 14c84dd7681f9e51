"""Played loops by where their batches come from: equal bits to the same loops recorded."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import played_loops
import pytest
import torch
from played_loops import CLASSES, WIDTH, Net, Trace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spmd
from spmd import P

Batch = tuple[torch.Tensor, torch.Tensor]


def rows() -> TensorDataset:
    draws = torch.Generator().manual_seed(2)
    x = torch.randn(44, WIDTH, generator=draws)
    return TensorDataset(x, torch.randint(0, CLASSES, (44,), generator=draws))


def train(trace: Trace, batches: Any, *, epochs: int = 2) -> None:
    """Trains a model on batches on xla."""
    model = Net(dropout=0.25).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    trace.watch(model, optimizer)
    for _ in range(epochs):
        for x, y in batches():
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            trace.step(loss)
            optimizer.zero_grad()


def in_background(batches: Any) -> Iterator[Batch]:
    """Yields batches that a thread moves to the device, three ahead."""
    ready: queue.Queue[Batch | None] = queue.Queue(3)

    def move() -> None:
        for x, y in batches:
            ready.put((x.to("xla"), y.to("xla")))
        ready.put(None)

    thread = threading.Thread(target=move, daemon=True)
    thread.start()
    while (batch := ready.get()) is not None:
        yield batch
    thread.join()


class TestLoaders:
    """Batches arrive as new tensors, by this thread or by another one."""

    @pytest.mark.parametrize("drop_last", [True, False])
    def test_in_this_thread(self, drop_last: bool) -> None:
        def loop(trace: Trace) -> None:
            loader = DataLoader(rows(), 8, shuffle=True, drop_last=drop_last)
            train(trace, lambda: ((x.to("xla"), y.to("xla")) for x, y in loader))

        played_loops.check_played(loop)

    def test_in_a_background_thread(self) -> None:
        def loop(trace: Trace) -> None:
            loader = DataLoader(rows(), 8, shuffle=True, drop_last=True)
            train(trace, lambda: in_background(loader))

        played_loops.check_played(loop)

    def test_of_spmd(self, mesh8: spmd.Mesh) -> None:
        """`spmd.DataLoader` shards batches in a thread of its own."""

        def loop(trace: Trace) -> None:
            made = DataLoader(rows(), 8, shuffle=True, drop_last=True)
            loader = spmd.DataLoader(made, mesh8, P("fsdp"))
            train(trace, lambda: loader)

        played_loops.check_played(loop)

    def test_the_same_batch(self) -> None:
        """One tensor, and one that is written in place: data and a value to come are two kinds."""

        def loop(trace: Trace) -> None:
            x, y = trace.batch()

            def batches() -> Iterator[Batch]:
                for number in range(8):
                    if number > 4:
                        x.mul_(0.9)
                    yield x, y

            train(trace, batches, epochs=1)

        played_loops.check_played(loop, but=2)

    def test_picked_rows(self) -> None:
        def loop(trace: Trace) -> None:
            x, y = trace.batch(64)

            def batches() -> Iterator[Batch]:
                for _ in range(8):
                    rows = torch.randint(0, 64, (8,), generator=trace.generator).to("xla")
                    yield x[rows], y[rows]

            train(trace, batches, epochs=1)

        played_loops.check_played(loop)

    def test_a_loop_in_a_thread(self) -> None:
        """The whole loop runs in a thread that is not the main one."""

        def loop(trace: Trace) -> None:
            errors: list[BaseException] = []

            def work() -> None:
                try:
                    with played_loops.played(spmd.config.replay_steps):
                        train(trace, lambda: (trace.batch() for _ in range(8)), epochs=1)
                except BaseException as error:
                    errors.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            assert not errors, errors

        played_loops.check_played(loop)

    def test_two_loops_in_threads(self) -> None:
        """Two models are trained at the same time; neither draws."""

        def loop(trace: Trace) -> None:
            traces = [Trace(), Trace()]
            models = [Net().to("xla") for _ in traces]
            errors: list[BaseException] = []

            def work(mine: Trace, model: Net) -> None:
                try:
                    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
                    played_loops.classify(mine, model, optimizer)
                except BaseException as error:
                    errors.append(error)

            threads = [
                threading.Thread(target=work, args=pair)
                for pair in zip(traces, models, strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not errors, errors
            for mine in traces:
                trace.names += mine.names
                trace.values += mine.values
                trace.parts += mine.parts

        played_loops.compare(loop)


class TestBatches:
    """Batches that the loop makes by ops."""

    def test_augmented_in_a_background_thread(self) -> None:
        """The thread records ops of its own, which draw nothing."""

        def loop(trace: Trace) -> None:
            loader = DataLoader(rows(), 8, shuffle=True, drop_last=True)

            def batches() -> Iterator[Batch]:
                return in_background((x.to("xla") * 0.5 + 1, y) for x, y in loader)

            train(trace, batches)

        played_loops.check_played(loop, but=1)

    def test_rows_of_a_tensor_on_the_device(self) -> None:
        """Views with other offsets."""

        def loop(trace: Trace) -> None:
            x, y = trace.batch(64)

            def batches() -> Iterator[Batch]:
                for start in range(0, 64, 8):
                    yield x[start : start + 8], y[start : start + 8]

            train(trace, batches, epochs=1)

        played_loops.check_played(loop)
