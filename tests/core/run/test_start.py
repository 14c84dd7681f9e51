"""The start and the end of a process: its devices and their thread pool, workers that it forks, its
last backward."""

import os
import subprocess
import sys

import pytest
import torch
from support import ROOT, run_both, run_script

import spmd
from spmd.core.base import config


class TestFirstOp:
    """What the first use of the device imports keeps no value of the user's alive."""

    def test_second_step_is_the_same_program(self) -> None:
        printed = run_script(
            """
            import gc, torch, spmd
            gc.disable()
            for _ in range(2):
                (torch.arange(8.0, device="xla") * 2).sum().item()
            print([record.cause for record in spmd.metrics.compiles()])
            """
        )
        assert printed == "['first program of this sync']\n"


class TestEnd:
    """A process that ends right after its first backward exits 0, whichever thread it ran in."""

    def test_first_backward(self) -> None:
        run_script(
            "import torch, spmd; torch.ones(3, device='xla', requires_grad=True).sum().backward()"
        )

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
        """The tensors come from the main thread: the new thread's first use of the device is the
        backward itself."""
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
        run_script(
            "import torch, spmd; x = torch.ones(256, 256, device='xla'); y = x @ x @ x; spmd.sync()"
        )


class TestLoader:
    """A DataLoader that forks after the backend is up does not hang."""

    def test_two_workers(self) -> None:
        printed = run_script(
            """
            import warnings
            import torch, spmd
            from torch.utils.data import DataLoader, TensorDataset

            # Python and jax both warn that a process with threads forks; that it works all the same
            # is the point here.
            warnings.simplefilter("ignore")
            if __name__ == "__main__":
                spmd.simulate(4)
                total = torch.zeros(3, device="xla")
                spmd.sync()
                for epoch in range(2):
                    for (batch,) in DataLoader(
                        TensorDataset(torch.ones(32, 3)), batch_size=4, num_workers=2
                    ):
                        total += batch.to("xla").sum(0)
                        spmd.sync()
                print(total.tolist())
            """
        )
        assert printed.strip() == "[64.0, 64.0, 64.0]"


class TestDevices:
    """The number of devices: simulate, PJRT_DEVICE with CPU_NUM_DEVICES, XLA_FLAGS."""

    COUNT = "import spmd; print(len(spmd.device_ids()))"

    def test_pytorch_xlas_variables(self) -> None:
        assert run_script(self.COUNT, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4") == "4\n"

    def test_xla_flags(self) -> None:
        assert run_script(self.COUNT, XLA_FLAGS="--xla_force_host_platform_device_count=4") == "4\n"

    def test_jaxs_variable(self) -> None:
        assert run_script(self.COUNT, JAX_NUM_CPU_DEVICES="3", CPU_NUM_DEVICES="4") == "3\n"

    def test_simulate(self) -> None:
        assert (
            run_script(
                "import spmd; spmd.simulate(5); spmd.simulate(5); print(len(spmd.device_ids()))"
            )
            == "5\n"
        )

    @pytest.mark.parametrize(
        ("environment", "said"),
        [
            ({"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}, "CPU_NUM_DEVICES (4)"),
            ({"JAX_NUM_CPU_DEVICES": "4"}, "JAX_NUM_CPU_DEVICES (4)"),
            ({"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}, "XLA_FLAGS (4)"),
            ({"XLA_FLAGS": "--xla_force_host_platform_device_count=5", "CPU_NUM_DEVICES": "5"}, ""),
        ],
    )
    def test_simulate_wins_over_other_counts(self, environment: dict[str, str], said: str) -> None:
        """In one line where they differ, in none where they agree."""
        out, error = self.simulated(environment)
        assert out == "5 cpu\n"
        assert error == (
            f"spmd: simulate makes 5 CPU devices here, against {said}\n" if said else ""
        )

    def simulated(self, environment: dict[str, str], before: str = "pass") -> tuple[str, str]:
        """What a script prints that simulates five devices."""
        return run_both(
            f"""
            import spmd
            {before}
            spmd.simulate(5)
            print(len(spmd.device_ids()), spmd.torch_xla.device_attributes(0).platform)
            """,
            **environment,
        )

    def test_an_accelerator_wins_over_simulate(self) -> None:
        """One that jax.config names, too; here there is none, so that jax takes the CPU that is
        named behind it."""
        said = (
            "spmd: simulate: JAX_PLATFORMS or PJRT_DEVICE names cuda; it wins (JAX_PLATFORMS=cpu "
            "simulates)\n"
        )
        out, error = self.simulated({"JAX_PLATFORMS": "cuda,cpu"})
        assert out == "1 cpu\n" and error.count(said) == 1
        out, error = self.simulated(
            {}, "import jax; jax.config.update('jax_platforms', 'cuda,cpu')"
        )
        assert out == "1 cpu\n" and error.count(said) == 1
        assert self.simulated({"JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "TPU"}) == ("5 cpu\n", "")

    @pytest.mark.parametrize(
        ("gpu", "tpu", "kind"),
        [(True, 0, "GPU"), (False, 4, "TPU"), (False, 0, None)],
        ids=["gpu", "tpu", "none"],
    )
    def test_an_accelerator_that_is_present(self, gpu: bool, tpu: int, kind: str | None) -> None:
        """Named in one line, unless the environment asks for the CPU."""
        stubs = f"""
            import importlib.util
            from spmd.core import jax_facts, variables

            variables.has_gpu, jax_facts.num_tpu_chips, find = (
                lambda: {gpu},
                lambda: {tpu},
                importlib.util.find_spec,
            )
            importlib.util.find_spec = lambda name, *rest: (
                name == "jax_cuda12_plugin" or find(name, *rest)
            )
            """
        out, error = self.simulated({}, stubs)
        said = (
            f"spmd: simulate computes on the CPU; set PJRT_DEVICE={kind}, or leave it out, for "
            f"the {kind}\n"
        )
        assert out == "5 cpu\n" and error == ("" if kind is None else said)
        assert self.simulated({"PJRT_DEVICE": "CPU"}, stubs) == ("5 cpu\n", "")

    @pytest.mark.parametrize(
        ("environment", "asked"),
        [({"PJRT_DEVICE": "GPU"}, "cuda"), ({"PJRT_DEVICE": "TPU"}, "tpu")],
    )
    @pytest.mark.parametrize(
        "use",
        [
            "torch.ones(2, device='xla').sum().item()",
            "spmd.Mesh(range(1), (1,), ('x',))",
            "x = torch.ones(2, device='xla') + 1; spmd.sync()",
            "spmd.compile(lambda: torch.ones(2, device='xla') + 1)()",
            "spmd.torch_xla.xla_runtime.global_runtime_device_count()",
        ],
    )
    def test_a_platform_that_is_not_here(
        self, environment: dict[str, str], asked: str, use: str
    ) -> None:
        """At the first use, in one sentence in place of jax's frames, at this line; simulate leaves
        the platform."""
        script = f"""
            import torch, spmd, traceback
            spmd.simulate(8)
            try:
                {use}
            except RuntimeError as error:
                assert error.__cause__ is None and error.__context__ is None
                assert traceback.extract_tb(error.__traceback__)[-1].filename == "<string>"
                print(error)
            """
        printed = run_script(script, **environment)
        assert printed.startswith(
            f"JAX_PLATFORMS or PJRT_DEVICE names {asked!r}, which is not here: "
        )
        assert (
            f'(pip install "jax[{asked}' in printed
            and "PJRT_DEVICE=CPU, with spmd.simulate(8)" in printed
        )

    def test_a_variable_that_sets_nothing(self) -> None:
        """Said at the first use of the device, once; nothing is said without it."""
        use = "x = torch.ones(2, device='xla'); (x + 1).sum().item()"
        _, error = run_both(f"import torch, spmd; {use}", SPMD_PROGRM_CACHE="0")
        assert error == "spmd: SPMD_PROGRM_CACHE sets nothing; did you mean 'SPMD_PROGRAM_CACHE'?\n"
        assert run_both("import torch, spmd; torch.ones(2)", SPMD_PROGRM_CACHE="0") == ("", "")

    def test_only_flags_that_xla_knows(self) -> None:
        """XLA aborts the process at a name that it does not know."""
        script = """
            import os
            from spmd.core.base import config

            ours = list(config.XLA_DEFAULTS)
            # the second begins other names
            unknown = {"xla_cpu_flag_of_no_version": 1, "xla_cpu_collective": 1}
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
        assert "expected one of 'gspmd', 'shardy', got 'sharky'" in run_script(
            script, SPMD_PARTITIONER="sharky"
        )

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
    """A call that must come before the backend starts says so when it comes late."""

    def test_simulate_after_start(self) -> None:
        spmd.device_ids()
        with pytest.raises(
            RuntimeError,
            match=r"simulate\(3\) came too late: JAX is already running with 8 cpu device",
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
            (
                "torch.utils.rename_privateuse1_backend('xla')",
                "already has an owner in this process",
            ),
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


class TestPoolWidth:
    """XLA's CPU client gets two threads for each device, where these are several and cores
    fewer."""

    WIDTHS = """
        import contextlib, os, pathlib

        given = os.environ.get("PJRT_NPROC")
        import spmd

        assert os.environ.get("PJRT_NPROC") == given  # nothing is set at import
        devices = len(spmd.device_ids())
        # processes started from here have their own devices
        assert os.environ.get("PJRT_NPROC") == given
        names = []
        for task in pathlib.Path("/proc/self/task").glob("*/comm"):
            # another thread ended meanwhile
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                names.append(task.read_text())
        wanted = 2 * devices if devices > 1 else 1
        print(names.count("tf_XLAEigen\\n") - max(wanted, len(os.sched_getaffinity(0))))
        """

    @pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads from /proc")
    @pytest.mark.parametrize(
        ("more", "environment"),
        [
            (0, {}),
            (0, {"CPU_NUM_DEVICES": "9"}),
            (0, {"JAX_NUM_CPU_DEVICES": "9"}),
            (0, {"XLA_FLAGS": "--xla_force_host_platform_device_count=9"}),
            (-70, {"CPU_NUM_DEVICES": "70", "PJRT_NPROC": "70"}),
            (-70, {"CPU_NUM_DEVICES": "70", "NPROC": "3"}),
        ],
    )
    def test_threads(self, more: int, environment: dict[str, str]) -> None:
        """The client's own threads, counted; a width in the environment is the user's and stays."""
        assert run_script(self.WIDTHS, **environment) == f"{more}\n"

    def test_simulated_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last count before the client starts is the one that counts; a large machine has
        threads enough."""
        for name in ("PJRT_NPROC", "NPROC"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(config, "_num_cores", lambda: 4)
        for devices, width in ((8, "16"), (64, "128"), (3, "6"), (2, None), (1, None)):
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
    """No program waits for a thread that another one holds (`tests/hanging.py` has more, and more
    runs)."""

    SIMPLE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

    def hanging(self, *arguments: str) -> list[str]:
        """Runs the command under Shardy; returns how each program ended."""
        done = subprocess.run(
            [sys.executable, ROOT / "tests" / "hanging.py", "--partitioners", "shardy", *arguments],
            capture_output=True,
            text=True,
            timeout=560,
            env={**os.environ, "XLA_FLAGS": self.SIMPLE},
        )
        return [line.split()[-1] for line in done.stdout.splitlines()]

    def test_all_end(self) -> None:
        """Python called on each device, loops and collectives without an order."""
        programs = ("callback", "mix", "loops")
        assert (
            self.hanging("--programs", *programs, "--runs", "3", "--patience", "240")
            == ["ended"] * 3
        )

    @pytest.mark.long
    @pytest.mark.parametrize(("program", "without"), [("queue", "queue"), ("callback", "width")])
    def test_what_hangs(self, program: str, without: str) -> None:
        """With a thread for each device these do not end: without the bound on programs in flight,
        and with it."""
        common = ("--programs", program, "--width", "8", "--runs", "100", "--patience", "45")
        assert self.hanging(*common, "--without", without) == ["HUNG"]

    @pytest.mark.long
    def test_the_bound_alone(self) -> None:
        """The bound on programs in flight is enough for these; more threads are for other
        programs."""
        assert self.hanging(
            "--programs", "queue", "--width", "8", "--runs", "100", "--patience", "240"
        ) == ["ended"]


class TestLateImports:
    """Modules that torch imports in the middle of a step are imported at the first use of the
    device, and the collector is as it was."""

    def test_collector(self) -> None:
        printed = run_script("""
            import gc, sys, torch, spmd
            before = {name in sys.modules for name in ("torch._dynamo", "torch.distributed.tensor")}
            x = torch.ones(3, device="xla") + 1
            after = {name in sys.modules for name in ("torch._dynamo", "torch.distributed.tensor")}
            print(before, after, gc.isenabled(), gc.get_freeze_count())
        """)
        assert printed == "{False} {True} True 0\n"

    def test_frozen_objects_stay_so(self) -> None:
        printed = run_script("""
            import gc, torch, spmd
            gc.disable()
            gc.freeze()
            before = gc.get_freeze_count()
            x = torch.ones(3, device="xla") + 1
            print(gc.get_freeze_count() > 0.9 * before > 0, gc.isenabled())
        """)
        assert printed == "True False\n"


class TestVersions:
    """An older torch or jax is named by its version, before a name that it lacks is read; `doctor`
    says the same."""

    @pytest.mark.parametrize(("name", "oldest"), [("torch", "2.11"), ("jax", "0.10")])
    def test_too_old(self, name: str, oldest: str) -> None:
        script = f"""
            import torch, jax
            {name}.__version__ = "0.4.30"
            try:
                import spmd.__main__
            except ImportError as error:
                print(error)
            """
        said = f"spmd needs {name} {oldest} or newer, here is 0.4.30: pip install -U {name}\n"
        assert run_script(script) == said
        assert f'"{name}>={oldest},' in (ROOT / "pyproject.toml").read_text()
