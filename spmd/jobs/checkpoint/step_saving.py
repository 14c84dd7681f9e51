"""The saving of a step: each process writes its part in a place that is no step yet, and the first
one commits it.

A step is there as a whole or not at all, whenever a process or the machine stops. Only the standard
library, so that this can be tried in a process that is killed at each of its writes
(`tests/jobs/checkpoint/kill_saves.py`).
"""

import contextlib
import json
import os
import re
import socket
import sys
import time
import zlib
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

from . import manifest
from .all_or_none import Channel, SaveError, after_all, by_first

BLOCK = 1 << 24  # bytes of a write
ALIGNMENT = 64  # bytes: a shard begins at a multiple of it
_COMMITTED = re.compile(r"(\d+)(?:\.(\d+))?")


class ShardBytes(NamedTuple):
    """A shard to be written: the tensor's name, the first index in each dim, the shape, and its
    bytes."""

    name: str
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    data: memoryview


class Description(NamedTuple):
    """The tensors of this process without their shards, its values, and the facts of the whole
    step."""

    tensors: dict[str, dict[str, Any]]
    values: dict[str, Any]
    facts: dict[str, Any]


class NewFile(contextlib.AbstractContextManager["NewFile"]):
    """A new file, which is complete and safe, with its name, when the context ends without an
    error."""

    def __init__(self, path: Any) -> None:
        self._path, self.size = path, 0

    def write(self, data: memoryview) -> None:
        """Appends bytes, and adds them to `size`."""
        raise NotImplementedError

    def append(self, data: memoryview) -> tuple[int, int]:
        """Appends bytes at a multiple of `ALIGNMENT`; returns their offset and their CRC-32."""
        self.write(memoryview(bytes(-self.size % ALIGNMENT)))
        offset, crc = self.size, 0
        for begin in range(0, data.nbytes, BLOCK):
            block = data[begin : begin + BLOCK]
            crc = zlib.crc32(block, crc)
            self.write(block)
        return offset, crc


class Steps(Protocol):
    """The steps of a job: in a folder of a disk (`step_folder.py`), or by URL in an object store
    (`stored_objects.py`).

    A place is the name of a folder in it, in which a step is written. folder: a `Path` or
    `UrlPath`. new_file: the class of its files, which raises SaveError where this process does not
    see the place.
    """

    folder: Any
    new_file: ClassVar[type[NewFile]]

    def __init__(self, folder: Any) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    def begin(self, step: int, under_way: set[str]) -> str:
        """Takes the folder for this job, removes what dead saves have left, and makes a place for a
        step.

        under_way: the places in which other threads of this process write.
        """

    def commit(self, folder_name: str, step: int, text: str, parts: list[str]) -> str:
        """Writes the manifest, removes the files of parts, and makes the folder the step, at one
        moment; returns its name from then on."""

    def discard(self, folder_name: str) -> None:
        """Removes a folder that has failed, as far as possible: the next save removes what is
        left."""

    def remove(self, folder_name: str) -> None:
        """Deletes a step, which is none any more when it is deleted half."""

    def committed_names(self) -> Iterable[str]:
        """The names of the folders that have a manifest."""

    def saved_at(self, folder_name: str) -> int:
        """The time of a save, as a number."""

    def copies(self) -> dict[int, list[str]]:
        """The committed steps in order, each with the names of its copies from the oldest to the
        newest."""
        result: dict[int, list[str]] = {}
        pairs = [(number, name) for name in self.committed_names() if (number := numbers(name))]
        for (step, _), name in sorted(pairs):
            result.setdefault(step, []).append(name)
        return result

    def steps(self) -> dict[int, Any]:
        """The folders of the committed steps, by step."""
        return {step: self.folder / names[-1] for step, names in self.copies().items()}

    def delete_old(self, step: int, keep: int | None) -> None:
        """Deletes earlier copies of a step, and the steps that were saved longest ago."""
        copies = self.copies()
        old = [name for names in copies.values() for name in names[:-1]]
        if keep is not None:
            older_names = sorted(
                (names[-1] for number, names in copies.items() if number != step), key=self.saved_at
            )
            old += older_names[: max(len(older_names) - keep + 1, 0)]
        for name in old:
            self.remove(name)


def now() -> str:
    """The time, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def this_job() -> dict[str, Any]:
    """The process that saves, in words for the owner of another job: no arguments, which may be
    secrets."""
    command = os.path.basename(sys.argv[0])[:100]
    return {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "command": command,
        "since": now(),
    }


def numbers(name: str) -> tuple[int, int] | None:
    """The step and the copy that a folder's name says (a step that is saved again is `STEP.COPY`);
    None: neither."""
    match = _COMMITTED.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2] or 0))


# by folder and step, those that threads of this process write
_places: dict[tuple[str, int], str] = {}


def save_step(
    storage: Steps,
    step: int,
    shards: Iterable[ShardBytes],
    description: Description,
    exchange: Channel,
    keep: int | None,
) -> Any:
    """Writes this process's shards, and with all others commits the step; returns its folder.

    keep: the number of steps that stay; the oldest are deleted. Raises SaveError in all processes
    if one has failed.
    """
    unsaved = (
        f"CheckpointManager: step {step} was not saved in {storage}: {{}}. Earlier steps are "
        "unchanged"
    )
    key = str(storage), step
    if key in _places:
        raise SaveError(
            f"CheckpointManager: step {step} in {storage} is being written by another thread of "
            "this process"
        )
    under_way = {
        folder_name for (owner, _), folder_name in _places.items() if owner == str(storage)
    }
    _places[key] = ""
    try:
        folder = by_first(exchange, "begin", partial(storage.begin, step, under_way), unsaved)
        _places[key] = folder
        commit = partial(_commit, storage, step, folder, exchange.count, description)
        write = partial(
            write_part,
            storage.new_file,
            storage.folder / folder,
            exchange.index,
            shards,
            description,
        )
        name = after_all(
            exchange, "written", write, commit, unsaved, partial(storage.discard, folder)
        )
    finally:
        del _places[key]
    undeleted = (
        f"CheckpointManager: step {step} is saved in {storage}, and older ones are not deleted: "
        "{}"
    )
    by_first(exchange, "deleted", partial(storage.delete_old, step, keep), undeleted)
    return storage.folder / name


def write_part(
    new_file: type[NewFile],
    folder: Any,
    index: int,
    shards: Iterable[ShardBytes],
    description: Description,
) -> None:
    """Writes a process's shards, and a file that says where each is."""
    tensors = {name: {**tensor, "shards": []} for name, tensor in description.tensors.items()}
    file = f"shards-{index}.bin"
    with new_file(folder / file) as written:
        for shard in shards:
            size = shard.data.nbytes
            offset, crc = written.append(shard.data)
            shard.data.release()  # before the next one is read
            tensors[shard.name]["shards"].append(
                {
                    "at": list(shard.starts),
                    "shape": list(shard.shape),
                    "file": file,
                    "offset": offset,
                    "bytes": size,
                    "crc32": f"{crc:08x}",
                }
            )
    part = {"tensors": tensors, "values": description.values, "files": {file: written.size}}
    with new_file(folder / f"process-{index}.json") as written:
        written.append(memoryview(json.dumps(part).encode()))


def _commit(
    storage: Steps, step: int, folder_name: str, count: int, description: Description
) -> str:
    """Commits the step of which so many processes have written their parts."""
    names = [f"process-{process}.json" for process in range(count)]
    parts = []
    for name in names:
        try:
            parts.append(json.loads((storage.folder / folder_name / name).read_bytes()))
        except FileNotFoundError as error:
            raise SaveError(
                f"{storage}/{folder_name}/{name} is not there: expected a folder that all "
                "processes share, as on a shared disk"
            ) from error
    body = {"step": step, **description.facts, **manifest.merged(parts)}
    return storage.commit(folder_name, step, manifest.text(body), names)
