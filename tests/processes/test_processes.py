"""Two processes of four CPU devices each: training, reads, and how they end where they do not do
the same."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from jax._src.clusters import cloud_tpu_cluster
from support import ROOT, run_script

import spmd
from spmd.core.run.pjrt import processes
from spmd.tensors import launch
from spmd.tools.processes import agreement

from .keywords import VARIANTS
from .programs import DEEPER, STEPS, dynamic, losses

PROGRAMS = ROOT / "tests/processes/programs.py"
LIMIT = 100


def environment(**added: str) -> dict[str, str]:
    dropped = ("XLA_FLAGS", "PJRT_DEVICE", "CPU_NUM_DEVICES")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "PYTHONPATH": str(ROOT), "SPMD_PARTITIONER": spmd.config.partitioner, **added}


# Machine code in a hurry, by the same passes over programs: for what compiles many of them.
HASTY = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def outputs(started: list["subprocess.Popen[str]"]) -> list[tuple[str, str]]:
    """Waits for processes; what each printed, to stdout and stderr. None outlives the call."""
    try:
        return [process.communicate(timeout=LIMIT) for process in started]
    finally:
        for process in started:
            process.kill()


def together(name: str, *codes: int, **added: str) -> list[tuple[str, str]]:
    """Runs a program as processes that must end with these codes; what each printed, to stdout and
    stderr."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                str(PROGRAMS),
                name,
                str(port),
                str(index),
                str(len(codes)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**added),
            cwd=ROOT,
        )
        for index in range(len(codes))
    ]
    printed = outputs(started)
    assert tuple(process.returncode for process in started) == codes, printed
    return printed


def results(printed: list[tuple[str, str]]) -> list[Any]:
    return [json.loads(out.splitlines()[-1]) for out, _ in printed]


class TestTraining:
    """FSDP training with a batch of its own in each process gives the losses of one process with
    all devices."""

    def test_losses(self) -> None:
        found = results(together("train", 0, 0))
        assert found[0] == found[1]
        assert len(found[0]["losses"]) == STEPS and found[0]["programs"] == ["step"]
        assert found[0]["losses"] == pytest.approx(losses(), rel=1e-6)

    def test_without_tools(self, tmp_path: Path) -> None:
        """Without the proof that all do the same, they meet at barriers."""
        (tmp_path / "sitecustomize.py").write_text("import hidden\n")
        path = os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "tests")))
        found = results(together("train", 0, 0, PYTHONPATH=path, HIDDEN="tools"))
        assert found[0] == found[1] and found[0]["losses"] == pytest.approx(losses(), rel=1e-6)

    def test_compiled_steps(self) -> None:
        """Steps of `spmd.compile` are replayed, with the plain steps' losses, also where one
        process records again."""
        printed = together("train_compiled", 0, 0)
        assert [out.splitlines()[-2] for out, _ in printed] == [
            f"replayed {STEPS - 2}",
            f"replayed {STEPS - 3}",
        ]
        found = results(printed)
        assert found[0] == found[1]
        assert found[0]["programs"] == ["step"]
        assert found[0]["losses"] == results(together("train", 0, 0))[0]["losses"]

    @pytest.mark.long
    def test_given_programs(self, tmp_path: Path) -> None:
        """Each process takes the programs that one of its number has written, and compiles
        nothing."""
        written = results(together("write_programs", 0, 0, FOLDER=str(tmp_path)))
        found = results(together("take_programs", 0, 0, FOLDER=str(tmp_path)))
        assert found[0] == found[1] and found[0]["compiled"] == 0
        assert written == [
            len(list(tmp_path.glob(f"process_{i}_of_2/*.program"))) for i in range(2)
        ]
        expected = results(together("take_programs", 0, 0))
        assert found[0]["losses"] == expected[0]["losses"] and expected[0]["compiled"] > 0

    def test_dynamic(self) -> None:
        """One program for all lengths that the user marks, in each process the same; the losses of
        one process."""
        found = results(together("dynamic", 0, 0))
        assert found[0] == found[1]
        assert found[0]["later programs"] == 0
        assert found[0]["losses"] == pytest.approx(dynamic()["losses"], rel=1e-6)

    def test_stores(self) -> None:
        """With all state as rows of stores, of which one process alone may read."""
        found = results(together("stores", 0, 0))
        assert found[0] == found[1]
        assert found[0]["losses"] == pytest.approx(losses(), rel=1e-6)
        assert all("inputs are rows of" in cause for cause in found[0]["programs"])

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_rolled(self, partitioner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """With layers in loops, their weights in stores."""
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)
        found = results(together("rolled", 0, 0, XLA_FLAGS=HASTY))
        assert found[0] == found[1]
        assert [[iterations for iterations, _ in loops] for loops in found[0]["loops"]] == [[4, 4]]
        monkeypatch.setattr(spmd.config, "scan_layers", "never")
        assert found[0]["losses"] == pytest.approx(losses(config=DEEPER), rel=1e-5)

    def test_torchrun(self) -> None:
        """The same from torchrun's environment."""
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc_per_node=2",
                str(PROGRAMS),
                "train",
                "env",
            ],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env=environment(),
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stderr
        found = [json.loads(text)["losses"] for text in re.findall(r"\{.*?\}", done.stdout)]
        assert len(found) == 2 and found[0] == found[1]
        assert found[0] == pytest.approx(losses(), rel=1e-6)


class TestLoading:
    """`spmd.DataLoader` with a part in each process: all give out the same batches, as many as all
    have."""

    def test_batches(self) -> None:
        first, second = results(together("loading", 0, 0))
        assert first == second

        def rows(start: int) -> list[float]:
            return [float(start + process + i) for process in (0, 100) for i in range(4)]

        assert first["drop"] == first["ended"] == [[rows(0)], [rows(4)]]
        assert first["rest"] == [[rows(4)], [rows(8)]] and first["left"] == []
        both, true, none = [True] * 8, [True] * 4, [False] * 4
        assert first["pad"] == [
            [rows(0), both],
            [[*rows(4)[:7], 0.0], [*both[:7], False]],
            [[*rows(8)[:4], 0.0, 0.0, 0.0, 0.0], [*true, *none]],
        ]


ALONE = """
    import json
    import spmd
    spmd.simulate(8)
    from tests.processes.keywords import keywords
    print(json.dumps(keywords()))
"""


class TestKeywords:
    """With each keyword and habit of FSDP, two processes of four devices train as one of eight:
    losses and state."""

    def test_state(self) -> None:
        first, second = results(together("keywords", 0, 0, XLA_FLAGS=HASTY))
        assert first == second
        expected = json.loads(run_script(ALONE, XLA_FLAGS=HASTY).splitlines()[-1])
        assert first.keys() == expected.keys() == VARIANTS.keys()
        for name, values in expected.items():
            assert first[name].keys() == values.keys()
            for key, wanted in values.items():
                assert first[name][key] == pytest.approx(wanted, rel=1e-5, abs=1e-6), (
                    f"{name}: {key}"
                )
        changing = ("mp_policy", "clip_grad_norm_", "no_sync", "set_gradient_divide_factors")
        assert all(expected[name] != expected["nothing"] for name in changing)


class TestUse:
    """Meshes by ordinals; reads, which work as in one process; errors at the user's line."""

    def test_reads(self) -> None:
        first, second = results(together("use", 0, 0))
        assert {**first, "pieces": ""} == {**second, "pieces": ""}
        for name, message in {
            "uneven part": (
                r"ValueError: a part of shape \[3, 2\] cannot be split over the devices of a "
                r"process"
            ),
            "pieces": (
                r"expected a shard for each of this process's 4 devices that hold one \(ids \d, "
                r".*\), got 3"
            ),
            "part of the devices": (
                r"MeshError: Mesh: with several processes a mesh holds every device, but 4 of 8"
            ),
            "again": (
                r"RuntimeError: initialize: this process has joined others already, with "
                r"num_processes=2"
            ),
        }.items():
            assert re.search(message, first[name]), first[name]


class TestSee:
    """Calls that ask the compiler, or forbid it, run nothing and need no agreement."""

    def test_inspect_and_no_recompile(self) -> None:
        found = results(together("see", 0, 0))
        pieces = "0,1,2,3,4,5,6,7"
        assert (
            found[0]
            == found[1]
            == {
                "told": [f"{{devices=[8,1]{pieces}}}", f"{{devices=[1,8]{pieces}}}"],
                "raised": True,
            }
        )


class TestDifferent:
    """Processes that do not do the same all end, within seconds, with what each did and both
    ledgers."""

    @pytest.mark.parametrize(
        ("program", "words"),
        [
            (
                "other_program",
                ["the processes differ (in its ops), ", "a new program (step: ", "spmd.sync()"],
            ),
            ("other_number", ["event 6 on the processes differ", "event 6: a run, its numbers #"]),
            ("other_seed", ["a run, its numbers", "a seed of its own"]),
            (
                "other_shape",
                ["from_process_local of float32[8]", "from_process_local of float32[12]"],
            ),
            ("one_more_run", ["process 0 has ended"]),
            (
                "read_in_one",
                [
                    "item() or bool() of float32[], a read that all processes must make",
                    "in read_in_one: print",
                ],
            ),
            (
                "split_in_one",
                ["of float32[8], a read that all processes must make", "in split_in_one: print(x)"],
            ),
            (
                "other_data",
                [
                    "the processes differ (in its values), ",
                    "the upload of float32[8], its values #",
                ],
            ),
        ],
    )
    def test_told(self, program: str, words: list[str]) -> None:
        for _, error in together(program, 1, 1):
            for word in (*words, "Process 0", "Process 1", "All processes must record"):
                assert word in error, error

    def test_one_text(self) -> None:
        """Two events of one text differ in what their digests say; the first one may be too old to
        be known."""

        def record(number: int, count: int, program: bytes, kept: int = 2) -> dict[str, Any]:
            texts = [
                f"event {i}: a run, its {processes.digest('program', program)}, at a.py:3"
                for i in (count - 1, count)
            ]
            digests = ["same"] * (kept - 1) + [program.hex()] if kept > 1 else [program.hex()]
            return {
                "process": number,
                "count": count,
                "digests": digests,
                "last": texts,
                "ledger": [],
                "ended": False,
            }

        both = [record(0, 6, b"a"), record(1, 6, b"b")]
        start = agreement._first_difference(*both)
        assert start == 6
        assert (
            agreement._apart(*both, start)
            == "from event 6 on the processes differ (in its program)"
        )
        texts = [agreement._reported(one, start).splitlines()[2] for one in both]
        assert texts[0] != texts[1]
        cut = [record(0, 6, b"a", kept=1), record(1, 6, b"b", kept=1)]
        assert agreement._apart(*cut, 6) == "at event 6 or earlier the processes began to differ"
        assert "event 2 to event 4: see its own error" in agreement._reported(both[0], 2)

    def test_alone(self) -> None:
        """One that waits for others that do not come says where it waits, and for whom."""
        for _, error in together("alone", 1, 1):
            assert "process 1 has waited 2 s" in error or "full_tensor of float32[2]" in error, (
                error
            )

    def test_failing(self) -> None:
        """A process that raises ends with its own error, and the other with the news."""
        (_, first), (_, second) = together("failing", 1, 1)
        assert "process 1 has ended" in first and "a fault of this process alone" in second

    @pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
    def test_killed(self, count: int) -> None:
        """A process that dies without a word ends the others, long before jax's own patience, and
        by its name."""
        started = time.monotonic()
        codes = [1, -signal.SIGKILL, 1, 1][:count]
        printed = together("killed", *codes, HEARTBEAT="100")
        for (_, error), code in zip(printed, codes, strict=True):
            last = [line for line in error.splitlines() if line.startswith("spmd: ")][-1:]
            assert code != 1 or re.match(
                r"spmd: process 1 \(.*\) has died without a word: it was killed", last[0]
            )
            assert code != 1 or "Check failure stack trace" not in error
        assert time.monotonic() - started < 60

    @pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
    def test_first_killed(self, count: int) -> None:
        """With the first process the store of all dies: jax ends the others at once, each with its
        own words."""
        started = time.monotonic()
        codes = [-signal.SIGKILL, *[-signal.SIGABRT] * (count - 1)]
        for _, error in together("killed", *codes, HEARTBEAT="100", KILLED="0")[1:]:
            assert "another task died" in error
        assert time.monotonic() - started < 60


class TestWatchdog:
    """Every process names a program that does not end, and a process that is silent, with the
    places of all."""

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_late(self, partitioner: str) -> None:
        (_, first), (_, second) = together(
            "late", 0, 0, SPMD_HANG_SECONDS="2", SPMD_PARTITIONER=partitioner
        )
        for text in (first, second):
            assert re.search(
                r"process 0 of 2 \(.*, pid \d+\) waits: the program of step at .*programs.py:\d+",
                text,
            )
            assert re.search(r"as event \d+ and has not ended \(config.hang_seconds is 2\)", text)
            assert re.search(
                r"all-\w+ of [\d,]+ bytes over a for aten\.sum, .*programs\.py:\d+ in step", text
            )
            assert re.search(
                r"process 1 \(.*\) has not come to it\. Its last event was event \d+: ", text
            )
            assert re.search(
                r"its main thread was at .*programs\.py:\d+ in late: time\.sleep\(5\)", text
            )

    @pytest.mark.long
    @pytest.mark.parametrize("place", [0, 1])
    def test_stopped(self, place: int) -> None:
        both = together("stopped", 0, 0, STOPPED=str(place), HEARTBEAT="40", SPMD_HANG_SECONDS="9")
        _, other = both[1 - place]
        if place == 0:
            assert re.search(
                r"process 0, which keeps the store of all processes, has not answered process 1 "
                r"for",
                other,
            )
        else:
            assert re.search(
                r"process 1 \(.*\) has been silent for \d+ s: it is stopped, dead, or its machine",
                other,
            )
            assert re.search(r"process 1 \(.*\) is heard again", other)
            assert re.search(r"process 1 \(.*\) has not come to it\. It has been silent for", other)
        assert all("Traceback" not in text for _, text in both)


class TestPlace:
    """initialize: arguments, or what torchrun, SLURM and Open MPI set; an error that says what is
    missing."""

    @pytest.fixture(autouse=True)
    def _no_launcher(self, monkeypatch: pytest.MonkeyPatch) -> None:
        names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "JOB_COMPLETION_INDEX")
        for name in (*names, "TORCHELASTIC_USE_AGENT_STORE"):
            monkeypatch.delenv(name, raising=False)

    def test_arguments(self) -> None:
        assert launch.find_rendezvous("host:1", 4, 3) == ("host:1", 4, 3, None)

    def test_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {
            "MASTER_ADDR": "host",
            "MASTER_PORT": "29500",
            "WORLD_SIZE": "4",
            "RANK": "2",
        }.items():
            monkeypatch.setenv(name, value)
        assert launch.find_rendezvous(None, None, None) == ("host:29500", 4, 2, None)
        assert launch.find_rendezvous("other:1", None, None) == ("other:1", 4, 2, None)
        monkeypatch.setenv("RANK", "two")
        with pytest.raises(ValueError, match="RANK='two': expected a whole number"):
            launch.find_rendezvous(None, None, None)

    def test_slurm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {
            "SLURM_JOB_ID": "7",
            "SLURM_STEP_NODELIST": "node[3,5]",
            "SLURM_NTASKS": "2",
            "SLURM_PROCID": "1",
            "SLURM_LOCALID": "0",
        }.items():
            monkeypatch.setenv(name, value)
        assert launch.find_rendezvous(None, None, None) == ("node3:61447", 2, 1, (0,))

    def test_open_mpi(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {
            "OMPI_MCA_orte_hnp_uri": "1314521088.0;tcp://10.0.0.1:34911",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_RANK": "0",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        }.items():
            monkeypatch.setenv(name, value)
        address, *rest = launch.find_rendezvous(None, None, None)
        assert address.startswith("10.0.0.1:") and rest == [2, 0, (0,)]

    def test_kubernetes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A pod of an indexed job, whose spec has the address of the first pod and the number of
        pods."""
        for name, value in {
            "MASTER_ADDR": "train-0.train",
            "MASTER_PORT": "29500",
            "WORLD_SIZE": "4",
            "JOB_COMPLETION_INDEX": "3",
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            "HOSTNAME": "train-3",
        }.items():
            monkeypatch.setenv(name, value)
        assert launch.find_rendezvous(None, None, None) == ("train-0.train:29500", 4, 3, None)

    @pytest.mark.parametrize(
        ("added", "place"),
        [
            ({}, (4, 2, None)),
            (
                {
                    "MEGASCALE_COORDINATOR_ADDRESS": "localhost:8080",
                    "MEGASCALE_NUM_SLICES": "2",
                    "MEGASCALE_SLICE_ID": "1",
                    "MEGASCALE_PORT": "8080",
                },
                (8, 6, None),
            ),
        ],
        ids=["slice", "multislice"],
    )
    def test_tpu_pods(
        self, added: dict[str, str], place: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The third host of a v5e-16 as GKE starts it, and of the second of two such slices."""
        for name, value in {
            "TPU_WORKER_HOSTNAMES": "localhost,t1v-1,t1v-2,t1v-3",
            "TPU_WORKER_ID": "2",
            "TPU_ACCELERATOR_TYPE": "v5litepod-16",
            "TPU_TOPOLOGY": "4x4",
            "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
            "TPU_HOST_BOUNDS": "2,2,1",
            "TPU_PROCESS_BOUNDS": "2,2,1",
            "TPU_SKIP_MDS_QUERY": "1",
            **added,
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
        # of the metadata server
        facts = "ACCELERATOR_TYPE: 'v5litepod-16'\nTOPOLOGY: '4x4'\nWORKER_ID: '2'\n"
        monkeypatch.setattr(cloud_tpu_cluster, "get_metadata", lambda key: (facts, 200))
        address = f"localhost:{cloud_tpu_cluster.coordinator_port}"
        assert launch.find_rendezvous(None, None, None) == (address, *place)

    def test_alone(self) -> None:
        """Without arguments and a launcher: a job of one, which may be asked for twice."""
        printed = run_script("""
            import torch, spmd

            spmd.initialize(local_device_count=2)
            x = torch.ones(2, device="xla") + 1
            print(
                spmd.process_index(),
                spmd.process_count(),
                len(spmd.device_ids()),
                spmd.full_tensor(x).tolist(),
            )
            spmd.initialize()
            """)
        assert printed == "0 1 2 [2.0, 2.0]\n"

    def test_missing(self) -> None:
        with pytest.raises(
            ValueError, match=r"coordinator_address, process_id is not given .* -m spmd launch"
        ):
            launch.find_rendezvous(None, 2, None)
        with pytest.raises(
            ValueError, match="initialize: process_id is not given and no launcher says it"
        ):
            launch.find_rendezvous("host:1", 2, None)
        with pytest.raises(ValueError, match="expected process_id of 0 to 1, got 2"):
            launch.find_rendezvous("host:1", 2, 2)
        with pytest.raises(
            ValueError, match="expected coordinator_address as \"host:port\", got 'host'"
        ):
            launch.find_rendezvous("host", 2, 1)

    def test_too_late(self) -> None:
        assert spmd.device_ids()
        with pytest.raises(RuntimeError, match="initialize came too late"):
            spmd.initialize("host:1", 2, 0)
