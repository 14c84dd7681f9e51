"""Dims that the user marks as dynamic: one program for all lengths from the first on, with the
numbers of the CPU."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from support import run_script
from torch import Tensor, nn

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy

CONFIG = GPTConfig(layers=2, width=16, heads=2, sequence=128, vocabulary=32)


class Trained:
    """A GPT on the CPU and on the device, trained alike on batches of many lengths."""

    def __init__(
        self, mark: Callable[[Tensor], Any], model: nn.Module, mesh: spmd.Mesh | None = None
    ):
        self.mark, self.mesh = mark, mesh
        self.models = model, copy.deepcopy(model).to("xla")
        self.optimizers = [torch.optim.SGD(model.parameters(), 0.5) for model in self.models]

    def step(self, length: int) -> int:
        """Trains both on a batch of this length, compares the losses; returns the number of new
        programs."""
        tokens, before, losses = torch.randint(32, (8, length)), spmd.metrics.num_compiles(), []
        for model, optimizer, device in zip(
            self.models, self.optimizers, ("cpu", "xla"), strict=True
        ):
            inputs = tokens.to(device)
            if device == "xla":
                if self.mesh is not None:
                    spmd.mark_sharding(
                        inputs, self.mesh, (self.mesh.axis_names[0], *self.mesh.axis_names[1:])
                    )
                self.mark(inputs)
            loss = cross_entropy(model(inputs)[:, :-1], inputs[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[1] == pytest.approx(losses[0], rel=1e-5), (length, losses)
        return spmd.metrics.num_compiles() - before

    def check(self) -> None:
        for wanted, made in zip(*(model.parameters() for model in self.models), strict=True):
            torch.testing.assert_close(made.detach().cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)


MARKS: dict[str, Callable[[Tensor], Any]] = {
    "spmd": lambda x: spmd.mark_dynamic(x, 1),
    "dynamo": lambda x: torch._dynamo.mark_dynamic(x, -1),
    "maybe": lambda x: torch._dynamo.maybe_mark_dynamic(x, [1]),
}


class TestTraining:
    """Attention, layer norms, embeddings, a shifted cross entropy, forward and backward."""

    @pytest.mark.parametrize("by", MARKS)
    def test_one_device(self, by: str) -> None:
        trained = Trained(MARKS[by], GPT(CONFIG))
        # 64 is the capacity itself; 128 is also all of the table of positions.
        counts = [trained.step(length) for length in (17, 40, 9, 64, 3, 90, 128)]
        assert not any(counts[1:5]) and counts[5] <= 1 and not counts[6], (
            counts,
            spmd.metrics.report(),
        )
        trained.check()

    def test_batch_over_a_mesh(self, mesh8: spmd.Mesh) -> None:
        trained = Trained(MARKS["spmd"], GPT(CONFIG), spmd.Mesh(range(8), (8, 1), ("fsdp", "one")))
        counts = [trained.step(length) for length in (17, 40, 9)]
        assert not any(counts[1:]), (counts, spmd.metrics.report())
        trained.check()

    def test_lengths_over_a_mesh(self, mesh2x4: spmd.Mesh) -> None:
        """The dynamic dim itself is sharded: uneven as a length, even as a capacity."""
        trained = Trained(MARKS["spmd"], GPT(CONFIG), mesh2x4)
        counts = [trained.step(length) for length in (17, 40, 9)]
        assert not any(counts[1:]), (counts, spmd.metrics.report())
        trained.check()

    def test_layers_in_a_loop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "scan_layers", "always")
        trained = Trained(
            MARKS["spmd"], GPT(GPTConfig(layers=4, width=16, heads=2, sequence=64, vocabulary=32))
        )
        trained.step(17)
        assert trained.step(40) == 0 and any(
            record.loops for record in spmd.metrics.compiles()[-8:]
        )
        trained.check()

    def test_fsdp(self, mesh8: spmd.Mesh) -> None:
        wrap = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
        model = GPT(CONFIG)
        plain = copy.deepcopy(model)
        wrapped = fsdp.FullyShardedDataParallel(model, mesh8, auto_wrap_policy=wrap)
        counts = []
        for length in (17, 40, 9):
            tokens, before = torch.randint(32, (8, length)), spmd.metrics.num_compiles()
            inputs = spmd.mark_dynamic(
                spmd.mark_sharding(tokens.to("xla"), mesh8, ("fsdp", None)), 1
            )
            loss = cross_entropy(wrapped(inputs)[:, :-1], inputs[:, 1:])
            loss.backward()
            wrapped.zero_grad()
            spmd.sync()
            counts.append(spmd.metrics.num_compiles() - before)
            expected = cross_entropy(plain(tokens)[:, :-1], tokens[:, 1:])
            assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        assert not any(counts[1:]), (counts, spmd.metrics.report())


def joined(x: Tensor) -> Tensor:
    """Two dims as one; the second is the dynamic one, so that there is padding between the
    elements."""
    return x.reshape(-1, 4)


class TestJoinedDims:
    """A dynamic dim that a reshape joins to others: its padding, which holds infinities and NaN
    here, is not seen."""

    OPS: ClassVar[dict[str, Callable[[Tensor], Tensor]]] = {
        "sum": lambda x: joined(x).sum(0),
        "sum of all": lambda x: x.flatten().sum(),
        "norm": lambda x: joined(x).norm(),
        "largest": lambda x: joined(x).amax(0),
        "softmax": lambda x: (joined(x).softmax(0) * joined(x)).sum(0),
        "logsumexp": lambda x: joined(x).logsumexp(0),
        "product over it": lambda x: joined(x).T @ joined(x),
        "linear": lambda x: F.linear(
            joined(x), torch.ones(3, 4, dtype=x.dtype, device=x.device)
        ).sum(0),
        "with the dims behind": lambda x: x.reshape(3, -1).square().sum(1),
        "with all": lambda x: x.reshape(-1).square().sum(),
        "taken apart": lambda x: (joined(x) * 2).view(3, -1, 2, 2).sum(1),
        "layer norm": lambda x: F.layer_norm(joined(x), (4,)).sum(0),
        "cross entropy": lambda x: F.cross_entropy(joined(x), (joined(x)[:, 0] > 1).long()),
        "transposed": lambda x: joined(x).T.softmax(0).sum(1),
        "shifted": lambda x: (x[:, 1:].reshape(-1, 4) - x[:, :-1].reshape(-1, 4)).abs().sum(0),
        "without the ends": lambda x: x[:, 2:-1].sum(1),
    }

    @pytest.mark.parametrize("name", OPS)
    def test_values_and_gradients(self, name: str) -> None:
        op, counts = self.OPS[name], []
        for length in (10, 13, 31):
            data, before, made = (
                torch.rand(3, length, 4, dtype=torch.float64) + 0.5,
                spmd.metrics.num_compiles(),
                [],
            )
            for device in ("cpu", "xla"):
                x = data.to(device)
                if device == "xla":
                    spmd.mark_dynamic(x, 1)
                x.requires_grad_()
                result = op(1 / x + x.log())  # infinite where x is 0
                (grad,) = torch.autograd.grad(result.square().sum(), x)
                # Read with the gradient kept: both have the dynamic dim's own length, and are one
                # program's results.
                made.append((result.detach().cpu(), grad.cpu()))
            torch.testing.assert_close(made[1], made[0], rtol=1e-9, atol=1e-9)
            counts.append(spmd.metrics.num_compiles() - before)
        assert not any(counts[1:]), (counts, spmd.metrics.report())

    @pytest.mark.parametrize(
        ("op", "why"),
        [
            (
                lambda x: joined(x).cumsum(0)[-1] * 1,
                "aten.cumsum has no rule for a padded dim that a reshape has joined",
            ),
            (
                lambda x: joined(x).argmax(0) + 0,
                "aten.argmax has no rule for a padded dim that a reshape has joined",
            ),
            (lambda x: joined(x)[-1] * 1, "has no rule for a padded dim that a reshape has joined"),
            (lambda x: x.reshape(2, -1, 3).sum(1), "joins or splits the padded dim 1"),
        ],
        ids=["cumsum", "argmax", "a place", "split"],
    )
    def test_without_a_rule(self, op: Callable[[Tensor], Tensor], why: str) -> None:
        """The number is right all the same, and the log says why this length has a program of its
        own."""
        data = torch.rand(3, 6, 4)
        x = spmd.mark_dynamic(data.to("xla"), 1)
        torch.testing.assert_close(op(x).cpu(), op(data))
        assert why in spmd.metrics.compiles()[-1].cause, spmd.metrics.compiles()[-1].cause


def last_cause() -> str:
    return spmd.metrics.compiles()[-1].cause


class TestMarks:
    """Tensors that may be marked; a marked tensor is one like any other."""

    @pytest.mark.parametrize("bounds", [{}, {"min": 2, "max": 50}], ids=["free", "bounded"])
    def test_before_the_copy(self, bounds: dict[str, int]) -> None:
        """A CPU tensor, as a loader marks it, keeps its marks on the device."""
        counts = []
        for length in (5, 6, 50):
            data, before = torch.rand(3, length), spmd.metrics.num_compiles()
            torch._dynamo.mark_dynamic(data, 1, **bounds)
            assert (data.to("xla") * 3).sum().item() == pytest.approx(float((data * 3).sum()))
            counts.append(spmd.metrics.num_compiles() - before)
        assert not any(counts[1:])

    def test_bounds(self) -> None:
        """The capacity doubles from the least length, and is at most the greatest."""
        capacities = []
        for length, least, most in (
            (3, None, 300),
            (100, None, 300),
            (300, None, 300),
            (3, 2, 50),
            (3, 0, 7),
            (90, 90, None),
        ):
            x = spmd.mark_dynamic(torch.ones(length).to("xla"), 0, min=least, max=most)
            assert (x * 2).sum().item() == 2 * length
            capacities.append(x._storage.value.operands[0].meta.shape[0])
        assert capacities == [64, 128, 300, 50, 7, 128]

    def test_both_dims(self) -> None:
        before = spmd.metrics.num_compiles()
        for rows, columns in ((3, 5), (9, 4), (20, 40)):
            data = torch.rand(rows, columns)
            x = spmd.mark_dynamic(data.to("xla"), (0, 1))
            torch.testing.assert_close(
                (x @ x.T).softmax(1).sum(0).sum().cpu(), (data @ data.T).softmax(1).sum()
            )
        assert spmd.metrics.num_compiles() == before + 1

    def test_one_after_the_other(self) -> None:
        x = spmd.mark_dynamic(torch.ones(3, 5).to("xla"), 0)
        spmd.mark_dynamic(x, 1)
        spmd.mark_dynamic(x, 1)
        assert x.shape == (3, 5) and x.sum().item() == 15

    @pytest.mark.parametrize("is_split", [False, True], ids=["one", "mesh"])
    def test_data_on_the_device(self, is_split: bool, mesh8: spmd.Mesh) -> None:
        """A program of one op pads what is there already; what reads it is one program."""
        counts = []
        for length in (5, 6, 7):
            data = torch.rand(8, length)
            x = data.to("xla")
            if is_split:
                spmd.mark_sharding(x, mesh8, ("fsdp", None))
            x = x + 0
            spmd.sync()
            spmd.mark_dynamic(x, 1)
            before = spmd.metrics.num_compiles()
            torch.testing.assert_close((x / x).softmax(1).sum(1).cpu(), torch.ones(8))
            counts.append(spmd.metrics.num_compiles() - before)
        assert counts == [1, 0, 0]

    def test_what_is_computed_is_kept_padded(self) -> None:
        """Results of the dynamic length stay in tensors, are read without a program, and go into
        the next step."""
        before = spmd.metrics.num_compiles()
        for length in (5, 9, 31):
            data = torch.rand(3, length)
            scores = spmd.mark_dynamic(data.to("xla"), 1).exp()
            spmd.sync()
            assert scores.shape == (3, length)
            torch.testing.assert_close(scores.cpu(), data.exp())
            total = (scores * 2).sum(1)
            spmd.sync()
            torch.testing.assert_close(total.cpu(), (data.exp() * 2).sum(1))
        assert spmd.metrics.num_compiles() == before + 2, spmd.metrics.report()

    def test_it_is_a_tensor_like_any_other(self) -> None:
        data = torch.rand(4, 6)
        x = spmd.mark_dynamic(data.to("xla"), 1)
        assert (
            torch.equal(x.cpu(), data)
            and torch.equal(x[:, 2:4].cpu(), data[:, 2:4])
            and x.tolist() == data.tolist()
        )
        assert torch.equal(copy.deepcopy(x).cpu(), data) and torch.equal(x.clone().cpu(), data)
        x[:, 1] = 3
        data[:, 1] = 3
        assert torch.equal(x.cpu(), data)
        x.add_(1)
        assert torch.equal(x.cpu(), data + 1)

    def test_mixed_with_what_is_not_marked(self) -> None:
        """Two values of one length, of which one is marked: host data is padded, too. What is on
        the device is not: right, by a program of its own, and the log says so."""
        counts = []
        for length in (7, 9):
            data, before = torch.rand(3, length), spmd.metrics.num_compiles()
            made = spmd.mark_dynamic(data.to("xla"), 1) * data.to("xla")
            torch.testing.assert_close(made.cpu(), data * data)
            counts.append(spmd.metrics.num_compiles() - before)
        assert not counts[1]
        computed = data.to("xla").exp()
        spmd.sync()
        made = spmd.mark_dynamic(data.to("xla"), 1) * computed
        torch.testing.assert_close(made.cpu(), data * data.exp())
        assert "meets a value of the same length that has no padding" in last_cause()

    @pytest.mark.parametrize("length", [0, 1])
    def test_a_length_that_ops_repeat(self, length: int) -> None:
        data = torch.rand(3, length)
        x = spmd.mark_dynamic(data.to("xla"), 1)
        torch.testing.assert_close((x + torch.ones(3, length, device="xla")).cpu(), data + 1)

    def test_turned_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "pad_lengths", False)
        x = spmd.mark_dynamic(torch.ones(3, 7).to("xla"), 1)
        assert x.exp().sum().item() == pytest.approx(21 * 2.718281828)

    def test_errors(self) -> None:
        x = torch.ones(3, 7).to("xla")
        with pytest.raises(IndexError, match="mark_dynamic: expected a dim from -2 to 1, got 2"):
            spmd.mark_dynamic(x, 2)
        with pytest.raises(
            ValueError, match="mark_dynamic: dim 1 has length 7, and its bounds are None and 5"
        ):
            spmd.mark_dynamic(x, 1, max=5)
        with pytest.raises(
            ValueError, match="expected a tensor with memory of its own, got a view"
        ):
            spmd.mark_dynamic(x[:, 1:], 1)
        with pytest.raises(TypeError, match="mark_dynamic: expected a tensor on xla"):
            spmd.mark_dynamic(torch.ones(3), 0)

    def test_torch_is_not_imported_for_it(self) -> None:
        """`torch._dynamo` takes a second to import: that waits until the program uses the
        device."""
        printed = run_script(
            """
            import sys, torch, spmd
            print("torch._dynamo" in sys.modules)
            x = torch.ones(2, 5).to("xla")
            torch._dynamo.mark_dynamic(x, 1)
            print(tuple(x.shape), x._storage.value.operands[0].meta.shape)
            """
        )
        assert printed.splitlines() == ["False", "(2, 5) (2, 64)"]


class TestPlans:
    """A plan of a step with marks is the program that runs."""

    def test_a_plan(self, mesh8: spmd.Mesh) -> None:
        model = GPT(CONFIG).to("xla")

        def step(tokens: Tensor) -> Tensor:
            inputs = spmd.mark_dynamic(tokens, 1)
            loss = cross_entropy(model(inputs)[:, :-1], inputs[:, 1:])
            loss.backward()
            model.zero_grad()
            return loss.detach()

        def batch(length: int) -> Tensor:
            return spmd.mark_sharding(
                torch.randint(32, (8, length)).to("xla"), mesh8, ("fsdp", None)
            )

        spmd.sync()
        peaks = {spmd.plan(step, batch(length)).peak for length in (9, 40)}
        assert len(peaks) == 1
        before = spmd.metrics.num_compiles()
        for length in (33, 21):
            assert step(batch(length)).item() > 0
        assert spmd.metrics.num_compiles() == before, spmd.metrics.report()
