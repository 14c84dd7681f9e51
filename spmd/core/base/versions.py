"""The oldest torch and jax, compared before a name is used that an older one lacks."""

import jax
import torch
from packaging.version import Version

OLDEST = {"torch": (torch.__version__, "2.11"), "jax": (jax.__version__, "0.10")}  # as in pyproject.toml

for _name, (_version, _oldest) in OLDEST.items():
    if Version(_version).release < Version(_oldest).release:
        raise ImportError(f"spmd needs {_name} {_oldest} or newer, here is {_version}: pip install -U {_name}")
