"""`torch.compile` on the device: each graph of Dynamo is one recorded op: values and gradients as
on the CPU."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support import check
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan

import fsdp
import spmd
from spmd.core.base import compile_log, counters
from spmd.core.base.pace import pace

pytestmark = [
    # torch's own lines, at the import of inductor and in its trace of a tensor with a history
    pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning"),
    pytest.mark.filterwarnings(
        "ignore:.*grad attribute of a Tensor that is not a leaf:UserWarning"
    ),
]


@pytest.fixture(autouse=True)
def _new_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))


def compiled(function: Any, **settings: Any) -> Any:
    return torch.compile(function, **{"backend": "xla", "fullgraph": True, **settings})


def one_op(call: Callable[[], Any]) -> bool:
    """True if a call records one op."""
    before = pace.recorded_ops
    call()
    return pace.recorded_ops == before + 1


class TestBackends:
    """Each accepted name, and no name, gives the same; graphs on other devices stay with
    inductor."""

    @pytest.mark.parametrize(
        "name", ["xla", "openxla", "torchxla_trace_once", "aot_torchxla_trace_once", None]
    )
    def test_names(self, name: str | None) -> None:
        settings = {} if name is None else {"backend": name}
        x = torch.ones(3, device="xla")
        function = torch.compile(lambda x: torch.sin(x) + 1, fullgraph=True, **settings)
        check(function(x), torch.sin(torch.ones(3)) + 1)
        assert one_op(lambda: function(x))

    def test_mode_of_inductor(self) -> None:
        function = torch.compile(lambda x: x * 2, mode="reduce-overhead")
        with pytest.warns(
            UserWarning, match=r"'triton.cudagraphs': True}: inductor's, and without effect on xla"
        ):
            check(function(torch.ones(3, device="xla")), torch.full((3,), 2.0))

    def test_other_devices(self) -> None:
        met = []
        wrapper: Any = torch._TorchCompileInductorWrapper
        graph = torch.fx.symbolic_trace(lambda x: x + 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "torch._inductor.compile_fx.compile_fx",
                lambda *given, **settings: met.append(given),
            )
            wrapper("default", None, None)(graph, [torch.ones(2)])
            assert len(met) == 1
            wrapper("default", None, None)(graph, [torch.ones(2, device="xla")])
            assert len(met) == 1

    def test_disabled(self) -> None:
        with torch._dynamo.config.patch(disable=True):
            function = torch.compile(lambda x: torch.sin(torch.sin(x)))
            assert not one_op(lambda: function(torch.ones(3, device="xla")))


class TestTraining:
    """Losses, gradients and state of a compiled model are those of CPU eager."""

    def test_steps(self) -> None:
        plain = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2))
        ours = copy.deepcopy(plain).to("xla")
        function = compiled(ours)
        sgd = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, ours)]
        for size in (6, 6, 7):
            x = torch.randn(size, 4)
            losses = plain(x).square().mean(), function(x.to("xla")).square().mean()
            check(losses[1], losses[0])
            for loss, optimizer in zip(losses, sgd, strict=True):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        for one, other in zip(ours.state_dict().values(), plain.state_dict().values(), strict=True):
            check(one, other)
        plain.eval(), ours.eval()
        with torch.no_grad():
            given = x.to("xla")
            check(function(given), plain(x))
            assert one_op(lambda: function(given))

    def test_autocast(self) -> None:
        ours = model().to("xla")
        function, x = compiled(ours), torch.ones(2, 4, device="xla")
        assert function(x).dtype is torch.float32
        with torch.autocast("xla"):
            made, plain = function(x), ours(x)
        assert made.dtype is torch.bfloat16
        check(made, plain.cpu())

    def test_inference_mode(self) -> None:
        with torch.inference_mode():
            buffer, function = torch.zeros(3, device="xla"), compiled(lambda b: b.add_(1) * 2)
            check(function(buffer) + function(buffer), torch.full((3,), 6.0))
            check(buffer, torch.full((3,), 2.0))

    def test_gradients_reach_inputs(self) -> None:
        ours = compiled(lambda x, w: ((x @ w).t() * 3, x.sum()))
        x, w = torch.randn(2, 3, requires_grad=True), torch.randn(3, 4)
        given = x.detach().to("xla").requires_grad_()
        for _ in range(2):
            y, total = ours(given, w.to("xla"))
            assert y.stride() == (1, 4)
            (y.sum() + total * 2).backward()
        ((x @ w).sum() * 6 + x.sum() * 4).backward()
        check(given.grad, x.grad)

    def test_optimizer_and_step(self) -> None:
        plain = model()
        ours = copy.deepcopy(plain).to("xla")
        adam = [torch.optim.AdamW(each.parameters(), lr=0.01, eps=1e-4) for each in (plain, ours)]

        def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        function = torch.compile(step, backend="xla")
        for _ in range(3):
            x = torch.randn(5, 4)
            check(function(ours, adam[1], x.to("xla")), step(plain, adam[0], x))
        for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
            check(one, other)

    def test_dropout(self) -> None:
        x = torch.ones(64, device="xla")
        spmd.manual_seed(1)
        plain = [nn.functional.dropout(x) for _ in range(3)]
        spmd.manual_seed(1)
        function = compiled(lambda x: nn.functional.dropout(x))
        for one in plain:
            check(function(x), one.cpu())

    def test_checkpoint(self) -> None:
        plain = model()
        ours = copy.deepcopy(plain).to("xla")
        x = torch.randn(5, 4)
        function = compiled(
            lambda x: torch.utils.checkpoint.checkpoint(ours, x, use_reentrant=False).square().sum()
        )
        for _ in range(2):
            plain(x).square().sum().backward()
            function(x.to("xla")).backward()
        for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
            check(one.grad, other.grad)


class TestMemory:
    """In-place writes reach the caller's tensors, through views as well, or the graph runs op by
    op."""

    def test_buffers(self) -> None:
        def update(cache: Tensor, row: Tensor) -> Tensor:
            cache[:, 1] = row
            return cache.sum()

        function = compiled(update)
        cache, base = torch.zeros(2, 3, device="xla"), torch.zeros(4, 3, device="xla")
        for value in (1.0, 2.0):
            row = torch.full((2,), value, device="xla")
            assert function(cache, row).item() == 2 * value
            assert function(base[1:3], row).item() == 2 * value
        check(cache, torch.tensor([[0.0, 2.0, 0.0]] * 2))
        check(base, torch.tensor([[0.0] * 3, *[[0.0, 2.0, 0.0]] * 2, [0.0] * 3]))

    def test_writes_are_seen_by_autograd(self) -> None:
        x, buffer = torch.ones(3, device="xla", requires_grad=True), torch.ones(3, device="xla")
        y = (x * buffer).sum()
        compiled(lambda b: b.add_(1) * 2)(buffer)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()

    def test_results_that_share_memory(self) -> None:
        def halves(x: Tensor) -> tuple[Tensor, Tensor]:
            made = x * 2
            return made[:1], made

        one, both = compiled(halves)(torch.ones(2, device="xla"))
        one.fill_(7)
        check(both, torch.tensor([7.0, 2.0]))

    def test_argument_with_a_history(self) -> None:
        x = torch.ones(3, device="xla", requires_grad=True)
        y = x * 2
        compiled(lambda y: y.mul_(5))(y)
        y.sum().backward()
        check(x.grad, torch.full((3,), 10.0))


class TestGuards:
    """A call that differs is traced anew, or its values are read anew."""

    def test_parameter_replaced(self) -> None:
        ours = nn.Linear(3, 2).to("xla")
        function, x = compiled(ours), torch.ones(4, 3)
        function(x.to("xla"))
        ours.weight = nn.Parameter(torch.ones(2, 3).to("xla"))
        check(function(x.to("xla")), (x @ torch.ones(3, 2) + ours.bias.detach().cpu()))

    def test_sharding_changed(self, mesh8: spmd.Mesh) -> None:
        function = compiled(lambda x: torch.zeros_like(x) + x)
        x = torch.ones(8, 2, device="xla")
        function(x)
        spmd.mark_sharding(x, mesh8, ("fsdp", None))
        made = function(x)
        check(made, torch.ones(8, 2))
        assert str(spmd.get_sharding(made)) == str(spmd.get_sharding(x))

    def test_flags_and_numbers(self) -> None:
        ours = nn.Dropout(0.5).to("xla")
        function, x = compiled(ours), torch.ones(64, device="xla")
        assert 0 < (function(x) == 0).sum().item() < 64
        ours.eval()
        check(function(x), torch.ones(64))
        scale = compiled(lambda x, factor: x * factor, dynamic=False)
        for factor in (2.0, 3.0, 4.5):
            check(scale(x, factor), torch.full((64,), factor))

    @pytest.mark.parametrize("dynamic", [True, False, None])
    def test_shapes(self, dynamic: bool | None) -> None:
        graphs = []

        def backend(graph: Any, inputs: Any) -> Any:
            graphs.append(graph)
            return torch._dynamo.lookup_backend("xla")(graph, inputs)

        function = torch.compile(
            lambda x: x.sum(0) * x.shape[0], backend=backend, dynamic=dynamic, fullgraph=True
        )
        for length in (3, 4, 5, 3):
            check(function(torch.ones(length, 2, device="xla")), torch.full((2,), float(length**2)))
        assert len(graphs) == {True: 1, False: 3, None: 2}[dynamic]

    def test_marked_dims(self) -> None:
        graphs = []

        def backend(graph: Any, inputs: Any) -> Any:
            graphs.append(graph)
            return torch._dynamo.lookup_backend("xla")(graph, inputs)

        function = torch.compile(lambda x: (x * 2).sum(), backend=backend, fullgraph=True)
        programs = len(compile_log.compiles())
        for length in (5, 9, 30):
            x = torch.ones(2, length).to("xla")
            torch._dynamo.mark_dynamic(x, 1)
            assert function(x).item() == 4.0 * length
        assert len(graphs) == 1
        assert len(compile_log.compiles()) - programs <= 1


class TestFullGraph:
    """The library's additions to torch end no graph, on the device or elsewhere."""

    @pytest.mark.parametrize(("device", "backend"), [("cpu", "eager"), ("xla", "xla")])
    def test_a_module_with_a_buffer_made_inside(self, device: str, backend: str) -> None:
        def loss(x: Tensor) -> Tensor:
            return nn.BCEWithLogitsLoss()(x, torch.ones_like(x))  # it registers buffers

        x = torch.randn(3)
        check(compiled(loss, backend=backend)(x.to(device)), loss(x))

    @pytest.mark.parametrize(("device", "backend"), [("cpu", "eager"), ("xla", "xla")])
    def test_associative_scan(self, device: str, backend: str) -> None:
        def scanned(x: Tensor) -> Tensor:
            return associative_scan(lambda a, b: a * b + b, x, 0, combine_mode="generic")

        x = torch.randn(5, 2)
        check(compiled(scanned, backend=backend)(x.to(device)), scanned(x))

    def test_associative_scan_of_single_values(self) -> None:
        x = torch.randn(5, 2)
        check(
            compiled(lambda x: associative_scan(lambda a, b: a + b, x, 0))(x.to("xla")), x.cumsum(0)
        )


class TestBreaks:
    """Dynamo's graph breaks, and graphs that cannot be one op, give the same values."""

    def test_read_of_a_value(self) -> None:
        def function(x: Tensor) -> Tensor:
            y = x * 2
            return y + 1 if y.sum().item() > 0 else y - 1

        broken = torch.compile(function, backend="xla")
        for sign in (1.0, -1.0):
            x = torch.full((3,), sign)
            check(broken(x.to("xla")), function(x))

    def test_annotation(self, mesh8: spmd.Mesh) -> None:
        function = torch.compile(
            lambda x: spmd.mark_sharding(x + 1, mesh8, ("fsdp", None)) * 2, backend="xla"
        )
        made = function(torch.ones(8, 2, device="xla"))
        check(made, torch.full((8, 2), 4.0))
        assert len(spmd.local_shards(made)) == 8

    def test_why_is_said(self) -> None:
        function = compiled(lambda x: (x + torch.rand(3).to("xla"), x * 2))
        x = torch.ones(3, device="xla")
        first, second = function(x)[0].cpu(), function(x)[0].cpu()
        assert not torch.equal(first, second)  # torch's draws on the CPU are new ones, too
        assert any("recorded op by op: it has a tensor on cpu" in note for note in counters._notes)


class TestFSDP:
    """A wrapped model keeps the shardings of its units under compilation."""

    def test_values_and_shardings(self, mesh8: spmd.Mesh) -> None:
        plain = nn.Sequential(
            *(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(2))
        )
        ours = copy.deepcopy(plain).to("xla")
        for block in ours:
            fsdp.fully_shard(block, mesh=mesh8)
        fsdp.fully_shard(ours, mesh=mesh8)
        function = torch.compile(ours, backend="xla")
        sgd = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, ours)]
        for _ in range(2):
            x = torch.randn(16, 8)
            losses = plain(x).square().mean(), function(x.to("xla")).square().mean()
            check(losses[1], losses[0])
            for loss, optimizer in zip(losses, sgd, strict=True):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        spmd.sync()
        for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
            check(one, other)
            assert "fsdp" in str(spmd.get_sharding(one))
            assert spmd.get_sharding(one.grad) == spmd.get_sharding(one)


class TestConstants:
    """A result that is data of the call, made by no op, is another tensor at each call."""

    def test_data_that_no_op_makes(self) -> None:
        @torch.compile(backend="openxla")
        def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.arange(5, device="cpu").to("xla"), x + 1

        x = torch.ones(2, device="xla")
        for _ in range(3):
            numbers, y = function(x)
            spmd.sync()
            numbers += 1
            assert numbers.tolist() == [1, 2, 3, 4, 5] and y.tolist() == [2, 2]
