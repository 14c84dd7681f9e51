"""The streams of random numbers of a process, as an object with a state."""

import random
from typing import Any

import numpy as np
import torch

from ...core import seed


class RandomState:
    """The random streams of the device, of torch on the CPU, of Python and of NumPy, as one entry
    of a checkpoint.

    With several processes each takes the streams that the process of its number had. A process that
    there was not before takes the device's, which is the same in all, and keeps the others.

    >>> import torch, spmd
    >>> streams = spmd.checkpoint.RandomState()
    >>> state = streams.state_dict()
    >>> first = torch.rand(3, device="xla").tolist()
    >>> streams.load_state_dict(state)
    >>> torch.rand(3, device="xla").tolist() == first
    True
    """

    def state_dict(self) -> dict[str, Any]:
        """The states of the streams, as they are now."""
        return {
            "device": list(seed.get_state()),
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "numpy": np.random.get_state(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Sets the streams to these states; one that the dict lacks stays as it is."""
        if "device" in state_dict:
            first, second = state_dict["device"]
            seed.set_state((first, second))
        for name, set_state in (
            ("torch", torch.set_rng_state),
            ("python", random.setstate),
            ("numpy", np.random.set_state),
        ):
            if name in state_dict:
                set_state(state_dict[name])
