"""Threads, processes, and how a process ends."""

import os
import pickle
import queue
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from support import ROOT, check, run_script
from torch import nn

import spmd
from spmd import shards
from spmd.core import config
from spmd.core.engine import reads
from spmd.core.ir import source
from spmd.core.ir.graph import origin
from spmd.core.ir.source import node_line
from spmd.core.pjrt import transfer


class TestEnd:
    """A process that ends right after its first backward exits 0, whichever thread it ran in."""

    def test_first_backward(self) -> None:
        run_script("import torch, spmd; torch.ones(3, device='xla', requires_grad=True).sum().backward()")

    def test_first_backward_in_a_thread(self) -> None:
        run_script(
            """
            import threading, torch, spmd
            def work():
                x = torch.ones(3, device="xla", requires_grad=True)
                (x * x).sum().backward()
                print(x.grad.tolist())
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            """
        )

    @pytest.mark.parametrize(
        "backward",
        [
            "y.backward(gradient=torch.ones(3, device='xla'))",
            "torch.autograd.grad(y.sum(), x)",
            "torch.autograd.backward([y.sum()])",
            "torch.autograd.grad([y], [x], [torch.ones(3, device='xla')])",
        ],
    )
    def test_every_way_backward_in_a_new_thread(self, backward: str) -> None:
        """The tensors come from the main thread: the new thread's first use of the device is the backward itself."""
        printed = run_script(
            f"""
            import threading, torch, spmd
            x = torch.ones(3, device="xla", requires_grad=True)
            y = x * x
            def work():
                seen = threading.get_ident()
                x.register_hook(lambda grad: print(threading.get_ident() == seen))
                {backward}
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            """
        )
        assert "False" not in printed

    def test_with_work_in_flight(self) -> None:
        run_script("import torch, spmd; x = torch.ones(256, 256, device='xla'); y = x @ x @ x; spmd.sync()")


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


def in_thread(function: Callable[[], object]) -> object:
    """What a function returns in a new thread."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join(60)
    assert results, "the thread raised, or hangs"
    return results[0]


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
        return str(node_line(origin(x.grad._cell.value)))

    def test_same_numbers_in_two_threads(self) -> None:
        recorded, turns = threading.Barrier(2, timeout=60), []

        def work(record: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> None:
            x, y = record()
            recorded.wait()
            turns.append((record.__name__, self.blamed(x, y)))

        threads = [threading.Thread(target=work, args=(record,)) for record in (self.first, self.second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(turns) == 2 and all(line.endswith(f"# recorded {name}") for name, line in turns)

    def test_backward_in_another_thread_than_forward(self) -> None:
        def both() -> str:
            self.first()
            return self.blamed(*made)

        made = in_thread(self.second)  # its thread is gone when the other one has used the same numbers
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
    """While one thread reads a buffer, another one runs the step that overwrites it, and does not donate it."""

    @pytest.mark.parametrize(
        ("read", "owner", "name"),
        [
            (lambda x: torch.cat([shard.data for shard in spmd.local_shards(x)]), shards, "host_tensor"),
            (lambda x: x.cpu(), transfer, "download"),
            (lambda x: pickle.loads(pickle.dumps(x)), transfer, "download"),
            (lambda x: torch.from_dlpack(x.__dlpack__()).clone(), reads.Lease, "placed"),
        ],
        ids=["local_shards", "cpu", "pickle", "dlpack"],
    )
    def test_a_barrier_in_the_middle_of_a_read(self, read, owner, name, mesh8, mesh1, monkeypatch) -> None:
        mesh = mesh1 if name == "placed" else mesh8  # what lies on several devices crosses by way of the host
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
        before = x._cell.value
        x.add_(1)
        spmd.sync()
        assert "overwritten in place" in before.gone


class Turns:
    """Two threads in a fixed order: each part runs in its thread while the other one waits."""

    def __init__(self) -> None:
        self._todo: queue.Queue[Callable[[], object] | None] = queue.Queue()
        self._done: queue.Queue[object] = queue.Queue()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while (function := self._todo.get()) is not None:
            try:
                self._done.put(function())
            except BaseException as error:
                self._done.put(error)

    def __call__(self, function: Callable[[], Any]) -> Any:
        """What a function returns in the other thread."""
        self._todo.put(function)
        made = self._done.get(timeout=120)
        if isinstance(made, BaseException):
            raise made
        return made

    def end(self) -> None:
        self._todo.put(None)
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def other() -> Iterator[Turns]:
    turns = Turns()
    yield turns
    turns.end()


def compiled(function: Callable[[], object]) -> int:
    """How many programs a call compiles."""
    before = spmd.metrics.num_compiles()
    function()
    return spmd.metrics.num_compiles() - before


class TestBarriers:
    """A barrier runs what its own thread has recorded and what that needs."""

    def test_the_rest_stays_recorded(self, other: Turns) -> None:
        x = torch.ones(3, device="xla") + 1
        spmd.sync()
        theirs = other(lambda: x * 2)
        needed, alone = other(lambda: x * 3), other(lambda: x * 4)
        mine = needed + x
        spmd.sync()
        found = [spmd.residence(tensor) for tensor in (mine, needed, theirs, alone)]
        assert found == ["devices", "devices", "pending", "pending"]
        other(spmd.sync)
        assert spmd.residence(theirs) == spmd.residence(alone) == "devices"
        assert mine.tolist() == [8.0] * 3 and alone.tolist() == [8.0] * 3 and theirs.tolist() == [4.0] * 3

    def test_of_a_thread_that_has_ended(self) -> None:
        x = in_thread(lambda: torch.ones(3, device="xla").cumsum(0).exp())
        spmd.sync()
        assert spmd.residence(x) == "devices"

    def test_initial_values_of_another_thread(self, other: Turns) -> None:
        """A model that one thread has built and another one trains is initialised once, by a program of its own."""

        def build() -> nn.Module:
            with torch.device("xla"):
                model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            return model.requires_grad_(False)

        model = other(build)
        counts = []
        for _ in range(3):
            counts.append(compiled(lambda: model(torch.ones(2, 4).to("xla")).sum().item()))
        assert counts == [2, 0, 0]
        assert {spmd.residence(weight) for weight in model.parameters()} == {"devices"}

    @pytest.mark.parametrize("is_split", [False, True], ids=["one", "mesh"])
    def test_serving_beside_training(self, other: Turns, mesh8: Any, is_split: bool) -> None:
        """One thread trains, the other one asks the same model, wherever in its step the first one is. Each answer is
        that of the weights at its time, whenever it is read, and after the first round nothing is compiled."""

        def train(device: str, ask: Callable[[nn.Module], None]) -> Iterator[None]:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
            if is_split and device == "xla":
                for weight in model.parameters():
                    spmd.mark_sharding(weight, mesh8, ("fsdp", None)[: weight.dim()])
            optimizer, x = torch.optim.AdamW(model.parameters(), 0.1), torch.arange(32.0).view(4, 8) / 32
            for step in range(5):
                loss = model((x + step).to(device)).square().mean()
                ask(model)
                loss.backward()
                ask(model)
                optimizer.step()
                ask(model)
                optimizer.zero_grad()
                if device == "xla":
                    spmd.sync()
                ask(model)
                yield

        @torch.no_grad()
        def answer(model: nn.Module, device: str, rows: int) -> torch.Tensor:
            return model(torch.ones(rows, 8).to(device))

        expected: list[torch.Tensor] = []
        for _ in train("cpu", lambda model: expected.extend(answer(model, "cpu", rows) for rows in (1, 2))):
            pass
        asked: list[torch.Tensor] = []
        answers: list[torch.Tensor] = []

        def ask(model: nn.Module) -> None:
            """Reads the answer that was recorded the last time, asks and reads, and records the next."""
            if asked:
                answers.append(other(asked.pop().cpu))
            answers.append(other(lambda: answer(model, "xla", 1).cpu()))
            asked.append(other(lambda: answer(model, "xla", 2)))

        steps = train("xla", ask)
        counts = [compiled(lambda: next(steps)) for _ in range(5)]
        answers.append(other(asked.pop().cpu))
        for given, wanted in zip(answers, expected, strict=True):
            check(given, wanted)
        assert not any(counts[1:]), counts

    def test_in_place_across_threads(self, other: Turns) -> None:
        """Threads that write into the same tensors, views of them among them, in every order of writes and barriers."""
        draw = random.Random(0)

        def run(device: str, calls: Sequence[Callable[[Callable[[], Any]], Any]]) -> list[torch.Tensor]:
            a, b = torch.arange(12.0).view(3, 4).to(device), torch.ones(3, 4).to(device)
            view, read = a.t()[1:], []
            edits: list[Callable[[], Any]] = [
                lambda: a.add_(1), lambda: b.mul_(2), lambda: view.add_(b.t()[1:]), lambda: a[1].copy_(b[2]),
                lambda: b.sub_(a.sum(0)), lambda: read.append(a * b), lambda: a.mul_(0.5), lambda: b[:, 0].zero_(),
            ]  # fmt: skip
            for number, call in enumerate(calls):
                call(edits[order[number]])
                if number % 3 == 0:
                    call(spmd.sync)
                if number % 7 == 0:
                    read.append(call((a + b).clone))
            return [a, b, *read]

        order = [draw.randrange(8) for _ in range(60)]
        who = [draw.random() < 0.5 for _ in order]
        made = run("xla", [other if theirs else lambda function: function() for theirs in who])
        for given, wanted in zip(made, run("cpu", [lambda function: function()] * len(order)), strict=True):
            check(given, wanted)

    def test_what_another_reads_is_copied(self, other: Turns) -> None:
        """The program that writes over a buffer is the same, and writes over it, whoever still reads it."""
        x = torch.ones(64, device="xla") + 0
        spmd.sync()

        def step() -> None:
            x.mul_(2)
            spmd.sync()

        step()
        before = spmd.metrics.counter("buffers_spared")
        held = other(lambda: x + 1)
        assert compiled(step) == 0 and spmd.metrics.counter("buffers_spared") == before + 1
        assert compiled(step) == 0 and spmd.metrics.counter("buffers_spared") == before + 1
        assert other(held.tolist) == [3.0] * 64 and x.tolist() == [8.0] * 64

    def test_a_read_in_the_midst_of_anothers_step(self, other: Turns) -> None:
        """Reading a weight that another thread's step has written runs once what the step has written so far."""
        weights = [torch.ones(4, device="xla") + i for i in range(6)]
        spmd.sync()
        for weight in weights:
            weight.mul_(3)
        pending = weights[0] + 1
        syncs = compiled(lambda: [other(weight.tolist) for weight in weights])
        assert syncs == 1 and spmd.residence(pending) == "pending"
        assert [weight[0].item() for weight in weights] == [3.0, 6.0, 9.0, 12.0, 15.0, 18.0]
        assert pending.tolist() == [4.0] * 4

    def test_what_an_idle_thread_has_written(self, other: Turns) -> None:
        """It is computed with what needs it, and runs for good when that has happened again and again."""
        weight = torch.ones(4, device="xla") + 0
        spmd.sync()
        weight.mul_(3)
        made, found = [], []
        for _ in range(10):
            made.append(other(lambda: (weight + 1).tolist()))
            found.append(spmd.residence(weight))
        assert made == [[4.0] * 4] * 10
        assert found == ["pending"] * 8 + ["devices"] * 2

    def test_draws(self, other: Turns) -> None:
        """The draws of a seed come in the order of recording, whichever thread's barrier runs them."""

        def drawn(calls: Sequence[Callable[[Callable[[], Any]], Any]]) -> list[Any]:
            torch.manual_seed(3)
            made = [call(lambda: torch.randn(4, device="xla") + 0) for call in calls]
            return [one.tolist() for one in reversed(made)]

        def here(function: Callable[[], Any]) -> Any:
            return function()

        assert drawn([here, other, here, other]) == drawn([here] * 4)

    def test_autograds_own_threads(self) -> None:
        """They record for whoever called backward."""
        printed = run_script(
            """
            import os, threading, torch, spmd
            class Deep(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    return x * 2
                @staticmethod
                def backward(ctx, grad):
                    seen.append(threading.get_ident())
                    return grad * 2
            seen = []
            def work():
                x = torch.ones(3, device="xla", requires_grad=True)
                Deep.apply(x).sin().sum().backward()
                spmd.sync()
                print(spmd.residence(x.grad), [round(value, 4) for value in x.grad.tolist()])
            torch.ones(1, device="xla")
            torch.autograd.set_multithreading_enabled(True)
            work()
            assert seen[0] != threading.get_ident()
            print("end", flush=True)
            os._exit(0)  # as autograd's own threads abort a process that ends with them
            """
        )
        assert printed == "devices [-0.8323, -0.8323, -0.8323]\nend\n"


class TestLoader:
    """A DataLoader that forks after the backend is up does not hang."""

    def test_two_workers(self) -> None:
        printed = run_script(
            """
            import warnings
            import torch, spmd
            from torch.utils.data import DataLoader, TensorDataset
            # Python and jax both warn that a process with threads forks; that it works all the same is the point here.
            warnings.simplefilter("ignore")
            if __name__ == "__main__":
                spmd.simulate(4)
                total = torch.zeros(3, device="xla")
                spmd.sync()
                for epoch in range(2):
                    for (batch,) in DataLoader(TensorDataset(torch.ones(32, 3)), batch_size=4, num_workers=2):
                        total += batch.to("xla").sum(0)
                        spmd.sync()
                print(total.tolist())
            """
        )
        assert printed.strip() == "[64.0, 64.0, 64.0]"


class TestDevices:
    """How many devices there are: simulate, PJRT_DEVICE with CPU_NUM_DEVICES, XLA_FLAGS."""

    COUNT = "import spmd; print(len(spmd.device_ids()))"

    def test_pytorch_xlas_variables(self) -> None:
        assert run_script(self.COUNT, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4") == "4\n"

    def test_xla_flags(self) -> None:
        assert run_script(self.COUNT, XLA_FLAGS="--xla_force_host_platform_device_count=4") == "4\n"

    def test_jaxs_variable(self) -> None:
        assert run_script(self.COUNT, JAX_NUM_CPU_DEVICES="3", CPU_NUM_DEVICES="4") == "3\n"

    def test_simulate(self) -> None:
        assert run_script("import spmd; spmd.simulate(5); spmd.simulate(5); print(len(spmd.device_ids()))") == "5\n"

    def test_simulate_wins_over_variables(self) -> None:
        script = "import spmd; spmd.simulate(5); print(len(spmd.device_ids()))"
        assert run_script(script, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4") == "5\n"
        assert run_script(script, XLA_FLAGS="--xla_force_host_platform_device_count=4") == "5\n"

    def test_only_flags_that_xla_knows(self) -> None:
        """XLA aborts the process at a name that it does not know."""
        script = """
            import os
            from spmd.core import config
            ours = list(config.XLA_DEFAULTS)
            unknown = {"xla_cpu_flag_of_no_version": 1, "xla_cpu_collective": 1}  # the second begins other names
            config.XLA_DEFAULTS.update({**unknown, "xla_dump_max_hlo_modules": 5})
            import torch, spmd
            print(torch.ones(2, device="xla").sum().item())
            given = os.environ["XLA_FLAGS"].split()
            assert all(any(flag.startswith(f"--{name}=") for flag in given) for name in ours)
            print(given[len(ours) :])
            """
        assert run_script(script) == "2.0\n['--xla_dump_max_hlo_modules=5']\n"

    def test_wrong_variables(self) -> None:
        for name, value, text in (
            ("PJRT_DEVICE", "VAX", "PJRT_DEVICE='VAX': expected one of CPU, GPU, CUDA, TPU"),
            ("CPU_NUM_DEVICES", "many", "CPU_NUM_DEVICES='many': expected a positive integer"),
        ):
            script = """
                import spmd
                try:
                    spmd.device_ids()
                except ValueError as error:
                    print(error)
                """
            assert text in run_script(script, **{name: value})

    def test_wrong_flag(self) -> None:
        script = """
            try:
                import spmd
            except ValueError as error:
                print(error)
            """
        assert "expected one of 'gspmd', 'shardy', got 'sharky'" in run_script(script, SPMD_PARTITIONER="sharky")

    def test_sixty_four(self) -> None:
        """64 simulated devices finish a training step."""
        printed = run_script(
            """
            import torch, spmd, fsdp
            from torch import nn
            spmd.simulate(64)
            mesh = spmd.Mesh(range(64), (8, 8), ("data", "fsdp"))
            with torch.device("xla"):
                model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
            model = fsdp.FullyShardedDataParallel(model, mesh=mesh, extra_data_axis="data")
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(2):
                model(torch.ones(64, 64).to("xla")).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                spmd.sync(wait=True)
            print(len(spmd.local_shards(next(model.parameters()))))
            """,
            timeout=300,
        )
        assert printed == "64\n"


class TestLate:
    """What must come before the backend starts says so when it comes late."""

    def test_simulate_after_start(self) -> None:
        spmd.device_ids()
        with pytest.raises(
            RuntimeError, match=r"simulate\(3\) came too late: JAX is already running with 8 cpu device"
        ):
            spmd.simulate(3)
        spmd.simulate(8)
        for wrong in (0, -1, 2.5, "8"):
            with pytest.raises(ValueError, match="expected a number of devices of 1 or more"):
                spmd.simulate(wrong)
        assert (torch.ones(2, device="xla") + 1).tolist() == [2.0, 2.0]

    @pytest.mark.parametrize(
        ("before", "message"),
        [
            ("torch.utils.rename_privateuse1_backend('foo')", "is already called 'foo'"),
            ("torch.utils.rename_privateuse1_backend('xla')", "already has an owner in this process"),
        ],
    )
    def test_another_owner_of_the_name(self, before: str, message: str) -> None:
        script = f"""
            import torch
            {before}
            try:
                import spmd
            except ImportError as error:
                print(error)
            print(torch.ones(2).sum().item())
            """
        printed = run_script(script)
        assert message in printed and printed.endswith("2.0\n")


class TestModuleState:
    """What a thread sets for autograd stays in that thread."""

    def test_cpu_models_still_work(self) -> None:
        model = nn.Linear(2, 2)
        model(torch.ones(1, 2)).sum().backward()
        assert model.weight.grad.shape == (2, 2)


class TestPoolWidth:
    """XLA's CPU client gets one thread more than it has devices, where these are several and the cores are fewer."""

    WIDTHS = """
        import os, pathlib
        given = os.environ.get("PJRT_NPROC")
        import spmd
        assert os.environ.get("PJRT_NPROC") == given  # nothing is set at import
        devices = len(spmd.device_ids())
        assert os.environ.get("PJRT_NPROC") == given  # processes started from here have their own devices
        names = [task.read_text() for task in pathlib.Path("/proc/self/task").glob("*/comm")]
        print(names.count("tf_XLAEigen\\n") - max(devices + (devices > 1), len(os.sched_getaffinity(0))))
        """

    @pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads from /proc")
    @pytest.mark.parametrize(
        ("more", "environment"),
        [
            (0, {}),
            (0, {"CPU_NUM_DEVICES": "9"}),
            (0, {"JAX_NUM_CPU_DEVICES": "9"}),
            (0, {"XLA_FLAGS": "--xla_force_host_platform_device_count=9"}),
            (-1, {"CPU_NUM_DEVICES": "70", "PJRT_NPROC": "70"}),
            (-1, {"CPU_NUM_DEVICES": "70", "NPROC": "3"}),
        ],
    )
    def test_threads(self, more: int, environment: dict[str, str]) -> None:
        """The client's own threads, counted; a width in the environment is the user's and stays."""
        assert run_script(self.WIDTHS, **environment) == f"{more}\n"

    def test_simulated_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last count before the client starts is the one that counts; a large machine has threads enough."""
        for name in ("PJRT_NPROC", "NPROC"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(config, "_num_cores", lambda: 4)
        for devices, width in ((8, "9"), (64, "65"), (3, None), (4, "5"), (1, None)):
            config.set_pool_width(devices)
            assert os.environ.get("PJRT_NPROC") == width
        config.set_pool_width(8)
        config.reset_pool_width()
        assert "PJRT_NPROC" not in os.environ
        monkeypatch.setenv("PJRT_NPROC", "3")
        config.set_pool_width(8)
        config.reset_pool_width()
        assert os.environ["PJRT_NPROC"] == "3"


class TestNoHang:
    """No program waits for a thread that another one holds (`tests/hanging.py` has more, and more runs)."""

    SIMPLE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

    def hanging(self, *arguments: str) -> list[str]:
        """Runs the command under Shardy; returns how each program ended."""
        done = subprocess.run(
            [sys.executable, ROOT / "tests" / "hanging.py", "--partitioners", "shardy", *arguments],
            capture_output=True, text=True, timeout=560, env={**os.environ, "XLA_FLAGS": self.SIMPLE},
        )  # fmt: skip
        return [line.split()[-1] for line in done.stdout.splitlines()]

    def test_all_end(self) -> None:
        """Programs launched without waiting, Python called on each device, collectives that data does not order."""
        assert self.hanging("--runs", "12", "--patience", "240") == ["ended"] * 4

    @pytest.mark.long
    @pytest.mark.parametrize(("program", "without"), [("queue", "queue"), ("callback", "width")])
    def test_what_hangs(self, program: str, without: str) -> None:
        """Without the bound on programs in flight, and without the one thread more, these do not end."""
        found = self.hanging("--programs", program, "--without", without, "--runs", "60", "--patience", "45")
        assert found == ["HUNG"]
