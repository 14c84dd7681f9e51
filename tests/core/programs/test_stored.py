"""A second start of a program compiles nothing: what was compiled is loaded, and is in every
respect the same."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from alike import WHERE, alike
from support import run_script

import spmd
from spmd.core.files import disk
from spmd.core.graph import store
from spmd.core.programs import cache, stored
from spmd.core.programs.program import Program
from spmd.core.run.pjrt import transfer
from spmd.loops.interop import call_jax


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, on disk; in memory an empty one."""
    monkeypatch.setattr(spmd.config, "program_cache", True)
    monkeypatch.setattr(spmd.config, "program_cache_dir", str(tmp_path / "cache"))
    spmd.sync()
    cache.clear_cache()
    return tmp_path / "cache"


def started(run: Callable[[], object]) -> tuple[object, int, int]:
    """The result of a run that finds nothing in memory; the programs that it loaded; the compiles
    of XLA."""
    cache.clear_cache()
    before = spmd.metrics.counter("programs_loaded"), spmd.metrics.num_compiles()
    made = run()
    return (
        made,
        spmd.metrics.counter("programs_loaded") - before[0],
        spmd.metrics.num_compiles() - before[1],
    )


def twice(run: Callable[[], object]) -> tuple[object, object]:
    """The results of two starts, of which the second compiles nothing."""
    first, loaded, compiled = started(run)
    assert loaded == 0 and compiled > 0
    second, loaded, compiled_again = started(run)
    assert loaded == compiled and compiled_again == 0
    return first, second


def values() -> torch.Tensor:
    return torch.arange(8.0, device="xla") * 2


class TestSecondStart:
    """In one process: the disk alone is asked."""

    def test_values(self) -> None:
        first, second = twice(lambda: (values().cumsum(0) + 1).tolist())
        assert first == second == [1.0, 3.0, 7.0, 13.0, 21.0, 31.0, 43.0, 57.0]

    def test_lines_are_those_of_the_run(self, mesh8: spmd.Mesh) -> None:
        """The table of collectives and the ledger name who recorded the ops, not who compiled the
        program first."""

        def here(x: torch.Tensor) -> torch.Tensor:
            return x.sum(0) * 2

        def there(x: torch.Tensor) -> torch.Tensor:
            return x.sum(0) * 2

        records = []
        for name, function in (("here", here), ("there", there)):

            def run(function: Callable[[torch.Tensor], torch.Tensor] = function) -> object:
                return function(
                    spmd.mark_sharding(torch.ones(8, 4).to("xla"), mesh8, ("fsdp", None))
                ).tolist()

            _, loaded, _ = started(run)
            records.append(spmd.metrics.compiles()[-1])
            assert loaded == (name == "there")
            rows = records[-1].traffic
            assert rows and all(f" in {name}: return x.sum(0) * 2" in row.line for row in rows), (
                rows
            )
        bare = [[dataclasses.replace(row, line="") for row in record.traffic] for record in records]
        assert bare[0] == bare[1]

    def test_moves_that_no_annotation_asked_for(
        self, mesh2x4: spmd.Mesh, monkeypatch: pytest.MonkeyPatch, folder: Path
    ) -> None:
        monkeypatch.setattr(spmd.config, "moves_above", 1024)

        def run() -> object:
            x = spmd.mark_sharding(torch.ones(6, 16, 64).to("xla"), mesh2x4, ("data", "fsdp", None))
            y = x.reshape(16, 6, 64).sin()
            spmd.sync()
            return spmd.metrics.compiles()[-1].moves, y.shape, spmd.explain().partition("move: ")[2]

        first, second = twice(run)
        assert first == second and first[0][0].before == "P('data', 'fsdp', None)" and first[2]
        # what a program keeps is all of them
        monkeypatch.setattr(spmd.config, "moves_above", 1 << 20)
        assert started(run)[0][0] == ()

    def test_marked_intermediates(self, mesh2x4: spmd.Mesh) -> None:
        def run() -> object:
            x = spmd.mark_sharding(torch.ones(16, 12).to("xla"), mesh2x4, ("data", None))
            y = spmd.mark_sharding(x @ torch.eye(12).to("xla"), mesh2x4, (None, "fsdp"))
            z = (y * 3).sum(0)
            spmd.sync()
            return y.tolist(), z.tolist()

        first, second = twice(run)
        assert first == second

    def test_stores(self, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        """A program that takes and gives stacks is kept as that, and the digest tells it from one
        that does not."""

        def run() -> object:
            layers = [
                spmd.mark_sharding(torch.ones(16, 4).to("xla"), mesh8, ("fsdp", None))
                for _ in range(3)
            ]
            spmd.sync()
            for _ in range(2):
                for i, layer in enumerate(layers):
                    layer.add_(i).mul_(2)
                spmd.sync()
            found = cache.last_program()
            assert found is not None
            return (
                [layer.tolist() for layer in layers],
                len(found.inputs),
                len(found.outputs),
                found.donated,
            )

        plain, _, _ = started(run)
        sharding = mesh8.sharding(("fsdp", None), 2, "test")
        ones = transfer.upload(np.ones((16, 4), np.float32), sharding)
        # jax compiles these for itself, once in a process
        store.row(store.stacked([ones] * 3, sharding), 0, sharding)
        monkeypatch.setattr(*WHERE, alike)
        first, second = twice(run)
        assert first == second == (plain[0], 1, 1, (True,) * 3) and plain[1:3] == (3, 3)

    def test_part_of_the_devices_in_their_own_order(self) -> None:
        part = spmd.Mesh((6, 2, 5), (3,), ("part",))

        def run() -> object:
            x = spmd.mark_sharding(torch.arange(7.0).to("xla"), part, ("part",))
            y = x * 2
            spmd.sync()
            found = cache.last_program()
            assert found is not None
            devices = [
                device.id
                for device in found.executable._executable._unloaded_executable.device_list
            ]
            return y.tolist(), found.results, devices

        first, second = twice(run)
        assert first == second and second[2] == [6, 2, 5]

    @pytest.mark.parametrize(
        "made", [lambda x: x.flip(0), lambda x: x[:5] * 2, lambda x: x.reshape(4, 4).t() + 1]
    )
    def test_layouts_that_the_compiler_chooses(
        self, mesh2x4: spmd.Mesh, made: Callable[..., torch.Tensor]
    ) -> None:
        def run() -> object:
            x = spmd.mark_sharding(torch.arange(16.0).to("xla"), mesh2x4, (("fsdp", "data"),))
            y = made(x)
            spmd.sync()
            found = cache.last_program()
            assert found is not None
            return y.tolist(), (y + 1).tolist(), found.results

        first, second = twice(run)
        assert first == second

    def test_several_meshes_in_one_program(self, mesh2x4: spmd.Mesh) -> None:
        other = spmd.Mesh((7, 6, 5, 4, 3, 2, 1, 0), (8,), ("back",))

        def run() -> object:
            x = spmd.mark_sharding(torch.arange(16.0).to("xla"), mesh2x4, (("data", "fsdp"),))
            y = spmd.mark_sharding(torch.arange(16.0).to("xla"), other, ("back",))
            z, w = x + y, x * y
            spmd.sync()
            found = cache.last_program()
            assert found is not None
            return z.tolist(), w.tolist(), found.results, found.foreign, found.respelled

        first, second = twice(run)
        assert first == second

    def test_each_partitioner_has_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        names = ("gspmd", "shardy")
        for name in names:
            monkeypatch.setattr(spmd.config, "partitioner", name)
            assert started(lambda: values().tolist())[1:] == (0, 1)
        for name in names:
            monkeypatch.setattr(spmd.config, "partitioner", name)
            assert started(lambda: values().tolist())[1:] == (1, 0)

    def test_random_numbers_and_lifted_ones_are_no_part_of_it(self) -> None:
        torch.manual_seed(1)
        first = started(lambda: (torch.rand(3, device="xla") * 2.0).tolist())
        second = started(lambda: (torch.rand(3, device="xla") * 5.0).tolist())
        assert first[1:] == (0, 1) and second[1:] == (1, 0) and first[0] != second[0]
        torch.manual_seed(1)
        assert started(lambda: (torch.rand(3, device="xla") * 2.0).tolist())[0] == first[0]

    def test_the_ledger_says_so(self) -> None:
        def run() -> Program:
            values().tolist()
            found = cache.last_program()
            assert found is not None
            return found

        first, second = twice(run)
        assert isinstance(first, Program) and isinstance(second, Program)
        compiled, loaded = first.record, second.record
        assert compiled is not None and loaded is not None and spmd.metrics.compiles()[-1] is loaded
        assert loaded.cause == f"loaded from disk; {compiled.cause}" and loaded.seconds < 5
        same = dataclasses.replace(
            loaded, cause=compiled.cause, seconds=compiled.seconds, line=compiled.line
        )
        assert same == compiled


class TestDonation:
    """A loaded step overwrites what a compiled one does, and takes as much memory."""

    def step(self, mesh: spmd.Mesh) -> tuple[list[float], Program]:
        weight = spmd.mark_sharding(torch.ones(64, 8).to("xla"), mesh, ("fsdp", None))
        momentum = spmd.mark_sharding(torch.zeros(64, 8).to("xla"), mesh, ("fsdp", None))
        spmd.sync()
        for _ in range(3):
            old = weight._storage.value.buffer
            momentum.mul_(0.5).add_(weight.cos())
            weight.sub_(momentum, alpha=0.1)
            spmd.sync(wait=True)
        assert old.is_deleted()
        found = cache.last_program()
        assert found is not None
        return weight.sum(1)[:3].tolist(), found

    def test_step(self, mesh8: spmd.Mesh) -> None:
        first, second = twice(lambda: self.step(mesh8))
        assert isinstance(first, tuple) and isinstance(second, tuple) and first[0] == second[0]
        (compiled, loaded) = first[1], second[1]
        assert loaded.donated == compiled.donated == (True, True)
        assert loaded.bytes_needed == compiled.bytes_needed
        sizes = [program.executable.memory_analysis() for program in (compiled, loaded)]
        for name in ("argument", "output", "temp", "alias"):
            assert len({getattr(size, f"{name}_size_in_bytes") for size in sizes}) == 1, name
        assert sizes[1].alias_size_in_bytes == 2 * 64 * 8 * 4 // 8


class TestNotKept:
    """A program that a file cannot hold is compiled anew in each process."""

    def test_a_function_of_jax(self, folder: Path) -> None:
        def doubled(x: jax.Array) -> jax.Array:
            return x * 2

        for _ in range(2):
            made, loaded, compiled = started(
                lambda: spmd.call_jax(doubled, torch.ones(3, device="xla")).tolist()
            )
            assert made == [2.0] * 3 and loaded == 0 and compiled > 0
        assert not folder.exists() or not list(folder.iterdir())

    def test_its_name_says_nothing(self) -> None:
        def made_by(factor: float) -> Callable[[jax.Array], jax.Array]:
            def scaled(x: jax.Array) -> jax.Array:
                return x * factor

            return scaled

        x = torch.ones(3, device="xla")
        spmd.sync()
        assert [
            started(lambda f=f: spmd.call_jax(made_by(f), x).tolist())[0] for f in (2.0, 3.0)
        ] == [
            [2.0] * 3,
            [3.0] * 3,
        ]

    def test_a_host_callback(self, folder: Path) -> None:
        seen: list[float] = []

        def noted(x: jax.Array) -> jax.Array:
            jax.debug.callback(lambda value: seen.append(float(value)), x.sum())
            return x

        for count in (1, 2):
            assert (
                started(lambda: spmd.call_jax(noted, torch.ones(3, device="xla")).tolist())[1] == 0
            )
            jax.effects_barrier()
            assert len(seen) == count
        assert not folder.exists() or not list(folder.iterdir())

    def test_a_rule_of_the_users(self, folder: Path) -> None:
        @torch.library.custom_op("storedtest::thrice", mutates_args=())
        def thrice(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        thrice.register_fake(torch.empty_like)
        call_jax.register_lowering(torch.ops.storedtest.thrice.default, lambda x: x * 3)
        for _ in range(2):
            made, loaded, compiled = started(lambda: thrice(torch.ones(2).to("xla")).tolist())
            assert made == [3.0, 3.0] and loaded == 0 and compiled == 1
        assert not folder.exists() or not list(folder.iterdir())


class TestMiss:
    """A program that was made elsewhere, or does not load, is compiled; nothing fails."""

    @pytest.mark.parametrize("name", ["source", "jaxlib", "torch", "cpu", "topology"])
    def test_another_setting(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        started(lambda: values().tolist())
        fixed = {**disk._process_setting(), name: "other"}
        monkeypatch.setattr(disk, "_process_setting", lambda: fixed)
        assert started(lambda: values().tolist())[1:] == (0, 1)
        assert started(lambda: values().tolist())[1:] == (1, 0)

    def test_other_flags(self, monkeypatch: pytest.MonkeyPatch) -> None:
        started(lambda: values().tolist())
        monkeypatch.setenv("LIBTPU_INIT_ARGS", "--other")
        assert started(lambda: values().tolist())[1:] == (0, 1)
        with jax.debug_nans(True):
            assert started(lambda: values().tolist())[1:] == (0, 1)

    def test_the_source_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "one.py").write_text("x = 1\n")
        monkeypatch.setattr(disk, "_PACKAGE", tmp_path / "package")
        seen = [disk._source_digest()]
        for name, text in (("one.py", "x = 2\n"), ("two.py", ""), ("three.py", "x = 2\n")):
            (tmp_path / "package" / name).write_text(text)
            seen.append(disk._source_digest())
        assert len(set(seen)) == 4

    def test_the_source_is_the_whole_library(self) -> None:
        """Files of loops, manual, parallel and adaptive lower ops, too."""
        assert Path(spmd.__file__).parent == disk._PACKAGE

    @pytest.mark.parametrize("body", [b"", b"{}\n", b'{"record": 1}\nnot a pickle', b"\x80\x04."])
    def test_what_does_not_load(
        self, body: bytes, folder: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        expected = started(lambda: values().tolist())[0]
        (path,) = folder.iterdir()
        header = disk.setting((0,))
        assert disk.write(path.stem, header, body)
        assert started(lambda: values().tolist()) == (expected, 0, 1)
        assert "a cached program does not load" in capfd.readouterr().err
        assert started(lambda: values().tolist()) == (expected, 1, 0)

    def test_a_changed_file(self, folder: Path) -> None:
        expected = started(lambda: values().tolist())[0]
        (path,) = folder.iterdir()
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        assert started(lambda: values().tolist()) == (expected, 0, 1)

    def test_what_cannot_be_written(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def refuse(program: Program) -> bytes:
            raise NotImplementedError("no executables from this backend")

        monkeypatch.setattr(stored, "_encoded", refuse)
        assert started(lambda: values().tolist())[1:] == (0, 1)
        assert "NotImplementedError: no executables from this backend" in capfd.readouterr().err


STEP = """
    import torch, spmd

    spmd.simulate(8)
    mesh = spmd.Mesh(range(8), (2, 4), ("data", "model"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(10, 16), torch.nn.GELU(), torch.nn.Dropout(), torch.nn.Linear(16, 6)
    )
    model = model.to("xla")
    for parameter in model.parameters():
        spmd.mark_sharding(parameter, mesh, ("model", *[None] * (parameter.dim() - 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(3):
        x = spmd.mark_sharding(torch.ones(7, 10).to("xla") * number, mesh, ("data", None))
        hidden = spmd.mark_sharding(model(x), mesh, ("data", "model"))
        loss = hidden.square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item().hex())
    half = spmd.mark_sharding(
        torch.arange(5.0).to("xla"), spmd.Mesh((5, 3), (2,), ("half",)), ("half",)
    )
    print((half + 1).tolist())
    names = ("backend_compiles", "programs_compiled", "programs_stored", "programs_loaded")
    print(*(spmd.metrics.counter(name) for name in names))
"""


ROLLED = """
    import torch, spmd

    spmd.simulate(8)
    spmd.config.scan_layers = "always"
    mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.1)) for _ in range(4)
    )
    for parameter in layers.to("xla").parameters():
        spmd.mark_sharding(parameter, mesh, ("fsdp", *[None] * (parameter.dim() - 1)))
    optimizer = torch.optim.AdamW(layers.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.ones(8, 16, device="xla")
        for layer in layers:
            x = layer(x).tanh()
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item().hex())
    record = spmd.metrics.compiles()[-1]
    print(record.loops, record.traffic, record.temp_bytes, record.alias_bytes)
    print(layers[2][0].weight._storage.value.row, layers[2][0].weight.sum().item().hex())
    names = ("backend_compiles", "programs_stored", "programs_loaded")
    print(*(spmd.metrics.counter(name) for name in names))
"""


# What XLA leaves to kernels that jax registers or finds at the first lowering: LAPACK's, and others
# that might be.
KERNELS = """
    import torch, spmd

    torch.manual_seed(0)
    rows = torch.rand(5, 5, device="xla") + 3 * torch.eye(5, device="xla")
    for dtype in (torch.float32, torch.float64, torch.complex64):
        x = rows.to(dtype)
        for made in (
            torch.linalg.det(x),
            torch.linalg.qr(x)[1],
            torch.linalg.svdvals(x),
            torch.linalg.eigvalsh(x + x.mT),
            torch.linalg.eigvals(x),
            torch.linalg.cholesky(x @ x.mH),
            torch.linalg.solve(x, x + 1),
            torch.fft.fft2(x),
        ):
            print(torch.view_as_real(made + 0j).sum().item().hex())
    print(rows.sort().values.sum().item().hex(), torch.special.i0e(rows).sum().item().hex())
    print(*(spmd.metrics.counter(name) for name in ("programs_compiled", "programs_loaded")))
"""


class TestProcesses:
    """A second process of a training script compiles nothing at all."""

    def test_kernels(self, folder: Path) -> None:
        kept = {"SPMD_PROGRAM_CACHE": "1", "SPMD_PROGRAM_CACHE_DIR": str(folder)}
        cold, warm = (run_script(KERNELS, **kept).strip().rpartition("\n") for _ in range(2))
        assert cold[0] == warm[0]
        compiled = cold[2].split()[0]
        assert int(compiled) > 10 and warm[2].split() == ["0", compiled]

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_rolled_layers(self, folder: Path, partitioner: str) -> None:
        """Loops, and which arguments are stacks, are kept with the program; so are the programs
        that stack."""
        kept = {
            "SPMD_PROGRAM_CACHE": "1",
            "SPMD_PROGRAM_CACHE_DIR": str(folder),
            "SPMD_PARTITIONER": partitioner,
        }
        cold, warm = (run_script(ROLLED, **kept).strip().rpartition("\n") for _ in range(2))
        assert cold[0] == warm[0] and "((4, " in cold[0] and "\n2 " in cold[0]
        compiled, written, loaded = map(int, cold[2].split())
        assert compiled == written > 1 and loaded == 0
        assert list(map(int, warm[2].split())) == [0, 0, compiled]

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_a_training_script(self, folder: Path, partitioner: str) -> None:
        kept = {
            "SPMD_PROGRAM_CACHE": "1",
            "SPMD_PROGRAM_CACHE_DIR": str(folder),
            "SPMD_PARTITIONER": partitioner,
        }
        cold, warm = (
            run_script(STEP, PYTHONHASHSEED=seed, **kept).strip().rpartition("\n")
            for seed in ("1", "2")
        )
        assert cold[0] == warm[0]
        compiled, programs, written, loaded = map(int, cold[2].split())
        assert compiled == programs == written > 1 and loaded == 0
        assert list(map(int, warm[2].split())) == [0, 0, 0, programs]

    def test_forked_before_the_device_starts(self, folder: Path) -> None:
        printed = run_script(
            """
            import os, torch, spmd
            for _ in range(2):
                child = os.fork()
                if not child:
                    spmd.simulate(2)
                    made = (torch.arange(4.0, device="xla") * 3).cumsum(0).tolist()
                    counted = spmd.metrics.counter("programs_loaded"), spmd.metrics.num_compiles()
                    os._exit(10 * counted[0] + counted[1] if made == [0.0, 3.0, 9.0, 18.0] else 99)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            """,
            SPMD_PROGRAM_CACHE="1",
            SPMD_PROGRAM_CACHE_DIR=str(folder),
        )
        assert printed.split() == ["1", "10"]
