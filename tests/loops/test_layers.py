"""`spmd.scan_layers`: layers rolled into one loop compute, train and save as they do one after the
other."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import check
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy

import fsdp
import spmd
from spmd.core.programs import cache

aten = torch.ops.aten


class Block(nn.Module):
    """Attention and a perceptron with dropout, with running statistics between them."""

    def __init__(self, dim: int = 16, heads: int = 2, p: float = 0.1):
        super().__init__()
        self.heads, self.p = heads, p
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim, bias=False)
        self.norm, self.up, self.down = (
            nn.BatchNorm1d(dim),
            nn.Linear(dim, 2 * dim),
            nn.Linear(2 * dim, dim),
        )
        self.act = nn.GELU()

    def forward(
        self, x: torch.Tensor, scale: torch.Tensor | None = None, *, shift: float = 0.0
    ) -> torch.Tensor:
        batch, length, dim = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + nn.functional.dropout(
            self.out(mixed.reshape(batch, length, dim)), self.p, self.training
        )
        x = self.norm(x.flatten(0, 1)).view(batch, length, dim)
        x = x + self.down(self.act(self.up(x))) + shift
        return x if scale is None else x * scale


class Model(nn.Module):
    """Blocks, rolled or not, and a head."""

    def __init__(self, layers: list[nn.Module], rolled: bool, **settings: Any):
        super().__init__()
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(16, 4)
        self.rolled, self.settings = rolled, settings

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.rolled:
            return self.head(spmd.scan_layers(self.layers, x, **self.settings))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(
    rolled: bool,
    *,
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
    prepare: Any = None,
    **settings: Any,
) -> list[torch.Tensor]:
    """The losses of two steps, then gradients, parameters and buffers."""
    torch.manual_seed(0)
    model = Model([Block() for _ in range(3)], rolled, **settings)
    if prepare is not None:
        prepare(model)
    wrapped = wrap(model.to("xla"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(8, 4, 16, generator=torch.Generator().manual_seed(5)).to("xla")
    torch.manual_seed(3)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = wrapped(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        spmd.sync()
    grads = [torch.zeros(()) if p.grad is None else p.grad.cpu() for p in model.parameters()]
    return [
        tensor.detach().cpu() for tensor in (*losses, *grads, *model.parameters(), *model.buffers())
    ]


def compare(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    for ours, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.fixture(scope="module")
def plain() -> list[torch.Tensor]:
    return train(False)


def sharded(mesh: spmd.Mesh, **settings: Any) -> Callable[[nn.Module], nn.Module]:
    policy = functools.partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return lambda model: fsdp.FullyShardedDataParallel(
        model, mesh=mesh, auto_wrap_policy=policy, **settings
    )


class TestTraining:
    """Two steps with dropout and batch norm."""

    def test_rolled(self, plain: list[torch.Tensor]) -> None:
        compare(train(True), plain)

    @pytest.mark.parametrize("policy", ["nothing", "dots", [aten.addmm.default, aten.mm.default]])
    def test_policies(self, policy: Any, plain: list[torch.Tensor]) -> None:
        without_statistics = slice(0, -9)  # what is computed again counts twice there, as in torch
        compare(train(True, policy=policy)[without_statistics], plain[without_statistics])

    @pytest.mark.parametrize("reshard", [True, False])
    def test_fully_sharded(
        self, reshard: bool, mesh8: spmd.Mesh, plain: list[torch.Tensor]
    ) -> None:
        compare(train(True, wrap=sharded(mesh8, reshard_after_forward=reshard)), plain)

    def test_a_frozen_layer(self) -> None:
        def freeze(model: Model) -> None:
            model.layers[0].requires_grad_(False)

        compare(train(True, prepare=freeze), train(False, prepare=freeze))

    def test_tied_weights(self) -> None:
        def tie(model: Model) -> None:
            for layer in model.layers:
                layer.out.weight = model.layers[0].out.weight  # of all layers
            model.layers[2].up.weight = model.layers[0].up.weight  # of two

        compare(train(True, prepare=tie), train(False, prepare=tie))


class TestFullySharded:
    """The body gathers its own layer and reduces its own gradients."""

    def test_no_gather_of_all_layers(self, mesh8: spmd.Mesh) -> None:
        layers = nn.ModuleList(nn.Linear(256, 256, bias=False) for _ in range(8)).to("xla")
        for layer in layers:
            fsdp.FullyShardedDataParallel(layer, mesh=mesh8)
        wrapped = fsdp.FullyShardedDataParallel(
            layers, mesh=mesh8, auto_wrap_policy=fsdp.always_wrap_policy
        )
        x = spmd.mark_sharding(torch.randn(8, 256).to("xla"), mesh8, ("fsdp", None))
        spmd.sync()
        spmd.scan_layers(wrapped.module, x).square().sum().backward()
        spmd.sync()
        program = spmd.metrics.compiles()[-1]
        layer_bytes = 256 * 256 * 4
        assert program.collectives["all-gather"] <= 2  # in the text; each runs once a turn
        assert program.temp_bytes < 8 * layer_bytes
        for layer in layers:
            assert spmd.get_sharding(layer.weight.grad) is spmd.get_sharding(layer.weight)

    def test_uneven_dims(self, mesh8: spmd.Mesh) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(10, 10) for _ in range(3)]
        x = torch.randn(4, 10)
        results = []
        for mesh in (None, mesh8):
            stack = nn.ModuleList(layers).to("xla")
            stack.zero_grad()
            if mesh is not None:
                for layer in stack:
                    spmd.mark_sharding(layer.weight, mesh, ("fsdp", None))
            spmd.scan_layers(stack, x.to("xla")).square().sum().backward()
            results.append([layer.weight.grad.cpu() for layer in stack])
        compare(*results)


class TestCalls:
    """Arguments, layers without weights, other forms of x, evaluation, the CPU."""

    def test_arguments_are_the_same_for_all(self) -> None:
        results = []
        for device in ("xla", "cpu"):
            torch.manual_seed(0)
            layers = nn.ModuleList(Block(p=0.0) for _ in range(3)).to(device).eval()
            x, scale = (
                torch.ones(2, 4, 16).to(device),
                torch.full((16,), 0.5).to(device).requires_grad_(),
            )
            y = spmd.scan_layers(layers, x, scale, shift=0.25)
            y.sum().backward()
            results.append([y, scale.grad])
        for ours, theirs in zip(*results, strict=True):
            check(ours, theirs)

    def test_without_weights(self) -> None:
        x = torch.randn(4)
        check(spmd.scan_layers([nn.Tanh() for _ in range(3)], x.to("xla")), x.tanh().tanh().tanh())

    def test_no_layers(self) -> None:
        x = torch.ones(2, device="xla")
        assert spmd.scan_layers([], x) is x

    def test_a_tuple(self) -> None:
        class Pair(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, pair: Any) -> Any:
                x, count = pair
                return self.linear(x), count + 1

        layers = nn.ModuleList(Pair() for _ in range(3)).to("xla")
        _, count = spmd.scan_layers(
            layers, (torch.ones(2, 4, device="xla"), torch.zeros((), device="xla"))
        )
        assert count.item() == 3

    def test_attributes_that_forward_sets(self) -> None:
        """They do not stay, on the first layer alone: the next step finds equal layers."""

        class Remembering(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 4)
                self.before: Any = None

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.before, self.linear.inputs = x, [x]
                return self.linear(x)

        layers = nn.ModuleList(Remembering() for _ in range(3)).to("xla")
        for _ in range(2):
            x = torch.randn(2, 4)
            expected = x
            for layer in layers:
                expected = nn.functional.linear(
                    expected, layer.linear.weight.cpu(), layer.linear.bias.cpu()
                )
            check(spmd.scan_layers(layers, x.to("xla")), expected)
        assert layers[0].before is None and not hasattr(layers[0].linear, "inputs")

    def test_a_buffer_put_in_place_of_another(self) -> None:
        class Counting(nn.Module):
            def __init__(self, start: float) -> None:
                super().__init__()
                self.register_buffer("seen", torch.tensor(start))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.seen = self.seen + x.sum()
                return x + 1

        layers = nn.ModuleList(Counting(float(i)) for i in range(3)).to("xla")
        spmd.scan_layers(layers, torch.ones(2, device="xla"))
        assert [layer.seen.item() for layer in layers] == [2.0, 5.0, 8.0]

    def test_an_index_that_nobody_looks_at(self) -> None:
        layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to("xla")
        for i, layer in enumerate(layers):
            layer.layer_idx = i
        spmd.scan_layers(layers, torch.ones(2, 4, device="xla"))
        assert [layer.layer_idx for layer in layers] == [0, 1, 2]

    def test_saved_and_read_as_before(self) -> None:
        layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to("xla")
        before = {name: tensor.clone() for name, tensor in layers.state_dict().items()}
        names = [id(parameter) for parameter in layers.parameters()]
        spmd.scan_layers(layers, torch.ones(2, 4, device="xla")).sum().backward()
        assert [id(parameter) for parameter in layers.parameters()] == names
        for name, tensor in layers.state_dict().items():
            check(tensor, before[name].cpu())

    def test_one_program_whatever_the_draws(self) -> None:
        layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Dropout()) for _ in range(3)).to(
            "xla"
        )
        x = torch.ones(2, 4, device="xla")
        compiled = []
        for _ in range(3):
            layers.zero_grad()
            spmd.scan_layers(layers, x).sum().backward()
            spmd.sync()
            compiled.append(spmd.metrics.counter("programs_compiled"))
        assert compiled[1] == compiled[2]

    def test_hooks_on_parameters_run_once(self) -> None:
        layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)).to("xla")
        for layer in layers:
            layer.weight.register_hook(lambda gradient: gradient * 2)
        spmd.scan_layers(layers, torch.ones(2, 4, device="xla")).sum().backward()
        doubled = [layer.weight.grad.cpu() for layer in layers]
        other = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)).to("xla")
        other.load_state_dict(layers.state_dict())
        spmd.scan_layers(other, torch.ones(2, 4, device="xla")).sum().backward()
        compare(doubled, [2 * layer.weight.grad.cpu() for layer in other])

    def test_a_policy_that_decides_op_by_op(self) -> None:
        def keep_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            return (
                CheckpointPolicy.MUST_SAVE
                if op is aten.mm.default
                else CheckpointPolicy.PREFER_RECOMPUTE
            )

        layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3)).to("xla")
        x = torch.ones(2, 4, device="xla")
        spmd.scan_layers(layers, x, policy=keep_products).sum().backward()
        saved = [layer.weight.grad.cpu() for layer in layers]
        layers.zero_grad()
        spmd.scan_layers(layers, x).sum().backward()
        compare(saved, [layer.weight.grad.cpu() for layer in layers])

    def test_nothing_saved_takes_less(self) -> None:
        layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(8)
        ).to("xla")
        taken = []
        for policy in (None, "nothing"):
            layers.zero_grad()
            spmd.scan_layers(
                layers, torch.ones(256, 16, device="xla"), policy=policy
            ).sum().backward()
            spmd.sync()
            taken.append(spmd.metrics.compiles()[-1].temp_bytes)
        assert taken[1] < taken[0] - 7 * 256 * 64 * 4


def pair(change: Callable[[nn.Module], Any]) -> nn.ModuleList:
    layers = nn.ModuleList(Block() for _ in range(3))
    change(layers[2])
    return layers.to("xla")


def hook_of(seen: list[Any]) -> Any:
    return lambda module, args, output: seen.append(output)


class TestRefusals:
    """Layers that differ are refused by the first difference."""

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda b: setattr(b, "p", 0.5), r"layers\[0\].p is 0.1, layers\[2\].p is 0.5"),
            (
                lambda b: setattr(b, "act", nn.ReLU()),
                r"layers\[0\].act is a .*GELU, layers\[2\].act is a .*ReLU",
            ),
            (
                lambda b: setattr(b.act, "approximate", "tanh"),
                r"layers\[0\].act.approximate is 'none'",
            ),
            (
                lambda b: setattr(b, "out", nn.Linear(16, 16)),
                r"out.bias is None, layers\[2\].out.bias is float32\[16\]",
            ),
            (
                lambda b: setattr(b, "up", nn.Linear(16, 8)),
                r"up.weight is float32\[32,16\], .* is float32\[8,16\]",
            ),
            (
                lambda b: b.half(),
                r"qkv.weight is float32\[48,16\], layers\[2\].qkv.weight is float16\[48,16\]",
            ),
            (lambda b: b.eval(), r"layers\[0\].training is True, layers\[2\].training is False"),
            (
                lambda b: b.register_buffer("more", torch.ones(2)),
                r"more is None, layers\[2\].more is float32\[2\]",
            ),
            (
                lambda b: setattr(b, "extra", nn.Linear(2, 2)),
                r"layers\[0\].extra is not there, layers\[2\].extra is a",
            ),
            (
                lambda b: b.register_forward_hook(print),
                r"layers\[0\]._forward_hooks has 0 hooks, .* has 1",
            ),
        ],
    )
    def test_names_the_first_difference(self, change: Any, message: str) -> None:
        with pytest.raises(spmd.LayersDifferError, match=message):
            spmd.scan_layers(pair(change), torch.ones(2, 4, 16, device="xla"))

    def test_a_hook_with_data_of_its_own(self) -> None:
        layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)).to("xla")
        for i, layer in enumerate(layers):
            layer.register_forward_hook(hook_of([i]))
        with pytest.raises(spmd.LayersDifferError, match="one hook stands for all layers"):
            spmd.scan_layers(layers, torch.ones(2, 4, device="xla"))

    def test_a_hook_that_is_the_same(self) -> None:
        layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)).to("xla")
        shapes: list[Any] = []
        for layer in layers:
            layer.register_forward_hook(lambda module, args, output: shapes.append(output.shape))
        spmd.scan_layers(layers, torch.ones(2, 4, device="xla"))
        assert shapes == [(2, 4)]

    @pytest.mark.parametrize(
        "use",
        [lambda x, i: x * i, lambda x, i: x.view(i + 1, -1) if i else x, lambda x, i: x.sum(i)],
    )
    def test_an_index_that_decides(self, use: Any) -> None:
        class Indexed(nn.Module):
            def __init__(self, index: int) -> None:
                super().__init__()
                self.index = index

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return use(x, self.index)

        layers = [Indexed(i) for i in range(3)]
        with pytest.raises(
            spmd.LayersDifferError,
            match=r"layers\[i\].index is 0, 1, 2, and their forward depends on it",
        ):
            spmd.scan_layers(layers, torch.ones(2, 2, device="xla"))
        assert [layer.index for layer in layers] == [0, 1, 2]

    def test_weights_elsewhere(self) -> None:
        with pytest.raises(TypeError, match=r"layers\[0\].weight is on cpu"):
            spmd.scan_layers([nn.Linear(4, 4), nn.Linear(4, 4)], torch.ones(2, 4, device="xla"))

    def test_an_unknown_policy(self) -> None:
        layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)).to("xla")
        with pytest.raises(ValueError, match="scan_layers: "):
            spmd.scan_layers(layers, torch.ones(2, 4, device="xla"), policy="some")


class TestStacks:
    """Weights, gradients and moments of all layers are rows of stacks, as where layers are rolled
    by themselves."""

    @pytest.mark.parametrize("mode", ["auto", "never"])
    def test_the_program_is_as_long_for_any_number_of_layers(
        self, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spmd.config, "scan_layers", mode)

        def text(count: int) -> str:
            torch.manual_seed(0)
            model = Model([Block() for _ in range(count)], rolled=True).to("xla")
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(2, 4, 16, device="xla")).square().sum().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                made = spmd.get_stablehlo([*model.parameters()])
                spmd.sync()
            return made

        few, many = text(3), text(9)
        assert len(many.splitlines()) == len(few.splitlines())
        assert "rows of" in spmd.metrics.compiles()[-1].cause

    def test_state_stays_where_it_is(self) -> None:
        """A step stacks nothing and takes the memory of all state."""
        layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4)).to("xla")
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            spmd.scan_layers(layers, torch.ones(2, 16, device="xla")).square().sum().backward()
            optimizer.step()
            spmd.sync()
        record = spmd.metrics.compiles()[-1]
        # weights and momenta of four layers
        assert record.alias_bytes >= 2 * 4 * (16 * 16 + 16) * 4
        program = cache.last_program()
        assert program is not None and "concatenate" not in program.executable.as_text()

    def test_a_part_of_the_layers_backwards(self) -> None:
        """Rows in another order than those of the stack that they are of."""
        layers = [nn.Linear(4, 4) for _ in range(5)]
        x = torch.randn(2, 4)
        expected = x
        for layer in [*layers, *layers[3:0:-1]]:
            expected = layer(expected).sin()
        expected.square().sum().backward()
        gradients = [layer.weight.grad.clone() for layer in layers]
        ours = nn.ModuleList(nn.Sequential(layer, Sine()) for layer in layers).to("xla")
        ours.zero_grad()
        y = spmd.scan_layers(list(ours)[3:0:-1], spmd.scan_layers(ours, x.to("xla")))
        y.square().sum().backward()
        compare(
            [y.detach().cpu(), *(layer[0].weight.grad.cpu() for layer in ours)],
            [expected.detach(), *gradients],
        )


class Sine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def test_layers_that_write_in_place_into_their_input() -> None:
    class Halved(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.mul_(0.5))

    torch.manual_seed(0)
    layers = nn.ModuleList(Halved(4, 4) for _ in range(3))
    x = torch.randn(2, 4)
    moved, start = copy.deepcopy(layers).to("xla"), x.to("xla").requires_grad_()
    spmd.scan_layers(moved, start).square().sum().backward()
    expected = x.clone().requires_grad_()
    y = expected * 1
    for layer in layers:
        y = layer(y)
    y.square().sum().backward()
    check(start.grad, expected.grad)
    check(start, x)
    for ours, theirs in zip(moved.parameters(), layers.parameters(), strict=True):
        check(ours.grad, theirs.grad)
