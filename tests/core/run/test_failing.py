"""A failure leaves everything else as it was: while recording, lowering, compiling, uploading,
running, reading."""

import sys
import threading
import time

import jax
import numpy as np
import pytest
import torch
from support import check, run_script
from torch import nn

import spmd
from spmd.core.base import in_flight
from spmd.core.run.pjrt import devices, transfer
from spmd.ops.registry import RULES, Rule

aten = torch.ops.aten


class Broken(Exception):
    """The error that the tests raise where they break something."""


@pytest.fixture
def broken_i0(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A rule that fails when it is lowered; `undo` mends it."""

    def rule(self):
        raise Broken("no such thing")

    monkeypatch.setitem(RULES, aten.i0.default, Rule(rule, None, False, False))
    spmd.core.record.call.PLANS.pop(aten.i0.default, None)
    yield monkeypatch
    monkeypatch.undo()
    spmd.core.record.call.PLANS.pop(aten.i0.default, None)


class TestNotCompiled:
    """A failure while lowering or compiling leaves the graph recorded: mend the annotation or the
    rule, and go on."""

    def test_a_mended_annotation(self) -> None:
        left, right = spmd.Mesh([0, 1], (2,), ("a",)), spmd.Mesh([2, 3], (2,), ("a",))
        x = spmd.mark_sharding(torch.arange(8.0).to("xla") * 2, left, ("a",))
        y = spmd.mark_sharding(torch.ones(8).to("xla"), right, ("a",))
        spmd.sync()
        state = torch.zeros(8, device="xla")
        spmd.sync()
        state.add_(x + y)
        innocent = x * 3
        with pytest.raises(
            ValueError, match=r"aten.add.Tensor.*mixes values on devices \[0, 1\] and \[2, 3\]"
        ):
            spmd.sync()
        assert innocent.tolist() == [6.0 * i for i in range(8)]
        with pytest.raises(ValueError, match="mixes values"):
            state.tolist()
        spmd.mark_sharding(y, left, ("a",))
        spmd.sync()
        assert state.tolist() == [2.0 * i + 1 for i in range(8)]

    def test_a_mended_mark_of_a_pending_value(self) -> None:
        left, right = spmd.Mesh([0, 1], (2,), ("a",)), spmd.Mesh([2, 3], (2,), ("a",))
        x = spmd.mark_sharding(torch.ones(8).to("xla") + 1, left, ("a",))
        y = spmd.mark_sharding(torch.ones(8).to("xla") + 2, right, ("a",))
        total = (x * y).sum()
        with pytest.raises(ValueError, match="mixes values"):
            spmd.sync()
        spmd.mark_sharding(y, left, ("a",))
        assert total.item() == 48

    def test_a_mended_rule(self, broken_i0: pytest.MonkeyPatch) -> None:
        x = torch.full((3, 7), 2.0, device="xla")
        spmd.sync()
        y = torch.i0(x.add_(1))
        other = x * 5
        with pytest.raises(
            RuntimeError, match=r"aten.i0.*y = torch.i0\(x.add_\(1\)\).*Broken: no such thing"
        ):
            spmd.sync()
        spmd.sync()  # said once; the rest runs
        assert other.unique().tolist() == [15.0] and x.unique().tolist() == [3.0]
        with pytest.raises(RuntimeError, match=r"aten\.i0"):
            y.tolist()
        broken_i0.undo()
        spmd.core.record.call.PLANS.pop(aten.i0.default)
        again = torch.i0(x)
        check(again, torch.i0(torch.full((3, 7), 3.0)))

    def test_state_behind_a_failing_op(self, broken_i0: pytest.MonkeyPatch) -> None:
        """It is pending, not lost: new data can be written, and everything else goes on."""
        weight = torch.ones(5, 3, device="xla")
        spmd.sync()
        weight.mul_(torch.i0(weight))
        for _ in range(3):
            with pytest.raises(RuntimeError, match=r"aten\.i0"):
                weight.sum().item()
        weight.copy_(torch.full((5, 3), 4.0))
        assert (weight * 2).sum().item() == 120

    def test_xla_refuses(self) -> None:
        """An error of XLA's compiler names the op that it is about."""
        x = torch.ones(6, device="xla")

        def unknown(a: jax.Array) -> jax.Array:
            return jax.ffi.ffi_call("no_such_target", jax.ShapeDtypeStruct(a.shape, a.dtype))(a)

        y = spmd.call_jax(unknown, x)  # this line
        z = x + 1
        with pytest.raises(RuntimeError, match="no_such_target"):
            spmd.sync()
        assert z.sum().item() == 12
        del y

    @pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
    def test_a_type_that_xla_lacks_inside_an_operator(self) -> None:
        x = torch.ones(2, device="xla")
        with pytest.raises(NotImplementedError, match=r"torch.complex32 has no XLA counterpart"):
            x + torch.tensor(1j, dtype=torch.complex32)


class TestRunFails:
    """A run that fails gives nothing up: tensors that had data take it back, others stay recorded
    where they can."""

    def test_a_callback_that_raises(self) -> None:
        fails = [True]

        def host(v):
            if fails:
                raise Broken("the host says no")
            return np.asarray(v) + 1

        def call(a: jax.Array) -> jax.Array:
            return jax.pure_callback(host, jax.ShapeDtypeStruct(a.shape, a.dtype), a)

        weight, counter = torch.full((4, 6), 2.0, device="xla"), torch.zeros((), device="xla")
        spmd.sync()
        for _ in range(2):
            weight.mul_(2)
            counter.add_(1)
            made = spmd.call_jax(call, weight)
            weight.add_(made)
            with pytest.raises(RuntimeError, match="the host says no"):
                spmd.sync()
            assert weight.unique().tolist() == [2.0]
            with pytest.raises(RuntimeError, match="the host says no"):
                made.tolist()
        assert counter.item() == 2  # it has no part in what failed
        fails.clear()
        assert made.unique().tolist() == [5.0]  # it stayed recorded
        weight.mul_(2)
        weight.add_(spmd.call_jax(call, weight))
        assert weight.unique().tolist() == [9.0]

    def test_no_memory_for_a_program(self) -> None:
        """A caught out-of-memory error costs nothing: the smaller step goes on from the same
        weights."""
        weights = [torch.ones(64, device=device, requires_grad=True) for device in ("cpu", "xla")]
        optimizers = [torch.optim.SGD([weight], lr=1e-3, momentum=0.9) for weight in weights]

        def step(size: int, which: int = 1) -> float:
            weight, optimizer = weights[which], optimizers[which]
            optimizer.zero_grad()
            column = torch.ones(size, 1, device=weight.device) * weight.mean()
            row = torch.ones(1, size, device=weight.device)
            square = (column * row).cumsum(0)  # this line takes the memory
            loss = (square @ square).mean()
            loss.backward()
            optimizer.step()
            return loss.item()

        assert step(8, 0) == pytest.approx(step(8))
        kept = weights[1].detach().cpu()
        # Twice the memory of this machine in one value.
        size = int((2 * devices.host_memory() / 4) ** 0.5) // 8 * 8
        for _ in range(2):
            with pytest.raises(
                torch.OutOfMemoryError, match="this line takes the memory"
            ) as caught:
                step(size)
            assert "GiB" in str(caught.value) and len(str(caught.value)) < 3000
            assert torch.equal(weights[1].detach().cpu(), kept)
        for _ in range(2):
            assert step(8, 0) == pytest.approx(step(8))
        check(weights[1], weights[0])

    def test_no_memory_and_the_unrelated(self) -> None:
        """Ops that share none with a program that is too large stay pending; the others, recorded
        or as before."""
        size = int((2 * devices.host_memory() / 4) ** 0.5) // 8 * 8
        weight, count = torch.ones(4, device="xla"), torch.zeros((), device="xla")
        spmd.sync()
        unrelated = torch.ones(3, device="xla") + 1
        count.add_(1)
        total = weight.mul_(2).sum()
        large = (
            torch.ones(size, 1, device="xla") * total * torch.ones(1, size, device="xla")
        ).cumsum(0)
        weight.add_(large.mean())
        with pytest.raises(torch.OutOfMemoryError):
            spmd.sync()
        spmd.sync()  # said once
        assert unrelated.sum().item() == 6 and count.item() == 1 and weight.tolist() == [1.0] * 4
        with pytest.raises(torch.OutOfMemoryError):
            large.mean().item()
        assert total.item() == 8 and weight.tolist() == [1.0] * 4

    def test_no_memory_for_the_first_step(self) -> None:
        """Weights and moments hold their initial values, and the smaller step goes on."""
        models = [nn.Linear(4, 1, device=device) for device in ("xla", "cpu")]
        optimizers = [torch.optim.Adam(model.parameters(), 0.1) for model in models]

        def step(which: int, size: int) -> float:
            optimizers[which].zero_grad()
            loss = models[which](torch.ones(2, 4).to(models[which].weight.device)).mean()
            loss = (loss * torch.ones(size, size, device=loss.device).cumsum(0)).mean()
            loss.backward()
            optimizers[which].step()
            return loss.item()

        with pytest.raises(torch.OutOfMemoryError):
            step(0, int((2 * devices.host_memory() / 4) ** 0.5) // 8 * 8)
        models[1].load_state_dict(
            {name: value.cpu() for name, value in models[0].state_dict().items()}
        )
        for state in optimizers[0].state.values():
            assert not state["exp_avg"].any().item()
            state["step"].zero_()  # torch counts on the host
        for _ in range(2):
            assert step(0, 8) == pytest.approx(step(1, 8), rel=1e-5)

    def test_no_memory_for_data(self) -> None:
        weight = torch.ones(3, device="xla")
        spmd.sync()
        weight.add_(1)
        huge = torch.zeros(1 << 46, device="xla")
        with pytest.raises(torch.OutOfMemoryError, match=r"no room for a shard of 262,144\.00 GiB"):
            weight.add_(huge[0]).tolist()
        del huge
        assert weight.tolist() in ([1.0] * 3, [2.0] * 3)
        assert (weight * 2).isfinite().all()

    def test_texts_do_not_nest(self) -> None:
        """A value that depends on lost data says why it was lost, and no more at the tenth try than
        at the first."""

        def host(v):
            raise Broken("the host says no")

        lost = spmd.call_jax(
            lambda a: jax.pure_callback(host, jax.ShapeDtypeStruct(a.shape, a.dtype), a),
            torch.ones(3, device="xla"),
        )
        with pytest.raises(RuntimeError):
            spmd.sync()
        lengths = []
        for _ in range(6):
            lost = lost * 2
            with pytest.raises(RuntimeError, match="the host says no") as caught:
                lost.tolist()
            # of the host's traceback
            lengths.append(len(str(caught.value).replace(sys.prefix, "")))
        assert lengths[0] == lengths[-1] < 6000, lengths

    def test_a_guard_keeps_what_was_overwritten_unread(self) -> None:
        x = torch.full((3,), 5.0, device="xla")
        spmd.sync()
        with pytest.raises(FloatingPointError, match=r"aten\.log"), spmd.nan_guard():
            x.uniform_(-2, -1)
            x.log_()
        assert x.tolist() == [5.0] * 3

    def test_an_upload_that_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x, state = torch.arange(6.0).to("xla"), torch.zeros(6, device="xla")
        spmd.sync()
        state.add_(x)
        y = torch.ones(6).to("xla") * state
        real = transfer.upload

        def upload(*args):
            raise Broken("the cable is out")

        monkeypatch.setattr(transfer, "upload", upload)
        with pytest.raises(Broken):
            spmd.sync()
        monkeypatch.setattr(transfer, "upload", real)
        assert y.tolist() == state.tolist() == [float(i) for i in range(6)]


class TestHooks:
    """An error of a user's hook, forward, backward or in the optimizer, leaves the model usable."""

    @pytest.mark.parametrize("where", ["forward", "backward", "gradient", "optimizer"])
    def test_goes_on(self, where: str) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to("xla")
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        broken = [False]

        def hook(*_: object) -> None:
            if broken[0]:
                raise Broken(where)

        layer = model[2]
        if where == "forward":
            layer.register_forward_hook(hook)
        elif where == "backward":
            layer.register_full_backward_hook(hook)
        elif where == "gradient":
            layer.weight.register_post_accumulate_grad_hook(hook)
        else:
            optimizer.register_step_post_hook(hook)
        x = torch.randn(5, 4).to("xla")

        def step() -> float:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.item()

        losses = [step()]
        for _ in range(3):
            broken[0] = True
            with pytest.raises(Broken):
                step()
            broken[0] = False
            losses.append(step())
        assert losses == sorted(losses, reverse=True) and all(
            torch.isfinite(p).all() for p in model.parameters()
        )


class TestWait:
    """`sync(wait=True)` returns when the devices are done, whoever started what they do."""

    def test_with_nothing_pending(self) -> None:
        done = threading.Event()

        def slow(v):
            time.sleep(0.2)
            done.set()
            return np.asarray(v)

        # A program that waits in its midst, handed to PJRT as `sync` hands it.
        run = jax.jit(
            lambda a: jax.pure_callback(slow, jax.ShapeDtypeStruct(a.shape, a.dtype), a) + 1
        )
        in_flight.note_run(run(np.ones(3, np.float32)), lambda: None)
        spmd.sync(wait=True)
        assert done.is_set()

    def test_every_run_is_noted(self) -> None:
        x = torch.ones(3, device="xla") + 1
        spmd.sync()
        started = [run.result for run in in_flight.started()]
        assert any(array is x._storage.value.buffer for array in started)
        spmd.sync(wait=True)
        assert all(array.is_ready() for array in started)


class TestReading:
    """`get_stablehlo` says what would run; nothing runs, moves or is uploaded."""

    def test_moves_nothing(self, mesh8: spmd.Mesh) -> None:
        host = torch.arange(8.0).to("xla")
        alone = torch.ones(8).to("xla") + 1
        spmd.sync()
        rows = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh8, ("fsdp", None))
        made = rows * host + alone
        sharding = alone._storage.value.sharding
        before = len(jax.live_arrays())
        assert "tensor<8x8xf32>" in spmd.get_stablehlo()
        assert len(jax.live_arrays()) <= before
        assert host._storage.value.host is not None and rows._storage.value.host is not None
        assert alone._storage.value.sharding is sharding and spmd.get_sharding(alone) is sharding
        assert made.sum().item() == 8 * (28 + 16)


def test_random_places() -> None:
    """An exception from any of a hundred random lines of the barrier's own path: nothing is lost,
    and the step that was cut short runs at the next barrier or says what failed."""
    run_script(
        """
        import random, sys, torch, spmd
        from spmd.core.programs import cache, compiler
        from spmd.core.programs import failing, log_entry
        from spmd.core.lower import lower
        from spmd.core.run import execute, executables, initialization, schedule
        from spmd.core.graph.graph import Graph
        from spmd.core.run.pjrt import transfer

        spmd.simulate(2)
        failing.SMALL = 0  # each program is checked


        class Cut(Exception):
            pass


        mesh = spmd.Mesh(range(2), (2,), ("d",))
        weight = spmd.mark_sharding(torch.zeros(8, device="xla"), mesh, ("d",))
        other = torch.zeros(3, device="xla")
        spmd.sync()
        # What is called on the way, from the choice of what to run to the upload of the data.
        places = [
            (schedule, "meshes_met"),
            (schedule, "sharding_over"),
            (schedule, "pinned_sharding"),
            (Graph, "key"),
            (compiler, "lower_graph"),
            (lower, "_apply"),
            (transfer, "upload"),
            (cache, "_cause"),
            (log_entry, "record"),
            (failing, "check_memory"),
        ]
        readers = (cache, compiler, execute, executables, initialization, schedule)
        random.seed(0)
        done = cut = 0
        for turn in range(100):
            module, name = random.choice(places)
            owners = [
                m for m in (module, *readers) if getattr(m, name, None) is getattr(module, name)
            ]
            real, left = getattr(module, name), [random.randrange(3)]

            def broken(*args, **kwargs):
                if left[0] == 0:
                    left[0] = -1
                    raise Cut(name)
                left[0] -= 1
                return real(*args, **kwargs)

            host = torch.ones(8).to("xla")
            weight.add_(host[: 8 - turn % 3].sum() / (8 - turn % 3))
            other.add_(1)
            for owner in owners:
                setattr(owner, name, broken)
            try:
                spmd.sync()
            except (Cut, RuntimeError) as error:
                assert isinstance(error, Cut) or "Cut" in str(error), error
                cut += 1
            for owner in owners:
                setattr(owner, name, real)
            done += 1
            assert weight.unique().tolist() == [float(done)], (turn, name, weight)
            assert other.unique().tolist() == [float(done)], (turn, name, other)
        assert cut > 20, cut
        """,
        timeout=200,
    )
