"""Forked processes: what a child may do, and what it is told where it may not."""

from pathlib import Path

from support import run_script

BUSY = """
    import os, threading, warnings
    import torch, spmd
    from torch.utils.data import DataLoader, Dataset


    class Rows(Dataset):
        def __init__(self, make):
            self.make = make

        def __len__(self):
            return 8

        def __getitem__(self, index):
            return self.make(index)


    def told(function):
        try:
            function()
        except RuntimeError as error:
            return "Cannot use the xla device in a forked subprocess" in str(
                error
            ) and "spawn" in str(error)
        return False
"""


class TestFork:
    """XLA's threads do not survive a fork: a child of a process that has started the device may not
    use it."""

    def test_loaders_beside_a_busy_device(self) -> None:
        """Twenty epochs of two workers; no warning of jax's at a loader's forks, but one at
        others'."""
        out = run_script(
            BUSY
            + """
    import jax

    step, stop = jax.jit(lambda x: jax.numpy.tanh(x @ x)), threading.Event()


    def work():
        x = jax.numpy.ones((256, 256))
        while not stop.is_set():
            x = step(x)


    held = torch.ones(3, device="xla") + 1
    spmd.sync()
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    rows, total = Rows(lambda index: torch.full((2,), float(index))), 0.0
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for epoch in range(20):
            for batch in DataLoader(rows, batch_size=2, num_workers=2, pin_memory=epoch % 2 == 0):
                total += (batch.to("xla") * 2).sum().item()
        quiet = [str(warning.message) for warning in seen]
        if os.fork() == 0:
            os._exit(0)
        os.wait()
    stop.set()
    worker.join()
    print(
        total,
        quiet,
        ["os.fork() was called" in str(warning.message) for warning in seen],
        held.tolist(),
    )
    """,
            timeout=240,
        )
        assert out.strip() == f"{20 * 28 * 4.0} [] [True] [2.0, 2.0, 2.0]"

    def test_what_a_child_is_told(self) -> None:
        """Whatever it does to the device; the CPU is its own, and its parent goes on."""
        out = run_script(
            BUSY
            + """
    warnings.simplefilter("ignore")
    mesh, held = spmd.Mesh([0], (1,), ("a",)), torch.ones(3, device="xla") + 1
    spmd.sync()
    pending = held + 1
    uses = [
        lambda: pending.tolist(),
        lambda: held.sum().item(),
        lambda: held + 1,
        lambda: torch.ones(2, device="xla"),
        lambda: torch.ones(2).to("xla"),
        lambda: repr(held),
        lambda: held.cpu(),
        spmd.sync,
        lambda: bool(held[0] > 1),
        lambda: torch.xla.synchronize(),
        lambda: spmd.Mesh([0], (1,), ("a",)),
        lambda: spmd.get_stablehlo(),
        lambda: spmd.mark_sharding(held, mesh, (None,)),
        lambda: torch.save(held, os.devnull),
        lambda: torch.from_dlpack(held),
        lambda: torch.xla.memory_allocated(),
        lambda: spmd.local_shards(held),
        lambda: spmd.call_jax(lambda x: x + 1, held),
        lambda: held.clone(),
        lambda: torch.nn.Linear(2, 2).to("xla"),
    ]
    lock = spmd.core.record.storage.LOCK
    # a thread that will not be there to give it back
    threading.Thread(target=lambda: lock.acquire()).start()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answers = [told(use) for use in uses]
        thread = threading.Thread(target=lambda: answers.append(told(lambda: held + 1)))
        thread.start()
        thread.join()
        torch.manual_seed(1)
        fine = (
            torch.rand(3).add(1).sum().item() > 0
            and torch.xla._is_in_bad_fork()
            and not torch.xla.is_initialized()
        )
        os.write(writer, repr((all(answers), len(answers), fine)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    print(os.read(reader, 100).decode(), torch.xla._is_in_bad_fork())
    for make in (lambda index: torch.ones(2, device="xla"), lambda index: held.cpu()):
        for pin_memory in (False, True):
            print(told(lambda: list(DataLoader(Rows(make), num_workers=1, pin_memory=pin_memory))))
    """
        )
        assert out.split("\n") == ["(True, 21, True) False", "True", "True", "True", "True", ""]

    def test_a_child_of_a_process_without_devices(self) -> None:
        """Recording starts nothing: forked before the first run, parent and child both have the
        device."""
        out = run_script(
            BUSY
            + """
    held = torch.ones(3, device="xla") + 1
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, repr(((held * 2).tolist(), torch.xla._is_in_bad_fork())).encode())
        os._exit(0)
    os.waitpid(child, 0)
    print(os.read(reader, 100).decode(), held.tolist())
    """
        )
        assert out.strip() == "([4.0, 4.0, 4.0], False) [2.0, 2.0, 2.0]"


class TestSpawn:
    """A spawned process has a device of its own; tensors reach it, and come back, as values on the
    CPU."""

    def test_processes_and_workers(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere.py").write_text(
            "import torch, spmd\n"
            "class Rows(torch.utils.data.Dataset):\n"
            "    __len__ = lambda self: 4\n"
            "    __getitem__ = lambda self, index: torch.full((2,), float(index), device='xla')\n"
            "def child(rank, given, answers):\n"
            "    answers.put((given.device.type, given.to('xla').add(1).tolist(), "
            "torch.xla._is_in_bad_fork()))\n"
        )
        out = run_script(
            f"""
            import sys
            sys.path.insert(0, {str(tmp_path)!r})
            import torch, spmd, elsewhere
            import torch.multiprocessing as processes
            given = torch.ones(3, device="xla") + 1
            spmd.sync()
            answers = processes.get_context("spawn").SimpleQueue()
            processes.spawn(elsewhere.child, args=(given, answers), nprocs=1)
            print(answers.get())
            loader = torch.utils.data.DataLoader(
                elsewhere.Rows(), batch_size=2, num_workers=1, multiprocessing_context="spawn"
            )
            print([(batch.device.type, batch.tolist()) for batch in loader])
            """
        )
        assert out.split("\n") == [
            "('cpu', [3.0, 3.0, 3.0], False)",
            "[('cpu', [[0.0, 0.0], [1.0, 1.0]]), ('cpu', [[2.0, 2.0], [3.0, 3.0]])]",
            "",
        ]
