"""Functions of PyTorch/XLA's FSDP that scripts use in addition to the wrapper."""

from functools import partial

import pytest
import torch
from support import check
from torch import nn
from torch.distributed.fsdp import MixedPrecision
from wrapped import FSDP, Net

import fsdp
import spmd


class TestRecursiveWrap:
    """recursive_wrap(module, auto_wrap_policy, wrapper_cls, ...) -> (module, wrapped elements)."""

    def test_in_place(self, mesh8: spmd.Mesh) -> None:
        model = nn.Sequential(nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 16), nn.ReLU()))
        made, count = fsdp.recursive_wrap(model, {nn.Linear}, fsdp.fully_shard, mesh=mesh8)
        assert made is model
        assert count == 2 * (16 * 16 + 16)
        assert len(fsdp.show(model).units) == 2

    def test_a_wrapper_takes_the_modules_place(self) -> None:
        class Wrapper(nn.Module):
            def __init__(self, module: nn.Module, tag: int = 0) -> None:
                super().__init__()
                self.module, self.tag = module, tag

        shared = nn.Linear(4, 4)
        model = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(4, 2))
        model[3]._wrap_overrides = {"tag": 2}
        policy = partial(fsdp.size_based_auto_wrap_policy, min_num_params=5)
        made, count = fsdp.recursive_wrap(model, policy, Wrapper, only_wrap_children=True, tag=1)
        assert made is model
        assert count == 30
        assert model[0] is model[2]
        assert (model[0].module, model[0].tag, model[3].tag) == (shared, 1, 2)

    def test_ignored(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        made, count = fsdp.recursive_wrap(
            model,
            {nn.Linear},
            nn.Sequential,
            ignored_modules=[model[0]],
            ignored_params=[model[1].bias],
        )
        assert count == 8
        assert [type(child) for child in made] == [nn.Linear, nn.Sequential]


class TestGetShardMetadata:
    """The metadata saved with a state dict consolidate to it."""

    def test_consolidated(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh=mesh8)
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        full = fsdp.consolidate_sharded_state_dicts([state], model.get_shard_metadata())
        assert list(full) == list(state)
        for name, value in full.items():
            check(model.state_dict()[name], value)


class TestMixedPrecisionOfTorch:
    """`torch.distributed.fsdp.MixedPrecision`: fields without a meaning here are named."""

    def test_named_in_a_warning(self, mesh8: spmd.Mesh) -> None:
        requested = MixedPrecision(torch.bfloat16, keep_low_precision_grads=True)
        with pytest.warns(UserWarning, match=r"keep_low_precision_grads \("):
            FSDP(Net(), mesh8, mixed_precision=requested)
