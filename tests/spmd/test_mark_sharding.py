"""mark_sharding and clear_sharding: what may be marked, how the mark reads back, and what keeps
it."""

import copy
from collections.abc import Callable

import pytest
import torch
from support import check, run_script
from torch import nn

import spmd
from spmd import Mesh, P

ROWS = "{devices=[8,1]0,1,2,3,4,5,6,7}"
COLUMNS = "{devices=[1,8]0,1,2,3,4,5,6,7}"


def text(tensor: torch.Tensor) -> str | None:
    found = spmd.get_sharding(tensor)
    return None if found is None else found.text(tensor.dim())


def shard_shapes(tensor: torch.Tensor) -> set[tuple[int, ...]]:
    return {tuple(shard.data.shape) for shard in spmd.local_shards(tensor)}


@pytest.fixture
def rows(mesh8: Mesh) -> torch.Tensor:
    """8 by 8, split along dim 0 over eight devices."""
    return spmd.mark_sharding(torch.arange(64.0).view(8, 8).to("xla"), mesh8, ("fsdp", None))


class TestTensor:
    """tensor: host data, recorded values, data on devices, parameters, views; nothing else."""

    def test_host_data(self, mesh8: Mesh) -> None:
        """Host data is uploaded shard by shard at first use; marking moves nothing."""
        source = torch.arange(64.0).view(8, 8)
        x = source.to("xla")
        assert spmd.mark_sharding(x, mesh8, ("fsdp", None)) is x
        assert text(x) == ROWS and shard_shapes(x) == {(1, 8)} and torch.equal(x.cpu(), source)

    def test_recorded_value(self, mesh8: Mesh) -> None:
        x = torch.ones(8, 8).to("xla") * 3
        assert text(x) is None
        spmd.mark_sharding(x, mesh8, (None, "fsdp"))
        assert text(x) == COLUMNS
        spmd.sync()
        assert text(x) == COLUMNS and shard_shapes(x) == {(8, 1)}

    def test_data_on_devices(self, mesh8: Mesh) -> None:
        x = torch.ones(8, 8).to("xla") * 3
        spmd.sync()
        spmd.mark_sharding(x, mesh8, (None, "fsdp"))
        assert text(x) == COLUMNS and shard_shapes(x) == {(8, 1)} and (x == 3).all()

    def test_under_the_device(self, mesh8: Mesh) -> None:
        with torch.device("xla"):
            linear = nn.Linear(8, 16)
        spmd.mark_sharding(linear.weight, mesh8, ("fsdp", None))
        spmd.sync()
        assert shard_shapes(linear.weight) == {(2, 8)}

    def test_scalar(self, mesh8: Mesh) -> None:
        assert text(spmd.mark_sharding(torch.ones((), device="xla"), mesh8, P())) == "{replicated}"

    def test_stays_attached_to_autograd(self, mesh8: Mesh) -> None:
        w = torch.ones(8, 8).to("xla").requires_grad_()
        y = spmd.mark_sharding(w * 2, mesh8, ("fsdp", None))
        assert y.requires_grad and y.grad_fn is not None
        y.sum().backward()
        assert (w.grad == 2).all()

    def test_not_on_the_device(self, mesh8: Mesh) -> None:
        with pytest.raises(
            TypeError,
            match=(
                r"mark_sharding: expected a tensor on xla, got one on cpu; move it with "
                r'.to\("xla"\) first'
            ),
        ):
            spmd.mark_sharding(torch.ones(8), mesh8, ("fsdp",))
        with pytest.raises(TypeError, match=r"expected a spmd\.Mesh, got tuple"):
            spmd.mark_sharding(torch.ones(8, device="xla"), (8,), ("fsdp",))

    def test_inside_a_compiled_sum(self, mesh2x4: Mesh) -> None:
        """An annotation in the middle of a graph changes where values lie, never what they are."""
        source = torch.randn(8, 12)
        x = source.to("xla").requires_grad_()
        h = spmd.mark_sharding(x.sin(), mesh2x4, ("data", "fsdp"))
        y = spmd.mark_sharding(h @ h.t(), mesh2x4, ("fsdp", "data"))
        y.exp().sum().backward()
        expected = source.clone().requires_grad_()
        (expected.sin() @ expected.sin().t()).exp().sum().backward()
        torch.testing.assert_close(x.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-4)


class TestSpec:
    """partition_spec: one entry per dim; names, indices, tuples (the first axis the slowest), None;
    tuple or P."""

    def test_forms(self, mesh2x4: Mesh) -> None:
        made = [
            spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh2x4, spec)
            for spec in (("fsdp", "data"), (1, 0), P("fsdp", "data"), [1, "data"], P(("fsdp",), 0))
        ]
        assert len({id(spmd.get_sharding(tensor)) for tensor in made}) == 1

    def test_on_one_device_everything_is_whole(self, mesh1: Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh1, ("fsdp", None))
        assert text(x) == "{replicated}" and (x + 1).sum().item() == 128

    def test_all_none(self, mesh8: Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh8, (None, None))
        assert text(x) == "{replicated}" and len(spmd.local_shards(x)) == 8


class TestRemark:
    """Marking again lays the tensor out anew; clearing forgets."""

    @pytest.mark.parametrize("sync_between", [False, True], ids=["recorded", "run"])
    def test_another_spec(self, rows: torch.Tensor, mesh8: Mesh, sync_between: bool) -> None:
        x = rows * 1
        spmd.mark_sharding(x, mesh8, ("fsdp", None))
        if sync_between:
            spmd.sync()
        spmd.mark_sharding(x, mesh8, (None, "fsdp"))
        assert text(x) == COLUMNS and shard_shapes(x) == {(8, 1)}
        check(x, torch.arange(64.0).view(8, 8))

    def test_the_same_spec_moves_nothing(self, rows: torch.Tensor, mesh8: Mesh) -> None:
        spmd.local_shards(rows)
        buffer = rows._storage.value.buffer
        spmd.mark_sharding(rows, mesh8, ("fsdp", None))
        assert rows._storage.value.buffer is buffer

    def test_another_mesh(self, rows: torch.Tensor) -> None:
        (rows + 1).sum().item()
        for ids in ([3, 2, 1, 0], [5], range(8), [7, 0]):
            spmd.mark_sharding(rows, Mesh(ids, (len(ids),), ("a",)), ("a", None))
            assert sorted(shard.device for shard in spmd.local_shards(rows)) == sorted(ids)
            assert (rows * 2).sum().item() == 2 * 63 * 32

    def test_clear(self, rows: torch.Tensor) -> None:
        assert spmd.clear_sharding(rows) is rows and rows.device.type == "xla"
        assert text(rows) in (None, "{replicated}")
        check(rows, torch.arange(64.0).view(8, 8))

    def test_clear_data_on_devices(self, rows: torch.Tensor) -> None:
        spmd.local_shards(rows)
        spmd.clear_sharding(rows)
        assert text(rows) == "{replicated}" and shard_shapes(rows) == {(8, 8)}
        check(rows + 1, torch.arange(64.0).view(8, 8) + 1)

    def test_clear_then_mark(self, rows: torch.Tensor, mesh8: Mesh) -> None:
        spmd.sync()
        spmd.mark_sharding(spmd.clear_sharding(rows), mesh8, (None, "fsdp"))
        assert text(rows) == COLUMNS and shard_shapes(rows) == {(8, 1)}


KEEPERS: dict[str, Callable[[torch.Tensor], object]] = {
    "add_": lambda x: x.add_(1),
    "mul_ tensor": lambda x: x.mul_(torch.full((8, 8), 2.0, device="xla")),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(3),
    "relu_": lambda x: x.relu_(),
    "clamp_": lambda x: x.clamp_(1, 5),
    "normal_": lambda x: x.normal_(),
    "uniform_": lambda x: x.uniform_(),
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "masked_fill_": lambda x: x.masked_fill_(x > 3, 0),
    "addcmul_": lambda x: x.addcmul_(x, x),
    "lerp_": lambda x: x.lerp_(x * 2, 0.5),
    "addmm_": lambda x: x.addmm_(x, x),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([1]).to("xla"), x[:1].clone()),
    "scatter_": lambda x: x.scatter_(0, torch.zeros(1, 8, dtype=torch.int64).to("xla"), 1.0),
    "foreach": lambda x: torch._foreach_add_([x], 1),
    "out": lambda x: torch.add(x, 1, out=x),
    "setitem": lambda x: x.__setitem__(0, 5),
    "slice": lambda x: x[:4].add_(1),
    "transposed": lambda x: x.t().mul_(2),
    "copy_ cpu": lambda x: x.copy_(torch.ones(8, 8)),
    "copy_ recorded": lambda x: x.copy_(torch.ones(8, 8, device="xla") * 2),
    "copy_ host data": lambda x: x.copy_(torch.ones(8, 8).to("xla")),
    "copy_ other sharding": lambda x: x.copy_(
        spmd.mark_sharding(
            torch.ones(8, 8).to("xla"), Mesh(range(8), (8,), ("fsdp",)), (None, "fsdp")
        )
    ),
    "data =": lambda x: setattr(x, "data", torch.ones(8, 8).to("xla")),
    "data = recorded": lambda x: setattr(x, "data", torch.ones(8, 8).to("xla") + 1),
    "set_ through data": lambda x: x.data.mul_(2),
    "detach": lambda x: x.detach().add_(1),
}


class TestKept:
    """The destination keeps its sharding through whatever is written into it."""

    @pytest.mark.parametrize("name", KEEPERS)
    def test_write(self, rows: torch.Tensor, name: str) -> None:
        expected = torch.arange(64.0).view(8, 8)
        KEEPERS[name](rows)
        assert text(rows) == ROWS
        spmd.sync()
        assert text(rows) == ROWS and shard_shapes(rows) == {(1, 8)}
        rows.add_(1)
        assert text(rows) == ROWS and shard_shapes(rows) == {(1, 8)}
        if name in ("add_", "foreach", "detach", "out"):
            check(rows, expected + 2)

    @pytest.mark.parametrize("source", ["cpu", "xla"])
    def test_load_state_dict(self, mesh8: Mesh, source: str) -> None:
        model = nn.Linear(8, 8, bias=False).to("xla")
        spmd.mark_sharding(model.weight, mesh8, ("fsdp", None))
        state = {"weight": torch.arange(64.0).view(8, 8).to(source)}
        model.load_state_dict(state)
        assert text(model.weight) == ROWS and shard_shapes(model.weight) == {(1, 8)}
        check(model.weight, torch.arange(64.0).view(8, 8))

    @pytest.mark.parametrize(
        "make",
        [
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
            lambda p: torch.optim.Adam(p, lr=0.1),
            lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
            lambda p: torch.optim.AdamW(p, lr=0.1, foreach=False),
            lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
            lambda p: torch.optim.AdamW(p, lr=0.1, capturable=True),
        ],
        ids=["sgd", "adam", "foreach", "single", "fused", "capturable"],
    )
    def test_optimizer_steps(self, mesh8: Mesh, make) -> None:
        w = nn.Parameter(torch.randn(8, 8).to("xla"))
        spmd.mark_sharding(w, mesh8, ("fsdp", None))
        x = spmd.mark_sharding(torch.ones(16, 8).to("xla"), mesh8, ("fsdp", None))
        optimizer = make([w])
        for _ in range(3):
            (x @ w).square().mean().backward()
            assert text(w.grad) == ROWS
            optimizer.step()
            spmd.sync()
            assert (
                text(w) == ROWS and shard_shapes(w) == {(1, 8)} and shard_shapes(w.grad) == {(1, 8)}
            )
            for value in optimizer.state[w].values():
                if torch.is_tensor(value) and value.dim():
                    assert shard_shapes(value) == {(1, 8)}
            optimizer.zero_grad()

    def test_likes_inherit(self, rows: torch.Tensor) -> None:
        for like in (
            torch.zeros_like,
            torch.empty_like,
            torch.ones_like,
            lambda x: torch.full_like(x, 2.0),
        ):
            assert text(like(rows)) == ROWS

    def test_deepcopy(self, rows: torch.Tensor) -> None:
        assert text(copy.deepcopy(rows)) == ROWS

    def test_new_value_of_a_name_is_another_tensor(self, rows: torch.Tensor) -> None:
        assert text(rows + 1) is None


class TestGradient:
    """The gradient of a marked leaf lies like it, also when it accumulates."""

    def test_pinned(self, mesh2x4: Mesh) -> None:
        w = torch.randn(8, 8).to("xla").requires_grad_()
        spmd.mark_sharding(w, mesh2x4, ("fsdp", "data"))
        for _ in range(2):
            (torch.ones(16, 8).to("xla") @ w).sum().backward()
        spmd.sync()
        assert spmd.get_sharding(w.grad) is spmd.get_sharding(w) and shard_shapes(w.grad) == {
            (2, 4)
        }
        assert (w.grad == 32).all()

    def test_remarked(self, mesh8: Mesh) -> None:
        w = torch.ones(8, 8).to("xla").requires_grad_()
        spmd.mark_sharding(w, mesh8, ("fsdp", None))
        spmd.mark_sharding(w, mesh8, (None, "fsdp"))
        (w * 2).sum().backward()
        assert text(w.grad) == COLUMNS and len(w._post_accumulate_grad_hooks) == 1


class TestViews:
    """A view may be marked; its base is not touched, and a base's mark is not the view's."""

    def test_view_of_a_marked_base(self, rows: torch.Tensor) -> None:
        assert text(rows.t()) is None and text(rows.view(64)) is None
        rows.t()[0].mul_(0)
        assert text(rows) == ROWS and rows[:, 0].sum().item() == 0

    def test_marked_view(self, rows: torch.Tensor, mesh8: Mesh) -> None:
        view = rows.t()
        assert spmd.mark_sharding(view, mesh8, (None, "fsdp")) is view
        assert text(view) == COLUMNS and text(rows) == ROWS
        check(view * 2, torch.arange(64.0).view(8, 8).t() * 2)
        if spmd.config.partitioner == "gspmd":
            assert "{devices=[1,8]<=[8]}" in spmd.get_stablehlo([view * 3])
        spmd.clear_sharding(view)
        assert text(view) is None and text(rows) == ROWS

    @pytest.mark.parametrize("count", [12, 15])
    @pytest.mark.parametrize("spec", [None, "data", "fsdp"])
    @pytest.mark.parametrize("order", [("data", "fsdp"), ("fsdp", "data")])
    def test_the_first_rows_and_the_whole_laid_out_alike(
        self, count: int, spec: str | None, order: tuple[str, str], mesh2x4: Mesh
    ) -> None:
        source = torch.arange(16.0)
        whole = spmd.mark_sharding(source.to("xla"), mesh2x4, (order,)) * 2
        spmd.mark_sharding(whole, mesh2x4, (order,))
        part = spmd.mark_sharding(whole[:count], mesh2x4, (spec,)).clone()
        again = spmd.mark_sharding(whole.clone(), mesh2x4, (spec,))
        spmd.sync()
        for value, expected in ((whole, source), (part, source[:count]), (again, source)):
            check(value, expected * 2)

    @pytest.mark.parametrize("spec", ["data", "fsdp"])
    @pytest.mark.parametrize("order", [("data", "fsdp"), ("fsdp", "data")])
    def test_the_first_rows_and_the_whole_kept_alike(
        self, spec: str, order: tuple[str, str], mesh2x4: Mesh
    ) -> None:
        source = torch.arange(16.0)
        whole = spmd.mark_sharding(
            spmd.mark_sharding(source.to("xla"), mesh2x4, (order,)) * 2, mesh2x4, (order,)
        )
        first, again = (
            spmd.mark_sharding(torch.zeros(count).to("xla"), mesh2x4, (spec,)) for count in (12, 16)
        )
        spmd.sync()
        first.copy_(whole[:12])
        again.copy_(whole)
        spmd.sync()
        for value, expected in ((first, source[:12]), (again, source)):
            check(value, expected * 2)

    def test_the_first_elements_of_an_uneven_dim(self, mesh8: Mesh) -> None:
        source = torch.arange(4.0)
        whole = spmd.mark_sharding(source.to("xla"), mesh8, ("fsdp",)) * 2
        part = spmd.mark_sharding(whole[:2], Mesh(range(7, -1, -1), (8,), ("fsdp",)), (None,))
        copies = whole.clone(), part.clone()  # two results that are one value, and one of the view
        for value, expected in zip((whole, part, *copies), (source, source[:2]) * 2, strict=True):
            check(value, expected * 2)


class TestMeshes:
    """Values on different meshes: separate work runs separately, joined work says what to do."""

    def test_two_meshes_at_one_barrier(self) -> None:
        left, right = Mesh([0, 1, 2, 3], (4,), ("a",)), Mesh([4, 5, 6, 7], (4,), ("a",))
        x = spmd.mark_sharding(torch.ones(8).to("xla"), left, ("a",))
        y = spmd.mark_sharding(torch.ones(8).to("xla"), right, ("a",))
        x2, y2, z = x * 2, y * 3, torch.ones(3, device="xla") + 1
        spmd.sync()
        assert {s.device for s in spmd.local_shards(x2)} <= {0, 1, 2, 3}
        assert {s.device for s in spmd.local_shards(y2)} <= {4, 5, 6, 7}
        assert (x2.sum().item(), y2.sum().item(), z.sum().item()) == (16.0, 24.0, 6.0)

    def test_one_op_over_two_meshes(self) -> None:
        left, right = Mesh([0, 1], (2,), ("a",)), Mesh([2, 3], (2,), ("a",))
        x = spmd.mark_sharding(torch.ones(8).to("xla"), left, ("a",))
        y = spmd.mark_sharding(torch.ones(8).to("xla"), right, ("a",))
        with pytest.raises(
            ValueError, match="one program cannot span meshes with different devices"
        ):
            (x + y).sum().item()
        assert (x.sum().item(), y.sum().item()) == (8.0, 8.0)
        spmd.mark_sharding(y, left, ("a",))
        assert (x + y).sum().item() == 16.0

    def test_a_value_crosses_between_meshes(self) -> None:
        left, right = Mesh([0, 1], (2,), ("a",)), Mesh([2, 3], (2,), ("a",))
        x = spmd.mark_sharding(torch.arange(8.0).to("xla"), left, ("a",))
        y = x * 2
        z = spmd.mark_sharding(y + 1, right, ("a",))
        w = spmd.mark_sharding(z * z, left, ("a",)) + y
        spmd.sync()
        expected = torch.arange(8.0)
        check(y, expected * 2)
        check(z, expected * 2 + 1)
        check(w, (expected * 2 + 1) ** 2 + expected * 2)
        assert {shard.device for shard in spmd.local_shards(z)} == {2, 3}
        assert {shard.device for shard in spmd.local_shards(w)} == {0, 1}

    def test_unannotated_data_joins_the_mesh(self, rows: torch.Tensor) -> None:
        bias = torch.ones(8).to("xla")
        bias.add_(1).sum().item()  # lies on the first device now
        assert (rows + bias).sum().item() == 63 * 32 + 128


class TestResultsWithoutAxes:
    """A result that the compiler lays out as no mesh axes can say (reversed: on devices in reverse)
    is kept whole."""

    def test_flip_of_a_sharded_dim(self, mesh8):
        x = torch.arange(16.0).view(8, 2)
        sharded = spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp", None))
        flipped = sharded.flip(0)
        spmd.sync()
        assert flipped.tolist() == x.flip(0).tolist()
        assert ((flipped + sharded) * 2).tolist() == ((x.flip(0) + x) * 2).tolist()


class TestCheck:
    """An annotation that the compiler does not follow is an error, not a slow program."""

    def test_of_an_intermediate_value(self, mesh8: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        # gets lost
        monkeypatch.setattr("spmd.core.record.annotations.constrain", lambda array, sharding: array)
        doubled = spmd.mark_sharding(torch.ones(24, 3).to("xla"), mesh8, (None, None)) * 2
        total = spmd.mark_sharding(doubled, mesh8, ("fsdp", None)).sum()
        del doubled
        with pytest.raises(RuntimeError, match=r"sharded the mark_sharding.* instead of"):
            spmd.sync()
        spmd.config.check_shardings = False
        try:
            again = spmd.mark_sharding(torch.ones(40, 3).to("xla") * 2, mesh8, ("fsdp", None)).sum()
            assert again.item() == 240
        finally:
            spmd.config.check_shardings = True
        with pytest.raises(RuntimeError, match="sharded the"):
            total.item()


class TestComplexConstants:
    """A value that XLA can find to be one complex number everywhere is split and summed like
    anything else."""

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_are_summed(self, partitioner: str) -> None:
        # In a process of its own: XLA aborted it.
        printed = run_script(
            """
            import torch, spmd

            spmd.simulate(8)
            mesh = spmd.Mesh(range(8), (2, 4), ("x", "y"))


            def split(tensor):
                return spmd.mark_sharding(tensor, mesh, ("x", "y"))


            def column_of_zeros():
                zeros = torch.zeros(8, 8, dtype=torch.complex64, device="xla")
                kept.append(split(zeros + zeros))
                return kept[-1][:, 0].clone()


            def column_of_overwritten():
                kept.append(split(torch.ones(8, 8, dtype=torch.complex64).to("xla")).zero_())
                return kept[-1][:, 0].clone()


            def numbers():
                return split(torch.arange(64, dtype=torch.int32).reshape(8, 8).to("xla"))


            kept = []
            made = [
                column_of_zeros(),
                column_of_overwritten(),
                split(numbers().zero_().to(torch.complex128) + 1j).sum(1),
                # of integers, XLA knows that this is 0
                split((lambda x: x - x)(numbers()).to(torch.complex64)).sum(1),
                split(
                    numbers()[:, :0].to(torch.complex64)
                    @ torch.ones(0, 8, dtype=torch.complex64).to("xla")
                ).sum(1),
            ]
            for each in made:
                print(set(each.tolist()))
            """,
            SPMD_PARTITIONER=partitioner,
        )
        assert printed.splitlines() == ["{0j}", "{0j}", "{8j}", "{0j}", "{0j}"]


def test_a_marked_view_of_another_rank(mesh2x4):
    """Its gradient is not laid as the base is, which has other dims."""
    first, second = mesh2x4.axis_names
    twin = torch.arange(8.0).reshape(2, 4)
    base = twin.to("xla").requires_grad_()
    row = base[0]
    spmd.mark_sharding(base, mesh2x4, (first, second))
    spmd.mark_sharding(row, mesh2x4, (second,))
    row.reshape(4, 1).square().sum().backward()
    assert torch.equal(base.grad.cpu(), torch.cat([2 * twin[:1], torch.zeros(1, 4)]))


def test_a_users_hook_on_a_marked_value_is_called(mesh8: spmd.Mesh) -> None:
    """The mark puts a hook of its own first; autograd calls both."""
    x = torch.ones(8, 4, device="xla", requires_grad=True)
    y = spmd.mark_sharding(x * 2, mesh8, ("fsdp", None))
    seen: list[torch.Size] = []
    y.register_hook(lambda grad: seen.append(grad.shape))
    (y * 3).sum().backward()
    assert seen == [torch.Size([8, 4])]
    assert spmd.get_sharding(y).partition_spec(2) == ("fsdp", None)
