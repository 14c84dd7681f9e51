"""Folders of compiled programs that a job was given: files as in the cache of programs, and a readable manifest.

The content of such a file is executed, as that of a pickle. The user names the folder, which is the permission; a file
is used only if its header fits and its checksum holds.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core import points
from ...tensors import sealed_json

MANIFEST = "programs.json"
VERSION = 1  # of the manifest
SUFFIX = ".program"


@dataclass(frozen=True)
class ProgramFolder:
    """A folder of programs and its manifest. setting: see `setting.readable`; programs: a listing of each (see
    `explain.listing`)."""

    path: Path
    setting: Mapping[str, Any]
    programs: tuple[Mapping[str, Any], ...]


_known: dict[Path, ProgramFolder] = {}


def known() -> tuple[ProgramFolder, ...]:
    """The folders that this process was given."""
    return tuple(_known.values())


def content(digest: str) -> bytes | None:
    """Returns the content of the file of a digest; None if no folder has it."""
    for path in _known:
        file = path / f"{digest}{SUFFIX}"
        if file.is_file():
            return file.read_bytes()
    return None


def add(path: str | Path) -> ProgramFolder:
    """Reads the manifest of a folder and takes programs from there from now on.

    Raises ValueError for a folder without a manifest of this version, or with one that was changed.
    """
    folder = Path(path).expanduser().resolve()
    manifest = folder / MANIFEST
    parsed = sealed_json.parsed(manifest.read_bytes(), f"load_programs: {manifest}") if manifest.is_file() else None
    version = None if parsed is None else parsed.get("version")
    if parsed is None or version != VERSION:
        raise ValueError(
            f"load_programs: expected a folder that plan.save_program or spmd.warm has written, of version {VERSION}; "
            + (f"there is no {MANIFEST} in {folder}" if parsed is None else f"{manifest} has version {version!r}")
        )
    result = ProgramFolder(folder, parsed["setting"], tuple(parsed["programs"]))
    _known[folder] = result
    if content not in points.given_by:
        points.given_by.append(content)
    return result


def remove(path: str | Path) -> None:
    """Takes no programs from a folder any more."""
    _known.pop(Path(path).expanduser().resolve(), None)
    if not _known and content in points.given_by:
        points.given_by.remove(content)


def write(path: str | Path, files: Mapping[str, bytes], setting: Mapping[str, Any], programs: list[Any]) -> None:
    """Writes files, by digest, and the manifest, which appears last; a folder of this format is written over.

    Raises ValueError for a folder with other contents.
    """
    folder = Path(path).expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = {file.name for file in folder.iterdir()}
    if names and MANIFEST not in names:
        raise ValueError(f"save_program: expected a new or an empty folder, or one that it wrote, got {folder}")
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
