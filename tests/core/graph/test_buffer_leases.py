"""Arrays that are lent to a reader."""

import gc
import sys
from typing import Any

import jax.numpy as jnp
import pytest

from spmd.core.graph import buffer_leases


def test_an_array_that_outlives_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the interpreter a module's names are None; an array that is freed then says
    nothing."""
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    known, array = buffer_leases.LENT, jnp.ones(3)
    buffer_leases.Lender().lend(array)
    name = id(array)
    with monkeypatch.context() as at_exit:
        at_exit.setattr(buffer_leases, "LENT", None)
        del array
        gc.collect()
    assert name not in known and not said
