"""In-place, `out=` and list forms against torch on CPU, their dtype rules, and what donation must
never do."""

from collections.abc import Callable

import pytest
import torch
from support import check

import spmd


def compare(programs: dict[str, Callable[[str], object]]) -> None:
    """Runs each program on both devices, one barrier for all, and names those that differ."""
    actual = {name: _flat(program("xla")) for name, program in programs.items()}
    spmd.sync()
    failures = []
    for name, program in programs.items():
        try:
            for one, other in zip(actual[name], _flat(program("cpu")), strict=True):
                check(one, other)
        except AssertionError as error:
            failures.append(f"{name}: {error}")
    assert not failures, "\n".join(failures)


def _flat(made: object) -> list[torch.Tensor]:
    return [made] if isinstance(made, torch.Tensor) else list(made)


def ramp(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(1, 7, dtype=dtype).view(2, 3).to(device)


class TestInPlace:
    """`x.op_()` writes what `x.op()` computes, in x's dtype, and returns x."""

    def test_arithmetic(self) -> None:
        compare(
            {
                "add": lambda d: ramp(d).add_(ramp(d), alpha=2),
                "sub": lambda d: ramp(d).sub_(1.5),
                "mul": lambda d: ramp(d).mul_(ramp(d)[0]),
                "div": lambda d: ramp(d).div_(4),
                "div floor": lambda d: ramp(d).div_(4, rounding_mode="floor"),
                "pow": lambda d: ramp(d).pow_(2),
                "remainder": lambda d: ramp(d).remainder_(4),
                "neg": lambda d: ramp(d).neg_(),
                "sqrt": lambda d: ramp(d).sqrt_(),
                "exp": lambda d: ramp(d).exp_(),
                "relu": lambda d: (ramp(d) - 3).relu_(),
                "clamp": lambda d: ramp(d).clamp_(2, 4),
                "clamp_min": lambda d: ramp(d).clamp_min_(3),
                "zero": lambda d: ramp(d).zero_(),
                "fill": lambda d: ramp(d).fill_(2.5),
                "lerp": lambda d: ramp(d).lerp_(ramp(d) * 3, 0.25),
                "addcmul": lambda d: ramp(d).addcmul_(ramp(d), ramp(d), value=0.5),
                "addcdiv": lambda d: ramp(d).addcdiv_(ramp(d), ramp(d), value=0.5),
                "addmm": lambda d: (
                    ramp(d)[:, :2].clone().addmm_(ramp(d), ramp(d).t(), beta=0.5, alpha=2)
                ),
                "masked_fill": lambda d: ramp(d).masked_fill_(ramp(d) > 3, -1),
                "tril": lambda d: ramp(d).tril_(),
                "index_add": lambda d: ramp(d).index_add_(0, torch.tensor([0, 0]).to(d), ramp(d)),
                "index_copy": lambda d: ramp(d).index_copy_(
                    1, torch.tensor([2, 0]).to(d), ramp(d)[:, :2]
                ),
                "index_fill": lambda d: ramp(d).index_fill_(1, torch.tensor([1]).to(d), 9),
                "scatter": lambda d: ramp(d).scatter_(1, torch.tensor([[2], [0]]).to(d), -5),
                "scatter_add": lambda d: ramp(d).scatter_add_(
                    1, torch.tensor([[2, 2], [0, 1]]).to(d), ramp(d)
                ),
                "operators": lambda d: _operators(ramp(d)),
            }
        )

    def test_dtype_stays_the_targets(self) -> None:
        half = torch.bfloat16
        compare(
            {
                "half + float": lambda d: ramp(d, half).add_(ramp(d) / 3),
                "half * double": lambda d: ramp(d, half).mul_(ramp(d, torch.float64) / 3),
                "float + double": lambda d: ramp(d).add_(ramp(d, torch.float64) / 3),
                "int + int": lambda d: ramp(d, torch.int32).add_(ramp(d, torch.int64)),
                "double + 0-d": lambda d: ramp(d, torch.float64).add_(torch.tensor(1 / 3).to(d)),
                "int // int": lambda d: ramp(d, torch.int64).floor_divide_(2),
                "float == float": lambda d: ramp(d).eq_(3),
                "copy int": lambda d: ramp(d, torch.int64).copy_(ramp(d) * 1.5),
                "copy broadcast": lambda d: ramp(d).copy_(ramp(d, torch.int64)[0]),
                "copy bool": lambda d: torch.zeros(2, 3, dtype=torch.bool, device=d).copy_(
                    ramp(d) - 3
                ),
            }
        )

    def test_errors_are_torchs_own(self) -> None:
        for device in ("cpu", "xla"):
            x = torch.ones(2, dtype=torch.int64, device=device)
            with pytest.raises(
                RuntimeError,
                match=(
                    r"result type Float can't be cast to|Promotion of int.add/sub_.float. in "
                    r"in-place"
                ),
            ):
                x.add_(0.5)
            with pytest.raises(
                RuntimeError,
                match=r"output with shape .*\[2\].* doesn't match the broadcast shape .3, 2.",
            ):
                x.add_(torch.ones(3, 2, dtype=torch.int64, device=device))
            assert x.tolist() == [1, 1]

    def test_same_object_and_chain(self) -> None:
        x = torch.ones(3, device="xla")
        assert x.add_(1) is x and x.copy_(torch.ones(3)) is x and x.zero_() is x
        version = x._version
        x.mul_(2)
        assert x._version == version + 1


def _operators(x: torch.Tensor) -> torch.Tensor:
    x += 1
    x *= 2
    x -= x[0].clone()
    x /= 4
    x **= 2
    return x


class TestOut:
    """`out=` writes into the given tensor, which keeps its identity and dtype."""

    def test_values(self) -> None:
        def into(
            function: Callable[..., object], *shape: int, dtype: torch.dtype = torch.float32
        ) -> Callable[[str], object]:
            def program(device: str) -> torch.Tensor:
                out = torch.full(shape, -1, dtype=dtype, device=device)
                assert function(ramp(device), out) is out
                return out

            return program

        compare(
            {
                "add": into(lambda x, out: torch.add(x, x, alpha=2, out=out), 2, 3),
                "mul wider": into(
                    lambda x, out: torch.mul(x, 0.1, out=out), 2, 3, dtype=torch.float64
                ),
                "mm": into(lambda x, out: torch.mm(x, x.t(), out=out), 2, 2),
                "matmul": into(lambda x, out: torch.matmul(x, x.t(), out=out), 2, 2),
                "cat": into(lambda x, out: torch.cat([x, x], out=out), 4, 3),
                "stack": into(lambda x, out: torch.stack([x, x], out=out), 2, 2, 3),
                "sum": into(lambda x, out: torch.sum(x, 1, out=out), 2),
                "exp": into(lambda x, out: torch.exp(x, out=out), 2, 3),
                "clamp": into(lambda x, out: torch.clamp(x, 2, 4, out=out), 2, 3),
                "where": into(lambda x, out: torch.where(x > 2, x, -x, out=out), 2, 3),
                "lt": into(lambda x, out: torch.lt(x, 3, out=out), 2, 3, dtype=torch.bool),
            }
        )

    def test_into_a_view(self) -> None:
        def program(device: str) -> torch.Tensor:
            base = torch.zeros(3, 3, device=device)
            torch.add(ramp(device), 1, out=base[1:])
            torch.mul(base[1], 2, out=base.t()[0])
            return base

        compare({"view": program})


class TestForeach:
    """The list forms that optimizers use do what their single forms do."""

    def test_in_place(self) -> None:
        def program(
            change: Callable[[list[torch.Tensor], list[torch.Tensor]], object],
        ) -> Callable[[str], object]:
            def run(device: str) -> list[torch.Tensor]:
                first = [ramp(device), ramp(device)[0].clone(), ramp(device).t() * 2]
                change(first, [tensor + 1 for tensor in first])
                return first

            return run

        compare(
            {
                "add scalar": program(lambda x, y: torch._foreach_add_(x, 2)),
                "add list": program(lambda x, y: torch._foreach_add_(x, y, alpha=0.5)),
                "add scalars": program(lambda x, y: torch._foreach_add_(x, [1.0, 2.0, 3.0])),
                "mul": program(lambda x, y: torch._foreach_mul_(x, y)),
                "mul tensor": program(lambda x, y: torch._foreach_mul_(x, y[0][0, 0])),
                "div scalars": program(lambda x, y: torch._foreach_div_(x, [1.0, 2.0, 4.0])),
                "lerp": program(lambda x, y: torch._foreach_lerp_(x, y, 0.1)),
                "addcmul": program(lambda x, y: torch._foreach_addcmul_(x, y, y, 0.1)),
                "addcdiv": program(lambda x, y: torch._foreach_addcdiv_(x, y, y, [1.0, 2.0, 3.0])),
                "sqrt": program(lambda x, y: torch._foreach_sqrt_(x)),
                "maximum": program(lambda x, y: torch._foreach_maximum_(x, y)),
                "zero": program(lambda x, y: torch._foreach_zero_(x)),
                "copy": program(lambda x, y: torch._foreach_copy_(x, y)),
                "neg": program(lambda x, y: torch._foreach_neg_(x)),
                "pow": program(lambda x, y: torch._foreach_pow_(x, 2)),
                "clamp_min": program(lambda x, y: torch._foreach_clamp_min_(x, 3.0)),
            }
        )

    def test_out_of_place(self) -> None:
        compare(
            {
                "add": lambda d: torch._foreach_add([ramp(d), ramp(d)[0]], 1.5),
                "mul": lambda d: torch._foreach_mul([ramp(d), ramp(d)], [ramp(d), ramp(d)]),
                "sqrt": lambda d: torch._foreach_sqrt([ramp(d), ramp(d)[0]]),
                "norm": lambda d: torch._foreach_norm([ramp(d), ramp(d)[0]]),
                "norm inf": lambda d: torch._foreach_norm([ramp(d), ramp(d)[0]], float("inf")),
                "views": lambda d: torch._foreach_add(
                    list(ramp(d).unbind()), list(ramp(d).flip(0).unbind())
                ),
            }
        )

    def test_views_of_one_base(self) -> None:
        def program(device: str) -> torch.Tensor:
            base = torch.zeros(4, 3, device=device)
            torch._foreach_add_([base[0], base[2]], [1.0, 2.0])
            torch._foreach_copy_(
                [base[1], base.t()[0]],
                [torch.full((3,), 7.0, device=device), torch.arange(4.0, device=device)],
            )
            return base

        compare({"views": program})

    def test_elements_that_share_memory(self) -> None:
        """Each element of a list reads what those before it have written."""

        def program(device: str) -> list[torch.Tensor]:
            x, y = ramp(device), ramp(device) * 2
            torch._foreach_add_([x[0], x[:, 0], y], [1.0, 2.0, 3.0])
            torch._foreach_mul_([x, x], 2)
            torch._foreach_sub_([x, y], [y, x])
            torch._foreach_copy_([x[0], x[1], y[0]], [x[1], y[1], x[0]])
            return [x, y]

        compare({"shared": program})

    def test_autograd_counts_the_writes(self) -> None:
        """So that other views of what was written have its gradient, and a value saved before is
        refused."""
        for device in ("cpu", "xla"):
            leaf = torch.arange(4.0, device=device, requires_grad=True)
            y = leaf * 1
            part, wide = y[2], y[2].expand(2)
            torch._foreach_mul_([part, y[0]], 3)
            squared = (y * y).sum()
            (gradient,) = torch.autograd.grad(wide.sum(), leaf, retain_graph=True)
            assert gradient.tolist() == [0, 0, 6, 0]
            torch._foreach_add_([y], 1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                squared.backward()


class TestDonation:
    """A buffer that a run overwrites is never one that somebody still reads."""

    def test_a_clone_keeps_its_value(self) -> None:
        x = torch.ones(64, device="xla")
        spmd.sync()
        kept = x.clone()
        x.add_(1)
        spmd.sync()
        x.add_(1)
        spmd.sync()
        assert kept.tolist() == [1.0] * 64 and x.tolist() == [3.0] * 64

    def test_two_tensors_by_copy(self) -> None:
        x, y = torch.ones(64, device="xla"), torch.zeros(64, device="xla")
        spmd.sync()
        y.copy_(x)
        x.add_(1)
        spmd.sync()
        y.mul_(5)
        spmd.sync()
        assert x.tolist() == [2.0] * 64 and y.tolist() == [5.0] * 64

    def test_copy_alone_does_not_tie(self) -> None:
        """A run in which two cells end with one value must not leave them one buffer that a later
        run overwrites."""
        x, y = torch.ones(64, device="xla"), torch.zeros(64, device="xla")
        x.add_(1)
        y.copy_(x)
        z = x.clone()
        spmd.sync()
        x.add_(1)
        spmd.sync()
        assert (x.tolist()[0], y.tolist()[0], z.tolist()[0]) == (3.0, 2.0, 2.0)
        y.mul_(2)
        z.mul_(3)
        spmd.sync()
        assert (x.tolist()[0], y.tolist()[0], z.tolist()[0]) == (3.0, 4.0, 6.0)

    def test_a_detached_alias_sees_writes(self) -> None:
        x = torch.ones(8, device="xla")
        alias = x.detach()
        spmd.sync()
        x.add_(1)
        spmd.sync()
        assert alias.tolist() == [2.0] * 8

    def test_a_view_of_a_donated_base(self) -> None:
        x = torch.zeros(4, 2, device="xla")
        row = x[1]
        spmd.sync()
        assert row.tolist() == [0.0, 0.0]
        for _ in range(3):
            x.add_(1)
            spmd.sync()
        assert row.tolist() == [3.0, 3.0]
        row.zero_()
        spmd.sync()
        assert x.tolist() == [[3.0, 3.0], [0.0, 0.0], [3.0, 3.0], [3.0, 3.0]]

    def test_a_value_saved_for_backward(self) -> None:
        w = torch.full((8,), 2.0, device="xla", requires_grad=True)
        spmd.sync()
        loss = (w * w).sum()
        spmd.sync()
        with torch.no_grad():
            w.data = w.data * 10  # another buffer: the old one is still saved
        spmd.sync()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            other = torch.full((8,), 2.0, device="xla", requires_grad=True) * 1
            squared = (other * other).sum()
            other.add_(1)
            squared.backward()
        del loss

    def test_swap(self) -> None:
        x, y = torch.zeros(8, device="xla"), torch.ones(8, device="xla")
        spmd.sync()
        for _ in range(3):
            kept = x.clone()
            x.copy_(y)
            y.copy_(kept)
            spmd.sync()
        assert x.tolist() == [1.0] * 8 and y.tolist() == [0.0] * 8

    def test_host_data_and_its_clone(self) -> None:
        source = torch.ones(8)
        x = source.to("xla")
        y = x.clone()
        x.add_(1)
        spmd.sync()
        x.add_(1)
        spmd.sync()
        assert y.tolist() == [1.0] * 8 and source.tolist() == [1.0] * 8 and x.tolist() == [3.0] * 8

    def test_a_shard_read_before_stays(self, mesh8: spmd.Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8, device="xla"), mesh8, ("fsdp",))
        shards = spmd.local_shards(x)
        host = x.numpy(force=True)
        x.add_(1)
        spmd.sync()
        assert shards[0].data.tolist() == [1.0] and host.tolist() == [1.0] * 8
        assert x.tolist() == [2.0] * 8

    @pytest.mark.parametrize("mode", ["all", "needed"])
    def test_reads_in_the_middle_of_a_step(self, mode: str) -> None:
        before = spmd.config.sync_on_read
        spmd.config.sync_on_read = mode
        try:
            x = torch.zeros(4, device="xla")
            spmd.sync()
            seen = []
            for _ in range(3):
                x.add_(1)
                y = x * 10
                seen.append(y[0].item())
                x.add_(1)
                spmd.sync()
            assert seen == [10.0, 30.0, 50.0] and x.tolist() == [6.0] * 4
        finally:
            spmd.config.sync_on_read = before


class TestSharedMemory:
    """A write into memory that would be written twice, or is read meanwhile, is refused as on
    CPU."""

    @pytest.mark.parametrize(
        "write",
        [
            lambda t: t.add_(1),
            lambda t: t.sigmoid_(),
            lambda t: t.copy_(torch.ones(3, 3, device=t.device)),
            lambda t: t.copy_(torch.ones(3, 3)),
            lambda t: t.normal_(),
            lambda t: t.cumsum_(0),
            lambda t: t.scatter_(0, torch.zeros(1, 3, dtype=torch.int64, device=t.device), 2.0),
            lambda t: t.addmm_(
                torch.ones(3, 3, device=t.device), torch.ones(3, 3, device=t.device)
            ),
            lambda t: t.__setitem__(slice(None), torch.ones(3, 3, device=t.device)),
            lambda t: torch._foreach_add_([t], 1),
        ],
    )
    def test_expanded(self, write: Callable[[torch.Tensor], object]) -> None:
        for device in ("cpu", "xla"):
            x = torch.ones(3, 1, device=device)
            with pytest.raises(
                RuntimeError,
                match="more than one element of the written-to tensor refers to a single",
            ):
                write(x.expand(3, 3))
            check(x.cpu(), torch.ones(3, 1))

    def test_expanded_takes_one_number(self) -> None:
        compare({"fill": lambda d: torch.ones(3, 1, device=d).expand(3, 3).fill_(2)})
        compare({"zero": lambda d: torch.ones(3, 1, device=d).expand(3, 3).zero_()})

    @pytest.mark.parametrize(
        "write", [lambda t, o: t.add_(o), lambda t, o: t.copy_(o), lambda t, o: t.lerp_(t, o)]
    )
    def test_part_of_an_operand(
        self, write: Callable[[torch.Tensor, torch.Tensor], object]
    ) -> None:
        for device in ("cpu", "xla"):
            x = torch.arange(4.0, device=device)
            with pytest.raises(
                RuntimeError,
                match="some elements of the input tensor and the written-to tensor refer",
            ):
                write(x[1:], x[:-1])
            check(x.cpu(), torch.arange(4.0))

    def test_whole_operands_and_other_parts_are_taken(self) -> None:
        def itself(device: str) -> torch.Tensor:
            x = torch.arange(4.0, device=device)
            x.add_(x).mul_(x.view(4))
            x[:2].sub_(x[2:])
            x[::2].add_(x[1::2])
            return x

        compare({"itself": itself})


def test_polygamma_in_place() -> None:
    """Its functional form has the arguments the other way round."""
    compare({str(order): lambda d, order=order: ramp(d).polygamma_(order) for order in (0, 1, 2)})


class TestOnePosition:
    """A write at one position of a split tensor that was whole before: XLA's own scatter writes
    elsewhere, too."""

    @pytest.mark.parametrize("position", [0, 9, 15])
    def test_values(self, mesh8: spmd.Mesh, position: int) -> None:
        def writes(device: str, position: int) -> list[torch.Tensor]:
            place = torch.tensor([position], device=device)
            made = []
            for write in (
                lambda t: t.index_fill_(0, place, 7),
                lambda t: t.index_copy_(0, place, ramp(device)[0, :1]),
                lambda t: t.index_add_(0, place, ramp(device)[0, 1:2], alpha=3),
                lambda t: t.index_put_((place,), ramp(device)[1, :1], accumulate=True),
                lambda t: t.scatter_(0, place, -3),
                lambda t: t.scatter_reduce_(0, place, ramp(device)[0, 2:], "prod"),
                lambda t: t.put_(place, ramp(device)[1, 1:2]),
                lambda t: t[position::16].fill_(5),
                lambda t: t.as_strided((1,), (1,), position).fill_(6),
                lambda t: t.view(4, 4).diagonal(3).fill_(8),
            ):
                whole = torch.arange(1, 17.0).to(device) * 2
                if device == "xla":
                    spmd.mark_sharding(whole, mesh8, (None,))
                split = whole.clone()
                if device == "xla":
                    spmd.mark_sharding(split, mesh8, ("fsdp",))
                write(split)
                made.append(split)
            return made

        compare({"one position": lambda device: writes(device, position)})


class TestDataOfAView:
    """`.data =` takes the new tensor's layout where what it replaces is a view, whose base was
    marked."""

    def test_another_rank(self, mesh8: spmd.Mesh) -> None:
        base = spmd.mark_sharding(torch.ones(8, 4).to("xla"), mesh8, (None, "fsdp"))
        row = base[1]
        row.data = row.detach() * 2
        row.add_(1)
        assert row.tolist() == [3.0] * 4 and base.sum().item() == 32


def test_nothing_is_read_in_another_layout(mesh8: spmd.Mesh) -> None:
    """There is nothing to split in a tensor without elements."""
    x = torch.zeros(0, 8).to("xla")
    with spmd.use_sharding([x], mesh8, (None, "fsdp")):
        y = x * 2
    assert y.cpu().shape == (0, 8)
    z = spmd.mark_sharding(x.t() @ x, mesh8, (None, "fsdp"))
    with spmd.use_sharding([x], mesh8, ("fsdp", None)):
        y = x * x
    assert z.sum().item() == 0 and y.cpu().shape == (0, 8)


class TestNothingMeetsNothing:
    """An operand without elements shares no memory with what is written, wherever it begins."""

    @pytest.mark.parametrize("size", [0, 4])
    def test_an_empty_part_of_the_target(self, size: int) -> None:
        made = []
        for device in ("cpu", "xla"):
            base = torch.ones(size, device=device)
            target, index = base[:0], torch.zeros(0, dtype=torch.int64, device=device)
            target.scatter_(0, index[:1], target[:1])
            base.index_add_(0, index, base[:0])
            made.append(base.cpu())
        assert torch.equal(*made)
