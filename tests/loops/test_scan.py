"""`spmd.scan`: values, gradients, draws and writes are those of the plain loop, and what cannot be
is refused."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import check
from torch import nn
from torch.utils.checkpoint import checkpoint

import spmd
from spmd.core.record.storage import pending


def data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def compare(
    fn: Callable[[torch.Tensor], Callable[..., Any]],
    *,
    mesh: spmd.Mesh | None = None,
    **settings: Any,
) -> None:
    """Values and gradients on the device and of the plain loop on the CPU. fn: a weight -> the
    function of a turn."""
    results = []
    for device in ("xla", "cpu"):
        weight, x, rows = (
            tensor.to(device).requires_grad_()
            for tensor in (data(4, 4), data(8, 4, seed=1), data(3, 4, seed=2))
        )
        if mesh is not None and device == "xla":
            spmd.mark_sharding(weight, mesh, ("fsdp", None))
            spmd.mark_sharding(x, mesh, (mesh.axis_names[0], None))
        last, ys = spmd.scan(fn(weight), x, rows, **settings)
        (last.square().sum() + ys.square().sum()).backward()
        results.append([last, ys, weight.grad, x.grad, rows.grad])
    for ours, theirs in zip(*results, strict=True):
        check(ours, theirs)


def dense(weight: torch.Tensor) -> Callable[..., Any]:
    def iteration(carry: torch.Tensor, row: torch.Tensor) -> Any:
        carry = torch.tanh(carry @ weight + row)
        return carry, carry.sum(0)

    return iteration


class TestCarry:
    """Carried values that no op of the function makes: the same value, or another carried one."""

    def test_unchanged_and_swapped(self) -> None:
        start = [torch.tensor(number).to("xla") for number in (1.0, 2.0, 3.0, 4.0)]
        rows = torch.ones(3, 2, device="xla")

        def iteration(carry: Any, row: torch.Tensor) -> Any:
            total, same, left, right = carry
            return (total + row.sum(), same, right, left), None

        (total, same, left, right), _ = spmd.scan(iteration, tuple(start), rows)
        assert [value.item() for value in (total, same, left, right)] == [7.0, 2.0, 4.0, 3.0]


class TestGradients:
    """Of the carry, the rows and what is closed over."""

    def test_dense(self) -> None:
        compare(dense)

    def test_sharded(self, mesh2x4: spmd.Mesh) -> None:
        compare(dense, mesh=mesh2x4)

    def test_in_reverse(self) -> None:
        compare(dense, reverse=True)

    def test_checkpoint_inside(self) -> None:
        compare(
            lambda weight: lambda *given: checkpoint(dense(weight), *given, use_reentrant=False)
        )

    def test_inside_a_checkpoint(self) -> None:
        gradients = []
        for wrapped in (True, False):
            weight, x = (
                data(4, 4).to("xla").requires_grad_(),
                data(8, 4, seed=1).to("xla").requires_grad_(),
            )
            rows = data(3, 4, seed=2).to("xla")

            def block(x: torch.Tensor, weight: Any = weight, rows: Any = rows) -> torch.Tensor:
                return spmd.scan(dense(weight), x * 2, rows)[0]

            made = checkpoint(block, x, use_reentrant=False) if wrapped else block(x)
            made.square().sum().backward()
            gradients.append([weight.grad, x.grad])
        for one, other in zip(*gradients, strict=True):
            check(one, other.cpu())

    def test_a_scan_inside(self) -> None:
        def nested(weight: torch.Tensor) -> Callable[..., Any]:
            hidden = weight * 2  # a tensor with a history, read by the inner body alone

            def iteration(carry: torch.Tensor, row: torch.Tensor) -> Any:
                carry, sums = spmd.scan(
                    lambda c, r: (torch.tanh(c @ hidden) * r, c.mean()), carry, row
                )
                return carry, sums

            return iteration

        compare(nested)

    def test_trees(self) -> None:
        made = []
        for device in ("xla", "cpu"):
            init = {
                "a": data(2).to(device).requires_grad_(),
                "n": (torch.zeros((), device=device), 3),
            }
            xs = [data(2, 5).to(device).requires_grad_(), None]

            def iteration(carry: Any, x: Any) -> Any:
                a, (count, three) = carry["a"], carry["n"]
                return {"a": a * x[0] + three, "n": (count + 1, three)}, (None, {"y": a * 2})

            last, (nothing, ys) = spmd.scan(iteration, init, xs, dim=1)
            assert nothing is None and last["n"][1] == 3 and not last["n"][0].requires_grad
            (last["a"].sum() + ys["y"].sum()).backward()
            made.append([last["a"], last["n"][0], ys["y"], init["a"].grad, xs[0].grad])
        for ours, theirs in zip(*made, strict=True):
            check(ours, theirs)

    def test_without_gradients_nothing_is_kept(self) -> None:
        weight, x, rows = (
            data(4, 4).to("xla").requires_grad_(),
            data(8, 4).to("xla"),
            data(3, 4).to("xla"),
        )
        with torch.no_grad():
            last, _ = spmd.scan(dense(weight), x, rows)
        assert not last.requires_grad
        assert len(last._storage.value.node.op.metas) == 2

    def test_a_body_of_more_ops_than_python_recurses(self) -> None:
        def iteration(carry: torch.Tensor, row: torch.Tensor) -> Any:
            for _ in range(sys.getrecursionlimit()):
                carry = (carry + row).sin()
            return carry, None

        x = data(4).to("xla").requires_grad_()
        assert spmd.scan(iteration, x, data(3, 4).to("xla"))[0].requires_grad

    def test_a_gradient_of_the_gradient_is_refused(self) -> None:
        x = data(4).to("xla").requires_grad_()
        last, _ = spmd.scan(lambda c, r: (c * r, None), x, data(3, 4).to("xla"))
        with pytest.raises(NotImplementedError, match="has no second derivative"):
            torch.autograd.grad(last.sum(), x, create_graph=True)

    def test_long_hand_weights_are_not_saved_per_turn(self) -> None:
        weight = data(64, 64).to("xla").requires_grad_()
        spmd.scan(dense(weight), data(2, 64).to("xla"), data(50, 64).to("xla"))[0].sum().backward()
        spmd.sync()
        assert spmd.metrics.compiles()[-1].temp_bytes < 50 * 64 * 64 * 4


class TestDraws:
    """A key a turn, the plain loop's."""

    def test_the_plain_loops_numbers(self) -> None:
        def iteration(carry: torch.Tensor, row: torch.Tensor) -> Any:
            noise = torch.rand_like(carry)
            return nn.functional.dropout(carry + row, 0.5) + noise, noise

        x, rows = torch.ones(16, device="xla"), data(4, 16).to("xla")
        torch.manual_seed(5)
        last, ys = spmd.scan(iteration, x, rows)
        after = torch.rand(2, device="xla")
        torch.manual_seed(5)
        carry, noises = x, []
        for row in rows:
            carry, noise = iteration(carry, row)
            noises.append(noise)
        check(last, carry.cpu())
        check(ys, torch.stack(noises).cpu())
        check(after, torch.rand(2, device="xla").cpu())

    def test_a_generator(self) -> None:
        made = []
        for rolled in (True, False):
            generator = torch.Generator("xla").manual_seed(3)

            def iteration(
                carry: torch.Tensor, row: torch.Tensor, generator: Any = generator
            ) -> Any:
                return carry + torch.randn(4, generator=generator, device="xla") * row, None

            x, rows = torch.zeros(4, device="xla"), data(3, 4).to("xla")
            if rolled:
                made.append(spmd.scan(iteration, x, rows)[0])
            else:
                for row in rows:
                    x, _ = iteration(x, row)
                made.append(x)
        check(made[0], made[1].cpu())

    def test_of_a_scan_inside(self) -> None:
        def inner(carry: torch.Tensor, row: torch.Tensor) -> Any:
            return carry + torch.rand_like(carry) * row, None

        def outer(carry: torch.Tensor, row: torch.Tensor) -> Any:
            carry = nn.functional.dropout(carry, 0.5)
            return spmd.scan(inner, carry, row)[0], None

        x, rows = torch.ones(8, device="xla"), data(2, 3, 8).to("xla")
        torch.manual_seed(1)
        rolled = spmd.scan(outer, x, rows)[0]
        torch.manual_seed(1)
        for row in rows:
            x = nn.functional.dropout(x, 0.5)
            for part in row:
                x, _ = inner(x, part)
        check(rolled, x.cpu())

    def test_a_new_draw_is_no_new_program(self) -> None:
        def step() -> None:
            spmd.scan(
                lambda c, _: (nn.functional.dropout(c, 0.5), None),
                torch.ones(8, device="xla"),
                length=3,
            )[0].cpu()

        step()
        before = spmd.metrics.counter("programs_compiled")
        step()
        assert spmd.metrics.counter("programs_compiled") == before


class TestWrites:
    """A write outside by an iteration goes on to the next; a write that it must not make is
    refused."""

    def test_a_buffer(self) -> None:
        made = []
        for device in ("xla", "cpu"):
            norm = nn.BatchNorm1d(4).to(device)
            rows = data(3, 8, 4).to(device)
            _, ys = spmd.scan(
                lambda c, row, norm=norm: (c + 1, norm(row + c)),
                torch.zeros((), device=device),
                rows,
            )
            ys.square().sum().backward()
            made.append(
                [
                    ys,
                    norm.running_mean,
                    norm.running_var,
                    norm.num_batches_tracked,
                    norm.weight.grad,
                ]
            )
        for ours, theirs in zip(*made, strict=True):
            check(ours, theirs)

    @pytest.mark.parametrize("is_marked", [False, True])
    def test_data_made_inside_is_new_each_turn(self, mesh2x4: spmd.Mesh, is_marked: bool) -> None:
        """A write of the body into data of its own making is no write outside."""

        def of(device: str) -> Callable[..., Any]:
            def iteration(carry: torch.Tensor, row: torch.Tensor) -> Any:
                own = torch.ones(4).to(device)
                if is_marked and device == "xla":
                    spmd.mark_sharding(own, mesh2x4, ("fsdp",))
                own += row
                own *= 2
                return carry + own, own * carry

            return iteration

        results = []
        for device in ("xla", "cpu"):
            rows = data(3, 4).to(device).requires_grad_()
            last, ys = spmd.scan(of(device), torch.zeros(4, device=device), rows)
            (last.square().sum() + ys.sum()).backward()
            results.append([last, ys, rows.grad])
        for ours, theirs in zip(*results, strict=True):
            check(ours, theirs)

    def test_a_list_of_tensors_kept_by_the_body_has_no_values(self) -> None:
        kept: list[torch.Tensor] = []

        def iteration(carry: torch.Tensor, row: torch.Tensor) -> Any:
            kept.append(carry * row)
            return carry + row, None

        last, _ = spmd.scan(iteration, torch.zeros(2, device="xla"), torch.ones(3, 2, device="xla"))
        assert last.tolist() == [3.0, 3.0]
        with pytest.raises(
            RuntimeError,
            match=r"made inside the body of spmd\.scan, where it stands for every iteration",
        ):
            kept[0].cpu()

    @pytest.mark.parametrize("device", ["cpu", "xla"])
    def test_the_carry(self, device: str) -> None:
        results = []
        for in_place in (True, False):
            scale, rows = (
                torch.linspace(0.5, 1.5, 2).requires_grad_(),
                torch.linspace(-1, 1, 6).reshape(3, 2),
            )
            init = (torch.ones(2) / 3).requires_grad_()
            moved = [tensor.to(device).detach().requires_grad_() for tensor in (scale, rows, init)]

            def iteration(
                carry: Any,
                row: torch.Tensor,
                scale: torch.Tensor = moved[0],
                in_place: bool = in_place,
            ) -> Any:
                total, count = carry
                if in_place:
                    total.mul_(scale).add_(row)
                    total[0].mul_(2)
                    count += 1
                else:
                    total = (total * scale + row) * torch.tensor([2.0, 1.0], device=device)
                    count = count + 1
                return (total, count), total * count

            count = torch.zeros((), dtype=torch.int64, device=device)
            (last, counted), ys = spmd.scan(iteration, (moved[2], count), moved[1])
            (last.square().sum() + ys.sum()).backward()
            results.append([last, counted, ys, *(tensor.grad for tensor in moved), moved[2], count])
        for one, other in zip(*results, strict=True):
            check(one, other.cpu())
        assert results[0][1].item() == 3
        assert results[0][-1].item() == 0

    @pytest.mark.parametrize("device", ["cpu", "xla"])
    def test_the_carry_as_y(self, device: str) -> None:
        def iteration(carry: torch.Tensor, row: torch.Tensor) -> Any:
            carry.add_(row)
            return carry, carry

        _, ys = spmd.scan(iteration, torch.zeros((), device=device), torch.ones(4, device=device))
        assert ys.tolist() == [1, 2, 3, 4]

    def test_a_row(self) -> None:
        with pytest.raises(NotImplementedError, match="writes in place into a slice of xs"):
            spmd.scan(
                lambda c, row: (c, row.add_(1)),
                torch.zeros(2, device="xla"),
                torch.ones(3, 2, device="xla"),
            )

    def test_what_failed_leaves_nothing_behind(self) -> None:
        buffer = torch.zeros(2, device="xla")
        spmd.sync()

        def iteration(carry: torch.Tensor, row: torch.Tensor) -> Any:
            buffer.add_(row)
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            spmd.scan(iteration, torch.zeros(2, device="xla") + 1, torch.ones(3, 2, device="xla"))
        assert buffer.tolist() == [0.0, 0.0]
        assert not pending()


class TestRefusals:
    """Each names what was expected, what came, and where."""

    def one(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(2, device="xla"), torch.ones(3, 2, device="xla")

    def test_a_value_that_is_asked_for(self) -> None:
        with pytest.raises(
            spmd.BodyError,
            match=r"item\(\) or bool\(\) at .*test_scan.py:.*inside the body of spmd.scan",
        ):
            spmd.scan(lambda c, row: (c + float(row.sum()), None), *self.one())

    def test_a_value_from_outside_may_be_asked_for(self) -> None:
        scale = torch.full((), 2.0, device="xla") + 1
        last, _ = spmd.scan(lambda c, row: (c + scale.item(), None), *self.one())
        assert last.tolist() == [9.0, 9.0]

    def test_a_barrier(self) -> None:
        def iteration(carry: torch.Tensor, row: torch.Tensor) -> Any:
            spmd.sync()
            return carry, None

        with pytest.raises(spmd.BodyError, match=r"spmd.sync\(\) at"):
            spmd.scan(iteration, *self.one())

    @pytest.mark.parametrize(
        ("fn", "message"),
        [
            (
                lambda c, row: (c.sum(), None),
                r"the carry goes in as float32\[2\] and comes out as float32\[\]",
            ),
            (
                lambda c, row: (c.double(), None),
                r"goes in as float32\[2\] and comes out as float64\[2\]",
            ),
            (lambda c, row: ((c, c), None), r"the carry goes in as .* and comes out as"),
        ],
    )
    def test_a_carry_that_changes(self, fn: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            spmd.scan(fn, *self.one())

    def test_what_is_no_pair(self) -> None:
        with pytest.raises(TypeError, match="must return a pair"):
            spmd.scan(lambda c, row: c, *self.one())

    def test_rows_of_several_numbers(self) -> None:
        x = torch.zeros(2, device="xla")
        with pytest.raises(ValueError, match=r"xs\[0\] has 3, xs\[1\] has 4"):
            spmd.scan(
                lambda c, row: (c, None),
                x,
                [torch.ones(3, device="xla"), torch.ones(4, device="xla")],
            )

    def test_a_tensor_elsewhere(self) -> None:
        with pytest.raises(TypeError, match="expected all tensors on xla"):
            spmd.scan(lambda c, row: (c, None), torch.zeros(2, device="xla"), torch.ones(3, 2))

    def test_draws_apart_from_the_stream(self) -> None:
        def iteration(carry: torch.Tensor, row: torch.Tensor) -> Any:
            with torch.random.fork_rng():
                return carry + torch.rand_like(carry), None

        with pytest.raises(NotImplementedError, match="apart from the stream"):
            spmd.scan(iteration, *self.one())


class TestContexts:
    """autocast, eager, check and modes of the caller's."""

    def test_autocast(self) -> None:
        weight, x, rows = (
            data(8, 8).to("xla").requires_grad_(),
            data(4, 8).to("xla"),
            data(3, 8).to("xla"),
        )

        def iteration(carry: torch.Tensor, row: torch.Tensor) -> Any:
            return carry + nn.functional.linear(carry, weight).float() + row, None

        with torch.autocast("xla", dtype=torch.bfloat16):
            rolled, _ = spmd.scan(iteration, x, rows)
            (gradient,) = torch.autograd.grad(rolled.sum(), weight)
            plain = x
            for row in rows:
                plain, _ = iteration(plain, row)
            (expected,) = torch.autograd.grad(plain.sum(), weight)
        torch.testing.assert_close(rolled.cpu(), plain.cpu(), rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(gradient.cpu(), expected.cpu(), rtol=2e-2, atol=5e-2)

    def test_eager(self) -> None:
        with spmd.eager():
            last, _ = spmd.scan(
                lambda c, row: (c + row, None),
                torch.zeros(2, device="xla"),
                torch.ones(3, 2, device="xla"),
            )
            assert not pending()
        assert last.tolist() == [3.0, 3.0]

    def test_check(self) -> None:
        spmd.check(
            lambda x, rows: spmd.scan(lambda c, row: (torch.tanh(c) * row, c), x, rows),
            data(4),
            data(3, 4),
        )

    def test_inference_mode(self) -> None:
        with torch.inference_mode():
            last, _ = spmd.scan(
                lambda c, row: (c * row, None),
                torch.ones(2, device="xla"),
                torch.full((3, 2), 2.0).to("xla"),
            )
        assert last.tolist() == [8.0, 8.0]


class TestTransforms:
    """Inside torch.func's transforms a scan is the Python loop, so that its tensors may be
    batched."""

    @pytest.mark.parametrize("batched", ["x", "weight"])
    def test_vmap(self, batched: str) -> None:
        found = []
        for device in ("cpu", "xla"):
            torch.manual_seed(0)
            x = torch.randn(4, 5, 3).to(device).requires_grad_()
            weight = torch.randn(3, 3).to(device).requires_grad_()

            def total(x: torch.Tensor, weight: torch.Tensor, device: str = device) -> torch.Tensor:
                start = torch.zeros(3, device=device)
                return spmd.scan(lambda carry, row: ((carry @ weight).tanh() + row, row), start, x)[
                    0
                ].sum()

            if batched == "x":
                made = torch.func.vmap(lambda x: total(x, weight))(x)  # noqa: B023
            else:
                made = torch.func.vmap(lambda w: total(x[0], w))(torch.stack([weight, weight * 2]))  # noqa: B023
            made.sum().backward()
            found.append([each.detach().cpu() for each in (made, x.grad, weight.grad)])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(other, one)
