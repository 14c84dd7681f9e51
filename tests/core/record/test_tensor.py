"""A tensor on xla is a torch tensor: reading, copying, modules, autocast, torch.func, hooks,
factories."""

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support import check
from torch import nn
from torch.utils.checkpoint import checkpoint

import spmd


class TestPrinting:
    """repr shows values, device, dtype and autograd's part, as torch does."""

    def test_values(self) -> None:
        assert (
            repr(torch.tensor([1.0, 2.5], device="xla"))
            == "tensor([1.0000, 2.5000], device='xla:0')"
        )
        assert str(torch.tensor([1, 2], device="xla")) == "tensor([1, 2], device='xla:0')"
        assert (
            repr(torch.tensor(3.0, device="xla", dtype=torch.float64))
            == "tensor(3., device='xla:0', dtype=torch.float64)"
        )
        assert repr(torch.zeros(0, 3, device="xla")) == "tensor([], device='xla:0', size=(0, 3))"

    def test_autograd(self) -> None:
        x = torch.ones(2, device="xla", requires_grad=True)
        assert repr(x) == "tensor([1., 1.], device='xla:0', requires_grad=True)"
        assert repr(x * 2) == "tensor([2., 2.], device='xla:0', grad_fn=<MulBackward0>)"
        assert repr(nn.Parameter(x.detach())).startswith(
            "Parameter containing:\ntensor([1., 1.], device='xla:0', requires_grad=True)"
        )

    def test_formats(self) -> None:
        assert f"{torch.tensor(2.5, device='xla'):.2f}" == "2.50"
        assert "device='xla:0'" in f"{torch.ones(2, device='xla')}"


class TestReading:
    """item, tolist, numpy, bool, float, int, len, iteration, contains."""

    def test_scalars(self) -> None:
        x = torch.tensor(2.5, device="xla")
        assert x.item() == float(x) == 2.5 and int(x) == 2 and bool(x) and complex(x) == 2.5
        assert not torch.tensor(False, device="xla")
        assert (
            torch.tensor(7, device="xla").item() == 7
            and type(torch.tensor(7, device="xla").item()) is int
        )
        assert [10, 20, 30][torch.tensor(1, device="xla")] == 20

    def test_many(self) -> None:
        x = torch.arange(6, device="xla").view(2, 3)
        assert x.tolist() == [[0, 1, 2], [3, 4, 5]] and len(x) == 2
        assert [row.sum().item() for row in x] == [3, 12]
        assert 5 in x and 9 not in x
        assert np.array_equal(x.numpy(force=True), np.arange(6).reshape(2, 3))
        assert (
            x.cpu().numpy().dtype == np.int64
            and x.numel() == 6
            and x.element_size() == 8
            and x.nbytes == 48
        )

    def test_equal(self) -> None:
        x = torch.ones(3, device="xla")
        assert torch.equal(x, x.clone()) and not torch.equal(x, x * 2) and not torch.equal(x, x[:2])
        assert torch.allclose(x, x + 1e-9) and (x == 1).all() and x.eq(1).any().item() is True

    def test_bfloat16_and_complex(self) -> None:
        x = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
        assert torch.equal(x.to("xla").cpu(), x) and (x.to("xla") * 2).tolist() == [3.0, -4.0]
        z = torch.tensor([1 + 2j, 3 - 1j])
        assert torch.equal((z.to("xla") * z.to("xla")).cpu(), z * z)

    def test_host_copy_is_its_own(self) -> None:
        x = torch.ones(3, device="xla")
        host = x.cpu()
        x.add_(1)
        host.add_(5)
        assert x.tolist() == [2.0] * 3 and host.tolist() == [6.0] * 3
        assert host.device.type == "cpu" and type(host) is torch.Tensor


class TestMoving:
    """to, cpu, copies between devices, dtypes."""

    def test_device_spellings(self) -> None:
        source = torch.arange(3.0)
        for where in ("xla", "xla:0", torch.device("xla"), torch.device("xla", 0), spmd.device()):
            x = source.to(where)
            assert x.device == torch.device("xla:0") and x.is_leaf and torch.equal(x.cpu(), source)
        assert x.to("xla") is x and x.to(x.device) is x and x.get_device() == 0
        assert source.to(x).device.type == "xla" and x.to(source).device.type == "cpu"

    def test_dtype(self) -> None:
        x = torch.tensor([1.7, -2.3, 0.0]).to("xla")
        for dtype in (
            torch.float64,
            torch.bfloat16,
            torch.float16,
            torch.int32,
            torch.int64,
            torch.bool,
            torch.uint8,
        ):
            source = x.cpu() if dtype != torch.uint8 else x.cpu().abs()
            moved = (x if dtype != torch.uint8 else x.abs()).to(dtype)
            assert moved.dtype == dtype and torch.equal(moved.cpu(), source.to(dtype))
        assert x.double().half().float().dtype == torch.float32 and x.long().tolist() == [1, -2, 0]
        assert torch.ones(2).to("xla", torch.float64).dtype == torch.float64
        assert x.to(torch.float32) is x and x.to(torch.float32, copy=True) is not x
        assert x.to("cpu", torch.float64).dtype == torch.float64

    def test_gradient_crosses_devices(self) -> None:
        source = torch.ones(3, requires_grad=True)
        (source.to("xla") * 2).cpu().mul(3).sum().backward()
        assert source.grad.tolist() == [6.0] * 3 and source.grad.device.type == "cpu"

    def test_copy_(self) -> None:
        x, c = torch.zeros(2, 3, device="xla"), torch.zeros(2, 3)
        assert x.copy_(torch.ones(3)) is x and c.copy_(x) is c
        assert c.tolist() == x.tolist() == [[1.0] * 3] * 2
        c.t()[1].copy_(x[:, 0] * 5)
        assert c.tolist() == [[1.0, 5.0, 1.0]] * 2

    def test_non_contiguous_source(self) -> None:
        source = torch.arange(12.0).view(3, 4)
        for view in (source.t(), source[:, ::2], source[1], source.expand(2, 3, 4)):
            moved = view.to("xla")
            assert torch.equal(moved.cpu(), view) and (moved + 1).shape == view.shape

    def test_pickle_and_save(self, tmp_path) -> None:
        x = torch.arange(3.0).to("xla")
        torch.save({"x": x.cpu()}, tmp_path / "x.pt")
        assert torch.equal(torch.load(tmp_path / "x.pt")["x"], x.cpu())
        assert pickle.loads(pickle.dumps(x.cpu())).tolist() == [0.0, 1.0, 2.0]


class TestDeepcopy:
    """A deep copy has its own data, and what torch copies with it."""

    def test_leaf(self) -> None:
        x = torch.ones(3, device="xla", requires_grad=True)
        (x * x).sum().backward()
        copied = copy.deepcopy(x)
        with torch.no_grad():
            x.add_(1)
        x.grad.zero_()
        assert (
            copied.tolist() == [1.0] * 3
            and copied.grad.tolist() == [2.0] * 3
            and copied.requires_grad
            and copied.is_leaf
        )

    def test_module_with_ties(self) -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to("xla")
        model[1].weight = model[0].weight
        copied = copy.deepcopy(model)
        assert copied[0].weight is copied[1].weight and copied[0].weight is not model[0].weight
        assert type(copied[0].weight) is type(model[0].weight) and isinstance(
            copied[0].weight, nn.Parameter
        )
        assert len(list(copied.parameters())) == 3

    def test_not_a_leaf(self) -> None:
        x = torch.ones(3, device="xla", requires_grad=True)
        with pytest.raises(RuntimeError, match="only tensors created by the user"):
            copy.deepcopy(x * 2)


class TestModules:
    """Module.to keeps Parameter objects, ties and optimizers; state dicts go both ways."""

    def test_to_keeps_objects(self) -> None:
        model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
        model[1].weight = model[0].weight
        before = list(model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        assert model.to("xla") is model
        assert model[0].weight is model[1].weight is before[0] and before[0].device.type == "xla"
        start = before[0].detach().cpu()
        model(torch.tensor([1, 2]).to("xla")).sum().backward()
        optimizer.step()
        assert not torch.equal(before[0].detach().cpu(), start)

    def test_back_to_cpu(self) -> None:
        model = nn.BatchNorm1d(3)
        model.weight.data.fill_(2)
        model.to("xla").to("cpu")
        assert (
            model.weight.device.type == "cpu"
            and model.weight.tolist() == [2.0] * 3
            and model.num_batches_tracked == 0
        )
        assert isinstance(model.weight, nn.Parameter) and model.weight.requires_grad

    def test_parameter(self) -> None:
        parameter = nn.Parameter(torch.ones(3, device="xla"))
        assert isinstance(parameter, nn.Parameter) and parameter.requires_grad and parameter.is_leaf
        module = nn.Module()
        module.w = parameter
        module.register_buffer("b", torch.zeros(2, device="xla"))
        assert [name for name, _ in module.named_parameters()] == ["w"] and [
            name for name, _ in module.named_buffers()
        ] == ["b"]
        assert isinstance(
            nn.Parameter(torch.ones(3, device="xla"), requires_grad=False), nn.Parameter
        )
        assert not isinstance(torch.ones(3, device="xla"), nn.Parameter)

    def test_state_dict(self) -> None:
        source = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        source(torch.randn(5, 3))
        target = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to("xla")
        parameters = list(target.parameters())
        assert target.load_state_dict(source.state_dict()).missing_keys == []
        assert all(one is other for one, other in zip(parameters, target.parameters(), strict=True))
        for name, tensor in target.state_dict().items():
            assert tensor.device.type == "xla" and torch.equal(
                tensor.cpu(), source.state_dict()[name]
            )
        back = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        back.load_state_dict(target.state_dict())
        assert torch.equal(back[0].weight, source[0].weight)
        other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to("xla")
        other.load_state_dict(target.state_dict(), assign=True)
        assert torch.equal(other[0].weight.detach(), source[0].weight.detach().to("xla"))

    def test_optimizer_state_dict(self) -> None:
        w = nn.Parameter(torch.ones(3, device="xla"))
        optimizer = torch.optim.AdamW([w])
        (w * w).sum().backward()
        optimizer.step()
        fresh = nn.Parameter(w.detach().clone())
        other = torch.optim.AdamW([fresh])
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for parameter, each in ((w, optimizer), (fresh, other)):
            parameter.grad = torch.ones(3, device="xla")
            each.step()
        assert torch.equal(w.detach(), fresh.detach())

    def test_train_like_cpu(self) -> None:
        torch.manual_seed(0)
        expected = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
        actual = copy.deepcopy(expected).to("xla")
        x, y = torch.randn(10, 6), torch.randint(0, 3, (10,))
        for model, device in ((expected, "cpu"), (actual, "xla")):
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            for _ in range(4):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        for one, other in zip(actual.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=1e-4, atol=1e-5)

    def test_meta_to_empty(self) -> None:
        with torch.device("meta"):
            model = nn.Linear(3, 2)
        model.to_empty(device="xla")
        assert model.weight.device.type == "xla" and isinstance(model.weight, nn.Parameter)

    def test_requires_grad_and_zero_grad(self) -> None:
        model = nn.Linear(2, 2).to("xla").requires_grad_(False)
        assert not any(parameter.requires_grad for parameter in model.parameters())
        model.requires_grad_(True)
        model(torch.ones(1, 2, device="xla")).sum().backward()
        model.zero_grad(set_to_none=False)
        assert model.weight.grad.tolist() == [[0.0, 0.0]] * 2
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model(torch.ones(1, 2, device="xla")).sum().backward()
        optimizer.zero_grad(set_to_none=False)
        assert model.weight.grad.tolist() == [[0.0, 0.0]] * 2 and model.bias.grad.tolist() == [
            0.0,
            0.0,
        ]


class TestAutocast:
    """torch.autocast casts the matmul family down and keeps reductions in float32, as on cuda."""

    def test_dtypes(self) -> None:
        x, linear, norm = (
            torch.randn(4, 8).to("xla"),
            nn.Linear(8, 8).to("xla"),
            nn.LayerNorm(8).to("xla"),
        )
        with torch.autocast("xla", dtype=torch.bfloat16):
            h = linear(x)
            assert h.dtype == torch.bfloat16 and (h @ h.t()).dtype == torch.bfloat16
            assert norm(h).dtype == torch.float32 and h.softmax(-1).dtype == torch.float32
            assert (
                nn.functional.mse_loss(h, h).dtype == torch.float32
                and h.relu().dtype == torch.bfloat16
            )
            with torch.autocast("xla", enabled=False):
                assert linear(x).dtype == torch.float32
        assert linear(x).dtype == torch.float32

    def test_gradients(self) -> None:
        x, linear = torch.randn(4, 8), nn.Linear(8, 8)
        reference = copy.deepcopy(linear)
        linear.to("xla")
        with torch.autocast("xla", dtype=torch.bfloat16):
            loss = linear(x.to("xla")).float().square().mean()
        loss.backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = reference(x).float().square().mean()
        expected.backward()
        assert linear.weight.grad.dtype == torch.float32
        torch.testing.assert_close(
            linear.weight.grad.cpu(), reference.weight.grad, rtol=2e-2, atol=2e-2
        )

    def test_cpu_tensors_are_left_alone(self) -> None:
        with torch.autocast("xla", dtype=torch.bfloat16):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


class TestFunc:
    """torch.func: grad, vmap, functional_call, jvp-free transforms and their combinations."""

    def test_grad(self) -> None:
        x = torch.arange(3.0).to("xla")
        check(torch.func.grad(lambda x: (x**3).sum())(x), 3 * torch.arange(3.0) ** 2)
        check(
            torch.func.grad(torch.func.grad(lambda x: x.sin()))(torch.tensor(1.0, device="xla")),
            -torch.tensor(1.0).sin(),
        )

    def test_vmap(self) -> None:
        x, w = torch.randn(5, 3), torch.randn(3)
        check(
            torch.func.vmap(lambda row, w: (row * w).sum().sin(), (0, None))(
                x.to("xla"), w.to("xla")
            ),
            (x @ w).sin(),
        )
        check(torch.func.vmap(torch.func.grad(lambda row: (row**2).sum()))(x.to("xla")), 2 * x)

    def test_functional_call(self) -> None:
        model = nn.Linear(3, 2).to("xla")
        state = {name: torch.ones_like(p) for name, p in model.named_parameters()}
        x = torch.ones(4, 3, device="xla")
        assert torch.func.functional_call(model, state, (x,)).tolist() == [[4.0, 4.0]] * 4
        grads = torch.func.grad(lambda s: torch.func.functional_call(model, s, (x,)).sum())(state)
        assert grads["bias"].tolist() == [4.0, 4.0]

    def test_double_backward(self) -> None:
        x = torch.tensor([1.0, 2.0], device="xla", requires_grad=True)
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert second.tolist() == [6.0, 12.0]

    def test_custom_function(self) -> None:
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return grad * 2 + x * 0

        x = torch.ones(3, device="xla", requires_grad=True)
        Double.apply(x).sum().backward()
        assert x.grad.tolist() == [2.0] * 3


class TestHooks:
    """Hooks on tensors, modules and gradients run, may replace gradients, and may be removed."""

    def test_tensor_hooks(self) -> None:
        x = torch.ones(2, device="xla", requires_grad=True)
        handle = x.register_hook(lambda grad: grad * 10)
        seen = []
        x.register_post_accumulate_grad_hook(lambda x: seen.append(x.grad.tolist()))
        y = x * 2
        y.retain_grad()
        y.sum().backward()
        assert (
            x.grad.tolist() == [20.0, 20.0]
            and y.grad.tolist() == [1.0, 1.0]
            and seen == [[20.0, 20.0]]
        )
        handle.remove()
        (x * 2).sum().backward()
        assert x.grad.tolist() == [22.0, 22.0]

    def test_module_hooks(self) -> None:
        model, seen = nn.Linear(2, 2).to("xla"), []
        model.register_forward_pre_hook(lambda m, args: ((args[0] * 0).requires_grad_(),))
        model.register_forward_hook(lambda m, args, out: out + 1)
        model.register_full_backward_hook(
            lambda m, grad_in, grad_out: seen.append(grad_out[0].shape)
        )
        out = model(torch.ones(3, 2, device="xla"))
        out.sum().backward()
        assert torch.equal(out.detach(), (model.bias + 1).detach().expand(3, 2)) and seen == [
            (3, 2)
        ]

    def test_hooks_survive_the_move(self) -> None:
        w, seen = nn.Parameter(torch.ones(2)), []
        module = nn.Module()
        module.w = w
        module.to("xla")
        w.register_hook(lambda grad: seen.append(1))
        (w * 2).sum().backward()
        assert seen == [1]


class TestCheckpoint:
    """torch.utils.checkpoint recomputes with the same values, in both of its forms."""

    @pytest.mark.parametrize("use_reentrant", [True, False])
    def test_gradients(self, use_reentrant: bool) -> None:
        def program(device: str) -> list[torch.Tensor]:
            torch.manual_seed(0)
            layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
            x = torch.ones(2, 4, device=device, requires_grad=True)
            h = x
            for layer in layers:
                h = checkpoint(
                    lambda h, layer=layer: layer(h).tanh(), h, use_reentrant=use_reentrant
                )
            h.square().sum().backward()
            return [h, x.grad, *(parameter.grad for parameter in layers.parameters())]

        for actual, expected in zip(program("xla"), program("cpu"), strict=True):
            check(actual, expected)


FACTORIES: dict[str, Callable[..., torch.Tensor]] = {
    "zeros": lambda **k: torch.zeros(2, 3, **k),
    "zeros list": lambda **k: torch.zeros([2, 3], dtype=torch.int32, **k),
    "ones": lambda **k: torch.ones(2, dtype=torch.float64, **k),
    "full": lambda **k: torch.full((2, 2), 2.5, **k),
    "full int": lambda **k: torch.full((2,), 7, **k),
    "full bool": lambda **k: torch.full((2,), True, **k),
    "arange": lambda **k: torch.arange(5, **k),
    "arange float": lambda **k: torch.arange(0.0, 1.0, 0.1, **k),
    "arange start": lambda **k: torch.arange(2, 9, 3, **k),
    "arange down": lambda **k: torch.arange(5, 0, -2, **k),
    "arange dtype": lambda **k: torch.arange(4, dtype=torch.float32, **k),
    "arange empty": lambda **k: torch.arange(0, **k),
    "eye": lambda **k: torch.eye(3, **k),
    "eye m": lambda **k: torch.eye(2, 4, **k),
    "linspace": lambda **k: torch.linspace(-1, 1, 7, **k),
    "logspace": lambda **k: torch.logspace(0, 2, 3, **k),
    "tensor": lambda **k: torch.tensor([[1, 2], [3, 4]], **k),
    "tensor float": lambda **k: torch.tensor(1.5, **k),
    "tensor bool": lambda **k: torch.tensor([True, False], **k),
    "tensor dtype": lambda **k: torch.tensor([1, 2], dtype=torch.bfloat16, **k),
    "as_tensor": lambda **k: torch.as_tensor(np.arange(3.0), **k),
    "scalar_tensor": lambda **k: torch.scalar_tensor(3.0, **k),
    "tril_indices": lambda **k: torch.tril_indices(3, 3, **k),
    "triu of ones": lambda **k: torch.triu(torch.ones(3, 3, **k), diagonal=1),
    "meshgrid": lambda **k: torch.meshgrid(
        torch.arange(2, **k), torch.arange(3, **k), indexing="ij"
    )[1],
    "empty zero": lambda **k: torch.empty(0, 3, **k),
    "complex": lambda **k: torch.zeros(2, dtype=torch.complex64, **k),
}
DRAWS: dict[str, Callable[..., torch.Tensor]] = {
    "empty": lambda **k: torch.empty(2, 3, **k),
    "empty_strided": lambda **k: torch.empty_strided((2, 3), (1, 2), **k),
    "rand": lambda **k: torch.rand(2, 3, **k),
    "rand dtype": lambda **k: torch.rand(3, dtype=torch.float64, **k),
    "randn": lambda **k: torch.randn(2, 3, **k),
    "randint": lambda **k: torch.randint(5, (2,), **k),
    "randint low": lambda **k: torch.randint(2, 5, (2,), dtype=torch.int32, **k),
    "randperm": lambda **k: torch.randperm(5, **k),
}


class TestFactories:
    """Factories make xla tensors by device=, under `with torch.device`, by the default device;
    values are torch's."""

    @pytest.mark.parametrize("name", FACTORIES)
    def test_values(self, name: str) -> None:
        expected, actual = FACTORIES[name](), FACTORIES[name](device="xla")
        with torch.device("xla"):
            inside = FACTORIES[name]()
        for made in (actual, inside):
            assert made.device == spmd.device() and made.dtype == expected.dtype
            check(made, expected)

    @pytest.mark.parametrize("name", DRAWS)
    def test_draws(self, name: str) -> None:
        expected, actual = DRAWS[name](), DRAWS[name](device="xla")
        with torch.device("xla"):
            inside = DRAWS[name]()
        for made in (actual, inside):
            assert made.device == spmd.device()
            assert (made.dtype, made.shape, made.stride()) == (
                expected.dtype,
                expected.shape,
                expected.stride(),
            )
            assert torch.isfinite(made.double()).all()

    def test_default_device(self) -> None:
        torch.set_default_device("xla")
        try:
            made = [
                torch.ones(2),
                torch.randn(2),
                torch.tensor([1, 2]),
                nn.Linear(2, 2).weight,
                torch.arange(3),
            ]
        finally:
            torch.set_default_device(None)
        assert {tensor.device.type for tensor in made} == {"xla"} and made[2].tolist() == [1, 2]

    @pytest.mark.parametrize("kind", ["SGD", "AdamW"])
    def test_optimizer_under_the_default_device(self, kind: str) -> None:
        torch.set_default_device("xla")
        try:
            w = nn.Parameter(torch.ones(3))
            optimizer = getattr(torch.optim, kind)([w], lr=0.1)
            for _ in range(2):
                (w * w).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        finally:
            torch.set_default_device(None)
        assert (w < 1).all()

    def test_likes_and_news(self) -> None:
        def program(device: str) -> list[torch.Tensor]:
            x = torch.ones(2, 3, dtype=torch.float64, device=device)
            return [
                torch.zeros_like(x),
                torch.ones_like(x, dtype=torch.int32),
                torch.full_like(x, 3),
                x.new_zeros(2),
                x.new_ones((3, 1)),
                x.new_full((2,), 5),
                x.new_tensor([1.0, 2.0]),
                x.new_zeros(2, dtype=torch.bool),
                torch.zeros_like(x.t()),
            ]

        for actual, expected in zip(program("xla"), program("cpu"), strict=True):
            check(actual, expected)
            assert actual.stride() == expected.stride() and actual.device.type == "xla"
        x = torch.ones(2, 3, device="xla")
        assert (
            x.new_empty(4).shape == (4,)
            and torch.empty_like(x).shape == (2, 3)
            and x.new_zeros(2, device="cpu").device.type == "cpu"
        )
        assert torch.zeros_like(torch.ones(2), device="xla").device.type == "xla"


class TestEdges:
    """Zero-size and 0-dim tensors, and what torch asks of any tensor."""

    def test_zero_size(self) -> None:
        x = torch.zeros(0, 3, device="xla")
        assert x.sum().item() == 0 and (x @ torch.ones(3, 2, device="xla")).shape == (0, 2)
        assert (
            torch.cat([x, torch.ones(2, 3, device="xla")]).shape == (2, 3)
            and (x + 1).tolist() == []
        )
        assert torch.zeros(0, device="xla").mean().isnan().item() and x.max(1)[0].shape == (0,)
        y = torch.zeros(0, 3, device="xla", requires_grad=True)
        (y * 2).sum().backward()
        assert y.grad.shape == (0, 3)

    def test_zero_dim(self) -> None:
        x = torch.tensor(2.0, device="xla", requires_grad=True)
        (x * x).backward()
        assert (
            x.grad.item() == 4
            and x.shape == ()
            and x[None].shape == (1,)
            and x.expand(3).tolist() == [2.0] * 3
        )
        with torch.no_grad():
            x += 1
        assert x.item() == 3 and (x.detach() + torch.ones(2, device="xla")).tolist() == [4.0, 4.0]

    def test_asked_of_any_tensor(self) -> None:
        x = torch.ones(2, 3, device="xla")
        assert isinstance(x, torch.Tensor) and torch.is_tensor(x) and x.layout is torch.strided
        assert (
            not x.is_cpu
            and not x.is_cuda
            and not x.is_sparse
            and not x.is_quantized
            and not x.is_meta
        )
        assert hash(x) == id(x) and {x: 1}[x] == 1
        assert x.is_contiguous() and not x.t().is_contiguous() and x.T.contiguous().is_contiguous()
        assert (
            x.dtype.is_floating_point
            and x.is_floating_point()
            and not x.is_complex()
            and x.ndim == 2
        )
        assert (
            torch.xla.is_available()
            and torch.xla.device_count() == 1
            and torch.xla.current_device() == 0
        )

    def test_accelerator(self) -> None:
        assert (
            torch.accelerator.current_accelerator().type == "xla"
            and torch.accelerator.is_available()
        )

    def test_numpy_scalars_and_arrays_mix(self) -> None:
        x = torch.ones(2, device="xla")
        assert (x * np.float32(2)).tolist() == [2.0, 2.0] and (x + np.int64(1)).tolist() == [
            2.0,
            2.0,
        ]

    def test_inference_mode(self) -> None:
        model = nn.Linear(2, 2).to("xla")
        with torch.inference_mode():
            y = model(torch.ones(1, 2, device="xla"))
        assert not y.requires_grad and y.shape == (1, 2) and len(y.tolist()) == 1
