"""Modules that compute in float32 within a model of lower precision, as in torch's own FSDP."""

import copy
import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDPOfTorch
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from wrapped import FSDP, Net

import fsdp
import spmd
from spmd import config

BF16 = torch.bfloat16


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(config, "partitioner", request.param)
    return request.param


@pytest.fixture
def group_of_one() -> Iterator[None]:
    """torch's FSDP needs a process group; this one has one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Normed(nn.Module):
    """Two norms with weights that bfloat16 would round."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.batch_norm = nn.LayerNorm(width), nn.BatchNorm1d(2 * width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        for norm in (self.norm, self.batch_norm):
            nn.init.normal_(norm.weight, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.batch_norm(self.up(self.norm(x)).relu()))


def build() -> nn.Module:
    return nn.Sequential(Normed(16), Normed(16), nn.Linear(16, 8))


def step(model: nn.Module, x: Tensor) -> Tensor:
    y = model(x)
    y.float().square().mean().backward()
    return y.detach()


class TestModuleClassesToIgnore:
    """`_module_classes_to_ignore` of `torch.distributed.fsdp.MixedPrecision`."""

    @pytest.mark.parametrize(
        "kinds", [(nn.LayerNorm, nn.BatchNorm1d), (nn.modules.batchnorm._BatchNorm,)]
    )
    def test_equals_fsdp_of_torch(
        self,
        kinds: tuple[type[nn.Module], ...],
        partitioner: str,
        group_of_one: None,
        mesh8: spmd.Mesh,
    ) -> None:
        plain, x = build(), torch.randn(16, 16)
        requested = MixedPrecision(BF16, buffer_dtype=BF16, _module_classes_to_ignore=kinds)
        with warnings.catch_warnings():
            # torch's warnings, about its older FSDP and about one process
            warnings.simplefilter("ignore")
            theirs = FSDPOfTorch(
                copy.deepcopy(plain),
                auto_wrap_policy=ModuleWrapPolicy({Normed}),
                mixed_precision=requested,
                device_id=torch.device("cpu"),
                use_orig_params=True,
            )
            expected = step(theirs, x)
        ours = FSDP(plain, mesh8, auto_wrap_policy={Normed}, mixed_precision=requested)
        y = step(ours, x.to("xla"))
        assert y.dtype == expected.dtype == BF16
        assert (y.cpu() - expected).abs().max() <= 0.01 * expected.abs().max()
        for (name, one), two in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert one.grad.dtype == two.grad.dtype == torch.float32
            # The error of computing in bfloat16; torch also sums norms of bfloat16 in it.
            assert (one.grad.cpu() - two.grad).norm() < 0.06 * two.grad.norm(), name
            if name.endswith("weight"):
                is_kept = isinstance(plain.get_submodule(name.removesuffix(".weight")), kinds)
                assert bool((one.grad.cpu() == one.grad.cpu().to(BF16)).all()) != is_kept, name
        buffers = dict(ours.named_buffers())
        assert {buffer.dtype for buffer in buffers.values() if buffer.is_floating_point()} == {
            torch.float32
        }

    def test_units_of_their_own(self, mesh8: spmd.Mesh) -> None:
        requested = MixedPrecision(BF16, _module_classes_to_ignore=(nn.LayerNorm,))
        units = fsdp.show(
            FSDP(build(), mesh8, auto_wrap_policy={Normed}, mixed_precision=requested)
        ).units
        assert [unit.name for unit in units] == ["", "0", "0.norm", "1", "1.norm"]
        assert units[2].gathered_bytes == 2 * 16 * 4
        assert units[1].gathered_bytes == 2 * (2 * 16 * 32 + 32 + 16 + 2 * 32)

    def test_what_a_policy_gives_them_gives_way(self, mesh8: spmd.Mesh) -> None:
        model = build()
        model[0].norm._wrap_overrides = {
            "mp_policy": fsdp.MixedPrecisionPolicy(BF16),
            "min_shard_numel": 100,
        }
        requested = MixedPrecision(BF16, _module_classes_to_ignore=(nn.LayerNorm,))
        shown = fsdp.show(
            FSDP(model, mesh8, auto_wrap_policy=fsdp.always_wrap_policy, mixed_precision=requested)
        )
        (norm,) = [unit for unit in shown.units if unit.name == "0.norm"]
        assert norm.gathered_bytes == 2 * 16 * 4
        assert norm.parameters[0].kept_bytes == 16 * 4

    def test_without_a_policy(self, mesh8: spmd.Mesh) -> None:
        """It does nothing, as in torch; a warning names classes that are not the default."""
        FSDP(Net(), mesh8, mixed_precision=MixedPrecision(BF16))
        requested = MixedPrecision(BF16, _module_classes_to_ignore=(nn.LayerNorm,))
        with pytest.warns(
            UserWarning, match=r"_module_classes_to_ignore=LayerNorm \(as in torch, without an"
        ):
            model = FSDP(Net(), mesh8, mixed_precision=requested)
        assert len(fsdp.show(model).units) == 1


class TestFullPrecisionModules:
    """full_precision_modules: our keyword, next to `mp_policy`."""

    def test_what_they_read_and_return(self, mesh8: spmd.Mesh) -> None:
        class Watched(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.randn(16))

            def forward(self, x: Tensor, *, places: Tensor) -> dict[str, Tensor]:
                self.seen = x.dtype, self.weight.dtype, places.dtype
                return {"y": x * self.weight, "places": places}

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.up, self.inner, self.down = nn.Linear(16, 16), Watched(), nn.Linear(16, 16)

            def forward(self, x: Tensor) -> Tensor:
                made = self.inner(self.up(x), places=torch.arange(16, device=x.device))
                assert made["places"].dtype == torch.int64
                return self.down(made["y"])

        policy = fsdp.MixedPrecisionPolicy(BF16)
        model = FSDP(
            fsdp.checkpoint_module(Model()),
            mesh8,
            mp_policy=policy,
            full_precision_modules={Watched},
        )
        y = step(model, torch.randn(16, 16).to("xla"))
        assert model.inner.seen == (torch.float32, torch.float32, torch.int64)
        assert y.dtype == BF16
        assert model.inner.weight.grad.dtype == torch.float32
