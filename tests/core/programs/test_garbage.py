"""Python's collector waits while a graph is compiled, and is as it was afterwards."""

import gc

import pytest
import torch

from spmd.core.programs import compiler
from spmd.core.programs.cache import collected_later


@pytest.fixture(autouse=True)
def collector():
    was_on = gc.isenabled()
    gc.enable()
    yield
    if not was_on:
        gc.disable()


def test_nothing_is_collected_while_a_graph_is_compiled(monkeypatch):
    lower, seen = compiler.lower_graph, []

    def noting(*arguments):
        seen.append(gc.isenabled())
        return lower(*arguments)

    monkeypatch.setattr(compiler, "lower_graph", noting)
    x = torch.arange(7.0, device="xla")
    assert (x * 3 - 7).sum().item() == 14
    assert seen == [False] and gc.isenabled()


def test_it_goes_on_after_an_error():
    with pytest.raises(ValueError, match="no program"), collected_later():
        assert not gc.isenabled()
        raise ValueError("no program")
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off():
    gc.disable()
    with collected_later():
        pass
    assert not gc.isenabled()
