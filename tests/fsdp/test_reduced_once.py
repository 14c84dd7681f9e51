"""Gradients that are reduced once a step: `accumulate_gradients(reduce=)`, `spmd.unreduced`."""

import contextlib
import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support import check
from torch import Tensor, nn
from wrapped import FSDP, POLICY, Layer, last_record

import fsdp
import spmd
from spmd import P, config

WIDTH, CLASSES, COUNT = 16, 8, 4
Loss = Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(config, "partitioner", request.param)
    return request.param


@pytest.fixture
def mesh() -> spmd.Mesh:
    return spmd.Mesh(range(8), (2, 4), ("data", "fsdp"))


def language_model() -> nn.Module:
    layers = [Layer(WIDTH), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)]
    return nn.Sequential(nn.Embedding(CLASSES, WIDTH), *layers, nn.Linear(WIDTH, CLASSES))


def tokens(rows: int) -> tuple[Tensor, Tensor]:
    x, y = torch.randint(0, CLASSES, (rows, 6)), torch.randint(0, CLASSES, (rows, 6))
    y[1::3, 2:] = -100  # shards and micro-batches have different numbers of tokens
    return x, y


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def by_hand(model: nn.Module, loss: Loss, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The same on one device, by a Python loop."""
    parts = [tuple(value[start::COUNT] for value in batch) for start in range(COUNT)]
    losses = [loss(model, part) / COUNT for part in parts]  # type: ignore[arg-type]
    for one in losses:
        one.backward()
    return sum(one.detach() for one in losses)  # type: ignore[return-value]


def once(
    model: nn.Module, loss: Loss, batch: tuple[Tensor, Tensor], reduce: object = "once"
) -> Tensor:
    given = tuple(value.to("xla") for value in batch)
    return fsdp.accumulate_gradients(
        model, lambda part: loss(model, part), given, COUNT, reduce=reduce
    )  # type: ignore[arg-type]


def same_gradients(model: nn.Module, plain: nn.Module, limit: float) -> None:
    for one, two in zip(model.parameters(), plain.parameters(), strict=True):
        assert (one.grad.cpu().double() - two.grad.double()).abs().max() <= limit  # type: ignore[union-attr]


class TestGradients:
    """They are those of one device: to 1e-6 in float32, to 1e-12 in float64."""

    @pytest.mark.parametrize(
        "reduce", ["once", {"data": "once"}, {"fsdp": "once", "data": "each"}], ids=str
    )
    def test_of_one_device(self, partitioner: str, mesh: spmd.Mesh, reduce: object) -> None:
        plain, batch = language_model().double(), tokens(64)
        model = FSDP(copy.deepcopy(plain), mesh=mesh, auto_wrap_policy=POLICY)
        loss = once(model, loss_of, batch, reduce)
        expected = by_hand(plain, loss_of, batch)
        assert abs(loss.item() - expected.item()) <= 1e-6  # the loss is added up in float32
        same_gradients(model, plain, 1e-12)
        for parameter in model.parameters():
            assert spmd.get_sharding(parameter.grad) == spmd.get_sharding(parameter)

    def test_in_float32(self, mesh: spmd.Mesh) -> None:
        plain, batch = language_model(), tokens(64)
        model = FSDP(copy.deepcopy(plain), mesh=mesh, auto_wrap_policy=POLICY)
        for _ in range(2):  # former gradients are added to
            once(model, loss_of, batch)
            by_hand(plain, loss_of, batch)
        same_gradients(model, plain, 1e-6)

    def test_images(self, partitioner: str, mesh: spmd.Mesh) -> None:
        """Batch statistics are those of the whole micro-batch, and so are their running means."""
        plain = nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, groups=2),
            nn.GroupNorm(2, 4),
            nn.ConvTranspose2d(4, 2, 3),
            nn.Flatten(),
            nn.Linear(2 * 16, CLASSES),
        ).double()
        batch = torch.randn(32, 2, 6, 6, dtype=torch.float64), torch.randint(0, CLASSES, (32,))

        def loss(model: nn.Module, part: tuple[Tensor, Tensor]) -> Tensor:
            made = model(part[0])
            # the best of the batch, by class
            return F.cross_entropy(made, part[1]) + made.max(0).values.mean()

        model = FSDP(copy.deepcopy(plain), mesh=mesh)
        once(model, loss, batch, {"data": "once"})
        by_hand(plain, loss, batch)
        same_gradients(model, plain, 1e-12)
        for one, two in zip(model.buffers(), plain.buffers(), strict=True):
            assert (one.cpu() - two).abs().max() <= 1e-12

    def test_draws(self, mesh: spmd.Mesh) -> None:
        """Dropout drops what it drops where gradients are reduced each time."""
        found = []
        for reduce in ("each", "once"):
            torch.manual_seed(0)
            spmd.manual_seed(1)
            model = nn.Sequential(
                nn.Embedding(CLASSES, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, CLASSES)
            ).double()
            model = FSDP(model, mesh=mesh)
            once(model, loss_of, tokens(32), reduce)
            found.append([one.grad.cpu() for one in model.parameters()])
        for each, one in zip(*found, strict=True):
            assert (each - one).abs().max() <= 1e-12

    def test_weights_that_are_computed(self, mesh: spmd.Mesh) -> None:
        """The linear ops between the sum and the parameter: of weight norm, tied and scaled
        weights, a penalty."""

        class Tied(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
                self.table = nn.Parameter(torch.randn(CLASSES, WIDTH))
                self.place = nn.Parameter(torch.randn(6, WIDTH))
                self.low = nn.Parameter(torch.randn(WIDTH, 2))
                self.high = nn.Parameter(torch.randn(2, WIDTH))

            def forward(self, x: Tensor) -> Tensor:
                hidden = self.normed(F.embedding(x, self.table) + self.place)
                hidden = torch.tanh(hidden @ (self.low @ self.high))
                return hidden @ (0.5 * self.table).T

        def loss(model: nn.Module, part: tuple[Tensor, Tensor]) -> Tensor:
            return loss_of(model, part) + 0.1 * model.table.square().sum()  # type: ignore[union-attr,operator]

        plain, batch = Tied().double(), tokens(32)
        model = copy.deepcopy(plain).to("xla")
        given = tuple(
            spmd.mark_sharding(value.to("xla"), mesh, P(("data", "fsdp"), None)) for value in batch
        )
        fsdp.accumulate_gradients(
            model, lambda part: loss(model, part), given, COUNT, reduce="once"
        )
        by_hand(plain, loss, batch)
        same_gradients(model, plain, 1e-12)

    def test_bfloat16(self, mesh: spmd.Mesh) -> None:
        """Summands of narrow parameters are added up in float32."""
        policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        plain, batch = language_model(), tokens(32)
        model = FSDP(copy.deepcopy(plain), mesh=mesh, auto_wrap_policy=POLICY, mp_policy=policy)
        once(model, loss_of, batch)
        by_hand(plain, loss_of, batch)
        for one, two in zip(model.parameters(), plain.parameters(), strict=True):
            check(one.grad.bfloat16(), two.grad.bfloat16())  # type: ignore[union-attr]


def reduced_over(axis: str) -> int:
    """The bytes of the last program's all-reduces over an axis."""
    rows = [row for row in last_record().traffic if row.kind == "all-reduce" and axis in row.axes]
    return sum(row.moved_bytes for row in rows)


class TestExchanges:
    """The bytes over these axes do not depend on the number of micro-batches."""

    @pytest.mark.parametrize("reduce", [{"data": "once"}, "once"], ids=str)
    def test_one_reduction(self, partitioner: str, mesh: spmd.Mesh, reduce: object) -> None:
        found = []
        for count in (2, 4):
            model = FSDP(
                nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8)), mesh=mesh
            )
            batch = torch.randn(8 * count, WIDTH).to("xla")

            def loss(part: Tensor, model: nn.Module = model) -> Tensor:
                return model(part).square().mean()

            made = fsdp.accumulate_gradients(model, loss, batch, count, reduce=reduce)  # type: ignore[arg-type]
            spmd.sync()
            found.append(reduced_over("data"))
            check(made, copy.deepcopy(model.module).cpu()(batch.cpu()).square().mean())
        assert found[0] == found[1] > 0

    def test_memory(self, mesh: spmd.Mesh) -> None:
        """The plan tells the memory of the program that runs; it holds a summand more for each
        parameter."""

        def step(batch: tuple[Tensor, Tensor], reduce: object) -> Tensor:
            loss = once(model, loss_of, batch, reduce)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        for reduce in ("each", "once"):
            model = FSDP(language_model(), mesh=mesh, auto_wrap_policy=POLICY)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            batch = tokens(32)
            plan = spmd.plan(step, batch, reduce)
            step(batch, reduce)
            spmd.sync()
            ran = last_record()
            taken = ran.argument_bytes + ran.output_bytes - ran.alias_bytes + ran.temp_bytes
            assert abs(plan.peak - taken) <= 0.01 * taken


class TestNoSync:
    """Passes inside of it are reduced with the first one after it; other ways to add gradients go
    on as they do."""

    @pytest.mark.parametrize("over", [None, "data", "fsdp"])
    def test_one_reduction(self, mesh: spmd.Mesh, over: str | None) -> None:
        found = []
        for count in (2, 3):
            plain, batch = language_model().double(), tokens(8 * count)
            model = FSDP(copy.deepcopy(plain), mesh=mesh, auto_wrap_policy=POLICY)
            for index in range(count):
                part = batch[0][index::count], batch[1][index::count]
                loss_of(plain, part).backward()
                with model.no_sync(over) if index + 1 < count else contextlib.nullcontext():
                    loss_of(model, (part[0].to("xla"), part[1].to("xla"))).backward()
            spmd.sync()
            found.append(
                sum(
                    row.moved_bytes
                    for row in last_record().traffic
                    if row.kind == "all-reduce"
                    and row.axes == (("data", "fsdp") if over is None else (over,))
                )
            )
            same_gradients(model, plain, 1e-12)
        scalars = 2 * 2 * 8 * 7 // 8  # a loss's number of tokens, and its sum, of float64
        assert 0 <= found[1] - found[0] <= (2 * scalars if over is None else 0)

    def test_values_at_all_times(self, mesh: spmd.Mesh) -> None:
        """Gradients that are read, changed, dropped or never reduced meanwhile are those of the
        passes so far."""
        plain = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4)).double()
        model = fsdp.fully_shard(copy.deepcopy(plain), mesh=mesh)

        def both(rows: Tensor) -> None:
            for each, given in ((plain, rows), (model, rows.to("xla"))):
                each(given).square().mean().backward()

        def each_gradient(change: Callable[[Tensor], object]) -> None:
            with torch.no_grad():
                for each in (*plain.parameters(), *model.parameters()):
                    change(each.grad)  # type: ignore[arg-type]

        model.set_requires_gradient_sync(False)
        for change in (
            None,
            lambda one: one.sum().item(),
            lambda one: one.mul_(2.0),
            lambda one: one.zero_(),
        ):
            if change is not None:
                each_gradient(change)
            both(torch.randn(16, WIDTH, dtype=torch.float64))
            same_gradients(model, plain, 1e-12)
        model.set_requires_gradient_sync(True)
        both(torch.randn(16, WIDTH, dtype=torch.float64))
        model.set_requires_all_reduce(False)
        both(torch.randn(16, WIDTH, dtype=torch.float64))
        same_gradients(model, plain, 1e-12)
        for each in (plain, model):
            each.zero_grad()
        copied = copy.deepcopy(model)
        both(torch.randn(16, WIDTH, dtype=torch.float64))
        same_gradients(model, plain, 1e-12)
        assert all(one.grad is None for one in copied.parameters())

    def test_a_loop_after_it_and_inside(self, mesh: spmd.Mesh) -> None:
        plain, batch = language_model().double(), tokens(64)
        model = FSDP(copy.deepcopy(plain), mesh=mesh, auto_wrap_policy=POLICY)
        given = tuple(value.to("xla") for value in batch)
        with model.no_sync():
            loss_of(model, given).backward()
        for reduce in ("each", "once"):
            once(model, loss_of, batch, reduce)
        with model.no_sync():
            once(model, loss_of, batch, "each")
            with pytest.warns(
                UserWarning, match="is reduced after each backward pass; it is made by spmd.scan"
            ):
                loss_of(model, given).backward()
        for _ in range(2):
            loss_of(plain, batch).backward()
        for _ in range(3):
            by_hand(plain, loss_of, batch)
        same_gradients(model, plain, 1e-12)

    def test_in_the_body_of_a_loop(self, mesh: spmd.Mesh) -> None:
        """A user's own loop of backward passes, after no_sync and inside of it."""
        plain, batch = language_model().double(), tokens(32)
        model = FSDP(copy.deepcopy(plain), mesh=mesh, auto_wrap_policy=POLICY)
        given = batch[0].to("xla"), batch[1].to("xla")
        stack = tuple(torch.stack([value, value]) for value in given)

        def body(carry: Tensor, part: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
            with torch.enable_grad():
                loss = loss_of(model, part)
                loss.backward()
            return carry + loss.detach(), None

        def loop() -> None:
            with torch.no_grad():
                spmd.scan(body, torch.zeros((), device="xla", dtype=torch.float64), stack)

        with model.no_sync():
            loss_of(model, given).backward()
            loop()
        loss_of(plain, batch).backward()
        for parameter in plain.parameters():
            parameter.grad = 3 * parameter.grad  # type: ignore[operator]
        same_gradients(model, plain, 1e-12)

    def test_an_op_without_a_rule(self, mesh: spmd.Mesh) -> None:
        class Sums(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.randn(WIDTH).double())

            def forward(self, x: Tensor) -> Tensor:
                return x * self.weight.cumsum(0)

        plain, x = Sums(), torch.randn(16, WIDTH, dtype=torch.float64)
        model = FSDP(copy.deepcopy(plain), mesh=mesh)
        with (
            pytest.warns(
                UserWarning, match="is reduced after each backward pass; it is made by aten"
            ),
            model.no_sync(),
        ):
            model(x.to("xla")).square().mean().backward()
        plain(x).square().mean().backward()
        same_gradients(model, plain, 1e-12)
        with pytest.raises(ValueError, match="expected over to name axes of the batch"):
            model.no_sync("dcn").__enter__()


class TestErrors:
    """A value that is not known as a sum over the batch is refused, and changes nothing."""

    def test_an_op_without_a_rule(self, mesh: spmd.Mesh) -> None:
        weight = nn.Parameter(torch.randn(WIDTH).double().to("xla"))
        holder = nn.ParameterList([weight])
        x = spmd.mark_sharding(
            torch.randn(32, WIDTH).double().to("xla"), mesh, P(("data", "fsdp"), None)
        )

        def loss(part: Tensor) -> Tensor:
            return (part * weight.cumsum(0)).mean()  # its gradient is a sum, and then a cumsum

        with pytest.raises(
            NotImplementedError,
            match=r"the gradient of 0 cannot be reduced once over 'data', 'fsdp'; "
            r"it is made by aten\.\w+.* at .*test_reduced_once.py:\d+.*Pass reduce='each'",
        ):
            fsdp.accumulate_gradients(holder, loss, x, COUNT, reduce="once")
        assert weight.grad is None
        fsdp.accumulate_gradients(holder, loss, x, COUNT)
        assert weight.grad is not None

    def test_arguments(self, mesh: spmd.Mesh) -> None:
        model = FSDP(nn.Linear(WIDTH, 4), mesh=mesh)
        x = torch.randn(32, WIDTH).to("xla")

        def accumulate(reduce: object, count: int = COUNT, model: nn.Module = model) -> None:
            fsdp.accumulate_gradients(
                model, lambda part: model(part).mean(), x, count, reduce=reduce
            )  # type: ignore[arg-type]

        with pytest.raises(
            ValueError, match="expected reduce to be 'each', 'once', or one of these by mesh axis"
        ):
            accumulate("never")
        with pytest.raises(
            ValueError, match="names 'dcn', but dim 0 of the batch is sharded over 'data', 'fsdp'"
        ):
            accumulate({"dcn": "once"})
        with pytest.raises(
            ValueError, match="equal rows on each of the 8 devices along 'data', 'fsdp', got 4 rows"
        ):
            accumulate("once", 8)
        with pytest.raises(ValueError, match="needs a batch whose dim 0 is sharded over mesh axes"):
            accumulate("once", model=nn.Linear(WIDTH, 4).to("xla"))

    def test_unreduced(self, mesh: spmd.Mesh) -> None:
        one = torch.ones(4, device="xla")
        with pytest.raises(ValueError, match="the mesh has no axis 'dcn'"):
            spmd.unreduced([one], mesh, ("data",), ("dcn",))
        with pytest.raises(ValueError, match="expected over to name some of the batch's axes"):
            spmd.unreduced([one], mesh, ("data",), ("fsdp",))
