"""The oldest torch and jax, compared before a name is used that an older one lacks."""

import jax
import torch
from packaging.version import Version

OLDEST = {"torch": (torch.__version__, "2.11"), "jax": (jax.__version__, "0.10")}  # as in pyproject.toml


def check(name: str, version: str, oldest: str) -> None:
    """Raises ImportError for a version that is too old."""
    if Version(version).release < Version(oldest).release:
        raise ImportError(f"spmd needs {name} {oldest} or newer, here is {version}: pip install -U {name}")


for _name, _versions in OLDEST.items():
    check(_name, *_versions)
