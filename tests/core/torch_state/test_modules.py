"""Modules that move: `.to`, `.cpu()`, `.half()`, `.to_empty`, with all that hangs on their
parameters."""

import copy
import io
import warnings
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.distributed.fsdp
from support import check
from torch import nn
from torch.nn.utils import parametrizations

import spmd

MOVES: dict[str, tuple[str, Callable[[nn.Module], object]]] = {
    "float64": ("xla", lambda model: model.to(torch.float64)),
    "float64 and back": ("xla", lambda model: model.double().float()),
    "memory format": ("xla", lambda model: model.to(memory_format=torch.channels_last)),
    "again": ("xla", lambda model: model.to("xla")),
    "off": ("xla", lambda model: model.cpu()),
    "off and back": ("xla", lambda model: model.cpu().to("xla")),
    "on": ("cpu", lambda model: model.to("xla")),
    "on, as float64": ("cpu", lambda model: model.to("xla", torch.float64)),
}


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2))


X = torch.linspace(-1, 1, 32 * 3).view(3, 2, 4, 4)


def reference() -> list[torch.Tensor]:
    """The gradients that the forward pass of `make()` leads to."""
    model = make()
    model(X).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("how", MOVES)
class TestLiveGraph:
    """A module moves between forward and backward, as on cuda; the gradients arrive at its
    parameters as they are."""

    def test_backward_after_the_move(self, how: str) -> None:
        device, move = MOVES[how]
        model = make().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        seen = []
        weight = model[3].weight
        weight.register_hook(lambda gradient: seen.append("before"))
        weight.register_post_accumulate_grad_hook(
            lambda parameter: seen.append(parameter is weight)
        )
        loss = model(X.to(device)).square().sum()
        move(model)
        loss.backward()
        assert seen == ["before", True]
        for parameter, expected in zip(model.parameters(), reference(), strict=True):
            assert parameter.grad is not None and parameter.grad.device == parameter.device
            check(parameter.grad.cpu().float(), expected)
        before = [parameter.detach().cpu().clone() for parameter in model.parameters()]
        optimizer.step()
        for parameter, old in zip(model.parameters(), before, strict=True):
            assert not torch.equal(parameter.detach().cpu(), old)

    def test_gradients_add_up(self, how: str) -> None:
        device, move = MOVES[how]
        model = make().to(device)
        model(X.to(device)).square().sum().backward()
        loss = model(X.to(device)).square().sum()
        gradient = model[0].weight.grad
        move(model)
        assert model[0].weight.grad is gradient and gradient.dtype == model[0].weight.dtype
        loss.backward()
        for parameter, expected in zip(model.parameters(), reference(), strict=True):
            check(parameter.grad.cpu().float(), expected * 2)


class TestIdentity:
    """The Parameter objects stay, and with them weak references, ties, attributes, hooks and
    optimizers."""

    @pytest.mark.parametrize("how", MOVES)
    def test_objects(self, how: str) -> None:
        device, move = MOVES[how]
        model = make().to(device)
        model[3].tied = nn.Linear(16, 2, device=device)
        model[3].tied.weight = model[3].weight
        parameters, reference_to = list(model.parameters()), weakref.ref(model[3].weight)
        model[3].weight.no_decay = True
        model[0].requires_grad_(False)
        move(model)
        assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
        assert (
            reference_to() is model[3].weight is model[3].tied.weight and model[3].weight.no_decay
        )
        assert [parameter.requires_grad for parameter in parameters] == [
            False,
            False,
            True,
            True,
            True,
        ]
        assert all(
            isinstance(parameter, nn.Parameter) and parameter.is_leaf for parameter in parameters
        )
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        assert list(copy.deepcopy(model).state_dict()) == list(model.state_dict())

    def test_an_optimizer_goes_on(self) -> None:
        losses = []
        for device in ("cpu", "xla"):
            model = make().to(device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            for step in range(4):
                if step == 2:  # to save it, say
                    model.cpu()
                    for state in optimizer.state.values():
                        # as with cuda: an optimizer's state stays
                        assert state["exp_avg"].device.type == device
                    model.to(device)
                loss = model(X.to(device)).square().sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        assert losses[4:] == pytest.approx(losses[:4], rel=1e-4)

    def test_other_ways(self) -> None:
        model = make().to("xla")
        parameters = list(model.parameters())
        loss = model(X.to("xla")).sum()  # a graph lives
        model.to_empty(device="xla").load_state_dict(make().state_dict())
        assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
        check(model[0].weight, make()[0].weight)
        del loss
        model.load_state_dict(make().state_dict(), assign=True)
        assert all(parameter.device.type == "cpu" for parameter in model.parameters())
        model.to_empty(device="xla")
        one, other = torch.ones(2, device="xla"), torch.zeros(3, device="xla")
        torch.utils.swap_tensors(one, other)
        check(one, torch.zeros(3))
        check(other, torch.ones(2))

    def test_meta(self) -> None:
        with torch.device("meta"):
            model = nn.Linear(2, 2)
        parameters = list(model.parameters())
        with pytest.raises(NotImplementedError, match=r"use torch.nn.Module.to_empty\(\) instead"):
            model.to("xla")
        model.to_empty(device="xla")
        assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
        assert model.weight.device.type == "xla" and model.to("meta").weight.device.type == "meta"

    def test_an_optimizer_inside_backward(self) -> None:
        model = nn.Linear(2, 2, device="xla")
        optimizers = {
            parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()
        }
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda p: (optimizers[p].step(), optimizers[p].zero_grad())
            )
        loss = model(torch.ones(1, 2, device="xla")).sum()
        before = model.double().weight.detach().cpu()
        loss.backward()
        check(model.weight, before - 0.1)
        assert model.weight.grad is None

    def test_parametrized(self) -> None:
        made = {}
        for device in ("cpu", "xla"):
            torch.manual_seed(0)
            model = nn.Sequential(
                parametrizations.weight_norm(nn.Linear(4, 3)),
                parametrizations.orthogonal(nn.Linear(3, 3)),
            )
            model(torch.ones(2, 4))
            model.to(device).double()
            loss = model(torch.ones(2, 4, device=device, dtype=torch.float64)).sum()
            model.to(device)
            loss.backward()
            made[device] = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
        for actual, expected in zip(made["xla"], made["cpu"], strict=True):
            if expected is not None:
                check(actual, expected)

    def test_torchs_own_switches(self) -> None:
        try:
            torch.__future__.set_overwrite_module_params_on_conversion(True)
            model = make().to("xla")
            old = list(model.parameters())
            model.double()
            assert not any(one is other for one, other in zip(model.parameters(), old, strict=True))
            assert all(parameter.dtype == torch.float64 for parameter in model.parameters())
            torch.__future__.set_overwrite_module_params_on_conversion(False)
            torch.__future__.set_swap_module_params_on_conversion(True)
            loss = model(X.to("xla").double()).sum()
            with pytest.raises(RuntimeError, match="Couldn't swap"):
                model.float()
            loss.backward()
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(False)
            torch.__future__.set_swap_module_params_on_conversion(False)


class TestSharded:
    """A marked parameter stays marked when the dtype changes, and its gradient with it."""

    def test_dtype(self, mesh8: spmd.Mesh) -> None:
        torch.manual_seed(0)
        model = nn.Linear(16, 8).to("xla")
        spmd.mark_sharding(model.weight, mesh8, ("fsdp", None))
        text = spmd.get_sharding(model.weight).text(2)
        loss = model(torch.ones(2, 16, device="xla")).square().sum()
        model.double()
        loss.backward()
        assert spmd.get_sharding(model.weight).text(2) == text
        assert (
            spmd.get_sharding(model.weight.grad).text(2) == text
            and model.weight.grad.dtype == torch.float64
        )
        torch.manual_seed(0)
        same = nn.Linear(16, 8)
        same(torch.ones(2, 16)).square().sum().backward()
        check(model.weight.grad.float(), same.weight.grad)
        # nothing of the mesh is left on it
        model.cpu()(torch.ones(2, 16, dtype=torch.float64)).sum().backward()
        assert model.weight.grad.device.type == "cpu" and not hasattr(model.weight, "_pins_grad")


class TestBuffersThatStay:
    """A buffer that the device cannot hold (Whisper's `alignment_heads`) stays on the CPU, with a
    warning naming it."""

    def test_warning(self) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(2, 2)
                self.register_buffer(
                    "heads", torch.eye(3, dtype=torch.bool).to_sparse(), persistent=False
                )
                self.register_buffer("mean", torch.ones(2))

        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            model = nn.Sequential(Model()).to("xla")
            model.double().cpu()
        (only,) = seen
        assert str(only.message).startswith(
            "the buffer Model.heads stays on the cpu: sparse tensors are not supported"
        )
        assert only.filename == __file__
        assert model[0].heads.layout == torch.sparse_coo and model[0].mean.dtype == torch.float64

    def test_parameter(self) -> None:
        model = nn.Module()
        model.register_parameter("adjacency", nn.Parameter(torch.eye(3).to_sparse()))
        with pytest.raises(
            NotImplementedError, match=r"Module.adjacency: sparse tensors are not supported on xla"
        ):
            model.to("xla")
        embedding = nn.Embedding(3, 2, sparse=True)
        embedding(torch.tensor([1])).sum().backward()
        with pytest.raises(
            NotImplementedError, match=r"Embedding\.weight\.grad: sparse tensors are not supported"
        ):
            embedding.to("xla")
        assert (
            embedding.weight.device.type == "cpu"
            and embedding.weight.grad.layout == torch.sparse_coo
        )


def test_distributed_data_parallel_says_what_to_do_instead() -> None:
    module = torch.nn.Linear(2, 2).to("xla")
    with pytest.raises(
        NotImplementedError, match=r"needs no process group; .* fsdp\.fully_shard\(module, mesh\)"
    ):
        torch.nn.parallel.DistributedDataParallel(module)
    with pytest.raises(ValueError, match="process group"):
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
