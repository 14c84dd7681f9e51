"""accumulate_gradients: micro-batches as one loop of one program."""

import copy
from functools import partial

import pytest
import torch
from support import check
from torch import Tensor, nn
from wrapped import FSDP, POLICY, Layer, last_record

import fsdp
import spmd
from spmd import config

WIDTH = 32


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(config, "partitioner", request.param)
    return request.param


def build() -> nn.Module:
    return nn.Sequential(Layer(WIDTH), Layer(WIDTH), nn.Linear(WIDTH, 8))


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(
        model(batch["x"]).float().flatten(0, 1), batch["y"].flatten()
    )


def batch_of(rows: int) -> dict[str, Tensor]:
    return {"x": torch.randn(rows, 16, WIDTH), "y": torch.randint(0, 8, (rows, 16))}


def on_device(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.to("xla") for name, value in batch.items()}


class TestAccumulateGradients:
    """`fsdp.accumulate_gradients(model, loss_fn, batch, num_micro_batches)`."""

    def test_the_big_batch(self, partitioner: str, mesh8: spmd.Mesh) -> None:
        """Loss, gradients and former gradients are those of the whole batch; one program, the
        memory of one part."""
        plain = build()
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy=POLICY)
        taken = []
        for count in (1, 4, 8):
            batch = batch_of(count * 8)
            before = spmd.metrics.num_compiles()
            loss = fsdp.accumulate_gradients(
                model, lambda part: loss_of(model, part), on_device(batch), count
            )
            spmd.sync()
            assert spmd.metrics.num_compiles() == before + 1
            expected = loss_of(plain, batch)
            expected.backward()
            check(loss, expected)
            for one, two in zip(model.parameters(), plain.parameters(), strict=True):
                check(one.grad, two.grad)
                assert spmd.get_sharding(one.grad).text(one.dim()) == spmd.get_sharding(one).text(
                    one.dim()
                )
            taken.append(last_record().temp_bytes)
        one, four, eight = taken
        # The bytes of the parts, cut from the batch, depend on their number; those of one part's
        # step do not.
        part = 8 * 16 * (WIDTH * 4 + 8) // 8
        assert eight - four <= 2 * 4 * part
        assert four < 2 * one

    def test_training_is_a_plain_loop_of_parts(self, mesh8: spmd.Mesh) -> None:
        """Dropout draws, buffers, clipping and the optimizer, in bfloat16 with its gradients
        reduced in float32."""
        policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        results = []
        for is_loop in (False, True):
            torch.manual_seed(0)
            model = nn.Sequential(Layer(WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, 8))
            for unit in (model[0], model):
                fsdp.fully_shard(unit, mesh=mesh8, mp_policy=policy)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            spmd.manual_seed(1)
            losses = []
            for _ in range(3):
                batch = on_device(batch_of(16))
                if is_loop:
                    losses.append(
                        fsdp.accumulate_gradients(model, partial(loss_of, model), batch, 2)
                    )
                else:
                    parts = [
                        {name: value[iteration::2] for name, value in batch.items()}
                        for iteration in range(2)
                    ]
                    each = [loss_of(model, part) / 2 for part in parts]
                    for one in each:
                        one.backward()
                    losses.append(sum(one.detach() for one in each))
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                spmd.sync()
            results.append([loss.item() for loss in losses])
        assert results[1] == pytest.approx(results[0], rel=1e-4)

    def test_what_has_no_gradient_has_none(self, mesh8: spmd.Mesh) -> None:
        class Half(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.used, self.left, self.frozen = (
                    nn.Linear(8, 8),
                    nn.Linear(8, 8),
                    nn.Linear(8, 8),
                )
                self.frozen.requires_grad_(False)

            def forward(self, x: Tensor) -> Tensor:
                return self.frozen(self.used(x))

        model = FSDP(Half(), mesh=mesh8)
        x = torch.randn(16, 8).to("xla")
        fsdp.accumulate_gradients(model, lambda part: model(part).square().mean(), x, 2)
        assert {name for name, one in model.named_parameters() if one.grad is not None} == {
            "used.weight",
            "used.bias",
        }

    def test_planned(self, mesh8: spmd.Mesh) -> None:
        """The memory of a step does not depend on the number of parts, but for the batch itself."""
        model = FSDP(build(), mesh=mesh8, auto_wrap_policy=POLICY)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(batch: dict[str, Tensor], count: int) -> Tensor:
            loss = fsdp.accumulate_gradients(
                model, lambda part: loss_of(model, part), on_device(batch), count
            )
            optimizer.step()
            optimizer.zero_grad()
            return loss

        two, sixteen = (spmd.plan(step, batch_of(count * 8), count) for count in (2, 16))
        part = 8 * 16 * (WIDTH * 4 + 8) // 8
        assert sixteen.temporaries - two.temporaries <= 2 * 14 * part

    def test_refused(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(nn.Linear(8, 8), mesh=mesh8)
        x = torch.randn(16, 8).to("xla")
        with pytest.raises(
            ValueError, match=r"to divide dim 0 of every tensor of the batch, got 3 for 16 row"
        ):
            fsdp.accumulate_gradients(model, lambda part: model(part).mean(), x, 3)
        with pytest.raises(ValueError, match="expected a batch of tensors on xla"):
            fsdp.accumulate_gradients(model, lambda part: model(part).mean(), x.cpu(), 2)
        with pytest.raises(
            ValueError, match="expected loss_fn to return a scalar tensor, got one of shape"
        ):
            fsdp.accumulate_gradients(model, lambda part: model(part), x, 2)
        assert all(parameter.grad is None for parameter in model.parameters())


class TestCarried:
    """carried: values that a micro-batch hands on; `gradient_accumulation` has PyTorch/XLA's
    arguments."""

    def test_three_in_order(self, mesh8: spmd.Mesh) -> None:
        plain = nn.Linear(8, 8)
        model = FSDP(copy.deepcopy(plain), mesh=mesh8)
        x = torch.randn(3, 16, 8)
        start = [torch.tensor(number).to("xla") for number in (1.0, 10.0, 100.0)]

        def step(rows: Tensor, a: Tensor, b: Tensor, unread: Tensor) -> tuple[Tensor, ...]:
            loss = model(rows).square().mean()
            return loss, a + 1, b + a + loss.detach() * 0, unread

        loss, *carried = fsdp.gradient_accumulation(step, [x.to("xla")], model, *start)
        expected = plain(x.flatten(0, 1)).square().mean()
        expected.backward()
        check(loss, expected)
        assert [value.item() for value in carried] == [4.0, 10.0 + 1 + 2 + 3, 100.0]
        for one, two in zip(model.parameters(), plain.parameters(), strict=True):
            check(one.grad, two.grad)

    def test_of_a_batch(self) -> None:
        """The gradient of what is carried ends at the micro-batch."""
        model = nn.Linear(8, 1, bias=False).to("xla")
        x = torch.randn(16, 8)
        loss, last = fsdp.accumulate_gradients(
            model,
            lambda part, before: ((model(part).sum() + before), model(part).sum()),
            x.to("xla"),
            2,
            carried=[torch.zeros((), device="xla")],
        )
        first, second = (x[start::2] @ model.weight.detach().cpu()[0] for start in (0, 1))
        check(loss, (2 * first.sum() + second.sum()) / 2)
        check(last, second.sum())
        check(model.weight.grad, x.sum(0, keepdim=True) / 2)

    def test_refused(self) -> None:
        model, one = nn.Linear(8, 1).to("xla"), torch.zeros((), device="xla")
        with pytest.raises(ValueError, match=r"expected \(loss, \*carried\) of 1 carried, got 2"):
            fsdp.gradient_accumulation(
                lambda rows, a: (model(rows).sum(), a, a),
                [torch.ones(2, 4, 8, device="xla")],
                model,
                one,
            )
        with pytest.raises(
            ValueError, match="tensors of one dim 0, the number of micro-batches, got none"
        ):
            fsdp.gradient_accumulation(lambda: model(one), [], model)
        with pytest.raises(ValueError, match=r"got \[2, 3\]"):
            fsdp.gradient_accumulation(
                lambda a, b: model(a), [torch.ones(2, 8), torch.ones(3, 8)], model
            )
        assert model.weight.grad is None
