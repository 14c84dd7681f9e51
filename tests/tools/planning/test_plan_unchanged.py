"""spmd.plan: nothing runs, moves or changes for it."""

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from planned import tokens, training
from torch import nn

import spmd
from recipes.gpt import cross_entropy
from spmd import AbstractError, Mesh
from spmd.core.record.storage import LIVE, READ, pending
from spmd.core.step import saved_state
from spmd.core.step.objects import Objects


class TestNothingMoves:
    """Data that a step would upload, or take from one mesh to another, stays where it is."""

    def test_two_meshes(self) -> None:
        first, second = Mesh(range(4), (4,), ("a",)), Mesh(range(4, 8), (4,), ("b",))
        weight = spmd.mark_sharding(torch.ones(8, 8, device="xla"), first, ("a", None))
        spmd.sync()
        leaf = weight._storage.value

        def step(x: torch.Tensor) -> torch.Tensor:
            weight.add_(1)
            h = spmd.mark_sharding(x.to("xla"), first, ("a", None)) @ weight
            return spmd.mark_sharding(h, second, ("b", None)) * 2

        plan = spmd.plan(step, torch.ones(8, 8))
        assert plan.num_programs == 2 and weight._storage.value is leaf
        assert step(torch.ones(8, 8)).sum().item() == 8 * 8 * 8 * 2 * 2

    def test_marked_data(self, mesh8: Mesh, mesh2x4: Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(16, 8, device="xla"), mesh8, ("fsdp", None))
        spmd.sync()
        leaf, sharding = x._storage.value, spmd.get_sharding(x)
        spmd.plan(lambda: spmd.mark_sharding(x, mesh2x4, ("data", None)) + 1)
        assert (
            x._storage.value is leaf
            and spmd.get_sharding(x) is sharding
            and leaf.sharding is sharding
        )
        assert x.sum().item() == 128

    def test_part_of_a_process(self) -> None:
        far = Mesh(range(16), (16,), ("data",), target="cpu:16")
        plan = spmd.plan(
            lambda x: spmd.from_process_local(x, far, ("data", None)).sum(), torch.ones(32, 4)
        )
        assert plan.inputs == 2 * 4 * 4 and plan.num_devices == 16


class TestNothingChanges:
    """Parameters, gradients, optimizer state, buffers, random streams, attributes, live set,
    ledger: as before."""

    def test_training_goes_on_as_if_nobody_had_asked(self, mesh8: Mesh) -> None:
        losses = []
        for asks in (False, True):
            torch.manual_seed(3)
            _, _, step = training(mesh8, dropout=0.1)
            found = []
            for iteration in range(4):
                if asks and iteration in (0, 2):
                    spmd.plan(step, tokens())
                found.append(step(tokens()))
                if iteration != 1:  # once the plan finds pending work
                    spmd.sync()
            losses.append([loss.item() for loss in found])
        assert losses[0] == losses[1]

    def test_state_stays(self, mesh8: Mesh) -> None:
        model, optimizer, step = training(mesh8)
        step(tokens())
        spmd.sync()
        cross_entropy(model(tokens().to("xla")), tokens().to("xla")).backward()
        spmd.sync()
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        gradients = [parameter.grad for parameter in model.parameters()]
        cells = [(parameter._storage, parameter._storage.value) for parameter in model.parameters()]
        state = copy.deepcopy(optimizer.state_dict())
        spmd.sync()
        counters = {name: spmd.metrics.counter(name) for name in spmd.metrics.counter_names()}
        before = (
            torch.get_rng_state(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.xla.get_rng_state(),
            len(spmd.metrics.compiles()),
            spmd.metrics.num_compiles(),
            len(LIVE),
            len(READ),
        )

        def noisy(x: torch.Tensor) -> None:
            torch.rand(3), random.random(), np.random.rand(), torch.rand(3, device="xla")
            step(x)

        plan = spmd.plan(noisy, tokens())
        assert plan.parameters
        after = (
            torch.get_rng_state(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.xla.get_rng_state(),
            len(spmd.metrics.compiles()),
            spmd.metrics.num_compiles(),
            len(LIVE),
            len(READ),
        )
        for one, two in zip(before, after, strict=True):
            assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two
        assert counters == {
            name: spmd.metrics.counter(name) for name in spmd.metrics.counter_names()
        }
        assert all(
            parameter.grad is grad
            for parameter, grad in zip(model.parameters(), gradients, strict=True)
        )
        assert all(cell.value is value for cell, value in cells)
        assert not pending()
        for name, value in model.state_dict().items():
            assert torch.equal(value.cpu(), weights[name].cpu()), name
        again = optimizer.state_dict()
        for key, one in state["state"].items():
            assert all(
                torch.equal(one[name].cpu(), again["state"][key][name].cpu()) for name in one
            )
        assert again["param_groups"] == state["param_groups"]

    def test_what_was_pending_stays_pending(self, mesh8: Mesh) -> None:
        with torch.device("xla"):
            model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        values = [value for cell in pending() for value in (cell, cell.value)]
        x = torch.ones(4, 8, device="xla") * 3
        spmd.plan(lambda: model(x).sum().backward())
        assert [value for cell in pending() for value in (cell, cell.value)][
            : len(values)
        ] == values
        assert model[1].num_batches_tracked.item() == 0 and model[0].weight.grad is None
        assert x.sum().item() == 96

    def test_attributes_and_schedulers(self) -> None:
        class Trainer:
            def __init__(self) -> None:
                with torch.device("xla"):
                    self.model = nn.Linear(4, 4)
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
                self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
                self.steps, self.losses, self.last = 0, [], None

            def step(self, x: torch.Tensor) -> None:
                self.last = self.model(x.to("xla")).sum()
                self.last.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.schedule.step()
                self.steps += 1
                self.losses.append(self.last.detach())

        trainer = Trainer()
        spmd.plan(trainer.step, torch.ones(2, 4))
        assert (trainer.steps, trainer.losses, trainer.last) == (0, [], None)
        assert trainer.optimizer.param_groups[0]["lr"] == 1.0 and trainer.schedule.last_epoch == 0
        trainer.step(torch.ones(2, 4))
        assert trainer.steps == 1 and trainer.losses[0].item() == trainer.last.item()

    def test_attributes_are_no_globals(self) -> None:
        """A method called as a global of the script is leads to nothing; a global that is read or
        written does."""
        names: dict[str, Any] = {"torch": torch, "optimizer": None, "written": 0}
        code = """
def step(x):
    optimizer.train(x).zero_grad()
    global written
    written += 1
    return [one.model for one in ()], (lambda: outer)
"""
        exec(code, names)
        names |= {
            name: nn.Linear(4, 4) for name in ("train", "zero_grad", "model", "outer", "optimizer")
        }
        found = Objects.of_step(names["step"], ())
        assert {id(module) for module in found.of(nn.Module)} == {
            id(names["outer"]),
            id(names["optimizer"]),
        }
        with saved_state.restored_after(found):
            names["written"] = 3
        assert names["written"] == 0

    def test_where_the_step_raises(self, mesh8: Mesh) -> None:
        model, optimizer, step = training(mesh8)

        def fails(x: torch.Tensor) -> None:
            step(x)
            raise KeyError("no such batch")

        with pytest.raises(KeyError, match="no such batch"):
            spmd.plan(fails, tokens())
        assert not optimizer.state and all(
            parameter.grad is None for parameter in model.parameters()
        )
        loss = step(tokens())
        spmd.sync()
        assert loss.item() > 0

    def test_what_outlives_a_plan_has_no_data(self) -> None:
        kept = []  # reached through an object that plan cannot see into

        class Hidden:
            __slots__ = ("append",)

        hidden = Hidden()
        hidden.append = kept.append
        spmd.plan(lambda x: hidden.append(x.to("xla") + 1), torch.ones(3))
        spmd.sync()
        with pytest.raises(
            AbstractError, match=r"test_plan_unchanged\.py.*float32\[3\] is abstract"
        ):
            kept[0].tolist()
