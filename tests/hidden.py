"""Hides packages of the library from imports, before any:
`HIDDEN="tools jobs" python -m pytest -p hidden ...`."""

import os
import sys
from collections.abc import Sequence
from types import ModuleType

NAMES = tuple(f"spmd.{name}" for name in os.environ.get("HIDDEN", "").split())


class Hide:
    """A finder that says of these packages, and of what is in them, that they do not exist."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        if name.startswith(tuple(f"{hidden}." for hidden in NAMES)) or name in NAMES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if NAMES:
    assert "spmd" not in sys.modules
    sys.meta_path.insert(0, Hide())  # type: ignore[arg-type]
