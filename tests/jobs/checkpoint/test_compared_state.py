"""Comparisons of a saved state with the objects that it is restored into, before anything is
loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fsdp
import spmd
from spmd.jobs.checkpoint import manifest


class TestWhatFits:
    """Names, shapes and groups are compared before anything is loaded."""

    def test_differences(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(tmp_path)
        layer = nn.Linear(4, 2).to("xla")
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        manager.save(
            0, {"model": layer, "optimizer": optimizer, "x": torch.ones(2, device="xla"), "n": 1}
        )
        wide, x = nn.Linear(5, 2).to("xla"), torch.zeros(3, device="xla")
        before = wide.bias.detach().cpu()
        state = {
            "modle": nn.Linear(4, 2),
            "model": wide,
            "x": x,
            "n": torch.ones(1),
            "optimizer": torch.optim.SGD([wide.weight], 0.1),
        }
        with pytest.raises(ValueError, match="nothing was loaded") as raised:
            manager.restore(state)
        for words in (
            (
                "'modle' is not in the step, which has 'model', 'optimizer', 'x', 'n'; did you "
                "mean 'model'?"
            ),
            "'model.weight' has the shape [2, 4] in the step and [2, 5] here",
            "'x' has the shape [2] in the step and [3] here",
            "'n' is a plain value in the step, and a tensor here",
            "'optimizer' has groups of [2] parameters in the step, and of [1] here",
        ):
            assert words in str(raised.value)
        assert torch.equal(wide.bias.detach().cpu(), before) and x.tolist() == [0, 0, 0]
        with pytest.raises(
            ValueError,
            match=r"'model': 'extra' is not in the step(?s:.*)'bias' is not in the model",
        ):
            model = nn.Linear(4, 2, bias=False)
            model.extra = nn.Parameter(torch.ones(1))
            manager.restore({"model": model})

    @pytest.mark.parametrize("is_named", [True, False])
    def test_another_optimizer(self, is_named: bool, tmp_path: Path) -> None:
        """By the class's name, and by the keys of its groups where a step has none or a
        wrapper's."""

        def made(kind: Callable[..., torch.optim.Optimizer], **given: Any) -> torch.optim.Optimizer:
            weight = torch.ones(2, device="xla")
            weight.grad = torch.ones(2, device="xla")
            optimizer = kind([weight], lr=0.5, **given)
            optimizer.step()
            return optimizer

        kinds, manager = (
            (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adam),
            spmd.CheckpointManager(tmp_path),
        )
        manager.save(0, {kind.__name__: made(kind) for kind in kinds})
        if not is_named:
            body = manifest.read(tmp_path / "0")
            for entry in body["values"].values():
                del entry["class"]
            (tmp_path / "0/manifest.json").write_text(manifest.text(body))
        for was, now, words in (
            (
                "AdamW",
                made(torch.optim.SGD),
                r"'betas', .* in the step alone, and 'momentum', .* here alone: make the ",
            ),
            (
                "SGD",
                made(torch.optim.AdamW),
                r"'momentum', .* in the step alone, and 'betas', .* here alone: make the ",
            ),
            (
                "AdamW",
                made(fsdp.ZeroRedundancyOptimizer, optimizer_class=torch.optim.SGD),
                r".*'momentum', ",
            ),
        ):
            said = (
                rf"'{was}' is {was if is_named else 'an optimizer'} in the step, and "
                rf"{type(now).__name__} here"
            )
            before = repr(now.state_dict())
            with pytest.raises(
                ValueError, match=rf"nothing was loaded:\s*{said}; param_groups have {words}"
            ):
                manager.restore({was: now})
            assert repr(now.state_dict()) == before
        if is_named:  # whose groups have the same keys
            with pytest.raises(
                ValueError,
                match="'Adam' is Adam in the step, and AdamW here: make the same optimizer",
            ):
                manager.restore({"Adam": made(torch.optim.AdamW)})
        same, wrapped = (
            made(torch.optim.AdamW),
            made(fsdp.ZeroRedundancyOptimizer, optimizer_class=torch.optim.AdamW),
        )
        torch.optim.lr_scheduler.StepLR(same, 1)  # adds initial_lr
        assert manager.restore({"AdamW": same}) == manager.restore({"AdamW": wrapped}) == 0

    def test_part_of_a_step(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(0, {"model": nn.Linear(4, 2).to("xla"), "n": 1})
        state = {"n": 0}
        manager.restore(state)
        assert state == {"n": 1}

    def test_names_of_wrappers(self, tmp_path: Path) -> None:
        layer, wrapper = nn.Linear(4, 2).to("xla"), nn.Module()
        wrapper._orig_mod = layer  # as torch.compile does
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(0, {"model": wrapper})
        other = nn.Linear(4, 2).to("xla")
        manager.restore({"model": other})
        assert torch.equal(other.weight.detach().cpu(), layer.weight.detach().cpu())
