"""An object store for tests, `store://FOLDER`: an object is there as a whole or not at all,
prefixes are no folders.

Objects are files of a folder, so that several processes share them. It counts what is fetched, and
fails when asked to.
"""

import io
import os
import uuid
from pathlib import Path
from typing import Any, ClassVar

import fsspec


class ObjectStore(fsspec.AbstractFileSystem):
    """fetched: (object, first byte, bytes) of each request. fails_at: the write that fails, counted
    down, and all after it."""

    protocol = "store"
    cachable = False
    fetched: ClassVar[list[tuple[str, int, int]]] = []
    written: ClassVar[int] = 0
    fails_at: ClassVar[int | None] = None

    @classmethod
    def _write(cls) -> None:
        cls.written += 1
        if cls.fails_at is not None:
            if cls.fails_at <= 0:
                raise OSError(5, "the store does not answer")
            cls.fails_at -= 1

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        if Path(path).is_file():
            return [self.info(path) if detail else path]
        names = [f"{path}/{name}" for name in (os.listdir(path) if Path(path).is_dir() else ())]
        found = [name for name in names if not Path(name).name.startswith("~")]
        if not found:
            raise FileNotFoundError(path)
        return [self.info(name) for name in found] if detail else found

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if Path(path).is_dir() and os.listdir(path):
            return {"name": path, "size": 0, "type": "directory"}
        return {"name": path, "size": Path(path).stat().st_size, "type": "file"}

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Nothing: there are no folders."""

    def cat_file(
        self, path: str, version_id: Any = None, *, start: int | None = None, end: int | None = None
    ) -> bytes:
        path = self._strip_protocol(path)
        data = Path(path).read_bytes()[start:end]
        self.fetched.append((path, start or 0, len(data)))
        return data

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self._write()
        file = Path(self._strip_protocol(path))
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f"~{uuid.uuid4().hex}")
        temporary.write_bytes(value)
        temporary.rename(file)

    def rm_file(self, path: str) -> None:
        self._write()
        file = Path(self._strip_protocol(path))
        file.unlink()
        while not os.listdir(file := file.parent):
            file.rmdir()

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        for name in sorted(self.find(path)):
            self.rm_file(name)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        return io.BytesIO(self.cat_file(path)) if mode == "rb" else _Upload(self, path)


class _Upload(io.BytesIO):
    """An object that is there when it is closed."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        super().__init__()
        self._store, self._path, self._is_wanted = store, path, True

    def write(self, data: Any) -> int:
        self._store._write()
        return super().write(data)

    def discard(self) -> None:
        self._is_wanted = False

    def close(self) -> None:
        if not self.closed and self._is_wanted:
            self._is_wanted = False
            self._store.pipe_file(self._path, self.getvalue())
        super().close()


fsspec.register_implementation("store", ObjectStore)
