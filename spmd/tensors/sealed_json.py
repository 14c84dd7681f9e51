"""Manifests in JSON with the SHA-256 of their contents, so that a change of one is found."""

import hashlib
import json
import stat
from pathlib import Path
from typing import Any


def digest(body: dict[str, Any]) -> str:
    """Returns the SHA-256 of a manifest's contents."""
    return hashlib.sha256(json.dumps(body, separators=(",", ":")).encode()).hexdigest()


def text(body: dict[str, Any]) -> str:
    """Returns a manifest as text."""
    return json.dumps({**body, "sha256": digest(body)}, indent=1) + "\n"


def check_file(path: Path, most: int, *, follows_links: bool = False) -> None:
    """Raises ValueError for a link, where none is followed, a pipe, and a file of more than so many
    bytes."""
    status = path.stat(follow_symlinks=follows_links)
    if not stat.S_ISREG(status.st_mode) or status.st_size > most:
        mode = stat.filemode(status.st_mode)
        raise ValueError(
            f"{path}: expected a file of at most {most:,} bytes, got {mode} of {status.st_size:,} "
            "bytes"
        )


def content(path: Path, most: int = 1 << 26, *, follows_links: bool = False) -> bytes:
    """Returns the content of a file (see `check_file`)."""
    check_file(path, most, follows_links=follows_links)
    return path.read_bytes()


def parsed(content: bytes, where: str) -> dict[str, Any]:
    """Returns the manifest of a text; raises ValueError that names the place where it is not as it
    was written."""
    try:
        body = json.loads(content)
        is_whole = body.pop("sha256") == digest(body)
        if not isinstance(body.get("version", 0), int):
            raise TypeError(f"its version is {body['version']!r}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{where} is damaged: it is no manifest ({type(error).__name__}: {error})"
        ) from error
    if not is_whole:
        raise ValueError(
            f"{where} is damaged: its contents do not have the sha256 that it states; write it "
            "again"
        )
    return body
