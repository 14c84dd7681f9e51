"""Files of compiled programs: whole or not there, the user's own, no more than they may take,
checked before used."""

import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import run_script

import spmd
from spmd.core.files import disk

HEADER = {"jaxlib": "1", "devices": "0,1"}
KEY, OTHER = "a" * 64, "b" * 64


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setattr(spmd.config, "program_cache", True)
    monkeypatch.setattr(spmd.config, "program_cache_dir", str(tmp_path / "cache"))
    return tmp_path / "cache"


def file(folder: Path, key: str = KEY) -> Path:
    return folder / f"{key}.program"


def kept() -> bytes | None:
    return disk.read(KEY, HEADER)


class TestFiles:
    """A file that was written is read; anything else under its name is a miss, and is removed."""

    def test_round(self, folder: Path) -> None:
        assert kept() is None
        for body in (b"", b"one\n\ntwo\x00", bytes(range(256)) * 99):
            assert disk.write(KEY, HEADER, body) and kept() == body
        assert disk.read(OTHER, HEADER) is None
        assert (
            stat.S_IMODE(folder.stat().st_mode) == 0o700
            and stat.S_IMODE(file(folder).stat().st_mode) == 0o600
        )
        assert [path.name for path in folder.iterdir()] == [file(folder).name]

    @pytest.mark.parametrize("place", [0, 5, 40, -1])
    def test_a_changed_byte(self, folder: Path, place: int) -> None:
        disk.write(KEY, HEADER, b"body" * 10)
        content = bytearray(file(folder).read_bytes())
        content[place] ^= 1
        file(folder).write_bytes(content)
        assert kept() is None and not file(folder).exists()

    @pytest.mark.parametrize("size", [0, 3, 15, 60, 150, -1])
    def test_cut_short(self, folder: Path, size: int) -> None:
        disk.write(KEY, HEADER, b"body" * 10)
        file(folder).write_bytes(file(folder).read_bytes()[:size])
        assert kept() is None and not file(folder).exists()

    def test_longer(self, folder: Path) -> None:
        disk.write(KEY, HEADER, b"body")
        file(folder).write_bytes(file(folder).read_bytes() + b"x")
        assert kept() is None

    @pytest.mark.parametrize(
        "other", [{"jaxlib": "2", "devices": "0,1"}, {"jaxlib": "1"}, {}, {**HEADER, "cpu": "x"}]
    )
    def test_of_another_version(self, other: dict[str, str]) -> None:
        disk.write(KEY, other, b"body")
        assert kept() is None
        disk.write(KEY, HEADER, b"body")
        assert disk.read(KEY, other) is None

    def test_of_another_layout(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(disk, "MAGIC", b"spmd program 0\n")
            disk.write(KEY, HEADER, b"body")
        assert kept() is None

    def test_under_another_name(self, folder: Path) -> None:
        """The name is the digest of the graph; the header says so, too."""
        disk.write(OTHER, HEADER, b"of another graph")
        file(folder, OTHER).rename(file(folder))
        assert kept() is None


class TestOwner:
    """A folder that others may enter, or of another user, is not used, and that is said once; nor
    is such a file."""

    @pytest.mark.parametrize("mode", [0o777, 0o750, 0o701])
    def test_an_open_folder(
        self, folder: Path, mode: int, capfd: pytest.CaptureFixture[str]
    ) -> None:
        disk.write(KEY, HEADER, b"body")
        folder.chmod(mode)
        assert (
            kept() is None
            and not disk.write(OTHER, HEADER, b"body")
            and not file(folder, OTHER).exists()
        )
        assert (
            capfd.readouterr().err.count(f"no cache of programs in {folder}: only its owner") == 1
        )
        folder.chmod(0o700)
        assert kept() == b"body"

    @pytest.mark.parametrize("mode", [0o644, 0o620, 0o602])
    def test_an_open_file(self, folder: Path, mode: int) -> None:
        disk.write(KEY, HEADER, b"body")
        file(folder).chmod(mode)
        assert kept() is None

    def test_of_another_user(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        disk.write(KEY, HEADER, b"body")
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert kept() is None and not disk.write(OTHER, HEADER, b"body")
        monkeypatch.undo()
        assert file(folder).exists()

    def test_links(self, folder: Path, tmp_path: Path) -> None:
        disk.write(KEY, HEADER, b"body")
        elsewhere = tmp_path / "elsewhere"
        file(folder).rename(elsewhere)
        file(folder).symlink_to(elsewhere)
        assert kept() is None and elsewhere.exists()
        folder.rename(tmp_path / "moved")
        folder.symlink_to(tmp_path / "moved")
        assert not disk.write(KEY, HEADER, b"body")

    def test_files_that_are_not_ours(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A folder that holds other things, or took the cache's place, loses none of them."""
        disk.write(KEY, HEADER, b"body")
        (folder / "thesis.txt").write_text("x" * 4000)
        monkeypatch.setattr(spmd.config, "program_cache_bytes", 1000)
        assert disk.write(OTHER, HEADER, b"y" * 700)
        assert (folder / "thesis.txt").exists() and not file(folder).exists()

    def test_a_file_of_any_size(self, folder: Path) -> None:
        disk.write(KEY, HEADER, b"body")
        os.truncate(file(folder), 1 << 40)
        assert kept() is None

    @pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "pipe"])
    def test_no_file_at_all(self, folder: Path, make: Callable[[Path], None]) -> None:
        disk.write(OTHER, HEADER, b"body")
        make(file(folder))
        assert kept() is None

    def test_a_full_disk(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        disk.write(KEY, HEADER, b"body")

        def full(*args: object, **kwargs: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "rename", full)
        monkeypatch.setattr(os, "utime", full)
        assert not disk.write(OTHER, HEADER, b"body") and kept() == b"body"
        assert [path.name for path in folder.iterdir()] == [file(folder).name]
        said = capfd.readouterr().err
        assert (
            said.count(f"no cache of programs in {folder}: ") == 1
            and "No space left on device" in said
        )

    def test_a_user_without_a_home(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(spmd.config, "program_cache_dir", "~nobody has this name/cache")
        assert kept() is None and "no cache of programs" in capfd.readouterr().err

    def test_a_folder_that_cannot_be_made(
        self, folder: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        folder.write_text("a file")
        assert kept() is None and not disk.write(KEY, HEADER, b"body")
        assert (
            capfd.readouterr().err.count("no cache of programs") == 1
            and folder.read_text() == "a file"
        )

    def test_off(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "program_cache", False)
        assert not disk.write(KEY, HEADER, b"body") and not folder.exists()
        monkeypatch.setattr(spmd.config, "program_cache", True)
        monkeypatch.setattr(spmd.config, "program_cache_dir", "")
        assert not disk.write(KEY, HEADER, b"body") and kept() is None


NOBODY = 65534
# a program as this library writes it
HOSTILE = "mkdir -m 700 {0}; cp body {0}/" + KEY + ".program; chmod 600 {0}/*"


def as_nobody(script: str, folder: Path) -> None:
    """Runs a script in a folder as another user of this machine, without the groups of root."""
    subprocess.run(
        ["/bin/sh", "-ec", script],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd=folder,
        check=True,
    )


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="needs root: only root becomes another user",
)
class TestTwoUsers:
    """Another user of the machine, in a folder where both may write, brings no program in."""

    @pytest.fixture
    def common(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """A folder of all users without the sticky bit, where each may rename the folders of the
        others."""
        with tempfile.TemporaryDirectory(dir="/tmp") as place:
            for path in (Path(place), Path(place) / "common"):
                path.mkdir(exist_ok=True)
                path.chmod(0o777)
            (Path(place) / "common/body").write_bytes(
                disk.content_of(KEY, HEADER, b"a body of another user")
            )
            (Path(place) / "common/body").chmod(0o644)
            monkeypatch.setattr(spmd.config, "program_cache_dir", f"{place}/common/cache")
            yield Path(place) / "common"

    def test_a_folder_that_was_there(self, common: Path, capfd: pytest.CaptureFixture[str]) -> None:
        as_nobody(HOSTILE.format("cache"), common)
        assert kept() is None and not disk.write(OTHER, HEADER, b"body")
        assert "only its owner may enter it" in capfd.readouterr().err

    def test_in_the_place_of_ours(self, common: Path) -> None:
        disk.write(KEY, HEADER, b"body")
        assert kept() == b"body"
        as_nobody(f"mv cache away; {HOSTILE.format('cache')}", common)
        assert kept() is None

    def test_between_two_looks(self, common: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The folder is exchanged after it was opened and checked: files come from the one that was
        checked."""
        disk.write(KEY, HEADER, b"body")
        is_private = disk.is_private

        def exchanged(status: os.stat_result) -> bool:
            if stat.S_ISDIR(status.st_mode) and not (common / "away").exists():
                as_nobody(f"mv cache away; {HOSTILE.format('cache')}", common)
            return is_private(status)

        monkeypatch.setattr(disk, "is_private", exchanged)
        assert kept() == b"body" and (common / "away").exists()
        assert kept() is None

    def test_through_links(self, common: Path) -> None:
        """A link of another user to a folder or a file, of theirs or of ours."""
        as_nobody(f"{HOSTILE.format('theirs')}; ln -s theirs cache", common)
        assert kept() is None and not disk.write(OTHER, HEADER, b"body")
        (common / "cache").unlink()
        disk.write(KEY, HEADER, b"body")
        as_nobody("mv cache ours; ln -s ours cache", common)
        assert kept() is None and not disk.write(OTHER, HEADER, b"body")
        (common / "cache").unlink()
        (common / "ours").rename(common / "cache")
        file(common / "cache").unlink()
        file(common / "cache").symlink_to(common / f"theirs/{KEY}.program")
        assert kept() is None

    def test_a_file_of_another_user(self, common: Path, tmp_path: Path) -> None:
        """Even in a folder of ours."""
        disk.write(KEY, HEADER, b"body")
        as_nobody(HOSTILE.format("theirs"), common)
        file(common / "theirs").replace(file(common / "cache"))
        assert kept() is None

    def test_given_programs(self, common: Path) -> None:
        """`load_programs` executes what is in a folder that the user names; another user must not
        have written it."""
        as_nobody(HOSTILE.format("theirs"), common)
        with pytest.raises(
            ValueError, match=rf"that you own and no other user may write.* of user {NOBODY}"
        ):
            spmd.load_programs(common / "theirs")
        path = common / "own.program"
        path.write_bytes(b"x")
        path.chmod(0o646)
        with pytest.raises(
            ValueError, match=r"mode -rw-r--rw-; copy it \(chmod 600\) if you trust it"
        ):
            disk.trusted_content(path)
        path.chmod(0o644)
        assert disk.trusted_content(path) == b"x"
        (common / "link.program").symlink_to(path)
        with pytest.raises(ValueError, match="as its content is executed, got a link"):
            disk.trusted_content(common / "link.program")


class TestBound:
    """Files take no more than they may; those that were not read for longest go."""

    def test_the_least_recently_used_go_first(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        body = b"x" * 1000
        keys = [str(number) * 64 for number in range(5)]
        for moment, key in enumerate(keys[:3]):
            disk.write(key, HEADER, body)
            os.utime(file(folder, key), (moment, moment))
        monkeypatch.setattr(
            spmd.config, "program_cache_bytes", 3 * file(folder, keys[0]).stat().st_size
        )
        assert disk.read(keys[0], HEADER) == body  # the oldest, and used just now
        disk.write(keys[3], HEADER, body)
        assert [file(folder, key).exists() for key in keys] == [True, False, True, True, False]
        left = folder / ".left by a process that was killed"
        left.write_bytes(body)
        os.utime(left, (0, 0))
        disk.write(keys[4], HEADER, body)
        assert [file(folder, key).exists() for key in keys] == [True, False, False, True, True]
        assert not left.exists()

    def test_one_that_is_too_large(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        disk.write(KEY, HEADER, b"body")
        monkeypatch.setattr(spmd.config, "program_cache_bytes", 2000)
        assert not disk.write(OTHER, HEADER, b"x" * 2000) and kept() == b"body"
        assert "bytes is not kept: config.program_cache_bytes is 2,000" in capfd.readouterr().err


class TestProcesses:
    """Many processes read, write, and make room at once: each sees whole programs or none."""

    def test_at_once(self, folder: Path) -> None:
        printed = run_script(
            """
            import os, random, sys
            import spmd
            from spmd.core.files import disk
            spmd.config.program_cache, spmd.config.program_cache_bytes = True, 60_000
            children = []
            for seed in range(4):
                child = os.fork()
                if not child:
                    random.seed(seed)
                    found = 0
                    for _ in range(300):
                        number = random.randrange(8)
                        body = bytes([number]) * 10_000
                        read = disk.read(f"{number}" * 64, {})
                        found += read is not None
                        if read not in (None, body) or not disk.write(f"{number}" * 64, {}, body):
                            os._exit(1)
                    os._exit(0 if found else 2)
                children.append(child)
            print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
            """,
            SPMD_PROGRAM_CACHE_DIR=str(folder),
        )
        assert printed.split() == ["0"] * 4
        assert 0 < sum(path.stat().st_size for path in folder.iterdir()) <= 100_000
