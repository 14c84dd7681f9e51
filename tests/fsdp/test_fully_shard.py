"""fully_shard: FSDP2's keywords and methods, in place, against plain torch and against the
wrapper."""

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import check
from torch import Tensor, nn
from torch.distributed.fsdp import DataParallelMeshDims
from torch.distributed.tensor import Replicate, Shard
from wrapped import FSDP, POLICY, Layer, Net, spec, train

import fsdp
import spmd
from spmd import P, config
from spmd.core.programs import cache


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(config, "partitioner", request.param)
    return request.param


def sharded(plain: nn.Module, mesh: spmd.Mesh | None, **how: Any) -> nn.Module:
    """A copy whose blocks are units, and then the root."""
    model = copy.deepcopy(plain)
    for block in model.blocks:
        fsdp.fully_shard(block, mesh=mesh, **how)
    return fsdp.fully_shard(model, mesh=mesh, **how)


def same_gradients(ours: nn.Module, plain: nn.Module, x: Tensor) -> None:
    y, expected = ours(x.to("xla")), plain(x)
    y.square().mean().backward()
    expected.square().mean().backward()
    check(y, expected)
    for (name, one), other in zip(ours.named_parameters(), plain.parameters(), strict=True):
        check(one.grad, other.grad)
        assert spmd.get_sharding(one.grad) is spmd.get_sharding(one), name


def gathers() -> int:
    program = cache.last_program()
    assert program is not None and program.record is not None
    return program.record.collectives["all-gather"]


class TestModule:
    """module: in place; a subclass with FSDPModule, the same names, parameters and numbers."""

    def test_trains_as_plain_torch(self, partitioner: str, mesh8: spmd.Mesh) -> None:
        plain, x = Net(), torch.randn(16, 16)
        model = sharded(plain, mesh8)
        assert train(model, x.to("xla")) == pytest.approx(train(plain, x), rel=1e-5)
        for (name, value), (other, expected) in zip(
            model.state_dict().items(), plain.state_dict().items(), strict=True
        ):
            assert name == other
            check(value, expected)

    def test_gradients(self, mesh8: spmd.Mesh) -> None:
        plain = Net()
        same_gradients(sharded(plain, mesh8), plain, torch.randn(16, 16))

    def test_in_place(self, mesh8: spmd.Mesh) -> None:
        net = Net()
        parameters = list(net.parameters())
        assert fsdp.fully_shard(net, mesh=mesh8) is net
        assert all(one is other for one, other in zip(net.parameters(), parameters, strict=True))
        assert (
            type(net).__name__ == "FSDPNet"
            and isinstance(net, Net)
            and isinstance(net, fsdp.FSDPModule)
        )
        assert spec(net.head.weight) == (None, "fsdp") and spec(net.scale) == (None,)

    def test_the_same_program_as_the_wrappers(self, mesh8: spmd.Mesh) -> None:
        plain, x = Net(width=40), torch.randn(16, 40).to("xla")
        losses = train(FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy=POLICY), x, steps=2)
        known = spmd.metrics.num_compiles()
        assert train(sharded(plain, mesh8), x, steps=2) == losses
        assert spmd.metrics.num_compiles() == known

    def test_a_parameter_stays_in_the_unit_below(self, mesh8: spmd.Mesh) -> None:
        model = sharded(Net(), mesh8)
        root, first, second = fsdp.show(model).units
        assert [row.names for row in root.parameters] == [("head.weight",), ("head.bias",)]
        assert (first.name, second.name) == ("blocks.0", "blocks.1")

    def test_a_list_is_one_unit(self, mesh8: spmd.Mesh) -> None:
        plain = Net()
        model = copy.deepcopy(plain)
        assert fsdp.fully_shard([model.blocks[0], model.blocks[1]], mesh=mesh8) == [
            model.blocks[0],
            model.blocks[1],
        ]
        fsdp.fully_shard(model, mesh=mesh8)
        assert [unit.name for unit in fsdp.show(model).units] == ["", "blocks.0, blocks.1"]
        same_gradients(model, plain, torch.randn(16, 16))

    def test_slices_of_a_container_are_plain(self, mesh8: spmd.Mesh) -> None:
        model = fsdp.fully_shard(
            nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), mesh=mesh8
        )
        assert type(model[:2]) is nn.Sequential

    def test_copies_and_pickles(self, mesh8: spmd.Mesh) -> None:
        model, x = sharded(Net(), mesh8), torch.randn(16, 16).to("xla")
        train(model, x, steps=1)
        stored = io.BytesIO()
        torch.save(model, stored)
        stored.seek(0)
        expected = model(x).detach().cpu()
        for other in (copy.deepcopy(model), torch.load(stored, weights_only=False)):
            assert type(other) is type(model) and type(other.blocks[0]) is type(model.blocks[0])
            assert spec(other.blocks[0].up.weight) == ("fsdp", None)
            check(other(x), expected)
            train(other, x, steps=1)
        check(model(x), expected)

    def test_meta_waits_for_to_empty(self, mesh8: spmd.Mesh) -> None:
        plain = Net()
        with torch.device("meta"):
            net = Net()
        model = sharded(net, mesh8)
        assert model.head.weight.is_meta
        with pytest.raises(RuntimeError, match=r'call .to_empty\(device="xla"\)'):
            model(torch.randn(8, 16).to("xla"))
        model.to_empty(device="xla")
        assert not any(model.load_state_dict(plain.state_dict()))
        assert spec(model.blocks[1].down.weight) == (None, "fsdp")
        x = torch.randn(16, 16)
        assert train(model, x.to("xla")) == pytest.approx(train(plain, x), rel=1e-5)

    def test_another_dtype(self, mesh8: spmd.Mesh) -> None:
        plain, x = Net(), torch.randn(8, 16, dtype=torch.float64)
        model = sharded(plain, mesh8).to(torch.float64)
        assert spec(model.head.weight) == (None, "fsdp")
        assert train(model, x.to("xla")) == pytest.approx(
            train(plain.to(torch.float64), x), rel=1e-9
        )

    @pytest.mark.parametrize(
        ("given", "error", "said"),
        [
            (lambda: 3, TypeError, "expected a torch.nn.Module or a list of them, got int"),
            (lambda: [], ValueError, "expected at least one module"),
            (lambda: nn.ModuleList([nn.Linear(2, 2)]), ValueError, "ModuleList has no forward"),
        ],
    )
    def test_refused(
        self, given: Callable[[], Any], error: type[Exception], said: str, mesh8: spmd.Mesh
    ) -> None:
        with pytest.raises(error, match=said):
            fsdp.fully_shard(given(), mesh=mesh8)

    def test_once(self, mesh8: spmd.Mesh) -> None:
        layer = fsdp.fully_shard(nn.Linear(8, 8), mesh=mesh8)
        with pytest.raises(ValueError, match="is a unit of fsdp already"):
            fsdp.fully_shard(layer, mesh=mesh8)


class TestMesh:
    """mesh, dp_mesh_dims, shard_axis, extra_data_axis: the axis of shards and the axis of
    replicas."""

    def test_default(self) -> None:
        assert spec(fsdp.fully_shard(nn.Linear(8, 16)).weight) == ("fsdp", None)

    def test_one_axis_of_any_name(self) -> None:
        layer = fsdp.fully_shard(nn.Linear(8, 16), mesh=spmd.Mesh(range(8), (8,), ("ring",)))
        assert spec(layer.weight) == ("ring", None)

    def test_two_axes_are_replicas_and_shards(self, partitioner: str) -> None:
        plain = Net()
        model = sharded(plain, spmd.Mesh(range(8), (2, 4), ("replicate", "shard")))
        assert spec(model.head.weight) == (None, "shard")
        assert spec(model(torch.randn(16, 16).to("xla"))) == (("replicate", "shard"), None)
        same_gradients(model, plain, torch.randn(16, 16))

    @pytest.mark.parametrize(
        "how",
        [
            {"dp_mesh_dims": DataParallelMeshDims(shard="fsdp", replicate="data")},
            {"shard_axis": "fsdp", "extra_data_axis": "data"},
            {},
        ],
    )
    def test_named(self, how: dict[str, Any], mesh2x4: spmd.Mesh) -> None:
        model = fsdp.fully_shard(Net(), mesh=mesh2x4, **how)
        assert spec(model(torch.randn(16, 16).to("xla"))) == (("data", "fsdp"), None)

    def test_unknown_axis(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(
            ValueError, match=r"fully_shard: the mesh has no axis 'model' \(axes: fsdp\)"
        ):
            fsdp.fully_shard(nn.Linear(8, 8), mesh=mesh8, shard_axis="model")


class TestReshardAfterForward:
    """reshard_after_forward: None frees in all units but the root, True in all, False in none."""

    def gathers_of(self, mesh: spmd.Mesh, prepare: Callable[[nn.Module], None], **how: Any) -> int:
        model = nn.Sequential(*(nn.Linear(264, 264, bias=False) for _ in range(3)))
        for layer in model[:2]:
            fsdp.fully_shard(layer, mesh=mesh, **how)
        prepare(fsdp.fully_shard(model, mesh=mesh, **how))
        model(torch.randn(16, 264).to("xla")).square().mean().backward()
        spmd.sync()
        return gathers()

    def test_values(self, mesh8: spmd.Mesh) -> None:
        def nothing(model: nn.Module) -> None: ...

        # the first's input needs no gradient, the root keeps its own
        assert self.gathers_of(mesh8, nothing) == 3 + 1
        assert self.gathers_of(mesh8, nothing, reshard_after_forward=False) == 3

    def test_set_later(self, mesh8: spmd.Mesh) -> None:
        assert self.gathers_of(mesh8, lambda model: model.set_reshard_after_forward(False)) == 3
        assert (
            self.gathers_of(
                mesh8, lambda model: model.set_reshard_after_forward(False, recurse=False)
            )
            == 4
        )
        with pytest.raises(
            TypeError,
            match=r"expected reshard_after_forward to be True, False, a number .*, got float",
        ):
            fsdp.fully_shard(nn.Linear(2, 2), mesh=mesh8).set_reshard_after_forward(1.0)

    def test_a_root_has_no_unit_above(self, mesh8: spmd.Mesh) -> None:
        block = fsdp.fully_shard(Layer(16), mesh=mesh8)
        assert not fsdp.show(block).units[0].reshards
        model = fsdp.fully_shard(nn.Sequential(block, nn.Linear(16, 8)), mesh=mesh8)
        block(torch.randn(8, 16).to("xla"))  # alone
        assert [unit.reshards for unit in fsdp.show(model).units] == [False, True]

    def test_wrong_type(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(
            TypeError,
            match=(
                "expected reshard_after_forward to be True, False, a number of devices or None, "
                "got str"
            ),
        ):
            fsdp.fully_shard(nn.Linear(2, 2), mesh=mesh8, reshard_after_forward="yes")


class TestShardPlacementFn:
    """shard_placement_fn: a rule of the user's, parameter by parameter."""

    RULES = (
        (lambda parameter: Shard(0), ("fsdp", None)),
        (lambda parameter: Shard(-1), (None, "fsdp")),
        (lambda parameter: 1 if parameter.dim() == 2 else None, (None, "fsdp")),
        (lambda parameter: Replicate(), (None, None)),
        (lambda parameter: P(*[None] * (parameter.dim() - 1), "fsdp"), (None, "fsdp")),
        (lambda parameter: None, ("fsdp", None)),
    )

    @pytest.mark.parametrize(("rule", "expected"), RULES)
    def test_rules(
        self, rule: Callable[[nn.Parameter], Any], expected: tuple[Any, ...], mesh8: spmd.Mesh
    ) -> None:
        plain = Net()
        model = sharded(plain, mesh8, shard_placement_fn=rule)
        assert spec(model.blocks[0].up.weight) == expected
        same_gradients(model, plain, torch.randn(16, 16))

    def test_an_uneven_dim_is_padded(self, mesh8: spmd.Mesh) -> None:
        plain = nn.Linear(10, 12)
        model = fsdp.fully_shard(
            copy.deepcopy(plain), mesh=mesh8, shard_placement_fn=lambda parameter: Shard(0)
        )
        assert [len(shard.unpadded_data) for shard in spmd.local_shards(model.weight)] == [
            2
        ] * 6 + [0] * 2
        same_gradients(model, plain, torch.randn(16, 10))

    @pytest.mark.parametrize(
        ("rule", "error", "said"),
        [
            (lambda parameter: Shard(2), ValueError, r"a parameter of shape \(8, 8\) has no dim 2"),
            (lambda parameter: "rows", TypeError, "or None, got 'rows'"),
        ],
    )
    def test_refused(self, rule: Any, error: type[Exception], said: str, mesh8: spmd.Mesh) -> None:
        with pytest.raises(error, match=said):
            fsdp.fully_shard(nn.Linear(8, 8), mesh=mesh8, shard_placement_fn=rule)

    def test_a_dim_that_is_split_already(self) -> None:
        mesh = spmd.Mesh(range(8), (4, 2), ("fsdp", "tensor"))
        layer = nn.Linear(8, 8, bias=False).to("xla")
        spmd.mark_sharding(layer.weight, mesh, ("tensor", None))
        with pytest.raises(ValueError, match="is sharded over 'tensor' already"):
            fsdp.fully_shard(
                layer, mesh=mesh, shard_axis="fsdp", shard_placement_fn=lambda parameter: 0
            )


class TestIgnoredParams:
    """ignored_params: neither sharded nor gathered."""

    def test_whole(self, mesh8: spmd.Mesh) -> None:
        plain = Net()
        model = copy.deepcopy(plain)
        fsdp.fully_shard(model, mesh=mesh8, ignored_params={model.head.weight})
        assert spec(model.head.weight) == (None, None) and spec(model.blocks[0].up.weight) == (
            "fsdp",
            None,
        )
        (unit,) = fsdp.show(model).units
        assert [row.names for row in unit.parameters if "ignored" in row.notes] == [
            ("head.weight",)
        ]
        same_gradients(model, plain, torch.randn(16, 16))


class TestMinShardNumel:
    """min_shard_numel: small parameters stay replicated."""

    def test_threshold(self, mesh8: spmd.Mesh) -> None:
        plain = Net()
        model = sharded(plain, mesh8, min_shard_numel=512)
        assert spec(model.blocks[0].up.weight) == ("fsdp", None)
        assert spec(model.blocks[0].up.bias) == (None,) and spec(model.head.weight) == (None, None)
        same_gradients(model, plain, torch.randn(16, 16))


class TestOffloadPolicy:
    """offload_policy: parameters are in the host's memory between uses."""

    def test_trains_alike(self, mesh8: spmd.Mesh) -> None:
        plain, x = Net(), torch.randn(16, 16)
        model = sharded(plain, mesh8, offload_policy=fsdp.CPUOffloadPolicy())
        optimizer = spmd.offload_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2))
        assert train(model, x.to("xla"), optimizer=optimizer) == pytest.approx(
            train(plain, x), rel=1e-5
        )
        for parameter in model.parameters():
            held = (parameter, optimizer.state[parameter]["exp_avg"])
            assert {spmd.get_sharding(tensor).memory for tensor in held} == {"pinned_host"}
        assert spec(model.head.weight) == (None, "fsdp")

    def test_unpinned_is_pinned(self, capfd: pytest.CaptureFixture[str]) -> None:
        policy = fsdp.CPUOffloadPolicy(pin_memory=False)
        layer = fsdp.fully_shard(torch.nn.Linear(8, 8), offload_policy=policy)
        sharding = spmd.get_sharding(layer.weight)
        assert sharding is not None and sharding.memory == "pinned_host"
        assert "CPUOffloadPolicy: pin_memory=False has no effect" in capfd.readouterr().err


class TestMethods:
    """The methods of FSDPModule."""

    def test_unshard_and_reshard(self, mesh8: spmd.Mesh) -> None:
        plain, x = Net(), torch.randn(16, 16)
        model = sharded(plain, mesh8)
        handle = model.blocks[0].unshard(async_op=True)
        handle.wait()
        assert spec(model.blocks[0].up.weight) == (None, None) and spec(
            model.blocks[1].up.weight
        ) == ("fsdp", None)
        same_gradients(model, plain, x)
        assert spec(model.blocks[0].up.weight) == ("fsdp", None)  # after its forward
        assert model.unshard() is None
        assert spec(model.head.weight) == (None, None)
        model.reshard()
        assert spec(model.head.weight) == (None, "fsdp")

    @pytest.mark.parametrize(
        "method", ["set_gradient_divide_factor", "set_reduce_scatter_divide_factor"]
    )
    def test_set_gradient_divide_factor(self, method: str, mesh8: spmd.Mesh) -> None:
        """By default the sum over eight shards of the batch is divided by eight."""
        plain, x = Net(), torch.randn(16, 16)
        model = sharded(plain, mesh8)
        getattr(model, method)(2.0)
        for _ in range(2):  # a gradient that exists already is not scaled again
            model(x.to("xla")).square().mean().backward()
            plain(x).square().mean().backward()
        check(model.head.weight.grad, 4 * plain.head.weight.grad)
        check(model.blocks[0].up.weight.grad, plain.blocks[0].up.weight.grad)

    def test_without_meaning(self, mesh8: spmd.Mesh) -> None:
        model = sharded(Net(), mesh8)
        with pytest.warns(
            UserWarning, match=r"set_modules_to_forward_prefetch \(XLA schedules the collectives"
        ):
            model.set_modules_to_forward_prefetch([model.blocks[0]])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.set_modules_to_forward_prefetch([model.blocks[0]])

    def test_set_requires_gradient_sync(self, mesh8: spmd.Mesh) -> None:
        """Accumulated gradients are those of the big batch, whatever a loop sets for their
        reduction."""
        plain, x = Net(), torch.randn(32, 16)
        model = sharded(plain, mesh8)
        for index, part in enumerate(x.to("xla").chunk(2)):
            model.set_requires_gradient_sync(index == 1)
            (model(part).square().mean() / 2).backward()
        plain(x).square().mean().backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            check(one.grad, other.grad)
            assert spmd.get_sharding(one.grad) == spmd.get_sharding(one)

    def test_register_fsdp_forward_method(self, mesh8: spmd.Mesh) -> None:
        class Encoder(Layer):
            def encode(self, x: Tensor) -> Tensor:
                return self.up(x).relu()

        plain, x = Encoder(16), torch.randn(16, 16)
        model = fsdp.fully_shard(copy.deepcopy(plain), mesh=mesh8)
        fsdp.register_fsdp_forward_method(model, "encode")
        y = model.encode(x.to("xla"))
        assert spec(y) == ("fsdp", None)
        check(y, plain.encode(x))
        copied = copy.deepcopy(model)
        assert copied.encode.module is copied
        with pytest.raises(ValueError, match="has no method 'decode'"):
            fsdp.register_fsdp_forward_method(model, "decode")
        fsdp.register_fsdp_forward_method(plain, "decode")  # a plain module stays as it is


class TestMpPolicy:
    """mp_policy: float32 masters, computed in bfloat16; the wrapper's program."""

    def test_as_the_wrapper(self, mesh8: spmd.Mesh) -> None:
        policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
        stack = nn.Sequential(*(Layer(24) for _ in range(2)))
        x = torch.randn(16, 24).to("xla")
        wrapped = FSDP(copy.deepcopy(stack), mesh=mesh8, auto_wrap_policy={Layer}, mp_policy=policy)
        losses = train(wrapped, x, steps=2)
        known = spmd.metrics.num_compiles()
        for layer in stack:
            fsdp.fully_shard(layer, mesh=mesh8, mp_policy=policy)
        fsdp.fully_shard(stack, mesh=mesh8, mp_policy=policy)
        assert train(stack, x, steps=2) == losses
        assert spmd.metrics.num_compiles() == known
        assert stack[0].up.weight.dtype == torch.float32
        with torch.no_grad():
            check(copy.deepcopy(stack)(x), stack(x).cpu())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = (
            nn.Embedding(32, 16),
            Layer(16),
            nn.Linear(16, 32, bias=False),
        )
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.embed(tokens)))


class TestTied:
    """A weight that two units share."""

    @pytest.mark.parametrize("units", [("embed", "body", "head"), ("body", "head"), ("body",)])
    def test_across_units(self, units: tuple[str, ...], partitioner: str, mesh8: spmd.Mesh) -> None:
        plain, tokens = Tied(), torch.randint(32, (16, 4))
        model = copy.deepcopy(plain)
        for name in units:
            fsdp.fully_shard(getattr(model, name), mesh=mesh8)
        fsdp.fully_shard(model, mesh=mesh8)
        assert model.head.weight is model.embed.weight
        assert train(model, tokens.to("xla")) == pytest.approx(train(plain, tokens), rel=1e-5)
        check(model.head.weight, plain.head.weight)
        if units == ("body",):
            same_gradients(model, plain, tokens)


class TestElsewhere:
    """Units in loops of the program, and over devices that are not present."""

    def test_scanned_layers(self, mesh8: spmd.Mesh) -> None:
        class Scanned(Net):
            def forward(self, x: Tensor) -> Tensor:
                return self.head(spmd.scan_layers(list(self.blocks), x) * self.scale)

        plain, x = Net(blocks=3), torch.randn(16, 16)
        scanned = Scanned(blocks=3)
        scanned.load_state_dict(plain.state_dict())
        assert train(sharded(scanned, mesh8), x.to("xla")) == pytest.approx(
            train(plain, x), rel=1e-5
        )

    def test_planned(self) -> None:
        """A step is planned as a wrapper's is; a model on meta needs no values."""
        far = spmd.Mesh(range(16), (16,), ("fsdp",), target="cpu:16")
        plans = []
        for how in ("wrapper", "in place"):
            with torch.device("meta"):
                net = Net(width=64)
            is_wrapper = how == "wrapper"
            model = (
                FSDP(net, mesh=far, auto_wrap_policy={Layer}) if is_wrapper else sharded(net, far)
            )
            x = spmd.mark_sharding(torch.ones(32, 64, device="xla"), far, ("fsdp", None))

            def step(model: nn.Module = model, x: Tensor = x) -> None:
                model(x).square().mean().backward()

            plans.append(spmd.plan(step))
        one, other = plans
        assert one.parameters == other.parameters > 0 and one.temporaries == other.temporaries
        assert (
            [row.bytes for row in one.collectives] == [row.bytes for row in other.collectives] != []
        )
