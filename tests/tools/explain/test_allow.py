"""`spmd.allow`: collectives that are not named are errors at their line."""

import gc
import pickle
import threading

import pytest
import torch
from support import run_script
from torch import nn

import spmd
from spmd import CollectiveError, Mesh, P

KIB = 1 << 10


def rows(mesh: Mesh) -> torch.Tensor:
    """Rows of 64 KiB a device, sharded."""
    x = spmd.mark_sharding(
        (torch.arange(1024 * 128.0) % 7).reshape(1024, 128).to("xla"), mesh, P("fsdp", None)
    )
    spmd.sync()
    return x


def flipped(x: torch.Tensor) -> torch.Tensor:
    """An op for which the partitioner gathers sharded rows: nothing in the script says so."""
    return x.cumsum(0).flip(0)


class TestAllow:
    def test_a_silent_gather_is_an_error_at_its_line(self, mesh8: Mesh) -> None:
        x = rows(mesh8)
        y = spmd.mark_sharding(flipped(x), mesh8, P(None, None))
        with pytest.raises(CollectiveError) as caught, spmd.allow(all_reduce="fsdp"):
            spmd.sync()
        (row, *_) = caught.value.collectives
        assert row.kind != "all-reduce" and row.axes == ("fsdp",) and row.bytes > 64 * KIB
        said = str(caught.value)
        assert (
            "test_allow.py" in said and "x.cumsum(0).flip(0)" in said and f"{row.kind} of " in said
        )
        assert f"{row.kind.replace('-', '_')}='fsdp'" in said
        # Nothing is lost.
        assert torch.equal(y.cpu(), flipped(x.cpu()))

    def test_what_is_named_goes(self, mesh8: Mesh) -> None:
        x = rows(mesh8)
        whole = spmd.mark_sharding(x * 2, mesh8, P(None, None))
        with spmd.allow(all_gather=("data", "fsdp")):
            assert torch.equal(whole.cpu(), x.cpu() * 2)
        again = spmd.mark_sharding(x * 2, mesh8, P(None, None))
        with (
            pytest.raises(CollectiveError, match="all_gather='fsdp'"),
            spmd.allow(all_gather="data"),
        ):
            spmd.sync()  # the program of before
        with spmd.allow(all_gather=True):
            spmd.sync()
        assert torch.equal(again.cpu(), whole.cpu())

    def test_small_ones_go_unless_told(self, mesh8: Mesh) -> None:
        x = rows(mesh8)
        with spmd.allow():
            total = x.sum().item()
        assert total == x.cpu().sum().item()
        kept = x.sum()
        with pytest.raises(CollectiveError, match="all_reduce='fsdp'"), spmd.allow(above=0):
            spmd.sync()
        assert kept.item() == total

    def test_contexts_inside_of_one_another(self, mesh8: Mesh) -> None:
        x = rows(mesh8)
        y = spmd.mark_sharding(x + 1, mesh8, P(None, None))
        with (
            spmd.allow(all_reduce="fsdp"),
            spmd.allow(all_gather="fsdp"),
            pytest.raises(CollectiveError),
        ):
            spmd.sync()
        seen = []

        def elsewhere() -> None:
            z = spmd.mark_sharding(x + 1, mesh8, P(None, None))
            seen.append(z.cpu())

        with spmd.allow():  # of this thread
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
        assert torch.equal(seen[0], y.cpu())

    def test_a_slice_of_an_all_reduce_is_a_reduce_scatter(self, mesh8: Mesh) -> None:
        """The CPU has no reduce-scatter."""
        x = spmd.mark_sharding(torch.ones(256, 256, device="xla"), mesh8, P(None, "fsdp"))
        w = spmd.mark_sharding(torch.ones(256, 256, device="xla"), mesh8, P("fsdp", None))
        spmd.sync()
        y = spmd.mark_sharding(x @ w, mesh8, P("fsdp", None))
        with (
            pytest.raises(CollectiveError, match="reduce_scatter='fsdp'"),
            spmd.allow(all_reduce="fsdp"),
        ):
            spmd.sync()
        with spmd.allow(reduce_scatter="fsdp"):
            assert torch.equal(y.cpu(), torch.full((256, 256), 256.0))

    def test_compiled_calls(self, mesh8: Mesh) -> None:
        """A replay is compared as well, before anything of it runs."""
        gc.collect()  # values that failed in a test before would be pending
        layer = nn.Linear(256, 256).to("xla")
        spmd.mark_sharding(layer.weight, mesh8, P("fsdp", None))
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)

        @spmd.compile
        def step(x: torch.Tensor) -> torch.Tensor:
            loss = spmd.mark_sharding(layer(x), mesh8, P(None, None)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        x = torch.ones(256, 256, device="xla")
        losses = [step(x).item() for _ in range(3)]
        weight = layer.weight.detach().cpu()
        with pytest.raises(CollectiveError), spmd.allow(above=0):
            step(x)
        assert torch.equal(layer.weight.detach().cpu(), weight)
        assert step(x).item() < losses[-1]

    def test_programs_of_an_earlier_start(self, tmp_path: object) -> None:
        """A program from the disk has its table."""
        script = """
            import torch, spmd

            spmd.simulate(8)
            mesh = spmd.Mesh(range(8), (8,), ("model",))
            x = spmd.mark_sharding(torch.ones(1024, 128, device="xla"), mesh, ("model", None))
            spmd.sync()
            y = spmd.mark_sharding(x * 2, mesh, (None, None))
            try:
                with spmd.allow():
                    spmd.sync()
            except spmd.CollectiveError as error:
                print(
                    spmd.metrics.compiles()[-1].cause.startswith("loaded"),
                    error.collectives[0].kind,
                )
            """
        first, second = (
            run_script(script, SPMD_PROGRAM_CACHE="1", SPMD_PROGRAM_CACHE_DIR=str(tmp_path))
            for _ in range(2)
        )
        assert (first.split(), second.split()) == (["False", "all-gather"], ["True", "all-gather"])

    def test_mistakes(self) -> None:
        with pytest.raises(
            TypeError, match="no collective gather: expected all_gather, all_reduce"
        ):
            spmd.allow(gather="fsdp")
        with pytest.raises(
            TypeError, match="expected all_gather to be a mesh axis, axes or True, got 3"
        ):
            spmd.allow(all_gather=3)  # type: ignore[arg-type]
        with pytest.raises(
            ValueError, match="expected above to be a number of bytes, 0 or more, got -1"
        ):
            spmd.allow(above=-1)
        error = pickle.loads(pickle.dumps(CollectiveError("text", ())))
        assert str(error) == "text" and error.collectives == ()
