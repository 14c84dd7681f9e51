"""Seeded random changes of files that strangers may give, and the process that loads each changed
copy under limits.

    python tests/strangers/changes.py tests/strangers/test_files.py steps 20 7  # kind, number, seed

A module of kinds has a table `KINDS` of `Kind` by name. Everything is imported once; each changed
copy is loaded in a fork, made before a device has started. A load must end in the right values, or
in an error of `Kind.errors` with a sentence that names the file. Limits of a load: 5 s of the
processor (and 60 s in all: the machine may be busy), a peak of resident memory of at most 200 MB
above that of the unchanged files (RLIMIT_AS is 2 GiB above, so that more is a MemoryError), no
signal, no file read or written outside of its folder, no process or connection started.
"""

import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch._dynamo  # which an optimizer imports, and makes a folder

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import spmd

MEMORY, SECONDS, WALL = 200 << 20, 5.0, 60
ROOT = Path(__file__).resolve().parents[2]
Values = dict[str, Any]
Draw = random.Random
# Folders that any load may read: Python, its packages, this project, and the system's.
_OF_THE_SYSTEM = (
    "/usr",
    "/lib",
    "/etc",
    "/proc",
    "/sys",
    "/dev/null",
    "/dev/urandom",
    "/dev/shm",
    "/opt",
)


@dataclass(frozen=True)
class Kind:
    """A kind of files.

    write: fills an empty folder. load: the values of a folder, tensors on the CPU and plain values
    by name. seal: renews the checksums that anybody can compute, after a change. is_checked: False
    for a format without checksums. Its values may differ, and so may those that are sealed, where
    names, shapes and dtypes do not. follows_links: files may be links to others, as in Hugging
    Face's cache. errors: the classes that a load may raise, exactly.
    """

    write: Callable[[Path], None]
    load: Callable[[Path], Values]
    seal: Callable[[Path], None] | None = None
    is_checked: bool = True
    follows_links: bool = False
    errors: tuple[type[BaseException], ...] = (
        ValueError,
        FileNotFoundError,
        spmd.checkpoint.DamagedError,
    )


class Result(NamedTuple):
    """A changed copy that was loaded. outcome: "same", "data" (other values, unchecked), "refused"
    or "fault"."""

    number: int
    change: str
    outcome: str
    detail: str
    seconds: float
    num_bytes: int


# --- JSON in a file -------------------------------------------------------------------------------


def json_of(data: bytes) -> tuple[bytes, Any, bytes] | None:
    """What stands before the JSON of a file, its value, and what stands after; None where there is
    none.

    The JSON is all of the file, the header of a safetensors file, or one of the first lines.
    """
    parts = [(8, 8 + int.from_bytes(data[:8], "little"))]
    begin = 0
    for _ in range(3):
        end = data.find(b"\n", begin) + 1 or len(data)
        parts += [(begin, len(data)), (begin, end)]
        begin = end
    for begin, end in parts:
        if data[begin : begin + 1] in (b"{", b"[") and end <= len(data):
            try:
                return data[:begin], json.loads(data[begin:end]), data[end:]
            except (ValueError, RecursionError):
                continue
    return None


def with_json(before: bytes, text: bytes, after: bytes) -> bytes:
    """The file with another text of its JSON."""
    if len(before) == 8 and b"\n" not in before[7:]:
        return len(text).to_bytes(8, "little") + text + after
    return before + text + (b"\n" if after and not after.startswith(b"\n") else b"") + after


def _nodes(value: Any, parent: Any = None, key: Any = None) -> Iterator[tuple[Any, Any]]:
    """The containers and keys of all values inside of one."""
    if parent is not None:
        yield parent, key
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for inner, each in pairs:
        yield from _nodes(each, value, inner)


class _Text:
    """A value whose JSON is this text, that json.dumps cannot write: very deep, or very large."""

    def __init__(self, text: str) -> None:
        self.text = text


def _names(outside: Path) -> list[Any]:
    some = min(file for file in outside.rglob("*") if file.is_file())
    return [
        str(some), f"../{outside.name}/{some.relative_to(outside)}",
        f"./../{outside.name}/{some.name}", str(outside), "../x", "..", ".", "", "/", "/dev/zero",
        "/etc/passwd", "a/../../x", "x\0y", "x" * 100_000, "\ud800", "x/y", "__class__", "~/x",
        "file:///etc/passwd", "memory://x/y", "*", "%s{0}",
    ]  # fmt: skip


def _deep(draw: Draw) -> _Text:
    depth = draw.choice([100, 480, 900, 5_000, 200_000])
    begin, end = draw.choice(
        [("[", "]"), ('{"a":', "}"), ('{"$tuple":[', "]}"), ('{"$dict":[[1,', "]]}")]
    )
    return _Text(begin * depth + "0" + end * depth)


_LARGE: list[Any] = [
    10**18, 2**63, 2**64, 2**31, -1, -(2**63), 0, 1, _Text("1e400"), _Text("NaN"),
    _Text("-Infinity"), 1.5, 3_000_000_000, _Text("9" * 5000), _Text("1" + "0" * 400), [2**40] * 3,
    [0, 2**62], [3_000_000_000],
]  # fmt: skip
# As an encoder of plain values marks them; they do not fit, or ask for much.
_TYPED: list[Any] = [
    {"$scalar": ["S", 3_000_000_000]}, {"$scalar": ["V3000000000", 1]},
    {"$scalar": ["U900000000", "x"]}, {"$scalar": ["object", 1]}, {"$scalar": ["float32", "x"]},
    {"$scalar": []}, {"$scalar": ["float32", [[1]]]}, {"$bytes": 3_000_000_000}, {"$bytes": "!"},
    {"$tensor": "no such"}, {"$tensor": []}, {"$tensor": 3}, {"$complex": [1, 2, 3]},
    {"$complex": ["1", None]}, {"$deque": [[], -1]}, {"$deque": [[1], 2**63]}, {"$deque": 3},
    {"$size": ["a"]}, {"$size": [2**70]}, {"$dict": [[[], 1]]}, {"$dict": [1]}, {"$set": [[]]},
    {"$dtype": "nn"}, {"$counter": [["a", "b"]]}, {"$dtype": "load"}, {"$device": "nowhere:9"},
    {"$float": "x"}, {"$float": "nan"}, {"$array": {"$tensor": "no such"}}, {"$array": 1},
    {"$unknown": 1}, {"$tuple": 5}, {"$ordered": {"a": 1}}, {"by_process": []},
    {"by_process": [None]}, {"by_process": 3}, {},
]  # fmt: skip


def _strange(draw: Draw, outside: Path) -> Any:
    match draw.randrange(5):
        case 0:
            return draw.choice(_names(outside))
        case 1:
            return draw.choice(_LARGE)
        case 2:
            return _deep(draw)
        case 3:
            return draw.choice(_TYPED)
    return draw.choice([None, True, False, [], {}, [[]], {"a": 1}, "text", 0.5])


def _json_changed(file: Path, draw: Draw, outside: Path) -> str:
    """Changes one value, key or order of a file's JSON."""
    parts = json_of(file.read_bytes())
    if parts is None:
        return _bytes_changed(file, draw, outside)
    before, value, after = parts
    parent, key = draw.choice([*_nodes(value)] or [([value], 0)])
    strange, old = _strange(draw, outside), parent[key]
    action = draw.choice(
        ["value", "value", "value", "near", "without", "renamed", "swapped", "more"]
    )
    if action == "near" and type(old) is int:
        strange = old + draw.choice([-1, 1, -old, old, 64, 1 << 32])
    elif action == "near" and isinstance(old, str):
        strange = draw.choice(
            [old.upper(), old + "0", old[:-1], f"../{old}", f"./{old}", f"{outside}/{old}"]
        )
    if action == "without":
        del parent[key]
    elif action == "renamed" and isinstance(parent, dict):
        parent[str(draw.choice(_names(outside)))] = parent.pop(key)
    elif action == "swapped":
        other, other_key = draw.choice([*_nodes(value)])
        parent[key], other[other_key] = json.loads(json.dumps([other[other_key], old]))
        strange = other_key
    elif action == "more" and isinstance(parent, list):
        parent.insert(draw.randrange(len(parent) + 1), strange)
    else:
        parent[key] = strange
    # A text that json.dumps cannot write stands under a mark first.
    texts: list[str] = []

    def marked(each: Any) -> str:
        texts.append(each.text)
        return f"mark-{len(texts) - 1}-mark"

    text = json.dumps(value, default=marked)
    for index, each in enumerate(texts):
        text = text.replace(f'"mark-{index}-mark"', each)
    file.write_bytes(with_json(before, text.encode(), after))
    shown = strange.text if isinstance(strange, _Text) else repr(strange)
    return f"JSON of {file.name}: {action} at {str(key)[:60]!r}, {str(old)[:60]!r} to {shown[:60]}"


# --- bytes, lengths, names ------------------------------------------------------------------------


def _bytes_changed(file: Path, draw: Draw, _outside: Path) -> str:
    """Flips, inserts, removes, swaps or overwrites some bytes; heads and tails, with the tables,
    more than their share."""
    data = bytearray(file.read_bytes() or b"\0")
    size, at = draw.choice([1, 2, 4, 8, 64]), draw.randrange(len(data))
    at = draw.choice(
        [at, min(at, draw.randrange(400)), max(at, len(data) - 1 - draw.randrange(400))]
    ) % len(data)
    match draw.randrange(6):
        case 0:
            what = "flipped"
            for _ in range(size):
                data[at] ^= 1 << draw.randrange(8)
                at = draw.randrange(len(data))
        case 1:
            what = "inserted"
            data[at:at] = draw.randbytes(size)
        case 2:
            what = "removed"
            del data[at : at + size]
        case 3:
            what, other = "swapped", draw.randrange(len(data))
            data[at : at + size], data[other : other + size] = (
                data[other : other + size],
                data[at : at + size],
            )
        case 4:
            what = "overwritten"
            data[at : at + size] = bytes([draw.choice([0, 255])]) * len(data[at : at + size])
        case _:
            what = "words"
            word = draw.choice(
                [b"9" * 18, b"-1", b"1e400", b"../../../etc/passwd", b"null", b"[]", b"\x80"]
            )
            data[at : at + len(word)] = word
    file.write_bytes(data)
    return f"{file.name}: {what} at {at}, {size}"


def _length_changed(file: Path, draw: Draw, _outside: Path) -> str:
    size = file.stat().st_size
    length = draw.choice(
        [
            0,
            1,
            7,
            8,
            9,
            size // 2,
            size - 1,
            size + 1,
            size + 4096,
            1 << 33,
            draw.randrange(size + 1),
        ]
    )
    os.truncate(file, max(length, 0))
    return f"{file.name}: {size} to {length} bytes"


def _link(file: Path, draw: Draw, outside: Path) -> str:
    """Replaces a file by a link, a pipe or a folder."""
    some = [path for path in outside.rglob(file.name) if path.is_file()] or [outside]
    target = draw.choice(
        [
            *some,
            *some,
            outside,
            Path("/dev/zero"),
            Path("/etc/passwd"),
            file,
            file.parent / "no such",
        ]
    )
    file.unlink()
    match draw.randrange(6):
        case 0:
            os.mkfifo(file)
            return f"{file.name}: a pipe"
        case 1:
            file.mkdir()
            return f"{file.name}: a folder"
    file.symlink_to(target)
    return f"{file.name}: a link to {target}"


def _names_changed(file: Path, draw: Draw, outside: Path) -> str:
    """Removes, renames or swaps files, or adds one."""
    folder = file.parent
    match draw.randrange(4):
        case 0:
            file.unlink()
            return f"{file.name}: removed"
        case 1:
            other = draw.choice([path for path in _small(folder) if path.parent == folder])
            data, others = file.read_bytes(), other.read_bytes()
            file.write_bytes(others)
            other.write_bytes(data)
            return f"{file.name}: swapped with {other.name}"
        case 2:
            name = draw.choice(["x", "model.safetensors", f"{file.name}.1", ".x", "manifest.json"])
            file.rename(folder / name)
            return f"{file.name}: named {name}"
    name = draw.choice(
        [
            ".saving-x",
            ".lock",
            "99999999999999999999",
            "7",
            "x.safetensors",
            "\udcff",
            "process-0.json",
        ]
    )
    path = draw.choice([folder, folder.parent]) / name
    if folder.parent == outside.parent:
        path = folder / name
    if os.path.lexists(path):
        return f"{name!r} is there"
    draw.choice([path.mkdir, path.touch, lambda: path.symlink_to(outside)])()
    return f"{name!r} added"


_CHANGES = [
    _json_changed,
    _json_changed,
    _json_changed,
    _bytes_changed,
    _bytes_changed,
    _length_changed,
    _link,
    _names_changed,
]


def changed(
    folder: Path, draw: Draw, outside: Path, seal: Callable[[Path], None] | None = None
) -> str:
    """Changes the files of a folder at one place, or at two; returns what was changed. outside: a
    folder of files that are like them, which names and links may say."""
    said = []
    for _ in range(draw.choice([1, 1, 1, 2])):
        files = _small(folder)
        change = draw.choice(_CHANGES)
        if change is _json_changed:  # of which there are few
            files = [path for path in files if json_of(path.read_bytes())] or files
        if files:
            said.append(change(draw.choice(files), draw, outside))
    is_plain = len(_small(folder)) == sum(
        path.is_symlink() or not path.is_dir() for path in folder.rglob("*")
    )
    if seal is not None and draw.random() < 0.7 and is_plain:
        try:
            seal(folder)
            said.append("sealed")
        except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError):
            said.append("sealed in part")  # files before the one that cannot be sealed any more
    return "; ".join(said)


def _small(folder: Path) -> list[Path]:
    """The files of a folder without links and pipes, and without those that were made very long."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    return [path for path in files if path.stat().st_size < 1 << 24]


# --- a load under limits --------------------------------------------------------------------------


def _forked(action: Callable[[], Any]) -> tuple[Any, int, resource.struct_rusage]:
    """Does something in a fork; returns what it returns (JSON; None if it died), its wait status,
    and what it used."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(WALL)  # also ends what hangs in C++
        try:
            said = json.dumps(action())
        except BaseException:
            said = json.dumps(["fault", traceback.format_exc()])
        os.write(write, said.encode()[:60_000])
        os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        said = file.read().decode()
    _, status, used = os.wait4(child, 0)
    return json.loads(said) if said else None, status, used


def _watched(folder: Path, seen: list[str], *, follows_links: bool) -> None:
    """Notes what a load does outside of a folder, as far as Python's audit events tell."""
    allowed = (*_OF_THE_SYSTEM, sys.prefix, sys.base_prefix, str(ROOT))
    writes = {
        "os.remove",
        "os.rename",
        "os.mkdir",
        "os.rmdir",
        "os.symlink",
        "os.link",
        "os.truncate",
        "os.chmod",
    }
    forbidden = {
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.fork",
        "socket.connect",
    }

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in forbidden:
            seen.append(f"{event} {arguments[:2]}")
        is_open = event == "open" and isinstance(arguments[0], (str, bytes))
        if not is_open and event not in writes:
            return
        path = os.path.realpath(os.fsdecode(arguments[0]))
        is_write = not is_open or bool(
            (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        )
        is_inside = path.startswith(f"{folder}/") or path == str(folder)
        is_of_the_system = path.startswith(allowed) and path != "/etc/passwd"
        is_by_link = os.path.abspath(os.fsdecode(arguments[0])).startswith(f"{folder}/")
        if is_open and not is_write and follows_links and is_by_link:
            return
        is_device = path.startswith("/dev/") and path != "/dev/zero"
        if not is_inside and not is_device and (is_write or not is_of_the_system):
            seen.append(f"{event} {path} {arguments[1:]}")

    sys.addaudithook(hook)


def same(values: Values, good: Values, *, is_checked: bool) -> bool:
    """True if values are equal to the bit; with is_checked=False, if their names, shapes and dtypes
    are."""
    if [*values] != [*good]:
        return False
    for name, expected in good.items():
        value = values[name]
        if not isinstance(expected, torch.Tensor):
            if (type(value), repr(value)) != (type(expected), repr(expected)) and is_checked:
                return False
        else:
            has_data_of = not is_checked or _raw(value) == _raw(expected)
            if (value.shape, value.dtype) != (expected.shape, expected.dtype) or not has_data_of:
                return False
    return True


def _raw(value: torch.Tensor) -> bytes:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _loaded(
    kind: Kind, folder: Path, good: Values, limit: int, *, is_sealed: bool
) -> tuple[str, str]:
    """The outcome of a load, in the fork, and its detail."""
    seen: list[str] = []
    is_linked = kind.follows_links and any(map(Path.is_symlink, folder.rglob("*")))
    is_checked = kind.is_checked and not is_sealed and not is_linked
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _watched(folder, seen, follows_links=kind.follows_links)
    try:
        values = kind.load(folder)
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
        names = [str(folder), *(path.name for path in (folder.parent / "good").rglob("*"))]
        is_sentence = " " in str(error) and any(name in said for name in names)
        if type(error) not in kind.errors or not is_sentence:
            return "fault", f"{said[:400]}\n{traceback.format_exc()[-1500:]}"
        outcome, detail = "refused", said[:400].encode(errors="replace").decode()
    else:
        outcome, detail = ("same", "") if same(values, good, is_checked=True) else ("data", "")
        if outcome == "data" and (is_checked or not same(values, good, is_checked=False)):
            return "fault", f"other values: {str(values)[:300]}, expected {str(good)[:300]}"
    return ("fault", f"outside of the folder: {seen[:3]}") if seen else (outcome, detail)


def _tree(folder: Path) -> dict[str, tuple[int, int, int]]:
    """The files of a folder, with what changes when they do."""
    found = {str(path): path.lstat() for path in sorted(folder.rglob("*"))}
    return {
        path: (status.st_size, status.st_mtime_ns, status.st_mode) for path, status in found.items()
    }


def runs(kind: Kind, name: str, numbers: range, seed: int, place: Path) -> Iterator[Result]:
    """Loads changed copies of a kind's files; a number and a seed give the same change.

    Starts no device.
    """
    place = place.resolve()
    good, outside, copy = place / "good", place / "outside", place / "copy"
    for folder in (good, outside):
        folder.mkdir()

    def write() -> None:
        torch.manual_seed(0)
        kind.write(good)
        torch.manual_seed(1)
        kind.write(outside)  # other values, where the kind draws them

    def load() -> list[Any]:
        torch.save(kind.load(good), place / "values.pt")
        return [int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize(), ""]

    for action in (write, load):
        said, status, used = _forked(action)
        if status or (isinstance(said, list) and said[0] == "fault"):
            raise RuntimeError(f"the unchanged files of {name!r}: {status} {said}")
    usual, limit = used.ru_maxrss << 10, said[0] + (2 << 30)
    values = torch.load(place / "values.pt", weights_only=False)
    for number in numbers:
        draw = random.Random(f"{name} {seed} {number}")
        shutil.copytree(good, copy)
        change = changed(copy, draw, outside, kind.seal)
        before = {
            path: facts for path, facts in _tree(place).items() if not path.startswith(str(copy))
        }
        said, status, used = _forked(
            lambda: _loaded(
                kind,
                copy,
                values,
                limit,
                is_sealed=change.endswith(("; sealed", "in part")),  # noqa: B023  # called here
            )
        )
        after = {
            path: facts for path, facts in _tree(place).items() if not path.startswith(str(copy))
        }
        seconds, more = used.ru_utime + used.ru_stime, (used.ru_maxrss << 10) - usual
        outcome, detail = said or ("fault", "")
        if os.WIFSIGNALED(status):
            outcome, detail = "fault", f"signal {signal.Signals(os.WTERMSIG(status)).name}"
        elif before != after:
            outcome, detail = (
                "fault",
                f"files outside changed: {[*before.items() ^ after.items()][:3]}",
            )
        elif seconds > SECONDS or more > MEMORY:
            outcome, detail = (
                "fault",
                f"{seconds:.1f} s, {more >> 20} MB above the unchanged files: {detail}",
            )
        yield Result(
            number, change.encode(errors="replace").decode(), outcome, detail, seconds, more
        )
        shutil.rmtree(copy)


def kinds_of(module: Path) -> dict[str, Kind]:
    """The table of a module."""
    spec = importlib.util.spec_from_file_location(module.stem, module)
    assert spec is not None and spec.loader is not None
    result = importlib.util.module_from_spec(spec)
    sys.modules[module.stem] = result
    spec.loader.exec_module(result)
    kinds: dict[str, Kind] = result.KINDS
    return kinds


def loaded(
    module: Path | str, name: str, count: int, seed: int = 0, first: int = 0
) -> list[Result]:
    """Loads so many changed copies of a kind in a process of their own; raises RuntimeError where
    that fails."""
    command = [sys.executable, __file__, str(module), name, str(count), str(seed), str(first)]
    settings = {
        "SPMD_PROGRAM_CACHE": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
    }
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **settings}, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stdout[-500:]}{done.stderr[-3000:]}")
    return [Result(*json.loads(line)) for line in done.stdout.splitlines() if line.startswith("[")]


def main(module: str, name: str, count: str, seed: str = "0", first: str = "0") -> None:
    sys.modules["changes"] = sys.modules["__main__"]  # what the module of kinds imports
    spmd.simulate(8)
    kind = kinds_of(Path(module).resolve())[name]
    numbers = range(int(first), int(first) + int(count))
    with tempfile.TemporaryDirectory() as place:
        for result in runs(kind, name, numbers, int(seed), Path(place)):
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
