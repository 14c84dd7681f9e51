"""Small programs beside the graphs: kept on disk under all that they depend on, loaded at a second
start."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spmd
from spmd.core.files import disk
from spmd.core.files.small_programs import SmallProgram
from spmd.core.run.pjrt import transfer
from spmd.core.sharding.partitioner import compiler_context
from spmd.core.sharding.value import Sharding


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setattr(spmd.config, "program_cache", True)
    monkeypatch.setattr(spmd.config, "program_cache_dir", str(tmp_path / "cache"))
    return tmp_path / "cache"


def program(fact: str) -> SmallProgram:
    """A program of a new function: jax keeps what it has compiled of an old one."""

    def twice(array: jax.Array, number: np.int32) -> jax.Array:
        return array * 2 + number

    return SmallProgram(twice, fact)


def on(mesh: spmd.Mesh, *shape: int) -> tuple[jax.Array, Sharding]:
    """An array of this shape, cut along dim 0 over a mesh."""
    sharding = mesh.sharding((mesh.axis_names, *[None] * (len(shape) - 1)), len(shape), "test")
    return transfer.upload(
        np.arange(np.prod(shape), dtype=np.float32).reshape(shape), sharding
    ), sharding


class Counted:
    """The compiled, stored and loaded programs since it was made."""

    def __init__(self) -> None:
        self.before = self.now()

    def now(self) -> list[int]:
        metrics = spmd.metrics
        return [metrics.num_compiles(), metrics.counter("programs_stored"), metrics.num_loaded()]

    def since(self) -> list[int]:
        before, self.before = self.before, self.now()
        return [now - then for now, then in zip(self.before, before, strict=True)]


class TestSmallProgram:
    """A new object stands for a new start: it has no program in memory."""

    def test_a_second_start_loads(self, mesh8: spmd.Mesh) -> None:
        array, _ = on(mesh8, 16, 4)
        counted, made = Counted(), []
        for expected in ([1, 1, 0], [0, 0, 1]):
            made_now = program("fact")
            for number in (3, 4):
                made.append(np.asarray(made_now(array, np.int32(number))))
            assert counted.since() == expected
        for got, number in zip(made, (3, 4, 3, 4), strict=True):
            np.testing.assert_array_equal(got, np.asarray(array) * 2 + number)

    @pytest.mark.parametrize("what", ["fact", "shape", "sharding", "dtype", "setting"])
    def test_another_one(
        self, mesh8: spmd.Mesh, mesh2x4: spmd.Mesh, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        array, _ = on(mesh8, 16, 4)
        program("fact")(array, np.int32(1))
        if what == "setting":
            monkeypatch.setattr(spmd.config, "check_shardings", not spmd.config.check_shardings)
        other = {
            "shape": on(mesh8, 8, 4)[0],
            "sharding": on(mesh2x4, 16, 4)[0],
            "dtype": array.astype(jnp.int32),
        }.get(what, array)
        counted = Counted()
        made = program("other" if what == "fact" else "fact")(other, np.int32(1))
        assert counted.since() == [1, 1, 0]
        np.testing.assert_array_equal(np.asarray(made), np.asarray(other) * 2 + 1)

    def test_what_does_not_load(
        self, mesh8: spmd.Mesh, folder: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        array, _ = on(mesh8, 16, 4)
        program("fact")(array, np.int32(1))
        (file,) = folder.glob("*.program")
        header = json.loads(file.read_bytes().split(b"\n")[1])
        del header["sha256"]
        key = header.pop("digest")
        assert disk.write(key, header, b"no program")
        counted = Counted()
        made = program("fact")(array, np.int32(1))
        assert counted.since() == [1, 1, 0] and "does not load" in capfd.readouterr().err
        np.testing.assert_array_equal(np.asarray(made), np.asarray(array) * 2 + 1)

    def test_no_cache(
        self, mesh8: spmd.Mesh, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spmd.config, "program_cache", False)
        counted = Counted()
        program("fact")(on(mesh8, 16, 4)[0], np.int32(1))
        assert counted.since() == [1, 0, 0] and not folder.exists()


class TestMoves:
    """Exchanges between devices, and paddings, are such programs."""

    @pytest.mark.parametrize("shape", [(16, 4), (10, 4)], ids=["even", "uneven"])
    def test_second_start(
        self, mesh8: spmd.Mesh, mesh2x4: spmd.Mesh, shape: tuple[int, ...]
    ) -> None:
        array, source = on(mesh8, *shape)
        single = Sharding.single(0)
        target = mesh2x4.sharding(("data", "fsdp"), 2, "test")
        counted = Counted()
        for expected in (True, False):
            transfer._program.cache_clear()
            transfer._block_program.cache_clear()
            with compiler_context():
                moved = transfer.moved(array, shape, source, target)
                alone = transfer.moved(moved, shape, target, single)
                back = transfer.moved(alone, shape, single, source)
            since = compiled, stored, loaded = counted.since()
            assert (
                (compiled == stored > 0 and not loaded)
                if expected
                else (not compiled and loaded > 0)
            ), since
            np.testing.assert_array_equal(
                transfer.download(back, shape), transfer.download(array, shape)
            )
