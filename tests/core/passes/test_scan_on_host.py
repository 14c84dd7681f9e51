"""Rolled layers and the host's memory: what they keep there between the passes, weights and state
that lie there."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import pytest
import torch
from torch import Tensor, nn

import fsdp
import spmd
from spmd.core.programs import cache

HOST = "pinned_host"
WIDTH, LAYERS = 16, 4
OFFLOAD = spmd.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_offloaded=["wide"]
)


@pytest.fixture(params=["gspmd", "shardy"], autouse=True)
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    spmd.sync()
    monkeypatch.setattr(spmd.config, "partitioner", request.param)
    monkeypatch.setattr(spmd.config, "scan_layers", "always")
    cache.clear_cache()
    yield
    spmd.sync()


class Layer(nn.Module):
    """A residual block whose wide value has a name."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(spmd.checkpoint_name(self.up(x), "wide")))


class Through(Layer):
    """A block that hands its result on in the host's memory."""

    def forward(self, x: Tensor) -> Tensor:
        return spmd.place_to_host(super().forward(x))


class OnHost(nn.Module):
    """A layer whose saved values wait on the host, as torch spells it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            return self.layer(x)


MODELS: dict[str, Callable[[], list[nn.Module]]] = {
    "policy": lambda: [spmd.remat(Layer(), policy=OFFLOAD) for _ in range(LAYERS)],
    "placed": lambda: [Through() for _ in range(LAYERS)],
    "save_on_cpu": lambda: [OnHost() for _ in range(LAYERS)],
    "plain": lambda: [Layer() for _ in range(LAYERS)],
}


def layers_of(name: str) -> nn.Sequential:
    """Equal layers between an entry and a head."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, WIDTH), *MODELS[name](), nn.Linear(WIDTH, 4))


def inner(model: nn.Module) -> list[Any]:
    """The parameters of the equal layers."""
    return list(model.parameters())[2:-2]


def batches() -> list[Tensor]:
    draws = torch.Generator().manual_seed(1)
    return [torch.randn(8, 8, generator=draws) for _ in range(3)]


def kinds(tensors: list[Tensor]) -> set[str]:
    """The memories that the buffers themselves say they are in."""
    return {tensor._storage.value.placed()[0].sharding.memory_kind for tensor in tensors}


def moments(optimizer: torch.optim.Optimizer, parameters: list[Any]) -> list[Any]:
    return [
        value for weight in parameters for value in optimizer.state[weight].values() if value.dim()
    ]


def expected(make: Callable[..., torch.optim.Optimizer]) -> nn.Sequential:
    """The plain model trained by torch on the CPU."""
    model = layers_of("plain")
    optimizer = make(model.parameters())
    for batch in batches():
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def iterations() -> list[int]:
    *_, step = [
        record for record in spmd.metrics.compiles() if record.name == "step" and record.nodes > 20
    ]
    return [count for count, _ in step.loops]


def same(model: nn.Module, other: nn.Module) -> None:
    for one, wanted in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.detach().cpu(), wanted.detach(), rtol=2e-4, atol=2e-5)


ADAM = partial(torch.optim.AdamW, lr=1e-2)
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what programs take from the host to the device, as they are lowered."""
    shapes: list[tuple[int, ...]] = []
    put = jax.device_put

    def noted(array: Any, place: Any = None, **given: Any) -> Any:
        if place is jax.memory.Space.Device:
            shapes.append(array.shape)
        return put(array, place, **given)

    monkeypatch.setattr(jax, "device_put", noted)
    return shapes


def is_stack(shape: tuple[int, ...]) -> bool:
    """True for rows of one of the equal layers' matrices."""
    return shape[1:] in ((2 * WIDTH, WIDTH), (WIDTH, 2 * WIDTH))


class TestActivations:
    """A value that an iteration leaves on the host is a row of a stack there; backward's iteration
    reads its own."""

    @pytest.mark.parametrize("name", ["policy", "placed", "save_on_cpu"])
    def test_trained(self, name: str, mesh8: spmd.Mesh) -> None:
        model = fsdp.FullyShardedDataParallel(
            layers_of(name),
            mesh=mesh8,
            auto_wrap_policy=partial(
                fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Layer, Through}
            ),
        )
        optimizer = SGD(model.parameters())
        spmd.metrics.clear()
        for batch in batches():
            model(batch.to("xla")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            spmd.sync()
        assert iterations()[:2] == [LAYERS, LAYERS]
        same(model, expected(SGD))


class TestState:
    """Leaves that lie on the host are rows of stacks there; a step's program takes and gives them
    so."""

    @pytest.mark.parametrize(
        "how", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=str
    )
    def test_offloaded_moments(
        self, how: dict[str, bool], mesh8: spmd.Mesh, fetched: list[tuple[int, ...]]
    ) -> None:
        make = partial(ADAM, **how)
        trained = []
        for is_offloaded in (False, True):
            wrap = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Layer})
            model = fsdp.FullyShardedDataParallel(
                layers_of("plain"), mesh=mesh8, auto_wrap_policy=wrap
            )
            optimizer = make(model.parameters())
            if is_offloaded:
                spmd.offload_optimizer(optimizer)
            spmd.metrics.clear()
            compiled = []
            for batch in batches():
                model(batch.to("xla")).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                spmd.sync()
                compiled.append(spmd.metrics.num_compiles())
            assert compiled[1] == compiled[2], "the steady step is one program"
            assert iterations()[:2] == [LAYERS, LAYERS]
            trained.append([*model.parameters(), *moments(optimizer, inner(model))])
        state = moments(optimizer, inner(model))
        stores = [value._storage.value.store for value in state]
        # The loop of one parameter after the other ends before the last one, on the device, too.
        assert None not in (stores[:-2] if how.get("foreach") is False else stores), (
            "moments are rows of stacks"
        )
        assert kinds(state) == {HOST}
        assert {store.buffer.sharding.memory_kind for store in stores if store is not None} == {
            HOST
        }
        same(model, expected(make))
        for one, other in zip(*trained, strict=True):
            # XLA fuses other ops with each other, and a fused one rounds once.
            torch.testing.assert_close(
                one.detach().cpu(), other.detach().cpu(), rtol=1e-5, atol=1e-6
            )
        assert fetched and not any(map(is_stack, fetched)), "a row at a time"

    def test_a_row_is_read_written_and_saved(self, mesh8: spmd.Mesh) -> None:
        """A single layer's moment is data like any other, on the host, while its family is a
        stack."""
        model = layers_of("plain").to("xla")
        for weight in model.parameters():
            spmd.mark_sharding(
                weight, mesh8, ("fsdp", *[None] * (weight.dim() - 1)), memory_kind="device"
            )
        optimizer = spmd.offload_optimizer(ADAM(model.parameters()))
        other = layers_of("plain")
        reference = ADAM(other.parameters())
        for number, batch in enumerate(batches()):
            for one, chosen, given in (
                (model, optimizer, batch.to("xla")),
                (other, reference, batch),
            ):
                one(given).square().mean().backward()
                chosen.step()
                chosen.zero_grad()
                if number == 1:
                    chosen.state[one[1].up.weight]["exp_avg"].mul_(0.5)  # type: ignore[index,union-attr]
            spmd.sync()
        moments_of_both = moments(optimizer, inner(model)), moments(reference, inner(other))
        for one, wanted in zip(*moments_of_both, strict=True):
            assert spmd.get_sharding(one).memory == HOST
            torch.testing.assert_close(one.cpu(), wanted, rtol=2e-4, atol=2e-6)
        same(model, other)
        saved = optimizer.state_dict()["state"][0]["exp_avg"]
        torch.testing.assert_close(
            saved.cpu(), reference.state_dict()["state"][0]["exp_avg"], rtol=2e-4, atol=2e-6
        )

    def test_weights_on_the_host(self, mesh8: spmd.Mesh) -> None:
        """Parameters marked so: forward and backward read a row at a time, the update goes back."""
        model = layers_of("plain").to("xla")
        for weight in model.parameters():
            spmd.mark_sharding(
                weight, mesh8, ("fsdp", *[None] * (weight.dim() - 1)), memory_kind=HOST
            )
        optimizer = SGD(model.parameters())
        spmd.metrics.clear()
        for batch in batches():
            model(batch.to("xla")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            spmd.sync()
        assert iterations()[:2] == [LAYERS, LAYERS]
        weights = inner(model)
        assert all(weight._storage.value.store is not None for weight in weights)
        assert kinds(weights) == {HOST}
        same(model, expected(SGD))

    @pytest.mark.parametrize("foreach", [True, False])
    def test_all_on_the_host(
        self, foreach: bool, mesh8: spmd.Mesh, fetched: list[tuple[int, ...]]
    ) -> None:
        """FSDP's offloaded parameters, their gradients, whose norm is clipped, and moments: rows,
        all of them."""
        model = fsdp.FullyShardedDataParallel(
            layers_of("plain"),
            mesh=mesh8,
            auto_wrap_policy=partial(
                fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Layer}
            ),
            offload_policy=fsdp.CPUOffloadPolicy(),
        )
        other = layers_of("plain")
        optimizer = spmd.offload_optimizer(ADAM(model.parameters(), foreach=foreach))
        reference = ADAM(other.parameters())
        for one, chosen, device in ((model, optimizer, "xla"), (other, reference, "cpu")):
            for batch in batches():
                one(batch.to(device)).square().mean().backward()
                nn.utils.clip_grad_norm_(one.parameters(), 0.1)
                chosen.step()
                chosen.zero_grad()
                spmd.sync()
        assert kinds([*inner(model), *moments(optimizer, inner(model))]) == {HOST}
        same(model, other)
        assert fetched and not any(map(is_stack, fetched)), "a row at a time"

    def test_a_frozen_layer(self, mesh8: spmd.Mesh, fetched: list[tuple[int, ...]]) -> None:
        """Loops over a part of a stack leave its other rows where they are."""

        def frozen() -> nn.Sequential:
            torch.manual_seed(0)
            model = nn.Sequential(
                nn.Linear(8, WIDTH), *(Layer() for _ in range(7)), nn.Linear(WIDTH, 4)
            )
            model[4].requires_grad_(False)
            return model

        model, other = frozen().to("xla"), frozen()
        for weight in model.parameters():
            spmd.mark_sharding(
                weight, mesh8, ("fsdp", *[None] * (weight.dim() - 1)), memory_kind=HOST
            )
        trained: list[list[Any]] = [
            [weight for weight in one.parameters() if weight.requires_grad]
            for one in (model, other)
        ]
        optimizer = spmd.offload_optimizer(ADAM(trained[0], foreach=True))
        reference = ADAM(trained[1])
        for one, chosen, device in ((model, optimizer, "xla"), (other, reference, "cpu")):
            for batch in batches():
                one(batch.to(device)).square().mean().backward()
                chosen.step()
                chosen.zero_grad()
                spmd.sync()
        same(model, other)
        assert fetched and not any(map(is_stack, fetched))
