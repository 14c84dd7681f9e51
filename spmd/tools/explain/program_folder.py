"""Folders of compiled programs that a job was given: files as in the cache of programs, and a
readable manifest.

The setting of a folder is compared at once, its graphs when a program is missing.

The content of such a file is executed, as that of a pickle. The user names the folder, which is the
permission; a file is used only if its header fits and its checksum holds.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core import ends_at_user_line, messages, options, persistent, points
from ...core.extend import Graph, Line
from ...tensors import sealed_json

MANIFEST = "programs.json"
VERSION = 1  # of the manifest
SUFFIX = ".program"


@dataclass(frozen=True)
class ProgramFolder:
    """A folder of programs and its manifest. setting: see `setting.readable`; programs: a listing
    of each (see `explain.listing`)."""

    path: Path
    setting: Mapping[str, Any]
    programs: tuple[Mapping[str, Any], ...]


_folders: dict[Path, ProgramFolder] = {}


def known() -> tuple[ProgramFolder, ...]:
    """The folders that this process was given."""
    return tuple(_folders.values())


def content(digest: str) -> bytes | None:
    """Returns the content of the file of a digest; None if no folder has it."""
    files = (path / f"{digest}{SUFFIX}" for path in _folders)
    return next((persistent.trusted_content(file) for file in files if file.exists()), None)


def add(path: str | Path) -> ProgramFolder:
    """Reads the manifest of a folder and takes programs from there from now on.

    Raises ValueError for a folder without a manifest of this version, or with one that was changed.
    """
    folder = Path(path).expanduser().resolve()
    manifest = folder / MANIFEST
    for file in folder.glob(f"*{SUFFIX}"):
        persistent.trusted_content(file)
    content_of = persistent.trusted_content(manifest) if manifest.exists() else None
    parsed = (
        None if content_of is None else sealed_json.parsed(content_of, f"load_programs: {manifest}")
    )
    version = None if parsed is None else parsed.get("version")
    if parsed is None or version != VERSION:
        raise ValueError(
            (
                "load_programs: expected a folder that plan.save_program or spmd.warm has "
                f"written, of version {VERSION}; "
            )
            + (
                f"there is no {MANIFEST} in {folder}"
                if parsed is None
                else f"{manifest} has version {version!r}"
            )
        )
    result = ProgramFolder(folder, parsed["setting"], tuple(parsed["programs"]))
    _folders[folder] = result
    if content not in points.program_sources:
        points.program_sources.append(content)
    return result


def remove(path: str | Path) -> None:
    """Takes no programs from a folder any more."""
    _folders.pop(Path(path).expanduser().resolve(), None)
    if not _folders and content in points.program_sources:
        points.program_sources.remove(content)


def write(
    path: str | Path, files: Mapping[str, bytes], setting: Mapping[str, Any], programs: list[Any]
) -> None:
    """Writes files, by digest, and the manifest, which appears last; a folder of this format is
    written over.

    Raises ValueError for a folder with other contents.
    """
    folder = Path(path).expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = {file.name for file in folder.iterdir()}
    if names and MANIFEST not in names:
        raise ValueError(
            f"save_program: expected a new or an empty folder, or one that it wrote, got {folder}"
        )
    (folder / MANIFEST).unlink(missing_ok=True)
    for name in names:
        if name.endswith(SUFFIX):
            (folder / name).unlink()
    for digest, body in files.items():
        _write(folder / f"{digest}{SUFFIX}", body)
    manifest = {"version": VERSION, "setting": setting, "programs": programs}
    _write(folder / MANIFEST, sealed_json.text(manifest).encode())


def _write(file: Path, body: bytes) -> None:
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(body)


# --- the programs that a process is given ---------------------------------------------------------

# Names of the setting whose value is a digest, by what differs where they do.
_DIGESTS = {
    "source": "this library's own source",
    "cpu": "the processor or its features",
    "topology": "the devices",
}


@ends_at_user_line
def load_programs(path: str | Path) -> int:
    """Has this process take its programs from a folder that `Plan.save_program` or `spmd.warm` has
    written; returns their number.

    Call it once the devices are chosen (`spmd.simulate`, `spmd.initialize`) and before the first
    step, in every process. A program that the folder has is loaded instead of compiled; for one
    that it has not, a line on stderr says what differs from the nearest that it has. The folder's
    files are executed: load only those that you trust.

    Raises ValueError for a folder without such programs, and for programs of another setting:
    versions, devices, XLA's flags, jax's options; it names the first difference. Source:
    `jax.experimental.serialize_executable`.

    >>> import spmd
    >>> spmd.load_programs("no such folder")
    Traceback (most recent call last):
        ...
    ValueError: load_programs: expected a folder that plan.save_program or spmd.warm has ...
    """
    path = Path(path) / persistent.process()
    folder = add(path)
    difference = _setting_difference(folder.setting)
    if difference:
        remove(path)
        raise ValueError(
            f"load_programs: the programs in {path} cannot run here: {difference}; write them "
            "again here"
        )
    if tell_missing not in points.before_making:
        points.before_making.append(tell_missing)
    return len(folder.programs)


def _setting_difference(saved_setting: Any) -> str:
    setting = persistent.readable_setting()
    for name in {**setting, **saved_setting}:
        was, value = saved_setting.get(name), setting.get(name)
        if was != value:
            if name in _DIGESTS:
                return f"{_DIGESTS[name]} differs ({name})"
            return f"{name} is {value!r} here, and was {was!r} where they were compiled"
    return ""


def tell_missing(graph: Graph, line: Line) -> None:
    """Says on stderr, once for a line, why no given program is that of a graph which is about to be
    compiled, if one is of mostly the same ops."""
    for folder in known():
        listing = options.listing(options.Requested(graph, 0))
        nearest = max(
            folder.programs,
            key=lambda saved_listing: num_common(saved_listing, listing),
            default=None,
        )
        if nearest is None or 2 * num_common(nearest, listing) < max(
            len(nearest["ops"]), len(listing["ops"])
        ):
            continue
        why = _setting_difference(folder.setting) or listed_difference(nearest, listing)
        text = f"a program is compiled that {folder.path.name} lacks, {line.short()}: {why}"
        messages.say(
            text,
            f"not given {line}",
            f"a program of {line} is compiled that {folder.path} lacks: {why}",
        )


# --- the first difference of two graphs as plain text ---------------------------------------------


Listing = Mapping[str, Any]


def num_common(saved_listing: Listing, listing: Listing) -> int:
    """Counts the places at which two graphs have an op of one name."""
    return sum(
        old[0] == new[0] for old, new in zip(saved_listing["ops"], listing["ops"], strict=False)
    )


def listed_difference(saved_listing: Listing, listing: Listing) -> str:
    """Returns the first difference of a graph from one that was written, in words."""
    return (
        _flag(saved_listing, listing)
        or _input(saved_listing, listing)
        or _ops(saved_listing, listing)
        or _rest(saved_listing, listing)
        or "the same graph, on other devices or compiled in another way"
    )


def _flag(saved_listing: Listing, listing: Listing) -> str:
    for name, value in listing["flags"].items():
        was = saved_listing["flags"].get(name)
        if value != was:
            return f"spmd.config.{name} is now {value!r}, in the saved program {was!r}"
    return ""


def _input(saved_listing: Listing, listing: Listing) -> str:
    """Describes the first input that differs, where there are as many inputs and the same kinds of
    ops."""
    if len(saved_listing["inputs"]) != len(listing["inputs"]) or _names(saved_listing) != _names(
        listing
    ):
        return ""
    for index, (old, new) in enumerate(
        zip(saved_listing["inputs"], listing["inputs"], strict=True)
    ):
        if old[0] != new[0]:
            return f"input {index} is now {new[0]}, in the saved program {old[0]}"
    for index, (old, new) in enumerate(
        zip(saved_listing["inputs"], listing["inputs"], strict=True)
    ):
        if old[1] != new[1]:
            return (
                f"input {index} ({new[0]}) is now sharded as {new[1]}, in the saved program as "
                f"{old[1]}"
            )
    return ""


def _names(listing: Listing) -> Sequence[str]:
    return [op[0] for op in listing["ops"]]


def _ops(saved_listing: Listing, listing: Listing) -> str:
    count = (
        ""
        if len(saved_listing["ops"]) == len(listing["ops"])
        else f" ({len(listing['ops'])} ops, saved {len(saved_listing['ops'])})"
    )
    for index, (old, new) in enumerate(zip(saved_listing["ops"], listing["ops"], strict=False)):
        if old != new:
            line = listing["lines"][index]
            return (
                f"op {index} at {line} is now {new[1]}, in the saved program "
                f"{old[1]}{_hint(old, new)}{count}"
            )
    return f"the number of ops differs{count}" if count else ""


def _hint(old: Sequence[str], new: Sequence[str]) -> str:
    return (
        "; they differ in the layouts of operands, or in what this text leaves out"
        if old[1] == new[1]
        else ""
    )


def _rest(saved_listing: Listing, listing: Listing) -> str:
    for name, words in (
        ("wiring", "an op reads another value"),
        ("donated", "another input may be written over"),
    ):
        if saved_listing[name] != listing[name]:
            return words
    if saved_listing["results"] != listing["results"]:
        counts = len(listing["results"]), len(saved_listing["results"])
        return (
            f"other results are kept, or in other shardings ({counts[0]} results, saved "
            f"{counts[1]})"
        )
    return ""
