"""reshard_after_forward as a number: between forward and backward parameters are sharded over some
of the devices."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from support import check
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from wrapped import FSDP, LAYERS, POLICY, Layer, Net, last_record, same_training, stack

import fsdp
import spmd
from spmd import config

WIDTH = 256
SIZE = WIDTH * WIDTH * 4


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(config, "partitioner", request.param)
    return request.param


def gathers(record: spmd.metrics.CompileRecord) -> dict[int, int]:
    """The number of gathers, by the number of devices that take part."""
    found: dict[int, int] = {}
    for row in record.traffic:
        if row.kind == "all-gather":
            found[row.devices] = found.get(row.devices, 0) + row.count
    return found


class TestReshardAfterForward:
    """`reshard_after_forward=` a number of devices."""

    def test_backward_gathers_among_neighbours(self, partitioner: str, mesh8: spmd.Mesh) -> None:
        """Memory is between that of True and False; each kept layer adds its shard."""
        plain, x = stack(WIDTH), torch.randn(16, WIDTH)
        plain(x).square().mean().backward()
        temporaries = []
        for said, expected in {
            True: {8: 2 * LAYERS - 2},
            4: {8: LAYERS, 4: LAYERS - 2},
            2: {8: LAYERS, 2: LAYERS - 2},
            False: {8: LAYERS},
        }.items():
            model = FSDP(
                copy.deepcopy(plain),
                mesh=mesh8,
                auto_wrap_policy=fsdp.always_wrap_policy,
                reshard_after_forward=said,
            )
            model.zero_grad()
            model(x.to("xla")).square().mean().backward()
            spmd.sync()
            assert gathers(last_record()) == expected, said
            assert set(last_record().collectives) == {"all-gather", "all-reduce"}
            for one, two in zip(model.parameters(), plain.parameters(), strict=True):
                check(one.grad, two.grad)
            temporaries.append(last_record().temp_bytes)
        assert temporaries == sorted(temporaries)
        for said, taken in ((4, temporaries[1]), (2, temporaries[2])):
            assert taken <= temporaries[0] + (LAYERS + 1) * SIZE // said

    def test_training_in_bfloat16(self, mesh8: spmd.Mesh) -> None:
        """The gathered cast is kept."""
        policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        grads = []
        for said in (True, 2):
            torch.manual_seed(0)
            model = nn.Sequential(Layer(16), Layer(16), nn.Linear(16, 8))
            model = FSDP(
                model,
                mesh=mesh8,
                auto_wrap_policy=POLICY,
                mp_policy=policy,
                reshard_after_forward=said,
            )
            x = torch.randn(16, 16)
            model(x.to("xla")).float().square().mean().backward()
            grads.append([parameter.grad.cpu() for parameter in model.parameters()])
        for one, two in zip(*grads, strict=True):
            assert torch.equal(one, two)

    @pytest.mark.parametrize("said", [2, 4])
    def test_training(self, said: int, partitioner: str, mesh8: spmd.Mesh) -> None:
        same_training(Net, mesh8, 16, 16, auto_wrap_policy=POLICY, reshard_after_forward=said)

    def test_uneven_dims_and_a_barrier_between(self, mesh8: spmd.Mesh) -> None:
        plain, x = nn.Sequential(nn.Linear(9, 18), nn.ReLU(), nn.Linear(18, 9)), torch.randn(8, 9)
        model = copy.deepcopy(plain)
        for layer in (model[0], model[2]):
            fsdp.fully_shard(layer, mesh=mesh8, reshard_after_forward=2)
        fsdp.fully_shard(model, mesh=mesh8)
        loss = model(x.to("xla")).square().mean()
        spmd.sync()
        loss.backward()
        plain(x).square().mean().backward()
        for one, two in zip(model.parameters(), plain.parameters(), strict=True):
            check(one.grad, two.grad)

    def test_hybrid(self) -> None:
        """The neighbours along the axis of shards, with a second axis of replicas."""
        mesh = spmd.Mesh(range(8), (2, 4), ("data", "fsdp"))
        same_training(
            Net,
            mesh,
            16,
            16,
            auto_wrap_policy=POLICY,
            reshard_after_forward=2,
            extra_data_axis="data",
        )
        assert 2 in gathers(last_record())

    def test_one_and_all(self, mesh8: spmd.Mesh) -> None:
        """One device: as False; all of them: as True."""
        for said, expected in ((1, {8: 4}), (8, {8: 6})):
            model = FSDP(
                stack(64, 4),
                mesh=mesh8,
                auto_wrap_policy=fsdp.always_wrap_policy,
                reshard_after_forward=said,
                min_shard_numel=0,
            )
            model(torch.randn(16, 64).to("xla")).square().mean().backward()
            spmd.sync()
            assert gathers(last_record()) == expected

    def test_nothing_is_kept_after_backward(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(
            stack(64, 3),
            mesh=mesh8,
            auto_wrap_policy=fsdp.always_wrap_policy,
            reshard_after_forward=2,
        )
        loss = model(torch.randn(16, 64).to("xla")).square().mean()
        loss.backward()
        before = spmd.metrics.num_compiles()
        spmd.sync()
        assert spmd.metrics.num_compiles() == before + 1
        results = last_record().output_bytes
        assert results < 2 * 3 * 64 * 64 * 4 // 8  # the gradients' shards and the loss

    def test_refused(self, mesh8: spmd.Mesh) -> None:
        layer = partial(fsdp.fully_shard, nn.Linear(8, 8), mesh=mesh8)
        with pytest.raises(ValueError, match="to divide the 8 devices of axis 'fsdp', got 3"):
            layer(reshard_after_forward=3)
        with pytest.raises(TypeError, match="True, False, a number of devices or None, got str"):
            layer(reshard_after_forward="2")

    def test_shown_and_set(self, mesh8: spmd.Mesh) -> None:
        model = fsdp.fully_shard(nn.Linear(8, 8), mesh=mesh8)
        model.set_reshard_after_forward(2)
        assert "kept after forward, split over 2" in str(fsdp.show(model))
        assert fsdp.show(model).units[0].reshards == 2
        with pytest.raises(ValueError, match="got 5"):
            model.set_reshard_after_forward(5)


class Outside(nn.Module):
    """Three units, each called by a checkpoint of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Layer(16) for _ in range(3)), nn.Linear(16, 8)
        self.how: bool | None = None  # use_reentrant; None: no checkpoint

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x) if self.how is None else checkpoint(block, x, use_reentrant=self.how)
        return self.head(x)


class TestACheckpointAround:
    """`torch.utils.checkpoint` around a unit, whose forward runs again in backward by its hooks."""

    def gradients(
        self, plain: nn.Module, x: Tensor, said: bool | int, expected: dict[int, int], **how: Any
    ) -> Any:
        model = FSDP(
            copy.deepcopy(plain), auto_wrap_policy=POLICY, reshard_after_forward=said, **how
        )
        before = spmd.metrics.num_compiles()
        model(x.to("xla").requires_grad_()).float().square().mean().backward()
        spmd.sync()
        assert spmd.metrics.num_compiles() == before + 1
        assert gathers(last_record()) == expected
        return [parameter.grad.cpu() for parameter in model.parameters()]

    @pytest.mark.parametrize(
        ("said", "expected"),
        [(2, {8: 4, 2: 3}), (False, {8: 4}), (True, {8: 7})],
        ids=["two", "no", "yes"],
    )
    def test_casts(
        self, said: bool | int, expected: dict[int, int], partitioner: str, mesh8: spmd.Mesh
    ) -> None:
        """Gathers in the same numbers, among as many devices: recompute reads the parameters
        gathered for backward."""
        plain, x = Outside(), torch.randn(16, 16)
        policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        without = self.gradients(plain, x, said, expected, mesh=mesh8, mp_policy=policy)
        plain.how = False
        for one, two in zip(
            self.gradients(plain, x, said, expected, mesh=mesh8, mp_policy=policy),
            without,
            strict=True,
        ):
            assert (one - two).norm() <= 2**-8 * two.norm()

    @pytest.mark.parametrize(("reentrant", "expected"), [(False, {8: 4, 2: 3}), (True, {8: 7})])
    def test_float32(self, reentrant: bool, expected: dict[int, int], mesh8: spmd.Mesh) -> None:
        plain, x = Outside(), torch.randn(16, 16)
        plain(x).square().mean().backward()
        model = copy.deepcopy(plain)
        model.how = reentrant
        model.zero_grad()
        for one, two in zip(
            self.gradients(model, x, 2, expected, mesh=mesh8), plain.parameters(), strict=True
        ):
            check(one, two.grad)
