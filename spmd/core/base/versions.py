"""The oldest torch and jax, compared before a name is used that an older one lacks."""

import itertools

import jax
import torch

# as in pyproject.toml
OLDEST = {"torch": (torch.__version__, "2.11"), "jax": (jax.__version__, "0.10")}


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare; `packaging` would take longer to import."""
    return tuple(map(int, itertools.takewhile(str.isdigit, version.partition("+")[0].split("."))))


for _name, (_version, _oldest) in OLDEST.items():
    if release(_version) < release(_oldest):
        raise ImportError(
            f"spmd needs {_name} {_oldest} or newer, here is {_version}: pip install -U {_name}"
        )
