"""inspect: how a tensor lies, whatever it is; asking changes nothing; what a device is."""

import dataclasses
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import fsdp
import spmd
from spmd import P


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nothing of another test is pending."""
    spmd.sync()
    yield
    spmd.sync()


def marked(mesh: spmd.Mesh, *spec: object, shape: tuple[int, ...] = (8, 8)) -> torch.Tensor:
    return spmd.mark_sharding(
        torch.arange(float(torch.tensor(shape).prod())).reshape(shape).to("xla"), mesh, spec
    )


class TestResidence:
    """Data, host data, recorded values and other devices' tensors are told apart, and who decided
    how they lie."""

    def test_data(self, mesh2x4: spmd.Mesh) -> None:
        x = marked(mesh2x4, "data", None)
        spmd.local_shards(x)
        found = spmd.inspect(x)
        assert (found.shape, found.dtype, found.residence, found.decided_by) == (
            (8, 8),
            torch.float32,
            "devices",
            "annotation",
        )
        assert (
            found.spec == P("data", None)
            and found.mesh == mesh2x4
            and found.text == spmd.get_sharding(x).text(2)
        )
        assert (found.shard_shape, found.bytes_per_device) == ((4, 8), 128)
        with pytest.raises(dataclasses.FrozenInstanceError):
            found.shape = ()  # type: ignore[misc]

    def test_host(self, mesh2x4: spmd.Mesh) -> None:
        bare, annotated = torch.ones(3, 5).to("xla"), marked(mesh2x4, None, "fsdp")
        one, two = spmd.inspect(bare, annotated)
        assert (one.residence, one.sharding, one.mesh, one.spec, one.text) == (
            "host",
            None,
            None,
            None,
            "",
        )
        assert (one.decided_by, one.bytes_per_device) == ("", 60)
        assert (two.residence, two.spec, two.decided_by) == ("host", P(None, "fsdp"), "annotation")

    def test_a_last_run(self, mesh2x4: spmd.Mesh) -> None:
        y = marked(mesh2x4, "data", None) @ marked(mesh2x4, None, "fsdp")
        spmd.sync()
        found = spmd.inspect(y)
        assert (found.residence, found.decided_by, found.spec) == (
            "devices",
            "last run",
            P("data", "fsdp"),
        )
        assert found.line.endswith("in test_a_last_run: spmd.sync()")

    def test_one_device(self) -> None:
        y = torch.ones(3, device="xla") * 2
        found = spmd.inspect(y)
        assert (found.residence, found.decided_by, found.text) == (
            "pending",
            "default",
            "{replicated}",
        )
        assert found.mesh is not None and found.mesh.device_ids == (0,)
        spmd.sync()
        assert spmd.inspect(y).residence == "devices"

    def test_other_devices(self) -> None:
        assert [spmd.inspect(torch.ones(2, device=kind)).residence for kind in ("cpu", "meta")] == [
            "cpu",
            "meta",
        ]

    def test_a_nameless_mesh_and_another_order(self) -> None:
        mesh = spmd.Mesh([3, 1, 2, 0], (2, 2))
        found = spmd.inspect(marked(mesh, 1, None))
        assert (
            found.mesh == mesh and found.text == "{devices=[2,1,2]2,3,0,1 last_tile_dim_replicate}"
        )

    def test_host_memory(self, mesh8: spmd.Mesh) -> None:
        x = spmd.mark_sharding(
            torch.ones(8, 2).to("xla"), mesh8, ("fsdp", None), memory_kind="pinned_host"
        )
        assert spmd.inspect(x).sharding.memory == "pinned_host" and "memory: pinned_host" in str(
            spmd.inspect(x)
        )

    def test_empty_and_scalar(self, mesh8: spmd.Mesh) -> None:
        empty, scalar = marked(mesh8, "fsdp", None, shape=(0, 4)), marked(mesh8, shape=())
        assert [one.bytes_per_device for one in spmd.inspect(empty, scalar)] == [0, 4]
        assert spmd.inspect(scalar + 1).spec == P()


class TestPropagated:
    """Of a recorded value: what the compiler propagates, which is what the run then leaves."""

    def test_products_views_and_sums(self, mesh2x4: spmd.Mesh) -> None:
        x, w = marked(mesh2x4, "data", None), marked(mesh2x4, None, "fsdp")
        y = x @ w
        values = [y, y.t(), y.t() * 2, y.sum(0), x[:, :2], y.view(4, 2, 8).relu()]
        found = spmd.inspect(*values)
        assert [one.decided_by for one in found] == ["compiler"] * 6
        assert (
            found[0].spec == P("data", "fsdp")
            and found[1].spec == P("fsdp", "data") == found[2].spec
        )
        assert [one.residence for one in found] == ["pending"] * 4 + [
            "devices" if x._storage.value.host is None else "host",
            "pending",
        ]
        assert found[0].line.endswith("y = x @ w") and "x[:, :2]" in found[4].line
        plain = [values[i] for i in (0, 2, 3, 5)]
        spmd.sync()
        assert [spmd.get_sharding(one).text(one.dim()) for one in plain] == [
            found[i].text for i in (0, 2, 3, 5)
        ]

    def test_annotated_views_and_intermediates(self, mesh2x4: spmd.Mesh) -> None:
        x = marked(mesh2x4, "data", None)
        y = spmd.mark_sharding(x * 2, mesh2x4, ("fsdp", None))
        view = spmd.mark_sharding(y.t(), mesh2x4, (None, "data"))
        found = spmd.inspect(y, view)
        assert [one.spec for one in found] == [P("fsdp", None), P(None, "data")]
        assert [one.decided_by for one in found] == ["annotation"] * 2

    def test_an_open_dim(self, mesh2x4: spmd.Mesh) -> None:
        y = spmd.mark_sharding(
            marked(mesh2x4, "data", "fsdp") * 2, mesh2x4, (P.UNCONSTRAINED, "fsdp")
        )
        assert (spmd.inspect(y).spec, spmd.inspect(y).decided_by) == (P("data", "fsdp"), "compiler")
        spmd.sync()
        assert spmd.inspect(y).spec == P("data", "fsdp")

    def test_gradients_and_no_grad(self, mesh8: spmd.Mesh) -> None:
        w = torch.nn.Parameter(torch.ones(8, 8).to("xla"))
        spmd.mark_sharding(w, mesh8, ("fsdp", None))
        y = (w * w).sum(1)
        y.sum().backward()
        found = spmd.inspect(w, w.grad, y, y.detach())
        assert [one.spec for one in found] == [
            P("fsdp", None),
            P("fsdp", None),
            P("fsdp"),
            P("fsdp"),
        ]
        assert found[1].decided_by == "annotation"

    def test_two_meshes(self) -> None:
        """Programs over different devices, the second of which reads what the first leaves where it
        likes."""
        halves = [spmd.Mesh(ids, (4,), ("x",)) for ids in (range(4), range(4, 8))]
        x = marked(halves[0], "x", None)
        y = x.cos()
        z = spmd.mark_sharding(y * 1, halves[1], (None, "x")).sin()
        found = spmd.inspect(y, z)
        assert [one.mesh.device_ids for one in found] == [(0, 1, 2, 3), (4, 5, 6, 7)]
        assert [one.spec for one in found] == [P("x", None), P(None, "x")]
        spmd.sync()
        assert spmd.get_sharding(z).text(2) == found[1].text

    def test_born_values(self, mesh8: spmd.Mesh) -> None:
        with torch.device("xla"):
            layer = torch.nn.Linear(8, 16)
        spmd.mark_sharding(layer.weight, mesh8, ("fsdp", None))
        y = layer(torch.ones(4, 8, device="xla"))
        found = spmd.inspect(layer.weight, layer.bias, y)
        assert found[0].spec == P("fsdp", None) and found[2].residence == "pending"
        torch.manual_seed(3)
        spmd.sync()
        assert [spmd.get_sharding(t).text(t.dim()) for t in (layer.weight, layer.bias, y)] == [
            one.text for one in found
        ]


class TestNothingChanges:
    """Asking runs nothing, counts nothing, and makes no later program another one."""

    def steps(self, mesh: spmd.Mesh, ask: Callable[..., object]) -> tuple[list[float], list[int]]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))
        model = fsdp.FullyShardedDataParallel(
            model, mesh=mesh, auto_wrap_policy=fsdp.always_wrap_policy
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses, counts = [], []
        for _ in range(3):
            before = spmd.metrics.num_compiles()
            x = torch.linspace(0, 1, 64).reshape(8, 8).to("xla")
            hidden = model(x)
            ask(x, hidden, x.t(), *model.parameters())
            loss = hidden.square().mean()
            loss.backward()
            ask(loss, *(p.grad for p in model.parameters()))
            optimizer.step()
            ask(*model.parameters(), hidden[0])
            optimizer.zero_grad()
            spmd.sync()
            losses.append(loss.item())
            counts.append(spmd.metrics.num_compiles() - before)
            ask(loss, hidden)
        return losses, counts

    def test_a_training_loop(self, mesh8: spmd.Mesh) -> None:
        plain, expected = self.steps(mesh8, lambda *_: None)
        spmd.metrics.clear()
        losses, counts = self.steps(mesh8, spmd.inspect)
        # the very programs of before
        assert losses == plain and expected[1:] == [0, 0] and counts == [0, 0, 0]

    def test_the_ledger_and_what_is_pending(self, mesh2x4: spmd.Mesh) -> None:
        x = marked(mesh2x4, "data", "fsdp")
        base = torch.zeros(8, 8).to("xla")
        base[2:4].add_(x[:2] @ x)
        row = base[2]
        before = (
            spmd.get_stablehlo(),
            spmd.metrics.counter("syncs"),
            spmd.metrics.counter("recorded_ops"),
        )
        spmd.metrics.clear()
        lines = len(spmd.metrics.compiles())
        first = spmd.inspect(base, row)
        started = spmd.metrics.counter_names()
        assert spmd.inspect(base, row) == first
        assert spmd.get_stablehlo() == before[0] and len(spmd.metrics.compiles()) == lines
        assert spmd.metrics.num_compiles() == 0 and started == spmd.metrics.counter_names()
        spmd.sync()
        plain = torch.zeros(8, 8)
        values = torch.arange(64.0).reshape(8, 8)
        plain[2:4].add_(values[:2] @ values)
        torch.testing.assert_close(row.cpu(), plain[2])

    def test_beside_other_threads(self, mesh8: spmd.Mesh) -> None:
        """Recordings and reads of another thread meanwhile run as ever."""
        x = marked(mesh8, "fsdp", None)
        found: list[float] = []
        is_done = threading.Event()

        def work() -> None:
            while not is_done.is_set():
                found.append((x[:2] * len(found)).cpu().sum().item())

        worker = threading.Thread(target=work)
        worker.start()
        try:
            y = x
            for _ in range(6):
                y = y.cos() + 1
                assert spmd.inspect(y).spec == P("fsdp", None)
        finally:
            is_done.set()
            worker.join()
        assert found == [120.0 * i for i in range(len(found))] and found

    def test_under_no_host_transfer(self, mesh8: spmd.Mesh) -> None:
        with spmd.no_host_transfer():
            assert spmd.inspect(marked(mesh8, "fsdp", None) * 2).spec == P("fsdp", None)

    def test_what_cannot_be_compiled(self, mesh8: spmd.Mesh) -> None:
        """It says so, and the rest goes on."""
        good = marked(mesh8, "fsdp", None) * 2

        def bad(x: object) -> object:
            raise ValueError("no rule today")

        with pytest.raises(Exception, match="no rule today"):
            spmd.inspect(spmd.call_jax(bad, good))
        assert spmd.inspect(good).spec == P("fsdp", None)

    def test_in_a_plan_and_a_loop(self, mesh8: spmd.Mesh) -> None:
        """There the compiler is not asked; what is annotated is told."""
        x = marked(mesh8, "fsdp", None)

        def step(y: torch.Tensor) -> torch.Tensor:
            z = y * 2
            recorded, data = spmd.inspect(z, x)
            assert (recorded.residence, recorded.sharding, data.spec) == (
                "pending",
                None,
                P("fsdp", None),
            )
            return z

        assert spmd.plan(step, x).num_ops == 1
        total, _ = spmd.scan(
            lambda carry, row: (carry + step(row), row), torch.zeros(8, device="xla"), x
        )
        assert total.sum().item() == 2 * torch.arange(64.0).sum().item()


class TestFsdp:
    """A parameter lies as it is stored; what it is read as is told beside it."""

    def test_parameters(self, mesh8: spmd.Mesh) -> None:
        model = fsdp.FullyShardedDataParallel(torch.nn.Linear(16, 8), mesh=mesh8)
        model(torch.ones(8, 16).to("xla"))
        weight = spmd.inspect(model.module.weight)
        assert weight.spec in (P(None, "fsdp"), P("fsdp", None)) and weight.read_as == (
            P(None, None),
        )
        assert weight.bytes_per_device == 16 * 8 * 4 // 8 and "read as: P(None, None)" in str(
            weight
        )


class TestShown:
    """Printed, in rich, in a notebook."""

    def test_text(self, mesh2x4: spmd.Mesh) -> None:
        y = marked(mesh2x4, "data", None) * 2
        lines = str(spmd.inspect(y)).split("\n")
        assert lines[:3] == [
            "float32[8,8] recorded, not run, as P('data', None) over data=2, fsdp=4",
            "each of 8 devices holds float32[4,8], 128 B; decided by compiler",
            "GSPMD: {devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}",
        ]
        assert lines[3] == "memory: device" and lines[4].endswith(
            'y = marked(mesh2x4, "data", None) * 2'
        )
        assert repr(spmd.inspect(y)) == str(spmd.inspect(y))
        html = spmd.inspect(y)._repr_html_()
        assert (
            "<td>float32[8,8] recorded, not run, as P(&#x27;data&#x27;, None)" in html
            and html.count("<tr>") == 5
        )

    def test_rich(self, mesh2x4: spmd.Mesh) -> None:
        console = pytest.importorskip("rich.console").Console(width=120)
        with console.capture() as captured:
            console.print(
                spmd.inspect(marked(mesh2x4, "data", None)),
                spmd.show_sharding(marked(mesh2x4, "data", None)),
            )
        assert "P('data', None)" in captured.get() and "│   0-3    │" in captured.get()


class TestErrors:
    def test_no_tensor(self) -> None:
        with pytest.raises(
            TypeError, match=r"expected tensors, got list; for a list call inspect\(\*tensors\)"
        ):
            spmd.inspect([torch.ones(2)])  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="expected one tensor or more, got none"):
            spmd.inspect()


class TestDevices:
    """The attributes of a device."""

    def test_attributes(self) -> None:
        found = spmd.torch_xla.device_attributes(3)
        assert (found.id, found.name, found.kind, found.platform, found.process) == (
            3,
            "CPU:3",
            "cpu",
            "cpu",
            0,
        )
        assert (found.coords, found.core, found.slice_index, found.memory) == (None, None, 0, None)
        every = spmd.tensors.runtime.global_runtime_device_attributes()
        assert [one["name"] for one in every] == [
            f"CPU:{i}" for i in range(8)
        ] and "coords" not in every[0]
        assert spmd.torch_xla.device_attributes(11, target="cpu:16").name == "CPU:11"
        assert [
            spmd.torch_xla.device_attributes(i, target="2xcpu:4").slice_index for i in (3, 4)
        ] == [0, 1]

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match="there is no device 8; there are 8, ids from 0 on"):
            spmd.torch_xla.device_attributes(8)
        with pytest.raises(TypeError, match="expected the id of a device, got 'cpu'"):
            spmd.torch_xla.device_attributes("cpu")  # type: ignore[arg-type]
