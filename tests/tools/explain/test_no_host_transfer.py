"""`no_host_transfer`: what leaves the device raises at the user's line; outside it is counted."""

import threading
import traceback

import pytest
import torch

import spmd

READS = {
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool(x[0] > 0),
    "float": lambda x: float(x[0]),
    "cpu": lambda x: x.cpu(),
    "to cpu": lambda x: x.to("cpu"),
    "numpy": lambda x: x.numpy(force=True),
    "print": lambda x: print(x),
    "format": lambda x: f"{x[0]:.2f}",
    "copy_": lambda x: torch.zeros(3).copy_(x),
    "equal": lambda x: torch.equal(x, x + 1),
    "allclose": lambda x: torch.allclose(x, x),
    "local_shards": lambda x: spmd.local_shards(x),
    "cholesky": lambda x: torch.linalg.cholesky(torch.diag(x)),
}
OPS = {
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 1),
    "mask": lambda x: x[x > 1],
    "unique": lambda x: x.unique(),
    "bincount": lambda x: x.long().bincount(),
}


def values() -> torch.Tensor:
    x = torch.tensor([1.0, 2.0, 3.0]).to("xla")
    spmd.sync()
    return x


class TestForbidden:
    """RuntimeError at the user's line, which says what came and what to do; the device is usable
    afterwards."""

    @pytest.mark.parametrize("name", [*READS, *OPS])
    def test_raises_at_the_line(self, name):
        call = {**READS, **OPS}[name]
        x = values()
        with (
            pytest.raises(
                RuntimeError, match=r"no_host_transfer: .*to the host.*Keep it on the device"
            ) as caught,
            spmd.no_host_transfer(),
        ):
            call(x)
        assert f"{__file__}:" in str(caught.value)
        frames = [frame.filename for frame in traceback.extract_tb(caught.tb)]
        assert frames[:2] == [__file__] * 2 and frames[-1] == __file__  # the line stands last
        assert (x + 1).tolist() == [2, 3, 4]

    def test_names_the_method(self):
        with (
            pytest.raises(RuntimeError, match=r"tolist would take float32\[3\] to the host"),
            spmd.no_host_transfer(),
        ):
            values().tolist()
        with (
            pytest.raises(RuntimeError, match=r"item\(\) or bool\(\) would take float32\[\]"),
            spmd.no_host_transfer(),
        ):
            values().sum().item()
        with (
            pytest.raises(RuntimeError, match=r"aten.nonzero.default would take its operands"),
            spmd.no_host_transfer(),
        ):
            values().nonzero()

    def test_data_that_was_never_uploaded(self):
        with pytest.raises(RuntimeError, match=r"no_host_transfer"), spmd.no_host_transfer():
            torch.ones(2).to("xla").cpu()


class TestAllowed:
    """Computing, uploading, syncing; everything again after the block, and in other threads."""

    def test_a_training_step(self, mesh8):
        with spmd.no_host_transfer():
            model = torch.nn.Linear(8, 8).to("xla")
            spmd.mark_sharding(model.weight, mesh8, ("fsdp", None))
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(2):
                loss = model(torch.randn(8, 8).to("xla")).pow(2).mean()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                spmd.sync()
        assert loss.item() > 0

    def test_nested_and_after_an_error(self):
        x = values()
        with spmd.no_host_transfer():
            with pytest.raises(ZeroDivisionError), spmd.no_host_transfer():
                _ = 1 / 0
            with pytest.raises(RuntimeError, match=r"no_host_transfer"):
                x.tolist()
        assert x.tolist() == [1, 2, 3]

    def test_other_threads_read(self):
        x, seen = values(), []
        with spmd.no_host_transfer():
            thread = threading.Thread(target=lambda: seen.append(x.tolist()))
            thread.start()
            thread.join()
        assert seen == [[1, 2, 3]]


class TestCounted:
    """Outside, reads and host ops are counted."""

    def test_counters(self):
        x = values()
        spmd.metrics.clear()
        x.sum().item()
        assert spmd.metrics.counter("host_reads") == 1
        for call in OPS.values():
            call(x)
        # and the comparisons of two of them, as a count of host data needs no program
        assert spmd.metrics.counter("host_ops") == len(OPS) + 2
