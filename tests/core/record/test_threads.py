"""Several threads at once: what they record, whose lines they blame, what they read while another
one overwrites it."""

import pickle
import threading
from collections.abc import Callable

import pytest
import torch
from support import in_thread, run_script
from torch import nn

import spmd
from spmd import core as door
from spmd.core.graph import source
from spmd.core.graph.graph import origin
from spmd.core.graph.source import node_line
from spmd.core.run import host_reads
from spmd.core.run.pjrt import transfer


class TestThreads:
    """Several threads may record, run and differentiate at once."""

    def test_right_results(self) -> None:
        wrong: list[object] = []

        def work(number: int) -> None:
            try:
                w = torch.full((4,), float(number), device="xla", requires_grad=True)
                for step in range(5):
                    loss = (w * w).sum()
                    (grad,) = torch.autograd.grad(loss, w)
                    if step % 2:
                        spmd.sync()
                    with torch.no_grad():
                        w.sub_(grad, alpha=0.25)
                expected = [number * 0.5**5] * 4
                if w.tolist() != expected:
                    wrong.append((number, w.tolist()))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert not wrong

    def test_one_reads_while_another_records(self) -> None:
        x = torch.zeros(8, device="xla")
        spmd.sync()
        stop, wrong = threading.Event(), []

        def read() -> None:
            while not stop.is_set():
                values = x.tolist()
                if len(set(values)) != 1:
                    wrong.append(values)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for _ in range(30):
                x.add_(1)
                spmd.sync()
        finally:
            stop.set()
            reader.join(60)
        assert not wrong and x.tolist() == [30.0] * 8


class TestLines:
    """A backward op is blamed on its forward line; autograd counts those anew in each thread."""

    @staticmethod
    def first() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.ones(3, device="xla", requires_grad=True)
        return x, x.sin().sum()  # recorded first

    @staticmethod
    def second() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.ones(3, device="xla", requires_grad=True)
        return x, x.cos().sum()  # recorded second

    @staticmethod
    def blamed(x: torch.Tensor, y: torch.Tensor) -> str:
        y.backward()
        return str(node_line(origin(x.grad._storage.value)))

    def test_same_numbers_in_two_threads(self) -> None:
        recorded, iterations = threading.Barrier(2, timeout=60), []

        def work(record: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> None:
            x, y = record()
            recorded.wait()
            iterations.append((record.__name__, self.blamed(x, y)))

        threads = [
            threading.Thread(target=work, args=(record,)) for record in (self.first, self.second)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(iterations) == 2 and all(
            line.endswith(f"# recorded {name}") for name, line in iterations
        )

    def test_backward_in_another_thread_than_forward(self) -> None:
        def both() -> str:
            self.first()
            return self.blamed(*made)

        # its thread is gone when the other one has used the same numbers
        made = in_thread(self.second)
        assert in_thread(both).endswith("# recorded second")

    def test_backward_within_backward(self) -> None:
        made, lines = in_thread(self.second), []
        x, y = self.first()
        x.register_hook(lambda grad: lines.append(self.blamed(*made)))
        assert self.blamed(x, y).endswith("# recorded first")
        assert lines[0].endswith("# recorded second")

    def test_lines_of_threads_that_are_gone_are_few(self) -> None:
        before = len(source._rings)
        for _ in range(50):
            in_thread(self.first)
        assert len(source._rings) <= before + 9


class TestReadersOutsideTheLock:
    """While one thread reads a buffer, another one runs the step that overwrites it, and does not
    donate it."""

    @pytest.mark.parametrize(
        ("read", "owner", "name"),
        [
            (
                lambda x: torch.cat([shard.data for shard in spmd.local_shards(x)]),
                door.transfer,
                "host_tensor",
            ),
            (lambda x: x.cpu(), transfer, "download"),
            (lambda x: pickle.loads(pickle.dumps(x)), transfer, "download"),
            (lambda x: torch.from_dlpack(x.__dlpack__()).clone(), host_reads.Lease, "placed"),
        ],
        ids=["local_shards", "cpu", "pickle", "dlpack"],
    )
    def test_a_barrier_in_the_middle_of_a_read(
        self, read, owner, name, mesh8, mesh1, monkeypatch
    ) -> None:
        # what lies on several devices crosses by way of the host
        mesh = mesh1 if name == "placed" else mesh8
        x = spmd.mark_sharding(torch.zeros(16, device="xla") + 0, mesh, ("fsdp",))
        spmd.sync()
        calls, function = [], getattr(owner, name)

        def step() -> None:
            x.add_(1)
            spmd.sync(wait=True)

        def interrupted(*args: object) -> object:
            calls.append(args)
            if len(calls) == 1:
                thread = threading.Thread(target=step)
                thread.start()
                thread.join(60)
                assert not thread.is_alive()
            return function(*args)

        monkeypatch.setattr(owner, name, interrupted)
        assert read(x).tolist() == [0.0] * 16
        assert calls and x.tolist() == [1.0] * 16

    def test_afterwards_the_buffer_is_donated_again(self) -> None:
        x = torch.zeros(16, device="xla") + 0
        spmd.local_shards(x)
        before = x._storage.value
        x.add_(1)
        spmd.sync()
        assert "overwritten in place" in before.lost_reason


class TestModuleState:
    """A setting of a thread for autograd stays in that thread."""

    def test_cpu_models_still_work(self) -> None:
        model = nn.Linear(2, 2)
        model(torch.ones(1, 2)).sum().backward()
        assert model.weight.grad.shape == (2, 2)


def test_a_sync_runs_what_the_only_thread_has_left() -> None:
    """Of a thread that has recorded nothing itself."""
    run_script("""
        import threading, torch, spmd
        from spmd.core import DeviceData, storage_of
        results = []
        thread = threading.Thread(target=lambda: results.append(torch.arange(3).to("xla") * 3))
        thread.start()
        thread.join()
        spmd.sync()
        assert type(storage_of(results[0]).value) is DeviceData
        assert results[0].tolist() == [0, 3, 6]
    """)
